"""Recorded turns put together: who continues whom, which sub-agents a session waits for, and how long users think."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ridgeline.errors import InputError
from ridgeline.serving.traffic.recording import Recording
from ridgeline.serving.traffic.replay import TraceRow
from ridgeline.serving.traffic.texts import Text

# Recorders round times to whole seconds.
_CLOCK_S = 1.0


@dataclass(frozen=True, slots=True)
class Turn:
    """One recorded request. Times are on one clock for a session and its sub-agents; None where nothing is known."""

    where: str
    session: Hashable
    input_tokens: int
    output_tokens: int
    at_s: float | None = None
    end_s: float | None = None
    think_s: float | None = None
    text: Text | None = None
    parent: Hashable = None  # the session whose sub-agent sends it
    cached_tokens: int = 0  # found in the server's cache when it was recorded

    @property
    def answered_s(self) -> float | None:
        return self.at_s if self.end_s is None else self.end_s


def agents(turns: Sequence[Turn], recording: Recording) -> list[TraceRow]:
    """Rows of sessions whose turns are given in their order.

    A sub-agent begins after the turn of its parent that was answered last before, and the parent's first turn after
    its last answer waits for it. Where the times do not tell, it is a session of its own.
    """
    chains, parents = _chains(turns, recording)
    depths = _depths(parents, chains)
    kept = [turn for chain in chains.values() for turn in chain]
    place = {id(turn): number for number, turn in enumerate(kept)}
    after: list[list[int]] = [[] for _ in kept]
    root: dict[Hashable, Hashable] = {}
    for chain in chains.values():
        for before, turn in pairwise(chain):
            after[place[id(turn)]].append(place[id(before)])
    for session in sorted(chains, key=depths.__getitem__):
        chain, parent = chains[session], parents[session]
        root[session] = session
        if parent is None:
            continue
        if parent not in chains:
            recording.note("sub-agent", "of a parent that is not in the file: each a session of its own")
            continue
        asked = _asked_by(chain[0], chains[parent])
        if asked is None or any(turn.at_s is None for turn in (*chain, *chains[parent])):
            recording.note("sub-agent", "begun before any known answer of its parent: each a session of its own")
            continue
        root[session] = root[parent]
        after[place[id(chain[0])]].append(place[id(asked)])
        last = chain[-1]
        for turn in chains[parent]:
            if turn.at_s >= last.answered_s and turn.at_s > last.at_s:  # type: ignore[operator]  # all have times
                after[place[id(turn)]].append(place[id(last)])
                break
    by_depth = sorted(range(len(kept)), key=lambda n: depths[kept[n].session])
    return _rows(kept, after, [root[turn.session] for turn in kept], by_depth)


def conversations(turns: Sequence[Turn]) -> list[TraceRow]:
    """Rows of requests that all have a beginning and an end, and no known text.

    Each waits for the answers that had come before it began, but for those that another of them had waited for. It
    goes on in the text of the last of them where it is no shorter; else the server's cache tells what they share.
    """
    waited_for: dict[Hashable, list[int]] = {}  # who may be: of the others a later one was begun after their answers
    kept = sorted(turns, key=lambda turn: (turn.at_s or 0.0, turn.answered_s or 0.0))
    after: list[list[int]] = []
    texts: list[Text] = []
    continued: set[int] = set()
    for number, turn in enumerate(kept):
        earlier = waited_for.setdefault(turn.session, [])
        done = [n for n in earlier if (kept[n].answered_s or 0.0) <= (turn.at_s or 0.0)]
        latest_s = max((kept[n].at_s or 0.0 for n in done), default=0.0)
        waits = [n for n in done if (kept[n].answered_s or 0.0) > latest_s or n == done[-1]]
        earlier[:] = [n for n in earlier if n in waits or (kept[n].answered_s or 0.0) > (turn.at_s or 0.0)]
        earlier.append(number)
        after.append(waits)
        before = max(waits, key=lambda n: kept[n].answered_s or 0.0, default=None)
        texts.append(_going_on(turn, number, before, kept, texts, continued))
    kept = [replace(turn, text=text) for turn, text in zip(kept, texts, strict=True)]
    return _rows(kept, after, [turn.session for turn in kept], range(len(kept)))


def _going_on(
    turn: Turn, number: int, before: int | None, kept: Sequence[Turn], texts: Sequence[Text], continued: set[int]
) -> Text:
    if before is None:
        return Text(number)
    prior = kept[before]
    if turn.input_tokens < prior.input_tokens:
        shared = min(turn.cached_tokens, turn.input_tokens)
        return Text(number, texts[before], shared) if shared else Text(number)
    if before not in continued:
        continued.add(before)
        return texts[before]
    return Text(number, texts[before], min(turn.input_tokens, prior.input_tokens + prior.output_tokens))


def _chains(turns: Sequence[Turn], recording: Recording) -> tuple[dict[Hashable, list[Turn]], dict[Hashable, Hashable]]:
    chains: dict[Hashable, list[Turn]] = {}
    parents: dict[Hashable, Hashable] = {}
    for turn in turns:
        if parents.setdefault(turn.session, turn.parent) != turn.parent:
            raise InputError(
                f"{turn.where}: session {turn.session} has parent {turn.parent} here and {parents[turn.session]} "
                "above; name one parent in all its lines"
            )
        chain = chains.setdefault(turn.session, [])
        if chain and turn.at_s is not None and (before_s := chain[-1].at_s) is not None:
            answered_s = chain[-1].answered_s or before_s
            if turn.at_s < before_s or turn.at_s + _CLOCK_S < answered_s:
                recording.skip(turn.where, "begun before the answer that it continues had ended")
                continue
        chain.append(turn)
    return chains, parents


def _depths(parents: dict[Hashable, Hashable], chains: dict[Hashable, list[Turn]]) -> dict[Hashable, int]:
    """How many sessions of the file stand above each."""
    found: dict[Hashable, int] = {}
    for session in chains:
        seen, above = {session}, parents[session]
        while above in chains:
            if above in seen:
                raise InputError(
                    f"{chains[session][0].where}: session {session} is its own ancestor by way of {above}; "
                    "a parent must be the session that started it"
                )
            seen.add(above)
            above = parents[above]
        found[session] = len(seen) - 1
    return found


def _asked_by(first: Turn, parent: Sequence[Turn]) -> Turn | None:
    if first.at_s is None:
        return None
    done = [turn for turn in parent if turn.answered_s is not None and turn.answered_s <= first.at_s]
    return done[-1] if done else None


def _rows(
    turns: Sequence[Turn], after: Sequence[Sequence[int]], sessions: Sequence[Hashable], order: Sequence[int]
) -> list[TraceRow]:
    """In order of time where all have one, `order` deciding between equals; else session by session."""
    first: dict[Hashable, int] = {}
    for number in range(len(turns)):
        first.setdefault(sessions[number], len(first))
    at_s: Callable[[int], float] = lambda n: turns[n].at_s or 0.0  # noqa: E731
    if all(turn.at_s is not None for turn in turns):
        order = sorted(order, key=at_s)
    else:
        timed = set(first) - {sessions[n] for n in range(len(turns)) if turns[n].at_s is None}
        order = sorted(order, key=lambda n: (first[sessions[n]], at_s(n) if sessions[n] in timed else 0.0))
    place = {number: new for new, number in enumerate(order)}
    return [
        TraceRow(
            max(1, turn.input_tokens), max(1, turn.output_tokens), turn.at_s, turn.text, first[sessions[n]],
            tuple(sorted(place[m] for m in after[n])), _think_s(turn, [turns[m] for m in after[n]]),
        )
        for n, turn in ((n, turns[n]) for n in order)
    ]  # fmt: skip


def _think_s(turn: Turn, waits: Sequence[Turn]) -> float:
    ends = [before.answered_s for before in waits]
    if not waits or (turn.think_s is not None and len(waits) == 1):
        return (turn.think_s or 0.0) if waits else 0.0
    if turn.at_s is None or None in ends:
        return turn.think_s or 0.0
    return max(0.0, turn.at_s - max(end for end in ends if end is not None))
