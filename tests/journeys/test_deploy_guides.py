"""Every command of the guides about services runs as it stands: deploy, disaggregate, rehearse, keep.

A guide's files are those of its yaml blocks whose first line names them (`# two.yaml: ...`). Its commands, the lines
that begin with `$`, run in order in one folder that looks like a checkout. Where one cannot run here as it stands,
INSTEAD says what runs in its place, and why.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.free_ports import free_row
from tests.journeys.vllm_engine import HOME, ROOT, missing

pytestmark = [
    pytest.mark.engine,
    pytest.mark.alone,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(bool(missing(HOME / "smg")), reason=missing(HOME / "smg") or "present"),
]
GUIDES = ROOT / "docs" / "guides"
PAGES = ("deploy", "disaggregate", "rehearse", "keep")
LOG = ROOT / "tests" / "samples" / "sglang" / "offline-llama8b-h200-default.log"
LIMIT_S = 600

# what a guide's command is replaced by here, by its beginning, and why
INSTEAD: dict[str, tuple[str, str]] = {
    "scripts/engines": ("test -x .engines/smg/bin/python", "installing takes a network; it was done before"),
    "export PATH=": ("true", "the test's shells have it: each command is a shell of its own"),
    "kubectl apply": (
        "grep -l 'kind: DisaggregatedSet' manifests/servers.yaml && grep -l 'kind: Deployment' manifests/router.yaml",
        "there is no cluster here; tests/service/test_kubernetes.py holds the manifests against its schemas",
    ),
    "ridgeline service rehearse seventy.yaml": (
        "ridgeline service rehearse seventy.yaml --traffic sharegpt:220:100 --seconds 1 --policy round_robin",
        "all policies take minutes; tests/service/test_rehearse.py runs every step of it",
    ),
    "ridgeline service rehearse service.yaml": (
        "ridgeline service rehearse service.yaml --traffic sharegpt --seconds 1 --policy cache_aware",
        "all policies take minutes",
    ),
    "ridgeline service keep two.yaml": (
        "timeout -s INT 8 ridgeline service keep two.yaml || [ $? = 124 ]",
        "it watches until somebody stops it",
    ),
}


def files_of(page: str) -> dict[str, str]:
    text = (GUIDES / f"{page}.md").read_text()
    found = re.findall(r"```yaml\n# (\S+\.yaml)\b[^\n]*\n(.*?)```", text, re.DOTALL)
    return {name: f"# {name}\n{body}" for name, body in found}


def commands_of(page: str) -> list[str]:
    text = (GUIDES / f"{page}.md").read_text()
    blocks = re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def here(command: str) -> str:
    """The command, or what runs in its place."""
    return next((instead for start, (instead, _) in INSTEAD.items() if command.startswith(start)), command)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Like a checkout; whatever was started in it is ended."""
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    (tmp_path / ".engines").symlink_to(HOME)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    (tmp_path / ".venv" / "bin" / "python").chmod(0o755)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ridgeline").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m ridgeline "$@"\n')
    (tmp_path / "bin" / "ridgeline").chmod(0o755)
    lines = LOG.read_text().splitlines(keepends=True)
    for half, other in (("prefill", "Decode batch"), ("decode", "Prefill batch")):
        (tmp_path / f"{half}-alone.log").write_text("".join(line for line in lines if other not in line))
    try:
        yield tmp_path
    finally:
        for file in tmp_path.glob("*.yaml"):
            if file.with_suffix(".service").is_dir():
                shell(f"ridgeline service down {file.name}", tmp_path)
        assert not [pid for pid in Path("/proc").iterdir() if pid.name.isdigit() and str(tmp_path) in cmdline(pid)]
        shutil.rmtree(tmp_path / "bin")


def cmdline(process: Path) -> str:
    try:
        return (process / "cmdline").read_text()
    except OSError:
        return ""


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{folder / 'bin'}:{folder / 'scripts'}:{os.environ['PATH']}"
    with subprocess.Popen(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            out, errors = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, errors)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_runs_as_it_stands(page: str, folder: Path) -> None:
    first = free_row(8)
    ports = {"8000": str(free_row(2)), "8300": str(free_row(2)), "30001": str(first + 1)}

    def moved(text: str) -> str:
        return re.sub(r"\b(8000|8300|30001)\b", lambda found: ports[found[1]], text)

    for name, text in (item for each in PAGES for item in files_of(each).items()):
        (folder / name).write_text(f"{moved(text)}first_port: {first}\nfirst_bootstrap_port: {free_row(4)}\n")
    for command in commands_of(page):
        done = shell(moved(here(command)), folder)
        assert done.returncode == 0, f"{page}.md: {command}\n{done.stdout[-1500:]}{done.stderr[-1500:]}"


def test_what_runs_instead_is_of_a_command_that_is_there() -> None:
    every = [command for page in PAGES for command in commands_of(page)]
    for start, (_, why) in INSTEAD.items():
        assert any(command.startswith(start) for command in every), f"{start} is in no guide any more"
        assert why
    assert len(every) > 20


def test_a_guide_says_how_its_commands_become_runnable() -> None:
    assert commands_of("deploy")[:2] == ["scripts/engines smg", 'export PATH="$PWD/scripts:$PATH"']
    for page in PAGES[1:]:
        assert "(deploy.md)" in (GUIDES / f"{page}.md").read_text().partition("##")[0], page
    for page in PAGES:
        assert not [c for c in commands_of(page) if c.startswith("scripts/ridgeline")], "one spelling everywhere"
