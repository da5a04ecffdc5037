"""Answers in the words of the three interfaces: OpenAI's completions and chat, and SGLang's own."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping

from ridgeline.serving.engines.base import engine_named
from ridgeline.serving.engines.releases import USUAL_ENGINE
from ridgeline.serving.twin.server.http import HttpExchange, chunk
from ridgeline.serving.twin.server.prompt import MADE_TEXT, ParsedPrompt


class HttpAnswer:
    """One request's answer: streams the tokens of its choices, or answers when all are there.

    Nothing is sent before the first token, as current engines do: until then a router may still ask somebody else.
    """

    def __init__(
        self, exchange: HttpExchange, asked: ParsedPrompt, model: str, number: int, api: str = USUAL_ENGINE
    ) -> None:
        self._exchange, self._asked, self._model, self._number = exchange, asked, model, number
        self._stopped_by = engine_named(api).stop_field
        self._created = int(time.time())
        self.sinks = [ChoiceSink(self, index) for index in range(asked.choices)]
        self.cached = 0
        self.extra: Mapping[str, object] = {}  # fields of the whole answer beside the usual ones
        self.on_first: Callable[[], None] = lambda: None
        self.on_end: Callable[[str], None] = lambda failure: None
        self._begun = self._over = False

    @property
    def made(self) -> int:
        """Tokens of all choices so far."""
        return sum(sink.made for sink in self.sinks)

    def came(self, sink: ChoiceSink, count: int) -> None:
        """More tokens of a choice, which it has counted."""
        if not self._begun:
            self._begun = True
            self.on_first()
        exchange = self._exchange
        if not self._asked.stream or exchange.done:
            return
        if self._asked.interface == "generate":  # whose events count the tokens so far
            self._begin()
            exchange.write(chunk(self._event(self._generated(sink, finished=False))))
        elif count == 1 and self._asked.shown is None:
            if not sink.token:
                self._begin()
                sink.token = chunk(self._event(self._choice(sink, MADE_TEXT, None)))
            exchange.write(sink.token)
        elif text := self._text(sink.made)[len(self._text(sink.made - count)) :]:
            self._begin()
            exchange.write(chunk(self._event(self._choice(sink, text, None))))

    def ended(self, sink: ChoiceSink, failure: str) -> None:
        """A choice got its last token, or failed, which fails the others as well."""
        whole = all(one.over for one in self.sinks)
        if self._over or not (failure or whole or self._asked.stream):
            return
        exchange = self._exchange
        if failure or whole:
            self._over = True
            self.on_end(failure)
        if exchange.done:
            return
        if failure:
            self._fail(failure)
        elif self._asked.stream:
            self._finish_choice(sink)
            if whole:
                self._finish_stream()
        else:
            exchange.answer_json(200, self._whole())

    def _begin(self) -> None:
        if not self._exchange.begun:
            self._exchange.begin()
            if self._asked.interface == "chat":
                for sink in self.sinks:
                    self._exchange.write(chunk(self._event(self._choice(sink, "", None, role=True))))

    def _fail(self, failure: str) -> None:
        error = {"message": failure, "type": "InternalServerError", "code": 500}
        if not self._exchange.begun:
            self._exchange.answer_json(500, {"error": error})
            return
        self._exchange.write(chunk(self._event({"error": error})))
        self._exchange.finish()

    def _finish_choice(self, sink: ChoiceSink) -> None:
        self._begin()
        if self._asked.interface == "generate":
            self._exchange.write(chunk(self._event(self._generated(sink, finished=True))))
        else:
            self._exchange.write(chunk(self._event(self._choice(sink, "", self._finish_reason))))

    def _finish_stream(self) -> None:
        exchange = self._exchange
        if self._asked.usage and self._asked.interface != "generate":
            exchange.write(chunk(self._event({**self._frame(), "choices": [], "usage": self._usage()})))
        exchange.write(chunk(b"data: [DONE]\n\n"))
        exchange.finish()

    def _text(self, tokens: int) -> str:
        return (MADE_TEXT * tokens)[: self._asked.shown]

    @property
    def _finish_reason(self) -> str:
        return "stop" if self._asked.stop else "length"

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

    def _choice(self, sink: ChoiceSink, text: str, finish: str | None, role: bool = False) -> dict[str, object]:
        choice: dict[str, object] = {"index": sink.index}
        if self._asked.interface == "chat":
            choice["delta"] = {"role": "assistant", "content": ""} if role else {"content": text} if text else {}
        else:
            choice["text"] = text
        return {**self._frame(), "choices": [{**choice, "logprobs": None, **self._end_of(finish)}]}

    def _end_of(self, finish: str | None) -> dict[str, object]:
        return {"finish_reason": finish, self._stopped_by: self._asked.stop or None if finish else None}

    def _usage(self) -> dict[str, object]:
        asked = self._asked.input_tokens
        return {
            "prompt_tokens": asked,
            "completion_tokens": self.made,
            "total_tokens": asked + self.made,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }

    def _generated(self, sink: ChoiceSink, finished: bool) -> dict[str, object]:
        reason: dict[str, object] = {"type": "length", "length": sink.made}
        if self._asked.stop:
            reason = {"type": "stop", "matched": self._asked.stop}
        meta = {
            "id": str(self._number),
            "prompt_tokens": self._asked.input_tokens,
            "completion_tokens": sink.made,
            "cached_tokens": self.cached,
            "finish_reason": reason if finished else None,
        }
        several = {"index": sink.index} if len(self.sinks) > 1 else {}
        return {"text": self._text(sink.made), "meta_info": meta, **several}

    def _whole(self) -> object:
        if self._asked.interface == "generate":
            found = [{**self._generated(sink, finished=True), **self.extra} for sink in self.sinks]
            return found if len(found) > 1 else found[0]
        choices = []
        for sink in self.sinks:
            text = self._text(sink.made)
            chat = self._asked.interface == "chat"
            said = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
            choices.append({"index": sink.index, **said, "logprobs": None, **self._end_of(self._finish_reason)})
        return {**self._frame(), "choices": choices, "usage": self._usage(), **self.extra}


class ChoiceSink:
    """Where the tokens of one choice go."""

    def __init__(self, answer: HttpAnswer, index: int) -> None:
        self._answer, self.index = answer, index
        self.made = 0
        self.over = False
        self.token = b""  # the event of one token, the same for all of a choice

    def tokens(self, count: int) -> None:
        self.made += count
        self._answer.came(self, count)

    def end(self, failure: str) -> None:
        self.over = True
        self._answer.ended(self, failure)
