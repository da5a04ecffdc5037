"""A serving engine as a workload: each trial starts a fresh one, measures it, stops it, and proves what was applied.

A run folder holds `session.json` (what is done), `engine.sh` (the exact command of the engine on each node), one
`prepare-STEP.sh` for each one-time step, and after the run `engine.log`, `measured.json` and, of a served run,
`requests.jsonl`. The work on the node is `session.py`'s.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice, product
from pathlib import Path

from ridgeline import catalog
from ridgeline.diagnose.readers.failures import PROGRAM_FAILURES
from ridgeline.errors import InputError, Problem, RidgelineError, Where
from ridgeline.records.expression import ExpressionError
from ridgeline.records.measurement import Reading
from ridgeline.records.run import OWN_LOG, Job, Run
from ridgeline.records.space import Continuous, Settings, point_key
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.serving.engines.base import NSYS, TORCH, ServingEngine
from ridgeline.serving.engines.failures import HOST_TIER_SIZES, signatures
from ridgeline.serving.engines.releases import NEWEST, release_text
from ridgeline.serving.hardware.cluster import beyond_limits
from ridgeline.serving.hardware.gpu_limits import NO_LIMITS, limits_at
from ridgeline.serving.traffic.limits import terms
from ridgeline.serving.workloads.engine.form import EngineForm, OfflineForm, RealServeForm, read_options
from ridgeline.serving.workloads.engine.options import ENGINE_KNOB, IN_PLACE
from ridgeline.serving.workloads.engine.reading import QUESTION_METRICS, read_run
from ridgeline.serving.workloads.engine.scripts import BENCHMARK_ONLY, SESSION, Scripts, step_problems, step_refusal
from ridgeline.serving.workloads.engine.session.process import STOPPING_S
from ridgeline.serving.workloads.engine.settings import MOST_VALUES, KnobNames, known_gpu, refusal, tier_remark
from ridgeline.workloads.base import ServedAs, Workload
from ridgeline.workloads.run_folder import build_seen_from, filling, job_in

# knobs by which it differs whether tokens of dummy weights are spread over the experts
MOE_KNOBS = (ENGINE_KNOB, "load_format", "moe_runner_backend")


@dataclass(frozen=True, slots=True)
class EngineWorkloadKind:
    """An engine's offline benchmark, or its server under load: makes the workload of a study."""

    dialect: ServingEngine
    serves: bool

    @property
    def form(self) -> type[EngineForm]:
        return RealServeForm if self.serves else OfflineForm

    terms = staticmethod(terms)

    def __call__(self, study: Study) -> EngineWorkload:
        return EngineWorkload(study, self.dialect, serves=self.serves)


def offline(dialect: ServingEngine) -> EngineWorkloadKind:
    """NAME-offline of the catalog."""
    return EngineWorkloadKind(dialect, serves=False)


def serve(dialect: ServingEngine) -> EngineWorkloadKind:
    """NAME-serve of the catalog."""
    return EngineWorkloadKind(dialect, serves=True)


class EngineWorkload(Workload):
    """Knobs are the engine's flags in snake_case, environment variables in capitals, and `OWN_KNOBS`."""

    pasted_whole = True
    run_times = ("wall_s",)
    in_place = IN_PLACE

    def __init__(self, study: Study, dialect: ServingEngine, *, serves: bool) -> None:
        self._study = study
        self._dialect = dialect
        self._serves = serves
        self._options = read_options(
            study.workload.options, study.folder, serves=serves, home=study.origin, recorded=study.recorded
        )
        if self._options.load.alone == "decode":
            release = dialect.release_of(self._options.install(study.baseline))
            # SGLang before 0.5.2 has no `fake` transfer: it goes by the host that decode_alone_body names
            alone = {n: v for n, v in dialect.decode_alone.items() if not dialect.flags.wrong_value(n, v, release)}
            self._options = replace(self._options, flags={**self._options.flags, **alone})
        self._names = KnobNames(study, self._options, dialect)
        self._scripts = Scripts(study, self._options, dialect, self._names, serves=serves)
        self.signatures = (*signatures(dialect.flags, dialect.failure_texts, dialect.memory_flag), *PROGRAM_FAILURES)
        self.logs = ("stderr", OWN_LOG, "stdout", "prepare.log")
        self.profilers = () if dialect.profiles_from is None else (TORCH, NSYS)
        # an offline benchmark ends with its run; what is wanted of its answer is a server
        self.pasted_as = "" if serves else "to serve with this setting"
        if self._scripts.measures_dummies:
            self.pasted_as = BENCHMARK_ONLY

    def problems(self) -> list[Problem]:
        return [
            *self._options.problems,
            *self._alone_problems(),
            *self._profile_problems(),
            *self._names.problems(serves=self._serves),
            *self._scripts.dummy.problems(),
            *step_problems(self._options, self._dialect),
        ]

    def _alone_problems(self) -> list[Problem]:
        if self._options.load.alone != "decode" or self._dialect.decode_alone:
            return []
        what = f"{self._dialect.name} has no way to decode without a prefill server; SGLang has, and prefill works here"
        return [Problem(("workload", "alone"), what)]

    def _profile_problems(self) -> Iterator[Problem]:
        since, dialect = self._dialect.profiles_from, self._dialect
        release = dialect.release_of(self._options.install(self._study.baseline))
        if self._study.profile is not None and since is not None and release != NEWEST and release < since:
            first, this = (release_text(dialect.name, version) for version in (since, release))
            what = (
                f"the profiler of {this} does not stop after a number of steps; use {first} or later, or leave it out"
            )
            yield Problem(("stages", "profile"), what)

    def predictor(self) -> Workload | str:
        """The study as the twin reads it, or why it cannot: it must know the model, the GPU and the goal's metric. What
        is guarded and asked besides is no matter of a prediction."""
        study, options = self._study, self._study.workload.options
        if options.get("alone"):
            return "the twin does not simulate one half of serving alone"
        kind = catalog.part("workloads", "twin")
        known = {name: value for name, value in options.items() if name in kind.form.model_fields}
        try:
            if options.get("shape"):
                known["model"] = options["shape"]
            asked = replace(study, workload=replace(study.workload, options=known), guards=(), second_goal=None)
            twin: Workload = kind(asked)
            problems = twin.problems()
        except (RidgelineError, ExpressionError, ValueError) as error:
            return str(error)
        if problems and problems[0].where[:2] == ("workload", "model") and not options.get("shape"):
            # a name of a hub, or a folder that only the nodes see
            return f"the shape of {options['model']} cannot be read here; name a preset or a config.json as `shape`"
        return problems[0].message if problems else twin

    def templates(self) -> Iterator[tuple[Where, str]]:
        return self._names.templates()

    def refusal(self, settings: Settings) -> str | None:
        try:
            asked = self._study.job.resources(settings)
            self._scripts.env(settings)
            limits = limits_at(settings, NO_LIMITS)
        except (ExpressionError, InputError, ValueError) as error:
            return str(error)
        gpu = known_gpu(self._options.gpu)
        if gpu is not None and (beyond := beyond_limits(gpu, limits)):
            return beyond
        if asked.nodes > 1 and self._scripts.launcher == "none":
            return f"{asked.nodes} nodes need a launcher: set the site's `launcher` to srun, openmpi or mpich"
        if asked.nodes > 1 and not self._serves and not self._dialect.offline_spans:
            name = self._dialect.name
            return f"{name}-offline runs on one node, this asks for {asked.nodes}; use {name}-serve with `concurrency`"
        if reason := step_refusal(self._options, self._dialect, asked.nodes):
            return reason
        install, values = self._options.install(settings), self._names.values(settings)
        reason = refusal(self._dialect, self._options, install, values, asked, self._study.site)
        release = release_text(self._dialect.name, self._dialect.release_of(install))
        return None if reason is None else f"with {release}, {reason}"

    def remarks(self, settings: Settings) -> list[str | Problem]:
        """What is taken for granted here and found out on the node."""
        install, site = self._options.install(settings), self._study.site
        asked = self._study.job.resources(settings)
        values, version = self._names.values(settings), self._dialect.release_of(install)
        nodes, found = (
            asked.nodes,
            list[str | Problem]([*self._names.load_remarks(settings), *self._scripts.dummy.remarks()]),
        )
        if tier := tier_remark(self._dialect, self._options, values, version, asked, site):
            found.append(Problem(self._names.place(HOST_TIER_SIZES), tier))
        if version == NEWEST:
            latest = release_text(self._dialect.name, NEWEST)
            where = install.container or install.python
            found.append(f"flags are those of {latest}: the release of {where} cannot be read here; `version` says it")
        if nodes > 1:
            variables = f"GLOO_SOCKET_IFNAME and {self._dialect.host_variable}"
            how = (
                f"at {site.interface} of the first: {variables}, NCCL_SOCKET_IFNAME are set on each"
                if site.interface
                else f"where the first is reached from the others: {variables} are set on each unless the study or "
                "the site sets them; the site's `interface` names another network"
            )
            found.append(f"{nodes} nodes, started by {self._scripts.launcher}, meet {how}")
        return found

    @property
    def _baseline(self) -> Settings:
        return self._study.space.settings(self._study.baseline)

    def doubts(self) -> list[str]:
        """Of every engine and every back end of experts in the study."""
        return self._scripts.dummy.doubts([self._baseline, *self._varied_settings(MOE_KNOBS)])

    def prepare(self, trial: Trial, folder: Path) -> Job:
        build = build_seen_from(folder, trial)
        settings = {"build": build, **trial.settings}
        env = {**self._scripts.env(trial.settings, build), **self._scripts.dummy.env(trial.settings)}
        profile = self._study.profile if trial.stage is Stage.PROFILE else None
        with filling(folder):
            for name, text in self._scripts.files(settings, env, self._questions(trial), profile).items():
                (folder / name).write_text(text)
        session = f"exec {shlex.quote(sys.executable)} -m ridgeline.serving.workloads.engine.session {SESSION}"
        command = f"{self._scripts.comments(settings, profile)}{session}"
        return job_in(folder, self._study, self._study.job.resources(trial.settings), command, env, grace_s=STOPPING_S)

    def _questions(self, trial: Trial) -> dict[str, object] | None:
        """What is asked after this run, if anything: what passed in the search is not asked again to be confirmed."""
        asked = self._options.questions
        guarded = bool(self._study.needed_metrics & QUESTION_METRICS)
        if asked is None or not (guarded or trial.stage in (Stage.BASELINE, Stage.SEARCH)):
            return None
        return {**asdict(asked), "baseline": trial.key == point_key(self._study.baseline), "all": guarded}

    def read(self, run: Run) -> Reading:
        return read_run(self._dialect, run, self._study.needed_metrics)

    def programs(self) -> dict[str, object]:
        installs = [self._options.install(settings) for settings in self._engine_settings()]
        here = {install.python: install for install in installs if not install.container}
        names = self._names.asked_flags
        said = {python: self._dialect.self_reported(install, names) for python, install in here.items()}
        return {**said, **self._options.model_record, **self._scripts.dummy.record(self._baseline)}

    def _engine_settings(self) -> Iterator[Settings]:
        """Settings that between them have every engine of the study: by its fields, by name, by the knob `engine`."""
        yield from ({**settings, ENGINE_KNOB: None} for settings in self._varied_settings(()))
        yield from ({ENGINE_KNOB: name} for name in (*self._options.engines, *self._engines_of_knob()))

    def _varied_settings(self, more_knobs: Sequence[str]) -> Iterator[Settings]:
        """The baseline with every value of the knobs that say which engine it is, and of these."""
        space, wanted = self._study.space, {*self._options.engine_fields, *more_knobs}
        while more := {n for name in wanted & space.derived.keys() for n in space.derived[name].names} - wanted:
            wanted |= more
        knobs = [knob for knob in space.knobs if knob.name in wanted and not isinstance(knob, Continuous)]
        for values in islice(product(*(knob.values for knob in knobs)), MOST_VALUES):
            point = {**self._study.baseline, **{knob.name: value for knob, value in zip(knobs, values, strict=True)}}
            try:
                yield space.settings(point)
            except ExpressionError:
                continue  # no setting either: its derived values have no answer

    def _engines_of_knob(self) -> list[str]:
        knobs = [knob for knob in self._study.space.knobs if knob.name == ENGINE_KNOB]
        return [str(value) for knob in knobs if not isinstance(knob, Continuous) for value in knob.values]

    def paste(self, settings: Settings) -> str:
        return self._scripts.paste(settings)

    def offered(self, settings: Settings) -> str:
        return self._scripts.paste(settings, offered=True)

    def served_as(self, settings: Settings) -> ServedAs:
        return self._scripts.served_as(settings)
