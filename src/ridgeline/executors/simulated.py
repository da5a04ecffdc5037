"""A cluster that is not there: jobs run on this machine in an instant, where and how long is pretended.

Nodes have names and speeds, one may be slow, runs scatter, and now and then a node dies or a job hangs: all drawn from
the site's seed and the run folder's name, so that a campaign on such a site can be repeated to the digit. A job learns
its speed from its environment and leaves the seconds it would have taken in a file (`records.simulation`); its ending
carries pretended times, so node-hours, limits and budgets are those of the cluster. Everything needed to go on after a
crash is in the run folders.

    batch: simulated
    nodes: 6
    options: {prefix: dgx, seed: 1, spread: 0.01, slow: {dgx002: 0.91}, noise: 0.015, faults: 0.01, hangs: 0.005}
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ridgeline.errors import SiteError
from ridgeline.executors.base import Executor
from ridgeline.executors.local import LocalExecutor
from ridgeline.files import write_whole
from ridgeline.records.run import Cause, Ending, Job, Machine
from ridgeline.records.site import NODES_ENV, SPEED_ENV, STOPS_AT_ENV, TOOK_FILE, Site
from ridgeline.study.forms import Accepts, DefaultText, Form, OneLine, Single
from ridgeline.study.state_files import state_text

_PLACEMENT_FILE = "placement.json"

_Share = Annotated[float, Field(ge=0, lt=1), Accepts("a share of at least 0 and below 1, such as 0.01 for 1%")]
_Speeds = Annotated[
    dict[str, Annotated[float, Field(gt=0)]], Accepts("a mapping of nodes to their speed, such as {dgx002: 0.91}")
]


class _SimulatedOptions(Form):
    """Options of `batch: simulated`, a cluster that is not there."""

    whose = "simulated"
    gpu: Annotated[OneLine, DefaultText("the study's `gpu`")] = Field(
        default="", description="The GPU of the nodes, one of `ridgeline plan hardware`."
    )
    fabric: Annotated[OneLine, DefaultText("the GPU's usual one")] = Field(
        default="", description="The network between the nodes, one of `ridgeline plan hardware`."
    )
    prefix: OneLine = Field(default="node", description="What the nodes' names begin with: node001 and so on.")
    seed: Single = Field(default=0, description="Seeds everything random: speeds, scatter, mishaps.")
    spread: _Share = Field(
        default=0.0, description="By how much nodes differ in speed: a standard deviation, as a share."
    )
    noise: _Share = Field(default=0.0, description="By how much runs scatter: a standard deviation, as a share.")
    faults: _Share = Field(default=0.0, description="The share of runs whose node dies.")
    hangs: _Share = Field(default=0.0, description="The share of runs that hang.")
    slow: _Speeds = Field(default={}, description="Nodes with a speed of their own; 1 is as fast as the others.")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where and when a run is pretended to be, and what goes wrong. `stops_at` is a share of its time."""

    nodes: tuple[str, ...]
    speed: float
    fault: str  # nothing, fault (the node dies) or hang
    stops_at: float
    started_s: float
    limit_s: float
    silence_limit_s: float | None


class SimulatedExecutor(Executor):
    """One job at a time: jobs take no time, so more at once would only make the order of results a matter of luck."""

    form = _SimulatedOptions
    detached = False
    state_files = (_PLACEMENT_FILE, TOOK_FILE, *LocalExecutor.state_files)
    slots = 1

    def __init__(self, site: Site) -> None:
        self._site = site
        self._cluster = _Cluster(site)
        # modules, containers and cores of the pretended nodes mean nothing on this machine
        self._here = LocalExecutor(Site(name=site.name, env=site.env))
        self._now_s: dict[Path, float] = {}  # the pretended clock of each folder of runs

    def script(self, job: Job) -> str:
        return self._here.script(self._with_placement(job, self._cluster.place(job)))

    def submit(self, job: Job) -> str:
        drawn = self._cluster.place(job)
        if self._here.find(job) is None:
            start_s = max(self._clock(job.folder.parent), time.time())
            _write_placement(job.folder, replace(drawn, started_s=round(start_s, 3)))
        return self._here.submit(self._with_placement(job, drawn))

    def find(self, job: Job) -> str | None:
        return self._here.find(job)

    def poll(self, tickets: Collection[str]) -> Mapping[str, Ending]:
        endings = {t: _pretended(Path(t), ending) for t, ending in self._here.poll(tickets).items()}
        for ticket, ending in endings.items():
            runs = Path(ticket).parent
            self._now_s[runs] = max(self._clock(runs), ending.ended_s)
        return endings

    def cancel(self, ticket: str) -> None:
        self._here.cancel(ticket)

    def wait(self, timeout_s: float) -> None:
        self._here.wait(timeout_s)

    def _with_placement(self, job: Job, placed: Placement) -> Job:
        placement = {NODES_ENV: " ".join(placed.nodes), SPEED_ENV: f"{placed.speed:.6f}"}
        if placed.fault != "nothing":
            placement[STOPS_AT_ENV] = f"{placed.stops_at:.4f}"
        # real limits stay as they are: they end a program that does not pretend
        return replace(job, env={**placement, **job.env})

    def _clock(self, runs: Path) -> float:
        """When the last run in this folder ended; read once, for a controller that came back."""
        if runs not in self._now_s:
            ends = [_end_s(placed, folder) for folder in runs.iterdir() if (placed := _read_placement(folder))]
            self._now_s[runs] = max(ends, default=0.0)
        return self._now_s[runs]


class _Cluster:
    """Names, speeds and mishaps of the nodes, all from one seed."""

    def __init__(self, site: Site) -> None:
        self._options = options = _SimulatedOptions.model_validate(dict(site.options))
        names = [f"{options.prefix}{number:03d}" for number in range(1, site.nodes + 1)]
        if unknown := sorted(set(options.slow) - set(names)):
            raise SiteError(
                f"site {site.name}: options.slow names {unknown[0]}; the nodes are {names[0]} to {names[-1]}"
            )
        drawn = {name: math.exp(self._dice(name).gauss(0, options.spread)) for name in names}
        self.speeds = drawn | options.slow

    def place(self, job: Job) -> Placement:
        """The same job in a folder of the same name always meets the same fate."""
        dice = self._dice(job.folder.name)
        nodes = self._nodes(job, dice)
        # at every exchange the fast nodes of a job wait for its slowest
        slowest = min(self.speeds.get(node, 1.0) for node in nodes)
        speed = slowest * math.exp(dice.gauss(0, self._options.noise))
        chance, stops_at = dice.random(), dice.uniform(0.1, 0.95)
        faults, hangs = self._options.faults, self._options.hangs
        fault = "fault" if chance < faults else "hang" if chance < faults + hangs else "nothing"
        return Placement(nodes, speed, fault, stops_at, 0.0, job.limit_s, job.silence_limit_s)

    def _nodes(self, job: Job, dice: random.Random) -> tuple[str, ...]:
        wanted = job.resources.nodes
        free = [name for name in self.speeds if name not in job.avoid_nodes]
        if len(free) < wanted:
            free = list(self.speeds)  # every other node was at fault once; better an old suspect than no run
        if len(free) < wanted:
            raise SiteError(
                f"{job.name} wants {wanted} nodes, the site has {len(free)}; lower job.nodes or add nodes to the site"
            )
        drawn = tuple(sorted(dice.sample(free, wanted)))
        return job.on_nodes or drawn

    def _dice(self, name: str) -> random.Random:
        return random.Random(f"{self._options.seed}/{name}")


def _pretended(folder: Path, ending: Ending) -> Ending:
    """The ending as the pretended site tells it; what really was ended from outside keeps its cause."""
    placed = _read_placement(folder)
    if placed is None:
        return ending
    start_s, machines, real_s = placed.started_s, tuple(Machine(node) for node in placed.nodes), ending.duration_s
    ending = replace(ending, nodes=placed.nodes, machines=machines, elapsed_s=None, held_s=None)
    ending = replace(ending, started_s=start_s, ended_s=start_s + real_s)
    took_s = _took_s(folder)
    if ending.cause is not Cause.EXITED or (took_s is None and placed.fault == "nothing"):
        return ending
    # what the stand-in used on this machine says nothing about the program
    ending = replace(ending, ended_s=_end_s(placed, folder, real_s), usage={})
    if placed.fault == "fault":
        cause, number, reason = Cause.NODE_FAILED, None, f"node {placed.nodes[0]} went down"
    elif placed.fault == "hang" and placed.silence_limit_s is not None:
        cause, number, reason = Cause.SILENCE, 15, f"wrote nothing for {placed.silence_limit_s:g} s"
    elif placed.fault == "hang" or (took_s or 0.0) > placed.limit_s:
        cause, number, reason = Cause.TIME_LIMIT, 15, f"ran longer than its limit of {placed.limit_s:g} s"
    else:
        return ending
    return replace(ending, cause=cause, exit_code=None, signal=number, reason=reason)


def _end_s(placed: Placement, folder: Path, real_s: float = 0.0) -> float:
    told_s = _took_s(folder)
    took_s = real_s if told_s is None else told_s
    if placed.fault == "fault":
        took_s *= placed.stops_at
    elif placed.fault == "hang":
        silence_s = math.inf if placed.silence_limit_s is None else placed.silence_limit_s
        took_s = placed.stops_at * took_s + silence_s
    return round(placed.started_s + min(took_s, placed.limit_s), 3)


def _took_s(folder: Path) -> float | None:
    try:
        seconds = float(state_text(folder, TOOK_FILE))
    except ValueError:
        return None
    return seconds if seconds >= 0 and math.isfinite(seconds) else None


def _write_placement(folder: Path, placed: Placement) -> None:
    path = folder / _PLACEMENT_FILE
    try:
        write_whole(path, json.dumps(asdict(placed), indent=1) + "\n", survives_power_cut=False)
    except OSError as error:
        raise SiteError(f"{path}: cannot be written ({error.strerror}); make room and resume") from error


def _read_placement(folder: Path) -> Placement | None:
    try:
        fields = json.loads(state_text(folder, _PLACEMENT_FILE))
    except ValueError:
        return None
    if "befalls" in fields:  # as releases before 0.2.0 called it
        fields["fault"] = fields.pop("befalls")
    return Placement(**{**fields, "nodes": tuple(fields["nodes"])})
