"""What a profile means: waiting, imbalance, collectives, I/O, a slow BLAS, too much communication."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from ridgeline.analyzers.base import Analyzer, Claimed, Quote, cited, rereadable
from ridgeline.readers.profiles.ipm import read_ipm
from ridgeline.readers.profiles.mpip import read_mpip
from ridgeline.readers.profiles.nsys import read_nsys
from ridgeline.readers.profiles.perf_report import read_perf_report
from ridgeline.readers.profiles.profile import Call, Profile
from ridgeline.readers.profiles.vtune import read_vtune
from ridgeline.records.finding import Finding

_GEMM = re.compile(r"^[sdcz]gemm_?$")
_REFERENCE = re.compile(r"^(?:libblas|librefblas)\.so")
# kernels that OpenBLAS falls back to on a processor it does not know: SSE3 and older, or plain C
_OLD_KERNEL = re.compile(r"^[sdcz]\w{2,30}_(PRESCOTT|CORE2|PENRYN|DUNNINGTON|NEHALEM|GENERIC|KATMAI|BANIAS)$")
_WIDE = re.compile(r"avx512|evex|avx2|_fma$")


def judged(profile: Profile) -> list[Claimed]:
    """Claims that follow from a profile, whichever tool wrote it."""
    rules = (_waiting, _imbalance, _collectives, _mostly_communication, _io, _reference_blas, _old_kernels)
    return [claim for rule in rules for claim in rule(profile)]


def _waiting(profile: Profile) -> list[Claimed]:
    share, waiting = profile.communication_share, profile.waiting_share
    waits = [c for c in profile.calls if c.waits]
    if share is None or waiting is None or share < 0.1 or waiting < 0.5 or not waits:
        return []
    longest = ", ".join(f"{c.name} {c.share_of_communication:.0%}" for c in waits[:3] if c.share_of_communication)
    cause = (
        f"The busiest rank computes {profile.busy_ratio:.2f} times the mean: spread its work, or use fewer ranks."
        if profile.busy_ratio and profile.busy_ratio >= 1.1
        else "Ranks reach the same point at different times: look for imbalance, serial parts and oversubscribed cores."
    )
    return [
        Claimed(
            f"{waiting:.0%} of MPI time is waiting for other ranks ({longest}), not moving data; "
            f"MPI takes {share:.0%} of the run",
            _quotes(profile, waits[:3]),
            f"{cause} A faster network will not help. Time in MPI_Iprobe is also what a progress rank (ARMCI MPI-PR) "
            "shows by design: leave those ranks out before judging.",
            "warning",
        )
    ]


def _imbalance(profile: Profile) -> list[Claimed]:
    times = profile.rank_times
    if profile.busy_ratio is None or profile.busy_ratio < 1.2:
        return []
    if not times:
        return [
            Claimed(
                f"the busiest rank computes {profile.busy_ratio:.2f} times as long as the mean",
                (Quote(profile.busy_line),),
                "Write a profile with one row per rank (mpiP, or IPM_REPORT=full with its XML) to see which ranks.",
            )
        ]
    busiest = max(times, key=lambda t: t.time_s - t.communication_s)
    idlest = min(times, key=lambda t: t.time_s - t.communication_s)
    return [
        Claimed(
            f"rank {busiest.rank} computes {profile.busy_ratio:.2f} times as long as the mean; all others wait for it",
            (Quote(busiest.line), Quote(idlest.line)),
            "If it is rank 0, look for serial work (input, output, diagonalisation) that grows with the ranks; "
            "otherwise compare its node with the others (`ridgeline preflight`) and its binding.",
            "warning",
        )
    ]


def _collectives(profile: Profile) -> list[Claimed]:
    share = profile.communication_share
    collectives = [c for c in profile.calls if c.collective]
    of_communication = sum(c.share_of_communication or 0.0 for c in collectives)
    if share is None or share * of_communication < 0.1 or profile.tool == "nsys":
        return []
    top = collectives[0]
    advice = (
        "Use fewer ranks (threads inside a rank), fewer and larger messages, and a transport made for small ones: "
        "UCX_TLS=rc_x,dc_x,ud,self,sm cut broadcast and send latency by about 70% in one published case."
    )
    if top.count and top.seconds / top.count > 0.001:
        advice = (
            f"A call lasts {1000 * top.seconds / top.count:.1f} ms on average, far above latency: either the messages "
            "are large or ranks arrive late. Compare the time of the ranks before changing the network."
        )
    return [
        Claimed(
            f"collectives take {share * of_communication:.0%} of the run, {top.name} most",
            _quotes(profile, collectives[:2]),
            advice,
        )
    ]


def _mostly_communication(profile: Profile) -> list[Claimed]:
    share = profile.communication_share
    if share is None or share < 0.3 or not profile.communication_line:
        return []
    quotes = (Quote(profile.communication_line),)
    if profile.tool == "nsys":
        return [
            Claimed(
                f"NCCL kernels take {share:.0%} of GPU time",
                quotes,
                "Try a smaller tensor-parallel size (pipeline or data parallel for the rest), a larger batch, and read "
                "algorithm and protocol from a log with NCCL_DEBUG=INFO before setting any.",
            )
        ]
    if (profile.waiting_share or 0.0) >= 0.5:
        return []
    return [
        Claimed(
            f"{share:.0%} of the run is spent in MPI",
            quotes,
            "More ranks will make this worse. `ridgeline scale` shows where adding ranks stops paying.",
        )
    ]


def _io(profile: Profile) -> list[Claimed]:
    calls = [c for c in profile.calls if c.io]
    share = profile.io_share or sum(c.share_of_time or 0.0 for c in calls)
    if share < 0.1:
        return []
    line = calls[0].line if calls else profile.io_line
    return [
        Claimed(
            f"input and output take {share:.0%} of the run",
            (Quote(line),),
            "Put scratch files on a node's own disk or in memory, or compute instead of reading back "
            "(NWChem: direct, or semidirect with memsize large and filesize 0).",
        )
    ]


def _reference_blas(profile: Profile) -> list[Claimed]:
    slow = [f for f in profile.functions if _GEMM.match(f.name) and _REFERENCE.match(f.module.rpartition("/")[2])]
    share = sum(f.share for f in slow)
    if share < 0.05:
        return []
    return [
        Claimed(
            f"{share:.0%} of the time is in {slow[0].name.rstrip('_').upper()} of the reference BLAS, {slow[0].module}",
            (Quote(slow[0].line),),
            "Link or preload an optimised BLAS. On Debian: install libopenblas0-serial and put its folder first in "
            "LD_LIBRARY_PATH; on clusters load the OpenBLAS or MKL module. One process per core wants the serial one.",
            "warning",
        )
    ]


def _old_kernels(profile: Profile) -> list[Claimed]:
    old = [f for f in profile.functions if _OLD_KERNEL.match(f.name)]
    wide = sorted((f for f in profile.functions if _WIDE.search(f.name)), key=lambda f: "avx512" not in f.name)
    share = sum(f.share for f in old)
    if share < 0.05 or not wide:
        return []
    found = _OLD_KERNEL.match(old[0].name)
    name = found.group(1) if found else ""
    coretype = "SKYLAKEX" if any("avx512" in f.name or "evex" in f.name for f in wide) else "HASWELL"
    return [
        Claimed(
            f"{share:.0%} of the time is in OpenBLAS kernels for {name}, a processor without AVX, "
            f"while this one has it ({wide[0].name})",
            (Quote(old[0].line), Quote(wide[0].line)),
            f"OpenBLAS did not recognise the processor, as happens in virtual machines. "
            f"Set OPENBLAS_CORETYPE={coretype}, or use a newer OpenBLAS.",
            "warning",
        )
    ]


def _quotes(profile: Profile, calls: Iterable[Call]) -> tuple[Quote, ...]:
    lines = [profile.communication_line, *(c.line for c in calls)]
    return tuple(Quote(line) for line in dict.fromkeys(lines) if line)


def _of(read: Callable[[Iterable[str]], Profile]) -> Callable[[str, Iterable[str]], list[Finding]]:
    def analyze(source: str, lines: Iterable[str]) -> list[Finding]:
        text = rereadable(lines)
        return cited(source, text, judged(read(text)))

    return analyze


MPIP = Analyzer("mpip", "mpiP report", re.compile(r"^@ mpiP\b|^@--- MPI Time"), _of(read_mpip))
IPM = Analyzer("ipm", "IPM banner or XML", re.compile(r"^##IPMv|<ipm_job_profile>"), _of(read_ipm))
VTUNE = Analyzer(
    "vtune",
    "VTune hotspots CSV",
    re.compile(r"^\"?(?:Process|Thread|Function)(?: Stack)?\"?[\t,;|].{0,200}CPU Time"),
    _of(read_vtune),
)
PERF = Analyzer(
    "perf",
    "perf report --stdio",
    re.compile(r"^# (?:Overhead|Children\s{1,9}Self)\s.{0,60}(?:Command|Shared Object)"),
    _of(read_perf_report),
)
NSYS = Analyzer("nsys", "nsys stats CSV", re.compile(r"^\"?Time \(%\)\"?,\"?Total Time \(ns\)"), _of(read_nsys))
