"""How the faces write settings, values, times and costs. Seconds and bytes inside, formatting here."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from shlex import quote
from typing import TYPE_CHECKING, Any

from ridgeline.campaign.ledger import profile_share
from ridgeline.campaign.verdict import goal_text
from ridgeline.records.outcome import Kind
from ridgeline.stats.wording import count
from ridgeline.study import yaml_tree
from ridgeline.study.lock import ControllerState, Presence

if TYPE_CHECKING:
    from ridgeline.campaign.preview import Stake
    from ridgeline.campaign.status import CampaignStatus
    from ridgeline.campaign.under_way import RunUnderWay

_MOVES_SHOWN = 3


def setting_text(point: Mapping[str, object]) -> str:
    return "  ".join(f"{name} {_value_text(value)}" for name, value in point.items() if value is not None)


def _value_text(value: object) -> str:
    if value == "":
        return "''"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def yaml_text(value: object) -> str:
    """A value as a study file says it: every digit, and quotes where a reader would take a word for something else."""
    if isinstance(value, str) and not (re.fullmatch(r"[\w./+-]+", value) and yaml_tree.resolve(value) == value):
        quoted = json.dumps(value, ensure_ascii=False)
        return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)
    return json.dumps(value) if isinstance(value, bool) else str(value)


def time_text(seconds: float) -> str:
    whole = int(seconds)
    if whole >= 3600:
        return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"
    return f"{whole // 60}:{whole % 60:02d}"


def run_time_text(seconds: float) -> str:
    """Short runs with a tenth: of a program that takes half a second, 0:00 says nothing."""
    return f"{seconds:.1f}s" if seconds < 10 else time_text(seconds)


def hours_text(node_hours: float) -> str:
    return f"{node_hours:.1f}" if node_hours >= 1 else f"{node_hours:.2g}"


def node_hours_text(node_hours: float) -> str:
    return count(node_hours, "node-hour", hours_text(node_hours))


def leftover_text(leftovers: Sequence[str]) -> str:
    """Processes that outlived their run; of many the first two."""
    more = f" and {len(leftovers) - 2} more" if len(leftovers) > 2 else ""
    return ", ".join(text[:60] for text in leftovers[:2]) + more


def outcome_text(outcomes: Mapping[str, int]) -> str:
    return "    ".join(f"{n} {Kind(kind).text}" for kind, n in outcomes.items() if n)


def cost_line(stake: Stake) -> str:
    parts = ", ".join(f"{part.name} {part.runs}" for part in stake.parts if part.runs)
    bound = "runs until the budget is spent" if stake.runs is None else f"at most {count(stake.runs, 'run')} ({parts})"
    hours = "no limit on node-hours" if stake.node_hours is None else f"at most {node_hours_text(stake.node_hours)}"
    return f"at stake: {bound}, {hours} (every run at its limit; faults of the site are extra)"


def budget_text(now: CampaignStatus, now_s: float | None = None) -> str:
    """What was spent; up to `now_s` while a controller is running."""
    history, budget = now.history, now.budget
    wall_s = history.wall_s if now_s is None else history.wall_now_s(now_s)
    hours = hours_text(history.node_hours)
    limit = count(budget.node_hours, "node-hour", f"{budget.node_hours:g}") if budget.node_hours else ""
    spent = f"{hours} of {limit}" if limit else node_hours_text(history.node_hours)
    if (share := profile_share(history)) is not None:
        spent += f" (profile: {share:.1%} of them)"
    if (price := now.study.site.service_units_per_node_hour) is not None:
        spent += f" ({history.node_hours * price:,.3g} service units)"
    wall = f"{time_text(wall_s)} of {time_text(budget.wall_s)}" if budget.wall_s else time_text(wall_s)
    if now.study.site.simulated:
        return f"{spent} of simulated time, {wall} of real time"
    return f"{spent}, {wall} elapsed"


def status_lines(now: CampaignStatus, now_s: float) -> Iterable[str]:
    study, history, answer = now.study, now.history, now.answer
    simulated = "   simulated: nothing is measured" if answer.simulated else ""
    paused = "   paused" if history.instructions.paused and not now.is_over else ""
    yield f"{study.name}   {now.progress.stage}{paused}   {count(len(history.runs), 'run')}{simulated}"
    if now.controller is not None and not now.is_over:
        yield f"  {controller_text(now.controller, str(history.root), now_s)}"
    alive = not now.is_over and (now.controller is None or now.controller.presence is not Presence.GONE)
    for run in now.under_way(now_s):
        state = clock_text(run, now_s) if alive else "was under way"
        yield f"  #{run.trial.number:<4} {state} ({run.ticket or 'not handed over'})"
        yield f"        {setting_text(run.trial.point)}"
        if run.last_line:
            yield f"        {run.last_line}"
    yield from (f"  {line}" for line in candidate_lines(now))
    yield f"  spent {budget_text(now)}"
    yield f"  runs  {outcome_text({kind.value: n for kind, n in history.outcomes.items()})}"
    moved = now.moved
    if len(moved) > _MOVES_SHOWN:
        yield f"  {count(len(moved) - _MOVES_SHOWN, 'earlier move')} after failures: see `why` in the report"
    for trial in moved[-_MOVES_SHOWN:]:
        yield f"  #{trial.number:<4} {trial.why}"
    yield f"  {answer.statement}"
    if answer.refuted:
        yield f"  {answer.refuted}"
    if answer.next_step:
        yield f"  to get a verdict: {answer.next_step}"
    if history.stopped is not None and history.verdict is None:
        reason = history.stopped.reason
        remedy = "" if "ridgeline resume" in reason else f"; continue with: ridgeline resume {quote(str(history.root))}"
        yield f"  stopped: {reason}{remedy}"


def candidate_lines(now: CampaignStatus) -> Iterable[str]:
    """What the answer is about, one line each: `best  302 -> 317 steps/s, 1.05x (95%: 1.03 to 1.07)   #9`."""
    reference, candidate = now.answer.reference, now.answer.candidate
    if reference.short and reference.value is not None:
        yield f"{reference.short:<5} {goal_text(now.study, now.history).value(reference.value)}"
    if candidate is not None and candidate.short:
        yield f"{candidate.short:<5} {now.answer.change}   #{candidate.trial}"


def clock_text(run: RunUnderWay, now_s: float) -> str:
    """`running 12:03 of about 1:00:00, ends about 14:32`, or `waiting 0:07: its nodes are busy (Resources)`."""
    if run.waits is not None:
        return f"waiting {time_text(run.elapsed_s)}: {run.waits or 'the batch system has not started it yet'}"
    text = f"running {time_text(run.elapsed_s)}"
    if run.expected_s is None or run.left_s is None:
        return text
    text += f" of about {run_time_text(run.expected_s)}"
    if run.left_s < 0:
        return f"{text}, longer than usual"
    end = time.strftime("%H:%M" if run.left_s >= 60 else "%H:%M:%S", time.localtime(now_s + run.left_s))
    return f"{text}, ends about {end}"


def controller_text(seen: ControllerState, folder: str, now_s: float) -> str:
    """Whether a controller is running on the folder, and what to do if none is."""
    resume = f"ridgeline resume {quote(folder)}"
    wrote = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seen.last_write_s))
    wrote = f"last wrote {wrote}, {time_text(max(0.0, now_s - seen.last_write_s))} ago"
    who = "" if seen.pid is None else f" (process {seen.pid})"
    if seen.presence is Presence.GONE:
        return f"not running: its controller{who} is gone, {wrote}; nothing is lost; continue with: {resume}"
    if seen.presence is Presence.HERE:
        return f"running on this machine{who} since {seen.since}"
    return f"run from {seen.host}{who}, {wrote}; if it is gone there, continue with: {resume}"


def progress_text(now: CampaignStatus) -> str:
    """How far the stage is: `search 12 of 24 trials, about 0:40 left`."""
    history, progress = now.history, now.progress
    typical_s = history.wall_s / len(history.runs) if history.runs else None
    left = f", about {time_text(progress.runs_left * typical_s)} left" if progress.runs_left and typical_s else ""
    limit = f" of {progress.of}" if progress.of else ""
    paused = "paused: " if history.instructions.paused else ""
    return f"{paused}{progress.stage} {progress.done}{limit} {progress.unit}{left}"


def answered_text(line: Mapping[str, Any]) -> str:
    """An instruction to a campaign and what became of it: `pause: refused: the campaign is over`."""
    return f"{instruction_text(line)}: {'refused: ' if line['refused'] else ''}{line['told']}"


def instruction_text(line: Mapping[str, Any]) -> str:
    """`extend by 5 trials`, `try x 3  y 2`, `cancel run 12`."""
    amounts: Iterable[str] = (
        *([count(line["trials"], "trial")] if "trials" in line else []),
        *([time_text(line["wall_s"])] if "wall_s" in line else []),
        *([count(line["node_hours"], "node-hour", f"{line['node_hours']:g}")] if "node_hours" in line else []),
    )
    more = ", ".join(amounts)
    run = f" run {line['run']}" if "run" in line else ""
    setting = f" {setting_text(line['point'])}" if "point" in line else ""
    return f"{line['act']}{run}{setting}{f' by {more}' if more else ''}"
