"""One HTML file that needs no network: headline, the setting to paste, what the kind of campaign has to show, runs."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from ridgeline.errors import StoreError
from ridgeline.files import write_whole
from ridgeline.records.answer import Answer
from ridgeline.records.exhibit import Exhibits, TextTable
from ridgeline.records.expression import is_number
from ridgeline.records.study import Study
from ridgeline.report import figures
from ridgeline.report.drawing import comparisons_figure, curve_figure, progress_figure
from ridgeline.report.insights import insights
from ridgeline.report.table import Row, columns, origins, rows
from ridgeline.store.history import History

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:0 auto;max-width:1100px;padding:24px;color:#1c2430;background:#fff}
h1{font-size:22px;margin:0}h2{font-size:17px;margin:32px 0 8px}.question{color:#5a6675;margin:2px 0 20px}
.headline{font-size:24px;font-weight:600;margin:8px 0}.sub{color:#5a6675}
pre{background:#f4f6f8;border:1px solid #dfe4ea;border-radius:6px;padding:12px}
pre{white-space:pre-wrap;overflow-wrap:anywhere}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:13px}
th,td{padding:4px 10px;text-align:left;border-bottom:1px solid #e6eaef;white-space:nowrap}
th{background:#f4f6f8;position:sticky;top:0}
#runs th{cursor:pointer}td.num{text-align:right;font-variant-numeric:tabular-nums}
.stories td:last-child{white-space:normal;min-width:16em}.exhibit td{white-space:normal}ul{padding-left:20px}
.bad{color:#a33a2a}.changed{font-weight:600}.facts span{margin-right:28px;display:inline-block}
.runs{max-height:70vh;overflow:auto}.runs td{max-width:30em;overflow:hidden;text-overflow:ellipsis}
@media(max-width:700px){body{padding:12px}.headline{font-size:19px}}
@media print{.runs{max-height:none}}
"""


FIRST = ("run", "trial", "stage", "block", "outcome")
HIDDEN = ("attempt", "started_s", "node_hours", "origin", "evidence")
SORT = """
document.querySelectorAll('#runs th').forEach((head, at) => head.onclick = () => {
  const body = document.querySelector('#runs tbody'), up = head.dataset.up = head.dataset.up === '1' ? '0' : '1';
  const value = row => row.cells[at].textContent;
  const order = (a, b) => value(a).localeCompare(value(b), undefined, {numeric: true}) || 0;
  const number = (a, b) => value(a) - value(b);
  const rows = [...body.rows], full = rows.filter(value), empty = rows.filter(row => !value(row));
  full.sort(full.every(row => !isNaN(value(row))) ? number : order);
  body.append(...(up === '1' ? full : full.reverse()), ...empty);
});
"""


def write_report(study: Study, history: History, answer: Answer, exhibits: Exhibits, out: Path) -> Path:
    """The report of a campaign, as a pure function of its journal and study file."""
    if out.is_dir():
        raise StoreError(f"{out} is a folder; name a file with --out")
    try:
        write_whole(out, page(study, history, answer, exhibits))
    except OSError as error:
        raise StoreError(f"{out}: cannot be written ({error.strerror}); name another file with --out") from None
    return out


def page(study: Study, history: History, answer: Answer, exhibits: Exhibits) -> Iterator[bytes]:
    """The file, piece by piece: Plotly's 5 MB are never held as a whole, the controller stays small."""
    body = "\n".join(
        [
            f"<h1>{_e(study.name)}</h1><p class=question>{_e(study.question)}</p>",
            *_headline(study, history, answer, exhibits),
            *_setting(answer, exhibits),
            *_exhibits(exhibits),
            *_insights(study, history, answer),
            "<h2>Progress</h2>",
            _plot("progress", progress_figure(study.goal, figures.progress(study, history, exhibits.groups))),
            *_failures(history),
            *_builds(history),
            "<h2>Runs</h2>",
            _table(rows(history)),
        ]
    )
    head = (
        f"<!doctype html><html lang=en><head><meta charset=utf-8><title>{_e(study.name)}</title>"
        f"<meta name=viewport content='width=device-width'><style>{STYLE}</style>"
    )
    yield f"{head}<script>".encode()
    yield from _plotly()
    yield f"</script></head><body>\n{body}\n</body></html>\n".encode()


def _plotly() -> Iterator[bytes]:
    # read as a file: plotly.offline would import half of the package for the same text
    with files("plotly").joinpath("package_data/plotly.min.js").open("rb") as file:
        while chunk := file.read(1 << 16):
            yield chunk


def _headline(study: Study, history: History, answer: Answer, exhibits: Exhibits) -> Iterable[str]:
    runs = len(history.runs)
    text = answer.told if answer.conclusion else f"{answer.told} ({runs} runs so far)"
    yield f"<p class=headline>{_e(text)}</p>"
    if answer.refuted:
        yield f"<p class=sub>{_e(answer.refuted)}</p>"
    if answer.candidate is not None and not answer.confirmed and (answer.keep or answer.offers):
        yield f"<p class=sub>{_e(answer.candidate.label)}, #{answer.candidate.trial}: {_e(answer.change)}</p>"
    yield from (f"<p class=sub>{_e(note)}</p>" for note in exhibits.notes)
    facts = {
        "goal": f"{study.goal.direction} {study.goal.metric}",
        "runs": runs,
        "node-hours": f"{history.node_hours:.3g}",
        "site": study.site.name,
        "numbers": origins(history.runs.values()) or "none yet",
    }
    yield "<p class='sub facts'>" + "".join(f"<span>{_e(k)}: <b>{_e(v)}</b></span>" for k, v in facts.items()) + "</p>"


def _setting(answer: Answer, exhibits: Exhibits) -> Iterable[str]:
    """What to type, and beside it what that changes."""
    candidate, table = answer.candidate, exhibits.setting
    paste = f"<pre>{_e(answer.paste)}</pre>" if answer.offers and answer.confirmed and answer.paste else ""
    if table is not None:
        yield f"<h2>{_e(table.title)}</h2>{paste}"
        yield from _text_table(table)
    elif paste and candidate is not None:
        yield f"<h2>To paste: {_e(candidate.label)}</h2>{paste}"
    if paste and answer.pasted_as:
        again = f" To measure it again: <code>{_e(answer.repeat)}</code>." if answer.repeat else ""
        yield f"<p class=sub>The text is {_e(answer.pasted_as)}.{again}</p>"
    if answer.keep and answer.paste:
        yield f"<h2>To keep: {_e(answer.reference.label)}</h2><pre>{_e(answer.paste)}</pre>"
    elif paste and answer.reference_paste:
        yield f"<h2>To compare with: {_e(answer.reference.label)}</h2><pre>{_e(answer.reference_paste)}</pre>"


def _exhibits(exhibits: Exhibits) -> Iterable[str]:
    """What this kind of campaign has to show: its tables, curves and comparisons."""
    for table in exhibits.tables:
        yield f"<h2>{_e(table.title)}</h2>"
        yield from _text_table(table)
    for number, figure in enumerate(exhibits.figures):
        yield f"<h2>{_e(figure.title)}</h2>"
        yield _plot(f"curve{number}", curve_figure(figure))
    if exhibits.comparisons:
        yield f"<h2>{_e(exhibits.comparisons_title)}</h2>"
        yield _plot("comparisons", comparisons_figure(exhibits.comparisons))


def _text_table(table: TextTable) -> Iterable[str]:
    heads = "".join(f"<th>{_e(name)}" for name in table.head)
    yield f"<div class=scroll><table class=exhibit><tr>{heads}</tr>"
    for at, row in enumerate(table.rows):
        look = " class=bad" if at in table.failed else " class=changed" if at in table.changed else ""
        yield f"<tr{look}>{''.join(f'<td>{_e(cell)}' for cell in row)}</tr>"
    yield "</table></div>"
    yield from (f"<p class=sub>{_e(note)}</p>" for note in table.notes)


def _insights(study: Study, history: History, answer: Answer) -> Iterable[str]:
    if lines := insights(study, history, answer):
        yield "<h2>What else the runs show</h2>"
        yield "<ul>" + "".join(f"<li>{_e(line)}" for line in lines) + "</ul>"


def _failures(history: History) -> Iterable[str]:
    found = figures.failures(history)
    if found:
        yield "<h2>Runs that do not count</h2><div class=scroll><table class=stories>"
        yield "<tr><th>kind<th>runs<th>first of them</tr>"
        for kind, count, story in found:
            yield f"<tr><td class=bad>{_e(kind)}<td class=num>{count}<td>{_e(story)}</tr>"
        yield "</table></div>"


def _builds(history: History) -> Iterable[str]:
    if history.builds:
        yield "<h2>Builds</h2><div class=scroll><table><tr><th>variant<th>settings<th>outcome<th>files kept<th>s</tr>"
        for build in history.builds.values():
            settings = ", ".join(f"{k}={v}" for k, v in build.settings.items())
            cells = f"<td>{build.key}<td>{_e(settings)}<td>{_e(build.outcome)}"
            yield f"<tr>{cells}<td class=num>{build.files_kept}<td class=num>{build.duration_s:.1f}</tr>"
        yield "</table></div>"


def _table(table: Sequence[Row]) -> str:
    """What was set and what came out stands first; a click on a heading sorts. `export` has all columns."""
    names = [
        name for name in columns(table) if name not in HIDDEN and any(row.get(name) not in (None, "") for row in table)
    ]
    names.sort(key=_place)
    head = "".join(f"<th>{_e(_heading(name))}" for name in names)
    lines = []
    for row in table:
        cells = "".join(_cell(row.get(name)) for name in names)
        lines.append(f"<tr{'' if row['outcome'] == 'ok' else ' class=bad'}>{cells}</tr>")
    body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f"<div class='scroll runs'><table id=runs>{body}</table></div><script>{SORT}</script>"


def _heading(name: str) -> str:
    # a knob may well be called block
    return "of block" if name == "block" else name.removeprefix("set.").removeprefix("got.")


def _place(name: str) -> int:
    if name in FIRST:
        return 0
    return 1 if name.startswith("set.") else 2 if name.startswith("got.") else 3


def _cell(value: object) -> str:
    if not is_number(value):
        return f"<td>{'' if value is None else _e(value)}"
    return f"<td class=num>{value:.6g}" if isinstance(value, float) else f"<td class=num>{value}"


def _plot(name: str, figure: Mapping[str, Any]) -> str:
    # "</" would end the script element early, and after "<!--<script" no "</script>" ends it any more
    text = json.dumps(figure).replace("<", "\\u003c")
    return (
        f"<div id={name}></div><script>(f=>Plotly.newPlot('{name}',f.data,f.layout,"
        f"{{displayModeBar:false,responsive:true}}))({text})</script>"
    )


def _e(value: object) -> str:
    return html.escape(str(value))
