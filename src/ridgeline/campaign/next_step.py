"""What to type where a campaign ended without a verdict: more of whatever there was too little of."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence

from ridgeline.campaign.blocks import unfinished_blocks
from ridgeline.campaign.confirmation import blocks_so_far, runs_needed
from ridgeline.campaign.ledger import Ledger
from ridgeline.records.answer import UNCONFIRMED, UNFINISHED
from ridgeline.records.expression import show_duration
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage
from ridgeline.stats.verdict import FEWEST_BLOCKS
from ridgeline.study.history import History

# times what the runs took so far, and as much again for every extension that was too short: a command that is too short
# by a second helps nobody, and runs on a machine that gets busier take longer than any before them
_IN_HAND = 2.0
_A_FEW_RUNS = 6  # of kinds of campaign that cannot say how many are missing


def next_step(study: Study, history: History, takes: Sequence[str], ledger: Ledger | None = None) -> str:
    """Empty where there is a verdict, or where no option of `resume` would lead to one. `takes` is by what a campaign
    of this kind can be extended."""
    line = history.verdict
    if line is None or line.conclusion not in (UNCONFIRMED, UNFINISHED):
        return ""
    options = []
    blocks, runs = _missing(study, history) if "blocks" in takes else (0, _A_FEW_RUNS)
    if blocks:
        options.append(f"--blocks +{blocks}")
    options += _room(study, history, runs, ledger or Ledger(study.budget, history))
    if not options:
        return ""
    return f"ridgeline resume {shlex.quote(str(history.root))} {' '.join(options)}"


def _missing(study: Study, history: History) -> tuple[int, int]:
    """Blocks to ask for beyond those that are planned, and runs that all blocks to come need room for."""
    settings = max(1, study.confirm.top)
    if not history.count(Stage.SEARCH):  # not even one setting was tried
        return 0, 2 + runs_needed(study, 1, FEWEST_BLOCKS)
    if not history.candidates:
        # a study that asks for no confirmation has to be told; else there was no room for what it asks for
        return (0 if study.confirm.top else FEWEST_BLOCKS), runs_needed(study, 1, FEWEST_BLOCKS)
    settings, cut = len(history.candidates), unfinished_blocks(study, history)
    waiting = max(0, history.blocks - history.blocks_begun) + len(cut)
    counted = [block for block in blocks_so_far(study, history) if block.number not in cut]
    more = max(0, FEWEST_BLOCKS - len(counted) - waiting)
    return more, runs_needed(study, settings, more + waiting) + (more + waiting > 0)  # with a warm-up


def _room(study: Study, history: History, runs: int, ledger: Ledger) -> list[str]:
    """What has to be added to the budget for so many runs, by the time that runs took so far."""
    limits, known = ledger.limits, [ledger.expected_s()]
    known += [ledger.expected_s(point) for point in (study.baseline, *(history.candidates or ()))]
    need_s = runs * max((seconds for seconds in known if seconds is not None), default=study.job.limit_s)
    need_s *= _IN_HAND ** (1 + len(history.extensions) - _decided(history))
    nodes = study.job.resources(study.space.settings(study.baseline)).nodes
    options = []
    if limits.wall_s is not None and (short_s := need_s - (limits.wall_s - history.wall_s)) > 0:
        options.append(f"--wall +{show_duration(_up(short_s, 60 if short_s > 60 else 10))}")
    if limits.node_hours is not None:
        short = need_s * nodes / 3600.0 - (limits.node_hours - history.node_hours)
        options += [f"--node-hours +{_two_digits_up(short)}"] if short > 0 else []
    return options


def _decided(history: History) -> int:
    """How many extensions there had been when there last was a verdict."""
    return max((n for n, one in enumerate(history.extensions, 1) if not one.undecided), default=0)


def _up(value: float, step: float) -> float:
    return math.ceil(value / step) * step


def _two_digits_up(value: float) -> str:
    """Rounded up, so that it is never too little."""
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return f"{float(f'{_up(value, step):.6g}'):f}".rstrip("0").rstrip(".")
