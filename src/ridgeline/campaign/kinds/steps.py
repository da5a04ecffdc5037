"""What did each change bring? Every step from the baseline to a setting, in fresh, interleaved runs beside each other.

As a campaign, a search of given settings: the baseline, then one change more with each step, all in every block. Two
neighbours of a block ran on the same nodes in the same hour, so their ratio is what that one change brought there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import Any, ClassVar

from ridgeline.campaign import confirmation, scores
from ridgeline.campaign.check import CheckedStudy
from ridgeline.campaign.confirmation import ConfirmationVerdict, disqualified
from ridgeline.campaign.kinds.search import GivenSettings, SearchAgenda
from ridgeline.campaign.ledger import Ledger
from ridgeline.campaign.sampling import sampler_of
from ridgeline.campaign.verdict import judged_pair
from ridgeline.errors import InputError
from ridgeline.records.answer import Answer, Candidate, Conclusion, Reference, Standing, Use
from ridgeline.records.exhibit import Exhibits, KindShown, TextTable, changes
from ridgeline.records.space import Point, point_key
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.stats.compare import all_positive, confirm, levelled
from ridgeline.stats.verdict import Block, Comparison, Verdict
from ridgeline.stats.wording import count, percent, percent_range
from ridgeline.study.history import History

_SIMPLER_WITHIN = 0.01  # of the goal: a setting with fewer changes that is shown to lose no more is preferred


@dataclass(frozen=True, slots=True)
class StepGain:
    """What one step brought: its ratio to the step before, above 1 for better; None where there is too little to say.

    `name` is the group of what was changed, `change` the change itself.
    """

    name: str
    change: str
    ratio: float | None
    low: float | None
    high: float | None
    verdict: str

    def __str__(self) -> str:
        if self.ratio is None or self.low is None or self.high is None:
            return f"{self.change}: {self.verdict}"
        if self.verdict == Verdict.NO_DIFFERENCE:
            return f"{self.change}: no detectable difference"
        return f"{self.change} {percent(self.ratio - 1)}"


@dataclass(frozen=True, slots=True)
class StepsVerdict(ConfirmationVerdict):
    """`comparisons` are those with the baseline; `steps` those of neighbours. `simpler` says that, and why, a setting
    with fewer changes is the one to use."""

    steps: tuple[StepGain, ...] = ()
    simpler: str = ""


def _changed(study: Study, point: Point) -> int:
    names = {*study.baseline, *point}
    return sum(study.baseline.get(name) != point.get(name) for name in names)


def _steps_table(verdict: StepsVerdict, metric: str) -> TextTable:
    rows = tuple(
        (
            step.name,
            step.change,
            "" if step.ratio is None else percent(step.ratio - 1),
            "" if step.low is None or step.high is None else percent_range(step.low - 1, step.high - 1),
            step.verdict,
        )
        for step in verdict.steps
    )
    changed = frozenset(at for at, step in enumerate(verdict.steps) if step.verdict == Verdict.BETTER)
    head = ("step", "change", f"gain ({metric})", "interval", "verdict")
    return TextTable("Gain of each change", head, rows, changed=changed)


_REST = "the rest"
# a knob belongs to the first group whose pattern its name holds; a study's own `groups` come before these
_NETWORK = r"^(NCCL|UCX|FI|OMPI|PSM\d?|GLOO|MPICH?|RDMAV?|IBV?|SHARP)_|network|nccl|rdma|allreduce|all_reduce|dispatch"
_LAYOUT = (
    r"^(tp|pp|dp|ep|cp|sp|tpp|attn_dp|moe_dp|nodes|ranks|ranks_per_node|ppn|threads|gpus|replicas|layout)$"
    r"|parallel|_(tp|pp|dp|ep)(_|$)|(tp|pp|dp|ep)_size|OMP_NUM_THREADS"
)
_MEMORY = r"mem|batch|(^|_)bs$|running|num_seqs|chunk|cache|page|pool|tokens|block|tile|buffer"
_BACK_END = r"backend|back_end|kernel|attention|dtype|quant|graph|compile|speculat|algorithm|solver|^eager"
_ENVIRONMENT = r"^[A-Z][A-Z0-9_]*$|^(opt|march|flags?|cflags|compiler|env|module|image|governor|pinning|binding)$"
_PATTERNS: Mapping[str, re.Pattern[str]] = {
    "environment": re.compile(_ENVIRONMENT),
    "layout": re.compile(_LAYOUT),
    "batch and memory": re.compile(_MEMORY),
    "back end": re.compile(_BACK_END),
    "network": re.compile(_NETWORK),
}
_ASKED_FIRST = ("network", "layout", "batch and memory", "back end", "environment")


def knob_groups(study: Study) -> dict[str, tuple[str, ...]]:
    """Every knob of the study in one group: the study's own groups first and in its order, then ours, then the rest."""
    own = {name: group for group, names in study.groups.items() for name in names}
    found: dict[str, list[str]] = {group: [] for group in (*study.groups, *_PATTERNS, _REST)}
    for knob in study.space.by_name:
        found[own.get(knob) or _group_of(knob)].append(knob)
    return {group: tuple(names) for group, names in found.items() if names}


def _group_of(knob: str) -> str:
    return next((group for group in _ASKED_FIRST if _PATTERNS[group].search(knob)), _REST)


_MOST_STEPS = 6  # changed knobs that are steps of their own; more go group by group


@dataclass(frozen=True, slots=True)
class StepsQuestion(GivenSettings[StepsVerdict]):
    """`points` lead from the baseline to the setting, one change more with each; `names` say which.

    `simpler` is a setting with fewer changes that may do as well, and takes part in the blocks. `together` says of each
    step why it changes more than one knob; empty where it changes one, and in journals that did not keep it.
    """

    points: Sequence[Point]
    names: Sequence[str]
    simpler: Point | None = None
    blocks: int | None = None
    together: Sequence[str] = field(default_factory=list)

    kind: ClassVar[str] = "steps"
    shown: ClassVar[KindShown] = KindShown("The steps")
    verdict_type: ClassVar[type[StepsVerdict]] = StepsVerdict
    standings: ClassVar[Mapping[str, Standing | None]] = {
        **dict.fromkeys(Conclusion, Standing.NOT_BETTER),
        Conclusion.CONFIRMED: None,
        Conclusion.KEEP_BASELINE: Standing.WORSE,
        Conclusion.UNCONFIRMED: Standing.UNDECIDED,
    }
    if_worse: ClassVar[str] = "the setting is worse than the baseline; keep the baseline"

    @property
    def given(self) -> tuple[Point, ...]:
        return (*self.points, *([] if self.simpler is None else [self.simpler]))

    def applied_to(self, study: Study) -> Study:
        return replace(GivenSettings.applied_to(self, study), question="What does each change gain?")

    def agenda(self, found: CheckedStudy, history: History, ledger: Ledger) -> StepsAgenda:
        return StepsAgenda(found.study, history, ledger, lambda: sampler_of(found), found.refusal, asks=self)

    def called(self, trial: Trial) -> str:
        keys = [point_key(point) for point in self.points]
        return f"step {keys.index(trial.key) + 1}" if trial.key in keys else "baseline"

    def sides(self, study: Study, history: History, verdict: StepsVerdict | None) -> tuple[Reference, Candidate | None]:
        if pair := judged_pair(study, history, verdict, "the setting", "best"):
            return Reference(self.reference, study.baseline, pair[0]), pair[1]
        value = scores.mean_value(study, history, Stage.BASELINE, Stage.SENTINEL)
        return Reference(self.reference, study.baseline, value), None

    def facts(self, study: Study, history: History, verdict: StepsVerdict | None, answer: Answer) -> dict[str, Any]:
        best = GivenSettings.facts(self, study, history, verdict, answer)
        return best if verdict is None else {**best, "steps": list(verdict.details().get("steps", ()))}

    def answer(self, study: Study, history: History) -> Answer:
        answer = GivenSettings.answer(self, study, history)
        return replace(answer, use=Use.REFERENCE) if answer.worse else answer

    def exhibits(self, study: Study, history: History) -> Exhibits:
        called, verdict = self.groups(history), self.found(history)
        if verdict is None:
            return Exhibits(groups=called)
        return Exhibits(
            tables=(_steps_table(verdict, study.goal.metric),) if verdict.steps else (),
            comparisons_title="Each setting on the way against the baseline, in fresh interleaved runs",
            comparisons=confirmation.compared_settings(study.baseline, verdict.comparisons),
            notes=(*self._notes(study, verdict), *([verdict.simpler] if verdict.simpler else [])),
            groups=called,
        )

    def _notes(self, study: Study, verdict: StepsVerdict) -> Iterator[str]:
        """Why a row has more than one change."""
        yield from filter(None, self.together)
        for before, point in zip((study.baseline, *self.points), self.points, strict=False):
            if why := verdict.disqualified.get(point_key(point)):
                yield f"{changes(before, point)} did not pass without what follows ({why}); told with the next step"


@dataclass
class StepsAgenda(SearchAgenda):
    """The search of the given steps, with a verdict that speaks of each: steps that look worse are compared too."""

    even_if_worse = True
    asks: StepsQuestion = field(kw_only=True)

    def verdict(self) -> StepsVerdict:
        """Steps that failed are left out; what they changed is part of the next step's change."""
        study, failed = self.study, disqualified(self.study, self.history)
        blocks = confirmation.blocks_so_far(study, self.history)
        if not blocks:
            text = "the steps were not compared: none passed, or the budget left no room for their blocks"
            return StepsVerdict(Conclusion.UNCONFIRMED, text, disqualified=failed)
        blocks = [levelled(block, "ratio" if all_positive(blocks) else "difference") for block in blocks]
        ran = {key for block in blocks for key in block.candidates}
        steps = zip(self.asks.names, self.asks.points, strict=True)
        way = [(name, point) for name, point in steps if point_key(point) in ran]
        against_base = self._judged(blocks, study.confirm.level)
        gains = self._gains(blocks, way)
        compared = tuple(against_base.values())
        last = None if not way else against_base.get(point_key(way[-1][1]))
        if last is None or last.verdict is Verdict.TOO_FEW_BLOCKS:
            text = "too few blocks to say what each change gained"
            return StepsVerdict(Conclusion.UNCONFIRMED, text, None, compared, failed)
        if last.verdict is not Verdict.BETTER:
            worse = last.verdict is Verdict.WORSE
            conclusion = Conclusion.KEEP_BASELINE if worse else Conclusion.NO_DIFFERENCE
            text = f"the setting is not shown to be better than the baseline: {last}"
            return StepsVerdict(conclusion, text, None, compared, failed, steps=gains)
        simpler = self.asks.simpler
        others = [point for _, point in way[:-1]] + ([simpler] if simpler and point_key(simpler) in ran else [])
        chosen, why = self._simplest(blocks, way[-1][1], others, against_base)
        text = f"{last}; gain by change: {', '.join(map(str, gains))}"
        return StepsVerdict(Conclusion.CONFIRMED, text, chosen, compared, failed, steps=gains, simpler=why)

    def _judged(self, blocks: Sequence[Block], level: float) -> Mapping[str, Comparison]:
        return confirm(blocks, level, self.study.goal.direction, protocol=self.history.protocol).comparisons

    def _gains(self, blocks: Sequence[Block], way: Sequence[tuple[str, Point]]) -> tuple[StepGain, ...]:
        """Each step against the one before, with intervals that hold for all of them together."""
        found = []
        before: Point = self.study.baseline
        level = 1 - (1 - self.study.confirm.level) / max(1, len(way))
        for name, point in way:
            judged = self._judged(self._beside(blocks, before, [point]), level)[point_key(point)]
            ratio = judged.ratio is not None
            ends = (judged.estimate, judged.low, judged.high) if ratio else (None, None, None)
            found.append(StepGain(name, changes(before, point), *ends, judged.verdict.value))
            before = point
        return tuple(found)

    def _beside(self, blocks: Sequence[Block], reference: Point, others: Sequence[Point]) -> list[Block]:
        """The same blocks with another setting as the one that others are held against."""
        base, key = point_key(self.study.baseline), point_key(reference)
        keys = [point_key(point) for point in others]
        return [
            Block(
                block.number,
                block.nodes,
                block.baseline if key == base else block.candidates.get(key, ()),
                {other: block.candidates.get(other, ()) for other in keys},
            )
            for block in blocks
        ]

    def _simplest(
        self, blocks: Sequence[Block], setting: Point, others: Sequence[Point], against_base: Mapping[str, Comparison]
    ) -> tuple[Point, str]:
        """The setting to use, and why it is not the one at the end of the way."""
        own = _changed(self.study, setting)
        fewer = [point for point in others if _changed(self.study, point) < own]
        if not fewer:
            return setting, ""
        beside = self._judged(self._beside(blocks, setting, fewer), self.study.confirm.level)
        as_good = [
            (_changed(self.study, point), point)
            for point in fewer
            if (low := beside[point_key(point)].low) is not None
            and beside[point_key(point)].scale == "ratio"
            and low >= 1 - _SIMPLER_WITHIN
            and against_base[point_key(point)].verdict is Verdict.BETTER
        ]
        if not as_good:
            return setting, ""
        number, point = min(as_good, key=lambda found: found[0])
        judged = beside[point_key(point)]
        assert judged.low is not None and judged.high is not None
        interval = percent_range(judged.low - 1, judged.high - 1)
        why = (
            f"a simpler setting is preferred: {count(number, 'change')} instead of {own}, within {_SIMPLER_WITHIN:.0%}"
        )
        return point, f"{why} of the other ({interval}); without {changes(point, setting)}"


def steps_question(
    found: CheckedStudy,
    setting: Point,
    blocks: int | None = None,
    matters: Sequence[str] | None = None,
    each: bool = False,
) -> StepsQuestion:
    """The steps from the study's baseline to this setting, in the order of groups.

    More than a few changes go group by group, unless `each` asks for a step of every knob. `matters` are knobs of which
    a search has shown that they bring something: a setting that changes only them is tried as a simpler one.
    """
    study = found.study
    changed = [name for name in dict.fromkeys((*study.baseline, *setting)) if _moved(study.baseline, setting, name)]
    if not changed:
        raise InputError("the setting is the baseline itself; there are no steps between the two")
    groups = {group: [knob for knob in knobs if knob in changed] for group, knobs in knob_groups(study).items()}
    each = each or len(changed) <= _MOST_STEPS
    wanted = [
        _Part((group,), part, merged=len(part) > 1)
        for group, knobs in groups.items()
        for part in ([(knob,) for knob in knobs] if each else [tuple(knobs)] if knobs else [])
    ]
    points, names, together = _legal_steps(found, setting, wanted)
    return StepsQuestion(points, names, _simpler(found, setting, matters, points), blocks, together)


def _moved(baseline: Point, setting: Point, knob: str) -> bool:
    return (knob in baseline, baseline.get(knob)) != (knob in setting, setting.get(knob))


@dataclass(frozen=True, slots=True)
class _Part:
    """Knobs that are to change in one step, the groups they are of, and what keeps some of them from changing alone."""

    groups: tuple[str, ...]
    knobs: tuple[str, ...]
    why: str = ""
    merged: bool = False  # knobs of one group that were not tried one by one

    def __add__(self, other: _Part) -> _Part:
        groups = tuple(dict.fromkeys((*self.groups, *other.groups)))
        return _Part(groups, (*self.knobs, *other.knobs), self.why or other.why, self.merged or other.merged)

    @property
    def together(self) -> str:
        if len(self.knobs) == 1:
            return ""
        said = f"{', '.join(self.knobs[:-1])} and {self.knobs[-1]} are one step"
        why = f": they are only legal together ({self.why})" if self.why else ""
        if not self.merged:
            return f"{said}{why}"
        of = f"{said}, {'groups' if len(self.groups) > 1 else 'the group'} {' and '.join(self.groups)}{why}"
        return f"{of}; `ridgeline study steps --each` takes them one by one"


def _legal_steps(
    found: CheckedStudy, setting: Point, wanted: Sequence[_Part]
) -> tuple[list[dict[str, Any]], list[str], list[str]]:
    """Changes that cannot be made one by one (16 GPUs: tp up, pp down) are one step, and no others with them.

    What is not legal yet waits for the change that makes it so; what follows meanwhile is not held up by it.
    """
    points: list[dict[str, Any]] = []
    taken: list[_Part] = []
    done: list[str] = []
    waiting: list[_Part] = []

    def take(part: _Part) -> str:
        """Why it is not legal now; empty once it is a step."""
        point, why = _with_changes(found, setting, [*done, *part.knobs])
        before = points[-1] if points else found.study.baseline
        if point is None or point_key(point) == point_key(before):
            return why or "alone it changes nothing"
        points.append(point)
        taken.append(part)
        done.extend(part.knobs)
        return ""

    for part in wanted:
        if why := take(part):
            part = replace(part, why=why)
            # the fewest that are legal with it: one that waits, else all of them
            tries = [[other] for other in waiting] + ([waiting] if len(waiting) > 1 else [])
            used = next((some for some in tries if not take(reduce(add, some) + part)), None)
            waiting = [*waiting, part] if used is None else [other for other in waiting if other not in used]
        while freed := next((other for other in waiting if not take(replace(other, why=""))), None):
            waiting = [other for other in waiting if other is not freed]
    if not points or point_key(points[-1]) != point_key(setting):
        rest = reduce(add, waiting) if waiting else _Part(("the rest",), ())
        points.append(dict(setting))
        taken.append(rest)
    return (
        points,
        [" and ".join(part.groups) for part in taken],
        [part.together if part.knobs else "" for part in taken],
    )


def _with_changes(found: CheckedStudy, setting: Point, knobs: Sequence[str]) -> tuple[dict[str, Any] | None, str]:
    """The baseline with these knobs as in the setting; None and the reason where that may not run."""
    study = found.study
    absent = {name: value for name, value in setting.items() if name not in study.baseline}
    values = {**absent, **study.baseline, **{name: setting[name] for name in knobs if name in setting}}
    point = study.space.restrict(values)
    if missing := study.space.missing(point):
        return None, f"{', '.join(missing)} would have no value"
    why = found.refusal(point)
    return (None, why) if why else (dict(point), "")


def _simpler(
    found: CheckedStudy, setting: Point, matters: Sequence[str] | None, points: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    if not matters:
        return None
    point, _ = _with_changes(found, setting, matters)
    known = {point_key(other) for other in (*points, found.study.baseline, setting)}
    return None if point is None or point_key(point) in known else point
