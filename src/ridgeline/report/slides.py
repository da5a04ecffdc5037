"""A campaign as slides: the question, the method, the search, what each change gained, the proof, the rules of a task,
what failed, what to try next, the command. One HTML file; each slide's title is what it says."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from shlex import quote

from ridgeline.records.answer import OVER_LIMIT, Answer
from ridgeline.records.exhibit import EQUIVALENCE, TASK_RULES, TextTable, value_text
from ridgeline.records.expression import is_number
from ridgeline.records.outcome import Kind
from ridgeline.records.space import Discrete, Knob
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage
from ridgeline.report.drawing.draw import draw, legend
from ridgeline.report.figures.failures import failure_table
from ridgeline.report.figures.progress import progress
from ridgeline.report.figures.proof import proof, proof_blocks, proof_pair
from ridgeline.report.figures.shapes import Figure, IntervalFigure, PlotFigure
from ridgeline.report.figures.values import kind_shown, varied_knobs
from ridgeline.report.html import Folders, part_html
from ridgeline.report.insights import insights
from ridgeline.report.measured import folder_text, place_text
from ridgeline.report.page import asset
from ridgeline.report.parts import Bullets, CodeText, Paragraph, Part
from ridgeline.report.sections import (
    NOT_WORKED_OUT,
    Findings,
    answer_card,
    gain_by_change,
    kind_parts,
    missing_part,
    origin_text,
    page_sentence,
    steps_measured,
    stopped_texts,
)  # fmt: skip
from ridgeline.stats.wording import count, ratio_text
from ridgeline.study.history import History
from ridgeline.workloads.base import terms_of

_WHOLE_PX, _HALF_PX = 860.0, 460.0  # less than their place on a slide, which makes their text larger
_MOST_ROWS, _MOST_LINES, _LONGEST_LINE = 9, 6, 230
_MOST_CODE_LINES, _LINE_WIDTH = 15, 100  # of a command; what is longer is written as a script
_FEWEST_VALUES = 3  # of a knob, below which its end of the range says nothing
_WORTH_BLOCKS = 0.05  # a possible gain, as a share, that is worth more blocks
_MOST_ALIKE = 7  # rows beside a figure
_LEARNING = ("guided", "tpe")  # samplers (`tpe` until 0.2) whose next trial depends on the last


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
        "proof": _proof, "rules": _rules, "failures": _failures, "next": _next, "use": _use,
    }  # fmt: skip
    shown: list[Slide] = []
    for key, make in made.items():
        try:
            slide = make(found)
        except NOT_WORKED_OUT as error:
            slide = Slide(key, "A slide is missing", (missing_part(key, error),))
        if slide is not None:
            shown.append(slide)
    return shown


def _question(found: Findings) -> Slide:
    study = found.study
    card = replace(answer_card(found), command="", command_note="", notes=(), figure=None)
    notes = (*(page_sentence(note, found) for note in found.notes), *stopped_texts(found))
    said = tuple(Paragraph(_cut(note), "note") for note in notes[:2])
    # what had to hold is part of the answer
    limits = (f"{limit.called} at most {limit.most:g} {limit.unit}" for limit in terms_of(study).limits)
    held = [*limits, *map(str, study.guards)]
    below = [Paragraph(_cut(f"Limits: {'; '.join(held[:4])}{_and_more(held, 4)}"), "sub")] if held else []
    return Slide("question", _cut(study.question or study.name, 160), (*said, card, *below))


def _method(found: Findings) -> Slide:
    study, history, answer = found.study, found.history, found.answer
    tried = len({trial.key for trial in history.trials.values()})
    best = "the best confirmed" if answer.confirmed else "the best run again beside the baseline"
    held = "all of them run again beside the baseline" if _equivalence(found) is not None else best
    confirmed = f" and {held} in fresh runs" if proof_blocks(study, history) else ""
    title = "How it was measured" if not kind_shown(answer).searches else f"{count(tried, 'setting')} tried{confirmed}"
    table = _two_settings(found) or _varied(found)
    return Slide("method", title, (Bullets(tuple(_how(study, history, answer))),), () if table is None else (table,))


def _varied(found: Findings) -> TextTable | None:
    """What the study lets change; of other questions than a search, what did."""
    study, searched = found.study, kind_shown(found.answer).searches
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
    if not kind_shown(found.answer).two:
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
    searched = sum(trial.stage is Stage.SEARCH for trial in history.trials.values())
    if searched and kind_shown(answer).searches:
        size = math.prod(knob.count or 0 for knob in study.space.knobs)
        of = f" of {size:,} combinations" if size else ""
        stages = Counter(history.trials[run.trial].stage for run in history.runs.values())
        again = count(stages[Stage.SENTINEL], "time")
        drift = f", and again {again} during the search: a machine that drifts is seen"
        first = f"The baseline was measured first, in {count(stages[Stage.BASELINE], 'run')}"
        yield f"{first}{drift if stages[Stage.SENTINEL] else ''}"
        learned = ", each chosen by what the ones before had shown" if study.search.sampler in _LEARNING else ""
        yield f"The search ran {count(searched, 'trial')}{of}{learned}"
    if how := kind_shown(answer).how:
        yield how.format_map(history.question.details)
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


def _kind(found: Findings) -> Slide | None:
    """What a campaign of this kind has of its own: a figure, else a table. What differs in a comparison stands with
    how it was measured."""
    shows = kind_shown(found.answer)
    if shows.searches or shows.two or steps_measured(found) is not None:
        return None
    parts = [*kind_parts(found)]
    figures = [part for part in parts if isinstance(part, Figure)][:2]
    shown = figures or [_short(part) for part in parts if isinstance(part, TextTable)][:1]
    return Slide("kind", _cut(answer_card(found).lead, 150), tuple(shown[:1]), tuple(shown[1:])) if shown else None


def _search(found: Findings) -> Slide | None:
    history, answer = found.history, found.answer
    figure = progress(found.study, history, answer, found.exhibits.groups)
    if figure is None or not kind_shown(answer).searches:
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
    if not kind_shown(answer).searches and steps_measured(found) is None:
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
    hints = [part for part in parts if isinstance(part, Paragraph | CodeText)]
    gains = [row for figure in figures for row in figure.rows if row.look == "winner" and row.value is not None]
    most = max(gains, key=lambda row: row.value or 0.0, default=None)
    way = f"{count(len(changed), 'change')} from the baseline to the setting" if changed else "Step by step"
    estimated = "" if steps_measured(found) else ", as estimated"
    title = way if most is None else f"{way}; most is gained by {most.label}{estimated}"
    left_parts, right = ([*left, *hints], figures) if figures else (left, hints)
    return Slide("changes", _cut(title, 150), tuple(left_parts or right), tuple(right if left_parts else ()))


def _proof(found: Findings) -> Slide | None:
    study, history, answer = found.study, found.history, found.answer
    pair, figures = proof_pair(study, history, answer), proof(study, history, answer)
    shown = [*([] if pair is None else [pair]), *map(_few_rows, figures)]
    if not shown:
        return None
    card = answer_card(found)
    interval = card.interval.removesuffix(f"; {answer.model_error}")  # the slide of the answer has that
    title = f"{card.ratio} {card.than}: {interval[:1].lower()}{interval[1:]}" if card.ratio else card.lead
    if kind_shown(answer).versions:
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
    rules = sorted((row for row in table.rows if row[1]), key=lambda row: row[1] == "yes")
    broken = sum(row[1] != "yes" for row in rules)
    title = f"{broken} of {count(len(rules), 'rule')} of the task {'was' if broken == 1 else 'were'} not kept"
    rows = tuple((_cut(rule, 110), kept, _cut(why, 150)) for rule, kept, why in rules)
    failed = frozenset(at for at, row in enumerate(rows[:_MOST_ROWS]) if row[1] != "yes")
    shown = TextTable("", table.head, rows[:_MOST_ROWS], failed, notes=_more(rows))
    hand_in = "Hand the signature in with the result: ridgeline study verify makes it again from the runs."
    return Slide(
        "rules",
        title if broken else f"The task's {count(len(rules), 'rule')}: all kept",
        (shown, Paragraph(_cut(f"{table.notes[0][:1].upper()}{table.notes[0][1:]}"), "sub"), Paragraph(hand_in, "sub")),
    )


def _failures(found: Findings) -> Slide | None:
    table = failure_table(found.study, found.history)
    if table is None or any(isinstance(part, PlotFigure) and part.strip for part in kind_parts(found)):
        return None  # its own figure shows each of them
    failed = sum(int(n) for _, n, _ in table.rows)
    kinds = ", ".join(f"{n} {kind}" for kind, n, _ in table.rows[:4]) if len(table.rows) > 1 else table.rows[0][0]
    title = f"{failed} of {count(len(found.history.runs), 'run')} did not pass: {kinds}"
    rows = tuple((kind, n, _cut(story, 170)) for kind, n, story in table.rows)
    return Slide("failures", title, (replace(table, title="", rows=rows[:5], notes=(*table.notes, *_more(rows, 5))),))


def _next(found: Findings) -> Slide | None:
    said = next_steps(found)
    lines = insights(found.study, found.history, found.answer, gain=False)
    notes = (page_sentence(n, found) for n in found.exhibits.notes if not n.startswith("search ended:"))
    also = [*(line for line in lines if not line.startswith("the confirmation ran")), *notes]
    if not said:
        return Slide("next", "What else the runs show", (_bullets(also),)) if also else None
    seen = (Paragraph("What else the runs show", "sub"), _bullets(also)) if also else ()
    return Slide("next", "What we would try next", (_bullets(said),), seen)


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
    if candidate is not None and kind_shown(answer).searches:
        said += _ends_of_ranges(study, answer)
    remedies = {
        run.outcome.remedy: run.outcome.kind.text
        for run in history.runs.values()
        if run.outcome is not None and run.outcome.remedy and run.outcome.kind is not Kind.OK
    }
    said += [f"{kind[:1].upper()}{kind[1:]}: {remedy}" for remedy, kind in [*remedies.items()][:2]]
    if history.search_ended and kind_shown(answer).searches:
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
        if not is_number(value) or value >= terms.enough.get(knob.name, math.inf):
            continue
        if value in ends and value != study.baseline.get(knob.name):
            found.append(f"{knob.name} {value}")
    told = f"At an end of what the study allows: {', '.join(found)}. Allow values beyond, where the machine can"
    return [told] if found else []


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
        f"<style>{asset('ridgeline.css')}\n@page{{size:13.3333in 7.5in;margin:0}}</style></head>"
        "<body class=slides><main>\n"
    ).encode(errors="replace")
    folders = Folders(found.history.root, None)
    for at in range(len(shown)):
        yield _slide_html(shown, at, name, folders).encode(errors="replace")
    yield f"</main>\n<script>{asset('slides.js')}</script></body></html>\n".encode()


def _slide_html(shown: Sequence[Slide], at: int, name: str, folders: Folders) -> str:
    slide, half = shown[at], bool(shown[at].right)
    tag = "h1" if at == 0 else "h2"
    sides = "".join(
        f"<div class={'drawn' if isinstance(parts[0], Figure) else 'written'}>"
        f"{''.join(_part_html(part, folders, half) for part in parts)}</div>"
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
        f"<div class='sides{' two' if half else ''}'>{sides}</div>"
        f"<footer><span>{escape(name)}</span><nav aria-label='slide {at + 1}'>{turn}</nav></footer>"
        "</div></div></section>\n"
    )


def _part_html(part: Part, folders: Folders, half: bool) -> str:
    """A figure from the top of its place downwards. One that is alone has its name in the slide's title."""
    if not isinstance(part, Figure):
        return "".join(part_html(part, folders))
    title = f"<h3>{escape(part.title)}</h3>" if part.title and half else ""
    said = f"<figcaption>{escape(_cut(part.says))}</figcaption>" if part.says else ""
    drawn = draw(part, _HALF_PX if half else _WHOLE_PX).replace("<svg ", '<svg preserveAspectRatio="xMinYMin" ', 1)
    return f"<figure>{title}{said}{legend(part)}<div class=drawing tabindex=0>{drawn}</div></figure>"
