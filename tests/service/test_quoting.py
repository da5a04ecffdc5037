"""Whatever a file says arrives as the one word it was written as: in dash, in bash, and in a container's command."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ridgeline.records.launch import OnNode
from ridgeline.serving.service.file import load_service
from ridgeline.serving.service.members import members_of
from ridgeline.serving.service.quoting import in_comment, in_pod, in_shell, in_unit, shell_line
from ridgeline.serving.service.render import render
from ridgeline.serving.service.scripts import start_script

SHELLS = [shell for shell in ("dash", "bash") if shutil.which(shell)]
NASTY = st.text(st.sampled_from(list("$`\"'\\ \n\t(){};&|<>*?[]~#!=%-a0é")) | st.characters(codec="utf-8"), max_size=30)
WORDS = st.lists(NASTY.map(lambda text: text.replace("\0", "")), min_size=1, max_size=4)
PYTHON = in_shell(sys.executable)
PRINT = "import sys; sys.stdout.buffer.write(b'\\0'.join(w.encode() for w in sys.argv[1:]))"


def arrives(shell: str, line: str) -> list[str]:
    """The words that a program started by this line is given."""
    script = f"exec {PYTHON} -I -S -c {in_shell(PRINT)} {line}\n"
    done = subprocess.run([shell], input=script.encode(), capture_output=True, timeout=600, check=True)
    return done.stdout.decode().split("\0")


@pytest.mark.parametrize("shell", SHELLS)
@settings(max_examples=40)
@given(WORDS)
@example(["$(touch owned)", "`id`", "${HOME}", "$", "$$", "a'b", 'a"b', "\\", "\n", "", "!x", "~", "#"])
@example(["x\r\ny", "\u2028", "-n", "é\\'"])
def test_words_arrive_as_they_were_written(shell: str, argv: list[str]) -> None:
    assert arrives(shell, shell_line(argv)) == argv


@pytest.mark.parametrize("shell", SHELLS)
@settings(max_examples=40)
@given(NASTY.map(lambda text: text.replace("\0", "").replace("$", "")), NASTY.map(lambda t: t.replace("\0", "")))
@example("http://", ":80`id`")
@example('"', "\\")
def test_only_our_variables_are_filled_in_and_their_values_are_not_looked_at(
    shell: str, before: str, value: str
) -> None:
    line = f"{before}$here:1"
    assert arrives(shell, f"{in_shell(OnNode(line))}") == [f"{before}:1"], "it is not set"
    script = f"here={in_shell(value)}\nexec {PYTHON} -I -S -c {in_shell(PRINT)} {in_shell(OnNode(line))}\n"
    done = subprocess.run([shell], input=script.encode(), capture_output=True, timeout=600, check=True)
    assert done.stdout.decode() == f"{before}{value}:1"


def kubernetes_fills_in(text: str, values: dict[str, str]) -> str:
    """By the rules of the API's `command` and `env`: $$ is a dollar, $(NAME) its value, all else stays."""
    return re.sub(
        r"\$\$|\$\((.*?)\)",
        lambda found: "$" if found[0] == "$$" else values.get(found[1], found[0]),
        text,
        flags=re.DOTALL,
    )


@given(NASTY)
@example("$(POD_IP)")
@example("$$(POD_IP)")
@example("a$$b$")
@example("$($(x))")
def test_words_arrive_in_a_pod_and_through_yaml(text: str) -> None:
    written = yaml.safe_dump({"command": [in_pod(text, {})]})
    (word,) = yaml.safe_load(written)["command"]
    assert kubernetes_fills_in(word, {"POD_IP": "10.0.0.1", "x": "y"}) == text


def test_our_variables_are_filled_in_in_a_pod() -> None:
    word = in_pod(OnNode("http://$address:80$$"), {"address": "POD_IP"})
    assert kubernetes_fills_in(word, {"POD_IP": "10.0.0.1"}) == "http://10.0.0.1:80$$"


@given(NASTY)
@example("x\nrm -rf /")
@example("x\x0bid\x85id\u2028id")
def test_a_comment_stays_on_its_line(text: str) -> None:
    assert len(f"# {in_comment(text)}".splitlines()) == 1


ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


def systemd_takes(line: str) -> list[str]:
    """Words of ExecStart=, by systemd.service(5): quotes, escapes of C, then %% and $$ for one of each."""
    argv, rest = [], line
    while rest := rest.lstrip(" "):
        found = re.match(r'(?:"((?:[^"\\]|\\.)*)"|([\w./:=@+,-]+))(?= |$)', rest, re.DOTALL)
        assert found, f"{rest!r} does not begin with a word"
        plain = re.sub(r"\\(.)", lambda m: ESCAPES.get(m[1], m[1]), found[1] or found[2] or "", flags=re.DOTALL)
        assert not re.search(r"(?<!%)%(?:%%)*(?!%)|(?<!\$)\$(?:\$\$)*(?!\$)", plain), "something would be filled in"
        argv.append(plain.replace("%%", "%").replace("$$", "$"))
        rest = rest[found.end() :]
    return argv


@given(WORDS)
@example(["%h", "$HOME", "${HOME}", "100%", "a\nExecStartPost=/bin/id", 'x" "y', "\\", ";", ""])
def test_words_arrive_in_a_unit_of_systemd(argv: list[str]) -> None:
    line = " ".join(map(in_unit, argv))
    assert "\n" not in line, "a second line would be another setting"
    assert systemd_takes(line) == argv


BAD = "a $HOME `touch owned` $(touch owned) \"'; touch owned; #"
PROGRAM = "#!/bin/sh\nprintf '%s\\n' \"$@\"\n"


@pytest.mark.parametrize("key", ["served_name", "name", "host", "model", "argument", "value", "env"])
@pytest.mark.parametrize("shell", SHELLS)
def test_nothing_that_a_file_says_is_run(tmp_path: Path, key: str, shell: str) -> None:
    python = tmp_path / "python"
    python.write_text(PROGRAM + 'printf "%s\\n" "$SAID"\n')
    python.chmod(0o755)
    unit = {"settings": {"tp": 1, "tool_call_parser": BAD if key == "value" else "x"}}
    unit |= {"arguments": ["--note", BAD if key == "argument" else "x"], "env": {"SAID": BAD if key == "env" else "x"}}
    said: dict[str, object] = {"version": 1, "model": "org/m", "engine": {"kind": "sglang", "python": str(python)}}
    said |= {"units": [unit], **({key: BAD} if key in ("served_name", "name", "host", "model") else {})}
    file = tmp_path / "s.yaml"
    file.write_text(yaml.safe_dump(said))
    service = load_service(file)
    for target in ("local", "slurm", "pbs"):
        for path in render(service, tmp_path / target, target):
            subprocess.run([shell, "-n", path], check=True)
    (tmp_path / "start.sh").write_text(start_script(service, members_of(service)[0]))
    done = subprocess.run([shell, "start.sh"], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=True)
    assert not list(tmp_path.rglob("owned"))
    if key != "name":
        assert BAD in done.stdout.splitlines()


@pytest.mark.parametrize(
    ("key", "value"),
    [("name", "x\nid"), ("served_name", "x\x07"), ("host", "a\nb"), ("model", "m\n"), ("api_key_env", "A\nB")],
)
def test_a_line_break_where_one_line_is_meant_is_refused(tmp_path: Path, key: str, value: str) -> None:
    from ridgeline.errors import StudyError

    file = tmp_path / "s.yaml"
    said = {"version": 1, "model": "m", "engine": {"kind": "sglang"}, "units": [{"settings": {"tp": 1}}], key: value}
    file.write_text(yaml.safe_dump(said))
    with pytest.raises(StudyError, match=rf"s.yaml:\d+: {key}"):
        load_service(file)
