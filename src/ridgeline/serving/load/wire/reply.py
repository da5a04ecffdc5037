"""What a response body says: when tokens came, how many, and whether the stream ended as it should.

A stream is kept in pieces as they arrive, each with its arrival time, and read only when it ends or grows large: while
it lasts next to nothing stands between the socket and the next stream. A token is recognised in the raw bytes and JSON
is decoded only where that leaves doubt and for the last events, which carry the counts.
"""

from __future__ import annotations

import functools
import json
import re
from bisect import bisect_right
from collections import deque
from itertools import accumulate
from operator import itemgetter, methodcaller
from typing import Any

# Chunked HTTP bodies as servers of tokens send them: one chunk a segment, one event a chunk, one token an event.
#
# A few calls that each look at all bytes of an answer do for such a stretch what would cost far more token by token.
# What does not fit goes to the HTTP parser and down the careful road.

# events without text before the first token (a role) and after the last (finish, usage, [DONE])
_EDGE = 6
_SIZE_BYTES = 8
_QUOTE = 34


def realigned(times_s: list[float], pieces: list[bytes]) -> tuple[list[float], list[bytes], int]:
    """The same bytes cut where chunks begin, each with the time at which its first byte came, and how many are whole.

    `pieces` begin between two chunks. What follows the whole chunks is left as it is.
    """
    if all(map(bytes.startswith, pieces[:-1], map(_chunk_head, map(len, pieces)))):
        return times_s, pieces, len(pieces) - 1
    text, ends = b"".join(pieces), list(accumulate(map(len, pieces)))
    at, times, chunks = 0, [], []
    while (size := _size_at(text, at)) and (end := at + size) <= len(text):
        times.append(times_s[bisect_right(ends, at)])
        chunks.append(text[at:end])
        at = end
    whole = len(chunks)
    if at < len(text):
        first = bisect_right(ends, at)
        times += times_s[first:]
        chunks += [text[at : ends[first]], *pieces[first + 1 :]]
    return times, chunks, whole


def _token_stretch(chunks: list[bytes], key: bytes) -> tuple[int, int]:
    """The part of an answer in which each chunk is one event with text under `key`; maybe empty."""
    start, end = 0, len(chunks)
    while start < end and start < _EDGE and key not in chunks[start]:
        start += 1
    while start < end and len(chunks) - end < _EDGE and key not in chunks[end - 1]:
        end -= 1
    if start == end:
        return 0, 0
    stretch = chunks[start:end]
    at, joined = stretch[0].find(key), b"".join(stretch)
    # All events of a stream are alike up to their text. A chunk that holds none, two or part of one event would have
    # the text's key at another offset, end otherwise, or have more or fewer lines than size, event, nothing, end.
    plain = (
        b"\r\ndata: {" in stretch[0]
        and all(map(methodcaller("endswith", b"}\n\n\r\n"), stretch))
        and joined.count(b"\n") == 4 * len(stretch)
        and all(map(methodcaller("startswith", key, at), stretch))
        and _QUOTE not in map(itemgetter(at + len(key)), stretch)  # a quote right there is an empty text
    )
    return (start, end) if plain else (0, 0)


def _size_at(text: bytes, at: int) -> int:
    """How many bytes the chunk that begins there takes; 0 for the last chunk, or where none begins."""
    line_end = text.find(b"\r\n", at, at + _SIZE_BYTES)
    digits = text[at:line_end]
    if line_end < 0 or not digits.isalnum():
        return 0
    try:
        size = int(digits, 16)
    except ValueError:
        return 0
    return len(digits) + size + 4 if size else 0


@functools.cache
def _chunk_head(length: int) -> bytes:
    """How a chunk begins that takes `length` bytes with its size and line ends; what none begins with if none can."""
    for digits in range(1, _SIZE_BYTES - 2):
        size = length - digits - 4
        if size > 0 and len(head := b"%x\r\n" % size) == digits + 2:
            return head
    return b"\r\n"


# Inside a JSON string every quote is escaped, so these can only match a key of the object and a non-empty string.
_TEXT = {
    "chat": re.compile(rb'"(reasoning_content|reasoning|content|refusal|arguments)"\s*:\s*"(?!")'),
    "completions": re.compile(rb'"(text)"\s*:\s*"(?!")'),
}
# The spelling most servers use, found faster still; anything else goes through the patterns.
_USUAL = {"chat": b'"content":"', "completions": b'"text":"'}
_COUNTS = re.compile(rb'"(?:usage|meta_info)"\s*:\s*\{')
# a word, or in SGLang's own interface an object with its type
_FINISH = re.compile(rb'"finish_reason"\s*:\s*(?:"([^"]*)"|\{[^{}]*?"type"\s*:\s*"([^"]*)")')
_SOFAR = re.compile(rb'"completion_tokens"\s*:\s*(\d+)')
_BODIES = 512
_ENDING_EVENTS = 3


class Reply:
    """One response body. Append to `bodies` and `times_s` as it arrives, `close` when it has ended, then read it."""

    __slots__ = (
        "_began_s", "_cumulative", "_endings", "_held", "_junk", "_pattern", "_shortest", "_streamed", "_tail",
        "_usual", "_weight", "bodies", "cached_tokens", "done", "error", "finish_reason", "finished", "host_tokens",
        "last_event_s", "malformed", "output_tokens", "prompt_tokens", "reasoning_events", "reasoning_tokens",
        "silent_events", "text", "times_s", "token_times_s",
    )  # fmt: skip

    def __init__(self, interface: str, streamed: bool = True) -> None:
        self._pattern = _TEXT.get(interface)
        self._usual = _USUAL.get(interface, b"")
        self._cumulative = 0
        self._streamed = streamed
        # the unread body and when each part of it arrived, appended by the connection
        self.times_s: list[float] = []
        self.bodies: list[bytes] = []
        self._tail = b""
        self._junk = ""
        self._began_s = 0.0
        self._held: list[bytes] = []
        self._endings: deque[bytes] = deque(maxlen=_ENDING_EVENTS)
        self._weight = 0  # bytes of all events with text, and the shortest of them: what all have beside their text
        self._shortest = b""
        self.token_times_s: list[float] = []
        self.last_event_s: float | None = None
        self.text = b""  # the whole body, where one document was asked for
        self.done = False  # the stream said [DONE]
        self.finished = False  # an event gave a finish reason, or the answer is one whole document
        self.finish_reason = ""
        self.malformed = ""
        self.error = ""
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self.reasoning_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.host_tokens: int | None = None
        self.reasoning_events = 0
        self.silent_events = 0  # of a token whose text is empty

    def expect_whole(self) -> None:
        """The server announced one JSON document although a stream was asked for."""
        self._streamed = False

    def shorten(self) -> None:
        """Reads what has come so far, so that a long answer does not pile up in memory."""
        if self._streamed and len(self.bodies) > _BODIES:
            self._digest()

    def read_so_far(self) -> None:
        """Reads what has come so far, so that `token_times_s` says when."""
        if self._streamed:
            self._digest()

    @property
    def partial(self) -> bool:
        """Whether the body ended in the middle of an event (after `close`)."""
        return bool(self._tail)

    @property
    def has_tokens(self) -> bool:
        return bool(self.token_times_s or self.finished or self.output_tokens)

    @property
    def whole(self) -> bool:
        """Whether the answer came as one document, whose tokens cannot be told apart."""
        return not self._streamed

    @property
    def text_bytes(self) -> int:
        """No more bytes of text than this have arrived (after `close`)."""
        if self.whole:
            return _text_bytes(_decoded(self.text))
        if self._pattern is None:  # each event repeats the text so far
            return max((_text_bytes(_decoded(payload)) for payload in self._endings), default=0)
        # events are alike beside their text, but for the last, which may say more
        beside = min((len(p) - _text_bytes(_decoded(p)) for p in (self._shortest, *self._endings) if p), default=0)
        return self._weight - beside * len(self.token_times_s)

    def raw(self, limit: int) -> bytes:
        """The unread beginning of the body: what an HTTP error says."""
        return b"".join(self.bodies[:64])[:limit]

    def close(self) -> None:
        """Reads what is left. Call once, after the last piece."""
        if not self._streamed:
            self._read_whole()
            return
        self._digest()
        line = self._tail.strip()
        if line and not line.startswith((b"data:", b"{")):
            self._junk = self._junk or line[:80].decode("latin-1")
        # a last line without its line break: whole if it reads as an event, else the stream was cut inside it
        if not line or (line.startswith(b"data:") and _reads(line[5:])):
            self._tail = b""
            self._held += [line[5:]] if line else []
        self._dispatch()
        if self._junk and not self.has_tokens:
            self.malformed = self._junk
        self._read_endings()

    def plain(self, chunks: list[bytes]) -> tuple[int, int]:
        """The stretch of chunks that are one token each, as `take_plain` wants them."""
        if not self._usual or not self._streamed or self._tail or self._held:
            return 0, 0
        return _token_stretch(chunks, self._usual)

    def take_plain(self, times_s: list[float], pieces: list[bytes]) -> None:
        """Takes a stretch that `plain` has found, after whatever came before it."""
        self._digest()
        if self.done:
            self._after_done()
            return
        self.token_times_s += times_s
        shortest = min(pieces, key=len)
        payload = shortest[shortest.find(b"{") : -4]
        self._weight += sum(map(len, pieces)) - (len(shortest) - len(payload)) * len(pieces)
        self._keep_shortest(payload)
        self._endings.extend(piece[piece.find(b"{") : -4] for piece in pieces[-_ENDING_EVENTS:])
        self.last_event_s = times_s[-1]

    def _digest(self) -> None:
        # in place: the connection holds on to these lists and goes on appending
        times, bodies = self.times_s[:], self.bodies[:]
        self.times_s.clear()
        self.bodies.clear()
        for at_s, body in zip(times, bodies, strict=True):
            self._digest_lines(at_s, body)

    def _digest_lines(self, at_s: float, piece: bytes) -> None:
        if not self._tail and not self._held:
            self._began_s = at_s
        text = self._tail + piece if self._tail else piece
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._tail = text.split(b"\n")
        for line in lines:
            if not line:
                if self._held:
                    self._dispatch()
                # an event came when its first byte did; only the first of a piece may have begun before it
                self._began_s = at_s
            elif line.startswith(b"data:"):
                self._held.append(line[5:])
            elif line.startswith(b"{") and not self._held:
                self._held.append(line)  # servers that forget the framing for an error body in mid-stream
            elif not line.startswith((b":", b"event", b"id", b"retry")):
                self._junk = self._junk or line[:80].decode("latin-1")

    def _dispatch(self) -> None:
        if not self._held:
            return
        at_s = self._began_s
        payload = (self._held[0] if len(self._held) == 1 else b"\n".join(self._held)).strip()
        self._held.clear()
        self.last_event_s = at_s
        if payload == b"[DONE]":
            self.done = True
        elif self.done and payload:
            self._after_done()
        elif payload[-1:] == b"}" and self._holds_token(payload):
            self.token_times_s.append(at_s)
            self._weight += len(payload)
            self._keep_shortest(payload)
            self._endings.append(payload)
        else:
            self._doubt(payload)

    def _after_done(self) -> None:
        """Clients have hung up by then: what comes so late is nobody's token."""
        self.malformed = self.malformed or "an event after [DONE]"

    def _keep_shortest(self, payload: bytes) -> None:
        if not self._shortest or len(payload) < len(self._shortest):
            self._shortest = payload

    def _holds_token(self, payload: bytes) -> bool:
        if self._pattern is not None:
            found = self._pattern.search(payload)
            if found is not None and found[1] in (b"reasoning_content", b"reasoning"):
                self.reasoning_events += 1
            return found is not None
        # SGLang's own interface repeats the text so far; what grows is its count
        sofar = _SOFAR.search(payload)
        if sofar is None or int(sofar[1]) <= self._cumulative:
            return False
        self._cumulative = int(sofar[1])
        return True

    def _doubt(self, payload: bytes) -> None:
        """An event that shows no token: a role, a finish reason, usage, an error, or damage."""
        if not payload:
            return
        try:
            event = json.loads(payload)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict):
            self.malformed = self.malformed or payload[:80].decode("latin-1")
            return
        if event.get("error") or event.get("object") == "error":
            self.error = error_text(event)
        self._counts(event)
        self.silent_events += any(map(_is_silent, _dicts(event.get("choices"))))

    def _read_endings(self) -> None:
        """The last tokens' events: one of them may also end the stream or carry counts."""
        together = b"".join(self._endings)
        if said := _FINISH.findall(together):
            self._finish(b"".join(said[-1]).decode("latin-1"))
        if _COUNTS.search(together) is None:
            return
        for payload in self._endings:
            try:
                event = json.loads(payload)
            except (ValueError, RecursionError):
                self.malformed = self.malformed or payload[:80].decode("latin-1")
                return
            if isinstance(event, dict):
                self._counts(event)

    def _finish(self, reason: object) -> None:
        if reason is not None:
            self.finished = True
            self.finish_reason = str(reason.get("type", "")) if isinstance(reason, dict) else str(reason)

    def _counts(self, event: dict[str, Any]) -> None:
        for choice in _dicts(event.get("choices")):
            self._finish(choice.get("finish_reason"))
        usage = event.get("usage")
        meta = event.get("meta_info")
        if isinstance(meta, dict):
            self._finish(meta.get("finish_reason"))
            usage = meta
        if not isinstance(usage, dict):
            return
        self.prompt_tokens = _count(usage.get("prompt_tokens"), self.prompt_tokens)
        self.output_tokens = _count(usage.get("completion_tokens"), self.output_tokens)
        self.cached_tokens = _count(usage.get("cached_tokens"), self.cached_tokens)
        self.reasoning_tokens = _count(usage.get("reasoning_tokens"), self.reasoning_tokens)
        prompt, output = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
        if isinstance(tiers := usage.get("cached_tokens_details"), dict):  # SGLang's own interface, by tier
            self.host_tokens = _count(tiers.get("host"), self.host_tokens)
        if isinstance(prompt, dict):
            self.cached_tokens = _count(prompt.get("cached_tokens"), self.cached_tokens)
        if isinstance(output, dict):
            self.reasoning_tokens = _count(output.get("reasoning_tokens"), self.reasoning_tokens)

    def _read_whole(self) -> None:
        text = b"".join(self.bodies)
        self.text = text
        if text.lstrip()[:5] in (b"data:", b"event"):
            self._streamed = True  # a stream under the wrong content type; its pieces still hold their times
            self.close()
            return
        if self.times_s:
            self.last_event_s = self.times_s[-1]
        self.times_s.clear()
        self.bodies.clear()
        answer = _decoded(text)
        if not isinstance(answer, dict):
            self.malformed = text[:80].decode("latin-1") or "an empty body"
            return
        self.done = True
        if answer.get("error") or answer.get("object") == "error":
            self.error = error_text(answer)
        self._counts(answer)
        self.finished = self.finished or bool(_dicts(answer.get("choices"))) or "text" in answer


def error_text(answer: object) -> str:
    """The sentence in an error body, whichever of the usual shapes it has."""
    for name in ("error", "message", "detail"):
        if isinstance(answer, dict) and answer.get(name):
            return error_text(answer[name])
    return (answer if isinstance(answer, str) else json.dumps(answer))[:300]


_TEXT_KEYS = ("text", "content", "reasoning_content", "reasoning", "refusal")


def _decoded(payload: bytes) -> object:
    """None where it is not JSON."""
    try:
        answer = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    return answer[0] if isinstance(answer, list) and len(answer) == 1 else answer


def _text_bytes(event: object) -> int:
    """Bytes of text in an event or a whole answer, calls of tools included."""
    if not isinstance(event, dict):
        return 0
    parts = [event]
    for choice in _dicts(event.get("choices")):
        said = [part for name in ("delta", "message") if isinstance(part := choice.get(name), dict)]
        calls = [call.get("function") for part in said for call in _dicts(part.get("tool_calls"))]
        parts += [choice, *said, *({"text": call.get("arguments")} for call in calls if isinstance(call, dict))]
    found = (part.get(name) for part in parts for name in _TEXT_KEYS)
    return sum(len(text.encode("utf-8", "replace")) for text in found if isinstance(text, str))


def _is_silent(choice: dict[str, Any]) -> bool:
    """Whether this is a token without text (half a character, a special token): no role, no end."""
    part = choice.get("delta", choice)
    says = isinstance(part, dict) and any(part.get(name) == "" for name in ("content", "text"))
    return says and "role" not in part and choice.get("finish_reason") is None


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
