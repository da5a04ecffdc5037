"""What a verified step keeps where nobody says: by model and depth, and said in the answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ridgeline.serving.engines.settings import _usual_accept_length
from ridgeline.serving.model.config import load_model
from ridgeline.serving.traffic.traffic import Fixed, Traffic
from ridgeline.serving.twin.simulate import simulate
from tests.twin import deployments as make


@pytest.mark.parametrize(
    ("name", "draft_tokens", "kept"),
    [
        ("deepseek-r1", 1, 1.0),
        ("deepseek-r1", 2, 1.79),
        ("deepseek-r1", 4, 2.49),
        ("deepseek-v2-lite", 4, 1.0),
        ("qwen3.5-397b-a17b", 4, 3.39),
        ("kimi-k2.5", 9, 3.77),
        ("glm-5", 20, 4.06),
        ("llama-8b", 4, 1.0),
    ],
)
def test_the_measured_length_of_a_depth(name: str, draft_tokens: int, kept: float) -> None:
    assert _usual_accept_length(load_model(name), draft_tokens) == kept


def test_an_answer_says_what_it_assumes_and_what_is_given_goes_first() -> None:
    sent = Traffic(Fixed(100, 60), 8)
    model = replace(make.llama().model, name="deepseek-r1")
    plain, assumed, given = (
        simulate(replace(make.llama(**settings), model=model), sent)
        for settings in ({}, {"draft_tokens": 4}, {"draft_tokens": 4, "accept_length": 1.0})
    )
    assert plain.assumed == given.assumed == ()
    assert assumed.assumed[0].startswith("2.49 of 4 verified tokens are kept, as DeepSeek-V4-Pro's MTP layer did")
    assert assumed.summary.duration_s < plain.summary.duration_s < given.summary.duration_s
    unknown = simulate(make.llama(draft_tokens=4), sent)
    assert "no draft of" in unknown.assumed[0] and "--accept-length" in unknown.assumed[0]
