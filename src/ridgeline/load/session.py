"""One call of `ridgeline bench`: a plain run, a search for goodput or a sweep, and the document kept of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from ridgeline.load.bench import BenchPlan, BenchResult, bench
from ridgeline.load.edge import Edge, GoodputTerms, Probe
from ridgeline.load.goodput import FirstEstimate, find_goodput
from ridgeline.load.stream import LiveStream
from ridgeline.load.sweep import Sweep, SweepPoint, parse_grid, sweep

_NOTHING_ANSWERED = 3
_STOPPED = 130


@dataclass(frozen=True, slots=True)
class BenchSession:
    found: BenchResult | Edge | Sweep
    document: dict[str, object]
    exit_code: int = 0


def run_session(
    plan: BenchPlan,
    *,
    goodput: GoodputTerms | None,
    grid: str | None,
    progress: Callable[[Probe | FirstEstimate | SweepPoint], None],
) -> BenchSession:
    """Searches for goodput where its terms are given. `progress` is called with each probe or point while a search or
    sweep lasts; the document is also kept beside the records."""
    if goodput is not None:
        session = _searched(plan, find_goodput(plan, lambda: LiveStream(plan), terms=goodput, note=progress))
    elif grid is not None:
        session = _searched(plan, sweep(plan, parse_grid(grid, plan), bench, note=progress))
    else:
        session = _single(plan)
    if plan.records_path is not None:
        plan.records_path.with_suffix(".summary.json").write_text(json.dumps(session.document, indent=1) + "\n")
    return session


def _single(plan: BenchPlan) -> BenchSession:
    result = bench(plan)
    code = _STOPPED if result.interrupted else 0 if result.summary.ok else _NOTHING_ANSWERED
    return BenchSession(result, result.as_json(), code)


def _searched(plan: BenchPlan, found: Edge | Sweep) -> BenchSession:
    return BenchSession(found, {"url": plan.endpoint.url, **found.as_json()}, _STOPPED if found.interrupted else 0)
