"""How much CPU the command line takes to start: `--help` of every command, and `bench` up to its first refused request.

    python benchmarks/start_up.py [--repeats 5]

Prints the lowest and the median of the repeats in milliseconds, CPU and elapsed, without bytecode being written. What a
person waits for should take less than 300 ms of CPU; where it takes more, `python -X importtime -m ridgeline ...` says
what for. Our own modules are compiled first, as `scripts/venv` does.
"""

from __future__ import annotations

import argparse
import compileall
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import ridgeline
from ridgeline.cli.main import all_groups, commands

LIMIT_MS = 300.0
# nothing listens on port 1, so this is everything that bench does before and after sending
BENCH = ["bench", "http://127.0.0.1:1", "--requests", "1", "--model", "none"]


def start_ms(arguments: list[str]) -> tuple[float, float]:
    """CPU time of the process, and elapsed time."""
    started = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", "ridgeline", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        _, _, used = os.wait4(process.pid, 0)
        process.returncode = 0  # it has been waited for
    return (used.ru_utime + used.ru_stime) * 1e3, (time.perf_counter() - started) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    compileall.compile_dir(Path(ridgeline.__file__).parent, quiet=1)
    names = ["", *(name for name, _ in commands()), *all_groups()]
    cases = [*([*name.split(), "--help"] for name in names), BENCH]
    print(f"{'CPU':>15} {'elapsed':>16}\n{'lowest':>7} {'median':>7} {'lowest':>8} {'median':>7}  ms")
    for case in cases:
        cpu, elapsed = zip(*(start_ms(case) for _ in range(repeats)), strict=True)
        middle = statistics.median(cpu)
        times = f"{min(cpu):7.0f} {middle:7.0f} {min(elapsed):8.0f} {statistics.median(elapsed):7.0f}"
        print(f"{times}  {' '.join(case)}{'   above the limit' if middle > LIMIT_MS else ''}", flush=True)


if __name__ == "__main__":
    main()
