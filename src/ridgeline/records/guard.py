"""Guards: conditions without which a result does not count.

Written as short sentences in the study file:
    energy_error < 1e-6                 any expression over metrics and settings
    checksum within 1e-9 of baseline    closeness to the baseline's own value (or `within 0.1% of`, or of a number)
    stdout contains "converged"         a regular expression that must be found in a file of the run
    stdout lacks "nan"                  one that must not
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ridgeline.errors import ReadError
from ridgeline.records import matching
from ridgeline.records.expression import LONGEST_EXPRESSION, Expression, ExpressionError

_TextOf = Callable[[str], str]  # the text of a file of the run, "" where it is missing


@dataclass(frozen=True, slots=True)
class Condition:
    expression: Expression

    @property
    def names(self) -> frozenset[str]:
        return self.expression.names

    def __str__(self) -> str:
        return self.expression.text

    def failure(self, values: Mapping[str, object], baseline: Mapping[str, object], text_of: _TextOf) -> str | None:
        missing = sorted(n for n in self.names if n not in values)
        if missing:
            return f"{', '.join(missing)} was not measured, so {self} cannot be shown"
        try:
            held = self.expression.holds(values)
        except ExpressionError as error:
            return str(error)
        shown = ", ".join(f"{n} = {_show(values[n])}" for n in sorted(self.names))
        return None if held else f"{self} does not hold: {shown}"


@dataclass(frozen=True, slots=True)
class Closeness:
    """|value - reference| <= abs_tol + rel_tol * |reference|; the reference is the baseline's value or a number."""

    metric: str
    abs_tol: float
    rel_tol: float
    reference: float | None  # None: the baseline's own value

    @property
    def names(self) -> frozenset[str]:
        return frozenset({self.metric})

    def __str__(self) -> str:
        limits = [f"{self.abs_tol:g}"] if self.abs_tol else []
        limits += [f"{self.rel_tol * 100:g}%"] if self.rel_tol else []
        target = "baseline" if self.reference is None else f"{self.reference!r}"
        return f"{self.metric} within {' + '.join(limits) or '0'} of {target}"

    def failure(self, values: Mapping[str, object], baseline: Mapping[str, object], text_of: _TextOf) -> str | None:
        value = values.get(self.metric)
        reference = self.reference if self.reference is not None else baseline.get(self.metric)
        if value is None:
            return f"{self.metric} was not measured, so {self} cannot be shown"
        if reference is None:
            return f"the baseline has no {self.metric}, so {self} cannot be shown"
        if isinstance(value, str) or isinstance(reference, str):
            return None if value == reference else f"{self.metric} is {value!r}, the baseline's {reference!r}"
        assert isinstance(value, int | float)
        assert isinstance(reference, int | float)
        gap, limit = abs(value - reference), self.abs_tol + self.rel_tol * abs(reference)
        return None if gap <= limit else f"{self.metric} = {value!r} is {gap:.3g} from {reference!r}; limit {limit:.3g}"


@dataclass(frozen=True, slots=True)
class TextGuard:
    file: str
    pattern: re.Pattern[str]
    wanted: bool

    @property
    def names(self) -> frozenset[str]:
        return frozenset()

    def __str__(self) -> str:
        return f'{self.file} {"contains" if self.wanted else "lacks"} "{self.pattern.pattern}"'

    def failure(self, values: Mapping[str, object], baseline: Mapping[str, object], text_of: _TextOf) -> str | None:
        try:
            found = matching.values(self.pattern, text_of(self.file), most=1)
        except (matching.TooSlow, ReadError) as error:
            return f"{self} cannot be shown: {error}"
        if bool(found) == self.wanted:
            return None
        return f"{self.file} has no {self.pattern.pattern!r}" if self.wanted else f"{self.file} says {found[0]!r}"


Guard = Condition | Closeness | TextGuard

_WITHIN = re.compile(r"^\s*(?P<metric>\w+)\s+within\s+(?P<limits>\S.*?)\s+of\s+(?P<target>\S+)\s*$")
_TEXT = re.compile(
    r"""^\s*(?P<file>[\w./-]+)\s+(?P<verb>contains|lacks)\s+(?P<quote>['"/])(?P<pattern>.+)(?P=quote)\s*$"""
)


def parse_guard(text: str) -> Guard:
    """A guard from its sentence; ExpressionError says what is wrong with it."""
    if len(text) > LONGEST_EXPRESSION:
        raise ExpressionError(f"guard of {len(text)} characters; at most {LONGEST_EXPRESSION} are accepted")
    if match := _WITHIN.match(text):
        absolute, relative = _limits(match["limits"])
        target = match["target"]
        return Closeness(match["metric"], absolute, relative, None if target == "baseline" else _float(target))
    if match := _TEXT.match(text):
        if match["file"].startswith("/") or ".." in match["file"].split("/"):
            raise ExpressionError(f"{match['file']} is not in the run folder; write a relative name without ..")
        try:
            pattern = re.compile(match["pattern"], re.MULTILINE)
        except (re.error, OverflowError, RecursionError) as error:
            what = f"{match['pattern']!r} is not a regular expression: {error}"
            raise ExpressionError(f"{what}; correct the pattern") from None
        return TextGuard(match["file"], pattern, match["verb"] == "contains")
    return Condition(Expression.parse(text))


def _limits(text: str) -> tuple[float, float]:
    absolute = relative = 0.0
    for part in text.split("+") if "e+" not in text else [text]:
        part = part.strip()
        if part.endswith("%"):
            relative += _float(part[:-1]) / 100.0
        else:
            absolute += _float(part)
    if not (0 <= absolute < math.inf and 0 <= relative < math.inf):
        raise ExpressionError("the tolerance must be a finite number; write 0 or more, such as 1e-9")
    return absolute, relative


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ExpressionError(f"{text!r} is not a number; write e.g. `energy within 1e-6 of baseline`") from None


def _show(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else repr(value)
