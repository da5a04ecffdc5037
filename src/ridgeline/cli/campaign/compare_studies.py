from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.campaign import status
from ridgeline.errors import NothingFound
from ridgeline.report import studies
from ridgeline.stats.wording import metric_text

if TYPE_CHECKING:
    from ridgeline.campaign.status import CampaignStatus
    from ridgeline.report.studies import StudiesCompared, StudySeen


def compare_studies(
    first: Annotated[Path, typer.Argument(help="A study folder.")],
    second: Annotated[Path, typer.Argument(help="Another that asks the same question: other nodes, another release.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Compare two study folders: what changed between them, with an interval for each setting that ran in both.

    The campaigns were not interleaved, so this shows that something changed, not what caused it.

    Exit code 1: no setting passed in both.

    Example: ridgeline study diff studies/first studies/second
    """
    names = [path.resolve().name for path in (first, second)]
    if names[0] == names[1]:
        names = [f"{path.resolve().parent.name}/{name}" for path, name in zip((first, second), names, strict=True)]
    if names[0] == names[1]:
        names = ["A", "B"]
    before, after = (seen_as(name, status.read_status(p)) for name, p in zip(names, (first, second), strict=True))
    found = studies.compare_studies(before, after)
    print(json.dumps(found.as_json(), indent=1) if as_json else "\n".join(studies_lines(found)), flush=True)
    if found.overall is None:
        raise NothingFound(f"{first}, {second}: no setting passed in both, so there is nothing to compare")


def seen_as(name: str, now: CampaignStatus) -> StudySeen:
    return studies.StudySeen(name, now.study, now.history, status.answer_on_paper(now))


_WIDTH = 78


def studies_lines(found: StudiesCompared) -> Iterator[str]:
    yield from wrap(found.headline, _WIDTH)
    yield ""
    for one in found.settings:
        before, after = map(metric_text, one.values)
        yield from wrap(one.setting, _WIDTH)
        yield f"  {before} -> {after}   {one.ratio}"
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
    yield from wrap(studies.CAUTION, _WIDTH)
