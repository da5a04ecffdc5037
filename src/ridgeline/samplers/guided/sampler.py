"""The guided sampler: a model of all that was learned chooses the trial that promises most for its cost."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from ridgeline.errors import InputError
from ridgeline.records.expression import Expression, ExpressionError
from ridgeline.records.observation import Observation, Proposal, Prospect
from ridgeline.records.space import Point, Space, point_key
from ridgeline.samplers.base import Prior, Refusal, Sampler, read_options
from ridgeline.samplers.sequence import SequenceSampler, filling, is_of_space, keys, legality
from ridgeline.study.forms import DefaultText, ExpressionText, Form, ValueUnit

if TYPE_CHECKING:
    from ridgeline.samplers.guided.chooser import Chooser

_PRIOR_LEADS = 4  # settings known, the baseline's among them, until which the prior's best ones are tried
_SMALL_BUDGET = 10  # settings known and trials left together, up to which they are tried to the end
_MOSTLY_FAILS = 5  # failures for each pass, from which on new settings stay near to what passed
# observations (of a small space a quarter), and a third of all: before, a search without a prior does not end by itself
_FEWEST_WITHOUT_GAIN = 12
_FEWEST_FILLING = 2  # space-filling trials of a small budget
_FEWEST_PASSED = 2  # results without which a model says nothing
_NOTHING_NEW = "space-filling, since the model proposed nothing new that is legal"
NO_EFFECT = "space-filling, as every other trial while no knob has shown an effect"
_OFFERED = 6  # points that fill the space, of which the likeliest to pass is taken


class GuidedOptions(Form):
    """`sampler: guided` models what it observed and tries what promises most for its cost."""

    whose = "the sampler guided"
    startup: Annotated[int, ValueUnit("trials")] = Field(
        default=6, ge=1, description="Space-filling trials before it learns; none where a twin or a formula guides it."
    )
    worth: float = Field(
        default=0.02,
        ge=0,
        lt=1,
        description="The search ends when the chance that an untried setting beats the best by more than this share "
        "is under 5%; 0: only the budget ends it.",
    )
    expect: Annotated[ExpressionText, DefaultText("what the workload predicts")] = Field(
        default="",
        description="A formula over settings for the goal's metric, as far as you know it, such as `threads * block`. "
        "The search begins where it is best and learns how far to trust it.",
    )


class GuidedSampler(Sampler):
    """Space-filling until `startup` points are known, then expected improvement x chance to pass per cost.

    Where something is expected of the points, the model is asked from the first trial on.
    """

    form = GuidedOptions
    takes_prior = takes_earlier = True

    def __init__(self, space: Space, seed: int, options: Mapping[str, object], refusal: Refusal) -> None:
        self._options = read_options(GuidedOptions, options)
        _check_formula(self._options.expect, space)
        self._space, self._seed = space, seed
        self._legal = legality(space, refusal)
        self._prior: Prior | None = None
        self._earlier: list[Observation] = []
        self._chooser: Chooser | None = None
        self._trials_left: int | None = None
        self.forget()

    def plan(self, trials_left: int) -> None:
        self._trials_left = trials_left

    def expect(self, prior: Prior) -> None:
        self._prior = prior

    def recall(self, earlier: Sequence[Observation]) -> None:
        # observations of another space guide nobody, and the first trials must not rest on them
        self._earlier = [each for each in earlier if is_of_space(self._space, each.point)]

    def forget(self) -> bool:
        self._observed_keys: set[str] = set()
        self._observations: list[Observation] = []
        self._walk = SequenceSampler(filling(self._space, self._seed, self._legal))
        if self._chooser is not None:
            self._chooser.forget()
        return True

    def tell(self, observation: Observation) -> None:
        self._observed_keys.add(point_key(observation.point))
        if is_of_space(self._space, observation.point):
            score = observation.score if observation.score is not None and math.isfinite(observation.score) else None
            self._observations.append(replace(observation, score=score))

    def ask(self, pending: Sequence[Point] = ()) -> Proposal | None:
        flying = keys(pending)
        filled = self._walk.first_free(self._observed_keys, flying)
        if filled is None:
            return None
        taken = self._observed_keys | flying
        known, passed, failed = len(taken), self._passed(), self._passed(False)
        if self._prior is not None and passed:
            from ridgeline.samplers.guided.prior import PriorMode  # numpy: not before it is needed

            weights = self._choosing().mode_weights(self._observations)
            mode = max(weights, key=lambda mode: weights[mode])
            if mode is not PriorMode.NOT_AT_ALL:
                leads = mode is PriorMode.AS_IT_STANDS and known < self._prior_leads(known)
                chosen = self._choosing().choice(self._observations, pending, taken, mode, leads)
                return chosen or Proposal(filled, _NOTHING_NEW)
        startup = self._startup(known)
        # the baseline passes several times over
        if len(failed) >= _MOSTLY_FAILS and len(set(map(point_key, passed))) * _MOSTLY_FAILS <= len(failed):
            return self._where_most_fails(filled, pending)
        after_others = bool(self._earlier and passed) and self._choosing().trusts_earlier(self._observations)
        if known < startup and not after_others:
            return Proposal(self._first(filled, pending), f"space-filling start, {known + 1} of {startup}")
        if len(passed) < _FEWEST_PASSED and not after_others:
            return Proposal(self._first(filled, pending), "space-filling, since too little has passed to learn from")
        if known % 2 and self._choosing().says_nothing(self._observations, taken):
            return Proposal(self._first(filled, pending), NO_EFFECT)
        chosen = self._choosing().choice(self._observations, pending, taken)
        return chosen or Proposal(filled, _NOTHING_NEW)

    def _where_most_fails(self, filled: Point, pending: Sequence[Point]) -> Proposal:
        """One step from what passed; where nothing did, another that fills the space, and what the failures share."""
        from ridgeline.samplers.guided.feasibility import in_common, next_to_passing  # numpy: not before it is needed

        failed = self._passed(False)
        shared = in_common(self._space, failed, self._passed())
        settings = {point_key(observation.point) for observation in self._observations}
        so_far = f"{len(failed)} of {len(settings)} settings failed" + (f", all with {shared}" if shared else "")
        rng = random.Random(f"near {self._seed} {len(self._observations)} {len(pending)}")
        taken = self._observed_keys | keys(pending)
        near = next_to_passing(self._space, self._observations, taken, self._legal, rng)
        if near is None:
            return Proposal(filled, f"space-filling, since {so_far}")
        return Proposal(near, f"next to a setting that passed, since {so_far}")

    def _prior_leads(self, known: int) -> int:
        """Few trials have no time to explore: to the end they are what looks best."""
        left = math.inf if self._trials_left is None else self._trials_left
        return _SMALL_BUDGET if known + left <= _SMALL_BUDGET else _PRIOR_LEADS

    def _startup(self, known: int) -> int:
        """A third of a small budget fills the space: its other trials have to find something."""
        if self._trials_left is None:
            return self._options.startup
        return min(self._options.startup, max(_FEWEST_FILLING, (known + self._trials_left) // 3))

    def _first(self, filled: Point, pending: Sequence[Point]) -> Point:
        """`filled`, or another of the next that fill the space, where some settings passed and others failed."""
        if not self._passed() or not self._passed(False):
            return filled
        from ridgeline.samplers.guided.feasibility import likeliest  # numpy: not before it is needed

        return likeliest(self._space, self._observations, self._walk.free(self._observed_keys, keys(pending), _OFFERED))

    def prospect(self, pending: Sequence[Point] = ()) -> Prospect | None:
        if not self._options.worth or len(self._passed()) < max(self._options.startup, _FEWEST_PASSED):
            return None
        from ridgeline.samplers.guided.prior import PriorMode, mixed  # numpy: not before it is needed

        def prospect(mode: PriorMode) -> Prospect:
            return self._choosing().prospect(
                self._observations, self._observed_keys | keys(pending), self._options.worth, mode
            )

        found = mixed(self._choosing().mode_weights(self._observations), prospect)
        alone = self._prior is None
        fewest = min(_FEWEST_WITHOUT_GAIN, self._space.raw_size() // 4)
        quiet = self._since_last_gain() >= max(fewest, len(self._observations) // 3)
        return replace(found, gaining=alone and not quiet)

    def _passed(self, yes: bool = True) -> list[Point]:
        """The settings that passed, or those that failed."""
        return [each.point for each in self._observations if (each.score is not None) == yes]

    def _since_last_gain(self) -> int:
        """Observations since the last one that was better than all before by more than what is worth a trial."""
        best, since = -math.inf, 0
        for observation in self._observations:
            since += 1
            if observation.score is not None and observation.score > best:
                since = 0 if observation.score - best > self._options.worth * abs(best) or math.isinf(best) else since
                best = observation.score
        return since

    def _choosing(self) -> Chooser:
        if self._chooser is None:
            from ridgeline.samplers.guided.chooser import Chooser  # numpy: not before it is needed

            self._chooser = Chooser(self._space, self._seed, self._legal, self._prior, self._earlier)
        return self._chooser


def _check_formula(text: str, space: Space) -> None:
    """The campaign works it out; here it is only seen to that it can."""
    if not text:
        return
    try:
        unknown = sorted(Expression.parse(text).names - set(space.names))
    except ExpressionError as error:
        raise InputError(f"expect: {error}") from None
    if unknown:
        known = ", ".join(space.names)
        raise InputError(f"expect: {unknown[0]} is not a knob or a derived value; known: {known}")
