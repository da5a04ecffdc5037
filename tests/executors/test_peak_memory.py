"""`max_rss_bytes` of a run on this machine is the program's own, however large the controller is."""

from __future__ import annotations

import resource
import shlex
import sys
from pathlib import Path

import pytest

from ridgeline.executors import script
from ridgeline.executors.local import LocalExecutor
from ridgeline.records.run import Ending, Job
from ridgeline.records.site import LOCAL

MIB = 2**20
# touches every page, so that it is resident; a bare interpreter needs 10 to 20 MiB
PROGRAM = "x = bytearray({mib} << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\n"


def ending(folder: Path, mib: int) -> Ending:
    folder.mkdir(parents=True)
    (folder / "program.py").write_text(PROGRAM.format(mib=mib))
    executor = LocalExecutor(LOCAL)
    ticket = executor.submit(Job("peak", folder, f"{shlex.quote(sys.executable)} -I -S program.py", limit_s=120))
    while not (found := executor.poll([ticket])):
        executor.wait(10)
    assert found[ticket].exit_code == 0
    return found[ticket]


@pytest.fixture
def large_controller() -> bytearray:
    held = bytearray(300 * MIB)
    for page in range(0, len(held), 4096):
        held[page] = 1
    return held


@pytest.mark.parametrize("mib", [30, 200])
def test_the_peak_is_the_programs_own(tmp_path, large_controller, mib):
    peak = ending(tmp_path / "run", mib).usage["max_rss_bytes"]
    assert mib * MIB < peak < (mib + 40) * MIB


def test_where_run_sh_cannot_ask_only_what_is_certain_is_said(tmp_path, large_controller, monkeypatch):
    monkeypatch.setattr(script, "_ASK_USAGE", "exit $ARGV[0]")  # as on a machine whose system calls it does not know
    assert "max_rss_bytes" not in ending(tmp_path / "small", 30).usage
    larger_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024 + 100  # than this process ever was
    assert ending(tmp_path / "large", larger_mib).usage["max_rss_bytes"] > larger_mib * MIB
