"""One request on its way through simulated engines."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from ridgeline.serving.engines.sglang.failures import BOOTSTRAP_LIMIT_S, KV_TRANSFER
from ridgeline.serving.traffic.requests import RequestRecord
from ridgeline.serving.traffic.traces import PREFIX_BLOCK_TOKENS
from ridgeline.serving.traffic.traffic import Arrival
from ridgeline.serving.twin.gaps import DecodeRuns, RequestGaps

_NO_SLOT = f"{KV_TRANSFER}: no decode slot within {BOOTSTRAP_LIMIT_S:g} s, still in KVPoll.Bootstrapping"


@dataclass(slots=True, eq=False)
class Request:
    """What an engine must know of a request, and what it leaves behind for the record."""

    arrival: Arrival
    sent_s: float
    todo: int  # prompt tokens still to compute
    worker: str = ""
    cached: int = 0
    rank: int = 0  # of a prefill engine that computes its prompt
    held: int = 0  # KV tokens held when the current stay in the batch began
    generated: int = 0  # tokens made before the current stay in the batch
    joined_step: int = 0
    joined_s: float = 0.0
    last_token_s: float = 0.0  # known when it leaves the batch, at its end or to be computed again
    first_s: float | None = None
    end_s: float | None = None
    last_piece: int = 0
    failure: str = ""
    late_s: float = 0.0  # by how much the user sees its tokens later than the engine makes them
    # and how much more where tokens pile up before they are sent: of the first token, and of the last
    first_behind_s: float = 0.0
    end_behind_s: float = 0.0
    # stays in the running batch: when it began, first run, run after the last
    stays: list[tuple[float, int, int]] = field(default_factory=list)
    runs: DecodeRuns | None = None

    @property
    def remaining(self) -> int:
        return self.arrival.output_tokens - self.generated

    @property
    def seen_end_s(self) -> float:
        """When the user has the last token."""
        return (self.end_s or 0.0) + self.late_s + self.end_behind_s

    def record(self) -> RequestRecord:
        """What a client would have seen of it, once it has ended."""
        a, ok = self.arrival, not self.failure
        return RequestRecord(
            number=a.number,
            scheduled_s=self.sent_s,
            sent_s=self.sent_s,
            first_token_s=None if self.first_s is None else self.first_s + self.late_s + self.first_behind_s,
            end_s=None if self.end_s is None else self.seen_end_s,
            input_tokens=a.input_tokens,
            output_tokens=a.output_tokens if ok else 0,
            status=self.failure or "ok",
            gaps_s=RequestGaps(self.runs, self.stays, a.output_tokens) if ok else (),
            cached_tokens=self.cached,
            error="" if ok else _NO_SLOT,
            worker=self.worker,
        )


# What a radix cache remembers: which beginnings of prompts still have their KV on the GPU, oldest forgotten first.


class PrefixCache:
    """Blocks of `PREFIX_BLOCK_TOKENS` tokens by hash. A block is found only when all blocks before it are."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def clear(self) -> None:
        self._blocks.clear()

    def match(self, arrival: Arrival) -> int:
        """Tokens at the prompt's beginning whose KV is there. At least the last token is always computed."""
        found = 0
        for name in arrival.prefix_hashes:
            if name not in self._blocks:
                break
            self._blocks.move_to_end(name)
            found += 1
        return min(found * PREFIX_BLOCK_TOKENS, arrival.input_tokens - 1)

    def insert(self, arrival: Arrival, room_tokens: float) -> None:
        """Remembers the prompt and forgets the oldest blocks that no longer fit beside the running requests."""
        for name in arrival.prefix_hashes:
            self._blocks[name] = None
            self._blocks.move_to_end(name)
        room = max(0, int(room_tokens // PREFIX_BLOCK_TOKENS))
        while len(self._blocks) > room:
            self._blocks.popitem(last=False)
