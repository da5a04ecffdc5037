"""Two campaigns of one question side by side: another node, another release. What changed, with intervals."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ridgeline.errors import InputError
from ridgeline.records.answer import Answer
from ridgeline.records.exhibit import TextTable, changes, value_text
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage
from ridgeline.report.figures.shapes import OTHER, WINNER, Axis, IntervalFigure, IntervalRow
from ridgeline.report.measured import versions
from ridgeline.report.parts import Bullets, FactTiles, Paragraph, Part, Section
from ridgeline.stats.compare import UnpairedRatio, together, unpaired
from ridgeline.stats.wording import count, metric_text, ratio_range, ratio_text
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

    @property
    def columns(self) -> tuple[str, str]:
        return f"{self.first.name}{self._mark(self.first)}", f"{self.second.name}{self._mark(self.second)}"

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
            means = (_mean(mine[key]), _mean(theirs[key]))
            yield SettingInBoth(text, point, means, found)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


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


# what the faces show of it


def studies_sections(found: StudiesCompared) -> list[Section]:
    names = found.columns
    head: list[Part] = [
        Paragraph(found.headline, "headline"),
        Paragraph(CAUTION, "sub"),
        FactTiles(tuple(_tiles(found))),
    ]
    sections = [Section("verdict", "", tuple(head))]
    if found.settings:
        sections.append(Section("settings", "Settings in both", (_figure(found), settings_table(found))))
    if found.outcomes:
        table = TextTable("Passed on one side only", ("setting", *names), found.outcomes)
        sections.append(Section("outcomes", "Passed on one side only", (table,)))
    differing: Part = (
        TextTable("What differs", ("", *names), found.differences) if found.differences else Bullets(("nothing",))
    )
    return [*sections, Section("differences", "What differs", (differing,))]


def _tiles(found: StudiesCompared) -> Iterator[tuple[str, str, str]]:
    for name, side in zip(found.columns, (found.first, found.second), strict=True):
        candidate = side.answer.candidate
        value = side.answer.reference.value if candidate is None else candidate.value
        label = side.answer.reference.label if candidate is None else candidate.label
        yield f"{name}: {label}", "–" if value is None else metric_text(value), side.answer.unit


def _figure(found: StudiesCompared) -> IntervalFigure:
    rows = tuple(
        IntervalRow(
            s.setting,
            s.ratio.ratio,
            s.ratio.low,
            s.ratio.high,
            text=str(s.ratio),
            look=OTHER if s.ratio.verdict.startswith(("no", "too")) else WINNER,
        )
        for s in found.settings
    )
    first, second = found.columns
    says = f"{second} over {first}, for each setting that passed in both; right is better."
    return IntervalFigure("both", "Ratio for each setting", says, Axis(f"{second} / {first}"), rows)


def settings_table(found: StudiesCompared) -> TextTable:
    head = ("setting", *found.columns, "runs", "ratio")
    rows = tuple(
        (
            s.setting,
            metric_text(s.values[0]),
            metric_text(s.values[1]),
            f"{s.ratio.runs[0]}, {s.ratio.runs[1]}",
            str(s.ratio),
        )
        for s in found.settings
    )
    return TextTable("Values", head, rows)
