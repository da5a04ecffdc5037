"""A plan for reading: the table, then the best choice with its commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline.serving.hardware import GIB

if TYPE_CHECKING:
    from ridgeline.serving.planner import Choice, Plan


def plan_text(plan: Plan) -> str:
    q = plan.question
    limits = ", ".join(map(str, q.slos)) or "no limits"
    sure = "calibrated" if q.calibration.points else "not calibrated"
    low, high = q.calibration.ratio_interval()
    lines = [
        f"{q.model.name} on {q.cluster}   {q.input_tokens:.0f} tokens in, {q.output_tokens:.0f} out   {limits}",
        f"modelled, {sure}: real speeds are expected at {low:.2f} to {high:.2f} times these (9 of 10 cases)",
        "",
        *_table(plan.choices),
        "",
    ]
    best = plan.choices[0]
    if not best.option.meets and q.slos:
        lines += [
            f"no layout keeps every limit; nearest is #1, which breaks {', '.join(map(str, best.option.broken))}",
            "",
        ]
    lines += _details(best)
    return "\n".join(lines)


def _table(choices: tuple[Choice, ...]) -> list[str]:
    head = (
        "#",
        "layout",
        "gpus",
        "goodput/s",
        "tok/s",
        "ttft p95",
        "itl p95",
        "cap",
        "chunk",
        "spare",
        "gpu lost",
        "slo",
        "front",
    )
    rows = [head, *(_row(c) for c in choices)]
    widths = [max(len(r[i]) for r in rows) for i in range(len(head))]
    return [
        "  " + "  ".join(w.ljust(n) if i == 1 else w.rjust(n) for i, (w, n) in enumerate(zip(r, widths, strict=True)))
        for r in rows
    ]


def _row(choice: Choice) -> tuple[str, ...]:
    o, unit = choice.option, choice.option.scheme.main
    first = o.scheme.units[0]
    ttft, itl = o.summary.ttft_ms, o.summary.itl_ms
    return (
        str(choice.rank),
        str(o.layout),
        str(o.scheme.gpus),
        f"{o.goodput_s:.2f}",
        f"{o.total_tok_s:,.0f}",
        f"{ttft.p95:.0f} ms" if ttft else "-",
        f"{itl.p95:.1f} ms" if itl else "-",
        str(unit.cap),
        str(first.times.applied.chunk_tokens // first.layout.pp),
        f"{o.margin_bytes / GIB:.1f} GiB",
        f"-{o.loss.gpu:.0%}",
        "kept" if o.meets else "broken",
        "*" if choice.on_front else "",
    )


def _details(choice: Choice) -> list[str]:
    o = choice.option
    lines = [f"#{choice.rank}  {o.layout}"]
    if o.knee is not None:
        lines.append(
            f"  TTFT takes off beyond {o.knee.batch:,} requests of {o.knee.input_tokens:,} tokens at once "
            f"({o.knee.bound})"
        )
    lines.append(f"  losing one GPU costs {o.loss.gpu:.0%} of the capacity, one node {o.loss.node:.0%}")
    checked = f"  checked: {'; '.join(choice.lint.proofs[-2:])}"
    lines.append(checked if choice.lint.ok else "  these commands do not reach the predicted point:")
    lines += [f"    {p}" for p in choice.lint.problems]
    lines.append("")
    lines += [f"  {c.what} on {c.node}:\n    {c}" for c in choice.commands]
    return lines
