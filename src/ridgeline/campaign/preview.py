"""What a study comes to before anything runs: its space, its cost at most, what is doubtful, the first scripts.

Nothing is run, built or journaled.
"""

from __future__ import annotations

import math
import random
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ridgeline.campaign.assembly import as_asked, executor_of
from ridgeline.campaign.builds import Recipe
from ridgeline.campaign.check import CheckedStudy, check_file
from ridgeline.campaign.confirmation import MOST_MOVES, runs_needed
from ridgeline.campaign.kinds.search import SearchQuestion
from ridgeline.campaign.ledger import TRIALS_WITHOUT_BUDGET
from ridgeline.campaign.sampling import sampler_of, unpredicted
from ridgeline.errors import Problem, StudyError
from ridgeline.records.exhibit import Shown, TextTable
from ridgeline.records.expression import ExpressionError, show_duration
from ridgeline.records.space import Point
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.stats.nodes import MOST_URGENT, most_baseline_runs
from ridgeline.stats.verdict import FEWEST_BLOCKS
from ridgeline.study.study_file import read_study_file


@dataclass(frozen=True, slots=True)
class DryRun:
    """One trial as it would run: the commands of its build (if the study builds) and the exact script.

    `starts` are the lines that start the program, in the script and in those that it calls: (which, line).
    """

    trial: Trial
    build: tuple[str, ...]
    script: str
    starts: tuple[tuple[str, str], ...]


def rehearse(study_path: Path, question: SearchQuestion, count: int, folder: Path) -> Iterator[DryRun]:
    """The first `count` trials, rendered into `folder`. Later proposals of a learning sampler depend on results."""
    found = check_file(as_asked(read_study_file(study_path), question))
    study = found.study
    executor, sampler = executor_of(found), sampler_of(found)
    plan: list[tuple[Point, Stage, str]] = [(study.baseline, Stage.BASELINE, "baseline")]
    plan += [(preset, Stage.SEARCH, "preset") for preset in study.presets]
    while len(plan) < count and (proposal := sampler.ask([point for point, _, _ in plan])) is not None:
        plan.append((proposal.point, Stage.SEARCH, study.search.sampler))
    for number, (point, stage, proposer) in enumerate(plan[:count], 1):
        trial = Trial(number, point, study.space.settings(point), stage, proposer)
        run_folder = folder / "runs" / f"{number:04d}-{trial.label}"
        run_folder.mkdir(parents=True, exist_ok=True)
        commands: tuple[str, ...] = ()
        if study.builds is not None:
            build = folder / "builds" / Recipe(study.builds, study.folder, study.job).key(trial.settings)
            build.mkdir(parents=True, exist_ok=True)
            trial = replace(trial, build=build)
            commands = tuple(study.builds.commands(trial.settings))
        job = study.completed(found.workload.prepare(trial, run_folder), trial.settings)
        # in run.sh the command stands in quotes, under what watches it; a script for each rank hands over by `exec`
        starts = [("command", line) for line in job.command.splitlines()]
        for path in sorted(job.folder.glob("*.sh")):
            lines = path.read_text(errors="replace").splitlines()
            starts += [(path.name, line) for line in lines if line.startswith("exec ")]
        yield DryRun(trial, commands, executor.script(job), tuple(starts))


_LISTED_POINTS = 200_000  # spaces up to this size are counted, larger ones sampled
SAMPLED_POINTS = 20_000


@dataclass(frozen=True, slots=True)
class SpaceSize:
    """How many points there are, and how many may run. `exact` is False when they were sampled."""

    points: float
    legal: float
    exact: bool
    refused: Counter[str]


def space_size(checked: CheckedStudy) -> SpaceSize:
    space, rng = checked.study.space, random.Random(0)
    exact = space.raw_size() <= _LISTED_POINTS
    draws = ({knob.name: knob.at(rng.random()) for knob in space.knobs} for _ in range(SAMPLED_POINTS))
    found = Counter(map(checked.refusal, space.points() if exact else map(space.restrict, draws)))
    refused = Counter({reason: times for reason, times in found.items() if reason is not None})
    if exact:
        return SpaceSize(found.total(), found[None], True, refused)
    return SpaceSize(space.raw_size(), space.raw_size() * (found[None] / found.total()), False, refused)


@dataclass(frozen=True, slots=True)
class StakePart:
    """What one part of a campaign may cost at the most: so many runs, each on so many nodes, and what they are for."""

    name: str
    runs: int | None  # None: as many as time and node-hours allow
    why: str
    node_hours: float | None


@dataclass(frozen=True, slots=True)
class Stake:
    """What a campaign may cost at the most, every run at its limit. None: no limit is set by the study.

    `runs` and `node_hours` hold where the site does its part; a run that falls to a fault of a node or of the site is
    repeated, which `runs_with_faults` counts. Stopping and resuming, and what people ask of it meanwhile, are extra.
    """

    parts: tuple[StakePart, ...]
    budget_hours: float  # what the study's own limits allow, builds on the site included; infinite without any
    runs_with_faults: int | None
    builds: int | None  # variants of the program; None: one for every setting
    build_hours: float  # where they are built on the site
    limits: Mapping[str, float]  # the budget's own, by key, in node-hours

    @property
    def runs(self) -> int | None:
        known = [part.runs for part in self.parts if part.runs is not None]
        return sum(known) if len(known) == len(self.parts) else None

    @property
    def _planned_hours(self) -> float:
        return sum(math.inf if part.node_hours is None else part.node_hours for part in self.parts) + self.build_hours

    @property
    def node_hours(self) -> float | None:
        worst = min(self.budget_hours, self._planned_hours)
        return None if worst == math.inf else worst

    @property
    def binds(self) -> str:
        """The key of the budget that ends it, where one does before every run that is asked for has run."""
        ends = min(self.limits, key=self.limits.__getitem__, default="")
        return ends if ends and self.limits[ends] < self._planned_hours else ""


def stake(study: Study, trials: int | None = None) -> Stake:
    """The most that a search of this study runs, part by part."""
    budget, search, confirm = study.budget, study.search, study.confirm
    unlimited = budget.wall_s is budget.node_hours is None
    searched = next((n for n in (trials, budget.trials) if n is not None), TRIALS_WITHOUT_BUDGET if unlimited else None)
    try:
        width, widest = _width(study), _widest(study)
    except (ExpressionError, ValueError) as error:
        raise StudyError(f"job: {error}") from None
    parts: list[StakePart] = []

    def add(name: str, runs: int | None, nodes: int, why: str) -> None:
        hours = None if runs is None else runs * nodes * study.job.limit_s / 3600.0
        parts.append(StakePart(name, runs, why, hours))

    add("baseline", study.baseline_stage.repeats, width, "repeats, to see how far runs scatter")
    add("search", searched, widest, "trials, one run each")
    if every := search.sentinel_every:  # between the runs of the search: after the last trial there is none
        done = None if searched is None else max(0, searched - 1)
        regular = None if done is None else done // every
        add("repeats", regular, width, f"the baseline again after every {every} trials")
        if study.site.nodes > 1:
            most = most_baseline_runs(study.site.nodes, width)
            more = most if done is None or regular is None else min(most, max(0, MOST_URGENT * done - regular))
            add("survey of nodes", more, width, "the baseline on nodes not seen yet or suspected to be slow")
    top, who = confirm.top, f"best {confirm.top}"
    if study.equivalent_within is not None:
        top = searched or TRIALS_WITHOUT_BUDGET
        who = "every setting that passes"
    confirmed = runs_needed(study, top, confirm.blocks, warm_ups=False)
    repeats = "one run" if confirm.repeats == 1 else f"{confirm.repeats} runs"
    blocks = f"baseline and {who}, {repeats} each in each of {confirm.blocks} blocks"
    add("confirmation", confirmed, widest, blocks)
    if confirm.top and confirm.warmup != "never":
        why = "one that does not count before each block, where nothing ran just before it"
        add("warm-up", confirm.blocks, width, why)
    if not confirm.top:  # else it runs in place of the confirmation
        add("baseline again", 1, width, "where nothing passed: the settings, or the site?")
    if study.profile is not None:
        add("profile", 2, widest, "baseline and best setting under the profiler")
    known = [part.runs for part in parts if part.runs is not None]
    with_faults = None
    if len(known) == len(parts):
        # a block of which a run landed elsewhere is run again as a whole
        again = MOST_MOVES * confirmed if study.site.nodes > 1 or study.site.batch != "local" else 0
        with_faults = (sum(known) + again) * (1 + study.job.retries)

    # nothing is begun beyond the limits, and what is in flight may go on to its own
    at_once, limits = study.site.jobs_at_once, {}
    if budget.node_hours is not None:
        limits["node_hours"] = budget.node_hours
    if budget.wall_s is not None:
        limits["wall"] = widest * at_once * budget.wall_s / 3600.0
    allowed = min(limits.values(), default=math.inf) + widest * at_once * study.job.limit_s / 3600.0
    if study.builds is None:
        return Stake(tuple(parts), allowed, with_faults, 0, 0.0, limits)
    builds, build_hours = None if searched is None else searched + 1, 0.0
    if study.builds.where == "site":  # on one node, and its run follows
        build_hours = math.inf if builds is None else builds * study.builds.limit_s / 3600.0
        allowed += at_once * study.builds.limit_s / 3600.0
    return Stake(tuple(parts), allowed, with_faults, builds, build_hours, limits)


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


def _tight_budget(study: Study) -> Iterator[str]:
    """Limits that hold a confirmation only where runs end before their own limit: how long a run may take then, and
    the smallest limit that holds it whatever they take."""
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


@dataclass(frozen=True, repr=False)
class StudyCheck(Shown):
    study: Study
    space: SpaceSize
    cost: Stake
    warnings: tuple[str, ...]
    remarks: tuple[str, ...]

    def shown(self) -> TextTable:
        hours, runs = self.cost.node_hours, self.cost.runs
        rows = (
            ("legal points", f"{self.space.legal:,.0f} of {self.space.points:,.0f}"),
            ("runs at most", "no limit" if runs is None else f"{runs:,}"),
            ("node-hours at most", "no limit" if hours is None else f"{hours:.3g}"),
        )
        return TextTable(f"{self.study.name}: fit to run", ("", ""), rows, notes=(*self.warnings, *self.remarks))


def whole_check(found: CheckedStudy) -> StudyCheck:
    study = found.study
    said = found.workload.remarks(study.space.settings(study.baseline))
    on_the_node = (found.file.message(text.where, text.message) if isinstance(text, Problem) else text for text in said)
    return StudyCheck(study, space_size(found), stake(study), tuple(doubts(found)), (*on_the_node, *unpredicted(found)))


def doubts(found: CheckedStudy) -> list[str]:
    """What is allowed and yet likely to go wrong, as the site's executor says of the baseline's job."""
    study = found.study
    of_site = executor_of(found).doubts(study.job.resources(study.space.settings(study.baseline)))
    return [*of_site, *found.workload.doubts(), *filter(None, [_profiler_doubt(study)]), *_tight_budget(study)]
