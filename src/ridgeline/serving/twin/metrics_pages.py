"""MetricsPages of a server's Prometheus metrics with the times at which they were read.

A file holds pages one after the other, each under a line `# scraped 2026-11-19T10:30:00Z`, as `ridgeline twin calibrate
--metrics` and a loop around curl leave them, or the answer of Prometheus to a range query (`/api/v1/query_range`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError
from ridgeline.files import beginning_of, plain_lines, read_unzipped

SCRAPED, SERVER = "# scraped ", "# server "
_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)", re.ASCII)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_START = 4096  # bytes that tell pages from other files

PLAIN = -1.0  # the edge of figures that are no bucket of a histogram
Figure = tuple[str, float]  # a name, and the upper edge of a bucket


@dataclass
class MetricsPage:
    """One look at a server: every figure summed over its labels, and the models and servers that these name.

    `torn`: it ends within a line, and what came after that is not known.
    """

    at_s: float
    figures: dict[Figure, float] = field(default_factory=dict)
    named: set[tuple[str, str]] = field(default_factory=set)
    torn: bool = False

    def add(self, name: str, labels: Mapping[str, str], value: object) -> None:
        try:
            number, edge = float(str(value)), float(labels["le"]) if "le" in labels else PLAIN
        except ValueError:
            return
        if math.isfinite(number):
            self.figures[name, edge] = self.figures.get((name, edge), 0.0) + number
            self.named |= {(label, labels[label]) for label in ("model_name", "instance") if label in labels}


@dataclass(frozen=True, slots=True)
class MetricsPages:
    """Of one file, as they come in it. `server` is what the server said of itself, where that was kept."""

    source: str
    pages: tuple[MetricsPage, ...]
    server: Mapping[str, Any]

    def named(self, label: str) -> list[str]:
        return sorted({value for page in self.pages for name, value in page.named if name == label})


def is_pages(path: Path) -> bool:
    try:
        start = beginning_of(path, _START).lstrip()
    except OSError:
        return False
    return start.startswith(("# scraped", "# server", "# HELP", "# TYPE")) or '"resultType"' in start


def read_pages(path: Path) -> MetricsPages:
    """InputError where a time or an answer of Prometheus can't be read."""
    try:
        text = plain_lines(read_unzipped(path))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give a file of scraped metrics") from None
    if text.lstrip().startswith("{"):
        return MetricsPages(str(path), tuple(_of_range(_parsed(text), path)), {})
    server: Mapping[str, Any] = {}
    pages: list[MetricsPage] = []
    for number, line in enumerate(text.splitlines(), start=1):
        before, header, at = line.partition(SCRAPED)
        if header:
            if before and pages:  # a scrape that was cut off ends within a line
                pages[-1].torn = True
            pages.append(MetricsPage(_time(at.strip(), f"{path}:{number}")))
        elif line.startswith(SERVER):
            server = _parsed(line.removeprefix(SERVER))
        elif (found := _SAMPLE.fullmatch(line)) is not None:
            if not pages:
                raise InputError(
                    f"{path}:{number}: a page without a time; put a line such as `# scraped 2026-11-19T10:30:00Z` "
                    "before each page, or let `ridgeline twin calibrate --metrics URL` scrape the server"
                )
            pages[-1].add(found[1], dict(_LABEL.findall(found[2] or "")), found[3])
    return MetricsPages(str(path), tuple(pages), server)


def _time(text: str, where: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise InputError(f"{where}: {text!r} is not a time; write it as 2026-11-19T10:30:00Z") from None


def _parsed(text: str) -> dict[str, Any]:
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _of_range(document: Mapping[str, Any], path: Path) -> Iterator[MetricsPage]:
    pages: dict[float, MetricsPage] = {}
    try:
        for series in document["data"]["result"]:
            labels = {str(name): str(value) for name, value in series["metric"].items()}
            for at, value in series["values"]:
                pages.setdefault(float(at), MetricsPage(float(at))).add(labels.get("__name__", ""), labels, value)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InputError(
            f"{path}: not an answer of Prometheus to a range query; ask /api/v1/query_range for "
            '{__name__=~"vllm:.*"} or {__name__=~"sglang:.*"} of one server'
        ) from None
    return (pages[at] for at in sorted(pages))
