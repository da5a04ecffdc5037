"""A campaign for a paper: a methods paragraph and a table in Markdown and LaTeX, figures as SVG, CSV and PNG, and every
number in them with where it comes from. `ridgeline verify` works the numbers out again and compares."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from ridgeline.errors import StoreError
from ridgeline.files import text_of, write_whole
from ridgeline.records.answer import Answer
from ridgeline.records.exhibit import TextTable, changes
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage
from ridgeline.report.drawing.draw import HALF_PX, WIDE_PX, draw, legend, table_of
from ridgeline.report.figures.proof import comparisons, ladder, proof_blocks
from ridgeline.report.figures.serving import within_each
from ridgeline.report.figures.shapes import Figure, FigureGroup, ParallelFigure
from ridgeline.report.figures.values import is_ok
from ridgeline.report.markdown import markdown
from ridgeline.report.page import style
from ridgeline.report.parts import AnswerCard, Bullets, CodeText, FactTiles, Fold, Hint, Paragraph, RunRows, Section
from ridgeline.report.pdf import write_png
from ridgeline.report.sections import NO_SEARCH, Findings, origin_text, sections
from ridgeline.stats.wording import count, metric_text, ratio_range
from ridgeline.study.history import History

FOLDER = "paper"
_NUMBERS, _TEXTS = "numbers.csv", ("text.md", "text.tex")
_LETTERS = "BCDEFGHIJKLMNOPQRSTUVWXYZ"
_IN_PICTURES = ("verdict", "setting", "kind", "proof", "progress", "failures")  # a browser takes seconds for each
_NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?(?!\w)")


@dataclass(frozen=True, slots=True)
class PaperNumber:
    """One number as it is printed, what it is, and which part of the study folder it comes from."""

    name: str
    text: str
    source: str


@dataclass(frozen=True, slots=True)
class PaperText:
    methods: tuple[str, ...]  # sentences
    table: TextTable
    numbers: tuple[PaperNumber, ...]


def paper_text(found: Findings) -> PaperText:
    """A pure function of the study folder."""
    numbers: list[PaperNumber] = []

    def n(name: str, text: str, source: str) -> str:
        numbers.append(PaperNumber(name, text, source))
        return text

    methods = tuple(_methods(found.study, found.history, found.answer, n))
    table = _results(found)
    source = "journal.jsonl, verdict and the runs of its blocks"
    for row in table.rows:
        for head, cell in zip(table.head, row, strict=True):
            for each in _NUMBER.findall(cell):
                n(f"{row[0]}: {head}", each, source)
    return PaperText(methods, table, tuple(numbers))


def _methods(study: Study, history: History, answer: Answer, n: Callable[[str, str, str], str]) -> Iterator[str]:
    ended = "journal.jsonl, runs that ended"
    goal, confirm, unit = study.goal, study.confirm, f" ({answer.unit})" if answer.unit else ""
    knobs = ", ".join(knob.name for knob in study.space.varied)
    receipt: Mapping[str, Any] = next((r for r in reversed(history.receipts) if r), {})
    with_what = f"Ridgeline {receipt['ridgeline']}" if receipt.get("ridgeline") else "Ridgeline"
    aim = "highest" if goal.direction == "maximize" else "lowest"
    if answer.kind in NO_SEARCH:
        yield f"We measured {goal.metric}{unit} with {with_what} (`{answer.kind}`)."
    else:
        tried = n(
            "search trials", str(sum(t.stage is Stage.SEARCH for t in history.trials.values())), "journal.jsonl, trials"
        )
        seed = n("seed", str(study.search.seed), "study.yaml")
        yield (
            f"We searched for the {aim} {goal.metric}{unit} over {knobs} in {tried} trials with {with_what}, "
            f"seed {seed}."
        )
    if goal.metric == "goodput":
        yield f"Goodput counts the requests {within_each(study, lambda name, value: n(name, value, 'study.yaml'))}."
    for limit in answer.broken:
        value = n(f"{limit.metric} of {answer.to_use_label}", metric_text(limit.measured), ended)
        most = n(limit.metric, metric_text(limit.limit), "study.yaml")
        who = answer.to_use_label
        yield f"Over all requests of a run {who} is over a limit: {limit.metric} is {value}, with {most} allowed."
    runs, failed = len(history.runs), sum(not is_ok(run) for run in history.runs.values())
    nodes = sorted({node for run in history.runs.values() for node in run.ending.nodes})
    where = f" on {count(len(nodes), 'node')}" if nodes else ""
    if nodes:
        n("nodes", str(len(nodes)), ended)
    lost = f"{n('failed runs', str(failed), ended)} of them failed or were stopped and do not count" if failed else ""
    origin = {"simulated": " All values are simulated; nothing was measured."}.get(origin_text(study, history), "")
    yield (
        f"The study made {n('runs', str(runs), ended)} runs{where} in "
        f"{n('node-hours', f'{history.node_hours:.3g}', ended)} node-hours; "
        f"{lost or 'all of them count'}.{origin}"
    )
    if study.guards:
        yield f"For a run to count, this had to hold: {'; '.join(map(str, study.guards))}."
        for guard in study.guards:
            for each in _NUMBER.findall(str(guard)):
                n(f"guard: {guard}", each, "study.yaml")
    if blocks := proof_blocks(study, history):
        places = n("blocks", str(len(blocks)), "journal.jsonl, trials of the confirmation")
        level = n("level", f"{confirm.level * 100:g}", "study.yaml")
        each = n("runs of a setting in a block", str(confirm.repeats), "study.yaml")
        yield (
            f"The settings in the table were then run against {answer.reference.label} in {places} blocks of fresh "
            f"runs, {each} of each setting in a block, which took turns on the same nodes. The ratio is the geometric "
            f"mean over blocks, oriented so that above 1 is better; its {level}% interval is Student's over the "
            "blocks' log ratios."
        )
        n("no difference", "1", "definition")


def _results(found: Findings) -> TextTable:
    """The proof; else the table that this kind of campaign has; else where it stands."""
    study, history, answer, exhibits = found.study, found.history, found.answer, found.exhibits
    goal = f"{study.goal.metric}{f' ({answer.unit})' if answer.unit else ''}"
    compared = [row for row in comparisons(history) if row.get("scale") == "ratio" and row.get("low") is not None]
    rows: list[tuple[str, ...]] = []
    reference, candidate = answer.reference, answer.candidate
    if reference.value is not None:
        rows.append(("A", reference.label, metric_text(reference.value), "1", "–", "–"))
    by_key = {trial.key: trial.point for trial in history.trials.values()}
    first = [row for row in compared if candidate is not None and by_key.get(row["candidate"]) == candidate.point]
    for letter, row in zip(_LETTERS, [*first, *(row for row in compared if row not in first)], strict=False):
        ratio, interval = ratio_range(float(row["estimate"]), float(row["low"]), float(row["high"]))
        value = metric_text(candidate.value) if candidate is not None and row in first else "–"
        moved = changes(study.baseline, by_key.get(row["candidate"], {}))
        rows.append((letter, moved, value, ratio.removesuffix("x"), interval, str(row["verdict"])))
    steps = ladder(study, history)
    if compared or (steps is None and not exhibits.tables):
        if not compared and candidate is not None:
            said = candidate.gain.text if candidate.gain is not None else ""
            rows.append(("B", f"{candidate.label}, not confirmed", metric_text(candidate.value), said, "–", "–"))
        level = f"{study.confirm.level * 100:g}% interval"
        rows = rows or [("A", "no run passed", "–", "–", "–", "–")]
        return TextTable("", ("setting", "what it changes", goal, "ratio", level, "verdict"), tuple(rows))
    return table_of(steps) if steps is not None else exhibits.tables[0]


def write_paper(found: Findings, out: Path, pictures: bool = False) -> list[Path]:
    """Texts, numbers, and each figure as SVG and CSV under `out`, with a browser as PNG too; returns the SVG files."""
    study, text = found.study, paper_text(found)
    drawn: list[Path] = []
    captions: list[str] = []
    try:
        (out / "figures").mkdir(parents=True, exist_ok=True)
        for name, content in _files(study, text):
            write_whole(out / name, iter([content.encode(errors="replace")]))
        for section, figure in _figures(sections(found)):
            path = out / "figures" / f"{_file_name(figure.key)}.svg"
            svg = standalone(draw(figure, HALF_PX if not isinstance(figure, ParallelFigure) else WIDE_PX))
            write_whole(path, iter([svg.encode(errors="replace")]))
            write_whole(path.with_suffix(".csv"), iter([_csv(_rows(table_of(figure))).encode(errors="replace")]))
            marks = re.findall(r"<li>.*?>([^<>]+)(?=<li>|</ul>|$)", legend(figure))
            captions.append(
                f"{path.stem}: {figure.title}. {figure.says} {'Marks: ' + ', '.join(marks) if marks else ''}"
            )
            drawn.append(path)
            if pictures and section in _IN_PICTURES:
                _, _, width, height = re.findall(r'viewBox="([^"]*)"', svg)[0].split()
                write_png(path, path.with_suffix(".png"), float(width), float(height))
        said = markdown(f"{study.name}: figures", "", [Section("figures", "", (Bullets(tuple(captions)),))])
        write_whole(out / "captions.md", iter([said.encode(errors="replace")]))
    except OSError as error:
        raise StoreError(f"{out}: cannot be written ({error.strerror}); name another folder with --out") from None
    return drawn


def _files(study: Study, text: PaperText) -> Iterator[tuple[str, str]]:
    methods = Section("methods", "Methods", (Paragraph(" ".join(text.methods)),))
    yield "text.md", markdown(study.name, "", [methods, Section("results", "Results", (text.table,))])
    yield "text.tex", _tex(text)
    rows = [("number", "as printed", "from"), *((n.name, n.text, n.source) for n in text.numbers)]
    yield _NUMBERS, _csv(rows)


def _tex(text: PaperText) -> str:
    columns = "l" * len(text.table.head)
    if text.table.head[1:2] == ("what it changes",):
        columns = r"lp{0.4\linewidth}rrll"
    lines = [" & ".join(map(latex, row)) + r" \\" for row in (text.table.head, *text.table.rows)]
    return (
        "% Every number here can be recomputed from the study folder: ridgeline verify FOLDER\n"
        f"\\paragraph{{Methods.}} {latex(' '.join(text.methods))}\n\n"
        f"\\begin{{tabular}}{{{columns}}}\n\\hline\n{lines[0]}\n\\hline\n" + "\n".join(lines[1:]) + "\n\\hline\n"
        "\\end{tabular}\n"
    )


_TEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "→": r"$\to$", "–": "--", "`": "", **{c: f"\\{c}" for c in "&%$#_{}"},
}  # fmt: skip


def latex(text: str) -> str:
    """Nothing that a name or a log says becomes a command."""
    return "".join(_TEX.get(c, c) for c in " ".join(text.split()))


def _figures(shown: Sequence[Section]) -> Iterator[tuple[str, Figure]]:
    """Every figure of the report with its section, of several views the first; each file name once."""
    seen: set[str] = set()
    for section, part in ((each.key, part) for each in shown for part in each.parts):
        if isinstance(part, AnswerCard):
            found = [part.figure] if part.figure is not None else []
        elif isinstance(part, FigureGroup):
            found = [*part.figures[:1]] if part.choices else [*part.figures]
        elif isinstance(part, Paragraph | CodeText | Bullets | FactTiles | Hint | RunRows | TextTable | Fold):
            found = []
        else:
            found = [part]
        for figure in found:
            if (name := _file_name(figure.key)) not in seen:
                seen.add(name)
                yield section, figure


def _file_name(key: str) -> str:
    return "progress" if key == "progress-0" else re.sub(r"[^A-Za-z0-9_-]", "-", key)[:80]


def _rows(table: TextTable) -> list[tuple[str, ...]]:
    return [table.head, *table.rows]


def _csv(rows: Sequence[Sequence[str]]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return stream.getvalue()


def standalone(svg: str) -> str:
    """A drawing of the page as a file of its own: XML with its style inside, for LaTeX, Inkscape and others."""
    writer = _AsXml()
    writer.feed(svg)
    writer.close()
    return "".join(writer.parts) + "\n"


class _AsXml(HTMLParser):
    """Quotes attributes and closes elements, as HTML need not; the root has its size, name space and style."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open(tag, attrs, "")
        if tag == "svg":
            self.parts.append(f"<style>{_figure_style()}</style>")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open(tag, attrs, "/")

    def _open(self, tag: str, attrs: list[tuple[str, str | None]], end: str) -> None:
        said = {
            "viewBox" if name == "viewbox" else name: value or ""
            for name, value in attrs
            if not name.startswith("data-")
        }
        if tag == "svg":
            _, _, width, height = said["viewBox"].split()
            said |= {"xmlns": "http://www.w3.org/2000/svg", "width": width, "height": height}
        told = "".join(f' {name}="{escape(value)}"' for name, value in said.items())
        self.parts.append(f"<{tag}{told}{end}>")

    def handle_endtag(self, tag: str) -> None:
        self.parts.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        self.parts.append(escape(data))


def _figure_style() -> str:
    """The page's rules for figures with the light values put in: few programs but browsers know variables."""
    text = style()
    values = dict(re.findall(r"--([\w-]+):([^;}]+)", text[: text.index("@media")]))
    start = text.index("/* figures:")
    rules = text[text.index("*/", start) + 2 : text.index(".legend{", start)]
    looks = dict(re.findall(r"\.(l-[\w-]+)\{--k:var\(--([\w-]+)\)", _split(rules)))
    marks = "".join(
        f".m.{look}{{fill:{values[name]}}}.bar.{look}{{fill:{values[name]}}}"
        f".line.{look},.whisker.{look}{{stroke:{values[name]}}}"
        for look, name in looks.items()
    )
    kept = re.sub(r"(fill|stroke):var\(--k\);?", "", re.sub(r"--k:var\([^)]*\);?", "", rules))
    after = kept.index(".m.l-baseline,.m.l-sentinel")  # rules for one kind of mark come after those for all
    whole = f"{kept[:after]}{marks}{kept[after:]}"
    filled = re.sub(r"var\(--([\w-]+)\)", lambda found: values.get(found[1], "inherit"), whole)
    return filled.replace("svg text", "text").replace(values["sans"], "sans-serif").replace("\n", "").strip()


def _split(rules: str) -> str:
    """`.a,.b{x}` as `.a{x}.b{x}`, so that each look is found with its colour."""
    return re.sub(
        r"([^{}]+)\{([^{}]*)\}",
        lambda rule: "".join(f"{each.strip()}{{{rule[2]}}}" for each in rule[1].split(",")),
        rules,
    )


def paper_differs(found: Findings, folder: Path) -> tuple[int, list[tuple[str, str, str, str]]]:
    """How many numbers of a paper's folder follow from the study, and those that do not: file, what, stated, found.

    The wording is its authors' affair: each number must be one that the study gives, wherever it stands."""
    text = paper_text(found)
    now = {(n.name, n.text) for n in text.numbers}
    known = {n.text for n in text.numbers} | {"0"}
    names = " ".join((found.study.name, *text.methods, *(cell for row in _rows(text.table) for cell in row)))
    known |= set(_NUMBER.findall(names))
    wrong: list[tuple[str, str, str, str]] = []
    held = 0
    for row in [*csv.reader(text_of(folder / _NUMBERS).splitlines())][1:]:
        name, stated = (row[0], row[1]) if len(row) > 1 else (" ".join(row), "")
        other = next((n.text for n in text.numbers if n.name == name), "nothing")
        held += (name, stated) in now
        if (name, stated) not in now:
            wrong.append((f"{folder.name}/{_NUMBERS}", name, stated, other))
    for file in _TEXTS:
        for stated in dict.fromkeys(_NUMBER.findall(text_of(folder / file).replace("\\", ""))):
            held += stated in known
            if stated not in known:
                wrong.append((f"{folder.name}/{file}", "a number", stated, "no number of this study"))
    return held, wrong
