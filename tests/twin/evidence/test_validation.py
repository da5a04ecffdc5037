"""How far a setting is from anything whose prediction was compared with a measurement, and what that does to bounds."""

from __future__ import annotations

import pytest

from ridgeline.serving.engines.deployment import describe
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.settings import EngineSettings, parse_engine
from ridgeline.serving.traffic.traffic import ClosedLoop, Fixed, Traffic
from ridgeline.serving.twin.reach import validated, validation
from ridgeline.serving.twin.simulate import simulate

ONE = Layout(gpus_per_node=1)


def here(model: str = "llama-8b", gpu: str = "h200", engine: str = "sglang:0.5.15", **settings: object):
    return describe(model, gpu, ONE, parse_engine(engine, EngineSettings(**settings)))


def test_a_setting_that_was_compared_adds_nothing() -> None:
    found = validation(here(), 100)
    assert (found.speed, found.first_token, found.line) == (0.0, 0.0, "")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (here(model="qwen2.5-7b"), "qwen2.5-7b (nearest: llama-8b)"),  # a mixture is as near by its widths
        (here(gpu="a100"), "A100 (nearest: H200)"),
        (here(engine="sglang:0.5.1"), "release 0.5.1 (nearest: 0.5.15)"),
        (here(draft_tokens=4), "drafting"),
    ],
)
def test_what_was_never_compared_is_named_and_widens_both(asked: object, said: str) -> None:
    found = validation(asked, 100)  # type: ignore[arg-type]
    assert said in found.line
    assert found.speed > 0
    assert found.first_token > 0


def test_the_farther_the_wider() -> None:
    model, both = validation(here(model="qwen2.5-7b"), 100), validation(here(model="qwen2.5-7b", gpu="a100"), 100)
    assert model.speed < both.speed
    assert model.first_token < both.first_token


def test_a_load_beyond_those_that_were_compared_is_another_regime() -> None:
    assert "4000 requests at once" in validation(here(), 4000).line


def test_without_the_evidence_of_its_model_a_setting_is_a_new_model() -> None:
    rest = [s for s in validated() if s.model != "llama-8b"]
    assert "llama-8b (nearest: " in validation(here(), 100, rest).line


def test_no_evidence_at_all_is_the_widest() -> None:
    nothing = validation(here(), 100, ())
    assert nothing.speed > validation(here(model="qwen2.5-7b", gpu="a100"), 100).speed


def test_bounds_of_an_answer_are_as_wide_as_its_evidence_is_far() -> None:
    load = Traffic(Fixed(500, 100), 64, ClosedLoop(32))
    near, far = (simulate(here(model=model), load) for model in ("llama-8b", "qwen2.5-7b"))
    for figure in ("itl_p50_ms", "ttft_p50_ms", "total_tok_s"):
        widths = [run.interval[figure][1] / run.interval[figure][0] for run in (near, far)]
        assert widths[0] < widths[1]
    assert near.reach == ""
    assert "never compared with a measurement: " in far.reach
    assert far.as_json()["reach"] == far.reach
