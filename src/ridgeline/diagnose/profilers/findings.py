"""What a profile means: waiting, imbalance, collectives, I/O, a slow BLAS, too much communication."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from ridgeline.diagnose.base import Analyzer, LogSummary, Quote, RawFinding, SummaryFigure, cited, rereadable
from ridgeline.diagnose.profilers.libraries import libraries, old_kernels, read_perf_report, read_vtune, reference_blas
from ridgeline.diagnose.profilers.mpi import read_ipm, read_mpip
from ridgeline.diagnose.profilers.profile import Call, Profile, RankTime
from ridgeline.records.finding import Finding
from ridgeline.records.measurement import unit_of


def judged(profile: Profile) -> list[RawFinding]:
    """Claims that follow from a profile, whichever tool wrote it."""
    rules = (
        _waiting,
        _imbalance,
        _managers,
        _collectives,
        _mostly_communication,
        _io,
        reference_blas,
        old_kernels,
        libraries,
    )
    return [claim for rule in rules for claim in rule(profile)]


def _waiting(profile: Profile) -> list[RawFinding]:
    share, waiting = profile.working_share, profile.working_waiting_share
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
        RawFinding(
            f"{waiting:.0%} of MPI time is waiting for other ranks ({longest}), not moving data; "
            f"MPI takes {share:.0%} of the run",
            _quotes(profile, waits[:3]),
            f"{cause} A faster network will not help. Time in MPI_Iprobe is also what a progress rank (ARMCI MPI-PR) "
            "shows by design: leave those ranks out before judging.",
            "warning",
            share=share * waiting,
            key="profile.waiting",
        )
    ]


def _imbalance(profile: Profile) -> list[RawFinding]:
    times = profile.rank_times
    if profile.busy_ratio is None or profile.busy_ratio < 1.2:
        return []
    if not times:
        return [
            RawFinding(
                f"the busiest rank computes {profile.busy_ratio:.2f} times as long as the mean",
                (Quote(profile.busy_line),),
                "Write a profile with one row per rank (mpiP, or IPM_REPORT=full with its XML) to see which ranks.",
            )
        ]
    managing = {t.rank for t in profile.managers}
    workers = [t for t in times if t.rank not in managing]
    busiest = max(workers, key=lambda t: t.time_s - t.communication_s)
    idlest = min(workers, key=lambda t: t.time_s - t.communication_s)
    return [
        RawFinding(
            f"rank {busiest.rank} computes {profile.busy_ratio:.2f} times as long as the mean; all others wait for it",
            (Quote(busiest.line), Quote(idlest.line)),
            "If it is rank 0, look for serial work (input, output, diagonalisation) that grows with the ranks; "
            "otherwise compare its node with the others (`ridgeline site preflight`) and its binding.",
            "warning",
            share=_lost_to(busiest, profile.busy_ratio),
            key="profile.imbalance",
        )
    ]


def _lost_to(busiest: RankTime, ratio: float) -> float | None:
    """What the others wait for: the busiest rank's computing beyond the mean, as a part of the run."""
    busy_s = busiest.time_s - busiest.communication_s
    return busy_s * (1 - 1 / ratio) / busiest.time_s if busiest.time_s > 0 else None


def _managers(profile: Profile) -> list[RawFinding]:
    if not profile.managers:
        return []
    ranks = ", ".join(str(t.rank) for t in profile.managers[:8])
    several = len(profile.managers) > 1
    return [
        RawFinding(
            f"rank{'s' if several else ''} {ranks} {'do' if several else 'does'} next to nothing but communicate: a "
            "manager or progress rank, left out of the balance of work",
            tuple(Quote(t.line) for t in profile.managers[:2]),
            "This is by design where a program hands out work or uses ARMCI MPI-PR; otherwise that rank got no work.",
            "note",
            key="profile.managers",
        )
    ]


def _collectives(profile: Profile) -> list[RawFinding]:
    share = profile.working_share
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
        RawFinding(
            f"collectives take {share * of_communication:.0%} of the run, {top.name} most",
            _quotes(profile, collectives[:2]),
            advice,
            share=share * of_communication,
            key="profile.collectives",
        )
    ]


def _mostly_communication(profile: Profile) -> list[RawFinding]:
    share = profile.working_share
    if share is None or share < 0.3 or not profile.communication_line:
        return []
    quotes = (Quote(profile.communication_line),)
    if profile.tool == "nsys":
        return []  # of kernels, which are judged by what they are for
    if (profile.working_waiting_share or 0.0) >= 0.5:
        return []
    return [
        RawFinding(
            f"{share:.0%} of the run is spent in MPI",
            quotes,
            "More ranks will make this worse. `ridgeline study scale` shows where adding ranks stops paying.",
            share=share,
            key="profile.communication",
        )
    ]


def _io(profile: Profile) -> list[RawFinding]:
    calls = [c for c in profile.calls if c.io]
    share = profile.io_share or sum(c.share_of_time or 0.0 for c in calls)
    if share < 0.1:
        return []
    line = calls[0].line if calls else profile.io_line
    return [
        RawFinding(
            f"input and output take {share:.0%} of the run",
            (Quote(line),),
            "Put scratch files on a node's own disk or in memory, or compute instead of reading back.",
            share=share,
            key="profile.io",
        )
    ]


def _quotes(profile: Profile, calls: Iterable[Call]) -> tuple[Quote, ...]:
    lines = [profile.communication_line, *(c.line for c in calls)]
    return tuple(Quote(line) for line in dict.fromkeys(lines) if line)


def _summary_of(read: Callable[[Iterable[str]], Profile]) -> Callable[[Iterable[str]], LogSummary]:
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

    return portray


def _of(read: Callable[[Iterable[str]], Profile]) -> Callable[[str, Iterable[str]], list[Finding]]:
    def analyze(source: str, lines: Iterable[str]) -> list[Finding]:
        text = rereadable(lines)
        return cited(source, text, judged(read(text)))

    return analyze


MPIP = Analyzer("mpip", "mpiP report", re.compile(r"^@ mpiP\b|^@--- MPI Time"), _of(read_mpip), _summary_of(read_mpip))
IPM = Analyzer(
    "ipm", "IPM banner or XML", re.compile(r"^##IPMv|<ipm_job_profile>"), _of(read_ipm), _summary_of(read_ipm)
)
VTUNE = Analyzer(
    "vtune",
    "VTune hotspots CSV",
    re.compile(r"^\"?(?:Process|Thread|Function)(?: Stack)?\"?[\t,;|].{0,200}CPU Time"),
    _of(read_vtune),
    _summary_of(read_vtune),
)
PERF = Analyzer(
    "perf",
    "perf report --stdio",
    re.compile(r"^# (?:Overhead|Children\s{1,9}Self)\s.{0,60}(?:Command|Shared Object)"),
    _of(read_perf_report),
    _summary_of(read_perf_report),
)
