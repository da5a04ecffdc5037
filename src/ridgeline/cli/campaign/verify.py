from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.campaign import verify as campaign_verify
from ridgeline.cli.text import table
from ridgeline.errors import ExitCode
from ridgeline.stats import wording

if TYPE_CHECKING:
    from ridgeline.campaign.verify import Mismatch, Unchecked, Verification


def verify(
    folder: Annotated[Path, typer.Argument(help="The study folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Recompute every number of a study folder from its journal and the files of its runs; list what differs.

    Exit code 1: something differs. What can't be checked is listed, and doesn't count as a difference.

    Example: ridgeline study verify studies/first
    """
    found = campaign_verify.verify_folder(folder)
    print(table.json_text(found.as_json()) if as_json else "\n".join(_verification_lines(found)))
    if not found.holds:
        raise typer.Exit(ExitCode.NOTHING_BETTER)


_LONGEST_VALUE = 200
_VERDICTS = {
    True: "the verdict follows from the runs",
    False: "the verdict does not follow from the runs",
    None: "there is no verdict to compare",
}


def _verification_lines(found: Verification) -> Iterable[str]:
    headline = "everything that can be checked holds" if found.unchecked else "everything holds"
    if wrong := len(found.mismatches):
        headline = f"{wording.count(wrong, 'thing')} {'does' if wrong == 1 else 'do'} not match"
    yield f"{found.folder}: {headline}"
    runs, numbers = wording.count(found.runs, "run"), wording.count(found.numbers, "number")
    yield f"  {runs}; read again and as stated: {numbers}"
    outcomes = wording.count(found.outcomes, "outcome")
    yield f"  judged again and as stated: {outcomes}; {_VERDICTS[found.verdict]}"
    if found.signature:
        yield f"  the task's rules: the record follows from the folder; signature {found.signature}"
    if found.receipts:
        yield from (f"  {line}" for line in _receipt_lines(found.receipts[-1]))
    else:
        yield "  no receipt: an earlier version wrote this folder"
    if found.mismatches:
        yield "does not match:"
    for each in found.mismatches:
        yield f"  {_where(each)}: {each.what}: stated {_value(each.stated)}, found {_value(each.found)}"
    if found.unchecked:
        yield "not checkable:"
        yield from _unchecked_lines(found.unchecked)


def _unchecked_lines(unchecked: Sequence[Unchecked]) -> Iterable[str]:
    """What several runs cannot show for the same reason is one line."""
    alike: dict[tuple[str, str], list[Unchecked]] = {}
    for each in unchecked:
        place = each.file if each.run is None else Path(each.file).name
        alike.setdefault((place, each.why), []).append(each)
    for (place, why), those in alike.items():
        runs = [str(each.run) for each in those if each.run is not None]
        yield f"  {place} of runs {', '.join(runs)}: {why}" if len(runs) > 1 else f"  {_where(those[0])}: {why}"


def _receipt_lines(receipt: Mapping[str, Any]) -> Iterable[str]:
    """The machine, the software, the command; on lines of their own, since each may be long."""

    def noted(name: str) -> Any:
        return receipt.get(name, "unknown")

    gpus, cores = receipt.get("gpus") or [], noted("cores")
    cores = wording.count(cores, "core") if isinstance(cores, int) else f"{cores} cores"
    graphics = f"{len(gpus)} x {gpus[0]}, driver {noted('driver')}" if gpus else "no GPU"
    yield f"on {noted('host')}: {noted('cpu')}, {cores}, {graphics}"
    yield f"kernel {noted('kernel')}, Python {noted('python')}, ridgeline {noted('ridgeline')}, seed {noted('seed')}"
    yield f"as `{noted('command')}`"


def _where(found: Mismatch | Unchecked) -> str:
    return found.file if found.run is None else f"run {found.run}, {found.file}"


def _value(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"
