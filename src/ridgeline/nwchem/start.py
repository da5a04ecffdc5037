"""What a run of NWChem is given: its input, made from options and settings, and how its ranks are started.

A knob that is absent leaves NWChem's own default. `rank.sh` sets the environment on each node (Open MPI does not carry
it to other nodes), puts the asked BLAS in front, and has the first rank write down what the loader really takes and
which variables really arrived.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from ridgeline.nwchem.failures import NO_BLAS, NO_PROGRAM, NO_SCRATCH
from ridgeline.nwchem.form import NwchemOptions
from ridgeline.records.launch import Binding, launch, rank_text
from ridgeline.records.run import Resources
from ridgeline.records.site import Site
from ridgeline.records.space import Settings
from ridgeline.records.study import ProfileStage
from ridgeline.records.template import render

SCRATCH = "scratch"  # in the run folder: a folder, or a link to the node's own disk
_GUESS_FILE = "guess.movecs"
_WORDS_PER_MB = 2**20 // 8


def render_input(options: NwchemOptions, settings: Settings, optional: Collection[str] = ()) -> str:
    if options.template:
        return render(options.template, settings, optional)
    blocks = [
        f"start nwchem\nscratch_dir ./{SCRATCH}\npermanent_dir .",
        _memory(settings),
        f"print {settings['print_level']}" if settings.get("print_level") else "",
        f"charge {options.charge}" if options.charge else "",
        _block("geometry units angstrom", *options.atoms),
        _basis(options),
        *_tasks(options, settings),
    ]
    return "\n".join(block for block in blocks if block) + "\n"


def _block(head: str, *lines: str) -> str:
    return "\n".join([head, *(f"  {line}" for line in lines if line), "end"])


def _memory(settings: Settings) -> str:
    sizes = [
        f"{part} {settings[f'memory_{part}_mb']} mb"
        for part in ("stack", "heap", "global")
        if settings.get(f"memory_{part}_mb") is not None
    ]
    return f"memory {' '.join(sizes)}" if sizes else ""


def _basis(options: NwchemOptions) -> str:
    head = "basis spherical" if options.spherical else "basis"
    if not options.basis_text:
        return _block(head, f"* library {options.basis}")
    whole_block = options.basis_text.lstrip().lower().startswith("basis")
    return options.basis_text if whole_block else _block(head, *options.basis_text.splitlines())


def _tasks(options: NwchemOptions, settings: Settings) -> list[str]:
    guess = str(settings.get("guess") or "atomic")
    integrals = _integrals(settings)
    if options.theory != "dft":
        frozen = [_block(options.theory.partition("(")[0], "freeze atomic")]
        correlated = frozen if options.freeze_core and options.theory != "scf" else []
        return [_scf(options, guess, integrals, ""), *correlated, f"task {options.theory} {options.task}"]
    before = []
    if settings.get("scf_guess"):
        before = [_scf(options, guess, integrals, f" output {_GUESS_FILE}"), "task scf energy"]
        guess = _GUESS_FILE
    dft = _block(
        "dft",
        f"xc {options.xc}",
        f"mult {options.multiplicity}" if options.multiplicity > 1 else "",
        f"grid {settings['grid']}" if settings.get("grid") else "",
        integrals,
        _convergence(settings),
        f"vectors input {guess}",
    )
    return [*before, dft, f"task dft {options.task}"]


def _scf(options: NwchemOptions, guess: str, integrals: str, output: str) -> str:
    unpaired = f"nopen {options.multiplicity - 1}" if options.multiplicity > 1 else ""
    return _block("scf", unpaired, integrals, f"vectors input {guess}{output}")


def _integrals(settings: Settings) -> str:
    kind = settings.get("integrals")
    if kind != "semidirect":
        return str(kind or "")
    sizes = [
        f"{name} {int(size) * _WORDS_PER_MB}"  # NWChem counts 64-bit words
        for name in ("memsize", "filesize")
        if (size := settings.get(f"{name}_mb")) is not None
    ]
    return " ".join([kind, *sizes])


def _convergence(settings: Settings) -> str:
    limits = [
        f"{name} {settings[f'convergence_{name}']:.1e}"
        for name in ("energy", "density")
        if settings.get(f"convergence_{name}") is not None
    ]
    return f"convergence {' '.join(limits)}" if limits else ""


_PERF_HZ = 199  # no divisor of the kernel's own clock, so that the two do not fall into step


@dataclass(frozen=True, slots=True)
class NwchemProfiler:
    """Shell text: `wrapper` starts the first rank's program, `every_rank` precedes all, `afterwards` ends the job."""

    wrapper: str = ""
    every_rank: str = ""
    afterwards: str = ""

    def first_rank(self, program: str) -> str:
        return f"  exec {self.wrapper} {program}\n" if self.wrapper else ""


def profiler(stage: ProfileStage) -> NwchemProfiler:
    match stage.tool:
        case "perf":
            report = "perf report --stdio -i perf.data > perf.txt 2> perf.err; rm -f perf.data\n"
            return NwchemProfiler(f"perf record -q -F {_PERF_HZ} -o perf.data", afterwards=report)
        case "vtune":
            report = "vtune -report hotspots -format csv -csv-delimiter comma -r vtune > vtune.csv 2> vtune.err\n"
            return NwchemProfiler("vtune -quiet -collect hotspots -r vtune --", afterwards=report)
        case "mpip":
            return NwchemProfiler(every_rank=_preloaded(stage.library or "libmpiP.so", MPIP="-f ."))
        case _:
            return NwchemProfiler(every_rank=_preloaded(stage.library or "libipm.so", IPM_REPORT="full"))


def _preloaded(library: str, **env: str) -> str:
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items())
    return f'{exports}export LD_PRELOAD={shlex.quote(library)}"${{LD_PRELOAD:+:$LD_PRELOAD}}"\n'


INPUT = "nwchem.nw"
RANK_SCRIPT = "rank.sh"
LIBRARIES = "libraries"  # what the loader of the first rank takes, as `ldd` prints it
ARRIVED = "environment"  # the variables of the first rank


@dataclass(frozen=True, slots=True)
class Start:
    """One way to start NWChem: `program` by `launcher`, with `blas` folders (may hold *) and the environment."""

    program: str
    launcher: str
    resources: Resources
    binding: Binding
    env: Mapping[str, str]
    blas: str = ""
    profiler: NwchemProfiler = NwchemProfiler()


def rank_script(start: Start) -> str:
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in start.env.items())
    return f"""\
#!/bin/sh
# one rank of NWChem: the same environment on every node, then the program
rank={rank_text()}
{exports}{_blas_lines(start.blas)}program=$(command -v {_quoted(start.program)}) || {{
  echo "{NO_PROGRAM}: "{_quoted(start.program)}" is not on the PATH of $(uname -n)" >&2
  exit 127
}}
mkdir -p "$(readlink {SCRATCH} || echo {SCRATCH})" || {{ echo "{NO_SCRATCH}: {SCRATCH} on $(uname -n)" >&2; exit 74; }}
if [ "$rank" = 0 ]; then
  LD_TRACE_LOADED_OBJECTS=1 "$program" > {LIBRARIES} 2>&1
  env > {ARRIVED}
{start.profiler.first_rank(f'"$program" {INPUT}')}fi
{start.profiler.every_rank}exec "$program" {INPUT}
"""


def command(site: Site, start: Start) -> str:
    """Scratch, the ranks, and no scratch left behind; the exit code is NWChem's."""
    return _with_scratch(site, _rank_line(site, start, f"sh {RANK_SCRIPT}"), start.profiler.afterwards)


def needs_rank_script(site: Site, start: Start) -> bool:
    """Whether the environment of the shell reaches the ranks only by rank.sh."""
    # Open MPI's mpirun puts folders of its own before LD_LIBRARY_PATH: a BLAS there would be taken instead
    return start.resources.nodes > 1 or bool(site.container or start.blas)


def command_by_hand(site: Site, start: Start) -> str:
    """The same ranks for somebody who has set the environment; rank.sh only where it is needed."""
    # a batch system's folder on the node's disk is there only in its own jobs
    here = replace(site, batch="local")
    if needs_rank_script(site, start):
        return _with_scratch(here, _rank_line(site, start, f"sh {RANK_SCRIPT}"))
    return _with_scratch(here, _rank_line(site, start, f"{_quoted(start.program)} {INPUT}"))


def _with_scratch(site: Site, line: str, afterwards: str = "") -> str:
    own = '"$own" ' if site.scratch and site.batch == "local" else ""
    return f"{_scratch_lines(site)}{line}\ncode=$?\n{afterwards}rm -rf {own}{SCRATCH}\nexit $code"


def _rank_line(site: Site, start: Start, program: str) -> str:
    """The command that starts `program` on every rank."""
    ranks = start.resources.nodes * start.resources.ranks_per_node
    if start.launcher == "openmpi" and site.batch == "local" and ranks > len(os.sched_getaffinity(0)):
        site = replace(site, launcher_options=f"--oversubscribe {site.launcher_options}".strip())
    return launch(site, start.resources, program, start.binding, launcher=start.launcher)


def _quoted(program: str) -> str:
    # a build's path may hold a blank; a variable of the site must still be the shell's to fill
    return f'"{program}"' if "$" in program else shlex.quote(program)


def _blas_lines(folders: str) -> str:
    if not folders:
        return ""
    lines = ["blas="]
    for pattern in folders.split(":"):
        lines += [
            f"for folder in {pattern}; do",
            f'  [ -d "$folder" ] || {{ echo "{NO_BLAS}: $folder on $(uname -n)" >&2; exit 72; }}',
            '  blas="$blas$folder:"',
            "done",
        ]
    lines.append('export LD_LIBRARY_PATH="$blas${LD_LIBRARY_PATH:-}"')
    return "\n".join(lines) + "\n"


def _scratch_lines(site: Site) -> str:
    if not site.scratch:
        return f"mkdir -p {SCRATCH}\n"
    if site.batch != "local":
        # the batch executor makes a folder on the node's disk for every job and removes it at the end
        return f'ln -sfn "$RIDGELINE_SCRATCH" {SCRATCH}\n'
    failed = f'{{ echo "{NO_SCRATCH}: {site.scratch} is full or not writable" >&2; exit 74; }}'
    return f'own=$(mktemp -d "{site.scratch}/nwchem.XXXXXX") || {failed}\nln -sfn "$own" {SCRATCH}\n'
