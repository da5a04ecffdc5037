from __future__ import annotations

import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ridgeline.campaign import status
from ridgeline.errors import InputError
from ridgeline.report import html as report_html
from ridgeline.report import markdown as report_markdown
from ridgeline.report import page as report_page
from ridgeline.report import sections as report_sections
from ridgeline.report import slides as report_slides
from ridgeline.report import studies
from ridgeline.study import folder as study_folder


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
    if not (folder / "study.yaml").exists() and (several := _studies_in(folder)):
        _project(folder, several, out, form)
        return
    now, notes = status.read_status_as_far(folder)
    target = out or folder / ("slides.html" if form is ReportFormat.slides else f"report.{form.value}")
    found = report_sections.Findings(
        now.study, now.history, status.answer_on_paper(now), now.exhibits, notes, study_folder.read_ladder(folder)
    )
    match form:
        case ReportFormat.html:
            report_page.write_report(found, target)
        case ReportFormat.md:
            text = report_markdown.markdown(now.study.name, now.study.question, report_sections.sections(found))
            report_page.write_page(iter([text.encode(errors="replace")]), target)
        case ReportFormat.pdf:
            with tempfile.TemporaryDirectory(prefix="ridgeline-report-") as place:
                report_page.write_pdf(report_page.write_report(found, Path(place, "report.html")), target)
        case ReportFormat.slides:
            with tempfile.TemporaryDirectory(prefix="ridgeline-report-") as place:
                page = report_page.write_page(
                    report_slides.deck(found), Path(place, "slides.html") if printed else target
                )
                if printed:
                    report_page.write_pdf(page, target)
    print(target)


def _studies_in(folder: Path) -> list[Path]:
    """Study folders one or two levels below."""
    journals = (path for depth in ("*", "*/*") for path in folder.glob(f"{depth}/journal.jsonl"))
    return sorted({path.parent for path in journals if (path.parent / "study.yaml").exists()})


def _project(folder: Path, several: list[Path], out: Path | None, form: ReportFormat) -> None:
    if form not in (ReportFormat.html, ReportFormat.md, ReportFormat.pdf):
        raise InputError(f"{folder} holds {len(several)} studies and --format {form} is of one; name it: {several[0]}")
    seen = []
    for path in several:
        now, _ = status.read_status_as_far(path)
        seen.append(
            studies.StudySeen(path.relative_to(folder).as_posix(), now.study, now.history, status.answer_on_paper(now))
        )
    name, shown = folder.resolve().name, studies.project_sections(seen)
    target = out or folder / f"report.{form.value}"
    if form is ReportFormat.md:
        report_page.write_page(iter([report_markdown.markdown(name, "", shown).encode(errors="replace")]), target)
    elif form is ReportFormat.html:
        report_page.write_page(report_page.whole_page(name, "", shown, report_html.Folders(folder, target)), target)
    else:
        with tempfile.TemporaryDirectory(prefix="ridgeline-report-") as place:
            page = Path(place, "report.html")
            report_page.write_pdf(
                report_page.write_page(
                    report_page.whole_page(name, "", shown, report_html.Folders(folder, page)), page
                ),
                target,
            )
    print(target)
