"""Two campaigns side by side, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from ridgeline.report.studies import CAUTION, StudiesCompared, settings_table

WIDTH = 78


def studies_lines(found: StudiesCompared) -> Iterator[str]:
    yield from wrap(found.headline, WIDTH)
    yield ""
    for row in settings_table(found).rows:
        setting, before, after, _, ratio = row
        yield from wrap(setting, WIDTH)
        yield f"  {before} -> {after}   {ratio}"
    for setting, first, second in found.outcomes:
        yield from wrap(setting, WIDTH)
        yield f"  {found.first.name}: {first}   {found.second.name}: {second}"
    if found.differences:
        yield ""
        yield "What differs"
        for what, first, second in found.differences:
            yield f"  {what}"
            for name, told in ((found.first.name, first), (found.second.name, second)):
                yield from wrap(f"{name}: {told or '–'}", WIDTH, initial_indent="    ", subsequent_indent="      ")
    yield ""
    yield from wrap(CAUTION, WIDTH)
