"""The Python API: the same campaigns as the command line, with typed results."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import ridgeline
from ridgeline.errors import InputError, RidgelineError, StoreError, StudyError
from ridgeline.serving.api import Layout


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
    found = ridgeline.tune(asked(), out=home / "out", progress=lines.append)
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
    again = ridgeline.tune(asked(), out=tuned.folder)
    assert len(again.runs) == len(tuned.runs)
    assert ridgeline.open(tuned.folder).best == tuned.best
    with pytest.raises(StoreError, match="already holds a campaign of another study"):
        ridgeline.tune(asked(budget={"trials": 4}), out=tuned.folder)
    with pytest.raises(StoreError, match="already holds another campaign"):
        ridgeline.tune(asked(), out=tuned.folder, trials=9)


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
    found = ridgeline.tune(home / "study.yaml", out=home / "from-file")
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
        out=home / "raises",
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
        ridgeline.tune(study, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_twin_answers_with_typed_results() -> None:
    found = ridgeline.simulate("llama-8b", "h200", "fixed:128:16", layout=Layout(gpus_per_node=1), requests=20)
    assert found.summary.ok == 20 and found.summary.output_tok_s > 0
    plan = ridgeline.plan("llama-8b", "h100", gpus_per_node=1, traffic="fixed:100:10", concurrency=4, requests=20)
    assert plan.choices


def test_a_name_that_is_not_there_is_answered_with_those_that_are() -> None:
    with pytest.raises(AttributeError, match="it has Search, StudyResult, bench, bisect, check, compare"):
        ridgeline.train  # type: ignore[attr-defined]  # noqa: B018
    assert set(ridgeline.__all__) < set(dir(ridgeline))


@pytest.mark.parametrize("heavy", ["pydantic", "numpy", "yaml", "ridgeline.api"])
def test_importing_it_loads_nothing_until_it_is_used(heavy: str) -> None:
    code = f"import sys, ridgeline; sys.exit({heavy!r} in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


# a function is what is asked about, as space and goal are


def _small(workload: Any, **changes: Any) -> dict[str, Any]:
    return {
        "name": "edited",
        "workload": workload,
        "space": {"a": [1, 2, 3]},
        "goal": {"maximize": "rate"},
        "baseline": {"a": 2},
        "budget": {"trials": 2},
        "stages": {"baseline": {"repeats": 1}, "confirm": {"top": 1, "blocks": 3, "repeats": 1}},
        **changes,
    }


def test_a_changed_function_is_not_answered_with_the_old_result(tmp_path: Path) -> None:
    def f(a: int) -> float:
        return 10.0 * a

    first, found = f, ridgeline.tune(_small(f), out=tmp_path / "out")
    assert found.best == {"a": 3}

    def f(a: int) -> float:  # type: ignore[no-redef]
        return 10.0 / a

    with pytest.raises(StoreError, match=r"another study \(the function in objective\.py changed since\)") as refused:
        ridgeline.tune(_small(f), out=tmp_path / "out")
    assert "`out`" in str(refused.value)
    assert ridgeline.tune(_small(f), out=tmp_path / "other").best == {"a": 1}
    again = ridgeline.tune(_small(first), out=tmp_path / "out")
    assert again.best == {"a": 3} and len(again.runs) == len(found.runs), "unchanged, it is answered from the folder"


def test_a_comment_in_the_function_changes_nothing(tmp_path: Path) -> None:
    def f(a: int) -> float:
        return 10.0 * a

    found = ridgeline.tune(_small(f), out=tmp_path / "out")

    def f(a: int) -> float:  # type: ignore[no-redef]
        # ten times
        return 10.0 * a

    assert len(ridgeline.tune(_small(f), out=tmp_path / "out").runs) == len(found.runs)


def _times(factor: float) -> Any:
    def f(a: int) -> float:
        return factor * a

    return f


_SLOPE = 5.0


def _sloped(a: float) -> float:
    return _SLOPE * a


def _through_a_helper(a: int) -> float:
    return _sloped(a)


def _with_default(a: int, slope: float = _SLOPE, *, shift: float = -_SLOPE) -> float:
    return slope * a + shift


def _scaled(a: int, slope: float) -> float:
    return slope * a


def test_what_a_function_closes_over_runs_with_it_and_belongs_to_the_question(tmp_path: Path) -> None:
    assert ridgeline.tune(_small(_times(2.0)), out=tmp_path / "cell").best == {"a": 3}
    with pytest.raises(StoreError, match="the function in objective"):
        ridgeline.tune(_small(_times(-2.0)), out=tmp_path / "cell")
    assert ridgeline.tune(_small(_times(-2.0)), out=tmp_path / "cell-2").best == {"a": 1}


@pytest.mark.parametrize(("of", "changed"), [(_through_a_helper, "_SLOPE"), (_sloped, "_SLOPE")])
def test_globals_and_helpers_belong_to_it(
    of: Any, changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = ridgeline.tune(_small(of), out=tmp_path / "out")
    assert found.best == {"a": 3} and found.runs[0]["got.rate"] == 10.0
    assert len(ridgeline.tune(_small(of), out=tmp_path / "out").runs) == len(found.runs)
    monkeypatch.setitem(globals(), changed, -1.0)
    with pytest.raises(StoreError, match="the function in objective"):
        ridgeline.tune(_small(of), out=tmp_path / "out")


def test_defaults_and_partials_are_taken_as_they_are(tmp_path: Path) -> None:
    found = ridgeline.tune(_small(_with_default), out=tmp_path / "defaults")
    assert found.runs[0]["got.rate"] == 5.0
    assert ridgeline.tune(_small(functools.partial(_scaled, slope=-1.0)), out=tmp_path / "partial").best == {"a": 1}
    with pytest.raises(StoreError, match="the function in objective"):
        ridgeline.tune(_small(functools.partial(_scaled, slope=1.0)), out=tmp_path / "partial")


def test_a_module_beside_it_that_was_edited_is_another_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_helpers.py").write_text("def speed(a):\n    return 10.0 * a\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def f(a: int) -> float:
        import own_helpers  # type: ignore[import-not-found]

        return float(own_helpers.speed(a))

    assert ridgeline.tune(_small(f), out=tmp_path / "out").best == {"a": 3}
    (tmp_path / "own_helpers.py").write_text("def speed(a):\n    return 10.0 / a\n")
    with pytest.raises(StoreError, match="the function in objective"):
        ridgeline.tune(_small(f), out=tmp_path / "out")


def test_a_function_that_failed_may_be_corrected_in_its_folder(tmp_path: Path) -> None:
    def f(a: int) -> float:
        raise ValueError("not yet")

    with pytest.raises(RidgelineError):
        ridgeline.tune(_small(f), out=tmp_path / "out")

    def f(a: int) -> float:  # type: ignore[no-redef]
        return 10.0 * a

    assert ridgeline.tune(_small(f), out=tmp_path / "out").best == {"a": 3}


def test_a_study_file_whose_function_was_edited_is_not_answered_from_the_folder(tmp_path: Path) -> None:
    (tmp_path / "objective.py").write_text("def objective(a):\n    return 10.0 * a\n")
    content = _small({"kind": "python", "file": "objective.py"})
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({"version": 1, **content}))
    assert ridgeline.tune(tmp_path / "study.yaml", out=tmp_path / "out").best == {"a": 3}
    (tmp_path / "objective.py").write_text("def objective(a):\n    return 10.0 / a\n")
    with pytest.raises(StoreError, match="the function in objective"):
        ridgeline.tune(tmp_path / "study.yaml", out=tmp_path / "out")


def test_a_comparison_of_a_changed_function_has_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    up = ridgeline.compare(_small(_times(2.0)), {"a": 3}, blocks=3)
    down = ridgeline.compare(_small(_times(-2.0)), {"a": 3}, blocks=3)
    assert (up.folder.name, down.folder.name) == ("edited-compare", "edited-compare-2")
    assert up.gain is not None and up.gain.ratio == pytest.approx(1.5)
    assert not down.confirmed


class _Callable:
    def __call__(self, a: int) -> float:
        return float(a)


_LOADED = object()


def _needs_an_object(a: int) -> float:
    return float(a) if _LOADED else 0.0


@pytest.mark.parametrize(
    ("workload", "says"),
    [
        (_Callable(), "define it with `def`"),
        (_Callable().__call__, "define it with `def`"),
        (functools.wraps(_sloped)(lambda a: -a), "define it with `def`"),
        (_needs_an_object, r"_LOADED, which _needs_an_object uses, is object.*inside the function"),
    ],
)
def test_what_cannot_be_written_down_is_refused_by_name(workload: object, says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=says):
        ridgeline.tune(_small(workload), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_no_study_is_answered_with_what_one_is() -> None:
    with pytest.raises(InputError, match=r"sloped needs its space and its goal: tune\(sloped, .*'maximize rate'"):
        ridgeline.tune(_sloped)
    with pytest.raises(InputError, match=r"is not a study: give the path .*'workload': function"):
        ridgeline.tune(3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="is not a study"):
        ridgeline.compare(None, {"a": 1})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no study file can"):
        ridgeline.tune(_small(_sloped, space={"a": [object()]}))


def test_texts_stay_texts_on_their_way_through_the_api(tmp_path: Path) -> None:
    texts = ["2.9", "2.10", "5620e53", "1e3", "0x10", "yes", "null", "1_000", "007", "~", "2024-01-01", "12:30:00"]

    def f(release: str) -> dict[str, float | str]:
        return {"rate": float(len(release)), "seen": repr(release)}

    study = _small(
        f, space={"release": texts}, baseline={"release": "2.10"}, budget={"trials": 12}, guards=["rate > 0"],
        search={"sampler": "grid"}, stages={"baseline": {"repeats": 1}, "confirm": {"top": 0}},
    )  # fmt: skip
    found = ridgeline.tune(study, out=tmp_path / "out")
    assert {run["set.release"] for run in found.runs} == set(texts)
    said = {
        json.loads((Path(found.folder) / run["folder"] / "returned.json").read_text())["seen"] for run in found.runs
    }
    assert said == {repr(text) for text in texts}
    assert len(ridgeline.tune(study, out=tmp_path / "out").runs) == len(found.runs)
    pair = ridgeline.compare(study, {"release": "2.10"}, {"release": "2.9"}, tmp_path / "pair", blocks=3)
    assert {run["set.release"] for run in pair.runs} == {"2.9", "2.10"}
