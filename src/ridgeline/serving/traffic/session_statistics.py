"""What the sessions of a trace are like: turns, lengths, what a prompt shares with the one before, time to think."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.serving.traffic.replay import TraceRow


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


def before(rows: Sequence[TraceRow], place: int) -> int | None:
    """The turn that a turn continues: of those that it waited for, the one with which it shares most."""
    return max(rows[place].after, key=lambda n: shared_tokens(rows[n], rows[place]), default=None)
