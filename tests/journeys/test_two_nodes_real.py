"""A real vLLM over two nodes of a real Slurm, each with a network of its own: it serves, and loses a link and a rank.

The nodes are network namespaces with an interface `hsn0` each, joined by a bridge. Tensor parallel ranks speak Gloo
over it. (vLLM 0.32 cannot pass activations between pipeline stages on CPUs: its second stage fails an assertion.)
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from ridgeline.records.outcome import Kind
from ridgeline.study.history import read_history
from tests import slurm_cluster
from tests.journeys.vllm_engine import ENGINE, ENV, missing, ridgeline, write_model

WHY_NOT = missing() or slurm_cluster.missing() or slurm_cluster.missing_for_networks()
pytestmark = [
    pytest.mark.engine,
    pytest.mark.slurm,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "present"),
]
LIMIT_S = 1200.0


def test_two_nodes_serve_and_a_cut_link_and_a_dead_rank_are_what_they_are_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_model(tmp_path / "tiny")
    workload = {
        "kind": "vllm-serve",
        "model": str(model),
        "load_format": "dummy",
        "engine": str(ENGINE),
        "flags": {"enforce_eager": True, "max_model_len": 512, "dtype": "float32"},
        "env": ENV | {"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "90"},
        "concurrency": 2,
        "traffic": {"input_tokens": 16, "output_tokens": 8, "requests": 300},  # longer than it takes to cut a link
        "warmup": 2,
    }
    study = {
        "version": 1,
        "name": "two-nodes",
        "workload": workload,
        "space": {"tp": [2], "max_num_seqs": [8, 4, 2]},
        "baseline": {"tp": 2, "max_num_seqs": 8},
        "goal": {"maximize": "total_tok_s"},
        "budget": {"trials": 2},
        "stages": {
            "baseline": {"repeats": 1},
            "search": {"sampler": "grid", "sentinel_every": 0},
            "confirm": {"top": 0},
        },
        "job": {"nodes": 2, "limit": 900},
        "site": {"batch": "slurm", "queue": "debug", "nodes": 2, "interface": "hsn0", "launcher": "srun"},
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study, sort_keys=False))
    runs = tmp_path / "out" / "runs"
    with slurm_cluster.slurm_cluster(networks=True) as cluster:
        for name, value in cluster.env.items():
            monkeypatch.setenv(name, value)

        def disturb() -> None:
            until(lambda: serves(runs, 2))
            cluster.cut_link("n2")
            until(lambda: over(runs, 2))
            cluster.mend_link("n2")
            until(lambda: serves(runs, 3))
            os.kill(follower_of(model), signal.SIGKILL)

        disturbing = threading.Thread(target=disturb)
        disturbing.start()
        done = ridgeline("tune", "study.yaml", "--out", "out", cwd=tmp_path)
        disturbing.join(LIMIT_S)
    found = [run for _, run in sorted(read_history(tmp_path / "out").runs.items())]
    assert found[0].outcome.kind is Kind.OK, done.stdout + done.stderr
    assert found[0].ending.nodes == ("n1", "n2")
    log = next(runs.glob("0001-*/engine.log")).read_text()
    assert f"distributed_init_method=tcp://{cluster.address('n1')}:" in log, "they meet at the interface of the site"
    cut, dead = found[1].outcome, found[2].outcome
    assert cut.kind is Kind.HANG
    assert "a rank stopped answering" in cut.reason
    assert dead.kind is Kind.CRASH
    # in the words of the requests that failed, or of the line at which the engine ended: whichever came first
    assert "Connection closed by peer" in f"{dead.reason} {dead.evidence}", "what the first rank saw of its end"


def serves(runs: Path, number: int) -> bool:
    return any("Application startup complete" in log.read_text() for log in runs.glob(f"{number:04}-*/engine.log"))


def over(runs: Path, number: int) -> bool:
    return any(runs.glob(f"{number:04}-*/exit"))


def follower_of(model: Path) -> int:
    """The process of the second node that started the engine there."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if b"--headless" in words and os.fsencode(model) in words and b"vllm.entrypoints.cli.main" in words:
                return int(entry.name)
    raise AssertionError("no engine on the second node")


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)
