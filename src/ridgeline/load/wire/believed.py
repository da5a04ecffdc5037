"""Whether an answer that arrived whole is the one that was asked for, and whether its own count of tokens can be true.

Without a tokenizer nobody can count the tokens of a text: an event may hold several (speculative decoding, an engine's
stream interval, a server that falls behind) and a token may have no text (half a character, a special token). So the
server's `usage` is the count, as long as nothing that arrived contradicts it: it lies between the events that held text
and their bytes, and within the length that was asked for. What contradicts itself is a failure of its kind, and its
tokens count nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.load.wire.reply import Reply

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
