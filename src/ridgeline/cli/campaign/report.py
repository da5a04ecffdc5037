from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.campaign import status
from ridgeline.cli.campaign import compare_studies, watch
from ridgeline.errors import InputError
from ridgeline.report import html as report_html
from ridgeline.report import markdown as report_markdown
from ridgeline.report import page as report_page
from ridgeline.report import sections as report_sections
from ridgeline.report import slides as report_slides
from ridgeline.report import studies
from ridgeline.study import folder as study_folder

if TYPE_CHECKING:
    from ridgeline.report.parts import Section


class ReportFormat(StrEnum):
    html = "html"
    md = "md"
    pdf = "pdf"
    slides = "slides"


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR|FOLDER", help="A study folder, or a folder of several.")],
    out: Annotated[Path | None, typer.Option(help="File to write; in the study folder by default.")] = None,
    form: Annotated[
        ReportFormat,
        typer.Option("--format", help="html, md (for a pull request), pdf (needs Chromium) or slides."),
    ] = ReportFormat.html,
) -> None:
    """Write the report of a study folder: one self-contained page. Works while the campaign runs, too.

    slides writes a deck: one HTML file, or a PDF with --out NAME.pdf.
    For a folder of several studies it writes their history: what each found and cost, and what it says about each knob.

    Example: ridgeline report studies/first
    """
    import ridgeline.stats.arrays  # noqa: F401  before anything else of a report loads numpy with all its threads

    printed = form is ReportFormat.pdf or (form is ReportFormat.slides and out is not None and out.suffix == ".pdf")
    if printed:
        report_page.browser_path()  # before anything is worked out
    target = out or folder / ("slides.html" if form is ReportFormat.slides else f"report.{form.value}")
    if (folder / "study.yaml").exists() or not (several := _studies_in(folder)):
        now, notes = status.read_status_as_far(folder)
        answer, ladder = status.answer_on_paper(now), study_folder.read_ladder(folder)
        found = report_sections.Findings(now.study, now.history, answer, now.exhibits, notes, ladder)
        if form is ReportFormat.slides:
            _write(lambda page: report_slides.deck(found), target, printed)
        elif form is ReportFormat.md:
            _write_markdown(now.study.name, now.study.question, report_sections.sections(found), target)
        else:
            _write(lambda page: report_page.page(found, page), target, printed)
    elif form is ReportFormat.slides:
        raise InputError(f"{folder} holds {len(several)} studies and --format {form} is of one; name it: {several[0]}")
    else:
        names = {path.relative_to(folder).as_posix(): path for path in several}
        seen = [compare_studies.seen_as(name, status.read_status_as_far(path)[0]) for name, path in names.items()]
        name, shown = folder.resolve().name, studies.project_sections(seen)
        if form is ReportFormat.md:
            _write_markdown(name, "", shown, target)
        else:
            _write(
                lambda page: report_page.whole_page(name, "", shown, report_html.Folders(folder, page)), target, printed
            )
    print(target)


def _studies_in(folder: Path) -> list[Path]:
    return sorted(path for path in watch.journals_below(folder) if (path / "study.yaml").exists())


def _write_markdown(name: str, question: str, shown: list[Section], target: Path) -> None:
    text = report_markdown.markdown(name, question, shown)
    report_page.write_page(iter([text.encode(errors="replace")]), target)


def _write(pieces: Callable[[Path], Iterator[bytes]], target: Path, printed: bool) -> None:
    """`pieces` of a page, by where it will lie. Printed, it lies in a temporary folder."""
    if not printed:
        report_page.write_page(pieces(target), target)
        return
    with tempfile.TemporaryDirectory(prefix="ridgeline-report-") as place:
        page = Path(place, "page.html")
        report_page.write_pdf(report_page.write_page(pieces(page), page), target)
