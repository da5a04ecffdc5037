"""What the output of a job of any program says: why it failed, and how well it used its nodes.

Two kinds of file come of the one table of failures, readers/failures.py. What a shell, a launcher, a batch system or
the kernel says counts in every file; what programs say of themselves only where no analyzer knows the program better.
Batch systems print a footer, launchers how they bound the ranks.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ridgeline.diagnose.base import Analyzer, Quote, RawFinding, cited, rereadable
from ridgeline.diagnose.readers.batch_text import BatchFooter, read_batch_footer, read_bindings
from ridgeline.diagnose.readers.failures import PROGRAM_FAILURES, ProgramFailure, failure_in
from ridgeline.diagnose.readers.lines import plain
from ridgeline.records.finding import Finding
from ridgeline.records.outcome import filled

_SEARCHED_CHARS = 4096
_NEAR = 200  # lines, within which a launcher tells of the failure that a program has just printed
_AFTER_THE_END = 40  # lines that tracebacks, launchers and batch systems may still write after the failure


@dataclass(frozen=True, slots=True)
class _Seen:
    row: ProgramFailure
    match: re.Match[str]
    line: int
    text: str


def _analyzer(outside: bool) -> Callable[[str, Iterable[str]], list[Finding]]:
    def analyze(source: str, lines: Iterable[str]) -> list[Finding]:
        seen: dict[str, _Seen] = {}
        total = 0
        for total, raw in enumerate(lines, 1):
            text = plain(raw[:_SEARCHED_CHARS])
            if (shown := failure_in(text)) is not None:
                row, match = shown
                known = seen.get(row.name)
                says_more = known is not None and match.groupdict() and not known.match.groupdict()
                if known is None or row.last or says_more:
                    seen[row.name] = _Seen(row, match, total, text)
        causes = [found for found in _causes(list(seen.values())) if found.row.outside is outside]
        return cited(source, {found.line: found.text for found in causes}, [_claimed(found, total) for found in causes])

    return analyze


@dataclass(frozen=True, slots=True)
class _Rows:
    """The mark of such a file: a line that shows a failure of the table, from the program itself or from outside."""

    outside: bool

    def search(self, text: str) -> re.Match[str] | None:
        shown = failure_in(text)
        return shown[1] if shown is not None and shown[0].outside is self.outside else None


def _causes(seen: list[_Seen]) -> list[_Seen]:
    """What says what failed; where nothing near it does, the line that says most of those that only say that."""
    causes = [found for found in seen if not found.row.echo]
    echoes = sorted((found for found in seen if found.row.echo), key=lambda found: PROGRAM_FAILURES.index(found.row))
    left = [echo for echo in echoes if all(abs(echo.line - cause.line) > _NEAR for cause in causes)]
    return [*causes, *left[:1]]


def _claimed(found: _Seen, total: int) -> RawFinding:
    went_on = total - found.line > _AFTER_THE_END and not found.row.outside
    remedy = filled(found.row.remedy, found.match)
    advice = f"{remedy[0].upper()}{remedy[1:]}."
    if went_on:
        advice += f" The log continues for {total - found.line} lines: the program may have recovered."
    return RawFinding(
        filled(found.row.reason, found.match),
        (Quote(found.line, found.match[0][:40]),),
        advice,
        "warning" if went_on else "fault",
        key=f"run.{found.row.name}",
        echo=found.row.echo,
    )


OUTSIDE = Analyzer(
    "failed-job",
    "output of a job that a shell, launcher (Open MPI, MPICH, Intel MPI, srun), Slurm or the kernel says failed",
    _Rows(outside=True),
    _analyzer(outside=True),
    failures="outside",
)
OWN = Analyzer(
    "failed-program",
    "output of any program that says itself why it failed (Python, C++, MPI, CUDA, NCCL, UCX)",
    _Rows(outside=False),
    _analyzer(outside=False),
    failures="any",
)


def _analyze_footer(source: str, lines: Iterable[str]) -> list[Finding]:
    """Findings of a job's output that ends with Gadi's or ASPIRE2A+'s footer, or in which PBS killed the job."""
    text = rereadable(lines)
    footer = read_batch_footer(text)
    if footer is None:
        return []
    return cited(source, text, [*_ended(footer), *_memory(footer), *_idle_cores(footer), *_idle_gpus(footer)])


def _ended(footer: BatchFooter) -> Iterator[RawFinding]:
    if footer.killed:
        what = "ask for more time" if "walltime" in footer.killed else "ask for more of it, or use less"
        yield RawFinding(
            f"the batch system killed the job: {footer.killed}",
            (Quote(footer.killed_line),),
            f"The job went over its limit: {what}. What it printed before is not a complete result.",
            "fault",
        )
    elif footer.exit_status:
        yield RawFinding(
            f"the job ended with status {footer.exit_status}",
            (Quote(footer.line),),
            "Above 256, subtract 256 for the signal: 271 is a termination, 265 a kill (often memory).",
            "fault",
        )


def _memory(footer: BatchFooter) -> Iterator[RawFinding]:
    used, asked = footer.memory_used_bytes, footer.memory_requested_bytes
    if not used or not asked or used < 0.9 * asked:
        return
    yield RawFinding(
        f"the job used {used / asked:.0%} of the memory it asked for",
        (Quote(footer.line),),
        "A little more and the batch system kills it: ask for more, or lower what the program may use.",
        "warning",
    )


def _idle_cores(footer: BatchFooter) -> Iterator[RawFinding]:
    cores = footer.ncpus_used or footer.ncpus_requested
    if not cores or not footer.cpu_s or not footer.wall_used_s or footer.ngpus_requested:
        return
    busy = footer.cpu_s / (cores * footer.wall_used_s)
    if busy >= 0.6:
        return
    yield RawFinding(
        f"the {cores} cores were busy {busy:.0%} of the time",
        (Quote(footer.line),),
        "Start-up and input may be long against the run; otherwise fewer cores would do the same work. "
        "`ridgeline study scale` shows how many pay.",
    )


def _idle_gpus(footer: BatchFooter) -> Iterator[RawFinding]:
    if footer.gpu_share is None or footer.gpu_share >= 0.6:
        return
    yield RawFinding(
        f"the GPUs were in use {footer.gpu_share:.0%} of the time",
        (Quote(footer.line),),
        "Look for start-up, compilation and host-bound phases; a larger batch may fill the gaps.",
    )


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
