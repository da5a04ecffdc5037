"""The sampler of a study, told what there is to know beforehand, and what it says about the search as a whole."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline import catalog
from ridgeline.campaign.check import CheckedStudy
from ridgeline.campaign.guidance.expectations import prior_of
from ridgeline.campaign.kinds.staged import in_stages
from ridgeline.records.observation import Observation, Prospect
from ridgeline.records.space import Point, Space
from ridgeline.samplers.base import Expecting, Forecasting, Recalling, Sampler

LITTLE_LEFT = "little is left to find"


def sampler_of(found: CheckedStudy, earlier: Sequence[Observation] = ()) -> Sampler:
    """It is told what is expected of points and what `earlier` studies learned, if it listens."""
    if found.study.search.in_stages:
        return in_stages(found.study, lambda space: _informed(found, space, earlier))
    return _informed(found, found.study.space, earlier)


def _informed(found: CheckedStudy, space: Space, earlier: Sequence[Observation]) -> Sampler:
    study, search = found.study, found.study.search
    sampler: Sampler = catalog.part("samplers", search.sampler)(space, search.seed, search.options, found.refusal)
    if isinstance(sampler, Expecting) and (prior := prior_of(study, found.workload)) is not None:
        sampler.expect(prior)
    if isinstance(sampler, Recalling) and earlier:
        sampler.recall(earlier)
    return sampler


def little_left(sampler: Sampler, pending: Sequence[Point]) -> str:
    """Why more trials are hardly worth their cost, as the sampler sees it; empty where they may be."""
    prospect = _prospect(sampler, pending)
    return f"{LITTLE_LEFT}: {prospect}" if prospect is not None and prospect.over else ""


def with_prospect(reason: str, sampler: Sampler, pending: Sequence[Point]) -> str:
    """Why the search ended and what more trials could bring, where the sampler can say that."""
    prospect = None if reason.startswith(LITTLE_LEFT) else _prospect(sampler, pending)
    return reason if prospect is None else f"{reason}; with more trials: {prospect}"


def _prospect(sampler: Sampler, pending: Sequence[Point]) -> Prospect | None:
    return sampler.prospect(pending) if isinstance(sampler, Forecasting) else None
