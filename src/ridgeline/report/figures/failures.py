"""What failed where: counts by kind with the first story of each, and a map over the two knobs that tell most."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from ridgeline.records.exhibit import TextTable
from ridgeline.records.expression import Value, is_number
from ridgeline.records.run import Run
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.report.figures.shapes import HeatCell, HeatFigure
from ridgeline.report.figures.values import is_ok, judged_runs, varied_knobs
from ridgeline.stats.wording import metric_text
from ridgeline.store.history import History

OUT_OF_MEMORY = ("oom-start", "oom-run")
MOST_PARTS = 12  # columns or lines of the map; a number with more values is cut into about that many ranges


def failure_counts(history: History) -> list[tuple[str, int, str]]:
    """Kind, how many, and the story of the first of them; most frequent first."""
    counts: Counter[str] = Counter()
    stories: dict[str, str] = {}
    for run in history.runs.values():
        if run.outcome is not None and not is_ok(run):
            counts[run.outcome.kind.value] += 1
            stories.setdefault(run.outcome.kind.value, f"#{run.trial}: {run.outcome}")
    return [(kind, n, stories[kind]) for kind, n in counts.most_common()]


def failure_table(history: History) -> TextTable | None:
    found = failure_counts(history)
    if not found:
        return None
    rows = tuple((kind, str(n), story) for kind, n, story in found)
    return TextTable("Runs that do not count", ("kind", "runs", "the first of them"), rows, frozenset(range(len(rows))))


def crash_map(study: Study, history: History) -> HeatFigure | None:
    """None where no setting failed, or only one knob was moved."""
    runs = [(t, r) for t, r in judged_runs(history) if t.stage is not Stage.PROFILE]
    if all(is_ok(r) for _, r in runs):
        return None
    ranked = sorted(varied_knobs(study, history), key=lambda name: -_told_by(name, runs))
    if len(ranked) < 2:
        return None
    # the edge is read along the x axis, so numbers go there
    first, second = ranked[:2]
    if not _numeric(first, runs) and _numeric(second, runs):
        first, second = second, first
    columns, lines = _parts(first, runs), _parts(second, runs)
    cells = tuple(tuple(_cell(study, runs, first, x, second, y) for x in columns) for y in lines)
    edges = tuple(_edge(row) for row in cells) if _numeric(first, runs) else ()
    edge = (
        "The heavy line is the edge of memory: right of it nothing passed." if any(e is not None for e in edges) else ""
    )
    says = (
        f"Settings by {first} and {second}, the two knobs that best tell failures from passes: the share that failed, "
        f"and how. {edge}"
    ).strip()
    return HeatFigure(
        "crashes", "Where settings failed", says, first, second,
        tuple(map(_shown, columns)), tuple(map(_shown, lines)), cells, "share that failed", edges, False,
    )  # fmt: skip


def _shown(part: Sequence[Value]) -> str:
    ends = ["none" if value is None else str(value) for value in part]
    return ends[0] if len(ends) == 1 else f"{ends[0]} to {ends[-1]}"


def _numeric(name: str, runs: Sequence[tuple[Trial, Run]]) -> bool:
    return all(is_number(t.point.get(name)) for t, _ in runs)


def _parts(name: str, runs: Sequence[tuple[Trial, Run]]) -> list[list[Value]]:
    """The values of a knob from low to high; neighbours together where there are too many."""
    seen = list(dict.fromkeys(t.point.get(name) for t, _ in runs))
    seen.sort(key=lambda v: (not is_number(v), v if is_number(v) else 0, str(v)))
    size = -(-len(seen) // MOST_PARTS)
    return [seen[at : at + size] for at in range(0, len(seen), size)]


def _told_by(name: str, runs: Sequence[tuple[Trial, Run]]) -> float:
    """How much knowing this knob says about whether a run fails, in bits, less what its many values say by chance."""
    groups: dict[str, list[bool]] = {}
    for trial, run in runs:
        groups.setdefault(repr(trial.point.get(name)), []).append(is_ok(run))
    inside = sum(len(g) / len(runs) * _bits(sum(g) / len(g)) for g in groups.values())
    chance = (len(groups) - 1) / (2 * len(runs) * math.log(2))
    return _bits(sum(is_ok(r) for _, r in runs) / len(runs)) - inside - chance


def _bits(share: float) -> float:
    return 0.0 if share in (0.0, 1.0) else -share * math.log2(share) - (1 - share) * math.log2(1 - share)


def _cell(
    study: Study, runs: Sequence[tuple[Trial, Run]], x: str, at_x: Sequence[Value], y: str, at_y: Sequence[Value]
) -> HeatCell:
    here = [(t, r) for t, r in runs if t.point.get(x) in at_x and t.point.get(y) in at_y]
    if not here:
        return HeatCell()
    kinds = Counter(r.outcome.kind.value for _, r in here if r.outcome is not None and not is_ok(r))
    passed = [r.metrics[study.goal.metric] for _, r in here if is_ok(r) and study.goal.metric in r.metrics]
    best = f"; best {metric_text(max(passed, key=study.goal.score))}" if passed else ""
    told = ", ".join(f"{n} {kind}" for kind, n in kinds.items())
    label = f"{x} {_shown(at_x)}, {y} {_shown(at_y)}: {len(passed)} passed{', ' + told if told else ''}{best}"
    worst = kinds.most_common(1)[0][0] if kinds else ""
    text = f"{sum(kinds.values())}/{len(here)} {_short(worst)}" if kinds else f"{len(here)} ok"
    return HeatCell(sum(kinds.values()) / len(here), text, label, worst)


def _short(kind: str) -> str:
    return "oom" if kind in OUT_OF_MEMORY else kind


def _edge(row: Sequence[HeatCell]) -> int | None:
    """The last column with a pass, where only out-of-memory follows; None where the row shows no edge."""
    ran = [at for at, cell in enumerate(row) if cell.value is not None]
    passed = [at for at in ran if (row[at].value or 0.0) < 1.0]
    if not passed:
        return None
    after = [row[at].failed for at in ran if at > passed[-1]]
    return passed[-1] if after and all(kind in OUT_OF_MEMORY for kind in after) else None
