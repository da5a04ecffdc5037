"""Recorded traffic: Mooncake JSONL, plain JSONL of lengths, and ShareGPT JSON, read as lengths, times and prefixes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError
from ridgeline.files import read_unzipped
from ridgeline.serving.traffic.replay import TraceRow
from ridgeline.serving.traffic.texts import TextsByBlock

_SHAPES = "a trace is JSONL with input_length and output_length in each line, or a ShareGPT JSON list of conversations"
# Wall-clock times in seconds stay below this for a thousand years; past it a clock no longer resolves a step.
_LATEST_S = 1e11
# Mooncake hashes prompts in blocks of this many tokens.
PREFIX_BLOCK_TOKENS = 512
# English text in current tokenizers; only used where a trace holds text and no lengths.
_CHARACTERS_PER_TOKEN = 4.0


def read_trace(path: Path) -> list[TraceRow]:
    """The requests of a trace file in order of time.

    Mooncake lines hold timestamp (ms), input_length, output_length, hash_ids. Plain lines hold input_tokens and
    output_tokens and perhaps at_s. A ShareGPT file is a JSON list of conversations; the first two turns count.
    """
    text = _text(path)
    opening = text.lstrip()[:1]
    if not opening:
        raise InputError(f"{path} is empty; {_SHAPES}")
    texts = TextsByBlock(PREFIX_BLOCK_TOKENS)
    rows = list(_conversations(path, text, texts) if opening == "[" else _lines(path, text, texts))
    if not rows:
        raise InputError(f"{path} holds no request; {_SHAPES}")
    if all(row.at_s is not None for row in rows):
        rows.sort(key=lambda row: row.at_s or 0.0)
    return rows


def _text(path: Path) -> str:
    try:
        return read_unzipped(path).decode("utf-8")
    except UnicodeDecodeError as bad:
        raise InputError(f"{path}: not UTF-8 text ({bad.reason} at byte {bad.start}); {_SHAPES}") from None
    except OSError as bad:
        raise InputError(f"{path}: cannot be read ({bad.strerror or bad}); {_SHAPES}") from None


def _lines(path: Path, text: str, texts: TextsByBlock) -> Iterator[TraceRow]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except ValueError as bad:
            raise InputError(f"{path}:{number}: not JSON ({bad}); a trace holds one JSON object per line") from None
        yield _row(f"{path}:{number}", fields, texts)


def _row(where: str, fields: Any, texts: TextsByBlock) -> TraceRow:
    if not isinstance(fields, dict):
        raise InputError(f"{where}: expected an object with input_length and output_length")
    inputs: Any = fields.get("input_length", fields.get("input_tokens"))
    outputs: Any = fields.get("output_length", fields.get("output_tokens"))
    if not _whole(inputs) or not _whole(outputs):
        raise InputError(
            f"{where}: needs whole numbers input_length and output_length (Mooncake) or input_tokens and output_tokens"
        )
    at_s = fields.get("at_s", fields.get("scheduled_s"))
    if at_s is None and fields.get("timestamp") is not None:
        stamp = fields["timestamp"]
        at_s = stamp / 1000.0 if isinstance(stamp, int | float) else stamp
    if at_s is not None and not (isinstance(at_s, int | float) and 0 <= at_s <= _LATEST_S):
        raise InputError(
            f"{where}: {at_s!r} is not a time; give at_s in seconds or timestamp in milliseconds, zero or above"
        )
    hashes = fields.get("hash_ids") or ()
    if not isinstance(hashes, list | tuple) or not all(isinstance(h, int) for h in hashes):
        raise InputError(f"{where}: hash_ids must be whole numbers, one per {PREFIX_BLOCK_TOKENS} tokens")
    # A trace may hold requests that were refused or returned nothing; a served request has at least one token each way.
    tokens = max(1, inputs)
    shared = texts.text(hashes, tokens) if hashes else None
    return TraceRow(tokens, max(1, outputs), None if at_s is None else float(at_s), shared)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _conversations(path: Path, text: str, texts: TextsByBlock) -> Iterator[TraceRow]:
    try:
        entries = json.loads(text)
    except ValueError as bad:
        raise InputError(f"{path}: not JSON ({bad}); {_SHAPES}") from None
    for entry in entries:
        if isinstance(entry, dict) and ("input_length" in entry or "input_tokens" in entry):
            yield _row(str(path), entry, texts)
            continue
        turns: Any = entry.get("conversations") or entry.get("conversation") or [] if isinstance(entry, dict) else []
        said = [turn.get("value", turn.get("content")) for turn in turns[:2] if isinstance(turn, dict)]
        spoken = [words for words in said if isinstance(words, str) and words]
        if len(spoken) == 2:
            prompt, answer = (max(1, round(len(words) / _CHARACTERS_PER_TOKEN)) for words in spoken)
            yield TraceRow(prompt, answer)
