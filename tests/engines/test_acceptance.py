"""What a verified step keeps where nobody says: by model and depth, and said in the answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ridgeline.errors import InputError
from ridgeline.records.expression import Value
from ridgeline.serving.engines.behaviour import CURVES, AcceptanceCurve, Drafting, parse_acceptance
from ridgeline.serving.engines.settings import _usual_accept_length, drafting_of, settings_of
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
        ("1.8,2.3", 2, 2.3),
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


@pytest.mark.parametrize(
    ("values", "drafting"),
    [
        ({"speculative_algorithm": "EAGLE"}, Drafting(4, 3, 1, 3)),
        ({"speculative_algorithm": "EAGLE", "speculative_num_steps": 2, "speculative_eagle_topk": 1,
          "speculative_num_draft_tokens": 8}, Drafting(3, 2, 1, 2)),  # "adjusted to speculative_num_steps + 1"
        ({"speculative_algorithm": "EAGLE3", "speculative_num_steps": 3, "speculative_eagle_topk": 4,
          "speculative_num_draft_tokens": 16}, Drafting(16, 3, 4, 3)),
        ({"speculative_algorithm": "NGRAM"}, Drafting(12, 0, 1, 11)),
        ({"speculative_algorithm": "DFLASH"}, Drafting(16, 1, 1, 15)),
        ({"speculative_algorithm": "DFLASH", "speculative_num_steps": 1, "speculative_eagle_topk": 1,
          "speculative_num_draft_tokens": 8}, Drafting(8, 1, 1, 7)),  # its one step drafts all of a block
        ({"speculative_algorithm": "DFLASH", "speculative_dflash_block_size": 12}, Drafting(12, 1, 1, 11)),
        ({"speculative_algorithm": "DSPARK"}, Drafting(8, 1, 1, 7)),
        ({"speculative_algorithm": "DSPARK", "speculative_dspark_block_size": 5}, Drafting(6, 1, 1, 5)),
        ({"speculative_num_steps": 3, "speculative_num_draft_tokens": 4}, Drafting()),
        ({"speculative_config": '{"method": "mtp", "num_speculative_tokens": 2}'}, Drafting(3, 2, 1, 2)),
        ({"speculative_config": '{"method": "mtp", "model": "/m"}'}, Drafting(2, 1, 1, 1)),  # as many as it has layers
        ({"speculative_config": '{"method": "mtp", "num_speculative_tokens": "2"}'}, Drafting(3, 2, 1, 2)),
        ({"speculative_config": '{"method": "ngram", "num_speculative_tokens": 4}'}, Drafting(5, 0, 1, 4)),
        ({"speculative_config": "null"}, Drafting()),
        ({"speculative_algorithm": "ngram", "speculative_num_steps": 4}, Drafting(5, 0, 1, 4)),  # --spec-tokens 4
    ],
    ids=str,
)  # fmt: skip
def test_what_an_engine_drafts_where_numbers_are_left_to_it(values: dict[str, Value], drafting: Drafting) -> None:
    assert drafting_of(values) == settings_of(values).drafting == drafting


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
