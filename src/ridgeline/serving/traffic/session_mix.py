"""Sessions drawn like those of a trace: agents, chats, or your own recording."""

from __future__ import annotations

import itertools
import math
import random
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ridgeline.errors import InputError, did_you_mean
from ridgeline.records.exhibit import TextTable
from ridgeline.serving.traffic.replay import Replay, TraceRow, by_session
from ridgeline.serving.traffic.texts import Text
from ridgeline.serving.traffic.traces import read_trace
from ridgeline.serving.traffic.turn_statistics import beside, quantiles, shared_tokens, statistics, turn_before

_SHARES = (0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
_GOLDEN = 0.6180339887498949  # successive multiples of it fill 0 to 1 evenly, however many there are
_DRAWN = 20_000  # requests, to show what is drawn
_COMMON = Text(0)
_COMPACTED = 0.75  # a prompt shorter than this share of the one before has a compacted history


@dataclass(frozen=True, slots=True)
class QuantileCurve:
    """A distribution by its values at fixed shares, between which it is even on a log scale."""

    values: tuple[float, ...]
    _logs: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_logs", tuple(map(math.log1p, self.values)))

    @classmethod
    def of(cls, seen: Sequence[float]) -> QuantileCurve:
        return cls(quantiles(seen, _SHARES))

    def at(self, share: float) -> float:
        place = min(bisect_right(_SHARES, share), len(_SHARES) - 1)
        low, high = self._logs[place - 1], self._logs[place]
        within = (share - _SHARES[place - 1]) / (_SHARES[place] - _SHARES[place - 1])
        return math.expm1(low + within * (high - low))

    def with_mean(self, mean: float) -> QuantileCurve:
        factor = _factor([self.at((k + 0.5) / 500) for k in range(500)], mean)
        return QuantileCurve(tuple(value * factor for value in self.values))

    def at_most(self, most: float) -> QuantileCurve:
        return QuantileCurve(tuple(min(value, most) for value in self.values))


_NONE = QuantileCurve((0.0,) * len(_SHARES))


@dataclass(frozen=True, slots=True)
class Outline:
    """One session: its turns, the tokens of its first prompt and of its longest, and those that a turn adds on
    average."""

    turns: float
    first_tokens: float
    longest_tokens: float
    added_tokens: float

    @property
    def requests(self) -> int:
        return max(1, round(self.turns))


@dataclass(frozen=True, slots=True)
class SessionMix:
    """How sessions go.

    `outlines`: sessions, each as likely as any other. `added`: what a turn adds, over the average of its session. Of
    `edited_share` of the turns the history is edited, so that they keep `edited_kept` of the prompt before; a prompt
    that would exceed its session's longest is compacted to `compacted_tokens` and keeps `compacted_kept`.
    `shared_tokens`: instructions and tools with which all sessions begin. `words`: as typed after `--traffic`. `notes`:
    what was left out of the file that it was fitted to.
    """

    words: str
    outlines: tuple[Outline, ...]
    added: QuantileCurve
    output_tokens: QuantileCurve
    think_s: QuantileCurve
    edited_share: float = 0.0
    edited_kept: QuantileCurve = _NONE
    compacted_kept: QuantileCurve = _NONE
    compacted_tokens: QuantileCurve = _NONE
    shared_tokens: int = 0
    answers_stay: bool = False
    notes: tuple[str, ...] = ()

    def draw(self, count: int, rng: random.Random) -> list[TraceRow]:
        rows: list[TraceRow] = []
        # another seed has other words but for what all sessions share
        offset, name = rng.random(), 1 + (rng.getrandbits(32) << 24)
        for session in itertools.count():
            if len(rows) >= count:
                break
            text = Text(name + len(rows), _COMMON, self.shared_tokens)
            rows += self._session(self._outline(session, offset), session, len(rows), text, rng)
        return rows[:count]

    def _outline(self, session: int, offset: float) -> Outline:
        return self.outlines[int((offset + session * _GOLDEN) % 1.0 * len(self.outlines))]

    def requests_of(self, sessions: int, rng: random.Random) -> int:
        """How many requests `draw` gives before the last of so many sessions begins, and that one's first."""
        offset = rng.random()
        return 1 + sum(self._outline(session, offset).requests for session in range(sessions - 1))

    def waits(self, count: int, rng: random.Random) -> bool:
        """Whether any of the first so many requests waits for an answer."""
        offset = rng.random()
        return any(self._outline(session, offset).requests > 1 for session in range(count - 1))

    def _session(self, outline: Outline, session: int, place: int, text: Text, rng: random.Random) -> list[TraceRow]:
        rows: list[TraceRow] = []
        size = rng.lognormvariate(0.0, 0.1)  # no two sessions have the same lengths
        inputs = max(self.shared_tokens + 1, round(outline.first_tokens * size))
        drawn = [self.added.at(rng.random()) for _ in range(outline.requests)]
        typical_tokens = size * outline.added_tokens * (len(drawn) - 1) / max(sum(drawn[:-1]), 1e-9)
        for turn, over_average in enumerate(drawn):
            outputs = max(1, round(self.output_tokens.at(rng.random())))
            think_s, after = (self.think_s.at(rng.random()), (place + turn - 1,)) if turn else (0.0, ())
            rows.append(TraceRow(inputs, outputs, None, text, session, after, think_s))
            longer = inputs + max(1, round(over_average * typical_tokens)) + (outputs if self.answers_stay else 0)
            kept = None
            if longer > 1.05 * size * outline.longest_tokens and self.compacted_tokens is not _NONE:
                kept, longer = self.compacted_kept.at(rng.random()), round(self.compacted_tokens.at(rng.random()))
            elif rng.random() < self.edited_share:
                kept = self.edited_kept.at(rng.random())
            if kept is not None:
                stays = max(min(inputs, self.shared_tokens), round(inputs * min(1.0, kept)))
                text, longer = Text(text.name + 1, text, stays), max(longer, stays + 1)
            inputs = longer
        return rows


def fit(recorded: Replay) -> SessionMix:
    """What draws sessions like these. Sub-agents become turns of their session."""
    rows = recorded.rows
    outlines: list[Outline] = []
    added: list[float] = []
    edited: list[float] = []
    compacted: list[tuple[float, int]] = []
    think_s: list[float] = []
    for places in by_session(rows):
        grown: list[int] = []
        for place in places:
            if (before := turn_before(rows, place)) is None:
                continue
            row, shared = rows[place], shared_tokens(before, rows[place])
            longer = row.input_tokens - before.input_tokens
            think_s.append(row.think_s)
            if shared < min(before.input_tokens, row.input_tokens):
                kept = shared / before.input_tokens
                if row.input_tokens < _COMPACTED * before.input_tokens:
                    compacted.append((kept, row.input_tokens))
                    continue
                edited.append(kept)
            grown.append(max(1, longer - (before.output_tokens if recorded.answers_stay else 0)))
        mean = sum(grown) / len(grown) if grown else 0.0
        added += [tokens / mean for tokens in grown]
        longest = max(rows[place].input_tokens for place in places)
        outlines.append(Outline(len(places), rows[places[0]].input_tokens, longest, mean))
    if not think_s:
        raise InputError(f"{recorded.source} holds no sessions of several turns to draw others like them")
    return SessionMix(
        f"sessions:{recorded.source}",
        tuple(sorted(outlines, key=lambda outline: (outline.turns, outline.first_tokens))),
        QuantileCurve.of(added or [1.0]),
        QuantileCurve.of([row.output_tokens for row in rows]),
        QuantileCurve.of(think_s),
        edited_share=len(edited) / len(think_s),
        edited_kept=QuantileCurve.of(edited) if edited else _NONE,
        compacted_kept=QuantileCurve.of([kept for kept, _ in compacted]) if compacted else _NONE,
        compacted_tokens=QuantileCurve.of([tokens for _, tokens in compacted]) if compacted else _NONE,
        shared_tokens=shared_by_all([(rows[at].text, rows[at].input_tokens) for at, *_ in by_session(rows)]),
        answers_stay=recorded.answers_stay,
        notes=recorded.notes,
    )


def _factor(values: Sequence[float], mean: float) -> float:
    """What to multiply these by for this mean, when none falls below 1."""
    factor = 1.0
    for _ in range(60):
        factor *= mean * len(values) / sum(max(1.0, value * factor) for value in values)
    return factor


def shared_by_all(firsts: Sequence[tuple[Text | None, int]]) -> int:
    """How many tokens of its first prompt, a text's, half of the sessions share with another."""
    by_root: dict[Text, list[int]] = {}
    for text, tokens in firsts:
        if text is not None:
            root, _, end = text.stretches(tokens)[0]
            by_root.setdefault(root, []).append(end)
    shared = sorted(end for ends in by_root.values() if len(ends) > 1 for end in ends)
    return shared[len(shared) // 2] if 2 * len(shared) > len(firsts) else 0


# Fitted to 43 sessions of coding agents, 1,986 requests, from the traces of kv-cache-tester (github.com/callanjfox).
# These name 8k to 13k tokens of tools and 1k to 3k of instructions, but not what sessions have in common: 11k is set.
# fmt: off
_AGENTS = (
    (5, 11353, 69655, 14576), (5, 68244, 83787, 3886), (5, 132684, 151911, 4807), (5, 851858, 878882, 6756),
    (6, 17432, 22243, 962), (7, 11341, 70979, 9940), (7, 11745, 90434, 13115), (7, 11763, 94829, 13844),
    (7, 21290, 71581, 8382), (8, 358314, 360102, 255), (11, 24718, 38820, 1410), (12, 55238, 60580, 486),
    (12, 252230, 259250, 638), (14, 67388, 113998, 3585), (14, 70650, 89205, 1427), (18, 65148, 101160, 2118),
    (20, 95960, 148361, 2758), (21, 13660, 77393, 3187), (22, 21179, 120561, 4732), (23, 18964, 75836, 2585),
    (28, 99266, 133845, 1281), (33, 43254, 107074, 1994), (36, 13048, 60580, 1383), (40, 18298, 147822, 3321),
    (42, 40671, 68164, 671), (46, 165030, 216263, 1139), (47, 16870, 240068, 4852), (51, 13921, 101822, 1758),
    (56, 17590, 124666, 1947), (59, 16293, 122874, 1838), (76, 18265, 161090, 2474), (84, 20245, 103814, 1007),
    (84, 92915, 186131, 1123), (88, 12639, 143655, 1553), (89, 53771, 150330, 1494), (94, 52782, 153930, 2516),
    (100, 11463, 87310, 848), (100, 17897, 147191, 1306), (108, 19030, 162975, 1801), (118, 20747, 187047, 1468),
    (123, 21204, 182537, 1322), (125, 21610, 128351, 861), (130, 16254, 152583, 1712),
)
# fmt: on
AGENT = SessionMix(
    "sessions:agent",
    tuple(Outline(*row) for row in _AGENTS),
    added=QuantileCurve((0.000644, 0.0882, 0.125, 0.23, 0.461, 0.96, 2.05, 3.61, 8.56, 55.8)),
    output_tokens=QuantileCurve((4, 79, 99, 138, 220, 415, 978, 1571, 3304, 9873)),
    think_s=QuantileCurve((0, 3, 4, 6, 11, 37, 251, 608, 3276, 71884)),
    edited_share=0.0587,
    edited_kept=QuantileCurve((0, 0.128, 0.258, 0.997, 0.999, 0.999, 1, 1, 1, 1)),
    compacted_kept=QuantileCurve((0.0774, 0.0774, 0.0774, 0.0783, 0.0952, 0.0955, 0.138, 0.138, 0.138, 0.138)),
    compacted_tokens=QuantileCurve((23163, 23163, 23163, 28130, 36722, 65313, 106083, 106083, 106083, 106083)),
    shared_tokens=11_000,
)

# Lengths are those of `sharegpt`, for each message. 27% of ShareGPT's conversations have one turn (CachedAttention,
# arXiv 2403.19708); how long the others are is set, not fitted. Times to think: from a request of Mooncake's
# conversation trace to the one that continues it, less its answer at 30 tokens a second.
_MESSAGE = QuantileCurve((5, 29, 44, 86, 180, 378, 737, 1099, 2048, 2048))
_CHAT_TURNS = QuantileCurve((1, 1, 1, 1, 3, 6, 12, 20, 40, 60))
CHAT = SessionMix(
    "sessions:chat",
    tuple(
        Outline(_CHAT_TURNS.at((k + 0.5) / 100), _MESSAGE.at((k + 0.5) * _GOLDEN % 1.0), math.inf, 313)
        for k in range(100)
    ),
    added=_MESSAGE,
    output_tokens=QuantileCurve((5, 25, 36, 65, 125, 243, 440, 629, 1024, 1024)),
    think_s=QuantileCurve((0, 24, 35, 59, 119, 268, 485, 611, 1482, 3029)),
    answers_stay=True,
)
_KNOWN = {"agent": AGENT, "chat": CHAT}


def parse_sessions(words: str) -> SessionMix:
    """`sessions:agent`, `sessions:chat` or `sessions:FILE`; `:TURNS:IN:OUT` after it sets the means of turns a session,
    tokens that a turn adds, and tokens of an answer."""
    kind, means = words.removeprefix("sessions:"), []
    parts = kind.rsplit(":", 3)
    if len(parts) == 4:
        try:
            kind, means = parts[0], [float(part) for part in parts[1:]]
        except ValueError:
            pass
    if not all(1 <= mean <= 1e6 for mean in means):
        raise InputError(f"traffic {words!r}: turns, prompt and answer are means from 1 to 1,000,000")
    mix = _KNOWN.get(kind)
    if mix is None:
        if not kind or not Path(kind).is_file():
            hint = did_you_mean(kind, tuple(_KNOWN))
            raise InputError(
                f"traffic {words!r} is neither sessions:agent, sessions:chat nor sessions:FILE with a recorded trace, "
                f"each perhaps with :TURNS:IN:OUT{'; ' if hint else ''}{hint}"
            )
        mix = fit(read_trace(Path(kind)))
        words = words.replace(kind, str(Path(kind).absolute()), 1)
    if means:
        turns, added, output = means
        longer = _factor([outline.turns for outline in mix.outlines], turns)
        later = sum(outline.added_tokens * (outline.turns - 1) for outline in mix.outlines)
        more = added * sum(outline.turns - 1 for outline in mix.outlines) / later if later else 1.0
        outlines = tuple(
            replace(outline, turns=outline.turns * longer, added_tokens=outline.added_tokens * more)
            for outline in mix.outlines
        )
        mix = replace(mix, outlines=outlines, output_tokens=mix.output_tokens.with_mean(output))
    return replace(mix, words=words)


@dataclass(frozen=True, slots=True)
class SessionsSeen:
    """Rows of a trace, and of what was drawn like it."""

    columns: Mapping[str, Sequence[TraceRow]]
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, object]:
        return {name: statistics(rows) for name, rows in self.columns.items()} | {"notes": list(self.notes)}

    def shown(self) -> TextTable:
        return beside("sessions", self.columns, self.notes)


def look_at(words: str) -> SessionsSeen:
    """A trace file beside what is drawn after it was fitted, or what `sessions:...` draws."""
    rng = random.Random(0)
    if words.startswith("sessions:"):
        return SessionsSeen({"drawn": parse_sessions(words).draw(_DRAWN, rng)})
    recorded = read_trace(Path(words))
    if not recorded.has_sessions:
        return SessionsSeen({"trace": recorded.rows}, (*recorded.notes, "no turn of it waits for another"))
    drawn = fit(recorded).draw(max(_DRAWN, len(recorded.rows)), rng)
    return SessionsSeen({"trace": recorded.rows, "drawn": drawn}, recorded.notes)
