"""What a campaign shows besides its answer, and when it keeps silent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.records.answer import CONFIRMED, Answer, Candidate, Reference
from ridgeline.records.measurement import Measurement
from ridgeline.records.outcome import Kind, Outcome
from ridgeline.records.run import Cause, Ending, Resources, Run
from ridgeline.records.space import Discrete, Point, Space
from ridgeline.records.study import Goal, Study, WorkloadChoice
from ridgeline.records.trial import Stage, Trial
from ridgeline.report.insights import insights, node_text
from ridgeline.report.table import origins
from ridgeline.stats.contribution import Contribution
from ridgeline.stats.nodes import NodeEffect
from ridgeline.stats.wording import MetricText
from ridgeline.study.history import History

SPEEDS = {"n1": 1.0, "n2": 0.9, "n3": 1.0, "n4": 1.0}
SCATTER = (1.004, 0.997, 1.001, 0.998, 1.003)


def study(folder: Path) -> Study:
    space = Space((Discrete("x", range(6), ordered=True), Discrete("y", (0, 1), ordered=True)), {})
    return Study(
        "s", WorkloadChoice("f", {}), space, Goal("rate", "maximize"), baseline={"x": 0, "y": 0}, folder=folder
    )


def told(study: Study, past: History, winner: Point | None = None) -> list[str]:
    """The insights of a campaign that ended with this winner, or is not over."""
    candidate = None if winner is None else Candidate("the setting", 1, winner, winner, 1.0, confirmed=True)
    reference = Reference("the baseline", study.baseline, None)
    return insights(study, past, Answer("search", CONFIRMED if winner else None, "", reference, candidate))


def history(root: Path, speeds: dict[str, float] = SPEEDS) -> History:
    """The baseline four times on each node, then every x with both y: x brings 20% a step, y nothing."""
    past = History(root)
    nodes = list(speeds)
    plan: list[tuple[Stage, Point]] = [(Stage.BASELINE, {"x": 0, "y": 0})] * (4 * len(nodes))
    plan += [(Stage.SEARCH, {"x": x, "y": y}) for x in range(6) for y in (0, 1)]
    for number, (stage, point) in enumerate(plan, 1):
        node = nodes[number % len(nodes)]
        rate = 100 * 1.2 ** int(point["x"] or 0) * speeds[node] * SCATTER[number % 5]
        past.trials[number] = Trial(number, point, point, stage, "test")
        past.runs[number] = Run(
            number, number, 1, root, Resources(), Ending(Cause.EXITED, 0, nodes=(node,)), Outcome(Kind.OK),
            (Measurement("rate", rate),),
        )  # fmt: skip
    return past


def test_a_slow_node_is_named_with_its_interval(tmp_path: Path) -> None:
    (line,) = told(study(tmp_path), history(tmp_path))
    assert line.startswith("node n2 is 10% slower in rate than its peers (95%: ")


def test_equal_nodes_and_no_verdict_give_nothing_to_say(tmp_path: Path) -> None:
    assert told(study(tmp_path), history(tmp_path, dict.fromkeys(SPEEDS, 1.0))) == []
    assert told(study(tmp_path), History(tmp_path)) == []


def test_gain_by_change_names_the_knob_that_did(tmp_path: Path) -> None:
    past = history(tmp_path, dict.fromkeys(SPEEDS, 1.0))
    (line,) = told(study(tmp_path), past, winner={"x": 5, "y": 1})
    assert "gain by change" in line
    assert "x +" in line
    assert line.endswith("no detectable difference: y")


def measured_again(past: History, factor: Callable[[int], float]) -> History:
    past.runs = {
        number: replace(run, measurements=(Measurement("rate", run.metrics["rate"] * factor(number)),))
        for number, run in past.runs.items()
    }
    return past


def test_a_machine_that_slows_down_is_told(tmp_path: Path) -> None:
    past = history(tmp_path, dict.fromkeys(("n1", "n2", "n3"), 1.0))
    (line,) = told(study(tmp_path), measured_again(past, lambda number: 0.8 if 6 < number <= 13 else 1.0))
    assert line.startswith(("the machine changed meanwhile: rate 19.9", "the machine changed meanwhile: rate 20"))
    assert "% lower for the baseline from repeat 7 of 13 on" in line


def test_one_odd_run_of_the_baseline_is_named(tmp_path: Path) -> None:
    past = history(tmp_path, dict.fromkeys(("n1", "n2", "n3"), 1.0))
    (line,) = told(study(tmp_path), measured_again(past, lambda number: 0.5 if number == 5 else 1.0))
    assert line.startswith("#5, a run of the baseline, had rate 50% lower than the others: ")


def test_slow_nodes_in_a_row_are_no_change_of_the_machine(tmp_path: Path) -> None:
    """Blocks of the confirmation stay on their nodes, so a slow node comes in a row."""
    past = history(tmp_path, {"n1": 1.0, "n2": 1.0})
    for number in range(101, 113):
        node, rate = ("n1", 100.0) if number < 107 else ("n3", 80.0)
        past.trials[number] = Trial(number, {"x": 0, "y": 0}, {"x": 0, "y": 0}, Stage.CONFIRM, "confirm", block=0)
        past.runs[number] = Run(
            number, number, 1, tmp_path, Resources(), Ending(Cause.EXITED, 0, nodes=(node,)), Outcome(Kind.OK),
            (Measurement("rate", rate * SCATTER[number % 5]),),
        )  # fmt: skip
    assert not [line for line in told(study(tmp_path), past) if "meanwhile" in line]


def test_origins_are_told_apart(tmp_path: Path) -> None:
    run = next(iter(history(tmp_path).runs.values()))
    modelled = replace(run, measurements=(Measurement("rate", 1.0, origin="modelled"),))
    assert origins([run]) == "measured"
    assert origins([run, modelled]) == "measured and modelled"
    assert origins([]) == ""


def test_a_percentage_says_whether_it_is_of_time_or_of_speed() -> None:
    slow = NodeEffect("n2", "slow", 1 / 1.5, 1 / 1.6, 1 / 1.4, 0.95, 9)
    told = {
        ("wall_s", "s", "minimize"): "node n2 is 50% slower in time than its peers (95%: 40% to 60%)",
        ("energy", "J", "minimize"): "node n2 has 50% higher energy than its peers (95%: 40% to 60%)",
        ("rate", "steps/s", "maximize"): "node n2 is 33% slower in rate than its peers (95%: 29% to 38%)",
    }
    assert {goal: node_text(slow, MetricText(*goal)) for goal in told} == told  # type: ignore[arg-type]


def test_an_odd_time_is_not_said_to_be_a_hundred_percent_off(tmp_path: Path) -> None:
    past = history(tmp_path, dict.fromkeys(("n1", "n2", "n3"), 1.0))
    timed = replace(study(tmp_path), goal=Goal("rate", "minimize"))
    (line,) = told(timed, measured_again(past, lambda number: 1 / 2.03 if number == 5 else 1.0))
    assert "#5, a run of the baseline, had rate 50% lower than the others: " in line


def test_knobs_that_nobody_can_tell_apart_are_named_with_what_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [
        Contribution(("x",), 0.4, -0.1, 1.2),
        Contribution(("z",), 0.3, -0.1, 0.9),
        Contribution(("y",), 0, -0.01, 0.01),
    ]
    monkeypatch.setattr("ridgeline.report.insights.contributions", lambda *_: found)
    lines = told(study(tmp_path), history(tmp_path), {"x": 5, "y": 1})
    (line,) = (line for line in lines if "attributed" in line)
    assert (
        "x, z were almost always changed together; `ridgeline study steps --each` measures one after the other" in line
    )
