"""Names that a study says to a workload: which something reads, and which nothing knows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ridgeline.errors import Problem, Where, near
from ridgeline.records.measurement import COSTS
from ridgeline.records.site import unpriced
from ridgeline.records.study import Goal, Study
from ridgeline.records.template import field_names, unknown_fields


def metric_problems(study: Study, metrics: Iterable[str]) -> Iterator[Problem]:
    """Goals must be metrics of the workload or of the study's prices; guards may name knobs too."""
    own = list(metrics)
    offered = [*own, *(name for name in COSTS if name not in own)]
    known = [*offered, *study.space.names]
    yield from _goal_problems(study, "goal", study.goal, offered, own)
    if study.second_goal is not None:
        yield from _goal_problems(study, "second_goal", study.second_goal, offered, own)
    for index, guard in enumerate(study.guards):
        for name in sorted(guard.names - set(known)):
            yield Problem(("guards", index), f"{name} is not a metric, knob or derived value; {near(name, known)}")


def _goal_problems(study: Study, key: str, goal: Goal, offered: list[str], own: list[str]) -> Iterator[Problem]:
    if goal.metric in COSTS and goal.metric not in own and (missing := unpriced(goal.metric, study.site)):
        yield Problem((key, goal.direction), missing)
    if goal.metric not in offered:
        of_what = f"{study.workload.kind} has no metric {goal.metric}"
        yield Problem((key, goal.direction), f"{of_what}; {near(goal.metric, offered)}")


def field_problems(study: Study, templates: Iterable[tuple[Where, str]], also: Iterable[str] = ()) -> Iterator[Problem]:
    """A template may name knobs, derived values, `also`, and {build} where something is built."""
    known = [*study.space.names, *also, *(["build"] if study.builds else [])]
    for where, text in templates:
        for name in unknown_fields(text, known):
            if name == "build":
                yield Problem(where, "{build} is the folder of the built program, but the study has no `builds`")
            else:
                yield Problem(where, f"{{{name}}} is not a knob or a derived value; {near(name, known)}")


def names_read(study: Study, templates: Iterable[str]) -> set[str]:
    """Knobs and derived values that these templates, builds, the job's sizes or other derived values read."""
    builds, job = study.builds, study.job
    texts = [*templates, *job.modules, *((*builds.make, *builds.env.values()) if builds else ())]
    sizes = (job.nodes, job.ranks_per_node, job.cores, job.gpus)
    expressions = (*(size for size in sizes if size is not None), *study.space.derived.values())
    return {name for text in texts for name in field_names(text)} | {n for e in expressions for n in e.names}
