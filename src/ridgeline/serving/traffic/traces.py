"""Recorded traffic, whatever wrote it: what is in a file tells its format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.serving.traffic.agents_and_chats import agent_sessions, chats, weka_traces
from ridgeline.serving.traffic.recording import (
    Recording,
    block_size,
    blocks_fit,
    first_of,
    seconds_of,
    tokens_of,
)
from ridgeline.serving.traffic.replay import Replay, TraceRow, in_order
from ridgeline.serving.traffic.request_logs import azure, own_records, sglang_log, spans
from ridgeline.serving.traffic.texts import TextsByBlock

# Mooncake hashes prompts in blocks of this many tokens.
PREFIX_BLOCK_TOKENS = 512


def read_trace(path: Path) -> Replay:
    """The requests of a trace file, in order of time where all have one."""
    recording = Recording(path)
    reader = _reader(recording)
    rows = reader(recording)
    if not rows:
        raise recording.refuse_empty()
    if any(row.at_s is not None for row in rows):
        for row in rows:
            if row.at_s is None and not row.after:
                recording.note("request", "without a time, so that none is sent at its own")
    if all(row.at_s is not None for row in rows):
        rows = in_order(rows, sorted(range(len(rows)), key=lambda place: rows[place].at_s or 0.0))
    return Replay(tuple(rows), str(path), reader is chats, recording.notes())


def _lengths(recording: Recording) -> list[TraceRow]:
    """Lines with input_length and output_length (Mooncake: also timestamp in ms, hash_ids) or input_tokens,
    output_tokens and perhaps at_s."""
    texts: TextsByBlock | None = None
    rows: list[TraceRow] = []
    for where, fields in recording.entries:
        found = (first_of(fields, "input_length", "input_tokens"), first_of(fields, "output_length", "output_tokens"))
        inputs, outputs = map(tokens_of, found)
        at_s, hashes = seconds_of(where, "at_s", fields.get("at_s")), first_of(fields, "hash_ids") or []
        if at_s is None:
            at_s = seconds_of(where, "timestamp, in milliseconds,", fields.get("timestamp"), 1e3)
        if not isinstance(hashes, list) or not all(type(name) is int for name in hashes):
            raise InputError(f"{where}: hash_ids must be whole numbers, one per block of {PREFIX_BLOCK_TOKENS} tokens")
        size = block_size(where, fields, PREFIX_BLOCK_TOKENS)
        texts = texts or TextsByBlock(size)
        if inputs is None or outputs is None:
            recording.skip(where, "without whole numbers input_length and output_length")
        elif hashes and not blocks_fit(len(hashes), inputs, size):
            recording.skip(where, f"with hashes that disagree with its length in blocks of {size}")
        elif size != texts.block_tokens:
            raise InputError(
                f"{where}: blocks of {size} tokens, {texts.block_tokens} above; split the file by block size"
            )
        else:
            # A trace may hold requests that were refused or returned nothing; a served one has a token each way.
            tokens = max(1, inputs)
            rows.append(TraceRow(tokens, max(1, outputs), at_s, texts.text(hashes, tokens) if hashes else None))
    return rows


# The first entry that holds one of these fields tells the format; plain lengths hold none.
_READERS: dict[str, Callable[[Recording], list[TraceRow]]] = {
    "shared_with_previous": agent_sessions,
    "requests": weka_traces,
    "conversations": chats,
    "conversation": chats,
    "resourceSpans": spans,
    "resource_spans": spans,
    "startTimeUnixNano": spans,
    "start_time_unix_nano": spans,
    "scheduled_s": own_records,
    "log": sglang_log,
    "event": sglang_log,
    "TIMESTAMP": azure,
    "session": agent_sessions,
}


def _reader(recording: Recording) -> Callable[[Recording], list[TraceRow]]:
    for _, fields in recording.opening:
        for name, reader in _READERS.items():
            if name in fields:
                return reader
    return _lengths
