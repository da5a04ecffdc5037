"""Is a study fit to run? Everything that can be known before a node is touched."""

from __future__ import annotations

import hashlib
import itertools
import math
import random
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ridgeline import catalog
from ridgeline.campaign.judge import secret_values
from ridgeline.campaign.task import task_problems
from ridgeline.errors import InputError, Problem, RidgelineError, StudyError, Where
from ridgeline.records.expression import Expression, ExpressionError, Value
from ridgeline.records.run import Resources
from ridgeline.records.secrets import SECRETS_FOLDER, looks_secret
from ridgeline.records.space import Knob, Point, Settings, Space
from ridgeline.records.study import COUNTS, Study
from ridgeline.records.template import TOO_WIDE, bare_fields, field_names, grouped, wide_fields
from ridgeline.records.trial import Stage, Trial
from ridgeline.samplers.base import Sampler, sampler_class
from ridgeline.stats.verdict import FEWEST_BLOCKS
from ridgeline.stats.wording import count
from ridgeline.study.forms import fields, read_form
from ridgeline.study.grant import read_grant
from ridgeline.study.schema import SearchForm
from ridgeline.study.study_file import StudyFile, read_study_file
from ridgeline.study.study_space import MOST_COMBINATIONS, sampled_values
from ridgeline.study.yaml_tree import in_order_of_lines
from ridgeline.workloads.base import Workload


@dataclass(frozen=True)
class _JobComparison:
    """Compares what is pasted, which costs little; where that is not all, also what a run folder would hold."""

    study: Study
    workload: Workload

    def same(self, a: Point, b: Point) -> bool:
        """False also where it cannot be known, because nothing can run there."""
        try:
            first, second = (self.study.space.settings(point) for point in (a, b))
            if self._outline(first) != self._outline(second):
                return False
            return self.workload.pasted_whole or self._prepared(first) == self._prepared(second)
        except (ExpressionError, ValueError, RidgelineError):
            return False

    def _outline(self, settings: Settings) -> str:
        """Different for jobs that differ in what is pasted, built or asked of the site."""
        builds, asked = self.study.builds, self.study.job.resources(settings)
        if (
            self.study.site.batch == "local"
        ):  # it starts the command once, whatever number of nodes and ranks is asked for
            asked = replace(asked, nodes=1, ranks_per_node=1)
        built = [builds.commands(settings), builds.environment(settings)] if builds else []
        return repr((self.workload.paste(settings), built, asked, self.study.job.loaded(settings)))

    def _prepared(self, settings: Settings) -> object:
        with tempfile.TemporaryDirectory(prefix="ridgeline-check-") as folder:
            home = Path(folder) / "runs" / "1"
            job = self.workload.prepare(Trial(1, {}, settings, Stage.SEARCH, "check"), home)
            files = [path for path in sorted(home.rglob("*")) if path.is_file() and not path.is_symlink()]
            content = [(path.relative_to(home), hashlib.sha256(path.read_bytes()).digest()) for path in files]
            return replace(job, name="", folder=Path(), resources=Resources()), content


_DRAWS = 24  # points beside the study's own at which a knob is tried: it may matter only together with another
_SHARES = (0.0, 0.5, 0.999)  # of the way through a knob


def _inert_knobs(study: Study, workload: Workload) -> Iterator[Problem]:
    jobs, space, rng = _JobComparison(study, workload), study.space, random.Random(0)
    drawn = [{knob.name: knob.at(rng.random()) for knob in space.knobs} for _ in range(_DRAWS)]
    places = [study.baseline, *study.presets, *map(space.restrict, drawn)]
    for knob in space.knobs:
        there = [place for place in places if knob.name in place]
        pairs = [(place, other) for place in there for other in _changed(space, knob, place)]
        if pairs and all(jobs.same(a, b) for a, b in pairs):
            yield Problem(("space", knob.name), _reason(study, knob.name))


def _changed(space: Space, knob: Knob, place: Point) -> Iterator[Point]:
    """The place with other values of the knob; knobs that come into being with them get one too."""
    for value in dict.fromkeys(knob.at(share) for share in _SHARES):
        if value != place[knob.name]:
            spare = {name: other.at(0.0) for name, other in space.by_name.items()}
            yield space.restrict({**spare, **place, knob.name: value})


def _reason(study: Study, name: str) -> str:
    """Why no value of this knob changes the job. That a rule names it does not count."""
    job, texts = study.job, [text for _, text in _study_texts(study)]
    used = {field for text in texts for field in field_names(text)}
    for size in (job.nodes, job.ranks_per_node, job.cores, job.gpus):
        used |= size.names if size is not None else set()
    into = f"put {{{name}}} into {'run' if 'run' in study.workload.options else 'the workload'}"
    if name not in _names_behind(study.space, used):
        return f"`{name}` isn't used anywhere; remove it or {into}"
    if study.site.launcher == "none" and any("launch" in field_names(text) for text in texts):
        return (
            f"`{name}` changes nothing here: {{launch}} is empty, because the site has no launcher; "
            f"give the site a `launcher`, or {into}"
        )
    return f"`{name}` changes nothing: all its values give the same job; remove it or correct where it is used"


def _names_behind(space: Space, names: Iterable[str]) -> set[str]:
    """These names and all that decide what they are, by derived values and conditions."""
    found: set[str] = set()
    waiting = set(names)
    while waiting:
        found |= waiting
        read = [space.derived[name] for name in waiting & space.derived.keys()]
        read += [knob.when for knob in space.knobs if knob.name in waiting and knob.when is not None]
        waiting = {name for expression in read for name in expression.names} - found
    return found


@dataclass(frozen=True)
class CheckedStudy:
    """A study that loads, whose parts exist and whose workload accepts it."""

    file: StudyFile
    workload: Workload

    @property
    def study(self) -> Study:
        return self.file.study

    def refusal(self, point: Point) -> str | None:
        """Why this point may not run: a rule of the study, or something the workload knows."""
        reason = self.study.space.refusal(point)
        return reason if reason is not None else self.workload.refusal(self.study.space.settings(point))


def check_study(path: Path, *, files: Path | None = None, home: Path | None = None) -> CheckedStudy:
    """StudyError names every problem with file, line and remedy. `files` and `home` as of `read_study_file`."""
    try:
        return check_new(read_study_file(path, files=files, home=home))
    except StudyError as error:
        if error.partly is None:
            raise
        also = [*error.problems, *_workload_problems(error.partly)]
        raise StudyError(in_order_of_lines(also)) from None


def _workload_problems(file: StudyFile) -> list[str]:
    """What the workload has against a study that has problems already: its own keys, and metrics that nobody reads."""
    try:
        workload: Workload = catalog.part("workloads", file.study.workload.kind)(file.study)
        found = workload.problems()
    except RidgelineError as error:
        return [file.message(("workload", "kind"), str(error))]
    named = ("workload", "goal", "second_goal", "guards")
    return [file.message(p.where, p.message) for p in found if p.where and p.where[0] in named]


def _require_none(file: StudyFile, problems: Iterable[Problem]) -> None:
    if found := [file.message(problem.where, problem.message) for problem in problems]:
        raise StudyError(found)


def check_new(file: StudyFile) -> CheckedStudy:
    """As `check_study`, of a file that was read already."""
    checked = check_file(file)
    study, workload = checked.study, checked.workload
    # only here: a campaign that is under way goes on as it was asked
    found = [*_unreadable_grant(study), *_too_few_blocks(study), *_missing_secrets(study), *_faults(study)]
    found += _lost_fields(study, workload)
    # a field that is lost, or a rule without an answer, also makes jobs alike
    inert = [] if found else _inert_knobs(study, workload)
    _require_none(file, [*found, *task_problems(study, workload), *inert])
    return checked


def _unreadable_grant(study: Study) -> Iterator[Problem]:
    try:
        if study.grant is not None:
            read_grant(study.grant)
    except RidgelineError as error:
        yield Problem(("budget", "grant"), str(error))


def _too_few_blocks(study: Study) -> Iterator[Problem]:
    if study.confirm.top and study.confirm.blocks < FEWEST_BLOCKS:
        said = f"{count(study.confirm.blocks, 'block')} can never give a verdict; use {FEWEST_BLOCKS} or more"
        yield Problem(("stages", "confirm", "blocks"), f"{said}, or `top: 0` for no confirmation")


def check_file(file: StudyFile) -> CheckedStudy:
    study = file.study
    problems: list[Problem] = []

    def part(find: Callable[[], Any], *where: str) -> Any:
        try:
            return find()
        except InputError as error:
            problems.append(Problem(where, str(error)))
            return None

    sampler = part(lambda: sampler_class(study.search.sampler), "stages", "search", "sampler")
    if (form := getattr(sampler, "form", None)) is not None:
        place = ("stages", "search")
        problems += read_form(form, study.search.options, study.folder, place, also=fields(SearchForm))[1]
    part(lambda: catalog.part("executors", study.site.batch), "site")
    factory = part(lambda: catalog.part("workloads", study.workload.kind), "workload", "kind")
    if factory is None:
        _require_none(file, problems)
    workload: Workload = factory(study)
    problems += [*workload.problems(), *_missing_sources(study), *_wide_fields(study)]
    problems += [*_nested_groups(study, workload), *_secrets(study), *_profile_problems(study, workload)]
    _require_none(file, problems)
    checked = CheckedStudy(file, workload)
    _require_none(file, [*_unwilling(sampler, checked), *_refused_points(checked)])
    return checked


def _profile_problems(study: Study, workload: Workload) -> Iterator[Problem]:
    if study.profile is None or study.profile.tool in workload.profilers:
        return
    runs = f"runs of {study.workload.kind} cannot be put under"
    if workload.profilers:
        what = f"{runs} {study.profile.tool}; use {' or '.join(workload.profilers)}"
        yield Problem(("stages", "profile", "tool"), what)
    else:
        yield Problem(("stages", "profile"), f"{runs} a profiler; leave it out")


def _refused_points(checked: CheckedStudy) -> Iterator[Problem]:
    presets = ((("presets", index), point) for index, point in enumerate(checked.study.presets))
    for where, point in ((("baseline",), checked.study.baseline), *presets):
        if reason := checked.refusal(point):
            fixed = _constant_named(checked.study, reason)
            yield Problem(
                fixed or where, f"is refused: {reason}" if fixed else f"is refused: {reason}; choose a legal point"
            )


def _constant_named(study: Study, reason: str) -> Where | None:
    """Where the workload fixes what a reason names, as flags do, if no knob has a part in it: the line to change."""
    words = set(re.findall(r"[A-Za-z]\w*", reason))
    if words & {*study.space.by_name, *study.space.derived}:
        return None
    names = {word for word in words if "_" in word or not word.islower()}  # no plain words
    groups = [(key, group) for key, group in study.workload.options.items() if isinstance(group, Mapping)]
    fixed = ((key, name) for key, group in groups for name, value in group.items() if {name, str(value)} & names)
    return next((("workload", *where) for where in fixed), None)


def _faults(study: Study) -> Iterator[Problem]:
    """Derived values, rules and sizes of the job that have no answer at some point. As refusals they would take part of
    the space away, and nobody would know."""
    found: set[Where] = set()
    sizes = {name: size for name in COUNTS if (size := getattr(study.job, name)) is not None}
    expressions = [*study.space.derived.values(), *(rule.refuse for rule in study.space.rules), *sizes.values()]
    for expression in expressions:
        behind = _names_behind(study.space, expression.names)
        for point in _points_that_tell(study, expression.names):
            fault = study.space.fault(point) or _wrong_size(study, sizes, point)
            if fault is None or fault[0] in found:
                continue
            found.add(fault[0])
            at = ", ".join(f"{name} = {value}" for name, value in point.items() if name in behind)
            yield Problem(fault[0], f"{fault[1]} (at {at}); write it so that it has an answer at every point")


def _wrong_size(study: Study, sizes: Mapping[str, Expression], point: Point) -> tuple[Where, str] | None:
    if study.space.refusal(point) is not None:
        return None
    settings = study.space.settings(point)
    for name, size in sizes.items():
        try:
            size.evaluate(settings)
        except ExpressionError as error:
            return ("job", name), str(error)
    return None


def _points_that_tell(study: Study, names: Iterable[str]) -> Iterator[Point]:
    """Points at which these names take all their values together, of many some; the rest is as in the baseline."""
    space = study.space
    knobs = sorted(_names_behind(space, names) & space.by_name.keys())
    choices = [sampled_values(space.by_name[name]) for name in knobs]
    spare = {**{name: knob.at(0.0) for name, knob in space.by_name.items()}, **study.baseline}
    if math.prod(map(len, choices)) <= MOST_COMBINATIONS:
        combinations: Iterable[Sequence[Value]] = itertools.product(*choices)
    else:
        rng = random.Random(0)
        combinations = ([rng.choice(values) for values in choices] for _ in range(MOST_COMBINATIONS))
    for values in combinations:
        given = {name: value for name, value in zip(knobs, values, strict=True) if value is not None}
        yield space.restrict({**spare, **given})


def _lost_fields(study: Study, workload: Workload) -> Iterator[Problem]:
    """Templates that use a knob which does not exist everywhere, outside a group that would go with it."""
    space = study.space
    for where, text in (*workload.templates(), *_job_texts(study)):
        for name in bare_fields(text, space.optional):
            knob = space.by_name.get(name)
            if knob is not None and knob.when is not None:
                absent = f"where `{knob.when.text}` does not hold"
            elif knob is None and all(space.settings(p)[name] is not None for p in _points_that_tell(study, [name])):
                continue
            else:
                absent = "at points without the knobs it reads"
            what = f"{{{name}}} has no value {absent}, and nothing would be left of it there"
            yield Problem(where, f"{what}; write {grouped(text, name)}")


def _nested_groups(study: Study, workload: Workload) -> Iterator[Problem]:
    for where, text in (*workload.templates(), *_job_texts(study)):
        try:
            bare_fields(text, study.space.optional)
        except ExpressionError as error:
            yield Problem(where, str(error))


def _unwilling(sampler: type[Sampler], checked: CheckedStudy) -> Iterator[Problem]:
    """What the sampler has against its options or the space."""
    search = checked.study.search
    try:
        sampler(checked.study.space, search.seed, search.options, checked.refusal)
    except InputError as error:
        option, _, what = str(error).partition(": ")
        if what and option in search.options:
            yield Problem(("stages", "search", option), what)
        else:
            yield Problem(("stages", "search", "sampler"), str(error))


def _wide_fields(study: Study) -> Iterator[Problem]:
    for where, text in _study_texts(study):
        yield from (Problem(where, f"{field} {TOO_WIDE}") for field in dict.fromkeys(wide_fields(text)))


def _secrets(study: Study) -> Iterator[Problem]:
    """Secrets that somebody wrote down: whoever can read the file, or a run's folder, has them."""
    given, builds = study.workload.options.get("env"), study.builds
    written: list[tuple[Where, str, object]] = [(("site",), name, value) for name, value in study.site.env.items()]
    if isinstance(given, dict):
        written += [(("workload", "env", name), name, value) for name, value in given.items()]
    if builds is not None:
        written += [(("builds", "env", name), name, value) for name, value in builds.env.items()]
    for where, name, value in written:
        if name in study.site.secrets:
            yield Problem(where, f"{name} is among the secrets; remove its value here")
        elif looks_secret(str(value)):
            yield Problem(where, f"{name} looks like a key; remove it here and name {name} under `secrets`")


def _missing_secrets(study: Study) -> Iterator[Problem]:
    names = study.site.secrets
    for name, value in zip(names, secret_values(names), strict=True):
        if not value:
            what = (
                f"is neither in your environment nor in ~/{SECRETS_FOLDER}/{name}; export it, or put it into that file"
            )
            yield Problem(("secrets",), f"{name} {what}")


def _study_texts(study: Study) -> Iterator[tuple[Where, str]]:
    yield from _texts(study.workload.options, ("workload",))
    yield from _job_texts(study)


def _job_texts(study: Study) -> Iterator[tuple[Where, str]]:
    yield from _texts(list(study.job.modules), ("job", "modules"))
    if study.builds:
        yield from _texts({"make": list(study.builds.make), "env": dict(study.builds.env)}, ("builds",))


def _texts(value: object, where: Where) -> Iterator[tuple[Where, str]]:
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _texts(inner, (*where, key))


def _missing_sources(study: Study) -> Iterator[Problem]:
    for index, pattern in enumerate(study.builds.sources if study.builds else ()):
        where = ("builds", "sources", index)
        try:
            if not any(study.folder.glob(pattern)):
                yield Problem(where, f"nothing matches {pattern} in {study.folder}; put it there, or correct the name")
        except (ValueError, NotImplementedError, OSError):
            what = f"{pattern[:200]!r} is not a pattern inside the study's folder; name files below it"
            yield Problem(where, what)
