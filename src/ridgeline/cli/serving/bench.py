"""ridgeline bench: load a server and report what it did.

Read with argparse and not with typer, whose import costs more than sending a thousand requests: the CPU time of a load
generator is part of what it reports.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ridgeline.errors import InputError

ABOUT = """Load a server and report latency, throughput and goodput, and whether the load generator itself kept up.

A run whose own error could exceed 2% of a figure is marked void, with the reason. Exit code 3: nothing answered."""


def bench(arguments: Sequence[str]) -> None:
    gc.set_threshold(50_000)  # little garbage is made here, and looking for it would cost more than the imports below
    from ridgeline.cli.text.bench import progress_text, session_text
    from ridgeline.serving.load.edge import goodput_terms
    from ridgeline.serving.load.options import BenchOptions, plan_from
    from ridgeline.serving.load.session import run_session

    words = vars(_parser().parse_args(arguments))
    as_json, find_goodput, grid = words.pop("as_json"), words.pop("find_goodput"), words.pop("sweep")
    if find_goodput and grid is not None:
        raise InputError("--find-goodput and --sweep are two different questions; ask one at a time")
    goodput = goodput_terms(find_goodput, words.pop("hold_s"), words.pop("limit_s"))
    words["key"] = words["key"] or os.environ.get("RIDGELINE_API_KEY")
    words["headers"], words["slos"] = tuple(words["headers"]), tuple(words["slos"])
    session = run_session(
        plan_from(BenchOptions(**words)),
        goodput=goodput,
        grid=grid,
        progress=lambda part: print(progress_text(part), file=sys.stderr, flush=True),
    )
    print(json.dumps(session.document) if as_json else session_text(session.found))
    if session.exit_code:
        raise SystemExit(session.exit_code)


bench.reads_arguments = True  # type: ignore[attr-defined]  # see cli/main.py


def _parser() -> argparse.ArgumentParser:
    """Every option is stored under the name it has in `BenchOptions`."""
    parser = argparse.ArgumentParser(
        "ridgeline bench", description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("url", help="Base URL (http://127.0.0.1:8000) or full endpoint of the server.")
    _load_options(parser)
    _traffic_options(parser)
    _server_options(parser)
    _run_options(parser)
    return parser


def _load_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("load").add_argument
    add("--concurrency", type=int, metavar="N", help="Closed loop: this many requests at once.")
    add("--rate", type=float, dest="rate_s", metavar="R", help="Open loop: this many requests a second.")
    add("--burstiness", type=float, default=1.0, help="Open loop: 0 constant, 1 Poisson (default), above 1 bursts.")
    add("--stages", help="Ramp: 8:30,16:30 (at once:seconds) or 2/s:30,4/s:30.")
    add("--requests", type=int, metavar="N", help="How many requests [default: 10 rounds, at least 100].")
    add("--duration", type=float, dest="duration_s", metavar="S", help="Stop sending after this many seconds.")
    add("--warmup", type=int, default=0, metavar="N", help="Unmeasured requests before the clock starts.")
    add("--workers", type=int, default=1, metavar="N", help="Processes that send the load [default: 1].")


def _traffic_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("traffic").add_argument
    add("--traffic", help="sharegpt, sharegpt:IN:OUT, fixed:IN:OUT, lognormal:IN:OUT, or a trace file.")
    add("--input-tokens", type=int, default=128, metavar="N", help="Prompt length without --traffic [default: 128].")
    add("--max-tokens", type=int, metavar="N", help="Length limit of each answer [default: 128].")
    add("--ignore-eos", action="store_true", help="Ask for the full length (SGLang, vLLM).")
    add("--shared-prefix", type=int, default=0, dest="shared_prefix_tokens", metavar="N",
        help="Tokens at the start of every prompt that are the same.")  # fmt: skip
    add("--body", metavar="JSON", help="JSON object of further body fields, such as temperature.")
    add("--no-stream", action="store_false", dest="stream", help="Ask for answers in one piece.")
    add("--seed", type=int, default=0, metavar="N", help="Seed of lengths and arrival times.")


def _server_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("server").add_argument
    add("--model", help="Model name [default: the first of /v1/models].")
    add("--api", help="chat, completions or generate [default: by the URL, or chat].")
    add("--key", help="API key, sent as a bearer token [default: the environment's RIDGELINE_API_KEY].")
    add("--header", action="append", default=[], dest="headers", metavar="'NAME: VALUE'",
        help="Further header; may be repeated.")  # fmt: skip
    add("--ca", type=Path, dest="ca_file", metavar="FILE",
        help="PEM file of the authority that signed the server's key.")  # fmt: skip
    add("--timeout", type=float, default=120.0, dest="timeout_s", metavar="S",
        help="Seconds without a byte after which a request has failed [default: 120].")  # fmt: skip


def _run_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("question and answer").add_argument
    add("--slo", action="append", default=[], dest="slos", metavar="LIMIT",
        help="Limit such as ttft_p95_ms=2000; may be repeated.")  # fmt: skip
    add("--find-goodput", action="store_true", help="Find the most load that holds --slo.")
    add("--hold", type=float, dest="hold_s", metavar="S",
        help="Seconds for which the answer of --find-goodput must hold [default: 60].")  # fmt: skip
    add("--limit", type=float, dest="limit_s", metavar="S",
        help="Seconds that --find-goodput may take [default: 1800].")  # fmt: skip
    add("--sweep", metavar="GRID", help="Grid, such as 'concurrency=1,8,64 input=128,1024 output=128'.")
    add("--out", type=Path, metavar="PATH", help="File (or folder) for one JSON line per request.")
    add("--json", action="store_true", dest="as_json", help="Print one JSON document.")
