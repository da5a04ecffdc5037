"""The engine workloads by the names that studies use: each engine's offline benchmark, or its server under load."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.records.study import Study
from ridgeline.workloads.engine.dialect import EngineDialect
from ridgeline.workloads.engine.form import EngineForm, OfflineForm, ServeForm
from ridgeline.workloads.engine.sglang import SGLANG
from ridgeline.workloads.engine.vllm import VLLM
from ridgeline.workloads.engine.workload import EngineWorkload


@dataclass(frozen=True, slots=True)
class EngineKind:
    """Makes the workload of a study."""

    dialect: EngineDialect
    serves: bool

    @property
    def form(self) -> type[EngineForm]:
        return ServeForm if self.serves else OfflineForm

    def __call__(self, study: Study) -> EngineWorkload:
        return EngineWorkload(study, self.dialect, serves=self.serves)


sglang_offline, sglang_serve = EngineKind(SGLANG, serves=False), EngineKind(SGLANG, serves=True)
vllm_offline, vllm_serve = EngineKind(VLLM, serves=False), EngineKind(VLLM, serves=True)
