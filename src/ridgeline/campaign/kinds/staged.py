"""Search by impact: one group of knobs after the other, the rest as in the best setting so far.

What a group can bring is looked for alone, which takes far fewer trials than all knobs together; what only two groups
together bring is found at the end at best. A strategy for people who know which groups matter most.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ridgeline.campaign.ledger import TRIALS_WITHOUT_BUDGET
from ridgeline.records.observation import Observation, Proposal
from ridgeline.records.space import Discrete, Point, Space, point_key
from ridgeline.records.study import Study
from ridgeline.samplers.base import Sampler

_REST = "the rest"
# a knob belongs to the first group whose pattern its name holds; a study's own `groups` come before these
_NETWORK = r"^(NCCL|UCX|FI|OMPI|PSM\d?|GLOO|MPICH?|RDMAV?|IBV?|SHARP)_|network|nccl|rdma|allreduce|all_reduce|dispatch"
_LAYOUT = (
    r"^(tp|pp|dp|ep|cp|sp|tpp|attn_dp|moe_dp|nodes|ranks|ranks_per_node|ppn|threads|gpus|replicas|layout)$"
    r"|parallel|_(tp|pp|dp|ep)(_|$)|(tp|pp|dp|ep)_size|OMP_NUM_THREADS"
)
_MEMORY = r"mem|batch|(^|_)bs$|running|num_seqs|chunk|cache|page|pool|tokens|block|tile|buffer"
_BACK_END = r"backend|back_end|kernel|attention|dtype|quant|graph|compile|speculat|algorithm|solver|^eager"
_ENVIRONMENT = r"^[A-Z][A-Z0-9_]*$|^(opt|march|flags?|cflags|compiler|env|module|image|governor|pinning|binding)$"
_PATTERNS: Mapping[str, re.Pattern[str]] = {
    "environment": re.compile(_ENVIRONMENT),
    "layout": re.compile(_LAYOUT),
    "batch and memory": re.compile(_MEMORY),
    "back end": re.compile(_BACK_END),
    "network": re.compile(_NETWORK),
}
_ASKED_FIRST = ("network", "layout", "batch and memory", "back end", "environment")


def knob_groups(study: Study) -> dict[str, tuple[str, ...]]:
    """Every knob of the study in one group: the study's own groups first and in its order, then ours, then the rest."""
    own = {name: group for group, names in study.groups.items() for name in names}
    found: dict[str, list[str]] = {group: [] for group in (*study.groups, *_PATTERNS, _REST)}
    for knob in study.space.by_name:
        found[own.get(knob) or _group_of(knob)].append(knob)
    return {group: tuple(names) for group, names in found.items() if names}


def _group_of(knob: str) -> str:
    return next((group for group in _ASKED_FIRST if _PATTERNS[group].search(knob)), _REST)


_MakeSampler = Callable[[Space], Sampler]


@dataclass
class StagedSampler(Sampler):
    """A sampler over samplers: `make` gives the one of a stage, over the part of the space that is free in it.

    `trials` are divided evenly over the groups that have something to choose; once they are used up, or a stage has
    nothing left, the whole space is free. As with every sampler, the answer depends on observations and pending points.
    """

    space: Space
    groups: Sequence[tuple[str, Collection[str]]]
    trials: int
    make: _MakeSampler
    observations: list[Observation] = field(default_factory=list)
    _inner: dict[tuple[int, str], Sampler] = field(default_factory=dict)  # by stage, and what it holds fixed
    _observed: dict[tuple[int, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        free = {knob.name for knob in self.space.knobs if knob.count != 1}
        self.groups = [(name, knobs) for name, knobs in self.groups if free.intersection(knobs)]

    def tell(self, observation: Observation) -> None:
        self.observations.append(observation)

    def ask(self, pending: Sequence[Point] = ()) -> Proposal | None:
        share = max(1, self.trials // (len(self.groups) + 1))
        for stage in range(min(self._tried() // share, len(self.groups)), len(self.groups) + 1):
            best = self._best(stage * share) if stage < len(self.groups) else None
            part = self.space if best is None else self._part(stage, best)
            inner = self._taught((stage, "" if best is None else point_key(best)), part)
            proposal = inner.ask([point for point in pending if _lies_in(part, point)])
            if proposal is not None:
                name = self.groups[stage][0] if stage < len(self.groups) else "all groups"
                why = f"stage {stage + 1} of {len(self.groups) + 1}, {name}"
                return replace(proposal, why=f"{why}: {proposal.why}" if proposal.why else why)
        return None

    def _tried(self) -> int:
        """Observations of trials: the first one is the baseline's, and others of its point are repeats."""
        return sum(observation.point != self.observations[0].point for observation in self.observations)

    def _best(self, trials: int) -> Point | None:
        """The best setting after so many trials, or so far; None where nothing has passed."""
        before: list[Observation] = []
        for observation in self.observations:
            trials -= observation.point != self.observations[0].point
            if trials < 0:
                break
            before += [observation] if observation.score is not None else []
        return max(before, key=lambda observation: observation.score or 0.0).point if before else None

    def _taught(self, which: tuple[int, str], part: Space) -> Sampler:
        """The stage's sampler, with every observation of its part of the space."""
        if which not in self._inner:
            self._inner[which], self._observed[which] = self.make(part), 0
        for observation in self.observations[self._observed[which] :]:
            if _lies_in(part, observation.point):
                self._inner[which].tell(observation)
        self._observed[which] = len(self.observations)
        return self._inner[which]

    def _part(self, stage: int, best: Point) -> Space:
        """The space with the knobs of other groups held as in this setting."""
        free = self.groups[stage][1]
        knobs = tuple(
            knob
            if knob.name in free or knob.name not in best
            else Discrete(knob.name, (best[knob.name],), False, when=knob.when)
            for knob in self.space.knobs
        )
        return replace(self.space, knobs=knobs)


def in_stages(study: Study, make: _MakeSampler) -> StagedSampler:
    """The study's search, one group of knobs after the other."""
    groups = [*knob_groups(study).items()]
    return StagedSampler(study.space, groups, study.budget.trials or TRIALS_WITHOUT_BUDGET, make)


def _lies_in(space: Space, point: Point) -> bool:
    knobs = space.by_name
    return all(name in knobs and knobs[name].contains(value) for name, value in point.items())
