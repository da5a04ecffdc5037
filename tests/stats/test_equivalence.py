"""Equivalence: a setting beyond the margin is called equivalent in at most 5% of campaigns; few runs stay undecided."""

from __future__ import annotations

import math
import random

import pytest

from ridgeline.stats.compare import Block
from ridgeline.stats.equivalence import equivalence, looks, share_left
from ridgeline.stats.verdict import FEWEST_BLOCKS


def campaign(
    rng: random.Random, true: dict[str, float], blocks: int, noise: float = 0.005, nodes: int = 1
) -> list[Block]:
    """Two runs of each setting in every block; `true` are log effects."""

    def runs(effect: float) -> tuple[float, ...]:
        return tuple(100 * math.exp(effect + rng.gauss(0, noise)) for _ in range(2))

    return [
        Block(number, (f"n{number % nodes}",), runs(0.0), {name: runs(effect) for name, effect in true.items()})
        for number in range(blocks)
    ]


def test_settings_without_an_effect_are_equivalent() -> None:
    true = {f"s{at}": 0.0 for at in range(24)}
    found = equivalence(campaign(random.Random(1), true, 12), 0.015)
    assert found.holds
    assert found.correction == "95%, corrected for 24 comparisons"
    assert found.ruled_out is not None and found.ruled_out < 0.015


def test_a_setting_beyond_the_margin_is_rarely_called_equivalent() -> None:
    """The worst case: 24 settings just beyond it on either side, in campaigns of 5 and of 10 blocks."""
    rng, wrong, campaigns = random.Random(2), 0, 120
    for at in range(campaigns):
        true = {f"s{n}": math.log(1.0151) * (1 if n % 2 else -1) for n in range(24)}
        found = equivalence(campaign(rng, true, 5 if at % 2 else 10, noise=0.004), 0.015)
        wrong += any(test.decision == "equivalent" for test in found.tests)
    assert wrong / campaigns <= 0.05


def test_one_setting_beyond_the_margin_does_not_hide_among_others() -> None:
    true = {f"s{n}": 0.0 for n in range(9)} | {"other": math.log(1.04)}
    found = equivalence(campaign(random.Random(3), true, 10, noise=0.003), 0.015)
    assert [test.candidate for test in found.undecided] == ["other"]
    assert not found.holds
    assert "4.0% better, beyond the margin" in found.undecided[0].why or "beyond" in found.undecided[0].why


def test_too_few_blocks_are_undecided_and_say_so() -> None:
    blocks = campaign(random.Random(4), {"a": 0.0, "b": 0.0}, 6, noise=0.0005)
    short = [
        Block(b.number, b.nodes, b.baseline, {"a": b.candidates["a"], "b": b.candidates["b"] if b.number < 2 else ()})
        for b in blocks
    ]
    found = equivalence(short, 0.015)
    assert {test.candidate: test.decision for test in found.tests} == {"a": "equivalent", "b": "undecided"}
    assert found.undecided[0].why == f"2 blocks, {FEWEST_BLOCKS} are needed"
    assert found.ruled_out is None


def test_noise_says_how_many_blocks_would_decide() -> None:
    found = equivalence(campaign(random.Random(5), {"a": 0.0}, 4, noise=0.03), 0.015)
    (test,) = found.undecided
    assert test.blocks_needed is not None and test.blocks_needed > 4
    assert f"about {test.blocks_needed} would decide" in test.why


def test_the_looks_of_a_campaign_share_the_error() -> None:
    for planned in range(1, 40):
        spent = looks(planned)
        assert all(FEWEST_BLOCKS <= after < planned for after in spent)
        assert math.fsum(spent.values()) + share_left(planned, planned) == pytest.approx(1.0)
        assert share_left(planned, planned) >= 0.5
    assert looks(12) == {6: 0.25, 9: 0.25}
    assert share_left(12, 8) == 0.75


def test_stopping_at_the_first_look_that_pleases_keeps_the_error() -> None:
    """One setting just beyond the margin; the campaign stops at whatever look calls it equivalent."""
    rng, wrong, campaigns, planned = random.Random(6), 0, 400, 12
    for _ in range(campaigns):
        blocks = campaign(rng, {"a": math.log(1.0151)}, planned, noise=0.004)
        shares = {**looks(planned), planned: share_left(planned, planned)}
        wrong += any(equivalence(blocks[:n], 0.015, share=share).holds for n, share in shares.items())
    assert wrong / campaigns <= 0.05


def test_the_same_value_in_every_run_needs_no_spread() -> None:
    same = [Block(n, (), (100.0, 100.0), {"a": (100.0, 100.0), "b": (103.0, 103.0)}) for n in range(3)]
    found = equivalence(same, 0.015)
    assert {test.candidate: test.decision for test in found.tests} == {"a": "equivalent", "b": "undecided"}


def test_values_that_are_not_positive_have_no_percent() -> None:
    found = equivalence([Block(n, (), (-1.0,), {"a": (-1.0,)}) for n in range(4)], 0.015)
    assert "not positive" in found.undecided[0].why


def test_a_margin_is_a_share() -> None:
    with pytest.raises(ValueError, match=r"0\.015 for 1\.5%"):
        equivalence([], 1.5)
