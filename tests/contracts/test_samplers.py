"""What every sampler of the catalog promises, whoever wrote it."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ridgeline import catalog
from ridgeline.errors import InputError
from ridgeline.records.expression import Expression
from ridgeline.records.lesson import Lesson
from ridgeline.records.space import Continuous, Discrete, Point, Rule, Space, point_key
from ridgeline.samplers.base import Sampler
from tests.samplers.spaces import small, spaces

SAMPLERS = catalog.names("samplers")
few = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


def make(name: str, space: Space, seed: int = 0, refuse: Sequence[Point] = (), **options: object) -> Sampler:
    refused = {point_key(point) for point in refuse}
    sampler: Sampler = catalog.part("samplers", name)(
        space, seed, options, lambda point: "not here" if point_key(point) in refused else None
    )
    return sampler


def score(point: Point) -> float | None:
    """Some settings fail, the others differ."""
    number = int.from_bytes(point_key(point).encode()[-4:], "little") % 97
    return None if number % 5 == 0 else float(number)


def legal_points(space: Space) -> set[str]:
    return {point_key(p) for p in space.points() if space.refusal(p) is None}


def exhaust(sampler: Sampler, limit: int = 500) -> list[Point]:
    asked: list[Point] = []
    while (proposal := sampler.ask()) is not None:
        asked.append(proposal.point)
        sampler.tell(Lesson(proposal.point, score(proposal.point)))
        assert len(asked) <= limit, "asked for more points than the space has"
    return asked


@pytest.mark.parametrize("name", SAMPLERS)
@few
@given(space=spaces(), seed=st.integers(0, 5))
def test_every_legal_point_once_then_none(name: str, space: Space, seed: int) -> None:
    assume(small(space))
    asked = [point_key(p) for p in exhaust(make(name, space, seed))]
    assert len(asked) == len(set(asked))
    assert set(asked) == legal_points(space)


@pytest.mark.parametrize("name", SAMPLERS)
@few
@given(space=spaces(), seed=st.integers(0, 5), cut=st.integers(0, 20), flying=st.integers(0, 4))
def test_a_new_sampler_told_the_same_answers_the_same(
    name: str, space: Space, seed: int, cut: int, flying: int
) -> None:
    assume(small(space))
    first = make(name, space, seed)
    lessons: list[Lesson] = []
    pending: list[Point] = []
    while len(lessons) < cut and (proposal := first.ask(pending)) is not None:
        pending.append(proposal.point)
        if len(pending) > flying:
            # the oldest but one ends first: runs do not end in the order they began
            point = pending.pop(1 if len(pending) > 1 else 0)
            lessons.append(Lesson(point, score(point)))
            first.tell(lessons[-1])
    again = make(name, space, seed)
    for lesson in lessons:
        again.tell(lesson)
    assert again.ask(pending) == first.ask(pending)


@pytest.mark.parametrize("name", SAMPLERS)
@few
@given(space=spaces())
def test_a_pending_point_is_not_proposed(name: str, space: Space) -> None:
    assume(small(space))
    sampler = make(name, space)
    pending: list[Point] = []
    while (proposal := sampler.ask(pending)) is not None:
        pending.append(proposal.point)
        assert len(pending) <= 60
    assert {point_key(p) for p in pending} == legal_points(space)
    assert len(pending) == len(legal_points(space))


@pytest.mark.parametrize("name", SAMPLERS)
def test_asking_changes_nothing(name: str) -> None:
    space = Space((Discrete("a", (1, 2, 3, 4, 5), True), Discrete("b", ("x", "y", "z"), False)), {})
    sampler = make(name, space, startup=2) if name == "tpe" else make(name, space)
    for value in (1, 2, 3):
        sampler.tell(Lesson({"a": value, "b": "x"}, float(value)))
    assert sampler.ask() == sampler.ask() == sampler.ask()


@pytest.mark.parametrize("name", SAMPLERS)
def test_what_the_campaign_refuses_is_never_proposed(name: str) -> None:
    space = Space((Discrete("a", tuple(range(6)), True), Discrete("b", ("x", "y"), False)), {})
    refused = [{"a": a, "b": "x"} for a in range(6)]
    asked = exhaust(make(name, space, refuse=refused))
    assert sorted(point_key(p) for p in asked) == sorted(point_key({"a": a, "b": "y"}) for a in range(6))


@pytest.mark.parametrize("name", SAMPLERS)
def test_lessons_of_foreign_points_do_no_harm(name: str) -> None:
    space = Space((Discrete("a", (1, 2, 3), True), Discrete("b", (10, 20), True, when=Expression.parse("a == 2"))), {})
    sampler = make(name, space)
    foreign: list[Point] = [{}, {"a": 99}, {"a": 2}, {"a": 1, "b": 10}, {"z": "?"}, {"a": "1"}, {"a": True}]
    for point in [*foreign, *foreign]:
        sampler.tell(Lesson(point, 1.0))
        sampler.tell(Lesson(point, None))
    assert {point_key(p) for p in exhaust(sampler)} == legal_points(space)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_space_of_one_point(name: str) -> None:
    sampler = make(name, Space((Discrete("only", ("this",), False),), {}))
    proposal = sampler.ask()
    assert proposal is not None
    assert proposal.point == {"only": "this"}
    sampler.tell(Lesson({"only": "this"}, 1.0))
    assert sampler.ask() is None


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_space_whose_rules_refuse_everything_ends_at_once(name: str) -> None:
    rule = Rule(Expression.parse("a > 0"), "never")
    assert make(name, Space((Discrete("a", (1, 2, 3), True),), {}, (rule,))).ask() is None


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_repeated_lesson_is_one_point(name: str) -> None:
    """The baseline is told several times, each with its own noise."""
    sampler = make(name, Space((Discrete("a", (1, 2, 3), True),), {}))
    for noise in (1.0, 1.1, 0.9):
        sampler.tell(Lesson({"a": 2}, noise))
    assert sorted(p["a"] for p in exhaust(sampler)) == [1, 3]  # type: ignore[type-var]


@pytest.mark.parametrize("name", [n for n in SAMPLERS if n != "grid"])
@few
@given(space=spaces(continuous=True), seed=st.integers(0, 3))
def test_points_with_continuous_knobs_are_legal_and_new(name: str, space: Space, seed: int) -> None:
    sampler = make(name, space, seed)
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
        sampler.tell(Lesson(point, score(point)))


def test_grid_says_that_it_cannot_list_a_continuous_knob() -> None:
    with pytest.raises(InputError, match="mem"):
        make("grid", Space((Continuous("mem", 0.7, 0.9),), {}))


@pytest.mark.parametrize("name", SAMPLERS)
def test_an_unknown_option_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"^odrer: .*; "):
        make(name, Space((Discrete("a", (1, 2), True),), {}), odrer="listed")


@pytest.mark.parametrize("name", SAMPLERS)
def test_no_warning_reaches_the_user(name: str) -> None:
    space = Space(
        (Discrete("a", (1, 2, 3, 4), True), Discrete("b", ("x", "y"), False, when=Expression.parse("a > 1"))), {}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exhaust(make(name, space, startup=2) if name == "tpe" else make(name, space))


PROGRAM = """
from ridgeline import catalog
from ridgeline.records.expression import Expression
from ridgeline.records.lesson import Lesson
from ridgeline.records.space import Continuous, Discrete, Space
when = Expression.parse("b == 'x'")
knobs = (Discrete("a", (1, 2, 4, 8, 16), True), Discrete("b", ("x", "y", "z"), False),
         Discrete("c", tuple(range(9)), True, when=when), Discrete("d", ("p", "q"), False, when=when))
sampler = catalog.part("samplers", "NAME")(Space(knobs, {}), 3, {}, lambda point: None)
for turn in range(25):
    point = sampler.ask().point
    print(point)
    sampler.tell(Lesson(point, None if turn % 4 == 3 else float(point["a"])))
"""


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_same_answers_in_another_process(name: str) -> None:
    """Python orders sets differently in each process; a resumed campaign must not."""
    outputs = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM.replace("NAME", name)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
