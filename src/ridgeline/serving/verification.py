"""A study that checks a plan: the planned setting as baseline, its neighbours as the space."""

from __future__ import annotations

import re
from dataclasses import replace

from ridgeline.serving.candidates import Pair
from ridgeline.serving.layout import Layout, group_layout
from ridgeline.serving.options import Option
from ridgeline.serving.traffic import Fixed, LogNormal, OpenLoop, Traffic


def verification_study(option: Option, traffic: Traffic) -> str:
    """YAML text. With `kind: twin` it rehearses; with the engine's own kind it measures."""
    scheme, q = option.scheme, option.scheme.question
    unit, layout = scheme.main, option.layout
    cap, fraction = unit.cap, unit.memory.mem_fraction
    share = unit.layout.attn_dp * unit.layout.pp
    caps = sorted({max(share, cap // 2 // share * share), cap, 2 * cap})
    fractions = sorted({round(fraction - 0.02, 3), fraction})
    limits = ", ".join(map(str, q.slos)) or "no limits"
    reach = f"{option.goodput_s:.3g} requests/s" if q.slos else f"{option.total_tok_s:,.0f} tokens/s"
    name = re.sub(r"[^a-z0-9]+", "-", f"verify {q.model.name} {layout}".lower()).strip("-")
    goal = "goodput" if q.slos else "total_tok_s"
    lines = [
        "version: 1",
        f"name: {name}",
        f"question: Does {layout} reach the predicted {reach} with {limits}?",
        "",
        "workload:",
        "  kind: twin                    # sglang on the real cluster: nothing else in this file changes",
        f"  model: {q.model.name}",
        f"  gpu: {q.cluster.gpu.name}",
        f"  gpus_per_node: {q.cluster.node.gpus}",
        f"  traffic: {_traffic(option, traffic)}",
        *([f"  slos: [{limits}]"] if q.slos else []),
        "",
        "space:",
        *(f"  {name}: [{value}]" for name, value in _fixed(option).items()),
        f"  max_running_requests: [{', '.join(map(str, caps))}]",
        f"  mem_fraction_static: [{', '.join(f'{f:g}' for f in fractions)}]",
        "",
        f"goal: {{maximize: {goal}}}",
        "guards:",
        f"  - successful_requests == {_requests(traffic)}",
        f"baseline: {{{_baseline(option, cap, fraction)}}}",
        "budget: {trials: 6}",
        "confirm: {top: 1, blocks: 5}",
        "",
    ]
    return "\n".join(lines)


def _fixed(option: Option) -> dict[str, object]:
    scheme = option.scheme
    first = scheme.units[0]
    chunk = first.times.applied.chunk_tokens // first.layout.pp
    if isinstance(scheme.shape, Pair):
        layout = option.layout
        assert layout.prefill is not None
        assert layout.decode is not None
        sides = {**_side("prefill", layout.prefill, option), **_side("decode", layout.decode, option)}
        return {"nodes": layout.nodes, **sides, "chunked_prefill_size": chunk}
    layout = option.layout
    words = {k: getattr(layout, k) for k in ("nodes", "tp", "pp", "dp", "ep", "attn_dp")}
    return {**words, "chunked_prefill_size": chunk, "cuda_graph_max_bs": first.times.applied.graph_max_bs}


def _side(role: str, side: Layout, option: Option) -> dict[str, object]:
    """Groups in nodes where they have the usual shape; otherwise their number and the shape of one."""
    q = option.scheme.question
    groups = f"{side.dp}x{side.replica_nodes}"
    if replace(side, nodes=side.dp * side.replica_nodes) == group_layout(q.model, groups, side.gpus_per_node):
        return {f"{role}_groups": groups}
    shape = {f"{role}_{name}": getattr(side, name) for name in ("tp", "attn_dp", "ep") if getattr(side, name) > 1}
    return {f"{role}_groups": side.dp, f"{role}_tp": side.tp, **shape}


def _baseline(option: Option, cap: int, fraction: float) -> str:
    values = {**_fixed(option), "max_running_requests": cap, "mem_fraction_static": f"{fraction:g}"}
    return ", ".join(f"{name}: {value}" for name, value in values.items())


def _requests(traffic: Traffic) -> int:
    return min(traffic.requests, 2000)


def _traffic(option: Option, traffic: Traffic) -> str:
    lengths = traffic.lengths
    if isinstance(lengths, Fixed):
        dataset = f"fixed:{lengths.input_tokens}:{lengths.output_tokens}"
    elif isinstance(lengths, LogNormal):
        dataset = f"sharegpt:{lengths.input_mean:g}:{lengths.output_mean:g}"
    else:
        dataset = lengths.source
    words = [f"dataset: {dataset!r}", f"requests: {_requests(traffic)}", f"seed: {traffic.seed}"]
    if option.rate_s is not None:
        words.append(f"rate: {option.rate_s:.4g}")
        if isinstance(traffic.pace, OpenLoop) and traffic.pace.burstiness != 1:
            words.append(f"burstiness: {traffic.pace.burstiness:g}")
    elif traffic.concurrency is not None:
        words.append(f"concurrency: {traffic.concurrency}")
    return "{" + ", ".join(words) + "}"
