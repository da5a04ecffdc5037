"""Is a study fit to run? Everything that can be known before a node is touched."""

from __future__ import annotations

import hashlib
import itertools
import math
import random
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

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
from ridgeline.samplers.base import sampler_class
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


_DRAWS = 24  # points beside the study's own at which a knob is tried: it may matter only together with another
_SHARES = (0.0, 0.5, 0.999)  # of the way through a knob


def _inert_knobs(study: Study, workload: Workload) -> list[Problem]:
    jobs, places = _JobComparison(study, workload), _places(study)
    return [
        Problem(("space", knob.name), _reason(study, knob.name))
        for knob in study.space.knobs
        if knob.count != 1 and _changes_nothing(jobs, knob, places)
    ]


def _places(study: Study) -> list[Point]:
    rng = random.Random(0)
    space = study.space
    drawn = ({knob.name: knob.at(rng.random()) for knob in space.knobs} for _ in range(_DRAWS))
    return [study.baseline, *study.presets, *map(space.restrict, drawn)]


def _changes_nothing(jobs: _JobComparison, knob: Knob, places: Sequence[Point]) -> bool:
    tried = False
    for place in places:
        for other in _changed(jobs.study.space, knob, place) if knob.name in place else ():
            tried = True
            if not _same(jobs, place, other):
                return False
    return tried


def _same(jobs: _JobComparison, a: Point, b: Point) -> bool:
    try:
        return jobs.same(jobs.study.space.settings(a), jobs.study.space.settings(b))
    except ExpressionError:
        return False


def _changed(space: Space, knob: Knob, place: Point) -> Iterator[Point]:
    """The place with other values of the knob; knobs that come into being with them get one too."""
    for value in dict.fromkeys(knob.at(share) for share in _SHARES):
        if value != place[knob.name]:
            spare = {name: other.at(0.0) for name, other in space.by_name.items()}
            yield space.restrict({**spare, **place, knob.name: value})


def _reason(study: Study, name: str) -> str:
    if name not in _mentioned(study):
        return f"`{name}` isn't used anywhere; remove it or put {{{name}}} into {_where_to_put_it(study)}"
    if study.site.launcher == "none" and any("launch" in field_names(text) for text in _study_texts(study)):
        return (
            f"`{name}` changes nothing here: {{launch}} is empty, because the site has no launcher; "
            f"give the site a `launcher`, or put {{{name}}} into {_where_to_put_it(study)}"
        )
    return f"`{name}` changes nothing: all its values give the same job; remove it or correct where it is used"


def _where_to_put_it(study: Study) -> str:
    return "run" if "run" in study.workload.options else "the workload"


def _study_texts(study: Study) -> Iterator[str]:
    yield from (text for _, text in _texts(study.workload.options, ()))
    yield from study.job.modules
    if study.builds:
        yield from (*study.builds.make, *study.builds.env.values())


def _mentioned(study: Study) -> set[str]:
    """Names that some text or size of the job reads, by derived values and conditions too; rules do not count."""
    job, space = study.job, study.space
    used = {name for text in _study_texts(study) for name in field_names(text)}
    for size in (job.nodes, job.ranks_per_node, job.cores, job.gpus):
        used |= size.names if size is not None else set()
    while more := _read_by(space, used) - used:
        used |= more
    return used


def _read_by(space: Space, used: set[str]) -> set[str]:
    expressions = [space.derived[name] for name in used & space.derived.keys()]
    expressions += [knob.when for knob in space.knobs if knob.name in used and knob.when is not None]
    return {name for expression in expressions for name in expression.names}


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


def check_new(file: StudyFile) -> CheckedStudy:
    """As `check_study`, of a file that was read already."""
    checked = check_file(file)
    found: list[str] = []
    if (grant := checked.study.grant) is not None:
        try:
            read_grant(grant)
        except RidgelineError as error:
            found.append(file.message(("budget", "grant"), str(error)))
    # only here: a campaign that is under way goes on as it was asked
    found += [*_too_few_blocks(file), *_missing_secrets(file), *_faults(file), *_lost_fields(checked)]
    others = [*task_problems(checked.study, checked.workload)]
    if not found:  # a field that is lost, or a rule without an answer, also makes jobs alike
        others += _inert_knobs(checked.study, checked.workload)
    found += [file.message(problem.where, problem.message) for problem in others]
    if found:
        raise StudyError(found)
    return checked


def _too_few_blocks(file: StudyFile) -> list[str]:
    confirm = file.study.confirm
    if not confirm.top or confirm.blocks >= FEWEST_BLOCKS:
        return []
    said = f"{count(confirm.blocks, 'block')} can never give a verdict; use {FEWEST_BLOCKS} or more"
    return [file.message(("stages", "confirm", "blocks"), f"{said}, or `top: 0` for no confirmation")]


def check_file(file: StudyFile) -> CheckedStudy:
    study = file.study
    problems: list[str] = []

    def part(room: str, name: str, *where: str) -> object:
        try:
            return sampler_class(name) if room == "samplers" else catalog.part(room, name)
        except InputError as error:
            problems.append(file.message(where, str(error)))
            return None

    sampler = part("samplers", study.search.sampler, "stages", "search", "sampler")
    problems += _wrong_options(sampler, file)
    part("executors", study.site.batch, "site")
    factory = part("workloads", study.workload.kind, "workload", "kind")
    if factory is None:
        raise StudyError(problems)
    workload: Workload = factory(study)  # type: ignore[operator]
    problems += [file.message(p.where, p.message) for p in workload.problems()]
    problems += _missing_sources(file)
    problems += [*_wide_fields(file), *_nested_groups(file, workload), *_secrets(file)]
    if study.profile is not None and not workload.profilers:
        what = f"runs of {study.workload.kind} cannot be put under a profiler; leave it out"
        problems.append(file.message(("stages", "profile"), what))
    elif study.profile is not None and study.profile.tool not in workload.profilers:
        tools = " or ".join(workload.profilers)
        what = f"runs of {study.workload.kind} cannot be put under {study.profile.tool}; use {tools}"
        problems.append(file.message(("stages", "profile", "tool"), what))
    if problems:
        raise StudyError(problems)
    checked = CheckedStudy(file, workload)
    problems += _unwilling(sampler, checked)
    for where, point in ((("baseline",), study.baseline), *((("presets", i), p) for i, p in enumerate(study.presets))):
        if reason := checked.refusal(point):
            problems.append(file.message(where, f"is refused: {reason}; choose a legal point"))
    if problems:
        raise StudyError(problems)
    return checked


def _faults(file: StudyFile) -> Iterator[str]:
    """Derived values, rules and sizes of the job that have no answer at some point. As refusals they would take part of
    the space away, and nobody would know."""
    study, found = file.study, set()
    sizes = {name: size for name in COUNTS if (size := getattr(study.job, name)) is not None}
    expressions = [*study.space.derived.values(), *(rule.refuse for rule in study.space.rules), *sizes.values()]
    for expression in expressions:
        for point in _points_that_tell(study, expression.names):
            fault = study.space.fault(point) or _wrong_size(study, sizes, point)
            if fault is None or fault[0] in found:
                continue
            found.add(fault[0])
            named = {name: value for name, value in point.items() if name in _knobs_behind(study, expression.names)}
            at = ", ".join(f"{name} = {value}" for name, value in named.items())
            yield file.message(fault[0], f"{fault[1]} (at {at}); write it so that it has an answer at every point")


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


def _knobs_behind(study: Study, names: Iterable[str]) -> set[str]:
    """The knobs that decide what these names are, by derived values and conditions too."""
    space, found, waiting = study.space, set(), set(names)
    while waiting:
        name = waiting.pop()
        knob = space.by_name.get(name)
        reads = space.derived[name].names if knob is None else knob.when.names if knob.when is not None else ()
        found |= {name} if knob is not None else set()
        waiting |= set(reads) - found
    return found


def _points_that_tell(study: Study, names: Iterable[str]) -> Iterator[Point]:
    """Points at which these names take all their values together, of many some; the rest is as in the baseline."""
    space = study.space
    knobs = sorted(_knobs_behind(study, names))
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


def _lost_fields(checked: CheckedStudy) -> Iterator[str]:
    """Templates that use a knob which does not exist everywhere, outside a group that would go with it."""
    study, file = checked.study, checked.file
    optional = study.space.optional
    for where, text in _templates(study, checked.workload):
        for name in bare_fields(text, optional):
            if _may_be_absent(study, name):
                yield file.message(where, f"{{{name}}} {_where_it_is_absent(study, name)}; write {grouped(text, name)}")


def _nested_groups(file: StudyFile, workload: Workload) -> Iterator[str]:
    for where, text in _templates(file.study, workload):
        try:
            bare_fields(text, file.study.space.optional)
        except ExpressionError as error:
            yield file.message(where, str(error))


def _templates(study: Study, workload: Workload) -> Iterator[tuple[Where, str]]:
    yield from workload.templates()
    yield from ((("job", "modules", index), text) for index, text in enumerate(study.job.modules))
    if study.builds:
        yield from ((("builds", "make", index), text) for index, text in enumerate(study.builds.make))
        yield from ((("builds", "env", name), text) for name, text in study.builds.env.items())


def _may_be_absent(study: Study, name: str) -> bool:
    points = _points_that_tell(study, [name])
    return name in study.space.by_name or any(study.space.settings(point)[name] is None for point in points)


def _where_it_is_absent(study: Study, name: str) -> str:
    knob = study.space.by_name.get(name)
    if knob is None or knob.when is None:
        return "has no value at points without the knobs it reads, and nothing would be left of it there"
    return f"has no value where `{knob.when.text}` does not hold, and nothing would be left of it there"


def _wrong_options(sampler: object, file: StudyFile) -> list[str]:
    form = getattr(sampler, "form", None)
    if form is None:
        return []
    search = file.study.search
    _, problems = read_form(form, search.options, file.study.folder, ("stages", "search"), also=fields(SearchForm))
    return [file.message(problem.where, problem.message) for problem in problems]


def _unwilling(sampler: object, checked: CheckedStudy) -> list[str]:
    """What the sampler has against its options or the space."""
    search = checked.study.search
    try:
        sampler(checked.study.space, search.seed, search.options, checked.refusal)  # type: ignore[operator]
    except InputError as error:
        option, found, what = str(error).partition(": ")
        known = bool(found) and option in search.options
        where = ("stages", "search", option if known else "sampler")
        return [checked.file.message(where, what if known else str(error))]
    return []


def _wide_fields(file: StudyFile) -> list[str]:
    builds = file.study.builds
    made = {"make": list(builds.make), "env": dict(builds.env)} if builds else {}
    texts = [*_texts(file.study.workload.options, ("workload",)), *_texts(made, ("builds",))]
    return [
        file.message(where, f"{field} {TOO_WIDE}")
        for where, text in texts
        for field in dict.fromkeys(wide_fields(text))
    ]


def _secrets(file: StudyFile) -> list[str]:
    """Secrets that somebody wrote down: whoever can read the file, or a run's folder, has them."""
    study = file.study
    given = study.workload.options.get("env")
    written = dict(given) if isinstance(given, dict) else {}
    places: list[tuple[Where, str, str]]
    places = [(("workload", "env", name), name, str(value)) for name, value in written.items()]
    places += [
        (("builds", "env", name), name, value) for name, value in (study.builds.env if study.builds else {}).items()
    ]
    places += [(("site",), name, value) for name, value in study.site.env.items()]
    found = []
    for where, name, value in places:
        if name in study.site.secrets:
            found.append(file.message(where, f"{name} is among the secrets; remove its value here"))
        elif looks_secret(value):
            found.append(
                file.message(where, f"{name} looks like a key; remove it here and name {name} under `secrets`")
            )
    return found


def _missing_secrets(file: StudyFile) -> list[str]:
    names = file.study.site.secrets
    missing = [name for name, value in zip(names, secret_values(names), strict=True) if not value]
    what = "is neither in your environment nor in ~/{}/{}; export it, or put it into that file"
    return [file.message(("secrets",), f"{name} {what.format(SECRETS_FOLDER, name)}") for name in missing]


def _texts(value: object, where: Where) -> Iterator[tuple[Where, str]]:
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _texts(inner, (*where, key))


def _missing_sources(file: StudyFile) -> list[str]:
    builds, folder = file.study.builds, file.study.folder
    found = []
    for index, pattern in enumerate(builds.sources if builds else ()):
        try:
            if not any(folder.glob(pattern)):
                what = f"nothing matches {pattern} in {folder}; put it there, or correct the name"
                found.append(file.message(("builds", "sources", index), what))
        except (ValueError, NotImplementedError, OSError):
            what = f"{pattern[:200]!r} is not a pattern inside the study's folder; name files below it"
            found.append(file.message(("builds", "sources", index), what))
    return found
