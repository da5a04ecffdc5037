"""How fast settings are, as far as it must be known to compare the nodes they ran on.

A setting that ran once tells of its node as much as the knobs explain of it. Where they explain little, it is left
out, and runs of one setting on several nodes decide; where they explain most, every run counts.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from ridgeline.records.space import Point
from ridgeline.stats.arrays import numpy
from ridgeline.stats.coding import KnobCoding

FREE = 1e4  # a variance, over that of the noise, that leaves every setting its own level
ROUGH = 3.0  # beyond this a setting that ran once says less of its node than a quarter of a repeat
TAMED = 4.0  # repeats further from their median count as that far: one disturbed run must not pass for noise
FEWEST_SETTINGS = 12  # of fewer it is not known how they spread
NODES = 2.0  # nodes may differ too, by about the noise; otherwise a slow one would be taken for a rough space
OWN = (1.0, 3.0, 10.0, 100.0, 1e3)  # what a setting has beyond its knobs: always something
_BORDER = 1e12  # on the diagonal beside vectors: large enough for any, and not used
KNOBS = (0.0, 0.1, 1.0, 10.0, 100.0, 1e3)  # what one knob brings


def alike(labels: Sequence[Hashable]) -> Any:
    """1 where two labels are the same."""
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    codes = numpy.asarray([numbers[label] for label in labels])
    return (codes[:, None] == codes[None, :]).astype(float)


def spread_of_settings(settings: Sequence[str], points: Sequence[Point], speeds: Any, columns: Any) -> Any:
    """The covariance of the levels of these runs' settings, over the noise's variance; None where a setting that ran
    once tells nothing. `columns` says which nodes (columns) each run was on."""
    if len(set(settings)) < FEWEST_SETTINGS or not any(points):
        return None
    own, knobs = alike(settings), _alike_in_knobs(points)
    speeds = _tamed(settings, speeds)
    rest = numpy.eye(len(settings)) + NODES * (columns @ columns.T)
    of_own, of_knobs = 3.0, 1.0
    for _ in range(2):
        of_own = _likeliest(OWN, [rest + of_knobs * knobs + ratio * own for ratio in OWN], speeds)
        of_knobs = _likeliest(KNOBS, [rest + ratio * knobs + of_own * own for ratio in KNOBS], speeds)
    return None if of_own > ROUGH else of_knobs * knobs + of_own * own


def _tamed(settings: Sequence[str], speeds: Any) -> Any:
    labels, tamed = numpy.asarray(settings), speeds.copy()
    for setting in set(settings):
        own = labels == setting
        if own.sum() > 2:
            middle = numpy.median(speeds[own])
            reach = TAMED * 1.4826 * numpy.median(abs(speeds[own] - middle))
            tamed[own] = numpy.clip(speeds[own], middle - reach, middle + reach)
    return tamed


def _alike_in_knobs(points: Sequence[Point]) -> Any:
    names = list(dict.fromkeys(name for point in points for name in point))
    codes = [(KnobCoding.of([point.get(name) for point in points]), name) for name in names]
    coded = numpy.asarray([[c for coding, name in codes for c in coding.code(point.get(name))] for point in points])
    coded = coded - coded.mean(axis=0)
    return coded @ coded.T


def _likeliest(ratios: Sequence[float], covariances: Sequence[Any], speeds: Any) -> float:
    """By restricted likelihood, a common mean left open."""
    count = len(speeds)
    bordered = numpy.zeros((len(covariances), count + 2, count + 2))
    bordered[:, :count, :count] = covariances
    # below the Cholesky factor of a matrix bordered with vectors stand their solutions: no inverse is needed
    bordered[:, count, :count], bordered[:, count + 1, :count] = 1.0, speeds
    bordered[:, count, count] = bordered[:, count + 1, count + 1] = _BORDER
    factor = numpy.linalg.cholesky(bordered)
    size = 2 * numpy.log(numpy.diagonal(factor, axis1=1, axis2=2)[:, :count]).sum(axis=1)
    ones, turned = factor[:, count, :count], factor[:, count + 1, :count]
    told = (ones**2).sum(axis=1)
    squares = (turned**2).sum(axis=1) - (ones * turned).sum(axis=1) ** 2 / told
    squares = numpy.maximum(squares, 1e-12)
    own = -0.5 * (size + numpy.log(told) + (count - 1) * numpy.log(squares))
    return ratios[int(own.argmax())]
