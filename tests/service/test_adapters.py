"""Adapters that `preflight` recorded on the nodes reach NCCL and the KV transfer; what the user wrote stays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ridgeline.errors import StudyError
from ridgeline.serving.node.preflight import NodeReport
from ridgeline.serving.service.file import load_service
from ridgeline.serving.service.members import members_of
from ridgeline.serving.service.scripts import start_script

TEXT = """\
version: 1
model: r1
engine: {kind: sglang}
units:
  - {role: prefill, gpus: 8, settings: {tp: 8, disaggregation_transfer_backend: mooncake}}
  - {role: decode, nodes: 2, gpus: 8, settings: {tp: 16}, env: {OWN: 1}}
router: {}
site: {name: cluster, batch: slurm, nodes: 4, launcher: srun}
"""
LINE = "export NCCL_IB_HCA='=mlx5_0:1,mlx5_3:1'"


def record(folder: Path, host: str, *exports: str) -> None:
    (folder / f"{host}.json").write_text(json.dumps(NodeReport(host, (), {}, exports).as_json()))


def scripts(folder: Path, text: str) -> list[str]:
    (folder / "service.yaml").write_text(text)
    service = load_service(folder / "service.yaml")
    return [start_script(service, member) for member in members_of(service)]


def test_recorded_adapters_are_for_nccl_and_for_kv(tmp_path: Path) -> None:
    record(tmp_path, "n1", LINE)
    record(tmp_path, "n2", LINE)
    for script in scripts(tmp_path, TEXT + "preflight: n*.json\n")[:2]:
        assert "export NCCL_IB_HCA==mlx5_0:1,mlx5_3:1\n" in script
        assert "--disaggregation-ib-device mlx5_0,mlx5_3 " in script
    assert not any("mlx5" in script for script in scripts(tmp_path, TEXT)), "nothing is guessed"


def test_what_the_file_says_itself_stays(tmp_path: Path) -> None:
    record(tmp_path, "n1", LINE)
    text = TEXT.replace("{OWN: 1}", "{NCCL_IB_HCA: mlx5_7}").replace("mooncake}", "nixl}")
    prefill, decode, _ = scripts(tmp_path, text + "preflight: [n1.json]\n")
    assert "NCCL_IB_HCA=mlx5_7\n" in decode
    assert "--disaggregation-ib-device" not in prefill, "nixl has no such flag to heed"


def test_a_sites_own_variable_names_the_devices_too(tmp_path: Path) -> None:
    prefill, *_ = scripts(tmp_path, TEXT.replace("nodes: 4,", "nodes: 4, env: {NCCL_IB_HCA: '=mlx5_1:1'},"))
    assert "--disaggregation-ib-device mlx5_1 " in prefill


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("n*.json", r"nodes have different adapters \(.*n1.json: =mlx5_0:1,mlx5_3:1; .*n2.json: none\)"),
        ("x*.json", r"x\*.json names no file; write them with `ridgeline site preflight --json"),
        ("service.yaml", r"service.yaml: .*; write it with"),
        ("away.json", r"away.json: no such file; write it"),
    ],
)
def test_records_that_do_not_help_are_named(tmp_path: Path, named: str, said: str) -> None:
    record(tmp_path, "n1", LINE)
    record(tmp_path, "n2")
    with pytest.raises(StudyError, match=said):
        scripts(tmp_path, TEXT + f"preflight: '{named}'\n")
