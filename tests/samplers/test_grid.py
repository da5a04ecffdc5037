from __future__ import annotations

import pytest

from ridgeline.errors import InputError
from ridgeline.records.observation import Observation
from ridgeline.records.space import Discrete, Space
from ridgeline.samplers.fixed import GridSampler

SPACE = Space((Discrete("a", (1, 2, 3), True), Discrete("b", ("x", "y"), False)), {})


def order(seed: int, **options: object) -> list[tuple[object, object]]:
    sampler = GridSampler(SPACE, seed, options, lambda p: None)
    seen = []
    while (proposal := sampler.ask()) is not None:
        seen.append((proposal.point["a"], proposal.point["b"]))
        sampler.tell(Observation(proposal.point, 1.0))
    return seen


def test_the_last_knob_is_fastest() -> None:
    assert order(0) == [(1, "x"), (1, "y"), (2, "x"), (2, "y"), (3, "x"), (3, "y")]
    assert order(5) == order(0)


def test_shuffled_follows_the_seed() -> None:
    assert order(1, order="shuffled") == order(1, order="shuffled")
    assert len({tuple(order(seed, order="shuffled")) for seed in range(8)}) > 4


def test_another_order_is_refused() -> None:
    with pytest.raises(InputError, match="listed, shuffled"):
        order(0, order="backwards")
