"""Rules of a task: refused before anything runs, checked again in what was applied, and signed with their evidence."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import ridgeline
from ridgeline.campaign.check import check_study
from ridgeline.campaign.task import COMPLIANCE_FILE, forbidden_job, nodes_for, signature_of
from ridgeline.campaign.verify import verify_folder
from ridgeline.errors import StudyError
from ridgeline.records.measurement import Measurement, Reading
from ridgeline.records.outcome import Kind
from ridgeline.records.run import Cause, Ending, Job
from ridgeline.records.study import TaskRules
from ridgeline.study.history import read_history

STUDY = """version: 1
name: ruled
task: {forbidden_flags: [--fast-math], forbidden_env: [OMP_*], seed: 7, wall: 10m, nodes: [n1, n2]}
workload:
  kind: command
  run: VARS echo rate {x} seed {seed} FLAGS
  metrics: {rate: {regex: "rate ([0-9.]+)"}}
space: {x: [1, 2], mode: MODES, seed: SEEDS}
baseline: {x: 1, mode: a}
goal: {maximize: rate}
job: {limit: LIMIT}
budget: {trials: 2}
confirm: {blocks: 3, warmup: never}
"""


def written(folder: Path, **texts: str) -> Path:
    filled = {
        "VARS": "A=1",
        "FLAGS": "{mode}",
        "MODES": "[a, b]",
        "SEEDS": "7",
        "LIMIT": "10m",
        ", nodes: [n1, n2]": "",  # this machine has its own name
        **texts,
    }
    text = STUDY
    for name, value in filled.items():
        text = text.replace(name, value)
    path = folder / "study.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        ({"LIMIT": "1h"}, r":11: job.limit: a job may take 1h, the task allows 10m; set job.limit: 10m"),
        ({"SEEDS": "[7, 8]", "baseline: {x": "baseline: {seed: 7, x"}, r":8: space.seed: allows 8, the task fixes"),
        ({"FLAGS": "{mode} --fast-math"}, r":4: workload: every job has --fast-math, which task.forb"),
        ({"MODES": '[a, "--fast-math"]'}, r":8: space.mode: --fast-math puts --fast-math into the job"),
        ({"VARS": "OMP_PROC_BIND=true"}, r":4: workload: every job has OMP_PROC_BIND, which task.forb"),
        ({"seed: 7, wall": "seed: 7, prompts: 10, wall"}, r":3: task.prompts: the task fixes prompts 10, and nothing"),
        ({"--fast-math]": "fast]"}, r":3: task.forbidden_flags\[0\]: .*'fast' is not a flag"),
    ],
)  # fmt: skip
def test_a_study_that_contradicts_its_task_is_refused_with_the_line(
    tmp_path: Path, texts: dict[str, str], says: str
) -> None:
    with pytest.raises(StudyError) as caught:
        check_study(written(tmp_path, **texts))
    assert any(re.search(says, problem) for problem in caught.value.problems), caught.value.problems


def test_what_jobs_would_inherit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_SCHEDULE", "static")
    with pytest.raises(StudyError, match="OMP_SCHEDULE is set in your environment, and jobs inherit it; `unset"):
        check_study(written(tmp_path))


def test_a_job_is_looked_at_again_before_it_starts(tmp_path: Path) -> None:
    found = check_study(written(tmp_path))
    job = Job("j", tmp_path, "echo 1", limit_s=600)
    settings = found.study.space.settings(found.study.baseline)
    assert forbidden_job(found.study, found.workload, job, settings) is None
    (tmp_path / "engine.sh").write_text("exec engine --fast-math=1\n")
    outcome = forbidden_job(found.study, found.workload, job, settings)
    assert outcome is not None and outcome.kind is Kind.REJECTED
    assert outcome.reason == "breaks the task's rules: it has --fast-math"


def test_what_the_engine_applied_is_held_against_the_rules() -> None:
    rules = TaskRules(("--fast-math", "--size"), (), "org/m1", None, 100, 60.0, ("n*",))
    reading = Reading((Measurement("successful_requests", 99.0, "requests", "log"),), applied={"model_path": "/m/m2"})
    ending = Ending(Cause.EXITED, 0, nodes=("n1", "q1"), elapsed_s=61.0)
    broken = [*rules.broken_by(ending, reading)]
    assert broken == [
        "the engine loaded /m/m2, the task is about org/m1",
        "99 prompts were answered, the task has 100",
        "it took 61 s, the task allows 60 s",
        "it ran on q1, the task allows n*",
    ]
    assert [*rules.broken_by(Ending(Cause.EXITED, 0), Reading(applied={"fast_math": True, "size": 8}))] == [
        "the engine applied --fast-math, which the task forbids"
    ]
    fine = Reading(applied={"fast_math": False, "model": "m1"})
    assert not [*rules.broken_by(Ending(Cause.EXITED, 0, nodes=("n1",)), fine)]


def test_jobs_go_to_allowed_nodes_in_turn() -> None:
    rules = TaskRules(nodes=("a", "b", "c"))
    assert nodes_for(rules, 1, 2, (), ()) == ("c", "a")
    assert nodes_for(rules, 1, 2, ("a", "b"), ()) == ("a", "b"), "as asked, since both are allowed"
    assert nodes_for(rules, 1, 2, ("a", "z"), ("a",)) in (("b", "c"), ("c", "b"))
    assert nodes_for(TaskRules(nodes=("a*",)), 1, 2, (), ()) == (), "a pattern names nobody"


def test_the_record_is_signed_and_verify_makes_it_again(tmp_path: Path) -> None:
    out = tmp_path / "out"
    ridgeline.tune(written(tmp_path), out=out)
    record = json.loads((out / COMPLIANCE_FILE).read_text())
    assert {rule: kept for rule, kept, _ in record["rules"]} == {
        "without --fast-math": "yes",
        "environment without OMP_*": "yes",
        "seed 7": "yes",
        "at most 10m a job": "yes",
    }
    assert record["signature"] == signature_of(record)
    found = verify_folder(out)
    assert found.holds and found.signature == record["signature"]

    (out / COMPLIANCE_FILE).write_text(json.dumps(record | {"versions": {"ridgeline": "9.9"}}))
    edited = verify_folder(out)
    assert {mismatch.what for mismatch in edited.mismatches} == {"its signature", "versions.ridgeline"}
    assert not edited.signature

    (out / COMPLIANCE_FILE).write_text(json.dumps(record))
    journal = out / "journal.jsonl"
    journal.write_text(journal.read_text().replace("{", "{ ", 1))
    assert {mismatch.what for mismatch in verify_folder(out).mismatches} == {"journal.digest"}
    assert read_history(out).verdict is not None
