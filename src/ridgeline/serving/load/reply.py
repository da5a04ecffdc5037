"""What a response body says: when tokens came, how many, and whether the stream ended as it should.

A stream is taken in pieces as they arrive, each with its arrival time, and read only when it ends or grows large: while
it lasts nothing but a list append stands between the socket and the next stream. A token is recognised in the raw bytes
and JSON is decoded only where that leaves doubt and for the last events, which carry the counts.
"""

from __future__ import annotations

import json
import re
from typing import Any

# Inside a JSON string every quote is escaped, so these can only match a key of the object and a non-empty string.
_TEXT = {
    "chat": re.compile(rb'"(reasoning_content|reasoning|content|refusal|arguments)"\s*:\s*"(?!")'),
    "completions": re.compile(rb'"(text)"\s*:\s*"(?!")'),
}
_SOFAR = re.compile(rb'"completion_tokens"\s*:\s*(\d+)')
# An unread stream is digested when it holds this many pieces, so that long answers do not pile up in memory.
_PIECES = 512
_ENDING_EVENTS = 3


class Reply:
    """One response body. `take` while it arrives, `close` once it has ended, then read the fields."""

    __slots__ = (
        "_at_s", "_cumulative", "_endings", "_held", "_pattern", "_pieces", "_streamed", "_tail",
        "bytes_seen", "cached_tokens", "done", "error", "finished", "last_event_s", "malformed", "output_tokens",
        "prompt_tokens", "reasoning_events", "reasoning_tokens", "text", "token_times_s",
    )  # fmt: skip

    def __init__(self, interface: str, streamed: bool = True) -> None:
        self._pattern = _TEXT.get(interface)
        self._cumulative = 0
        self._streamed = streamed
        self._pieces: list[tuple[float, bytes]] = []
        self._tail = b""
        self._at_s = 0.0
        self._held: list[bytes] = []
        self._endings: list[bytes] = []
        self.token_times_s: list[float] = []
        self.last_event_s: float | None = None
        self.bytes_seen = 0
        self.text = b""  # the whole body, where one document was asked for
        self.done = False  # the stream said [DONE]
        self.finished = False  # an event gave a finish reason
        self.malformed = ""
        self.error = ""
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self.reasoning_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.reasoning_events = 0

    def expect_whole(self) -> None:
        """The server announced one JSON document although a stream was asked for."""
        self._streamed = False

    def take(self, at_s: float, piece: bytes) -> None:
        pieces = self._pieces
        pieces.append((at_s, piece))
        if len(pieces) >= _PIECES and self._streamed:
            self._digest()

    @property
    def partial(self) -> bool:
        """Whether the body ended in the middle of an event (after `close`)."""
        return bool(self._tail)

    @property
    def said_anything(self) -> bool:
        return bool(self.token_times_s or self.finished or self.output_tokens)

    def raw(self, limit: int) -> bytes:
        """The unread beginning of the body: what an HTTP error says."""
        return b"".join(piece for _, piece in self._pieces[:64])[:limit]

    def close(self) -> None:
        """Reads what is left. Call once, after the last piece."""
        if not self._streamed:
            self._read_whole()
            return
        self._digest()
        line = self._tail.strip()
        # a last line without its line break: whole if it reads as an event, else the stream was cut inside it
        if not line or (line.startswith(b"data:") and _reads(line[5:])):
            self._tail = b""
            self._held += [line[5:]] if line else []
        self._dispatch(self._at_s)
        for payload in self._endings:
            self._read_ending(payload)

    def _digest(self) -> None:
        pieces, self._pieces = self._pieces, []
        for at_s, piece in pieces:
            self.bytes_seen += len(piece)
            text = self._tail + piece if self._tail else piece
            if b"\r" in text:
                text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            *lines, self._tail = text.split(b"\n")
            for line in lines:
                if not line:
                    if self._held:
                        self._dispatch(at_s)
                elif line.startswith(b"data:"):
                    self._held.append(line[5:])
                elif line.startswith(b"{") and not self._held:
                    self._held.append(line)  # servers that forget the framing for an error body in mid-stream
        if pieces:
            self._at_s = pieces[-1][0]

    def _dispatch(self, at_s: float) -> None:
        if not self._held:
            return
        payload = (self._held[0] if len(self._held) == 1 else b"\n".join(self._held)).strip()
        self._held.clear()
        self.last_event_s = at_s
        if payload == b"[DONE]":
            self.done = True
            return
        self._endings.append(payload)
        if len(self._endings) > _ENDING_EVENTS:
            del self._endings[0]
        whole = payload[-1:] == b"}"
        if whole and self._pattern is not None:
            found = self._pattern.search(payload)
            if found is not None:
                self.token_times_s.append(at_s)
                if found[1] in (b"reasoning_content", b"reasoning"):
                    self.reasoning_events += 1
                return
        elif whole:
            sofar = _SOFAR.search(payload)
            if sofar is not None and int(sofar[1]) > self._cumulative:
                self._cumulative = int(sofar[1])
                self.token_times_s.append(at_s)
                return
        self._doubt(payload)

    def _doubt(self, payload: bytes) -> None:
        """An event that shows no token: a role, a finish reason, usage, an error, or damage."""
        if not payload:
            return
        try:
            event = json.loads(payload)
        except (ValueError, RecursionError):
            self.malformed = self.malformed or payload[:80].decode("latin-1")
            return
        if not isinstance(event, dict):
            self.malformed = self.malformed or payload[:80].decode("latin-1")
        elif event.get("error"):
            self.error = error_text(event)

    def _read_ending(self, payload: bytes) -> None:
        try:
            event = json.loads(payload)
        except (ValueError, RecursionError):
            return
        if isinstance(event, dict):
            self._counts(event)

    def _counts(self, event: dict[str, Any]) -> None:
        for choice in _dicts(event.get("choices")):
            self.finished = self.finished or choice.get("finish_reason") is not None
        usage = event.get("usage")
        meta = event.get("meta_info")
        if isinstance(meta, dict):
            self.finished = self.finished or meta.get("finish_reason") is not None
            usage = meta
        if not isinstance(usage, dict):
            return
        self.prompt_tokens = _count(usage.get("prompt_tokens"), self.prompt_tokens)
        self.output_tokens = _count(usage.get("completion_tokens"), self.output_tokens)
        self.cached_tokens = _count(usage.get("cached_tokens"), self.cached_tokens)
        self.reasoning_tokens = _count(usage.get("reasoning_tokens"), self.reasoning_tokens)
        prompt, output = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
        if isinstance(prompt, dict):
            self.cached_tokens = _count(prompt.get("cached_tokens"), self.cached_tokens)
        if isinstance(output, dict):
            self.reasoning_tokens = _count(output.get("reasoning_tokens"), self.reasoning_tokens)

    def _read_whole(self) -> None:
        text = b"".join(piece for _, piece in self._pieces)
        self.bytes_seen, self.text = len(text), text
        if text.lstrip()[:5] in (b"data:", b"event"):
            self._streamed = True  # a stream under the wrong content type; its pieces still hold their times
            self.close()
            return
        if self._pieces:
            self.last_event_s = self._pieces[-1][0]
        self._pieces = []
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError):
            self.malformed = text[:80].decode("latin-1") or "an empty body"
            return
        answer = answer[0] if isinstance(answer, list) and len(answer) == 1 else answer
        if not isinstance(answer, dict):
            self.malformed = text[:80].decode("latin-1")
            return
        self.done = True
        if answer.get("error"):
            self.error = error_text(answer)
        self._counts(answer)
        self.finished = self.finished or bool(_dicts(answer.get("choices"))) or "text" in answer


def error_text(answer: object) -> str:
    """The sentence in an error body, whichever of the usual shapes it has."""
    for name in ("error", "message", "detail"):
        if isinstance(answer, dict) and answer.get(name):
            return error_text(answer[name])
    return (answer if isinstance(answer, str) else json.dumps(answer))[:300]


def _dicts(value: object) -> list[dict[str, Any]]:
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []


def _count(value: object, otherwise: int | None) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else otherwise


def _reads(payload: bytes) -> bool:
    if payload.strip() == b"[DONE]":
        return True
    try:
        json.loads(payload)
    except (ValueError, RecursionError):
        return False
    return True
