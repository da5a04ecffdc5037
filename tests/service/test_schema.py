"""The schema of deployment files, as editors get it, and the reference page that comes from the same forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from ridgeline import catalog
from ridgeline.cli.schema import schema
from ridgeline.errors import InputError
from ridgeline.serving.service.file import load_service
from ridgeline.serving.service.service import ServiceForm
from ridgeline.study.schema import file_schema

GOOD = """\
version: 1
model: /models/r1
engine: {kind: sglang, release: 0.5.15}
units:
  - {role: prefill, gpus: 8, settings: {tp: 8}}
  - {role: decode, nodes: 2, gpus: 8, settings: {tp: 16, attn_dp: 16}, env: {NCCL_DEBUG: INFO}}
router: {kind: smg, policy: least_load, most_running: 64}
site: {name: cluster, batch: slurm, nodes: 4, gpus_per_node: 8, launcher: srun}
kubernetes: {router_image: 'example.org/router:1', devices: {rdma/hca: 8}}
"""


@pytest.fixture(scope="module")
def checker() -> Any:
    return jsonschema.Draft202012Validator(
        file_schema(ServiceForm, "ridgeline-deployment-1", catalog.forms("executors"))
    )


@pytest.mark.parametrize(
    "path", sorted(Path(__file__).parents[2].glob("examples/*/service*.yaml")), ids=lambda p: p.stem
)
def test_the_examples_fit_it(path: Path, checker: Any) -> None:
    assert not list(checker.iter_errors(yaml.safe_load(path.read_text())))


def test_what_deploy_reads_the_schema_takes(tmp_path: Path, checker: Any) -> None:
    path = tmp_path / "service.yaml"
    path.write_text(GOOD)
    load_service(path)
    assert not list(checker.iter_errors(yaml.safe_load(GOOD)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("kind: smg", "kind: nginx"),
        ("gpus: 8,", "gpu: 8,"),
        ("batch: slurm", "batch: slurm, colour: red"),
        ("version: 1\n", ""),
        ("router_image", "routerimage"),
    ],
)
def test_what_is_wrong_is_underlined(old: str, new: str, checker: Any) -> None:
    assert list(checker.iter_errors(yaml.safe_load(GOOD.replace(old, new, 1))))


def test_a_file_that_nobody_writes_has_no_schema(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="study, site, deploy"):
        schema("router")
    schema("deploy")
    assert '"ridgeline-deployment-1"' in capsys.readouterr().out
