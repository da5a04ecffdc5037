"""Study files: YAML in, a Study out, or every problem of the file at once, each with its line."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ridgeline.errors import StudyError, nearest_first
from ridgeline.files import below_home, is_there
from ridgeline.records.expression import Expression, ExpressionError, is_number
from ridgeline.records.guard import Closeness, Guard, parse_guard
from ridgeline.records.site import LOCAL, Site, counted_twice
from ridgeline.records.space import Space
from ridgeline.records.study import (
    COUNTS,
    Builds,
    ConfirmStage,
    Goal,
    JobLimits,
    SearchStage,
    Study,
    WorkloadChoice,
)
from ridgeline.records.template import unknown_fields
from ridgeline.stats.verdict import FEWEST_BLOCKS
from ridgeline.study.forms import problems_of, read_form, sound_part
from ridgeline.study.schema import ConfirmForm, NotifyForm, StudyForm, WorkloadForm, margin_of
from ridgeline.study.site_file import SHIPPED, form_of, load_site, read_site
from ridgeline.study.study_space import Reporter, build_space, checked_point, parsed
from ridgeline.study.yaml_tree import Where, YamlTree, in_order_of_lines, parse_yaml, read_text

_GUARD_REMEDY = (
    '; write e.g. `error < 1e-6`, `energy within 1e-6 of baseline`, or `stdout contains "pattern"` with the quotes'
)


@dataclass(frozen=True)
class StudyFile:
    """A study with the text it came from, so that problems found later can still name a line."""

    study: Study
    path: Path
    tree: YamlTree
    site_copy: Path | None = None  # of a study folder: the site file that was read instead of the one it names
    written: bool = True  # whether numbers were kept as they are written

    @property
    def text(self) -> str:
        return self.tree.text

    @property
    def site_path(self) -> Path | None:
        """The site file this study was read with; None for `local` and for a site written into the study."""
        if self.site_copy is not None:
            return self.site_copy
        named = self.tree.root.children.get("site")
        if named is None or not isinstance(named.value, str) or named.value == "local":
            return None
        path = self.study.folder / below_home(named.value)
        return path if path.is_file() else SHIPPED / f"{named.value}.yaml"

    def line_of(self, where: Where) -> int:
        return self.tree.line_of(self._as_written(where))

    def message(self, where: Where, what: str) -> str:
        """`file:line: where: what`, for problems found outside this room."""
        return self.tree.message(self._as_written(where), what)

    def _as_written(self, where: Where) -> Where:
        """`stages.search` may be written as `search`."""
        short = where[:1] == ("stages",) and len(where) > 1 and where[1] in self.tree.root.children
        return where[1:] if short else where


def read_study_file(
    path: Path,
    *,
    site_path: Path | None = None,
    files: Path | None = None,
    home: Path | None = None,
    written: bool = True,
    to_run: bool = True,
) -> StudyFile:
    """The study with its text; StudyError names all its problems.

    `written`: numbers of the space are kept as they were written. Campaigns before 0.3 ran 2.10 as 2.1.

    A study folder holds copies: `site_path` is read instead of the site that the study names, and relative paths start
    in `files` instead of the study file's own folder, but those of what is never copied in `home`. Unless it is read
    `to_run`, keys that were taken back since 0.2 are passed over.
    """
    tree = parse_yaml(read_text(path), str(path))
    form, problems, doubted = _form(tree, written, to_run)

    def report(where: Where, what: str) -> None:
        problems.append(tree.message(where, what))

    folder = (files or path.parent).resolve()
    study = None
    if not {"space", "derived", "workload", "goal"} & doubted and form.space is not None:
        study = _Assembly(form, folder, report, site_path, doubted).study(problems)
    file = None if study is None else StudyFile(replace(study, home=home), path, tree, site_path, written)
    if file is None or problems:
        if file is None and form.workload is not None:
            problems += _workload_problems(form.workload, folder, tree)
        raise StudyError(in_order_of_lines(problems), partly=file)
    return file


def _workload_problems(form: WorkloadForm, folder: Path, tree: YamlTree) -> list[str]:
    """Of a study of which there is too little to ask the workload itself: what its form says."""
    if (own := form_of("workloads", form.kind)) is None:
        return []  # a name that nobody knows is said once the rest is right
    _, found = read_form(own, form.model_extra or {}, folder, ("workload",))
    return [tree.message(problem.where, problem.message) for problem in found]


def _form(tree: YamlTree, written: bool, to_run: bool) -> tuple[StudyForm, list[str], set[str]]:
    """The form as far as it is sound, its problems, and the keys that have some."""
    content = tree.plain(written=written)
    if not isinstance(content, dict):
        raise StudyError(
            [*tree.problems, f"{tree.name}:{tree.root.line}: not a mapping; a study starts with `version: 1`"]
        )
    if not to_run and isinstance(given := content.get("notify"), dict):  # a folder of release 0.2 still opens
        content["notify"] = {name: value for name, value in given.items() if name not in NotifyForm.elsewhere}
    try:
        return StudyForm.model_validate(content), list(tree.problems), set()
    except ValidationError as error:
        found = problems_of(error, StudyForm)
        said = [*tree.problems, *(tree.message(problem.where, problem.message) for problem in found)]
        return (
            sound_part(StudyForm, content, error),
            said,
            {str(problem.where[0]) for problem in found if problem.where},
        )


class _Assembly:
    """Makes the records of a study from its form; what does not fit is reported and the rest is still checked."""

    def __init__(
        self, form: StudyForm, folder: Path, report: Reporter, site_path: Path | None, doubted: Collection[str]
    ) -> None:
        self.form, self.folder, self.report, self.site_path = form, folder, report, site_path
        self.doubted = doubted  # keys of which something was left out

    def study(self, problems: list[str]) -> Study | None:
        form = self.form
        space = build_space(form, self.report)
        goal, second = self.goal(), self.goal("second_goal")
        search, confirm = self.stage("search"), self.stage("confirm")
        guards = tuple(g for i, text in enumerate(form.guards) if (g := self.guard(i, text)) is not None)
        site = self.site(problems)
        site = replace(site, secrets=tuple(dict.fromkeys((*site.secrets, *form.secrets))))
        if form.prices is not None:
            site = replace(site, prices=form.prices.record())
        if twice := counted_twice(site.prices):
            self.report(("prices" if form.prices is not None else "site",), twice)
        if space is None or goal is None:
            return None
        job, builds = self.job(space), self.builds(space)
        baseline = None
        if "baseline" not in self.doubted:
            baseline = checked_point(space, form.baseline, ("baseline",), self.report)
        presets = [checked_point(space, p, ("presets", i), self.report) for i, p in enumerate(form.presets)]
        groups = self.groups(space.by_name)
        if baseline is None:  # the rest is looked at as well, at any point
            baseline = space.restrict({knob.name: knob.at(0.0) for knob in space.knobs})
        else:
            self.check_counts(job, space.settings(baseline))
        return Study(
            name=form.name,
            workload=WorkloadChoice(form.workload.kind, dict(form.workload.model_extra or {})),
            space=space,
            goal=goal,
            baseline=baseline,
            folder=self.folder,
            question=form.question,
            site=site,
            guards=guards,
            presets=tuple(p for p in presets if p is not None),
            budget=form.budget.record(),
            baseline_stage=form.stages.baseline.record(),
            search=self.search_stage(search),
            confirm=confirm.record() if confirm else ConfirmStage(),
            equivalent_within=self.equivalent_within(confirm),
            task=form.task.record() if form.task else None,
            profile=form.stages.profile.record() if form.stages.profile else None,
            job=job,
            builds=builds,
            second_goal=second,
            groups=groups,
            notify=form.notify.record(),
            recipe=form.recipe.record() if form.recipe else None,
        )

    def goal(self, name: str = "goal") -> Goal | None:
        form = getattr(self.form, name)
        if form is None:
            return None
        if (form.maximize is None) == (form.minimize is None):
            self.report((name,), "needs exactly one of maximize and minimize; write e.g. {maximize: gflops}")
            return None
        return Goal(form.maximize, "maximize") if form.maximize is not None else Goal(form.minimize or "", "minimize")

    def stage(self, name: str) -> Any:
        short, full = getattr(self.form, name), getattr(self.form.stages, name)
        if short is not None and full is not None:
            self.report((name,), f"is also given under stages.{name}; keep one of the two")
        return short if short is not None else full

    def equivalent_within(self, confirm: ConfirmForm | None) -> float | None:
        if self.form.stop_when is None:
            return None
        if confirm is not None and (confirm.blocks < FEWEST_BLOCKS or not confirm.top):
            self.report(("stop_when",), f"needs a confirmation of at least {FEWEST_BLOCKS} blocks; set confirm.blocks")
        return margin_of(self.form.stop_when)

    def search_stage(self, form: Any) -> SearchStage:
        if form is None:
            return SearchStage()
        stage: SearchStage = form.record(options=dict(form.model_extra or {}), named="sampler" in form.model_fields_set)
        return stage

    def guard(self, index: int, form: Any) -> Guard | None:
        if not isinstance(form, str):
            reference = None if form.of == "baseline" else float(form.of)
            return Closeness(form.metric, form.within.abs_, form.within.rel, reference)
        try:
            return parse_guard(form)
        except ExpressionError as error:
            remedy = "" if "; " in str(error) else _GUARD_REMEDY
            self.report(("guards", index), f"{error}{remedy}")
            return None

    def job(self, space: Space) -> JobLimits:
        form = self.form.job
        counts: dict[str, Expression | None] = dict.fromkeys(COUNTS)
        for name in COUNTS:
            text, where = getattr(form, name), ("job", name)
            if text is not None and (count := parsed(text, space.names, where, self.report)) is not None:
                counts[name] = count.reading(space.numbers)
        for index, text in enumerate(form.modules):
            self.check_fields(("job", "modules", index), text, space.names)
        limits: JobLimits = form.record(**counts, optional=space.optional)
        return limits

    def check_counts(self, job: JobLimits, settings: Mapping[str, object]) -> None:
        for name in COUNTS:
            expression: Expression | None = getattr(job, name)
            if expression is None or not expression.names <= settings.keys():
                continue  # a name that nobody knows was reported already
            least = 0 if name == "gpus" else 1
            try:
                count = expression.evaluate(settings)
            except ExpressionError as error:
                self.report(("job", name), f"at the baseline: {error}; write a whole number or a formula of one")
                continue
            if not is_number(count) or count != int(count) or count < least:
                what = f"is {count!r} at the baseline; it must be a whole number of at least {least}"
                self.report(("job", name), what)

    def groups(self, knobs: Collection[str]) -> dict[str, tuple[str, ...]]:
        placed: dict[str, str] = {}
        for group, names in self.form.groups.items():
            for index, name in enumerate(names):
                if name not in knobs:
                    known = ", ".join(nearest_first(name, knobs))
                    self.report(("groups", group, index), f"{name} is not a knob; known: {known}")
                elif placed.setdefault(name, group) != group:
                    self.report(
                        ("groups", group, index), f"{name} is also in group {placed[name]}; keep one of the two"
                    )
        return {group: tuple(names) for group, names in self.form.groups.items()}

    def builds(self, space: Space) -> Builds | None:
        if self.form.builds is None:
            return None
        builds: Builds = self.form.builds.record(optional=space.optional)
        for index, line in enumerate(builds.make):
            self.check_fields(("builds", "make", index), line, space.names)
        for name, text in builds.env.items():
            self.check_fields(("builds", "env", name), text, space.names)
        return builds

    def check_fields(self, where: Where, text: str, settings: Collection[str]) -> None:
        for name in unknown_fields(text, settings):
            known = ", ".join(nearest_first(name, settings))
            self.report(where, f"{{{name}}} is not a knob or a derived value; known: {known}")

    def site(self, problems: list[str]) -> Site:
        named = self.form.site if self.site_path is None else str(self.site_path.resolve())
        if named == "local":
            return LOCAL
        if isinstance(named, Mapping):
            site, found = read_site(named, self.folder)
            for problem in found:
                self.report(("site", *problem.where), problem.message)
            return site
        try:
            return load_site(named, self.folder)
        except StudyError as error:
            if is_there(self.folder / below_home(named)):
                problems += error.problems  # they name the site file and its lines
            else:
                for line in error.problems:
                    self.report(("site",), line)
            return LOCAL
