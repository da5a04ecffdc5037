"""A snapshot as pieces of HTML, each with an id: drawn here alone, with every text escaped.

The page is made of these pieces when it is first sent; later only those that changed are sent again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from ridgeline.records.exhibit import value_text
from ridgeline.records.space import Discrete, Knob, Point
from ridgeline.report.html import code_html, prose
from ridgeline.report.live.snapshot import EventLine, Gauge, RunningRun, Snapshot, State
from ridgeline.report.parts import AnswerCard

LOOKS = {State.RUNNING: "good", State.PAUSED: "warn", State.GONE: "bad", State.DAMAGED: "bad"}
_LONGEST_LIST = 60  # values that a list to choose from may have; of more, any may be typed


def sections(now: Snapshot) -> dict[str, str]:
    return {
        "state": _state(now),
        "headline": now.answer or _headline(now),
        "buttons": _buttons(now),
        "gauges": "".join(map(_gauge, now.gauges)),
        "progress": now.progress,
        "running": _running(now),
        "told": _answers(now),
        "crashes": _crashes(now.crashes),
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


def _headline(now: Snapshot) -> str:
    best = "".join(f"<p class=best-line>{escape(line)}</p>" for line in now.best)
    return f"<p class=headline>{escape(now.headline)}</p>{best}" if now.headline else best


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


def _crashes(rows: Sequence[tuple[str, int, str]]) -> str:
    if not rows:
        return "<p class=sub>No run has failed.</p>"
    lines = (
        f"<tr><td class=bad>{escape(kind)}<td class=num>{count}<td class=story>{escape(story)}</tr>"
        for kind, count, story in rows
    )
    return _scrolled(f"<table><tr><th>outcome<th class=num>runs<th>latest one</tr>{''.join(lines)}</table>")


def _scrolled(table: str) -> str:
    return f"<div class=scroll tabindex=0>{table}</div>"


def _runs(rows: Sequence[Sequence[str]]) -> str:
    if len(rows) < 2:
        return "<p class=sub>No run has ended yet.</p>"
    head, *body = rows
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}' for cell in row)}</tr>" for row in body)
    return _scrolled(f"<table><tr>{''.join(f'<th>{escape(name)}' for name in head)}</tr>{lines}</table>")


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
    head = "<tr><td><th>study<th>state<th>answer<th>best so far<th>progress<th>last change</tr>"
    order = {State.RUNNING: 0, State.PAUSED: 1, State.GONE: 2}
    ordered = sorted(studies.items(), key=lambda one: (order.get(one[1].state, 3), -one[1].updated_s))
    rows = "".join(_index_row(slug, now) for slug, now in ordered)
    return {"studies": _scrolled(f"<table class=studies>{head}{rows}</table>")}


def _index_row(slug: str, now: Snapshot) -> str:
    said = (now.headline or now.note or now.state_text).replace(" -> ", " → ")
    large = now.gain
    if not large and now.state in (State.FINISHED, State.STOPPED):
        card = AnswerCard(f"{said[:1].upper()}{said[1:]}")
        large, said = card.lead, card.details
    best = f"{f'<b>{escape(large)}</b>' if large else ''}<div class=sub>{escape(said)}</div>"
    done = f"<div class=sub>{escape(now.done)}</div>" if now.done else ""
    bar = f"{'' if now.share is None else _bar_html(now.share, f'progress of {now.name}')}{done}"
    pick = f"<input type=checkbox value='{escape(slug)}' aria-label='compare {escape(now.name)}'>"
    folder = "" if slug == now.name else f"<div class=sub>{escape(slug)}</div>"
    return (
        f"<tr><td class=pick>{pick}"
        f"<td><a href='/study/{escape(slug)}/'>{escape(now.name)}</a>{folder}"
        f"<td><span class='badge {LOOKS.get(now.state, 'calm')}'>{escape(now.state)}</span>"
        f"<td>{best}<td>{spark(now.course, now.name)}<td>{bar}<td>{escape(now.updated)}</tr>"
    )


def spark(course: Sequence[float], name: str) -> str:
    """How the best rose, as a line without axes; empty where there is nothing to draw."""
    if len(course) < 2:
        return ""
    low, high = min(course), max(course)
    step, tall = 118 / (len(course) - 1), high - low or 1.0
    places = [(1 + at * step, 26 - 24 * (value - low) / tall) for at, value in enumerate(course)]
    path = f"M1 {places[0][1]:.1f}" + "".join(f"H{x:.1f}V{y:.1f}" for x, y in places[1:])
    text = f"best so far of {name}: from {course[0]:.4g} to {course[-1]:.4g}"
    return f"<svg class=spark viewBox='0 0 120 28' role=img aria-label='{escape(text)}'><path d='{path}' /></svg>"
