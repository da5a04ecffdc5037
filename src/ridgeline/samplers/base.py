"""The seam: what to try next.

A sampler is a subclass of `Sampler`. Making one is cheap, and refuses a space or options that it cannot work with: an
InputError, of an option as `option: what; remedy`. A class with an attribute `form` (a `study.forms.Form` of its
options) has them checked, completed by editors and listed in the reference. It promises:
- `ask` returns a legal point that was neither observed nor pending, or None when there is none left;
- the answer depends only on the seed, the observations so far (in order) and `pending`, so that a killed campaign goes
  on as if nothing had happened;
- `tell` accepts any observation, also of points it did not propose (baseline, presets, points of an earlier campaign).
A sampler may also use what is expected of settings (`expect`, `recall`), say when more trials are hardly worth their
cost (`prospect`), and use how many trials are left (`plan`); the promise above then holds for the same expectations and
the same number of trials left.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, TypeVar

from ridgeline import catalog
from ridgeline.errors import InputError
from ridgeline.records.observation import Expectation, Observation, Proposal, Prospect
from ridgeline.records.space import Point, Space
from ridgeline.study.forms import Form, read_form

F = TypeVar("F", bound=Form)

Refusal = Callable[[Point], str | None]  # why a point may not run; None: it may


class Prior(ABC):
    """What is expected of a legal point, in scores (larger is better). The same answer when asked again."""

    called: str = "prior"  # in the sentence that explains a trial: `twin`, `formula`
    highest: float | None = None  # a score beyond which no setting comes, such as what is sent to a server

    @abstractmethod
    def __call__(self, point: Point) -> Expectation | None:
        """None: nothing is expected of it."""

    def sensitivities(self, point: Point) -> tuple[float, ...]:
        """Logs of factors on what is expected, were each thing that it rests on one standard deviation off.

        The same things at every point, empty where it cannot say.
        """
        return ()


class Sampler(ABC):
    takes_prior: ClassVar[bool] = False  # whether it does anything with `expect`
    takes_earlier: ClassVar[bool] = False  # and with `recall`

    def __init__(self, space: Space, seed: int, options: Mapping[str, object], refusal: Refusal) -> None:  # noqa: B027
        """As a study has it made; a sampler over samplers may be made otherwise."""

    @abstractmethod
    def ask(self, pending: Sequence[Point] = ()) -> Proposal | None: ...

    @abstractmethod
    def tell(self, observation: Observation) -> None: ...

    def expect(self, prior: Prior) -> None:
        """Before anything else: where to ask what is expected of a point."""
        return

    def recall(self, earlier: Sequence[Observation]) -> None:
        """Before anything else: what earlier studies of the same space learned.

        These are no observations of this study: their points were not tried here and may be proposed.
        """
        return

    def plan(self, trials_left: int) -> None:
        """Before each ask: how many trials the budget still allows, this one included."""
        return

    def prospect(self, pending: Sequence[Point] = ()) -> Prospect | None:
        """What more trials could bring: the search ends when that is hardly anything. None: it cannot say."""
        return None

    def forget(self) -> bool:
        """As if newly made, with the same expectations: the same observations then bring the same answers.

        For samplers that keep what is expensive to compute and does not depend on observations. False: it cannot, so
        that a new one is made.
        """
        return False


def read_options(form: type[F], options: Mapping[str, object]) -> F:
    """InputError names the first option that is wrong, as `option: what; remedy`."""
    read, problems = read_form(form, options, Path())
    if problems:
        raise InputError(f"{'.'.join(map(str, problems[0].where))}: {problems[0].message}")
    return read


def sampler_class(name: str) -> type[Sampler]:
    """The sampler that study files call so. InputError where there is none, or where it is no `Sampler`."""
    found = catalog.part("samplers", name)
    if isinstance(found, type) and issubclass(found, Sampler):
        return found
    raise InputError(
        f"the sampler {name} is not a subclass of ridgeline.samplers.base.Sampler; let its class inherit from that"
    )
