"""A simulated SGLang cluster as a workload: the twin's answer, written as the log a real benchmark leaves.

A study for it is the study for the real cluster; only `kind` and the site differ. What the twin computes is the run on
usual nodes; the site (`batch: simulated`) says how fast its nodes are and how long things took. Every measurement says
that it was modelled.
"""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import NormalDist

from ridgeline import catalog
from ridgeline.diagnose.readers.failures import PROGRAM_FAILURES
from ridgeline.diagnose.readers.lines import TextFile
from ridgeline.errors import InputError, Problem, ReadError
from ridgeline.files import read_text
from ridgeline.records.expression import ExpressionError, Value
from ridgeline.records.measurement import MODEL_HIGH, MODEL_LOW, Measurement, Reading, metrics_of, reported
from ridgeline.records.observation import Expectation
from ridgeline.records.run import Job, Run
from ridgeline.records.site import LOCAL, SPEED_ENV, STOPS_AT_ENV, TOOK_FILE
from ridgeline.records.space import Settings
from ridgeline.records.study import Study
from ridgeline.records.trial import Trial
from ridgeline.serving.engines.base import ServingEngine
from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.failures import signatures
from ridgeline.serving.engines.install import Install
from ridgeline.serving.engines.knobs import ROWS
from ridgeline.serving.engines.layout_rules import layout_problems
from ridgeline.serving.engines.memory import STARTUP_OOM, MemoryPlan, plan_memory
from ridgeline.serving.engines.releases import NEWEST, Version, engine_of, release_text
from ridgeline.serving.engines.settings import layout_of, model_of, role_of, settings_of
from ridgeline.serving.engines.sglang.engine import SGLANG
from ridgeline.serving.engines.sglang.log import read_sglang_log
from ridgeline.serving.hardware.cluster import GIB
from ridgeline.serving.hardware.gpu_limits import asked_limits, held_while_pasted
from ridgeline.serving.traffic.limits import terms
from ridgeline.serving.traffic.traffic import AsRecorded, OpenLoop
from ridgeline.serving.twin.calibration import PRIOR_SPREAD
from ridgeline.serving.twin.energy import ENERGY_FIGURES
from ridgeline.serving.twin.simulate import DoesNotFit, SimulationResult, simulate
from ridgeline.serving.workloads.engine.form import read_options as engine_options
from ridgeline.serving.workloads.engine.options import IN_PLACE
from ridgeline.serving.workloads.engine.scripts import PastedServer, Scripts, made_model
from ridgeline.serving.workloads.engine.settings import (
    DUMMY,
    LOAD_FORMAT,
    NO_MORE_THAN_SENT,
    KnobNames,
    behaving,
    limited,
)
from ridgeline.serving.workloads.twin import player
from ridgeline.serving.workloads.twin.form import TwinForm, read_options
from ridgeline.serving.workloads.twin.log import compose
from ridgeline.workloads.base import ServedAs, Workload
from ridgeline.workloads.run_folder import filling, job_in

LOG, BENCH, PLAY = "sglang.log", "bench.json", "play.txt"
# By how much a KV pool may miss its first token and still be tried: the memory model is not better than this.
_DOUBT_BYTES = 1.0 * GIB
_BLIND = (
    "not modelled by the twin, to which all their values are the same: this study can't tell which is best; leave them "
    "out, or measure them on the engine"
)
_ROOMY = 0.7  # share of a KV pool up to which its size changed nothing
_SENSITIVITY_REQUESTS = 200  # simulated to learn what the speed of a setting rests on
_MEMORY_SPREAD_BYTES = 1.5 * GIB  # standard deviation of what the model of memory leaves out


@dataclass(frozen=True, slots=True)
class _Case:
    """A setting on its cluster, with what its memory comes to."""

    deployment: Deployment
    plan: MemoryPlan


class TwinWorkload(Workload):
    """Each distinct setting is simulated once in the life of a controller."""

    form = TwinForm
    pasted_whole = True
    predicts = "twin"
    terms = staticmethod(terms)

    def __init__(self, study: Study) -> None:
        self._study = study
        self._real = real = engine_of(study.workload.kind)  # empty: the study is of kind twin
        self._engine: ServingEngine = catalog.part("engines", real) if real else SGLANG
        # names and values of knobs are those of the real engine's workload: a study for one is a study for the other
        self._engine_arguments = engine_options(
            study.workload.options, study.folder, serves=True, home=study.origin, recorded=study.recorded
        )
        release = self._engine.release_of(self._engine_arguments.install(study.baseline)) if real else NEWEST
        known = "" if release == NEWEST else ".".join(map(str, release))  # empty: it cannot be read on this machine
        self._options = read_options(study, self._engine.name, known)
        self._names = KnobNames(study, self._engine_arguments, self._engine)
        self._cases: dict[tuple[object, ...], _Case | str] = {}
        self._results: dict[tuple[Deployment, int], SimulationResult | None] = {}
        self._roomy: dict[Deployment, tuple[int, SimulationResult]] = {}  # tokens of the KV pool, and the result
        self._sensitivities: dict[tuple[object, ...], tuple[float, ...]] = {}
        self._plays: dict[tuple[object, ...], str] = {}
        self.signatures = (
            *signatures(self._engine.flags, self._engine.failure_texts, self._engine.memory_flag),
            *PROGRAM_FAILURES,
        )
        self.logs = (LOG, "stderr")

    @property
    def in_place(self) -> tuple[str, ...]:
        """What is never copied with a study. A config.json is: without it the study could not be opened elsewhere."""
        is_file = (self._study.folder / str(self._study.workload.options.get("model", ""))).is_file()
        return tuple(name for name in IN_PLACE if name not in ("model", "shape") or not is_file)

    def problems(self) -> list[Problem]:
        baseline = self._study.baseline
        install = self._engine_arguments.install(baseline)
        if self._real and self._engine.on_processors(install, self._values(baseline)):
            title = self._engine.title or self._engine.name
            return [Problem(("workload", "engine"), f"this {title} runs on CPUs, and the twin simulates GPUs")]
        return [
            *self._options.problems,
            *self._names.knob_problems(self._release),
            *self._names.metric_problems("twin"),
            *self._names.traffic_problems(),
        ]

    def remarks(self, settings: Settings) -> list[str]:
        return self._names.load_remarks(settings)

    def unmodelled(self) -> list[str]:
        return self._names.unmodelled()

    def doubts(self) -> list[str]:
        blind = ", ".join(self.unmodelled())
        return [f"{blind}: {_BLIND}"] if blind else []

    def programs(self) -> Mapping[str, object]:
        return self._engine_arguments.model_record

    def refusal(self, settings: Settings) -> str | None:
        case = self._case(settings)
        return case if isinstance(case, str) else None

    def predicted_failure(self, settings: Settings) -> str | None:
        case = self._case(settings)
        if isinstance(case, str) or case.plan.fits:
            return None
        return case.plan.reason

    def expectation(self, settings: Settings) -> Expectation | None:
        """The simulation's answer, as far as its own interval allows; an OOM is a matter of chance near the edge."""
        case = self._case(settings)
        if isinstance(case, str):
            return None
        chance = 1.0
        if self._engine.simulated:
            chance = min(max(NormalDist().cdf(case.plan.margin_bytes / _MEMORY_SPREAD_BYTES), 0.01), 0.99)
        result = self._result(case)
        mean = None if result is None else _predicted(self._study.goal.metric, result)
        if mean is None or result is None:
            return Expectation(chance=chance)
        low, high = _bounds(self._study.goal.metric, mean, result)
        return Expectation(mean, low, high if self.highest is None else min(high, max(mean, self.highest)), chance)

    @cached_property
    def highest(self) -> float | None:
        """At a rate no server serves more than comes, until the last request does."""
        traffic, metric = self._options.traffic, self._study.goal.metric
        if metric not in NO_MORE_THAN_SENT or traffic is None or not isinstance(traffic.pace, OpenLoop | AsRecorded):
            return None
        arrivals = traffic.arrivals()
        prompts, answers = (sum(getattr(a, n) for a in arrivals) for n in ("input_tokens", "output_tokens"))
        tokens = {"input_tok_s": prompts, "output_tok_s": answers, "total_tok_s": prompts + answers}
        last_s = max(arrival.at_s for arrival in arrivals)
        return tokens.get(metric, len(arrivals)) / last_s if last_s > 0 else None

    def sensitivities(self, settings: Settings) -> tuple[float, ...]:
        """By how much the answer moves with each factor of the physics; a short traffic tells that well enough.

        Nothing once the twin is calibrated: then the factors are known, and what is left lies elsewhere.
        """
        case = self._case(settings)
        if isinstance(case, str) or self._options.calibration.points:
            return ()
        key = self._key(settings)
        if key not in self._sensitivities:
            self._sensitivities[key] = self._moves(case)
        return self._sensitivities[key]

    def _moves(self, case: _Case) -> tuple[float, ...]:
        traffic, calibration, slos = self._options.traffic, self._options.calibration, self._options.slos
        assert traffic is not None
        short = replace(traffic, requests=min(traffic.requests, _SENSITIVITY_REQUESTS))
        usual = calibration.factors
        # each in turn as far off as sites are believed to differ
        off = [replace(usual, **{name: getattr(usual, name) * math.exp(by)}) for name, by in PRIOR_SPREAD.items()]
        try:
            results = [simulate(case.deployment, short, replace(calibration, factors=f), slos) for f in (usual, *off)]
        except DoesNotFit:
            return ()
        values = (_predicted(self._study.goal.metric, result) for result in results)
        first, *others = (math.log(value) if value and value > 0 else None for value in values)
        return () if first is None else tuple(0.0 if other is None else other - first for other in others)

    def prepare(self, trial: Trial, folder: Path) -> Job:
        settings = trial.settings
        case = self._case(settings)
        if isinstance(case, str):
            raise InputError(f"trial {trial.number} cannot run: {case}")
        with filling(folder):
            (folder / PLAY).write_text(self._play(settings, case))
        # -I -S: the play needs nothing but the standard library, and starts in a tenth of the time without the rest
        start = f"{shlex.quote(sys.executable)} -IS {shlex.quote(player.__file__)}"
        played = f'{start} {PLAY} "${{{SPEED_ENV}:-1}}" "${{{STOPS_AT_ENV}:-1}}" {TOOK_FILE}'
        command = f"# stands for SGLang with {' '.join(shlex.join(self._flags(settings)).split())}\n{played}"
        return job_in(folder, self._study, self._study.job.resources(settings), command)

    def _play(self, settings: Settings, case: _Case) -> str:
        values = self._values(settings)
        key = self._key(settings)
        if key not in self._plays:
            echo = self._engine.flags.echo(values, self._release)
            model = {"model_path": self._study.workload.options["model"]}
            result = self._result(case)
            play = compose(case.deployment, case.plan, result, model | echo)
            metric = self._study.goal.metric
            if play.bench and result is not None and (predicted := _predicted(metric, result)):
                # how far the twin itself may be off: no interval from runs of it can show that
                low, high = _bounds(metric, predicted, result)
                play.bench |= {MODEL_LOW: round(low / predicted, 4), MODEL_HIGH: round(high / predicted, 4)}
            if self._options.precompiled:
                play.compile_s = 0.0
            self._plays[key] = play.text
        return self._plays[key]

    def read(self, run: Run) -> Reading:
        found: dict[str, float] = {"wall_s": round(run.ending.duration_s, 3)}
        try:
            log = read_sglang_log(TextFile(run.folder / LOG))
            bench = json.loads(read_text(run.folder / BENCH)) if log.results else {}
        except (OSError, ValueError, ReadError) as error:
            return Reading(problem=f"{LOG} and {BENCH} were not left by the run: {error}")
        if log.kv_pools:
            found["kv_tokens"] = log.kv_pools[0].tokens
        if not log.results:
            return Reading(_modelled(found), problem=f"{LOG} holds no result of the benchmark")
        result = log.results[-1]
        same = ("total_tok_s", "input_tok_s", "output_tok_s", "duration_s", "successful_requests", "input_tokens")
        said = {name: getattr(result, name) for name in (*same, "output_tokens")} | {"requests_s": result.request_s}
        found |= {name: value for name, value in said.items() if value is not None}
        if isinstance(bench, dict):
            made = metrics_of("run", "twin")
            found |= {name: value for name, value in bench.items() if name in made and isinstance(value, int | float)}
        return Reading(_modelled(found), applied=log.server_args)

    def paste(self, settings: Settings) -> str:
        """The real engine with these settings; the site is a simulated one and adds nothing."""
        model = self._engine_arguments.model
        model, *before = made_model(model) if model.endswith(".json") else (model,)
        return self._server(settings, model, self._flags(settings), before)

    def offered(self, settings: Settings) -> str:
        """Never a model that was made for a benchmark, or without weights."""
        values = self._values(settings)
        if not self._scripts.benchmark_only(settings):
            return self.paste(settings)
        if values.get(LOAD_FORMAT) == DUMMY:
            del values[LOAD_FORMAT]
        return self._server(settings, "", self._engine.flags.arguments(values, self._release), [])

    def _server(self, settings: Settings, model: str, flags: list[str], before: list[str]) -> str:
        asked, env = self._study.job.resources(settings), self._scripts.env(settings)
        before = [*before, *held_while_pasted(settings)]
        return PastedServer(self._engine, Install().python, model, flags, env, LOCAL, asked, (), before).text()

    def served_as(self, settings: Settings) -> ServedAs:
        return self._scripts.served_as(settings, offered=False)  # by twins, which have the shape alone

    @property
    def _scripts(self) -> Scripts:
        return Scripts(self._study, self._engine_arguments, self._engine, self._names, serves=True)

    def _flags(self, settings: Settings) -> list[str]:
        return self._engine.flags.arguments(self._values(settings), self._release)

    @property
    def _release(self) -> Version:
        return self._options.version.version

    def _values(self, settings: Settings) -> dict[str, Value]:
        """The engine's arguments, as the workload of the real engine would give them; the table's knobs in front."""
        values = self._names.values(settings)
        return {name: values[name] for name in (*ROWS, *values) if name in values}

    def _case(self, settings: Settings) -> _Case | str:
        """What would run, or why it cannot."""
        try:
            key = self._key(settings)
        except (ExpressionError, InputError, ValueError) as error:
            return str(error)
        if key not in self._cases:
            try:
                self._cases[key] = self._judged(settings)
            except (InputError, ValueError) as error:
                self._cases[key] = str(error)
        return self._cases[key]

    def _judged(self, settings: Settings) -> _Case | str:
        model, cluster = self._options.model, self._options.cluster
        if model is None or cluster is None:
            return "the study has problems; see `ridgeline check`"
        asked, values = self._study.job.resources(settings), self._values(settings)
        if (reason := self._engine.refusal(model, values, Install(), self._release)) is not None:
            return f"with {release_text(self._engine.name, self._release)}, {reason}"
        layout, role = layout_of(values, asked.nodes, asked.gpus or cluster.node.gpus), role_of(values)
        engine, kept = settings_of(values, self._options.version), model_of(model, values)
        dense_whole = values.get("moe_dense_tp_size") == 1
        if illegal := layout_problems(kept, layout, cluster.gpu, engine, role, dense_whole=dense_whole):
            return f"with {release_text(self._engine.name, self._release)}, {illegal[0]}"
        meant = self._engine.meant(values, lambda: plan_memory(kept, cluster.gpu, layout, engine, role), cluster.gpu)
        engine = behaving(settings_of(meant, self._options.version), self._engine_arguments, values, model)
        plan = plan_memory(kept, cluster.gpu, layout, engine, role)
        if plan.verdict == STARTUP_OOM and plan.margin_bytes < -_DOUBT_BYTES:
            return f"does not fit: {plan.reason}"
        if plan.verdict != STARTUP_OOM and plan.kv_tokens_per_rank < self._longest_tokens:
            return f"does not fit: a KV pool of {plan.kv_tokens_per_rank:,} tokens cannot hold the longest request"
        return _Case(limited(Deployment(kept, cluster, layout, engine), settings), plan)

    @cached_property
    def _longest_tokens(self) -> int:
        return self._options.traffic.longest_tokens() if self._options.traffic else 0

    def _result(self, case: _Case) -> SimulationResult | None:
        """None where the engine does not come up."""
        key = case.deployment, case.plan.kv_tokens  # knobs that are not modelled make no other case of it
        if key not in self._results:
            try:
                self._results[key] = self._with_room(case)
            except DoesNotFit:
                self._results[key] = None
        return self._results[key]

    def _with_room(self, case: _Case) -> SimulationResult:
        """A KV pool that was never nearly full gives the same answer when it has another size with room, and the size
        of its pages counts only where KV is sent to other engines: such settings are simulated once."""
        assert self._options.traffic is not None
        deployment, pool = case.deployment, case.plan.kv_tokens
        alike = replace(deployment, settings=replace(deployment.settings, mem_fraction=None, page_size=1))
        tokens, held = self._roomy.get(alike, (0, None))
        if held is not None and tokens * _peak(held) <= _ROOMY * pool:
            return replace(held, kv_usage=tuple((at_s, share * tokens / pool) for at_s, share in held.kv_usage))
        result = simulate(deployment, self._options.traffic, self._options.calibration, self._options.slos)
        if deployment.layout.decode is None and _peak(result) <= _ROOMY:
            self._roomy[alike] = pool, result
        return result

    def _key(self, settings: Settings) -> tuple[object, ...]:
        """Settings that are told the engine in the same words have the same."""
        values, asked = self._values(settings), self._study.job.resources(settings)
        limits = sorted(asked_limits(settings).items())
        return (asked.nodes, asked.gpus, *limits, *sorted(values.items(), key=lambda named: named[0]))


def _peak(result: SimulationResult) -> float:
    """The share of its KV pool that was full at most."""
    return max((share for _, share in result.kv_usage), default=1.0)


def _predicted(metric: str, result: SimulationResult) -> float | None:
    if metric == "goodput":
        return result.summary.goodput_s
    name, _, quantile = metric.removesuffix("_ms").rpartition("_")
    spread = getattr(result.summary, f"{name}_ms", None) if metric.endswith("_ms") else None
    source = result if metric in ENERGY_FIGURES else result.summary
    value = spread.quantile(quantile) if spread is not None else getattr(source, metric, None)
    return float(value) if isinstance(value, int | float) else None


def _bounds(metric: str, predicted: float, result: SimulationResult) -> tuple[float, float]:
    """What nine of ten real figures lie between."""
    slow, fast = result.interval["speed"]
    if metric in result.interval:
        return result.interval[metric]
    if metric == "goodput":  # near a limit a little slower is a lot less
        return _goodput_s(result, slow), _goodput_s(result, fast)
    return (predicted / fast, predicted / slow) if metric.endswith("_ms") else (predicted * slow, predicted * fast)


def _goodput_s(result: SimulationResult, speed: float) -> float:
    """Were everything so many times faster, and no request answered before it is sent."""
    summary = result.summary
    within = sum(min(slo.margin(record) for slo in summary.slos) * speed >= 1.0 for record in result.records)
    return within / max(summary.duration_s / speed, result.doubts.sent_for_s)


def _modelled(found: Mapping[str, float]) -> tuple[Measurement, ...]:
    return tuple(reported(name, value, "run" if name == "wall_s" else LOG, "modelled") for name, value in found.items())
