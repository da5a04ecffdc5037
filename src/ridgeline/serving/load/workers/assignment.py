"""What one process is to send, how a run is dealt out to several, and what each brings back."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ridgeline.serving.load.wire.client_stats import Pulse
from ridgeline.serving.load.wire.coalesced import Blur
from ridgeline.serving.load.wire.endpoint import Route
from ridgeline.serving.traffic.requests import RequestRecord
from ridgeline.serving.traffic.traffic import Arrival

Address = tuple[int, tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Asking:
    """What is the same in every request of a run."""

    model: str = ""
    stream: bool = True
    ignore_eos: bool = False
    extra: Mapping[str, object] = field(default_factory=dict)
    salt: int = 0
    shared_prefix_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Share:
    """What one process is to send: its part of the traffic, or all of it.

    `places` are (from second, requests at once) for a closed loop, empty for an open loop, where the arrivals' own
    times count. With `endless` the list is gone through again and again until `duration_s`.
    """

    route: Route
    address: Address
    asking: Asking
    arrivals: tuple[Arrival, ...]
    places: tuple[tuple[float, int], ...] = ()
    most_at_once: int | None = None
    endless: bool = False
    duration_s: float | None = None
    timeout_s: float = 120.0
    start_at_s: float | None = None
    worker: int = 0
    workers: int = 1
    keep_path: Path | None = None


@dataclass(slots=True)
class Yield:
    """What one process brought in."""

    records: list[RequestRecord]
    pulse: Pulse
    start_s: float
    interrupted: bool = False
    unfinished: int = 0
    # how long after its time each request was taken up, in the order in which they ended
    lag_s: array[float] = field(default_factory=lambda: array("d"))
    paused: int = 0
    blurs: list[Blur] = field(default_factory=list)
    turns: str = ""  # how this process asked to be scheduled
    lost_workers: int = 0
    keep_problem: str = ""


def deal(share: Share, workers: int) -> list[Share]:
    """The share split over several processes: every request exactly once, places as even as they can be."""
    parts = []
    for k in range(workers):
        places = tuple((at, n // workers + (k < n % workers)) for at, n in share.places)
        most = share.most_at_once
        parts.append(
            replace(
                share,
                arrivals=tuple(itertools.islice(share.arrivals, k, None, workers)),
                places=places,
                most_at_once=None if most is None else most // workers + (k < most % workers),
                worker=k,
                workers=workers,
                keep_path=None if share.keep_path is None else share.keep_path.with_name(f"{share.keep_path.name}.{k}"),
            )
        )
    return parts
