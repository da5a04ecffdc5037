"""Trees: sharp edges stay sharp, and the same observations always grow the same trees."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.samplers.guided import feasibility
from ridgeline.samplers.guided.feasibility import DEEPEST, Trees


def places(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((count, 3)).astype(np.float32)


@pytest.mark.parametrize("column", [0, 2])
def test_an_edge_is_found_where_it_is(column: int) -> None:
    rows = places(200)
    mean = Trees(rows, (rows[:, column] < 0.5).astype(float)).at(places(400, seed=1))
    there = places(400, seed=1)[:, column]
    assert mean[there < 0.4].min() > 0.6 and mean[there > 0.6].max() < 0.4


def test_what_was_told_is_remembered_where_nothing_is_doubted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feasibility, "SHRINKAGE", 0.0)
    rows, values = places(20), np.random.default_rng(2).normal(size=20)
    assert np.allclose(Trees(rows, values).at(rows), values)


def test_a_doubted_leaf_leans_to_its_surroundings() -> None:
    rows = np.array([[0.0], [0.1], [0.2], [1.0]], dtype=np.float32)
    mean = Trees(rows, np.array([1.0, 1.0, 1.0, 0.0])).at(rows)
    assert 0.0 < mean[3] < 0.6 < mean[0] < 1.0


def test_the_same_observations_grow_the_same_trees() -> None:
    rows = places(50)
    one, other = (Trees(rows, rows[:, 1]).at(places(30, seed=3)) for _ in "12")
    assert np.array_equal(one, other)


@pytest.mark.parametrize("count", [1, 2, 2 * DEEPEST])
def test_observations_that_nothing_tells_apart_are_one_leaf(count: int) -> None:
    rows = np.zeros((count, 3), dtype=np.float32)
    values = np.arange(count, dtype=float)
    mean = Trees(rows, values).at(rows)
    assert np.allclose(mean, values.mean())
