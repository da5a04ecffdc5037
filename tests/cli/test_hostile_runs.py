"""What a hostile or broken job leaves behind: no verb waits for it, obeys it, follows it or falls over it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ridgeline.campaign.assembly import assemble_campaign, assemble_folder
from ridgeline.campaign.check import check_study
from ridgeline.campaign.kinds.search import SearchQuestion
from ridgeline.cli.main import main
from ridgeline.study.history import read_history

WAIT_S = 120  # a verb that waits for a pipe would wait for ever
STUDY = r"""
version: 1
name: quick
workload:
  kind: command
  run: 'echo "rate $(( 100 + {x} ))"; echo "note fine" > notes.txt; {more}'
  metrics:
    rate: {{regex: 'rate (\d+)', unit: 1/s{file}}}
    note: {{regex: 'note (\w+)', type: text, file: notes.txt}}
space: {{x: [1, 2, 3]}}
goal: {{maximize: rate}}
{guards}baseline: {{x: 1}}
budget: {{trials: 2}}
search: {{sampler: random, seed: 3}}
stages: {{baseline: {{repeats: 1}}}}
confirm: {{top: 1, blocks: 3}}
job: {{limit: 60}}
"""
READING = {
    "status": ["status", "DIR"],
    "best": ["best", "DIR"],
    "study verify": ["study", "verify", "DIR"],
    "report": ["report", "DIR"],
    "study export": ["study", "export", "DIR"],
    "study nodes": ["study", "nodes", "DIR"],
    "study diff": ["study", "diff", "DIR", "DIR"],
}


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def ridgeline(*words: object, cwd: Path) -> Done:
    """The verb, in this process: a new one for each would take most of the time. TimeoutError where it waits."""

    def ring(number: int, frame: object) -> None:
        raise TimeoutError(f"{words} waits for something")

    out, err, code = io.StringIO(), io.StringIO(), 0
    before = signal.signal(signal.SIGALRM, ring)
    with contextlib.chdir(cwd), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        argv, sys.argv = sys.argv, ["ridgeline", *map(str, words)]
        signal.alarm(WAIT_S)
        try:
            main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
            sys.argv = argv
    return Done(code, out.getvalue(), err.getvalue())


def study_text(more: str = "true", file: str = "", guards: str = "") -> str:
    return STUDY.format(more=more, file=file and f", file: {file}", guards=guards, x="{x}")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a real campaign, run once; tests spoil copies of it."""
    home = tmp_path_factory.mktemp("honest")
    (home / "quick.yaml").write_text(study_text())
    made = assemble_folder(check_study(home / "quick.yaml"), home / "out", "quick")
    with assemble_campaign(made, SearchQuestion()) as campaign:
        campaign.run()
    return made.path


@pytest.fixture
def spoilt(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "out", symlinks=True)
    return tmp_path / "out"


def first_run(folder: Path) -> Path:
    return min((folder / "runs").iterdir())


def fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def listening(path: Path) -> None:
    path.unlink(missing_ok=True)
    # a socket's name has at most 107 characters
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)


# no regular files


@pytest.mark.parametrize("place", [fifo, endless, listening])
@pytest.mark.parametrize("name", ["stdout", "stderr", "notes.txt", "result.json", "run.sh", "env"])
def test_what_a_run_left_that_is_no_file_makes_no_verb_wait(
    spoilt: Path, place: Callable[[Path], None], name: str
) -> None:
    place(first_run(spoilt) / name)
    for words in (READING["study verify"], READING["report"], READING["status"]):
        done = ridgeline(*(spoilt if word == "DIR" else word for word in words), cwd=spoilt.parent)
        assert "Traceback" not in done.stderr
        if words[0] == "verify" and name in ("stdout", "notes.txt", "result.json"):
            assert done.returncode == 1
            assert name in done.stdout
    assert "not a regular file" in ridgeline("study", "verify", spoilt, cwd=spoilt.parent).stdout or name in (
        "stderr",
        "env",
    )


@pytest.mark.parametrize("place", [fifo, endless, listening])
@pytest.mark.parametrize("name", ["study.yaml", "journal.jsonl"])
def test_a_study_folder_of_pipes_is_refused(spoilt: Path, place: Callable[[Path], None], name: str) -> None:
    place(spoilt / name)
    for words in (*READING.values(), ["resume", "DIR"]):
        done = ridgeline(*(spoilt if word == "DIR" else word for word in words), cwd=spoilt.parent)
        assert "Traceback" not in done.stderr
        assert done.returncode in (2, 5), words
        assert name in done.stderr


@pytest.mark.parametrize("verb", ["check", "tune", "diagnose", "twin import"])
@pytest.mark.parametrize("place", [fifo, endless, listening])
def test_a_named_file_that_is_no_file_is_refused(tmp_path: Path, place: Callable[[Path], None], verb: str) -> None:
    place(tmp_path / "given")
    done = ridgeline(*verb.split(), "given", cwd=tmp_path)
    assert "Traceback" not in done.stderr
    assert done.returncode in (2, 4)
    assert "not a regular file" in done.stderr


@pytest.mark.parametrize(
    ("more", "file", "guards", "reason"),
    [
        ("rm stdout; mkfifo stdout", "", "", "stdout: is a named pipe, not a regular file"),
        ("mkfifo figures", "figures", "", "figures: is a named pipe, not a regular file"),
        ("rm stderr; ln -s /dev/zero stderr; ln -s /dev/zero figures", "figures", "", "figures: is a device"),
        ("mkfifo log.txt", "", "guards: ['log.txt lacks \"nan\"']\n", "log.txt: is a named pipe"),
        ("ln -s /dev/zero log.txt", "", "guards: ['log.txt lacks \"nan\"']\n", "log.txt: is a device"),
        ("mkfifo result.json", "", "", ""),
    ],
)
def test_a_campaign_over_a_job_that_leaves_pipes_goes_on(
    tmp_path: Path, more: str, file: str, guards: str, reason: str
) -> None:
    (tmp_path / "quick.yaml").write_text(study_text(more, file, guards))
    done = ridgeline("tune", "quick.yaml", "--out", "out", cwd=tmp_path)
    assert "Traceback" not in done.stderr
    runs = [*read_history(tmp_path / "out").runs.values()]
    for run in runs:
        assert run.outcome is not None
        assert reason in run.outcome.reason
        assert (run.outcome.kind.value == "ok") is (not reason)
    assert runs


# what is written


@pytest.mark.parametrize("name", ["result.json", "stdout", "stderr"])
def test_nothing_is_written_through_a_link_that_a_job_placed(tmp_path: Path, name: str) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine\n" * 1000)
    text = study_text(f"rm -f {name}; ln -s {precious} {name}")
    (tmp_path / "quick.yaml").write_text(text.replace("job: {limit: 60}", "job: {limit: 60, output: 0.001 MB}"))
    done = ridgeline("tune", "quick.yaml", "--out", "out", cwd=tmp_path)
    assert "Traceback" not in done.stderr
    assert read_history(tmp_path / "out").runs
    assert precious.read_text() == "mine\n" * 1000


def test_a_folder_in_the_place_of_the_result_ends_no_campaign(tmp_path: Path) -> None:
    (tmp_path / "quick.yaml").write_text(study_text("mkdir result.json"))
    done = ridgeline("tune", "quick.yaml", "--out", "out", cwd=tmp_path)
    assert done.returncode in (0, 1), done.stderr
    assert "result.json" in ridgeline("study", "verify", "out", cwd=tmp_path).stdout


# numbers

HUGE = "7" * 400


@pytest.mark.parametrize("digits", [HUGE, "7" * 5000])
@pytest.mark.parametrize("written", ["echo '{{\"rate\": %s}}' > figures", "echo 'rate %s'", "true"])
def test_a_number_of_hundreds_of_digits_is_no_measurement(tmp_path: Path, written: str, digits: str) -> None:
    metric = "{json: rate, file: figures}" if "figures" in written else r"{regex: 'rate (\d+)', pick: max}"
    text = study_text(written.replace("%s", digits).replace("'", "''")).replace(
        r"{regex: 'rate (\d+)', unit: 1/s}", metric
    )
    (tmp_path / "quick.yaml").write_text(text)
    done = ridgeline("tune", "quick.yaml", "--out", "out", cwd=tmp_path)
    assert "Traceback" not in done.stderr
    for run in read_history(tmp_path / "out").runs.values():
        assert run.outcome is not None
        assert (run.outcome.kind.value == "ok") is (written == "true")
    verified = ridgeline("study", "verify", "out", cwd=tmp_path)
    assert "Traceback" not in verified.stderr


@pytest.mark.parametrize("digits", [HUGE, "7" * 5000, "1e999"])
@pytest.mark.parametrize("key", ['"at": ', '"started": ', '"ended": ', '"trial": ', '"attempt": ', '"x": ', '"rate", '])
def test_a_journal_with_such_a_number_is_damaged(spoilt: Path, key: str, digits: str) -> None:
    journal = spoilt / "journal.jsonl"
    text = journal.read_text().replace('":', '": ').replace('",', '", ')
    journal.write_text(re.sub(f"{re.escape(key)}[-+.0-9e]+", f"{key}{digits}", text))
    for words in READING.values():
        done = ridgeline(*(spoilt if word == "DIR" else word for word in words), cwd=spoilt.parent)
        assert done.returncode in (0, 1, 5, 7), done.stderr
        if len(digits) > 300 and words[0] != "report":  # which says so on its page
            assert "journal.jsonl" in done.stderr + done.stdout


@pytest.mark.parametrize("digits", [HUGE, "7" * 5000, "1e999", "-1e999", "NaN"])
def test_a_result_file_with_such_a_number_does_not_match(spoilt: Path, digits: str) -> None:
    result = first_run(spoilt) / "result.json"
    result.write_text(re.sub(r'("started": )[0-9.]+', rf"\g<1>{digits}", result.read_text()))
    done = ridgeline("study", "verify", spoilt, cwd=spoilt.parent)
    assert done.returncode == 1, done.stderr
    assert "result.json" in done.stdout


@pytest.mark.parametrize("digits", [HUGE, "7" * 60, "1e999", "0x" + "f" * 60])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x: [1, 2, 3]", "x: [1, %s]"),
        ("x: [1, 2, 3]", "x: {from: 1, to: %s}"),
        ("x: [1, 2, 3]", "x: {from: 1, to: %s, step: 2}"),
        ("x: [1, 2, 3]", "x: {from: 1, to: %s, log: true}"),
        ("trials: 2", "trials: %s"),
        ("limit: 60", "limit: %s"),
        ("seed: 3", "seed: %s"),
        ("blocks: 3", "blocks: %s"),
        ("repeats: 1", "repeats: %s"),
        ("baseline: {x: 1}", "baseline: {x: 1}\nguards: ['rate < %s']"),
        ("baseline: {x: 1}", "baseline: {x: 1}\nguards: ['rate within %s of baseline']"),
        ("job: {", "job: {cores: %s, "),
        ("version: 1", "version: %s"),
    ],
)
def test_a_study_with_such_a_number_is_checked_without_a_traceback(
    tmp_path: Path, old: str, new: str, digits: str
) -> None:
    text = study_text()
    assert old in text
    (tmp_path / "quick.yaml").write_text(text.replace(old, new.replace("%s", digits), 1))
    done = ridgeline("check", "quick.yaml", cwd=tmp_path)
    assert done.returncode in (0, 2), done.stderr
    assert "Traceback" not in done.stderr


# what reaches the terminal

SPITE = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202e"


def spiteful(value: object) -> object:
    """The same JSON value with such characters in every text that is free."""
    if isinstance(value, dict):
        fixed = (
            "event",
            "kind",
            "stage",
            "cause",
            "act",
            "folder",
            "conclusion",
            "verdict",
            "asked",
            "origin",
            "scale",
        )
        return {k: v if k in fixed and not isinstance(v, dict) else spiteful(v) for k, v in value.items()}
    if isinstance(value, list):
        if len(value) == 5 and isinstance(value[1], int | float):  # a measurement: its name and origin mean something
            return [value[0], value[1], f"{value[2]}{SPITE}", f"{value[3]}{SPITE}", value[4]]
        return [spiteful(item) for item in value]
    return f"{value}{SPITE}" if isinstance(value, str) else value


@pytest.fixture
def cursed(spoilt: Path) -> Path:
    """A journal and run folders in which every text tries to steer the terminal."""
    journal = spoilt / "journal.jsonl"
    events = []
    for line in journal.read_text().splitlines():
        event = json.loads(line)
        event.pop("asked", None)
        changed = spiteful(event)
        assert isinstance(changed, dict)
        for name in ("question", "point", "settings", "candidates", "verdict"):
            if name in event:
                changed[name] = event[name]
        if event["event"] == "ended":
            changed["ending"]["nodes"] = [f"node{SPITE}"]
            if event["run"] == 2:
                changed["outcome"] = {
                    "kind": "crash",
                    "reason": f"why{SPITE}",
                    "evidence": ["stderr", 1, f"line{SPITE}"],
                }
        if event["event"] == "verdict":
            changed["verdict"] = {**event["verdict"], "headline": f"better{SPITE}"}
        events.append(changed)
    events.append({"event": "stopped", "at": events[-1]["at"], "reason": f"enough{SPITE}"})
    journal.write_text("".join(f"{json.dumps(event)}\n" for event in events))
    for run in (spoilt / "runs").iterdir():
        for name in ("stdout", "stderr", "notes.txt"):
            (run / name).write_bytes((run / name).read_bytes() + f"{SPITE} note {SPITE}\n".encode())
        (run / "result.json").write_text(json.dumps({"settings": {"x": SPITE}}))
    return spoilt


def obeyed(text: str) -> list[str]:
    text = text.replace("\r\n", "\n")  # of CSV
    return [c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")]


@pytest.mark.parametrize(
    "verb", [*READING, "status --follow", "diagnose", "diagnose --json", "check", "best --script -"]
)
def test_no_verb_lets_a_program_steer_the_terminal(cursed: Path, verb: str) -> None:
    name, *more = verb.split()
    words = READING.get(name, [name, "runs/0001-x1/stdout" if name == "diagnose" else "study.yaml"])
    done = ridgeline(*(cursed if word == "DIR" else word for word in words), *more, cwd=cursed)
    assert "Traceback" not in done.stderr
    assert done.stdout + done.stderr
    assert done.returncode != 5, done.stderr  # or the journal would not have been read at all
    assert not obeyed(done.stdout + done.stderr)


def test_a_study_cannot_be_called_so(tmp_path: Path) -> None:
    named = study_text().replace("name: quick", 'name: "quick\\e]0;owned\\a\\x9b\\u202e"')
    (tmp_path / "quick.yaml").write_text(named)
    done = ridgeline("check", "quick.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert not obeyed(done.stdout + done.stderr)


def test_a_message_that_names_a_hostile_file_is_clean(tmp_path: Path) -> None:
    done = ridgeline("status", f"no{SPITE}", cwd=tmp_path)
    assert done.returncode == 5
    assert "no\N{REPLACEMENT CHARACTER}]0;owned" in done.stderr
    assert not obeyed(done.stderr)


def test_tune_shows_nothing_that_a_program_writes_for_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "quick.yaml").write_text(study_text("printf ''note \\033[2J\\007\\n'' >&2; test {x} -lt 2"))
    done = ridgeline("tune", "quick.yaml", "--out", "out", cwd=tmp_path)
    assert "crash" in done.stdout
    assert not obeyed(done.stdout + done.stderr)


def test_an_export_ends_its_lines_as_csv_does(spoilt: Path) -> None:
    done = ridgeline("study", "export", spoilt, cwd=spoilt)
    assert done.stdout.count("\r\n") == done.stdout.count("\n") > 1
    assert "\N{REPLACEMENT CHARACTER}" not in done.stdout


def test_on_a_terminal_our_own_drawing_is_all_that_is_obeyed(cursed: Path) -> None:
    """`status --follow` on a screen: nothing but what moves the cursor, hides it and colours."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "ridgeline", "status", "--follow", str(cursed)]
    child = subprocess.Popen(command, stdout=slave, stderr=slave, env={**os.environ, "TERM": "xterm"})
    os.close(slave)
    shown = b""
    with contextlib.suppress(OSError):  # how Linux says that the other side is gone
        while piece := os.read(master, 65536):
            shown += piece
    os.close(master)
    assert child.wait(WAIT_S) == 0, shown
    rest = re.sub(r"\x1b\[(\d*[AK]|[\d;]*m|\?25[lh])|\r", "", shown.decode())
    assert "quick" in rest
    assert not obeyed(rest)
