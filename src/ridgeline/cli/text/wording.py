"""How the faces write settings, values, times and costs. Seconds and bytes inside, formatting here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ridgeline.records.trial import Stage

if TYPE_CHECKING:
    from ridgeline.campaign.answer import Answer
    from ridgeline.campaign.check import Stake
    from ridgeline.campaign.status import Standing

KIND_WORDS = {
    "oom-start": "out of memory at start",
    "oom-run": "out of memory while running",
    "wrong": "wrong result",
    "build-failed": "build failed",
    "node-fault": "node fault",
    "site-fault": "site fault",
}

MOVES_SHOWN = 3


def setting_words(point: Mapping[str, object]) -> str:
    return "  ".join(f"{name} {value_words(value)}" for name, value in point.items() if value is not None)


def value_words(value: object) -> str:
    if value == "":
        return "''"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def yaml_words(value: object) -> str:
    """A value as a study file says it: every digit, and quotes where a reader would take a word for something else."""
    from ridgeline.store.yaml_tree import resolve

    if isinstance(value, str) and not (re.fullmatch(r"[\w./+-]+", value) and resolve(value) == value):
        quoted = json.dumps(value, ensure_ascii=False)
        return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)
    return json.dumps(value) if isinstance(value, bool) else str(value)


def metric_words(value: float) -> str:
    if value and (abs(value) >= 1e7 or abs(value) < 1e-3):
        return f"{value:.4g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def time_words(seconds: float) -> str:
    whole = int(seconds)
    if whole >= 3600:
        return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"
    return f"{whole // 60}:{whole % 60:02d}"


def run_time_words(seconds: float) -> str:
    """Short runs with a tenth: of a program that takes half a second, 0:00 tells nothing."""
    return f"{seconds:.1f}s" if seconds < 10 else time_words(seconds)


def hours_words(node_hours: float) -> str:
    return f"{node_hours:.1f}" if node_hours >= 1 else f"{node_hours:.2g}"


def leftover_words(leftovers: Sequence[str]) -> str:
    """Processes that outlived their run; of many the first two."""
    more = f" and {len(leftovers) - 2} more" if len(leftovers) > 2 else ""
    return ", ".join(text[:60] for text in leftovers[:2]) + more


def outcome_words(outcomes: Mapping[str, int]) -> str:
    return "    ".join(f"{n} {KIND_WORDS.get(kind, kind)}" for kind, n in outcomes.items() if n)


def cost_line(stake: Stake) -> str:
    runs = "runs until the budget is spent" if stake.runs is None else f"at most {stake.runs} runs"
    hours = (
        "no limit on node-hours" if stake.node_hours is None else f"at most {hours_words(stake.node_hours)} node-hours"
    )
    return f"at stake: {runs}, {hours} (every run at its limit)"


def budget_words(standing: Standing) -> str:
    history, budget = standing.history, standing.study.budget
    hours = hours_words(history.node_hours)
    spent = f"{hours} of {budget.node_hours:g} node-hours" if budget.node_hours else f"{hours} node-hours"
    wall = (
        f"{time_words(history.wall_s)} of {time_words(budget.wall_s)}" if budget.wall_s else time_words(history.wall_s)
    )
    return f"{spent}, {wall} at work"


def standing_lines(standing: Standing) -> Iterable[str]:
    study, history = standing.study, standing.history
    yield f"{study.name}   {standing.stage}   {len(history.runs)} runs"
    for trial, run in standing.running:
        state = "running" if history.stopped is None else "was under way"
        yield f"  #{trial.number:<4} {setting_words(trial.point)}   {state} ({run.ticket or 'not handed over'})"
    if standing.best is not None and standing.verdict_kind != "scaling":  # the question was how far, not which
        yield f"  best  {best_words(standing)}"
    yield f"  spent {budget_words(standing)}"
    yield f"  runs  {outcome_words({kind.value: n for kind, n in history.outcomes.items()})}"
    moved = standing.moved
    if len(moved) > MOVES_SHOWN:
        yield f"  {len(moved) - MOVES_SHOWN} earlier moves after failures: see `why` in the report"
    for trial in moved[-MOVES_SHOWN:]:
        yield f"  #{trial.number:<4} {trial.why}"
    yield f"  {standing.headline}"
    if history.stopped is not None and standing.stage != "finished":
        reason = history.stopped["reason"]
        remedy = "" if "ridgeline resume" in reason else f"; go on with: ridgeline resume {history.root}"
        yield f"  stopped: {reason}{remedy}"


def best_words(standing: Standing) -> str:
    best = standing.best
    assert best is not None
    gain = "" if best.gain is None else f"   {best.gain}"
    return f"{standing.study.goal.metric} {metric_words(best.value)}{gain}   #{best.trial.number}"


def stage_words(standing: Standing) -> str:
    """How far the stage is: `search 12 of 24 trials, about 0:40 left`."""
    history, study = standing.history, standing.study
    runs_left = standing.runs_left
    typical_s = history.wall_s / len(history.runs) if history.runs else None
    left = f", about {time_words(runs_left * typical_s)} left" if runs_left and typical_s else ""
    if standing.stage == "search":
        limit = f" of {study.budget.trials}" if study.budget.trials else ""
        return f"search {history.count(Stage.SEARCH)}{limit} trials{left}"
    if standing.stage == "confirm":
        return f"confirm {history.count(Stage.CONFIRM)} of {standing.confirm_runs} runs{left}"
    return f"{standing.stage}{left}"


def answer_lines(answer: Answer) -> Iterable[str]:
    yield answer.headline
    if answer.best is None:
        return
    if not answer.best.confirmed:
        yield "(the best of the search so far, not confirmed: a single look favours lucky runs)"
    yield ""
    yield from paste_lines(answer.paste)
    yield ""
    yield "as YAML:"
    yield from (f"  {name}: {yaml_words(value)}" for name, value in answer.best.trial.point.items())


def paste_lines(paste: str) -> list[str]:
    """Several lines stand at the margin: an indented here-document never ends in the shell that it is pasted into."""
    lines = paste.splitlines()
    return lines if len(lines) > 1 else [f"  {line}" for line in lines]
