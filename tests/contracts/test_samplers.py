"""Every sampler of the catalog keeps the promises of ridgeline.testing.contracts.samplers."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from ridgeline import catalog
from ridgeline.errors import InputError
from ridgeline.records.space import Continuous, Space
from ridgeline.testing.contracts import held_to
from ridgeline.testing.contracts.samplers import SamplerContract


def test_every_sampler_of_the_catalog_is_held_to_these_promises() -> None:
    assert set(catalog.TABLE["samplers"]) <= held_to(SamplerContract)


class TestGrid(SamplerContract):
    name = "grid"
    takes_continuous = False

    def test_it_says_that_it_cannot_list_a_continuous_knob(self) -> None:
        with pytest.raises(InputError, match="mem"):
            self.make(Space((Continuous("mem", 0.7, 0.9),), {}))


class TestGuided(SamplerContract):
    name = "guided"
    eager = MappingProxyType({"startup": 2})


class TestRandom(SamplerContract):
    name = "random"
