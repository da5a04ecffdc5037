"""One HTML file that needs no network: the answer, its proof, and everything it rests on."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from importlib.resources import files
from pathlib import Path

from ridgeline.errors import StoreError
from ridgeline.files import write_whole
from ridgeline.report.html import Folders, contents, section_html
from ridgeline.report.parts import Section
from ridgeline.report.sections import Findings, sections


def write_report(found: Findings, out: Path) -> Path:
    """The report of a campaign, as a pure function of its journal, study file and run folders."""
    return write_page(page(found, out), out)


def write_page(content: Iterator[bytes], out: Path) -> Path:
    if out.is_dir():
        raise StoreError(f"{out} is a folder; name a file with --out")
    try:
        write_whole(out, content)
    except OSError as error:
        raise StoreError(f"{out}: cannot be written ({error.strerror}); name another file with --out") from None
    return out


def page(found: Findings, out: Path | None = None) -> Iterator[bytes]:
    """The file, piece by piece. `out` is where it will lie: links to run folders start there."""
    folders = Folders(found.history.root, out)
    return whole_page(found.study.name, found.study.question, sections(found), folders)


def whole_page(name: str, question: str, shown: list[Section], folders: Folders) -> Iterator[bytes]:
    yield (
        f"<!doctype html><html lang=en><head><meta charset=utf-8><title>{escape(name)}</title>"
        f"<meta name=viewport content='width=device-width,initial-scale=1'><style>{style()}</style></head>"
        f"<body class=report>\n{contents(shown)}\n"
        f"<header><h1>{escape(name)}</h1><p class=question>{escape(question)}</p></header>\n<main>\n"
    ).encode(errors="replace")
    for section in shown:
        yield f"{section_html(section, folders)}\n".encode(errors="replace")
    yield f"</main>\n<script>{script()}</script></body></html>\n".encode()


def style() -> str:
    """The one style of all pages; see docs/design.md."""
    return files("ridgeline.report").joinpath("assets/ridgeline.css").read_text()


def script() -> str:
    """What a page does with scripts: copy, sort, filter, and marks linked to rows. It is complete without."""
    return files("ridgeline.report").joinpath("assets/page.js").read_text()
