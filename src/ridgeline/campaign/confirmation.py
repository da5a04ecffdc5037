"""Confirm: fresh, interleaved, node-blocked runs of the best settings against the baseline.

A block compares settings on one machine in one go. A block that a stop cut in two, or of which a run landed on another
machine, compares machines or hours instead: it is set aside and run again as a whole.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from textwrap import shorten
from typing import Any

from ridgeline.campaign.ledger import Reserve
from ridgeline.campaign.scores import better_than_baseline, looked_like, ranking
from ridgeline.records.answer import Conclusion
from ridgeline.records.exhibit import EQUIVALENCE, ComparedSetting, TextTable, changes
from ridgeline.records.outcome import Kind
from ridgeline.records.run import Machine, Run, machine_names, same_place, short_names
from ridgeline.records.space import Point, point_key
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.stats.compare import PROTOCOL, confirm, first_run_effect, nearest, order_of_block, where_they_ran
from ridgeline.stats.equivalence import Equivalence, equivalence, looks, share_left
from ridgeline.stats.verdict import FEWEST_BLOCKS, Block, Comparison, Confirmation, Verdict
from ridgeline.stats.wording import count, percent
from ridgeline.study.codec import KeptVerdict, SetAside, VerdictLine
from ridgeline.study.history import History

FIRST_LOOK, LATER_LOOKS = 0.8, 0.75  # of the error that is left, what the first verdict and each later one may spend
STOPPED = "the study was stopped in the middle of it"
_IDLE_S = 120.0  # without a run, after which clocks are down and caches may have been taken over
MOST_MOVES = 2  # times that a block is run again for landing elsewhere; then the site will not keep it together
_LONGEST_REASON = 120  # characters of a line from a log that a headline shows


@dataclass(frozen=True, slots=True)
class ConfirmationPlan:
    """`search_ended` says why no more search trials are started, and what more of them could bring."""

    candidates: tuple[Point, ...]
    blocks: int
    search_ended: str = ""


def runs_needed(study: Study, candidates: int, blocks: int, *, warm_ups: bool = True) -> int:
    """Every block runs the baseline and each candidate `repeats` times, after a warm-up where one is to be expected."""
    expected = warm_ups and warms_up(study)
    return (study.confirm.repeats * (candidates + 1) + expected) * blocks if candidates else 0


def warms_up(study: Study) -> bool:
    """Whether every block is to be expected to begin with a run that does not count."""
    return study.confirm.warmup == "always" or (study.confirm.warmup == "auto" and study.site.nodes > 1)


def reserve(study: Study) -> Reserve:
    stage = study.confirm
    if stage.top == 0:
        return Reserve()
    least = min(stage.blocks, FEWEST_BLOCKS)
    everything = runs_needed(study, stage.top, stage.blocks)
    return Reserve(everything, runs_needed(study, 1, least), stage.blocks, max(1, least))


def choose(
    study: Study, history: History, affords: Callable[[Sequence[Point], int], bool], *, even_if_worse: bool = False
) -> ConfirmationPlan:
    """`affords` says whether so many blocks of the baseline and these settings fit into the budget.

    The top settings of the search, as many as can be afforded; first fewer settings, then fewer blocks.

    Settings that looked no better than the baseline are left out, unless they were asked for: a look that is noisy may
    hide a gain, but among many settings it has hidden none that is worth the nodes.
    """
    chosen = [point for point, _ in ranking(study, history)] if even_if_worse else better_than_baseline(study, history)
    failed = disqualified(study, history)  # in a confirmation before an extension
    top, blocks = study.confirm.top, study.confirm.blocks
    if history.extensions and (asked := history.extensions[-1].blocks):  # where nothing was compared before
        top, blocks = max(1, top), asked
    points = tuple([point for point in chosen if point_key(point) not in failed][:top])
    # settings that were compared before an extension: their blocks stand, also where no fresh ones are run
    earlier = next((each.candidates for each in reversed(history.confirmations) if each.candidates), ())
    if not points:
        return ConfirmationPlan(earlier, 0)
    while len(points) > 1 and not affords(points, blocks):
        points = points[:-1]
    while blocks > FEWEST_BLOCKS and not affords(points, blocks):
        blocks -= 1
    if not affords(points, blocks):
        return ConfirmationPlan(earlier, 0)
    return ConfirmationPlan(points, blocks)


# the blocks: what runs in them, where, and which of them were broken


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
        unverified = run.outcome.kind is Kind.UNVERIFIED and trial.number not in history.uncounted
        stands = unverified and trial.block is not None and not moved(study, history, trial.block)
        if run.outcome.kind.caused_by_setting or stands:
            failed.setdefault(trial.key, str(run.outcome))
    return failed


def _troubled(history: History, base: str) -> set[tuple[int | None, bool]]:
    """Blocks, and whether set aside, in which the baseline that had passed failed: their machine was not as it was."""
    of_base = (t for t in history.trials.values() if t.stage is Stage.CONFIRM and t.key == base)
    runs = ((t, run.outcome) for t in of_base for run in history.runs_of.get(t.number, ()))
    return {(t.block, t.number in history.uncounted) for t, outcome in runs if outcome is not None and outcome.was}


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
    times_moved = sum(aside.block == block and aside.reason != STOPPED for aside in history.set_aside)
    reason = moved(study, history, block) if times_moved < MOST_MOVES else ""
    trials = trials_of(history, block)
    openings = {history.opening_of[run.number] for run in _runs(history, block)}
    to_come = next_in_block(study, history, block) is not None
    if openings and (to_come or any(t.number in unfinished or history.final_run(t) is None for t in trials)):
        openings.add(history.openings)
    if not reason and len(openings) < 2:
        return None
    numbers = tuple(trial.number for trial in (*trials_of(history, block, Stage.WARM_UP), *trials))
    return SetAside(block, numbers, reason or STOPPED)


def unfinished_blocks(study: Study, history: History) -> list[int]:
    """Blocks that were begun and have runs to come: a campaign that is taken up runs them again as a whole."""
    return [block for block in range(history.blocks_begun) if next_in_block(study, history, block) is not None]


def cut_blocks(history: History) -> list[int]:
    """Blocks that a stop cut in two and that were not run again as a whole: earlier releases went on in the middle."""
    openings = [{history.opening_of[run.number] for run in _runs(history, block)} for block in range(history.blocks)]
    return [block for block, seen in enumerate(openings) if len(seen) > 1]


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


# what the blocks measured, and what that says


def blocks_so_far(study: Study, history: History) -> list[Block]:
    """The blocks that count: not those whose runs, after all repeats, were still in several places."""
    base = point_key(study.baseline)
    failed = disqualified(study, history)
    left_out = {block for block in range(history.blocks) if moved(study, history, block)} | _of_other_jobs(history)
    values: dict[int, dict[str, list[float]]] = {}
    runs_in: dict[int, Run] = {}
    order: dict[int, list[str | None]] = {}
    for trial, run in history.ok_runs(Stage.CONFIRM):
        if trial.block is not None and trial.block not in left_out:
            runs_in.setdefault(trial.block, run)
            block = values.setdefault(trial.block, {})
            block.setdefault(trial.key, []).append(run.metrics[study.goal.metric])
            order.setdefault(trial.block, []).append(None if trial.key == base else trial.key)
    places = places_of([*runs_in.values()])
    compared = {key for runs in values.values() for key in runs}
    for number, runs in values.items():
        for key in map(point_key, history.candidates_of(number)):
            if key in compared:
                runs.setdefault(key, [])  # it was to run there, and none of its runs passed
    return [
        Block(
            number,
            places[runs_in[number].number],
            runs.get(base, ()),
            {key: values for key, values in runs.items() if key != base and key not in failed},
            _opening(history, number, runs),
            tuple(order[number]) if history.protocol > 2 else (),  # earlier ones were palindromes: drift cancels
        )
        for number, runs in sorted(values.items())
    ]


def _of_other_jobs(history: History) -> set[int]:
    """Blocks from before an extension whose jobs asked the site for something else than those of today: the study's
    `job` may be changed before a resume, and then they compare something else."""
    runs = [(trial, run) for trial, run in history.ok_runs(Stage.CONFIRM) if trial.block is not None]
    asked = {trial.key: run.resources for trial, run in runs}  # as the last run did
    first = history.first_block
    return {t.block for t, run in runs if t.block is not None and t.block < first and run.resources != asked[t.key]}


def _opening(history: History, block: int, values: Mapping[str, Sequence[float]]) -> tuple[float, float] | None:
    """The block's first run and the last one of the same setting, where both passed."""
    found = values.get(trials_of(history, block)[0].key, ())
    return (found[0], found[1]) if len(found) == 2 else None


def judged_blocks(
    study: Study, history: History, blocks: Sequence[Block], part: float = 1.0, *, today: bool = False
) -> Confirmation:
    """The verdict of these blocks, by the protocol that the campaign began with: what a journal says can be derived
    again from it, whatever later versions do better.

    1: the baseline begins every block; blocks count as independent wherever they were; each look has its own level.
    2: settings begin in turn; blocks on the same node share what is gained there; all looks share the error.
    3: rounds are drawn; where blocks share nodes each node is one number; the order must show the verdict as well.
    `part` of this verdict's share is for a look on the way to it. `today`: by the last of these all the same, except
    that an order which nobody drew is not asked what it shows.
    """
    if history.protocol < 2 and not today:
        return confirm(blocks, level_after(study.confirm.level, history), study.goal.direction, protocol=1)
    share = error_share(history) * part
    protocol, drawn = PROTOCOL if today else history.protocol, history.protocol > 2
    return confirm(blocks, study.confirm.level, study.goal.direction, share=share, protocol=protocol, drawn=drawn)


def with_circumstances(headline: str, study: Study, history: History, found: ConfirmationVerdict) -> str:
    """The headline, and that the campaign was extended or that first runs of its blocks were unlike the others."""
    text = _with_extension(headline, history, found)
    if history.protocol < 2:
        return text
    blocks = blocks_so_far(study, history)
    alone = _few_alike(blocks, found.spoken_of) or _one_place_of_many(known_nodes(study, history), blocks)
    if alone not in text and found.comparisons:
        text += alone
    effect = first_run_effect(blocks, study.confirm.level, study.goal.direction)
    if effect is None or str(effect) in text:
        return text
    order = "settings begin blocks in turn" if history.protocol == 2 else "which setting it meets is drawn"
    return f"{text}; {effect}: {order}, so none gains by it, but the interval is wider"


def _one_place_of_many(nodes: int, blocks: Sequence[Block]) -> str:
    """Where a site has other nodes than the one that all blocks were on: nothing is known of those."""
    places = {frozenset(block.nodes) for block in blocks}
    if nodes < 2 or len(places) != 1 or not (names := sorted(*places)) or len(names) == nodes:
        return ""
    return f"; it holds for {', '.join(names)} alone: nothing was compared on other nodes"


def _few_alike(blocks: Sequence[Block], spoken_of: Comparison | None) -> str:
    """Which nodes a verdict is about that is about few."""
    if spoken_of is None or not spoken_of.only_here:
        return ""
    names, needed = sorted({name for block in blocks for name in block.nodes}), spoken_of.nodes_needed
    more = f"about {needed} nodes, a block on each, would show it for others too"
    others = more if needed else "of others nothing is shown"
    return f"; it holds for {', '.join(names[:-1])} and {names[-1]} alone, which differ little: {others}"


@dataclass(frozen=True, slots=True)
class _NearestTried:
    """The best setting of a search in which none looked better than the baseline; `ratio` is above 1 for better."""

    point: Point
    ratio: float | None


@dataclass(frozen=True, slots=True)
class ConfirmationVerdict(KeptVerdict):
    """What fresh, interleaved runs showed; `winner` is shown to be better than what it was compared with.

    `machines` are those of the blocks that count, `repeated` the blocks that had to be run again, and why.
    `nearest_tried` is there where nothing was compared because nothing looked better: the baseline is to be kept.
    """

    conclusion: str  # confirmed, no-difference, keep-baseline, unconfirmed, nothing-passed; of a comparison also worse
    headline: str
    winner: Point | None = None
    comparisons: tuple[Comparison, ...] = ()
    disqualified: Mapping[str, str] = field(default_factory=dict)
    machines: tuple[str, ...] = ()
    repeated: tuple[SetAside, ...] = ()
    nearest_tried: _NearestTried | None = None
    equivalence: Equivalence | None = None  # where the study asks for it

    @property
    def recommended(self) -> Point | None:
        return self.winner

    @property
    def spoken_of(self) -> Comparison | None:
        """The comparison whose interval the headline shows."""
        if self.winner is not None:
            return next((c for c in self.comparisons if c.candidate == point_key(self.winner)), None)
        return nearest(self.comparisons)

    def details(self) -> dict[str, Any]:
        always = ("winner", "disqualified") if self.comparisons else ()
        return {name: value for name, value in KeptVerdict.details(self).items() if value or name in always}


def verdict(study: Study, history: History) -> ConfirmationVerdict:
    """What the search and its confirmation found."""
    if not history.count(Stage.SEARCH):
        headline = "nothing was tried: the budget has no room beyond the baseline"
        return ConfirmationVerdict(Conclusion.UNCONFIRMED, headline)
    ranked = ranking(study, history)
    if not ranked:
        headline = f"no setting but the baseline passed ({_outcomes_of_search(history)})"
        return ConfirmationVerdict(Conclusion.NOTHING_PASSED, headline)
    if not history.candidates and not better_than_baseline(study, history):
        tried = _NearestTried(ranked[0][0], looked_like(study, history, ranked[0][1]))
        headline = "keep the baseline: no setting looked better in the search"
        return ConfirmationVerdict(Conclusion.KEEP_BASELINE, headline, nearest_tried=tried)
    if not history.candidates:
        none_asked = "the study asks for no confirmation"
        why = "the budget left no room for interleaved runs" if study.confirm.top else none_asked
        return ConfirmationVerdict(Conclusion.UNCONFIRMED, f"not confirmed: {why}")
    result, same = judged_blocks(study, history, blocks_so_far(study, history)), None
    if study.equivalent_within is not None:
        result, same = _last_look(study, history, study.equivalent_within)
    failed = disqualified(study, history)
    if not result.comparisons:
        if all(point_key(p) in failed for p in history.candidates):
            headline = f"what passed in the search failed when it was run again: {next(iter(failed.values()))}"
            return ConfirmationVerdict(Conclusion.NOTHING_PASSED, headline, disqualified=failed)
        return ConfirmationVerdict(Conclusion.UNCONFIRMED, result.headline, disqualified=failed)
    compared = {point_key(p): p for each in history.confirmations for p in each.candidates}
    found = _judged(result, tuple(compared.values()), failed)
    return found if same is None else _with_equivalence(study, history, found, same)


def _judged(result: Confirmation, candidates: Sequence[Point], failed: Mapping[str, str]) -> ConfirmationVerdict:
    winner = next((p for p in candidates if point_key(p) == result.winner), None)
    enough = any(c.blocks >= FEWEST_BLOCKS for c in result.comparisons.values())
    all_worse = all(c.verdict is Verdict.WORSE for c in result.comparisons.values())
    without_winner = (
        Conclusion.KEEP_BASELINE if all_worse else Conclusion.NO_DIFFERENCE if enough else Conclusion.UNCONFIRMED
    )
    conclusion = Conclusion.CONFIRMED if winner is not None else without_winner
    return ConfirmationVerdict(conclusion, result.headline, winner, tuple(result.comparisons.values()), failed)


# equivalence, where the study asks for it


def may_stop_before(history: History, block: int) -> bool:
    """Whether the campaign may look, before this block begins, if each setting is decided already."""
    planned = history.blocks - history.first_block
    fresh = not trials_of(history, block)
    return fresh and history.looks == 1 and block - history.first_block in looks(planned)


def decided(study: Study, history: History) -> bool:
    """Whether after the blocks so far each setting is equivalent to the baseline, or shown to be better or worse."""
    done = history.blocks_begun - history.first_block
    part = looks(history.blocks - history.first_block).get(done) if history.looks == 1 else None
    if part is None or study.equivalent_within is None:
        return False
    return _each_decided(*_look(study, history, study.equivalent_within, part))


def _look(study: Study, history: History, margin: float, part: float) -> tuple[Confirmation, Equivalence]:
    blocks = blocks_so_far(study, history)
    share = error_share(history) * part
    protocol = max(2, history.protocol)  # which brought the question with it
    same = equivalence(blocks, margin, study.confirm.level, study.goal.direction, share=share, protocol=protocol)
    return judged_blocks(study, history, blocks, part), same


def _last_look(study: Study, history: History, margin: float) -> tuple[Confirmation, Equivalence]:
    """The look on which the campaign stopped; else one that may spend all that earlier ones left."""
    if history.looks > 1:
        return _look(study, history, margin, 1.0)
    planned, done = history.blocks - history.first_block, history.blocks_begun - history.first_block
    if (part := looks(planned).get(done)) is not None:
        found = _look(study, history, margin, part)
        if _each_decided(*found):
            return found
    return _look(study, history, margin, share_left(planned, done))


def _each_decided(result: Confirmation, same: Equivalence) -> bool:
    return bool(same.tests) and all(
        test.decision == "equivalent" or _differs(result.comparisons.get(test.candidate)) for test in same.tests
    )


def _differs(found: Comparison | None) -> bool:
    return found is not None and found.verdict in (Verdict.BETTER, Verdict.WORSE)


def _with_equivalence(
    study: Study, history: History, found: ConfirmationVerdict, same: Equivalence
) -> ConfirmationVerdict:
    found = replace(found, equivalence=same)
    if found.winner is not None:
        return found
    conclusion = Conclusion.EQUIVALENT if same.holds else found.conclusion
    where = where_they_ran(blocks_so_far(study, history), history.protocol)
    most = max((test.blocks for test in same.tests), default=0)
    rests_on = f"{count(most, 'block')}{' ' if where else ''}{where}"
    cost = count(history.node_hours, "node-hour", f"{history.node_hours:.3g}")
    return replace(found, conclusion=conclusion, headline=f"{_equivalence_text(found, same)}; {rests_on}, {cost}")


def _equivalence_text(found: ConfirmationVerdict, same: Equivalence) -> str:
    number, margin = len(same.tests), f"{same.margin * 100:g}%"
    if same.holds:
        who = "the setting does not differ" if number == 1 else f"none of these {number} settings differs"
        return f"{who} from the baseline by more than {margin} ({same.correction})"
    worse = {c.candidate for c in found.comparisons if c.verdict is Verdict.WORSE}
    within = sum(test.decision == "equivalent" for test in same.tests)
    parts = [f"{within} of {count(number, 'setting')} within {margin} of the baseline ({same.correction})"]
    outside = [test for test in same.undecided if test.candidate in worse]
    if outside:
        parts.append(f"{len(outside)} worse")
    left = [test for test in same.undecided if test.candidate not in worse]
    if left:
        parts.append(f"{len(left)} undecided")
        needed = [test.blocks_needed for test in left]
        if all(needed):
            parts[-1] += f" (about {max(n for n in needed if n)} blocks would decide)"
    return ", ".join(parts)


def equivalence_table(study: Study, history: History, found: ConfirmationVerdict) -> TextTable:
    """Each setting with its estimate and what was decided; then those that no blocks stand behind, and why."""
    assert found.equivalence is not None
    same = found.equivalence
    differs = {c.candidate: c.verdict.value for c in found.comparisons if _differs(c)}
    rows = []
    for test in sorted(same.tests, key=lambda test: (test.decision, test.p_value)):
        says = f"within {same.margin * 100:g}%" if test.decision == "equivalent" else "undecided"
        if test.candidate in differs:
            says = differs[test.candidate] if test.decision == "undecided" else f"{differs[test.candidate]}, {says}"
        change = "\u2013" if test.estimate is None else percent(test.estimate - 1, 2)
        why = "" if test.candidate in differs else test.why
        rows.append((changes(study.baseline, json.loads(test.candidate)), change, str(test.blocks), says, why))
    tested = {test.candidate for test in same.tests}
    for key, why in found.disqualified.items():
        if key not in tested:
            rows.append((changes(study.baseline, json.loads(key)), "\u2013", "0", "failed", why))
    compared = tested | set(found.disqualified)
    for point, _ in ranking(study, history):
        if point_key(point) not in compared:
            why = "the budget had no room for it in the blocks"
            rows.append((changes(study.baseline, point), "\u2013", "0", "not compared", why))
    cost = count(history.node_hours, "node-hour", f"{history.node_hours:.3g}")
    notes = [f"two one-sided tests over interleaved blocks, {same.correction}; {cost} in all"]
    if same.ruled_out is not None:
        notes.append(f"differences above {same.ruled_out:.2%} are ruled out for each of them")
    head = ("setting", "change", "blocks", "decision", "why")
    return TextTable(EQUIVALENCE, head, tuple(rows), notes=tuple(notes))


def grounded(study: Study, history: History, found: ConfirmationVerdict) -> ConfirmationVerdict:
    """The verdict with where its blocks ran, which of them had to be run again, and that it is not the first one."""
    places = (place for block in blocks_so_far(study, history) for place in block.nodes)
    text = with_circumstances(found.headline, study, history, found)
    return replace(found, headline=text, machines=tuple(dict.fromkeys(places)), repeated=tuple(history.set_aside))


def _with_extension(headline: str, history: History, found: ConfirmationVerdict) -> str:
    """The headline with that it is not the first one, and the earlier one where that said more."""
    text = extension_text(history)
    if text and (other := len(_of_other_jobs(history))):
        blocks = "1 earlier block does" if other == 1 else f"{other} earlier blocks do"
        text += f"; {blocks} not count: their jobs asked for other resources"
    if history.verdicts_before and _weaker(found, history.verdicts_before[-1]):
        text += f"; before the extension: {history.verdicts_before[-1].headline}"
    return headline if text in headline else f"{headline}{text}"


def _weaker(now: ConfirmationVerdict, before: VerdictLine) -> bool:
    """Whether less is shown than before: no gain any more, or a smaller one at the least."""
    if before.conclusion != Conclusion.CONFIRMED:
        return False
    least, was = now.spoken_of, ConfirmationVerdict.from_line(before).spoken_of
    if now.conclusion != Conclusion.CONFIRMED or least is None or was is None:
        return True
    return least.scale == was.scale and (least.low or 0.0) < (was.low or 0.0)


def _outcomes_of_search(history: History) -> str:
    """How the trials of the search ended, and why where that is the same for all: `3 crash, each of them: boom`."""
    ended = [
        run.outcome
        for trial in history.trials.values()
        if trial.stage is Stage.SEARCH and (run := history.final_run(trial)) and run.outcome
    ]
    counts = Counter(outcome.kind.value for outcome in ended).most_common()
    reasons = {outcome.evidence.text if outcome.evidence else outcome.reason for outcome in ended}
    shared = shorten(reasons.pop(), _LONGEST_REASON, placeholder=" ...") if len(ended) > len(reasons) == 1 else ""
    return ", ".join(f"{n} {kind}" for kind, n in counts) + (f", each of them: {shared}" if shared else "")


# what the faces show of it


def compared_settings(baseline: Point, comparisons: Sequence[Comparison]) -> tuple[ComparedSetting, ...]:
    return tuple(
        ComparedSetting(changes(baseline, json.loads(c.candidate)), c.estimate, c.low, c.high, c.verdict.value)
        for c in comparisons
        if c.scale == "ratio" and c.estimate is not None and c.low is not None and c.high is not None
    )


def error_share(history: History) -> float:
    """The share of the error that the level allows which this verdict may spend.

    Whoever looks at a verdict may go on and look again, as often as they like. So the first one leaves a fifth of the
    error to those that may follow, and each of these spends three quarters of what is left: all together never more
    than the level allows.
    """
    later = history.looks - 1
    return FIRST_LOOK if not later else (1 - FIRST_LOOK) * LATER_LOOKS * (1 - LATER_LOOKS) ** (later - 1)


def level_after(level: float, history: History) -> float:
    """As journals of protocol 1 did it: a level that falls with every look, by too little to hold for all of them."""
    looks = history.looks
    return level if looks == 1 else math.ceil((1 - (1 - level) / looks) * 1000) / 1000


def extension_text(history: History, brief: bool = False) -> str:
    """'; extended by 20 trials after a verdict', and what that means for the interval; or nothing."""
    if not history.extensions:
        return ""
    last = history.extensions[-1]
    added = ", then ".join(str(extension) for extension in history.extensions)
    decided = any(not extension.undecided for extension in history.extensions)
    text = f"extended by {added} after {'a verdict' if decided else 'too few blocks for a verdict'}"
    if brief:
        return f" ({text})"
    if last.trials and (ran := history.count(Stage.SEARCH) - history.searched_before) < last.trials:
        text += f", of which {ran or 'none'} ran"
    if len(history.extensions) not in history.extensions_compared:
        return f"; {text}: without fresh interleaved runs, the earlier blocks stand"
    if history.protocol < 2:
        return f"; {text}: its level allows for {history.looks} looks"
    if history.looks == 1:
        return f"; {text}"
    spent = f"{error_share(history) * 100:.2g}% of the error that the level allows"
    return f"; {text}: look {history.looks}, for which {spent} was left, so that it holds for all looks"


def earlier_verdicts(history: History) -> tuple[str, ...]:
    """What each extension found, for the report: 'verdict before the extension by 2 trials: confirmed, 1.05x ...'."""
    pairs = zip(history.extensions, history.verdicts_before, strict=True)
    return tuple(
        f"verdict before the extension by {asked}: {found.conclusion}, {found.headline}" for asked, found in pairs
    )
