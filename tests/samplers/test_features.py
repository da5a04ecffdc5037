"""How points look to the models: what is alike lies near."""

import numpy as np

from ridgeline.records.space import Discrete, Space
from ridgeline.samplers.guided.features import Features

SCHEDULES = ("static", "static-8", "static-64", "static-512", "dynamic-8", "dynamic-64", "dynamic-512")


def distance(features: Features, one: str, other: str) -> float:
    a, b = features.of([{"schedule": one}, {"schedule": other}])
    return float(np.linalg.norm(a - b))


def test_a_text_of_a_word_and_a_number_is_near_to_the_same_word_with_the_next_number() -> None:
    features = Features(Space((Discrete("schedule", SCHEDULES, ordered=False),), {}))
    near, farther = distance(features, "dynamic-8", "dynamic-64"), distance(features, "dynamic-8", "dynamic-512")
    assert near < farther < distance(features, "dynamic-8", "static-512")
    assert near < distance(features, "dynamic-8", "static-64")
    assert len(np.unique(features.of([{"schedule": value} for value in SCHEDULES]), axis=0)) == len(SCHEDULES)


def test_word_and_number_have_a_length_scale_each() -> None:
    threads = Discrete("threads", (4, 8, 16), ordered=True)
    features = Features(Space((Discrete("schedule", SCHEDULES, ordered=False), threads), {}))
    assert features.columns.max() + 1 == 3
    assert features.column(1) == int(np.flatnonzero(features.columns == 2)[0])


def test_texts_with_too_few_numbers_are_only_texts() -> None:
    features = Features(Space((Discrete("backend", ("fa2", "fa3", "triton"), ordered=False),), {}))
    rows = features.of([{"backend": value} for value in ("fa2", "fa3", "triton")])
    apart = [float(np.linalg.norm(rows[i] - rows[j])) for i, j in ((0, 1), (0, 2), (1, 2))]
    assert np.allclose(apart, 1.0)


def test_numbers_beside_a_word_are_numbers() -> None:
    space = Space((Discrete("chunk", ("auto", 256, 1024, 4096), ordered=False),), {})
    auto, low, middle, high = Features(space).of([{"chunk": value} for value in ("auto", 256, 1024, 4096)])
    assert np.linalg.norm(low - middle) < np.linalg.norm(low - high)
    assert np.linalg.norm(auto - middle) > 0.5
