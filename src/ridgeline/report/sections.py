"""The report of a campaign as sections, in the order a sceptical reader asks: what, to paste, proof, how, all runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ridgeline.records.answer import Answer
from ridgeline.records.exhibit import Exhibits, TextTable
from ridgeline.records.study import Study
from ridgeline.report.figures.campaigns import curves, edge_climb
from ridgeline.report.figures.engine_log import batch_by_length, logged_runs, over_time, power, step_times, time_split
from ridgeline.report.figures.failures import crash_map, failure_table
from ridgeline.report.figures.guards import guard_table
from ridgeline.report.figures.knobs import effects, importance, parallel, slices
from ridgeline.report.figures.machine import node_table, nodes, predicted
from ridgeline.report.figures.progress import progress
from ridgeline.report.figures.proof import ladder, proof, proof_table
from ridgeline.report.figures.science import closeness
from ridgeline.report.figures.science import time_split as science_time
from ridgeline.report.figures.serving import against_load, energy_and_cost
from ridgeline.report.figures.shapes import FigureGroup, IntervalFigure
from ridgeline.report.insights import insights
from ridgeline.report.measured import measured
from ridgeline.report.parts import Bullets, CodeText, FactTiles, Fold, Paragraph, Part, RunRows, Section
from ridgeline.report.runs import runs_part
from ridgeline.stats.wording import count, metric_text, ratio_range
from ridgeline.study.history import History

# these answer another question than which setting is best: their own exhibits come first, and a search's are left out
NO_SEARCH = ("compare", "edge", "scale", "steps")


def sections(
    study: Study,
    history: History,
    answer: Answer,
    exhibits: Exhibits,
    notes: tuple[str, ...] = (),
    ladder_of: History | None = None,
) -> list[Section]:
    """`notes` are what the reader must know about the folder itself; `ladder_of` a campaign of steps to this winner."""
    made: list[tuple[str, str, Callable[[], Iterator[Part]]]] = [
        ("verdict", "", lambda: _verdict(study, history, answer, exhibits, notes)),
        ("setting", "The setting", lambda: _setting(history, answer, exhibits)),
        ("kind", _KIND_TITLES.get(answer.kind, "What was found"), lambda: _kind(study, history, answer, exhibits)),
        ("proof", "The proof", lambda: _proof(study, history, answer)),
        ("ladder", "The ladder", lambda: _ladder(study, history, ladder_of)),
        ("also", "What else the runs show", lambda: _insights(study, history, answer)),
        ("progress", "Progress", lambda: _progress(study, history, answer, exhibits)),
        ("knobs", "Every knob", lambda: _knobs(study, history, answer)),
        ("failures", "What failed", lambda: _failures(study, history)),
        ("serving", "Serving", lambda: _serving(study, history, answer)),
        ("science", "The program", lambda: _science(study, history, answer)),
        ("machine", "The machine", lambda: _machine(study, history)),
        ("twin", "Predicted and measured", lambda: iter(predicted(study, history, answer))),
        ("guards", "Guards", lambda: _guards(study, history)),
        ("measured", "How it was measured", lambda: measured(study, history, answer)),
        ("runs", "All runs", lambda: _runs(study, history, answer)),
    ]
    found = []
    for key, title, parts in made:
        shown = _safely(key, parts)
        if shown:
            found.append(Section(key, title, shown))
    return found


_KIND_TITLES = {"compare": "A and B", "edge": "How far it goes", "scale": "How it scales", "steps": "The steps"}


def _safely(key: str, parts: Callable[[], Iterator[Part]]) -> tuple[Part, ...]:
    """A part that cannot be worked out says so; one odd journal line must not cost the reader the whole page."""
    try:
        return tuple(parts())
    except (ArithmeticError, LookupError, TypeError, ValueError, AssertionError) as error:
        text = (
            f"This part ({key}) could not be worked out: {type(error).__name__}: {error}. The rest of the page stands."
        )
        return (Paragraph(text, "note"),)


def _verdict(
    study: Study, history: History, answer: Answer, exhibits: Exhibits, notes: tuple[str, ...]
) -> Iterator[Part]:
    yield from (Paragraph(note, "note") for note in notes)
    over = bool(answer.conclusion)
    text = answer.statement if over else f"{answer.statement} ({count(len(history.runs), 'run')} so far)"
    yield Paragraph((text[:1].upper() + text[1:]).replace(" -> ", " → "), "headline")
    if answer.refuted:
        yield Paragraph(answer.refuted, "sub")
    if answer.candidate is not None and not answer.confirmed and (answer.keep or answer.offers):
        yield Paragraph(f"{answer.candidate.label}, #{answer.candidate.trial}: {answer.change}", "sub")
    yield from (Paragraph(note, "sub") for note in exhibits.notes)
    if answer.stopped:
        yield Paragraph(f"The campaign was stopped: {answer.stopped}", "note")
    yield FactTiles(tuple(_tiles(study, history, answer)))


def _tiles(study: Study, history: History, answer: Answer) -> Iterator[tuple[str, str, str]]:
    candidate, before, unit = answer.candidate, answer.reference.value, answer.unit
    if before is not None:
        yield answer.reference.label, metric_text(before), unit
    if candidate is not None and candidate.point != answer.reference.point:
        yield candidate.label, metric_text(candidate.value), unit
        if (gain := candidate.gain) is not None and gain.low is not None and gain.high is not None:
            ratio, interval = ratio_range(gain.ratio, gain.low, gain.high)
            yield f"ratio, {gain.level * 100:g}% interval", ratio, interval
    yield "goal", study.goal.metric, study.goal.direction
    yield "runs", str(len(history.runs)), count(history.node_hours, "node-hour", f"{history.node_hours:.3g}")
    yield "numbers", _origin(study, history), f"site {study.site.name}"


def _origin(study: Study, history: History) -> str:
    """How the goal's numbers came about."""
    found = {m.origin for run in history.runs.values() for m in run.measurements if m.metric == study.goal.metric}
    return " and ".join(sorted(found)) or "none yet"


def _setting(history: History, answer: Answer, exhibits: Exhibits) -> Iterator[Part]:
    """What to type, and beside it what that changes."""
    table = exhibits.setting
    paste = bool(answer.offers and answer.confirmed and answer.paste)
    if paste:
        yield CodeText(answer.paste, copy=True)
        if answer.pasted_as:
            # where the study folder lies today is nobody's affair who reads the page elsewhere
            repeat = answer.repeat.replace(f"{history.root}/", "")
            again = f" To measure it again, in the study folder: {repeat}" if repeat else ""
            yield Paragraph(f"The text is {answer.pasted_as}.{again}", "sub")
    if table is not None:
        yield table
    if answer.keep and answer.paste:
        yield Paragraph(f"To keep: {answer.reference.label}")
        yield CodeText(answer.paste, copy=True)
    elif paste and answer.reference_paste:
        yield Fold(f"To compare with: {answer.reference.label}", (CodeText(answer.reference_paste, copy=True),))


def _kind(study: Study, history: History, answer: Answer, exhibits: Exhibits) -> Iterator[Part]:
    """What this kind of campaign has to show: its own figure first, then its tables."""
    details = {} if history.verdict is None else history.verdict.details
    if answer.kind == "edge":
        knob = str(history.question.details.get("knob", ""))
        figure = edge_climb(study, history, answer, knob)
        if figure is not None:
            yield figure
    for at, each in enumerate(exhibits.figures):
        yield curves(each, f"curve-{at}", details.get("law"), details.get("pays_to"))
    yield from exhibits.tables


def _proof(study: Study, history: History, answer: Answer) -> Iterator[Part]:
    figures = proof(study, history, answer)
    yield from figures
    table = proof_table(study, history, answer)
    if table is not None:
        yield table
    if not figures and answer.kind == "search" and history.verdict is not None:
        yield Paragraph(
            "Nothing was confirmed in interleaved blocks, so there is no proof beyond the search itself.", "note"
        )


def _ladder(study: Study, history: History, other: History | None) -> Iterator[Part]:
    for each in (history, other):
        figure: IntervalFigure | None = None if each is None else ladder(study, each)
        if figure is not None:
            yield figure
            return


def _insights(study: Study, history: History, answer: Answer) -> Iterator[Part]:
    if lines := insights(study, history, answer):
        yield Bullets(tuple(lines))


def _progress(study: Study, history: History, answer: Answer, exhibits: Exhibits) -> Iterator[Part]:
    if history.runs:
        yield progress(study, history, answer, exhibits.groups)
    else:
        yield Paragraph("No run has ended yet.", "note")
    if history.open_runs:
        yield Paragraph(f"Under way: {', '.join(f'#{run.trial}' for run in history.open_runs.values())}", "sub")


def _knobs(study: Study, history: History, answer: Answer) -> Iterator[Part]:
    if answer.kind in NO_SEARCH:
        return
    for part in (
        effects(study, history, answer),
        importance(study, history),
        slices(study, history, answer),
        parallel(study, history, answer),
    ):
        if part is not None:
            yield part


def _failures(study: Study, history: History) -> Iterator[Part]:
    for part in (crash_map(study, history), failure_table(study, history), _builds(history)):
        if part is not None:
            yield part


def _builds(history: History) -> TextTable | None:
    if not history.builds:
        return None
    rows = tuple(
        (
            b.key,
            ", ".join(f"{k}={v}" for k, v in b.settings.items()),
            str(b.outcome),
            str(b.files_kept),
            f"{b.duration_s:.1f}",
        )
        for b in history.builds.values()
    )
    failed = frozenset(at for at, b in enumerate(history.builds.values()) if b.outcome.kind.value != "ok")
    return TextTable("Builds", ("variant", "settings", "outcome", "files kept", "s"), rows, failed)


def _serving(study: Study, history: History, answer: Answer) -> Iterator[Part]:
    logged = logged_runs(study, history, answer)
    group = over_time(logged)
    drawn = power(logged)
    if group is not None and drawn is not None:
        group = FigureGroup(group.key, group.title, group.says, (*group.figures, drawn))
    for part in (
        against_load(study, history, answer),
        group,
        step_times(logged),
        batch_by_length(logged),
        time_split(study, history, answer),
        *energy_and_cost(study, history, answer),
    ):
        if part is not None:
            yield part


def _science(study: Study, history: History, answer: Answer) -> Iterator[Part]:
    split = science_time(study, history, answer)
    if split is not None:
        yield split
    yield from closeness(study, history, answer)


def _machine(study: Study, history: History) -> Iterator[Part]:
    for part in (nodes(study, history), node_table(history)):
        if part is not None:
            yield part


def _guards(study: Study, history: History) -> Iterator[Part]:
    table = guard_table(study, history)
    if table is not None:
        yield table


def _runs(study: Study, history: History, answer: Answer) -> Iterator[RunRows | Paragraph]:
    if history.runs:
        yield runs_part(study, history, answer)
