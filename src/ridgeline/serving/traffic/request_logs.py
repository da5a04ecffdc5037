"""Requests as servers and clients log them, with when each began and ended: spans of OpenTelemetry, SGLang's request
log, and our own records."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ridgeline.errors import InputError
from ridgeline.serving.traffic.recording import (
    FINISHED,
    Recording,
    clock_s,
    first_of,
    object_at,
    seconds_of,
    session_name,
    tokens_of,
    whole_of,
)
from ridgeline.serving.traffic.replay import TraceRow
from ridgeline.serving.traffic.turn_order import Turn, conversations

# The names of the semantic conventions for GenAI, then the older ones, which vLLM's spans still carry.
_INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
_LONGEST_S = 86_400.0  # of a request: an end beyond it is none
_CACHED = ("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_read_input_tokens")


def spans(recording: Recording) -> list[TraceRow]:
    """OTLP JSON (resourceSpans), or one span a line. A span around others that are requests only sums these up."""
    turns: dict[str, Turn] = {}
    above: dict[str, str] = {}
    for where, found in recording.entries:
        for span in _spans_in(where, found):
            name = str(first_of(span, "spanId", "span_id") or f"unnamed {len(above)}")
            if name in turns:
                recording.note("span", "recorded twice, left out once")
                continue
            above[name] = str(first_of(span, "parentSpanId", "parent_span_id", "parent_id") or "")
            values = _attributes(where, span.get("attributes"))
            inputs, outputs = tokens_of(first_of(values, *_INPUT)), tokens_of(first_of(values, *_OUTPUT))
            start_s, end_s = (_nanoseconds(where, span, edge) for edge in ("start", "end"))
            if inputs is None and outputs is None:
                continue
            if inputs is None or outputs is None or start_s is None or not end_s:
                recording.skip(where, "without a length, or without an end")
            elif end_s < start_s:
                raise InputError(f"{where}: span {name} ends before it begins; its clock went back")
            elif end_s > start_s + _LONGEST_S:
                recording.skip(where, "that took more than a day")
            else:
                talk = first_of(values, "gen_ai.conversation.id") or first_of(span, "traceId", "trace_id") or name
                cached = tokens_of(first_of(values, *_CACHED)) or 0
                turns[name] = Turn(where, str(talk), inputs, outputs, start_s, end_s, cached_tokens=min(cached, inputs))
    for name in list(turns):
        seen, outer = {name}, above[name]
        while outer in above:
            if outer in seen:
                raise InputError(f"{turns[name].where}: span {name} is its own parent by way of {outer}")
            seen.add(outer)
            if turns.pop(outer, None):
                recording.note("span", "around the requests that it sums up, left out")
            outer = above[outer]
    first_s = min((turn.at_s or 0.0 for turn in turns.values()), default=0.0)
    return conversations([_from(turn, first_s) for turn in turns.values()])


def _spans_in(where: str, found: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    groups = first_of(found, "resourceSpans", "resource_spans")
    if groups is None:
        yield found
        return
    try:
        for group in groups:
            for scope in first_of(group, "scopeSpans", "scope_spans") or ():
                yield from (object_at(where, span)[1] for span in scope.get("spans", ()))
    except (AttributeError, TypeError):
        raise InputError(f"{where}: resourceSpans must hold lists of scopeSpans, and these lists of spans") from None


def _attributes(where: str, found: Any) -> Mapping[str, Any]:
    """Also those of OTLP: [{"key": "a", "value": {"intValue": "1"}}]."""
    if isinstance(found, dict) or found is None:
        return found or {}
    try:
        return {one["key"]: next(iter(one["value"].values()), None) for one in found}
    except (KeyError, TypeError, AttributeError):
        raise InputError(f"{where}: attributes must be an object, or a list of key and value") from None


def _nanoseconds(where: str, span: Mapping[str, Any], edge: str) -> float | None:
    found = first_of(span, f"{edge}TimeUnixNano", f"{edge}_time_unix_nano")
    if found is None:
        return None
    nanoseconds = whole_of(found)
    if nanoseconds is None:
        raise InputError(f"{where}: {edge}TimeUnixNano is {found!r}; give whole nanoseconds, zero or above")
    return seconds_of(where, f"{edge}TimeUnixNano", nanoseconds, 1e9)


def _from(turn: Turn, first_s: float) -> Turn:
    return replace(turn, at_s=(turn.at_s or 0.0) - first_s, end_s=(turn.end_s or 0.0) - first_s)


def own_records(recording: Recording) -> list[TraceRow]:
    """requests.jsonl of `ridgeline bench` or of the twin."""
    turns: list[Turn] = []
    alone: list[TraceRow] = []
    numbers: set[int] = set()
    for where, found in recording.entries:
        inputs, outputs = tokens_of(found.get("input_tokens")), tokens_of(found.get("output_tokens"))
        names = ("scheduled_s", "sent_s", "end_s")
        scheduled_s, sent_s, end_s = (seconds_of(where, name, found.get(name)) for name in names)
        session, number = session_name(where, "session", found.get("session")), whole_of(found.get("number"))
        if inputs is None or outputs is None:
            raise InputError(f"{where}: needs whole numbers input_tokens and output_tokens")
        if found.get("status", "ok") != "ok":
            recording.skip(where, "that failed")
        elif number in numbers:
            recording.skip(where, "with the number of one before it")
        elif session is None:
            alone.append(TraceRow(max(1, inputs), max(1, outputs), scheduled_s))
        elif sent_s is None or end_s is None or not sent_s <= end_s <= sent_s + _LONGEST_S:
            recording.skip(where, "that never ended")
        else:
            cached = min(inputs, tokens_of(found.get("cached_tokens")) or 0)
            turns.append(Turn(where, session, inputs, outputs, sent_s, end_s, cached_tokens=cached))
        if number is not None:
            numbers.add(number)
    if turns and alone:
        raise InputError(f"{recording.path}: some requests have a session and some none; give each line a session")
    return alone or conversations(turns)


# with what ends a number, which may be cut short where the line is
_TOKENS = re.compile(r"'(prompt_tokens|completion_tokens)': (\d{1,20})[,}]")
_SECONDS = re.compile(r"'(e2e_latency|response_sent_to_client_ts)': (\d+(?:\.\d*)?(?:e[-+]?\d+)?)[,}]")
_STAMP = re.compile(r"^\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")


def sglang_log(recording: Recording) -> list[TraceRow]:
    """What SGLang writes of answered requests with --log-requests, as text or as JSON. It names no sessions."""
    rows: list[TraceRow] = []
    for where, found in recording.entries:
        if "log" in found:
            meta, stamp = _meta_of_line(str(found["log"]))
        elif found.get("event") == "request.finished":
            _, out = object_at(f"{where}: out", found.get("out"))
            _, meta = object_at(f"{where}: meta_info", out.get("meta_info"))
            stamp = found.get("timestamp")
        else:
            continue
        inputs, outputs = tokens_of(meta.get("prompt_tokens")), tokens_of(meta.get("completion_tokens"))
        if inputs is None or outputs is None:
            recording.skip(where, "without lengths in the log")
            continue
        end_s = meta.get("response_sent_to_client_ts")
        if end_s is None:
            end_s = clock_s(stamp)
        took_s = seconds_of(where, "e2e_latency", meta.get("e2e_latency"))
        if took_s is None:
            recording.note("request", "without e2e_latency, taken to begin when it was answered")
        at_s = seconds_of(where, "the time of the answer", end_s)
        rows.append(TraceRow(max(1, inputs), max(1, outputs), None if at_s is None else at_s - (took_s or 0.0)))
    return _from_zero(rows)


def _meta_of_line(line: str) -> tuple[Mapping[str, Any], str | None]:
    # the answer's own words may hold anything; what SGLang says of it comes last
    _, _, out = line.partition(FINISHED)[2].rpartition("'meta_info': ")
    stamp = _STAMP.match(line)
    values: dict[str, Any] = {name: int(tokens) for name, tokens in _TOKENS.findall(out)}
    return values | {name: float(value) for name, value in _SECONDS.findall(out)}, stamp[1] if stamp else None


def azure(recording: Recording) -> list[TraceRow]:
    """Microsoft's CSV of 2023 and later: TIMESTAMP,ContextTokens,GeneratedTokens."""
    rows: list[TraceRow] = []
    for where, found in recording.entries:
        inputs, outputs = tokens_of(found.get("ContextTokens")), tokens_of(found.get("GeneratedTokens"))
        at_s = clock_s(found.get("TIMESTAMP"))
        if inputs is None or outputs is None or at_s is None:
            recording.skip(where, "without a length or a time")
        else:
            rows.append(TraceRow(max(1, inputs), max(1, outputs), at_s))
    return _from_zero(rows)


def _from_zero(rows: list[TraceRow]) -> list[TraceRow]:
    first_s = min((row.at_s for row in rows if row.at_s is not None), default=0.0)
    return [row if row.at_s is None else replace(row, at_s=row.at_s - first_s) for row in rows]
