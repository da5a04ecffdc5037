"""The log of a simulated engine says what that engine's scheduler kept account of."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ridgeline.serving.engines.deployment import Deployment, describe
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.settings import EngineSettings
from ridgeline.serving.engines.sglang.log import read_sglang_log
from ridgeline.serving.hardware.cluster import make_cluster
from ridgeline.serving.model.config import load_model
from ridgeline.serving.traffic.traffic import parse_traffic
from ridgeline.serving.twin.simulate import SimulationResult, simulate
from ridgeline.serving.workloads.twin import player
from ridgeline.serving.workloads.twin.log import Transcript, compose

LAYOUTS = {
    "one GPU": ("llama-8b", Layout(gpus_per_node=1)),
    "tensor parallel": ("llama-8b", Layout(tp=4, gpus_per_node=4)),
    "two copies": ("llama-8b", Layout(dp=2, gpus_per_node=2)),
    "pipeline": ("llama-8b", Layout(pp=2, gpus_per_node=2)),
    "attention DP": ("deepseek-r1", Layout(tp=16, attn_dp=16, nodes=2)),
}
LOADS: dict[str, dict[str, Any]] = {
    "long answers": {"text": "fixed:500:3000", "requests": 300},
    "many lengths": {"text": "lognormal:1200:900", "requests": 300},
    "shared prompts": {"text": "shared", "requests": 300},
    "a rate": {"text": "fixed:2000:800", "requests": 200, "rate_s": 20.0},
    "one after the other": {"text": "fixed:2000:800", "requests": 100, "concurrency": 60},
}


def shared(folder: Path) -> str:
    """A trace in which eight prompts come again and again."""
    rows = [
        {"timestamp": 0, "input_length": 4096, "output_length": 400, "hash_ids": [8 * (n % 8) + k for k in range(8)]}
        for n in range(300)
    ]
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def played(folder: Path, layout: str, load: str) -> tuple[SimulationResult, list[float]]:
    """A run whose pool is small enough for requests to be sent back, and the token usage of its log."""
    model, where = LAYOUTS[layout]
    cluster = make_cluster("h200", where.nodes, where.gpus_per_node)
    deployment = Deployment(load_model(model), cluster, where, EngineSettings(mem_fraction=0.88))
    how = dict(LOADS[load])
    text = how.pop("text")
    traffic = parse_traffic(shared(folder) if text == "shared" else text, **how)
    pool = 40_000
    result = simulate(deployment, traffic, kv_tokens_per_rank=pool)
    plan = replace(result.memory[0], kv_tokens_per_rank=pool)
    play = compose(deployment, plan, result, {})
    lines = [f"[2026-01-01 00:00:00 TP0] {text}" for _, _, text in play.benchmark]
    return result, [d.token_usage for d in read_sglang_log(lines).decodes if d.token_usage is not None]


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_pool_never_holds_more_than_it_has(tmp_path: Path, layout: str, load: str) -> None:
    result, said = played(tmp_path, layout, load)
    shares = [share for _, share in result.kv_usage]
    assert max(shares) <= 1.0
    assert min(shares) >= 0.0
    assert said and max(said) <= 1.0
    # eight prompts that are shared are there once, however many read them: 32,768 tokens of 16 pools
    least = 0.04 if (load, layout) == ("shared prompts", "attention DP") else 0.15
    assert max(said) > least, "a pool of this size is used"
    assert max(said) <= max(shares) + 0.01, "the log says what the scheduler kept account of"


def test_only_the_numbers_of_a_play_follow_the_speed_of_the_nodes(tmp_path: Path) -> None:
    play = Transcript("", benchmark_s=4.0)
    play.benchmark += [(1.0, False, "gen throughput: <rate 10.00>"), (2.0, False, "line 5, in <module> at <b c>")]
    play.bench = {"duration": "<seconds 4.0>", "each": "<joules 0.2455>", "model": "<b> c"}
    run = tmp_path / "run"
    run.mkdir()
    (run / "play.txt").write_text(play.text)
    argv = [sys.executable, "-IS", player.__file__, "play.txt", "2", "1", "took"]
    subprocess.run(argv, cwd=run, check=True, timeout=600)
    log = (run / "sglang.log").read_text()
    assert "gen throughput: 20.00\n" in log and "line 5, in <module> at <b c>\n" in log
    assert json.loads((run / "bench.json").read_text()) == {"duration": 2.0, "each": 0.12275, "model": "<b> c"}


def test_a_token_costs_more_joules_on_a_slower_node() -> None:
    """Else a rehearsal would confirm any saving without scatter."""
    deployment = describe("llama-8b", "h200", Layout(1, nodes=1, gpus_per_node=1))
    result = simulate(deployment, parse_traffic("fixed:64:8", requests=4))
    play = compose(deployment, result.memory[0], result, {})
    assert play.bench["joules_per_output_token"] == f"<joules {result.joules_per_output_token:.9f}>"
