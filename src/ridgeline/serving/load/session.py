"""One call of `ridgeline bench`: a plain run, a search for goodput or a sweep, as a document and as text."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from ridgeline.serving.load import words
from ridgeline.serving.load.bench import Plan, bench

NOTHING_ANSWERED = 3
STOPPED = 130


@dataclass(frozen=True, slots=True)
class Answer:
    document: dict[str, object]
    text: str
    exit_code: int = 0


def run_session(plan: Plan, *, find_goodput: bool, grid: str | None, say: Callable[[str], None]) -> Answer:
    """`say` gets progress lines while a search or sweep lasts; the document is also kept beside the records."""
    if find_goodput:
        answer = _goodput(plan, say)
    elif grid is not None:
        answer = _sweep(plan, grid, say)
    else:
        answer = _single(plan)
    if plan.keep_path is not None:
        plan.keep_path.with_suffix(".summary.json").write_text(json.dumps(answer.document, indent=1) + "\n")
    return answer


def _single(plan: Plan) -> Answer:
    result = bench(plan)
    code = STOPPED if result.interrupted else 0 if result.summary.ok else NOTHING_ANSWERED
    return Answer(result.as_json(), words.result_text(result), code)


def _goodput(plan: Plan, say: Callable[[str], None]) -> Answer:
    from ridgeline.serving.load.goodput import find_goodput as find_goodput_edge

    axis = "concurrency" if plan.traffic.concurrency is not None else "rate"
    edge = find_goodput_edge(plan, bench, note=lambda probe: say(words.probe_text(probe, axis)))
    return Answer({"url": plan.route.url, **edge.as_json()}, words.edge_text(edge), STOPPED if edge.interrupted else 0)


def _sweep(plan: Plan, grid: str, say: Callable[[str], None]) -> Answer:
    from ridgeline.serving.load.sweep import parse_grid, sweep

    done = sweep(
        plan,
        parse_grid(grid, plan),
        bench,
        note=lambda p: say(f"  {p.concurrency} at once, input {p.input_tokens}, output {p.output_tokens}: done"),
    )
    return Answer({"url": plan.route.url, **done.as_json()}, words.sweep_text(done), STOPPED if done.interrupted else 0)
