"""A verdict that an earlier release wrote, by today's rules.

Since the first releases more is known of what makes a win that is none: a block that a stop cut in two may have been on
two machines, the first run of a block is cold, looks share the error. What those releases concluded stays in the
journal, and `study verify` derives it again as they did; what a person is told is judged anew, from the same runs.

One rule of today does not hold for them: the test of the drawn order (`stats/sign_flips.py`) counts on coins, and those
releases ran palindromes, begun by the baseline or by settings in turn. A machine that swings at their pace favours the
same setting every time, and no row of coins says how often. What palindromes do give, that a steady drift cancels, is
what their interval over blocks rests on, so that is what they are judged by; nodes count as today.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

from ridgeline.campaign.blocks import cut_blocks, trials_of
from ridgeline.campaign.confirmation import ConfirmationVerdict, blocks_so_far, judged_blocks
from ridgeline.campaign.verdict import NOT_PROVABLE
from ridgeline.records.answer import UNCONFIRMED
from ridgeline.records.space import point_key
from ridgeline.records.study import Study
from ridgeline.stats.compare import PROTOCOL
from ridgeline.stats.verdict import FEWEST_BLOCKS, Block, Comparison, Verdict
from ridgeline.stats.wording import count
from ridgeline.study.codec import VerdictLine
from ridgeline.study.history import History

_IN_BLOCKS = ("search", "compare")  # kinds whose verdict is one about interleaved blocks


def judged_today(kind: str, study: Study, history: History) -> History:
    """The history with its verdict as today's rules see it: with today's intervals, or as not provable, and why."""
    if history.verdict is None or kind not in _IN_BLOCKS:
        return history
    now, line, cut = copy.copy(history), history.verdict, cut_blocks(history)
    # as a campaign of today does at once, only that nobody has run them again
    now.uncounted = history.uncounted | {trial.number for block in cut for trial in trials_of(history, block)}
    found, why = _judged(study, now, cut, ConfirmationVerdict.from_line(line))
    if found is None:
        return history
    details = {**line.details, **found.details()}
    if why:
        details = {name: value for name, value in details.items() if name != "paste"} | {NOT_PROVABLE: why}
    now.verdict = VerdictLine(found.conclusion, found.headline, details)
    return now


def _judged(
    study: Study, history: History, cut: Sequence[int], found: ConfirmationVerdict
) -> tuple[ConfirmationVerdict | None, str]:
    """None where nothing is to be said anew."""
    stated = found.spoken_of
    if stated is None or stated.verdict not in (Verdict.BETTER, Verdict.WORSE):
        return None, ""
    if history.protocol >= PROTOCOL and not cut:
        return None, ""
    # with its first run a block cancels a steady drift, without it a cold start: it must stand either way
    whole = blocks_so_far(study, history)
    results = [judged_blocks(study, history, b, today=True) for b in (_without_cold_runs(study, history, whole), whole)]
    judged, cancelling = (each.comparisons.get(stated.candidate) for each in results)
    result = results[0]
    if judged is not None and cancelling is not None and judged.verdict is stated.verdict is not cancelling.verdict:
        judged, result = cancelling, results[1]
    if judged is not None and judged.verdict is stated.verdict:
        return replace(found, comparisons=tuple(result.comparisons.get(c.candidate, c) for c in found.comparisons)), ""
    why = f"{_shown(judged)}{_cut_text(cut, history)}"
    text = f"not provable: {why}; the release that ran it had concluded: {found.headline}"
    rows = tuple(result.comparisons.values())
    return replace(found, conclusion=UNCONFIRMED, headline=text, winner=None, comparisons=rows), why


def _shown(judged: Comparison | None) -> str:
    if judged is None:
        return "no block is left that compares them"
    if judged.verdict is Verdict.TOO_FEW_BLOCKS:
        return f"only {count(judged.blocks, 'block')} can be counted and {FEWEST_BLOCKS} are needed"
    return f"by today's rules the same runs show {judged}"


def _cut_text(cut: Sequence[int], history: History) -> str:
    if not cut:
        return ""
    which = f"block{'' if len(cut) == 1 else 's'} {', '.join(str(block + 1) for block in cut)} of {history.blocks}"
    return f" ({which}: stopped in the middle and resumed, perhaps on another machine)"


def _without_cold_runs(study: Study, history: History, blocks: Sequence[Block]) -> list[Block]:
    """Where the baseline began every block, whatever makes a first run slow is the baseline's alone: it is left out,
    as long as there is another run of the baseline in its block."""
    if history.order_seed is not None:
        return list(blocks)
    base, kept = point_key(study.baseline), []
    for block in blocks:
        first = trials_of(history, block.number)[0]
        cold = first.key == base and len(block.baseline) > 1
        kept.append(replace(block, baseline=block.baseline[1:], opening=None) if cold else block)
    return kept
