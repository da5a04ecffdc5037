"""Tune there, confirm here: a search on a stand-in, its best settings proven on the target, one report with both."""

from __future__ import annotations

import json
from pathlib import Path

from tests.command_line import ridgeline

STUDY = """
version: 1
name: {name}
workload: {{kind: command, run: "echo score {score}", metrics: {{score: {{regex: 'score (.*)'}}}}}}
space: {{x: {xs}}}
baseline: {{x: 1}}
goal: {{maximize: score}}
budget: {{trials: {trials}}}
site: {{name: {site}, batch: local}}
stages: {{baseline: {{repeats: 1}}}}
search: {{sampler: grid, sentinel_every: 0}}
confirm: {{top: {confirmed}, blocks: 3, repeats: 1, warmup: never}}
"""


def written(folder: Path) -> None:
    """On the stand-in x is the score; on the target it is 100 times as much, and 6 cannot run there."""
    there = STUDY.format(name="small", site="laptop", score="{x}", xs=[1, 2, 3, 4, 5, 6], trials=5, confirmed=0)
    (folder / "small.yaml").write_text(there)
    here = STUDY.format(name="large", site="cluster", score="{x}00", xs=[1, 2, 3, 4, 5], trials=40, confirmed=1)
    (folder / "large.yaml").write_text(here)


def test_the_best_of_the_stand_in_are_proven_on_the_target(tmp_path: Path) -> None:
    written(tmp_path)
    done = ridgeline("tune", "large.yaml", "--search-on", "small.yaml", "--top", "2", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "x 6 stays behind: x 6 is not in the space" in done.stderr
    best = json.loads(ridgeline("best", "out", "--json", cwd=tmp_path).stdout)
    assert best["settings"]["x"] == 5
    tried = [
        event["point"]["x"]
        for line in (tmp_path / "out" / "journal.jsonl").read_text().splitlines()
        if (event := json.loads(line))["event"] == "trial" and event["stage"] == "search"
    ]
    assert tried == [5, 4], "the two best of the stand-in, and nothing else"
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Found on the stand-in, tried here" in page
    assert "first run on laptop" in page
    assert "confirmed on cluster" in page
    assert ridgeline("study", "verify", "out", cwd=tmp_path).returncode == 0


def test_a_campaign_that_was_searched_before_is_taken_as_it_is(tmp_path: Path) -> None:
    written(tmp_path)
    searched = ridgeline("tune", "small.yaml", "--out", "there", cwd=tmp_path)
    assert searched.returncode == 1 and "the study asks for no confirmation" in searched.stderr
    before = (tmp_path / "there" / "journal.jsonl").read_text()
    done = ridgeline("tune", "large.yaml", "--search-on", "there", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "there" / "journal.jsonl").read_text() == before
    wrong = ridgeline("tune", "large.yaml", "--search-on", "there", "--trials", "3", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "leave out --warm-start, --trials and --dry-run" in wrong.stderr
