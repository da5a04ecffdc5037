"""What a verified step keeps where nobody says: by model and depth, and said in the answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ridgeline.errors import InputError
from ridgeline.serving.engines.behaviour import CURVES, AcceptanceCurve, parse_acceptance
from ridgeline.serving.engines.settings import _usual_accept_length
from ridgeline.serving.model.config import load_model
from ridgeline.serving.traffic.traffic import Fixed, Traffic
from ridgeline.serving.twin.simulate import simulate
from tests.twin import deployments as make


@pytest.mark.parametrize(
    ("name", "drafted", "kept"),
    [
        ("deepseek-r1", 0, 1.0),
        ("deepseek-r1", 1, 1.79),
        ("deepseek-r1", 3, 2.49),
        ("deepseek-v2-lite", 3, 1.0),
        ("qwen3.5-397b-a17b", 3, 3.39),
        ("kimi-k2.5", 8, 3.77),
        ("glm-5", 19, 4.06),
        ("llama-8b", 3, 1.0),
    ],
)
def test_the_measured_length_of_a_depth(name: str, drafted: int, kept: float) -> None:
    assert _usual_accept_length(load_model(name), drafted) == kept


@pytest.mark.parametrize("curve", CURVES, ids=lambda curve: curve.name)
def test_a_curve_never_keeps_more_than_was_drafted(curve: AcceptanceCurve) -> None:
    assert all(1 < kept <= drafted + 1 for drafted, kept in enumerate(curve.kept, 1)) and len(curve.kept) == 8


@pytest.mark.parametrize(
    ("said", "drafted", "kept"),
    [
        (2.4, 3, 2.4),
        ("2.4", 2, 2.4),
        ([1.8, 2.3], 1, 1.8),
        ([1.8, 2.3], 5, 2.3),  # deeper than what was measured: no more than that
        ("glm-5.2", 3, 2.99),
        ("minimax-m3:no-thinking", 1, 1.84),
        ("glm-5.2", 0, 1.0),
    ],
)
def test_what_a_study_may_say_of_drafts(said: object, drafted: int, kept: float) -> None:
    assert parse_acceptance(said).length(drafted) == kept


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (0.5, "keeps at least 1"),
        (float("nan"), "keeps at least 1"),
        (float("inf"), "keeps at least 1"),
        (True, "no accept length"),
        ([], "an empty list"),
        ([1.8, 3.5], "of 2 drafted tokens at most 3"),
        ([2.5], "of 1 drafted tokens at most 2"),
        ("glm-5.3", "did you mean glm-5.2"),
        ({"a": 1}, "no accept length"),
    ],
)
def test_what_is_no_accept_length_is_refused(said: object, why: str) -> None:
    with pytest.raises(InputError, match=why):
        parse_acceptance(said)


def test_more_than_is_drafted_cannot_be_kept() -> None:
    with pytest.raises(InputError, match="needs at least 2 drafted tokens, this setting drafts 1"):
        parse_acceptance(2.4).length(1)


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
    assert "no draft of" in unknown.assumed[0] and "an accept length says" in unknown.assumed[0]
