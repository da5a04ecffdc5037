"""Figures and thresholds of analyzers against files so small that the right answer can be worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline import catalog
from ridgeline.diagnose.base import Analyzer
from ridgeline.diagnose.comparison import compare_files
from ridgeline.diagnose.knobs import knobs_yaml
from ridgeline.records.finding import Finding, KnobToTry
from ridgeline.records.outcome import Evidence
from ridgeline.serving.engines.sglang.engine import SGLANG
from ridgeline.serving.findings.knobs import EngineKnobs
from ridgeline.serving.findings.served import failure_claims


def analyzer(kind: str) -> Analyzer:
    found: Analyzer = catalog.part("analyzers", kind)
    return found


def claims(kind: str, text: str) -> dict[str, Finding]:
    return {finding.key: finding for finding in analyzer(kind).analyze("file", text.splitlines())}


def figures(kind: str, text: str) -> dict[str, tuple[float, str]]:
    portray = analyzer(kind).portray
    assert portray is not None
    return {figure.name: (figure.value, figure.unit) for figure in portray(text.splitlines()).figures}


HEAD = "# gpu    pwr  gtemp     sm    mem   pclk  pviol  tviol     fb\n"


def dmon(*rows: tuple[int, int, int, int], times: int = 10) -> str:
    """Ten samples a GPU: index, sm, clock, power violation."""
    lines = (f"{gpu} 500 60 {sm} 30 {clock} {held} 0 1000\n" for gpu, sm, clock, held in rows for _ in range(times))
    return HEAD + "".join(lines)


def test_sound_gpus_are_only_summed_up() -> None:
    assert set(claims("dmon", dmon((0, 95, 1900, 0), (1, 94, 1890, 0)))) == {"dmon.overall"}
    assert claims("dmon", dmon((0, 1, 1900, 9), times=4)) == {}, "four samples say nothing"
    assert "dmon.idle" in claims("dmon", dmon((0, 1, 1900, 0), times=5))


def test_a_gpu_that_idles_lags_or_is_held_down_is_named_with_its_share() -> None:
    half = dmon((0, 95, 1900, 0), times=6) + dmon((0, 2, 1900, 0), times=4)
    assert claims("dmon", half)["dmon.idle"].share == pytest.approx(0.4)
    busy = dmon((0, 95, 1900, 0), times=7) + dmon((0, 2, 1900, 0), times=3)
    assert "dmon.idle" not in claims("dmon", busy)
    behind = claims("dmon", dmon((0, 90, 1900, 0), (1, 90, 1900, 0), (2, 60, 1900, 0)))["dmon.behind"]
    assert behind.claim == "GPU 2 is at 60% while the others are at 90%"
    assert behind.share == pytest.approx(1 / 3)
    assert "dmon.behind" not in claims("dmon", dmon((0, 90, 1900, 0), (1, 90, 1900, 0), (2, 64, 1900, 0)))
    slow = claims("dmon", dmon((0, 95, 2000, 0), (1, 95, 1700, 0)))["dmon.slow-clock"]
    assert slow.claim.startswith("GPU 1 worked at 1700 MHz on average, 15%")
    assert "dmon.slow-clock" not in claims("dmon", dmon((0, 95, 2000, 0), (1, 95, 1820, 0)))
    held = dmon((0, 95, 1900, 0), times=40) + dmon((0, 95, 1900, 7), times=20) + dmon((1, 95, 1900, 12))
    told = claims("dmon", held)["dmon.pviol"].claim
    assert told == "the power limit held down the clock of 2 of 2 GPUs, of GPU 1 in 100% of its samples"


KNOBS = EngineKnobs("sglang", {})


def test_of_several_failures_the_cause_is_told_and_not_its_consequences() -> None:
    seen = [("exception", True, 5), ("child-died", True, 9), ("cuda-oom", False, 7)]
    (told,) = failure_claims(SGLANG, seen, 0, KNOBS)
    assert (told.key, told.quotes[0].line) == ("sglang.failed-cuda-oom", 7)
    assert "while starting" in told.claim
    (unknown,) = failure_claims(SGLANG, [("of-tomorrow", True, 3), ("exception", True, 5)], 0, KNOBS)
    assert unknown.key == "sglang.failed-exception"


def test_an_exception_after_which_the_engine_went_on_is_no_failure() -> None:
    assert failure_claims(SGLANG, [("exception", True, 5)], 6, KNOBS) == []
    assert failure_claims(SGLANG, [("exception", True, 7)], 6, KNOBS)
    assert failure_claims(SGLANG, [("cuda-oom", True, 5)], 6, KNOBS), "memory that ran out is never handled"


def test_a_comparison_lists_what_is_new_first_then_what_is_gone_then_what_stayed(tmp_path: Path) -> None:
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text(dmon((0, 90, 1900, 0), (1, 90, 1900, 9), (2, 90, 1900, 0)))
    second.write_text(dmon((0, 90, 1900, 0), (1, 90, 1900, 0), (2, 45, 1900, 0)))
    found = compare_files(first, second, [analyzer("dmon")])
    order = [(c.first and c.first.key, c.second and c.second.key) for c in found.findings]
    assert order == [(None, "dmon.behind"), ("dmon.pviol", None), ("dmon.overall", "dmon.overall")]
    changed = {f.name: f.ratio for f in found.figures}
    assert changed["GPU 2 sm, mean"] == pytest.approx(0.5) and changed["GPU 0 sm, mean"] == 1.0


def test_knobs_to_try_come_once_each_and_in_order() -> None:
    evidence = (Evidence("log", 1, "x"),)
    tried = [(64, (64, 256, 128)), (64, (64, 32))]
    knobs = [KnobToTry("sglang", "cap", values, current) for current, values in tried]
    text = knobs_yaml(Finding("too few", evidence, "more", knobs=(knob,)) for knob in knobs)
    assert "cap: [32, 64, 128, 256]" in text
    assert text.count("cap:") == 2, "in the space and in the baseline"
