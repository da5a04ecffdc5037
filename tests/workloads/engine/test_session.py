"""Real sessions with a stand-in engine: started, loaded, proven, stopped; every failure told apart."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ridgeline.records.outcome import Kind
from ridgeline.serving.engines.install import _installed_flags
from ridgeline.serving.ports import is_free
from ridgeline.serving.workloads.engine.session.process import (
    EngineProcess,
    _members,
    await_return,
    gpu_memory_bytes,
)
from tests.workloads.engine.studies import (
    STANDIN,
    run_for_real,
    sglang_offline,
    sglang_serve,
    study,
    trial,
    with_standin,
)

LOAD = {"input_tokens": 12, "output_tokens": 20, "requests": 12}
KNOBS = {
    "mem_fraction_static": [0.8, 0.1, 0.97],
    "attention_backend": ["fa3", "sigill", "assertion", "other", "child", "warm-cache", "slow-to-stop", "nonsense"],
    "max_running_requests": [64, 4096],
}


def served(folder: Path, **options: object):
    asked = with_standin(study(folder, "sglang-serve", KNOBS, goal="output_tok_s", traffic=LOAD, warmup=3, **options))
    return asked, sglang_serve(asked)


def offline(folder: Path, **options: object):
    asked = with_standin(study(folder, "sglang-offline", KNOBS, traffic=LOAD, **options))
    return asked, sglang_offline(asked)


def test_a_server_is_measured_and_leaves_nothing_behind(tmp_path: Path) -> None:
    asked, workload = served(tmp_path, slo=["ttft_p95_ms=60000"])
    outcome, reading = run_for_real(workload, asked, tmp_path / "run")
    # on a machine that is busy with other tests the load generator may rightly distrust itself
    assert outcome.kind is Kind.OK or "load generator" in outcome.reason, outcome
    found = reading.metrics
    assert found["successful_requests"] == 12
    assert found["goodput"] > 0
    assert found["ttft_p95_ms"] > 0
    assert found["kv_tokens"] == 800_000
    assert found["cached_token_share"] < 0.02
    assert reading.texts["engine_version"] == "0.5.15.post1"
    assert "\npydantic==" in (tmp_path / "run" / "packages").read_text(), "what two releases are compared by"
    assert len((tmp_path / "run" / "requests.jsonl").read_text().splitlines()) == 12
    assert not (tmp_path / "run" / "model").exists()
    measured = json.loads((tmp_path / "run" / "measured.json").read_text())
    assert measured["measured_from_line"] > 0
    assert "not_back" not in measured


def test_an_offline_run_is_measured(tmp_path: Path) -> None:
    asked, workload = offline(tmp_path)
    outcome, reading = run_for_real(workload, asked, tmp_path / "run")
    assert outcome.kind is Kind.OK, outcome
    assert reading.metrics["input_tokens"] == 12 * 12
    assert reading.metrics["output_tokens"] == 12 * 20
    assert not (tmp_path / "run" / "dataset.json").exists()


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"mem_fraction_static": 0.1}, Kind.OOM_START, "no room for the KV pool"),
        ({"mem_fraction_static": 0.97}, Kind.OOM_RUN, "while running"),
        ({"attention_backend": "sigill"}, Kind.CRASH, "SIGILL"),
        ({"attention_backend": "assertion"}, Kind.REJECTED, "does not take that page size"),
        ({"attention_backend": "nonsense"}, Kind.REJECTED, "invalid choice: 'nonsense'"),
        ({"attention_backend": "child"}, Kind.CRASH, "Received sigquit"),
        ({"attention_backend": "other"}, Kind.UNVERIFIED, "the engine applied triton"),
        ({"attention_backend": "warm-cache"}, Kind.UNVERIFIED, "seen before"),
    ],
)
@pytest.mark.parametrize("make", [served, offline])
def test_every_failure_is_told_apart_with_its_line(make, tmp_path: Path, changes: dict, kind: Kind, words: str) -> None:
    asked, workload = make(tmp_path)
    outcome, _ = run_for_real(workload, asked, tmp_path / "run", **changes)
    assert outcome.kind is kind, outcome
    assert words in str(outcome)


def test_an_engine_that_is_not_ready_in_time_is_a_hang(tmp_path: Path) -> None:
    knobs = {"max_running_requests": [64]}
    stuck = {"ready_limit": "1s", "flags": {"attention_backend": "never-ready"}}
    asked = with_standin(study(tmp_path, "sglang-serve", knobs, goal="output_tok_s", traffic=LOAD, **stuck))
    outcome, _ = run_for_real(sglang_serve(asked), asked, tmp_path / "run")
    assert outcome.kind is Kind.HANG
    assert "not ready after 1 s" in str(outcome)


def test_an_engine_that_is_not_there_is_the_sites_fault(tmp_path: Path) -> None:
    asked = study(tmp_path, "sglang-serve", {"max_running_requests": [64]}, goal="output_tok_s", traffic=LOAD)
    outcome, _ = run_for_real(sglang_serve(asked), asked, tmp_path / "run")
    assert outcome.kind is Kind.SITE_FAULT
    assert "No module named" in str(outcome)


def test_a_rehearsal_runs_once_for_a_layout(tmp_path: Path) -> None:
    asked, workload = offline(tmp_path, prepare=["rehearse"])
    run_for_real(workload, asked, tmp_path / "one")
    outcome, reading = run_for_real(workload, asked, tmp_path / "two", max_running_requests=4096)
    assert outcome.kind is Kind.OK
    assert (tmp_path / "one" / "prepare.log").exists()
    assert not (tmp_path / "two" / "prepare.log").exists()
    assert reading.metrics["successful_requests"] == 12


def test_a_session_told_to_stop_stops_its_engine(tmp_path: Path) -> None:
    asked, workload = served(tmp_path)
    slow = trial(asked, attention_backend="slow-to-stop")
    folder = tmp_path / "run"
    job = workload.prepare(slow, folder)
    spec = json.loads((folder / "session.json").read_text())
    spec["load"]["requests"], spec["load"]["traffic"] = 5000, "fixed:12:400"
    (folder / "session.json").write_text(json.dumps(spec))
    session = subprocess.Popen(
        ["sh", "-c", job.command], cwd=folder, env={**os.environ, **job.env}, stderr=subprocess.DEVNULL
    )
    log = folder / "engine.log"
    until = time.monotonic() + 60
    while time.monotonic() < until and not (log.exists() and "Prefill batch" in log.read_text()):
        time.sleep(0.1)
    port = int(next(w for w in (folder / "session.env").read_text().split("export ") if "PORT=" in w).split("=")[1])
    session.send_signal(signal.SIGTERM)
    session.wait(60)
    assert is_free(port)
    assert port + 10_000 <= 65_535, "SGLang derives a port from it, and refuses one that does not exist"


def test_everything_an_engine_started_is_ended_with_it(tmp_path: Path) -> None:
    program = "import subprocess, time; subprocess.Popen(['sleep', '300']); time.sleep(300)"
    engine = EngineProcess(f'{shlex.quote(sys.executable)} -c "{program}"', tmp_path, tmp_path / "log", {})
    until = time.monotonic() + 20
    while len(_members(engine.pid)) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    assert engine.exit_code is None
    assert engine.stop(grace_s=1.0) == []
    assert _members(engine.pid) == []


def test_an_engine_has_its_grace_and_its_cpu_time_is_counted(tmp_path: Path) -> None:
    """As a session starts it: `sh ./engine.sh`, which becomes the engine."""
    program = (
        "import pathlib, signal, sys, time\n"
        "def end(*_):\n"
        "    until = time.process_time() + 0.3\n"
        "    while time.process_time() < until: pass\n"
        "    pathlib.Path('in-order').touch()\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "pathlib.Path('up').touch()\n"
        "while True: time.sleep(0.05)\n"
    )
    (tmp_path / "engine.py").write_text(program)
    (tmp_path / "engine.sh").write_text(f"exec {shlex.quote(sys.executable)} engine.py\n")
    before = os.times()
    engine = EngineProcess("sh ./engine.sh", tmp_path, tmp_path / "log", {})
    until = time.monotonic() + 600
    while not (tmp_path / "up").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert engine.stop(grace_s=600.0) == []
    assert (tmp_path / "in-order").exists()
    after = os.times()
    spent_s = after.children_user + after.children_system - before.children_user - before.children_system
    assert spent_s > 0.25


def test_death_by_signal_is_seen_through_a_shell(tmp_path: Path) -> None:
    engine = EngineProcess("sh -c 'kill -4 $$'", tmp_path, tmp_path / "log", {})
    assert engine.wait(600) == -4


def write_tool(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}")
    (folder / name).chmod(0o755)


def test_a_gpu_that_somebody_else_uses_is_a_fault_of_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tool(tmp_path / "bin", "nvidia-smi", "echo '120000, 143771'\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    asked, workload = offline(tmp_path)
    monkeypatch.setattr("ridgeline.serving.workloads.engine.session.__main__.FREE_S", 0.0)
    workload.prepare(trial(asked), tmp_path / "run")
    from ridgeline.serving.workloads.engine.session.__main__ import EngineFailed, Session

    with pytest.raises(EngineFailed, match=r"holds 117\.2 GiB"):
        Session(tmp_path / "run", json.loads((tmp_path / "run" / "session.json").read_text())).run()


def test_memory_that_does_not_come_back_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = (
        f"if [ -e {tmp_path}/after ]; then echo '60000, 143771'; else echo '500, 143771'; fi\ntouch {tmp_path}/after\n"
    )
    write_tool(tmp_path / "bin", "nvidia-smi", tool)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    before = gpu_memory_bytes()
    seconds, missing = await_return(None, before, limit_s=0.0)
    assert "GPU 0 still holds 58.1 GiB" in missing
    assert seconds < 30


def test_an_installed_engine_is_asked_for_flags_the_table_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(STANDIN))
    _installed_flags.cache_clear()
    asked = study(tmp_path, knobs={"flag_of_tomorrow": [3], "switch_of_tomorrow": [True]})
    workload = sglang_offline(asked)
    assert workload.problems() == []
    workload.prepare(trial(asked), tmp_path / "run")
    script = (tmp_path / "run" / "engine.sh").read_text()
    assert "--flag-of-tomorrow 3" in script
    assert script.rstrip().endswith("--switch-of-tomorrow")
    wrong = sglang_offline(study(tmp_path, knobs={"flag_of_yesterday": [3]}))
    assert "no such knob" in wrong.problems()[0].message
    _installed_flags.cache_clear()


def test_processes_of_a_session_are_those_that_live() -> None:
    """A process that ended, and that nobody has asked about yet, is not waited for."""
    text = "import subprocess, sys, time; subprocess.Popen(['true']); print('up', flush=True); time.sleep(300)"
    leader = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert leader.stdout is not None and leader.stdout.readline() == b"up\n"
        give_up = time.monotonic() + 60
        while _members(leader.pid) != [leader.pid]:
            assert time.monotonic() < give_up
            time.sleep(0.02)
    finally:
        leader.kill()
        leader.wait()
    assert _members(leader.pid) == []
