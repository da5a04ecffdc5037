"""Log lines by which programs of any kind say why they failed. Workloads put their own in front of these.

The order matters: the first that is found wins, so what a site did comes before what a setting did. Patterns begin with
letters where they can: logs may be long, and a search for letters is many times faster than one for a word boundary.
"""

from __future__ import annotations

import re

from ridgeline.records.outcome import Kind, Signature


def _signature(pattern: str, kind: Kind, reason: str) -> Signature:
    return Signature(re.compile(pattern, re.MULTILINE), kind, reason)


PROGRAM_FAILURES: tuple[Signature, ...] = (
    _signature(r"No space left on device|Disk quota exceeded", Kind.SITE_FAULT, "the disk or the quota is full"),
    _signature(r"Stale (NFS )?file handle|Input/output error", Kind.SITE_FAULT, "the file system failed"),
    # servers, and routers: "Address already in use (os error 98)", or only that their metrics can't be served
    _signature(
        r"[Aa]ddress already in use|EADDRINUSE|failed to install Prometheus metrics exporter",
        Kind.SITE_FAULT,
        "a port is in use: end what listens there (`ss -ltnp`), or let the program take another",
    ),
    _signature(
        r"error while loading shared libraries", Kind.SITE_FAULT, "a shared library is missing; load its module"
    ),
    _signature(
        r"command not found$|^(sh|.*run\.sh): (line )?\d+: .*(not found|Permission denied|No such file or directory)$",
        Kind.SITE_FAULT,
        "the command is not there or may not be run; check `run`, `files` and PATH",
    ),
    _signature(
        r"std::bad_alloc|[Cc]annot allocate memory|[Oo]ut of memory|oom-kill\b|MemoryError(?=$|:)|"
        r"insufficient virtual memory|Unable to allocate .*[KMGT]i?B",
        Kind.OOM_RUN,
        "out of memory",
    ),
    # Shells print this bare word when a program got SIGKILL that we did not send; on Linux that is the OOM killer
    _signature(r"^(.*: line \d+: +\d+ )?Killed\b", Kind.OOM_RUN, "killed from outside, most likely for want of memory"),
    _signature(r"Segmentation fault|SIGSEGV\b|invalid memory reference", Kind.CRASH, "segmentation fault"),
    _signature(r"Illegal instruction|SIGILL\b", Kind.CRASH, "illegal instruction: built for another processor"),
    _signature(r"Bus error|SIGBUS\b", Kind.CRASH, "bus error"),
    _signature(r"Floating point exception|SIGFPE\b", Kind.CRASH, "floating point exception"),
    _signature(r"not enough slots available", Kind.REJECTED, "the launcher has fewer slots than ranks"),
    _signature(
        r"(un(known|recogni[sz]ed)|invalid) (command.line )?(option|argument|flag)",
        Kind.REJECTED,
        "the program does not accept an option",
    ),
    _signature(r"MPI_A(bort|BORT)|BAD TERMINATION", Kind.CRASH, "MPI abort"),
    _signature(r"^Aborted\b|Assertion .*failed|SIGABRT\b", Kind.CRASH, "the program aborted itself"),
)
