"""What did each change bring? Every step from the baseline to a setting, in fresh, interleaved runs beside each other.

As a campaign, a search of given settings: the baseline, then one change more with each step, all in every block. Two
neighbours of a block ran on the same nodes in the same hour, so their ratio is what that one change brought there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from ridgeline.campaign import confirmation, scores
from ridgeline.campaign.blocks import disqualified
from ridgeline.campaign.candidates import judged_pair
from ridgeline.campaign.check import CheckedStudy
from ridgeline.campaign.confirmation import UNCONFIRMED
from ridgeline.campaign.guidance.sampling import sampler_of
from ridgeline.campaign.kinds.groups import knob_groups
from ridgeline.campaign.kinds.search import search_progress
from ridgeline.campaign.kinds.search_agenda import SearchAgenda
from ridgeline.campaign.kinds.steps_verdict import StepsVerdict, judged_steps, steps_table
from ridgeline.campaign.ledger import Ledger
from ridgeline.campaign.verdict import answer_of
from ridgeline.errors import InputError
from ridgeline.records.answer import CONFIRMED, KEEP_BASELINE, Answer, Candidate, Progress, Reference
from ridgeline.records.exhibit import Exhibits
from ridgeline.records.space import Point, point_key
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.study.codec import VerdictLine
from ridgeline.study.history import History

MOST_STEPS = 6  # changed knobs that are steps of their own; more go group by group


@dataclass(frozen=True, slots=True)
class StepsQuestion:
    """`points` lead from the baseline to the setting, one change more with each; `names` say which.

    `simpler` is a setting with fewer changes that may do as well, and takes part in the blocks.
    """

    points: Sequence[Point]
    names: Sequence[str]
    simpler: Point | None = None
    blocks: int | None = None

    kind: ClassVar[str] = "steps"
    reference: ClassVar[str] = "the baseline"

    @property
    def tried(self) -> tuple[Point, ...]:
        return (*self.points, *([] if self.simpler is None else [self.simpler]))

    def applied_to(self, study: Study) -> Study:
        return replace(
            study,
            presets=self.tried,
            budget=replace(study.budget, trials=len(self.tried)),
            baseline_stage=replace(study.baseline_stage, repeats=1),
            search=replace(study.search, sentinel_every=0),
            confirm=replace(study.confirm, top=len(self.tried), blocks=self.blocks or study.confirm.blocks),
        )

    def agenda(self, found: CheckedStudy, history: History, ledger: Ledger) -> StepsAgenda:
        refusal = found.refusal
        return StepsAgenda(found.study, history, ledger, lambda: sampler_of(found), refusal, asks=self)

    def verdict_from(self, line: VerdictLine) -> StepsVerdict:
        return StepsVerdict.from_line(line)

    def called(self, trial: Trial) -> str:
        keys = [point_key(point) for point in self.points]
        return f"step {keys.index(trial.key) + 1}" if trial.key in keys else "baseline"

    def progress(self, study: Study, history: History) -> Progress:
        now = search_progress(study, history)
        if now.stage in (Stage.BASELINE, Stage.SEARCH):
            # each step is run once before the blocks: one that cannot run is left out of them
            return replace(now, stage="first runs", done=len(history.runs), of=1 + len(self.tried), unit="runs")
        return replace(now, stage="blocks") if now.stage == Stage.CONFIRM else now

    def answer(self, study: Study, history: History) -> Answer:
        verdict = None if history.verdict is None else self.verdict_from(history.verdict)
        base, candidate = self._pair(study, history, verdict)
        facts: dict[str, Any] = {"best": None if candidate is None else candidate.as_json(study.goal.metric)}
        if verdict is not None:
            facts["steps"] = list(verdict.details().get("steps", ()))
        reference = Reference(self.reference, study.baseline, base)
        offers = candidate is not None and candidate.confirmed
        answer = answer_of(self.kind, history.verdict, reference, candidate, facts, offers=offers)
        if verdict is None or verdict.conclusion == CONFIRMED:
            return answer
        worse = verdict.conclusion == KEEP_BASELINE
        why = "the setting is worse than the baseline; keep the baseline" if worse else answer.headline
        return replace(answer, keep=worse, worse=worse, not_better=why)

    def _pair(
        self, study: Study, history: History, verdict: StepsVerdict | None
    ) -> tuple[float | None, Candidate | None]:
        judged = None if verdict is None else verdict.spoken_of
        if verdict is not None and judged is not None:
            won = verdict.conclusion == CONFIRMED
            if pair := judged_pair(study, history, judged, "the setting", won, "best"):
                return pair
        score = scores.baseline_score(study, history)
        return None if score is None else study.goal.score(score), None

    def exhibits(self, study: Study, history: History) -> Exhibits:
        called = {trial.number: self.called(trial) for trial in history.trials.values()}
        if history.verdict is None:
            return Exhibits(groups=called)
        verdict = self.verdict_from(history.verdict)
        return Exhibits(
            tables=(steps_table(verdict, study.goal.metric),) if verdict.steps else (),
            comparisons_title="Each setting on the way against the baseline, in fresh interleaved runs",
            comparisons=confirmation.compared_settings(study.baseline, verdict.comparisons),
            notes=(verdict.simpler,) if verdict.simpler else (),
            groups=called,
        )


@dataclass
class StepsAgenda(SearchAgenda):
    """The search of the given steps, with a verdict that speaks of each: steps that look worse are compared too."""

    even_if_worse = True
    asks: StepsQuestion = field(kw_only=True)

    def verdict(self) -> StepsVerdict:
        study, history = self.study, self.history
        failed = disqualified(study, history)
        blocks = confirmation.blocks_so_far(study, history)
        if not blocks:
            text = "the steps were not compared: none passed, or the budget left no room for their blocks"
            return StepsVerdict(UNCONFIRMED, text, disqualified=failed)
        return judged_steps(
            study, blocks, self.asks.points, self.asks.names, self.asks.simpler, failed, history.protocol > 1
        )


def steps_question(
    found: CheckedStudy, setting: Point, blocks: int | None = None, matters: Sequence[str] | None = None
) -> StepsQuestion:
    """The steps from the study's baseline to this setting, in the order of groups.

    `matters` are knobs of which a search has shown that they bring something: a setting that changes only them is tried
    as a simpler one.
    """
    study = found.study
    changed = [name for name in dict.fromkeys((*study.baseline, *setting)) if _moved(study.baseline, setting, name)]
    if not changed:
        raise InputError("the setting is the baseline itself; there are no steps between the two")
    groups = {group: [knob for knob in knobs if knob in changed] for group, knobs in knob_groups(study).items()}
    each = len(changed) <= MOST_STEPS
    wanted = [(group, part) for group, knobs in groups.items() if knobs for part in _parts(knobs, each)]
    points, names = _legal_steps(found, setting, wanted)
    return StepsQuestion(points, names, _simpler(found, setting, matters, points), blocks)


def _parts(knobs: Sequence[str], each: bool) -> list[list[str]]:
    return [[knob] for knob in knobs] if each else [list(knobs)]


def _moved(baseline: Point, setting: Point, knob: str) -> bool:
    return (knob in baseline, baseline.get(knob)) != (knob in setting, setting.get(knob))


def _legal_steps(
    found: CheckedStudy, setting: Point, wanted: Sequence[tuple[str, Sequence[str]]]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Changes that cannot be made one by one (16 GPUs: tp up, pp down) are one step."""
    points: list[dict[str, Any]] = []
    names: list[str] = []
    done: list[str] = []
    waiting: list[str] = []
    for group, knobs in wanted:
        done += knobs
        waiting += [] if group in waiting else [group]
        point = _with_changes(found, setting, done)
        before = points[-1] if points else found.study.baseline
        if point is None or point_key(point) == point_key(before):
            continue
        points.append(point)
        names.append(" and ".join(waiting))
        waiting = []
    if not points or point_key(points[-1]) != point_key(setting):
        points.append(dict(setting))
        names.append(" and ".join(waiting) or "the rest")
    return points, names


def _with_changes(found: CheckedStudy, setting: Point, knobs: Sequence[str]) -> dict[str, Any] | None:
    """The baseline with these knobs as in the setting; None where that may not run."""
    study = found.study
    absent = {name: value for name, value in setting.items() if name not in study.baseline}
    values = {**absent, **study.baseline, **{name: setting[name] for name in knobs if name in setting}}
    point = study.space.restrict(values)
    return None if study.space.missing(point) or found.refusal(point) else dict(point)


def _simpler(
    found: CheckedStudy, setting: Point, matters: Sequence[str] | None, points: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    if not matters:
        return None
    point = _with_changes(found, setting, matters)
    known = {point_key(other) for other in (*points, found.study.baseline, setting)}
    return None if point is None or point_key(point) in known else point
