"""Default study folders have names that people can read, and no two campaigns share one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ridgeline.campaign.assembly import assemble_next_folder
from ridgeline.campaign.check import check_study
from ridgeline.campaign.kinds.compare import comparison
from ridgeline.cli.main import run
from ridgeline.errors import StoreError

STUDY = """\
version: 1
name: lj-melt
workload: {kind: command, run: 'echo rate {k}', metrics: {rate: {regex: 'rate (.*)'}}}
space: {k: [1, 2, 3]}
baseline: {k: 1}
goal: {maximize: rate}
"""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "study.yaml"
    path.write_text(STUDY)
    return path


def compare(study: Path, setting: str) -> None:
    with pytest.raises(SystemExit):
        run(["compare", str(study), setting, "--blocks", "3"])


def test_comparisons_are_counted(study, capsys):
    compare(study, "k=2")
    compare(study, "k=3")
    assert sorted(path.name for path in Path("studies").iterdir()) == ["lj-melt-compare", "lj-melt-compare-2"]
    with pytest.raises(StoreError, match="ridgeline resume studies/lj-melt-compare"):
        run(["compare", str(study), "k=2", "--blocks", "3"])


def test_comparisons_that_begin_together_get_a_folder_each(study):
    found = check_study(study)
    asked = comparison(found, "baseline", "k=2", 3)
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: assemble_next_folder(found, None, "x", asked).path, range(8)))
    assert len(set(folders)) == 8


def test_a_single_thing_is_said_as_one(study, capsys):
    fixed = (
        STUDY.replace("[1, 2, 3]", "[1]") + "job: {limit: 15m}\nstages: {confirm: {top: 0}, search: {sampler: grid}}\n"
    )
    study.write_text(fixed.replace("confirm:", "baseline: {repeats: 2}, confirm:") + "budget: {trials: 1}\n")
    with pytest.raises(SystemExit):
        run(["check", str(study)])
    told = capsys.readouterr().out
    assert "1 legal point of 1" in told
    assert "at most 1 node-hour:" in told
