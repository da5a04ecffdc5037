"""The proof: every block of the confirmation with all of its runs in order, and what each block says by itself."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ridgeline.records.answer import Answer
from ridgeline.records.exhibit import TextTable, changes
from ridgeline.records.run import Run
from ridgeline.records.space import point_key
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.report.figures.shapes import (
    BASELINE,
    OTHER,
    WINNER,
    Axis,
    IntervalFigure,
    IntervalRow,
    PlotFigure,
    PlotPoint,
    PlotSeries,
    PlotSpan,
)
from ridgeline.report.figures.values import goal_axis, kind_shown
from ridgeline.stats.wording import count, metric_text, ratio_range, ratio_text
from ridgeline.study.history import History

_LETTERS = "BCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class ProofBlock:
    """The runs of one block that count, in order, and the ratio of each candidate in it (above 1 is better)."""

    number: int
    nodes: tuple[str, ...]
    runs: tuple[tuple[Trial, Run], ...]
    ratios: Mapping[str, float]

    def order(self, letters: Mapping[str, str]) -> str:
        return " ".join(letters.get(trial.key, "?") for trial, _ in self.runs)


def proof_blocks(study: Study, history: History) -> list[ProofBlock]:
    blocks: dict[int, list[tuple[Trial, Run]]] = {}
    for trial, run in history.ok_runs(Stage.CONFIRM):
        if trial.block is not None:
            blocks.setdefault(trial.block, []).append((trial, run))
    return [
        ProofBlock(
            number,
            runs[0][1].ending.nodes,
            tuple(sorted(runs, key=lambda pair: (pair[1].ending.started_s, pair[1].number))),
            _ratios(study, runs),
        )
        for number, runs in sorted(blocks.items())
    ]


def _ratios(study: Study, runs: Sequence[tuple[Trial, Run]]) -> dict[str, float]:
    base, sign = point_key(study.baseline), 1.0 if study.goal.direction == "maximize" else -1.0
    logs: dict[str, list[float]] = {}
    for trial, run in runs:
        value = run.metrics[study.goal.metric]
        if value > 0:
            logs.setdefault(trial.key, []).append(math.log(value))
    if base not in logs:
        return {}
    level = math.fsum(logs[base]) / len(logs[base])
    return {k: math.exp(sign * (math.fsum(v) / len(v) - level)) for k, v in logs.items() if k != base}


def _letters_of(study: Study, answer: Answer, blocks: Sequence[ProofBlock]) -> dict[str, str]:
    """A is the reference, B the setting the answer is about, then the others."""
    base = point_key(study.baseline)
    first = None if answer.candidate is None else point_key(answer.candidate.point)
    keys = dict.fromkeys(trial.key for block in blocks for trial, _ in block.runs)
    others = sorted((key for key in keys if key != base), key=lambda key: key != first)
    return {base: "A", **{key: _LETTERS[at % len(_LETTERS)] for at, key in enumerate(others)}}


def proof(study: Study, history: History, answer: Answer) -> Sequence[PlotFigure | IntervalFigure]:
    """Empty where nothing was confirmed in blocks. With two settings, `proof_pair` has shown every run already."""
    blocks = proof_blocks(study, history)
    if not blocks:
        return []
    letters = _letters_of(study, answer, blocks)
    pair = proof_pair(study, history, answer) is not None and len(letters) < 3
    runs = [] if pair else [_runs_in_order(study, answer, blocks, letters)]
    if kind_shown(answer).versions:
        return runs
    return [*runs, *_by_block(study, history, answer, blocks, letters)]


def proof_pair(study: Study, history: History, answer: Answer) -> PlotFigure | None:
    """The proof at a glance: every run of the reference and of the answer's setting, in the order they ran."""
    blocks = proof_blocks(study, history)
    if not blocks or answer.candidate is None or kind_shown(answer).versions:
        return None
    keys = {point_key(study.baseline): "A", point_key(answer.candidate.point): "B"}
    two = [replace(b, runs=tuple(pair for pair in b.runs if pair[0].key in keys)) for b in blocks]
    if len(keys) < 2 or {trial.key for block in two for trial, _ in block.runs} != set(keys):
        return None
    whole = _runs_in_order(study, answer, [block for block in two if block.runs], keys)
    names = (answer.reference.label, answer.candidate.label)
    series = tuple(replace(one, name=name) for one, name in zip(whole.series, names, strict=True))
    says = "Fresh runs, interleaved on the same nodes; one mark per run."
    spans = tuple(replace(span, label=span.label.split(":")[0]) for span in whole.spans)
    return replace(whole, key="proof-pair", title="Every confirmation run", says=says, series=series, spans=spans)


def _runs_in_order(
    study: Study, answer: Answer, blocks: Sequence[ProofBlock], letters: Mapping[str, str]
) -> PlotFigure:
    points: dict[str, list[PlotPoint]] = {key: [] for key in letters}
    spans, at = [], 0
    for block in blocks:
        start = at + 0.5
        for trial, run in block.runs:
            at += 1
            value = run.metrics[study.goal.metric]
            text = f"block {block.number + 1}, {letters[trial.key]}, #{trial.number}: {metric_text(value)}"
            points[trial.key].append(PlotPoint(at, value, label=text, trial=trial.number))
        nodes = ", ".join(block.nodes)
        spans.append(PlotSpan(f"block {block.number + 1}{': ' + nodes if nodes else ''}", start, at + 0.5, "block"))
    values = [p.y for row in points.values() for p in row]
    series = tuple(
        PlotSeries(_setting_name(study, answer, key, letter), tuple(points[key]), _look(letter, at), "points")
        for at, (key, letter) in enumerate(letters.items())
        if points[key]
    )
    says = (
        f"In the order they ran ({blocks[0].order(letters)} in the first block): interleaved, so that a machine "
        "that drifts affects all settings alike."
    )
    axis = Axis(
        "run of the confirmation, in order",
        ticks=tuple((float(n), str(n)) for n in range(1, at + 1)) if at <= 24 else (),
    )
    return PlotFigure(
        "proof-runs",
        "Every run of the confirmation",
        says,
        axis,
        goal_axis(study, values, answer.unit),
        series,
        spans=tuple(spans),
    )


def _look(letter: str, at: int) -> str:
    return BASELINE if letter == "A" else WINNER if letter == "B" else str(at)


def _setting_name(study: Study, answer: Answer, key: str, letter: str) -> str:
    text = changes(study.baseline, json.loads(key)) or answer.reference.label.removeprefix("setting A")
    return f"{letter}: {text}" if text else letter


def _by_block(
    study: Study, history: History, answer: Answer, blocks: Sequence[ProofBlock], letters: Mapping[str, str]
) -> list[IntervalFigure]:
    rows: list[IntervalRow] = []
    details = {} if history.verdict is None else history.verdict.details
    judged = {c["candidate"]: c for c in details.get("comparisons", ()) if c.get("estimate") is not None}
    for key, letter in letters.items():
        ratios = {block.number: block.ratios[key] for block in blocks if key in block.ratios}
        if letter == "A" or not ratios:
            continue
        if letter == "B":
            rows += [IntervalRow(f"block {n + 1}", ratio, text=ratio_text(ratio)) for n, ratio in ratios.items()]
        which = "B, the setting" if letter == "B" else letter
        label = f"all {len(ratios)}" if len(letters) < 3 else f"{which}, {count(len(ratios), 'block')}"
        mean = math.exp(math.fsum(map(math.log, ratios.values())) / len(ratios))
        found, dots = judged.get(key, {}), tuple(ratios.values())
        if failed := details.get("disqualified", {}).get(key):
            text = f"not judged, since it failed once: {failed.split(';')[0]}"
            rows.append(IntervalRow(label, mean, dots=dots, text=text))
        elif found.get("scale") != "ratio" or found.get("low") is None or found.get("high") is None:
            rows.append(IntervalRow(label, mean, dots=dots, text=f"{ratio_text(mean)}, no interval yet"))
        else:
            estimate = (float(found["estimate"]), float(found["low"]), float(found["high"]))
            rows.append(_judged(label, estimate, found["verdict"], dots, letter == "B"))
    if not rows:
        return []
    level = max((float(c["level"]) for c in judged.values()), default=study.confirm.level)
    of = answer.reference.label
    says = f"Each block's ratio to {of}, and below them the {level * 100:g}% interval over all blocks."
    return [
        IntervalFigure("proof-ratios", "Block by block", says, Axis(f"ratio to {of} (above 1 is better)"), tuple(rows))
    ]


def proof_table(study: Study, history: History, answer: Answer) -> TextTable | None:
    """Every block's runs: where, in which order, what each measured, and the ratio."""
    blocks = proof_blocks(study, history)
    if not blocks:
        return None
    letters = _letters_of(study, answer, blocks)
    judged = not kind_shown(answer).versions
    head = ("block", "nodes", "order", *letters.values(), *(("B / A",) if judged else ()))
    rows = []
    for block in blocks:
        measured = [
            ", ".join(metric_text(r.metrics[study.goal.metric]) for t, r in block.runs if t.key == key) or "–"
            for key in letters
        ]
        ratio = next((f"{ratio:.3f}" for key, ratio in block.ratios.items() if letters[key] == "B"), "–")
        row = (str(block.number + 1), ", ".join(block.nodes), block.order(letters), *measured, ratio)
        rows.append(row[: len(head)])
    names = tuple(_setting_name(study, answer, key, letter) for key, letter in letters.items())
    aside = tuple(f"block {a.block + 1} was run again: {a.reason}" for a in history.set_aside)
    told = tuple(name for name in names if ": " in name)
    measured_in = f" in {answer.unit}" if answer.unit else ""
    return TextTable(f"Every block: {study.goal.metric}{measured_in}", head, tuple(rows), notes=(*told, *aside))


def ladder(study: Study, history: History) -> IntervalFigure | None:
    """The gain of each change from the baseline to the setting; None where no steps were run."""
    details = {} if history.verdict is None else history.verdict.details
    steps = [step for step in details.get("steps", ()) if "change" in step]
    if not steps:
        return None
    rows = tuple(_step(step) for step in steps)
    says = (
        "Each change on the way from the baseline to the setting, as a ratio to the step before, from interleaved runs."
    )
    return IntervalFigure("ladder", "The gain of each change", says, Axis("ratio to the step before"), rows)


def _step(step: Mapping[str, Any]) -> IntervalRow:
    ratio, low, high = (step.get(name) for name in ("ratio", "low", "high"))
    if ratio is None or low is None or high is None:
        return IntervalRow(str(step["change"]), ratio, text=str(step["verdict"]))
    return _judged(str(step["change"]), (ratio, low, high), str(step["verdict"]))


def _judged(
    label: str, found: tuple[float, float, float], verdict: str, dots: Sequence[float] = (), of_answer: bool = True
) -> IntervalRow:
    look = WINNER if of_answer and verdict == "better" else OTHER
    shown, interval = ratio_range(*found)
    return IntervalRow(label, *found, tuple(dots), f"{shown} ({interval}), {verdict}", look)
