"""The dashboard's pages: frames around pieces of HTML, each with an id, drawn from a snapshot with every text escaped.

A page is made of these pieces when it is first sent; later only those that changed are sent again. No script and no
style stands in them, so that none has to be allowed there. Figures are the report's own, so that both agree.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

from ridgeline.records.exhibit import TextTable, value_text
from ridgeline.records.space import Discrete, Knob, Point
from ridgeline.report.figures.failures import failure_table
from ridgeline.report.figures.progress import progress
from ridgeline.report.figures.proof import proof
from ridgeline.report.html import Folders, code_html, part_html, prose
from ridgeline.report.live.snapshot import EventLine, Gauge, RunningRun, Snapshot, State
from ridgeline.report.parts import AnswerCard, Part
from ridgeline.report.sections import Findings, answer_card

HEAD = (
    "<!doctype html><html lang=en><head><meta charset=utf-8><title>{title}</title>"
    "<meta name=viewport content='width=device-width,initial-scale=1'><link rel=stylesheet href=/static/ridgeline.css>"
    "<link rel=icon href='data:,'><script src=/static/page.js defer></script>"
    "<script src=/static/watch.js defer></script></head>"
)
_SCRIPTLESS = (
    "<noscript><p class='note warn'>Without JavaScript this page shows one moment; "
    "reload it for the next.</p></noscript>"
)
_PANELS = (
    ("progress", "Progress"),
    ("running", "Running now"),
    ("crashes", "What failed, and why"),
    ("runs", "Latest runs"),
    ("figures", "Details"),
)


LOOKS = {State.RUNNING: "good", State.PAUSED: "warn", State.GONE: "bad", State.DAMAGED: "bad"}
_LONGEST_LIST = 60  # values that a list to choose from may have; of more, any may be typed


def study_page(slug: str, now: Snapshot, knobs: tuple[Knob, ...], start: Point, several: bool) -> str:
    drawn = sections(now)
    back = "<a href=/>all studies</a>" if several else ""
    report = f"<a href='/study/{escape(slug)}/report'>report</a>"
    notify = "<button id=notify type=button hidden>Notify me when it ends</button>"
    links = f"<nav aria-label=pages>{back}{report}{notify}</nav>"
    panels = "".join(
        f"<section id=at-{name}><h2><a href='#at-{name}'>{title}</a></h2><div id={name}>{drawn[name]}</div></section>"
        for name, title in _PANELS
    )
    body = (
        f"<header><div class=top><h1>{escape(now.name)}</h1>{links}</div>"
        f"<p class=question>{escape(now.question)}</p><div id=state role=status>{drawn['state']}</div>"
        f"<div id=buttons>{drawn['buttons']}</div><p id=answer role=status></p></header>"
        f"{_SCRIPTLESS}<p id=away class='note bad' hidden></p><div class=lead>"
        f"<div id=headline>{drawn['headline']}</div><div id=gauges class=card>{drawn['gauges']}</div></div>"
        f"{_steering(knobs, start, bool(drawn['buttons']))}<div id=told>{drawn['told']}</div>{panels}"
        # the whole report, drawn when it is opened; as a stranger, whose scripts can do nothing here
        f"<section class=card><details id=report data-from='/study/{escape(slug)}/report'><summary>Every figure: the "
        "report as of now</summary><iframe title=report sandbox=allow-scripts></iframe></details></section>"
    )
    return _framed(now.name, f"/study/{slug}/", body)


def index_page(studies: Mapping[str, Snapshot], where: str) -> str:
    empty = "" if studies else f"<p class=sub>There is no study in {escape(where)} yet.</p>"
    body = (
        f"<header><h1>Studies</h1><p class=question>{escape(where)}</p></header>{_SCRIPTLESS}"
        f"<p id=away class='note bad' hidden></p>{empty}<div id=studies>{index_rows(studies)['studies']}</div>"
    )
    return _framed("Studies", "/", body)


def _framed(title: str, base: str, body: str) -> str:
    head = HEAD.format(title=escape(title))
    return f"{head}<body class=live data-base='{escape(base)}'><main>{body}</main></body></html>"


def _steering(knobs: tuple[Knob, ...], start: Point, shown: bool) -> str:
    hidden = "" if shown else " hidden"
    wish = (
        "<details><summary>Try a setting</summary><form data-act=try>"
        f"<div class=fields>{knob_fields(knobs, start)}</div><button>Try it</button></form></details>"
    )
    return (
        f"<section class=card id=steering{hidden}>{wish if knobs else ''}"
        "<details><summary>Extend the budget</summary><form data-act=extend><div class=fields>"
        "<label><span>more trials</span><input data-more=trials autocomplete=off></label>"
        "<label><span>more hours</span><input data-more=wall_s data-times=3600 autocomplete=off></label>"
        "<label><span>more node-hours</span><input data-more=node_hours autocomplete=off></label>"
        "</div><button>Extend</button></form></details></section>"
    )


def sections(now: Snapshot) -> dict[str, str]:
    return {
        "state": _state(now),
        "headline": now.answer,
        "buttons": _buttons(now),
        "gauges": "".join(map(_gauge, now.gauges)),
        "progress": now.progress,
        "running": _running(now),
        "told": _answers(now),
        "crashes": now.crashes or "<p class=sub>No run has failed.</p>",
        "figures": now.figures,
        "runs": _runs(now.runs),
    }


def _state(now: Snapshot) -> str:
    look = LOOKS.get(now.state, "calm")
    note = f"<p class='note bad'>{prose(now.note)}</p>" if now.note else ""
    text, _, command = now.state_text.partition("continue with: ")
    go_on = f"<p class=sub>To continue:</p>{code_html(command, copy=True)}" if command else ""
    told = prose(text.strip().removesuffix(";"))
    return f"<span class='badge {look}'>{escape(now.state)}</span> <span class=sub>{told}</span>{go_on}{note}"


def _buttons(now: Snapshot) -> str:
    if not now.steerable:
        return ""
    if now.state is State.GONE:
        return "<p class=sub>Nothing runs this study now: what is asked for here is done once it is resumed.</p>"
    turn = (
        "<button data-act=resume>Resume</button>"
        if now.state is State.PAUSED
        else "<button data-act=pause>Pause</button>"
    )
    return f"{turn}<button data-act=stop data-sure='Stop this study? What runs now is ended.'>Stop</button>"


def _gauge(gauge: Gauge) -> str:
    bar = "" if gauge.share is None else _bar_html(gauge.share, gauge.label)
    return f"<div class=gauge><b>{escape(gauge.label)}</b><span>{escape(gauge.text)}</span>{bar}</div>"


def _bar_html(share: float, label: str) -> str:
    return f"<progress max=100 value={min(1.0, max(0.0, share)) * 100:.1f} aria-label='{escape(label)}'></progress>"


def _running(now: Snapshot) -> str:
    if not now.running and now.state in (State.FINISHED, State.STOPPED):
        return ""
    if not now.running:
        return "<p class=sub>Nothing runs at this moment.</p>"
    return "".join(_run(run, now.steerable and now.state is not State.GONE) for run in now.running)


def _run(run: RunningRun, steerable: bool) -> str:
    cancel = f"<button data-act=cancel data-run={run.run}>Cancel this run</button>" if steerable and run.run else ""
    why = f"<p class=sub>why: {escape(run.why)}</p>" if run.why else ""
    setting = f"<p class=setting>{escape(run.setting)}</p>" if run.setting else ""
    named = f"<p class=sub>{escape(run.log_name)}</p>" if run.log_name else ""
    log = (
        f"{named}<pre class=log tabindex=0>{escape(run.log)}</pre>"
        if run.log
        else "<p class=sub>It has written nothing yet.</p>"
    )
    where = f"<span class=sub>{escape(run.where)}</span>" if run.where else ""
    return f"<article><h3>{escape(run.title)} {where}{cancel}</h3>{setting}{why}{log}</article>"


def _answers(now: Snapshot) -> str:
    waiting = "".join(f"<li class=warn>{escape(text)}</li>" for text in now.waiting)
    return f"<ul class=said>{waiting}{''.join(map(_said, now.answers))}</ul>" if waiting or now.answers else ""


def _said(said: EventLine) -> str:
    when = f"<time>{escape(said.when)}</time> " if said.when else ""
    return f"<li{' class=bad' if said.bad else ''}>{when}{escape(said.text)}</li>"


def _runs(rows: Sequence[Sequence[str]]) -> str:
    if len(rows) < 2:
        return "<p class=sub>No run has ended yet.</p>"
    head, *body = map(tuple, rows)
    return _parts(TextTable("", head, tuple(body)))


def knob_fields(knobs: Iterable[Knob], start: Point) -> str:
    """A field for each knob; its value is JSON, so that 1, true and '1' stay what they are."""
    return "".join(
        f"<label><span>{escape(knob.name)}</span>{_field(knob, start.get(knob.name))}</label>" for knob in knobs
    )


def _field(knob: Knob, value: object) -> str:
    name = f"data-knob='{escape(knob.name)}'"
    if isinstance(knob, Discrete) and len(knob.values) <= _LONGEST_LIST:
        options = "".join(
            f"<option value='{escape(json.dumps(each))}'{' selected' if _same(each, value) else ''}>"
            f"{escape(value_text(each))}"
            for each in knob.values
        )
        return f"<select {name}>{options}</select>"
    shown = "" if value is None else json.dumps(value)
    return f"<input {name} value='{escape(shown)}' autocomplete=off>"


def _same(one: object, other: object) -> bool:
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def index_rows(studies: Mapping[str, Snapshot]) -> dict[str, str]:
    """The list of several folders, as one section."""
    head = "<tr><th>study<th>state<th>answer<th>progress<th>last change</tr>"
    order = {State.RUNNING: 0, State.PAUSED: 1, State.GONE: 2}
    ordered = sorted(studies.items(), key=lambda one: (order.get(one[1].state, 3), -one[1].updated_s))
    rows = "".join(_index_row(slug, now) for slug, now in ordered)
    return {"studies": f"<div class=scroll tabindex=0><table class=studies>{head}{rows}</table></div>"}


def _index_row(slug: str, now: Snapshot) -> str:
    said = (now.headline or now.note or now.state_text).replace(" -> ", " → ")
    large = now.gain
    if not large and now.state in (State.FINISHED, State.STOPPED):
        card = AnswerCard(f"{said[:1].upper()}{said[1:]}")
        large, said = card.lead, card.details
    best = f"{f'<b>{escape(large)}</b>' if large else ''}<div class=sub>{escape(said)}</div>"
    done = f"<div class=sub>{escape(now.done)}</div>" if now.done else ""
    bar = f"{'' if now.share is None else _bar_html(now.share, f'progress of {now.name}')}{done}"
    folder = "" if slug == now.name else f"<div class=sub>{escape(slug)}</div>"
    return (
        f"<tr><td><a href='/study/{escape(slug)}/'>{escape(now.name)}</a>{folder}"
        f"<td><span class='badge {LOOKS.get(now.state, 'calm')}'>{escape(now.state)}</span>"
        f"<td>{best}<td>{bar}<td>{escape(now.updated)}</tr>"
    )


def live_html(found: Findings) -> dict[str, Any]:
    """Fields of a snapshot that the report draws: the first screen, less the proof and the facts that stand beside it;
    every run so far; what failed; what was compared in blocks, and the tables of this kind of campaign."""
    figure = progress(found.study, found.history, found.answer, found.exhibits.groups)
    table = failure_table(found.study, found.history)
    return {
        "answer": _parts(replace(answer_card(found), figure=None, facts=())),
        "progress": "<p class=sub>No run has passed yet.</p>" if figure is None else _parts(replace(figure, title="")),
        "crashes": "" if table is None else _parts(replace(table, title="")),
        "figures": _parts(*proof(found.study, found.history, found.answer), *found.exhibits.tables),
    }


def _parts(*parts: Part) -> str:
    return "".join(piece for part in parts for piece in part_html(part, Folders(Path(), None)))
