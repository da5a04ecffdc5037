"""One request on its way through simulated engines."""

from __future__ import annotations

from dataclasses import dataclass, field

from ridgeline.serving.engines.sglang.failures import BOOTSTRAP_LIMIT_S, KV_TRANSFER
from ridgeline.serving.traffic.requests import RequestRecord
from ridgeline.serving.traffic.texts import Text
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
    text: Text | None = None  # of what its prompt is the beginning, for the cache of the engine that has it
    kept_answer: int = 0  # tokens of its answer that its text goes on with, since it was sent back
    cached: int = 0  # prompt tokens that were there when it was taken on
    first_cached: int | None = None  # and when it was taken on for the first time
    first_from_host: int = 0
    from_host: int = 0  # of these, tokens that must be brought back from the host
    loaded_s: float = 0.0  # when they are there
    in_cache: int = 0  # prompt tokens that it reads in the cache, or has put there
    rank: int = 0  # of a prefill engine that computes its prompt
    reached_s: float = 0.0  # when the last part of its way to the first token ended, of split roles
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
    def text_tokens(self) -> int:
        """How much of its text it is: its prompt, and what of its answer can be found in a cache."""
        return self.arrival.input_tokens + self.kept_answer

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
            cached_tokens=self.first_cached or 0,
            host_tokens=self.first_from_host,
            error="" if ok else _NO_SLOT,
            worker=self.worker,
            session=a.session,
            turn=a.turn,
        )


class TooLate(Exception):  # noqa: N818  a verdict, not a malfunction
    """More first tokens came late than the limits allow, whatever the rest of the run brings."""


@dataclass(slots=True)
class FirstTokens:
    """Ends a run with `TooLate` when more than `most` requests have waited longer than `limit_ms` for theirs."""

    limit_ms: float
    most: float
    late: int = 0

    def seen(self, request: Request) -> None:
        ttft_s = (request.first_s or 0.0) + request.late_s + request.first_behind_s - request.sent_s
        if ttft_s * 1000.0 > self.limit_ms:
            self.late += 1
            if self.late > self.most:
                raise TooLate
