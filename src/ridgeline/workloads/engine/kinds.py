"""The engine workloads by the names that studies use: each engine's offline benchmark, or its server under load."""

from __future__ import annotations

from ridgeline.records.study import Study
from ridgeline.workloads.engine.sglang import SGLANG
from ridgeline.workloads.engine.vllm import VLLM
from ridgeline.workloads.engine.workload import EngineWorkload


def sglang_offline(study: Study) -> EngineWorkload:
    return EngineWorkload(study, SGLANG, serves=False)


def sglang_serve(study: Study) -> EngineWorkload:
    return EngineWorkload(study, SGLANG, serves=True)


def vllm_offline(study: Study) -> EngineWorkload:
    return EngineWorkload(study, VLLM, serves=False)


def vllm_serve(study: Study) -> EngineWorkload:
    return EngineWorkload(study, VLLM, serves=True)
