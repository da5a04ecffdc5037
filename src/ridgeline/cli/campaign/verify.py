from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def verify(
    folder: Annotated[Path, typer.Argument(help="The study folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Recompute every number of a study folder from its journal and the files of its runs; list what differs.

    With a folder `paper` in it (`report --format paper`), the numbers of that too.
    Exit code 1: something differs. What can't be checked is listed, and doesn't count as a difference.

    Example: ridgeline verify studies/first
    """
    from ridgeline.campaign.status import answer_on_paper, read_status_as_far
    from ridgeline.campaign.verify.folder import verify_folder
    from ridgeline.cli.text.json import json_text
    from ridgeline.cli.text.verify import verification_lines
    from ridgeline.errors import ExitCode
    from ridgeline.report.paper import FOLDER, paper_differs
    from ridgeline.report.sections import Findings

    found = verify_folder(folder)
    if (paper := folder / FOLDER).is_dir() and found.verdict is not False:
        now, _ = read_status_as_far(folder)
        held, wrong = paper_differs(Findings(now.study, now.history, answer_on_paper(now), now.exhibits), paper)
        found.paper_numbers = held
        for file, what, stated, other in wrong:
            found.differs(file, what, stated, other)
    print(json_text(found.as_json()) if as_json else "\n".join(verification_lines(found)))
    if not found.holds:
        raise typer.Exit(ExitCode.NOTHING_BETTER)
