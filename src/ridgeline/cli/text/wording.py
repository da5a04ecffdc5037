"""How the faces write settings, values, times and costs. Seconds and bytes inside, formatting here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ridgeline.stats.wording import metric_text

if TYPE_CHECKING:
    from ridgeline.campaign.check import Stake
    from ridgeline.campaign.status import CampaignStatus

KIND_TEXT = {
    "oom-start": "out of memory at start",
    "oom-run": "out of memory while running",
    "wrong": "wrong result",
    "build-failed": "build failed",
    "node-fault": "node fault",
    "site-fault": "site fault",
}

MOVES_SHOWN = 3


def setting_text(point: Mapping[str, object]) -> str:
    return "  ".join(f"{name} {value_text(value)}" for name, value in point.items() if value is not None)


def value_text(value: object) -> str:
    if value == "":
        return "''"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def yaml_text(value: object) -> str:
    """A value as a study file says it: every digit, and quotes where a reader would take a word for something else."""
    from ridgeline.store.yaml_tree import resolve

    if isinstance(value, str) and not (re.fullmatch(r"[\w./+-]+", value) and resolve(value) == value):
        quoted = json.dumps(value, ensure_ascii=False)
        return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)
    return json.dumps(value) if isinstance(value, bool) else str(value)


def time_text(seconds: float) -> str:
    whole = int(seconds)
    if whole >= 3600:
        return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"
    return f"{whole // 60}:{whole % 60:02d}"


def run_time_text(seconds: float) -> str:
    """Short runs with a tenth: of a program that takes half a second, 0:00 tells nothing."""
    return f"{seconds:.1f}s" if seconds < 10 else time_text(seconds)


def hours_text(node_hours: float) -> str:
    return f"{node_hours:.1f}" if node_hours >= 1 else f"{node_hours:.2g}"


def leftover_text(leftovers: Sequence[str]) -> str:
    """Processes that outlived their run; of many the first two."""
    more = f" and {len(leftovers) - 2} more" if len(leftovers) > 2 else ""
    return ", ".join(text[:60] for text in leftovers[:2]) + more


def outcome_text(outcomes: Mapping[str, int]) -> str:
    return "    ".join(f"{n} {KIND_TEXT.get(kind, kind)}" for kind, n in outcomes.items() if n)


def cost_line(stake: Stake) -> str:
    runs = "runs until the budget is spent" if stake.runs is None else f"at most {stake.runs} runs"
    hours = (
        "no limit on node-hours" if stake.node_hours is None else f"at most {hours_text(stake.node_hours)} node-hours"
    )
    return f"at stake: {runs}, {hours} (every run at its limit)"


def budget_text(now: CampaignStatus) -> str:
    history, budget = now.history, now.study.budget
    hours = hours_text(history.node_hours)
    spent = f"{hours} of {budget.node_hours:g} node-hours" if budget.node_hours else f"{hours} node-hours"
    wall = f"{time_text(history.wall_s)} of {time_text(budget.wall_s)}" if budget.wall_s else time_text(history.wall_s)
    return f"{spent}, {wall} at work"


def status_lines(now: CampaignStatus) -> Iterable[str]:
    study, history, answer = now.study, now.history, now.answer
    yield f"{study.name}   {now.progress.stage}   {len(history.runs)} runs"
    for trial, run in now.running:
        state = "running" if history.stopped is None else "was under way"
        yield f"  #{trial.number:<4} {setting_text(trial.point)}   {state} ({run.ticket or 'not handed over'})"
    yield from (f"  {line}" for line in candidate_lines(now))
    yield f"  spent {budget_text(now)}"
    yield f"  runs  {outcome_text({kind.value: n for kind, n in history.outcomes.items()})}"
    moved = now.moved
    if len(moved) > MOVES_SHOWN:
        yield f"  {len(moved) - MOVES_SHOWN} earlier moves after failures: see `why` in the report"
    for trial in moved[-MOVES_SHOWN:]:
        yield f"  #{trial.number:<4} {trial.why}"
    yield f"  {answer.headline}"
    if history.stopped is not None and history.verdict is None:
        reason = history.stopped["reason"]
        remedy = "" if "ridgeline resume" in reason else f"; go on with: ridgeline resume {history.root}"
        yield f"  stopped: {reason}{remedy}"


def candidate_lines(now: CampaignStatus) -> Iterable[str]:
    """What the answer speaks of, a line each: `best  rate 119   +19.0% over baseline (95%: ...)   #9`."""
    metric, reference, candidate = now.study.goal.metric, now.answer.reference, now.answer.candidate
    if reference.short and reference.value is not None:
        yield f"{reference.short:<5} {metric} {metric_text(reference.value)}"
    if candidate is not None and candidate.short:
        gain = "" if candidate.gain is None else f"   {candidate.gain}"
        yield f"{candidate.short:<5} {metric} {metric_text(candidate.value)}{gain}   #{candidate.trial}"


def progress_text(now: CampaignStatus) -> str:
    """How far the stage is: `search 12 of 24 trials, about 0:40 left`."""
    history, progress = now.history, now.progress
    typical_s = history.wall_s / len(history.runs) if history.runs else None
    left = f", about {time_text(progress.runs_left * typical_s)} left" if progress.runs_left and typical_s else ""
    limit = f" of {progress.of}" if progress.of else ""
    return f"{progress.stage} {progress.done}{limit} {progress.unit}{left}"
