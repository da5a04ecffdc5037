"""The text that starts the ranks of a parallel program: mpirun of Open MPI or MPICH, srun, or nothing; in a container.

Pure text: a workload puts it into its command, so that run.sh shows exactly how the ranks were started and bound.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from ridgeline.records.run import Resources
from ridgeline.records.site import Site

LAUNCHERS = ("none", "openmpi", "mpich", "srun")

# Debian installs both MPIs side by side under these names; elsewhere a module puts one `mpirun` on the PATH
_STARTERS = {
    "openmpi": "$(command -v mpirun.openmpi || echo mpirun)",
    "mpich": "$(command -v mpirun.mpich || command -v mpiexec.hydra || echo mpirun)",
}


@dataclass(frozen=True, slots=True)
class Binding:
    """Where ranks go. `map_by` and `bind_to` in Open MPI's words (core, socket, numa, node, none); empty: the launcher
    decides. `cores_per_rank` gives a rank with threads room; `report` makes the launcher print what it did."""

    map_by: str = ""
    bind_to: str = ""
    cores_per_rank: int = 1
    report: bool = False


def launch(
    site: Site,
    resources: Resources,
    program: str,
    binding: Binding = Binding(),  # noqa: B008  frozen
    *,
    launcher: str = "",
    as_root: bool | None = None,
) -> str:
    """The command line that runs `program` on all ranks. `launcher` overrides the site's (an MPI build as a knob).

    `as_root` says whether jobs run as root, where Open MPI wants to be asked twice; None: like this process.
    """
    chosen = launcher or site.launcher
    inside = contained(site, resources, program)
    words = [*_starter(site, chosen), *_options(chosen, resources, binding), site.launcher_options, inside]
    if chosen == "openmpi" and (os.geteuid() == 0 if as_root is None else as_root):
        words.insert(1, "--allow-run-as-root")
    return " ".join(word for word in words if word)


def contained(site: Site, resources: Resources, program: str) -> str:
    """The program inside the site's container, if it has one."""
    if not site.container:
        return program
    options = [*(["--nv"] if resources.gpus else []), site.container_options]
    words = ["$(command -v apptainer || echo singularity)", "exec", *options, site.container, program]
    return " ".join(word for word in words if word)


def _starter(site: Site, launcher: str) -> list[str]:
    if launcher == "none":
        return []
    if launcher == "srun":
        return ["srun"]
    if launcher not in _STARTERS:
        raise ValueError(f"{launcher!r} is no launcher; known: {', '.join(LAUNCHERS)}")
    return [str(site.options.get("mpirun") or _STARTERS[launcher])]


def _options(launcher: str, resources: Resources, binding: Binding) -> list[str]:
    ranks = resources.nodes * resources.ranks_per_node
    match launcher:
        case "openmpi":
            return [f"-np {ranks}", *_openmpi_places(resources, binding)]
        case "mpich":
            places = [f"-map-by {binding.map_by}"] if binding.map_by else []
            places += [f"-bind-to {_threads(binding)}"] if binding.bind_to else []
            return [f"-np {ranks} -ppn {resources.ranks_per_node}", *places]
        case "srun":
            places = [f"--cpus-per-task={binding.cores_per_rank}"] if binding.cores_per_rank > 1 else []
            kinds = {"core": "cores", "socket": "sockets", "numa": "ldoms", "none": "none", "hwthread": "threads"}
            verbose = "verbose," if binding.report else ""
            if binding.bind_to or binding.report:
                places.append(f"--cpu-bind={verbose}{kinds.get(binding.bind_to, binding.bind_to)}".rstrip(","))
            if binding.map_by:
                places.append(f"--distribution={'cyclic' if binding.map_by == 'node' else 'block'}")
            return [f"--nodes={resources.nodes} --ntasks={ranks}", *places]
    return []


def _openmpi_places(resources: Resources, binding: Binding) -> list[str]:
    places: list[str] = []
    room = f":PE={binding.cores_per_rank}" if binding.cores_per_rank > 1 else ""
    if binding.map_by:
        places.append(f"--map-by {binding.map_by}{room}")
    elif resources.nodes > 1 or room:
        # by default Open MPI fills the first node before it uses the second
        places.append(f"--map-by ppr:{resources.ranks_per_node}:node{room}")
    if binding.bind_to:
        places.append(f"--bind-to {binding.bind_to}")
    if binding.report:
        places.append("--report-bindings")
    return places


def _threads(binding: Binding) -> str:
    return f"{binding.bind_to}:{binding.cores_per_rank}" if binding.cores_per_rank > 1 else binding.bind_to
