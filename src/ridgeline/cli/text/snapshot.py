"""How the dashboard words a campaign: the status of every face, cut into the pieces of a page."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import islice
from shlex import quote
from typing import Any

from ridgeline.campaign.status import CampaignStatus
from ridgeline.campaign.under_way import RunUnderWay
from ridgeline.campaign.verdict import goal_text
from ridgeline.cli.text.wording import (
    answered_text,
    clock_text,
    controller_text,
    hours_text,
    instruction_text,
    run_time_text,
    setting_text,
    time_text,
)
from ridgeline.executors.script import machines
from ridgeline.records.answer import OVER_LIMIT
from ridgeline.records.run import Run
from ridgeline.records.trial import Stage, Trial
from ridgeline.report.figures.failures import what_failed
from ridgeline.report.live.snapshot import EventLine, Gauge, RunningRun, Snapshot, State
from ridgeline.stats.wording import ratio_range, ratio_text
from ridgeline.study.instructions import Instruction
from ridgeline.study.lock import Presence
from ridgeline.study.state_files import last_lines, newest_log

_RUNS_SHOWN, _MOST_ANSWERS, _LOG_LINES, _RUNNING_SHOWN = 15, 6, 40, 8


def snapshot_of(now: CampaignStatus, now_s: float, waiting: Mapping[str, Instruction | str]) -> Snapshot:
    state = _state(now)
    open_ones = {name: left for name, left in waiting.items() if name not in now.history.instructions.answers}
    return Snapshot(
        name=now.study.name,
        question=now.study.question,
        state=state,
        state_text=_state_text(now, state, now_s),
        headline=_headline(now),
        gauges=list(_gauges(now, state, now_s)),
        running=[_running(now, run, state, now_s) for run in islice(now.under_way(now_s), _RUNNING_SHOWN)],
        runs=run_rows(now, _RUNS_SHOWN),
        answers=[
            EventLine(time.strftime("%H:%M:%S", time.localtime(line["at"])), answered_text(line), line["refused"])
            for line in islice(reversed(now.history.instructions.answers.values()), _MOST_ANSWERS)
        ],
        waiting=[_waits(left, now, state) for left in open_ones.values()],
        steerable=not now.is_over,
        gain=_gain(now),
        done=f"{now.progress.done} of {now.progress.of} {now.progress.unit}" if now.progress.of else "",
        share=1.0 if state is State.FINISHED else now.progress.done / now.progress.of if now.progress.of else None,
        updated=_age_text(now_s - last) if (last := _last_change_s(now)) else "",
        updated_s=last,
    )


def _gain(now: CampaignStatus) -> str:
    """The number to show in large; none where the answer is none: no difference, or a release that is slower."""
    answer = now.answer
    gain = None if answer.candidate is None else answer.candidate.gain
    shown = answer.confirmed or answer.worse or (answer.conclusion is None and gain is not None and gain.ratio > 1)
    if gain is None or answer.broken or not shown:
        return ""
    large = ratio_text(gain.ratio)
    if gain.low is not None and gain.high is not None:
        large, _ = ratio_range(gain.ratio, gain.low, gain.high)
    return f"{large} simulated" if answer.simulated else large


def _age_text(seconds: float) -> str:
    """'3 min ago'; the largest unit that fits."""
    for unit, unit_s in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= unit_s:
            return f"{int(seconds // unit_s)} {unit} ago"
    return "just now"


def _last_change_s(now: CampaignStatus) -> float:
    times = [run.ending.ended_s for run in now.history.runs.values()]
    return max([*times, *(run.planned_s for run in now.history.open_runs.values())], default=0.0)


def _state(now: CampaignStatus) -> State:
    if now.history.verdict is not None:
        return State.FINISHED
    if now.history.stopped is not None:
        return State.STOPPED
    if now.controller is not None and now.controller.presence is Presence.GONE:
        return State.GONE
    return State.PAUSED if now.history.instructions.paused else State.RUNNING


def _state_text(now: CampaignStatus, state: State, now_s: float) -> str:
    resume = f"ridgeline resume {quote(str(now.history.root))}"
    if state is State.FINISHED:
        return ""
    if state is State.STOPPED and now.history.stopped is not None:
        reason = str(now.history.stopped.reason)
        if what_failed(now.history, now.answer):  # the headline says how
            reason = "".join(reason.partition("What to do: ")[1:]) or reason
        return reason if "ridgeline resume" in reason else f"{reason}; continue with: {resume}"
    text = "" if now.controller is None else controller_text(now.controller, str(now.history.root), now_s)
    text = text.removeprefix("not running: ")  # the badge says it
    text = text.removeprefix("running ") if state is State.RUNNING else text
    return f"running jobs continue, nothing new is started; {text}" if state is State.PAUSED else text


def _headline(now: CampaignStatus) -> str:
    """The verdict; before there is one, the best so far."""
    answer = now.answer
    if answer.conclusion is None and answer.candidate is not None and answer.change:
        over = f"; {OVER_LIMIT}{' and '.join(map(str, answer.broken))}" if answer.broken else ""
        simulated = " (simulated)" if answer.simulated else ""
        return f"{answer.candidate.short or answer.candidate.label} so far: {answer.change}{simulated}{over}"
    if answer.conclusion is None and answer.stopped:
        return what_failed(now.history, answer) or answer.stopped.partition(";")[0]
    return answer.statement


def _gauges(now: CampaignStatus, state: State, now_s: float) -> Iterator[Gauge]:
    history, progress, budget = now.history, now.progress, now.budget
    share = progress.done / progress.of if progress.of else None
    limit = f" of {progress.of}" if progress.of else ""
    yield Gauge(progress.stage, f"{progress.done}{limit} {progress.unit}", share)
    running = state in (State.RUNNING, State.PAUSED) and history.openings
    wall_s = history.wall_now_s(now_s) if running else history.wall_s
    two_clocks = now.study.site.simulated
    yield Gauge(f"elapsed{', real time' * two_clocks}", *_of(time_text(wall_s), wall_s, budget.wall_s, time_text))
    node_hours = f"node-hours{', simulated' * two_clocks}"
    yield Gauge(node_hours, *_of(hours_text(history.node_hours), history.node_hours, budget.node_hours, hours_text))
    if state is State.RUNNING and history.openings and (end := expected_end(now, now_s)):
        yield Gauge("expected end", end)
    passed = sum(n for kind, n in history.outcomes.items() if kind.value == "ok")
    total = sum(history.outcomes.values())
    yield Gauge("runs that passed", f"{passed} of {total}", passed / total if total else None)


def _of(text: str, spent: float, limit: float | None, shown: Any) -> tuple[str, float | None]:
    return (f"{text} of {shown(limit)}", spent / limit) if limit else (text, None)


def expected_end(now: CampaignStatus, now_s: float) -> str:
    """`about 14:32, in 1:05:00`; the budget's own end where that comes first; empty where it can't be estimated."""
    history, limit_s = now.history, now.budget.wall_s
    ends: list[float] = []
    if now.progress.runs_left is not None and history.runs:
        ends.append(now.progress.runs_left * history.wall_now_s(now_s) / len(history.runs))
    if limit_s is not None:
        ends.append(max(0.0, limit_s - history.wall_now_s(now_s)))
    if not ends:
        return ""
    end_s = now_s + min(ends)
    same_day = time.localtime(end_s)[:3] == time.localtime(now_s)[:3]
    when = time.strftime("%H:%M" if same_day else "%a %d %b %H:%M", time.localtime(end_s))
    return f"about {when}, in {time_text(min(ends))}"


def _running(now: CampaignStatus, run: RunUnderWay, state: State, now_s: float) -> RunningRun:
    planned = next(each for each in now.history.open_runs.values() if each.trial == run.trial.number)
    log = newest_log(planned.folder)
    alive = state in (State.RUNNING, State.PAUSED)
    clock = clock_text(run, now_s) if alive else "was under way"
    can_cancel = run.trial.stage is Stage.SEARCH and now.question.kind == "search" and planned.ticket
    return RunningRun(
        planned.number if can_cancel else 0,
        f"#{run.trial.number} {now.question.called(run.trial)}, {clock}",
        setting_text(run.trial.point),
        _why_chosen(run.trial, now.history.blocks),
        "\n".join(last_lines(log, _LOG_LINES)),
        "" if log is None else log.relative_to(now.history.root).as_posix(),
        ", ".join(f"on {machine.host}" for machine in machines(planned.folder)),
    )


def _why_chosen(trial: Trial, blocks: int) -> str:
    """What a trial is for, in a sentence; its proposer's own reason where there is one."""
    if trial.why:
        return trial.why
    if trial.stage is Stage.CONFIRM and trial.block is not None:
        return f"block {trial.block + 1} of {blocks}: fresh runs of the best settings and the baseline, interleaved"
    return {
        Stage.BASELINE: "the setting that all others are compared with",
        Stage.SENTINEL: "the baseline once more, to see whether the machine has changed",
        Stage.WARM_UP: "to bring the node to work before a block; it does not count",
        Stage.PROFILE: "under the profiler; compared with nothing",
    }.get(trial.stage, f"proposed by {trial.proposer}")


def run_rows(now: CampaignStatus, count: int) -> list[tuple[str, ...]]:
    """The latest runs, newest first, below a head; of each setting what differs from the baseline."""
    runs = islice(reversed(now.history.runs.values()), count)
    return [("trial", "for", now.study.goal.metric, "took", "setting"), *(_row(now, run) for run in runs)]


def _row(now: CampaignStatus, run: Run) -> tuple[str, ...]:
    trial = now.history.trials[run.trial]
    assert run.outcome is not None
    if run.outcome.kind == "ok":
        result = goal_text(now.study, now.history).value(run.metrics[now.study.goal.metric])
    else:
        result = run.outcome.kind.text
    changed = {name: value for name, value in trial.point.items() if now.study.baseline.get(name) != value}
    setting = setting_text(changed) or now.question.reference
    return f"#{run.trial}", now.question.called(trial), result, run_time_text(run.ending.duration_s), setting


def _waits(left: Instruction | str, now: CampaignStatus, state: State) -> str:
    text = left if isinstance(left, str) else instruction_text(left.as_line())
    resume = f"ridgeline resume {quote(str(now.history.root))}"
    if state in (State.GONE, State.STOPPED, State.FINISHED):
        return f"{text}: waiting: no controller is running on this folder; it is answered after: {resume}"
    return f"{text}: waits for the controller"
