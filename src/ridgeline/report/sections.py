"""The report of a campaign as sections, in the order a sceptical reader asks: what, to paste, proof, how, all runs."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ridgeline import catalog
from ridgeline.records.answer import Answer, Conclusion
from ridgeline.records.exhibit import EQUIVALENCE, TASK_RULES, Exhibits, TextTable, changes, value_text
from ridgeline.records.space import Point
from ridgeline.records.study import Study
from ridgeline.report.figures.campaigns import curves
from ridgeline.report.figures.failures import failure_table, what_failed
from ridgeline.report.figures.knobs import effects, parallel, slices
from ridgeline.report.figures.machine import node_table, nodes, predicted, twin_says
from ridgeline.report.figures.progress import progress
from ridgeline.report.figures.proof import ladder, proof, proof_blocks, proof_pair, proof_table
from ridgeline.report.figures.shapes import Figure, IntervalFigure
from ridgeline.report.figures.values import kind_shown
from ridgeline.report.insights import insights
from ridgeline.report.measured import folder_text, guard_table, measured, place_text
from ridgeline.report.parts import AnswerCard, Bullets, CodeText, Fold, Paragraph, Part, Section
from ridgeline.report.table import runs_part
from ridgeline.stats.wording import MetricText, count, metric_text, node_time_text, ratio_range
from ridgeline.study.history import History

_NO_BREAK = "\N{NO-BREAK SPACE}"
_MOST_MOVED = 6  # knobs named on the first screen; a table below has all


@dataclass(frozen=True, slots=True)
class Findings:
    """A campaign as report and slides show it. `notes` are what the reader must know about the folder itself;
    `steps` is another campaign, one that measured the steps to this winner."""

    study: Study
    history: History
    answer: Answer
    exhibits: Exhibits
    notes: tuple[str, ...] = ()
    steps: History | None = None


def sections(found: Findings) -> list[Section]:
    study, history, answer, exhibits = found.study, found.history, found.answer, found.exhibits
    made: list[tuple[str, str, Callable[[], Iterator[Part]]]] = [
        ("verdict", "", lambda: _verdict(found)),
        ("setting", "What it changes", lambda: _setting(found)),
        ("kind", kind_shown(answer).title, lambda: kind_parts(found)),
        ("equivalence", "What makes no difference", lambda: _equivalence(exhibits)),
        ("proof", "The proof", lambda: _proof(study, history, answer)),
        ("also", "What else the runs show", lambda: _insights(study, history, answer)),
        ("progress", "Progress", lambda: _progress(study, history, answer, exhibits)),
        ("knobs", "Every knob", lambda: _knobs(study, history, answer)),
        ("failures", "What failed", lambda: _known(failure_table(study, history), _builds(history))),
        *_of_wings(study, history, answer),
        ("machine", "The machine", lambda: _known(nodes(study, history), node_table(history))),
        ("twin", "Predicted and measured", lambda: _twin(study, history)),
        ("guards", "Guards", lambda: _known(guard_table(study, history))),
        ("task", "The task's rules", lambda: (t for t in exhibits.tables if t.title == TASK_RULES)),
        ("measured", "How it was measured", lambda: _measured(study, history, answer)),
        ("runs", "All runs", lambda: _known(runs_part(study, history, answer) if history.runs else None)),
    ]
    shown: list[Section] = []
    for key, title, make in made:
        try:
            parts = tuple(make())
        except NOT_WORKED_OUT as error:
            parts = (missing_part(key, error),)
        first_screen = [part.figure for part in shown[0].parts if isinstance(part, AnswerCard)] if shown else []
        below = tuple(part for part in parts if part not in first_screen)
        if below:
            shown.append(Section(key, title, below))
    return shown


# what one odd journal line can raise: it must not cost the reader the whole page
NOT_WORKED_OUT = (ArithmeticError, LookupError, TypeError, ValueError, AssertionError)


def missing_part(key: str, error: Exception) -> Paragraph:
    text = f"This part ({key}) could not be worked out: {type(error).__name__}: {error}. The rest of the page stands."
    return Paragraph(text, "note")


def _verdict(found: Findings) -> Iterator[Part]:
    yield from (Paragraph(page_sentence(note, found), "note") for note in found.notes)
    stopped = [Paragraph(text, "note") for text in stopped_texts(found)]
    first: list[Part] = [*stopped, answer_card(found)]
    if what_failed(found.history, found.answer):
        first.reverse()  # the card says what happened, the note what to do
    yield from first


def stopped_texts(found: Findings) -> list[str]:
    """Why the campaign was stopped; what to do, where the answer says why already."""
    stopped = found.answer.stopped
    if what_failed(found.history, found.answer):
        return [page_sentence("".join(stopped.partition("What to do: ")[1:]) or stopped, found)]
    return [page_sentence(f"The study was stopped: {stopped}", found)] if stopped else []


def _notes_of_wings(study: Study, history: History, answer: Answer) -> Iterator[str]:
    for wing, _ in catalog.wings():
        try:
            yield from catalog.at(wing.notes)(study, history, answer) if wing.notes else ()
        except NOT_WORKED_OUT as error:
            yield f"What {wing.name} has to say could not be worked out: {type(error).__name__}: {error}."


_WORTH_A_NOTE = 0.02  # by which values and the ratio between them may differ without one


def answer_card(found: Findings) -> AnswerCard:
    """What is known now: the answer, or while the campaign goes on the best so far."""
    study, history, answer = found.study, found.history, found.answer
    over = bool(answer.conclusion)
    text = answer.statement if over else f"{answer.statement} ({count(len(history.runs), 'run')} so far)"
    if answer.stopped and answer.candidate is None:  # that there is no verdict yet goes without saying
        text = what_failed(history, answer) or answer.stopped.partition(";")[0]
    said = [answer.refuted] if answer.refuted else []
    candidate = answer.candidate
    if over and candidate is not None and not answer.confirmed and (answer.keep or answer.offers):
        said.append(f"{candidate.label}, #{candidate.trial}: {answer.change}")
    command, command_note = _command(history, answer)
    card = AnswerCard(
        page_sentence(text, found),
        facts=tuple(_facts(study, history, answer)),
        command=command,
        command_title=_command_title(answer),
        command_note=command_note,
        doubts=tuple(page_sentence(doubt, found) for doubt in found.exhibits.doubts),
        notes=(
            *(page_sentence(note, found) for note in (*said, *found.exhibits.notes)),
            *_notes_of_wings(study, history, answer),
        ),
        figure=_first_figure(found),
    )
    gain, before = None if candidate is None else candidate.gain, answer.reference.value
    if candidate is None or before is None or gain is None or gain.low is None or gain.high is None:
        return card
    better_so_far = answer.conclusion is None and gain.ratio > 1
    if answer.conclusion != Conclusion.CONFIRMED and not better_so_far and not answer.worse:
        return card
    ratio, interval = ratio_range(gain.ratio, gain.low, gain.high)
    goal = MetricText(study.goal.metric, answer.unit, study.goal.direction)
    so_far = [] if over else [f"#{candidate.trial}: {changes(study.baseline, candidate.point) or 'the baseline'}"]
    seen = candidate.value / before if study.goal.direction == "maximize" else before / candidate.value
    if not over and abs(seen / gain.ratio - 1) > _WORTH_A_NOTE:
        so_far.append(
            f"The values are as measured; {ratio} allows for slow and fast nodes and hours, and for having picked the "
            "best of many."
        )
    change = goal.before_after(before, candidate.value).removesuffix(answer.unit).removeprefix(study.goal.metric)
    first, _, second = change.strip().partition(" -> ")
    error = f"; {answer.model_error}" if answer.model_error else ""
    return replace(
        card,
        # what breaks a limit of the question stands in large, and what it gains in smaller letters below
        ratio="" if answer.broken else ratio,
        than=f"{_than(answer, goal, candidate.label)}{'' if over else ', so far'}",
        interval=f"{_how_sure(answer)}{gain.level * 100:g}% interval {interval.replace(' to ', 'x to ')}x{error}",
        before=first,
        after=second,
        unit=f"{answer.unit} ({study.goal.metric})" if answer.unit else study.goal.metric,
        moved=_moved(study, answer, candidate.point),
        notes=(*so_far, *card.notes),
    )


def _first_figure(found: Findings) -> Figure | None:
    """What the answer rests on, at a glance."""
    study, history = found.study, found.history
    return ladder(study, history) or proof_pair(study, history, found.answer) or next(_kind_figures(found), None)


def _than(answer: Answer, goal: MetricText, candidate: str) -> str:
    """What the large ratio is one of; where there are two settings, of which."""
    if kind_shown(answer).two:
        sense = f"{goal.sense.strip()}: " if goal.sense else ""
        return f"{sense}{candidate} against {answer.reference.label}"
    if goal.is_named:  # else it reads as the speed
        return f"{answer.reference.label}'s {goal.metric}"
    return goal.ratio_to("", answer.reference.label).strip()


def page_sentence(text: str, found: Findings) -> str:
    """As a page says it, wherever the study folder lay when it was worked out. Names of the study stay as they are."""
    root = found.history.root
    text = text.replace(str(root), folder_text(found.history)).replace(" -> ", " → ")
    text = _COMMAND.sub(r": `\1`", text)
    first = text.partition(" ")[0]
    named = first in found.study.space.by_name or first == found.study.goal.metric
    return text if named else f"{text[:1].upper()}{text[1:]}"


_COMMAND = re.compile(r": (ridgeline [a-z][^`]*)$")  # at the end of a sentence


def _moved(study: Study, answer: Answer, point: Point) -> str:
    """What a confirmed setting changes, from what to what; a long list ends with how many more there are."""
    names = [name for name in study.space.by_name if study.baseline.get(name) != point.get(name)]
    if answer.conclusion != Conclusion.CONFIRMED or not names:
        return ""
    most = len(names) if len(names) == _MOST_MOVED + 1 else _MOST_MOVED  # "and 1 more" is as long as its name
    each = [f"{n} {value_text(study.baseline.get(n))} → {value_text(point.get(n))}" for n in names[:most]]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"Changed: {', '.join(one.replace(' ', _NO_BREAK) for one in each)}{more}."


def _how_sure(answer: Answer) -> str:
    if answer.conclusion is None:
        return "No verdict yet; in the search, "
    if answer.conclusion != Conclusion.CONFIRMED:
        return "In simulation; " if answer.simulated else ""
    return "Confirmed in simulation; " if answer.simulated else "Confirmed; "


def _facts(study: Study, history: History, answer: Answer) -> Iterator[tuple[str, str, str]]:
    """How sure, what it cost, and how the numbers came about."""
    blocks = proof_blocks(study, history)
    if blocks and answer.conclusion == Conclusion.CONFIRMED:
        places, whole = len({block.nodes for block in blocks}), len(blocks[0].nodes)
        nodes = count(places, "node") if whole == 1 else f"{count(places, 'set')} of {whole} nodes"
        yield "proof", count(len(blocks), "block"), f"of interleaved runs{f' on {nodes}' if whole else ''}"
    elif answer.reference.value is not None:
        yield answer.reference.label, metric_text(answer.reference.value), answer.unit
    clock = ", simulated" if study.site.simulated else ""
    yield "cost", count(len(history.runs), "run"), f"in {node_time_text(history.node_hours)}{clock}"
    yield "where", study.site.name, origin_text(study, history)


def _command_title(answer: Answer) -> str:
    if answer.keep:
        return "Keep this:" if answer.conclusion else "Until then, keep this:"
    return "To get a verdict:" if answer.next_step else "Use this:"


def _command(history: History, answer: Answer) -> tuple[str, str]:
    """What to type now, and what that text is."""
    paste = _elsewhere(answer.paste)
    if answer.offers and answer.confirmed and paste:
        if not answer.pasted_as:
            return paste, ""
        repeat = answer.repeat.replace(f"{history.root}/", "")
        again = f" To measure it again, in the study folder: `{repeat}`" if repeat else ""
        return paste, f"This is the command {answer.pasted_as}.{again}"
    if answer.keep and paste:
        return paste, f"This is the command {answer.pasted_as}." if answer.pasted_as else ""
    if answer.next_step:
        return answer.next_step.replace(shlex.quote(str(history.root)), folder_text(history)), ""
    return "", ""


def _elsewhere(command: str) -> str:
    """Where Python lies here is nobody's affair who reads the page elsewhere."""
    return command.replace(f"{shlex.quote(sys.executable)} -m ridgeline", "ridgeline")


def origin_text(study: Study, history: History) -> str:
    """How the goal's numbers came about."""
    found = {m.origin for run in history.runs.values() for m in run.measurements if m.metric == study.goal.metric}
    return " and ".join("simulated" if each == "modelled" else each for each in sorted(found))


def _setting(found: Findings) -> Iterator[Part]:
    """What the setting changes and what each change gained; what to type stands on the first screen."""
    yield from _known(found.exhibits.setting)
    yield from gain_by_change(found)


def _measured(study: Study, history: History, answer: Answer) -> Iterator[Part]:
    yield from measured(study, history, answer)
    if answer.offers and answer.confirmed and answer.paste and answer.reference_paste:
        title = f"For comparison, the command of {answer.reference.label}"
        yield Fold(title, (CodeText(_elsewhere(answer.reference_paste), copy=True),), on_paper=False)


def kind_parts(found: Findings) -> Iterator[Part]:
    """What this kind of campaign has to show: its own figures first, then its tables."""
    yield from _kind_figures(found)
    yield from (table for table in found.exhibits.tables if table.title not in (EQUIVALENCE, TASK_RULES))


def _kind_figures(found: Findings) -> Iterator[Figure]:
    study, history, answer = found.study, found.history, found.answer
    if place := kind_shown(answer).figure:
        own: Figure | None = catalog.at(place)(study, history, answer)
        if own is not None:
            yield own
    for at, each in enumerate(found.exhibits.figures):
        yield curves(each, f"curve-{at}", study, history, answer.unit)


def _equivalence(exhibits: Exhibits) -> Iterator[Part]:
    """A null result: what was shown to be as good as the baseline, at what cost, and what stays open."""
    for table in exhibits.tables:
        if table.title == EQUIVALENCE:
            yield Paragraph(
                "A setting counts as equivalent once a difference above the margin is ruled out; one that was run too "
                "few times for that is undecided."
            )
            yield replace(table, title="Every setting that was compared")


def _proof(study: Study, history: History, answer: Answer) -> Iterator[Part]:
    figures = proof(study, history, answer)
    yield from _known(*figures, proof_table(study, history, answer))
    if not figures and kind_shown(answer).searches and history.verdict is not None:
        yield Paragraph(
            "Nothing was confirmed in interleaved blocks, so there is no proof beyond the search itself.", "note"
        )


def steps_measured(found: Findings) -> IntervalFigure | None:
    """The gain of each step, where this campaign or another one measured them."""
    ladders = (ladder(found.study, each) for each in (found.history, found.steps) if each is not None)
    return next((figure for figure in ladders if figure is not None), None)


def gain_by_change(found: Findings) -> Iterator[Part]:
    """Measured step by step, else estimated from the search; and the command that measures it."""
    study, history, answer = found.study, found.history, found.answer
    if (measured_steps := steps_measured(found)) is not None:
        yield measured_steps
        return
    if not kind_shown(answer).searches or answer.conclusion != Conclusion.CONFIRMED or answer.candidate is None:
        return
    changed = [name for name, value in answer.candidate.point.items() if study.baseline.get(name) != value]
    if len(changed) < 2:
        return
    estimated = effects(study, history, answer)
    yield from _known(estimated)
    names = f"{', '.join(changed[:-1])} and {changed[-1]}"
    text = (
        "These are estimates from the search."
        if estimated is not None
        else f"The search can't separate the gains of {names}: it rarely changed one without the others."
    )
    place = place_text(history)
    ask = f"To measure what each change gains, run this {place[:1].lower()}{place[1:]}:"
    yield Paragraph(f"{text} {ask}")
    yield CodeText(f"ridgeline study steps {folder_text(history)} --each", copy=True)


def _insights(study: Study, history: History, answer: Answer) -> Iterator[Part]:
    if lines := insights(study, history, answer, gain=False):
        yield Bullets(tuple(f"{line[:1].upper()}{line[1:]}" for line in lines))


def _progress(study: Study, history: History, answer: Answer, exhibits: Exhibits) -> Iterator[Part]:
    figure = progress(study, history, answer, exhibits.groups)
    if figure is not None:
        yield figure
    else:
        yield Paragraph("No run has passed yet." if history.runs else "No run has ended yet.", "sub")
    if history.open_runs:
        yield Paragraph(f"Under way: {', '.join(f'#{run.trial}' for run in history.open_runs.values())}", "sub")


def _knobs(study: Study, history: History, answer: Answer) -> Iterator[Part]:
    if not kind_shown(answer).searches:
        return
    yield from _known(slices(study, history, answer), parallel(study, history, answer))


def _known(*parts: Part | None) -> Iterator[Part]:
    return (part for part in parts if part is not None)


def _builds(history: History) -> TextTable | None:
    if not history.builds:
        return None
    builds = [(b, ", ".join(f"{k}={v}" for k, v in b.settings.items())) for b in history.builds.values()]
    rows = tuple((b.key, of, str(b.outcome), str(b.files_kept), f"{b.duration_s:.1f}") for b, of in builds)
    failed = frozenset(at for at, (b, _) in enumerate(builds) if b.outcome.kind.value != "ok")
    return TextTable("Builds", ("variant", "settings", "outcome", "files kept", "s"), rows, failed)


def _of_wings(
    study: Study, history: History, answer: Answer
) -> Iterator[tuple[str, str, Callable[[], Iterator[Part]]]]:
    for wing, _ in catalog.wings():
        for key, (title, place) in wing.sections.items():
            yield key, title, lambda place=place: catalog.at(place)(study, history, answer)  # type: ignore[misc]


def _twin(study: Study, history: History) -> Iterator[Part]:
    yield from map(Paragraph, twin_says(history))
    yield from _known(predicted(study, history))
