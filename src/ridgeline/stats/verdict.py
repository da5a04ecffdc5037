"""What a comparison with the baseline says, as an object that can be printed, stored and drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from ridgeline.stats.wording import MetricText, count, decimals, effect_text, percent_range, ratio_range

FEWEST_BLOCKS = 3  # with two, the t-interval is 12.7 standard errors wide on each side: nothing real could show

Scale = Literal["ratio", "difference"]
_ANY_METRIC = MetricText()


class Verdict(StrEnum):
    BETTER = "better"
    WORSE = "worse"
    NO_DIFFERENCE = "no detectable difference"
    TOO_FEW_BLOCKS = "too few blocks"


@dataclass(frozen=True, slots=True)
class Block:
    """Runs of one interleaved block, all on the same nodes. A setting that failed there has no values."""

    number: int
    nodes: tuple[str, ...]
    baseline: Sequence[float]
    candidates: Mapping[str, Sequence[float]]
    opening: tuple[float, float] | None = None  # its first run, and the last one of the same setting
    order: tuple[str | None, ...] = ()  # which setting each run was of, None for the baseline; empty: not written down


@dataclass(frozen=True, slots=True)
class FirstRunEffect:
    """What the first runs of blocks measured against the last ones of the same settings there, as a change of speed."""

    change: float
    low: float
    high: float
    blocks: int

    def __str__(self) -> str:
        word = "slower" if self.change < 0 else "faster"
        return (
            f"the first run of a block was {abs(self.change):.1%} {word} than the last of the same setting "
            f"({percent_range(self.low, self.high)}, {count(self.blocks, 'block')})"
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """One candidate against the baseline, oriented so that better is above 1 (ratio) or above 0 (difference).

    `estimate`, `low` and `high` are ratios when `scale` is ratio, else differences in the metric's unit; None where
    there is too little to say. `p_value` is adjusted for the number of candidates, `among`. `spread` is the standard
    deviation of the block effects (of logs for ratios). `smallest_effect` is the change, as a fraction of 1 or in the
    metric's unit, that this many blocks (at least three) would show in four of five campaigns.
    """

    candidate: str
    verdict: Verdict
    scale: Scale
    estimate: float | None
    low: float | None
    high: float | None
    level: float
    blocks: int
    among: int
    p_value: float
    spread: float | None
    smallest_effect: float | None
    notes: tuple[str, ...] = ()
    nodes: int = 0  # nodes, or sets of them, that its blocks were on; 0: nobody wrote it down
    here: tuple[float, float] | None = None  # the interval of these few nodes alone, where nothing is shown of others
    nodes_needed: int | None = None  # with a block on each, to show an effect as large as the estimate
    only_here: bool = False  # the verdict is about these few nodes, which are alike: nothing is shown of others

    @property
    def ratio(self) -> float | None:
        return self.estimate if self.scale == "ratio" else None

    @property
    def on_these_nodes(self) -> str:
        """'; on these 2 nodes alone +2.1% to +4.0%: about 5 nodes, a block on each, would show it for others too'."""
        none = 1.0 if self.scale == "ratio" else 0.0
        if self.here is None or self.here[0] <= none <= self.here[1]:
            return ""
        low, high = self.here
        shown = percent_range(low - 1, high - 1) if self.scale == "ratio" else f"{low:+.2g} to {high:+.2g}"
        text = f"; on these {self.nodes} nodes alone {shown}"
        if self.nodes_needed is None:
            return f"{text}, too different from node to node to say it of others"
        return f"{text}; about {self.nodes_needed} nodes, a block on each, would show it for others too"

    def __str__(self) -> str:
        return self.text()

    def text(self, where: str = "", than: str = "baseline", goal: MetricText = _ANY_METRIC) -> str:
        """`where` says on what the blocks ran, such as 'on 2 node pairs'; `than` is what it was compared with."""
        blocks = self.blocks_text(where)
        if self.verdict is Verdict.TOO_FEW_BLOCKS or self.estimate is None or self.low is None or self.high is None:
            return self._refusal(blocks)
        if self.verdict is Verdict.NO_DIFFERENCE:
            if self.low == self.high:
                return f"no detectable difference (the same in {blocks})"
            if self.scale == "ratio":
                return f"no detectable difference ({goal.range(self.low - 1, self.high - 1)})"
            return f"no detectable difference ({self._ends()})"
        level = f"{self.level * 100:g}%"
        if self.only_here:
            blocks += ", shown for these alone"
        if self.scale == "ratio":
            estimate, interval = ratio_range(self.estimate, self.low, self.high)
            ratio = goal.ratio_to(estimate, than)
            if self.low == self.high:
                return f"{ratio} (the same in {blocks})"
            return f"{ratio} ({level}: {interval}; {blocks})"
        size = f"{abs(self.estimate):.{decimals(self.high - self.low, 1)}f}"
        return f"{self.verdict} than {than} by {size} ({level}: {self._ends()}; {blocks})"

    def _ends(self) -> str:
        assert self.low is not None and self.high is not None
        places = decimals(self.high - self.low, 1)
        return f"{self.low:+.{places}f} to {self.high:+.{places}f}"

    def blocks_text(self, where: str) -> str:
        """'5 blocks on 2 nodes'."""
        return f"{count(self.blocks, 'block')} {where}".strip()

    @property
    def effect_shown(self) -> str:
        """`smallest_effect` as it is written; not where that is unknown, or no noise was seen."""
        effect = self.smallest_effect or 0.0
        return f"{effect:.2g}" if self.scale == "difference" else effect_text(effect)

    def _refusal(self, blocks: str) -> str:
        text = f"no verdict: {blocks}, {FEWEST_BLOCKS} are needed"
        if not self.smallest_effect:
            return text
        return f"{text}; with the noise seen, {FEWEST_BLOCKS} could show a difference of {self.effect_shown} or more"


@dataclass(frozen=True, slots=True)
class Confirmation:
    """`winner` is the best candidate shown to be better than the baseline; None when there is none."""

    winner: str | None
    comparisons: Mapping[str, Comparison]
    level: float
    headline: str

    @property
    def confirmed(self) -> bool:
        return self.winner is not None

    def __str__(self) -> str:
        return self.headline
