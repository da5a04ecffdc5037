"""What can go wrong, sorted by who must act.

* RidgelineError
  x InputError      something the user typed or handed over is wrong -> they correct it          exit 2
    x StudyError    the study file is wrong                          -> its author edits it       exit 2
  x SiteError       the cluster refused or is away                   -> retry if transient, else its operator  exit 3
  x ReadError       an output is not as expected                     -> we fix the adapter        exit 4
  x StoreError      the study folder is locked, damaged or full      -> its owner frees it        exit 5
  x NothingFound    the search ended empty-handed                    -> the author relaxes a limit exit 1
A run that fails is not an error: it is a Run with an outcome.
"""

from __future__ import annotations

from collections.abc import Sequence


class RidgelineError(Exception):
    """A message for a person: what, where, what next. The CLI prints it and leaves with `exit_code`."""

    exit_code = 4


class InputError(RidgelineError):
    exit_code = 2


class StudyError(InputError):
    """One or more problems of a study or site file, each a full line `file:line: where: what; remedy`."""

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))


class SiteError(RidgelineError):
    exit_code = 3

    def __init__(self, message: str, *, transient: bool = False) -> None:
        super().__init__(message)
        # True when the same call may succeed later without anybody doing anything
        self.transient = transient


class ReadError(RidgelineError):
    exit_code = 4


class StoreError(RidgelineError):
    exit_code = 5


class NothingFound(RidgelineError):  # noqa: N818  a result, not a malfunction
    exit_code = 1
