"""Is a setting better than the baseline? Paired comparison over interleaved, node-blocked runs.

One block runs the baseline and every candidate on the same nodes in rounds: each setting once, in an order drawn for
the round. The block gives one number per candidate: the difference of mean logs, in which node effects cancel. Over
blocks of one node these numbers are independent, so a t-interval over blocks is exact for log-normal noise and needs no
assumption that candidate and baseline are equally noisy. Blocks of the same node among several share what the setting
gains there, so then the node is what counts: its mean is one number, however many blocks it holds. What two or three
nodes can't show of others they may show of themselves: where each gains nearly as much as all do, that is a verdict
too, with the nodes it holds for.

That the machine stays the same is not assumed: the order was drawn, and what it can show by itself (`sign_flips.py`) is
asked for as well. A verdict needs both, and an interval holds what either leaves open.

Choosing the best of k candidates is paid for: verdicts by Holm's procedure, intervals simultaneous (Bonferroni), so
that the winner's interval holds although it was chosen for being large.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ridgeline.stats.sign_flips import flip_interval, least_p, sign_flip_p
from ridgeline.stats.student import interval, t_quantile, two_sided_p
from ridgeline.stats.verdict import FEWEST_BLOCKS, Block, Comparison, Confirmation, FirstRunEffect, Scale, Verdict
from ridgeline.stats.wording import count, ratio_range, ratio_text

__all__ = ["Block", "Comparison", "Confirmation", "Direction", "Verdict", "confirm", "holm", "smallest_effect"]

Direction = Literal["maximize", "minimize"]

POWER = 0.8  # "could show" means: would be seen in four of five campaigns
PROTOCOL = 3  # how blocks are ordered and judged today; earlier ones are those of journals, see `confirm`
_LEAST_BETWEEN = 0.25  # protocol 2: variance of a gain between nodes over that between blocks of a node
_LEAST_LEVELLED = 3  # settings of a block from whose runs its drift is taken
_ALIKE = 0.25  # how far a node's gain may be from the mean of all, as a part of it, for a verdict about these nodes
_MOST_NODES = 100  # beyond which a forecast is no plan any more
SAME = 1e-12  # block effects that differ by less are the same number in floating point


def confirm(
    blocks: Sequence[Block],
    level: float = 0.95,
    direction: Direction = "maximize",
    *,
    share: float = 1.0,
    protocol: int = PROTOCOL,
    drawn: bool = True,
) -> Confirmation:
    """Compare every candidate named in `blocks` with the baseline.

    Under identical settings the chance that any candidate is called better or worse is at most 1 - level, over all
    looks at the same campaign: this one may spend a `share` of it. `protocol` is that of the journal: 1 took blocks for
    independent wherever they were, 2 allowed for little that nodes share, and neither drew its rounds. `drawn` says
    whether the order of rounds was: only then it shows something by itself.
    """
    if not 0.5 <= level < 1:
        raise ValueError(f"level is {level}; a confidence level lies between 0.5 and 1, such as 0.95")
    names = list(dict.fromkeys(name for block in blocks for name in block.candidates))
    scale: Scale = "ratio" if all_positive(blocks) else "difference"
    blocks = [levelled(block, scale) for block in blocks]
    found = {name: paired_effect(blocks, name, scale, direction, protocol, drawn) for name in names}
    p_values = holm({name: min(1.0, _p_value(found[name]) / share) for name in names})
    here = holm({name: min(1.0, _p_here(found[name]) / share) for name in names})
    allowed = (1 - level) * share / max(1, len(names))  # the error of one interval, so that all hold together
    comparisons = {}
    for name, one in found.items():
        back, notes = math.exp if scale == "ratio" else float, _notes(blocks, name, scale)
        estimate = back(one.mean) if one.blocks else None
        refused = Verdict.TOO_FEW_BLOCKS, scale, estimate, None, None, level, one.blocks, len(names), 1.0, None, None
        plain = Comparison(name, *refused, notes)
        comparisons[name] = (
            _judged(plain, one, p_values[name], here[name], allowed)
            if one.blocks >= FEWEST_BLOCKS
            else _refused(plain, one, blocks, allowed)
        )
    better = [c for c in comparisons.values() if c.verdict is Verdict.BETTER]
    winner = max(better, key=lambda c: c.estimate or 0.0) if better else None
    headline = _headline(winner, comparisons, where_they_ran(blocks, protocol))
    return Confirmation(winner.candidate if winner else None, comparisons, level, headline)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's step-down adjustment: a name is significant at alpha if its adjusted value is at most alpha."""
    adjusted: dict[str, float] = {}
    largest = 0.0
    for rank, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, p * (len(p_values) - rank)))
        adjusted[name] = largest
    return {name: adjusted[name] for name in p_values}


def smallest_effect(spread: float, blocks: int, level: float = 0.95, among: int = 1) -> float:
    """The block effect (log ratio or difference) that `blocks` blocks show with power 0.8, given their spread."""
    return _shown_by(spread / math.sqrt(blocks), blocks - 1, 1 - (1 - level) / among)


def _shown_by(error: float, freedom: int, level: float) -> float:
    return interval(0.0, error, freedom, level)[1] + t_quantile(POWER, freedom) * error


@dataclass(frozen=True, slots=True)
class PairedEffect:
    """One candidate against the baseline: effects of `blocks` blocks in `places`, their mean and how sure that is.

    `error` is the standard error of the mean, with `freedom` degrees; `spread` the standard deviation of the blocks.
    `own` is the error of the mean over these very places, with `own_freedom`: what it tells of others is left out.
    `each` is the standard deviation of a block that has a place of its own. `rounds` are the differences within rounds.
    `apart` is how far the place that is most unlike the others is from the mean.
    """

    mean: float
    spread: float
    error: float
    freedom: int
    blocks: int
    places: int
    own: float
    own_freedom: int
    each: float
    rounds: tuple[float, ...]
    apart: float = math.inf

    @property
    def constant(self) -> bool:
        return self.spread <= SAME

    @property
    def few_places(self) -> bool:
        """Blocks share places, so that there are fewer numbers than blocks."""
        return 1 < self.places < self.blocks

    @property
    def alike(self) -> bool:
        """Each of few places gains nearly as much as all do, so that their mean is true of each."""
        return self.few_places and self.apart <= _ALIKE * abs(self.mean)


def paired_effect(
    blocks: Sequence[Block],
    name: str,
    scale: Scale,
    direction: Direction,
    protocol: int = PROTOCOL,
    drawn: bool = True,
) -> PairedEffect:
    sign = 1.0 if direction == "maximize" else -1.0
    blocks = _with_both(blocks, name)
    effects = [sign * (_centre(b.candidates[name], scale) - _centre(b.baseline, scale)) for b in blocks]
    places = [frozenset(block.nodes) for block in blocks]
    n, sizes = len(effects), Counter(places)
    mean, spread = mean_and_spread(effects) if effects else (0.0, 0.0)
    plain = spread / math.sqrt(n) if n else 0.0
    if n < FEWEST_BLOCKS or not 1 < len(sizes) < n or spread <= SAME or protocol < 2:
        rounds = _round_differences(blocks, name, scale, sign) if protocol > 2 and drawn else ()
        return PairedEffect(mean, spread, plain, n - 1, n, len(sizes), plain, n - 1, spread, rounds)
    within = _within_places(effects, places)
    own = math.sqrt(within * math.fsum(1 / size for size in sizes.values())) / len(sizes)
    if protocol == 2:
        error = _allowing_for_places(effects, places)
        return PairedEffect(mean, spread, error, n - 1, n, len(sizes), own, n - len(sizes), spread, ())
    # each place is one number: of gains that differ from place to place, nothing else knows how much
    means = [*_means_of_places(effects, places).values()]
    mean, between = mean_and_spread(means)
    error = between / math.sqrt(len(sizes))
    if error <= SAME:  # values in coarse steps: that places agree to the last digit is luck
        error = plain
    harmonic = math.fsum(1 / size for size in sizes.values()) / len(sizes)
    each = math.sqrt(max(0.0, between**2 - within * harmonic) + within)
    rounds = _round_differences(blocks, name, scale, sign) if drawn else ()
    apart = max(abs(one - mean) for one in means)
    return PairedEffect(mean, spread, error, len(sizes) - 1, n, len(sizes), own, n - len(sizes), each, rounds, apart)


def _means_of_places(effects: Sequence[float], places: Sequence[object]) -> dict[object, float]:
    return {
        place: math.fsum(e for e, p in zip(effects, places, strict=True) if p == place) / size
        for place, size in Counter(places).items()
    }


def _within_places(effects: Sequence[float], places: Sequence[object]) -> float:
    """The variance of blocks of one place."""
    means = _means_of_places(effects, places)
    return math.fsum((e - means[p]) ** 2 for e, p in zip(effects, places, strict=True)) / (len(effects) - len(means))


def _allowing_for_places(effects: Sequence[float], places: Sequence[object]) -> float:
    """The standard error by protocol 2: gains are taken to differ between places by at least half of what blocks of one
    differ by (`_LEAST_BETWEEN` is its square), and by more where they show more."""
    n, sizes = len(effects), Counter(places)
    mean, spread = mean_and_spread(effects)
    means, within = _means_of_places(effects, places), _within_places(effects, places)
    between = math.fsum(sizes[place] * (means[place] - mean) ** 2 for place in sizes) / (len(sizes) - 1)
    squares = sum(size**2 for size in sizes.values())
    each = (n - squares / n) / (len(sizes) - 1)  # blocks of a place, as the mean of unequal numbers counts here
    shared = squares / n**2
    ratio = max(_LEAST_BETWEEN, (between / within - 1) / each) if within > (SAME * spread) ** 2 else math.inf
    if math.isinf(ratio):
        return spread * math.sqrt(shared / (1 - shared) * (n - 1) / n)
    # the spread of all blocks holds some of what places differ by; the mean has more of it
    return spread / math.sqrt(n) * math.sqrt((1 + ratio * shared * n) / (1 + ratio * (1 - shared) * n / (n - 1)))


def _with_both(blocks: Sequence[Block], name: str) -> list[Block]:
    return [block for block in blocks if block.baseline and block.candidates.get(name)]


def _round_differences(blocks: Sequence[Block], name: str, scale: Scale, sign: float) -> tuple[float, ...]:
    """Candidate minus baseline in each round; of a block in which runs failed, its effect as one round."""
    found: list[float] = []
    for block in blocks:
        runs, base = block.candidates[name], block.baseline
        whole = len(runs) == len(base)
        rounds = [([one], [other]) for one, other in zip(runs, base, strict=True)] if whole else [(runs, base)]
        found += (sign * (_centre(one, scale) - _centre(other, scale)) for one, other in rounds)
    return tuple(found)


def levelled(block: Block, scale: Scale) -> Block:
    """The block without its linear drift, as the means of its rounds show it, around its middle.

    Each round holds every setting once, so the means of rounds know nothing of who ran when: what is taken off is the
    same whatever the order, and no setting's gain is in it. Of two settings alone a block is too short for that: its
    drift is known less well than it disturbs.
    """
    places: dict[str | None, list[int]] = {}
    for place, name in enumerate(block.order):
        places.setdefault(name, []).append(place)
    runs: dict[str | None, Sequence[float]] = {None: block.baseline}
    runs.update(block.candidates)
    whole = [name for name in places if len(places[name]) == len(runs.get(name, ())) > 1]
    if len(whole) < _LEAST_LEVELLED:
        return block
    grown = math.fsum(_centre(runs[name][-1:], scale) - _centre(runs[name][:1], scale) for name in whole)
    slope = grown / sum(places[name][-1] - places[name][0] for name in whole)
    middle = (len(block.order) - 1) / 2

    def level(name: str | None) -> Sequence[float]:
        values = runs[name]
        if len(places.get(name, ())) != len(values):
            return values
        off = [slope * (place - middle) for place in places.get(name, ())]
        pairs = zip(values, off, strict=True)
        return [value * math.exp(-by) if scale == "ratio" else value - by for value, by in pairs]

    return replace(block, baseline=level(None), candidates={name: level(name) for name in block.candidates}, order=())


def first_run_effect(
    blocks: Sequence[Block], level: float = 0.95, direction: Direction = "maximize"
) -> FirstRunEffect | None:
    """Whether first runs of blocks differ from the last ones of the same setting; None where that does not show.

    Of blocks of two rounds, since in others no setting has two runs. A machine that changes over every block in the
    same direction shows here too: either way it pays to know that the first run is another one.
    """
    pairs = [block.opening for block in blocks if block.opening is not None]
    if len(pairs) < FEWEST_BLOCKS or min(map(min, pairs)) <= 0:
        return None
    mean, spread = mean_and_spread([first - last for first, last in (oriented_logs(pair, direction) for pair in pairs)])
    low, high = interval(mean, spread / math.sqrt(len(pairs)), len(pairs) - 1, level)
    if low <= 0 <= high or abs(mean) <= SAME:
        return None
    return FirstRunEffect(math.expm1(mean), math.expm1(low), math.expm1(high), len(pairs))


def all_positive(blocks: Sequence[Block]) -> bool:
    return all(value > 0 for block in blocks for runs in (block.baseline, *block.candidates.values()) for value in runs)


def _centre(runs: Sequence[float], scale: str) -> float:
    return math.fsum(map(math.log, runs) if scale == "ratio" else runs) / len(runs)


def both_sides(blocks: Sequence[Block], name: str, scale: Scale) -> tuple[float, float] | None:
    """Baseline and candidate as absolute values over the blocks that have both: their ratio (or difference, as the
    scale is) is the estimate, turned around where less is better. Where blocks share places, each place counts once."""
    found = [levelled(block, scale) for block in _with_both(blocks, name)]
    if not found:
        return None
    places = [frozenset(block.nodes) for block in found]
    if not 1 < len(set(places)) < len(found):
        places = [frozenset([str(number)]) for number in range(len(found))]
    sides = ([_centre(b.baseline, scale) for b in found], [_centre(b.candidates[name], scale) for b in found])
    before, after = (mean_and_spread([*_means_of_places(side, places).values()])[0] for side in sides)
    return (math.exp(before), math.exp(after)) if scale == "ratio" else (before, after)


def _p_value(found: PairedEffect) -> float:
    if found.blocks < FEWEST_BLOCKS:
        return 1.0
    if found.constant:
        return 1.0 if abs(found.mean) <= SAME else 0.0
    return two_sided_p(found.mean / found.error, found.freedom)


def _p_here(found: PairedEffect) -> float:
    """Of the mean over these very places; 1 where they are not alike, so that it is true of none of them."""
    if found.blocks < FEWEST_BLOCKS or not found.alike:
        return 1.0
    return two_sided_p(found.mean / found.own, found.own_freedom) if found.own > SAME else 0.0


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation (0 for a single value)."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, 0.0
    return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))


def oriented_logs(values: Sequence[float], direction: Direction) -> list[float]:
    """Logs, turned so that more is better."""
    sign = 1.0 if direction == "maximize" else -1.0
    return [sign * math.log(value) for value in values]


def pooled_spread(groups: Iterable[Sequence[float]]) -> tuple[float, int]:
    """The standard deviation of one value around the mean of its group, and its degrees of freedom; 0 of none."""
    repeated = [values for values in groups if len(values) > 1]
    freedom = sum(len(values) - 1 for values in repeated)
    squares = math.fsum(mean_and_spread(values)[1] ** 2 * (len(values) - 1) for values in repeated)
    return (math.sqrt(squares / freedom) if freedom else 0.0), freedom


def _judged(plain: Comparison, found: PairedEffect, p_value: float, p_here: float, allowed: float) -> Comparison:
    """`p_value` is of nodes like these, `p_here` of these alone."""
    scale, doubt, notes = plain.scale, 1 - plain.level, plain.notes
    back = math.exp if scale == "ratio" else float
    mean, coins = found.mean, 0 if found.constant else len(found.rounds)
    effect = _as_change(_shown_by(found.error, found.freedom, 1 - allowed), scale)
    # of few rounds the order shows little: then each of them must speak for the same setting, and it is said
    by_order = max(allowed, least_p(coins))
    order_p = min(1.0, doubt * sign_flip_p(found.rounds) / by_order) if coins else 0.0
    if coins and by_order > allowed:
        notes = (*notes, _few_rounds(coins, found.blocks, allowed))
    p_value, p_here = max(p_value, order_p), max(p_here, order_p)
    error, freedom, only_here = found.error, found.freedom, p_value > doubt >= p_here
    if only_here:
        error, freedom, p_value = found.own, found.own_freedom, p_here
    low, high = (mean, mean) if found.constant else interval(mean, error, freedom, 1 - allowed)
    if coins:
        low, high = flip_interval(found.rounds, by_order, (low, high))
    verdict = Verdict.NO_DIFFERENCE
    if p_value <= doubt and abs(mean) > SAME:
        verdict = Verdict.BETTER if mean > 0 else Verdict.WORSE
        # Holm may show a direction that the plain simultaneous interval leaves open; the interval that belongs to
        # Holm's procedure then ends at no effect
        low, high = (max(low, 0.0), high) if mean > 0 else (low, min(high, 0.0))
    judged = replace(
        plain,
        verdict=verdict,
        low=back(low),
        high=back(high),
        p_value=p_value,
        spread=found.spread,
        smallest_effect=effect,
        notes=notes,
        nodes=found.places,
        only_here=only_here,
    )
    if not found.few_places or (verdict is not Verdict.NO_DIFFERENCE and not only_here):
        return judged
    here = None if only_here else interval(mean, found.own, found.own_freedom, 1 - allowed, back)
    return replace(judged, here=here, nodes_needed=_nodes_needed(found, 1 - allowed))


def _few_rounds(rounds: int, blocks: int, allowed: float) -> str:
    odds = f"1 in {1 / least_p(rounds):.0f}"
    enough = next((n for n in range(blocks, 10 * blocks) if least_p(rounds * n // blocks) <= allowed), None)
    more = "" if enough is None else f"; {enough} blocks would rule it out"
    return (
        f"{count(rounds, 'round')} can't rule out at this level that the machine changed in step with them: equal "
        f"settings look like this in {odds} at worst{more}"
    )


def _nodes_needed(found: PairedEffect, level: float) -> int | None:
    """How many nodes, with a block on each, show an effect as large as this one in four of five campaigns."""
    sizes = range(max(FEWEST_BLOCKS, found.places + 1), _MOST_NODES + 1)
    return next((n for n in sizes if _shown_by(found.each / math.sqrt(n), n - 1, level) <= abs(found.mean)), None)


def _refused(plain: Comparison, found: PairedEffect, blocks: Sequence[Block], allowed: float) -> Comparison:
    """Too few blocks: no interval, but what three blocks could show with the noise seen so far."""
    # the larger of the two: the spread of two blocks is easily small by chance, that of runs knows no node effects
    spreads = [found.spread] if found.blocks > 1 else []
    sides = [runs for b in blocks for runs in (b.baseline, b.candidates.get(plain.candidate, ())) if len(runs) > 1]
    if sides:
        noise, _ = pooled_spread([math.log(run) for run in runs] if plain.scale == "ratio" else runs for runs in sides)
        spreads.append(math.sqrt(noise**2 * 2 * sum(1 / len(runs) for runs in sides) / len(sides)))
    if not spreads:
        return plain
    effect = smallest_effect(max(spreads), FEWEST_BLOCKS, 1 - allowed)
    return replace(plain, spread=max(spreads), smallest_effect=_as_change(effect, plain.scale))


def _as_change(effect: float, scale: str) -> float:
    return math.expm1(min(effect, 700.0)) if scale == "ratio" else effect


def _notes(blocks: Sequence[Block], name: str, scale: str) -> tuple[str, ...]:
    notes = []
    if scale == "difference":
        notes.append("compared by differences, because a value is not positive and has no ratio")
    # blocks before an extension, or after it, were not meant for every candidate
    empty = [str(b.number) for b in blocks if name in b.candidates and not (b.baseline and b.candidates[name])]
    if empty:
        notes.append(f"left out for want of a good run on one side: block {', '.join(empty)}")
    full = max((len(b.candidates.get(name, ())) for b in blocks), default=0)
    short = [str(b.number) for b in blocks if 0 < len(b.candidates.get(name, ())) < full]
    if short:
        notes.append(f"fewer runs than planned, so drift does not cancel there: block {', '.join(short)}")
    return tuple(notes)


def _headline(winner: Comparison | None, comparisons: Mapping[str, Comparison], where: str) -> str:
    best = winner or nearest(comparisons.values())
    if best is None:
        return f"no verdict: nothing was compared, {FEWEST_BLOCKS} blocks are needed"
    if best.verdict is Verdict.WORSE:
        return f"no setting is better than the baseline; the nearest is {best.text(where)}"
    return f"{best}{reach(best, where)}" if best.verdict is Verdict.NO_DIFFERENCE else best.text(where)


def nearest(comparisons: Iterable[Comparison]) -> Comparison | None:
    """The one to speak of where none was shown to be better: the largest estimate not shown to be worse."""
    compared = list(comparisons)
    judged = [c for c in compared if c.verdict is not Verdict.TOO_FEW_BLOCKS]
    if not judged:
        return max(compared, key=lambda c: c.blocks, default=None)
    open_ = [c for c in judged if c.verdict is Verdict.NO_DIFFERENCE]
    return max(open_ or judged, key=lambda c: c.estimate if c.estimate is not None else -math.inf)


def reach(comparison: Comparison, where: str = "") -> str:
    """What the blocks could have shown: '; 5 blocks on 2 nodes could show 2.1% or more', or nothing to add; and what
    holds on few nodes alone."""
    if not comparison.smallest_effect:
        return ""
    return f"; {comparison.blocks_text(where)} could show {comparison.effect_shown} or more{comparison.on_these_nodes}"


def where_they_ran(blocks: Sequence[Block], protocol: int = PROTOCOL) -> str:
    """'on 2 nodes', or which one it was, as far as the blocks know: a claim from one node is about that node."""
    sets = {frozenset(block.nodes) for block in blocks if block.nodes}
    if not sets:
        return ""
    sizes = {len(s) for s in sets}
    if sizes == {1}:
        named = len(sets) == 1 and protocol > 2
        return f"on {next(iter(next(iter(sets))))}" if named else f"on {count(len(sets), 'node')}"
    if sizes == {2}:
        return f"on {count(len(sets), 'node pair')}"
    return f"on {count(len(sets), 'set')} of nodes"


# In which order a block runs its settings, so that no place in it favours one of them.
#
# Whatever the machine does while a block runs (a cold first run, a drift, a wave in step with the blocks) must not meet
# one setting more often than another for a reason. Any rule, such as that settings begin in turn, is such a reason for
# a machine that changes at the same pace. So each round is drawn for itself, and nothing is evened out over rounds: the
# test of `sign_flips.py` counts on coins that know nothing of each other.


def order_of_block(settings: int, block: int, repeats: int, seed: int | None, protocol: int = PROTOCOL) -> list[int]:
    """The settings of this block by number, 0 for the baseline: `repeats` rounds, each in an order of its own.

    Earlier protocols as journals have them. 1, or without a seed: the baseline first, always. 2: settings begin in
    turn; two repeats are a palindrome, and with one, two blocks in turn are each other's reverse.
    """
    if seed is None or protocol < 2:
        forward = list(range(settings))
        return [*forward, *reversed(forward)] if repeats > 1 else forward if block % 2 == 0 else forward[::-1]
    if protocol == 2:
        return _in_turn(settings, block, repeats, seed)
    dice = random.Random(f"{seed} rounds of block {block}")
    return [setting for _ in range(repeats) for setting in dice.sample(range(settings), settings)]


def _in_turn(settings: int, block: int, repeats: int, seed: int) -> list[int]:
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


# Two sets of runs that were not interleaved: what their ratio is, and how sure that is as far as their scatter shows.
#
# Weaker than `compare`: whatever else changed between the two (day, node, neighbours) is in the ratio too.


@dataclass(frozen=True, slots=True)
class UnpairedRatio:
    """The second over the first, oriented so that above 1 is better. No interval where one side has a single run."""

    ratio: float
    low: float | None
    high: float | None
    runs: tuple[int, int]

    @property
    def verdict(self) -> str:
        if self.low is None or self.high is None:
            return "too few runs to tell"
        return "better" if self.low > 1 else "worse" if self.high < 1 else "no detectable difference"

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{ratio_text(self.ratio)}, {self.verdict}"
        shown, interval = ratio_range(self.ratio, self.low, self.high)
        return f"{shown} ({interval}), {self.verdict}"


def unpaired(
    first: Sequence[float], second: Sequence[float], direction: Direction, level: float = 0.95, among: int = 1
) -> UnpairedRatio | None:
    """Welch's interval of the logs, holding for all of `among` looks; None where a value is not positive.

    Of three runs against ten Welch's degrees of freedom, themselves an estimate, are too many as often as too few, and
    the first costs more. So they are averaged (harmonically) with those that the smaller side is sure to have.
    """
    if not first or not second or min(*first, *second) <= 0:
        return None
    (mean_a, sd_a), (mean_b, sd_b) = (mean_and_spread(oriented_logs(side, direction)) for side in (first, second))
    middle, sizes = mean_b - mean_a, (len(first), len(second))
    if min(sizes) < 2:
        return UnpairedRatio(math.exp(middle), None, None, sizes)
    parts = (sd_a**2 / sizes[0], sd_b**2 / sizes[1])
    if sum(parts) <= 0:
        return UnpairedRatio(math.exp(middle), math.exp(middle), math.exp(middle), sizes)
    freedom = sum(parts) ** 2 / sum(p**2 / (n - 1) for p, n in zip(parts, sizes, strict=True))
    freedom = 2 / (1 / freedom + 1 / (min(sizes) - 1))
    ends = interval(middle, math.sqrt(sum(parts)), freedom, 1 - (1 - level) / among, math.exp)
    return UnpairedRatio(math.exp(middle), *ends, sizes)


def together(ratios: Sequence[float], level: float = 0.95) -> tuple[float, float | None, float | None]:
    """Several settings as one: the mean of their ratios in logs, with the interval that their differences give."""
    mean, spread = mean_and_spread([math.log(ratio) for ratio in ratios])
    if len(ratios) < 3:
        return math.exp(mean), None, None
    return math.exp(mean), *interval(mean, spread / math.sqrt(len(ratios)), len(ratios) - 1, level, math.exp)
