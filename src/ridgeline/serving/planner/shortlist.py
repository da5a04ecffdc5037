"""Which of all ways to serve are simulated: the best by step times, of different shapes and risks, less the beaten."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.errors import InputError
from ridgeline.serving.planner.candidates import PlanQuestion, Unit, colocated_units
from ridgeline.serving.planner.operating_point import Option, tried
from ridgeline.serving.planner.pairing import Pair, pairs, varied_pairs
from ridgeline.serving.planner.scheme import Scheme
from ridgeline.serving.traffic.traffic import Traffic

# Engines that do both, pairs of each class of loss, pairs that are tried whatever else was found.
_COLOCATED_TRIED, _PAIRS_EACH, _PAIRS_LEAST = 6, 3, 2
# On more nodes than these a run of a pair is long: fewer of each class are tried.
_FEW_NODES, _PAIRS_LARGE = 16, 2
# A bound from step times is this much too low at most.
_BOUND_SLACK = 1.1


def named_scheme(text: str, considered: Sequence[Scheme]) -> Scheme:
    """The fastest by step times of those that are written so."""
    wanted = " ".join(text.lower().split())
    found = [s for s in considered if str(s.layout).lower() == wanted]
    if not found:
        some = "; ".join(dict.fromkeys(str(s.layout) for s in (*considered[:3], *considered[-3:])))
        raise InputError(
            f"--layout {text!r} is none of the {len(considered):,} that fit these GPUs; write it as in a plan's table, "
            f"for example {some}"
        )
    return max(found, key=lambda s: s.bound_s)


def schemes_for(question: PlanQuestion, rate_s: float | None) -> tuple[list[Scheme], list[Scheme]]:
    """All there are, and those that are worth a simulation, in the order to try them."""
    gpus = question.cluster.gpus
    engines, split = colocated_units(question, gpus), pairs(question, gpus, rate_s)
    schemes = [Scheme(question, u, gpus // u.gpus) for u in _varied(engines)]
    each = _PAIRS_EACH if question.cluster.nodes <= _FEW_NODES else _PAIRS_LARGE
    schemes += [Scheme(question, p, 1) for p in varied_pairs(split, each)]
    every = [Scheme(question, u, gpus // u.gpus) for u in engines] + [Scheme(question, p, 1) for p in split]
    return every, schemes


def try_all(schemes: Sequence[Scheme], traffic: Traffic, rate_s: float | None) -> list[Option]:
    """Simulates all but those that step times already show to be beaten by one that was simulated."""
    options: list[Option] = []
    split = 0
    for scheme in schemes:
        pair = isinstance(scheme.shape, Pair)
        if (pair and split < _PAIRS_LEAST) or not any(_beats(o, scheme, rate_s) for o in options):
            options.append(tried(scheme, traffic))
            split += pair
    return options


def _beats(option: Option, scheme: Scheme, rate_s: float | None) -> bool:
    """As much of the option as the scheme's GPUs hold serves more than the scheme ever could, at no more risk."""
    if not option.meets:
        return False
    able_s = _BOUND_SLACK * scheme.bound_s
    if rate_s is not None:
        return able_s < rate_s
    slices = option.scheme.slices
    held = min(slices, scheme.gpus * slices // option.scheme.gpus)
    if held == 0 or option.goodput_s * held / slices <= able_s:
        return False
    return option.scheme.with_slices(held).loss_gpu <= scheme.loss_gpu + 1e-9


def _varied(units: Sequence[Unit]) -> list[Unit]:
    """The most promising engines, at most two of the same tp and pp, so that different shapes are tried."""
    chosen: list[Unit] = []
    for unit in units:
        same = sum((u.layout.tp, u.layout.pp) == (unit.layout.tp, unit.layout.pp) for u in chosen)
        if same < 2 and len(chosen) < _COLOCATED_TRIED:
            chosen.append(unit)
    return chosen
