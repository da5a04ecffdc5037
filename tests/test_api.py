"""The Python API: the same campaigns as the command line, with typed results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ridgeline
from ridgeline.api import Layout
from ridgeline.errors import InputError, StoreError, StudyError


def speed(block: int, mode: str, depth: int | None = None) -> dict[str, float]:
    import math

    return {"rate": 100.0 - 5 * abs(block - 6) + (8 if mode == "fast" else 0) + (depth or 0), "energy": math.tau}


def asked(**changes: Any) -> dict[str, Any]:
    return {
        "name": "quick",
        "workload": speed,
        "space": {
            "block": [1, 2, 3, 4, 5, 6, 7, 8],
            "mode": ["slow", "fast"],
            "depth": {"values": [1, 2], "when": "mode == 'fast'"},
        },
        "goal": {"maximize": "rate"},
        "guards": ["energy within 1e-9 of baseline"],
        "baseline": {"block": 1, "mode": "slow"},
        "budget": {"trials": 3},
        "presets": [{"block": 6, "mode": "fast", "depth": 2}],
        "stages": {"baseline": {"repeats": 1}, "confirm": {"top": 1, "blocks": 3, "repeats": 1}},
        **changes,
    }


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("api")


@pytest.fixture(scope="module")
def tuned(home: Path) -> ridgeline.StudyResult:
    lines: list[str] = []
    found = ridgeline.tune(asked(), home / "out", progress=lines.append)
    assert lines[0] == "run 1, baseline: ok, rate 75"
    assert len(lines) == len(found.runs)
    return found


def test_a_function_is_tuned_to_a_confirmed_verdict(tuned: ridgeline.StudyResult) -> None:
    assert tuned.confirmed and tuned.is_over
    assert tuned.best == {"block": 6, "mode": "fast", "depth": 2}
    assert tuned.gain is not None and tuned.gain.ratio == pytest.approx(110 / 75)
    assert str(tuned).startswith("quick: Confirmed: rate 75 -> 110")
    assert tuned.runs[0]["set.block"] == 1 and tuned.runs[0]["got.rate"] == 75
    assert tuned.verify().mismatches == []
    assert "Progress" in tuned.figures and tuned.figures["Progress"]._repr_svg_().startswith("<svg")
    assert tuned.report().read_bytes().startswith(b"<!doctype html>")
    shown = tuned._repr_html_()
    assert shown.startswith("<iframe sandbox ") and "Confirmed" in shown


def test_what_it_pastes_runs_in_a_clean_shell_elsewhere(tuned: ridgeline.StudyResult, tmp_path: Path) -> None:
    clean = ["env", "-i", "PATH=/usr/bin:/bin", "sh", "-c", tuned.answer.paste]
    done = subprocess.run(clean, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert '"rate": 110.0' in done.stdout


def test_asked_again_it_goes_on_where_it_was_and_measures_nothing_twice(tuned: ridgeline.StudyResult) -> None:
    again = ridgeline.tune(asked(), tuned.folder)
    assert len(again.runs) == len(tuned.runs)
    assert ridgeline.open(tuned.folder).best == tuned.best
    with pytest.raises(StoreError, match="already holds a campaign of another study"):
        ridgeline.tune(asked(budget={"trials": 4}), tuned.folder)
    with pytest.raises(StoreError, match="already holds another campaign"):
        ridgeline.tune(asked(), tuned.folder, trials=9)


def test_a_finished_one_goes_on_by_blocks(home: Path) -> None:
    found = ridgeline.compare(asked(), {"block": 2}, out=home / "compare", blocks=3)
    more = found.resume(blocks=1)
    assert len(more.runs) > len(found.runs)
    assert more.answer.kind == "compare" and more.confirmed


def test_a_study_file_is_as_good_as_a_mapping(home: Path) -> None:
    (home / "objective.py").write_text("def objective(x):\n    return x + 1\n")
    (home / "study.yaml").write_text(
        "version: 1\nname: file\nworkload: {kind: python, file: objective.py}\nspace: {x: [1, 2]}\n"
        "goal: {maximize: score}\nbaseline: {x: 1}\nbudget: {trials: 1}\n"
        "stages: {confirm: {top: 0}}\n"
    )
    found = ridgeline.tune(home / "study.yaml", home / "from-file")
    # nothing was confirmed: the best of the search is there to look at, and no answer
    assert found.best is None and not found.confirmed and not found
    assert found.answer.candidate is not None and dict(found.answer.candidate.point) == {"x": 2}
    assert [run["got.score"] for run in found.runs][-1] == 3


def test_a_function_that_raises_is_a_crash_with_its_last_line(home: Path) -> None:
    def objective(x: int) -> float:
        if x > 1:
            raise ValueError("no such block")
        return 1.0

    found = ridgeline.tune(
        {
            "name": "raises",
            "workload": objective,
            "space": {"x": [1, 2]},
            "goal": {"maximize": "score"},
            "baseline": {"x": 1},
            "budget": {"trials": 1},
            "stages": {"baseline": {"repeats": 1}},
        },
        home / "raises",
    )
    failed = next(run for run in found.runs if run["set.x"] == 2)
    assert failed["outcome"] == "crash" and "no such block" in failed["evidence"]
    assert found.best is None


@pytest.mark.parametrize(
    ("workload", "says"),
    [
        (lambda x: x, "define it with `def`"),
        (len, "define it with `def`"),
        ({"kind": "python", "file": "missing.py"}, "missing.py"),
        ({"kind": "python", "file": "notes.txt"}, "must end in .py"),
        ({"kind": "python", "file": "objective.py", "function": "a.b"}, "no name of a Python function"),
    ],
)
def test_what_cannot_be_called_is_refused_before_anything_runs(
    workload: object, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "objective.py").write_text("def objective(x):\n    return x\n")
    (tmp_path / "notes.txt").write_text("")
    study = {"name": "no", "workload": workload, "space": {"x": [1]}, "goal": {"maximize": "y"}, "baseline": {"x": 1}}
    with pytest.raises((InputError, StudyError), match=says):
        ridgeline.tune(study, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_twin_answers_with_typed_results() -> None:
    found = ridgeline.simulate("llama-8b", "h200", "fixed:128:16", layout=Layout(gpus_per_node=1), requests=20)
    assert found.summary.ok == 20 and found.summary.output_tok_s > 0
    plan = ridgeline.plan("llama-8b", "h100", gpus_per_node=1, traffic="fixed:100:10", concurrency=4, requests=20)
    assert plan.choices


def test_a_name_that_is_not_there_is_answered_with_those_that_are() -> None:
    with pytest.raises(AttributeError, match="it has StudyResult, bench, compare, open"):
        ridgeline.train  # type: ignore[attr-defined]  # noqa: B018
    assert set(ridgeline.__all__) < set(dir(ridgeline))


@pytest.mark.parametrize("heavy", ["pydantic", "numpy", "yaml", "ridgeline.api"])
def test_importing_it_loads_nothing_until_it_is_used(heavy: str) -> None:
    code = f"import sys, ridgeline; sys.exit({heavy!r} in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
