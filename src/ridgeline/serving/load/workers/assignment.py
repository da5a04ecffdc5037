"""What one worker is to send, how a run is split over several, and what each brings back."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ridgeline.serving.load.wire.client_stats import ClientStats
from ridgeline.serving.load.wire.endpoint import Endpoint
from ridgeline.serving.load.wire.exchange import CoalescedTokens
from ridgeline.serving.traffic.requests import RequestRecord
from ridgeline.serving.traffic.traffic import Arrival
from ridgeline.serving.traffic.turns import Again, sessions_of

# status of a request that has not ended yet, in a load that goes on
UNDER_WAY = "under way"

Address = tuple[int, tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one worker is to send: its part of the traffic, or all of it.

    `slots` is how many a closed loop keeps under way; 0 in an open loop, where the arrivals' own times count.
    With `endless` the list is gone through again and again until `duration_s`.

    With `turns` each request that comes after others waits for their answers, and `slots` counts sessions; those of
    `again` follow until `duration_s`.
    """

    endpoint: Endpoint
    address: Address
    arrivals: tuple[Arrival, ...]
    slots: int = 0
    most_at_once: int | None = None
    endless: bool = False
    turns: bool = False
    again: Again | None = None
    model: str = ""
    stream: bool = True
    ignore_eos: bool = False
    extra: Mapping[str, object] = field(default_factory=dict)
    salt: int = 0
    shared_prefix_tokens: int = 0
    duration_s: float | None = None
    timeout_s: float = 120.0
    start_at_s: float | None = None
    worker: int = 0
    workers: int = 1
    records_path: Path | None = None
    give_up_s: float | None = None  # after the start, on what is still under way
    numbers_from: int = 0  # of requests beyond the list, when it is gone through again


@dataclass(slots=True)
class LoadResult:
    """What one worker brings back, or all of them together."""

    records: list[RequestRecord]
    stats: ClientStats
    start_s: float
    interrupted: bool = False
    unfinished: int = 0
    # how long after its time each request was taken up, in the order in which they ended
    lag_s: array[float] = field(default_factory=lambda: array("d"))
    paused: int = 0
    coalesced: list[CoalescedTokens] = field(default_factory=list)
    time_slices: str = ""  # how the kernel schedules this process
    lost_workers: int = 0
    records_problem: str = ""
    unsent: dict[int, int] = field(default_factory=dict)  # by session that began: its requests that have no record
    cache_reports: int = 0  # answers that said how much of their prompt was cached
    under_way: list[RequestRecord] = field(default_factory=list)  # as far as they have come, in a load that goes on


def split_over_workers(assignment: Assignment, workers: int) -> list[Assignment]:
    """The assignment split over several workers: every request exactly once, slots as even as they can be, all of a
    session to one worker where its turns wait for each other.

    Of a closed loop with fewer slots than workers, the last ones have nothing to do.
    """
    parts = []
    path, slots, most = assignment.records_path, assignment.slots, assignment.most_at_once
    # sessions go on when their number is changed, so a worker without a place keeps its share of an endless list
    busy = workers if assignment.turns and assignment.endless else min(workers, slots or workers)
    for k in range(workers):
        again = assignment.again
        if again is not None:
            again = replace(again, arrivals=split_arrivals(assignment, again.arrivals, k, busy))
        parts.append(
            replace(
                assignment,
                again=again,
                arrivals=split_arrivals(assignment, assignment.arrivals, k, busy),
                slots=slots // workers + (k < slots % workers),
                endless=assignment.endless and k < busy,
                most_at_once=None if most is None else most // workers + (k < most % workers),
                worker=k,
                workers=workers,
                records_path=None if path is None else path.with_name(f"{path.name}.{k}"),
            )
        )
    return parts


def split_arrivals(assignment: Assignment, arrivals: Sequence[Arrival], worker: int, busy: int) -> tuple[Arrival, ...]:
    """Those that are for this worker of so many that have something to do."""
    if worker >= busy:
        return ()
    if not assignment.turns:
        return tuple(itertools.islice(arrivals, worker, None, busy))
    return tuple(itertools.chain.from_iterable(itertools.islice(sessions_of(arrivals), worker, None, busy)))
