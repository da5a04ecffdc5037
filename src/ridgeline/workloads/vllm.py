"""vLLM as a workload: its offline benchmark, or a server under load."""

from __future__ import annotations

from ridgeline.records.study import Study
from ridgeline.workloads.engine import EngineWorkload
from ridgeline.workloads.vllm_dialect import VLLM


def offline(study: Study) -> EngineWorkload:
    return EngineWorkload(study, VLLM, serves=False)


def serve(study: Study) -> EngineWorkload:
    return EngineWorkload(study, VLLM, serves=True)
