"""In which order a block runs its settings, so that no place in it favours one of them.

Whatever makes the first run of a block slower (a cold file cache, clocks that were down, code compiled on first use)
falls on the setting that stands first. So each stands first as often as the others: the starts are drawn, from the
seed, as one permutation of the settings after the other. What few blocks leave unbalanced is then a difference between
blocks, and part of the interval, instead of a difference between settings.
"""

from __future__ import annotations

import random


def order_of_block(settings: int, block: int, repeats: int, seed: int | None) -> list[int]:
    """The settings of this block by number, 0 for the baseline. With two `repeats` a palindrome: drift cancels.

    With one, two blocks in turn are each other's reverse, so that it cancels over both. Without a seed it is the order
    of journals that name none: the baseline first, always.
    """
    if seed is None:
        forward = list(range(settings))
        return [*forward, *reversed(forward)] if repeats > 1 else forward if block % 2 == 0 else forward[::-1]
    if repeats > 1:
        forward = _begun_by(settings, seed, block, _start(settings, block, seed))
        return [*forward, *reversed(forward)]
    pair = block - block % 2
    first, last = _start(settings, pair, seed), _start(settings, pair + 1, seed)
    forward = [s for s in _begun_by(settings, seed, pair, first) if s != last] + [last]
    return forward if block % 2 == 0 else forward[::-1]


def _start(settings: int, block: int, seed: int) -> int:
    """Which setting begins: each once in as many blocks as there are settings, none in two blocks in a row."""
    before, starts = -1, [0]
    for turn in range(block // settings + 1):
        starts = list(range(settings))
        random.Random(f"{seed} starts {turn}").shuffle(starts)
        if starts[0] == before and settings > 1:
            starts = [*starts[1:], starts[0]]
        before = starts[-1]
    return starts[block % settings]


def _begun_by(settings: int, seed: int, block: int, first: int) -> list[int]:
    others = [s for s in range(settings) if s != first]
    random.Random(f"{seed} block {block}").shuffle(others)
    return [first, *others]
