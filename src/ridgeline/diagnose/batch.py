"""What a batch system's footer and a launcher's bindings say about how well a job used its nodes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from ridgeline.diagnose.base import Analyzer, Quote, RawFinding, cited, rereadable
from ridgeline.diagnose.readers.batch_footer import BatchFooter, read_batch_footer
from ridgeline.diagnose.readers.report_bindings import read_bindings
from ridgeline.records.finding import Finding


def _analyze_footer(source: str, lines: Iterable[str]) -> list[Finding]:
    """Findings of a job's output that ends with Gadi's or ASPIRE2A+'s footer, or in which PBS killed the job."""
    text = rereadable(lines)
    footer = read_batch_footer(text)
    if footer is None:
        return []
    return cited(source, text, [*_ended(footer), *_memory(footer), *_idle_cores(footer), *_idle_gpus(footer)])


def _ended(footer: BatchFooter) -> list[RawFinding]:
    if footer.killed:
        what = "ask for more time" if "walltime" in footer.killed else "ask for more of it, or use less"
        return [
            RawFinding(
                f"the batch system killed the job: {footer.killed}",
                (Quote(footer.killed_line),),
                f"The job went over its limit: {what}. What it printed before is not a complete result.",
                "fault",
            )
        ]
    if footer.exit_status:
        return [
            RawFinding(
                f"the job ended with status {footer.exit_status}",
                (Quote(footer.line),),
                "Above 256, subtract 256 for the signal: 271 is a termination, 265 a kill (often memory).",
                "fault",
            )
        ]
    return []


def _memory(footer: BatchFooter) -> list[RawFinding]:
    used, asked = footer.memory_used_bytes, footer.memory_requested_bytes
    if not used or not asked or used < 0.9 * asked:
        return []
    return [
        RawFinding(
            f"the job used {used / asked:.0%} of the memory it asked for",
            (Quote(footer.line),),
            "A little more and the batch system kills it: ask for more, or lower what the program may use.",
            "warning",
        )
    ]


def _idle_cores(footer: BatchFooter) -> list[RawFinding]:
    cores = footer.ncpus_used or footer.ncpus_requested
    if not cores or not footer.cpu_s or not footer.wall_used_s or footer.ngpus_requested:
        return []
    busy = footer.cpu_s / (cores * footer.wall_used_s)
    if busy >= 0.6:
        return []
    return [
        RawFinding(
            f"the {cores} cores were busy {busy:.0%} of the time",
            (Quote(footer.line),),
            "Start-up and input may be long against the run; otherwise fewer cores would do the same work. "
            "`ridgeline study scale` shows how many pay.",
        )
    ]


def _idle_gpus(footer: BatchFooter) -> list[RawFinding]:
    if footer.gpu_share is None or footer.gpu_share >= 0.6:
        return []
    return [
        RawFinding(
            f"the GPUs were in use {footer.gpu_share:.0%} of the time",
            (Quote(footer.line),),
            "Look for start-up, compilation and host-bound phases; a larger batch may fill the gaps.",
        )
    ]


def _analyze_bindings(source: str, lines: Iterable[str]) -> list[Finding]:
    """Findings of what a launcher reported about ranks and cores."""
    text = rereadable(lines)
    bindings = read_bindings(text)
    claims = []
    holders: dict[tuple[str | None, int], list[int]] = defaultdict(list)
    line_of = {b.rank: b.line for b in bindings}
    for binding in bindings:
        for cpu in binding.cpus or ():
            holders[binding.host, cpu].append(binding.rank)
    shared = {place: sorted(set(ranks)) for place, ranks in holders.items() if len(set(ranks)) > 1}
    if shared:
        (host, cpu), ranks = min(shared.items(), key=lambda s: (str(s[0][0]), s[0][1]))
        claims.append(
            RawFinding(
                f"{len(shared)} cores are given to more than one rank; core {cpu} of {host or 'the node'} to ranks "
                + ", ".join(map(str, ranks[:4])),
                tuple(Quote(line_of[r]) for r in ranks[:2]),
                "Two launchers may bind from the first core each, or --oversubscribe is on: give each its own cores, "
                "or start fewer ranks.",
                "warning",
            )
        )
    loose = [b for b in bindings if b.cpus is None]
    if loose:
        claims.append(
            RawFinding(
                f"{len(loose)} of {len(bindings)} ranks are not bound to cores",
                (Quote(loose[0].line),),
                "Bind them: mpirun --map-by node --bind-to core (or numa with threads), srun --cpu-bind=cores.",
            )
        )
    return cited(source, text, claims)


FOOTER = Analyzer(
    "batch-footer",
    "job output with a PBS footer (Gadi, ASPIRE2A+)",
    re.compile(r"Resource Usage on \d{4}-|=>> PBS: job killed"),
    _analyze_footer,
)
BINDINGS = Analyzer(
    "bindings",
    "bindings reported by mpirun or srun",
    re.compile(
        r"MCW rank \d+ |\] Rank \d+ (?:is not )?bound|process \d+ binding: ?[01]|MPI startup\(\): \d|cpu-bind\S* - "
    ),
    _analyze_bindings,
)
