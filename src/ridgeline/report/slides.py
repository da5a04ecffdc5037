"""A campaign as slides: the question, the method, the search, what each change gained, the proof, the rules of a task,
what failed, what to try next, the cost, the command. One HTML file; each slide's title is what it says."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib.resources import files
from shlex import quote

from ridgeline.records.answer import CONFIRMED, OVER_LIMIT, Answer
from ridgeline.records.exhibit import EQUIVALENCE, TASK_RULES, TextTable, changes, value_text
from ridgeline.records.expression import is_number
from ridgeline.records.outcome import Kind
from ridgeline.records.space import Discrete, Knob
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage
from ridgeline.report.drawing.draw import NARROW_PX, draw, legend
from ridgeline.report.figures.failures import crash_map, failure_counts
from ridgeline.report.figures.progress import progress_now
from ridgeline.report.figures.proof import OF_VERSIONS, ladder, proof, proof_blocks, proof_pair
from ridgeline.report.figures.shapes import (
    Axis,
    BarFigure,
    BarPart,
    BarRow,
    Figure,
    HeatFigure,
    IntervalFigure,
    ParallelFigure,
    PlotFigure,
)  # fmt: skip
from ridgeline.report.figures.values import is_ok, varied_knobs
from ridgeline.report.html import Folders, part_html
from ridgeline.report.insights import insights
from ridgeline.report.measured import folder_text, place_text
from ridgeline.report.page import style
from ridgeline.report.parts import Bullets, CodeText, FactTiles, Hint, Paragraph, Part
from ridgeline.report.sections import (
    NO_SEARCH,
    NOT_WORKED_OUT,
    Findings,
    answer_card,
    gain_by_change,
    kind_parts,
    missing_part,
    origin_text,
    page_sentence,
    steps_command,
    stopped_texts,
)  # fmt: skip
from ridgeline.stats.contribution import contributions
from ridgeline.stats.wording import MetricText, count, node_time_text, ratio_text
from ridgeline.study.history import History
from ridgeline.workloads.base import terms_of

_FIGURES = (PlotFigure, IntervalFigure, BarFigure, HeatFigure, ParallelFigure)
# drawn for less than their place on a slide, which makes their text larger; few and many rows have widths of their own
_WHOLE_PX, _FEW_PX, _MANY_PX, _HALF_PX = 860.0, 700.0, 490.0, 420.0
_FEW_ROWS = 5
_MOST_ROWS, _MOST_FAILURES, _MOST_LINES, _LONGEST_LINE = 9, 7, 6, 230
_MOST_CODE_LINES, _LINE_WIDTH = 15, 100  # of a command; what is longer is written as a script
_FEWEST_VALUES = 3  # of a knob, below which its end of the range says nothing
_LEAST_HOURS = 0.01  # of nodes, below which nobody asks what they were for
_WORTH_BLOCKS = 0.05  # a possible gain, as a share, that is worth more blocks
_STAGES = {Stage.SENTINEL: "baseline again", Stage.CONFIRM: "confirmation"}
_MOST_ALIKE = 7  # rows beside a figure
_FEWEST_LINES, _FEW_LINES, _SHORT_LINE = 4, 7, 60  # too few for a slide; whose text may be larger; characters of one
_LEARNING = ("guided", "tpe")  # samplers whose next trial depends on the last
_LEAST_GAP = 1.005  # of a ratio, below which nothing is earned back


@dataclass(frozen=True, slots=True)
class Slide:
    """`title` is what it says, in a sentence; `right` stands beside `left`."""

    key: str
    title: str
    left: tuple[Part, ...]
    right: tuple[Part, ...] = ()


def slides(found: Findings) -> list[Slide]:
    """Those that have something to say."""
    made: dict[str, Callable[[Findings], Slide | None]] = {
        "question": _question, "method": _method, "kind": _kind, "search": _search, "changes": _changes,
        "proof": _proof, "rules": _rules, "failures": _failures, "next": _next, "cost": _cost, "use": _use,
    }  # fmt: skip
    shown: list[Slide] = []
    for key, make in made.items():
        try:
            slide = make(found)
        except NOT_WORKED_OUT as error:
            slide = Slide(key, "A slide is missing", (missing_part(key, error),))
        if slide is not None:
            shown.append(slide)
    return _without_empty_ones(shown)


def _without_empty_ones(shown: Sequence[Slide]) -> list[Slide]:
    """A line or two of what else there is to say stand below the last slide that has something of its own."""
    said = next((slide for slide in shown if slide.key == "next"), None)
    if said is None or sum(map(_lines, (*said.left, *said.right))) > _FEWEST_LINES:
        return list(shown)
    kept = [slide for slide in shown if slide is not said]
    home = next((slide for key in ("use", "kind", "changes", "proof") for slide in kept if slide.key == key), None)
    if home is None:
        return list(shown)
    return [replace(s, left=(*s.left, *said.left)) if s is home else s for s in kept]


def _question(found: Findings) -> Slide:
    study = found.study
    card = replace(answer_card(found), command="", command_note="", notes=(), figure=None)
    notes = (*(page_sentence(note, found) for note in found.notes), *stopped_texts(found))
    said = tuple(Paragraph(_cut(note), "note") for note in notes[:2])
    return Slide("question", _cut(study.question or study.name, 160), (*said, card))


def _method(found: Findings) -> Slide:
    study, history, answer = found.study, found.history, found.answer
    tried = len({trial.key for trial in history.trials.values()})
    best = "the best confirmed" if answer.confirmed else "the best run again beside the baseline"
    held = "all of them run again beside the baseline" if _equivalence(found) is not None else best
    confirmed = f" and {held} in fresh runs" if proof_blocks(study, history) else ""
    title = "How it was measured" if answer.kind in NO_SEARCH else f"{count(tried, 'setting')} tried{confirmed}"
    table = _two_settings(found) or _varied(found)
    return Slide("method", title, (Bullets(tuple(_how(study, history, answer))),), () if table is None else (table,))


def _varied(found: Findings) -> TextTable | None:
    """What the study lets change; of other questions than a search, what did."""
    study, searched = found.study, found.answer.kind not in NO_SEARCH
    moved = varied_knobs(study, found.history)
    knobs = tuple(
        (k.name, _values(k), value_text(study.baseline.get(k.name)))
        for k in study.space.varied
        if searched or k.name in moved
    )
    if not knobs:
        return None
    title, first = ("What could change", "baseline") if searched else ("What was varied", "start")
    return TextTable(title, ("knob", "values", first), knobs[:_MOST_ROWS], notes=_more(knobs))


def _two_settings(found: Findings) -> TextTable | None:
    """Of a comparison: what differs, and what that measured."""
    if found.answer.kind != "compare":
        return None
    table = next((t for t in found.exhibits.tables if t.changed), None)
    if table is None:
        return None
    rows = tuple(row for at, row in enumerate(table.rows) if at in table.changed or row[0] == found.study.goal.metric)
    return _short(replace(table, rows=rows, changed=frozenset()))


def _values(knob: Knob) -> str:
    if not isinstance(knob, Discrete):
        return f"{knob.low:g} to {knob.high:g}"
    values = knob.values
    if len(values) <= 6:
        return _cut(", ".join(map(value_text, values)), 40)
    if all(map(is_number, values)):
        return f"{values[0]} to {values[-1]} ({len(values)} values)"
    return f"{len(values)} values"


def _how(study: Study, history: History, answer: Answer) -> Iterator[str]:
    goal, confirm = study.goal, study.confirm
    unit = f" ({answer.unit})" if answer.unit else ""
    counted = f": {terms.counted}" if (terms := terms_of(study)).counted else ""
    yield f"Goal: the {'highest' if goal.direction == 'maximize' else 'lowest'} {goal.metric}{unit}{counted}"
    if study.guards:
        yield _cut(f"For a run to count: {'; '.join(map(str, study.guards[:3]))}{_and_more(study.guards, 3)}")
    searched = sum(trial.stage is Stage.SEARCH for trial in history.trials.values())
    if searched and answer.kind not in NO_SEARCH:
        size = math.prod(knob.count or 0 for knob in study.space.knobs)
        of = f" of {size:,} combinations" if size else ""
        yield _baseline_first(study, history)
        learned = ", each chosen by what the ones before had shown" if study.search.sampler in _LEARNING else ""
        yield f"The search ran {count(searched, 'trial')}{of}{learned}"
    yield from _how_of_kind(answer.kind, history)
    if blocks := proof_blocks(study, history):
        yield (
            f"Proof: {count(len(blocks), 'block')} of fresh, interleaved runs, {confirm.repeats} of each setting in "
            f"a block; {confirm.level * 100:g}% interval"
        )
    nodes = sorted({node for run in history.runs.values() for node in run.ending.nodes})
    gpus = sorted({gpu for run in history.runs.values() for m in run.ending.machines for gpu in m.gpus})
    gpus = [gpu for gpu in gpus if not gpu.startswith("GPU-")]  # a number that tells nobody what it is
    where = f" on {', '.join(nodes[:6])}{_and_more(nodes, 6)}" if nodes else ""
    yield _cut(f"{(origin_text(study, history) or 'nothing measured yet').capitalize()}{where}, site {study.site.name}")
    if gpus:
        yield _cut(f"GPUs: {', '.join(gpus)}")


def _how_of_kind(kind: str, history: History) -> Iterator[str]:
    asked = history.question.details
    if kind == "edge":
        yield f"{asked['knob']} was raised until runs failed; {count(asked['repeats'], 'run')} had to pass at the edge"
    elif kind == "scale":
        yield f"Each size ran {asked['repeats']} times, in mixed order"
    elif kind == "bisect":
        yield f"The two ends first, then the {asked['over']} pair whose comparison tells most, until one is sure"
    elif kind == "gate" and asked.get("stored"):
        new = len(history.ok_runs(Stage.BASELINE, Stage.SEARCH))
        yield f"{count(new, 'new run')} against {len(asked['stored'])} stored ones of the reference"


def _baseline_first(study: Study, history: History) -> str:
    runs = sum(history.trials[run.trial].stage is Stage.BASELINE for run in history.runs.values())
    first = f"The baseline was measured first, in {count(runs, 'run')}"
    if not study.search.sentinel_every:
        return first
    return f"{first}, and again every {study.search.sentinel_every} trials: a machine that drifts is seen"


def _kind(found: Findings) -> Slide | None:
    """What a campaign of this kind has of its own: a figure, else a table. What differs in a comparison stands with
    how it was measured."""
    answer = found.answer
    if answer.kind not in NO_SEARCH or answer.kind in ("steps", "compare"):
        return None
    parts = [*kind_parts(found)]
    figures = [part for part in parts if isinstance(part, _FIGURES)][:2]
    shown = figures or [_short(part) for part in parts if isinstance(part, TextTable)][:1]
    return Slide("kind", _cut(answer_card(found).lead, 150), tuple(shown[:1]), tuple(shown[1:])) if shown else None


def _search(found: Findings) -> Slide | None:
    history, answer = found.history, found.answer
    figure = None if answer.kind in NO_SEARCH else progress_now(found.study, history, answer, found.exhibits.groups)
    if figure is None:
        return None
    trials = count(sum(t.stage is Stage.SEARCH for t in history.trials.values()), "trial")
    card, over = answer_card(found), answer.conclusion is not None
    if card.before:
        title = f"{trials} of search led from {card.before} to {card.after} {card.unit}"
    else:
        title = f"The search: {trials}, {'nothing better' if answer.keep else 'no verdict'}{'' if over else ' yet'}"
    return Slide("search", title, (figure,))


def _changes(found: Findings) -> Slide | None:
    """The way from the baseline to the setting, and what each change gained as far as that is known."""
    answer, table = found.answer, found.exhibits.setting
    if answer.kind in NO_SEARCH and answer.kind != "steps":
        return None
    parts = [*gain_by_change(found)]
    changed = sorted(table.changed) if table is not None else []
    if not parts and not changed:
        return None
    left: list[Part] = []
    if table is not None and changed:
        rows = tuple(table.rows[at] for at in changed)
        left.append(_short(replace(table, title="", rows=rows, changed=frozenset(), notes=())))
    figures = [replace(part, says="") for part in parts if isinstance(part, IntervalFigure)]
    hints = [Hint(_cut(part.text), part.command) for part in parts if isinstance(part, Hint)]
    gains = [row for figure in figures for row in figure.rows if row.look == "winner" and row.value is not None]
    most = max(gains, key=lambda row: row.value or 0.0, default=None)
    way = f"{count(len(changed), 'change')} from the baseline to the setting" if changed else "Step by step"
    measured = _steps_measured(found)
    title = f"{way}; most is gained by {most.label}{'' if measured else ', as estimated'}" if most is not None else way
    left_parts, right = ([*left, *hints], figures) if figures else (left, hints)
    return Slide("changes", _cut(title, 150), tuple(left_parts or right), tuple(right if left_parts else ()))


def _steps_measured(found: Findings) -> bool:
    return any(one is not None and ladder(found.study, one) is not None for one in (found.history, found.steps))


def _proof(found: Findings) -> Slide | None:
    study, history, answer = found.study, found.history, found.answer
    pair, figures = proof_pair(study, history, answer), proof(study, history, answer)
    shown = [*([] if pair is None else [pair]), *map(_few_rows, figures)]
    if not shown:
        return None
    card = answer_card(found)
    sure = card.interval[:1].lower() + card.interval[1:]
    title = f"{card.ratio} {card.than}: {sure}" if card.ratio else card.lead
    if answer.kind in OF_VERSIONS:
        title = f"The {count(sum(len(block.runs) for block in proof_blocks(study, history)), 'run')} that show it"
    right: tuple[Part, ...] = tuple(shown[-1:] if len(shown) > 1 else ())
    if (table := _equivalence(found)) is not None:
        rows = tuple((_cut(setting, 34), change, decision) for setting, change, _, decision, *_ in table.rows)
        head = (table.head[0], table.head[1], table.head[3])
        notes = (*table.notes[-1:], *_more(rows, _MOST_ALIKE))
        right = (TextTable("Each setting beside the baseline", head, rows[:_MOST_ALIKE], notes=notes),)
    return Slide("proof", _cut(title, 150), (shown[0],), right)


def _equivalence(found: Findings) -> TextTable | None:
    return next((table for table in found.exhibits.tables if table.title == EQUIVALENCE), None)


def _few_rows(figure: PlotFigure | IntervalFigure) -> PlotFigure | IntervalFigure:
    """Without the single blocks where there are many: what they say together is at the end."""
    if not isinstance(figure, IntervalFigure) or len(figure.rows) <= _MOST_ROWS:
        return figure
    return replace(figure, rows=tuple(row for row in figure.rows if row.dots)[:_MOST_ROWS])


def _rules(found: Findings) -> Slide | None:
    """The task's rules with their evidence, and the signature to hand in."""
    table = next((table for table in found.exhibits.tables if table.title == TASK_RULES), None)
    if table is None:
        return None
    rules = [row for row in table.rows if row[1]]
    broken = sum(row[1] != "yes" for row in rules)
    title = f"{broken} of {count(len(rules), 'rule')} of the task {'was' if broken == 1 else 'were'} not kept"
    rows = tuple((_cut(rule, 110), kept, _cut(why, 150)) for rule, kept, why in sorted(rules, key=_is_kept))
    failed = frozenset(at for at, row in enumerate(rows[:_MOST_ROWS]) if row[1] != "yes")
    shown = TextTable("", table.head, rows[:_MOST_ROWS], failed, notes=_more(rows))
    return Slide(
        "rules",
        title if broken else f"The task's {count(len(rules), 'rule')}: all kept",
        (shown, Paragraph(_cut(f"{table.notes[0][:1].upper()}{table.notes[0][1:]}"), "sub"), _HAND_IN),
    )


_HAND_IN = Paragraph(
    "Hand the signature in with the result: ridgeline study verify makes it again from the runs.", "sub"
)


def _is_kept(row: Sequence[str]) -> bool:
    return row[1] == "yes"


def _failures(found: Findings) -> Slide | None:
    study, history = found.study, found.history
    counts = failure_counts(history)
    if not counts or found.answer.kind == "edge":  # whose own figure shows each of them
        return None
    failed = sum(n for _, n, _ in counts)
    named = [(Kind(kind).text, n) for kind, n, _ in counts[:4]]
    kinds = ", ".join(f"{n} {kind}" for kind, n in named) if len(named) > 1 else named[0][0]
    title = f"{failed} of {count(len(history.runs), 'run')} did not pass: {kinds}"
    where = crash_map(study, history)
    if failed <= _MOST_FAILURES and where is None:
        each = [(run, history.trials[run.trial]) for run in history.runs.values() if not is_ok(run)]
        rows = tuple(
            (
                f"#{trial.number}",
                _cut(changes(study.baseline, trial.point) or "the baseline", 170),
                _cut(str(run.outcome), 150),
            )
            for run, trial in each
        )
        return Slide("failures", title, (TextTable("", ("trial", "what it changed", "how it ended"), rows),))
    rows = tuple(
        (Kind(kind).text, str(n), _first_of(kind, history, 170 if where is None else 60)) for kind, n, _ in counts
    )
    table = TextTable("", ("outcome", "runs", "first one"), rows[:5], notes=_more(rows, 5))
    return Slide("failures", title, (table,), () if where is None else (where,))


def _first_of(kind: str, history: History, most: int) -> str:
    """Without the line that decided, which is in the report."""
    run = next(run for run in history.runs.values() if run.outcome is not None and run.outcome.kind.value == kind)
    assert run.outcome is not None
    return _cut(f"#{run.trial}: {run.outcome.reason or run.outcome.kind.text}", most)


def _next(found: Findings) -> Slide | None:
    said = next_steps(found)
    lines = insights(found.study, found.history, found.answer, gain=False)
    also = [*(line for line in lines if not line.startswith("the confirmation ran")), *_other_notes(found)]
    if not said and not also:
        return None
    seen = (Paragraph("What else the runs show", "sub"), _bullets(also)) if also else ()
    if not said:
        return Slide("next", "What else the runs show", (_bullets(also),))
    return Slide("next", "What we would try next", (_bullets(said),), seen)


def _other_notes(found: Findings) -> Iterator[str]:
    """Why the search ended is among the next steps."""
    return (page_sentence(n, found) for n in found.exhibits.notes if not n.startswith("search ended:"))


def next_steps(found: Findings) -> list[str]:
    """What the runs leave open, most useful first, with the command where there is one."""
    study, history, answer = found.study, found.history, found.answer
    folder, candidate = folder_text(history), answer.candidate
    said: list[str] = []
    if answer.conclusion is None:
        said.append(f"Finish it: ridgeline resume {folder}")
    elif answer.next_step:
        said.append(f"There is no verdict; go on with: {answer.next_step.replace(quote(str(history.root)), folder)}")
    elif answer.keep and candidate is not None and candidate.gain is not None:
        gain = candidate.gain
        if gain.ratio > 1 and gain.high is not None and gain.high > 1 + _WORTH_BLOCKS:
            seen = f"{ratio_text(gain.ratio)} was seen, and up to {ratio_text(gain.high)} is not ruled out"
            said.append(f"{seen}; more blocks, where nothing else runs: ridgeline resume {folder} --blocks +5")
    if answer.simulated:
        said.append("Measure it: these numbers are simulated. The same study runs on the machine itself")
    if answer.broken:
        over = f"{answer.to_use_label} is {OVER_LIMIT}{' and '.join(map(str, answer.broken))}"
        find = terms_of(study).to_keep
        said.append(f"{over}. To find the highest load that keeps them: {find}" if find else f"{over}.")
    if candidate is not None and answer.kind not in NO_SEARCH:
        said += _ends_of_ranges(study, answer)
        said += _not_attributed(found)
    remedies = {
        run.outcome.remedy: run.outcome.kind.text
        for run in history.runs.values()
        if run.outcome is not None and run.outcome.remedy and run.outcome.kind is not Kind.OK
    }
    said += [f"{kind[:1].upper()}{kind[1:]}: {remedy}" for remedy, kind in [*remedies.items()][:2]]
    if history.search_ended and answer.kind not in NO_SEARCH:
        why, _, left = history.search_ended.partition("; with more trials: ")
        said.append(f"More trials ({why}): {left}" if left else f"The search ended: {why}")
    return said


def _ends_of_ranges(study: Study, answer: Answer) -> list[str]:
    """Knobs at an end of a range of numbers: the best may lie beyond it."""
    assert answer.candidate is not None
    found, terms = [], terms_of(study)
    for knob in study.space.knobs:
        value = answer.candidate.point.get(knob.name)
        if isinstance(knob, Discrete):
            numbers = [float(v) for v in knob.values if is_number(v)]
            ends = (min(numbers), max(numbers)) if len(numbers) == len(knob.values) >= _FEWEST_VALUES else ()
        else:
            ends = (knob.low, knob.high)
        if is_number(value) and value >= terms.enough.get(knob.name, math.inf):
            continue
        if is_number(value) and value in ends and value != study.baseline.get(knob.name):
            found.append(f"{knob.name} {value}")
    if not found:
        return []
    return [f"At an end of what the study allows: {', '.join(found)}. Allow values beyond, where the machine can"]


def _not_attributed(found: Findings) -> list[str]:
    study, history, answer = found.study, found.history, found.answer
    if _steps_measured(found):
        return []
    assert answer.candidate is not None
    runs = history.ok_runs(Stage.BASELINE, Stage.SENTINEL, Stage.SEARCH)
    trials = [(trial.point, run.metrics[study.goal.metric]) for trial, run in runs]
    parts = contributions(study.baseline, answer.candidate.point, trials, study.goal.direction, study.confirm.level)
    unclear = [part.name for part in parts if not part.detectable and not part.small]
    if answer.conclusion != CONFIRMED or len(parts) < 2:
        return []
    why = (
        f"too few trials to tell what {', '.join(unclear)} gained"
        if unclear
        else "what each change gained is estimated"
    )
    return [f"{why[:1].upper()}{why[1:]}; to measure it: {steps_command(history)}"]


def _cost(found: Findings) -> Slide | None:
    study, history, answer = found.study, found.history, found.answer
    if history.node_hours < _LEAST_HOURS:
        return None  # the first slide has said it
    hours: dict[str, float] = {}
    for run in history.runs.values():
        name = (
            "failed or stopped"
            if run.outcome is None or run.outcome.kind is not Kind.OK
            else _STAGES.get(history.trials[run.trial].stage, history.trials[run.trial].stage.value)
        )
        hours[name] = hours.get(name, 0.0) + run.node_hours
    spent, unit = node_time_text(history.node_hours).split(" ", 1)
    title = f"It cost {count(len(history.runs), 'run')} and {spent} {unit}"
    tiles: list[tuple[str, str, str]] = [
        (
            "runs",
            f"{len(history.runs):,}",
            f"{sum(r.outcome is not None and r.outcome.kind is Kind.OK for r in history.runs.values())} of them passed",
        ),
        (unit, spent, "simulated" if answer.simulated else _wall(history.wall_s)),
        *_earned_back(study, history, answer),
    ]
    rows = tuple(
        BarRow(name, (BarPart("node-hours", value),), f"{value:.3g}")
        for name, value in sorted(hours.items(), key=lambda pair: -pair[1])
        if value
    )
    bars = BarFigure("cost-by-stage", "Node-hours by what they were for", "", Axis("node-hours", from_zero=True), rows)
    return Slide("cost", title, (FactTiles(tuple(tiles)),), (bars,) if len(rows) > 1 else ())


def _wall(seconds: float) -> str:
    if seconds < 120:
        return f"in {seconds:.0f} s"
    return f"in {seconds / 60:.0f} minutes" if seconds < 7200 else f"in {seconds / 3600:.1f} hours"


def _earned_back(study: Study, history: History, answer: Answer) -> Iterator[tuple[str, str, str]]:
    """What the gain is worth in node-hours, where the goal is a speed."""
    gain = None if answer.candidate is None else answer.candidate.gain
    goal = MetricText(study.goal.metric, answer.unit, study.goal.direction)
    # one that is said by name is no speed: goodput leaves out what was served too late, which takes as long
    speed = goal.is_time or (study.goal.direction == "maximize" and answer.unit.endswith("/s") and not goal.is_named)
    if gain is None or not speed or answer.conclusion != CONFIRMED or gain.ratio < _LEAST_GAP:
        return
    yield "100 node-hours of this work", f"now take {100 / gain.ratio:.3g}", "node-hours"
    after = history.node_hours / (1 - 1 / gain.ratio)
    yield "earned back", f"after {node_time_text(after)}", "of work at the baseline's speed"


def _use(found: Findings) -> Slide | None:
    history, answer = found.history, found.answer
    card = answer_card(found)
    if not card.command:
        return None
    folder = folder_text(history)
    lines = card.command.splitlines()
    fits = sum(1 + len(line) // _LINE_WIDTH for line in lines) <= _MOST_CODE_LINES
    script = f"ridgeline best {folder} --script run.sh\nsh run.sh"
    in_script = [f"Its {len(lines)} lines hold the input too"]
    code, notes = (card.command, [card.command_note]) if fits else (script, in_script)
    note = tuple(Paragraph(_cut(text), "sub") for text in notes if text)
    verify = f"`ridgeline study verify {folder}` recomputes every number here from the runs' own files."
    check = f"{place_text(history)}, {verify}"
    return Slide(
        "use",
        f"To keep: {answer.reference.label}" if answer.keep else "The setting, ready to paste",
        (CodeText(code), *note, Paragraph(check, "sub")),
    )


def _bullets(lines: Sequence[str]) -> Bullets:
    return Bullets(tuple(_cut(line[:1].upper() + line[1:]) for line in lines[:_MOST_LINES]))


def _short(table: TextTable) -> TextTable:
    return replace(table, rows=table.rows[:_MOST_ROWS], notes=(*table.notes[:1], *_more(table.rows)))


def _more(rows: Sequence[object], most: int = _MOST_ROWS) -> tuple[str, ...]:
    return (f"{len(rows) - most} more are in the report",) if len(rows) > most else ()


def _and_more(items: Sequence[object], most: int) -> str:
    return f" and {len(items) - most} more" if len(items) > most else ""


def _cut(text: str, most: int = _LONGEST_LINE) -> str:
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def deck(found: Findings) -> Iterator[bytes]:
    """The file, slide by slide. It scrolls from slide to slide; a small script adds the arrow keys."""
    shown, name = slides(found), found.study.name
    yield (
        f"<!doctype html><html lang=en><head><meta charset=utf-8><title>{escape(name)}: slides</title>"
        "<meta name=viewport content='width=device-width,initial-scale=1'>"
        f"<style>{style()}\n@page{{size:13.3333in 7.5in;margin:0}}</style></head><body class=slides><main>\n"
    ).encode(errors="replace")
    folders = Folders(found.history.root, None)
    for at in range(len(shown)):
        yield _slide_html(shown, at, name, folders).encode(errors="replace")
    keys = files("ridgeline.report").joinpath("assets/slides.js").read_text()
    yield f"</main>\n<script>{keys}</script></body></html>\n".encode()


def _slide_html(shown: Sequence[Slide], at: int, name: str, folders: Folders) -> str:
    slide, half = shown[at], bool(shown[at].right)
    tag = "h1" if at == 0 else "h2"
    few = " few" if sum(map(_lines, (*slide.left, *slide.right))) <= _FEW_LINES else ""
    sides = "".join(
        f"<div class={'drawn' if isinstance(parts[0], _FIGURES) else 'written'}>"
        f"{''.join(piece for part in parts for piece in _part_html(part, folders, half))}</div>"
        for parts in (slide.left, slide.right)
        if parts
    )
    before, after = shown[max(0, at - 1)].key, shown[min(len(shown) - 1, at + 1)].key
    turn = (
        f"<a href='#{before}' aria-label='slide before'>←</a> {at + 1} / {len(shown)} "
        f"<a href='#{after}' aria-label='next slide'>→</a>"
    )
    return (
        f"<section id={slide.key} class=slide><div class=stage><div class=inside><{tag}>{escape(slide.title)}</{tag}>"
        f"<div class='sides{' two' if half else ''}{few}'>{sides}</div>"
        f"<footer><span>{escape(name)}</span><nav aria-label='slide {at + 1}'>{turn}</nav></footer>"
        "</div></div></section>\n"
    )


def _lines(part: Part) -> int:
    """How much text there is; what is drawn fills its place."""
    match part:
        case Bullets():
            return sum(1 + len(line) // _SHORT_LINE for line in part.lines)
        case TextTable():
            return 1 + sum(1 + max(map(len, row)) // _SHORT_LINE for row in part.rows)
        case CodeText():
            return 1 + part.text.count("\n") + len(part.text) // _LINE_WIDTH
        case Paragraph():
            return 1
    return _FEW_LINES + 1


def _part_html(part: Part, folders: Folders, half: bool) -> Iterator[str]:
    if isinstance(part, _FIGURES):
        yield _figure_html(part, half)
    else:
        yield from part_html(part, folders)


def _width_px(figure: Figure, half: bool) -> float:
    """Few rows are drawn larger where there is room below; many keep their labels beside them, which takes half the
    height."""
    if isinstance(figure, IntervalFigure | BarFigure):
        few = len(figure.rows) <= _FEW_ROWS
        return (_HALF_PX if few else _MANY_PX) if half else (_FEW_PX if few else _WHOLE_PX)
    return _HALF_PX if half else _WHOLE_PX


def _figure_html(figure: Figure, half: bool) -> str:
    """From the top of its place downwards. One that is alone has its name in the slide's title."""
    title = f"<h3>{escape(figure.title)}</h3>" if figure.title and half else ""
    said = f"<figcaption>{escape(_cut(figure.says))}</figcaption>" if figure.says else ""
    wide = draw(figure, _width_px(figure, half)).replace("<svg ", "<svg preserveAspectRatio=xMinYMin ", 1)
    return (
        f"<figure>{title}{said}{legend(figure)}<div class=wide>{wide}</div>"
        f"<div class=narrow>{draw(figure, NARROW_PX)}</div></figure>"
    )
