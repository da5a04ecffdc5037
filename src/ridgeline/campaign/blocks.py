"""The blocks of a confirmation: what runs in them, where, and which of them were broken.

A block compares settings on one machine in one go. A block that a stop cut in two, or of which a run landed on another
machine, compares machines or hours instead: it is set aside and run again as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from ridgeline.records.machine import Machine, machine_names, same_place
from ridgeline.records.outcome import Kind
from ridgeline.records.run import Run
from ridgeline.records.space import Point, point_key
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.store.events import SetAside
from ridgeline.store.history import History

STOPPED = "the campaign was stopped in the middle of it"
MOST_MOVES = 2  # times that a block is run again for landing elsewhere; then the site will not keep it together


def block_order(study: Study, candidates: Sequence[Point], block: int) -> list[Point]:
    """A B B A; or, with one run of each in a block, A B and in the next block B A."""
    forward = [study.baseline, *candidates]
    if study.confirm.repeats == 1:
        return forward if block % 2 == 0 else forward[::-1]
    return [*forward, *reversed(forward)]


def trials_of(history: History, block: int) -> list[Trial]:
    """The trials that count for a block, in the order they were started."""
    return [
        trial
        for trial in history.trials.values()
        if trial.stage is Stage.CONFIRM and trial.block == block and trial.number not in history.uncounted
    ]


def next_in_block(study: Study, history: History, block: int) -> Point | None:
    """The next setting to run in this block, or None when the block is complete."""
    started = Counter(trial.key for trial in trials_of(history, block))
    failed = disqualified(study, history)
    for point in block_order(study, history.candidates_of(block), block):
        key = point_key(point)
        if key in failed:
            continue
        if not started[key]:
            return point
        started[key] -= 1
    return None


def disqualified(study: Study, history: History) -> dict[str, str]:
    """Candidates that failed in the confirmation: a setting that works only sometimes is not the answer.

    The baseline stays, whatever happens to it: there is nothing else to compare with. A run that is unverified only
    because its block fell apart says nothing about the setting, nor does one beside a baseline that failed as well.
    """
    failed: dict[str, str] = {}
    base = point_key(study.baseline)
    troubled = _troubled(history, base)
    for trial in history.trials.values():
        candidate = trial.stage is Stage.CONFIRM and trial.key != base
        if (trial.block, trial.number in history.uncounted) in troubled:
            continue
        run = history.final_run(trial) if candidate else None
        if run is None or run.outcome is None:
            continue
        if run.outcome.kind.caused_by_setting or (
            run.outcome.kind is Kind.UNVERIFIED and _stands(study, history, trial)
        ):
            failed.setdefault(trial.key, str(run.outcome))
    return failed


def _troubled(history: History, base: str) -> set[tuple[int | None, bool]]:
    """Blocks, and whether set aside, in which the baseline that had passed failed: their machine was not as it was."""
    of_base = (t for t in history.trials.values() if t.stage is Stage.CONFIRM and t.key == base)
    runs = ((t, run.outcome) for t in of_base for run in history.runs_of.get(t.number, ()))
    return {(t.block, t.number in history.uncounted) for t, outcome in runs if outcome is not None and outcome.was}


def _stands(study: Study, history: History, trial: Trial) -> bool:
    counts = trial.number not in history.uncounted
    return counts and trial.block is not None and not moved(study, history, trial.block)


def nodes_of_block(history: History, block: int, width: int) -> tuple[str, ...]:
    """Where the runs of a block on so many nodes go: where the first such run was, or a part of where a wider one was.

    Empty where all that ran so far was narrower: nobody can ask for some nodes by name and leave the others open.
    """
    ran = [run.ending.nodes for run in _runs(history, block)]
    wide_enough = [nodes for nodes in ran if len(nodes) >= width]
    return min(wide_enough, key=len)[:width] if wide_enough else ()


def broken(study: Study, history: History, block: int, unfinished: Collection[int]) -> SetAside | None:
    """The block as it has to be set aside, if it has to. `unfinished` are trials that must be run again."""
    reason = _why_broken(study, history, block, unfinished)
    if not reason:
        return None
    return SetAside(block, tuple(trial.number for trial in trials_of(history, block)), reason)


def _why_broken(study: Study, history: History, block: int, unfinished: Collection[int]) -> str:
    runs = _runs(history, block)
    times_moved = sum(aside.block == block and aside.reason != STOPPED for aside in history.set_aside)
    if times_moved < MOST_MOVES and (reason := moved(study, history, block)):
        return reason
    openings = {history.opening_of[run.number] for run in runs}
    trials = trials_of(history, block)
    if runs and (
        next_in_block(study, history, block) is not None
        or any(t.number in unfinished or history.final_run(t) is None for t in trials)
    ):
        openings.add(history.openings)
    return STOPPED if len(openings) > 1 else ""


def moved(study: Study, history: History, block: int) -> str:
    """What says that the runs of a block were not all in the same place; empty where they were, or nobody could ask.

    On a site that places jobs as it likes, runs of a block are on any nodes, and their differences are in the interval.
    """
    runs = _runs(history, block)
    if not runs or (study.site.nodes > 1 and not any(run.number in history.pinned_to for run in runs)):
        return ""
    first_of: dict[int, Run] = {}  # by how many nodes it ran on: settings of one block may differ in that
    for run in runs:
        first = first_of.setdefault(len(run.ending.nodes), run)
        if not same_place(first.ending.nodes, first.ending.machines, run.ending.nodes, run.ending.machines):
            began, later = (", ".join(nodes) or "?" for nodes in places_of([first, run]).values())
            return f"it began on {began}, and a run of it was on {later}"
    return ""


def places_of(runs: Sequence[Run]) -> dict[int, tuple[str, ...]]:
    """Where each run was, by its number: its nodes, with what else it takes where machines share a name."""
    called = machine_names(machine for run in runs for machine in run.ending.machines)
    return {run.number: _places(run, called) for run in runs}


def _places(run: Run, called: Mapping[Machine, str]) -> tuple[str, ...]:
    by_host = {machine.host.partition(".")[0]: called[machine] for machine in run.ending.machines}
    if len(run.ending.nodes) < 2 and by_host:
        return tuple(by_host.values())
    return tuple(by_host.get(node.partition(".")[0], node) for node in run.ending.nodes)


def _runs(history: History, block: int) -> list[Run]:
    """The runs that count in a block, first to last; those that fell to the site or to a stop do not."""
    runs = [history.final_run(trial) for trial in trials_of(history, block)]
    return [
        run
        for run in runs
        if run is not None
        and run.outcome is not None
        and run.outcome.kind is not Kind.CANCELLED
        and not run.outcome.kind.retryable
    ]
