"""The guide to rehearsals names every knob and metric of the twin, and its site can be loaded."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from ridgeline.serving.engines.knobs import modelled
from ridgeline.serving.workloads.twin.form import TwinForm
from ridgeline.study.forms import fields
from ridgeline.study.site_file import load_site

GUIDE = (Path(__file__).parents[3] / "docs" / "guides" / "rehearse-a-campaign.md").read_text()
BLOCKS = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)]


def test_every_knob_and_metric_is_named() -> None:
    named = set(re.findall(r"`(\w+)`", GUIDE))
    assert {knob.name for knob in modelled()} <= named
    assert "reference/metrics.md" in GUIDE


def test_the_blocks_are_ones_that_ridgeline_takes(tmp_path: Path) -> None:
    study, site = BLOCKS
    assert set(study["workload"]) - {"kind"} <= set(fields(TwinForm))
    assert load_site(site, tmp_path).options["slow"] == {"dgx002": 0.91}
