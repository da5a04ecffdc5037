"""What a run says of its nodes, and what all of them say of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ridgeline.records.expression import Value
from ridgeline.stats.wording import count

FEWEST_RUNS = 3  # on a node, and on its peers, before anything is said about it


@dataclass(frozen=True, slots=True)
class NodeRun:
    """One run: its setting, where it was, and what it measured (`value` is positive).

    `point` is what the setting changes, `place` its number in the order of all runs; without them a setting that ran
    once tells nothing, and the machine is taken for steady.
    """

    setting: str
    nodes: tuple[str, ...]
    value: float
    point: tuple[tuple[str, Value], ...] = ()
    place: int = 0


@dataclass(frozen=True, slots=True)
class NodeEffect:
    """`speed` is that of jobs on the node over those on its peers alone: 0.91 is 9% slower. `verdict` is undecided
    where runs are too few or where nodes were only used together (`together` are the others).

    `chance` is that of the node being slow, of even odds before any run. `likely` is the speed pulled toward 1 by the
    doubt that is left: what values are corrected by. `repeated` counts the runs there of settings that also ran
    elsewhere.
    """

    node: str
    verdict: Literal["slow", "fast", "usual", "undecided"]
    speed: float | None
    low: float | None
    high: float | None
    level: float
    runs: int
    likely: float | None = None
    repeated: int = 0
    chance: float = 0.0
    together: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.speed is None or self.low is None or self.high is None:
            return f"node {self.node}: too little to judge ({count(self.runs, 'run')})"
        if self.verdict == "usual":
            low, high = (self.low - 1) * 100, (self.high - 1) * 100
            return f"node {self.node} is like its peers ({low:+.1f}% to {high:+.1f}%)"
        word = "slower" if self.verdict == "slow" else "faster"
        ends = sorted(abs(1 - end) * 100 for end in (self.low, self.high))
        return (
            f"node {self.node} is {abs(1 - self.speed) * 100:.0f}% {word} than its peers"
            f" ({self.level * 100:g}%: {ends[0]:.0f} to {ends[1]:.0f})"
        )

    @property
    def evidence(self) -> str:
        """'7 runs there, 3 of settings that also ran elsewhere'."""
        return f"{count(self.runs, 'run')} there, {self.repeated} of settings that also ran elsewhere"
