"""Is a study fit to run? Everything that can be known before a node is touched."""

from __future__ import annotations

import hashlib
import itertools
import math
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ridgeline import catalog
from ridgeline.campaign.blocks import MOST_MOVES
from ridgeline.campaign.early_stop import cannot_be_watched
from ridgeline.campaign.judge import secret_values
from ridgeline.campaign.short_trials import WHERE as SHORT_TRIALS
from ridgeline.campaign.short_trials import short_problems, shortened
from ridgeline.campaign.task import task_problems
from ridgeline.errors import InputError, Problem, RidgelineError, StudyError, Where
from ridgeline.executors.base import Executor
from ridgeline.records.expression import Expression, ExpressionError, Value, show_duration
from ridgeline.records.run import Resources
from ridgeline.records.secrets import SECRETS_FOLDER, looks_secret
from ridgeline.records.space import Knob, Point, Settings, Space
from ridgeline.records.study import Study
from ridgeline.records.template import TOO_WIDE, bare_fields, field_names, grouped, wide_fields
from ridgeline.records.trial import Stage, Trial
from ridgeline.stats.nodes import MOST_URGENT, most_baseline_runs
from ridgeline.stats.verdict import FEWEST_BLOCKS
from ridgeline.stats.wording import count
from ridgeline.study.forms import fields, read_form
from ridgeline.study.grant import read_grant
from ridgeline.study.schema import SearchForm
from ridgeline.study.study_file import COUNTS, StudyFile, line_number, read_study_file
from ridgeline.study.study_space import MOST_COMBINATIONS, sampled_values
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
        if knob.count != 1 and knob.name not in study.variables and _changes_nothing(jobs, knob, places)
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


_LISTED_POINTS = 200_000  # spaces up to this size are counted, larger ones sampled
SAMPLED_POINTS = 20_000


@dataclass(frozen=True)
class CheckedStudy:
    """A study that loads, whose parts exist and whose workload accepts it."""

    file: StudyFile
    workload: Workload
    short: Workload | None = None  # of short trials, where the study has them

    @property
    def study(self) -> Study:
        return self.file.study

    def refusal(self, point: Point) -> str | None:
        """Why this point may not run: a rule of the study, or something the workload knows."""
        reason = self.study.space.refusal(point)
        return reason if reason is not None else self.workload.refusal(self.study.space.settings(point))

    def doubts(self) -> list[str]:
        """What is allowed and yet likely to go wrong, as the site's executor says of the baseline's job."""
        executor: Executor = catalog.part("executors", self.study.site.batch)(self.study.site)
        found = executor.doubts(self.study.job.resources(self.study.space.settings(self.study.baseline)))
        more = (_profile_doubt(self.study), _profiler_doubt(self.study), *_tight_budget(self.study))
        return [*found, *self.workload.doubts(), *filter(None, more)]

    def remarks(self) -> list[str]:
        """What the workload finds out on the node, and how it will do so, for people to correct it beforehand."""
        return self.workload.remarks(self.study.space.settings(self.study.baseline))


def check_study(path: Path, *, files: Path | None = None, home: Path | None = None) -> CheckedStudy:
    """StudyError names every problem with file, line and remedy. `files` and `home` as of `read_study_file`."""
    try:
        return check_new(read_study_file(path, files=files, home=home))
    except StudyError as error:
        if error.partly is None:
            raise
        also = [*error.problems, *_workload_problems(error.partly)]
        raise StudyError(sorted(dict.fromkeys(also), key=line_number)) from None


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
            return catalog.part(room, name)
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
    problems += [file.message(problem.where, problem.message) for problem in short_problems(study)]
    if study.search.stop_early is not None and (why := cannot_be_watched(study, workload)):
        problems.append(file.message(("stages", "search", "stop_early"), why))
    if problems:
        raise StudyError(problems)
    checked = CheckedStudy(file, workload, _short_workload(factory, file) if study.search.short else None)
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


def _short_workload(factory: object, file: StudyFile) -> Workload:
    workload: Workload = factory(shortened(file.study))  # type: ignore[operator]
    if problems := workload.problems():
        raise StudyError([file.message((*SHORT_TRIALS, str(p.where[-1])), p.message) for p in problems])
    return workload


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


@dataclass(frozen=True, slots=True)
class SpaceSize:
    """How many points there are, and how many may run. `exact` is False when they were sampled."""

    points: float
    legal: float
    exact: bool
    refused: Counter[str]


def space_size(checked: CheckedStudy, seed: int = 0) -> SpaceSize:
    space = checked.study.space
    if space.raw_size() <= _LISTED_POINTS:
        refused: Counter[str] = Counter()
        total = 0
        for point in space.points():
            total += 1
            if reason := checked.refusal(point):
                refused[reason] += 1
        return SpaceSize(total, total - refused.total(), True, refused)
    rng = random.Random(seed)
    draws = ({knob.name: knob.at(rng.random()) for knob in space.knobs} for _ in itertools.count())
    sample = [space.restrict(values) for values in itertools.islice(draws, SAMPLED_POINTS)]
    refused = Counter(reason for point in sample if (reason := checked.refusal(point)))
    share = 1 - refused.total() / len(sample)
    return SpaceSize(space.raw_size(), space.raw_size() * share, False, refused)


@dataclass(frozen=True, slots=True)
class StakePart:
    """What one part of a campaign may cost at the most: so many runs, each on so many nodes, and what they are for."""

    name: str
    runs: int | None  # None: as many as time and node-hours allow
    nodes: int
    why: str


@dataclass(frozen=True, slots=True)
class Stake:
    """What a campaign may cost at the most, every run at its limit. None: no limit is set by the study.

    `runs` and `node_hours` hold where the site does its part; a run that falls to a fault of a node or of the site is
    repeated, which `runs_with_faults` counts. Stopping and resuming, and what people ask of it meanwhile, are extra.
    """

    parts: tuple[StakePart, ...]
    limit_s: float  # of one run
    budget_hours: float  # what the study's own limits allow, builds on the site included; infinite without any
    runs_with_faults: int | None
    builds: int | None = 0  # variants of the program; None: one for every setting
    build_hours: float = 0.0  # where they are built on the site
    limits: Mapping[str, float] = field(default_factory=dict)  # the budget's own, by key, in node-hours

    @property
    def runs(self) -> int | None:
        known = [part.runs for part in self.parts if part.runs is not None]
        return sum(known) if len(known) == len(self.parts) else None

    def share_of(self, name: str) -> float | None:
        """The part of all node-hours that a part may take; None where nobody can tell how many runs there will be."""
        hours = {part.name: self.node_hours_of(part) or 0.0 for part in self.parts}
        return None if self.runs is None else hours.get(name, 0.0) / sum(hours.values())

    def node_hours_of(self, part: StakePart) -> float | None:
        return None if part.runs is None else part.runs * part.nodes * self.limit_s / 3600.0

    @property
    def node_hours(self) -> float | None:
        hours = [self.node_hours_of(part) for part in self.parts]
        known = [each for each in hours if each is not None]
        all_of_it = math.inf if len(known) < len(hours) else sum(known) + self.build_hours
        worst = min(self.budget_hours, all_of_it)
        return None if worst == math.inf else worst

    @property
    def binds(self) -> str:
        """The key of the budget that ends it, where one does before every run that is asked for has run."""
        hours = [self.node_hours_of(part) for part in self.parts]
        known = [each for each in hours if each is not None]
        planned = sum(known) + self.build_hours if len(known) == len(hours) else math.inf
        ends = min(self.limits, key=self.limits.__getitem__, default="")
        return ends if ends and self.limits[ends] < planned else ""


def stake(study: Study, trials: int | None = None) -> Stake:
    """The most that a search of this study runs, part by part."""
    from ridgeline.campaign.confirmation import runs_needed
    from ridgeline.campaign.ledger import TRIALS_WITHOUT_BUDGET

    budget, search, confirm = study.budget, study.search, study.confirm
    unlimited = budget.wall_s is budget.node_hours is None
    searched = next((n for n in (trials, budget.trials) if n is not None), TRIALS_WITHOUT_BUDGET if unlimited else None)
    try:
        width, widest = _width(study), _widest(study)
    except (ExpressionError, ValueError) as error:
        raise StudyError(f"job: {error}") from None
    parts = [StakePart("baseline", study.baseline_stage.repeats, width, "repeats, to see how far runs scatter")]
    if search.short:
        short = None if searched is None else searched + 1
        parts.append(StakePart("short", short, widest, "every trial short first, and the baseline once"))
    parts.append(StakePart("search", searched, widest, "trials, one run each"))
    if search.sentinel_every:
        parts += _looks(study, searched, width)
    top, who = confirm.top, f"best {confirm.top}"
    if study.equivalent_within is not None:
        top = searched or TRIALS_WITHOUT_BUDGET
        who = "every setting that passes"
    confirmed = runs_needed(study, top, confirm.blocks, warm_ups=False)
    repeats = "one run" if confirm.repeats == 1 else f"{confirm.repeats} runs"
    blocks = f"baseline and {who}, {repeats} each in each of {confirm.blocks} blocks"
    parts.append(StakePart("confirmation", confirmed, widest, blocks))
    if confirm.top and confirm.warmup != "never":
        why = "one that does not count before each block, where nothing ran just before it"
        parts.append(StakePart("warm-up", confirm.blocks, width, why))
    if not confirm.top:  # else it runs in place of the confirmation
        parts.append(StakePart("baseline again", 1, width, "where nothing passed: the settings, or the site?"))
    if study.profile is not None:
        parts.append(StakePart("profile", 2, widest, "baseline and best setting under the profiler"))
    known = [part.runs for part in parts if part.runs is not None]
    with_faults = None
    if len(known) == len(parts):
        # a block of which a run landed elsewhere is run again as a whole
        again = MOST_MOVES * confirmed if study.site.nodes > 1 or study.site.batch != "local" else 0
        with_faults = (sum(known) + again) * (1 + study.job.retries)
    allowed = _budget_hours(study, widest)
    builds = None if searched is None else searched + 1
    limits = _limits_in_hours(study, widest)
    if study.builds is None:
        return Stake(tuple(parts), study.job.limit_s, allowed, with_faults, limits=limits)
    on_site = math.inf if builds is None else builds * study.builds.limit_s / 3600.0
    hours = on_site if study.builds.where == "site" else 0.0
    return Stake(tuple(parts), study.job.limit_s, allowed, with_faults, builds, hours, limits)


def _profile_doubt(study: Study) -> str:
    """Of a study whose profiles take more than they should; else empty."""
    from ridgeline.campaign.ledger import PROFILE_SHARE

    if study.profile is None:
        return ""
    planned = stake(study)
    share = planned.share_of("profile")
    if share is None or share <= PROFILE_SHARE:
        return ""
    return (
        f"stages.profile adds 2 of at most {planned.runs} runs, {share:.0%} of the node-hours, which is more than "
        f"{PROFILE_SHARE:.0%}; with more trials or blocks it is less"
    )


_PROFILERS_ON_PATH = ("perf", "vtune", "nsys")  # the others are libraries, or the engine's own


def _profiler_doubt(study: Study) -> str:
    """Of a profiler that jobs on this machine will not find; empty where they may, or where jobs run elsewhere."""
    tool, site = study.profile.tool if study.profile is not None else "", study.site
    brought = site.modules or study.job.modules or site.setup or site.container or "PATH" in site.env
    in_image = any(name in study.workload.options for name in ("engine", "engines"))
    if tool not in _PROFILERS_ON_PATH or site.batch != "local" or brought or in_image or shutil.which(tool):
        return ""
    return (
        f"stages.profile: {tool} is not on the PATH of this machine, so there will be no profile; install it, load a "
        "module that has it (job: {modules: [...]}), or take another tool"
    )


def _looks(study: Study, searched: int | None, width: int) -> list[StakePart]:
    """Runs of the baseline between those of the search: after the last trial there is none."""
    every = study.search.sentinel_every
    why = f"the baseline again after every {every} trials"
    done = None if searched is None else max(0, searched - (0 if study.search.short else 1))
    regular = None if done is None else done // every
    found = [StakePart("repeats", regular, width, why)]
    if study.site.nodes > 1:
        most = most_baseline_runs(study.site.nodes, width)
        more = most if done is None or regular is None else min(most, max(0, MOST_URGENT * done - regular))
        why = "the baseline on nodes not seen yet or suspected to be slow"
        found.append(StakePart("survey of nodes", more, width, why))
    return found


def _budget_hours(study: Study, nodes: int) -> float:
    """What time and node-hours allow: nothing is begun beyond them, and what is in flight may go on to its limit."""
    at_once = nodes * study.site.jobs_at_once
    over = at_once * study.job.limit_s / 3600.0
    if study.builds is not None and study.builds.where == "site":  # on one node, and its run follows
        over += study.site.jobs_at_once * study.builds.limit_s / 3600.0
    return min(_limits_in_hours(study, nodes).values(), default=math.inf) + over


def _limits_in_hours(study: Study, nodes: int) -> dict[str, float]:
    """What each limit of the budget comes to; a run that is under way when it is reached goes on."""
    found = {}
    if study.budget.node_hours is not None:
        found["node_hours"] = study.budget.node_hours
    if study.budget.wall_s is not None:
        found["wall"] = nodes * study.site.jobs_at_once * study.budget.wall_s / 3600.0
    return found


def _tight_budget(study: Study) -> Iterator[str]:
    """Limits that hold a confirmation only where runs end before their own limit: how long a run may take then, and
    the smallest limit that holds it whatever they take."""
    from ridgeline.campaign.confirmation import runs_needed

    if not study.confirm.top or study.equivalent_within is not None:
        return
    limit_s, at_once, nodes = study.job.limit_s, study.site.jobs_at_once, _width(study)
    before, confirmed = study.baseline_stage.repeats + 1, runs_needed(study, 1, FEWEST_BLOCKS)
    runs = before + confirmed
    what = f"holds the baseline, one trial and {FEWEST_BLOCKS} blocks of confirmation ({runs} runs) only if a run takes"
    remedy = f"it may take {show_duration(limit_s)} (job.limit)"
    # runs of one block follow each other; blocks may run beside each other
    rounds = math.ceil(before / at_once) + math.ceil(FEWEST_BLOCKS / at_once) * confirmed / FEWEST_BLOCKS
    if (wall_s := study.budget.wall_s) is not None and rounds * limit_s > wall_s:
        least = f"`wall: {show_duration(rounds * limit_s)}` is always enough"
        yield f"budget.wall: {show_duration(wall_s)} {what} at most {_rounded(wall_s / rounds)}, and {remedy}; {least}"
    if (hours := study.budget.node_hours) is not None and runs * nodes * limit_s / 3600.0 > hours:
        least = f"`node_hours: {runs * nodes * limit_s / 3600.0:.3g}` is always enough"
        each_s = hours * 3600.0 / nodes / runs
        yield f"budget.node_hours: {hours:g} {what} at most {_rounded(each_s)}, and {remedy}; {least}"


def _rounded(seconds: float) -> str:
    return show_duration(float(f"{seconds:.2g}") if seconds < 10 else math.floor(seconds))


def _width(study: Study) -> int:
    return study.job.resources(study.space.settings(study.baseline)).nodes


def _widest(study: Study) -> int:
    """The most nodes a job of this study asks for; of a space too large to list, all the site has."""
    if study.job.nodes is None:
        return 1
    if study.space.raw_size() > SAMPLED_POINTS:
        return max(study.site.nodes, _width(study))
    legal = (point for point in study.space.points() if study.space.refusal(point) is None)
    return max((study.job.resources(study.space.settings(point)).nodes for point in legal), default=1)
