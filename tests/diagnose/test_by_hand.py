"""Figures and thresholds of analyzers against files so small that the right answer can be worked out by hand."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from ridgeline import catalog
from ridgeline.diagnose.accounting import _read_pbs_jobs
from ridgeline.diagnose.base import Analyzer, LogSummary, Quote, RawFinding, SummaryFigure, cited
from ridgeline.diagnose.comparison import compare_files
from ridgeline.diagnose.knobs import knobs_yaml
from ridgeline.records.finding import Finding, KnobToTry
from ridgeline.records.outcome import Evidence
from ridgeline.serving.engines.sglang.engine import SGLANG
from ridgeline.serving.findings.served import EngineKnobs, failure_claims

SACCT = """\
JobID|JobName|State|ExitCode|Elapsed|Timelimit|TotalCPU|AllocCPUS|NNodes|NodeList|MaxRSS|ReqMem|Submit|Start
1|a|COMPLETED|0:0|02:00:00|02:30:00|08:00:00|4|1|n1||8G|2026-11-10T08:00:00|2026-11-10T09:00:00
2|b|COMPLETED|0:0|01:00:00|10:00:00|02:00:00|10|1|n2||8G|2026-11-10T08:00:00|2026-11-10T08:30:00
3|c|TIMEOUT|0:0|01:00:00|01:00:00|02:00:00|2|1|n3||8G|2026-11-10T08:00:00|2026-11-10T08:00:00
"""


def analyzer(kind: str) -> Analyzer:
    found: Analyzer = catalog.part("analyzers", kind)
    return found


def claims(kind: str, text: str) -> dict[str, Finding]:
    return {finding.key: finding for finding in analyzer(kind).analyze("file", text.splitlines())}


def figures(kind: str, text: str) -> dict[str, tuple[float, str]]:
    portray = analyzer(kind).portray
    assert portray is not None
    return {figure.name: (figure.value, figure.unit) for figure in portray(text.splitlines()).figures}


def test_job_records_add_up_to_core_hours() -> None:
    """20 core-hours: 8, 10 and 2; the second job used 2 of its 10; an hour, half an hour and nothing in the queue."""
    assert figures("sacct", SACCT) == {
        "jobs": (3, ""),
        "core-hours": (pytest.approx(20.0), "h"),
        "elapsed": (pytest.approx(4.0), "h"),
        "waited in the queue": (pytest.approx(1.5), "h"),
        "idle core-hours": (pytest.approx(8.0), "h"),
        "jobs completed": (2, ""),
        "jobs timeout": (1, ""),
    }
    found = claims("sacct", SACCT)
    told = "2 of 3 jobs completed; 20.00 core-hours in all, 0.50 h in the queue on average"
    assert found["jobs.overall"].claim == told
    assert found["jobs.timeout"].share == pytest.approx(0.1)
    assert found["jobs.timeout"].severity == "warning"
    assert found["jobs.idle-cores"].share == pytest.approx(0.4)
    assert "job 2 kept its 10 cores 20% busy" in found["jobs.idle-cores"].claim
    assert "job 2 for 10 times as much" in found["jobs.wide-limit"].claim


@pytest.mark.parametrize("steps", [("7900M", "200M"), ("200M", "7900M")])
def test_a_jobs_memory_is_that_of_its_largest_step(steps: tuple[str, str]) -> None:
    head, job = SACCT.splitlines()[:2]
    rows = [f"1.{n}|s|COMPLETED|0:0|02:00:00||08:00:00|4|1|n1|{size}||x|x" for n, size in enumerate(steps)]
    assert "jobs.near-memory" in claims("sacct", "\n".join([head, job, *rows]))
    small = [f"1.{n}|s|COMPLETED|0:0|02:00:00||08:00:00|4|1|n1|4000M||x|x" for n in range(2)]
    assert "jobs.near-memory" not in claims("sacct", "\n".join([head, job, *small])), "steps come one after another"


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ("Exit_status=0", "completed"),
        ("Exit_status=3", "failed"),
        ("Exit_status=-29", "timeout"),
        ("Exit_status=-27", "memory"),
        ("Exit_status=-28", "memory"),
    ],
)
def test_how_a_pbs_job_ended_is_told_by_its_code(fields: str, state: str) -> None:
    line = f"11/15/2026 10:10:00;E;22.vm;user=ann qtime=1000 start=1600 resources_used.walltime=00:09:00 {fields}"
    (job,) = _read_pbs_jobs([line])
    assert (job.state, job.waited_s, job.elapsed_s) == (state, 600.0, 540.0)


@pytest.mark.parametrize(
    ("comment", "state"),
    [
        ("Job run at Sun and exceeded resource walltime", "timeout"),
        ("Job run at Sun and exceeded resource mem", "memory"),
        ("Job run at Sun and exceeded resource vmem", "memory"),
        ("Job run at Sun and terminated by ann@vm", "cancelled"),
    ],
)
def test_how_a_pbs_job_ended_is_told_by_its_comment(comment: str, state: str) -> None:
    text = f"Job Id: 22.vm\n    job_state = F\n    comment = {comment}\n    Exit_status = 271\n"
    (job,) = _read_pbs_jobs(text.splitlines())
    assert job.state == state


KNOBS = EngineKnobs("sglang", {})


def test_of_several_failures_the_cause_is_told_and_not_its_consequences() -> None:
    seen = [("exception", True, 5), ("child-died", True, 9), ("cuda-oom", False, 7)]
    (told,) = failure_claims(SGLANG, seen, 0, KNOBS)
    assert (told.key, told.quotes[0].line) == ("sglang.failed-cuda-oom", 7)
    assert "while starting" in told.claim
    (unknown,) = failure_claims(SGLANG, [("of-tomorrow", True, 3), ("exception", True, 5)], 0, KNOBS)
    assert unknown.key == "sglang.failed-exception"


def test_an_exception_after_which_the_engine_went_on_is_no_failure() -> None:
    assert list(failure_claims(SGLANG, [("exception", True, 5)], 6, KNOBS)) == []
    assert list(failure_claims(SGLANG, [("exception", True, 7)], 6, KNOBS))
    assert list(failure_claims(SGLANG, [("cuda-oom", True, 5)], 6, KNOBS)), "memory that ran out is never handled"


def as_told(source: str, lines: Iterable[str]) -> list[Finding]:
    """Every line but the first is a finding by its own name."""
    text = list(lines)
    return cited(
        source, text, [RawFinding(f"{s} is so", (Quote(n),), "do it", key=s) for n, s in enumerate(text, 1)][1:]
    )


def test_a_comparison_lists_what_is_new_first_then_what_is_gone_then_what_stayed(tmp_path: Path) -> None:
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text("told 90\ngone\nstays\n")
    second.write_text("told 45\nnew\nstays\n")

    def portray(lines: Iterable[str]) -> LogSummary:
        value = float(next(iter(lines)).split()[1])
        return LogSummary((SummaryFigure("one", value, "%"), SummaryFigure("other", 7.0, "")))

    found = compare_files(first, second, [Analyzer("told", "told", re.compile("^told"), as_told, portray)])
    order = [(c.first and c.first.key, c.second and c.second.key) for c in found.findings]
    assert order == [(None, "new"), ("gone", None), ("stays", "stays")]
    assert {f.name: f.ratio for f in found.figures} == {"one": pytest.approx(0.5), "other": 1.0}


def test_knobs_to_try_come_once_each_and_in_order() -> None:
    evidence = (Evidence("log", 1, "x"),)
    tried = [(64, (64, 256, 128)), (64, (64, 32))]
    knobs = [KnobToTry("sglang", "cap", values, current) for current, values in tried]
    text = knobs_yaml(Finding("too few", evidence, "more", knobs=(knob,)) for knob in knobs)
    assert "cap: [32, 64, 128, 256]" in text
    assert text.count("cap:") == 2, "in the space and in the baseline"
