"""Whoever runs it, and wherever: an ordinary user, a folder with a space, umask 077, LC_ALL=C, another time zone and
another hash seed give the same answer as the plainest place."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).parents[2]
NOBODY = 65534
STUDY = """\
# naïve Größen: 3 µs
version: 1
name: odd
workload:
  kind: command
  run: |
    mode={mode}
    echo "$mode µ" > note
    echo "rate $(( 100 + 7 * {x} )) for $mode"
  env: {MODE: "{mode}"}
  inputs: {"a file": "x is {x}, mode is {mode}, naïve\\n"}
  metrics: {rate: {regex: 'rate (\\d+)', unit: steps/s}, way: {regex: 'for (.*)', type: text}}
space: {x: [1, 2, 3, 4], mode: [plain, "two words"]}
goal: {maximize: rate}
guards: [rate > 1]
baseline: {x: 1, mode: plain}
budget: {trials: 5}
search: {sampler: guided, seed: 3}
stages: {baseline: {repeats: 1}}
confirm: {top: 1, blocks: 3, repeats: 1}
job: {limit: 60}
"""


@dataclass(frozen=True)
class Place:
    folder: Path
    python: str = sys.executable
    env: dict[str, str] = field(default_factory=dict)
    how: dict[str, Any] = field(default_factory=dict)  # what subprocess.run takes besides

    def ridgeline(self, *words: str) -> str:
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": search_path(), **self.env}
        command = [self.python, "-m", "ridgeline", *words]
        done = subprocess.run(
            command, cwd=self.folder, env=env, capture_output=True, timeout=600, check=False, **self.how
        )
        said = done.stdout.decode("utf-8")
        assert done.returncode == 0, (words, said, done.stderr.decode("utf-8", "replace"))
        return said


def search_path() -> str:
    """Ridgeline and what it needs, for a Python that is not the one of this environment."""
    found = [importlib.util.find_spec(name) for name in ("numpy", "ridgeline")]
    return os.pathsep.join(dict.fromkeys(str(Path(spec.origin).parents[1]) for spec in found if spec and spec.origin))


def ordinary_user(folder: Path) -> tuple[str, dict[str, Any]]:
    """A Python that `nobody` can start in this folder, and how, where we may choose who we are; else we as we are.

    An interpreter in a home folder of root's is none: the system's own does it too, where it is of the same release.
    """
    if os.geteuid() != 0:
        return sys.executable, {}
    how: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    tried = f"import sys, ridgeline, numpy, typer; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": search_path()}
    for python in (sys.executable, "/usr/bin/python3"):
        try:
            done = subprocess.run([python, "-c", tried], env=env, cwd=folder, capture_output=True, check=False, **how)
        except OSError:
            continue
        if done.returncode == 0:
            return python, how
    return sys.executable, {}


@pytest.fixture
def plain(tmp_path: Path) -> Place:
    folder = tmp_path / "plain"
    folder.mkdir()
    return Place(folder, env={"HOME": str(tmp_path), "LC_ALL": "C.UTF-8", "TZ": "UTC", "PYTHONHASHSEED": "0"})


@pytest.fixture
def odd() -> Iterator[Place]:
    # not in pytest's own folder, which it closes to all others
    with tempfile.TemporaryDirectory(prefix="an odd place ") as made:
        folder = Path(made)
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
        python, how = ordinary_user(folder)
        odd_ways = {"LC_ALL": "C", "LANG": "C", "TZ": "Pacific/Chatham", "PYTHONHASHSEED": "4711", "HOME": made}
        yield Place(folder, python, odd_ways, {**how, "umask": 0o077})


def answer(place: Place) -> dict[str, Any]:
    """Every verb of an ordinary day, and what a campaign did and found."""
    (place.folder / "study.yaml").write_text(STUDY, encoding="utf-8")
    (place.folder / "study.yaml").chmod(0o644)
    assert "8 legal points" in place.ridgeline("check", "study.yaml")
    place.ridgeline("tune", "study.yaml", "--out", "the out")
    place.ridgeline("resume", "the out", "--trials", "+1")
    assert "everything holds" in place.ridgeline("study", "verify", "the out")
    place.ridgeline("status", "the out")
    place.ridgeline("report", "the out")
    best = json.loads(place.ridgeline("best", "the out", "--json"))["best"]
    lines = [json.loads(s) for s in (place.folder / "the out" / "journal.jsonl").read_text("utf-8").splitlines()]
    trials = [(line["point"], line["stage"]) for line in lines if line["event"] == "trial"]
    verdicts = [line["verdict"] for line in lines if line["event"] == "verdict"]
    notes = [path.read_text("utf-8") for path in sorted((place.folder / "the out" / "runs").glob("*/note"))]
    return {"best": best["point"], "trials": trials, "verdicts": verdicts, "notes": notes}


def test_an_ordinary_user_in_an_odd_place_gets_the_same_answer(plain: Place, odd: Place) -> None:
    usual, found = answer(plain), answer(odd)
    assert found["trials"] == usual["trials"], "the search does not hang on hashes, clocks or words"
    assert found["verdicts"] == usual["verdicts"]
    assert found["best"] == usual["best"]
    assert found["best"]["x"] == 4
    assert found["notes"] == usual["notes"]
    assert stat.S_IMODE((odd.folder / "the out").stat().st_mode) == 0o700, "nobody else looks into it"


def test_the_scripts_of_a_checkout_work_in_a_folder_with_a_space(tmp_path: Path) -> None:
    """With a Python that only says what it was started with: nothing is installed, nothing is tested twice."""
    root = tmp_path / "an odd place" / "ridge line"
    shutil.copytree(CHECKOUT / "scripts", root / "scripts")
    (root / ".venv").mkdir()
    sources = {name: (CHECKOUT / name).read_text() for name in ("pyproject.toml", "constraints.txt")}
    for name, text in (*sources.items(), (".venv/.installed-dev", "".join(sources.values()))):
        (root / name).write_text(text)
    tools = tmp_path / "tools"
    for place, says in ((root / ".venv/bin/python", 'printf "<%s>" "$@"; echo'), (tools / "id", "echo 1000")):
        place.parent.mkdir(parents=True)
        place.write_text(f"#!/bin/sh\n{says}\n")
        place.chmod(0o755)
    env = {"PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(tmp_path)}

    def said(*words: str) -> list[str]:
        script = [str(root / "scripts" / words[0]), *words[1:]]
        done = subprocess.run(script, cwd="/", env=env, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    assert said("test", "-k", "two words")[-1].endswith("<-m><not engine><-k><two words>")
    assert said("ridgeline", "check", "my study.yaml") == ["<-m><ridgeline><check><my study.yaml>"]
    (started,) = said("demo")
    assert f"<{root}/examples/04-deepseek-r1-16-gpus/study.yaml><--out><{root}/studies/demo-" in started
    assert said("reference")[-1].endswith(f"<{root}/docs/reference>")
