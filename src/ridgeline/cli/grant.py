"""ridgeline site grant show FILE, create, top-up, release"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.stats import wording
from ridgeline.study import grant as study_grant

if TYPE_CHECKING:
    from ridgeline.study.grant import Grant, GrantedRun

_File = Annotated[Path, typer.Argument(metavar="FILE", help="The grant's file, as in `budget: {grant: FILE}`.")]
_Amount = Annotated[float, typer.Argument(help="How much, in the grant's unit.")]


def show(
    file: _File, as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False
) -> None:
    """Show what is spent, reserved and left of a grant, by study.

    Example: ridgeline site grant show grant.jsonl
    """
    grant = study_grant.read_grant(file)
    print(json.dumps(_document(grant), indent=1) if as_json else "\n".join(_lines(file, grant)))


def create(
    file: _File,
    amount: _Amount,
    unit: Annotated[str, typer.Option(help="What is granted: node-hours, or the site's own unit.")] = "node-hours",
    per_node_hour: Annotated[float, typer.Option(help="What the site charges for a node-hour, in that unit.")] = 1.0,
) -> None:
    """Create the file of a grant.

    Those who share it must be able to write it.

    Example: ridgeline site grant create team.jsonl 5000 --unit SU --per-node-hour 128
    """
    print("\n".join(_lines(file, study_grant.create(file, amount, unit, per_node_hour))))


def top_up(file: _File, amount: _Amount) -> None:
    """Add to a grant.

    Example: ridgeline site grant top-up grant.jsonl 500
    """
    print("\n".join(_lines(file, study_grant.top_up(file, amount))))


def release(
    file: _File, study: Annotated[Path, typer.Argument(metavar="STUDY", help="The study folder, as `show` names it.")]
) -> None:
    """Give back the reservation of a campaign that will never be resumed.

    One that is resumed settles it by itself.

    Example: ridgeline site grant release grant.jsonl studies/lost
    """
    released = study_grant.release(file, str(study.resolve()))
    print(f"gave back what {wording.count(released, 'run')} had reserved")
    print("\n".join(_lines(file, study_grant.read_grant(file))))


def _by_study(grant: Grant) -> dict[str, list[GrantedRun]]:
    found: dict[str, list[GrantedRun]] = {}
    for run in grant.runs.values():
        found.setdefault(run.study, []).append(run)
    return found


def _document(grant: Grant) -> dict[str, object]:
    studies = [
        {
            "study": study,
            "who": runs[-1].who,
            "runs": len(runs),
            "spent": sum(run.spent for run in runs),
            "reserved": sum(run.reserved for run in runs),
        }
        for study, runs in _by_study(grant).items()
    ]
    return {
        "unit": grant.unit,
        "per_node_hour": grant.per_node_hour,
        "granted": grant.total,
        "spent": grant.spent,
        "reserved": grant.reserved,
        "left": grant.left,
        "studies": studies,
    }


def _lines(path: Path, grant: Grant) -> Iterator[str]:
    rate = "" if grant.unit == study_grant.NODE_HOURS else f", {grant.per_node_hour:g} a node-hour"
    yield f"{path}   {grant.total:,.6g} {grant.unit} granted{rate}"
    for name, value in (("spent", grant.spent), ("reserved", grant.reserved), ("left", grant.left)):
        yield f"  {name:<9}{value:>12,.3f}"
    if grant.runs:
        yield f"  {'spent':>12}{'reserved':>12}{'runs':>7}  study, and who ran it last"
    for study, runs in _by_study(grant).items():
        spent, reserved = sum(run.spent for run in runs), sum(run.reserved for run in runs)
        yield f"  {spent:>12,.3f}{reserved:>12,.3f}{len(runs):>7}  {study}, {runs[-1].who}"
    settled = [run for run in grant.runs.values() if run.source]
    if settled:
        checked = sum(run.source == study_grant.BATCH_SYSTEM for run in settled)
        rest = "" if checked == len(settled) else "; the others are as measured"
        yield f"  {checked} of {wording.count(len(settled), 'settled run')} as the batch system charged it{rest}"
