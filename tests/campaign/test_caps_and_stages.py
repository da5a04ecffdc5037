"""Caps on what a run writes, what is told of runs under way, moves along knobs, and the stages of a search: by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ridgeline.campaign.advice import _stepped
from ridgeline.campaign.check import _names_behind, _points_that_tell
from ridgeline.campaign.kinds.steps import knob_groups
from ridgeline.campaign.ledger import Ledger
from ridgeline.campaign.status import _side_by_side, _traces_in, _whose
from ridgeline.campaign.under_way import RunUnderWay, cut_file, runs_under_way, too_much_output
from ridgeline.records.expression import Expression
from ridgeline.records.outcome import Kind
from ridgeline.records.space import Continuous, Discrete, Space
from ridgeline.records.study import Budget
from ridgeline.records.trial import Stage, Trial
from tests.campaign.harness import campaign, study
from tests.campaign.test_ledger import NOW_S, history


def test_a_run_under_way_is_told_with_what_its_like_took(tmp_path: Path) -> None:
    found = history(
        (1, Stage.BASELINE, 60.0, Kind.OK), (1, Stage.SENTINEL, None, Kind.OK), (2, Stage.SEARCH, None, Kind.OK)
    )
    for number, run in found.open_runs.items():
        object.__setattr__(run, "folder", tmp_path / str(number))
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "stdout").write_text("first\nstep 9\n")
    again, other = runs_under_way(found, Ledger(Budget(), found), NOW_S + 12.3456)
    assert (again.trial.number, again.expected_s, again.last_line) == (2, 60.0, "step 9")
    assert again.elapsed_s == pytest.approx(12.3456) and again.left_s == pytest.approx(60.0 - 12.3456)
    assert (other.trial.number, other.expected_s, other.last_line) == (3, 60.0, ""), "the usual time of all"
    told = again.as_json()
    assert told == {
        "trial": 2, "point": {"x": 1}, "ticket": again.ticket, "elapsed_s": 12.346, "expected_s": 60.0,
        "last_line": "step 9", "state": "running", "waits_for": None,
    }  # fmt: skip
    early = runs_under_way(found, Ledger(Budget(), found), NOW_S - 5)[0]
    assert early.elapsed_s == 0.0, "a clock that was set back"
    assert RunUnderWay(again.trial, "t", 5.0, None, "").left_s is None


def test_output_of_all_files_together_is_capped_and_each_is_cut_to_it(tmp_path: Path) -> None:
    (tmp_path / "stdout").write_bytes(b"x" * 600)
    (tmp_path / "log").write_bytes(b"y" * 400)
    (tmp_path / "other").write_bytes(b"z" * 5000)
    assert too_much_output(tmp_path, ["log", "missing"], 1000) == "", "exactly as much as is allowed"
    assert "0.000999 MB" in too_much_output(tmp_path, ["log"], 999)
    assert too_much_output(tmp_path, ["log", "stdout"], 1000) == "", "a file that is named twice counts once"
    elsewhere = tmp_path / "of-the-user"
    elsewhere.write_bytes(b"u" * 700)
    (tmp_path / "stderr").symlink_to(elsewhere)
    for name in ("stdout", "stderr", "log"):
        cut_file(tmp_path / name, 500)
    sizes = {name: (tmp_path / name).stat().st_size for name in ("stdout", "log", "other")}
    assert sizes == {"stdout": 500, "log": 400, "other": 5000}
    assert elsewhere.stat().st_size == 700, "a link may lead to any file of the user's"


@pytest.mark.parametrize(
    ("value", "steps", "there"),
    [
        (4, 1, 8),
        (4, 2, 16),
        (4, 9, 16),
        (16, 1, None),
        (4, -1, 2),
        (4, -9, 1),
        (1, -1, None),
        (3, 1, 4),
        (3, -1, 2),
        ("x", 1, None),
    ],
)
def test_a_move_goes_so_many_values_along_the_knob_and_ends_at_its_last(value: Any, steps: int, there: Any) -> None:
    knob = Discrete("n", (16, 1, 2, 4, 8, "auto"), ordered=True)
    assert _stepped(knob, value, steps) == there
    assert _stepped(Discrete("n", (1, 2), ordered=False), 1, 1) is None


def test_a_move_along_a_line_is_a_share_of_it() -> None:
    line, logs = Continuous("f", 0.0, 10.0), Continuous("g", 1.0, 10_000.0, log=True)
    up, down = _stepped(line, 5.0, 1), _stepped(line, 5.0, -1)
    assert isinstance(up, float) and isinstance(down, float) and up - 5.0 == pytest.approx(5.0 - down) and up > 5.0
    far = _stepped(line, 5.0, 2)
    assert isinstance(far, float) and far - 5.0 == pytest.approx(2 * (up - 5.0))
    higher = _stepped(logs, 100.0, 1)
    assert isinstance(higher, float) and higher / 100.0 == pytest.approx(10_000.0 ** ((up - 5.0) / 10.0), rel=1e-4)
    assert _stepped(line, 10.0, 1) is None and _stepped(line, 0.0, -1) is None


def test_profiles_name_the_baseline_and_the_setting(tmp_path: Path) -> None:
    own = study(tmp_path)
    base, other = ({"x": x, "y": 0} for x in (0, 3))
    assert _whose(own, Trial(4, base, base, Stage.PROFILE, "p")) == "the baseline"
    assert _whose(own, Trial(5, other, other, Stage.PROFILE, "p")) == "#5"
    folder = tmp_path / "run" / "profile"
    folder.mkdir(parents=True)
    for name in ("b-TP-1.json", "a-TP-10.json", "c-TP-0.json.gz", "notes.txt"):
        (folder / name).write_text("")
    assert _traces_in(tmp_path / "run")[0].name == "c-TP-0.json.gz", "the first rank's first"
    assert not [*_side_by_side(own, SimpleNamespace(trials={}, root=tmp_path), [])]  # type: ignore[arg-type]


def test_every_knob_is_in_one_group_the_studys_own_first(tmp_path: Path) -> None:
    names = ("OMP_NUM_THREADS", "tp", "mem_fraction", "mine", "whatever")
    space = Space(tuple(Discrete(name, (0, 1), ordered=True) for name in names), {})
    own = study(tmp_path, space=space, baseline=dict.fromkeys(names, 0), groups={"ours": ("mine", "tp")})
    groups = knob_groups(own)
    assert next(iter(groups)) == "ours" and groups["ours"] == ("tp", "mine")
    assert sorted(name for group in groups.values() for name in group) == sorted(names)


# what a study is checked at


def test_a_study_is_checked_at_all_values_of_the_knobs_behind_a_name(tmp_path: Path) -> None:
    knobs = (
        Discrete("a", (1, 2), ordered=True),
        Discrete("b", ("x", "y"), ordered=False),
        Discrete("c", (5, 6), ordered=True),
        Discrete("d", (7, 8), ordered=True, when=Expression.parse("b == 'y'")),
    )
    space = Space(knobs, {"product": Expression.parse("a * 3"), "twice": Expression.parse("product * 2")})
    own = study(tmp_path, space=space, baseline={"a": 2, "b": "x", "c": 6})
    assert _names_behind(space, ["twice"]) == {"twice", "product", "a"}
    assert _names_behind(space, ["d", "c"]) == {"b", "c", "d"}
    assert list(_points_that_tell(own, ["twice"])) == [{"a": 1, "b": "x", "c": 6}, {"a": 2, "b": "x", "c": 6}]
    found = {tuple(point.items()) for point in _points_that_tell(own, ["d"])}
    assert found == {
        (("a", 2), ("b", "x"), ("c", 6)),
        (("a", 2), ("b", "y"), ("c", 6), ("d", 7)),
        (("a", 2), ("b", "y"), ("c", 6), ("d", 8)),
    }


def test_trials_are_added_to_a_search_that_has_a_limit_and_is_not_over(tmp_path: Path) -> None:
    limited = campaign(tmp_path / "limited", study(tmp_path, budget=Budget(trials=3)))
    assert limited.agenda.why_no_more_trials() == ""
    timed = campaign(tmp_path / "timed", study(tmp_path, budget=Budget(wall_s=60.0)))
    assert "no limit of trials" in timed.agenda.why_no_more_trials()
    limited.run()
    assert "being confirmed" in limited.agenda.why_no_more_trials()
