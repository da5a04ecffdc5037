"""docs/guides/plan-a-cluster.md shows what the verbs print, word for word where nothing is simulated."""

import io
import re
import shlex
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from ridgeline.cli.main import run

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "plan-a-cluster.md").read_text()
BLOCKS = re.findall(r"```\n\$ ridgeline ([^\n]+)\n(.*?)```", GUIDE, re.DOTALL)


def test_the_guide_shows_all_four_verbs() -> None:
    assert {command.split()[0] for command, _ in BLOCKS} == {"memory", "layouts", "plan", "fleet"}


@pytest.mark.parametrize(("command", "shown"), [b for b in BLOCKS if not b[0].startswith("plan")])
def test_shown_output_is_what_is_printed(command: str, shown: str) -> None:
    printed = io.StringIO()
    with redirect_stdout(printed), pytest.raises(SystemExit) as ended:
        run(shlex.split(command))
    assert not ended.value.code
    assert printed.getvalue() == shown
