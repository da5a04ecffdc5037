"""What a profile means: waiting, imbalance, collectives, I/O, a slow BLAS, too much communication."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from ridgeline.diagnose.base import Analyzer, LogSummary, Quote, RawFinding, SummaryFigure, cited, rereadable
from ridgeline.diagnose.profilers.profile import Call, Profile
from ridgeline.diagnose.profilers.tools import read_ipm, read_mpip, read_perf_report, read_vtune
from ridgeline.records.finding import Finding
from ridgeline.records.measurement import unit_of

_GEMM = re.compile(r"^[sdcz]gemm_?$")
_REFERENCE = re.compile(r"^(?:libblas|librefblas)\.so")
# kernels that OpenBLAS falls back to on a processor it does not know: SSE3 and older, or plain C
_OLD_KERNEL = re.compile(r"^[sdcz]\w{2,30}_(PRESCOTT|CORE2|PENRYN|DUNNINGTON|NEHALEM|GENERIC|KATMAI|BANIAS)$")
_KERNEL = re.compile(r"^\[(?:kernel|k\]|guest\.kernel|unknown\.kernel)|^vmlinux")
_WIDE = re.compile(r"avx512|evex|avx2|_fma$")


def judged(profile: Profile) -> list[RawFinding]:
    """Claims that follow from a profile, whichever tool wrote it."""
    balance = (_waiting, _imbalance, _managers, _collectives, _mostly_communication)
    rules = (*balance, _io, _reference_blas, _old_kernels, _libraries)
    return [claim for rule in rules for claim in rule(profile)]


def _waiting(profile: Profile) -> Iterator[RawFinding]:
    share, waiting = profile.working_share, profile.working_waiting_share
    waits = [c for c in profile.calls if c.waits]
    if share is None or waiting is None or share < 0.1 or waiting < 0.5 or not waits:
        return
    longest = ", ".join(f"{c.name} {c.share_of_communication:.0%}" for c in waits[:3] if c.share_of_communication)
    cause = (
        f"The busiest rank computes {profile.busy_ratio:.2f} times the mean: spread its work, or use fewer ranks."
        if profile.busy_ratio and profile.busy_ratio >= 1.1
        else "Ranks reach the same point at different times: look for imbalance, serial parts and oversubscribed cores."
    )
    yield RawFinding(
        f"{waiting:.0%} of MPI time is waiting for other ranks ({longest}), not moving data; "
        f"MPI takes {share:.0%} of the run",
        _quotes(profile, waits[:3]),
        f"{cause} A faster network will not help. Time in MPI_Iprobe is also what a progress rank (ARMCI MPI-PR) "
        "shows by design: leave those ranks out before judging.",
        "warning",
        share=share * waiting,
        key="profile.waiting",
    )


def _imbalance(profile: Profile) -> Iterator[RawFinding]:
    times = profile.rank_times
    if profile.busy_ratio is None or profile.busy_ratio < 1.2:
        return
    if not times:
        yield RawFinding(
            f"the busiest rank computes {profile.busy_ratio:.2f} times as long as the mean",
            (Quote(profile.busy_line),),
            "Write a profile with one row per rank (mpiP) to see which ranks.",
        )
        return
    managing = {t.rank for t in profile.managers}
    workers = [t for t in times if t.rank not in managing]
    busiest = max(workers, key=lambda t: t.busy_s)
    idlest = min(workers, key=lambda t: t.busy_s)
    yield RawFinding(
        f"rank {busiest.rank} computes {profile.busy_ratio:.2f} times as long as the mean; all others wait for it",
        (Quote(busiest.line), Quote(idlest.line)),
        "If it is rank 0, look for serial work (input, output, diagonalisation) that grows with the ranks; "
        "otherwise compare its node with the others (`ridgeline site preflight`) and its binding.",
        "warning",
        # what the others wait for: the busiest rank's computing beyond the mean
        share=busiest.busy_s * (1 - 1 / profile.busy_ratio) / busiest.time_s if busiest.time_s > 0 else None,
        key="profile.imbalance",
    )


def _managers(profile: Profile) -> Iterator[RawFinding]:
    if not profile.managers:
        return
    ranks = ", ".join(str(t.rank) for t in profile.managers[:8])
    several = len(profile.managers) > 1
    yield RawFinding(
        f"rank{'s' if several else ''} {ranks} {'do' if several else 'does'} next to nothing but communicate: a "
        "manager or progress rank, left out of the balance of work",
        tuple(Quote(t.line) for t in profile.managers[:2]),
        "This is by design where a program hands out work or uses ARMCI MPI-PR; otherwise that rank got no work.",
        "note",
        key="profile.managers",
    )


def _collectives(profile: Profile) -> Iterator[RawFinding]:
    share = profile.working_share
    collectives = [c for c in profile.calls if c.collective]
    of_communication = sum(c.share_of_communication or 0.0 for c in collectives)
    if share is None or share * of_communication < 0.1 or profile.tool == "nsys":
        return
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
    yield RawFinding(
        f"collectives take {share * of_communication:.0%} of the run, {top.name} most",
        _quotes(profile, collectives[:2]),
        advice,
        share=share * of_communication,
        key="profile.collectives",
    )


def _mostly_communication(profile: Profile) -> Iterator[RawFinding]:
    share = profile.working_share
    if share is None or share < 0.3 or not profile.communication_line or (profile.working_waiting_share or 0.0) >= 0.5:
        return
    if profile.tool == "nsys":
        return  # of kernels, which are judged by what they are for
    yield RawFinding(
        f"{share:.0%} of the run is spent in MPI",
        (Quote(profile.communication_line),),
        "More ranks will make this worse. `ridgeline study scale` shows where adding ranks stops paying.",
        share=share,
        key="profile.communication",
    )


def _io(profile: Profile) -> Iterator[RawFinding]:
    calls = [c for c in profile.calls if c.io]
    share = profile.io_share or sum(c.share_of_time or 0.0 for c in calls)
    if share < 0.1:
        return
    line = calls[0].line if calls else profile.io_line
    yield RawFinding(
        f"input and output take {share:.0%} of the run",
        (Quote(line),),
        "Put scratch files on a node's own disk or in memory, or compute instead of reading back.",
        share=share,
        key="profile.io",
    )


def _reference_blas(profile: Profile) -> Iterator[RawFinding]:
    slow = [f for f in profile.functions if _GEMM.match(f.name) and _REFERENCE.match(f.module.rpartition("/")[2])]
    share = sum(f.share for f in slow)
    if share < 0.05:
        return
    yield RawFinding(
        f"{share:.0%} of the time is in {slow[0].name.rstrip('_').upper()} of the reference BLAS, {slow[0].module}",
        (Quote(slow[0].line),),
        "Link or preload an optimised BLAS. On Debian: install libopenblas0-serial and put its folder first in "
        "LD_LIBRARY_PATH; on clusters load the OpenBLAS or MKL module. One process per core wants the serial one.",
        "warning",
        share=share,
        key="profile.reference-blas",
    )


def _old_kernels(profile: Profile) -> Iterator[RawFinding]:
    old = [f for f in profile.functions if _OLD_KERNEL.match(f.name)]
    wide = sorted((f for f in profile.functions if _WIDE.search(f.name)), key=lambda f: "avx512" not in f.name)
    share = sum(f.share for f in old)
    if share < 0.05 or not wide:
        return
    name = old[0].name.rpartition("_")[2]
    coretype = "SKYLAKEX" if any("avx512" in f.name or "evex" in f.name for f in wide) else "HASWELL"
    yield RawFinding(
        f"{share:.0%} of the time is in OpenBLAS kernels for {name}, a processor without AVX, "
        f"while this one has it ({wide[0].name})",
        (Quote(old[0].line), Quote(wide[0].line)),
        f"OpenBLAS did not recognise the processor, as happens in virtual machines. "
        f"Set OPENBLAS_CORETYPE={coretype}, or use a newer OpenBLAS.",
        "warning",
        share=share,
        key="profile.old-kernels",
    )


def _libraries(profile: Profile) -> Iterator[RawFinding]:
    """Of sampled time: too much in the kernel, or what the libraries' shares are."""
    modules = profile.modules()
    if not modules or profile.tool not in ("perf", "VTune"):
        return
    line = {f.module: f.line for f in reversed(profile.functions)}
    kernel = [(name, share) for name, share in modules if _KERNEL.match(name)]
    share = sum(share for _, share in kernel)
    if share >= 0.15:
        yield RawFinding(
            f"{share:.0%} of the time is in the operating system's kernel",
            (Quote(line[kernel[0][0]]),),
            "Look for page faults (huge pages, first touch), system calls of input and output, sockets in place of "
            "shared memory or InfiniBand, and more runnable threads than cores.",
            share=share,
            key="profile.kernel",
        )
    named = ", ".join(f"{name.rpartition('/')[2]} {share:.0%}" for name, share in modules[:5])
    advice = "The first of these is where a faster library or another build pays."
    yield RawFinding(f"by library: {named}", (Quote(line[modules[0][0]]),), advice, "note", key="profile.libraries")


def _quotes(profile: Profile, calls: Iterable[Call]) -> tuple[Quote, ...]:
    lines = [profile.communication_line, *(c.line for c in calls)]
    return tuple(Quote(line) for line in dict.fromkeys(lines) if line)


def _profiler(kind: str, what: str, mark: str, read: Callable[[Iterable[str]], Profile]) -> Analyzer:
    def analyze(source: str, lines: Iterable[str]) -> list[Finding]:
        text = rereadable(lines)
        return cited(source, text, judged(read(text)))

    def portray(lines: Iterable[str]) -> LogSummary:
        profile = read(lines)
        figures = [
            ("wall time", profile.wall_s, unit_of("wall_s")),
            ("communication", profile.working_share, "share"),
            ("waiting, of communication", profile.working_waiting_share, "share"),
            ("busiest rank over the mean", profile.busy_ratio, ""),
            ("input and output", profile.io_share, "share"),
            *((f"in {c.name}", c.share_of_time, "share") for c in profile.calls[:8]),
            *((f"in {name}", share, "share") for name, share in profile.modules()[:8]),
            *((f"in {f.name}", f.share, "share") for f in profile.functions[:8]),
        ]
        return LogSummary(
            tuple(SummaryFigure(n, v, u) for n, v, u in figures if v is not None), {"ranks": profile.ranks}
        )

    return Analyzer(kind, what, re.compile(mark), analyze, portray)


MPIP = _profiler("mpip", "mpiP report", r"^@ mpiP\b|^@--- MPI Time", read_mpip)
IPM = _profiler("ipm", "IPM banner", r"^##IPMv", read_ipm)
_HOTSPOTS = r"^\"?(?:Process|Thread|Function)(?: Stack)?\"?[\t,;|].{0,200}CPU Time"
VTUNE = _profiler("vtune", "VTune hotspots CSV", _HOTSPOTS, read_vtune)
_OVERHEAD = r"^# (?:Overhead|Children\s{1,9}Self)\s.{0,60}(?:Command|Shared Object)"
PERF = _profiler("perf", "perf report --stdio", _OVERHEAD, read_perf_report)
