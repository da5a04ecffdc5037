"""What SGLang chooses where nobody says, by release.

The memory fraction has a rule of its own in each line of releases, read in their own source, 0.4.0 to 0.5.18: by ranks
up to 0.4.7, by the size of the GPU from 0.4.8 to 0.5.2, from what activations and graphs are guessed to need since
0.5.3. Sizes are MiB, as nvidia-smi counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.layout_rules import uses_deepep
from ridgeline.serving.engines.memory import prefill_graph_sizes
from ridgeline.serving.engines.releases import Version, release_meant
from ridgeline.serving.engines.settings import (
    CURRENT_VERSION,
    PREFILL_RANK_TOKENS,
    EngineDefaults,
    EngineSettings,
    resolve,
)
from ridgeline.serving.hardware.cluster import GIB, MIB, Gpu
from ridgeline.serving.model.model import Model

_GIB = 1024.0
# SGLANG_ENABLE_SPEC_V2 is on by default; up to 0.5.10 drafting switches the overlapped scheduler off (server_args.py)
_DRAFTS_OVERLAP: Version = (0, 5, 11)
# "Max running requests is reset to 48 for speculative decoding", 0.4.6 to 0.5.23 alike
_DRAFTED_REQUESTS = 48
# retract_decode (managers/schedule_batch.py): up to 0.5.1 it makes room for 20 steps, later for the next one
_RETRACTS_ONE_STEP: Version = (0, 5, 2)
# supports_mixed_chunk (speculative/spec_info.py): before, and with other algorithms, drafts switch mixed chunks off
_DRAFTS_MIX: Version = (0, 5, 19)
_MIXED_DRAFTS = ("", "EAGLE", "NEXTN", "EAGLE3", "DFLASH", "DSPARK")
# up to 0.4.7: the share for at least so many ranks
_BY_RANKS = ((16, 0.79), (8, 0.81), (4, 0.85), (2, 0.87), (1, 0.88))
# 0.4.8 to 0.5.2: GPUs below so many GiB keep so many free, and so many more for each rank; larger ones keep 32
_BY_SIZE = ((35, 2.8, 0.1), (90, 9.5, 0.5), (160, 12.0, 0.5))


@dataclass(frozen=True, slots=True)
class _Case:
    model: Model
    gpu: Gpu
    layout: Layout
    settings: EngineSettings
    role: str

    @property
    def release(self) -> Version:
        return release_meant(self.settings.version)

    @property
    def memory(self) -> float:
        return self.gpu.memory_bytes / MIB

    @property
    def drafting(self) -> bool:
        return self.settings.draft_tokens > 1

    @property
    def ranks(self) -> int:
        return self.layout.tp * self.layout.pp


class SglangDefaults(EngineDefaults):
    current = CURRENT_VERSION
    deepseek_kernels = deepep = True
    verifies_by_head = frozenset({"triton"})

    def backend(self, model: Model, gpu: Gpu, layout: Layout) -> str:
        """Of AMD's, as 0.5.10 to 0.5.23 choose (model_override_base.py): of latent attention aiter knows 16 and 128
        heads a rank."""
        heads = max(1, model.attention.heads // layout.tp)
        if gpu.is_amd and (not model.attention.mla or heads in (16, 128)):
            return "aiter"
        return super().backend(model, gpu, layout)

    def chunk(self, settings: EngineSettings, gpu: Gpu, layout: Layout) -> int:
        return PREFILL_RANK_TOKENS * layout.attn_dp if uses_deepep(layout) else _engine_chunk(settings, gpu)

    def running(self, settings: EngineSettings, model: Model, gpu: Gpu, layout: Layout, pool_tokens: int) -> int:
        if settings.drafting:
            return _DRAFTED_REQUESTS
        # model_runner: tokens / context * 512, held between 2048 and 4096, whole engine
        return int(min(max(pool_tokens / model.context_tokens * 512, 2048), 4096))

    def mixes(self, settings: EngineSettings, layout: Layout) -> bool:
        if settings.drafting and not (
            _since(settings, *_DRAFTS_MIX) and settings.draft_method.upper() in _MIXED_DRAFTS
        ):
            return False
        return settings.mixed_chunk and layout.attn_dp == 1

    def graph_max_bs(self, settings: EngineSettings, gpu: Gpu, layout: Layout) -> int:
        gib = gpu.memory_bytes / GIB
        if gib < 20:
            return 8
        if not _since(settings, 0, 5, 3):
            small = 35 if _since(settings, 0, 4, 8) else 24.4
            if gib < small:
                return 8 if layout.tp < 4 else 80
            return 160 if gib <= 90 or not _since(settings, 0, 4, 6) else 256 if gib < 156 else 512
        if gib < 35:
            return 24 if layout.tp < 4 else 80
        if gib < 60:
            return 32 if layout.tp < 4 else 160
        return 256 if layout.tp < 4 and gib < 160 else 512

    def prefill_graph(self, settings: EngineSettings, model: Model) -> bool:
        # piecewise prefill graphs are on by default since 0.5.10, and exclude MLA and layers that keep a state
        return _since(settings, 0, 5, 10) and not model.attention.mla and not model.state_bytes_per_request

    def retract_steps(self, settings: EngineSettings) -> int:
        return 1 if _since(settings, *_RETRACTS_ONE_STEP) else 20

    def overlaps(self, settings: EngineSettings) -> bool:
        if settings.draft_tokens == 1 or settings.overlap is False:
            return settings.overlap is not False
        return _since(settings, *_DRAFTS_OVERLAP) if settings.draft_overlap is None else settings.draft_overlap

    def kernel_set(self, settings: EngineSettings) -> str:
        """Its experts and all-reduce changed after 0.5.10."""
        return "" if _since(settings, 0, 5, 12) else "sglang-0.5.10"

    def mem_fraction(self, model: Model, gpu: Gpu, layout: Layout, settings: EngineSettings, role: str) -> float:
        """mem_fraction_static as this release derives it; `role` is both, prefill or decode."""
        case = _Case(model, gpu, layout, settings, role)
        if case.release < (0, 4, 8):
            return round(_by_ranks(case), 3)
        rule: Callable[[_Case], float] = _reserve_by_size if case.release < (0, 5, 3) else _reserve_by_need
        return round(max(0.0, case.memory - rule(case)) / case.memory, 3)

    def kept_share(self, model: Model, backend: str) -> float:
        # aiter's workspace, in 0.5.10 to 0.5.23 alike: mem_fraction_static * 0.85 where the context is above 8192
        return 0.85 if backend == "aiter" and model.context_tokens > 8192 else 1.0


def _engine_chunk(settings: EngineSettings, gpu: Gpu) -> int:
    """The prefill chunk SGLang itself takes, by the size of the GPU."""
    gib = gpu.memory_bytes / GIB
    if gib < 35:
        return 2048
    if gib < 60 and _since(settings, 0, 5, 3):
        return 4096
    return 8192 if gib < 160 else 16384


def _since(settings: EngineSettings, *release: int) -> bool:
    return release_meant(settings.version) >= release


def _by_ranks(case: _Case) -> float:
    memory, release = case.memory, case.release
    ranks = case.ranks if release >= (0, 4, 7) else case.layout.tp
    share = next(share for least, share in _BY_RANKS if ranks >= least)
    if release < (0, 4, 6) or memory <= 80 * _GIB:
        return share * (0.95 if case.drafting and release >= (0, 4, 7) else 1.0)
    if release < (0, 4, 7):
        return 1.0 - 13 * _GIB / memory
    if memory > 180_000:
        return 0.79
    reserve = (20 if case.drafting else 18) * _GIB
    return min(0.88 + 48 * _GIB * 0.12 / memory, 1.0 - reserve / memory) if memory > 96 * _GIB else 0.88


def _reserve_by_size(case: _Case) -> float:
    gib = case.memory / _GIB
    size = next((fixed + each * case.ranks for below, fixed, each in _BY_SIZE if gib < below), 32.0)
    return (size + (2 if case.drafting else 0) + (4 if case.layout.attn_dp > 1 else 0)) * _GIB


def _reserve_by_need(case: _Case) -> float:
    reserved = 512 + 1.5 * max(2048, _activation_tokens(case)) + 128 * case.ranks + _graphs(case)
    if case.memory > 60 * _GIB:
        reserved = max(reserved, 10 * _GIB)
    if case.drafting and case.release < (0, 5, 14):
        reserved += (4 if case.release >= (0, 5, 10) else 2) * _GIB
    deepep = uses_deepep(case.layout)
    if deepep and case.role != "prefill" and case.settings.cuda_graph_max_bs != 0 and case.release >= (0, 5, 15):
        reserved += 2 * _GIB
    return reserved


def _activation_tokens(case: _Case) -> int:
    if case.role == "decode" and case.release >= (0, 5, 15):
        return (case.settings.max_running_requests or 1) * case.settings.draft_tokens
    return case.settings.chunked_prefill_size or _engine_chunk(case.settings, case.gpu)


def _graphs(case: _Case) -> float:
    """Captured graphs, and attention DP's padding, which is guessed from their largest batch."""
    settings, roles_apart = case.settings, case.release >= (0, 5, 15)
    if settings.cuda_graph_max_bs == 0 and not roles_apart:
        # releases before 0.5.15 keep room for graphs that are switched off
        settings = replace(settings, cuda_graph_max_bs=None)
    applied = resolve(settings, case.model, case.gpu, case.layout, pool_tokens=1)
    reserved = 0.0
    if case.role != "prefill" or not roles_apart:
        batch = applied.graph_max_bs
        padding = (4.5 if batch > 300 else 3.0) * case.layout.attn_dp if case.layout.attn_dp > 1 else 0.0
        reserved += batch * (2 + padding)
    if applied.prefill_graph and (case.role != "decode" or not roles_apart):
        reserved += 8 * prefill_graph_sizes(settings.chunked_prefill_size or _engine_chunk(settings, case.gpu))
    return reserved
