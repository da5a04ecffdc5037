"""Which layouts an engine accepts, and why not the others. Every refusal here once cost somebody an allocation.

`layout_problems` answers for one layout; `sort_layouts` tells those that are left for a model on given GPUs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ridgeline import catalog
from ridgeline.errors import InputError
from ridgeline.records.expression import Value
from ridgeline.serving.engines.layout import Layout, disaggregated, group_layout
from ridgeline.serving.engines.releases import USUAL_ENGINE, Version, release_meant
from ridgeline.serving.engines.settings import DEFAULTS, EngineDefaults, EngineSettings
from ridgeline.serving.hardware.cluster import Gpu
from ridgeline.serving.model.layer_parts import Attention
from ridgeline.serving.model.model import Model


@dataclass(frozen=True, slots=True)
class LayoutProblem:
    """One broken rule: its name, what is wrong, and the nearest thing that would do."""

    rule: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.reason}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class _Checked:
    model: Model
    layout: Layout
    gpu: Gpu | None
    settings: EngineSettings
    role: str
    dense_whole: bool

    @property
    def own(self) -> EngineDefaults | None:
        found: EngineDefaults | None = catalog.part("engines", self.settings.engine).defaults
        return found


def layout_problems(
    model: Model,
    layout: Layout,
    gpu: Gpu | None = None,
    settings: EngineSettings = DEFAULTS,
    role: str = "both",
    *,
    dense_whole: bool = False,
) -> list[LayoutProblem]:
    """Every rule this layout breaks under these settings; empty when the engine would start. `dense_whole`: dense
    feed-forward parts are not cut (`moe_dense_tp_size: 1`)."""
    if layout.disaggregated:
        return [p for name, lay in layout.roles.items() for p in layout_problems(model, lay, gpu, settings, name)]
    case = _Checked(model, layout, gpu, settings, role, dense_whole)
    return [problem for rule in _RULES for problem in rule(case)]


def require_legal(
    model: Model, layout: Layout, gpu: Gpu | None = None, settings: EngineSettings = DEFAULTS, role: str = "both"
) -> None:
    """Refuse an impossible layout, with all reasons at once."""
    problems = layout_problems(model, layout, gpu, settings, role)
    if problems:
        raise InputError(f"layout {layout} is not possible:\n" + "\n".join(f"  {p}" for p in problems))


def sort_layouts(
    model: Model, gpu: Gpu, nodes: int, gpus_per_node: int, settings: EngineSettings = DEFAULTS
) -> tuple[list[Layout], list[tuple[Layout, LayoutProblem]]]:
    """All ways to use all of these GPUs: those an engine accepts, and the others each with a rule it breaks."""
    legal: list[Layout] = []
    refused: list[tuple[Layout, LayoutProblem]] = []
    total = nodes * gpus_per_node
    for tp in _divisors(total):
        # only MLA gains by attention DP: other models split their KV heads instead of copying the cache
        groups = _divisors(tp) if model.attention.mla else [1]
        spreads = {1, tp} if model.experts is not None else {1}
        for pp in _divisors(total // tp):
            for attn_dp, ep in itertools.product(groups, sorted(spreads)):
                layout = Layout(tp, pp, total // (tp * pp), ep, attn_dp, nodes=nodes, gpus_per_node=gpus_per_node)
                problems = layout_problems(model, layout, gpu, settings)
                if problems:
                    refused.append((layout, problems[0]))
                else:
                    legal.append(layout)
    return legal, refused


def disaggregated_layouts(
    model: Model, gpu: Gpu, nodes: int, gpus_per_node: int, settings: EngineSettings = DEFAULTS
) -> list[Layout]:
    """Every split of whole nodes into equal prefill groups and equal decode groups that an engine accepts."""
    found = []
    for prefill_nodes in range(1, nodes):
        for p in _divisors(prefill_nodes):
            for d in _divisors(nodes - prefill_nodes):
                prefill = group_layout(model, f"{p}x{prefill_nodes // p}", gpus_per_node)
                decode = group_layout(model, f"{d}x{(nodes - prefill_nodes) // d}", gpus_per_node)
                layout = disaggregated(prefill, decode)
                if not layout_problems(model, layout, gpu, settings):
                    found.append(layout)
    return found


def _divisors(n: int) -> list[int]:
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def _gpus(case: _Checked) -> Iterator[LayoutProblem]:
    layout = case.layout
    need, have = layout.gpus, layout.nodes * layout.gpus_per_node
    product = f"tp {layout.tp} x pp {layout.pp} x dp {layout.dp} is {need} GPUs"
    if need > have:
        text = f"{product}, {layout.nodes} x {layout.gpus_per_node} are given"
        yield LayoutProblem("gpus", text, f"use {_nodes(-(-need // layout.gpus_per_node))}, or make the product {have}")
    elif need <= have - layout.gpus_per_node:
        busy = -(-need // layout.gpus_per_node)
        copies = have // need * layout.dp
        text = f"{product}: {layout.nodes - busy} of {layout.nodes} nodes would be idle"
        yield LayoutProblem("gpus", text, f"use dp {copies} to fill them with copies, or give {_nodes(busy)}")


def _nodes(count: int) -> str:
    return f"{count:,} node{'' if count == 1 else 's'}"


def _whole_nodes(case: _Checked) -> Iterator[LayoutProblem]:
    layout = case.layout
    if layout.replica_gpus > layout.gpus_per_node and layout.replica_gpus % layout.gpus_per_node:
        text = f"one engine of {layout.replica_gpus} GPUs does not fill whole nodes of {layout.gpus_per_node}"
        below = layout.replica_gpus // layout.gpus_per_node * layout.gpus_per_node
        yield LayoutProblem("whole-nodes", text, f"use {below} or {below + layout.gpus_per_node} GPUs an engine")
    small, large = sorted((layout.tp, layout.gpus_per_node))
    if layout.tp > 1 and large % small:
        text = f"tp {layout.tp} straddles nodes of {layout.gpus_per_node} GPUs unevenly"
        yield LayoutProblem("whole-nodes", text, f"use a tp that divides {layout.gpus_per_node} or is a multiple of it")


def _heads(case: _Checked) -> Iterator[LayoutProblem]:
    a, width = case.model.attention, case.layout.attn_tp
    if case.layout.tp % case.layout.attn_dp or _shares_heads(a, width):
        return  # an attention DP that does not divide tp is said by its own rule: there are no groups to share heads
    near = max(d for d in _divisors(a.heads) if d <= width and _shares_heads(a, d)) * case.layout.attn_dp
    kind = f"{a.heads} attention heads" if a.heads % width else f"{a.kv_heads} KV heads"
    yield LayoutProblem("heads", f"{width} ranks cannot share {kind} evenly", f"use tp {near}")


def _shares_heads(attention: Attention, ranks: int) -> bool:
    """KV heads may be fewer than ranks and are then copied, but never cut."""
    if attention.heads % ranks:
        return False
    return attention.mla or max(ranks, attention.kv_heads) % min(ranks, attention.kv_heads) == 0


def _blocks(case: _Checked) -> Iterator[LayoutProblem]:
    """Slices of a quantised weight must be whole quantisation blocks.

    SGLang stops at "Weight output_partition_size = 10944 is not divisible by weight quantization block_n = 128": in
    srt/layers/quantization/fp8.py (0.4.8 to 0.5.23) it looks at each part of a matrix made of several, cut or whole,
    and at others where they are cut. vLLM's fp8_utils.py does the same, but for matrices made of several, which its
    releases after 0.12 let pass (`allow_fp8_block_shape_mismatch`, model_executor/layers/linear.py).
    """
    model, layout = case.model, case.layout
    if case.gpu is not None and case.gpu.generation.startswith("cdna"):
        return  # AMD's kernels pad
    in_fp8, parts = model.weights_dtype == "fp8", max(1, layout.tp // layout.ep)
    block = (model.weight_block or 1) if in_fp8 else 1  # FP8 by tensor or channel has none
    width = model.experts.width if model.experts is not None else 0
    if width % (parts * block) and (parts > 1 or (in_fp8 and model.weight_block)):
        if width % block:
            yield _block_problem("an expert", width, parts, block)
            return
        text = f"experts {width} wide cannot be cut for tp {parts} in blocks of {block}"
        remedy = f"use tp {_most_whole(width, block, parts)}, or keep experts whole with ep {layout.tp}"
        yield LayoutProblem("expert-width", text, remedy)
    elif model.weight_block:
        yield from _cut_blocks(case)


def _cut_blocks(case: _Checked) -> Iterator[LayoutProblem]:
    """Of dense and shared feed-forward parts and of attention. Under attention DP each rank may hold the dense parts
    whole (`moe_dense_tp_size`), and with experts spread the shared ones: then nothing is certain but for one rank."""
    model, layout, block = case.model, case.layout, case.model.weight_block
    merged = case.own is None or case.own.merged_blocks_whole(case.settings)
    for row in model.matrices:
        down, whole = row.name.endswith("_down"), row.name.endswith("_gate_up")
        if row.dtype != "fp8" or row.part == "experts":
            continue
        if row.part in ("dense_ffn", "shared_experts") and (down or whole):
            width = row.rows if down else row.cols // 2
            spread = layout.attn_dp > 1 or case.dense_whole or (row.part == "shared_experts" and layout.ep > 1)
            ranks = 1 if spread else layout.tp
        elif row.name in ("o_proj", "q_b_proj", "kv_b_proj"):
            width = row.rows if row.name == "o_proj" else row.cols
            ranks, whole = layout.tp if layout.attn_dp == 1 else 1, False
        else:
            continue
        if width % (ranks * block) and (ranks > 1 or whole) and (not whole or merged):
            yield _block_problem(row.name, width, ranks, block)
            return


def _block_problem(name: str, width: int, ranks: int, block: int) -> LayoutProblem:
    cut = f"{name} {width} wide cannot be cut for tp {ranks}" if ranks > 1 else f"{name} is {width} wide, which is no"
    if width % block:
        remedy = "serve these weights in 16 bits, or quantised otherwise: no tp makes whole blocks of them"
    else:
        remedy = f"use tp {_most_whole(width, block, ranks)}"
    blocks = f"in FP8 blocks of {block}" if ranks > 1 else f"multiple of its FP8 blocks of {block}"
    return LayoutProblem("fp8-blocks", f"{cut} {blocks}", remedy)


def _most_whole(width: int, block: int, ranks: int) -> int:
    return math.gcd(width // block, ranks)


def _attention_dp(case: _Checked) -> Iterator[LayoutProblem]:
    layout, version = case.layout, case.settings.version
    if layout.attn_dp == 1:
        return
    if layout.attn_dp > layout.tp or layout.tp % layout.attn_dp:
        near = max(d for d in _divisors(layout.tp) if d <= layout.attn_dp)
        text = f"attention DP {layout.attn_dp} does not divide tp {layout.tp}: it splits the ranks of one stage"
        yield LayoutProblem("attention-dp", text, f"use attention DP {near}")
    if layout.pp > 1 and version < (0, 5):
        text = "pipeline stages and attention DP exclude each other before SGLang 0.5"
        yield LayoutProblem("attention-dp", text, "use pp 1, or a newer engine")
    asked = case.settings.max_running_requests
    if asked is not None and asked < layout.attn_dp:
        text = (
            f"--max-running-requests {asked} is divided by attention DP {layout.attn_dp}: no group may run any request"
        )
        yield LayoutProblem("attention-dp", text, f"give at least {layout.attn_dp}")


def _experts(case: _Checked) -> Iterator[LayoutProblem]:
    model, layout = case.model, case.layout
    if layout.ep == 1:
        return
    if model.experts is None:
        yield LayoutProblem("experts", f"{model.name} has no experts to spread over ep {layout.ep}", "use ep 1")
    elif layout.ep > layout.tp or layout.tp % layout.ep:
        # every release takes all ranks; fewer only the newer ones
        near = max(d for d in _divisors(layout.tp) if d <= model.experts.count)
        yield LayoutProblem("experts", f"ep {layout.ep} does not divide tp {layout.tp}", f"use ep {near}")
    elif layout.ep > model.experts.count:
        text = f"{model.experts.count} experts cannot fill ep {layout.ep}"
        yield LayoutProblem("experts", text, f"use ep {model.experts.count} or less")


def _stages(case: _Checked) -> Iterator[LayoutProblem]:
    model, layout = case.model, case.layout
    if layout.pp > model.layers:
        yield LayoutProblem(
            "stages", f"pp {layout.pp} is more than the {model.layers} layers", f"use pp {model.layers} or less"
        )
    if layout.pp > 1 and model.attention.mla and case.settings.version < (0, 5):
        text = "pipeline stages with MLA are refused before SGLang 0.5"
        yield LayoutProblem("stages", text, "use pp 1, or a newer engine")


# SGLang's check_pipeline_parallel_compat (validation_hook.py): before, stages exclude all drafts; DSPARK may draft on a
# prefill server. EAGLE is what drafts of no name are.
_STAGES_DRAFT: Version = (0, 5, 21)
_DRAFTED_IN_STAGES = ("", "EAGLE", "NEXTN")


def _speculation(case: _Checked) -> Iterator[LayoutProblem]:
    """What else excludes drafts is in the home of each engine: vLLM's drafts run in stages too."""
    settings, method = case.settings, case.settings.draft_method.upper()
    if case.layout.pp == 1 or not settings.drafting or settings.engine != USUAL_ENGINE:
        return
    if release_meant(settings.version) < _STAGES_DRAFT:
        text = "speculative decoding excludes pipeline stages before SGLang 0.5.21"
        yield LayoutProblem("speculation", text, "use pp 1, or a newer engine")
    elif method not in _DRAFTED_IN_STAGES and not (method == "DSPARK" and case.role == "prefill"):
        yield LayoutProblem("speculation", f"pipeline stages exclude drafts by {method}", "use pp 1, or EAGLE")


# As SGLang groups them itself (arg_groups/choices.py of 0.5.23, ATTENTION_BACKEND_CHOICES).
_NVIDIA_ONLY = (
    "fa3", "fa4", "flashinfer", "llada2_cfg_flashinfer", "flashmla", "cutlass_mla", "trtllm_mla", "cutedsl_mla",
    "tokenspeed_mla", "trtllm_mha", "hpc_ops", "minicpm_flashattn", "minicpm_flashinfer",
)  # fmt: skip
_AMD_ONLY = ("aiter", "wave")


def other_makers(backend: object, gpu: Gpu) -> LayoutProblem | None:
    """Kernels written for the other maker's GPUs, by SGLang's name or vLLM's."""
    name = str(backend).lower()
    if gpu.is_amd and name in _NVIDIA_ONLY:
        made_for, other = "NVIDIA", "aiter or triton"
    elif not gpu.is_amd and (name in _AMD_ONLY or name.startswith("rocm_")):
        made_for, other = "AMD", "fa3, flashinfer or triton"
    else:
        return None
    text = f"attention_backend {backend} is written for {made_for} GPUs, {gpu.name} is {gpu.generation}"
    return LayoutProblem("backend", text, f"use {other}")


def _backend(case: _Checked) -> Iterator[LayoutProblem]:
    backend, page = case.settings.attention_backend, case.settings.page_size
    # later ones look up each token of a page where a kernel has none (docs/advanced_features/attention_backend.md)
    early = release_meant(case.settings.version) < (0, 5, 4)
    if early and case.model.attention.mla and page > 1 and backend in ("flashinfer", "triton"):
        text = f"page size {page} rules out {backend} for MLA before SGLang 0.5.4"
        yield LayoutProblem("page-size", text, "use page size 1, or fa3 (any), flashmla (64) or cutlass_mla (128)")
    if backend is not None and "mla" in backend and not case.model.attention.mla:
        text = f"{backend} computes multi-head latent attention, {case.model.name} has none"
        yield LayoutProblem("backend", text, "use fa3 (Hopper), flashinfer or triton")
    if case.gpu is None:
        return
    if foreign := other_makers(backend, case.gpu):
        yield foreign
        return
    if backend in ("trtllm_mla", "cutlass_mla") and case.gpu.generation != "blackwell":
        yield LayoutProblem(
            "backend", f"{backend} needs Blackwell, {case.gpu.name} is {case.gpu.generation}", "use fa3 or flashinfer"
        )
    if backend in ("fa3", "flashmla") and case.gpu.generation != "hopper":
        yield LayoutProblem(
            "backend", f"{backend} needs Hopper, {case.gpu.name} is {case.gpu.generation}", "use flashinfer or triton"
        )
    if case.model.dtype == "fp8" and "fp8" not in case.gpu.flops and case.model.experts is not None:
        text = f"block-quantised FP8 experts need FP8 tensor cores, {case.gpu.name} has none"
        yield LayoutProblem("dtype", text, "use an Ada, Hopper or Blackwell GPU, or weights in bf16 or int4")


def _roles(case: _Checked) -> Iterator[LayoutProblem]:
    layout = case.layout
    if case.role == "prefill" and layout.replica_nodes == 3 and case.settings.version[:2] == (0, 4) and layout.dp == 1:
        text = "three prefill nodes in one group failed to start in SGLang 0.4.8"
        yield LayoutProblem("prefill-group", text, "use groups of one, two or four nodes, or several groups of three")


_RULES: tuple[Callable[[_Checked], Iterator[LayoutProblem]], ...] = (
    _gpus,
    _whole_nodes,
    _heads,
    _blocks,
    _attention_dp,
    _experts,
    _stages,
    _speculation,
    _backend,
    _roles,
)


# DeepEP's modes: `normal` for large batches, `low_latency` for decode steps in graphs, `auto` for both in turn.

# the first release that starts with both DeepEP's `auto` and attention DP; its predecessors stop at an assertion
_AUTO_WITH_ATTENTION_DP: Version = (0, 4, 9)


def deepep_mode(role: str, version: Version) -> str:
    """--deepep-mode for an engine with attention DP; `role` is both, prefill or decode.

    An engine that does both needs `auto`, or `normal` where the release refuses it: low_latency cannot take a prompt.
    """
    together = "auto" if release_meant(version) >= _AUTO_WITH_ATTENTION_DP else "normal"
    return {"prefill": "normal", "decode": "low_latency"}.get(role, together)


def graphless(layout: Layout, role: str, version: Version) -> bool:
    """Whether an engine of this layout runs without CUDA graphs: SGLang drops them where DeepEP's mode is `normal`."""
    return uses_deepep(layout) and deepep_mode(role, version) == "normal"


def uses_deepep(layout: Layout) -> bool:
    """Experts spread over ranks that each have requests of their own: tokens travel to their experts."""
    return layout.ep > 1 and layout.attn_dp == layout.tp


def mode_refusal(mode: object, role: str, attn_dp: int, version: Version) -> str | None:
    """Why SGLang would not run in this mode; None where it would. `mode` is `auto` where nobody names one."""
    if role == "prefill" and mode == "low_latency":
        return "a prefill engine needs --deepep-mode normal: its batches exceed what low_latency dispatches"
    if role == "decode" and mode == "normal":
        return "a decode engine needs --deepep-mode low_latency: normal cannot be captured in CUDA graphs"
    if mode in (None, "auto") and attn_dp > 1 and release_meant(version) < _AUTO_WITH_ATTENTION_DP:
        return (
            "SGLang before 0.4.9 refuses --deepep-mode auto, its default, with attention DP; set deepep_mode: "
            f"{deepep_mode(role, version)}, or use a newer engine"
        )
    return None


def deepep_values(layout: Layout, role: str, version: Version) -> dict[str, Value]:
    """How tokens travel to their experts, where they do."""
    if not uses_deepep(layout):
        return {}
    return {"moe_a2a_backend": "deepep", "deepep_mode": deepep_mode(role, version), "moe_dense_tp_size": 1}
