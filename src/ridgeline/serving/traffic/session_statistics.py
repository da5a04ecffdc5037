"""What the sessions of a trace are like: turns, lengths, what a prompt shares with the one before, time to think."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ridgeline.records.exhibit import TextTable
from ridgeline.serving.traffic.replay import TraceRow, by_session

_QUANTILES = (10, 50, 90)


def shared_tokens(first: TraceRow, second: TraceRow) -> int:
    """How many tokens two prompts have in common, from their beginning."""
    if first.text is None or second.text is None:
        return 0
    common = 0
    stretches = zip(first.text.stretches(first.input_tokens), second.text.stretches(second.input_tokens), strict=False)
    for (one, _, one_end), (other, _, other_end) in stretches:
        if one is not other:
            break
        common = min(one_end, other_end)
        if one_end != other_end:
            break
    return common


def turn_before(rows: Sequence[TraceRow], place: int) -> TraceRow | None:
    """The turn that a turn continues: of those that it waited for, the one with which it shares most."""
    waits = [rows[earlier] for earlier in rows[place].after]
    return max(waits, key=lambda earlier: shared_tokens(earlier, rows[place]), default=None)


def statistics(rows: Sequence[TraceRow]) -> dict[str, tuple[float, ...]]:
    """p10, p50 and p90 of each quantity."""
    sessions = by_session(rows)
    pairs = [(before, row) for place, row in enumerate(rows) if (before := turn_before(rows, place)) is not None]
    seen: dict[str, list[float]] = {
        "turns a session": [len(places) for places in sessions],
        "first prompt, tokens": [rows[places[0]].input_tokens for places in sessions],
        "prompt, tokens": [row.input_tokens for row in rows],
        "answer, tokens": [row.output_tokens for row in rows],
        "new in a later prompt, tokens": [row.input_tokens - shared_tokens(before, row) for before, row in pairs],
        "shared with the turn before, %": [
            100 * shared_tokens(before, row) / row.input_tokens for before, row in pairs
        ],
        "time to think, s": [row.think_s for _, row in pairs],
        "context at the end, tokens": [
            rows[places[-1]].input_tokens + rows[places[-1]].output_tokens for places in sessions
        ],
    }  # fmt: skip
    return {name: quantiles(values, [q / 100 for q in _QUANTILES]) for name, values in seen.items() if values}


def quantiles(values: Sequence[float], shares: Sequence[float]) -> tuple[float, ...]:
    ordered = sorted(values)
    return tuple(ordered[round(share * (len(ordered) - 1))] for share in shares)


def beside(title: str, columns: Mapping[str, Sequence[TraceRow]], notes: Sequence[str] = ()) -> TextTable:
    """Statistics of several lists of rows, such as a trace and what was drawn like it."""
    found = {name: statistics(rows) for name, rows in columns.items()}
    head = ("", *(f"{name} p{q}" for name in columns for q in _QUANTILES))
    names = dict.fromkeys(name for each in found.values() for name in each)
    cells = [
        [f"{value:,.0f}" if value >= 10 else f"{value:,.3g}" for each in found.values() for value in each.get(name, ())]
        for name in names
    ]
    sizes = tuple(f"{name}: {len(of):,} requests of {len(by_session(of)):,} sessions" for name, of in columns.items())
    return TextTable(
        title, head, tuple((name, *row) for name, row in zip(names, cells, strict=True)), notes=(*sizes, *notes)
    )
