"""A finished campaign that goes on: more trials for the search, or more blocks for the comparison.

It is asked for after somebody has seen a verdict, so the next one says so, and its interval allows for every look: who
looks until the answer pleases finds a difference where there is none.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Sequence

from ridgeline.campaign.blocks import unfinished_blocks
from ridgeline.campaign.ledger import Ledger, Reserve
from ridgeline.errors import InputError
from ridgeline.records.answer import UNCONFIRMED, UNFINISHED
from ridgeline.records.expression import parse_duration, show_duration
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage
from ridgeline.stats.verdict import FEWEST_BLOCKS
from ridgeline.stats.wording import count
from ridgeline.study.codec import Extension
from ridgeline.study.history import History

FIRST_LOOK, LATER_LOOKS = 0.8, 0.75  # of the error that is left, what the first verdict and each later one may spend


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
        if history.verdict.conclusion != UNCONFIRMED or not history.count(Stage.SEARCH):
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
    if history.verdict is None or history.verdict.conclusion not in (UNCONFIRMED, UNFINISHED):
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


def error_share(history: History) -> float:
    """The share of the error that the level allows which this verdict may spend.

    Whoever looks at a verdict may go on and look again, as often as they like. So the first one leaves a fifth of the
    error to those that may follow, and each of these spends three quarters of what is left: all together never more
    than the level allows.
    """
    later = history.looks - 1
    return FIRST_LOOK if not later else (1 - FIRST_LOOK) * LATER_LOOKS * (1 - LATER_LOOKS) ** (later - 1)


def level_after(level: float, history: History) -> float:
    """As journals of protocol 1 did it: a level that falls with every look, by too little to hold for all of them."""
    looks = history.looks
    return level if looks == 1 else math.ceil((1 - (1 - level) / looks) * 1000) / 1000


def extension_text(history: History, brief: bool = False) -> str:
    """'; extended by 20 trials after a verdict', and what that means for the interval; or nothing."""
    if not history.extensions:
        return ""
    last = history.extensions[-1]
    added = ", then ".join(str(extension) for extension in history.extensions)
    decided = any(not extension.undecided for extension in history.extensions)
    text = f"extended by {added} after {'a verdict' if decided else 'too few blocks for a verdict'}"
    if brief:
        return f" ({text})"
    if last.trials and (ran := history.count(Stage.SEARCH) - history.searched_before) < last.trials:
        text += f", of which {ran or 'none'} ran"
    if len(history.extensions) not in history.extensions_compared:
        return f"; {text}: without fresh interleaved runs, the earlier blocks stand"
    if history.protocol < 2:
        return f"; {text}: its level allows for {history.looks} looks"
    if history.looks == 1:
        return f"; {text}"
    spent = f"{error_share(history) * 100:.2g}% of the error that the level allows"
    return f"; {text}: look {history.looks}, for which {spent} was left, so that it holds for all looks"


def earlier_verdicts(history: History) -> tuple[str, ...]:
    """What each extension found, for the report: 'verdict before the extension by 2 trials: confirmed, 1.05x ...'."""
    pairs = zip(history.extensions, history.verdicts_before, strict=True)
    return tuple(
        f"verdict before the extension by {asked}: {found.conclusion}, {found.headline}" for asked, found in pairs
    )
