"""Knobs whose value changes nothing that runs: a search over them would compare a program with itself."""

from __future__ import annotations

import hashlib
import random
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ridgeline.errors import RidgelineError
from ridgeline.records.expression import ExpressionError
from ridgeline.records.problem import Problem
from ridgeline.records.run import Resources
from ridgeline.records.space import Knob, Point, Settings, Space
from ridgeline.records.study import Study
from ridgeline.records.template import field_names
from ridgeline.records.trial import Stage, Trial
from ridgeline.workloads.base import Workload


@dataclass(frozen=True)
class JobComparison:
    """Compares what is pasted, which costs little; where that is not all, also what a run folder would hold."""

    study: Study
    workload: Workload

    def outline(self, settings: Settings) -> str | None:
        """Different for jobs that differ in what is pasted, built or asked of the site; None where nothing can run."""
        builds = self.study.builds
        try:
            asked = _as_the_site_sees(self.study.site.batch, self.study.job.resources(settings))
            built = [builds.commands(settings), builds.environment(settings)] if builds else []
            return repr((self.workload.paste(settings), built, asked, self.study.job.loaded(settings)))
        except (ExpressionError, ValueError, RidgelineError):
            return None

    def same(self, a: Settings, b: Settings) -> bool:
        """False also where it cannot be known."""
        outline = self.outline(a)
        if outline is None or outline != self.outline(b):
            return False
        if self.workload.pasted_whole:
            return True
        first = self._prepared(a)
        return first is not None and first == self._prepared(b)

    def _prepared(self, settings: Settings) -> object:
        with tempfile.TemporaryDirectory(prefix="ridgeline-check-") as folder:
            home = Path(folder) / "runs" / "1"
            try:
                job = self.workload.prepare(Trial(1, {}, settings, Stage.SEARCH, "check"), home)
            except (ExpressionError, ValueError, RidgelineError):
                return None
            plain = replace(job, name="", folder=Path(), resources=Resources())
            return plain, list(_content(home))


def _as_the_site_sees(batch: str, asked: Resources) -> Resources:
    # this machine starts the command once, whatever number of nodes and ranks is asked for
    return replace(asked, nodes=1, ranks_per_node=1) if batch == "local" else asked


def _content(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield str(path.relative_to(folder)), hashlib.sha256(path.read_bytes()).hexdigest()


DRAWS = 24  # points beside the study's own at which a knob is tried: it may matter only together with another
SHARES = (0.0, 0.5, 0.999)  # of the way through a knob


def inert_knobs(study: Study, workload: Workload) -> list[Problem]:
    jobs, places = JobComparison(study, workload), _places(study)
    return [
        Problem(("space", knob.name), _reason(study, knob.name))
        for knob in study.space.knobs
        if knob.count != 1 and _changes_nothing(jobs, knob, places)
    ]


def _places(study: Study) -> list[Point]:
    rng = random.Random(0)
    space = study.space
    drawn = ({knob.name: knob.at(rng.random()) for knob in space.knobs} for _ in range(DRAWS))
    return [study.baseline, *study.presets, *map(space.restrict, drawn)]


def _changes_nothing(jobs: JobComparison, knob: Knob, places: Sequence[Point]) -> bool:
    tried = False
    for place in places:
        for other in _changed(jobs.study.space, knob, place) if knob.name in place else ():
            tried = True
            if not _same(jobs, place, other):
                return False
    return tried


def _same(jobs: JobComparison, a: Point, b: Point) -> bool:
    try:
        return jobs.same(jobs.study.space.settings(a), jobs.study.space.settings(b))
    except ExpressionError:
        return False


def _changed(space: Space, knob: Knob, place: Point) -> Iterator[Point]:
    """The place with other values of the knob; knobs that come into being with them get one too."""
    for value in dict.fromkeys(knob.at(share) for share in SHARES):
        if value != place[knob.name]:
            spare = {name: other.at(0.0) for name, other in space.by_name.items()}
            yield space.restrict({**spare, **place, knob.name: value})


def _reason(study: Study, name: str) -> str:
    if name not in _mentioned(study):
        return f"`{name}` isn't used anywhere; remove it or put {{{name}}} into {_where_to_put_it(study)}"
    if study.site.launcher == "none" and any("launch" in field_names(text) for text in _texts(study)):
        return (
            f"`{name}` changes nothing here: {{launch}} is empty, because the site has no launcher; "
            f"give the site a `launcher`, or put {{{name}}} into {_where_to_put_it(study)}"
        )
    return f"`{name}` changes nothing: all its values give the same job; remove it or correct where it is used"


def _where_to_put_it(study: Study) -> str:
    return "run" if "run" in study.workload.options else "the workload"


def _texts(study: Study) -> Iterator[str]:
    yield from _strings(study.workload.options)
    yield from study.job.modules
    if study.builds:
        yield from (*study.builds.make, *study.builds.env.values())


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, Iterable):
        for inner in value:
            yield from _strings(inner)


def _mentioned(study: Study) -> set[str]:
    """Names that some text or size of the job reads, by derived values and conditions too; rules do not count."""
    job, space = study.job, study.space
    used = {name for text in _texts(study) for name in field_names(text)}
    for size in (job.nodes, job.ranks_per_node, job.cores, job.gpus):
        used |= size.names if size is not None else set()
    while more := _read_by(space, used) - used:
        used |= more
    return used


def _read_by(space: Space, used: set[str]) -> set[str]:
    expressions = [space.derived[name] for name in used & space.derived.keys()]
    expressions += [knob.when for knob in space.knobs if knob.name in used and knob.when is not None]
    return {name for expression in expressions for name in expression.names}
