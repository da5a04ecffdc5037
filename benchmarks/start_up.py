"""How long the command line takes to start: `--help` of every verb, and `bench` up to its first refused request.

    python benchmarks/start_up.py [--repeats 5]

Prints the fastest and the middle of the repeats in milliseconds. Nothing user-visible should take more than 300 ms.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from ridgeline.cli.main import VERBS

LIMIT_MS = 300.0
# nothing listens on port 1, so this is everything that bench does before and after sending
BENCH = ["bench", "http://127.0.0.1:1", "--requests", "1", "--model", "none"]


def start_ms(arguments: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "ridgeline", *arguments], capture_output=True, check=False)
    return (time.perf_counter() - started) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    cases = [["--help"], *([verb, "--help"] for verb in VERBS), BENCH]
    print(f"{'fastest':>8} {'middle':>8}  ms")
    for case in cases:
        times = sorted(start_ms(case) for _ in range(repeats))
        middle = times[len(times) // 2]
        print(f"{times[0]:8.0f} {middle:8.0f}  {' '.join(case)}{'   above the limit' if middle > LIMIT_MS else ''}")


if __name__ == "__main__":
    main()
