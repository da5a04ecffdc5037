"""Answers in the words of the three interfaces: OpenAI's completions and chat, and SGLang's own."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping

from ridgeline.serving.engines.base import engine_named
from ridgeline.serving.twin.server.http import HttpExchange, chunk
from ridgeline.serving.twin.server.prompt import MADE_TEXT, ParsedPrompt


class HttpAnswer:
    """One request's answer: streams its tokens, or answers when all are there.

    Nothing is sent before the first token, as current engines do: until then a router may still ask somebody else.
    """

    def __init__(self, exchange: HttpExchange, asked: ParsedPrompt, model: str, number: int, api: str) -> None:
        self._exchange, self._asked, self._model, self._number = exchange, asked, model, number
        self._stopped_by = engine_named(api).stop_field
        self._created = int(time.time())
        self.made = 0  # tokens so far
        self.cached = 0
        self.extra: Mapping[str, object] = {}  # fields of the whole answer beside the usual ones
        self.on_tokens: Callable[[int], None] = lambda count: None  # before `made` counts them
        self.on_end: Callable[[str], None] = lambda failure: None
        self._over = False
        self._token = b""  # the event of one token, the same for all

    def tokens(self, count: int) -> None:
        self.on_tokens(count)
        self.made += count
        exchange = self._exchange
        if not self._asked.stream or exchange.done:
            return
        self._begin()
        if self._asked.interface == "generate":  # whose events count the tokens so far
            exchange.write(chunk(self._event(self._generated(finished=False))))
        elif count == 1:
            self._token = self._token or chunk(self._event(self._choice(MADE_TEXT, None)))
            exchange.write(self._token)
        else:
            exchange.write(chunk(self._event(self._choice(MADE_TEXT * count, None))))

    def end(self, failure: str) -> None:
        """The last token came, or none will."""
        if self._over:
            return
        self._over = True
        self.on_end(failure)
        if self._exchange.done:
            return
        if failure:
            self._fail(failure)
        elif self._asked.stream:
            self._finish_stream()
        else:
            self._exchange.answer_json(200, self._whole())

    def _begin(self) -> None:
        if not self._exchange.begun:
            self._exchange.begin()
            if self._asked.interface == "chat":
                self._exchange.write(chunk(self._event(self._choice("", None, role=True))))

    def _fail(self, failure: str) -> None:
        error = {"message": failure, "type": "InternalServerError", "code": 500}
        if not self._exchange.begun:
            self._exchange.answer_json(500, {"error": error})
            return
        self._exchange.write(chunk(self._event({"error": error})))
        self._exchange.finish()

    def _finish_stream(self) -> None:
        exchange, generate = self._exchange, self._asked.interface == "generate"
        self._begin()
        exchange.write(chunk(self._event(self._generated(finished=True) if generate else self._choice("", "length"))))
        if self._asked.usage and not generate:
            exchange.write(chunk(self._event({**self._frame(), "choices": [], "usage": self._usage()})))
        exchange.write(chunk(b"data: [DONE]\n\n"))
        exchange.finish()

    def _event(self, value: object) -> bytes:
        return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"

    def _frame(self) -> dict[str, object]:
        chat = self._asked.interface == "chat"
        kind = ("chat.completion.chunk" if self._asked.stream else "chat.completion") if chat else "text_completion"
        return {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{self._number}",
            "object": kind,
            "created": self._created,
            "model": self._model,
        }

    def _choice(self, text: str, finish: str | None, role: bool = False) -> dict[str, object]:
        said: dict[str, object] = {"text": text}
        if self._asked.interface == "chat":
            said = {"delta": {"role": "assistant", "content": ""} if role else {"content": text} if text else {}}
        return {**self._frame(), "choices": [{"index": 0, **said, "logprobs": None, **self._end_of(finish)}]}

    def _end_of(self, finish: str | None) -> dict[str, object]:
        return {"finish_reason": finish, self._stopped_by: None}

    def _usage(self) -> dict[str, object]:
        asked = self._asked.input_tokens
        return {
            "prompt_tokens": asked,
            "completion_tokens": self.made,
            "total_tokens": asked + self.made,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }

    def _generated(self, finished: bool) -> dict[str, object]:
        meta = {
            "id": str(self._number),
            "prompt_tokens": self._asked.input_tokens,
            "completion_tokens": self.made,
            "cached_tokens": self.cached,
            "finish_reason": {"type": "length", "length": self.made} if finished else None,
        }
        return {"text": MADE_TEXT * self.made, "meta_info": meta}

    def _whole(self) -> object:
        if self._asked.interface == "generate":
            return {**self._generated(finished=True), **self.extra}
        text = MADE_TEXT * self.made
        chat = self._asked.interface == "chat"
        said = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        choice = {"index": 0, **said, "logprobs": None, **self._end_of("length")}
        return {**self._frame(), "choices": [choice], "usage": self._usage(), **self.extra}
