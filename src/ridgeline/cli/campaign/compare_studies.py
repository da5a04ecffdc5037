from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.errors import NothingFound

if TYPE_CHECKING:
    from ridgeline.report.studies import StudiesCompared


def compare_studies(
    first: Annotated[Path, typer.Argument(help="A study folder.")],
    second: Annotated[Path, typer.Argument(help="Another that asks the same question: other nodes, another release.")],
    out: Annotated[Path | None, typer.Option(help="Also write it as a page: FILE.html, or FILE.md.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Compare two study folders: what changed between them, with an interval for each setting that ran in both.

    The campaigns were not interleaved, so this shows that something changed, not what caused it.

    Exit code 1: no setting passed in both.

    Example: ridgeline study diff studies/first studies/second
    """
    from ridgeline.campaign.status import answer_on_paper, read_status
    from ridgeline.report.html import Folders
    from ridgeline.report.markdown import markdown
    from ridgeline.report.page import whole_page, write_page
    from ridgeline.report.studies import StudySeen, compare_studies, studies_sections

    names = [path.resolve().name for path in (first, second)]
    if names[0] == names[1]:
        names = [f"{path.resolve().parent.name}/{name}" for path, name in zip((first, second), names, strict=True)]
    if names[0] == names[1]:
        names = ["A", "B"]
    sides = []
    for name, path in zip(names, (first, second), strict=True):
        now = read_status(path)
        sides.append(StudySeen(name, now.study, now.history, answer_on_paper(now)))
    found = compare_studies(*sides)
    if out is not None:
        title, shown = f"{names[1]} against {names[0]}", studies_sections(found)
        if out.suffix == ".md":
            content = iter([markdown(title, sides[0].study.question, shown).encode(errors="replace")])
        else:
            content = whole_page(title, sides[0].study.question, shown, Folders(first, None))
        write_page(content, out)
    print(json.dumps(found.as_json(), indent=1) if as_json else "\n".join(studies_lines(found)), flush=True)
    if found.overall is None:
        raise NothingFound(f"{first}, {second}: no setting passed in both, so there is nothing to compare")


_WIDTH = 78


def studies_lines(found: StudiesCompared) -> Iterator[str]:
    from ridgeline.report.studies import CAUTION, settings_table

    yield from wrap(found.headline, _WIDTH)
    yield ""
    for row in settings_table(found).rows:
        setting, before, after, _, ratio = row
        yield from wrap(setting, _WIDTH)
        yield f"  {before} -> {after}   {ratio}"
    for setting, first, second in found.outcomes:
        yield from wrap(setting, _WIDTH)
        yield f"  {found.first.name}: {first}   {found.second.name}: {second}"
    if found.differences:
        yield ""
        yield "What differs"
        for what, first, second in found.differences:
            yield f"  {what}"
            for name, text in ((found.first.name, first), (found.second.name, second)):
                yield from wrap(f"{name}: {text or '–'}", _WIDTH, initial_indent="    ", subsequent_indent="      ")
    yield ""
    yield from wrap(CAUTION, _WIDTH)
