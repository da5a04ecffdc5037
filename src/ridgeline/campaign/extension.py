"""A finished campaign that goes on: more trials for the search, or more blocks for the comparison; and what to type
where one ended without a verdict: more of whatever there was too little of.

An extension is asked for after somebody has seen a verdict, so the next one says so, and its interval allows for every
look (`confirmation.error_share`): who looks until the answer pleases finds a difference where there is none.
"""

from __future__ import annotations

import copy
import math
import re
import shlex
from collections.abc import Sequence

from ridgeline.campaign.confirmation import blocks_so_far, extension_text, runs_needed, unfinished_blocks
from ridgeline.campaign.ledger import Ledger, Reserve
from ridgeline.errors import InputError
from ridgeline.records.answer import Conclusion
from ridgeline.records.expression import parse_duration, show_duration
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage
from ridgeline.stats.verdict import FEWEST_BLOCKS
from ridgeline.stats.wording import count
from ridgeline.study.codec import Extension
from ridgeline.study.history import History


def extension(
    trials: int | None = None, blocks: int | None = None, wall_s: float = 0.0, node_hours: float = 0.0
) -> Extension | None:
    """So many more trials or blocks, with time and node-hours for them; None where nothing is asked for."""
    if trials is not None and blocks is not None:
        raise InputError("--trials extends the search, --blocks the comparison: give one at a time")
    for name, number in (("trials", trials), ("blocks", blocks)):
        if number is not None and number < 1:
            raise InputError(f"{name}: {number} more are none; ask for 1 or more")
    if trials is None and blocks is None and not wall_s and not node_hours:
        return None
    return Extension(trials or 0, blocks or 0, wall_s=wall_s, node_hours=node_hours)


def parse_extension(
    trials: str | None, blocks: str | None, wall: str | None = None, node_hours: str | None = None
) -> Extension | None:
    """What was typed: `+20` trials or `+3` blocks, and `+30m` or `+2` node-hours for them; None where nothing was."""
    more = (_more("trials", trials), _more("blocks", blocks))
    return extension(*more, more_s(wall), _more_hours(node_hours))


def _more(name: str, text: str | None) -> int | None:
    if text is not None and not re.fullmatch(r"\+0*[1-9]\d{0,5}", text):
        raise InputError(f"--{name} {text}: say how many more, with a plus, such as --{name} +5")
    return None if text is None else int(text)


def more_s(text: str | None) -> float:
    if text is None:
        return 0.0
    try:
        return parse_duration(text.removeprefix("+"))
    except ValueError as error:
        raise InputError(f"--wall {text}: {error}") from None


def _more_hours(text: str | None) -> float:
    if text is None:
        return 0.0
    if not re.fullmatch(r"\+?(\d{1,9}(\.\d*)?|\.\d+)", text) or float(text) == 0:
        raise InputError(f"--node-hours {text}: say how many more, such as --node-hours +2.5")
    return float(text)


def require_extendable(study: Study, kind: str, takes: Sequence[str], history: History, asked: Extension) -> None:
    """InputError where a campaign of this kind, which can go on by what it `takes`, has nothing to go on with."""
    what = asked.what
    if what == "budget":
        _require_use_of_room(study, history, asked)
        return
    if what not in takes:
        instead = f"use --{takes[0]}" if takes else "start a new one"
        raise InputError(f"{history.root}: a campaign of kind {kind} cannot be extended by {what}; {instead}")
    if history.verdict is None:
        raise InputError(
            f"{history.root}: this campaign is not over yet{extension_text(history, brief=True)}; "
            f"finish it with `ridgeline resume {history.root}` first"
        )
    if what == "blocks" and not history.candidates:
        if history.verdict.conclusion != Conclusion.UNCONFIRMED or not history.count(Stage.SEARCH):
            more = "; use --trials to search on" if "trials" in takes else ""
            raise InputError(f"{history.root}: nothing was compared in blocks, so there is nothing to add to{more}")
        if asked.blocks < FEWEST_BLOCKS:
            raise InputError(
                f"{history.root}: no block has run yet and a verdict needs {FEWEST_BLOCKS}: --blocks +{FEWEST_BLOCKS}"
            )


def _require_use_of_room(study: Study, history: History, asked: Extension) -> None:
    """InputError where time or node-hours alone would change nothing."""
    options = " ".join(
        text
        for text in (
            f"--wall +{show_duration(asked.wall_s)}" if asked.wall_s else "",
            f"--node-hours +{asked.node_hours:g}" if asked.node_hours else "",
        )
        if text
    )
    if history.verdict is None or history.verdict.conclusion not in (Conclusion.UNCONFIRMED, Conclusion.UNFINISHED):
        raise InputError(f"{options}: say what for, with --trials +N or --blocks +N")
    if history.candidates and history.blocks_begun >= history.blocks and not unfinished_blocks(study, history):
        missing = max(1, FEWEST_BLOCKS - history.blocks)
        raise InputError(
            f"{options}: all {count(history.blocks, 'block')} that were planned have run, so there is nothing to use "
            f"it for; add blocks too: --blocks +{missing}"
        )


def require_room(study: Study, history: History, asked: Extension) -> None:
    """InputError where not one more run fits into the study's time or node-hours, with what is added to them."""
    history = copy.copy(history)
    history.instructions = copy.copy(history.instructions)
    history.instructions.extend(asked.wall_s, asked.node_hours)
    ledger = Ledger(study.budget, history)
    nodes = study.job.resources(study.space.settings(study.baseline)).nodes
    if ledger.fits(study.baseline, nodes, Reserve()):
        return
    limits, words = ledger.limits, []
    if limits.wall_s is not None:
        spent = f"{show_duration(history.wall_s)} of {show_duration(limits.wall_s)}"
        words.append(f"`wall` {spent} (--wall +{show_duration(limits.wall_s)} adds as much again)")
    if limits.node_hours is not None:
        spent = f"{history.node_hours:.3g} of {limits.node_hours:.3g}"
        words.append(f"`node_hours` {spent} (--node-hours +{limits.node_hours:.3g} adds as much again)")
    raise InputError(
        f"{history.root}: the budget leaves no room for another run, so {asked} would change nothing. "
        f"Spent: {', '.join(words)}"
    )


def unwatched(history: History) -> bool:
    """Whether the campaign went on after a verdict and the baseline has not run since: the machine may have changed."""
    before, trials = history.last_trial_before, history.trials
    return bool(before) and not any(trials[n].stage is Stage.SENTINEL for n in range(before + 1, len(trials) + 1))


# times what the runs took so far, and as much again for every extension that was too short: a command that is too short
# by a second helps nobody, and runs on a machine that gets busier take longer than any before them
_IN_HAND = 2.0
_A_FEW_RUNS = 6  # of kinds of campaign that cannot say how many are missing


def next_step(study: Study, history: History, takes: Sequence[str], ledger: Ledger | None = None) -> str:
    """Empty where there is a verdict, or where no option of `resume` would lead to one. `takes` is by what a campaign
    of this kind can be extended."""
    line = history.verdict
    if line is None or line.conclusion not in (Conclusion.UNCONFIRMED, Conclusion.UNFINISHED):
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
