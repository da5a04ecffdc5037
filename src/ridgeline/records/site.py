"""Where jobs run: one machine, or a cluster behind a batch system; and what a run costs there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ridgeline.records.measurement import CO2, DOLLARS, DOLLARS_PER_TOKENS, JOULES, Measurement, Origin, reported
from ridgeline.records.run import Run

# RAPL counts processor packages and their DRAM; NVML has the GPUs' own counters, nvidia-smi samples of their power;
# the board controller (IPMI) and Slurm's energy accounting (acct_gather_energy) count whole nodes
BATCH_METER = "slurm"  # its accounting, where the site measures the energy of jobs
GPU_METER, BOARD_METER = "nvml", "ipmi"
METERS = ("rapl", GPU_METER, "nvidia-smi", BOARD_METER, BATCH_METER)


@dataclass(frozen=True, slots=True)
class Prices:
    """Dollars for an hour of a node or of a GPU and for a kWh; None where it is not known.

    The energy of a run is what `meters` measure, or the stated power of a node under load: `node_watts`.
    """

    node_hour: float | None = None
    gpu_hour: float | None = None
    kwh: float | None = None
    co2_g_per_kwh: float | None = None
    node_watts: float | None = None
    meters: tuple[str, ...] = ()  # of METERS; their energies are added

    def hourly(self, nodes: int, gpus_per_node: int) -> float | None:
        """What a job costs an hour; a price of nodes counts before one of GPUs."""
        if self.node_hour is not None:
            return self.node_hour * nodes
        if self.gpu_hour is not None and gpus_per_node:
            return self.gpu_hour * nodes * gpus_per_node
        return None


def counted_twice(prices: Prices) -> str:
    """Which energy would be counted twice, and what to change; empty where none would be."""
    meters = set(prices.meters)
    if meters and prices.node_watts is not None:
        return "`meters` measure the energy that `node_watts` states; keep one of the two"
    whole = next((meter for meter in (BATCH_METER, BOARD_METER) if meter in meters), "")
    if whole and len(meters) > 1:
        return f"`meters`: {whole} counts whole nodes, the others included; leave it alone in the list"
    if meters >= {GPU_METER, "nvidia-smi"}:
        return "`meters`: nvml and nvidia-smi measure the same GPUs; keep nvml, which counts instead of sampling"
    return ""


@dataclass(frozen=True, slots=True)
class Site:
    """What a site file says. `batch` names an executor of the catalog.

    `launcher` starts parallel programs inside a job (records/launch.py). Sizes are per node; None is unknown.
    `directives` are added to job scripts as they stand.
    """

    name: str = "local"
    batch: str = "local"
    queue: str = ""
    account: str = ""
    nodes: int = 1
    cores_per_node: int | None = None
    gpus_per_node: int = 0
    memory_bytes_per_node: int | None = None
    interface: str = ""  # the network interface by which nodes reach each other; empty: the one that leads there
    launcher: str = "none"
    launcher_options: str = ""
    modules: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()  # shell lines before the command
    container: str = ""  # an image; empty for none
    container_runtime: str = "apptainer"  # one of records/launch.py
    container_options: str = ""
    container_mounts: tuple[str, ...] = ()  # paths of the host, as PATH or HOST:INSIDE
    scratch: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    jobs_at_once: int = 1
    poll_s: float = 10.0
    submit_every_s: float = 0.5
    directives: tuple[str, ...] = ()
    service_units_per_node_hour: float | None = None
    secrets: tuple[str, ...] = ()  # variables of the environment whose values are written down nowhere
    prices: Prices = Prices()
    options: Mapping[str, object] = field(default_factory=dict)  # what only one batch system knows

    @property
    def simulated(self) -> bool:
        """Its jobs take no real time: it has a clock of its own, by which runs are charged."""
        return self.batch == "simulated"


LOCAL = Site()


# What a simulated site and its jobs exchange: jobs take no real time, these carry the pretended one.

# The job's side: seconds it would have taken, as text, in its run folder. Without this file the real time counts.
TOOK_FILE = "took_s"

# The site's side, in the job's environment.
NODES_ENV = "RIDGELINE_NODES"  # names of the nodes, with spaces between
SPEED_ENV = "RIDGELINE_SPEED"  # speed of these nodes in this run; 1 is what the program would expect
STOPS_AT_ENV = "RIDGELINE_STOPS_AT"  # share of the run after which nothing more comes; only where a node dies or hangs


# What a run cost there, by the site's prices or the study's. Nothing is counted in part: where energy has a price and
# was not measured, dollars are not known, and `unknown_cost` says what is missing.

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
