#!/usr/bin/env python3
"""`bench --find-goodput` beside the truth: servers whose capacity follows from arithmetic.

    benchmarks/loadgen/goodput.py                     # both servers, some twenty minutes
    benchmarks/loadgen/goodput.py --server slots      # one of them
    benchmarks/loadgen/goodput.py --hold 20 --limit 300

`slots` serves so many requests at a time and makes the others wait; `batch` takes longer for every token the more
requests it serves, as an engine does. Requests are evenly spaced, so below the true rate nothing waits and above it the
queue never stops growing. Then the answer, and 10% more than it, are each sent once more for as long as it was held.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
RIDGELINE = [sys.executable, "-m", "ridgeline"]


@dataclass(frozen=True)
class KnownServer:
    """How fake_server.c is started, the limit that is asked for, and the most evenly spaced requests that keep it."""

    arguments: tuple[str, ...]
    slo: str
    tokens: int
    truth_s: float


def slots_server(slots: int, ttft_ms: float, itl_ms: float, tokens: int, limit_ms: float) -> KnownServer:
    busy_s = (ttft_ms + (tokens - 1) * itl_ms) / 1e3
    arguments = ("-k", str(slots), "0", str(ttft_ms), str(itl_ms), str(tokens))
    return KnownServer(arguments, f"ttft_p95_ms={limit_ms:g}", tokens, slots / busy_s)


def batch_server(slower_ms: float, ttft_ms: float, itl_ms: float, tokens: int, limit_ms: float) -> KnownServer:
    at_once = (limit_ms - itl_ms) / slower_ms
    arguments = ("-s", str(slower_ms), "0", str(ttft_ms), str(itl_ms), str(tokens))
    truth_s = at_once / ((ttft_ms + (tokens - 1) * limit_ms) / 1e3)
    return KnownServer(arguments, f"itl_p95_ms={limit_ms:g}", tokens, truth_s)


SERVERS = {
    "slots": slots_server(slots=16, ttft_ms=40, itl_ms=20, tokens=20, limit_ms=200),
    "batch": batch_server(slower_ms=0.5, ttft_ms=40, itl_ms=10, tokens=32, limit_ms=30),
}


def main() -> None:
    options = arguments()
    program = build(Path(options.cache).expanduser())
    cores = len(os.sched_getaffinity(0))
    print(f"client and server on {cores} cores, load {os.getloadavg()[0]:.1f}, {time.strftime('%Y-%m-%d')}\n")
    print("| server | limit | true/s | found/s | off by | held for | probes (void) | took | found again | 10% more |")
    print("|" + "---|" * 10)
    for name in SERVERS if options.server == "all" else [options.server]:
        print(row(name, SERVERS[name], program, options), flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", choices=["all", *SERVERS], default="all")
    parser.add_argument("--hold", type=float, default=60.0)
    parser.add_argument("--limit", type=float, default=1200.0)
    parser.add_argument("--start", type=float, default=5.0, help="rate at which the search starts")
    parser.add_argument("--cache", default="~/.cache/ridgeline-peers", help="folder of the built server")
    return parser.parse_args()


def build(cache: Path) -> Path:
    cache.mkdir(parents=True, exist_ok=True)
    program, source = cache / "fake_server", HERE / "fake_server.c"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        subprocess.run(["cc", "-O2", "-o", program, source, "-lm"], check=True)
    return program


def row(name: str, known: KnownServer, program: Path, options: argparse.Namespace) -> str:
    process = subprocess.Popen([program, *known.arguments], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}"
        began_s = time.monotonic()
        found = bench(url, known, ["--rate", str(options.start), "--find-goodput"], options)
        if "holds" not in found:
            return f"| {name} | {known.slo} | {known.truth_s:.2f} | none | | | | | {found['error']} | |"
        took_s, rate_s = time.monotonic() - began_s, found["holds"]
        again = [held_again(url, known, rate_s * more, options) for more in (1.0, 1.1)]
    finally:
        process.terminate()
        process.wait()
    held = f"{found['held_for_s']:.0f} s" if found["held_for_s"] else "not held"
    cells = [
        name, known.slo, f"{known.truth_s:.2f}", f"{rate_s:.2f}", f"{rate_s / known.truth_s - 1:+.1%}", held,
        f"{len(found['probes'])} ({found['void_probes']})", f"{took_s:.0f} s", *again,
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def held_again(url: str, known: KnownServer, rate_s: float, options: argparse.Namespace) -> str:
    result = bench(url, known, ["--rate", f"{rate_s:g}", "--requests", str(round(rate_s * options.hold))], None)
    latency, quantile, _ = known.slo.partition("=")[0].split("_")
    void = ", void" if result["void"] else ""
    saturated = ", saturated" if result["saturated"] else ""
    return (
        f"{result[f'{latency}_ms'][quantile]:.1f} ms, {result['completed_requests_s']:.2f} of "
        f"{result['offered_requests_s']:.2f}/s{saturated}{void}"
    )


def bench(url: str, known: KnownServer, more: list[str], options: argparse.Namespace | None) -> dict:
    terms = [] if options is None else ["--hold", str(options.hold), "--limit", str(options.limit)]
    command = [
        *RIDGELINE, "bench", url, "--burstiness", "0", "--max-tokens", str(known.tokens), "--slo", known.slo, "--json",
        *more, *terms,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    print(done.stderr, file=sys.stderr, end="")
    return json.loads(done.stdout) if done.stdout else {"error": done.stderr.strip().splitlines()[-1]}


if __name__ == "__main__":
    main()
