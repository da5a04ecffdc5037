"""What ran in two sets: our served load on one H200, and single requests of vLLM with their time stamps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from ridgeline.serving.engines.deployment import Deployment, describe
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.settings import EngineSettings, parse_engine
from ridgeline.serving.hardware.cluster import make_cluster
from ridgeline.serving.model.config import load_model
from ridgeline.serving.traffic.replay import Replay, TraceRow
from ridgeline.serving.traffic.traffic import AsRecorded, Traffic


def served_deployment() -> Deployment:
    settings = parse_engine(
        "sglang:0.5.15", EngineSettings(max_running_requests=512, cuda_graph_max_bs=512, attention_backend="triton")
    )
    return describe("llama-8b", "h200", Layout(gpus_per_node=1), settings)


HUB = {"meta-llama/Llama-3.1-8B": "llama-8b", "Qwen/Qwen3-32B": "qwen3-32b"}


def stamped(evidence: Path) -> Iterator[tuple[str, Deployment, Traffic, list[dict[str, float]]]]:
    """Each folder: its name, what ran, what was sent, and the stamps of each request."""
    for folder in sorted((evidence / "public" / "per-request").iterdir()):
        meta = json.loads((folder / "meta.json").read_text())
        told, release = meta["engine_kwargs"], meta["vllm_version"]
        tp = told["tensor_parallel_size"]
        settings = EngineSettings(
            max_running_requests=told["max_num_seqs"], chunked_prefill_size=told["max_num_batched_tokens"]
        )
        deployment = Deployment(
            load_model(HUB[meta["model"]]),
            make_cluster("rtx-pro-6000", 1, tp),
            Layout(tp, gpus_per_node=tp),
            parse_engine(f"vllm:{release}", settings),
        )
        seen = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
        start = min(r["arrival_time"] for r in seen)
        lengths = tuple(
            TraceRow(r["input_toks"], r["output_toks"], at_s=r["arrival_time"] - start)
            for r in sorted(seen, key=lambda r: r["arrival_time"])
        )
        yield folder.name, deployment, Traffic(Replay(lengths, folder.name), len(lengths), AsRecorded()), seen
