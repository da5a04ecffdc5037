"""Results of other load generators, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.load.imported import Imported
from ridgeline.traffic.bench.run import BenchRun


def imported_text(found: Sequence[Imported]) -> str:
    return "\n\n".join(map(_one, found))


def _one(imported: Imported) -> str:
    run = imported.run
    rates = (("requests/s", run.requests_s), ("output tok/s", run.output_tok_s), ("input tok/s", run.input_tok_s))
    lines = [
        f"{run.tool}   {run.source}   {_load(run)}   {run.requests - run.failed} of {run.requests} requests",
        "  " + "   ".join(f"{name} {value:,.2f}" for name, value in rates if value is not None),
    ]
    for name, values in imported.latencies_ms.items():
        lines.append(f"  {name.upper()} ms   " + "   ".join(f"{q} {v:,.2f}" for q, v in values.items()))
    return "\n".join([*lines, *(f"  do not trust {figure}: {reason}" for figure, reason in imported.doubts.items())])


def _load(run: BenchRun) -> str:
    if run.concurrency:
        return f"{run.concurrency} at once"
    return f"{run.rate_s:g}/s" if run.rate_s else "load not stated"
