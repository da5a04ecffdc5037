"""What a run cost: dollars, joules and grams of CO2, by the `prices` of its site or study. Of any workload.

Nothing is counted in part: where energy has a price and was not measured, dollars are not known, and `unknown_cost`
says what is missing.
"""

from __future__ import annotations

from ridgeline.records.measurement import (
    CO2,
    DOLLARS,
    DOLLARS_PER_TOKENS,
    JOULES,
    Measurement,
    Origin,
    metrics_of,
    reported,
)
from ridgeline.records.run import Run
from ridgeline.records.site import BATCH_METER, Prices, Site

COSTS = metrics_of("prices")
_TOKEN_RATES = ("total_tok_s", "output_tok_s")  # the first that a run measured counts
_JOULES_PER_KWH = 3.6e6
_SOURCE = "run"  # from how it ended, not from a file of its own


def costs(run: Run, site: Site) -> dict[str, Measurement]:
    """Every cost of the run that is known, by metric. Of a simulated run, by the time that was simulated."""
    prices, (seconds, origin) = site.prices, _took(run)
    joules, dollars, grams = _joules(run, prices, seconds), None, None
    hourly = prices.hourly(run.resources.nodes, run.resources.gpus or site.gpus_per_node)
    if hourly is not None or prices.kwh is not None:
        energy = 0.0 if prices.kwh is None else None if joules is None else prices.kwh * joules / _JOULES_PER_KWH
        dollars = None if energy is None else (hourly or 0.0) * seconds / 3600.0 + energy
    if joules is not None and prices.co2_g_per_kwh is not None:
        grams = prices.co2_g_per_kwh * joules / _JOULES_PER_KWH
    rate = next((run.metrics[name] for name in _TOKEN_RATES if run.metrics.get(name, 0.0) > 0), None)
    per_tokens = None if hourly is None or rate is None else hourly / (rate * 3600.0) * 1e6
    found = ((DOLLARS, dollars), (JOULES, joules), (CO2, grams), (DOLLARS_PER_TOKENS, per_tokens))
    return {name: reported(name, value, _SOURCE, origin) for name, value in found if value is not None}


def _took(run: Run) -> tuple[float, Origin]:
    simulated = [m for m in run.measurements if m.origin == "modelled" and m.metric in ("wall_s", "duration_s")]
    return (simulated[0].value, "modelled") if simulated else (run.ending.duration_s, "measured")


def _joules(run: Run, prices: Prices, seconds: float) -> float | None:
    if prices.node_watts is not None:
        return prices.node_watts * run.resources.nodes * seconds
    if run.resources.nodes > 1 and BATCH_METER not in prices.meters:
        return None  # run.sh reads the meters of its own node
    return run.ending.usage.get("joules")


def unpriced(metric: str, site: Site) -> str:
    """Which price this metric needs and the study does not give; empty where all are there."""
    prices = site.prices
    energy = prices.node_watts is not None or bool(prices.meters)
    hourly = prices.hourly(1, site.gpus_per_node or 1)
    if hourly is None and (metric == DOLLARS_PER_TOKENS or (metric == DOLLARS and prices.kwh is None)):
        return f"{metric} needs a price: write `prices: {{node_hour: 2.5}}`, in dollars"
    if metric == CO2 and prices.co2_g_per_kwh is None:
        return f"{metric} needs the carbon intensity of your power: write `prices: {{co2_g_per_kwh: 350}}`"
    if not energy and (metric in (JOULES, CO2) or (metric == DOLLARS and prices.kwh is not None)):
        return (
            f"{metric} needs the energy of a run: name its `meters` under `prices` (rapl, nvml, ipmi, slurm), or state "
            "`node_watts`, the power of a node under this load"
        )
    return ""


def unknown_cost(metric: str, run: Run, site: Site) -> tuple[str, str]:
    """Why this cost of a run is not known, and what to change."""
    if missing := unpriced(metric, site):
        return missing, "add it to `prices`"
    meters, nodes = " and ".join(site.prices.meters), run.resources.nodes
    if metric == DOLLARS_PER_TOKENS:
        return f"{metric}: the run measured no tokens a second", "choose `dollars` as the goal"
    if nodes > 1 and BATCH_METER not in site.prices.meters:
        why = f"{metric}: {meters} measures one node, and the run had {nodes}"
    else:
        where = ", ".join(run.ending.nodes) or "its node"
        why = f"{metric}: {meters} measured no energy on {where}"
    return (
        why,
        "state `node_watts` under `prices` instead of `meters`; docs/guides/any-program.md says what each needs",
    )
