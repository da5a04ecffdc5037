"""Where jobs run: one machine, or a cluster behind a batch system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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


_NO_PRICES = Prices()


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
    prices: Prices = _NO_PRICES
    options: Mapping[str, object] = field(default_factory=dict)  # what only one batch system knows


LOCAL = Site()


# What a simulated site and its jobs exchange: jobs take no real time, these carry the pretended one.

# The job's side: seconds it would have taken, as text, in its run folder. Without this file the real time counts.
TOOK_FILE = "took_s"

# The site's side, in the job's environment.
NODES_ENV = "RIDGELINE_NODES"  # names of the nodes, with spaces between
SPEED_ENV = "RIDGELINE_SPEED"  # speed of these nodes in this run; 1 is what the program would expect
STOPS_AT_ENV = "RIDGELINE_STOPS_AT"  # share of the run after which nothing more comes; only where a node dies or hangs
