"""A study folder from a stranger is data: no verb that reads it starts anything that it names."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ridgeline.cli.main import all_commands
from tests.command_line import ridgeline

REAL = Path(__file__).parent.parent.parent / "examples" / "05-sglang-h200" / "results"
# what the interpreter is about to start, one a line; run before the verb
TRACER = """\
import os, sys

_log = os.open(os.environ["STARTED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
_starts = {"subprocess.Popen": 1, "os.exec": 0, "os.posix_spawn": 0, "os.system": 0, "os.spawn": 1, "pty.spawn": 0}
def _hook(event, arguments):
    if event in _starts:
        os.write(_log, (repr(arguments[_starts[event]]) + "\\n").encode())
sys.addaudithook(_hook)
"""
READING = {
    "status": ["status", "DIR", "--json"],
    "best": ["best", "DIR"],
    "study verify": ["study", "verify", "DIR"],
    "report": ["report", "DIR"],
    "study export": ["study", "export", "DIR"],
    "study nodes": ["study", "nodes", "DIR"],
    "diagnose": ["diagnose", "DIR/journal.jsonl"],
    "study bug": ["study", "bug", "DIR/runs/0001"],
    "study diff": ["study", "diff", "DIR", "DIR"],
}
# verbs that run a study or a service, or that take no study folder
OTHERS = {
    *("check", "tune", "resume", "watch", "compare", "bench", "mcp"),
    *("study edge", "study scale", "study steps", "ci gate", "ci bisect"),
    *("site check", "site list", "site schema", "site preflight"),
    *(f"site grant {verb}" for verb in ("show", "create", "top-up", "release")),
    *(f"twin {verb}" for verb in ("simulate", "explain", "calibrate", "import", "sessions", "serve")),
    *("plan", "plan fleet", "plan memory", "plan layouts", "plan sessions", "plan hardware"),
    *("model show", "model list", "model make"),
    *(f"service {verb}" for verb in ("check", "render", "up", "status", "drain", "undrain", "restart", "down")),
    *("service keep", "service rehearse"),
}


def trap(path: Path, marker: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\ntouch {marker}\necho 9.9.9\n")
    path.chmod(0o755)


def hostile(folder: Path, source: str, workload: str, marker: Path, *, origin: bool) -> Path:
    """A campaign that really ran, whose study now names programs that lie in the folder itself."""
    shutil.copytree(REAL / source, folder)
    study = folder / "study.yaml"
    # a flag that our table does not have: only the engine could say whether it is one
    text = study.read_text().replace("flags: {", "flags: {frobnicate_size: 3, ", 1)
    study.write_text(text.replace("\nworkload:\n", f"\nworkload:\n{workload}", 1))
    journal = folder / "journal.jsonl"
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    for event in events:
        event.pop("asked", None)  # whoever writes a journal can also write what it binds
    journal.write_text("".join(f"{json.dumps(event)}\n" for event in events))
    for place in (folder, folder / "sources", folder / "sources" / "evil" / "bin"):
        for name in ("evilpy", "python", "python3"):
            trap(place / name, marker)
    if origin:
        (folder / "origin").write_text(f"{folder / 'sources'}\n")
    return folder


def traced(folder: Path, *words: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """The verb, and what it started."""
    started = folder.parent / "started"
    started.write_text("")
    env = {**os.environ, "STARTED": str(started)}
    done = ridgeline(*(word.replace("DIR", str(folder)) for word in words), cwd=folder, env=env, before=TRACER)
    return done, started.read_text().splitlines()


def test_every_verb_is_on_one_of_the_lists() -> None:
    assert READING.keys() | OTHERS == all_commands().keys()


@pytest.mark.parametrize(
    ("source", "workload", "origin"),
    [
        ("deepseek-v2-lite", "  engine: ./evilpy\n", False),
        ("deepseek-v2-lite", "  engines: {a: {venv: ./evil}, b: {python: ./evilpy}}\n  engine: a\n", True),
        ("llama-8b-serve", "  engine: ./evil\n", True),
    ],
    ids=["interpreter", "table of engines", "virtual environment"],
)
def test_reading_a_hostile_folder_starts_nothing_of_it(
    tmp_path: Path, source: str, workload: str, origin: bool
) -> None:
    marker = tmp_path / "it-ran"
    folder = hostile(tmp_path / "study", source, workload, marker, origin=origin)
    for words in READING.values():
        done, started = traced(folder, *words)
        assert "Traceback" not in done.stderr
        assert not [line for line in started if str(folder) in line or "evil" in line], words
        assert not marker.exists(), words


def test_a_bug_report_of_a_hostile_folder_starts_nothing_of_it(tmp_path: Path) -> None:
    marker = tmp_path / "it-ran"
    folder = hostile(tmp_path / "study", "deepseek-v2-lite", "  engine: ./evilpy\n", marker, origin=True)
    journal = folder / "journal.jsonl"
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    failed = [event for event in events if event["event"] == "ended"][-1]
    failed["outcome"] = {"kind": "crash", "reason": "it says so"}
    names = {event["run"]: event["folder"] for event in events if event["event"] == "run"}
    journal.write_text("".join(f"{json.dumps(event)}\n" for event in events))
    done, started = traced(folder, "study", "bug", f"DIR/{names[failed['run']]}")
    assert "## Command" in done.stdout and "sglang" in done.stdout, done.stderr
    assert not [line for line in started if str(folder) in line or "evil" in line]
    assert not marker.exists()


def test_the_tracer_and_the_trap_would_notice(tmp_path: Path) -> None:
    """`check` says what it asks an engine for (docs/security.md), so it is what starts the trap here."""
    marker = tmp_path / "it-ran"
    folder = hostile(tmp_path / "study", "deepseek-v2-lite", "  engine: ./evilpy\n", marker, origin=False)
    shutil.copy(next((folder / "sites").iterdir()), folder / "site-one-h200.yaml")
    _, started = traced(folder, "check", "DIR/study.yaml")
    assert marker.exists()
    assert [line for line in started if str(folder / "evilpy") in line]


def test_what_the_engine_said_when_it_ran_is_read_from_the_journal(tmp_path: Path) -> None:
    """So `best` prints the flags of that release, and not of whatever is installed where the folder is read."""
    folder = hostile(tmp_path / "study", "deepseek-v2-lite", "  engine: ./evilpy\n", tmp_path / "it-ran", origin=False)
    newest, _ = traced(folder, "best", "DIR")
    assert "--cuda-graph-max-bs-decode 512" in newest.stdout
    journal = folder / "journal.jsonl"
    opened, *rest = journal.read_text().splitlines()
    python = str(folder / "sources" / "evilpy")
    said = {"versions": {"sglang": "0.5.3"}, "flags": {"frobnicate_size": "int"}}
    event = {**json.loads(opened), "receipt": {"programs": {python: said}}}
    journal.write_text("\n".join([json.dumps(event), *rest]) + "\n")
    then, _ = traced(folder, "best", "DIR")
    assert "--cuda-graph-max-bs 512" in then.stdout
    assert "--frobnicate-size 3" in then.stdout
