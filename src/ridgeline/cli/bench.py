"""ridgeline bench: load a server and report what it did."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from ridgeline.errors import InputError


def bench(
    url: Annotated[str, typer.Argument(help="Base URL (http://127.0.0.1:8000) or full endpoint of the server.")],
    concurrency: Annotated[int | None, typer.Option(help="Closed loop: this many requests at once.")] = None,
    rate: Annotated[float | None, typer.Option(help="Open loop: this many requests a second.")] = None,
    burstiness: Annotated[float, typer.Option(help="Open loop: 0 constant, 1 Poisson, above 1 gamma bursts.")] = 1.0,
    stages: Annotated[str | None, typer.Option(help="Ramp: 8:30,16:30 (at once:seconds) or 2/s:30,4/s:30.")] = None,
    requests: Annotated[int | None, typer.Option(help="How many requests [default: 10 rounds, at least 100].")] = None,
    duration: Annotated[float | None, typer.Option(help="Stop sending after this many seconds.")] = None,
    traffic: Annotated[
        str | None, typer.Option(help="sharegpt, sharegpt:IN:OUT, fixed:IN:OUT, lognormal:IN:OUT, or a trace file.")
    ] = None,
    input_tokens: Annotated[int, typer.Option(help="Length of each prompt where --traffic does not say.")] = 128,
    max_tokens: Annotated[int | None, typer.Option(help="Length limit of each answer [default: 128].")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Ask for the full length (SGLang, vLLM).")] = False,
    shared_prefix: Annotated[int, typer.Option(help="Tokens at the start of every prompt that are the same.")] = 0,
    model: Annotated[str | None, typer.Option(help="Model name [default: the first of /v1/models].")] = None,
    api: Annotated[
        str | None, typer.Option(help="chat, completions or generate [default: by the URL, or chat].")
    ] = None,
    key: Annotated[
        str | None, typer.Option(envvar="RIDGELINE_API_KEY", show_envvar=True, help="API key, sent as a bearer token.")
    ] = None,
    header: Annotated[list[str] | None, typer.Option(help="Further header, 'Name: value'; may be repeated.")] = None,
    ca: Annotated[Path | None, typer.Option(help="PEM file of the authority that signed the server's key.")] = None,
    body: Annotated[str | None, typer.Option(help="JSON object of further body fields, such as temperature.")] = None,
    no_stream: Annotated[bool, typer.Option("--no-stream", help="Ask for answers in one piece.")] = False,
    slo: Annotated[list[str] | None, typer.Option(help="Limit such as ttft_p95_ms=2000; may be repeated.")] = None,
    find_goodput: Annotated[bool, typer.Option("--find-goodput", help="Find the most load that holds --slo.")] = False,
    sweep: Annotated[
        str | None, typer.Option(help="Grid, such as 'concurrency=1,8,64 input=128,1024 output=128'.")
    ] = None,
    warmup: Annotated[int, typer.Option(help="Unmeasured requests before the clock starts.")] = 0,
    workers: Annotated[int, typer.Option(help="Processes that send the load.")] = 1,
    timeout: Annotated[float, typer.Option(help="Seconds without a byte after which a request has failed.")] = 120.0,
    seed: Annotated[int, typer.Option(help="Seed of lengths and arrival times.")] = 0,
    out: Annotated[Path | None, typer.Option(help="File (or folder) for one JSON line per request.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Load a server and report latency, throughput and goodput, and whether the load generator itself kept up.

    A run whose own error could exceed 2% of a figure is marked void, with the reason. Exit code 3: nothing answered.
    """
    from ridgeline.serving.load.ask import Wish, plan_of
    from ridgeline.serving.load.session import run_session

    if find_goodput and sweep is not None:
        raise InputError("--find-goodput and --sweep are two different questions; ask one at a time")
    wish = Wish(
        url=url, concurrency=concurrency, rate_s=rate, burstiness=burstiness, stages=stages, requests=requests,
        duration_s=duration, traffic=traffic, input_tokens=input_tokens, max_tokens=max_tokens, ignore_eos=ignore_eos,
        shared_prefix_tokens=shared_prefix, model=model, api=api, key=key, headers=tuple(header or ()), ca_file=ca,
        body=body, stream=not no_stream, slos=tuple(slo or ()), warmup=warmup, workers=workers, timeout_s=timeout,
        seed=seed, out=out,
    )  # fmt: skip
    answer = run_session(
        plan_of(wish), find_goodput=find_goodput, grid=sweep, say=lambda line: print(line, file=sys.stderr, flush=True)
    )
    print(json.dumps(answer.document) if as_json else answer.text)
    if answer.exit_code:
        raise SystemExit(answer.exit_code)
