"""Every executor of the catalog keeps the promises of ridgeline.testing.contracts.executors."""

from __future__ import annotations

import pytest

from ridgeline import catalog
from ridgeline.executors.base import Executor
from ridgeline.executors.local import LocalExecutor
from ridgeline.records.site import Site
from ridgeline.testing.contracts import held_to
from ridgeline.testing.contracts.executors import ExecutorContract

IMPATIENT = {"lost_after_s": 1.0, "settle_s": 3.0}


def test_every_executor_of_the_catalog_is_held_to_these_promises() -> None:
    assert set(catalog.TABLE["executors"]) <= held_to(ExecutorContract)


class TestLocal(ExecutorContract):
    name = "local"

    def make(self) -> Executor:
        return LocalExecutor(Site(), grace_s=0.2)


@pytest.mark.slurm
@pytest.mark.usefixtures("slurm")
class TestSlurm(ExecutorContract):
    name = "slurm"
    patience_s = 120.0

    def site(self) -> Site:
        return Site(name="slurm", batch="slurm", queue="debug", poll_s=0.3, options=IMPATIENT)


@pytest.mark.usefixtures("pbs_standin")
class TestPbs(ExecutorContract):
    name = "pbs"
    patience_s = 120.0

    def site(self) -> Site:
        return Site(name="pbs", batch="pbs", queue="workq", poll_s=0.3, options=IMPATIENT)


class TestSimulated(ExecutorContract):
    name = "simulated"

    def site(self) -> Site:
        return Site(name="simulated", batch="simulated", nodes=4)
