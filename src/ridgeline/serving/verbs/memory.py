"""`ridgeline plan memory`, `layouts`, `fleet`, `hardware`: what fits, in which ways, and how much of it is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.text.table import json_text
from ridgeline.errors import NothingFound
from ridgeline.serving.engines import fitting as engines_fitting
from ridgeline.serving.engines import memory as engines_memory
from ridgeline.serving.engines.releases import USUAL_ENGINE
from ridgeline.serving.hardware import cluster
from ridgeline.serving.planner import fleet as planner_fleet
from ridgeline.serving.verbs import options as option

if TYPE_CHECKING:
    from ridgeline.serving.engines.fitting import LegalLayouts, MemoryAnswer
    from ridgeline.serving.engines.memory import MemoryPlan
    from ridgeline.serving.hardware.cluster import HardwareList
    from ridgeline.serving.planner.fleet import Fleet


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
    if answer.cluster.gpu.unified:
        lines.append("  GPU and host share this memory: what programs and the page cache hold is not taken off")
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
    if plan.kept_share < 1:
        return f", of which SGLang keeps {plan.kept_share:.0%} with {plan.backend}"
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


def fleet(
    input_tokens_per_day: Annotated[float, typer.Option(help="Prompt tokens per day.")],
    output_tokens_per_day: Annotated[float, typer.Option(help="Generated tokens per day.")],
    prefill_tok_s: Annotated[float, typer.Option(help="Prompt tokens per second of one prefill node.")],
    decode_tok_s: Annotated[float, typer.Option(help="Generated tokens per second of one decode node.")],
    utilisation: Annotated[float, typer.Option(help="Share of the day that the nodes are this busy.")] = 1.0,
    as_json: option.AsJson = False,
) -> None:
    """Size a fleet: prefill and decode nodes for a day's tokens.

    Example: ridgeline plan fleet --input-tokens-per-day 608e9 --output-tokens-per-day 168e9 --prefill-tok-s 73.7e3
    --decode-tok-s 14.8e3
    """
    answer = planner_fleet.size_fleet(
        input_tokens_per_day, output_tokens_per_day, prefill_tok_s, decode_tok_s, utilisation
    )
    print(json_text(answer.as_json()) if as_json else _fleet_text(answer))


def _fleet_text(fleet: Fleet) -> str:
    ratio = fleet.decode_per_prefill
    whole = f"{fleet.prefill_whole} + {fleet.decode_whole} = {fleet.prefill_whole + fleet.decode_whole}"
    return "\n".join(
        [
            f"prefill {fleet.prefill_nodes:8.1f} nodes",
            f"decode  {fleet.decode_nodes:8.1f} nodes" + ("" if ratio is None else f"   {ratio:.2f} per prefill node"),
            f"in all  {fleet.total_nodes:8.1f} nodes   averaged over the day; whole: {whole}",
        ]
    )


def hardware(as_json: option.AsJson = False) -> None:
    """List GPUs and fabrics with their peaks. A YAML file named by RIDGELINE_HARDWARE adds your own.

    Example: ridgeline plan hardware
    """
    answer = cluster.list_hardware()
    print(json_text(answer.as_json()) if as_json else _hardware_text(answer))


def _hardware_text(found: HardwareList) -> str:
    wide = max(10, *(len(g.name) for g in found.gpus))
    lines = [f"{'GPU':<{wide}}    memory  bandwidth    bf16     fp8    link  fabric"]
    for g in found.gpus:
        fp8 = f"{g.flops['fp8'] / 1e12:,.0f}" if "fp8" in g.flops else "-"
        lines.append(
            f"{g.name:<{wide}} {g.memory_bytes / cluster.GIB:5.0f} GiB  {g.bandwidth_bytes_s / 1e12:4.2f} TB/s  "
            f"{g.flops_of('bf16') / 1e12:6,.0f}  {fp8:>6}    {g.link.bytes_s / 1e9:4.0f}  {g.fabric}"
        )
    lines += ["  dense TFLOP/s; link in GB/s each way", "", "fabric      rails  port GB/s  latency  kind"]
    lines += [
        f"{f.name:<10}  {f.rails:5}  {f.port.bytes_s / 1e9:9.1f}  {f.port.latency_s * 1e6:4.1f} us  {f.kind}"
        for f in found.fabrics
    ]
    return "\n".join(lines)
