"""No guide has a command that nobody runs: those without a test of their own run here, line by line, as they stand."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.free_ports import free_row

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guides"
SAMPLES = ROOT / "tests" / "samples"
ELSEWHERE = {
    "accuracy-guard": "tests/journeys/test_over_time_guides.py",
    "add-a-part": "tests/test_plugin_package.py",
    "agents": "tests/journeys/test_agents_guide.py",
    "agents-that-tune": "tests/cli/test_mcp.py",
    "any-program": "tests/test_docs.py",  # its studies; it has no command
    "bench-sessions": "tests/load/test_sessions.py",  # its options; it has no command
    "calibrate-the-twin": "tests/cli/test_serving_guides.py",
    "challenge": "tests/journeys/test_challenge.py",
    "deploy": "tests/journeys/test_deploy_guides.py",
    "disaggregate": "tests/journeys/test_deploy_guides.py",
    "first-study": "tests/journeys/test_first_study.py",
    "gate-in-ci": "tests/journeys/test_over_time_guides.py",
    "keep": "tests/journeys/test_deploy_guides.py",
    "models-and-gpus": "tests/cli/test_serving_guides.py",
    "plan-a-cluster": "tests/cli/test_serving_guides.py",
    "predict-a-server": "tests/cli/test_serving_guides.py",
    "python": "tests/journeys/test_notebook.py",
    "rehearse": "tests/journeys/test_deploy_guides.py",
    "rehearse-a-campaign": "tests/workloads/twin/test_guide.py",
    "tune-nwchem": "tests/journeys/test_guide_scripts.py",
    "tune-sglang": "tests/journeys/test_guide_scripts.py",
    "tune-vllm": "tests/journeys/test_guide_scripts.py",
    "which-change": "tests/journeys/test_over_time_guides.py",
}
HERE = sorted({path.stem for path in GUIDES.glob("*.md")} - ELSEWHERE.keys())
# what a command has in place of the reader's own names, and what it may not do here
INSTEAD = {
    "ridgeline bench URL --find-goodput": "ridgeline bench URL --find-goodput --within 30 --hold 2",
    "ridgeline bench URL --rate 36.6 --duration 300": "ridgeline bench URL --rate 36.6 --duration 2",
    "--concurrency 128 --requests 3000": "--concurrency 8 --requests 100",
    "--rate 51.5 --requests 515": "--rate 51.5 --requests 50",
    "ridgeline tune study.yaml           #": "true  # a cluster",
    "--python /opt/sglang/bin/python --scratch /scratch/me": "--scratch .",
    "srun --nodes 16 --ntasks-per-node 1 sh -c 'ridgeline site preflight --json > $(hostname).json'": (
        'ridgeline site preflight --json > one.json; sed "s|$(hostname)|another|" one.json > two.json'
    ),
}
WATCHES = ("ridgeline watch",)  # until somebody stops it
# an exit code that says something of this machine, or that there is no answer, and not that the command was wrong
MAY_LEAVE = {
    "ridgeline site check": (0, 3),
    "ridgeline site preflight": (0, 1),
    "ridgeline study diff": (0, 1),
    "ridgeline bench": (0, 3, 7),
    "ridgeline watch": (0, 130),
}


def commands_of(page: str) -> list[str]:
    """Every line of a block, fenced or indented, that calls the program or something with it."""
    text = (GUIDES / f"{page}.md").read_text()
    found = re.findall(r"^(?:    |\$ )((?:ridgeline|srun|umask) .*)$", text, re.MULTILINE)
    return [line.rstrip() for line in found]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_row(1)
    words = ["twin", "serve", "--model", "llama-8b", "--gpu", "h200", "--port", str(port)]
    with (tmp_path_factory.mktemp("twin") / "log").open("w") as log:
        server = subprocess.Popen([sys.executable, "-m", "ridgeline", *words], stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(30)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """What a reader of these guides has: studies that ended, logs, a site file and a study for it."""
    studies = tmp_path / "studies"
    for name in ("stencil", "NAME", "A", "B"):
        shutil.copytree(SAMPLES / "study-folders" / "search-finished", studies / name)
    log = SAMPLES / "sglang" / "offline-llama8b-h200-default.log"
    for name in ("engine.log", "monday.log"):
        shutil.copyfile(log, tmp_path / name)
    shutil.copyfile(SAMPLES / "sglang" / "offline-dsv2lite-h200-mrr1024.log", tmp_path / "tuesday.log")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    site, study = re.findall(r"```yaml\n(.*?)```", (GUIDES / "my-cluster.md").read_text(), re.DOTALL)[:2]
    (tmp_path / "my-cluster.yaml").write_text(site)
    (tmp_path / "study.yaml").write_text(study)
    for name in ("solver", "input.dat"):
        (tmp_path / name).write_text("#!/bin/sh\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ridgeline").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ridgeline "$@"\n')
    (tmp_path / "bin" / "ridgeline").chmod(0o755)
    return tmp_path


def run(command: str, home: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PATH": f"{home / 'bin'}:{os.environ['PATH']}", "HOME": str(home)}
    watches = command.startswith(WATCHES)
    process = subprocess.Popen(
        ["bash", "-c", f"exec {command}" if watches else command],
        cwd=home, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    first = ""
    if watches:
        assert process.stdout is not None
        first = process.stdout.readline()
        urlopen(first.strip(), timeout=600).close()  # from its first answer on it minds signals, whoever ignored them
        process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=600)
    return subprocess.CompletedProcess(command, process.returncode, first + out, errors)


@pytest.mark.parametrize("page", HERE)
def test_its_commands_run_as_they_stand(page: str, home: Path, url: str) -> None:
    for command in commands_of(page):
        here = command
        for theirs, ours in INSTEAD.items():
            here = here.replace(theirs, ours)
        here = here.replace("http://127.0.0.1:8000", url).replace("URL", url).replace("10.0.0.5", "127.0.0.1")
        here = here.replace("--port 8765", f"--port {free_row(1)}")
        done = run(here, home)
        may = next((codes for start, codes in MAY_LEAVE.items() if command.startswith(start)), (0,))
        assert done.returncode in may, f"{page}.md: {here}\n{done.stdout[-1500:]}{done.stderr[-1500:]}"
        assert "Traceback" not in done.stderr
        # a load that a busy machine made void may have a reason and no answer
        said = done.stdout + done.stderr if done.returncode else done.stdout
        assert said.strip() or here.startswith("true") or ">" in here


def test_every_guide_is_run_by_some_test() -> None:
    assert not ELSEWHERE.keys() - {path.stem for path in GUIDES.glob("*.md")}, "a guide that is gone"
    assert [page for page in HERE if not commands_of(page)] == [], "a guide without a command belongs to another test"
    for page, test in ELSEWHERE.items():
        assert (ROOT / test).exists(), f"{page}: {test}"
    for theirs in INSTEAD:
        assert any(theirs in command for page in HERE for command in commands_of(page)), f"{theirs} is in no guide"
