"""Prompts computed apart from decoding: one queue for each attention-DP rank, one round for all of them.

SGLang's controller sends a request of a split deployment to the rank `bootstrap_room % ranks`, and the router draws
that number at random. So ranks get unequal shares, every round lasts as long as its fullest rank needs, and the last
prompt of a burst is one of the fullest rank's.
"""

from __future__ import annotations

from collections import deque

from ridgeline.serving.twin.prefixes import PrefixCache
from ridgeline.serving.twin.scheduler import Engine, Request
from ridgeline.serving.twin.steptime import StepTime

_WORD = 2**64 - 1


def room(number: int) -> int:
    """What the router draws for a request: even over ranks, without any pattern, and the same in every run."""
    mixed = (number + 1) * 0x9E3779B97F4A7C15 & _WORD
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _WORD
    return mixed ^ mixed >> 31


class PrefillEngine(Engine):
    """Computes prompts and nothing else: a request ends here with its first token."""

    def __init__(self, name: str, times: StepTime, pool_tokens: int) -> None:
        super().__init__(name, times, pool_tokens)
        ranks = times.layout.attn_dp
        self.queues: list[deque[Request]] = [deque() for _ in range(ranks)]
        self.rank_tokens = max(1, min(self.applied.chunk_tokens // ranks, self.applied.max_prefill_tokens))
        self.rank_requests = max(1, self.applied.running_limit // ranks)
        self.rank_pool = pool_tokens // ranks
        self.caches = [PrefixCache() for _ in range(ranks)] if self.applied.radix_cache else []
        self.held_back = 0
        self.round_start_s = 0.0

    @property
    def idle(self) -> bool:
        return self.held_back == 0

    @property
    def load(self) -> int:
        return self.held_back

    def rank_of(self, request: Request) -> int:
        return room(request.arrival.number) % len(self.queues)

    def submit(self, request: Request, at_s: float) -> None:
        if self.idle:
            self.clock = max(self.clock, at_s)
        rank = self.rank_of(request)
        if self.caches and request.arrival.prefix_hashes:
            request.cached = self.caches[rank].match(request.arrival)
            request.todo -= request.cached
        self.queues[rank].append(request)
        self.held_back += 1

    def advance(self, limit_s: float) -> list[Request]:
        """One round, whatever the limit: nothing interrupts it. Returns whose prompts are done."""
        self.round_start_s = self.clock
        tokens, prompts, largest, pairs = 0, 0, 0, 0.0
        done: list[Request] = []
        for rank, queue in enumerate(self.queues):
            if not queue:
                continue
            pieces = self._take(queue)
            rank_tokens = sum(pieces)
            prompts += len(pieces)
            tokens += rank_tokens
            largest = max(largest, rank_tokens)
            for request, piece in zip(list(queue), pieces, strict=False):
                past = request.arrival.input_tokens - request.todo
                pairs += piece * (past + (piece + 1) / 2)
                request.todo -= piece
                request.held += piece
                request.last_piece = piece
            while queue and queue[0].todo == 0:
                done.append(self._finished(queue.popleft(), rank))
        round_s = self.times.prefill_s(tokens, pairs, prompts, largest)
        self.clock += round_s
        self.prefill_s += round_s
        # while the round ran, its own tokens and those of prompts cut into chunks were in the pool
        held = sum(r.held for r in done) + sum(r.held for q in self.queues for r in q if r.held)
        self.usage.append((self.clock, float(held)))
        for request in done:
            request.held = 0
        self.held_back -= len(done)
        return done
