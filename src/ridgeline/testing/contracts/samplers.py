"""What every sampler promises, whoever wrote it: samplers/base.py, as tests."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.records.expression import Expression, Value, is_number
from ridgeline.records.observation import Observation
from ridgeline.records.space import Continuous, Discrete, Knob, Point, Rule, Space, point_key
from ridgeline.samplers.base import Sampler, sampler_class

NAMES = ("a", "b", "c", "d")
VALUES: tuple[tuple[Value, ...], ...] = (
    (1,),
    (1, 2),
    (1, 2, 4, 8),
    (0.5, 0.75, 1.0),
    ("x", "y", "z"),
    (True, False),
    (0, 1, 2, 3, 4),
)


@st.composite
def knobs(draw: st.DrawFn, names: tuple[str, ...] = NAMES, continuous: bool = False) -> tuple[Knob, ...]:
    made: list[Knob] = []
    for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True)):
        when = None
        listed = [k for k in made if isinstance(k, Discrete)]
        if listed and draw(st.integers(0, 2)) == 0:
            other = draw(st.sampled_from(listed))
            when = Expression.parse(f"{other.name} == {draw(st.sampled_from(list(other.values)))!r}")
        if continuous and draw(st.booleans()):
            made.append(Continuous(name, 0.5, 8.0, log=draw(st.booleans()), when=when))
        else:
            values = draw(st.sampled_from(VALUES))
            ordered = all(is_number(v) for v in values)
            made.append(Discrete(name, values, ordered, when=when))
    return tuple(made)


@st.composite
def spaces(draw: st.DrawFn, continuous: bool = False) -> Space:
    chosen: tuple[Knob, ...] = draw(knobs(continuous=continuous))
    numeric = [k.name for k in chosen if k.when is None and (not isinstance(k, Discrete) or k.ordered)]
    rules: list[Rule] = []
    is_ruled: bool = draw(st.booleans())
    if numeric and is_ruled:
        limit = draw(st.integers(0, 6))
        rules.append(Rule(Expression.parse(f"{' + '.join(numeric)} > {limit}"), "too much"))
    return Space(chosen, {}, tuple(rules))


def small(space: Space) -> bool:
    return space.raw_size() <= 60


_few = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
        HealthCheck.differing_executors,  # the same promise, of one sampler after the other
    ],
)

_IN_ANOTHER_PROCESS = """
import importlib
from ridgeline.records.expression import Expression
from ridgeline.records.observation import Observation
from ridgeline.records.space import Discrete, Space
when = Expression.parse("b == 'x'")
knobs = (Discrete("a", (1, 2, 4, 8, 16), True), Discrete("b", ("x", "y", "z"), False),
         Discrete("c", tuple(range(9)), True, when=when), Discrete("d", ("p", "q"), False, when=when))
sampler = getattr(importlib.import_module("MODULE"), "FACTORY")(Space(knobs, {}), 3, {}, lambda point: None)
for turn in range(25):
    point = sampler.ask().point
    print(point)
    sampler.tell(Observation(point, None if turn % 4 == 3 else float(point["a"])))
"""


class SamplerContract:
    """Subclasses set `name`. `factory` is looked up in the catalog; override it for what is not registered.

    `takes_continuous` False: such a knob is refused with an InputError that names it. `eager` are options under which
    the sampler begins early to learn from observations.
    """

    name: ClassVar[str]
    takes_continuous: ClassVar[bool] = True
    eager: ClassVar[Mapping[str, object]] = {}

    def factory(self) -> type[Sampler]:
        return sampler_class(self.name)

    def make(
        self, space: Space, seed: int = 0, refuse: Sequence[Point] = (), options: Mapping[str, object] | None = None
    ) -> Sampler:
        refused = {point_key(point) for point in refuse}
        return self.factory()(space, seed, options or {}, lambda p: "not here" if point_key(p) in refused else None)

    @_few
    @given(space=spaces(), seed=st.integers(0, 5))
    def test_every_legal_point_once_then_none(self, space: Space, seed: int) -> None:
        assume(small(space))
        asked = [point_key(p) for p in _exhaust(self.make(space, seed))]
        assert len(asked) == len(set(asked))
        assert set(asked) == _legal_points(space)

    @_few
    @given(space=spaces(), seed=st.integers(0, 5), cut=st.integers(0, 20), flying=st.integers(0, 4))
    def test_a_new_sampler_with_the_same_observations_answers_the_same(
        self, space: Space, seed: int, cut: int, flying: int
    ) -> None:
        assume(small(space))
        first = self.make(space, seed)
        observations: list[Observation] = []
        pending: list[Point] = []
        while len(observations) < cut and (proposal := first.ask(pending)) is not None:
            pending.append(proposal.point)
            if len(pending) > flying:
                # the oldest but one ends first: runs do not end in the order they began
                point = pending.pop(1 if len(pending) > 1 else 0)
                observations.append(Observation(point, _score(point)))
                first.tell(observations[-1])
        again = self.make(space, seed)
        for observation in observations:
            again.tell(observation)
        said = first.ask(pending)
        assert again.ask(pending) == said
        if first.forget():
            for observation in observations:
                first.tell(observation)
            assert first.ask(pending) == said

    @_few
    @given(space=spaces())
    def test_a_pending_point_is_not_proposed(self, space: Space) -> None:
        assume(small(space))
        sampler = self.make(space)
        pending: list[Point] = []
        while (proposal := sampler.ask(pending)) is not None:
            pending.append(proposal.point)
            assert len(pending) <= 60
        assert {point_key(p) for p in pending} == _legal_points(space)
        assert len(pending) == len(_legal_points(space))

    def test_asking_changes_nothing(self) -> None:
        space = Space((Discrete("a", (1, 2, 3, 4, 5), True), Discrete("b", ("x", "y", "z"), False)), {})
        sampler = self.make(space, options=self.eager)
        for value in (1, 2, 3):
            sampler.tell(Observation({"a": value, "b": "x"}, float(value)))
        assert sampler.ask() == sampler.ask() == sampler.ask()

    def test_what_the_campaign_refuses_is_never_proposed(self) -> None:
        space = Space((Discrete("a", tuple(range(6)), True), Discrete("b", ("x", "y"), False)), {})
        refused: list[Point] = [{"a": a, "b": "x"} for a in range(6)]
        asked = _exhaust(self.make(space, refuse=refused))
        assert sorted(point_key(p) for p in asked) == sorted(point_key({"a": a, "b": "y"}) for a in range(6))

    def test_observations_of_foreign_points_do_no_harm(self) -> None:
        when = Expression.parse("a == 2")
        space = Space((Discrete("a", (1, 2, 3), True), Discrete("b", (10, 20), True, when=when)), {})
        sampler = self.make(space)
        foreign: list[Point] = [{}, {"a": 99}, {"a": 2}, {"a": 1, "b": 10}, {"z": "?"}, {"a": "1"}, {"a": True}]
        for point in [*foreign, *foreign]:
            sampler.tell(Observation(point, 1.0))
            sampler.tell(Observation(point, None))
        assert {point_key(p) for p in _exhaust(sampler)} == _legal_points(space)

    def test_a_space_of_one_point(self) -> None:
        sampler = self.make(Space((Discrete("only", ("this",), False),), {}))
        proposal = sampler.ask()
        assert proposal is not None
        assert proposal.point == {"only": "this"}
        sampler.tell(Observation({"only": "this"}, 1.0))
        assert sampler.ask() is None

    def test_a_space_whose_rules_refuse_everything_ends_at_once(self) -> None:
        rule = Rule(Expression.parse("a > 0"), "never")
        assert self.make(Space((Discrete("a", (1, 2, 3), True),), {}, (rule,))).ask() is None

    def test_a_repeated_observation_is_one_point(self) -> None:
        """The baseline is observed several times, each with its own noise."""
        sampler = self.make(Space((Discrete("a", (1, 2, 3), True),), {}))
        for noise in (1.0, 1.1, 0.9):
            sampler.tell(Observation({"a": 2}, noise))
        assert sorted(str(p["a"]) for p in _exhaust(sampler)) == ["1", "3"]

    @_few
    @given(space=spaces(continuous=True), seed=st.integers(0, 3))
    def test_points_with_continuous_knobs_are_legal_and_new(self, space: Space, seed: int) -> None:
        continuous = [knob.name for knob in space.knobs if isinstance(knob, Continuous)]
        if continuous and not self.takes_continuous:
            with pytest.raises(InputError, match=continuous[0]):
                self.make(space, seed)
            return
        sampler = self.make(space, seed)
        seen: set[str] = set()
        for _ in range(14):
            proposal = sampler.ask()
            if proposal is None:
                break
            point = proposal.point
            assert space.refusal(point) is None
            assert space.restrict(point) == point
            assert not space.missing(point)
            assert all(space.by_name[knob].contains(value) for knob, value in point.items())
            assert point_key(point) not in seen
            seen.add(point_key(point))
            sampler.tell(Observation(point, _score(point)))

    def test_an_unknown_option_is_refused_by_name(self) -> None:
        with pytest.raises(InputError, match="odrer"):
            self.make(Space((Discrete("a", (1, 2), True),), {}), options={"odrer": "listed"})

    def test_no_warning_reaches_the_user(self) -> None:
        when = Expression.parse("a > 1")
        space = Space((Discrete("a", (1, 2, 3, 4), True), Discrete("b", ("x", "y"), False, when=when)), {})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            _exhaust(self.make(space, options=self.eager))

    def test_the_same_answers_in_another_process(self) -> None:
        """Python orders sets differently in each process; a resumed campaign must not."""
        made_by = self.factory()
        program = _IN_ANOTHER_PROCESS.replace("MODULE", made_by.__module__)
        program = program.replace("FACTORY", getattr(made_by, "__qualname__", ""))
        outputs = {
            subprocess.run(
                [sys.executable, "-c", program],
                env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for seed in ("1", "2")
        }
        assert len(outputs) == 1


def _score(point: Point) -> float | None:
    """Some settings fail, the others differ."""
    number = int.from_bytes(point_key(point).encode()[-4:], "little") % 97
    return None if number % 5 == 0 else float(number)


def _legal_points(space: Space) -> set[str]:
    return {point_key(p) for p in space.points() if space.refusal(p) is None}


def _exhaust(sampler: Sampler, limit: int = 500) -> list[Point]:
    asked: list[Point] = []
    while (proposal := sampler.ask()) is not None:
        asked.append(proposal.point)
        sampler.tell(Observation(proposal.point, _score(proposal.point)))
        assert len(asked) <= limit, "asked for more points than the space has"
    return asked
