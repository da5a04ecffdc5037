"""`ridgeline calibrate`: fit the twin to a site."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.serving import options as option
from ridgeline.cli.text.json import json_text
from ridgeline.errors import InputError


def calibrate(
    sources: Annotated[
        list[Path], typer.Option("--from", help="SGLang logs, CSV files of measured rows, or bench results (JSON).")
    ],
    out: Annotated[Path, typer.Option(help="The calibration file to write.")],
    more: Annotated[list[Path] | None, typer.Argument(help="Further files.")] = None,
    model: Annotated[str | None, typer.Option(help="Preset or config.json, if a file does not name it.")] = None,
    gpu: Annotated[str | None, typer.Option(help="The GPU, if a file does not name it.")] = None,
    engine: Annotated[
        str | None,
        typer.Option(help="The benchmarked server, if the result does not name it: sglang:0.5.9, vllm:0.17.0."),
    ] = None,
    server_flags: Annotated[
        str,
        typer.Option(
            metavar="FLAGS",
            help="Its command line, if the result does not have it: '--tp-size 8 --max-running-requests 256'.",
        ),
    ] = "",
    as_json: option.AsJson = False,
) -> None:
    """Fit the twin's factors to logs, measured rows or benchmark results, and write them to a file.

    Benchmark results are those of `ridgeline bench` and of the tools that `ridgeline import` reads.

    Example: ridgeline calibrate --from server.log --model llama-8b --gpu h200 --out calibration.json
    """
    from ridgeline.cli.text.serving.calibration import calibration_text
    from ridgeline.twin.calibrate import calibrate as run
    from ridgeline.twin.calibration import write_calibration

    if os.path.isdir(out):  # noqa: PTH112  pathlib raises for names no file can have
        raise InputError(f"--out {out} is a folder; name the file to write, such as {out / 'site.json'}")
    fit = run([*sources, *(more or ())], model=model, gpu=gpu, engine=engine, server_flags=server_flags)
    try:
        write_calibration(fit.calibration, out)
    except OSError as error:
        raise InputError(f"--out {out}: cannot be written ({error.strerror}); name a file that you may write") from None
    print(json_text({**fit.as_json(), "out": str(out)}) if as_json else calibration_text(fit, out))
