"""What a campaign knows and has spent, as its journal says: runs, builds, and what the batch system says later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ridgeline.records.outcome import Kind
from ridgeline.records.trial import Stage
from ridgeline.study.history import History


def build(key: str, **more: Any) -> dict[str, Any]:
    line = {"at": 0.0, "event": "build", "key": key, "outcome": {"kind": "ok"}, "files": 1, "seconds": 99.0}
    return line | {"settings": {}} | more


def charged(ticket: str, seconds: float) -> dict[str, Any]:
    return {"at": 0.0, "event": "charged", "ticket": ticket, "seconds": seconds}


@pytest.mark.parametrize(
    ("lines", "by_variant", "node_s"),
    [
        ([build("a")], {}, 0.0),  # on this machine, which is not charged for
        ([build("a", ticket="1", node_s=360.0)], {"a": 360.0}, 360.0),
        ([build("a", ticket="1", node_s=360.0), build("a", ticket="2", node_s=100.0)], {"a": 460.0}, 460.0),
        ([build("a", ticket="1", node_s=0.0)], {"a": 0.0}, 0.0),
        ([build("a"), build("b", ticket="1", node_s=36.0)], {"b": 36.0}, 36.0),
        # the batch system's word replaces the part that was estimated, and nothing else
        ([build("a", ticket="1", node_s=300.0, estimated_s=100.0), charged("1", 160.0)], {"a": 360.0}, 360.0),
        ([build("a", ticket="1", node_s=300.0, estimated_s=100.0), charged("1", 40.0)], {"a": 240.0}, 240.0),
        (
            [
                build("a", ticket="1", node_s=300.0, estimated_s=100.0),
                build("b", ticket="2", node_s=50.0, estimated_s=50.0),
                charged("2", 70.0),
            ],
            {"a": 300.0, "b": 70.0},
            370.0,
        ),
    ],
)
def test_builds_on_the_site_are_paid_by_variant(
    lines: list[dict[str, Any]], by_variant: dict[str, float], node_s: float
) -> None:
    history = History(Path("study"))
    history.apply_all(lines)
    assert history.build_s == by_variant
    assert history.node_hours * 3600 == pytest.approx(node_s)
    answered = {line["ticket"] for line in lines if line["event"] == "charged"}
    asked = {line["ticket"] for line in lines if "estimated_s" in line}
    assert set(history.uncharged) == asked - answered


@pytest.mark.parametrize("ticket", ["2", ""])
def test_a_job_that_nobody_waits_for_is_charged_to_nobody(ticket: str) -> None:
    history = History(Path("study"))
    history.apply(build("a", ticket="1", node_s=300.0))
    with pytest.raises(LookupError):
        history.apply(charged(ticket, 10.0))
    assert history.node_hours * 3600 == pytest.approx(300.0)


def line(event: str, **more: Any) -> dict[str, Any]:
    return {"at": 1000.0, "event": event, **more}


def ran(number: int, stage: str, rate: float, outcome: str = "ok", nodes: int = 1) -> list[dict[str, Any]]:
    """A trial and its one run of a minute."""
    ending = {"cause": "exited", "started": 100.0, "ended": 160.0, "exit_code": 0, "nodes": ["n1"], "usage": {}}
    point = {"x": number}
    return [
        line("trial", trial=number, stage=stage, proposer="grid", point=point, settings=point),
        line("run", run=number, trial=number, attempt=1, folder=f"runs/{number}", resources={"nodes": nodes}),
        line("submitted", run=number, ticket=f"t{number}"),
        line(
            "ended",
            run=number,
            ending=ending,
            outcome={"kind": outcome},
            measurements=[["rate", rate, "1/s", "stdout", "measured"]],
        ),
    ]


def test_guards_compare_with_the_first_good_run_of_the_baseline_in_its_own_length() -> None:
    """Neither with one that failed, nor a later one, nor another setting's; a short run only with a short one."""
    history = History(Path("study"))
    seen: list[tuple[Any, Any]] = []
    for lines in (
        ran(1, "baseline", 1.0, "crash"), ran(2, "search", 2.0), ran(3, "short", 3.0, "wrong"), ran(4, "baseline", 4.0),
        ran(5, "baseline", 5.0), ran(6, "short", 6.0), ran(7, "short", 7.0), ran(8, "sentinel", 8.0),
    ):  # fmt: skip
        history.apply_all(lines)
        long, short = (history.reference_of(stage).get("rate") for stage in (Stage.SEARCH, Stage.SHORT))
        seen.append((long, short))
    assert seen == [(None, None)] * 3 + [(4.0, None)] * 2 + [(4.0, 6.0)] * 3
    assert (history.outcomes[Kind.OK], history.outcomes[Kind.CRASH], history.outcomes[Kind.WRONG]) == (6, 1, 1)


def test_node_hours_are_those_of_every_run_by_its_nodes_and_of_what_is_charged_in_the_end() -> None:
    history = History(Path("study"))
    history.apply_all([*ran(1, "baseline", 1.0, nodes=2), *ran(2, "search", 1.0, "crash", nodes=3)])
    assert history.node_hours * 3600 == pytest.approx(2 * 60 + 3 * 60)
    history.apply(charged("t1", 100.0))
    assert history.node_hours * 3600 == pytest.approx(2 * 100 + 3 * 60)
    assert history.runs_of[1][0].ending.charged_s == history.runs[1].ending.charged_s == 100.0
    assert set(history.uncharged) == {"t2"}


@pytest.mark.parametrize(
    ("asked", "limit"), [({"trials": 5}, 8), ({"blocks": 2}, 3), ({"trials": 2, "blocks": 1}, 5), ({}, 3)]
)
def test_an_extension_adds_its_trials_to_those_that_were_searched(asked: dict[str, int], limit: int) -> None:
    history = History(Path("study"))
    history.apply_all([*ran(1, "baseline", 1.0), *(each for n in (2, 3, 4) for each in ran(n, "search", 1.0))])
    history.apply(line("verdict", verdict={"kind": "unconfirmed", "headline": ""}))
    history.apply(line("extended", **{"trials": 0, "blocks": 0, **asked}))
    assert (history.search_limit, history.searched_before, history.last_trial_before) == (limit, 3, 4)
    assert history.verdict is None and [v.conclusion for v in history.verdicts_before] == ["unconfirmed"]
