"""Several campaigns side by side: two of one question, with what changed between them, or a folder of any."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from ridgeline.errors import InputError
from ridgeline.records.answer import OVER_LIMIT, Answer
from ridgeline.records.exhibit import TextTable, changes, value_text
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage
from ridgeline.report.figures.failures import what_failed
from ridgeline.report.measured import versions
from ridgeline.report.parts import AnswerCard, FactTiles, Paragraph, Section
from ridgeline.stats.compare import UnpairedRatio, together, unpaired
from ridgeline.stats.wording import count, metric_text, node_time_text, ratio_range, ratio_text
from ridgeline.study.history import History

CAUTION = (
    "The two studies did not run interleaved: whatever else changed between them is in these ratios too. "
    "For a proof of one setting against another, run `ridgeline compare`."
)


@dataclass(frozen=True)
class StudySeen:
    """One side: what it is called here, and what its folder holds."""

    name: str
    study: Study
    history: History
    answer: Answer


@dataclass(frozen=True, slots=True)
class SettingInBoth:
    """One setting that passed on both sides; the ratio is the second over the first, above 1 is better."""

    setting: str
    point: Mapping[str, Any]
    values: tuple[float, float]
    ratio: UnpairedRatio


@dataclass(frozen=True)
class StudiesCompared:
    first: StudySeen
    second: StudySeen
    settings: tuple[SettingInBoth, ...]
    differences: tuple[tuple[str, str, str], ...]  # what, there, here
    outcomes: tuple[tuple[str, str, str], ...]  # settings that passed on one side only
    level: float

    @property
    def overall(self) -> tuple[float, float | None, float | None] | None:
        return together([s.ratio.ratio for s in self.settings], self.level) if self.settings else None

    @property
    def headline(self) -> str:
        a, b = (f"{side.name}{self._mark(side)}" for side in (self.first, self.second))
        if self.overall is None:
            return f"{a} and {b} have no setting in common that passed in both"
        ratio, low, high = self.overall
        of = count(len(self.settings), "setting")
        if low is None or high is None:
            only = self.settings[0]
            text = (
                str(only.ratio) if len(self.settings) == 1 else f"{ratio_text(ratio)}, not proven with so few settings"
            )
            return f"{b} against {a}: {text} ({of} in both)"
        shown, interval = ratio_range(ratio, low, high)
        side = "better" if low > 1 else "worse" if high < 1 else "no detectable difference"
        return f"{b} against {a}: {shown} ({self.level * 100:g}%: {interval}; {of} in both), {side}"

    def _mark(self, side: StudySeen) -> str:
        """Which side is simulated; nothing where both were measured."""
        either = self.first.answer.simulated or self.second.answer.simulated
        return "" if not either else " (simulated)" if side.answer.simulated else " (measured)"

    def as_json(self) -> dict[str, Any]:
        ratio, low, high = self.overall or (None, None, None)
        return {
            "headline": self.headline,
            "metric": self.first.study.goal.metric,
            "ratio": ratio,
            "low": low,
            "high": high,
            "level": self.level,
            "simulated": {"first": self.first.answer.simulated, "second": self.second.answer.simulated},
            "settings": [
                {
                    "point": dict(s.point),
                    "first": s.values[0],
                    "second": s.values[1],
                    **asdict(s.ratio),
                    "verdict": s.ratio.verdict,
                }
                for s in self.settings
            ],
            "differences": [{"what": w, "first": a, "second": b} for w, a, b in self.differences],
            "outcomes": [{"setting": w, "first": a, "second": b} for w, a, b in self.outcomes],
        }


def compare_studies(first: StudySeen, second: StudySeen) -> StudiesCompared:
    """InputError where the two measure different things."""
    goals = first.study.goal, second.study.goal
    if goals[0] != goals[1]:
        raise InputError(
            f"{first.name} asks to {goals[0].direction} {goals[0].metric}, {second.name} to {goals[1].direction} "
            f"{goals[1].metric}; only studies with the same goal can be held side by side"
        )
    level = max(first.study.confirm.level, second.study.confirm.level)
    return StudiesCompared(
        first, second, tuple(_in_both(first, second, level)), tuple(_differences(first, second)),
        tuple(_outcomes(first, second)), level,
    )  # fmt: skip


def _values(side: StudySeen) -> dict[str, list[float]]:
    """Of each setting, the runs of the confirmation where there are some, else all that passed."""
    every: dict[str, list[float]] = {}
    confirmed: dict[str, list[float]] = {}
    for trial, run in side.history.ok_runs(*Stage):
        value = run.metrics[side.study.goal.metric]
        every.setdefault(trial.key, []).append(value)
        if trial.stage is Stage.CONFIRM:
            confirmed.setdefault(trial.key, []).append(value)
    return {**every, **confirmed}


def _in_both(first: StudySeen, second: StudySeen, level: float) -> Iterator[SettingInBoth]:
    mine, theirs = _values(first), _values(second)
    shared = [key for key in mine if key in theirs]
    for key in shared:
        found = unpaired(mine[key], theirs[key], first.study.goal.direction, level, len(shared))
        if found is not None:
            point = json.loads(key)
            text = changes(first.study.baseline, point) or f"{first.answer.reference.label} of {first.name}"
            yield SettingInBoth(text, point, (fmean(mine[key]), fmean(theirs[key])), found)


def _differences(first: StudySeen, second: StudySeen) -> Iterator[tuple[str, str, str]]:
    mine, theirs = dict(_facts(first)), dict(_facts(second))
    for what in dict.fromkeys((*mine, *theirs)):
        a, b = mine.get(what, "–"), theirs.get(what, "–")
        if a != b:
            yield what, a, b


def _facts(side: StudySeen) -> Iterator[tuple[str, str]]:
    study, history, answer = side.study, side.history, side.answer
    yield "how", "simulated" if answer.simulated else "measured"
    yield "verdict", answer.statement
    yield "change", answer.change or "–"
    if answer.to_use is not None:
        yield "setting to use", ", ".join(f"{k} {value_text(v)}" for k, v in answer.to_use.items())
    yield "baseline", ", ".join(f"{k} {value_text(v)}" for k, v in study.baseline.items())
    yield "site", study.site.name
    yield "nodes", ", ".join(sorted({n for run in history.runs.values() for n in run.ending.nodes}))
    for name, label in (("cpu", "CPU"), ("gpus", "GPUs"), ("driver", "driver"), ("ridgeline", "Ridgeline")):
        value = next((r[name] for r in reversed(history.receipts) if r.get(name)), "")
        yield label, ", ".join(value) if isinstance(value, list) else str(value)
    for name, found in versions(history).items():
        yield name.replace("_", " "), ", ".join(sorted(found))
    yield "runs", str(len(history.runs))
    yield "node-hours", f"{history.node_hours:.3g}"


def _outcomes(first: StudySeen, second: StudySeen) -> Iterator[tuple[str, str, str]]:
    mine, theirs = _endings(first), _endings(second)
    for key in mine:
        if key in theirs and (mine[key] == "ok") != (theirs[key] == "ok"):
            text = changes(first.study.baseline, json.loads(key)) or first.answer.reference.label
            yield text, mine[key], theirs[key]


def _endings(side: StudySeen) -> dict[str, str]:
    """The last outcome of each setting that says something of the setting."""
    found: dict[str, str] = {}
    for run in side.history.runs.values():
        if run.outcome is not None and (run.outcome.kind.value == "ok" or run.outcome.kind.caused_by_setting):
            found[side.history.trials[run.trial].key] = run.outcome.kind.text
    return found


# The history of a project, a folder of studies: what each found and cost, and what was learnt of each knob.


def project_sections(studies: Sequence[StudySeen]) -> list[Section]:
    """`studies` in any order; they are shown by when they began."""
    ordered = sorted(studies, key=_began_s)
    shown = [
        Section("verdict", "", (Paragraph(_headline(ordered), "headline"), FactTiles(tuple(_tiles(ordered))))),
        Section("studies", "Studies", (_table(ordered),)),
    ]
    if knobs := _knob_rows(ordered):
        head = ("knob", "study", "how", "baseline", "setting to use", "confirmed gain of the whole setting")
        text = (
            "What each study changed. Its gain is that of all changes together; `ridgeline study steps --each` "
            "measures each."
        )
        shown.append(Section("knobs", "Every knob", (Paragraph(text, "sub"), TextTable("", head, tuple(knobs)))))
    return shown


def _began_s(one: StudySeen) -> float:
    return min((run.ending.started_s for run in one.history.runs.values() if run.ending.started_s > 0), default=0.0)


def _day(one: StudySeen) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(began)) if (began := _began_s(one)) else "–"


def _headline(studies: Sequence[StudySeen]) -> str:
    """How many found something, and how much; of several the range. What was simulated is counted by itself."""
    known = ((how, [one for one in studies if how_known(one) == how]) for how in ("measured", "simulated"))
    return "; ".join(_found(of, how) for how, of in known if of) or "No study here"


def _found(studies: Sequence[StudySeen], how: str) -> str:
    """'2 of 3 measured studies confirmed a better setting: 1.13x to 1.22x the baseline'."""
    of = f"{len(studies)} {how} {'study' if len(studies) == 1 else 'studies'}"
    better = [one for one in studies if one.answer.confirmed and one.answer.candidate is not None]
    gains = [one.answer.candidate.gain for one in better if one.answer.candidate is not None]
    ratios = sorted(gain.ratio for gain in gains if gain is not None and gain.ratio > 1)
    if not ratios:
        return f"No better setting confirmed in {of}"
    size = ratio_text(ratios[0]) if len(ratios) == 1 else f"{ratio_text(ratios[0])} to {ratio_text(ratios[-1])}"
    over = sum(bool(one.answer.broken) for one in better)
    broken = f", {over} of them over a limit of its question" if over else ""
    return f"{len(ratios)} of {of} confirmed a better setting: {size} the baseline{broken}"


def how_known(one: StudySeen) -> str:
    """Beside every number of a study, so that nobody takes a prediction for a measurement."""
    return "simulated" if one.answer.simulated or one.study.site.simulated else "measured"


def _tiles(studies: Sequence[StudySeen]) -> Iterator[tuple[str, str, str]]:
    yield "studies", str(len(studies)), f"since {_day(studies[0])}"
    for how, label in (("measured", "cost"), ("simulated", "simulated, never spent")):
        of = [one for one in studies if how_known(one) == how]
        if of:
            hours = sum(one.history.node_hours for one in of)
            runs = count(sum(len(one.history.runs) for one in of), "run")
            yield label, node_time_text(hours), f"{runs}, {how}"
    real = [one for one in studies if how_known(one) == "measured"]
    machines = {node for one in real for run in one.history.runs.values() for node in run.ending.nodes}
    sites = sorted({one.study.site.name for one in real}) or ["all is simulated"]
    yield "machines", count(len(machines), "node"), ", ".join(sites)


def _table(studies: Sequence[StudySeen]) -> TextTable:
    rows = tuple(
        (
            one.name,
            how_known(one),
            _gain(one) or what_failed(one.history, one.answer) or AnswerCard(one.answer.statement).lead,
            "–" if one.answer.candidate is None else f"{metric_text(one.answer.candidate.value)} {one.answer.unit}",
            one.study.goal.metric,
            _day(one),
            node_time_text(one.history.node_hours),
            one.study.site.name,
        )
        for one in studies
    )
    changed = frozenset(at for at, one in enumerate(studies) if one.answer.confirmed)
    return TextTable("", ("study", "how", "answer", "value", "goal", "began", "cost", "site"), rows, changed=changed)


def _gain(one: StudySeen) -> str:
    gain = None if one.answer.candidate is None else one.answer.candidate.gain
    if gain is None or gain.low is None or gain.high is None or not one.answer.confirmed:
        return ""
    ratio, interval = ratio_range(gain.ratio, gain.low, gain.high)
    over = f", {OVER_LIMIT}{' and '.join(map(str, one.answer.broken))}" if one.answer.broken else ""
    return f"{ratio} ({interval}){over}"


def _knob_rows(studies: Sequence[StudySeen]) -> list[tuple[str, ...]]:
    found = [
        (name, one.name, how_known(one), value_text(one.study.baseline.get(name)), value_text(value), _gain(one))
        for one in studies
        if one.answer.confirmed and one.answer.candidate is not None
        for name, value in one.answer.candidate.point.items()
        if one.study.baseline.get(name) != value
    ]
    return sorted(found)
