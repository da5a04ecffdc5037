"""Which machine a run was on. A host name is not enough: every virtual machine of a site may be called `vm`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SHORT = 8  # characters of an id that tell two apart


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
    parts = [f"boot {machine.boot[:SHORT]}"] if machine.boot else []
    if machine.gpus and len({other.gpus for other in alike}) > 1:
        parts.append(f"GPU {machine.gpus[0].removeprefix('GPU-')[:SHORT]}")
    return f"{machine.host} ({', '.join(parts)})" if parts else machine.host
