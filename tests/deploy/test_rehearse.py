"""Rehearsing a service: every policy over twin servers, and which of them is kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.deploy.file import load_service, with_router
from ridgeline.deploy.rehearse.rehearsal import Rehearsal, RehearsedLoad, as_twins, best_of, known_policies, rehearse
from ridgeline.errors import InputError

from .test_operate import file as file  # a service of twins behind a stand-in router
from .test_operate import free_ports, processes_of


def run(policy: str, goodput_s: float, ttft_ms: float, lost: bool = False) -> Rehearsal:
    return Rehearsal(policy, lost, 10.0, goodput_s, ttft_ms, 10.0, 0, 1.0, None, "")


def test_what_is_within_the_noise_changes_nothing() -> None:
    assert best_of([run("own", 9.8, 105), run("other", 10.0, 100)]).policy == "own"
    assert best_of([run("own", 9.0, 105), run("other", 10.0, 100)]).policy == "other"
    assert best_of([run("own", 10.0, 150), run("other", 9.9, 100)]).policy == "other"
    assert best_of([run("own", 9.0, 50), run("other", 10.0, 100), run("own", 99.0, 1, lost=True)]).policy == "other"


def test_the_files_own_policy_is_tried_first(file: Path) -> None:
    service = load_service(file)
    assert service.router is not None
    assert known_policies(service)[0] == "round_robin"
    own = replace(service, router=replace(service.router, policy="power_of_two"))
    assert known_policies(own) == ["power_of_two", "round_robin", "cache_aware"]


def test_servers_of_a_cluster_become_twins_of_the_same_settings(tmp_path: Path) -> None:
    path = tmp_path / "r1.yaml"
    path.write_text(
        "version: 1\nmodel: /models/deepseek-r1\nengine: {kind: sglang, gpu: h100}\n"
        "units: [{nodes: 2, gpus: 8, replicas: 2, settings: {tp: 16}}]\nrouter: {policy: cache_aware}\n"
        "site: {name: c, batch: slurm, nodes: 8, launcher: srun}\n"
    )
    twins = as_twins(load_service(path))
    assert (twins.engine, twins.model, twins.site.batch) == ("twin", "deepseek-r1", "local")
    assert twins.units[0].settings == {"tp": 16}
    with pytest.raises(InputError, match="name the GPU"):
        as_twins(replace(twins, gpu=""))


def test_every_policy_is_loaded_and_then_a_server_is_lost(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ridgeline.deploy.rehearse.rehearsal.PORTS", free_ports(3))
    load = RehearsedLoad("fixed:50:4", rate_s=10.0, seconds=1.5)
    done = rehearse(load_service(file), tmp_path / "runs", load, ["round_robin", "cache_aware"], lambda line: None)
    assert [(one.policy, one.lost_server) for one in done[:2]] == [("round_robin", False), ("cache_aware", False)]
    assert done[2].lost_server
    assert [one.failed for one in done[:2]] == [0, 0]
    assert all(one.goodput_s > 0 for one in done[:2])
    assert done[2].failed > 0, "this stand-in does not look whether its servers live; a router does"
    assert processes_of(tmp_path / "runs") == []


def test_the_chosen_policy_is_written_and_read_back(file: Path) -> None:
    file.write_text(f"# ours\n{file.read_text()}")
    file.write_text(with_router(file, {"policy": "power_of_two"}))
    assert file.read_text().startswith("# ours\nversion: 1\n")
    router = load_service(file).router
    assert router is not None
    assert router.policy == "power_of_two"
