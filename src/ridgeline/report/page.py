"""One HTML file that needs no network: the answer, its proof, and everything it rests on; or its print."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from html import escape
from importlib.resources import files
from pathlib import Path

from ridgeline.errors import InputError, StoreError
from ridgeline.files import write_whole
from ridgeline.report.html import Folders, contents, section_html
from ridgeline.report.parts import Section
from ridgeline.report.sections import Findings, sections

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
_PRINT_LIMIT_S = 180.0


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
        "<meta name=viewport content='width=device-width,initial-scale=1'>"
        f"<style>{asset('ridgeline.css')}</style></head><body class=report>\n{contents(shown)}\n"
        f"<header><h1>{escape(name)}</h1><p class=question>{escape(question)}</p></header>\n<main>\n"
    ).encode(errors="replace")
    for section in shown:
        yield f"{section_html(section, folders)}\n".encode(errors="replace")
    yield f"</main>\n<script>{asset('page.js')}</script></body></html>\n".encode()


def asset(name: str) -> str:
    """`ridgeline.css` is the one style of all pages (docs/design.md); they are complete without their scripts."""
    return files("ridgeline.report").joinpath("assets", name).read_text()


def browser_path() -> str:
    """The first browser on the PATH that can print; InputError says what to do where there is none."""
    found = next((path for name in _BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        raise InputError(
            "a PDF needs Chromium or Chrome on the PATH, and there is none; install one (apt install chromium), "
            "or write the HTML report and print it from any browser: it is laid out for paper"
        )
    return found


def write_pdf(page: Path, out: Path) -> Path:
    """`page`, an HTML file, as a PDF; StoreError where the browser would not write it."""
    browser = browser_path()
    with tempfile.TemporaryDirectory(prefix="ridgeline-browser-") as folder:
        made = Path(folder, f"made{out.suffix}")
        # a container's root may not make the sandbox, and the page is our own file
        alone = ["--no-sandbox"] if os.geteuid() == 0 else []
        command = [
            browser, "--headless", *alone, "--disable-gpu", f"--user-data-dir={folder}/profile",
            "--no-pdf-header-footer", f"--print-to-pdf={made}", page.resolve().as_uri(),
        ]  # fmt: skip
        try:
            ended = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=_PRINT_LIMIT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise StoreError(f"{browser} did not print the report ({error}); print the HTML report by hand") from None
        if not made.is_file() or not made.stat().st_size:
            said = ended.stderr.strip().splitlines()[-1:] or [f"exit code {ended.returncode}"]
            raise StoreError(f"{browser} did not print the report ({said[0]}); print the HTML report by hand")
        return write_page(iter((made.read_bytes(),)), out)
