"""What every part promises, as test suites. A part joins by a subclass in its own tests:

    from ridgeline.testing.contracts.samplers import SamplerContract

    class TestNearest(SamplerContract):
        name = "nearest"  # as study files name it

Each suite says in its docstring what a subclass must add. pytest and Hypothesis are needed here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import strategies as st

# so that a promise that is broken shows its values, as in a test file
pytest.register_assert_rewrite(
    *(f"{__name__}.{suite}" for suite in ("analyzers", "executors", "samplers", "workloads"))
)


def held_to(contract: type[object]) -> set[str]:
    """Names of the parts that have joined a suite so far. A catalog with others in it has forgotten somebody."""
    names: set[str] = {contract.__dict__["name"]} if "name" in contract.__dict__ else set()
    return names.union(*(held_to(joined) for joined in contract.__subclasses__()))


# Text as it is met: torn, spliced, repeated, with garbage in it.

_GARBAGE = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [b"\x00" * 9, b"\xff\xfe", b"\x1b[31m", b"9" * 400, b"-", b"1e999", b"nan", b"(" * 60, b'"', b"\r"]
    ),
)


def as_lines(text: bytes) -> list[str]:
    return [line.decode("utf-8", "replace") for line in text.split(b"\n")]


@st.composite
def mutated(draw: st.DrawFn, texts: Sequence[bytes]) -> bytes:
    text = draw(st.sampled_from(texts))
    for _ in range(draw(st.integers(1, 4))):
        how = draw(st.sampled_from(["cut", "drop", "splice", "swap", "repeat", "join", "other"]))
        here = draw(st.integers(0, max(0, len(text) - 1)))
        there = draw(st.integers(here, min(len(text), here + 3000)))
        if how == "cut":
            text = text[:here] if draw(st.booleans()) else text[here:]
        elif how == "drop":
            text = text[:here] + text[there:]
        elif how == "splice":
            text = text[:here] + draw(_GARBAGE) + text[here + draw(st.integers(0, 3)) :]
        elif how == "repeat":
            text = text[:there] + text[here:there] * draw(st.integers(1, 3)) + text[there:]
        elif how == "join":
            text = text[:here] + text[here:there].replace(b"\n", b"") + text[there:]
        elif how == "other":
            other = draw(st.sampled_from(texts))
            text = text[:here] + other[: draw(st.integers(0, 5000))] + text[here:]
        else:
            lines = text[here:there].split(b"\n")
            text = text[:here] + b"\n".join(draw(st.permutations(lines[:30]))) + text[there:]
    return text
