"""The text that starts the ranks of a parallel program: a launcher of the table, or nothing; in a container.

Pure text: a workload puts it into its command, so that run.sh shows exactly how the ranks were started and bound.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ridgeline.records.run import Resources
from ridgeline.records.site import Site

RANK_ERRORS = "rank-{}.err"  # where a rank's stderr goes with the site's option `rank_errors`, until the job ends
APPTAINER, PYXIS = "apptainer", "pyxis"
CONTAINER_RUNTIMES = (APPTAINER, PYXIS)
# launchers whose ranks are no children of theirs, so that nobody beside them can count what the ranks used
STARTED_BY_DAEMONS = re.compile(r"\b(srun|aprun|pbsdsh)\b")


class OnNode(str):
    """Text of ours whose `$name` is known on the node only. Cut up or joined it is a plain `str` again, and quoted."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Binding:
    """Where ranks go. `map_by` and `bind_to` are core, socket, numa, node or none; empty: the launcher decides.

    `cores_per_rank` gives a rank with threads room; `report` makes the launcher print what it did.
    """

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
    if chosen not in LAUNCHERS:
        raise ValueError(f"{chosen!r} is no launcher; known: {', '.join(LAUNCHERS)}")
    known = LAUNCHERS[chosen]
    starter = str(site.options.get("mpirun") or known.starter) if known.is_mpirun else known.starter
    options = [*known.options(resources, binding), site.launcher_options, known.end_of_options]
    if chosen == "srun" and site.options.get("rank_errors"):
        options.insert(1, f"--error={RANK_ERRORS.format('%t')}")
    inside = contained(site, resources, program)
    if site.container and site.container_runtime == PYXIS and chosen != "none":
        if chosen != "srun":
            raise ValueError(f"containers of pyxis are started by srun, not by {chosen}: set `launcher: srun`")
        inside = f"{_pyxis(site)} {program}"
    arguments = [starter, *options, inside]
    if chosen == "openmpi" and (os.geteuid() == 0 if as_root is None else as_root):
        arguments.insert(1, "--allow-run-as-root")
    return " ".join(argument for argument in arguments if argument)


def contained(site: Site, resources: Resources, program: str) -> str:
    """The program, once and on this node, inside the site's container if it has one."""
    if not site.container:
        return program
    if site.container_runtime == PYXIS:
        # a step of its own, also inside a step of several nodes; what it runs may start threads on every core
        here = '--overlap --nodes=1 --ntasks=1 --cpu-bind=none --nodelist="$SLURMD_NODENAME"'
        return f"srun {here} {_pyxis(site)} {program}"
    binds = [f"--bind {mount}" for mount in site.container_mounts]
    options = [*(["--nv"] if resources.gpus else []), *binds, site.container_options]
    arguments = ["$(command -v apptainer || echo singularity)", "exec", *options, site.container, program]
    return " ".join(argument for argument in arguments if argument)


def _pyxis(site: Site) -> str:
    """Options of srun. Apptainer mounts the folder it starts in, pyxis nothing: it gets the whole study folder,
    where links of a run folder lead, and the job's scratch."""
    own = ["${PWD%/*/*}:${PWD%/*/*}"]
    mounts = [mount if ":" in mount else f"{mount}:{mount}" for mount in site.container_mounts]
    scratch = ["$RIDGELINE_SCRATCH:$RIDGELINE_SCRATCH"] if site.scratch else []
    options = [
        f"--container-image={site.container}",
        f'--container-mounts="{",".join(own + mounts + scratch)}"',
        '--container-workdir="$PWD"',
        site.container_options,
    ]
    return " ".join(option for option in options if option)


def _nothing(resources: Resources, binding: Binding) -> list[str]:
    return []


def _openmpi(resources: Resources, binding: Binding) -> list[str]:
    places = [f"-np {resources.nodes * resources.ranks_per_node}"]
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


def _mpich(resources: Resources, binding: Binding) -> list[str]:
    places = [f"-np {resources.nodes * resources.ranks_per_node} -ppn {resources.ranks_per_node}"]
    if binding.map_by:
        places.append(f"-map-by {binding.map_by}")
    if binding.bind_to:
        room = f":{binding.cores_per_rank}" if binding.cores_per_rank > 1 else ""
        places.append(f"-bind-to {binding.bind_to}{room}")
    return places


def _srun(resources: Resources, binding: Binding) -> list[str]:
    places = [f"--nodes={resources.nodes} --ntasks={resources.nodes * resources.ranks_per_node}"]
    if binding.cores_per_rank > 1:
        places.append(f"--cpus-per-task={binding.cores_per_rank}")
    kinds = {"core": "cores", "socket": "sockets", "numa": "ldoms", "none": "none", "hwthread": "threads"}
    verbose = "verbose," if binding.report else ""
    if binding.bind_to or binding.report:
        places.append(f"--cpu-bind={verbose}{kinds.get(binding.bind_to, binding.bind_to)}".rstrip(","))
    if binding.map_by:
        places.append(f"--distribution={'cyclic' if binding.map_by == 'node' else 'block'}")
    return places


@dataclass(frozen=True, slots=True)
class _Launcher:
    """`rank_variables` hold a process's rank; `is_mpirun`: the site's option `mpirun` may name another starter."""

    starter: str
    options: Callable[[Resources, Binding], list[str]]
    rank_variables: tuple[str, ...] = ()
    is_mpirun: bool = False
    end_of_options: str = ""


# A program started by mpirun inside a job sees the job's own variables too, so those of mpirun come first.
# Debian installs both MPIs side by side under these names; elsewhere a module puts one `mpirun` on the PATH.
LAUNCHERS = {
    "none": _Launcher("", _nothing),
    "openmpi": _Launcher(
        "$(command -v mpirun.openmpi || echo mpirun)", _openmpi, ("OMPI_COMM_WORLD_RANK",), is_mpirun=True
    ),
    "mpich": _Launcher(
        "$(command -v mpirun.mpich || command -v mpiexec.hydra || echo mpirun)", _mpich, ("PMI_RANK",), is_mpirun=True
    ),
    "srun": _Launcher("srun", _srun, ("PMIX_RANK", "SLURM_PROCID")),
    # one process for each place the job asked for; it counts and binds nothing itself
    "pbsdsh": _Launcher("pbsdsh", _nothing, ("PBS_NODENUM",), end_of_options="--"),
}


def own_rank(environment: Mapping[str, str]) -> int:
    """The rank of a process with this environment, as `rank_text` gives it."""
    variables = [name for launcher in LAUNCHERS.values() for name in launcher.rank_variables]
    return int(next((environment[name] for name in variables if environment.get(name)), "0"))


def rank_text() -> str:
    """Shell text that gives a process its rank, whichever launcher started it; 0 where none did."""
    text = "0"
    for variable in reversed([name for launcher in LAUNCHERS.values() for name in launcher.rank_variables]):
        text = f"${{{variable}:-{text}}}"
    return text
