"""What Python and notebooks show of a result: short, in words, and as a table that browsers take."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

import ridgeline
from ridgeline.records.exhibit import Shown, TextTable

MOST = 4_000  # characters of an output cell


def _speed(block: int, mode: str) -> dict[str, float]:
    return {"rate": block * (2.0 if mode == "half" else 1.0)}


SPACE = {"block": [2, 8, 64], "mode": ["exact", "half"]}


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> ridgeline.StudyResult:
    return ridgeline.tune(_speed, SPACE, "maximize rate", trials=4, out=tmp_path_factory.mktemp("tuned") / "speed")


def _results(tuned: ridgeline.StudyResult) -> dict[str, Shown]:
    study = {
        "name": "s",
        "workload": _speed,
        "space": SPACE,
        "goal": {"maximize": "rate"},
        "baseline": {"block": 2, "mode": "half"},
    }
    log = Path(__file__).parent / "samples/sglang/offline-llama8b-h200-default.log"
    return {
        "tune": tuned,
        "check": ridgeline.check(study),
        "verify": tuned.verify(),
        "diagnose": ridgeline.diagnose_file(log),
        "simulate": ridgeline.simulate("llama-8b", "h200", "fixed:200:50", requests=50, concurrency=8),
        "plan": ridgeline.plan("llama-8b", "h200", nodes=1, traffic="fixed:200:50", requests=40),
    }


def test_every_result_is_a_short_text_and_a_table(tuned: ridgeline.StudyResult) -> None:
    for name, found in _results(tuned).items():
        assert 20 < len(repr(found)) < MOST, name
        if name != "tune":  # a notebook shows the first sections of its report
            page = ElementTree.fromstring(f"<div>{found._repr_html_()}</div>")
            cells = [cell.text or "" for cell in page.iter("td")]
            assert all(cell in cells for row in found.shown().rows for cell in row), name


def test_a_table_keeps_what_html_would_take_for_its_own() -> None:
    class Odd(Shown):
        def shown(self) -> TextTable:
            return TextTable("a < b", ("", "x&y"), (("<i>", "1"),), notes=("<script>",))

    assert [each.text for each in ElementTree.fromstring(f"<d>{Odd()._repr_html_()}</d>").iter("td")] == ["<i>", "1"]
    assert repr(Odd()) == "a < b\n       x&y\n  <i>  1\n  <script>"


def test_a_function_is_tuned_with_plain_arguments(tuned: ridgeline.StudyResult) -> None:
    assert tuned.confirmed
    assert tuned.best == {"block": 64, "mode": "half"}
    assert _speed(**tuned.best) == {"rate": 128.0}  # type: ignore[arg-type]
    assert tuned.study.baseline == {"block": 2, "mode": "exact"}, "the first value of each knob"
    assert tuned.study.name == "speed"


def test_what_goes_with_a_function_is_refused_with_a_study(tmp_path: Path) -> None:
    with pytest.raises(ridgeline.errors.InputError, match="go with a function"):
        ridgeline.tune(tmp_path / "study.yaml", SPACE)
    with pytest.raises(ridgeline.errors.InputError, match="block has no first value; give `baseline`"):
        ridgeline.tune(_speed, {"block": {"from": 1, "to": 9}, "mode": ["a"]}, "maximize rate")


def test_a_mistake_is_named_without_our_temporary_file() -> None:
    with pytest.raises(ridgeline.errors.StudyError) as caught:
        ridgeline.tune(_speed, SPACE, "maximise rate")
    assert str(caught.value) == "study: goal.maximise: no such key; did you mean maximize?"


def test_progress_is_a_line_for_people_and_silent_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ridgeline.tune(_speed, SPACE, "maximize rate", trials=1, out=tmp_path / "quiet")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    ridgeline.tune(_speed, SPACE, "maximize rate", trials=1, out=tmp_path / "shown")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("\rrun 1, baseline: ok, rate 2")
    assert shown.err.endswith("\n")
    ridgeline.tune(_speed, SPACE, "maximize rate", trials=1, out=tmp_path / "off", progress=False)
    assert capsys.readouterr() == ("", "")


def test_a_loop_of_ones_own_asks_and_tells() -> None:
    search = ridgeline.Search({"block": [2, 8, 64, 128], "mode": ["exact", "half"]}, "maximize rate", seed=3)
    assert search.best is None
    first, second = search.ask(), search.ask()
    assert first is not None and second is not None and first != second, "asked twice before anything was told"
    asked = [first, second]
    for setting in asked:  # grows while it is told
        failed = setting["block"] == 128
        search.tell(setting, None if failed else _speed(**setting)["rate"])
        if (following := search.ask()) is not None:
            asked.append(following)
    assert len(asked) == len({tuple(each.items()) for each in asked}) == 8, "every setting once"
    assert search.best == ({"block": 64, "mode": "half"}, 128.0)
    assert search.ask() is None


def test_a_search_that_minimizes_learns_from_what_it_did_not_ask_for() -> None:
    search = ridgeline.Search({"x": [1, 2, 3]}, {"minimize": "t"})
    search.tell({"x": 3}, 5.0)
    search.tell({"x": 1}, 9.0)
    assert search.best == ({"x": 3}, 5.0)
    assert search.ask() == {"x": 2}
    with pytest.raises(ridgeline.errors.InputError, match="outside the study's space"):
        search.tell({"x": 4}, 1.0)


def test_a_data_frame_has_knobs_and_the_goal_first(tuned: ridgeline.StudyResult) -> None:
    frame = tuned.to_pandas()
    # a column of every run is called block: that of its block in the confirmation
    assert [*frame.columns[:5]] == ["set.block", "mode", "rate", "outcome", "stage"]
    assert len(frame) == len(tuned.runs)
    assert frame["rate"].max() == 128.0
