"""The paths a server of tokens answers: OpenAI's, SGLang's own, vLLM's, and what routers and operators look at."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ridgeline.errors import InputError
from ridgeline.serving.engines.base import engine_named
from ridgeline.serving.traffic.texts import Text, TextsByBlock
from ridgeline.serving.traffic.traffic import Arrival
from ridgeline.serving.twin.front_end import FrontEnd, Tokenizers
from ridgeline.serving.twin.server.answers import HttpAnswer
from ridgeline.serving.twin.server.http import HttpExchange
from ridgeline.serving.twin.server.live import Clock, LiveRequest, parse_fault
from ridgeline.serving.twin.server.metrics import Counters, Gauges, metrics_text
from ridgeline.serving.twin.server.prompt import BLOCK_TOKENS, ParsedPrompt, UnservedFieldError, read_body
from ridgeline.serving.twin.server.roles import ColocatedEngines, PrefillRole, Role

_OPEN_PATHS = ("/health", "/health_generate", "/metrics", "/ping")
_RATE_WINDOW_S = 5.0
_HEALTH_LIMIT_S = 20.0  # SGLang's SGLANG_HEALTH_CHECK_TIMEOUT: how long /health_generate waits for a token
_ERRORS = {400: "BadRequestError", 401: "AuthenticationError", 503: "ServiceUnavailableError"}


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What the server says of itself. `api` is sglang or vllm, and `engine` the one that it computes; `role` null,
    prefill or decode, as SGLang says it."""

    model: str
    api: str
    engine: str
    version: str
    role: str
    tp: int
    dp: int
    pool_tokens: int
    rank_pool_tokens: int
    context_tokens: int
    running_limit: int
    radix_cache: bool
    api_key: str = ""
    bootstrap_port: int | None = None  # of a prefill server
    queue_limit: int | None = None  # requests that may wait; more are refused, as SGLang does
    started_with: Mapping[str, object] = field(default_factory=dict)  # further arguments, as SGLang repeats them


_MOST_BLOCKS = 2_000_000  # whose names are kept


class Api:
    """Answers one exchange after the other. `inject` makes a fault happen."""

    def __init__(
        self,
        facts: ServerFacts,
        role: Role,
        clock: Clock,
        inject: Callable[[str], None],
        front_end: FrontEnd,
    ) -> None:
        self.facts, self.role, self.clock = facts, role, clock
        self._tokenizers = Tokenizers(front_end)
        self.counters = Counters()
        self._inject = inject
        self._number = 0
        self._texts = TextsByBlock(BLOCK_TOKENS)
        self._asked_for_tokens: set[asyncio.Task[None]] = set()
        self._frozen: Gauges | None = None
        self._made: deque[tuple[float, int]] = deque([(0.0, 0)])  # output tokens over the last seconds
        self._paths: dict[tuple[str, str], Callable[[HttpExchange], None]] = {
            ("GET", "/health"): self._healthy,
            ("GET", "/health_generate"): self._makes_tokens,
            ("GET", "/ping"): self._healthy,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/v1/models"): self._models,
            ("GET", "/server_info"): self._server_info,
            ("GET", "/get_server_info"): self._server_info,
            ("GET", "/model_info"): self._model_info,
            ("GET", "/get_model_info"): self._model_info,
            ("GET", "/get_load"): self._load,
            ("GET", "/v1/loads"): self._loads,
            ("POST", "/flush_cache"): self._flush,
            ("POST", "/fault"): self._fault,
            ("POST", "/v1/completions"): self._generate,
            ("POST", "/v1/chat/completions"): self._generate,
            ("POST", "/generate"): self._generate,
        }
        # only vLLM answers /version, and smg takes whoever does for a vLLM
        if ("GET", own := engine_named(facts.api).info_path) not in self._paths:
            self._paths["GET", own] = lambda exchange: exchange.answer_json(200, {"version": facts.version})

    def handle(self, exchange: HttpExchange) -> None:
        if not self._may(exchange):
            _refuse(exchange, 401, "Unauthorized: the API key is missing or wrong")
            return
        answer = self._paths.get((exchange.method, exchange.path))
        if answer is None:
            known = any(path == exchange.path for _, path in self._paths)
            _refuse(exchange, 405 if known else 404, f"{exchange.method} {exchange.path} is not served here")
            return
        answer(exchange)

    def freeze(self, hung: bool) -> None:
        """/metrics says what the engine reported last: of one that hangs the gauges stay as they were."""
        self._frozen = self.gauges() if hung else None

    def gauges(self) -> Gauges:
        engines = [live.engine for live in self.role.engines]
        (first_s, first), (last_s, last) = self._made[0], self._made[-1]
        return Gauges(
            running=sum(len(e.running) for e in engines),
            waiting=sum(e.load - len(e.running) for e in engines),
            used_tokens=int(sum(e.held_tokens for e in engines)),
            pool_tokens=sum(e.pool_tokens for e in engines),
            output_tok_s=(last - first) / (last_s - first_s) if last_s > first_s else 0.0,
            retractions=sum(e.retractions for e in engines),
            behind_s=max(live.behind_s for live in self.role.engines),
            made=sum(live.made for live in self.role.engines),
            late=sum(live.late for live in self.role.engines),
        )

    def tick(self) -> None:
        """Once a second: what the rates are made of."""
        now_s = self.clock.now_s()
        self._made.append((now_s, self.counters.output_tokens))
        while len(self._made) > 2 and self._made[1][0] < now_s - _RATE_WINDOW_S:
            self._made.popleft()

    def _may(self, exchange: HttpExchange) -> bool:
        if not self.facts.api_key or exchange.path in _OPEN_PATHS:
            return True
        given = exchange.headers.get(b"authorization", b"")
        return hmac.compare_digest(given, f"Bearer {self.facts.api_key}".encode())

    # requests for tokens

    def _generate(self, exchange: HttpExchange) -> None:
        try:
            asked = read_body(exchange.path, exchange.body)
            self._check_servable(asked)
        except InputError as bad:
            _refuse(exchange, 400, str(bad), bad.param if isinstance(bad, UnservedFieldError) else None)
            return
        if asked.model not in (None, self.facts.model):
            _refuse(exchange, 404, f"The model `{asked.model}` does not exist.", "model")
            return
        limit = self.facts.queue_limit
        if limit is not None and isinstance(self.role, ColocatedEngines) and self.gauges().waiting >= limit:
            _refuse(exchange, 503, "The request queue is full.")
            return
        now_s, counters = self.clock.now_s(), self.counters
        text = self._text(asked)
        self._number += 1
        answer = HttpAnswer(exchange, asked, self.facts.model, self._number, self.facts.api)
        arrival = Arrival(self._number, now_s, asked.input_tokens, asked.output_tokens, text)
        request = LiveRequest(arrival, now_s, asked.input_tokens, sink=answer)
        if isinstance(self.role, PrefillRole) and asked.kv_transfer is not None:
            answer.extra = {"kv_transfer_params": self.role.kv_parameters(request)}

        last_s = now_s

        def tokens(count: int) -> None:
            nonlocal last_s
            came_s = self.clock.now_s()
            waited_s, last_s = came_s - last_s, came_s
            if answer.made:  # tokens that come together share the time since the one before
                counters.itl.add(waited_s / count, count)
                return
            answer.cached = request.cached
            counters.prompt_tokens += asked.input_tokens
            counters.cached_tokens += answer.cached
            counters.ttft.add(waited_s)

        def end(failure: str) -> None:
            counters.failed += bool(failure)
            counters.requests += 1
            counters.output_tokens += answer.made
            counters.e2e.add(self.clock.now_s() - now_s)

        wait_s = (self._tokenizers.ready_s(now_s, asked.input_tokens, text is not None) - now_s) / self.clock.speed
        coming = asyncio.get_running_loop().call_later(wait_s, self.role.take, request, asked)

        def gone() -> None:
            counters.aborted += 1
            coming.cancel()
            self.role.abort(request)

        answer.on_tokens, answer.on_end, exchange.on_gone = tokens, end, gone

    def _text(self, asked: ParsedPrompt) -> Text | None:
        """What its prompt has in common with those before. The names of blocks are begun anew before they fill memory:
        later prompts then find nothing of earlier ones."""
        if not (self.facts.radix_cache and asked.blocks):
            return None
        if len(self._texts) > _MOST_BLOCKS:
            self._texts = TextsByBlock(BLOCK_TOKENS)
        return self._texts.text(asked.blocks, asked.input_tokens)

    def _check_servable(self, asked: ParsedPrompt) -> None:
        tokens, facts = asked.input_tokens + asked.output_tokens, self.facts
        if tokens > facts.context_tokens:
            raise InputError(
                f"{asked.input_tokens} prompt tokens and {asked.output_tokens} to make are more than the context of "
                f"{facts.context_tokens} tokens; ask for less"
            )
        if tokens > facts.rank_pool_tokens:
            raise InputError(f"{tokens} tokens are more than the KV pool of a rank holds ({facts.rank_pool_tokens})")

    # about the server

    def _healthy(self, exchange: HttpExchange) -> None:
        exchange.answer(200, b"", "text/plain")

    def _makes_tokens(self, exchange: HttpExchange) -> None:
        """Unlike /health it is honest: 200 when a token could be made, 503 when none came in its time."""
        task = asyncio.create_task(self._when_it_makes_tokens(exchange))
        self._asked_for_tokens.add(task)
        task.add_done_callback(self._asked_for_tokens.discard)

        def gone() -> None:
            task.cancel()

        exchange.on_gone = gone

    async def _when_it_makes_tokens(self, exchange: HttpExchange) -> None:
        until_s = self.clock.now_s() + _HEALTH_LIMIT_S
        while hung := any(live.hung for live in self.role.engines):
            if self.clock.now_s() >= until_s:
                break
            await asyncio.sleep(min(1.0, _HEALTH_LIMIT_S / self.clock.speed / 20))
        exchange.answer(503 if hung else 200, b"", "text/plain")

    def _flush(self, exchange: HttpExchange) -> None:
        """Every prefix is forgotten. SGLang refuses that while requests are under way; here new ones find nothing."""
        for live in self.role.engines:
            live.forget_prefixes()
        exchange.answer(200, b"Cache flushed.\n", "text/plain")

    def _metrics(self, exchange: HttpExchange) -> None:
        text = metrics_text(self.facts.api, self.facts.model, self.counters, self._frozen or self.gauges())
        exchange.answer(200, text.encode(), "text/plain; version=0.0.4")

    def _models(self, exchange: HttpExchange) -> None:
        facts = self.facts
        card = {"id": facts.model, "object": "model", "created": int(time.time()), "owned_by": "ridgeline"}
        exchange.answer_json(200, {"object": "list", "data": [{**card, "max_model_len": facts.context_tokens}]})

    def _model_info(self, exchange: HttpExchange) -> None:
        exchange.answer_json(200, {"model_path": self.facts.model, "is_generation": True, "tokenizer_path": ""})

    def _server_info(self, exchange: HttpExchange) -> None:
        facts = self.facts
        exchange.answer_json(
            200,
            {
                "model_path": facts.model,
                "served_model_name": facts.model,
                **facts.started_with,
                "tp_size": facts.tp,
                "dp_size": facts.dp,
                "disaggregation_mode": facts.role,
                "disaggregation_bootstrap_port": facts.bootstrap_port,
                "max_running_requests": facts.running_limit,
                "max_total_num_tokens": facts.pool_tokens,
                "version": facts.version,
                "ridgeline_twin": True,
                "engine": facts.engine,
            },
        )

    def _per_engine(self) -> list[dict[str, object]]:
        return [
            {
                "dp_rank": n,
                "num_reqs": live.engine.load,
                "num_running_reqs": len(live.engine.running),
                "num_waiting_reqs": live.engine.load - len(live.engine.running),
                "num_tokens": int(live.engine.held_tokens),
                "num_used_tokens": int(live.engine.held_tokens),
                "max_total_num_tokens": live.engine.pool_tokens,
                "token_usage": live.engine.held_tokens / live.engine.pool_tokens,
            }
            for n, live in enumerate(self.role.engines)
        ]

    def _load(self, exchange: HttpExchange) -> None:
        exchange.answer_json(200, self._per_engine())

    def _loads(self, exchange: HttpExchange) -> None:
        loads = self._per_engine()
        exchange.answer_json(200, {"version": self.facts.version, "dp_rank_count": len(loads), "loads": loads})

    def _fault(self, exchange: HttpExchange) -> None:
        try:
            kind = json.loads(exchange.body or b"{}").get("kind", "")
            if kind != "none":
                parse_fault(str(kind))
        except (InputError, ValueError, AttributeError) as bad:
            _refuse(exchange, 400, str(bad))
            return
        exchange.answer_json(200, {"fault": kind})
        self._inject(str(kind))


def _refuse(exchange: HttpExchange, status: int, why: str, param: str | None = None) -> None:
    kind = _ERRORS.get(status, "NotFoundError")
    error = {"message": why, "type": kind, "param": param, "code": status}
    exchange.answer_json(status, {"object": "error", "error": error})
