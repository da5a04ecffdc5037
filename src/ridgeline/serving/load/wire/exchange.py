"""One request while it is under way, and the record that remains of it."""

from __future__ import annotations

import json
import math
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from ridgeline.serving.load.wire.loop import LATE_S
from ridgeline.serving.load.wire.reply import Reply, error_text
from ridgeline.serving.traffic.requests import RequestRecord
from ridgeline.serving.traffic.traffic import Arrival

# Whether an answer that arrived whole is the one that was asked for, and whether its own count of tokens can be true.
#
# Without a tokenizer nobody can count the tokens of a text: an event may hold several (speculative decoding, an
# engine's stream interval, a server that falls behind) and a token may have no text (half a character, a special
# token). So the server's `usage` is the count, as long as nothing that arrived contradicts it: it lies between the
# events that held text and their bytes, and within the length that was asked for. What contradicts itself is a failure
# of its kind, and its tokens count nowhere.

# An answer's last tokens may have no text: its end, and a character of up to four bytes that is not complete.
_UNSEEN = 4
# Below so many bytes a token, an answer without usage that says it has its full length is taken at its events.
_LEAST_BYTES = 2
# How many tokens a server may add to a prompt (its template), how many it may make of a word, and of how many words
# one, before its count is not believed. The load generator's words are one token each in current vocabularies.
_ADDED_TOKENS, _TOKENS_A_WORD, _WORDS_A_TOKEN = 256, 2, 2
_GIVEN_UP = ("abort", "aborted", "error", "cancelled", "timeout")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request asks for: at most so many tokens, all of them where the end of text is to be ignored."""

    tokens: int
    all_of_them: bool = False


def doubt_about(reply: Reply, wanted: Wanted) -> tuple[str, str] | None:
    """Kind and sentence of why an answer without errors is none, after its `close`; None where it is one."""
    events, usage = len(reply.token_times_s), reply.output_tokens
    tokens, reason = events if usage is None else usage, reply.finish_reason
    if reason in _GIVEN_UP:
        return "aborted", f"the server gave the answer up (finish_reason {reason}) after {tokens} tokens"
    seen = bool(events) or (reply.whole and reply.text_bytes > 0)
    if not seen and not usage:
        return "empty", "the answer held no text"
    if found := _contradiction(reply, wanted):
        return found
    if reply.whole and usage is None:
        return "no-usage", "the answer came in one piece and without usage: its tokens cannot be counted"
    short = f"of {wanted.tokens} tokens"
    if tokens >= wanted.tokens:
        return None
    if not reply.finished:
        return "cut", f"the stream ended after {tokens} {short} without a finish reason"
    if wanted.all_of_them and reason != "length":
        why = f"finish_reason {reason or 'not given'}, although ignore_eos was asked for"
        return "short", f"the answer ended after {tokens} {short}: {why}"
    if reason == "length" and (usage is not None or reply.text_bytes < _LEAST_BYTES * wanted.tokens):
        return "short", f"finish_reason is length after {tokens} {short}: the server's own limit is lower"
    return None


def _contradiction(reply: Reply, wanted: Wanted) -> tuple[str, str] | None:
    # where a parser finds the end of the reasoning inside a token, that token becomes two events
    events, parted = len(reply.token_times_s), 1 if reply.reasoning_events else 0
    usage = reply.output_tokens
    if events > wanted.tokens + parted:
        return "too-long", f"{events} events with text came, and {wanted.tokens} tokens were asked for"
    if usage is None:
        return None
    if usage > wanted.tokens:
        return "wrong-usage", f"usage says {usage} tokens, and {wanted.tokens} were asked for"
    # some servers leave the reasoning out of their count
    if events - reply.reasoning_events > usage + parted or (usage == 0 and reply.whole and reply.text_bytes):
        return "wrong-usage", f"usage says {usage} tokens, and {max(events, 1)} events with text came"
    if usage <= events:
        return None
    most = reply.silent_events + (reply.text_bytes + _UNSEEN if events or reply.whole else 1)
    if usage > most:
        came = f"{events} events with {reply.text_bytes} bytes of text came"
        return "wrong-usage", f"usage says {usage} tokens, and {came}"
    return None


def counted_prompt(sent: int, usage: int | None) -> int:
    """Tokens of a prompt of `sent` words: the server's count, where words can be so many tokens."""
    believed = usage is not None and sent / _WORDS_A_TOKEN <= usage <= _TOKENS_A_WORD * sent + _ADDED_TOKENS
    return usage if usage is not None and believed else sent


# Tokens that were read together although they may have come apart.
#
# A read has the stamp of its last token. Of the others it is known only that they came after the moment at which the
# socket was last seen empty. They are given the answer's usual pace, or are spread over that time where it is too short
# for it; and the two extremes are kept, so that the error this can make in a figure is computed and not guessed.


@dataclass(frozen=True, slots=True)
class CoalescedTokens:
    """Tokens of one answer that were read together: the earliest and latest they can have come, as TTFT and gaps."""

    number: int
    first_s: tuple[float, float]
    gaps_s: tuple[array[float], array[float]]


def _spread_coalesced(
    number: int, times_s: Sequence[float], since_s: Mapping[float, float], sent_s: float
) -> tuple[list[float], CoalescedTokens | None]:
    """The tokens' most likely times, and how far they may be off (None: not at all).

    `since_s` holds, for times at which reads ran late, the moment before which nothing of that read can have come.
    Tokens that share a stamp without such a delay were sent together by the server.
    """
    likely: list[float] = []
    earliest: list[float] = []
    pace_s = _pace_s(times_s, since_s)
    before_s, coalesced = sent_s, False
    for at_s, same in groupby(times_s):
        count = sum(1 for _ in same)
        low_s = max(since_s.get(at_s, at_s), before_s)
        if count == 1 or low_s >= at_s:
            likely += [at_s] * count
            earliest += [at_s] * count
        else:
            coalesced = True
            step_s = min(pace_s, (at_s - low_s) / count) if at_s - low_s > LATE_S else 0.0
            likely += [at_s - step_s * k for k in range(count - 1, -1, -1)]
            earliest += [low_s] * (count - 1) + [at_s]
        before_s = at_s
    if not coalesced:
        return likely, None
    first_s = (earliest[0] - sent_s, times_s[0] - sent_s)
    return likely, CoalescedTokens(number, first_s, (_gaps_between(earliest), _gaps_between(times_s)))


def _pace_s(times_s: Sequence[float], since_s: Mapping[float, float]) -> float:
    """The usual time between two tokens of this answer that were both read on time; boundless where none were."""
    clear = sorted(b - a for a, b in pairwise(times_s) if b > a and a not in since_s and b not in since_s)
    return clear[len(clear) // 2] if clear else math.inf


def _gaps_between(times_s: Sequence[float]) -> array[float]:
    return array("d", [b - a for a, b in pairwise(times_s)])


_ERROR_BYTES = 16_384


class Gaps:
    """Gaps between tokens in eight bytes each; reads like the run-length pairs that a record promises."""

    __slots__ = ("seconds",)

    def __init__(self, times_s: Sequence[float]) -> None:
        self.seconds = _gaps_between(times_s)

    def __len__(self) -> int:
        return len(self.seconds)

    def __contains__(self, gap: object) -> bool:
        return gap in list(self)

    def __iter__(self) -> Iterator[tuple[float, int]]:
        return ((gap, 1) for gap in self.seconds)


class Exchange:
    """A request being sent and answered. Filled in by its connection; `record` once it has ended."""

    __slots__ = (
        "_length", "arrival", "chunked", "coalesced", "end_s", "error", "first_byte_s", "http_status", "reply",
        "resent", "retry_after_s", "scheduled_s", "sent_s", "since_s", "status", "taken_s", "wanted", "wire",
    )  # fmt: skip

    def __init__(
        self, arrival: Arrival, wire: bytes, scheduled_s: float, reply: Reply, wanted: Wanted | None = None
    ) -> None:
        self.arrival = arrival
        self.wanted = wanted or Wanted(arrival.output_tokens)
        self.wire = wire
        self.scheduled_s = scheduled_s
        self.taken_s = scheduled_s
        self.sent_s: float | None = None
        self.first_byte_s: float | None = None
        self.end_s: float | None = None
        self.reply = reply
        self.http_status = 0
        self.retry_after_s: float | None = None
        self.status = ""
        self.error = ""
        self.resent = False
        self.since_s: dict[float, float] = {}  # arrivals read late: nothing read with them came before this moment
        self.coalesced: CoalescedTokens | None = None  # set by `record` where tokens could not be told apart
        self.chunked = False
        self._length: int | None = None

    def header(self, name: bytes, value: bytes) -> None:
        lowered = name.lower()
        if lowered == b"transfer-encoding":
            self.chunked = b"chunked" in value.lower()
        elif lowered == b"content-length":
            self._length = int(value) if value.isdigit() else None
        elif lowered == b"content-type" and b"json" in value.lower():
            self.reply.expect_whole()
        elif lowered == b"retry-after":
            self.retry_after_s = _retry_after_s(value)

    @property
    def ends_at_close(self) -> bool:
        """Whether closing the connection is this answer's proper end (HTTP/1.0 style)."""
        return self.http_status >= 200 and not self.chunked and self._length is None

    def end(self, at_s: float) -> None:
        """The answer has arrived in full. Reading it is left to `settle`, so that the next request can go out first."""
        self.end_s = at_s

    def settle(self) -> None:
        """Reads the answer and says what it amounts to. Call once, after `end` or `fail`."""
        if self.status:
            if 200 <= self.http_status < 300:
                self.reply.close()
        elif self.end_s is not None:
            self._judge(self.end_s)

    def _judge(self, at_s: float) -> None:
        if not 200 <= self.http_status < 300:
            self.status, self.error = _refusal(self.http_status, self.reply)
            return
        reply = self.reply
        reply.close()
        if reply.error:
            self.status, self.error = "error-event", reply.error
        elif reply.malformed:
            self.status, self.error = "malformed", f"not an answer: {reply.malformed}"
        elif reply.partial:
            self.status, self.error = "cut", "the stream ended in the middle of an event"
        elif doubt := doubt_about(reply, self.wanted):
            self.status, self.error = doubt
        else:
            self.status = "ok"
            self.end_s = reply.last_event_s if reply.last_event_s is not None else at_s

    def fail(self, kind: str, message: str, at_s: float) -> None:
        self.status, self.error, self.end_s = kind, message, at_s

    def record(self, start_s: float, worker: str) -> RequestRecord:
        """Times are counted from `start_s`, the start of the run."""
        reply, sent_s = self.reply, self.taken_s if self.sent_s is None else self.sent_s
        times = reply.token_times_s
        if self.since_s and len(set(times)) < len(times):
            times, self.coalesced = _spread_coalesced(self.arrival.number, times, self.since_s, sent_s)
        counted = len(times)
        by_usage = reply.output_tokens
        return RequestRecord(
            number=self.arrival.number,
            scheduled_s=self.scheduled_s - start_s,
            sent_s=sent_s - start_s,
            first_token_s=times[0] - start_s if times else None,
            end_s=None if self.end_s is None else self.end_s - start_s,
            input_tokens=counted_prompt(self.arrival.input_tokens, reply.prompt_tokens),
            output_tokens=counted if by_usage is None or self.status != "ok" else by_usage,
            status=self.status,
            first_byte_s=None if self.first_byte_s is None else self.first_byte_s - start_s,
            gaps_s=Gaps(times),
            cached_tokens=reply.cached_tokens or 0,
            host_tokens=reply.host_tokens or 0,
            reasoning_tokens=reply.reasoning_events if reply.reasoning_tokens is None else reply.reasoning_tokens,
            error=self.error,
            worker=worker,
            counted_tokens=counted,
            prompt_by_usage=reply.prompt_tokens,
            output_by_usage=by_usage,
            session=self.arrival.session,
            turn=self.arrival.turn,
        )


def _refusal(http_status: int, reply: Reply) -> tuple[str, str]:
    """Status and sentence of an HTTP error; the two that tell how to fix the command get a name of their own."""
    text = reply.raw(_ERROR_BYTES)
    try:
        message = error_text(json.loads(text))
    except (ValueError, RecursionError):
        message = text.decode("utf-8", "replace").strip()[:300]
    lowered = message.lower()
    if (
        http_status in (400, 404, 422)
        and "model" in lowered
        and _says(lowered, "not found", "does not exist", "unknown")
    ):
        return f"http-{http_status} unknown model", message
    if http_status in (400, 413, 422) and _says(
        lowered, "context length", "max_model_len", "too long", "longer than", "maximum context", "max seq len"
    ):
        return f"http-{http_status} prompt too long", message
    return f"http-{http_status}", message


def _says(text: str, *phrases: str) -> bool:
    return any(phrase in text for phrase in phrases)


def _retry_after_s(value: bytes) -> float | None:
    """Seconds to wait, from either form of the header: a number, or a date on the server's clock."""
    text = value.decode("latin-1").strip()
    try:
        seconds = float(text)
    except ValueError:
        from email.utils import parsedate_to_datetime  # rarely needed, slow to import

        try:
            seconds = parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
        return max(0.0, seconds)
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
