"""CPU seconds of the twin on the two runs that peers are timed with.

    python benchmarks/twin/speed.py

Each figure is the least of five runs in one process (others on the machine can only add to it); the command is timed
from start to answer. Peers on the same kinds of run: aisimulate replay 1.9 s (2000) and 10 s (20,000), Vidur 5.7 s.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from dataclasses import replace

from ridgeline.serving.layout import Layout
from ridgeline.serving.traffic import parse_traffic
from ridgeline.serving.twin.deployment import describe
from ridgeline.serving.twin.simulate import simulate

TP16 = Layout(tp=16, nodes=2, gpus_per_node=8)
COMMAND = (
    "simulate --model deepseek-r1 --gpu h200 --nodes 2 --tp 16 --traffic sharegpt --requests 2000 --seed 2025 --json"
)


def main() -> None:
    r1 = describe("deepseek-r1", "h200", TP16)
    llama = describe("llama-8b", "h200", Layout(gpus_per_node=1))
    four = replace(llama, layout=replace(llama.layout, dp=4, gpus_per_node=4), routing="least-load")
    four = replace(four, cluster=replace(four.cluster, node=replace(four.cluster.node, gpus=4)))
    offline = parse_traffic("sharegpt", requests=2000, seed=2025)
    for name, deployment, traffic in (
        ("2000 ShareGPT prompts at once, DeepSeek-R1, tp 16", r1, offline),
        ("20,000 requests at 40/s, Llama-8B", llama, parse_traffic("sharegpt", requests=20_000, rate_s=40)),
        ("20,000 requests at 10/s, DeepSeek-R1, tp 16", r1, parse_traffic("sharegpt", requests=20_000, rate_s=10)),
        (
            "20,000 requests at 160/s, 4 Llama-8B, least load",
            four,
            parse_traffic("sharegpt", requests=20_000, rate_s=160),
        ),
    ):
        best = min(simulate(deployment, traffic).cpu_s for _ in range(5))
        print(f"{best:7.3f} CPU-s   {name}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "ridgeline", *COMMAND.split()], check=True, stdout=subprocess.DEVNULL)
    wall = time.perf_counter() - started
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    print(f"{wall:7.3f} s       ridgeline {COMMAND}  ({cpu:.3f} CPU-s)")


if __name__ == "__main__":
    main()
