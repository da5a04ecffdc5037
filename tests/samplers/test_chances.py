"""The chance to pass: edges along products are seen, and what either model doubts is doubted."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ridgeline.records.observation import Observation
from ridgeline.records.space import Discrete, Point, Space
from ridgeline.samplers.guided.feasibility import ChanceModel
from ridgeline.samplers.guided.features import Features, Products
from ridgeline.samplers.guided.model import ObservedData
from ridgeline.samplers.guided.sampler import GuidedSampler

SIZES = tuple(16 * n for n in range(1, 17))
SPACE = Space(tuple(Discrete(name, SIZES, True) for name in ("x", "y", "z")), {})
FEATURES = Features(SPACE)
EVERY = [dict(zip(SPACE.names, values, strict=True)) for values in itertools.product(SIZES, repeat=3)]


def fits(point: Point) -> bool:
    """Two of the knobs fill one memory."""
    return point["x"] * point["y"] <= 8192  # type: ignore[operator, no-any-return]


def taught(count: int, products: Products | None) -> ObservedData:
    some = [EVERY[i] for i in np.random.default_rng(1).choice(len(EVERY), count, replace=False)]
    values = np.array([0.0 if fits(point) else np.nan for point in some])
    return ObservedData(FEATURES.of(some), values, None, None, products=products)


def mistaken(products: Products | None) -> float:
    """The share of all points of which trees think the wrong thing likelier."""
    model = ChanceModel(taught(50, products), FEATURES.columns)
    rows = FEATURES.of(EVERY)
    likely = model._trees.at(model._shown(rows)) > 0.5
    return float((likely != np.array([fits(point) for point in EVERY])).mean())


def test_a_limit_of_a_product_is_learned_from_fewer_observations() -> None:
    with_products = mistaken(Products(SPACE, FEATURES))
    assert with_products < 0.08
    assert with_products < 0.7 * mistaken(None)


def test_both_models_have_to_agree_where_nothing_was_predicted() -> None:
    model = ChanceModel(taught(30, Products(SPACE, FEATURES)), FEATURES.columns)
    rows = FEATURES.of(EVERY[::7])
    both, by_trees = model.at(rows, None), np.maximum(model._trees.at(model._shown(rows)), 0.002)
    model._trees.at = lambda rows: np.ones(len(rows))  # type: ignore[method-assign]
    by_process = model.at(rows, None)
    assert np.all(both <= np.minimum(by_trees, by_process) + 1e-6)
    assert (both < by_process - 0.1).any() and (both < by_trees - 0.1).any()


@pytest.mark.parametrize("told", [4, 12])
def test_the_sampler_shows_products_to_its_trees(told: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the careful start on."""
    shown: list[int] = []
    beside = Products.beside

    def recorded(self: Products, rows: np.ndarray) -> np.ndarray:
        shown.append(len(rows))
        return beside(self, rows)

    monkeypatch.setattr(Products, "beside", recorded)
    sampler = GuidedSampler(SPACE, 0, {}, lambda point: None)
    for point in [*EVERY[: told // 2], *EVERY[-told // 2 :]]:
        sampler.tell(Observation(point, 1.0 if fits(point) else None))
    assert sampler.ask() is not None
    assert shown
