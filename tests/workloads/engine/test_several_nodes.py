"""An engine over two nodes: judged by its result and its rank 0, whatever the other ranks do; and how they meet."""

from __future__ import annotations

import json
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.executors import batch_script
from ridgeline.executors.dialect import walltime_minutes
from ridgeline.executors.slurm import Slurm
from ridgeline.records.expression import Expression
from ridgeline.records.outcome import Kind
from ridgeline.records.site import Site
from ridgeline.records.study import JobLimits, Study
from ridgeline.serving.workloads.engine.options import Load
from ridgeline.serving.workloads.engine.session import process, rank
from ridgeline.serving.workloads.engine.session.__main__ import ENDS_S, STOPPED_BACK_S
from ridgeline.serving.workloads.engine.session.prepare import ENVIRONMENT, make_files
from tests.workloads.engine.studies import (
    run_for_real,
    sglang_offline,
    sglang_serve,
    study,
    trial,
    vllm_offline,
    with_standin,
)

LOAD = {"input_tokens": 12, "output_tokens": 20, "requests": 12}
KNOBS = {"tp": [2], "attention_backend": ["fa3", "deaf-rank", "dying-rank"]}
# srun --nodes=2 --ntasks=2 --cpu-bind=none PROGRAM: as srun does, it leaves with the worst code of its tasks
SRUN = """#!/bin/sh
while case "$1" in --*) true;; *) false;; esac; do shift; done
SLURM_PROCID=1 "$@" & other=$!
SLURM_PROCID=0 "$@"; code=$?
wait $other || code=$?
exit $code
"""


@pytest.fixture
def srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "srun").write_text(SRUN)
    (tmp_path / "bin" / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")


def two_nodes(folder: Path, kind: str, **site: str) -> Study:
    goal = "total_tok_s" if kind == "sglang-offline" else "output_tok_s"
    one = with_standin(study(folder, kind, KNOBS, goal=goal, traffic=LOAD))
    limits = JobLimits(nodes=Expression.parse("2"), gpus=Expression.parse("1"))
    return replace(one, job=limits, site=Site(launcher="srun", gpus_per_node=1, **site))


@pytest.mark.usefixtures("srun")
@pytest.mark.parametrize("backend", ["fa3", "deaf-rank"])
def test_an_offline_run_counts_though_rank_1_ends_with_an_error_or_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    asked = two_nodes(tmp_path, "sglang-offline")
    outcome, reading = run_for_real(sglang_offline(asked), asked, tmp_path / "run", attention_backend=backend)
    assert outcome.kind is Kind.OK, outcome
    assert reading.metrics["successful_requests"] == 12
    log = (tmp_path / "run" / "engine.log").read_text()
    assert ("has no attribute 'generate_request'" in log) == (backend == "fa3")
    assert not list((tmp_path / "run").glob("rank-*")), "marks are cleared away"
    assert not living(tmp_path / "run"), "nothing of any rank is left"


@pytest.mark.usefixtures("srun")
def test_a_rank_that_dies_early_fails_the_run_with_its_own_cause(tmp_path: Path) -> None:
    asked = two_nodes(tmp_path, "sglang-offline")
    outcome, _ = run_for_real(sglang_offline(asked), asked, tmp_path / "run", attention_backend="dying-rank")
    assert outcome.kind in (Kind.OOM_START, Kind.OOM_RUN), outcome
    assert "GPU 3" in str(outcome)
    assert not living(tmp_path / "run")


@pytest.mark.usefixtures("srun")
def test_a_server_over_two_nodes_is_measured_and_all_of_it_stopped(tmp_path: Path) -> None:
    asked = two_nodes(tmp_path, "sglang-serve", interface="lo")
    outcome, reading = run_for_real(sglang_serve(asked), asked, tmp_path / "run")
    assert reading.metrics["successful_requests"] == 12, outcome
    told = json.loads((tmp_path / "run" / "rank1").read_text())
    assert told["nodes"] == 2
    assert told["head"].startswith("127.0.0.1:"), "the address of the interface that the site names"
    assert (told["GLOO_SOCKET_IFNAME"], told["NCCL_SOCKET_IFNAME"]) == ("lo", "lo")
    assert told["SGLANG_HOST_IP"] == "127.0.0.1"
    assert not living(tmp_path / "run")


def living(folder: Path) -> list[str]:
    """Command lines of processes that work in this folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and (entry / "cwd").readlink() == folder:
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue
    return found


def test_each_node_keeps_the_gpus_that_its_batch_system_gave_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PBS's hook and some prologs name GPUs by identity: those of the first node are unknown on the second."""
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "SLURM_JOB_GPUS"):
        monkeypatch.setenv(name, "GPU-of-the-first-node")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/lib")
    load = Load(traffic="sharegpt", requests=1, seed=1)
    make_files(tmp_path, load, (30000, 20000), "n1", model="m", make_model=False, decoys=None)
    exported = (tmp_path / ENVIRONMENT).read_text()
    assert "LD_LIBRARY_PATH=/opt/lib" in exported
    assert "GPU-of-the-first-node" not in exported


def test_the_head_is_where_the_others_reach_it_not_what_its_name_resolves_to(monkeypatch: pytest.MonkeyPatch) -> None:
    routes = {"node2": "10.1.0.1", "192.0.2.1": "172.16.0.1", "node1": "127.0.1.1"}
    monkeypatch.setattr(socket, "gethostname", lambda: "node1.cluster")
    monkeypatch.setattr(rank, "_address_towards", lambda host: routes.get(host, ""))
    assert rank.head_address("", ["node1", "node2"]) == "10.1.0.1"
    assert rank.head_address("", ["n1", "n2"]) == "172.16.0.1", "names that mean nothing here: the default route"
    routes["192.0.2.1"] = ""
    assert rank.head_address("", []) == "node1.cluster"
    assert rank.head_address("lo", ["node2"]) == "127.0.0.1"


def test_an_interface_that_is_not_there_is_said_with_those_that_are() -> None:
    with pytest.raises(OSError, match=r"interface ib7 has no address .* must be one of: .*lo"):
        rank.head_address("ib7", [])


def test_what_the_study_says_about_the_network_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank, "_address_towards", lambda host: "10.1.0.2")
    monkeypatch.setattr(rank, "_interface_of", lambda address: "eth1")
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "SGLANG_HOST_IP"):
        monkeypatch.delenv(name, raising=False)
    told = rank.node_variables("10.1.0.1", "", "SGLANG_HOST_IP")
    assert told == {"SGLANG_HOST_IP": "10.1.0.2", "GLOO_SOCKET_IFNAME": "eth1"}, "NCCL finds the fastest by itself"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "mine")
    assert "GLOO_SOCKET_IFNAME" not in rank.node_variables("10.1.0.1", "", "SGLANG_HOST_IP")


def test_vllms_offline_benchmark_is_refused_on_several_nodes(tmp_path: Path) -> None:
    one = study(tmp_path, "vllm-offline", {"tp": [16]}, model="deepseek-r1", engine=sys.executable)
    limits = JobLimits(nodes=Expression.parse("2"), gpus=Expression.parse("8"))
    asked = replace(one, job=limits, site=Site(launcher="srun", gpus_per_node=8))
    assert "use vllm-serve" in (vllm_offline(asked).refusal(asked.baseline) or "")


def test_a_session_is_given_the_time_it_needs_to_stop_its_engine(tmp_path: Path) -> None:
    asked = study(tmp_path)
    job = sglang_offline(asked).prepare(trial(asked), tmp_path / "run")
    assert job.grace_s is not None
    assert job.grace_s >= ENDS_S + process.GRACE_S + STOPPED_BACK_S, "else an engine is left behind"
    site = Site(batch="slurm")
    text = batch_script.render(replace(job, silence_limit_s=300.0), site, Slurm())
    assert f"timeout -k {job.grace_s:g} " in text
    assert f"sleep {job.grace_s:g}; kill -9" in text
    assert walltime_minutes(job, site) * 60 >= job.limit_s + job.grace_s, "nor does Slurm end it before"
