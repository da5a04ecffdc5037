"""CPU seconds of the twin beside those of its peers on the same kinds of run.

    python benchmarks/twin/speed.py

Each of our figures is the least of five runs in one process (others on the machine can only add to it); the commands
are timed from start to answer. The peers' figures were measured or read in November 2026 and are not run again here.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from dataclasses import replace

from ridgeline.serving.engines.deployment import Deployment, describe
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.traffic.traffic import parse_traffic
from ridgeline.serving.twin.simulate import simulate

RUNS = 5
TP16 = Layout(tp=16, nodes=2, gpus_per_node=8)
SIMULATE = "twin simulate --model deepseek-r1 --gpu h200 --nodes 2 --tp 16 --requests 2000 --seed 2025 --json"
PLAN = (
    "plan --model deepseek-r1 --gpu h200 --nodes 2 --traffic fixed:313:194 --slo ttft_p95_ms=2000 "
    "--slo itl_p95_ms=50 --json"
)
PLAN_64 = "plan --model deepseek-r1 --gpu h200 --nodes 64 --traffic fixed:2000:500 --slo ttft_p95_ms=2000 " + (
    "--slo itl_p95_ms=50 --json"
)


def main() -> None:
    r1 = describe("deepseek-r1", "h200", TP16)
    llama = describe("llama-8b", "h200", Layout(gpus_per_node=1))
    four = describe("llama-8b", "h200", Layout(dp=4, gpus_per_node=4), routing="least-load")
    print(f"{'ours':>9}   {'asked for':<11}run, and peers on such a run")
    offline = "2000 ShareGPT prompts at once, DeepSeek-R1, tp 16"
    _line(_cpu_s(r1, 2000), "< 0.2 CPU-s", offline, "aisimulate replay 1.9 s (9.2 CPU-s in all), Vidur 5.7 CPU-s")
    peer = "aisimulate replay 10 s"
    _line(_cpu_s(llama, 20_000, 40), "< 1 CPU-s", "20,000 requests at 40/s, Llama-8B", peer)
    _line(_cpu_s(r1, 20_000, 10), "< 1 CPU-s", "20,000 requests at 10/s, DeepSeek-R1, tp 16", peer)
    _line(_cpu_s(four, 20_000, 160), "< 1 CPU-s", "20,000 requests at 160/s, 4 x Llama-8B, least load", peer)
    cpu_s, wall_s = _command(PLAN)
    _line(cpu_s, "< 10 CPU-s", f"ridgeline {PLAN}", "aiconfigurator 121-265 CPU-s")
    cpu_s, wall_s = _command(PLAN_64)
    _line(cpu_s, "< 10 CPU-s", f"ridgeline {PLAN_64}", "no peer of whom we know a figure")
    cpu_s, wall_s = min(_command(SIMULATE) for _ in range(RUNS))
    _line(wall_s, "< 1 s", f"ridgeline {SIMULATE}, start to answer ({cpu_s:.2f} CPU-s)", "Vidur 7.4 s of set-up")


def _cpu_s(deployment: Deployment, requests: int, rate_s: float | None = None) -> float:
    traffic = replace(parse_traffic("sharegpt", requests=requests, rate_s=rate_s), seed=2025)
    return min(simulate(deployment, traffic).cpu_s for _ in range(RUNS))


def _command(words: str) -> tuple[float, float]:
    """CPU and wall seconds of one command."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "ridgeline", *words.split()], check=True, stdout=subprocess.DEVNULL)
    wall_s, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall_s


def _line(seconds: float, asked: str, run: str, peers: str) -> None:
    print(f"{seconds:9.3f}   {asked:<11} {run}\n{'':24} peers: {peers}")


if __name__ == "__main__":
    main()
