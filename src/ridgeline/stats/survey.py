"""Where the baseline should be run next, so that a slow node is separated from a slow setting with the fewest runs.

Settings of a search hardly repeat, so it is runs of one setting that tell nodes apart. One run on each node shows whom
to suspect; a few more on the suspect settle it. Nodes that look like their peers cost nothing beyond that one run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.stats.nodes import NodeEffect, NodeRuns

_FEWEST_LOOKS = 6  # before anything can be said of nodes
_SUSPICIOUS = 0.08  # chance of being slow from which on a node is worth a run
# runs of the baseline beyond one a node: what is not settled by then is small, or the machine is noisy
_MOST_MORE = 12
LIKELY, MOST_MORE_IF_LIKELY = 0.3, 26  # chance of being slow from which on a node is worth more of them
MOST_URGENT = 2  # runs of the baseline after one trial of the search


def most_looks(nodes: int, width: int) -> int:
    """How many runs of the baseline a campaign spends on telling so many nodes apart, beyond its regular ones."""
    return math.ceil(nodes / width) + MOST_MORE_IF_LIKELY


@dataclass(frozen=True, slots=True)
class BaselinePlacement:
    """Where to run the baseline next: on these nodes, or on any but those to `avoid`. `urgent` is how many such runs
    each trial of the search is worth; 0: it can wait for the next sentinel."""

    nodes: tuple[str, ...] = ()
    urgent: int = 0
    avoid: tuple[str, ...] = ()


def next_look(
    runs: NodeRuns, baseline: str, effects: Sequence[NodeEffect], width: int, there_are: int = 0
) -> BaselinePlacement:
    """`runs` are all good runs so far, `baseline` is its setting, `width` the nodes of one job; `there_are` at least so
    many nodes, seen or not.

    Neither nodes nor any to avoid: there is nothing to choose between, or fewer nodes were seen than a job takes.
    """
    seen = runs.nodes
    repeats, on, before = runs.of(baseline)
    times = {node: on.get(node, 0) for node in seen}
    chances = {effect.node: effect.chance for effect in effects if effect.verdict not in ("slow", "fast")}
    named = set(seen) - set(chances)
    looked_at = sum(map(bool, times.values())) / width
    more = repeats - looked_at
    enough = _SUSPICIOUS if more < _MOST_MORE else LIKELY if more < MOST_MORE_IF_LIKELY else 1.0
    suspects = [node for node in seen if chances.get(node, 0.0) >= enough]
    new = [node for node in seen if not times[node]]
    # a site that cannot avoid nodes would be asked in vain: that, too, is given up after a while
    if not suspects and not new and seen and len(seen) + width <= there_are and more < _MOST_MORE:
        return BaselinePlacement((), 1, tuple(seen))
    if len(seen) <= width:
        return BaselinePlacement()

    def wanted(node: str) -> tuple[float, ...]:
        return -round(chances.get(node, 0.0), 2) if node in suspects else 0.0, times[node], node in named

    # in turn with its peers: a machine that wanders would otherwise be taken for the suspect
    fresh = [node for node in seen if not (node in before and node in suspects)] or seen
    first = min(fresh, key=lambda node: (*wanted(node), node))
    company = sorted(
        set(fresh) - {first}, key=lambda node: (node in named, round(chances.get(node, 0.0), 2), times[node], node)
    )
    if len(company) < width - 1:
        company = sorted(set(seen) - {first})
    begun = repeats >= _FEWEST_LOOKS
    likely = any(chances[node] >= LIKELY for node in suspects)
    urgent = MOST_URGENT if likely else int(bool(new or suspects or not begun))
    return BaselinePlacement(tuple(sorted([first, *company[: width - 1]])), urgent)
