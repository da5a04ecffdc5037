"""What a plan proposes first, and what it says of it."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.settings import EngineSettings
from ridgeline.serving.hardware.cluster import make_cluster
from ridgeline.serving.model.config import load_model
from ridgeline.serving.planner.candidates import PlanQuestion, make_unit
from ridgeline.serving.planner.operating_point import _beats
from ridgeline.serving.planner.planner import _without_doubtful_splits, answer_plan
from ridgeline.serving.planner.scheme import Pair, Scheme
from ridgeline.serving.planner.verdict import SplitVerdict
from ridgeline.serving.service.from_results import printed
from ridgeline.serving.twin.calibration import Calibration, ValidatedSetting, write_calibration
from ridgeline.serving.verbs.plan import plan_text


def test_a_plan_says_how_far_its_calibration_holds(tmp_path: Path) -> None:
    model, cluster = load_model("llama-8b"), make_cluster("h100", 1, 1)
    home = Deployment(model, cluster, Layout(gpus_per_node=1), EngineSettings(version=(0, 4, 10)))
    site = Calibration(points=3, spread=0.05, scope=(ValidatedSetting.of(home, 1, 400),))
    write_calibration(site, tmp_path / "site.json")
    asked = {"requests": 40, "concurrency": 8, "calibration": tmp_path / "site.json"}
    found = answer_plan("llama-8b", "h100", 1, 1, "fixed:100:10", **asked)
    assert "calibration of #1: less than where it was calibrated" in plan_text(found)
    assert "release 0.5.23, not 0.4.10" in found.as_json()["plans"][0]["reach"]


def test_chunks_are_mixed_into_decode_steps_where_that_keeps_more() -> None:
    found = answer_plan("llama-8b", "h100", 1, 1, "fixed:512:128", rate_s=15, slos=["itl_p95_ms=30"])
    (choice,) = found.choices
    assert choice.option.scheme.main.settings.mixed_chunk
    assert "--enable-mixed-chunk" in str(printed(choice).commands[0])
    assert "enable_mixed_chunk: [true]" in choice.study
    assert printed(choice).lint.ok
    assert "mixed" in plan_text(found)


def test_energy_is_stated_for_every_choice() -> None:
    found = answer_plan("llama-8b", "h100", 1, 1, "fixed:100:10", concurrency=8, requests=40)
    assert "J/token" in plan_text(found)
    assert found.as_json()["plans"][0]["costs"]


def option(gpu: str, split: bool) -> SimpleNamespace:
    question = SimpleNamespace(cluster=make_cluster(gpu, 1, 8))
    shape = object.__new__(Pair) if split else None
    return SimpleNamespace(scheme=SimpleNamespace(question=question, shape=shape))


@pytest.mark.parametrize(
    ("gpu", "answer", "first"),
    [("l40s", "measure first", "together"), ("l40s", "split", "apart"), ("h100", "measure first", "apart")],
)
def test_over_pcie_a_split_must_be_clearly_better_to_come_first(gpu: str, answer: str, first: str) -> None:
    apart, together = option(gpu, split=True), option(gpu, split=False)
    verdict = SplitVerdict(answer, "", together, apart)  # type: ignore[arg-type]
    ranked = _without_doubtful_splits([apart, together], verdict)  # type: ignore[list-item]
    assert ranked[0] is {"together": together, "apart": apart}[first]
    assert len(ranked) == 2


@pytest.mark.parametrize(
    ("tried_copies", "times_its_bound", "beaten"),
    [(4, 1.2, True), (4, 0.5, False), (1, 1.2, False)],
    ids=["half of it serves more", "half of it serves less", "smaller, and a larger loss"],
)
def test_a_way_that_part_of_another_outdoes_is_not_simulated(
    tried_copies: int, times_its_bound: float, beaten: bool
) -> None:
    """Two engines of one GPU each, of four that were simulated, stand against two engines of one GPU."""
    cluster = make_cluster("h100", 1, 4)
    question = PlanQuestion(load_model("llama-8b"), cluster, 500, 100, (), EngineSettings(), Calibration())
    unit = make_unit(question, Layout(gpus_per_node=4), "both")
    assert unit is not None
    asked, simulated = Scheme(question, unit, 2), Scheme(question, unit, tried_copies)
    goodput_s = times_its_bound * simulated.bound_s
    option = SimpleNamespace(meets=True, scheme=simulated, goodput_s=goodput_s)
    assert _beats(option, asked, None) == beaten  # type: ignore[arg-type]


@pytest.mark.parametrize("limits", [[], ["ttft_p95_ms=1e9"]])
def test_a_rate_that_no_run_would_end_at_is_not_kept(limits: list[str]) -> None:
    """A run ends: where no limit shows its queue, the requests that it completes have to."""
    plan = answer_plan("llama-8b", "h200", 1, 1, "fixed:500:50", rate_s=5000, slos=limits)
    (best,) = plan.choices
    done_s = best.option.summary.requests_s
    assert not best.option.meets and not best.as_json()["keeps_up"]
    assert best.option.capacity_s == pytest.approx(done_s, rel=0.1)
    assert best.option.goodput_s <= best.option.capacity_s
    assert f"carries {best.option.capacity_s:,.4g} of 5,000 requests/s" in plan_text(plan)
    within = answer_plan("llama-8b", "h200", 1, 1, "fixed:500:50", rate_s=0.9 * best.option.capacity_s, slos=limits)
    assert within.choices[0].option.meets


def test_what_gpus_sustain_is_said_of_the_best_of_all_choices() -> None:
    asked = {"rate_s": 5000, "slos": ["ttft_p95_ms=500"]}
    able = [c.option.capacity_s or 0.0 for c in answer_plan("llama-8b", "h200", 1, 4, "fixed:1000:20", **asked).choices]
    assert len(able) > 1 and able == sorted(able, reverse=True)


@pytest.mark.parametrize("users", [1, 3])
def test_a_closed_loop_has_as_many_requests_at_once_as_were_asked_for(users: int) -> None:
    """By Little's law, however many copies of an engine there are."""
    for choice in answer_plan("llama-8b", "h200", 1, 4, "fixed:500:50", concurrency=users).choices:
        e2e_ms = choice.option.summary.e2e_ms
        assert e2e_ms and choice.option.requests_s * e2e_ms.mean / 1000 == pytest.approx(users, rel=0.05)


def test_one_request_keeps_one_engine_at_work() -> None:
    for choice in answer_plan("llama-8b", "h200", 1, 4, "fixed:500:50", requests=1).choices:
        assert choice.option.requests_s * choice.option.summary.duration_s == pytest.approx(1)


def test_ttft_takes_off_at_once_where_one_request_is_late() -> None:
    (best,) = answer_plan("llama-8b", "h200", 1, 1, "fixed:500:50", slos=["ttft_p95_ms=0.5"]).choices
    assert best.option.knee and best.option.knee.batch == 0


def test_a_plan_says_which_release_is_not_known_and_what_of_the_model_is_left_out() -> None:
    plan = answer_plan("deepseek-r1", "h200", 1, 8, "fixed:500:50", engine="vllm:99", requests=50, top=1)
    (newer,), (draft,) = plan.assumed, plan.question.model.notes
    assert newer.startswith("99 is newer than vLLM") and "prediction layer" in draft
    text = plan_text(plan)
    assert f"assumed: {newer}" in text and f"left out: {draft}" in text
    assert plan.as_json()["assumed"] == [newer] and plan.as_json()["notes"] == [draft]
