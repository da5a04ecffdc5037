"""The seam: what to try next.

A sampler is made from a space, a seed and the study's options for it (`Factory`). Making one is cheap, and refuses a
space or options that it cannot work with: an InputError, of an option as `option: what; remedy`. A factory with an
attribute `form` (a `study.forms.Form` of its options) has them checked, completed by editors and listed in the
reference. It promises:
- `ask` returns a legal point that was neither observed nor pending, or None when there is none left;
- the answer depends only on the seed, the observations so far (in order) and `pending`, so that a killed campaign goes
  on as if nothing had happened;
- `tell` accepts any observation, also of points it did not propose (baseline, presets, points of an earlier campaign).
A sampler may also use what is expected of settings (`TakesPrior`, `TakesEarlierStudies`), say when more trials are
hardly worth their cost (`PredictsRest`), and use how many trials are left (`TakesBudget`); the promise above then
holds for the same expectations and the same number of trials left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from ridgeline.records.observation import Expectation, Observation, Proposal, Prospect
from ridgeline.records.space import Point, Space

Refusal = Callable[[Point], str | None]  # why a point may not run; None: it may
# What is expected of a legal point, in scores (larger is better); None: nothing. The same answer when asked again.
Prior = Callable[[Point], Expectation | None]


@runtime_checkable
class SensitivityPrior(Protocol):
    """A prior that also says how it would change, were each thing that it rests on one standard deviation off."""

    def __call__(self, point: Point) -> Expectation | None: ...

    def sensitivities(self, point: Point) -> tuple[float, ...]:
        """Logs of factors on what is expected; the same things at every point, empty where it cannot say."""
        ...


@runtime_checkable
class NamedPrior(Protocol):
    """A prior that says what it is called in the sentence that explains a trial: `twin`, `formula`."""

    @property
    def called(self) -> str: ...


@runtime_checkable
class BoundedPrior(Protocol):
    """A prior that may know a score beyond which no setting comes, such as what is sent to a server."""

    @property
    def highest(self) -> float | None: ...


class Sampler(Protocol):
    def ask(self, pending: Sequence[Point] = ()) -> Proposal | None: ...

    def tell(self, observation: Observation) -> None: ...


@runtime_checkable
class TakesPrior(Protocol):
    """What a sampler may add: it learns, before anything else, where to ask what is expected of a point."""

    def expect(self, prior: Prior) -> None: ...


@runtime_checkable
class TakesEarlierStudies(Protocol):
    """What a sampler may add: it learns, before anything else, what earlier studies of the same space learned.

    These are no observations of this study: their points were not tried here and may be proposed.
    """

    def recall(self, earlier: Sequence[Observation]) -> None: ...


@runtime_checkable
class TakesBudget(Protocol):
    """What a sampler may add: it learns before each ask how many trials the budget still allows, this one included."""

    def plan(self, trials_left: int) -> None: ...


@runtime_checkable
class PredictsRest(Protocol):
    """What a sampler may add: the search ends when it says that hardly anything is left to be found."""

    def prospect(self, pending: Sequence[Point] = ()) -> Prospect | None:
        """None: too little is known to say."""
        ...


@runtime_checkable
class Resettable(Protocol):
    """What a sampler may add that caches what is expensive to compute and does not depend on observations."""

    def forget(self) -> None:
        """As if newly made, with the same expectations: the same observations then bring the same answers."""
        ...


class SamplerFactory(Protocol):
    def __call__(self, space: Space, seed: int, options: Mapping[str, object], refusal: Refusal) -> Sampler: ...
