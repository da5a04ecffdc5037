"""One campaign's search over a known truth, and what it was worth."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ridgeline.records.observation import Observation, Proposal
from ridgeline.records.space import Point
from ridgeline.samplers.base import Sampler

NODES = 4
SLOW_NODE = 0.08  # the last node is so much slower than its peers
NODE_SPREAD = 0.01
CLOSE = 0.02  # of the optimum: the setting is found
CONFIRMED = 3  # settings that a campaign confirms
LOOKS = (10, 20, 40, 80)  # trials after which regret is looked at
BUDGETS = (3, 5, 8, 40)  # trials after which it is looked at what a confirmation would find


class ParsedPrompt(Protocol):
    def ask(self, pending: Sequence[Point] = ()) -> Proposal | None: ...

    def tell(self, observation: Observation) -> None: ...


@dataclass(frozen=True)
class Noise:
    """What a run shows beside the truth: its own noise, and the node it landed on."""

    spread: float = 0.03
    heavy_tail: float = 0.0  # share of runs whose noise is four times the usual

    def draw(self, rng: random.Random) -> float:
        wide = self.spread * (4 if rng.random() < self.heavy_tail else 1)
        node = rng.randrange(NODES)
        return rng.gauss(0, wide) - (SLOW_NODE if node == NODES - 1 else NODE_SPREAD * (node - 1))


USUAL = Noise()


@dataclass(frozen=True)
class Race:
    """`found_at` is the trial after which the setting that looked best is within 2% of the optimum, None: never;
    `cost_at` what was paid until then; `regret` how far the chosen setting truly is from the best, by trials;
    `promised` how much better the chosen setting looked at the end than it is."""

    sampler: str
    seed: int
    found_at: int | None
    cost_at: float | None
    cost: float
    regret: dict[int, float]
    crashes: int
    promised: float
    ask_ms: float
    trials: int
    shortlisted_at: int | None = None  # after which one of the three that look best is: those are confirmed
    shortlisted_cost: float | None = None
    claimed_at: int | None = None  # after which the sampler first said that little is left to find
    missed: float = 0.0  # how much better the best of all was then than the best that was tried
    confirmed: dict[int, float] = field(default_factory=dict)  # by trials, the best of the three that look best then


def as_cost(log_speed: float) -> float:
    """The score of a time that is to be small."""
    return -math.exp(-log_speed)


def race(
    sampler: ParsedPrompt,
    name: str,
    seed: int,
    truth: Callable[[Point], float | None],
    trials: int,
    noise: Noise = USUAL,
    cost_of: Callable[[Point, float | None], float] = lambda point, value: 1.0,
    score_of: Callable[[float], float] = as_cost,
    little_left: Callable[[ParsedPrompt], bool] = lambda sampler: False,
    at_most: int = 0,
    limit: float = -math.inf,
) -> Race:
    """A race that found nothing in its `trials` goes on until it does, or to `at_most`. Crashes are of the `trials`.
    What `little_left` first says is noted, and the race goes on. Runs that reach `limit` were ended there."""
    rng = random.Random(f"noise {seed}")
    best_seen, chosen, best_tried = -math.inf, -math.inf, -math.inf
    found_at, cost_at, spent, crashes, asking_s, done = None, None, 0.0, 0, 0.0, 0
    regret: dict[int, float] = {}
    confirmed: dict[int, float] = {}
    looks: list[tuple[float, float]] = []  # of the three that look best: how they look and what they are
    listed_at, listed_cost, claimed_at, missed = None, None, None, 0.0
    for number in range(1, max(trials, at_most) + 1):
        if number > trials and found_at is not None:
            break
        start = time.perf_counter()
        if isinstance(sampler, Sampler):
            sampler.plan(max(1, trials - number + 1))
        if claimed_at is None and little_left(sampler):
            claimed_at, missed = number - 1, math.expm1(-best_tried)
        proposal = sampler.ask()
        asking_s += time.perf_counter() - start
        if proposal is None:
            break
        done, value, drawn = number, truth(proposal.point), noise.draw(rng)
        spent += cost_of(proposal.point, value)
        if value is None:
            crashes += number <= trials
            sampler.tell(Observation(proposal.point, None))
        else:
            seen = value + drawn
            best_tried = max(best_tried, value)
            if seen > best_seen:
                best_seen, chosen = seen, value
            looks = sorted([*looks, (seen, value)], reverse=True)[:CONFIRMED]
            ended = value <= limit
            score = score_of(limit if ended else seen)
            sampler.tell(Observation(proposal.point, score, cost_of(proposal.point, value), censored=ended))
        if listed_at is None and any(true >= -math.log1p(CLOSE) for _, true in looks):
            listed_at, listed_cost = number, spent
        if found_at is None and chosen >= -math.log1p(CLOSE):
            found_at, cost_at = number, spent
        if number in LOOKS:
            regret[number] = math.expm1(-chosen)
        if number in BUDGETS and looks:
            confirmed[number] = max(true for _, true in looks)
    for look in LOOKS:
        regret.setdefault(look, math.expm1(-chosen))
    promised = best_seen - chosen if math.isfinite(chosen) else 0.0
    ask_ms = 1000 * asking_s / max(1, done)
    last = (listed_at, listed_cost, claimed_at, missed, confirmed)
    return Race(name, seed, found_at, cost_at, spent, regret, crashes, promised, ask_ms, done, *last)
