"""Figures and thresholds of analyzers against files so small that the right answer can be worked out by hand."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from ridgeline import catalog
from ridgeline.diagnose.base import Analyzer, LogSummary, Quote, RawFinding, SummaryFigure, cited
from ridgeline.diagnose.comparison import compare_files
from ridgeline.diagnose.knobs import knobs_yaml
from ridgeline.records.finding import Finding, KnobToTry
from ridgeline.records.outcome import Evidence
from ridgeline.serving.engines.served import LogTally
from ridgeline.serving.engines.sglang.engine import SGLANG
from ridgeline.serving.findings.served import EngineKnobs, failure_claims


def analyzer(kind: str) -> Analyzer:
    found: Analyzer = catalog.part("analyzers", kind)
    return found


def claims(kind: str, text: str) -> dict[str, Finding]:
    return {finding.key: finding for finding in analyzer(kind).analyze("file", text.splitlines())}


def figures(kind: str, text: str) -> dict[str, tuple[float, str]]:
    portray = analyzer(kind).portray
    assert portray is not None
    return {figure.name: (figure.value, figure.unit) for figure in portray(text.splitlines()).figures}


def failed(*seen: tuple[str, bool, int], worked_to: int = 0) -> list[RawFinding]:
    """What is claimed of a log with these failures: kind, whether the engine was ready, line."""
    log = LogTally(failures={(kind, ready): line for kind, ready, line in seen}, last_work_line=worked_to)
    return list(failure_claims(SGLANG, log, EngineKnobs("sglang", {})))


def test_of_several_failures_the_cause_is_told_and_not_its_consequences() -> None:
    (told,) = failed(("exception", True, 5), ("child-died", True, 9), ("cuda-oom", False, 7))
    assert (told.key, told.quotes[0].line) == ("sglang.failed-cuda-oom", 7)
    assert "while starting" in told.claim
    (unknown,) = failed(("of-tomorrow", True, 3), ("exception", True, 5))
    assert unknown.key == "sglang.failed-exception"


def test_an_exception_after_which_the_engine_went_on_is_no_failure() -> None:
    assert failed(("exception", True, 5), worked_to=6) == []
    assert failed(("exception", True, 7), worked_to=6)
    assert failed(("cuda-oom", True, 5), worked_to=6), "memory that ran out is never handled"


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
