"""Whether a setting kept the baseline's accuracy is decided with the stated chance of error, early where it can be."""

from __future__ import annotations

import random

import pytest

from ridgeline.stats.accuracy import AccuracyChange, accuracy_change, looks, questions_needed

ALLOWED = 0.02


def examined(total: int, differing: float, loss: float, chance: random.Random) -> AccuracyChange:
    """Questions in turn, of which `differing` change their answer and `loss` net get worse."""
    broken = fixed = asked = 0
    found = None
    for end in looks(total):
        while asked < end:
            asked += 1
            drawn = chance.random()
            broken += drawn < (differing + loss) / 2
            fixed += (differing + loss) / 2 <= drawn < differing
        found = accuracy_change(asked, broken, fixed, total, ALLOWED)
        if found.decision != "open":
            break
    assert found is not None
    return found


@pytest.mark.parametrize("differing", [0.03, 0.06, 0.1])
def test_a_setting_that_loses_more_than_allowed_hardly_ever_passes(differing: float) -> None:
    chance = random.Random(7)
    found = [examined(1319, differing, 0.0225, chance) for _ in range(1000)]
    assert sum(one.decision == "kept" for one in found) <= 50


def test_an_equal_setting_passes_and_needs_fewer_questions_the_less_it_changes() -> None:
    chance, asked = random.Random(8), {}
    for differing in (0.0, 0.01, 0.02, 0.05):
        found = [examined(questions_needed(ALLOWED, differing), differing, 0.0, chance) for _ in range(400)]
        assert sum(one.decision == "kept" for one in found) >= 0.94 * 400
        asked[differing] = sum(one.asked for one in found) / 400
    assert asked[0.05] > 1.5 * asked[0.0]
    assert asked[0.05] < 0.85 * questions_needed(ALLOWED, 0.05), "most are decided before the last question"


def test_a_setting_that_answers_nothing_right_is_refused_at_the_first_look() -> None:
    first = looks(1000)[0]
    found = accuracy_change(first, broken=first, fixed=0, total=1000, allowed=ALLOWED)
    assert found.decision == "lost" and found.change == -1.0
    assert found.high < -ALLOWED


@pytest.mark.parametrize("total", [1, 49, 50, 99, 100, 101, 1319, 10_000])
def test_looks_rise_to_the_last_question(total: int) -> None:
    found = looks(total)
    assert found == sorted({*found}) and found[-1] == total
    assert found[0] >= min(50, total)


def test_no_more_can_be_lost_than_there_is() -> None:
    found = accuracy_change(50, broken=50, fixed=0, total=200, allowed=0.1)
    assert (found.decision, found.low) == ("lost", -1.0)
    assert accuracy_change(50, broken=0, fixed=50, total=200, allowed=0.1).high == 1.0
