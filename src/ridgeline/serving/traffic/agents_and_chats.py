"""Sessions as others recorded them: agents turn by turn, agents by hashed blocks (Weka), and chats with their words."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from ridgeline.errors import InputError
from ridgeline.serving.traffic.recording import (
    Recording,
    block_size,
    blocks_fit,
    first_of,
    object_at,
    seconds_of,
    session_name,
    tokens_of,
)
from ridgeline.serving.traffic.replay import TraceRow
from ridgeline.serving.traffic.texts import Text, TextsByBlock
from ridgeline.serving.traffic.turn_order import Turn, agents

_BLOCK_TOKENS = 64
# English text in current tokenizers; only used where a trace holds text and no lengths.
_CHARACTERS_PER_TOKEN = 4.0
_ANSWERED_BY = frozenset({"gpt", "chatgpt", "bing", "bard", "assistant", "model"})


class _Prompts:
    """The texts of one agent's prompts, each known by how many blocks it shares with the one before."""

    def __init__(self) -> None:
        self._text: Text | None = None
        self._blocks = 0  # of the last prompt that are in `_text`

    @property
    def first(self) -> bool:
        """Whether no prompt has been given a text so far."""
        return self._text is None

    def next(self, name: int, blocks: int, shared: int, block_tokens: int) -> Text:
        shared = min(shared, self._blocks)
        if self._text is None or not shared:
            self._text = Text(name)
        elif shared < self._blocks:
            self._text = Text(name, self._text, shared * block_tokens)
        self._blocks = blocks
        return self._text

    def unknown(self, shared: int) -> None:
        """A prompt of unknown length followed: the next can share no more than it did."""
        self._blocks = min(self._blocks, shared)


def agent_sessions(recording: Recording) -> list[TraceRow]:
    """Lines with session, parent, t, input_length, output_length, blocks, shared_with_previous, block_tokens."""
    prompts: dict[Hashable, _Prompts] = {}
    turns: list[Turn] = []
    for where, fields in recording.entries:
        session, parent = (session_name(where, name, fields.get(name)) for name in ("session", "parent"))
        if session is None:
            raise InputError(f"{where}: names no session; give each line the session that it belongs to")
        known, size = prompts.setdefault(session, _Prompts()), block_size(where, fields, _BLOCK_TOKENS)
        inputs, blocks = tokens_of(fields.get("input_length")), tokens_of(fields.get("blocks"))
        known_shared = tokens_of(fields.get("shared_with_previous"))
        shared = known_shared or 0
        if known_shared is None and not known.first:
            recording.note("later turn", "without shared_with_previous, taken to share nothing with the turn before")
        if blocks is None and inputs is not None:
            blocks = inputs // size
        if inputs is None or blocks is None:
            recording.skip(where, "without a length")
            known.unknown(shared)
        elif not blocks_fit(blocks, inputs, size) or shared > blocks:
            recording.skip(where, "with blocks that disagree with its length")
            known.unknown(0)
        else:
            text = known.next(len(turns), blocks, shared, size)
            turns += _turn(recording, where, fields, (session, parent), inputs, text)
    return agents(turns, recording)


def weka_traces(recording: Recording) -> list[TraceRow]:
    """Objects with id, block_size, hash_id_scope and requests: t, in, out, hash_ids, api_time, think_time; those of
    the type subagent hold an agent_id and requests of their own, timed from their t."""
    turns: list[Turn] = []
    texts: TextsByBlock | None = None
    for number, (where, trace) in enumerate(recording.entries):
        requests = trace.get("requests")
        if not isinstance(requests, list):
            raise InputError(f"{where}: requests must be a list, one object for each request")
        size = block_size(where, trace, _BLOCK_TOKENS)
        texts = texts or TextsByBlock(size)
        if size != texts.block_tokens:
            raise InputError(
                f"{where}: blocks of {size} tokens, {texts.block_tokens} above; split the file by block size"
            )
        # hashes of scope local mean something within their trace alone
        scope = -1 if trace.get("hash_id_scope") == "global" else number
        turns += _weka_requests(recording, where, requests, (number,), None, 0.0, scope, texts)
    return agents(turns, recording)


def _weka_requests(
    recording: Recording, where: str, requests: Sequence[Any], session: tuple[int, ...], parent: Hashable,
    from_s: float, scope: int, texts: TextsByBlock,
) -> list[Turn]:  # fmt: skip
    turns: list[Turn] = []
    for place, found in enumerate(requests):
        here, fields = object_at(f"{where}: request {'.'.join(map(str, (*session[1:], place)))}", found)
        start_s = seconds_of(here, "t", fields.get("t"))
        if fields.get("type") == "subagent":
            within = fields.get("requests")
            if not isinstance(within, list):
                raise InputError(f"{here}: requests of a subagent must be a list")
            child = (*session, place)
            turns += _weka_requests(recording, where, within, child, session, from_s + (start_s or 0.0), scope, texts)
            continue
        inputs, hashes = tokens_of(fields.get("in")), fields.get("hash_ids", [])
        if not isinstance(hashes, list) or not all(type(name) in (int, str) for name in hashes):
            raise InputError(f"{here}: hash_ids must be a list of whole numbers, one for each block")
        if inputs is None:
            recording.skip(here, "without a length")
        elif not blocks_fit(len(hashes), inputs, texts.block_tokens):
            recording.skip(here, "with hashes that disagree with its length")
        else:
            text = texts.text([(scope, name) for name in hashes], inputs)
            turns += _turn(recording, here, fields, (session, parent), inputs, text, from_s)
    return turns


def _turn(
    recording: Recording, where: str, fields: Mapping[str, Any], of: tuple[Hashable, Hashable],
    inputs: int, text: Text, from_s: float = 0.0,
) -> list[Turn]:  # fmt: skip
    """`of` this session, with its parent."""
    outputs = tokens_of(first_of(fields, "output_length", "out"))
    start_s, took_s, think_s = (seconds_of(where, n, fields.get(n)) for n in ("t", "api_time", "think_time"))
    if outputs is None:
        recording.skip(where, "without an answer, or with one of no length")
        return []
    at_s = None if start_s is None else from_s + start_s
    end_s = None if at_s is None or took_s is None else at_s + took_s
    return [Turn(where, of[0], inputs, outputs, at_s, end_s, think_s, text, of[1])]


def chats(recording: Recording) -> list[TraceRow]:
    """ShareGPT: what human and gpt said. Each answer is a request, whose prompt is all that was said before."""
    rows: list[TraceRow] = []
    for number, (_, entry) in enumerate(recording.entries):
        said = first_of(entry, "conversations", "conversation")
        turns = _spoken(said if isinstance(said, list) else [])
        if not turns:
            recording.note("conversation", "without a prompt and its answer, left out")
        elif len(turns) == 1:
            rows.append(TraceRow(*turns[0]))
        else:
            text = Text(number)
            for place, (inputs, outputs) in enumerate(turns):
                after = (len(rows) - 1,) if place else ()
                rows.append(TraceRow(inputs, outputs, text=text, session=number, after=after))
    return rows


def _spoken(said: Sequence[Any]) -> list[tuple[int, int]]:
    """Prompt and answer of each request, in tokens."""
    turns: list[tuple[int, int]] = []
    context, asked = 0, False
    for place, turn in enumerate(said):
        words = first_of(turn, "value", "content") if isinstance(turn, dict) else None
        if not isinstance(words, str) or not words:
            break
        who = first_of(turn, "from", "role")
        tokens = max(1, round(len(words) / _CHARACTERS_PER_TOKEN))
        answer = who in _ANSWERED_BY if isinstance(who, str) else place % 2 == 1
        if answer and asked:
            turns.append((context, tokens))
        context, asked = context + tokens, not answer
    return turns
