"""A package of somebody else: its parts are found by their names, used by every verb, and held to our promises."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ridgeline import catalog
from ridgeline.diagnose.readers.failures import PROGRAM_FAILURES
from ridgeline.records.outcome import Kind
from ridgeline.records.study import Study
from tests.workloads.engine.studies import run_for_real
from tests.workloads.engine.studies import study as engine_study

PACKAGE = Path(__file__).parent / "plugin_package"
GUIDE = PACKAGE.parents[1] / "docs" / "guides" / "add-a-part.md"
SHOWN = [f"tidepool/{part}.py" for part in ("sampler", "workload", "batch", "analyzer", "engine")] + [
    "tests/test_promises.py"
]
STUDY = """\
version: 1
name: smallest
site: site.yaml
workload: {kind: gzip, file: words.txt}
space: {level: [1, 3, 6, 9], rsyncable: [false, true]}
baseline: {level: 6, rsyncable: true}
goal: {minimize: size_bytes}
stages: {search: {sampler: nearest}, confirm: {top: 1, blocks: 3}}
budget: {trials: 4}
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the package lies, laid out as pip would; no build backend and no network needed."""
    target = tmp_path_factory.mktemp("site-packages")
    shutil.copytree(PACKAGE / "tidepool", target / "tidepool")
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    about = target / f"{project['name']}-{project['version']}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = [
        f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in rows.items())
        for group, rows in project["entry-points"].items()
    ]
    (about / "entry_points.txt").write_text("\n".join(groups))
    return target


@pytest.fixture
def env(installed: Path, tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(installed), "TIDE_SPOOL": str(tmp_path / "spool")}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a study that uses the package's workload, sampler and batch system."""
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "words.txt").write_text("".join(f"word {n * n % 977}\n" for n in range(5000)))
    (folder / "site.yaml").write_text("batch: tide\npoll_s: 0.1\njobs_at_once: 2\noptions: {settle_s: 2, nice: 1}\n")
    (folder / "study.yaml").write_text(STUDY)
    return folder


def ridgeline(env: dict[str, str], home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ridgeline", *arguments]
    return subprocess.run(command, cwd=home, env=env, capture_output=True, text=True, timeout=600, check=False)


def test_a_campaign_of_parts_that_are_all_from_the_package(env: dict[str, str], home: Path) -> None:
    checked = ridgeline(env, home, "check", "study.yaml")
    assert checked.returncode == 0, checked.stderr
    tuned = ridgeline(env, home, "tune", "study.yaml", "--out", "out")
    assert tuned.returncode == 0, tuned.stdout + tuned.stderr
    journal = (home / "out" / "journal.jsonl").read_text()
    assert "nearest to the best so far" in journal
    best = json.loads(ridgeline(env, home, "best", "out", "--json").stdout)
    assert best["settings"]["level"] == 9
    assert list((home.parent / "spool").iterdir()), "the jobs went through the package's batch system"
    assert "#TIDE nice=1\n" in next((home / "out" / "runs").glob("0001-*/run.sh")).read_text()


def test_problems_are_told_with_file_and_line(env: dict[str, str], home: Path) -> None:
    (home / "words.txt").unlink()
    refused = ridgeline(env, home, "check", "study.yaml")
    assert refused.returncode == 2
    assert "study.yaml:4: " in refused.stderr and "name the file to compress" in refused.stderr


def test_site_check_and_site_list_know_the_batch_system(env: dict[str, str], home: Path) -> None:
    ready = ridgeline(env, home, "site", "check", "site.yaml")
    assert ready.returncode == 0, ready.stdout + ready.stderr
    assert [line.split()[1] for line in ready.stdout.splitlines()[1:]] == ["ok"] * 4
    (home / "site.yaml").write_text("batch: tide\nqueue: fast\npoll_s: 0.1\n")
    refused = ridgeline(env, home, "site", "check", "site.yaml")
    assert refused.returncode == 3
    assert "tide has one queue" in refused.stdout
    listed = ridgeline(env, home, "site", "list")
    assert "tide (from tidepool 0.1.0)" in listed.stdout
    known = json.loads(ridgeline(env, home, "site", "list", "--json").stdout)["batch"]
    assert {"name": "tide", "from": "tidepool 0.1.0"} in known
    assert {"name": "slurm", "from": "ridgeline"} in known


def test_options_of_the_batch_system_are_checked_and_completed(env: dict[str, str], home: Path) -> None:
    (home / "site.yaml").write_text("batch: tide\noptions:\n  settle_s: 2\n  nicee: 3\n")
    refused = ridgeline(env, home, "site", "check", "site.yaml")
    assert refused.returncode == 2
    assert "site.yaml:4: options.nicee: no such key of tide; did you mean nice?" in refused.stderr
    (home / "site.yaml").write_text("batch: tide\noptions: {nice: 20}\n")
    assert "site.yaml:2: options.nice: is 20; " in ridgeline(env, home, "check", "study.yaml").stderr
    schema = json.loads(ridgeline(env, home, "site", "schema", "--site").stdout)
    assert {"nice", "settle_s"} <= schema["$defs"]["TideOptions"]["properties"].keys()


@pytest.fixture
def here(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package in this very process."""
    monkeypatch.syspath_prepend(str(installed))
    return installed


def reef_study(folder: Path, kind: str, package: Path, **knobs: list[object]) -> Study:
    load = {"traffic": {"dataset": "fixed:8:4", "requests": 8}, "warmup": 0}
    options = {"load_format": None, "env": {"PYTHONPATH": str(package)}, "concurrency": 2, **load}
    if kind.endswith("offline"):
        del options["concurrency"]
    return engine_study(folder, kind, knobs or {"max_running_requests": [4], "step_ms": [2]}, **options)


def test_an_engine_of_the_package_is_benchmarked_and_proves_its_flags(here: Path, tmp_path: Path) -> None:
    asked = reef_study(tmp_path, "reef-offline", here)
    workload = catalog.part("workloads", "reef-offline")(asked)
    assert workload.problems() == []
    assert "--slots 4 --step-ms 2" in workload.paste(asked.baseline)
    outcome, reading = run_for_real(workload, asked, tmp_path / "run")
    assert outcome.kind is Kind.OK, outcome
    assert reading.metrics["duration_s"] == pytest.approx(8 * 0.002 / 4)
    assert reading.texts["engine_version"] == "0.1.0"


def test_an_engine_of_the_package_serves_under_load(here: Path, tmp_path: Path) -> None:
    asked = reef_study(tmp_path, "reef-serve", here)
    _, reading = run_for_real(catalog.part("workloads", "reef-serve")(asked), asked, tmp_path / "run")
    assert reading.metrics["successful_requests"] == 8.0, (tmp_path / "run" / "stderr").read_text()
    assert "asked for" not in reading.unverified


def test_failures_and_mistakes_of_the_packages_engine_are_understood(here: Path, tmp_path: Path) -> None:
    asked = reef_study(tmp_path, "reef-offline", here, max_running_requests=[128])
    workload = catalog.part("workloads", "reef-offline")(asked)
    outcome, _ = run_for_real(workload, asked, tmp_path / "run")
    assert outcome.kind is Kind.OOM_START and "reef: out of memory for 128 slots" in str(outcome)
    own = [signature for signature in workload.signatures if signature not in PROGRAM_FAILURES]
    moves = {move.knob: move.direction for signature in own for move in signature.advice}
    assert moves == {"max_running_requests": -1, "max_seqs": -1, "slots": -1}
    wrong = reef_study(tmp_path, "reef-offline", here, stepms=[1], step_ms=[-1])
    told = [problem.message for problem in catalog.part("workloads", "reef-offline")(wrong).problems()]
    assert told[0].endswith("did you mean step_ms?") and told[1].startswith("-1 is not possible"), told


def test_diagnose_knows_the_analyzer(env: dict[str, str], home: Path) -> None:
    (home / "unpack.log").write_text("gzip: a.gz: unexpected end of file\n")
    found = ridgeline(env, home, "diagnose", "unpack.log")
    assert found.returncode == 0, found.stderr
    assert "fault: 1 compressed files are torn" in found.stdout
    assert "1: gzip: a.gz: unexpected end of file" in found.stdout


def test_a_part_that_cannot_be_imported_is_named_with_its_package(
    env: dict[str, str], home: Path, installed: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(installed, broken)
    (broken / "tidepool" / "sampler.py").write_text("import nowhere_to_be_found\n")
    refused = ridgeline({**env, "PYTHONPATH": str(broken)}, home, "check", "study.yaml")
    assert refused.returncode == 2, refused.stderr
    assert "tidepool 0.1.0" in refused.stderr and "nowhere_to_be_found" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.slow
def test_the_packages_own_tests_hold_its_parts_to_our_promises(env: dict[str, str], tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    shutil.copytree(PACKAGE / "tests", tests)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(tests)]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-6000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout


@pytest.mark.parametrize("name", ["pyproject.toml", *SHOWN])
def test_the_guide_shows_the_very_files(name: str) -> None:
    kind = "toml" if name.endswith(".toml") else "python"
    block = f"`{name}`:\n\n```{kind}\n{(PACKAGE / name).read_text()}```\n"
    assert block in GUIDE.read_text(), f"copy tests/plugin_package/{name} into docs/guides/add-a-part.md"
