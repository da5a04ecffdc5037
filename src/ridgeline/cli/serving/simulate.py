"""`ridgeline simulate`: send traffic to a simulated cluster and print what a benchmark would have printed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.serving import options as option
from ridgeline.cli.text.json import json_text


@option.takes(option.DeploymentArguments)
def simulate(
    arguments: option.DeploymentArguments,
    schedule_conservativeness: Annotated[float, typer.Option(help="KV kept free for running requests.")] = 1.0,
    page_size: Annotated[int, typer.Option(help="Tokens of one KV page.")] = 1,
    radix_cache: Annotated[bool, typer.Option(help="Reuse the KV of shared prefixes.")] = True,
    accept_length: Annotated[
        float | None, typer.Option(help="Speculative decoding: tokens accepted a step; default: measured.")
    ] = None,
    draft_tokens: Annotated[int, typer.Option(help="Speculative decoding: tokens verified a step.")] = 1,
    routing: Annotated[str, typer.Option(help="round-robin, least-load or cache-aware.")] = "round-robin",
    traffic: option.TrafficText = "sharegpt",
    requests: Annotated[int | None, typer.Option(help="How many; default: 1000, or the whole trace.")] = None,
    concurrency: option.Concurrency = None,
    rate: option.Rate = None,
    burstiness: option.Burstiness = 1.0,
    calibration: option.CalibrationFile = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same answer.")] = 0,
    slo: option.Slos = None,
    out: Annotated[
        Path | None, typer.Option(help="File for one JSON line per request, as `bench --out` writes.")
    ] = None,
    as_json: option.AsJson = False,
) -> None:
    """Predict throughput and latency of a layout under given traffic, without a GPU.

    Without --rate and --concurrency all requests are sent at once, or at the times of a trace.

    Example: ridgeline simulate --model deepseek-r1 --gpu h100 --nodes 2 --tp 16 --traffic sharegpt --requests 2000
    """
    from ridgeline.cli.text.serving.simulation import simulation_text
    from ridgeline.traffic.requests import Slo
    from ridgeline.traffic.traffic import parse_traffic
    from ridgeline.twin.calibration import read_calibration
    from ridgeline.twin.simulate import simulate as run

    deployment = arguments.deployment(
        routing,
        schedule_conservativeness=schedule_conservativeness,
        page_size=page_size,
        radix_cache=radix_cache,
        accept_length=accept_length,
        draft_tokens=draft_tokens,
    )
    sent = parse_traffic(
        traffic, requests=requests, rate_s=rate, concurrency=concurrency, burstiness=burstiness, seed=seed
    )
    limits = [Slo.parse(text) for text in slo or ()]
    result = run(deployment, sent, read_calibration(calibration) if calibration else None, limits)
    if out is not None:
        from ridgeline.load.records_file import write_records

        write_records(out, result.records)
    print(json_text(result.as_json()) if as_json else simulation_text(str(deployment), result))
