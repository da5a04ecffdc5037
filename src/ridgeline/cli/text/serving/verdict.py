"""What `ridgeline plan --verdict` prints: together, apart, and whether to split."""

from __future__ import annotations

from ridgeline.cli.text.table import aligned
from ridgeline.planner.operating_point import Option
from ridgeline.planner.planner import Plan


def verdict_text(plan: Plan) -> str:
    q, verdict = plan.question, plan.verdict
    limits = ", ".join(map(str, q.slos)) or "no limits"
    lines = [
        f"{q.model.name} on {q.cluster}   {q.input_tokens:.0f} tokens in, {q.output_tokens:.0f} out   {limits}",
        "",
    ]
    ways = [(name, o) for name, o in (("together", verdict.together), ("apart", verdict.apart)) if o is not None]
    rows = [("", "layout", "gpus", _measure(plan), "ttft p95", "itl p95")]
    rows += [
        (name, str(o.layout), str(o.scheme.gpus), _speed(o), _latency(o, "ttft"), _latency(o, "itl"))
        for name, o in ways
    ]
    lines += [*aligned(rows, left=(0, 1)), "  in brackets: where 9 of 10 measurements should lie", ""]
    if verdict.gain is not None and verdict.low is not None and verdict.high is not None:
        between = f"{verdict.low:.2f} to {verdict.high:.2f} in 9 of 10 cases; what both ways share cancels"
        lines.append(f"apart serves {verdict.gain:.2f} times as much for each GPU ({between})")
    lines += [f"{verdict.answer}: {verdict.because}", *_origin(plan)]
    return "\n".join(lines)


def _origin(plan: Plan) -> list[str]:
    """What was measured, and what the twin makes of it."""
    calibration = plan.question.calibration
    if not calibration.points:
        found = ["modelled, and nothing measured: step times, queues, transfers and pairing are the twin's"]
        more = "to measure: `--out DIR` writes studies of prefill alone and decode alone, for the GPUs of one engine"
        return [*found, more] if plan.halves else found
    sources = ", ".join(calibration.sources) or "rows without a name"
    return [
        f"measured: {calibration.points} step times ({sources})",
        "composed by the twin from them: other layouts and batches, queues, KV transfers, and the pairing of groups",
    ]


def _measure(plan: Plan) -> str:
    best = plan.choices[0].option
    return "tokens/s" if best.capacity_s is None else "requests/s"


def _speed(option: Option) -> str:
    name = "total_tok_s" if option.capacity_s is None else "capacity"
    value = option.total_tok_s if option.capacity_s is None else option.capacity_s
    both = option.bounds.get(name)
    return _figure(value) if both is None else f"{_figure(value)} ({_figure(both[0])} to {_figure(both[1])})"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _latency(option: Option, name: str) -> str:
    spread, both = getattr(option.summary, f"{name}_ms"), option.bounds.get(f"{name}_p95_ms")
    if spread is None:
        return "-"
    return f"{spread.p95:.0f} ms" if both is None else f"{spread.p95:.0f} ({both[0]:.0f} to {both[1]:.0f}) ms"
