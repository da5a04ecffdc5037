"""NWChem: an input rendered from knobs, started on its ranks, read back, and held to its energy."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ridgeline.diagnose.readers.batch_text import RankBinding, read_bindings
from ridgeline.errors import Problem, Where
from ridgeline.files import read_text, text_of
from ridgeline.nwchem.failures import SIGNATURES
from ridgeline.nwchem.form import PROGRESS_RANK, NwchemForm, environment, knob_problems, read_options
from ridgeline.nwchem.output import ENERGY, NwchemOut, read_nwchem_out
from ridgeline.nwchem.start import (
    ARRIVED,
    INPUT,
    LIBRARIES,
    RANK_SCRIPT,
    Start,
    command,
    command_by_hand,
    needs_rank_script,
    profiler,
    rank_script,
    render_input,
)
from ridgeline.records.expression import ExpressionError
from ridgeline.records.launch import Binding
from ridgeline.records.measurement import Reading, metrics_of, reported
from ridgeline.records.run import Job, Resources, Run
from ridgeline.records.space import Settings
from ridgeline.records.study import Study
from ridgeline.records.template import render, render_env
from ridgeline.records.trial import Stage, Trial
from ridgeline.workloads.base import Workload, field_problems, metric_problems, names_read
from ridgeline.workloads.run_folder import (
    OWN_FOLDER,
    build_lines,
    build_seen_from,
    filling,
    job_in,
    pasted_file,
    pasted_run,
)

# What an NWChem run measured, whether it may count, and whether it was run as asked.

_TOLERANCE_HARTREE = 1e-6
_MPI_LIBRARY = {"openmpi": "libmpi.so", "mpich": "libmpich.so"}


@dataclass(frozen=True, slots=True)
class _Output:
    """The files of a run that say something."""

    facts: NwchemOut
    bindings: tuple[RankBinding, ...]
    libraries: dict[str, str]  # name -> path the loader took
    arrived: dict[str, str]

    @classmethod
    def of(cls, folder: Path) -> _Output:
        texts = [text_of(folder / name).splitlines() for name in ("stdout", "stderr")]
        return cls(
            read_nwchem_out(itertools.chain(*texts)),
            tuple(binding for text in texts for binding in read_bindings(text)),
            dict(re.findall(r"^\s*(\S+) => (\S+)", text_of(folder / LIBRARIES), re.MULTILINE)),
            dict(line.split("=", 1) for line in text_of(folder / ARRIVED).splitlines() if "=" in line),
        )


def _values(facts: NwchemOut, theory: str) -> Iterator[tuple[str, float]]:
    iterated = "DFT" if theory == "dft" else "SCF"  # mp2 and ccsd start from Hartree-Fock
    table: dict[str, float | None] = {
        ENERGY: facts.energy(theory.upper()),
        "scf_energy_hartree": facts.energy("SCF") if theory != "scf" else None,
        "iterations": float(sum(row.theory == iterated for row in facts.iterations)) or None,
        "iterative_s": facts.iterative_s[-1] if facts.iterative_s else None,
        "nwchem_cpu_s": facts.total.cpu_s if facts.total else None,
        "nwchem_wall_s": facts.total.wall_s if facts.total else None,
        "heap_peak_bytes": facts.heap_peak_bytes,
        "stack_peak_bytes": facts.stack_peak_bytes,
        "memory_asked_bytes": facts.asked_bytes("total"),
        "integrals_cached_share": facts.cached_share,
        "nproc": facts.nproc,
    }
    if facts.integrated_density is not None and facts.electrons:
        table["density_error"] = abs(facts.integrated_density - facts.electrons)
    if facts.ga.calls:
        table["ga_peak_bytes"] = facts.ga_peak_bytes
        table["ga_get_calls"] = facts.ga.calls.get("get")
        table["ga_acc_calls"] = facts.ga.calls.get("acc")
        table["ga_total_bytes"] = sum(facts.ga.total_bytes.values())
        table["ga_remote_bytes"] = sum(facts.ga.remote_bytes.values())
    yield from ((name, float(value)) for name, value in table.items() if value is not None)


def _problem(facts: NwchemOut, theory: str, reference_hartree: float | None, task: str = "energy") -> str:
    """Why the result may not count. NWChem leaves with 0 after some errors and prints unconverged energies."""
    if not facts.finished:
        return "stdout has no `Total times  cpu:` line: NWChem did not come to its end"
    energy = facts.energy(theory.upper())
    if energy is None:
        return f"stdout has no `Total {theory.upper()} energy` line"
    if not facts.converged:
        return "the calculation did not converge"
    if task == "optimize" and not facts.optimized:
        return "stdout has no `Optimization converged` line: the geometry was not found"
    if reference_hartree is not None and not abs(energy - reference_hartree) <= _TOLERANCE_HARTREE:
        gap = abs(energy - reference_hartree)
        return (
            f"{ENERGY} = {energy!r} is {gap:.3g} from the reference {reference_hartree!r}; limit {_TOLERANCE_HARTREE:g}"
        )
    return ""


def _differences(output: _Output, start: Start, settings: Settings, compute_ranks: int, mpi: str | None) -> str:
    """What the run shows that differs from what the setting asked for; empty when nothing does."""
    facts = output.facts
    found: list[str] = []
    if facts.nproc is not None and facts.nproc != compute_ranks:
        found.append(f"{compute_ranks} ranks were asked for, NWChem counts {facts.nproc}")
    found += _memory(facts, settings)
    found += _libraries(output.libraries, start.blas, mpi)
    found += [
        f"{name}={value} did not reach the ranks (there: {output.arrived.get(name, 'unset')})"
        for name, value in start.env.items()
        if output.arrived and output.arrived.get(name) != value
    ]
    if start.binding.report:
        found += _places(output.bindings, start)
    if settings.get("grid") and facts.grid and facts.grid.lower() != settings["grid"]:
        found.append(f"grid {settings['grid']} was asked for, NWChem used {facts.grid.lower()}")
    return "; ".join(found)


def _memory(facts: NwchemOut, settings: Settings) -> Iterator[str]:
    for part in ("stack", "heap", "global"):
        asked_mb, used = settings.get(f"memory_{part}_mb"), facts.asked_bytes(part)
        # NWChem keeps a few words of each block for itself
        if isinstance(asked_mb, int) and used is not None and abs(used - asked_mb * _MB) > 0.01 * _MB:
            yield f"{part} of {asked_mb} MB was asked for, NWChem took {used / _MB:.1f} MB"


def _libraries(loaded: dict[str, str], blas: str, mpi: str | None) -> Iterator[str]:
    if mpi and loaded and not any(name.startswith(_MPI_LIBRARY[mpi]) for name in loaded):
        yield f"the {mpi} build was asked for, but {_MPI_LIBRARY[mpi]} is not loaded"
    if not blas:
        return
    wanted = [re.compile(re.escape(pattern).replace(r"\*", "[^/]+") + "/") for pattern in blas.split(":")]
    taken = {name: path for name, path in loaded.items() if re.match(r"lib(blas|lapack|openblas|mkl|blis)", name)}
    if not taken:
        yield "no BLAS library is among those the program loads, so the asked-for one cannot be shown"
    for name, path in taken.items():
        if not any(pattern.match(path) for pattern in wanted):
            yield f"{name} was loaded from {path}, not from {blas}"


def _places(bindings: Sequence[RankBinding], start: Start) -> Iterator[str]:
    ranks = start.resources.nodes * start.resources.ranks_per_node
    last = {binding.rank: binding for binding in bindings}
    if len(last) < ranks:
        yield f"the launcher reported where {len(last)} of {ranks} ranks are bound"
        return
    place, room = start.binding.bind_to, start.binding.cores_per_rank
    bound = [binding for binding in last.values() if binding.cpus is not None]
    if place == "none" and any(len(binding.cpus or ()) == 1 for binding in bound):
        yield "no binding was asked for, the launcher bound ranks to single cores"
    if place in ("core", "hwthread"):
        short = sorted(set(last) - {binding.rank for binding in bound if len(binding.cpus or ()) >= room})
        if short and ranks > 1:
            yield f"binding to {place} was asked for, rank {short[0]} is not bound so"
        places = [(binding.host, cpu) for binding in bound for cpu in binding.cpus or ()]
        if len(set(places)) < len(places):
            yield f"binding to {place} was asked for, ranks share cores"
    if start.binding.map_by == "node" and start.resources.nodes > 1:
        hosts = [last[rank].host for rank in sorted(last)]
        if all(hosts) and any(one == other for one, other in itertools.pairwise(hosts)):
            yield "mapping by node was asked for, neighbouring ranks share a node"


_ASKED = "asked.json"  # the setting of a run, in its folder: what is read back is held against it
_MB = 2**20


class NwchemWorkload(Workload):
    """Knobs have fixed names (`nwchem_knobs`); `program` and `env` may name knobs, derived values and {build}."""

    form = NwchemForm
    pasted_whole = True
    profilers = ("perf", "mpip", "ipm", "vtune")
    signatures = SIGNATURES
    logs = ("stderr", "stdout")

    def __init__(self, study: Study) -> None:
        self._study = study
        self._options = read_options(study.workload.options, study.folder)

    # before anything runs

    def problems(self) -> list[Problem]:
        found = list(self._options.problems)
        space = self._study.space
        used = names_read(self._study, (text for _, text in self.templates()))
        found += knob_problems(space.knobs, used, self._options.blas_paths)
        found += field_problems(self._study, self.templates())
        if "nodes" in space.by_name and self._study.job.nodes is None:
            found.append(Problem(("space", "nodes"), "a knob decides the nodes: also write `job: {nodes: nodes}`"))
        return [*found, *metric_problems(self._study, metrics_of("run", "command", "nwchem")), *self._energy_problems()]

    def templates(self) -> Iterator[tuple[Where, str]]:
        yield ("workload", "program"), self._options.program
        yield ("workload", "input"), self._options.template
        for name, text in self._options.env.items():
            yield ("workload", "env", name), text

    def _energy_problems(self) -> Iterator[Problem]:
        held = self._options.reference_energy is not None or any(ENERGY in g.names for g in self._study.guards)
        if not held:
            # a coarser grid, looser convergence or a broken MPI build is always faster
            remedy = f"add the guard `{ENERGY} within 1e-6 of baseline`, or `reference_energy` to the workload"
            yield Problem(("guards",) if self._study.guards else ("workload",), f"nothing holds the energy: {remedy}")

    def refusal(self, settings: Settings) -> str | None:
        try:
            resources = self._resources(settings)
            self._start(settings, ".")
        except (ExpressionError, ValueError) as error:
            return str(error)
        site = self._study.site
        cores = site.cores_per_node or (len(os.sched_getaffinity(0)) if site.batch == "local" else None)
        threads = _count(settings, "threads")
        if cores and resources.ranks_per_node * threads > cores:
            asked = f"{resources.ranks_per_node} ranks" + (f" of {threads} threads" if threads > 1 else "")
            return f"{asked} need more than the {cores} cores of a node"
        if self._network(settings) == PROGRESS_RANK and resources.ranks_per_node < 2:
            return f"{PROGRESS_RANK} keeps one rank of each node for progress: 1 rank leaves none to compute"
        return self._memory_refusal(settings, resources)

    def _memory_refusal(self, settings: Settings, resources: Resources) -> str | None:
        sizes = [settings.get(f"memory_{part}_mb") for part in ("stack", "heap", "global")]
        rank_mb = sum(size for size in sizes if isinstance(size, int))
        node_bytes = self._study.site.memory_bytes_per_node
        if node_bytes is None and self._study.site.batch == "local":
            node_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        asked = rank_mb * _MB * resources.ranks_per_node
        if node_bytes is not None and asked > node_bytes and not self._options.overcommit_memory:
            return (
                f"{resources.ranks_per_node} ranks x {rank_mb} MB of stack, heap, global need {asked / 2**30:.1f} GiB; "
                f"a node has {node_bytes / 2**30:.1f} (`overcommit_memory: true` lets limits exceed it)"
            )
        local_mb = sum(size for size in sizes[:2] if isinstance(size, int))
        kept_mb = settings.get("memsize_mb")
        if settings.get("integrals") == "semidirect" and isinstance(kept_mb, int) and 0 < local_mb < kept_mb:
            return f"memsize of {kept_mb} MB comes out of stack and heap, which have {local_mb} MB together"
        return None

    # a run

    def prepare(self, trial: Trial, folder: Path) -> Job:
        build = build_seen_from(folder, trial)
        start = self._start(trial.settings, build)
        if trial.stage is Stage.PROFILE and self._study.profile is not None:
            start = replace(start, profiler=profiler(self._study.profile))
        with filling(folder):
            (folder / INPUT).write_text(self._input(trial.settings))
            (folder / RANK_SCRIPT).write_text(rank_script(start))
            (folder / _ASKED).write_text(
                json.dumps({"settings": dict(trial.settings), "build": build}, indent=1) + "\n"
            )
        return job_in(folder, self._study, start.resources, command(self._study.site, start), start.env)

    def read(self, run: Run) -> Reading:
        output, options = _Output.of(run.folder), self._options
        of_run = {"wall_s": run.ending.duration_s, **run.ending.usage}
        found = [reported(name, of_run[name], "run") for name in metrics_of("run", "command") if name in of_run]
        found += [reported(name, value, "stdout") for name, value in _values(output.facts, options.theory)]
        trouble = _problem(output.facts, options.theory, options.reference_energy, options.task)
        asked = _asked(run.folder)
        if trouble or asked is None:
            return Reading(tuple(found), problem=trouble or f"{_ASKED} is gone, so what was asked is not known")
        settings, start = asked[0], self._start(*asked)
        mpi = str(settings.get("mpi") or options.mpi) if not options.program else None
        doubt = _differences(output, start, settings, self._compute_ranks(settings, run.resources), mpi)
        return Reading(tuple(found), unverified=doubt)

    def paste(self, settings: Settings) -> str:
        """For a shell in the study's folder."""
        study, start = self._study, self._start(settings, "..")
        before = build_lines(study.builds, settings) if study.builds else []
        before += [*OWN_FOLDER, pasted_file(INPUT, self._input(settings))]
        if needs_rank_script(study.site, start):
            before.append(pasted_file(RANK_SCRIPT, rank_script(start)))
        return pasted_run(study.site, start.env, command_by_hand(study.site, start), before)

    # what a setting means

    def _input(self, settings: Settings) -> str:
        return render_input(self._options, settings, self._study.space.optional)

    def _start(self, settings: Settings, build: str) -> Start:
        options, site, optional = self._options, self._study.site, self._study.space.optional
        mpi = str(settings.get("mpi") or options.mpi)
        fields = {**settings, "build": build}
        threads = _count(settings, "threads")
        map_by, bind_to = (str(settings.get(name) or "") for name in ("map_by", "bind_to"))
        binding = Binding(map_by, bind_to, threads, report=bool(map_by or bind_to))
        launcher = site.launcher if site.launcher == "srun" else mpi
        env = {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
        if binding.report and launcher == "mpich":
            env["HYDRA_TOPO_DEBUG"] = "1"
        env |= environment(settings)
        env |= render_env(options.env, fields, optional)
        return Start(
            program=render(options.program, fields, optional) if options.program else f"nwchem.{mpi}",
            launcher=launcher,
            resources=self._resources(settings),
            binding=binding,
            env=env,
            blas=options.blas_paths[str(settings["blas"])] if settings.get("blas") else "",
        )

    def _resources(self, settings: Settings) -> Resources:
        asked = self._study.job.resources(settings)
        if self._study.job.ranks_per_node is None:
            asked = replace(asked, ranks_per_node=_count(settings, "ranks_per_node"))
        return asked

    def _network(self, settings: Settings) -> str:
        return str(settings.get("armci_network") or self._options.armci_network)

    def _compute_ranks(self, settings: Settings, resources: Resources) -> int:
        ranks = resources.nodes * resources.ranks_per_node
        return ranks - resources.nodes if self._network(settings) == PROGRESS_RANK else ranks


def _count(settings: Settings, name: str) -> int:
    value = settings.get(name)
    return value if isinstance(value, int) else 1


def _asked(folder: Path) -> tuple[Settings, str] | None:
    """The settings of a run and where its build lies, as `prepare` wrote them."""
    try:
        asked = json.loads(read_text(folder / _ASKED))
        return dict(asked["settings"]), str(asked["build"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
