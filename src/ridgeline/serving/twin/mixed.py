"""vLLM's scheduler: every step decodes all running requests and fills the rest of its token budget with prompts.

Prompts are cut to what is left of the budget, so that nobody's next token waits for a whole prompt. A request is
admitted when its prompt has room, in older releases as soon as its next piece has: nothing is kept free for answers,
and a full pool preempts the latest, be it in the middle of its prompt. Its blocks go to the end of the list of free
ones, still with their hashes: with prefix caching it computes again only what others took in the meantime (vLLM 0.10
to 0.19, v1/core/sched/scheduler.py and block_pool.py).
"""

from __future__ import annotations

from ridgeline.serving.traffic.texts import Text
from ridgeline.serving.twin.request import Request
from ridgeline.serving.twin.scheduler import Engine


class MixedEngine(Engine):
    """Continuous batching with mixed chunks, on one replica."""

    keeps_free = False

    def _admit(self) -> list[tuple[Request, int]]:
        """What the next step computes of prompts: (request, tokens of it). Empty when it only decodes."""
        decoded = len(self.running) * self.applied.draft_tokens
        budget = self.applied.chunk_tokens - decoded
        room = self._free_tokens - len(self.running) * self.applied.accept_length
        slots = self.applied.running_limit - len(self.running) - len(self.chunked)
        batch: list[tuple[Request, int]] = []
        loading: list[Request] = []
        sent_back = False
        for request in self.chunked:
            if request.loaded_s > self.clock:
                loading.append(request)
            elif min(request.todo, max(1, budget)) > room and (batch or self.running):
                self._send_back(request)
                sent_back = True
            else:
                budget, room = self._take(batch, request, budget, room)
        while not sent_back and self.waiting and slots > 0 and budget > 0:
            request = self.waiting[0]
            idle = self._look_up(request)
            # an engine with nothing else to do always takes one
            piece = request.todo if self.applied.whole_prompts else min(request.todo, budget)
            if piece + idle > room and (batch or self.running):
                self.blocked_by_kv = True
                break
            self.waiting.popleft()
            self._read_cached(request)
            slots, room = slots - 1, room - idle
            if request.loaded_s > self.clock:
                loading.append(request)  # others go on meanwhile
            else:
                budget, room = self._take(batch, request, budget, room)
        self.chunked = [*(request for request, piece in batch if piece < request.todo), *loading]
        return batch

    def _wait_for_host(self) -> None:
        self.clock = max(self.clock, min(request.loaded_s for request in self.chunked))

    def _kept_before(self, entry: tuple[int, int, Request]) -> tuple[int, int, int]:
        """vLLM sends back whom it took on last."""
        _, number, request = entry
        return request.joined_step, number, 0

    def _give_up(self, request: Request, finish: int) -> None:
        """It is the next to be taken on again."""
        super()._give_up(request, finish)
        self.waiting.rotate(1)
        self._stays_findable(request, request.todo - 1)  # the KV of its last token was not written yet

    def _send_back(self, request: Request) -> None:
        """In the middle of its prompt, which is computed again from its beginning."""
        request.joined_step = self.step_number  # it has brought no token since
        computed = request.held
        self.release(request)
        request.todo = request.arrival.input_tokens + request.generated
        request.cached = 0
        self.retractions += 1
        self.waiting.appendleft(request)
        self._stays_findable(request, computed)

    def _stays_findable(self, request: Request, computed: int) -> None:
        """Prompt and answer so far can be found by itself as long as nobody needs the room."""
        if self.cache is None or not self.applied.finds_sent_back:
            return
        arrival = request.arrival
        if request.text is None or not arrival.answer_stays:
            request.text = Text(arrival.number, request.text, request.text_tokens)
        request.kept_answer = request.generated
        self.cache.add(request.text, computed)

    def _take(self, batch: list[tuple[Request, int]], request: Request, budget: int, room: float) -> tuple[int, float]:
        piece = min(request.todo, max(1, budget))
        batch.append((request, piece))
        return budget - piece, room - piece

    def _round_s(self, tokens: int, pairs: float, sequences: int, largest: int) -> float:
        """The step, in which everybody who runs gets a token too."""
        batch = len(self.running)
        if not batch:
            return super()._round_s(tokens, pairs, sequences, largest)
        context = self.used_tokens + batch
        step_s = self.times.mixed_s(tokens, pairs, sequences, largest, batch, context)
        self._hand_over(step_s, 1, batch)
        self.passes.add(tokens + batch, sequences + batch, context, pairs, step_s)
        self.step_number += 1
        self.used_tokens += batch * self.applied.accept_length
        return step_s

    def _decode(self, limit_s: float) -> list[Request]:
        """Who waits for room is looked up in each step, and vLLM counts each time."""
        blocked = self.waiting[0] if self.waiting and self.blocked_by_kv else None
        before = self.step_number
        if self.chunked:  # with KV on its way from the host
            limit_s = min(limit_s, *(request.loaded_s for request in self.chunked))
        ended = super()._decode(limit_s)
        if blocked is not None:
            self.cache_use.count(blocked.arrival.input_tokens, blocked.cached, self.step_number - before)
        return ended

    def _prefill(self, batch: list[tuple[Request, int]]) -> list[Request]:
        ended = super()._prefill(batch)
        if self.running and self.running[0][0] <= self.step_number:
            ended += self._endings()
        return ended
