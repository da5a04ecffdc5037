"""The guide names every option and metric, and its study files are ones that Ridgeline accepts."""

from __future__ import annotations

import re
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from ridgeline.campaign.check import check_study
from ridgeline.campaign.kinds.search import SearchQuestion
from ridgeline.campaign.preview import rehearse
from ridgeline.serving.engines.sglang.engine import SGLANG
from ridgeline.serving.workloads.engine.form import ServeForm
from ridgeline.serving.workloads.engine.scripts import REHEARSE
from ridgeline.study.forms import fields

GUIDES = Path(__file__).parents[3] / "docs" / "guides"
SGLANG_GUIDE, VLLM_GUIDE = GUIDES / "tune-sglang.md", GUIDES / "tune-vllm.md"


def blocks(guide: Path) -> list[dict[str, Any]]:
    return deepcopy(_read(guide))


@cache
def _read(guide: Path) -> list[dict[str, Any]]:
    return [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", guide.read_text(), re.DOTALL)]


def merged(guide: Path, index: int) -> dict[str, Any]:
    """As the guide says: the first block is a whole study; the others' parts stand in the place of its own.

    A site alone stands in the place of that of the step before.
    """
    whole, change = blocks(guide)[0], dict(blocks(guide)[index])
    if set(change) == {"site"}:
        return {**merged(guide, index - 1), **change}
    served = str(change.get("workload", {}).get("kind", "")).endswith("-serve")
    workload = {**({} if served else whole["workload"]), **change.pop("workload", {})}
    return {**whole, **change, "workload": workload}


CASES = [(guide, index) for guide in (SGLANG_GUIDE, VLLM_GUIDE) for index in range(len(blocks(guide)))]


@pytest.mark.parametrize(("guide", "index"), CASES, ids=[f"{guide.stem}-{index}" for guide, index in CASES])
def test_every_rung_of_the_guide_is_accepted_and_can_be_rehearsed(guide: Path, index: int, tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(merged(guide, index)))
    checked = check_study(path)
    assert checked.refusal(checked.study.baseline) is None
    shown = list(rehearse(path, SearchQuestion(), 3, tmp_path / "rehearsed"))
    assert "the engine (engine.sh)" in shown[0].script
    assert len(shown) == 3, "a rung with fewer than three settings is none"


def test_options_steps_and_metrics_are_all_named() -> None:
    text = SGLANG_GUIDE.read_text()
    for name in fields(ServeForm):
        assert f"`{name}`" in text, name
    assert "reference/metrics.md" in text
    for step in (REHEARSE, *SGLANG.steps):
        assert f"prepare: [{step}]" in text
