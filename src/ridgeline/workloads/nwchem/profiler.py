"""How ranks run under a profiler; it leaves `perf.txt`, `vtune.csv`, or mpiP's and IPM's own files for the analyzers.

perf and VTune sample the first rank, which costs little and shows where the time goes; mpiP and IPM are preloaded into
all ranks and count their MPI calls.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from ridgeline.records.study import ProfileStage

_PERF_HZ = 199  # no divisor of the kernel's own clock, so that the two do not fall into step


@dataclass(frozen=True, slots=True)
class Profiler:
    """Shell text: `wrapper` starts the first rank's program, `every_rank` precedes all, `afterwards` ends the job."""

    wrapper: str = ""
    every_rank: str = ""
    afterwards: str = ""

    def first_rank(self, program: str) -> str:
        return f"  exec {self.wrapper} {program}\n" if self.wrapper else ""


def profiler(stage: ProfileStage) -> Profiler:
    match stage.tool:
        case "perf":
            report = "perf report --stdio -i perf.data > perf.txt 2> perf.err; rm -f perf.data\n"
            return Profiler(f"perf record -q -F {_PERF_HZ} -o perf.data", afterwards=report)
        case "vtune":
            report = "vtune -report hotspots -format csv -csv-delimiter comma -r vtune > vtune.csv 2> vtune.err\n"
            return Profiler("vtune -quiet -collect hotspots -r vtune --", afterwards=report)
        case "mpip":
            return Profiler(every_rank=_preloaded(stage.library or "libmpiP.so", MPIP="-f ."))
        case _:
            return Profiler(every_rank=_preloaded(stage.library or "libipm.so", IPM_REPORT="full"))


def _preloaded(library: str, **env: str) -> str:
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items())
    return f'{exports}export LD_PRELOAD={shlex.quote(library)}"${{LD_PRELOAD:+:$LD_PRELOAD}}"\n'


NO_PROFILER = Profiler()
