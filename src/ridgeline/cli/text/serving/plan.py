"""A plan for reading: the table, then the best choice with its commands."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.cli.text.table import aligned
from ridgeline.engines.base import engine_named
from ridgeline.hardware.cluster import GIB
from ridgeline.planner.commands import written_for
from ridgeline.planner.lint import LintReport
from ridgeline.planner.operating_point import Option
from ridgeline.planner.planner import Choice, Plan
from ridgeline.service.from_plan import printed

# A choice that serves less than this share of the best is not offered for its smaller loss alone.
_WORTH_LESS_RISK = 0.5


def plan_text(plan: Plan, gpu_hour: float | None = None) -> str:
    """`gpu_hour` is what an hour of one GPU costs, in dollars."""
    q = plan.question
    limits = ", ".join(map(str, q.slos)) or "no limits"
    sure = "calibrated" if q.calibration.points else "not calibrated"
    low, high = plan.choices[0].option.speed_ratios
    lines = [
        f"{q.model.name} on {q.cluster}   {q.input_tokens:.0f} tokens in, {q.output_tokens:.0f} out   {limits}",
        f"modelled, {sure}: the real speed of #1 is expected at {low:.2f} to {high:.2f} times this (9 of 10 cases)",
        *(f"assumed: {note}" for note in plan.assumed),
        *([f"calibration of #1: {reach}"] if (reach := plan.choices[0].option.reach) else []),
        "",
        *_speeds(plan.choices),
        "",
        *_settings(plan.choices),
        "",
        *_costs(plan.choices, gpu_hour),
        f"  ways to serve compared by step times: {plan.considered:,}; simulated: {plan.simulated}",
        *_no_split(plan),
        "",
    ]
    best = plan.choices[0]
    if not best.option.meets and q.slos:
        lines += [
            f"no layout keeps every limit; nearest is #1, {_breach(best.option)}",
            *_way_out(plan.choices),
            "",
        ]
    said = printed(best)
    lines += [*_details(best, said.lint), *_safer(plan.choices)]
    lines += ["", f"  for {written_for(best.option.scheme)}:"]
    lines += [f"  {c.what} on {c.node}:\n    {c}" for c in said.commands]
    return "\n".join(lines)


def _no_split(plan: Plan) -> list[str]:
    if (engine := engine_named(plan.question.settings.engine)).planned_whole:
        return [
            "  prefill and decode apart, attention DP and engines over several nodes are not planned for "
            f"{engine.title};",
            "  ask about SGLang without --engine",
        ]
    smallest, gpus = min(c.option.scheme.main.gpus for c in plan.choices), plan.question.cluster.gpus
    if any(c.option.layout.disaggregated for c in plan.choices) or 2 * smallest <= gpus:
        return []
    return [f"  prefill and decode cannot be split here: the smallest engine that fits takes {smallest} of {gpus} GPUs"]


def _safer(choices: Sequence[Choice]) -> list[str]:
    """The choice that serves most after a failure, where that is not the first: a larger unit is a larger risk."""
    best = choices[0]
    able = [c for c in choices if c.option.meets] or [best]
    after = max(able, key=lambda c: c.option.goodput_s * (1 - c.option.loss.gpu))
    share = after.option.goodput_s / max(best.option.goodput_s, 1e-9)
    if after.option.loss.gpu >= best.option.loss.gpu or share < _WORTH_LESS_RISK:
        return []
    return [
        f"  safer is #{after.rank}, {after.option.layout}: {share:.0%} of this goodput, and one GPU costs "
        f"{after.option.loss.gpu:.0%} of it"
    ]


def _way_out(choices: Sequence[Choice]) -> list[str]:
    """What these GPUs do carry, where a rate was asked for that they do not."""
    able = [c for c in choices if c.option.overloaded and c.option.capacity_s]
    if not able:
        return ["  relax that limit, shorten prompts or answers, or use faster GPUs"]
    most = max(able, key=lambda c: c.option.capacity_s or 0.0)
    carried = f"  these GPUs can sustain {most.option.capacity_s:.3g} requests/s within the limits (#{most.rank})"
    return [f"{carried}: lower the rate, or add GPUs"]


def _breach(option: Option) -> str:
    broken = ", ".join(map(str, option.broken))
    if not broken:
        return "whose percentiles keep them, but too many single requests do not"
    return f"which breaks {broken}, at worst {option.overshoot:.3g} times its limit"


def _speeds(choices: tuple[Choice, ...]) -> list[str]:
    """What each choice reaches, in 80 columns."""
    rows = [("#", "layout", "gpus", "goodput/s", "tok/s", "ttft p95", "itl p95")]
    for choice in choices:
        o = choice.option
        ttft, itl = o.summary.ttft_ms, o.summary.itl_ms
        rows.append(
            (
                f"{choice.rank}{'*' if choice.on_front else ''}{'' if o.meets else '!'}",
                str(o.layout),
                str(o.scheme.gpus),
                f"{o.goodput_s:.2f}",
                f"{o.total_tok_s:,.0f}",
                f"{ttft.p95:.0f} ms" if ttft else "-",
                f"{itl.p95:.1f} ms" if itl else "-",
            )
        )
    legend = ["  * no other is better in all of GPUs, goodput, TTFT, ITL and what a dead GPU costs"]
    if not all(c.option.meets for c in choices):
        legend.append("  ! a limit is broken")
    return [*aligned(rows, left=(0, 1)), *legend]


def _costs(choices: tuple[Choice, ...], gpu_hour: float | None) -> list[str]:
    """What a million tokens, in and out, take of GPUs, energy and money."""
    head = ("#", "GPU-hours", "kWh at most", "J/token", "dollars")
    rows: list[tuple[str, ...]] = [head if gpu_hour is not None else head[:-1]]
    for choice in choices:
        hours, joules = choice.option.gpu_hours_per_million, choice.option.most_joules_per_token
        row = [
            str(choice.rank),
            "-" if hours is None else f"{hours:.3g}",
            "-" if joules is None else f"{joules / 3.6:.3g}",
            "-" if joules is None else f"{joules:.3g}",
        ]
        if gpu_hour is not None:
            row.append("-" if hours is None else f"{hours * gpu_hour:.3g}")
        rows.append(tuple(row))
    text = "  for a million tokens, in and out; energy of the GPUs alone, were each at its limit of power"
    ask = "" if gpu_hour is not None else "; --gpu-hour 2.5 for dollars"
    return [*aligned(rows), text + ask]


def _settings(choices: tuple[Choice, ...]) -> list[str]:
    """What to set for each choice, how much is to spare, and what a failure costs."""
    rows = [("#", "cap", "chunk", "fraction", "spare", "P:D GPUs", "takes off", "GPU lost", "node lost")]
    for choice in choices:
        o, unit, first = choice.option, choice.option.scheme.main, choice.option.scheme.units[0]
        groups = o.layout.prefill, o.layout.decode
        rows.append(
            (
                str(choice.rank),
                str(unit.cap),
                f"{first.chunk_flag}{' mixed' if first.settings.mixed_chunk else ''}",
                f"{unit.memory.mem_fraction:g}",
                f"{o.margin_bytes / GIB:.1f} GiB",
                f"{groups[0].gpus}:{groups[1].gpus}" if groups[0] and groups[1] else "-",
                f"{o.knee.batch:,}" if o.knee else "-",
                f"-{o.loss.gpu:.0%}",
                f"-{o.loss.node:.0%}",
            )
        )
    mixed = any(c.option.scheme.units[0].settings.mixed_chunk for c in choices)
    legend = [
        *_flags_legend(choices[0].option.scheme.question.settings.engine),
        *(["  mixed: prompts are computed in the steps that decode (--enable-mixed-chunk)"] if mixed else []),
        "  takes off: requests at once beyond which TTFT passes its limit; lost: capacity gone until repaired",
    ]
    return [*aligned(rows, left=(0,)), *legend]


def _flags_legend(engine: str) -> list[str]:
    if engine == "vllm":
        return [
            "  cap, chunk: --max-num-seqs, --max-num-batched-tokens; fraction: weights and KV of what is free on a GPU",
        ]
    return [
        "  cap, chunk, fraction: --max-running-requests, --chunked-prefill-size, --mem-fraction-static of an engine;",
        "  of a split, the cap of a decode engine and the chunk of a prefill engine",
    ]


def _details(choice: Choice, lint: LintReport) -> list[str]:
    o = choice.option
    lines = [f"#{choice.rank}  {o.layout}"]
    if o.knee is not None:
        lines.append(
            f"  TTFT takes off beyond {o.knee.batch:,} requests of {o.knee.input_tokens:,} tokens at once "
            f"({o.knee.bound})"
        )
    latencies = [(f"{name.upper()} p95", o.bounds.get(f"{name}_p95_ms")) for name in ("ttft", "itl")]
    if found := [f"{name} {both[0]:.0f} to {both[1]:.0f} ms" for name, both in latencies if both]:
        lines.append(f"  expected in 9 of 10 cases: {', '.join(found)}")
    lines.append(f"  losing one GPU costs {o.loss.gpu:.0%} of the capacity, one node {o.loss.node:.0%}")
    checked = f"  checked: {'; '.join(lint.proofs[-2:])}"
    lines.append(checked if lint.ok else "  these commands do not reach the predicted point:")
    lines += [f"    {p}" for p in lint.problems]
    return lines
