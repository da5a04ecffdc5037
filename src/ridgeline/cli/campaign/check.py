"""`ridgeline check STUDY`: is it fit to run, how large is its space, what may it cost."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.campaign import check as campaign_check
from ridgeline.campaign import preview
from ridgeline.errors import StudyError
from ridgeline.records import expression
from ridgeline.stats.wording import count

if TYPE_CHECKING:
    from ridgeline.campaign.preview import SpaceSize, Stake, StudyCheck


def check(
    study: Annotated[Path, typer.Argument(help="The study file (YAML).")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
) -> None:
    """Validate a study; print how many points are legal and what it can cost at most. Nothing is run.

    Example: ridgeline check study.yaml
    """
    try:
        checked = preview.whole_check(campaign_check.check_study(study))
    except StudyError as error:
        if as_json:
            print(json.dumps({"ok": False, "file": str(study), "problems": list(error.problems)}, indent=1))
        raise
    if as_json:
        print(json.dumps(_document(study, checked), indent=1))
    else:
        print("\n".join(_lines(study, checked)))


def _document(path: Path, checked: StudyCheck) -> dict[str, Any]:
    size, cost = checked.space, checked.cost
    return {
        "ok": True,
        "file": str(path),
        "name": checked.study.name,
        "grant": None if checked.study.grant is None else str(checked.study.grant),
        "space": {
            "points": None if math.isinf(size.points) else size.points,
            "legal": None if math.isinf(size.points) else size.legal,
            "legal_share": _legal_share(size),
            "exact": size.exact,
            "refused": dict(size.refused),
        },
        "warnings": checked.warnings,
        "remarks": checked.remarks,
        "cost": {
            "runs": cost.runs,
            "runs_with_faults": cost.runs_with_faults,
            "node_hours": cost.node_hours,
            "ended_by": cost.binds or None,
            "run_limit_s": checked.study.job.limit_s,
            "parts": [
                {"part": part.name, "runs": part.runs, "node_hours": part.node_hours, "why": part.why}
                for part in cost.parts
            ],
            "builds": cost.builds,
        },
    }


def _lines(path: Path, checked: StudyCheck) -> list[str]:
    study, size = checked.study, checked.space
    lines = [f"{study.name}   {study.workload.kind} on {study.site.name}   {path}", f"  space   {_space(size)}"]
    for reason, number in size.refused.most_common():
        shown = f"{number:,}" if size.exact else f"about {number / _looked_at(size):.0%}"
        lines.append(f"          {shown} refused: {reason}")
    lines += [f"  note    {remark}" for remark in checked.remarks]
    lines += [f"  warning {doubt}" for doubt in checked.warnings]
    return [*lines, *_cost(checked.cost, expression.show_duration(study.job.limit_s))]


def _cost(cost: Stake, limit: str) -> Iterator[str]:
    runs = "as many runs as fit" if cost.runs is None else f"at most {count(cost.runs, 'run')}"
    worst = "no limit in node-hours" if cost.node_hours is None else f"at most {_hours(cost.node_hours)}"
    yield f"  cost    {worst}: {runs}, each ended after {limit}"
    if cost.binds:
        limit_hours = cost.limits[cost.binds]
        over = (cost.node_hours or 0.0) - limit_hours
        more = f"; what runs then goes on, for {over:.3g} more at the most" if over > 0 else ""
        yield f"          budget.{cost.binds} ends it: nothing is begun after {_hours(limit_hours)}{more}"
    for part in (part for part in cost.parts if part.runs != 0):
        hours = part.node_hours
        text = "" if hours is None else f", {_hours(hours)}"
        yield f"          {'?' if part.runs is None else part.runs:>4} {part.name} ({part.why}{text})"
    if cost.builds != 0:
        built = "one for every setting that differs in it" if cost.builds is None else f"at most {cost.builds}"
        yield f"          builds of the program: {built}"
    if cost.runs is not None and cost.runs_with_faults != cost.runs:
        again = "runs lost to faults of nodes or of the site are repeated"
        yield f"          {again}: at worst {cost.runs_with_faults} runs"


def _hours(node_hours: float) -> str:
    return count(node_hours, "node-hour", f"{node_hours:.3g}")


def _looked_at(size: SpaceSize) -> float:
    return size.points if size.exact else preview.SAMPLED_POINTS


def _legal_share(size: SpaceSize) -> float:
    return 1 - size.refused.total() / _looked_at(size)


def _space(size: SpaceSize) -> str:
    if size.exact:
        return f"{count(size.legal, 'legal point', f'{size.legal:,.0f}')} of {size.points:,.0f}"
    if math.isinf(size.points):
        return f"endless (a knob takes any number in a range); about {_legal_share(size):.0%} of it is legal"
    return f"about {size.legal:,.0f} legal points of {size.points:,.0f} (estimated from {_looked_at(size):,} samples)"
