"""`ridgeline plan memory` and `layouts`: does a model fit these GPUs, in which ways, and how much KV cache is left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.text.table import json_text
from ridgeline.errors import NothingFound
from ridgeline.serving.engines import fitting as engines_fitting
from ridgeline.serving.engines import memory as engines_memory
from ridgeline.serving.engines.releases import USUAL_ENGINE
from ridgeline.serving.hardware import cluster
from ridgeline.serving.verbs import options as option

if TYPE_CHECKING:
    from ridgeline.serving.engines.fitting import LegalLayouts, MemoryAnswer
    from ridgeline.serving.engines.memory import MemoryPlan


@option.takes(option.EngineArguments)
def memory(arguments: option.EngineArguments, as_json: option.AsJson = False) -> None:
    """Check whether a model fits a layout of GPUs: KV pool, largest batch, margin.

    Exit code 1: it does not fit.

    Example: ridgeline plan memory --model deepseek-r1 --gpu h100 --nodes 2 --gpus-per-node 8 --tp 16
    """
    layout = arguments.layout(whole_nodes=False)
    answer = engines_fitting.answer_memory(
        arguments.model, arguments.gpu, layout, arguments.settings(), arguments.dtype, arguments.kv_dtype
    )
    print(json_text(answer.as_json()) if as_json else _memory_text(answer), flush=True)
    if answer.plan.verdict == engines_memory.STARTUP_OOM:
        raise NothingFound(f"{arguments.model} does not fit {layout}: {answer.plan.reason}")


def layouts(
    model: option.ModelName,
    gpus: Annotated[int, typer.Option(help="GPUs in all.")],
    gpu: option.GpuName = "h100",
    gpus_per_node: option.GpusPerNode = 8,
    engine: option.EngineName = USUAL_ENGINE,
    dtype: option.Dtype = None,
    as_json: option.AsJson = False,
) -> None:
    """List the legal layouts of a model on GPUs, whether each fits in memory, and why the others are ruled out.

    Exit code 1: none of them fits.

    Example: ridgeline plan layouts --model deepseek-r1 --gpus 16 --gpu h200
    """
    listing = engines_fitting.list_layouts(model, gpu, gpus, gpus_per_node, engine, dtype)
    print(json_text(listing.as_json()) if as_json else layouts_text(listing), flush=True)
    if not any(plan.fits for _, plan in listing.rows):
        raise NothingFound(f"no legal layout of {model} fits {gpus} x {gpu}; use more GPUs, or larger ones")


def _memory_text(answer: MemoryAnswer) -> str:
    heads = {
        engines_memory.FITS: "fits",
        engines_memory.RUNTIME_OOM: "may run out of memory while running",
        engines_memory.STARTUP_OOM: "does not fit",
    }
    plan = answer.plan
    lines = [f"{heads[plan.verdict]}: {plan.reason}"]
    if answer.settings.mem_fraction is None and plan.mem_fraction != plan.engine_fraction:
        own = f"SGLang's own fraction, {plan.engine_fraction:g}, leaves no KV pool"
        lines.append(f"  only with --mem-fraction-static {plan.mem_fraction:g}: {own}")
    if answer.nearest:
        lines.append(f"  nearest that fits: {'; '.join(answer.nearest)}")
    if plan.verdict == engines_memory.STARTUP_OOM:
        return "\n".join(lines)
    copies = f" in each of {plan.groups} attention groups" if plan.groups > 1 else ""
    assumed = "" if answer.settings.attention_backend else "; name yours with --attention-backend"
    lines += [
        "",
        f"  free on a GPU    {plan.free_bytes / cluster.GIB:8.2f} GiB   {answer.cluster}, {answer.layout}",
        f"  weights          {plan.weight_bytes / cluster.GIB:8.2f} GiB",
        f"  KV pool          {plan.kv_bytes / cluster.GIB:8.2f} GiB   {plan.kv_tokens_per_rank:,} tokens{copies}",
        f"  reserve          {plan.reserve_bytes / cluster.GIB:8.2f} GiB   "
        f"mem fraction {plan.mem_fraction:g}{_default(plan)}",
        *(f"    {name:<34}{size / cluster.GIB:8.2f}" for name, size in plan.needs.items() if size),
        f"  attention        {plan.backend:>8}       verdict and figures are for this back end{assumed}",
        f"  largest batch    {plan.largest_batch():8,} requests of {engines_memory.REQUEST_TOKENS} tokens",
    ]
    if (more := answer.roomier) is not None:
        tokens = f"{more.kv_tokens_per_rank:,} tokens"
        lines.append(f"  more room        --mem-fraction {more.mem_fraction:g} fits too: a KV pool of {tokens}{copies}")
    return "\n".join(lines)


def _default(plan: MemoryPlan) -> str:
    same = abs(plan.engine_fraction - plan.mem_fraction) < 0.0005
    return "" if same else f" (SGLang's own default: {plan.engine_fraction:g})"


def _asked(plan: MemoryPlan) -> str:
    same = plan.mem_fraction == plan.engine_fraction
    return "" if same else f"  with --mem-fraction-static {plan.mem_fraction:g}"


def layouts_text(found: LegalLayouts) -> str:
    fitting = sum(plan.fits for _, plan in found.rows)
    width = max((len(str(layout)) for layout, _ in found.rows), default=0)
    lines = [
        f"{found.model.name} on {found.cluster}: {len(found.rows)} legal layouts, {fitting} fit",
        "",
        f"  {'layout':<{width}}  {'verdict':<16}  {'margin':>10}  {'KV tokens':>12}",
    ]
    lines += [
        f"  {layout!s:<{width}}  {plan.verdict:<16}  {plan.margin_bytes / cluster.GIB:6.1f} GiB  "
        f"{engines_fitting.kv_tokens(layout, plan):>12,}"
        f"{_asked(plan)}"
        for layout, plan in found.rows
    ]
    reasons = dict.fromkeys(str(problem) for _, problem in found.refused)
    return "\n".join([*lines, *([""] if reasons else []), *(f"  refused: {reason}" for reason in reasons)])
