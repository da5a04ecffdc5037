"""A newcomer with programs of their own: check, tune, best, then the answer elsewhere in a clean shell.

The programs print a rate that follows from their settings alone: no clock, no luck.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests import command_line

MPIRUN = shutil.which("mpirun.openmpi")
# needs no MPI library: the launcher says which rank it is
RANK = """\
#!/bin/sh
[ "${OMPI_COMM_WORLD_RANK:-0}" = 0 ] || exit 0
echo "ranks ${OMPI_COMM_WORLD_SIZE:-1}"
echo "rate $(( ${OMPI_COMM_WORLD_SIZE:-1} * 100 - $2 ))"
"""
MPI_STUDY = """\
version: 1
name: own-mpi
workload:
  kind: command
  run: "mpirun.openmpi --allow-run-as-root --oversubscribe --mca plm isolated -np {ranks_used} ./rank --block {block}"
  files: [rank]
  metrics:
    rate: {regex: 'rate (\\S+)', unit: steps/s}
    ranks: {regex: 'ranks (\\S+)'}
space:
  ranks_used: [1, 2]
  block: [8, 16]
goal: {maximize: rate}
guards: [ranks == ranks_used]
baseline: {ranks_used: 1, block: 16}
budget: {trials: 4}
stages: {baseline: {repeats: 2}, confirm: {top: 1, blocks: 5, repeats: 1}}
"""
# refuses a flag without its value, as an encoder does
ENCODER = """\
#!/bin/sh
method=hex range=0 subme=0
while [ $# -gt 0 ]; do
  case $2 in '' | -*) echo "$1 needs a value" >&2; exit 2 ;; esac
  case $1 in
    --me) method=$2 ;;
    --merange) range=$2 ;;
    --subme) subme=$2 ;;
    *) echo "unknown option $1" >&2; exit 2 ;;
  esac
  shift 2
done
[ "$method" = umh ] || [ "$range" = 0 ] || { echo 'merange is for umh' >&2; exit 2; }
rate=$(( 200 - subme * 5 ))
[ "$method" != umh ] || rate=$(( rate + 60 - range ))
echo "rate $rate"
"""
ENCODER_STUDY = """\
version: 1
name: own-encoder
workload:
  kind: command
  run: "./'my encoder' --me {me} [--merange {merange}] --subme {subme}"
  files: [my encoder]
  metrics: {rate: {regex: 'rate (\\S+)', unit: frames/s}}
space:
  me: [hex, umh]
  merange: {values: [16, 24, 32, 48], when: me == "umh"}
  subme: [2, 4, 7]
goal: {maximize: rate}
baseline: {me: hex, subme: 7}
budget: {trials: 4, wall: 10m}
stages: {baseline: {repeats: 2}, confirm: {top: 1, blocks: 5, repeats: 1}}
"""


def ridgeline(*arguments: object, code: int = 0) -> str:
    ran = command_line.ridgeline(*arguments)
    assert ran.returncode == code, ran.stdout + ran.stderr
    return ran.stdout


def best(out: Path, *more: object) -> dict[str, Any]:
    return json.loads(ridgeline("best", out, "--json", *more))


def elsewhere(folder: Path, *arguments: object) -> str:
    """What it prints in a clean shell in another folder."""
    folder.mkdir(exist_ok=True)
    command = ["env", "-i", "sh", *map(str, arguments)]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def own(home: Path, program: str, text: str, study: str) -> Path:
    home.mkdir()
    (home / program).write_text(text)
    (home / program).chmod(0o755)
    (home / "study.yaml").write_text(study)
    return home / "study.yaml"


def rate_of(point: dict[str, Any]) -> int:
    """As the encoder has it."""
    return 200 - point["subme"] * 5 + (60 - point["merange"] if point["me"] == "umh" else 0)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study folder of the encoder after its first campaign."""
    home = tmp_path_factory.mktemp("newcomer") / "my programs"
    study = own(home, "my encoder", ENCODER, ENCODER_STUDY)
    assert "15 legal points of 15" in ridgeline("check", study)
    ridgeline("tune", study, "--out", home / "out")
    return home / "out"


@pytest.mark.skipif(MPIRUN is None, reason="mpirun.openmpi is not installed; scripts/test installs it")
def test_an_own_mpi_program_from_check_to_an_answer_that_runs_elsewhere(tmp_path):
    study, out = own(tmp_path / "my programs", "rank", RANK, MPI_STUDY), tmp_path / "out"
    assert "4 legal points of 4" in ridgeline("check", study)
    ridgeline("tune", study, "--out", out)
    answer = best(out, "--script", tmp_path / "run-best")
    assert answer["settings"] == {"ranks_used": 2, "block": 8}
    for arguments in (["-c", answer["paste"]], [tmp_path / "run-best"]):
        assert elsewhere(tmp_path / "else where", *arguments) == "ranks 2\nrate 192\n"


def test_an_own_program_with_a_conditional_knob_gets_an_answer_that_runs_elsewhere(encoder, tmp_path):
    answer = best(encoder, "--script", tmp_path / "run-best")
    assert answer["confirmed"]
    measured = f"rate {rate_of(answer['settings'])}\n"
    for arguments in (["-c", answer["paste"]], [tmp_path / "run-best"]):
        assert elsewhere(tmp_path / "else where", *arguments) == measured


def test_every_run_of_the_conditional_knob_was_right(encoder):
    status = json.loads(ridgeline("status", encoder, "--json"))
    assert set(status["outcomes"]) == {"ok"}


def test_extensions_keep_the_confirmed_answer(tmp_path):
    study, out = own(tmp_path / "home", "my encoder", ENCODER, ENCODER_STUDY), tmp_path / "out"
    ridgeline("tune", study, "--out", out)
    before = best(out)
    assert before["confirmed"]
    for _ in range(2):
        ridgeline("resume", out, "--trials", "+3")
        after = best(out)
        assert after["confirmed"]
        assert rate_of(after["settings"]) >= rate_of(before["settings"])
        before = after


def test_a_pause_does_not_count_against_the_budgets_wall_time(encoder):
    spent_s = json.loads(ridgeline("status", encoder, "--json"))["wall_s"]
    time.sleep(1.5)  # controller not running
    began_s = time.monotonic()
    ridgeline("resume", encoder, "--trials", "+3")
    at_work_s = time.monotonic() - began_s
    assert json.loads(ridgeline("status", encoder, "--json"))["wall_s"] <= spent_s + at_work_s
