"""Random spaces with rules and conditional knobs, small enough to be listed."""

from __future__ import annotations

from hypothesis import strategies as st

from ridgeline.records.expression import Expression, Value, is_number
from ridgeline.records.space import Continuous, Discrete, Knob, Rule, Space

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
