"""The guide names every option and metric, and its study files are ones that Ridgeline accepts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from ridgeline.campaign.check import check_study
from ridgeline.workloads.engine_options import OPTIONS
from ridgeline.workloads.engine_prepare import STEPS
from ridgeline.workloads.engine_reading import METRICS

GUIDE = Path(__file__).parent.parent.parent / "docs" / "guides" / "tune-sglang.md"
BLOCKS = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(), re.DOTALL)]
SITE = {"batch": "slurm", "nodes": 2, "gpus_per_node": 8, "launcher": "srun"}


def merged(index: int) -> dict:
    """The first block is a whole study; the others say what changes in it."""
    whole, change = BLOCKS[0], dict(BLOCKS[index])
    served = change.get("workload", {}).get("kind") == "sglang-serve"
    workload = {**({} if served else whole["workload"]), **change.pop("workload", {})}
    study = {**whole, **change, "workload": workload, "guards": []}
    if "tp" in study["space"]:
        study |= {"site": SITE, "job": {"nodes": 2, "gpus": 8}, "workload": {**workload, "model": "deepseek-r1"}}
    if index:
        study["baseline"] = {
            name: (values["values"] if isinstance(values, dict) else values)[0]
            for name, values in study["space"].items()
        }
    if "tp" in study["space"]:
        study["baseline"]["tp"] = 16
    return study


@pytest.mark.parametrize("index", range(len(BLOCKS)))
def test_every_study_of_the_guide_is_accepted(index: int, tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(merged(index)))
    checked = check_study(path)
    assert checked.refusal(checked.study.baseline) is None


def test_options_steps_and_metrics_are_all_named() -> None:
    text = GUIDE.read_text()
    for name in (*OPTIONS, *METRICS):
        assert f"`{name}`" in text, name
    for step in STEPS:
        assert f"prepare: [{step}]" in text
