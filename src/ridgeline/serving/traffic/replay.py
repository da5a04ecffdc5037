"""Requests as they were recorded: lengths, and where known times, shared beginnings, and who waits for whose answer."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ridgeline.serving.traffic.texts import Text


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request. `text`: of what its prompt is the beginning; None where it shares nothing with others.

    Of a session: which one, the rows whose answers it waits for (by their place in the list, always before its own),
    and how long after the last of these answers it is sent.
    """

    input_tokens: int
    output_tokens: int
    at_s: float | None = None
    text: Text | None = None
    session: int | None = None
    after: tuple[int, ...] = ()
    think_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Replay:
    """The rows of a trace. `answers_stay`: the server's own answers are part of the prompts that follow; else these
    hold the recorded ones. `notes`: what of the file was left out."""

    rows: tuple[TraceRow, ...]
    source: str
    answers_stay: bool = False
    notes: tuple[str, ...] = ()

    @property
    def timed(self) -> bool:
        """Whether each row that waits for no other has a time."""
        return all(row.at_s is not None for row in self.rows if not row.after)

    @property
    def has_sessions(self) -> bool:
        return any(row.after for row in self.rows)

    def draw(self, count: int, rng: random.Random) -> list[TraceRow]:
        return repeated(self.rows, count)

    def waits(self, count: int, rng: random.Random) -> bool:
        """Whether any of the first so many requests waits for an answer."""
        return any(row.after for row in self.rows[:count])


class OfSession(Protocol):
    @property
    def session(self) -> int | None: ...


def by_session(rows: Sequence[OfSession]) -> list[list[int]]:
    """Places of the rows of each session, in order; a row of no session is one of its own."""
    if all(row.session is None for row in rows):
        return [[place] for place in range(len(rows))]
    found: dict[object, list[int]] = {}
    for place, row in enumerate(rows):
        found.setdefault(("alone", place) if row.session is None else row.session, []).append(place)
    return list(found.values())


def turn_numbers(rows: Sequence[TraceRow]) -> list[int]:
    """The place of each row in its session."""
    found = [0] * len(rows)
    for places in by_session(rows):
        for number, place in enumerate(places):
            found[place] = number
    return found


def in_order(rows: Sequence[TraceRow], places: Sequence[int]) -> list[TraceRow]:
    """These rows alone, in this order; who waited for a row that is left out waits for what that one waited for."""
    if places == range(len(rows)):
        return list(rows)
    new = {place: number for number, place in enumerate(places)}

    def kept(after: Sequence[int]) -> set[int]:
        found: set[int] = set()
        waiting = list(after)
        while waiting:
            place = waiting.pop()
            if place in new:
                found.add(new[place])
            else:
                waiting.extend(rows[place].after)
        return found

    def renumbered(row: TraceRow) -> TraceRow:
        after = tuple(sorted(kept(row.after)))
        return TraceRow(row.input_tokens, row.output_tokens, row.at_s, row.text, row.session, after, row.think_s)

    return [renumbered(rows[p]) if rows[p].after else rows[p] for p in places]


Prompt = tuple[int | None, Text | None, int]  # of which session, of which text the beginning, tokens


@dataclass(frozen=True, slots=True)
class Passes:
    """How one pass over a list differs from the next: by how much its numbers, sessions and names of texts grow.

    `shared`: how many tokens of a text, by its name, several sessions have in common; these stay the same.
    """

    requests: int
    sessions: int
    texts: int
    shared: Mapping[int, int]

    @classmethod
    def over(cls, prompts: Sequence[Prompt]) -> Passes:
        return cls(
            requests=len(prompts),
            sessions=1 + max((session for session, _, _ in prompts if session is not None), default=0),
            texts=1 + max((each.name for _, text, _ in prompts if text for each in text.lineage()), default=0),
            shared=_shared_by_sessions(prompts),
        )

    def text(self, text: Text, passes: int, fresh: dict[int, Text]) -> Text:
        """What it is in the pass of this number. `fresh` holds those that were asked for in that pass, by name."""
        chain, each = [], text
        while each.name not in fresh:
            chain.append(each)
            if each.parent is None:
                break
            each = each.parent
        for each in reversed(chain):
            name = each.name + passes * self.texts
            if each.name in self.shared:
                fresh[each.name] = Text(name, each, self.shared[each.name])
            else:
                fresh[each.name] = Text(name, None if each.parent is None else fresh[each.parent.name], each.start)
        return fresh[text.name]


def repeated(rows: Sequence[TraceRow], end: int, first: int = 0) -> list[TraceRow]:
    """The rows from `first` up to `end` of the list, which is gone through again where it is too short.

    Nobody finds text of an earlier pass in a cache, but for what several sessions share: instructions and tools.
    """
    if end <= len(rows):
        return list(rows[first:end])
    over = Passes.over([(row.session, row.text, row.input_tokens) for row in rows])
    found: list[TraceRow] = []
    for passes in range(first // len(rows), -(-end // len(rows))):
        before = passes * len(rows)
        fresh: dict[int, Text] = {}
        for row in rows[max(0, first - before) : end - before]:
            found.append(
                replace(
                    row,
                    text=row.text if row.text is None or not passes else over.text(row.text, passes, fresh),
                    session=None if row.session is None else row.session + passes * over.sessions,
                    after=tuple(before + place for place in row.after),
                )
            )
    return found


def _shared_by_sessions(prompts: Sequence[Prompt]) -> dict[int, int]:
    """Texts in which several sessions begin, by name, and how many of their tokens these have in common."""
    reach: dict[int, dict[int, int]] = {}
    for session, prompt, tokens in prompts:
        if prompt is not None and session is not None:
            for text, _, end in prompt.stretches(tokens):
                by = reach.setdefault(text.name, {})
                by[session] = max(by.get(session, 0), end)
    return {name: sorted(by.values())[-2] for name, by in reach.items() if len(by) > 1}
