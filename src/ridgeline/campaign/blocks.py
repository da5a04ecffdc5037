"""The blocks of a confirmation: what runs in them, where, and which of them were broken.

A block compares settings on one machine in one go. A block that a stop cut in two, or of which a run landed on another
machine, compares machines or hours instead: it is set aside and run again as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from ridgeline.records.outcome import Kind
from ridgeline.records.run import Machine, Run, machine_names, same_place, short_names
from ridgeline.records.space import Point, point_key
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.stats.compare import order_of_block
from ridgeline.study.codec import SetAside
from ridgeline.study.history import History

STOPPED = "the study was stopped in the middle of it"
_IDLE_S = 120.0  # without a run, after which clocks are down and caches may have been taken over
MOST_MOVES = 2  # times that a block is run again for landing elsewhere; then the site will not keep it together


def block_order(study: Study, history: History, block: int) -> list[Point]:
    """Rounds of every setting, each in an order of its own, drawn from the study's seed and the block's number."""
    settings = [study.baseline, *history.candidates_of(block)]
    order = order_of_block(len(settings), block, study.confirm.repeats, history.order_seed, history.protocol)
    return [settings[number] for number in order]


def trials_of(history: History, block: int, stage: Stage = Stage.CONFIRM) -> list[Trial]:
    """The trials that count for a block, in the order they were started."""
    return [
        trial
        for trial in history.trials.values()
        if trial.stage is stage and trial.block == block and trial.number not in history.uncounted
    ]


def why_warm_up(study: Study, history: History, block: int, now_s: float) -> str:
    """Why this block begins with a run that does not count; empty where it need not, or has had one.

    On a site of several nodes a block begins wherever the site puts it, and nobody knows what ran there before.
    """
    if history.protocol < 2 or study.confirm.warmup == "never" or trials_of(history, block):
        return ""
    done = [history.final_run(trial) for trial in trials_of(history, block, Stage.WARM_UP)]
    if any(run is not None and history.opening_of[run.number] == history.openings for run in done):
        return ""
    if study.confirm.warmup == "always":
        return "the study asks for it before every block"
    if study.site.nodes > 1:
        return "what ran there before is unknown"
    if history.busy_until_s is None:
        return "nothing has run since the campaign was taken up or a program was built"
    idle_s = now_s - history.busy_until_s
    return f"nothing has run for {idle_s:.0f} s" if idle_s > _IDLE_S else ""


def next_in_block(study: Study, history: History, block: int) -> Point | None:
    """The next setting to run in this block, or None when the block is complete."""
    started = Counter(trial.key for trial in trials_of(history, block))
    failed = disqualified(study, history)
    for point in block_order(study, history, block):
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


def known_nodes(study: Study, history: History) -> int:
    """How many nodes the site has, as far as anybody knows: a batch system may have more than its site file says, and
    then runs were there."""
    if study.site.batch == "local":
        return study.site.nodes
    runs = (run for trial in history.trials.values() for run in history.runs_of.get(trial.number, ()))
    return max(study.site.nodes, len({name for run in runs for name in short_names(run.ending.nodes)}))


def nodes_of_block(history: History, block: int, width: int) -> tuple[str, ...]:
    """Where the runs of a block on so many nodes go: where the first such run was, or a part of where a wider one was.

    Empty where all that ran so far was narrower: nobody can ask for some nodes by name and leave the others open. A
    block whose runs are still to come goes where its warm-up was.
    """
    ran = [run.ending.nodes for run in _runs(history, block) or _runs(history, block, Stage.WARM_UP)[-1:]]
    wide_enough = [nodes for nodes in ran if len(nodes) >= width]
    return min(wide_enough, key=len)[:width] if wide_enough else ()


def nodes_had_before(history: History, block: int, width: int, avoided: Collection[str] = ()) -> tuple[str, ...]:
    """Nodes that had more of the blocks before this one than others of the campaign had, where enough others are left
    for a job of this width. Only nodes that were seen count as others: whether there are more, the site alone knows."""
    runs = (run for trial in history.trials.values() if (run := history.final_run(trial)) is not None)
    had = dict.fromkeys(sorted({node for run in runs for node in run.ending.nodes} - {*avoided}), 0)
    for number in range(block):
        for node in {node for run in _runs(history, number) for node in run.ending.nodes} & had.keys():
            had[node] += 1
    most = next((most for most in range(block) if sum(times <= most for times in had.values()) >= width), block)
    return tuple(node for node, times in had.items() if times > most)


def broken(study: Study, history: History, block: int, unfinished: Collection[int]) -> SetAside | None:
    """The block as it has to be set aside, if it has to. `unfinished` are trials that must be run again."""
    reason = _why_broken(study, history, block, unfinished)
    if not reason:
        return None
    trials = [*trials_of(history, block, Stage.WARM_UP), *trials_of(history, block)]
    return SetAside(block, tuple(trial.number for trial in trials), reason)


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


def unfinished_blocks(study: Study, history: History) -> list[int]:
    """Blocks that were begun and have runs to come: a campaign that is taken up runs them again as a whole."""
    return [block for block in range(history.blocks_begun) if next_in_block(study, history, block) is not None]


def cut_blocks(history: History) -> list[int]:
    """Blocks that a stop cut in two and that were not run again as a whole: earlier releases went on in the middle."""
    found = []
    for block in range(history.blocks):
        if len({history.opening_of[run.number] for run in _runs(history, block)}) > 1:
            found.append(block)
    return found


def moved(study: Study, history: History, block: int) -> str:
    """What says that the runs of a block were not all in the same place; empty where they were, or nobody could ask.

    On a site that places jobs as it likes, runs of a block are on any nodes, and their differences are in the interval.
    Before protocol 3 nobody asked either where the site file said nothing of several nodes.
    """
    runs = _runs(history, block)
    asks = study.site.nodes > 1 or (study.site.batch != "local" and history.protocol > 2)
    if not runs or (asks and not any(run.number in history.pinned_to for run in runs)):
        return ""
    first_of: dict[int, Run] = {}  # by how many nodes it ran on: settings of one block may differ in that
    for run in runs:
        first = first_of.setdefault(len(run.ending.nodes), run)
        if not same_place(first.ending.nodes, first.ending.machines, run.ending.nodes, run.ending.machines):
            began, later = (", ".join(nodes) or "?" for nodes in places_of([first, run]).values())
            return f"it began on {began}, and a run of it was on {later}"
    return ""


def places_of(runs: Sequence[Run]) -> dict[int, tuple[str, ...]]:
    """Where each run was, by its number: its nodes as the site calls them, with what else it takes where machines share
    a name."""
    machines = {run.number: _machines(run) for run in runs}
    called = machine_names(machine for found in machines.values() for machine in found)
    return {number: tuple(called[machine] for machine in found) for number, found in machines.items()}


def _machines(run: Run) -> tuple[Machine, ...]:
    """The machine of each node, under the node's name: a program may be told another one, the same on all of them."""
    nodes, known = run.ending.nodes, run.ending.machines
    if not nodes:
        return known
    if len(nodes) == 1:
        return (replace(known[0], host=_one_name(nodes[0], known[0].host)),) if known else (Machine(nodes[0]),)
    by_host = {machine.host.partition(".")[0]: machine for machine in known}
    return tuple(by_host.get(node.partition(".")[0], Machine(node)) for node in nodes)


def _one_name(node: str, host: str) -> str:
    """With and without its domain it is the same name; then the one that the machine itself has."""
    return host if node.partition(".")[0] == host.partition(".")[0] else node


def _runs(history: History, block: int, stage: Stage = Stage.CONFIRM) -> list[Run]:
    """The runs that count in a block, first to last; those that fell to the site or to a stop do not."""
    runs = [history.final_run(trial) for trial in trials_of(history, block, stage)]
    return [
        run
        for run in runs
        if run is not None
        and run.outcome is not None
        and run.outcome.kind is not Kind.CANCELLED
        and not run.outcome.kind.retryable
    ]
