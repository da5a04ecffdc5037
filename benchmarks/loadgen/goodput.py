#!/usr/bin/env python3
"""`bench --find-goodput` beside the truth and beside a plain bisection: servers whose capacity is known.

    benchmarks/loadgen/goodput.py                     # all servers, some fifteen minutes each with the plain bisection
    benchmarks/loadgen/goodput.py --server slots      # one of them
    benchmarks/loadgen/goodput.py --server twin --plain 0 --hold-again 60
    benchmarks/loadgen/goodput.py --url http://127.0.0.1:30000 --slo ttft_p95_ms=500 --hold-again 300

`slots` serves so many requests at a time and makes the others wait; `batch` takes longer for every token the more
requests it serves, as an engine does: with evenly spaced requests their capacity is arithmetic. `twin` is `twin serve`
(llama-8b on an H200), and `--url` any server of yours: there the truth is what 0.95, 1.0 and 1.05 of the answer do when
each is held for `--hold-again` seconds. The plain bisection doubles from 1/s and halves the bracket to 4%, with a run
of `--plain` seconds at each rate.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
RIDGELINE = [sys.executable, "-m", "ridgeline"]


@dataclass(frozen=True)
class KnownServer:
    """How a server is started, what is asked of it, and the most evenly spaced requests that keep it, where known."""

    arguments: tuple[str, ...]
    slos: tuple[str, ...]
    tokens: int
    truth_s: float | None = None
    more: tuple[str, ...] = ("--burstiness", "0")


def slots_server(slots: int, ttft_ms: float, itl_ms: float, tokens: int, limit_ms: float) -> KnownServer:
    busy_s = (ttft_ms + (tokens - 1) * itl_ms) / 1e3
    arguments = ("-k", str(slots), "0", str(ttft_ms), str(itl_ms), str(tokens))
    return KnownServer(arguments, (f"ttft_p95_ms={limit_ms:g}",), tokens, slots / busy_s)


def batch_server(slower_ms: float, ttft_ms: float, itl_ms: float, tokens: int, limit_ms: float) -> KnownServer:
    at_once = (limit_ms - itl_ms) / slower_ms
    arguments = ("-s", str(slower_ms), "0", str(ttft_ms), str(itl_ms), str(tokens))
    truth_s = at_once / ((ttft_ms + (tokens - 1) * limit_ms) / 1e3)
    return KnownServer(arguments, (f"itl_p95_ms={limit_ms:g}",), tokens, truth_s)


SERVERS = {
    "slots": slots_server(slots=16, ttft_ms=40, itl_ms=20, tokens=20, limit_ms=200),
    "batch": batch_server(slower_ms=0.5, ttft_ms=40, itl_ms=10, tokens=32, limit_ms=30),
    "twin": KnownServer((), ("ttft_p95_ms=500", "itl_p95_ms=30"), 64, None, ("--input-tokens", "512", "--ignore-eos")),
}


def main() -> None:
    options = arguments()
    cores = len(os.sched_getaffinity(0))
    print(f"client and server on {cores} cores, load {os.getloadavg()[0]:.1f}, {time.strftime('%Y-%m-%d')}\n")
    heads = ["server", "limits", "true/s", "found/s", "off by", "interval", "held for", "probes (void)", "took"]
    print("| " + " | ".join([*heads, "plain bisection", "0.95, 1.0, 1.05 of it"]) + " |")
    print("|" + "---|" * (len(heads) + 2))
    if options.url:
        known = KnownServer((), tuple(options.slo), options.max_tokens, None, tuple(options.bench_options.split()))
        print(row("yours", known, options.url, options), flush=True)
        return
    for name in SERVERS if options.server == "all" else [options.server]:
        with started(name, options) as url:
            print(row(name, SERVERS[name], url, options), flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", choices=["all", *SERVERS], default="all")
    parser.add_argument("--url", help="a server of yours instead")
    parser.add_argument("--slo", action="append", default=[])
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--bench-options", default="", help="further options of `bench`, in one string")
    parser.add_argument("--hold", type=float, default=60.0)
    parser.add_argument("--within", type=float, default=240.0)
    parser.add_argument("--plain", type=float, default=20.0, help="seconds of each run of the plain bisection; 0: none")
    parser.add_argument("--hold-again", type=float, default=0.0, help="seconds at 0.95, 1.0 and 1.05 of the answer")
    parser.add_argument("--cache", default="~/.cache/ridgeline-peers", help="folder of the built server")
    return parser.parse_args()


@contextlib.contextmanager
def started(name: str, options: argparse.Namespace) -> Iterator[str]:
    if name == "twin":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        process = subprocess.Popen(
            [*RIDGELINE, "twin", "serve", "--model", "llama-8b", "--gpu", "h200", "--port", str(port)]
        )
        url = f"http://127.0.0.1:{port}"
    else:
        program = build(Path(options.cache).expanduser())
        process = subprocess.Popen([program, *SERVERS[name].arguments], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}"
    try:
        await_models(url)
        yield url
    finally:
        process.terminate()
        process.wait()


def await_models(url: str, limit_s: float = 120.0) -> None:
    until_s = time.monotonic() + limit_s
    while True:
        try:
            with urllib.request.urlopen(f"{url}/v1/models", timeout=5):
                return
        except OSError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.5)


def build(cache: Path) -> Path:
    cache.mkdir(parents=True, exist_ok=True)
    program, source = cache / "fake_server", HERE / "fake_server.c"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        subprocess.run(["cc", "-O2", "-o", program, source, "-lm"], check=True)
    return program


def row(name: str, known: KnownServer, url: str, options: argparse.Namespace) -> str:
    terms = ["--hold", str(options.hold), "--within", str(options.within)]
    found = bench(url, known, ["--find-goodput", *terms])
    truth = "" if known.truth_s is None else f"{known.truth_s:.2f}"
    plain = plain_bisection(url, known, options.plain) if options.plain else ""
    if "holds" not in found:
        return f"| {name} | {' '.join(known.slos)} | {truth} | none: {found['error']} | | | | | | {plain} | |"
    rate_s, fails = found["holds"], found["fails"]
    again = [held(url, known, rate_s * part, options.hold_again) for part in (0.95, 1.0, 1.05) if options.hold_again]
    cells = [
        name, " ".join(known.slos), truth, f"{rate_s:.2f}",
        "" if known.truth_s is None else f"{rate_s / known.truth_s - 1:+.1%}",
        f"{rate_s:.2f} to {fails:.2f}" if fails else f"at least {rate_s:.2f}", f"{found['held_for_s']:.0f} s",
        f"{len(found['probes'])} ({found['void_probes']})", f"{found['took_s']:.0f} s", plain, "; ".join(again),
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def plain_bisection(url: str, known: KnownServer, seconds: float) -> str:
    """Doubles from 1/s and halves the bracket to 4%; a void run is taken as it is."""
    began_s, low, high, runs = time.monotonic(), 0.0, 0.0, 0
    while not low or not high or high / low > 1.04:
        rate_s = (low * high) ** 0.5 if low and high else 2 * low if low else high / 2 if high else 1.0
        good, runs = keeps(bench(url, known, ["--rate", f"{rate_s:g}", "--duration", f"{seconds:g}"])), runs + 1
        low, high = (rate_s, high) if good else (low, rate_s)
        if high and high < 0.01:
            break
    off = "" if known.truth_s is None else f" ({low / known.truth_s - 1:+.1%})"
    return f"{low:.2f}/s{off} in {time.monotonic() - began_s:.0f} s, {runs} runs"


def held(url: str, known: KnownServer, rate_s: float, seconds: float) -> str:
    result = bench(url, known, ["--rate", f"{rate_s:g}", "--duration", f"{seconds:g}"])
    void = ", void" if result.get("void") else ""
    return f"{rate_s:.2f}/s for {seconds:.0f} s: {'met' if keeps(result) else 'not met'}{void}"


def keeps(result: dict) -> bool:
    """Every limit met, nothing failed, and no queue that went on growing."""
    return (
        bool(result.get("slos"))
        and all(result["slos"].values())
        and not (result["failed_requests"] or result["saturated"])
    )


def bench(url: str, known: KnownServer, more: list[str]) -> dict:
    limits = [word for slo in known.slos for word in ("--slo", slo)]
    command = [*RIDGELINE, "bench", url, "--max-tokens", str(known.tokens), *known.more, *limits, "--json", *more]
    done = subprocess.run(command, capture_output=True, text=True)
    print(done.stderr, file=sys.stderr, end="")
    return json.loads(done.stdout) if done.stdout else {"error": done.stderr.strip().splitlines()[-1]}


if __name__ == "__main__":
    main()
