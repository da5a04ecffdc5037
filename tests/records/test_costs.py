"""What a run cost: dollars, joules, CO2, of any program; nothing is counted in part."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.records.measurement import Measurement
from ridgeline.records.run import Cause, Ending, Resources, Run
from ridgeline.records.site import Prices, Site, costs, unknown_cost, unpriced


def run_of(hours: float = 1.0, nodes: int = 1, gpus: int = 0, joules: float | None = None, rate: float = 0.0) -> Run:
    usage = {} if joules is None else {"joules": joules}
    ending = Ending(Cause.EXITED, 0, nodes=("n1",), elapsed_s=3600 * hours, usage=usage)
    return Run(1, 1, 1, Path(), Resources(nodes=nodes, gpus=gpus), ending, None, (Measurement("total_tok_s", rate),))


def cost(run: Run, gpus_per_node: int = 0, **prices: object) -> dict[str, float]:
    site = Site(gpus_per_node=gpus_per_node, prices=Prices(**prices))  # type: ignore[arg-type]
    return {name: found.value for name, found in costs(run, site).items()}


def test_node_hours_and_energy_are_added_and_co2_follows() -> None:
    found = cost(run_of(2.0, nodes=3), node_hour=4.0, kwh=0.5, node_watts=500.0, co2_g_per_kwh=400.0)
    assert found["joules"] == pytest.approx(500 * 3 * 7200)
    assert found["dollars"] == pytest.approx(2 * 3 * 4.0 + 3.0 * 0.5)
    assert found["co2_g"] == pytest.approx(3.0 * 400)
    assert cost(run_of(2.0), kwh=0.5, meters=("rapl",)) == {}, "without its energy the run's price is not known"
    assert cost(run_of(2.0, joules=3.6e6), kwh=0.5, meters=("rapl",)) == {"dollars": 0.5, "joules": 3.6e6}
    assert cost(run_of()) == {}


def test_a_simulated_run_costs_the_time_that_was_simulated() -> None:
    simulated = replace(run_of(), measurements=(Measurement("duration_s", 7200.0, origin="modelled"),))
    found = costs(simulated, Site(prices=Prices(node_hour=1.0)))["dollars"]
    assert (found.value, found.origin) == (2.0, "modelled")
    assert costs(run_of(), Site(prices=Prices(node_hour=1.0)))["dollars"].origin == "measured"


def test_a_meter_of_one_node_does_not_speak_for_several() -> None:
    run, site = run_of(nodes=2, joules=100.0), Site(prices=Prices(meters=("rapl",)))
    assert "joules" not in costs(run, site)
    assert "rapl measures one node, and the run had 2" in unknown_cost("joules", run, site)[0]
    assert costs(run, Site(prices=Prices(meters=("slurm",))))["joules"].value == 100.0


def test_what_a_million_tokens_cost() -> None:
    name = "dollars_per_million_tokens"
    assert cost(run_of(nodes=2, gpus=8, rate=10_000.0), node_hour=36.0)[name] == pytest.approx(2.0)
    assert cost(run_of(nodes=2, gpus=8, rate=10_000.0), gpu_hour=4.5)[name] == pytest.approx(2.0)
    assert cost(run_of(nodes=2, rate=10_000.0), 8, gpu_hour=4.5)[name] == pytest.approx(2.0), "whole nodes"
    assert cost(run_of(nodes=2, gpus=2, rate=10_000.0), 8, gpu_hour=4.5)[name] == pytest.approx(0.5), (
        "only what it used"
    )
    assert name not in cost(run_of(rate=10_000.0), kwh=1.0, node_watts=5.0)
    assert name not in cost(run_of(gpus=1), 1, node_hour=1.0)


def test_what_is_missing_is_said_with_what_to_write() -> None:
    def said(metric: str, **prices: object) -> str:
        return unpriced(metric, Site(prices=Prices(**prices)))  # type: ignore[arg-type]

    assert "prices: {node_hour: 2.5}" in said("dollars")
    assert "node_watts" in said("dollars", kwh=0.3)
    assert "node_watts" in said("joules", node_hour=1.0)
    assert "co2_g_per_kwh: 350" in said("co2_g", node_watts=400.0)
    assert said("dollars", gpu_hour=1.0) == said("joules", meters=("slurm",)) == ""
    why, remedy = unknown_cost("joules", run_of(), Site(prices=Prices(meters=("rapl",))))
    assert why == "joules: rapl measured no energy on n1"
    assert "node_watts" in remedy
