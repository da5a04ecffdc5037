"""Llama-3.1-70B on H100 under vLLM 0.10, together and split, as llm-d published it: each row as deployment and traffic.

Rows state layout, load and results; the rest is llm-d-benchmark's recipe (scenarios/examples/pd-disaggregation.sh,
experiments/pd-disaggregation.yaml, setup/env.sh): engines for both phases run with --gpu-memory-utilization 0.95, those
of split roles with vLLM's own 0.9, ten prompts of one length are sent for each place, and prefix caching is on.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.layout import Layout, disaggregated
from ridgeline.serving.engines.memory import plan_memory
from ridgeline.serving.engines.settings import EngineSettings, parse_engine
from ridgeline.serving.engines.vllm.defaults import meant
from ridgeline.serving.hardware.cluster import make_cluster
from ridgeline.serving.model.config import load_model
from ridgeline.serving.traffic.lengths import Fixed
from ridgeline.serving.traffic.traffic import ClosedLoop, Traffic

NODE, RELEASE, TOGETHER, EACH = 8, "vllm:0.10", 0.95, 10


@dataclass(frozen=True)
class LlmdRow:
    """One load, and what was measured."""

    name: str
    deployment: Deployment
    traffic: Traffic
    concurrency: int
    requests_s: float
    tpot_ms: float
    ttft_ms: float

    @property
    def lengths(self) -> tuple[int, int]:
        """Tokens of each prompt and of each answer."""
        kind = self.traffic.lengths
        assert isinstance(kind, Fixed)
        return kind.input_tokens, kind.output_tokens

    @property
    def split(self) -> bool:
        return self.deployment.layout.disaggregated


def read_llmd_rows(path: Path) -> list[LlmdRow]:
    with path.open() as file:
        return [_row(row) for row in csv.DictReader(file)]


def _row(row: dict[str, str]) -> LlmdRow:
    users = int(row["conc"])
    lengths = Fixed(int(row["isl"]), int(row["osl"]))
    return LlmdRow(
        name=f"{row['config']} {users}",
        deployment=_deployment(row),
        traffic=Traffic(lengths, EACH * users, ClosedLoop(users)),
        concurrency=users,
        requests_s=float(row["req_s"]),
        tpot_ms=float(row["tpot_ms"]),
        ttft_ms=float(row["ttft_mean_ms"]),
    )


def _deployment(row: dict[str, str]) -> Deployment:
    model = load_model("llama-70b")
    settings = parse_engine(RELEASE, EngineSettings(page_size=128))
    if row["arch"] == "disaggregated":
        prefill, decode = (_engines(int(row[f"{r}tp"]), int(row[f"{r}n"])) for r in "pd")
        layout = disaggregated(prefill, decode)
        return Deployment(model, make_cluster("h100", layout.nodes, NODE), layout, settings, routing="least-load")
    tp = int(row["tp"])
    layout = _engines(tp, int(row["gpus"]) // tp)
    cluster = make_cluster("h100", layout.nodes, NODE)
    plan = plan_memory(model, cluster.gpu, layout, settings)
    share = meant({"gpu_memory_utilization": TOGETHER}, plan, cluster.gpu)["mem_fraction_static"]
    settings = parse_engine(RELEASE, EngineSettings(mem_fraction=float(share)))
    return Deployment(model, cluster, layout, settings, routing="least-load")


def _engines(tp: int, count: int) -> Layout:
    return Layout(tp, dp=count, nodes=-(-tp * count // NODE), gpus_per_node=NODE)
