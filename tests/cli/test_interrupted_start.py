"""Ctrl-C while the command line is still loading ends it without a word, and with the code of an interrupt."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# an interrupt at the moment a module begins to load, from which on nothing else is certain
_INTERRUPTED = """\
import os, signal, sys
from ridgeline.cli.start import main

class Interrupt:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == at:
            os.kill(os.getpid(), signal.SIGINT)

_, at, *words = sys.argv
sys.meta_path.insert(0, Interrupt)
sys.argv = ["ridgeline", *words]
main()
"""


@pytest.mark.parametrize(
    "module", ["ridgeline.cli.main", "ridgeline.errors", "typer", "ridgeline.cli.campaign.check", "pydantic"]
)
def test_an_interrupt_while_loading_is_quiet(module: str, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(
        "version: 1\nname: x\nworkload: {kind: command, run: 'true {k}'}\nspace: {k: [1, 2]}\nbaseline: {k: 1}\n"
        "goal: {minimize: wall_s}\n"
    )
    asked = [sys.executable, "-c", _INTERRUPTED, module, "check", str(tmp_path / "study.yaml")]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stderr) == (130, ""), module


def test_who_ignores_the_interrupt_still_does(tmp_path: Path) -> None:
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); sys.argv = ['ridgeline', '--version']\n"
        "from ridgeline.cli.start import main; main()\n"
        "assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=600)


def test_the_package_itself_loads_next_to_nothing() -> None:
    code = "import os, sys; before = {*sys.modules}; import ridgeline.cli.start; print(*{*sys.modules} - before)"
    asked = [sys.executable, "-c", code]
    said = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=600)
    assert set(said.stdout.split()) <= {"__future__", "ridgeline", "ridgeline.cli", "ridgeline.cli.start"}
