#!/usr/bin/env python3
"""Many sessions at once against fake_server.c: whether the load generator keeps up, and the memory it takes.

    benchmarks/loadgen/sessions.py                          # 500 sessions at once, 12 turns each
    benchmarks/loadgen/sessions.py --context 32000          # with prompts of 32,000 tokens and more
    benchmarks/loadgen/sessions.py --at-once 1000 --sessions 25000 --turns 4 --think 0.1 --itl 1 --tokens 4

Each turn adds to the prompt; its user thinks for as long as said. Nothing here is asserted in tests.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from ridgeline.serving.load.bench import bench
from ridgeline.serving.load.session import BenchOptions, plan_from
from ridgeline.serving.traffic.replay import Replay, TraceRow
from ridgeline.serving.traffic.texts import Text
from ridgeline.serving.traffic.traffic import ClosedLoop, Traffic
from ridgeline.serving.verbs.bench import _result_text

sys.path.insert(0, str(Path(__file__).resolve().parent))
from goodput import build


def main() -> None:
    asked = arguments()
    rows = recording(asked)
    program = build(Path(asked.cache).expanduser())
    words = ["0", str(asked.ttft), str(asked.itl), str(asked.tokens)]
    server = subprocess.Popen([program, *words], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        plan = plan_from(BenchOptions(url, workers=asked.workers))
        traffic = Traffic(Replay(tuple(rows), "recording"), len(rows), ClosedLoop(asked.at_once))
        before_mb = peak_mb()
        result = bench(replace(plan, traffic=traffic))
    finally:
        server.terminate()
        server.wait()
    print(_result_text(result))
    print(f"\npeak memory {peak_mb():.0f} MB, {before_mb:.0f} MB of it before the first request")
    print(f"fidelity: {'VOID' if result.void else 'not void'}; {result.fidelity.as_json()}")


def recording(asked: argparse.Namespace) -> list[TraceRow]:
    """Sessions that open with the same instructions and grow by as much each turn; users think for random times."""
    rng = random.Random(0)
    rows: list[TraceRow] = []
    instructions = Text(0)
    for session in range(asked.sessions or asked.at_once):
        text = Text(session + 1, instructions, asked.context // 2)
        for turn in range(asked.turns):
            after = (len(rows) - 1,) if turn else ()
            think_s = rng.expovariate(1 / asked.think) if turn else 0.0
            prompt = asked.context + turn * asked.growth
            rows.append(TraceRow(prompt, asked.tokens, None, text, session, after, think_s))
    return rows


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", type=int, default=500)
    parser.add_argument("--sessions", type=int, help="in all; default: as many as are at once")
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--think", type=float, default=2.0, help="seconds between two turns, on average")
    parser.add_argument("--context", type=int, default=4000, help="tokens of the first prompt; half are instructions")
    parser.add_argument("--growth", type=int, default=400, help="tokens that each turn adds")
    parser.add_argument("--tokens", type=int, default=50, help="tokens of each answer")
    parser.add_argument("--ttft", type=float, default=500.0, help="ms")
    parser.add_argument("--itl", type=float, default=20.0, help="ms")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--cache", default="~/.cache/ridgeline-peers", help="folder for the compiled server")
    return parser.parse_args()


if __name__ == "__main__":
    main()
