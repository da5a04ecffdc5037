"""What a canary is worth: a token that was looked at; refusals are a state of their own and end no watching."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from ridgeline.serving.service import probe
from ridgeline.serving.service.keep import canary
from ridgeline.serving.service.keep.canary import Canaries
from ridgeline.serving.service.probe import TokenAnswer

GOOD = {"choices": [{"text": " tide"}]}
CHAT = {"choices": [{"message": {"role": "assistant", "content": " tide"}}]}


@dataclass
class Engine:
    """A server that answers each path as it is told."""

    url: str = ""
    answers: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def says(self, path: str, status: int, body: object) -> None:
        self.answers[path] = (status, body if isinstance(body, bytes) else json.dumps(body).encode())

    def token(self, **more: Any) -> TokenAnswer:
        return probe.ask_for_token(self.url, "m", "k", 10, **more)


@pytest.fixture
def engine() -> Iterator[Engine]:
    found = Engine()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.asked.append((self.path, json.loads(self.rfile.read(int(self.headers["content-length"])))))
            status, body = found.answers.get(self.path, (404, b"{}"))
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found.url = f"http://127.0.0.1:{server.server_port}"
        found.says("/v1/completions", 200, GOOD)
        found.says("/v1/chat/completions", 200, CHAT)
        yield found
        server.shutdown()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"choices": []}, "an answer without choices"),
        ({"choices": None}, "an answer without choices"),
        ({}, "an answer without choices"),
        ([], "an answer without choices"),
        ({"choices": ["x"]}, "an answer without choices"),
        ({"choices": [{"text": ""}], "usage": {"completion_tokens": 1}}, "an answer with an empty text"),
        ({"choices": [{"text": None}]}, "an answer with an empty text"),
        (b"<html>502 from a proxy that says 200</html>", "an answer that is not JSON: <html>502"),
        (b"", "an answer that is not JSON"),
    ],
)
def test_an_answer_without_a_token_is_no_token(engine: Engine, body: object, why: str) -> None:
    engine.says("/v1/completions", 200, body)
    found = engine.token()
    assert not found.good and found.broken and not found.refused
    assert found.why.startswith(why)
    assert probe.why_refused(engine.url, "m", "", 10).startswith(why), "nor through a router"
    engine.says("/v1/completions", 200, GOOD)
    engine.says("/v1/chat/completions", 200, body)
    assert engine.token(chat=True).why.startswith(f"chat: {why}"), "nor is it one in a chat"


def test_chat_and_completions_are_both_asked_where_both_are_served(engine: Engine) -> None:
    found = engine.token()
    assert found.good and found.chat is True
    assert [path for path, _ in engine.asked] == ["/v1/completions", "/v1/chat/completions"]
    assert engine.asked[0][1]["max_tokens"] > 1 and engine.asked[0][1]["ignore_eos"] is True
    thinks = {"choices": [{"message": {"content": None, "reasoning_content": "Hm"}}]}
    engine.says("/v1/chat/completions", 200, thinks)
    assert engine.token().good, "a model that thinks first has made tokens"
    for status in (400, 404, 405, 501):
        engine.says("/v1/chat/completions", status, {"message": "no chat template"})
        found = engine.token()
        assert found.good and found.chat is False, "a base model has none"
    engine.asked.clear()
    assert engine.token(chat=False).good
    assert len(engine.asked) == 1
    engine.says("/v1/chat/completions", 400, {"message": "no"})
    assert engine.token(chat=True).refused, "who served it before does not any more"
    engine.says("/v1/chat/completions", 500, {"message": "no"})
    assert not engine.token().good, "and a failure is not that there is none"


@pytest.mark.parametrize(
    ("status", "refused", "wrong_key", "broken"),
    [(429, True, False, False), (401, True, True, False), (403, True, True, False), (404, True, False, False),
     (500, False, False, True), (503, False, False, False)],
)  # fmt: skip
def test_what_a_server_says_instead_of_a_token(
    engine: Engine, status: int, refused: bool, wrong_key: bool, broken: bool
) -> None:
    engine.says("/v1/completions", status, {"message": "because"})
    found = engine.token()
    assert (found.good, found.refused, found.wrong_key, found.broken) == (False, refused, wrong_key, broken)
    assert found.why.startswith(f"{status}: ") and "because" in found.why
    assert bool(probe.why_refused(engine.url, "m", "", 10)) == (status != 429), "a router may be full"


class Flown:
    """Canaries whose clock is ours and that come back when we say so, with what we say."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.answer, self.sent = 0.0, TokenAnswer(), list[float]()
        self.held: list[Callable[[], None]] = []
        self.hangs = False
        monkeypatch.setattr(canary.threading, "Thread", lambda target, args=(), daemon=True: Started(target, args))
        self.canaries = Canaries("vllm", "both", "http://x", "m", "", lambda: self.now_s, self.send)
        self.canaries._context = 0  # no prompts are measured

    def send(self, *_: object, **more: object) -> TokenAnswer:
        self.sent.append(self.now_s)
        if self.hangs:
            raise Hanging
        return self.answer

    def run(self, seconds: float, quiet: bool = True, busy: bool = False) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += 2.0
            verdict = 10.0 - (self.now_s - (self.canaries._since_s or self.now_s))
            self.canaries.poll(quiet, busy, verdict)


class Hanging(Exception):
    """A canary that never comes back."""


class Started:
    def __init__(self, target: Callable[..., None], args: tuple[object, ...]) -> None:
        self._target, self._args = target, args

    def start(self) -> None:
        try:
            self._target(*self._args)
        except Hanging:
            pass


def test_after_refusals_a_hang_is_still_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """429 for twelve seconds, then no answer at all."""
    flown = Flown(monkeypatch)
    flown.answer = TokenAnswer("429: too many", refused=True)
    flown.run(12)
    assert flown.canaries.refusals >= 2 and not flown.canaries.waiting
    flown.hangs = True
    flown.run(18)
    assert flown.canaries.waiting and flown.canaries.confirmed, "within 18 s two of them wait"


def test_refusals_are_retried_ever_more_rarely_counted_and_over_with_the_first_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flown = Flown(monkeypatch)
    flown.answer = TokenAnswer("429: too many", refused=True)
    flown.run(60)
    waits = [after - before for before, after in zip(flown.sent, flown.sent[1:], strict=False)]
    assert waits == sorted(waits) and waits[0] <= 2.0 and max(waits) == 8.0
    assert flown.canaries.counts["refused"] == flown.canaries.refusals == len(flown.sent)
    assert flown.canaries.why == "429: too many"
    flown.answer = TokenAnswer(took_s=0.1)
    flown.run(10)
    assert flown.canaries.refusals == 0 and flown.canaries.good and flown.canaries.answers >= 1


def test_a_refusal_does_not_excuse_a_canary_that_still_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    flown = Flown(monkeypatch)
    flown.hangs = True
    flown.run(8)
    assert flown.canaries.waiting
    flown.hangs, flown.answer = False, TokenAnswer("429: full", refused=True)
    flown.run(8)
    assert flown.canaries.waiting, "the first one is still unanswered"


def test_only_canaries_without_a_prompt_in_their_way_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    flown = Flown(monkeypatch)
    flown.answer = TokenAnswer(took_s=0.3)
    for n in range(8):
        flown.now_s += 6.0
        flown.canaries.poll(True, False, 99.0, clean=n % 2 == 0)
    assert [at_s for at_s, _, _ in flown.canaries.took] == [6.0, 18.0, 30.0, 42.0]
    assert flown.canaries.answers == 8


def test_chat_is_asked_by_every_third_and_until_it_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    flown, asked = Flown(monkeypatch), list[object]()

    def send(*_: object, **more: object) -> TokenAnswer:
        asked.append(more["chat"])
        return flown.answer

    flown.canaries.send = send
    flown.answer = TokenAnswer(took_s=0.1, chat=True)
    flown.run(36)
    assert asked == [None, False, False, True, False, False]
    flown.answer = TokenAnswer("chat: 500: no", broken=True)
    flown.run(24)
    assert asked[6] is True and set(asked[6:]) == {True}, "what failed is asked again"
    base, none = Flown(monkeypatch), list[object]()
    base.canaries.send = lambda *_, **more: none.append(more["chat"]) or TokenAnswer(took_s=0.1, chat=False)  # type: ignore[func-returns-value]
    base.run(30)
    assert none == [None, False, False, False, False], "who serves no chat is not asked again"


def test_answers_without_a_token_mean_something_when_three_came_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    flown = Flown(monkeypatch)
    flown.answer = TokenAnswer("an answer without choices", broken=True)
    flown.run(6)
    seen = [flown.canaries.broken_for_s]
    flown.run(10)
    seen.append(flown.canaries.broken_for_s)
    assert seen[0] < 10 <= seen[1]
    flown.answer = TokenAnswer(took_s=0.1)
    flown.run(4)
    assert flown.canaries.broken_for_s == 0.0
