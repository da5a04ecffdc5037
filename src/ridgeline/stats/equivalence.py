"""Is a setting as good as the baseline, within a margin? The other question to the blocks that `compare.py` judges.

"No detectable difference" says that too little was measured to see one. Here the burden lies on the other side: a
setting counts as equivalent once a difference above the margin is ruled out, by two one-sided t-tests over the same
block effects and standard errors. Over several settings the p-values are adjusted by Holm's procedure, and over several
looks each spends a share of the error, so the chance that any setting beyond the margin is called equivalent stays at
1 - level or below. A setting without enough blocks, or whose interval reaches beyond the margin, is undecided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ridgeline.stats.compare import (
    POWER,
    PROTOCOL,
    Direction,
    PairedEffect,
    all_positive,
    holm,
    levelled,
    paired_effect,
)
from ridgeline.stats.student import t_quantile, two_sided_p
from ridgeline.stats.verdict import FEWEST_BLOCKS, Block
from ridgeline.stats.wording import count

_Decision = Literal["equivalent", "undecided"]
_EARLY_LOOKS = (0.5, 0.75)  # of the planned blocks, after which the campaign may stop
_EARLY_SHARE = 0.25  # of the error for each of them; the last look has the rest
_MOST_BLOCKS = 500  # beyond which a forecast is no plan any more
_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class EquivalenceTest:
    """One setting: its estimated ratio to the baseline (above 1 is better), and whether it lies within the margin.

    `p_value` is that of the two one-sided tests, adjusted for all settings that were looked at. `blocks_needed` is how
    many blocks would decide in four of five campaigns with the spread seen; None where it can't be estimated, or the
    estimate itself lies beyond the margin.
    """

    candidate: str
    decision: _Decision
    estimate: float | None
    p_value: float
    blocks: int
    why: str = ""  # it is undecided
    blocks_needed: int | None = None


@dataclass(frozen=True, slots=True)
class Equivalence:
    """All settings of a campaign against one margin (0.015 is 1.5%).

    `ruled_out` is the smallest margin with which each of them would still have been equivalent: differences above it
    are excluded. None where one is undecided.
    """

    margin: float
    level: float
    tests: tuple[EquivalenceTest, ...]
    ruled_out: float | None = None

    @property
    def holds(self) -> bool:
        return bool(self.tests) and all(test.decision == "equivalent" for test in self.tests)

    @property
    def undecided(self) -> tuple[EquivalenceTest, ...]:
        return tuple(test for test in self.tests if test.decision == "undecided")

    @property
    def correction(self) -> str:
        """'95%, corrected for 24 comparisons'."""
        looked_at = f", corrected for {len(self.tests)} comparisons" if len(self.tests) > 1 else ""
        return f"{self.level * 100:g}%{looked_at}"


def equivalence(
    blocks: Sequence[Block],
    margin: float,
    level: float = 0.95,
    direction: Direction = "maximize",
    *,
    share: float = 1.0,
    protocol: int = PROTOCOL,
) -> Equivalence:
    """Test every candidate named in `blocks`. Within the margin means: neither it nor the baseline is larger than the
    other by more than that. `share` is the part of the error that this look may spend, `protocol` that of the journal
    (`compare.py`)."""
    if not 0 < margin < 1:
        raise ValueError(f"the margin is {margin}; write a share between 0 and 1, such as 0.015 for 1.5%")
    names = list(dict.fromkeys(name for block in blocks for name in block.candidates))
    if not all_positive(blocks):
        why = "a value is not positive, so there is no difference in percent"
        return Equivalence(margin, level, tuple(EquivalenceTest(n, "undecided", None, 1.0, 0, why) for n in names))
    blocks = [levelled(block, "ratio") for block in blocks]
    effects = {name: paired_effect(blocks, name, "ratio", direction, protocol) for name in names}

    def adjusted(within: float) -> dict[str, float]:
        raw = {name: _tost_p(effects[name], within) for name in names}
        return holm({name: min(1.0, p / share) for name, p in raw.items()})

    p_values = adjusted(margin)
    alpha = 1 - level
    strict = alpha * share / max(1, len(names))
    tests = tuple(_judged(name, effects[name], p_values[name], margin, alpha, strict) for name in names)
    found = Equivalence(margin, level, tests)
    if not found.holds:
        return found
    low, high = 0.0, margin
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (low, middle) if max(adjusted(middle).values()) <= alpha else (middle, high)
    return replace(found, ruled_out=high)


def looks(planned: int) -> dict[int, float]:
    """After how many blocks a campaign of so many may stop, and the share of the error that each look spends.

    The last one, whenever it is, has what the earlier ones left (`share_left`).
    """
    after = dict.fromkeys(math.ceil(planned * part) for part in _EARLY_LOOKS)
    return {blocks: _EARLY_SHARE for blocks in after if FEWEST_BLOCKS <= blocks < planned}


def share_left(planned: int, blocks: int) -> float:
    """What the last look may spend that comes after so many blocks."""
    return 1 - math.fsum(share for after, share in looks(planned).items() if after <= blocks)


def _tost_p(found: PairedEffect, margin: float) -> float:
    """The larger p-value of the two one-sided tests: that the effect lies beyond the margin on either side."""
    if found.blocks < FEWEST_BLOCKS:
        return 1.0
    room = math.log1p(margin) - abs(found.mean)
    if found.constant:
        return 0.0 if room >= 0 else 1.0
    tail = two_sided_p(room / found.error, found.freedom) / 2
    return tail if room >= 0 else 1 - tail


def _judged(
    name: str, found: PairedEffect, p_value: float, margin: float, alpha: float, strict: float
) -> EquivalenceTest:
    estimate = math.exp(found.mean) if found.blocks else None
    if p_value <= alpha:
        return EquivalenceTest(name, "equivalent", estimate, p_value, found.blocks)
    needed, room = None, math.log1p(margin) - abs(found.mean)
    if found.blocks < FEWEST_BLOCKS:
        why = f"{count(found.blocks, 'block')}, {FEWEST_BLOCKS} are needed"
    elif room <= 0:
        why = f"looks {abs(math.expm1(found.mean)):.1%} {'better' if found.mean > 0 else 'worse'}, beyond the margin"
    elif found.few_places:
        # more blocks on the same nodes would not do: each node is one number
        nodes = _blocks_needed(found.each, room, found.places, strict)
        why = f"{found.places} nodes are too few" + ("" if nodes is None else f"; about {nodes} would decide")
    else:
        needed = _blocks_needed(found.spread, room, found.blocks, strict)
        why = f"too noisy for {count(found.blocks, 'block')}" + (
            "" if needed is None else f"; about {needed} would decide"
        )
    return EquivalenceTest(name, "undecided", estimate, p_value, found.blocks, why, needed)


def _blocks_needed(spread: float, room: float, blocks: int, alpha: float) -> int | None:
    needed = blocks + 1
    for _ in range(_ROUNDS):  # the quantiles depend on the answer, but little
        reach = t_quantile(1 - alpha, needed - 1) + t_quantile(POWER, needed - 1)
        if (wanted := (reach * spread / room) ** 2) > _MOST_BLOCKS:
            return None
        needed = max(blocks + 1, math.ceil(wanted))
    return needed
