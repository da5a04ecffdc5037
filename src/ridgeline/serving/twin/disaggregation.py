"""Prefill and decode on different GPUs: the handshake, the KV transfer, and who waits for whom.

As SGLang does it: a decode engine first sets a slot and KV room aside, then the two sides shake hands, then the prompt
is computed, its KV sent, and the first token shown when the request enters the decode batch. A request whose decode
side has no slot stays in bootstrapping; after a time limit it fails. So the decode limit admits prompts in
waves, and TTFT takes off when a burst is larger than that limit.

Under vLLM a proxy asks one side after the other: the prompt is computed first, with an answer of one token that nobody
sees; then the decode engine queues the request like any other, reads the KV once all of it has room, and makes the
first token itself (NixlConnector and scheduler of 0.10). So a full decode side shows in TTFT, unless its pool is
overdrawn later on: who is preempted waits between two tokens.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ridgeline.serving.engines.knobs import rank_share
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.sglang.failures import BOOTSTRAP_LIMIT_S
from ridgeline.serving.hardware.cluster import Fabric
from ridgeline.serving.model.model import Model
from ridgeline.serving.twin.cluster import Router
from ridgeline.serving.twin.mixed import MixedEngine
from ridgeline.serving.twin.prefix_cache import PrefixCache
from ridgeline.serving.twin.request import Request
from ridgeline.serving.twin.scheduler import Engine
from ridgeline.serving.twin.steptime import StepTime

# Prompts computed apart from decoding: one queue for each attention-DP rank, one round for all of them.
#
# SGLang's controller sends a request of a split deployment to the rank `bootstrap_room % ranks`, and the router draws
# that number at random. So ranks get unequal shares, every round lasts as long as its fullest rank needs, and the last
# prompt of a burst is one of the fullest rank's. Only where it is told to it deals them out in turn.

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
        self.caches = []
        if self.applied.radix_cache:
            self.caches = [PrefixCache(self.applied.page_size, self.applied.eviction) for _ in range(ranks)]
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
        round_s = self._round_s(tokens, pairs, prompts, largest)
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
            if request.held == 0:
                request.joined_s = self.clock
            if request.held == 0 and self.caches and (text := request.arrival.text) is not None:
                request.cached = request.held = self.caches[rank].matched(text, request.arrival.input_tokens)
                self.caches[rank].lock(text, request.cached)
                request.first_cached = request.cached
                request.todo = request.arrival.input_tokens - request.cached
                self.used_tokens += request.held
            piece = min(request.todo, budget, self.piece_tokens)
            taken.append((request, piece))
            budget, room_tokens = budget - piece, room_tokens - whole
        return taken

    def read_no_more(self, request: Request, answer_tokens: int = 0) -> None:
        if self.caches and request.held and request.arrival.text is not None:
            self.caches[request.rank].release(request.arrival.text, request.cached)

    def _finish(self, request: Request) -> None:
        if self.caches and request.arrival.text is not None:
            cache = self.caches[request.rank]
            cache.extend(request.arrival.text, request.cached, request.held)
            cache.release(request.arrival.text, request.held)
            cache.evict(cache.tokens - self.rank_pool)
        request.generated += 1
        self.used_tokens -= request.held
        request.held = 0
        self.load -= 1


# Registration with the bootstrap server, metadata and the poll loops of both sides.
HANDSHAKE_S = 0.05
# Tokens a decode engine keeps free for each request that it holds (SGLang's num_reserved_decode_tokens).
RESERVED_TOKENS = 512
# Pieces of KV a rank's transfer threads can post in a second. A piece is a run of neighbouring pages of one layer; in a
# pool that is not crowded a prompt's tokens lie side by side, so that even with page size 1 a piece is many tokens.
# (A study that never saw more than 356 MB/s on a port was limited by what its prefill ranks made: see
# `kv_transfer_bytes_s`.)
PIECES_S = 1_000_000
RUN_TOKENS = 16
# NixlConnector's worker asks for each block of each layer, keys and values apart, and looks after them between steps
# (nixl_connector.py, _read_blocks and get_finished): who decodes meanwhile waits, so many blocks of 128 tokens a
# second. A prompt that comes to an idle engine shows nothing of it. Smaller blocks were never compared, and are taken
# to cost no more.
ASKED_BLOCKS_S, ASKED_TOKENS = 75_000, 128
PORT_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class KvTransfer:
    """How fast one prefill rank can send KV: by the port's rate, or by the number of pieces it can post. `asking_s` is
    how long a token stops an engine that asks for KV itself."""

    bytes_per_token: float
    bytes_s: float
    asking_s: float = 0.0

    @classmethod
    def between(cls, model: Model, layout: Layout, fabric: Fabric, gpus_per_node: int, page_size: int) -> KvTransfer:
        kept = [(kind, n) for kind, n in model.attentions if kind.keeps_everything]
        token_bytes = sum(model.layer_kv_bytes(kind, layout.attn_tp) * n for kind, n in kept)
        piece_bytes = max(page_size, RUN_TOKENS) * model.layer_kv_bytes(model.attention, layout.attn_tp)
        port = fabric.bytes_s_per_gpu(gpus_per_node) * PORT_SHARE
        blocks = sum(n if kind.mla else 2 * n for kind, n in kept) / max(page_size, ASKED_TOKENS)
        return cls(token_bytes, min(port, PIECES_S * piece_bytes), blocks / ASKED_BLOCKS_S)

    def seconds(self, tokens: float) -> float:
        return tokens * self.bytes_per_token / self.bytes_s


class DecodeEngine(Engine):
    """Takes requests whose KV was sent to it. Slots and room are set aside before their prompts are computed."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        # with the prefill engine of the same simulation; None where that is a server of its own
        self.bootstrapping: deque[tuple[Request, float, PrefillEngine | None]] = deque()
        self.expected = 0

    def reserve(self, growth_tokens: float = 0.0) -> tuple[Request, float, PrefillEngine | None] | None:
        """The next request that a slot and KV room could be set aside for, were there so many tokens more."""
        if not self.bootstrapping:
            return None
        held = len(self.running) + self.expected
        request = self.bootstrapping[0][0]
        tokens = request.arrival.input_tokens
        wanted = tokens + RESERVED_TOKENS * (held + 1) + growth_tokens
        if held >= self.applied.running_limit or (wanted > self._free_tokens and held > 0):
            return None
        self.expected += 1
        self.promised_tokens += tokens
        return self.bootstrapping.popleft()

    def found_s(self, at_s: float) -> float:
        """When a request that comes now is seen: a busy engine looks for new ones every `recv_interval` steps."""
        every = self.applied.recv_interval
        if every <= 1 or not self.running:
            return at_s
        return max(at_s, self.clock) + (every - self.step_number % every) * self._step_s

    def steps_until(self, at_s: float) -> int:
        """Decode steps that end or run at that time, were nobody to join or to end until then."""
        if at_s <= self.clock or not self.running:
            return 0
        batch = len(self.running)
        self._step_s = self._step_s or self.times.decode_s(batch, self.used_tokens + batch)
        return math.ceil((at_s - self.clock) / self._step_s)

    def streamed_by(self, at_s: float) -> float:
        """What `streamed_s` is after these steps."""
        steps = self.steps_until(at_s)
        if not steps or self.front_end is None:
            return self.streamed_s
        work_s = steps * len(self.running) * self.applied.accept_length * self.front_end.send_s
        return max(max(self.streamed_s, self.clock) + work_s, self.clock + steps * self._step_s)

    def receive(self, request: Request, at_s: float) -> list[Request]:
        """The KV has arrived: the first token is shown and decoding goes on from there."""
        if self.idle:
            self.clock = max(self.clock, at_s)
        tokens = request.arrival.input_tokens
        self.expected -= 1
        self.promised_tokens -= tokens
        self.used_tokens += tokens
        request.held = tokens
        request.first_s = max(self.clock, at_s)
        ended: list[Request] = []
        if request.remaining == 0:
            self._end(request, ended)
        else:
            self.join(request)
        return ended


class PullingEngine(MixedEngine, DecodeEngine):
    """vLLM's: who comes waits like any other until its prompt has room, and then for its KV, which is read from where
    it was made. All of the prompt but its last token is there then."""

    pull: Callable[[Request, float], float]  # when KV is here that is asked for at this time
    asking_s: float  # how long a token of it stops this engine

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self._elsewhere: set[Request] = set()  # whose prompts were computed and are not here yet

    def receive(self, request: Request, at_s: float) -> list[Request]:
        """Its prompt is computed; the token that came with it is not kept."""
        if self.idle:
            self.clock = max(self.clock, at_s)
        request.generated, request.todo = 0, request.arrival.input_tokens
        self._elsewhere.add(request)
        self.waiting.append(request)
        self.blocked_by_kv = False
        return []

    def _look_up(self, request: Request) -> int:
        if request not in self._elsewhere:
            return super()._look_up(request)
        request.cached = request.arrival.input_tokens - 1
        request.todo = 1
        return request.cached

    def _read_cached(self, request: Request) -> None:
        if request not in self._elsewhere:
            return super()._read_cached(request)
        self._elsewhere.remove(request)
        request.first_cached = request.first_cached or 0  # what it finds after a preemption is its own
        self.used_tokens += request.cached
        request.held = request.cached
        if self.running:
            self.clock += request.cached * self.asking_s
        request.loaded_s = self.pull(request, self.clock)
        return None


class Disaggregated:
    """Prefill groups, decode groups, and the messages between them."""

    def __init__(
        self, prefill: Sequence[PrefillEngine], decode: Sequence[DecodeEngine], transfer: KvTransfer, policy: str
    ) -> None:
        self.prefill, self.decode, self.transfer = prefill, decode, transfer
        self.to_prefill = Router(prefill, policy)
        self.to_decode = Router(decode, policy)
        self._engines: tuple[Engine, ...] = (*prefill, *decode)
        self._order: list[tuple[float, int]] = []  # heap of those that have work: clock and place
        self._ended: list[Request] = []
        self.endings_send = True  # a closed loop: whoever ends makes room for another
        self._messages: list[tuple[float, int, str, Request, Engine]] = []
        self._sent = 0
        self._target: dict[int, DecodeEngine] = {}
        self._source: dict[int, PrefillEngine] = {}
        self._ports: dict[tuple[str, int], float] = {}
        self._sent_bytes = 0.0
        self._sending_s = (math.inf, 0.0)
        self.waited_s: dict[str, float] = {}  # by part of the way to first tokens, of all requests together

    def _admitted(self, request: Request) -> None:
        """From here on nothing makes it fail, so that it counts."""
        self._waited("front end", request.reached_s - request.sent_s)

    def _reached(self, request: Request, part: str, at_s: float) -> None:
        self._waited(part, at_s - request.reached_s)
        request.reached_s = at_s

    def _waited(self, part: str, seconds: float) -> None:
        self.waited_s[part] = self.waited_s.get(part, 0.0) + seconds

    @property
    def transfer_bytes_s(self) -> float:
        """What one prefill rank's port carried on average between the first prompt and the last KV."""
        ranks = sum(e.times.layout.attn_dp for e in self.prefill)
        first, last = self._sending_s
        return self._sent_bytes / ranks / (last - first) if last > first else 0.0

    @property
    def now_s(self) -> float:
        first = self._order[0][0] if self._order else math.inf
        if self._messages and self._messages[0][0] < first:
            first = self._messages[0][0]
        if first == math.inf:
            apart = [d.clock for d in self.decode if self._apart and not d.idle]
            return min((*apart, *(d.bootstrapping[0][1] for d in self.decode if d.bootstrapping)), default=first)
        return first

    @cached_property
    def _apart(self) -> bool:
        """Nobody asks who has ended: a decode engine that can take all who come is left alone until one does. Of the
        others in this mode only those with requests in bootstrapping are in `_order`."""
        polls = any(d.applied.recv_interval > 1 for d in self.decode)
        return not (self.endings_send or polls) and self.to_decode.blind

    def _catch_up(self, engine: DecodeEngine, at_s: float) -> None:
        while engine.clock < at_s and not engine.idle:
            self._ended += engine.advance(at_s)

    def backlog_s(self, at_s: float) -> float:
        behind_s = 0.0
        for engine in self.decode:
            streamed_s = engine.streamed_by(at_s) if self._apart else engine.streamed_s
            if streamed_s > at_s:
                behind_s += streamed_s - at_s
        return behind_s / len(self.decode)

    def send(self, request: Request, at_s: float) -> None:
        decode = self.to_decode.choose(request.arrival)
        prefill = self.to_prefill.choose(request.arrival)
        assert isinstance(decode, DecodeEngine)
        assert isinstance(prefill, PrefillEngine)
        request.worker = f"{prefill.name}+{decode.name}"
        decode.load += 1
        request.reached_s = at_s
        self._source[request.arrival.number] = prefill
        found_s = decode.found_s(at_s)
        if found_s > at_s:
            self._post(found_s, "found", request, decode)
        else:
            self._bootstrap(decode, request, at_s)

    def _bootstrap(self, decode: DecodeEngine, request: Request, at_s: float) -> None:
        alone = self._apart and not decode.bootstrapping
        decode.bootstrapping.append((request, at_s, self._source.pop(request.arrival.number)))
        if not alone:
            self._reserve(decode, at_s)
            return
        if not decode.waiting:
            # who decodes there has ended by then or holds that much more
            grown = decode.steps_until(at_s) * len(decode.running) * decode.applied.accept_length
            self._reserve(decode, at_s, grown)
        if decode.bootstrapping:
            self._catch_up(decode, at_s)
            self._reserve(decode, at_s)
            if decode.bootstrapping and not decode.idle:
                self._wake(decode)

    def _wake(self, engine: Engine) -> None:
        heapq.heappush(self._order, (engine.clock, self._engines.index(engine)))

    def advance(self, limit_s: float) -> list[Request]:
        while not (ended := self._event(limit_s)) and self.now_s < limit_s:
            pass
        ended += self._ended
        self._ended.clear()
        return ended

    def _event(self, limit_s: float) -> list[Request]:
        order = self._order
        if self._messages and (not order or self._messages[0][0] <= order[0][0]):
            return self._deliver()
        if not order:
            for decode in self.decode:
                self._catch_up(decode, limit_s)
            return [r for d in self.decode for r in self._expire(d, math.inf)]
        _, place = heapq.heappop(order)
        engine = self._engines[place]
        horizon = limit_s
        if self._messages and self._messages[0][0] < horizon:
            horizon = self._messages[0][0]
        # decode engines meet only through prompts and endings: where no ending sends anything they may run apart
        if not self.endings_send and isinstance(engine, DecodeEngine):
            for prefill in self.prefill:
                if prefill.clock < horizon and not prefill.idle:
                    horizon = prefill.clock
        elif order and order[0][0] < horizon:
            horizon = order[0][0]
        ended = engine.advance(horizon)
        if isinstance(engine, PrefillEngine):
            if not engine.idle:
                heapq.heappush(order, (engine.clock, place))
            for request in ended:
                self._transfer(engine, request)
            return []
        assert isinstance(engine, DecodeEngine)
        if engine.bootstrapping:
            ended += self._expire(engine, engine.clock)
            self._reserve(engine, engine.clock)
        if not engine.idle and (engine.bootstrapping or not self._apart):
            heapq.heappush(order, (engine.clock, place))
        return ended

    def _deliver(self) -> list[Request]:
        at_s, _, kind, request, engine = heapq.heappop(self._messages)
        was_idle = engine.idle
        if kind == "prefill":
            worker = request.worker
            engine.submit(request, at_s)
            request.worker = worker
            if was_idle:
                self._wake(engine)
            return []
        assert isinstance(engine, DecodeEngine)
        if kind == "found":
            self._bootstrap(engine, request, at_s)
            return []
        if self._apart and not engine.bootstrapping:
            self._catch_up(engine, at_s)
        ended = engine.receive(request, at_s)
        if was_idle and not engine.idle and (engine.bootstrapping or not self._apart):
            self._wake(engine)
        if ended:
            self._reserve(engine, max(engine.clock, at_s))
        return ended

    def _post(self, at_s: float, kind: str, request: Request, engine: Engine) -> None:
        self._sent += 1
        heapq.heappush(self._messages, (at_s, self._sent, kind, request, engine))

    def _reserve(self, decode: DecodeEngine, now_s: float, growth_tokens: float = 0.0) -> None:
        while (found := decode.reserve(growth_tokens)) is not None:
            request, at_s, prefill = found
            assert prefill is not None
            self._target[request.arrival.number] = decode
            set_aside_s = max(now_s, at_s)
            self._admitted(request)
            self._reached(request, "decode slot", set_aside_s)
            self._reached(request, "handshake", set_aside_s + HANDSHAKE_S)
            self._post(set_aside_s + HANDSHAKE_S, "prefill", request, prefill)

    def _transfer(self, engine: PrefillEngine, request: Request) -> None:
        """KV leaves while later chunks are computed; what is left when the last chunk is done is waited for."""
        least_s = engine.clock + self.transfer.seconds(request.last_piece)
        tokens = request.arrival.input_tokens - request.cached
        done = self._send_kv(engine, request, engine.round_start_s, tokens, least_s)
        self._computed(engine, request)
        self._reached(request, "KV transfer", done)
        self._post(done, "decode", request, self._target.pop(request.arrival.number))

    def _computed(self, engine: PrefillEngine, request: Request) -> None:
        self._reached(request, "prefill queue", request.joined_s)
        self._reached(request, "prompt", engine.clock)

    def _send_kv(
        self, engine: PrefillEngine, request: Request, at_s: float, tokens: int, least_s: float = 0.0
    ) -> float:
        """When so many tokens of its KV are sent, which could leave its port from `at_s` on."""
        port = (engine.name, request.rank)
        done = max(max(self._ports.get(port, 0.0), at_s) + self.transfer.seconds(tokens), least_s)
        self._ports[port] = done
        self._sent_bytes += tokens * self.transfer.bytes_per_token
        self._sending_s = (min(self._sending_s[0], at_s), max(self._sending_s[1], done))
        return done

    def _expire(self, decode: DecodeEngine, now_s: float) -> list[Request]:
        failed = []
        while decode.bootstrapping and decode.bootstrapping[0][1] + BOOTSTRAP_LIMIT_S < now_s:
            request, at_s, _ = decode.bootstrapping.popleft()
            decode.load -= 1
            request.end_s = at_s + BOOTSTRAP_LIMIT_S
            request.failure = "kv-transfer"
            failed.append(request)
        return failed


class Proxied(Disaggregated):
    """Prefill and decode engines that a proxy asks one after the other, as vLLM's do."""

    _apart = False  # decode engines ask the same ports for KV

    def __init__(self, prefill: Sequence[PrefillEngine], decode: Sequence[PullingEngine], transfer: KvTransfer,
                 policy: str) -> None:  # fmt: skip
        super().__init__(prefill, decode, transfer, policy)
        for engine in decode:
            engine.pull, engine.asking_s = self._pull, transfer.asking_s

    def _bootstrap(self, decode: DecodeEngine, request: Request, at_s: float) -> None:
        self._admitted(request)
        self._target[request.arrival.number] = decode
        self._post(at_s, "prefill", request, self._source[request.arrival.number])

    def _transfer(self, engine: PrefillEngine, request: Request) -> None:
        """Nothing is sent before it is asked for."""
        self._computed(engine, request)
        self._post(engine.clock, "decode", request, self._target.pop(request.arrival.number))

    def _pull(self, request: Request, at_s: float) -> float:
        done = self._send_kv(self._source.pop(request.arrival.number), request, at_s, request.cached)
        self._reached(request, "decode queue", at_s)
        self._reached(request, "KV transfer", done)
        return done
