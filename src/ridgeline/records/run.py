"""A job is what the site runs; a run is our attempt at a trial and how it ended."""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from ridgeline.records.measurement import Measurement
from ridgeline.records.outcome import Outcome

# Which machine a run was on. A host name is not enough: every virtual machine of a site may be called `vm`.

_SHORT = 8  # characters of an id that tell two apart


@dataclass(frozen=True, slots=True)
class Machine:
    """`boot` changes with every start of its system, `gpus` are the ids of its cards; empty where unknown."""

    host: str
    boot: str = ""
    gpus: tuple[str, ...] = ()

    def is_like(self, other: Machine) -> bool:
        """Whether nothing known about both shows that they differ."""
        known = ((self.host, other.host), (self.boot, other.boot), (sorted(self.gpus), sorted(other.gpus)))
        return all(mine == theirs for mine, theirs in known if mine and theirs)


def same_place(
    nodes: Sequence[str], machines: Sequence[Machine], others: Sequence[str], theirs: Sequence[Machine]
) -> bool:
    """Whether two runs, each with its nodes and the machines known of it, were in the same place."""
    if nodes and others and short_names(nodes) != short_names(others):
        return False
    pairs = [(a, b) for a in machines for b in theirs if a.host == b.host]
    if pairs or not (machines and theirs):
        return all(a.is_like(b) for a, b in pairs)
    # of a job over several nodes only the first may be known, and which is the first may change
    return len(nodes) > 1 and len(others) > 1


def short_names(nodes: Iterable[str]) -> frozenset[str]:
    """Node names without their domain: one batch system writes the same node with it and without."""
    return frozenset(node.partition(".")[0] for node in nodes)


def machine_names(machines: Iterable[Machine]) -> dict[Machine, str]:
    """How to call each: its host name, and what else it takes where two have the same."""
    by_host: dict[str, list[Machine]] = defaultdict(list)
    for machine in dict.fromkeys(machines):
        by_host[machine.host].append(machine)
    return {machine: _name(machine, alike) for alike in by_host.values() for machine in alike}


def _name(machine: Machine, alike: Sequence[Machine]) -> str:
    if len(alike) == 1:
        return machine.host
    parts = [f"boot {machine.boot[:_SHORT]}"] if machine.boot else []
    if machine.gpus and len({other.gpus for other in alike}) > 1:
        parts.append(f"GPU {machine.gpus[0].removeprefix('GPU-')[:_SHORT]}")
    return f"{machine.host} ({', '.join(parts)})" if parts else machine.host


# In the run folder of a job that was ended for its silence: `MTIME SIZE NAME` of each file just before it was asked to
# end. What is written after that is about our own kill.
QUIET_FILE = "quiet"
PREDICTED = "predicted.jsonl"  # of a run folder: what was said before of its parts, which it was not given
OWN_LOG = "engine.log"  # of a run folder: the log of a program that has one of its own
PROFILE_FOLDER = "profile"  # of a run folder: what was recorded under a profiler
PACKAGES_FILE = "packages"  # of a run folder: `name==release` lines, as pip freeze prints; of engines always there


@dataclass(frozen=True, slots=True)
class Resources:
    """What one job needs. `cores` and `gpus` are per node."""

    nodes: int = 1
    ranks_per_node: int = 1
    cores: int | None = None
    gpus: int = 0
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("nodes", "ranks_per_node"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; a job needs at least 1")


@dataclass(frozen=True, slots=True)
class Job:
    """A folder with everything that will run. `command` is shell text, run in `folder` with `env` added.

    The executor adds what the site needs (modules, directives, pinning) and writes it all into `folder`/run.sh.
    """

    name: str
    folder: Path
    command: str
    env: Mapping[str, str] = field(default_factory=dict)
    resources: Resources = Resources()
    limit_s: float = 3600.0
    silence_limit_s: float | None = None
    grace_s: float | None = None  # what it needs to end in order once it is asked to; None: the site's usual seconds
    on_nodes: tuple[str, ...] = ()  # run there and nowhere else (blocked confirmation)
    avoid_nodes: tuple[str, ...] = ()  # as far as the site has others: a node fault was seen there, or enough of them
    modules: tuple[str, ...] = ()  # loaded after the site's


def job_name(study: str, what: str) -> str:
    """What a queue shows: whose job it is first, since some batch systems show a few letters only."""
    return f"{study[:_STUDY_LETTERS]}-{what}"


_STUDY_LETTERS = 40  # of the 100 that Slurm's dialect shows: the run's number must be among them


class Cause(StrEnum):
    """Why a job ended, according to the site."""

    EXITED = "exited"  # by itself: see exit_code and signal
    TIME_LIMIT = "time-limit"
    SILENCE = "silence"
    MEMORY_LIMIT = "memory-limit"
    OUTPUT_LIMIT = "output-limit"  # ended by the campaign for writing too much
    CANCELLED = "cancelled"
    NODE_FAILED = "node-failed"
    NEVER_STARTS = "never-starts"  # the batch system says this request can never run
    LOST = "lost"  # looked for everywhere and not found; never taken for completed


@dataclass(frozen=True, slots=True)
class Ending:
    """How a job ended. `started_s` and `ended_s` are for people: seconds since the epoch; 0 where it never started.

    How long it took is counted on a monotonic clock, where the node wrote it down: `elapsed_s`. What it costs is
    counted from when the batch system gave it its nodes until it took them back: `charged_s`, where it has said so.
    """

    cause: Cause
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    nodes: tuple[str, ...] = ()
    started_s: float = 0.0
    ended_s: float = 0.0
    leftovers: tuple[str, ...] = ()  # processes that outlived the job and were ended: "pid command"
    usage: Mapping[str, float] = field(default_factory=dict)  # cpu_s, max_rss_bytes, service_units...
    elapsed_s: float | None = None
    held_s: float | None = None  # from the first moment of run.sh to its last, on the node's own clock
    charged_s: float | None = None  # by the batch system's own start and end
    machines: tuple[Machine, ...] = ()  # one a node, as far as known; of several nodes at least the first

    @property
    def duration_s(self) -> float:
        """An unknown start is no time: a job cancelled in the queue has used nothing."""
        if self.elapsed_s is not None:
            return max(0.0, self.elapsed_s)
        return max(0.0, self.ended_s - self.started_s) if self.started_s > 0 else 0.0

    @property
    def cost_s(self) -> float:
        """For how long its nodes are charged. A prolog and an epilog are known to the batch system alone."""
        known = self.charged_s if self.charged_s is not None else self.held_s
        return max(self.duration_s if known is None else known, 0.0)


def is_signal(number: int) -> bool:
    return number in _SIGNALS


def signal_name(number: int) -> str:
    """SIGKILL for 9."""
    return _SIGNALS.get(number, f"signal {number}")


_SIGNALS = {int(known): known.name for known in signal.Signals}


@dataclass(frozen=True)
class Run:
    """One attempt at a trial. `attempt` counts retries after node and site faults, from 1."""

    number: int
    trial: int
    attempt: int
    folder: Path
    resources: Resources
    ending: Ending
    outcome: Outcome | None = None
    measurements: tuple[Measurement, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def metrics(self) -> Mapping[str, float]:
        return {m.metric: m.value for m in self.measurements}

    @property
    def node_hours(self) -> float:
        return self.resources.nodes * self.ending.cost_s / 3600.0
