"""Example 01 keeps its word: its guard has something to catch, on the compiler of this machine."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "01-stencil"

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")


def checksum(folder: Path, flags: list[str], *options: str) -> float:
    program = folder / "stencil"
    source = str(EXAMPLE / "stencil.c")
    subprocess.run(["gcc", *flags, "-fopenmp", source, "-o", str(program), "-lm"], check=True)
    text = subprocess.run([str(program), "--steps", "5", *options], check=True, capture_output=True, text=True).stdout
    found = re.search(r"checksum\s+(\S+)", text)
    assert found
    return float(found[1])


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> float:
    return checksum(tmp_path_factory.mktemp("baseline"), ["-O2"], "--block", "64")


@pytest.mark.parametrize("block", ["8", "256", "1024"])
def test_honest_optimisation_changes_nothing(tmp_path: Path, baseline: float, block: str) -> None:
    assert checksum(tmp_path, ["-O3", "-march=native"], "--block", block) == baseline


def test_fast_math_breaks_the_compensated_sum(tmp_path: Path, baseline: float) -> None:
    assert abs(checksum(tmp_path, ["-Ofast"], "--block", "64") - baseline) > 1e-6


def test_a_block_that_does_not_divide_the_plate_breaks_the_result(tmp_path: Path, baseline: float) -> None:
    assert abs(checksum(tmp_path, ["-O2"], "--block", "100") - baseline) > 1e-8
