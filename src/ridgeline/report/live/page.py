"""The pages: frames around sections. No script and no style stands in them, so that none has to be allowed there."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from ridgeline.records.space import Knob, Point
from ridgeline.report.live.sections import index_rows, knob_fields, sections
from ridgeline.report.live.snapshot import Snapshot

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


def study_page(slug: str, now: Snapshot, knobs: tuple[Knob, ...], start: Point, several: bool) -> str:
    drawn = sections(now)
    back = "<a href=/>all studies</a>" if several else ""
    report = f"<a href='/study/{escape(slug)}/report'>report</a>"
    notify = "<button id=notify type=button hidden>Notify me when it ends</button>"
    links = f"<nav aria-label=pages>{back}{report}{notify}</nav>"
    panels = "".join(_panel(name, title, drawn[name]) for name, title in _PANELS)
    body = (
        f"<header><div class=top><h1>{escape(now.name)}</h1>{links}</div>"
        f"<p class=question>{escape(now.question)}</p><div id=state role=status>{drawn['state']}</div></header>"
        f"{_SCRIPTLESS}<p id=away class='note bad' hidden></p><div class=lead>"
        f"<div id=headline>{drawn['headline']}</div><div id=gauges class=card>{drawn['gauges']}</div></div>"
        f"{panels}{_steering(now, drawn['buttons'], knobs, start)}<div id=told>{drawn['told']}</div>"
        f"{_report(slug)}"
    )
    return _framed(now.name, f"/study/{slug}/", body)


def index_page(studies: Mapping[str, Snapshot], where: str) -> str:
    empty = "" if studies else f"<p class=sub>There is no study in {escape(where)} yet.</p>"
    body = (
        f"<header><h1>Studies</h1><p class=question>{escape(where)}</p></header>{_SCRIPTLESS}"
        f"<p id=away class='note bad' hidden></p>{empty}<div id=studies>{index_rows(studies)['studies']}</div>"
        f"{'<p class=more><a id=compare href=/compare>Compare all studies</a></p>' if len(studies) > 1 else ''}"
    )
    return _framed("Studies", "/", body)


def _framed(title: str, base: str, body: str) -> str:
    head = HEAD.format(title=escape(title))
    return f"{head}<body class=live data-base='{escape(base)}'><main>{body}</main></body></html>"


def _report(slug: str) -> str:
    """The whole report below, drawn when it is opened; as a stranger, whose scripts can do nothing here."""
    return (
        f"<section class=card><details id=report data-from='/study/{escape(slug)}/report'><summary>Every figure: the "
        "report as of now</summary><iframe title=report sandbox=allow-scripts></iframe></details></section>"
    )


def _panel(name: str, title: str, html: str) -> str:
    heading = f"<h2><a href='#at-{name}'>{escape(title)}</a></h2>"
    return f"<section id=at-{name}>{heading}<div id={name}>{html}</div></section>"


def _steering(now: Snapshot, buttons: str, knobs: tuple[Knob, ...], start: Point) -> str:
    hidden = "" if now.steerable else " hidden"
    wish = (
        "<details><summary>Try a setting</summary><form data-act=try>"
        f"<div class=fields>{knob_fields(knobs, start)}</div><button>Try it</button></form></details>"
    )
    return (
        f"<section class=card id=steering{hidden}><div id=buttons>{buttons}</div>{wish if knobs else ''}"
        "<details><summary>Extend the budget</summary><form data-act=extend><div class=fields>"
        "<label><span>more trials</span><input data-more=trials autocomplete=off></label>"
        "<label><span>more hours</span><input data-more=wall_s data-times=3600 autocomplete=off></label>"
        "<label><span>more node-hours</span><input data-more=node_hours autocomplete=off></label>"
        "</div><button>Extend</button></form></details><p id=answer role=status></p></section>"
    )
