"""One engine's scheduler, as SGLang works: prefill first, in chunks; admission by KV head-room; retraction if wrong.

The clock moves in events: one prefill round, or a run of decode iterations in which the batch does not change. Cost
therefore grows with arrivals and endings, not with tokens. All attention-DP ranks and pipeline stages of an engine are
kept as one batch: SGLang deals requests to them in turn, and `StepTime` charges the fullest rank.
"""

from __future__ import annotations

import heapq
import math
from collections import deque

from ridgeline.serving.engines.knobs import KNOBS
from ridgeline.serving.engines.settings import Applied
from ridgeline.serving.traffic.texts import Text
from ridgeline.serving.twin.front_end import FrontEnd
from ridgeline.serving.twin.gaps import DecodeRuns, Ending, TokenPace
from ridgeline.serving.twin.passes import PassLog
from ridgeline.serving.twin.prefix_cache import CacheUse, HostTier, PrefixCache
from ridgeline.serving.twin.priors import DECAY_STEPS, FINAL_SHARE_OF_START, MOST_NEW_TOKENS, NEW_TOKEN_SHARE
from ridgeline.serving.twin.request import FirstTokens, Request
from ridgeline.serving.twin.steptime import StepTime

# Decode steps for which an answer is counted on to go on after a retraction (SGLANG_RETRACT_DECODE_STEPS).
RETRACT_STEPS = 20
_MOST_TEXTS = 1_000_000  # that are told apart by rank
RETRY_STEPS = 8  # an admission that failed for want of KV is tried again after at most so many decode steps


class Engine:
    """Continuous batching on one replica. `pool_tokens` is the KV room of all its attention-DP ranks together."""

    # what is kept free for answers becomes less with every step, so that who found no room may find some without an end
    keeps_free = True

    def __init__(self, name: str, times: StepTime, pool_tokens: int) -> None:
        self.name, self.times, self.pool_tokens = name, times, pool_tokens
        self.applied: Applied = times.applied
        lay = times.layout
        self.ranks = lay.attn_dp * lay.pp
        self.piece_tokens = max(1, self.applied.chunk_tokens // self.ranks)
        boldness = KNOBS["schedule_conservativeness"].attention_dp_factor if lay.attn_dp > 1 else 1.0
        self.share = self.first_share = min(1.0, NEW_TOKEN_SHARE * self.applied.conservativeness * boldness)
        self._least_share = self.first_share * FINAL_SHARE_OF_START
        self._share_fall = self.first_share * (1 - FINAL_SHARE_OF_START) / DECAY_STEPS
        self.clock = 0.0
        self.quiet_until_s = math.inf  # no request can end before, and `load` stays as it is
        self.load = self.step_number = 0  # load: requests that wait here or run here
        self.waiting: deque[Request] = deque()
        self.chunked: list[Request] = []  # prompts longer than a chunk, one for each rank at most
        self.running: list[tuple[int, int, Request]] = []  # heap by the step in which they end
        self.used_tokens = 0.0
        self.promised_tokens = 0.0  # set aside for KV that another engine will send
        self.finish_sum = self.retractions = 0
        self._longest_answer = 0
        self.fresh: list[Request] = []
        self.blocked_by_kv = False
        self._step_s = 0.0  # of the latest decode step
        self.prefill_s = 0.0  # time in prefill rounds
        self.passes = PassLog(times)
        self._verified = self.applied.draft_tokens
        self.host_s = 0.0  # time in decode steps that waited for the host
        self.front_end: FrontEnd | None = None  # between it and its users, where it is served
        self.first_tokens: FirstTokens | None = None  # where a run may end as soon as too many are late
        self.streamed_s = 0.0  # when all tokens made so far have been sent to their users
        self.pace = TokenPace(self.applied.accept_length)
        self.runs = DecodeRuns(self.pace)
        self.cache = PrefixCache(self.applied.page_size, self.applied.eviction) if self.applied.radix_cache else None
        self.tier: HostTier | None = None
        if self.cache is not None and (tokens := self.applied.host_tokens):
            self.tier = HostTier(tokens, self.applied.host_token_s, self.applied.host_policy, self.cache)
        self.cache_use = CacheUse()
        self._of_rank: dict[tuple[int, Text], Text] = {}
        self._dealt = 0  # requests that attention-DP ranks got so far
        self.in_cache_tokens = 0  # of running requests, as each counts what it has there
        self.usage: list[tuple[float, float]] = [(0.0, 0.0)]

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.running or self.chunked)

    @property
    def held_tokens(self) -> float:
        """Tokens in the pool that requests hold: what several read is there once, but each counts it as `used_tokens`,
        to all of which it attends."""
        if self.cache is None:
            return self.used_tokens
        return self.used_tokens - self.in_cache_tokens + self.cache.locked_tokens

    @property
    def _free_tokens(self) -> float:
        """Room in the pool; what is cached and read by nobody counts, since it goes when it has to."""
        return self.pool_tokens - self.held_tokens - self.promised_tokens

    def submit(self, request: Request, at_s: float) -> None:
        if self.idle:
            self.clock = max(self.clock, at_s)
            self.share = self.first_share
        self._assign(request)
        self.waiting.append(request)
        self.load += 1
        self.quiet_until_s = self.clock
        self.blocked_by_kv = False
        self.take_in(at_s)

    def _assign(self, request: Request) -> None:
        """Attention-DP ranks get requests in turn, and each has a cache of its own: to the cache of all of them, a text
        on one rank is another than on the next."""
        request.worker, request.text = self.name, request.arrival.text
        self._longest_answer = max(self._longest_answer, request.arrival.output_tokens)
        if self.cache is None or request.text is None or (ranks := self.times.layout.attn_dp) == 1:
            return
        self._dealt += 1
        if len(self._of_rank) > _MOST_TEXTS:
            self._of_rank.clear()  # later prompts find nothing of earlier ones
        mine: Text | None = None
        for text in request.text.lineage():
            mine = self._of_rank.setdefault((self._dealt % ranks, text), Text(text.name, mine, text.start))
        request.text = mine

    def take_in(self, at_s: float) -> None:
        """A request that comes now has taken its time, until now, from the process that also sends tokens."""
        if self.front_end is not None:
            self.streamed_s = max(self.streamed_s + self.front_end.intake_s, at_s)

    @property
    def backlog_s(self) -> float:
        """How far the process that sends tokens is behind the engine that makes them."""
        return self.streamed_s - self.clock if self.streamed_s > self.clock else 0.0

    def advance(self, limit_s: float) -> list[Request]:
        """One event. Decode runs stop at the first step that ends at or after `limit_s`. Returns who has ended."""
        batch = self._admit() if self.chunked or (self.waiting and not self.blocked_by_kv) else []
        ended: list[Request] = []
        if batch:
            ended = self._prefill(batch)
        elif self.running:
            ended = self._decode(limit_s)
        elif self.chunked:
            self._wait_for_host()
        if self.cache is not None and self.cache.tokens:
            # what the cache holds and requests hold beside it; what several read is there once
            held = self.cache.tokens + self.used_tokens - self.in_cache_tokens + self.promised_tokens
            if held > self.pool_tokens:
                self.cache.evict(held - self.pool_tokens)
        return ended

    def advance_to(self, limit_s: float) -> None:
        """Events until `limit_s` is reached or nothing is left to do, for an engine nobody else waits for."""
        while self.clock < limit_s and (self.running or self.waiting or self.chunked):
            self.advance(limit_s)
        if self.waiting or self.chunked:
            self.quiet_until_s = self.clock
        elif self.running:
            # steps only get longer while the context grows: the next ending cannot come sooner than at today's pace
            batch = len(self.running)
            context = self.used_tokens + batch
            base_s, per_token_s, host_s = self.times.decode_line(batch, context)
            step_s = base_s + per_token_s * context
            steps = self.running[0][0] - self.step_number
            self.quiet_until_s = self.clock + steps * (step_s if step_s > host_s else host_s)
        else:
            self.quiet_until_s = math.inf

    def _admit(self) -> list[tuple[Request, int]]:
        """The next prefill round: (request, tokens of it). Empty when nothing may start."""
        budget = self.applied.chunk_tokens
        inputs = self.applied.max_prefill_tokens
        slots = self.applied.running_limit - len(self.running)
        room = self._free_tokens - self._reserved() if self.waiting else 0.0
        batch: list[tuple[Request, int]] = []
        longer: list[Request] = []
        for request in self.chunked:
            piece = min(request.todo, budget, self.piece_tokens)
            batch.append((request, piece))
            budget, inputs, slots = budget - piece, inputs - piece, slots - 1
            room -= request.todo + min(request.remaining, MOST_NEW_TOKENS)
            if piece < request.todo:
                longer.append(request)
        while self.waiting and slots > 0 and budget > 0 and inputs > 0 and len(longer) < self.ranks:
            request = self.waiting[0]
            need = self._look_up(request) + request.todo + min(request.remaining, MOST_NEW_TOKENS)
            # an engine with nothing else to do always takes one request, however long its answer may get
            if need >= room and (batch or self.running):
                self.blocked_by_kv = True
                break
            self.waiting.popleft()
            piece = request.todo
            if piece > self.piece_tokens or piece > budget:
                piece = min(self.piece_tokens, budget)
                longer.append(request)
            batch.append((request, piece))
            self._read_cached(request)
            budget, inputs, slots, room = budget - piece, inputs - piece, slots - 1, room - need
        self.chunked = longer
        return batch

    def _look_up(self, request: Request) -> int:
        """Finds what is cached of its prompt; how many tokens of that nobody reads yet, and so count as room so far."""
        text, tokens = request.text, request.text_tokens
        if self.cache is None or text is None:
            return 0
        here = self.cache.matched(text, tokens)
        request.from_host = 0 if self.tier is None else max(0, self.tier.kept.matched(text, tokens) - here)
        cached = here + request.from_host
        request.todo += request.cached - cached
        request.cached = cached
        return (self.cache.unlocked(text, here) if here else 0) + request.from_host

    def _read_cached(self, request: Request) -> None:
        """It is taken on, and what `_look_up` found stays for it."""
        here, use = request.cached - request.from_host, self.cache_use
        if request.first_cached is None:
            request.first_cached, request.first_from_host = request.cached, request.from_host
            use.prompt_tokens += request.arrival.input_tokens
            use.hit_tokens += here
            use.host_hit_tokens += request.from_host
        use.count(request.text_tokens, here)
        text = request.text
        if not request.cached or self.cache is None or text is None:
            return
        self.cache.lock(text, here)
        if self.tier is not None:
            self.tier.found(text, request.cached)
            if request.from_host:
                self.cache.extend(text, here, request.cached)
                request.loaded_s = self.tier.ready_s(self.clock, request.from_host)
        self.used_tokens += request.cached
        request.held += request.cached
        self._now_in_cache(request, request.cached)

    def _now_in_cache(self, request: Request, tokens: int) -> None:
        self.in_cache_tokens += tokens - request.in_cache
        request.in_cache = tokens

    def _keep(self, request: Request) -> None:
        """What is computed of its prompt can be found by others from now on."""
        if self.cache is not None and request.text is not None:
            done = min(request.text_tokens, request.held)
            if done > request.in_cache:
                self.cache.extend(request.text, request.in_cache, done)
                self._now_in_cache(request, done)
                if self.tier is not None:
                    self.tier.computed(request.text, done)

    def _reserved(self) -> float:
        accepted = self.applied.accept_length
        lacking: float = self.finish_sum - len(self.running) * self.step_number
        if self._longest_answer > MOST_NEW_TOKENS:
            lacking = sum(min(end - self.step_number, MOST_NEW_TOKENS / accepted) for end, _, _ in self.running)
        return lacking * accepted * self.share

    def _prefill(self, batch: list[tuple[Request, int]]) -> list[Request]:
        tokens, pairs, largest = 0, 0.0, 0
        for request, piece in batch:
            past = request.arrival.input_tokens + request.generated - request.todo
            pairs += piece * (past + (piece + 1) / 2)
            tokens += piece
            if piece > largest:
                largest = piece
        round_s = self._round_s(tokens, pairs, len(batch), largest)
        if self.tier is not None:  # layer by layer, beside the round
            round_s = max(round_s, max(request.loaded_s for request, _ in batch) - self.clock)
        self.clock += round_s
        self.prefill_s += round_s
        self.used_tokens += tokens
        ended: list[Request] = []
        for request, piece in batch:
            request.todo -= piece
            request.held += piece
            request.last_piece = piece
            self._keep(request)
            if request.todo == 0:
                self._first_token(request, ended)
        self.usage.append((self.clock, self.held_tokens))
        return ended

    def _round_s(self, tokens: int, pairs: float, sequences: int, largest: int) -> float:
        round_s = self.times.prefill_s(tokens, pairs, sequences, largest)
        self.passes.add(tokens, sequences, 0.0, pairs, round_s)
        return round_s

    def _wait_for_host(self) -> None:
        """Nothing can be done before KV comes back from the host."""

    def _first_token(self, request: Request, ended: list[Request]) -> None:
        if request.first_s is None:
            request.first_s = self.clock
        request.generated += 1
        request.joined_step = self.step_number
        if request.remaining > 0:
            self.join(request)
            return
        if request.stays:  # sent back earlier and now complete: its last token came after one long gap
            seen_s = self.clock + self.backlog_s
            self.runs.wait(seen_s - request.last_token_s)
            request.stays.append((seen_s, len(self.runs), len(self.runs)))
        self._end(request, ended)

    def join(self, request: Request) -> None:
        """Puts a request whose prompt is in the KV cache into the running batch."""
        steps = self.pace.steps(self.step_number, request.remaining)
        seen_s = self.clock
        if self.front_end is not None:
            behind_s = self.backlog_s
            seen_s += behind_s
            self.streamed_s = seen_s + self.front_end.send_s
            if not request.stays:
                shared = request.arrival.text is not None
                computed = request.arrival.input_tokens - (request.first_cached or 0) if shared else 0
                request.late_s = self.front_end.late_s(len(self.running), self._step_s, computed)
                request.first_behind_s = behind_s
        if request.stays:
            self.runs.wait(seen_s - request.last_token_s)
        elif self.first_tokens is not None:
            self.first_tokens.seen(request)
        request.joined_step, request.joined_s = self.step_number, seen_s
        request.runs = self.runs
        request.stays.append((seen_s, len(self.runs), -1))
        heapq.heappush(self.running, (self.step_number + steps, request.arrival.number, request))
        self.finish_sum += self.step_number + steps
        self.fresh.append(request)

    def _decode(self, limit_s: float) -> list[Request]:
        accepted = self.applied.accept_length
        free = self._free_tokens
        if free < len(self.running) * accepted:
            self._retract()
            free = self._free_tokens
        times, clock, batch = self.times, self.clock, len(self.running)
        growth = batch * accepted
        steps = self.running[0][0] - self.step_number
        if steps * growth > free:
            steps = int(free / growth) or 1
        retried = self.waiting and batch < self.applied.running_limit and (self.keeps_free or not self.blocked_by_kv)
        if steps > RETRY_STEPS and retried:
            steps = RETRY_STEPS
        # a token's KV is written in the step after it was drawn: the context read is what is held, plus that one
        context = self.used_tokens + batch
        base_s, per_token_s, host_s = times.decode_line(batch, context)
        first_s = base_s + per_token_s * context
        step_s = first_s if first_s > host_s else host_s
        if clock + steps * step_s > limit_s:
            steps = max(1, min(steps, math.ceil((limit_s - clock) / step_s)))
        if steps > 1:
            middle_s = first_s + per_token_s * growth * (steps - 1) / 2
            step_s = middle_s if middle_s > host_s else host_s
        self._hand_over(step_s, steps, batch)
        middle = context + growth * (steps - 1) / 2
        self.passes.add(batch * self._verified, batch, middle, 0.0, step_s, steps)
        if step_s <= host_s:
            self.host_s += step_s * steps
        self._step_s, self.clock = step_s, clock + step_s * steps
        self.step_number += steps
        self.used_tokens += growth * steps
        if self.share > self._least_share:
            self.share = max(self._least_share, self.share - self._share_fall * steps)
        if self.keeps_free:
            self.blocked_by_kv = False
        ended = self._endings() if self.running[0][0] <= self.step_number else []
        self.usage.append((self.clock, self.held_tokens))
        return ended

    def _hand_over(self, step_s: float, steps: int, batch: int) -> None:
        """The tokens of so many steps from now on, as users see them: a backlog that grows stretches the gaps."""
        start_s, seen_s = self.clock, step_s
        if self.front_end is not None:
            before_s, end_s = self.backlog_s, start_s + step_s * steps
            work_s = batch * steps * self.applied.accept_length * self.front_end.send_s
            sent_s = start_s + before_s + work_s
            self.streamed_s = sent_s if sent_s > end_s else end_s
            seen_s += (self.streamed_s - end_s - before_s) / steps
            start_s += before_s
        self.runs.add(start_s, seen_s, steps, batch, self.fresh, () if self.pace.single else self._ending(steps))
        if self.fresh:
            self.fresh = []

    def _ending(self, steps: int) -> list[Ending]:
        """Who ends with the last of these steps, and with how many of its tokens, where a step brings several."""
        end = self.step_number + steps
        if self.running[0][0] > end:
            return []
        ending = [request for finish, _, request in self.running if finish == end]
        return [(r, r.remaining - self.pace.tokens(r.joined_step, end - 1 - r.joined_step)) for r in ending]

    def _endings(self) -> list[Request]:
        ended: list[Request] = []
        while self.running and self.running[0][0] <= self.step_number:
            finish, _, request = heapq.heappop(self.running)
            self.finish_sum -= finish
            self.leave(request)
            request.generated = request.arrival.output_tokens
            self._end(request, ended)
        return ended

    def leave(self, request: Request) -> None:
        """Closes the stay in the batch; the tokens it added stay counted until the request gives its KV back."""
        joined_s, first_run, _ = request.stays[-1]
        request.stays[-1] = (joined_s, first_run, len(self.runs))
        request.last_token_s = max(joined_s, self.runs.last_end)  # a prefill round may have come since

    def _end(self, request: Request, ended: list[Request]) -> None:
        self.release(request, request.arrival.output_tokens)
        self.load -= 1
        request.end_s = self.clock
        if request.stays:
            request.end_behind_s = max(0.0, request.last_token_s - self.clock)
        ended.append(request)

    def release(self, request: Request, answer_tokens: int = 0) -> None:
        """Gives its room back; what is cached of its prompt stays there as long as others leave room, and so does an
        answer."""
        self.used_tokens -= request.held
        if request.stays:
            self.used_tokens -= (self.step_number - request.joined_step) * self.applied.accept_length
        request.held = 0
        self.blocked_by_kv = False
        self.read_no_more(request, answer_tokens)

    def read_no_more(self, request: Request, answer_tokens: int = 0) -> None:
        if self.cache is not None and (request.in_cache or answer_tokens):
            self._leave_in_cache(self.cache, request, answer_tokens)

    def _leave_in_cache(self, cache: PrefixCache, request: Request, answer_tokens: int) -> None:
        arrival, text, in_cache = request.arrival, request.text, request.in_cache
        self._now_in_cache(request, 0)
        whole = arrival.input_tokens + answer_tokens
        if text is not None:
            cache.release(text, in_cache, whole if arrival.answer_stays else in_cache)
        if not answer_tokens or not cache.tokens:
            return
        if text is not None and arrival.answer_stays:
            if self.tier is not None:
                self.tier.computed(text, whole)
        else:
            # nobody asks for it again, but an engine cannot know that
            left = whole - in_cache
            cache.add_unshared(left)
            if self.tier is not None:
                self.tier.computed_unshared(left)

    def _retract(self) -> None:
        """Sends back one after the other until the rest can go on: for the next step, in older releases for a while."""
        order = sorted(self.running, key=self._kept_before)
        while len(order) > 1:
            if self._free_tokens >= len(order) * self.applied.retract_steps * self.applied.accept_length:
                break
            finish, _, request = order.pop()
            self._give_up(request, finish)
        self.running = order
        heapq.heapify(self.running)
        made = sum(r.generated + self.decoded(r) for _, _, r in order)
        asked = sum(r.arrival.output_tokens for _, _, r in order)
        self.share = min(1.0, (made + RETRACT_STEPS * len(order)) / max(1, asked))

    def _kept_before(self, entry: tuple[int, int, Request]) -> tuple[int, int, int]:
        """SGLang sends back the shortest answer so far, of equal ones that to the longest prompt."""
        _, number, request = entry
        return -(request.generated + self.decoded(request)), request.arrival.input_tokens, number

    def decoded(self, request: Request) -> int:
        """Tokens that the current stay in the batch has brought."""
        return self.pace.tokens(request.joined_step, self.step_number - request.joined_step)

    def _give_up(self, request: Request, finish: int) -> None:
        self.finish_sum -= finish
        self.leave(request)
        self.release(request)
        request.generated += self.decoded(request)
        request.todo = request.arrival.input_tokens + request.generated
        request.cached = 0
        self.fresh = [r for r in self.fresh if r is not request]
        self.retractions += 1
        self.waiting.append(request)


# SGLang's --scheduler-recv-interval: a busy engine looks for new requests once in so many decode steps.
#
# Polling costs every rank a broadcast; published recipes ask for it every 10 or 30 steps, and new requests wait half of
# that on average. A prefill round is always followed by a look.


class PolledEngine(Engine):
    """Continuous batching on one replica, with an inbox that is emptied now and then."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.inbox: deque[Request] = deque()
        self.next_look = 0

    @property
    def idle(self) -> bool:
        return super().idle and not self.inbox

    def submit(self, request: Request, at_s: float) -> None:
        if self.idle:
            super().submit(request, at_s)
            return
        self._assign(request)
        self.inbox.append(request)
        self.take_in(at_s)
        self.load += 1
        self.quiet_until_s = self.clock

    def advance(self, limit_s: float) -> list[Request]:
        if not self.running:
            self._look()
        elif self.step_number >= self.next_look:
            # a run of steps without news may have passed several looks: the next one keeps to their rhythm
            late = (self.step_number - self.next_look) % self.applied.recv_interval
            if late == 0:
                self._look()
            else:
                self.next_look = self.step_number - late + self.applied.recv_interval
        if self.inbox and self.running and not self.chunked:
            batch, steps = len(self.running), self.next_look - self.step_number
            step_s = self.times.decode_s(batch, self.used_tokens + batch)
            limit_s = min(limit_s, self.clock + (steps - 0.5) * step_s)
        return super().advance(limit_s)

    def advance_to(self, limit_s: float) -> None:
        super().advance_to(limit_s)
        while self.inbox and self.clock < limit_s:
            self._look()
            super().advance_to(limit_s)

    def _look(self) -> None:
        self.next_look = self.step_number + self.applied.recv_interval
        if self.inbox:
            self.waiting.extend(self.inbox)
            self.inbox.clear()
            self.blocked_by_kv = False

    def _prefill(self, batch: list[tuple[Request, int]]) -> list[Request]:
        ended = super()._prefill(batch)
        self._look()
        return ended
