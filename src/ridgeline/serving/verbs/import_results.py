"""ridgeline twin import: results of other load generators as our records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.records import measurement
from ridgeline.serving.load import imported as load_imported
from ridgeline.serving.verbs import options as option

if TYPE_CHECKING:
    from ridgeline.serving.load.imported import Imported
    from ridgeline.serving.traffic.bench_results import BenchRun


def import_results(
    paths: Annotated[list[Path], typer.Argument(help="Result files or folders of other load generators.")],
    out: Annotated[
        Path | None, typer.Option(help="File for one JSON line per request, as `bench --out` writes.")
    ] = None,
    as_json: option.AsJson = False,
) -> None:
    """Read results of other load generators and of published runs.

    It knows genai-bench, evalscope, guidellm, aiperf, inference-perf, reports of llm-d, InferenceX, vllm bench and
    SGLang's benches.

    Figures that were not measured, or that contradict each other, are marked with the reason.

    Example: ridgeline twin import results.json
    """
    found = load_imported.import_results(paths, out)
    print(json.dumps({"runs": [one.as_json() for one in found]}) if as_json else _imported_text(found))


def _imported_text(found: Sequence[Imported]) -> str:
    return "\n\n".join(map(_one, found))


def _one(imported: Imported) -> str:
    run = imported.run
    rates = (
        (measurement.unit_of("requests_s"), run.requests_s),
        (f"output {measurement.unit_of('output_tok_s')}", run.output_tok_s),
        (f"input {measurement.unit_of('input_tok_s')}", run.input_tok_s),
    )
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
