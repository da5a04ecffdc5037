"""Prompts computed apart from decoding: one queue for each attention-DP rank, one round for all of them.

SGLang's controller sends a request of a split deployment to the rank `bootstrap_room % ranks`, and the router draws
that number at random. So ranks get unequal shares, every round lasts as long as its fullest rank needs, and the last
prompt of a burst is one of the fullest rank's. Only where it is told to it deals them out in turn.
"""

from __future__ import annotations

from collections import deque

from ridgeline.serving.engines.knobs import rank_share
from ridgeline.serving.twin.prefixes import PrefixCache
from ridgeline.serving.twin.request import Request
from ridgeline.serving.twin.scheduler import Engine
from ridgeline.serving.twin.steptime import StepTime

_WORD = 2**64 - 1
# Where the numbers begin. One draw stands for all, so it is a typical one: the fullest of 8 to 32 ranks gets as many of
# 16 to 2048 requests as it gets on average over many draws.
_TYPICAL = 40_753


def room(number: int) -> int:
    """What the router draws for a request: even over ranks, without any pattern, and the same in every run."""
    mixed = (number + _TYPICAL) * 0x9E3779B97F4A7C15 & _WORD
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _WORD
    return mixed ^ mixed >> 31


class PrefillEngine(Engine):
    """Computes prompts and nothing else: a request ends here with its first token."""

    def __init__(self, name: str, times: StepTime, pool_tokens: int) -> None:
        super().__init__(name, times, pool_tokens)
        ranks = times.layout.attn_dp
        self.queues: list[deque[Request]] = [deque() for _ in range(ranks)]
        self.rank_pool = pool_tokens // ranks
        self.rank_tokens = max(1, min(self.applied.chunk_tokens, self.applied.max_prefill_tokens * ranks) // ranks)
        self.rank_requests = rank_share(self.applied.running_limit, ranks)
        self.caches = [PrefixCache() for _ in range(ranks)] if self.applied.radix_cache else []
        self.round_start_s = 0.0
        self.dealt = 0  # requests so far

    @property
    def idle(self) -> bool:
        return self.load == 0

    def submit(self, request: Request, at_s: float) -> None:
        if self.idle:
            self.clock = max(self.clock, at_s)
        drawn = self.dealt if self.applied.dealt_in_turn else room(request.arrival.number)
        request.rank = drawn % len(self.queues)
        self.queues[request.rank].append(request)
        self.dealt += 1
        self.load += 1

    def advance(self, limit_s: float) -> list[Request]:
        """One round, whatever the limit: nothing interrupts it. Returns whose prompts are done."""
        self.round_start_s = self.clock
        tokens, prompts, largest, pairs = 0, 0, 0, 0.0
        done: list[Request] = []
        for rank, queue in enumerate(self.queues):
            taken = self._take(rank, queue) if queue else []
            mine = 0
            for request, piece in taken:
                past = request.arrival.input_tokens - request.todo
                pairs += piece * (past + (piece + 1) / 2)
                mine += piece
                request.todo -= piece
                request.held += piece
                request.last_piece = piece
            self.used_tokens += mine
            tokens, prompts, largest = tokens + mine, prompts + len(taken), max(largest, mine)
            while queue and queue[0].todo == 0:
                done.append(queue.popleft())
        round_s = self.times.prefill_s(tokens, pairs, prompts, largest)
        self.clock += round_s
        self.prefill_s += round_s
        self.usage.append((self.clock, self.used_tokens))
        for request in done:
            self._finish(request)
        if self.idle:
            self.usage.append((self.clock, self.used_tokens))
        return done

    def _take(self, rank: int, queue: deque[Request]) -> list[tuple[Request, int]]:
        """What this rank computes in the next round: prompts in order, begun only where the whole of them has room."""
        budget, room_tokens = self.rank_tokens, self.rank_pool
        taken: list[tuple[Request, int]] = []
        for request in queue:
            whole = request.arrival.input_tokens
            if budget <= 0 or len(taken) >= self.rank_requests or (taken and whole > room_tokens):
                break
            if request.held == 0 and self.caches and request.arrival.prefix_hashes:
                self._find_prefix(request, rank)
            piece = min(request.todo, budget, self.piece_tokens)
            taken.append((request, piece))
            budget, room_tokens = budget - piece, room_tokens - whole
        return taken

    def _find_prefix(self, request: Request, rank: int) -> None:
        request.cached = request.held = self.caches[rank].match(request.arrival)
        request.todo = request.arrival.input_tokens - request.cached
        self.used_tokens += request.held

    def _finish(self, request: Request) -> None:
        if self.caches and request.arrival.prefix_hashes:
            self.caches[request.rank].insert(request.arrival, self.rank_pool - request.held)
        request.generated += 1
        self.used_tokens -= request.held
        request.held = 0
        self.load -= 1
