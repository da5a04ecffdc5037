"""What `site check` says of a site: ready only where every job was seen to end as it should."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from ridgeline.errors import SiteError
from ridgeline.executors.site_check import SiteCheck
from ridgeline.records.run import Cause, Ending, Job
from ridgeline.records.site import Site

FINE = Ending(Cause.EXITED, 0, nodes=("n1",))
RANKS = Ending(Cause.EXITED, 0, nodes=("n1", "n2"))
GONE = Ending(Cause.CANCELLED)


class Scripted:
    """Ends each job as told; one that is not told of stays in the queue, until it is cancelled."""

    programs: tuple[str, ...] = ("sh",)
    refuses = ""

    def __init__(
        self, endings: Mapping[str, Ending], waiting: Mapping[str, str], stubborn: Ending | None = GONE
    ) -> None:
        self.endings, self.waiting, self.stubborn = dict(endings), waiting, stubborn
        self.jobs: dict[str, Job] = {}
        self.cancelled: list[str] = []

    def submit(self, job: Job) -> str:
        if self.refuses:
            raise SiteError(self.refuses)
        self.jobs[job.name.removeprefix("check-")] = job
        return job.name.removeprefix("check-")

    def poll(self, tickets: Collection[str]) -> dict[str, Ending]:
        for ticket in tickets:
            if ticket == "launcher" and ticket in self.endings:
                (self.jobs[ticket].folder / "stdout").write_text("n1\nn1\nn2\nn2\n")
        return {ticket: self.endings[ticket] for ticket in tickets if ticket in self.endings}

    def cancel(self, ticket: str) -> None:
        self.cancelled.append(ticket)
        if self.stubborn is not None and ticket == "cancel":
            self.endings[ticket] = self.stubborn

    def wait(self, seconds: float) -> None:
        pass


def check(folder: Path, executor: Any, **site: Any) -> list[tuple[str, bool, str]]:
    made = Site(**{"name": "here", "batch": "slurm", "launcher": "srun", "nodes": 4, **site})
    return [(step.name, step.ok, step.detail) for step in SiteCheck(executor, made, folder, patience_s=0.05).steps()]


def test_a_site_is_ready_where_every_job_ended_as_it_should(tmp_path: Path) -> None:
    executor = Scripted({"run": FINE, "launcher": RANKS}, {})
    found = check(tmp_path, executor)
    assert [(name, ok) for name, ok, _ in found] == [
        ("programs", True), ("submit", True), ("run", True), ("launcher", True), ("cancel", True),
    ]  # fmt: skip
    assert found[1][2] == "3 small jobs taken (run, launcher, cancel)" and found[2][2] == "on n1"
    assert found[3][2] == "4 ranks of 4 on n1, n2"
    assert executor.cancelled == ["cancel"]
    assert [(j.resources.nodes, j.resources.ranks_per_node) for j in executor.jobs.values()] == [(1, 1), (2, 2), (1, 1)]


@pytest.mark.parametrize(
    ("endings", "waiting", "bad", "says"),
    [
        ({}, {"1": "Resources"}, "run", "not started within 0 s (Resources); the queue is full"),
        ({}, {}, "run", "not started within 0 s (no reason given)"),
        ({"run": Ending(Cause.EXITED, 3)}, {}, "run", "exit code 3; correct the site file"),
        ({"run": Ending(Cause.NODE_FAILED, 0, reason="node down")}, {}, "run", "node down; correct the site file"),
        ({"run": FINE}, {"2": "Priority"}, "launcher", "not started within 0 s (Priority)"),
        ({"run": FINE, "launcher": Ending(Cause.EXITED, 127)}, {}, "launcher", "srun is not on the compute nodes"),
        ({"run": FINE, "launcher": Ending(Cause.EXITED, 1)}, {}, "launcher", "try another, or set launcher_options"),
    ],
)
def test_what_did_not_start_or_failed_is_not_called_ready(
    endings: dict[str, Ending], waiting: dict[str, str], bad: str, says: str, tmp_path: Path
) -> None:
    executor = Scripted(endings, waiting)
    found = {name: (ok, detail) for name, ok, detail in check(tmp_path, executor)}
    assert found[bad][0] is False and says in found[bad][1]
    assert [name for name, (ok, _) in found.items() if not ok] == [bad]
    assert {"cancel", *({"run", "launcher"} - set(endings))} == set(executor.cancelled), "nothing is left in the queue"
    assert ("launcher" in found) == (bad == "launcher"), "after a first job that failed no other is judged"


@pytest.mark.parametrize(("nodes", "ranks"), [(1, 2), (2, 4), (9, 4)])
def test_every_rank_must_be_seen(nodes: int, ranks: int, tmp_path: Path) -> None:
    found = {
        name: (ok, detail)
        for name, ok, detail in check(tmp_path, Scripted({"run": FINE, "launcher": RANKS}, {}), nodes=nodes)
    }
    assert found["launcher"][0] is (ranks == 4) and found["launcher"][1].startswith(f"4 ranks of {ranks} on n1, n2")


@pytest.mark.parametrize(
    ("stubborn", "says"),
    [(None, "no end was reported"), (Ending(Cause.EXITED, 0, reason="done"), f"reported as {Cause.EXITED} done")],
)
def test_a_job_that_was_cancelled_must_be_seen_to_end_so(stubborn: Ending | None, says: str, tmp_path: Path) -> None:
    *_, (name, ok, detail) = check(tmp_path, Scripted({"run": FINE}, {}, stubborn), launcher="none")
    assert (name, ok) == ("cancel", False) and detail.startswith(says)


def test_it_ends_where_nothing_can_be_tried(tmp_path: Path) -> None:
    lacking, refused = Scripted({}, {}), Scripted({}, {})
    lacking.programs = ("sh", "no-such-program")
    refused.refuses = "queue debug is unknown"
    assert [(name, ok) for name, ok, _ in check(tmp_path / "a", lacking)] == [("programs", False)]
    assert check(tmp_path / "b", refused)[1:] == [("submit", False, "queue debug is unknown")]
    assert not lacking.jobs
