"""ridgeline import: results of other load generators as our records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.serving import options as option


def import_results(
    paths: Annotated[list[Path], typer.Argument(help="Result files or folders of other load generators.")],
    out: Annotated[
        Path | None, typer.Option(help="File for one JSON line per request, as `bench --out` writes.")
    ] = None,
    as_json: option.AsJson = False,
) -> None:
    """Read results of genai-bench, evalscope, guidellm, aiperf, vllm bench and SGLang's benches.

    Figures that were not measured, or that contradict each other, are marked with the reason.

    Example: ridgeline import results.json
    """
    from ridgeline.cli.text.serving.imported import imported_text
    from ridgeline.load.imported import import_results as run

    found = run(paths, out)
    print(json.dumps({"runs": [one.as_json() for one in found]}) if as_json else imported_text(found))
