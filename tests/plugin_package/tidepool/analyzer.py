"""`gzip-messages`: what gzip complains about, wherever its messages were written to."""

import re
from collections.abc import Iterable

from ridgeline.diagnose.base import Analyzer, Quote, RawFinding, cited, rereadable
from ridgeline.records.finding import Finding


def analyze(source: str, lines: Iterable[str]) -> list[Finding]:
    text = rereadable(lines)
    torn = [number for number, line in enumerate(text, 1) if re.search(r"^gzip: .*: unexpected end of file", line)]
    claim = RawFinding(
        f"{len(torn)} compressed files are torn",
        tuple(Quote(number) for number in torn[:3]),
        "Copy them again; a transfer that broke off leaves such files.",
        "fault",
    )
    return cited(source, text, [claim] if torn else [])


ANALYZER = Analyzer("gzip-messages", "messages of gzip", re.compile(r"^gzip: "), analyze)
