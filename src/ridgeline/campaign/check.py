"""Is a study fit to run? Everything that can be known before a node is touched."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ridgeline import catalog
from ridgeline.campaign.inert import inert_knobs
from ridgeline.campaign.judge import secret_values
from ridgeline.campaign.thrift.early_stop import cannot_be_watched
from ridgeline.campaign.thrift.short_trials import WHERE as SHORT_TRIALS
from ridgeline.campaign.thrift.short_trials import short_problems, shortened
from ridgeline.errors import InputError, StudyError
from ridgeline.forms.reading import read_form
from ridgeline.forms.shape import fields
from ridgeline.records.expression import ExpressionError
from ridgeline.records.problem import Where
from ridgeline.records.secrets import SECRETS_FOLDER, looks_secret
from ridgeline.records.space import Point
from ridgeline.records.study import Study
from ridgeline.records.template import TOO_WIDE, wide_fields
from ridgeline.store.stage_forms import SearchForm
from ridgeline.store.study_file import StudyFile, read_study_file
from ridgeline.workloads.base import Workload

LISTED_POINTS = 200_000  # spaces up to this size are counted, larger ones sampled
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
        executor = catalog.part("executors", self.study.site.batch)(self.study.site)
        ask: Callable[..., list[str]] = getattr(executor, "doubts", lambda resources: [])
        return ask(self.study.job.resources(self.study.space.settings(self.study.baseline)))

    def remarks(self) -> list[str]:
        """What the workload finds out on the node, and how it will do so, for people to correct it beforehand."""
        ask: Callable[..., list[str]] = getattr(self.workload, "remarks", lambda settings: [])
        return ask(self.study.space.settings(self.study.baseline))


def check_study(path: Path) -> CheckedStudy:
    """StudyError names every problem with file, line and remedy."""
    checked = check_file(read_study_file(path))
    # only here: a campaign that is under way goes on as it was asked
    if missing := _missing_secrets(checked.file):
        raise StudyError(missing)
    if inert := inert_knobs(checked.study, checked.workload):
        raise StudyError([checked.file.message(problem.where, problem.message) for problem in inert])
    return checked


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
    problems += [*_wide_fields(file), *_secrets(file)]
    if study.profile is not None and not getattr(workload, "profiles", False):
        what = f"runs of {study.workload.kind} cannot be put under a profiler; leave it out"
        problems.append(file.message(("stages", "profile"), what))
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
                found.append(file.message(("builds", "sources", index), f"nothing matches {pattern}; correct the name"))
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
    if space.raw_size() <= LISTED_POINTS:
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
class Stake:
    """What a campaign may cost at the most: every run at its limit. None: no limit is set by the study."""

    runs: int | None
    node_hours: float | None


def stake(study: Study, trials: int | None = None) -> Stake:
    from ridgeline.campaign.confirmation import runs_needed
    from ridgeline.campaign.ledger import TRIALS_WITHOUT_BUDGET

    budget = study.budget
    searched = (
        trials or budget.trials or (TRIALS_WITHOUT_BUDGET if budget.wall_s is budget.node_hours is None else None)
    )
    confirmed = runs_needed(study, study.confirm.top, study.confirm.blocks)
    try:
        nodes = study.job.resources(study.space.settings(study.baseline)).nodes
    except (ExpressionError, ValueError) as error:
        raise StudyError(f"job: {error}") from None
    limits = [math.inf if budget.node_hours is None else budget.node_hours]
    runs = None
    if searched is not None:
        sentinels = searched // study.search.sentinel_every if study.search.sentinel_every else 0
        runs = study.baseline_stage.repeats + searched + sentinels + confirmed
        limits.append(runs * nodes * study.job.limit_s / 3600.0)
    if budget.wall_s is not None:
        limits.append(budget.wall_s * nodes * study.site.jobs_at_once / 3600.0)
    worst = min(limits)
    return Stake(runs, None if worst == math.inf else worst)
