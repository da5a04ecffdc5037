"""Chats that come back to a real vLLM on this machine's CPU: measured beside the twin.

    python benchmarks/twin/sessions_on_vllm.py [--sessions 8] [--pool 3840] [--work FOLDER]

Two files of chats, drawn with two seeds, are sent by `ridgeline bench --sessions`, each to a fresh server whose KV pool
holds less than so many chats keep. The twin is calibrated on one file's result as a user would do
it (`ridgeline twin calibrate --from a.json`) and then says what the other sees. The CPU is described as a GPU: its
rates are measured here first, and its memory is what makes the twin's own arithmetic end at the pool that the server
logs. A second calibration is one number: how many times faster than measured the CPU must be for that file's TTFT.
Needs `scripts/engines` (or RIDGELINE_ENGINES), and cores that nobody else uses: others show in every TTFT.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the server computes with one thread too

import numpy as np
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.memory import plan_memory
from ridgeline.serving.engines.settings import DEFAULTS, parse_engine
from ridgeline.serving.hardware.cluster import MIB, Gpu, load_gpu, make_cluster
from ridgeline.serving.model.config import load_model
from ridgeline.serving.traffic.traffic import parse_traffic
from ridgeline.serving.twin.calibration import Calibration, read_calibration
from ridgeline.serving.twin.simulate import SimulationResult, simulate
from tests.journeys.vllm_engine import ENV, SMALL, answered, free_port, missing, process, vllm_command, write_model

BLOCK, CHATS, TURNS, MOST_AT_ONCE, STEP_TOKENS = 32, 32, 5, 32, 2048
TRIES = 3  # a run that its own client spoilt is made again
ENGINE, COUNTER = "vllm:0.32.0", "vllm:prefix_cache_hits_total"


def write_chats(path: Path, seed: int) -> Path:
    """Chats of five turns on average, 150 to 450 tokens at first and up to a thousand at the end."""
    rng = random.Random(seed)
    with path.open("w") as file:
        for session in range(CHATS):
            prompt, before, at_s = rng.randint(150, 450), 0, 0.0
            for turn in range(rng.randint(TURNS - 2, TURNS + 2)):
                think_s = rng.uniform(1.0, 7.0) if turn else 0.0
                answer = rng.randint(8, 32)
                at_s += think_s
                row = {"session": f"chat-{session}", "t": round(at_s, 3), "think_time": round(think_s, 3),
                       "input_length": prompt, "output_length": answer, "blocks": prompt // BLOCK,
                       "shared_with_previous": before // BLOCK, "block_tokens": BLOCK}  # fmt: skip
                file.write(json.dumps(row) + "\n")
                before, prompt, at_s = prompt, prompt + answer + rng.randint(40, 160), at_s + 1.0
    return path


def rates_here() -> tuple[float, float]:
    """GFLOP/s and GB/s of one core: the best of some tries, since others use the machine too."""
    a, b = np.ones((512, 1408), "f"), np.ones((1408, 512), "f")
    line = np.ones(30_000_000, "f")
    return 2e-9 * 512 * 512 * 1408 / best(lambda: a @ b), 1e-9 * line.nbytes / best(line.sum)


def best(work: Callable[[], object]) -> float:
    took = []
    for _ in range(20):
        started_s = time.perf_counter()
        work()
        took.append(time.perf_counter() - started_s)
    return min(took)


def deployment_of(config: Path, gpu: str | Gpu) -> Deployment:
    settings = replace(parse_engine(ENGINE, DEFAULTS), max_running_requests=MOST_AT_ONCE, cuda_graph_max_bs=0,
                       chunked_prefill_size=STEP_TOKENS, page_size=BLOCK)  # fmt: skip
    return Deployment(load_model(str(config)), make_cluster(gpu, 1, 1), Layout(), settings)


def describe_cpu(path: Path, config: Path, pool_tokens: int) -> Path:
    """A hardware file with this CPU, whose memory leaves the twin the pool that the server has."""
    gflops, gb_s = rates_here()
    row: dict[str, Any] = {
        "generation": "ampere", "memory_mib": 4096, "bandwidth_gb_s": round(gb_s, 1), "link": "pcie4",
        "fabric": "eth-100", "tflops": {"fp32": round(gflops / 1e3, 5), "bf16": round(gflops / 1e3, 5)},
    }  # fmt: skip
    flops = {name: 1e12 * rate for name, rate in row["tflops"].items()}
    low, high = 1.0, 65536.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        gpu = Gpu("cpu", row["generation"], int(middle * MIB), 1e9 * gb_s, flops, load_gpu("a100").link, row["fabric"])
        it = deployment_of(config, gpu)
        enough = plan_memory(it.model, gpu, it.layout, it.settings).kv_tokens_per_rank >= pool_tokens
        low, high = (low, middle) if enough else (middle, high)
    path.write_text(yaml.safe_dump({"gpus": {"cpu": row | {"memory_mib": high}}}))
    print(f"one core: {gflops:.0f} GFLOP/s in products, {gb_s:.1f} GB/s")
    return path


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run, measured or not: shares of prompt tokens in percent, seconds and TTFT p50 by class of turns."""

    answers: float
    counters: float
    lasted_s: float
    ttft_ms: Mapping[str, float]

    @classmethod
    def measured(cls, document: Mapping[str, Any]) -> Figures:
        by = {hit["source"].partition(" ")[0]: 100 * hit["share"] for hit in document["cache_hits"]}
        ttft = {each["turns"]: each["ttft_ms"]["p50"] for each in document["sessions"]["ttft_by_turn"]}
        return cls(by["usage"], by[COUNTER], document["duration_s"], ttft | {"all": document["ttft_ms"]["p50"]})

    @classmethod
    def predicted(cls, result: SimulationResult) -> Figures:
        assert result.sessions is not None and result.summary.ttft_ms is not None
        ttft = {each.turns: each.ttft_ms.p50 for each in result.sessions.ttft_by_turn}
        # vLLM 0.32 counts a prompt once, when it is admitted; 0.19 counted those that wait again and again
        return cls(
            100 * result.hit_rate,
            100 * result.hit_rate,
            result.summary.duration_s,
            ttft | {"all": result.summary.ttft_ms.p50},
        )


@contextmanager
def server(folder: Path, pool_tokens: int, name: str) -> Iterator[str]:
    log, port = folder / f"server-{name}.log", free_port()
    words = ("--enable-prompt-tokens-details", "--enable-prefix-caching", "--max-model-len", "2048",
             "--block-size", str(BLOCK), "--num-gpu-blocks-override", str(pool_tokens // BLOCK),
             "--max-num-seqs", str(MOST_AT_ONCE), "--max-num-batched-tokens", str(STEP_TOKENS))  # fmt: skip
    command = vllm_command(folder / "small", port, *words)
    # behind its client, so that answers are read when they come, and before whoever else is nice
    command[command.index("-n") + 1] = "5"
    with process(command, port, log, ENV) as url:
        yield url


def pool_of(log: Path) -> int:
    """Tokens of the KV pool, as the server says when it starts."""
    return int(re.findall(r"KV cache size: ([\d,]+) tokens", log.read_text())[-1].replace(",", ""))


def bench(url: str, chats: Path, at_once: int, out: Path) -> None:
    load = ("--sessions", str(at_once), "--traffic", str(chats))
    load += ("--api", "completions", "--ignore-eos", "--warmup", "4")
    document = answered("bench", url, *load, cwd=out.parent)
    out.write_text(json.dumps(document))
    print(f"{chats.name}: {document['successful_requests']} of {document['requests']} requests answered in "
          f"{document['duration_s']:.0f} s{', VOID: ' + str(document.get('why')) if document['void'] else ''}; "
          f"load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")  # fmt: skip


def calibrated(folder: Path, config: Path, name: str) -> Calibration:
    flags = f"--max-num-seqs {MOST_AT_ONCE} --max-num-batched-tokens {STEP_TOKENS} --block-size {BLOCK} --enforce-eager"
    words = ("--from", f"{name}.json", "--out", "site.json", "--model", str(config), "--gpu", "cpu", "--engine", ENGINE)
    answered("twin", "calibrate", *words, "--server-flags", flags, cwd=folder)
    return read_calibration(folder / "site.json")


def show(name: str, measured: Figures, twin: Figures) -> None:
    print(f"\n{name:34}  measured      twin")
    for what, one, other in (
        ("hits by answers, % of prompt tokens", measured.answers, twin.answers),
        ("hits by the server's counters, %", measured.counters, twin.counters),
    ):
        print(f"  {what:35} {one:6.1f}    {other:6.1f}   {other - one:+.1f} points")
    times = {"whole run, s": (measured.lasted_s, twin.lasted_s)}
    times |= {f"TTFT p50, ms, turn {turns}": (one, twin.ttft_ms[turns]) for turns, one in measured.ttft_ms.items()}
    for what, (one, other) in times.items():
        print(f"  {what:35} {one:6.0f}    {other:6.0f}   {100 * (other / one - 1):+.0f}%")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--pool", type=int, default=3840, help="tokens of the KV pool")
    parser.add_argument("--work", type=Path, help="folder to keep all in; runs that it has are not made again")
    parser.add_argument("--calibrate-on", choices="ab", default="a")
    words = parser.parse_args()
    if why := missing():
        raise SystemExit(why)
    with tempfile.TemporaryDirectory() as scratch:
        folder = (words.work or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        measure(folder, words.sessions, words.pool, words.calibrate_on)


def measure(folder: Path, at_once: int, pool_tokens: int, on: str) -> None:
    write_model(folder / "small", shape=SMALL)
    config, documents = folder / "small.json", dict[str, Any]()
    for seed, name in enumerate("ab", start=1):
        chats = write_chats(folder / f"{name}.jsonl", seed)
        result = folder / f"{name}.json"
        for _ in range(TRIES):
            if result.exists() and not json.loads(result.read_text())["void"]:
                break
            with server(folder, pool_tokens, name) as url:
                bench(url, chats, at_once, result)
        documents[name] = json.loads(result.read_text())
    pool = pool_of(folder / "server-b.log")
    os.environ["RIDGELINE_HARDWARE"] = str(describe_cpu(folder / "cpu.yaml", config, pool))
    calibration = calibrated(folder, config, on)
    print(f"KV pool {pool:,} tokens; factors {calibration.factors}")
    own = load_gpu("cpu")

    def twin(name: str, calibration: Calibration | None, speed: float = 1.0) -> Figures:
        faster = {dtype: speed * rate for dtype, rate in own.flops.items()}
        gpu = replace(own, flops=faster, bandwidth_bytes_s=speed * own.bandwidth_bytes_s)
        traffic = parse_traffic(str(folder / f"{name}.jsonl"), sessions=at_once)
        deployment = deployment_of(config, gpu)
        return Figures.predicted(simulate(deployment, traffic, calibration, kv_tokens_per_rank=pool))

    seen = {name: Figures.measured(document) for name, document in documents.items()}
    speed = min((1.04**step for step in range(-20, 41)), key=lambda at: miss(seen[on], twin(on, None, at)))
    for name in "ab":
        what = "fitted" if name == on else "predicted"
        show(f"{name}.jsonl, {what}", seen[name], twin(name, calibration))
        show(f"{name}.jsonl, {what} by the CPU's speed alone, x{speed:.2f}", seen[name], twin(name, None, speed))


def miss(measured: Figures, twin: Figures) -> float:
    """How far TTFT p50 of all classes of turns is off."""
    return sum(abs(math.log(twin.ttft_ms[turns] / one)) for turns, one in measured.ttft_ms.items())


if __name__ == "__main__":
    main()
