"""Whether to split prefill from decode: when that pays, when it does not, and when nobody can tell yet."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from ridgeline.campaign.check import check_study
from ridgeline.serving.planner.planner import Plan, answer_plan
from ridgeline.serving.planner.verdict import _judged, verdict_on
from ridgeline.serving.service.from_results import write_plan
from ridgeline.serving.twin.calibrate import calibrate
from ridgeline.serving.twin.calibration import Calibration, write_calibration
from ridgeline.serving.verbs.plan import plan as plan_verb
from ridgeline.serving.verbs.plan import verdict_text

LOG = Path(__file__).parents[1] / "samples" / "sglang" / "offline-llama8b-h200-default.log"
LIMITS = ("itl_p99_ms=12", "ttft_p95_ms=1000")


@cache
def planned(traffic: str, *slos: str, gpus: int = 2, model: str = "llama-8b") -> Plan:
    return answer_plan(model, "h200", 1, gpus, traffic, slos=slos)


def long_prompts() -> Plan:
    return planned("fixed:4000:100", *LIMITS)


def short_prompts() -> Plan:
    return planned("fixed:1000:1000", "ttft_p95_ms=2000")


def test_long_prompts_and_a_tight_limit_between_tokens_ask_for_a_split() -> None:
    verdict = long_prompts().verdict
    assert verdict.answer == "split"
    assert verdict.low is not None
    assert verdict.gain is not None
    assert verdict.high is not None
    assert 1 < verdict.low < verdict.gain < verdict.high


def test_do_not_split_where_it_serves_no_more() -> None:
    verdict = short_prompts().verdict
    assert verdict.answer == "do not split"
    assert verdict.gain is not None
    assert verdict.gain < 1.1
    assert not verdict.split


def test_do_not_split_where_two_engines_do_not_fit() -> None:
    verdict = planned("sharegpt", gpus=8, model="deepseek-r1").verdict
    assert verdict.answer == "do not split"
    assert verdict.apart is None
    assert "hold no prefill engine beside a decode engine" in verdict.because


@pytest.mark.parametrize(
    ("low", "gain", "high", "answer"),
    [
        (1.2, 1.5, 1.9, "split"),
        (0.9, 1.5, 2.1, "measure first"),
        (1.01, 1.05, 1.1, "do not split"),
        (0.5, 0.9, 1.4, "do not split"),
    ],
)
def test_a_gain_counts_when_it_is_sure_and_worth_it(low: float, gain: float, high: float, answer: str) -> None:
    assert _judged(low, gain, high)[0] == answer


def test_what_was_calibrated_is_surer_and_the_same_every_time() -> None:
    options = [choice.option for choice in long_prompts().choices]

    def width(spread: float) -> float:
        changed = []
        for option in options:
            question = replace(option.scheme.question, calibration=Calibration(spread=spread))
            changed.append(replace(option, scheme=replace(option.scheme, question=question)))
        verdict = verdict_on(changed)
        assert verdict.low is not None
        assert verdict.high is not None
        return verdict.high / verdict.low

    assert width(0.05) < width(0.4)
    assert width(0.4) == width(0.4)


def test_only_one_way_that_keeps_the_limits_is_the_answer() -> None:
    options = [choice.option for choice in short_prompts().choices]
    apart = next(o for o in options if o.layout.disaggregated)
    together = next(o for o in options if not o.layout.disaggregated)
    late = replace(together.summary, slos=tuple(replace(s, limit_ms=0.001) for s in together.summary.slos))
    assert verdict_on([apart, replace(together, summary=late)]).answer == "split"
    assert verdict_on([together, replace(apart, summary=late)]).answer == "do not split"


def test_the_text_says_what_is_measured_and_what_is_composed() -> None:
    plan = long_prompts()
    said = verdict_text(plan)
    assert "split: " in said
    assert "nothing measured" in said
    known = replace(plan.question, calibration=Calibration(points=12, sources=("prefill.log", "decode.log")))
    said = verdict_text(replace(plan, question=known))
    assert "measured: 12 step times (prefill.log, decode.log)" in said
    assert "composed by the twin from them" in said


def test_the_command_prints_the_verdict_alone(capsys: pytest.CaptureFixture[str]) -> None:
    asked = {"model": "llama-8b", "gpu": "h200", "gpus_per_node": 2, "traffic": "fixed:4000:100"}
    plan_verb(**asked, slos=["itl_p99_ms=20", "ttft_p95_ms=1000"], verdict=True, as_json=True)
    assert set(json.loads(capsys.readouterr().out)) == {"answer", "because", "together", "apart", "gain", "interval"}


def test_studies_of_the_halves_are_written_and_sound(tmp_path: Path) -> None:
    write_plan(long_prompts(), tmp_path)
    for half, knob in (("prefill", "chunked_prefill_size"), ("decode", "max_running_requests")):
        checked = check_study(tmp_path / f"{half}-alone.yaml")
        assert checked.refusal(checked.study.baseline) is None
        assert checked.study.workload.options["alone"] == half
        assert knob in checked.study.baseline
    assert planned("sharegpt", gpus=8, model="deepseek-r1").halves == {}, "nothing to split"


def test_halves_measured_alone_are_composed_into_a_verdict(tmp_path: Path) -> None:
    """Of a real log: the steps of prompts as one run, those of decode as another."""
    lines = LOG.read_text().splitlines(keepends=True)
    for half, other in (("prefill", "Decode batch"), ("decode", "Prefill batch")):
        (tmp_path / f"{half}.log").write_text("".join(line for line in lines if other not in line))
    halves = [tmp_path / "prefill.log", tmp_path / "decode.log"]
    site = tmp_path / "site.json"
    write_calibration(calibrate(halves, model="llama-8b", gpu="h200").calibration, site)
    plan = answer_plan("llama-8b", "h200", 1, 2, "fixed:4000:100", slos=LIMITS, calibration=site)
    assert "step times (prefill.log, decode.log)" in verdict_text(plan)
    sure, guess = plan.verdict, long_prompts().verdict
    assert sure.low is not None
    assert sure.high is not None
    assert guess.low is not None
    assert guess.high is not None
    assert sure.high / sure.low < guess.high / guess.low, "what was measured is surer"
