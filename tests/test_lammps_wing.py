"""A wing that comes with another package: what the guide builds keeps the contracts and is seen in every face."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "11-lammps-wing"
LOG = EXAMPLE / "tests" / "melt.log"
# prints the log of a real run, faster the larger the skin is
LMP = r"""#!/bin/sh
while [ $# -gt 0 ]; do
  case $1 in -log) log=$2;; -var) [ "$2" = skin ] && skin=$3;; esac
  shift
done
speed=$(awk "BEGIN { print 26 + 100 * $skin }")
sed "s|26.065 timesteps/s|$speed timesteps/s|" "$LMP_LOG" > "$log"
"""


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """With the package where pip would put it, and an `lmp` that answers at once."""
    target = tmp_path_factory.mktemp("site-packages")
    shutil.copytree(EXAMPLE / "lammps_wing", target / "lammps_wing")
    install(target, "lammps", "lammps_wing.wing:WING")
    programs = tmp_path_factory.mktemp("bin")
    (programs / "lmp").write_text(LMP)
    (programs / "lmp").chmod(0o755)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PYTHONPATH": str(target), "PATH": path, "LMP_LOG": str(LOG)}


def install(target: Path, name: str, place: str) -> None:
    about = target / f"{name}_wing-0.1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-wing\nVersion: 0.1.0\n")
    (about / "entry_points.txt").write_text(f"[ridgeline.wings]\n{name} = {place}\n")


def ridgeline(*words: object, env: dict[str, str], cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ridgeline", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=cwd, check=False)


def test_it_keeps_the_contracts(env: dict[str, str], tmp_path: Path) -> None:
    home = shutil.copytree(EXAMPLE, tmp_path / "home")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=home, check=False)
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout


def test_the_guide_shows_it() -> None:
    guide = (ROOT / "docs/guides/add-a-part.md").read_text()
    assert f"```python\n{(EXAMPLE / 'lammps_wing/wing.py').read_text()}```" in guide


def test_its_verb_metrics_and_findings_are_known(env: dict[str, str]) -> None:
    assert "\n  lammps    What runs of LAMMPS show.\n" in ridgeline("--help", env=env).stdout
    assert "\n  times  Show where the time of a LAMMPS run went.\n" in ridgeline("lammps", "--help", env=env).stdout
    assert "comm_s         2.714" in ridgeline("lammps", "times", LOG, env=env).stdout
    found = json.loads(ridgeline("diagnose", LOG, "--json", env=env).stdout)
    assert "communication takes 70.74% of the run" in json.dumps(found)
    schema = json.loads(ridgeline("site", "schema", "study", env=env).stdout)
    assert "timesteps_s" in schema["$defs"]["GoalForm"]["properties"]["maximize"]["examples"]


@pytest.fixture(scope="module")
def tuned(env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("melt")
    for file in ("in.melt", "study.yaml"):
        shutil.copy(EXAMPLE / file, home)
    done = ridgeline("tune", "study.yaml", "--out", "out", env=env, cwd=home)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skin 0.8" in done.stdout
    return home / "out"


def test_a_campaign_of_it_shows_its_section(env: dict[str, str], tuned: Path) -> None:
    assert ridgeline("report", tuned, "--format", "md", env=env).returncode == 0
    page = (tuned / "report.md").read_text()
    assert "## LAMMPS" in page and "Where a run's time goes" in page


def test_its_folder_opens_where_the_wing_is_not_installed(env: dict[str, str], tuned: Path) -> None:
    without = {name: value for name, value in env.items() if name != "PYTHONPATH"}
    for verb in ("status", "best", "report"):
        done = ridgeline(verb, tuned, env=without)
        assert done.returncode == 0, f"{verb}: {done.stderr}"
    said = ridgeline("best", tuned, env=without).stdout
    assert "skin: 0.8" in said and "what makes `kind: lammps` is not installed here" in said
    done = ridgeline("study", "verify", tuned, env=without)
    assert "'lammps' is not among the workloads" in done.stdout + done.stderr


def test_a_wing_that_cannot_be_imported_is_named_and_the_rest_works(env: dict[str, str], tmp_path: Path) -> None:
    install(tmp_path, "torn", "torn_wing:WING")
    broken = {**env, "PYTHONPATH": str(tmp_path)}
    said = "torn of torn-wing 0.1.0 could not be loaded: ModuleNotFoundError: No module named 'torn_wing'"
    assert said in ridgeline("--help", env=broken).stdout
    assert "torn of torn-wing 0.1.0" in ridgeline("torn-verb", env=broken).stderr
    assert ridgeline("check", ROOT / "examples/01-stencil/study.yaml", env=broken).returncode == 0


def test_a_verb_that_is_there_already_gives_way_and_help_says_so(env: dict[str, str], tmp_path: Path) -> None:
    for name in ("one", "two"):
        install(tmp_path, name, f"{name}_wing:WING")
        wing = f'Wing("{name}", verbs={{"x": ("a:b", "Does x.")}})'
        (tmp_path / f"{name}_wing.py").write_text(f"from ridgeline.catalog import Wing\nWING = {wing}\n")
    install(tmp_path, "three", "three_wing:WING")
    wing = 'Wing("three", verbs={"bench": ("a:b", "Does it otherwise.")})'
    (tmp_path / "three_wing.py").write_text(f"from ridgeline.catalog import Wing\nWING = {wing}\n")
    both = {**env, "PYTHONPATH": str(tmp_path)}
    shown = ridgeline("--help", env=both).stdout
    assert "The verb 'bench' of the wing three of three-wing 0.1.0 gives way to another.\n" in shown
    assert shown.count("The verb 'x' of the wing ") == 1, "the first goes first"
    install(tmp_path, "four", "four_wing:WING")
    wing = 'Wing("four", verbs={n: ("a:b", "Does it.") for n in ("tune", "tune fast", "bench it", "deep in x")})'
    (tmp_path / "four_wing.py").write_text(f"from ridgeline.catalog import Wing\nWING = {wing}\n")
    shown = ridgeline("--help", env=both).stdout
    for verb in ("tune", "tune fast", "bench it"):
        assert f"The verb '{verb}' of the wing four of four-wing 0.1.0 gives way to another.\n" in shown
    assert "\n  tune      Run a study's campaign" in shown and "\n  deep      Verbs of the wing four.\n" in shown
    assert "\n  in  Verbs of the wing four.\n" in ridgeline("deep", "--help", env=both).stdout
    assert "fast" in ridgeline("tune", "fast", env=both).stderr, "a study that is not there"
