"""Why a build failed: the first error of a compiler or linker; or a compiler or module that is not there at all."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ridgeline.campaign.judge import first_line, last_line
from ridgeline.records.outcome import Evidence, Kind, Outcome
from ridgeline.records.run import Cause, Ending

LOGS = ("stderr", "stdout")  # some makefiles send both into one
# What a compiler, a linker or a configure script prints at an error. Make's own `*** [target] Error 1` comes last, and
# says only that there was one.
_FIRST_ERROR = re.compile(
    r"(?<!\*\*\* )\b(?:fatal error|catastrophic error|[Ee]rror)(?:\s+#\d+)?\s*:"
    r"|^(?:PGF|NVFORTRAN|PGC|NVC)[\w+-]*-[SFE]-\d+"
    r"|undefined reference to|undefined symbol|multiple definition of|cannot find -l|unable to find library"
    r"|CMake Error|No rule to make target|[Uu]nrecognized (?:command[- ]line )?option"
    r"|No space left on device|Disk quota exceeded"
)
_PLACE = re.compile(r"^[^\s:]+:\d+(?::\d+)?:$")  # gfortran prints where above what
_MISSING_PROGRAM = re.compile(
    r"(?:^|[:\s/])(?P<name>[\w.+-]+): (?:command )?not found$"  # sh, bash, gmake through a shell
    r"|command not found: (?P<zsh>\S+)$"
    r"|^g?make(?:\[\d+\])?: (?P<make>\S+): No such file or directory$"
    r"|^(?P<wrapped>\S+) in your PATH\.$"  # Open MPI's wrappers, told another compiler by OMPI_CC and such
)
_NOT_FOUND = 127  # how a shell, and make after it, report a program that is not there
_MADE_127 = re.compile(rf"^g?make(?:\[\d+\])?: \*\*\* .*Error {_NOT_FOUND}$")
_MISSING_MODULE = re.compile(r"^ridgeline: a module did not load: (?P<name>\S+)$")
_FULL = re.compile(r"No space left on device|Disk quota exceeded")


def failed_build(folder: Path, ending: Ending) -> Outcome:
    """The outcome of a build that ended badly, with the line that decided."""
    error = first_line(folder, LOGS, _FIRST_ERROR, _PLACE)
    lacking = _what_is_missing(folder, ending, error)
    if lacking is not None:
        return Outcome(Kind.SITE_FAULT, f"{missing_name(lacking)} is not where this is built", lacking)
    evidence = error or last_line(folder, LOGS)
    if evidence is not None and _FULL.search(evidence.text):
        return Outcome(Kind.SITE_FAULT, "the disk or the quota is full", evidence)
    if ending.cause is Cause.EXITED:
        text = f"exit code {ending.exit_code}" if ending.signal is None else f"signal {ending.signal}"
        return Outcome(Kind.BUILD_FAILED, ending.reason or f"the build ended with {text}", evidence)
    return Outcome(Kind.BUILD_FAILED, ending.reason or f"the build ended with {ending.cause.value}", evidence)


def _what_is_missing(folder: Path, ending: Ending, error: Evidence | None) -> Evidence | None:
    # makefiles and configure scripts try programs that need not be there: one counts if the build ended for want of it
    if (module := first_line(folder, LOGS, _MISSING_MODULE)) is not None:
        return module
    wanted = ending.exit_code == _NOT_FOUND or first_line(folder, LOGS, _MADE_127) is not None
    return last_line(folder, LOGS, matching=_MISSING_PROGRAM) if wanted or error is None else None


def missing_name(line: Evidence) -> str:
    """The program or module that this line says is not there."""
    found = _MISSING_MODULE.search(line.text) or _MISSING_PROGRAM.search(line.text)
    names = [name for name in found.groups() if name] if found else []
    return names[0] if names else ""


def blamed_values(outcome: Outcome, used: Mapping[str, object]) -> dict[str, object]:
    """Of the settings that decide a variant, those that name what is missing: others need not be built to know."""
    if outcome.kind is not Kind.SITE_FAULT or outcome.evidence is None:
        return {}
    name = missing_name(outcome.evidence)
    told = {knob: value for knob, value in used.items() if name and _names(str(value), name)}
    return dict(list(told.items())[:1])


def _names(value: str, program: str) -> bool:
    words: Sequence[str] = re.split(r"[\s=,;:]+", value)
    short = program.rpartition("/")[2]
    # a module is told apart by its release: gcc/99 for 99
    return any(word and word in (program, short, program.partition("/")[2]) for word in (*words, value))
