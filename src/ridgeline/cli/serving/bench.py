"""`ridgeline bench`: load a server and report what it did."""

from __future__ import annotations

import gc
import json
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.serving import options as option
from ridgeline.errors import InputError

if TYPE_CHECKING:
    from ridgeline.load.options import BenchOptions


@dataclass(frozen=True)
class BenchArguments:
    """Every option under the name that it has in `BenchOptions`."""

    url: Annotated[str, typer.Argument(help="Base URL (http://127.0.0.1:8000) or full endpoint of the server.")]
    # load
    concurrency: option.Concurrency = None
    rate_s: option.Rate = None
    burstiness: option.Burstiness = 1.0
    stages: Annotated[str | None, typer.Option(help="Ramp: 8:30,16:30 (at once:seconds) or 2/s:30,4/s:30.")] = None
    requests: Annotated[int | None, typer.Option(help="How many requests; default: 10 rounds, at least 100.")] = None
    duration_s: Annotated[float | None, typer.Option("--duration", help="Stop sending after this many seconds.")] = None
    warmup: Annotated[int, typer.Option(help="Requests sent first and not measured.")] = 0
    workers: Annotated[int, typer.Option(help="Processes that send the load.")] = 1
    # traffic
    traffic: Annotated[
        str | None,
        typer.Option(
            help="sharegpt, sharegpt:IN:OUT, fixed:IN:OUT, uniform:800-1000:100-200, lognormal:IN:OUT, or a trace file."
        ),
    ] = None
    input_tokens: Annotated[int, typer.Option(help="Prompt length without --traffic.")] = 128
    max_tokens: Annotated[int | None, typer.Option(help="Length limit of each answer; default: 128.")] = None
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Ask for the full length (SGLang, vLLM).")] = False
    shared_prefix_tokens: Annotated[
        int, typer.Option("--shared-prefix", help="Tokens of a prefix that all prompts share.")
    ] = 0
    body: Annotated[
        str | None, typer.Option(metavar="JSON", help="JSON object of extra body fields, such as temperature.")
    ] = None
    stream: Annotated[bool, typer.Option(help="Stream tokens, or get each answer in one piece.")] = True
    seed: Annotated[int, typer.Option(help="Seed of lengths and arrival times.")] = 0
    # server
    model: Annotated[str | None, typer.Option(help="Model name; default: the first of /v1/models.")] = None
    api: Annotated[str | None, typer.Option(help="chat, completions or generate; default: by the URL, or chat.")] = None
    key: Annotated[str | None, typer.Option(envvar="RIDGELINE_API_KEY", help="API key, sent as a bearer token.")] = None
    headers: Annotated[
        list[str] | None, typer.Option("--header", metavar="'NAME: VALUE'", help="Extra header; may be repeated.")
    ] = None
    ca_file: Annotated[
        Path | None, typer.Option("--ca", help="PEM file of the CA that signed the server's certificate.")
    ] = None
    timeout_s: Annotated[
        float, typer.Option("--timeout", help="Seconds without a byte after which a request fails.")
    ] = 120.0
    # question and answer
    slos: option.Slos = None
    out: Annotated[Path | None, typer.Option(help="File (or folder) for one JSON line per request.")] = None

    find_goodput: Annotated[
        bool, typer.Option("--find-goodput", help="Find the highest load (by default a rate) that meets --slo.")
    ] = False

    def options(self) -> BenchOptions:
        from ridgeline.load.options import BenchOptions

        given = {f.name: getattr(self, f.name) for f in fields(self)}
        lists = {"headers": tuple(self.headers or ()), "slos": tuple(self.slos or ())}
        return BenchOptions(**{**given, **lists})


@option.takes(BenchArguments)
def bench(
    arguments: BenchArguments,
    hold_s: Annotated[
        float | None, typer.Option("--hold", help="Seconds for which --find-goodput's answer must hold; default: 60.")
    ] = None,
    within_s: Annotated[
        float | None,
        typer.Option("--within", help="Seconds that --find-goodput may take, holding included; default: 240."),
    ] = None,
    sweep: Annotated[
        str | None, typer.Option(metavar="GRID", help="Grid, such as 'concurrency=1,8,64 input=128,1024 output=128'.")
    ] = None,
    as_json: option.AsJson = False,
) -> None:
    """Load a server and report latency, throughput and goodput, and whether the load generator itself kept up.

    A run whose own error could exceed 2% of a figure is marked void, with the reason. Exit code 3: nothing answered.

    Example: ridgeline bench http://127.0.0.1:8000 --concurrency 16 --slo ttft_p95_ms=2000
    """
    gc.set_threshold(50_000)  # little garbage is made here, and looking for it would cost more than the imports below
    from ridgeline.cli.text.serving.bench import progress_text, session_text
    from ridgeline.load.edge import goodput_terms
    from ridgeline.load.options import plan_from
    from ridgeline.load.session import run_session

    if arguments.find_goodput and sweep is not None:
        raise InputError("--find-goodput and --sweep are different questions; ask one at a time")
    session = run_session(
        plan_from(arguments.options()),
        goodput=goodput_terms(arguments.find_goodput, hold_s, within_s, arguments.rate_s),
        grid=sweep,
        progress=lambda part: print(progress_text(part), file=sys.stderr, flush=True),
    )
    print(json.dumps(session.document) if as_json else session_text(session.found))
    if session.exit_code:
        raise typer.Exit(session.exit_code)
