"""Studies that measure prefill alone and decode alone: one engine of each role, on the GPUs of one of them.

Their logs calibrate the twin, which then composes any number of groups from step times that were measured.
"""

from __future__ import annotations

from ridgeline.planner.candidates import Unit
from ridgeline.planner.commands import unit_values
from ridgeline.planner.pairing import Pair
from ridgeline.planner.scheme import Scheme
from ridgeline.planner.study import PlanInputs, beside, quoted
from ridgeline.traffic.traffic import Traffic, dataset_of

REQUESTS = 400
LIMIT_S = 3600
# what each half varies, so that steps of more than one size are measured, and what it is judged by
_VARIED = {"prefill": ("chunked_prefill_size", "input_tok_s"), "decode": ("max_running_requests", "output_tok_s")}


def half_studies(scheme: Scheme, traffic: Traffic, asked: PlanInputs) -> dict[str, str]:
    """File names and their text; none where the scheme is not split."""
    if not isinstance(scheme.shape, Pair):
        return {}
    return {f"{unit.role}-alone.yaml": _study(unit, traffic, asked) for unit in scheme.units}


def _study(unit: Unit, traffic: Traffic, asked: PlanInputs) -> str:
    knob, metric = _VARIED[unit.role]
    values = {name: value for name, value in unit_values(unit).items() if name != knob}
    planned = unit.chunk_flag if unit.role == "prefill" else unit.cap
    flags = ", ".join(f"{name}: {value}" for name, value in values.items())
    share = unit.layout.attn_dp * unit.layout.pp
    half = max(share, planned // 2 // share * share)
    nodes, size = unit.layout.nodes, unit.layout.gpus_per_node
    lines = [
        "version: 1",
        f"name: {unit.role}-alone",
        f"question: How long do the steps of a {unit.role} engine take? Its log calibrates the twin.",
        "",
        "workload:",
        "  kind: sglang-serve",
        f"  model: {quoted(beside(asked.model))}  # or your model's folder, without the next line",
        "  load_format: dummy",
        f"  gpu: {unit.question.cluster.gpu.name}",
        f"  alone: {unit.role}",
        f"  flags: {{{flags}}}",
        f"  concurrency: {max(1, min(unit.cap, REQUESTS // 2))}",
        f"  traffic: {{dataset: {dataset_of(traffic)!r}, requests: {REQUESTS}, seed: {traffic.seed}}}",
        f"job: {{nodes: {nodes}, gpus: {min(size, unit.gpus)}, limit: {LIMIT_S}}}",
        "",
        "space:",
        f"  {knob}: [{half}, {planned}]" if half < planned else f"  {knob}: [{planned}]",
        f"baseline: {{{knob}: {planned}}}",
        f"goal: {{maximize: {metric}}}",
        "budget: {trials: 2}",
        "confirm: {top: 1, blocks: 2}",
        "",
    ]
    return "\n".join(lines)
