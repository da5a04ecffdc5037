"""Study folders of an earlier version: they resume, nothing measured is lost or run twice, every face reads them."""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import ridgeline
from ridgeline.cli.main import run as command_line
from ridgeline.errors import NothingFound

TESTS = Path(__file__).parents[1]
SAMPLES = TESTS / "samples" / "study-folders"
NAMES = sorted(path.name for path in SAMPLES.iterdir() if path.is_dir())
VERDICTS = {
    "compare": "confirmed",
    "edge": "edge",
    "scale": "scaling",
    "search": "confirmed",
    "sglang": "unconfirmed",
    "twin": "keep-baseline",
}


@pytest.fixture
def unpacked(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the sample that the test names, at home on this machine."""
    folder = tmp_path / "study"
    shutil.copytree(SAMPLES / request.param, folder)
    here = {
        "@FOLDER@": str(folder.resolve()),
        "@PYTHON@": sys.executable,
        "@PACKAGE@": str(Path(ridgeline.__file__).parent),
        "@HOST@": platform.node(),
    }
    for file in folder.rglob("*"):
        if file.is_file():
            text = file.read_text()
            for name, value in here.items():
                text = text.replace(name, shlex.quote(value) if file.suffix == ".sh" else value)
            file.write_text(text)
    # what the study of the engine expects beside its folder and on the path
    (tmp_path / "standin").symlink_to(TESTS / "workloads" / "engine" / "standin")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    return folder


every_folder = pytest.mark.parametrize("unpacked", NAMES, indirect=True, ids=NAMES)


def say(capsys: pytest.CaptureFixture[str], *arguments: object, finds: bool = True) -> str:
    """What a verb prints; it must leave with 0, or with 1 where it does not find a setting to change to."""
    found = True
    try:
        command_line([str(argument) for argument in arguments])
    except SystemExit as left:
        assert not left.code, capsys.readouterr().err
    except NothingFound:
        found = False
    assert found == finds
    return capsys.readouterr().out


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]


def ended(folder: Path) -> list[dict[str, Any]]:
    return [event for event in events(folder) if event["event"] == "ended"]


def starts(folder: Path) -> int:
    """How often the program was started, by its own account."""
    return sum(len(path.read_text().splitlines()) for path in folder.glob("started-*"))


@every_folder
def test_it_resumes_and_nothing_is_lost_or_run_twice(unpacked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = events(unpacked)
    kept = ended(unpacked)
    finished = any(event["event"] == "verdict" for event in before)
    # the twin found nothing better, the engine's budget was too small for a verdict, and the sizes too few runs for one
    name = unpacked_name(unpacked)
    better = not name.startswith(("twin", "sglang")) and (finished or not name.startswith("scale"))
    answer = json.loads(say(capsys, "resume", unpacked, "--json", finds=better))
    after = ended(unpacked)

    assert answer["stage"] == "finished"
    assert answer["verdict"]["kind"] == VERDICTS[unpacked_kind(answer)]
    assert events(unpacked)[: len(before)] == before, "the journal is only added to"
    assert after[: len(kept)] == kept
    assert set(Counter(event["run"] for event in after).values()) == {1}, "a run was recorded twice"
    if finished:
        assert after == kept, "a finished campaign runs nothing"
    lost = sum(event["outcome"]["kind"] in ("node-fault", "site-fault") for event in after)
    if any(unpacked.glob("started-*")):
        assert starts(unpacked) == len(after) - lost


def unpacked_name(folder: Path) -> str:
    return next(line for line in (folder / "study.yaml").read_text().splitlines() if line.startswith("name:"))[
        5:
    ].strip()


def unpacked_kind(answer: dict[str, Any]) -> str:
    """Of the names of the samples: `search-killed` is a search."""
    return str(answer["name"]).partition("-")[0]


@every_folder
def test_every_face_reads_it_as_it_is(unpacked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (unpacked / "journal.jsonl").read_text()
    runs = len(ended(unpacked))
    assert f"   {runs} runs" in say(capsys, "status", unpacked)
    status = json.loads(say(capsys, "status", unpacked, "--json"))
    name = unpacked_kind(status)
    assert status["runs"] == runs
    assert status["kind"] == (name if name in ("compare", "edge", "scale") else "search")
    assert len(list(csv.reader(io.StringIO(say(capsys, "study", "export", unpacked))))) == runs + 1
    say(capsys, "report", unpacked)
    page = (unpacked / "report.html").read_text()
    assert ">All runs</a></h2>" in page
    assert ("best of the search" in page) == (status["kind"] == "search")
    over = status["verdict"] is not None
    assert say(capsys, "best", unpacked, finds=over)
    assert json.loads(say(capsys, "best", unpacked, "--json", finds=over))["settings"]
    assert (unpacked / "journal.jsonl").read_text() == text, "looking changes nothing"


@every_folder
def test_a_run_can_be_repeated_by_hand(unpacked: Path) -> None:
    """But of runs that started a module of ours which has moved since: these need the release that wrote them."""
    if unpacked_name(unpacked).startswith(("twin", "sglang")):
        return
    script = min(unpacked.glob("runs/*/run.sh"))
    done = subprocess.run(["sh", script], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert not (script.parent / "exit.partial").exists()
