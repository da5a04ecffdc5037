"""The guides of the serving verbs show what the verbs print.

Every `$ ridgeline` block is run, in order, in a folder that holds the files its page shows with `$ cat`. Where nothing
is simulated the output is compared word for word; where it is, figures may move with the twin, and only the words
between them are held. A line `...` stands for what is left out between a block's first and last lines.
`RIDGELINE_REFRESH_GUIDES=1 pytest tests/cli/test_serving_guides.py` writes today's output into the pages; a refusal
stays a refusal.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from ridgeline.cli.main import all_commands, main

ROOT = Path(__file__).parents[2]
PAGES = ("plan-a-cluster.md", "predict-a-server.md", "calibrate-the-twin.md", "models-and-gpus.md")
BLOCK = re.compile(r"```\n\$ ([^\n]+)\n(.*?)```", re.DOTALL)
SIMULATED = ("twin simulate", "twin explain", "twin calibrate", "plan", "plan fleet", "plan sessions", "check")
REFRESH = bool(os.environ.get("RIDGELINE_REFRESH_GUIDES"))
WIDEST = 150
LEFT_OUT = "\n...\n"


@pytest.mark.parametrize("page", PAGES)
def test_guide(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / "docs" / "guides" / page
    text = path.read_text()
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "tests/samples/sglang/offline-llama8b-h200-default.log", "server.log")
    for command, shown in BLOCK.findall(text):
        if command.startswith("cat "):
            Path(command.removeprefix("cat ")).write_text(shown)
            continue
        printed = trimmed(printed_by(command, monkeypatch, capsys, refused=shown.startswith("ridgeline: ")))
        if LEFT_OUT in shown and verb_of(command) not in SIMULATED:
            first, last = (part.splitlines() for part in shown.split(LEFT_OUT))
            lines = printed.splitlines()
            printed = "\n".join([*lines[: len(first)], "...", *lines[len(lines) - len(last) :], ""])
        if REFRESH:
            text = text.replace(f"$ {command}\n{shown}```", f"$ {command}\n{printed}```")
        elif verb_of(command) in SIMULATED:
            assert words_of(shown) <= words_of(printed), command
        else:
            assert shown == printed, command
    if REFRESH:
        path.write_text(text)


def verb_of(command: str) -> str:
    first, *more = command.partition("ridgeline ")[2].split()
    inside = f"{first} {more[0]}" if more else first
    return inside if inside in all_commands() else first


def printed_by(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, refused: bool
) -> str:
    """What a terminal would show."""
    words = shlex.split(command)
    with monkeypatch.context() as patched:
        while "=" in words[0]:
            name, _, value = words.pop(0).partition("=")
            patched.setenv(name, value)
        patched.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            main()
    out, err = capsys.readouterr()
    none_fits = out.startswith("does not fit")
    assert (ended.value.code or 0) == (2 if refused else 1 if none_fits else 0), err
    return err if refused else out


def trimmed(printed: str) -> str:
    """Commands of a server are longer than a page is wide; of a message the end is what helps."""
    lines = [
        s if len(s) <= WIDEST or s.startswith("ridgeline: ") else s[: WIDEST - 10].rsplit(" ", 1)[0] + " ..."
        for s in printed.splitlines()
    ]
    return "\n".join(lines) + "\n"


def words_of(text: str) -> set[str]:
    """The words that do not depend on a figure."""
    return {
        word
        for line in text.splitlines()
        if not line.startswith("    python3")
        for word in re.findall(r"[A-Za-z]{2,}", line)
    }


def test_every_serving_verb_has_a_worked_example() -> None:
    shown = {
        verb_of(c)
        for p in PAGES
        for c, _ in BLOCK.findall((ROOT / "docs" / "guides" / p).read_text())
        if "ridgeline " in c
    }
    of_plan = {"plan", "plan hardware", "plan memory", "plan layouts"}
    assert shown >= {"model show", "twin simulate", "twin explain", "twin calibrate", *of_plan}
