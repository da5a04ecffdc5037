"""What can go wrong, sorted by who must act.

* RidgelineError
  x InputError      something the user typed or handed over is wrong -> they correct it          exit 2
    x StudyError    the study file is wrong                          -> its author edits it       exit 2
  x SiteError       the cluster refused or is away                   -> retry if transient, else its operator  exit 3
    x OpenQuestion  what had passed does not pass any more           -> somebody finds out why, then resumes  exit 3
  x ReadError       an output is not as expected                     -> we fix the adapter        exit 4
  x StoreError      the study folder is locked, damaged or full      -> its owner frees it        exit 5
  x NothingFound    the search ended empty-handed                    -> the author relaxes a limit exit 1
    x ShownWorse    what was asked about is shown to be worse        -> keep what there is        exit 6
    x CannotJudge   what was measured does not decide it             -> more runs, or another machine  exit 7
A run that fails is not an error: it is a Run with an outcome.

A message about a wrong name also offers the right one: `near`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class ExitCode(IntEnum):
    """How every verb leaves, and what each code means: the only list of them; `--help` and README show it."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> ExitCode:
        found = int.__new__(cls, code)
        found._value_ = code
        found.meaning = meaning
        return found

    DONE = 0, "done: the setting asked about, if any, is better (`ci gate`: not slower)"
    NOTHING_BETTER = (
        1,
        "no better setting (keep the baseline), no detectable difference, nothing passed the guards, no answer (not "
        "over yet, not confirmed, or not provable), nothing fits or keeps the limits (`plan`), `ci bisect` could "
        "not reproduce the slowdown, or `study verify` found a mismatch",
    )
    WRONG_INPUT = 2, "the study or command line is wrong"
    SITE = (
        3,
        "the site or server refused, or a setting that passed before no longer starts (the campaign stops and asks; "
        "`resume` continues it)",
    )
    OUTPUT = 4, "an output could not be read"
    FOLDER = 5, "the study folder is locked, damaged or its disk is full"
    WORSE = 6, "`compare`, `study steps` or `ci gate` showed that the setting is worse"
    CANNOT_JUDGE = (
        7,
        "cannot judge: too few runs for `compare`, `study steps`, `study scale`, `study nodes`, `ci gate`, "
        "`ci bisect` or `bench --find-goodput` to decide, or the reference of `ci gate` comes from another machine",
    )
    INTERRUPTED = 130, "stopped by Ctrl-C (continue with `ridgeline resume`)"


_MOST_NAMES = 12  # of those a message lists


class RidgelineError(Exception):
    """A message for a person: what, where, what next. The CLI prints it and leaves with `exit_code`."""

    exit_code = ExitCode.OUTPUT


class InputError(RidgelineError):
    exit_code = ExitCode.WRONG_INPUT


class StudyError(InputError):
    """One or more problems of a study or site file, each a full line `file:line: where: what; remedy`."""

    def __init__(self, problems: str | Sequence[str], *, partly: Any = None) -> None:
        # what could be read all the same (a StudyFile), for whoever looks for further problems
        self.partly = partly
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))


class SiteError(RidgelineError):
    exit_code = ExitCode.SITE

    def __init__(self, message: str, *, transient: bool = False) -> None:
        super().__init__(message)
        # True when the same call may succeed later without anybody doing anything
        self.transient = transient


class OpenQuestion(SiteError):  # noqa: N818  asked of a person, not a malfunction of ours
    """The campaign can't go on to an answer: a failure that is no verdict about a setting stayed after its retries."""


class ReadError(RidgelineError):
    exit_code = ExitCode.OUTPUT


class StoreError(RidgelineError):
    exit_code = ExitCode.FOLDER


class NothingFound(RidgelineError):  # noqa: N818  a result, not a malfunction
    exit_code = ExitCode.NOTHING_BETTER


class ShownWorse(NothingFound):
    exit_code = ExitCode.WORSE


class CannotJudge(NothingFound):
    exit_code = ExitCode.CANNOT_JUDGE


def near(name: str, known: Iterable[str]) -> str:
    """The remedy for a wrong name: `did you mean X?`, or the names there are, nearest first."""
    names = list(known)
    return did_you_mean(name, names) or f"known: {', '.join(nearest_first(name, names)) or 'none'}"


def did_you_mean(name: str, known: Iterable[str], *, likeness: float = 0.6) -> str:
    """`did you mean X?`, or nothing where no name is close."""
    return f"did you mean {found}?" if (found := nearest(name, known, likeness=likeness)) else ""


def nearest(name: str, known: Iterable[str], *, likeness: float = 0.6) -> str:
    """The known name that was probably meant, or nothing. `likeness` is from 0 (anything) to 1 (the very same)."""
    return next(iter(_alike(name, known, 1, likeness)), "")


def nearest_first(name: str, known: Iterable[str]) -> list[str]:
    """The names there are, those that look like `name` before the others; a long list is cut."""
    names = list(known)
    alike = _alike(name, names, 3, 0.4)
    shown = [*alike, *(other for other in names if other not in alike)][:_MOST_NAMES]
    return [*shown, "..."] if len(names) > _MOST_NAMES else shown


def _alike(name: str, known: Iterable[str], count: int, likeness: float) -> list[str]:
    from difflib import get_close_matches  # slow to load, and only a mistake needs it

    return get_close_matches(name, list(known), count, likeness)


# Something wrong in a file that a person wrote.

Where = tuple[str | int, ...]  # the path of keys and list indices to a value


@dataclass(frozen=True, slots=True)
class Problem:
    """`where` is the path of keys, so that the file's line can be shown; `message` is what is wrong, and the remedy."""

    where: Where
    message: str
