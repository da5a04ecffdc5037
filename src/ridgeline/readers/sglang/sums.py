"""What an SGLang log of any length comes to, once it was summed up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ridgeline.readers.served import ServedTally
from ridgeline.readers.sglang.facts import KvPool, Limits, OfflineResult


@dataclass(slots=True)
class PrefillStretch:
    """Full prefill chunks in a row, with requests running and no decode line between."""

    chunks: int = 0
    first_line: int = 0
    last_line: int = 0
    first_s: float | None = None
    last_s: float | None = None
    running: int = 0


@dataclass(slots=True)
class PromptTokens:
    new: int = 0
    cached: int = 0
    most_cached: int = 0


@dataclass(slots=True)
class KvOnItsWay:
    """Batch lines of a split server that tell how many requests have their KV under way, and those with many."""

    lines: int = 0
    many: int = 0
    most: int = 0


@dataclass(slots=True)
class SglangTally:
    """All that a log said. `quotes` are lines worth showing: name -> line number and text.

    What the measured part is summed from begins anew at the benchmark mark: the warm-up does not count.
    """

    served: ServedTally = field(default_factory=ServedTally)
    prompts: PromptTokens = field(default_factory=PromptTokens)
    longest: PrefillStretch = field(default_factory=PrefillStretch)
    fetching: KvOnItsWay = field(default_factory=KvOnItsWay)
    unsent: KvOnItsWay = field(default_factory=KvOnItsWay)
    quotes: dict[str, tuple[int, str]] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)
    settings_complete: bool = False
    limits: Limits | None = None
    cap: int | None = None
    pool: KvPool | None = None
    weights_bytes: int | None = None
    largest_graph: int | None = None
    least_beyond: int = 0
    most_beyond: int = 0
    capped_kv_share: float = 0.0
    retracted: int = 0
    retractions: int = 0
    late_compiles: int = 0
    measuring: bool = False
    failures: dict[tuple[str, bool], int] = field(default_factory=dict)
    exceptions: int = 0
    last_work_line: int = 0
    stop_line: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    result: OfflineResult | None = None

    def texts(self) -> dict[int, str]:
        """The quoted lines by their number."""
        return dict(self.quotes.values())

    def line(self, name: str) -> int:
        """The number of a quoted line; 0 where the log has none."""
        return self.quotes.get(name, (0, ""))[0]

    @property
    def cached_token_share(self) -> float | None:
        prompt = self.prompts.new + self.prompts.cached
        return self.prompts.cached / prompt if prompt else None
