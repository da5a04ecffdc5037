"""A study whose baseline failed is corrected in its folder and goes on; after a pass it may not change."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.campaign.assembly import assemble_campaign, assemble_folder
from ridgeline.campaign.check import check_study
from ridgeline.campaign.kinds.search import SearchQuestion
from ridgeline.errors import NothingFound, StoreError
from ridgeline.study.folder import StudyFolder

STUDY = r"""version: 1
name: corrected
workload:
  kind: command
  run: echo "rate {x}"; exit {code}
  metrics: {rate: {regex: 'rate (\d+)'}}
space:
  x: [1, 2]
  code: [3, 0]
goal: {maximize: rate}
baseline: {x: 1, code: 3}
budget: {trials: 1}
confirm: {top: 0}
"""


def test_a_baseline_that_failed_is_corrected_and_resumed(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(STUDY)
    folder = assemble_folder(check_study(tmp_path / "study.yaml"), tmp_path / "out", "corrected")
    with pytest.raises(NothingFound, match="ridgeline resume"), assemble_campaign(folder, SearchQuestion()) as campaign:
        campaign.run()
    copy = tmp_path / "out" / "study.yaml"
    copy.write_text(STUDY.replace("code: 3}", "code: 0}").replace("exit {code}", "exit $(({code} * 1))"))
    with assemble_campaign(StudyFolder.open(tmp_path / "out")) as campaign:
        campaign.run()
    assert [run.outcome.kind.value for run in campaign.history.runs.values()][:2] == ["crash", "ok"]
    copy.write_text(STUDY)
    with (
        pytest.raises(StoreError, match="workload, baseline changed after the campaign began"),
        assemble_campaign(StudyFolder.open(tmp_path / "out")),
    ):
        pass
