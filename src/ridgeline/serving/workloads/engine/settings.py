"""A study's settings as its engine takes them: flags and environment, which of them cannot start, and dummy weights.

A setting is refused only where it certainly does not start. A risk is not refused: it may be the optimum.

Dummy weights have a model's shape, and most of its speed. Two things are not in the shape: which experts a token goes
to, and whether a draft's tokens are accepted. Dummy values are tiny, so where a model adds a bias to its router's
scores (DeepSeek-V3, GLM-4.5, Kimi) the bias alone decides, and every token of every batch reads the same few experts: a
GLM-4.5-Air shape in FP8 on an H200 with SGLang 0.5.15 had 12.9 ms between tokens at 32 requests, and 33.3 ms with
tokens spread over all experts. Engines have switches for both, which are set as `experts` and `accept_length` of the
study say, unless it sets them itself.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from ridgeline.errors import InputError, Problem, Where, near, nearest
from ridgeline.records.expression import Value, is_number
from ridgeline.records.measurement import metrics_of
from ridgeline.records.run import Resources
from ridgeline.records.site import Site
from ridgeline.records.space import Continuous, Discrete, Settings
from ridgeline.records.study import Study
from ridgeline.records.template import render_env
from ridgeline.serving.engines.base import ServingEngine, SimulatedRouting
from ridgeline.serving.engines.behaviour import AS_LOADED, COLLAPSED, TRAINED, UNIFORM
from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.failures import HOST_TIER_SIZES
from ridgeline.serving.engines.install import Install, flags_of
from ridgeline.serving.engines.knobs import ROWS, Part
from ridgeline.serving.engines.layout_rules import layout_problems, other_makers
from ridgeline.serving.engines.memory import STARTUP_OOM, plan_memory
from ridgeline.serving.engines.releases import NEWEST, OWN_CHOICE, Version, release_meant, release_text
from ridgeline.serving.engines.settings import (
    DEFAULTS,
    EngineSettings,
    drafting_of,
    layout_of,
    model_of,
    role_of,
    settings_of,
    weights_known,
)
from ridgeline.serving.hardware.cluster import Gpu, beyond_limits, held_to, load_gpu, make_cluster
from ridgeline.serving.hardware.gpu_limits import LIMIT_KNOBS, NO_LIMITS, limits_at, wrong_limit
from ridgeline.serving.model.config import load_model, model_from_text
from ridgeline.serving.model.model import Model
from ridgeline.serving.traffic.traffic import SHORTER, beyond_context
from ridgeline.serving.workloads.engine.options import ENGINE_KNOB, EngineOptions
from ridgeline.workloads.base import field_problems, metric_problems, names_read

if TYPE_CHECKING:
    from ridgeline.serving.twin.simulate import SimulationResult

MOST_VALUES = 1000  # of a knob, beyond which only its first and last are looked at
NO_MORE_THAN_SENT = ("goodput", "requests_s", "total_tok_s", "output_tok_s", "input_tok_s")
ENV_NAME = re.compile(r"[A-Z][A-Z0-9_]*")


OWN_KNOBS = (ENGINE_KNOB, *LIMIT_KNOBS)  # that are no flags of an engine


class KnobNames:
    """Knobs are the engine's flags in snake_case, environment variables in capitals, and `OWN_KNOBS`."""

    def __init__(self, study: Study, options: EngineOptions, dialect: ServingEngine) -> None:
        self._study, self._options, self._dialect = study, options, dialect

    def values(self, settings: Settings) -> dict[str, Value]:
        """All settings that are flags, under our names: constants, overruled by knobs and derived values."""
        names, called, knows = set(self._flag_names), self._dialect.flags.called, self._dialect.flags.knows
        knobs = {called(n): v for n, v in settings.items() if (n in names or knows(n)) and v is not None}
        fixed = {called(name): value for name, value in self._options.flags.items()}
        return self._dialect.flags.canonical({**fixed, **knobs})

    def problems(self, *, serves: bool) -> Iterator[Problem]:
        yield from self.knob_problems(self._dialect.release_of(self._own_install))
        yield from field_problems(self._study, self.templates())
        yield from self.metric_problems("serve" if serves else "offline")
        yield from self.traffic_problems()

    def asked_env(self, settings: Settings, build: str = ".") -> dict[str, str]:
        """What the study itself puts into the environment; `{build}` is the folder that its `builds` made."""
        env = render_env(self._options.env, {"build": build, **settings}, self._study.space.optional)
        knobs = {n: v for n, v in settings.items() if ENV_NAME.fullmatch(n) and v not in (None, OWN_CHOICE)}
        return env | {name: str(int(value) if isinstance(value, bool) else value) for name, value in knobs.items()}

    @property
    def _own_install(self) -> Install:
        """The study's engine at its baseline, without the knob `engine`."""
        return self._options.install({n: v for n, v in self._study.baseline.items() if n != ENGINE_KNOB})

    def templates(self) -> Iterator[tuple[Where, str]]:
        yield ("workload", "engine"), self._options.engine
        yield ("workload", "version"), self._options.version
        for name, text in self._options.env.items():
            yield ("workload", "env", name), text

    def knob_problems(self, release: Version) -> Iterator[Problem]:
        """Names that are no knobs of this release, and values that a knob cannot have."""
        yield from self._unknown_names(release)
        yield from self._wrong_values(NEWEST if self._several_engines else release)

    @cached_property
    def _flag_names(self) -> tuple[str, ...]:
        """Names of the study that are flags of this engine in any of its releases."""
        knows = self._dialect.flags.knows
        unknown = [n for n in self._used_names() if not knows(n)]
        found = self._installed(tuple(unknown)) if unknown else {}
        return tuple(n for n in self._used_names() if knows(n) or n in found)

    @property
    def asked_flags(self) -> tuple[str, ...]:
        """Flags of the study that our table does not have: only the engine itself knows them."""
        return tuple(name for name in self._flag_names if not self._dialect.flags.knows(name))

    def place(self, wanted: Collection[str]) -> Where:
        """Where the study says the first of these knobs, whose names are ours."""
        said = (name for name in self._used_names() if self._dialect.flags.called(name) in wanted)
        name = next(said, "")
        if name in self._study.space.names:
            return ("space", name)
        return ("workload", "flags", name) if name else ("workload",)

    def _used_names(self) -> list[str]:
        names = [*self._study.space.names, *self._options.flags]
        return [n for n in dict.fromkeys(names) if n not in OWN_KNOBS and not ENV_NAME.fullmatch(n)]

    def _installed(self, wanted: tuple[str, ...]) -> Mapping[str, str]:
        """Flags of the installed engine, asked only when the table does not know a name that must be a flag."""
        derived = set(self._study.space.derived)
        if all(name in derived or name in self._read_elsewhere() for name in wanted):
            return {}
        install = self._own_install
        return {} if install.container else flags_of(install, self._dialect.introspect())

    def _read_elsewhere(self) -> set[str]:
        """Knobs that need not be flags, because something else of the study reads them."""
        return names_read(self._study, (text for _, text in self.templates()))

    def _unknown_names(self, release: Version) -> Iterator[Problem]:
        flags, elsewhere, known_flags = self._dialect.flags, self._read_elsewhere(), set(self._flag_names)
        knobs = [(("space", knob.name), knob.name) for knob in self._study.space.knobs]
        flags_set = [(("workload", "flags", name), name) for name in self._options.flags]
        for where, name in (*knobs, *flags_set):
            if name in LIMIT_KNOBS and where[0] != "space":
                yield Problem(where, "is no flag of an engine; make it a knob in `space`, of one value if it stays so")
                continue
            if name in OWN_KNOBS or (ENV_NAME.fullmatch(name) and where[0] == "space"):
                continue
            if name in elsewhere - known_flags:
                continue
            if name not in known_flags:
                yield Problem(where, f"no such knob for {self._whose}; {self._meant(name, release)}")
            elif not self._several_engines and (gap := flags.missing(name, release)):
                yield Problem(where, f"{release_text(self._dialect.name, release)} {gap}")

    def unmodelled(self) -> list[str]:
        """Knobs with several values that the twin takes for one: flags without a part in it, environment, engines."""
        called, elsewhere = self._dialect.flags.called, self._read_elsewhere()
        rows = {k.name: ROWS.get(called(k.name)) for k in self._study.space.varied if k.name not in elsewhere}
        rows = {name: row for name, row in rows.items() if name not in LIMIT_KNOBS}
        return [name for name, row in rows.items() if row is None or row.part is Part.NOWHERE]

    def traffic_problems(self) -> Iterator[Problem]:
        """Requests of one stated length that no engine takes."""
        stated = self._options.load.traffic.startswith("fixed:")
        if stated and not self._options.problems and (beyond := self._beyond_context(self._study.baseline)):
            yield Problem(("workload", "traffic"), f"{beyond}; {SHORTER}")

    def _beyond_context(self, settings: Settings) -> str:
        model, values = known_model(self._options), self.values(settings)
        context = values.get("context_length", model and model.context_tokens)
        if not is_number(context):
            return ""
        sent = [a.input_tokens + a.output_tokens for a in self._options.load.recipe(paced=False).arrivals()]
        beyond = beyond_context(sent, context)
        return f"{beyond}, and {self._dialect.title or self._dialect.name} refuses them" if beyond else ""

    def load_remarks(self, settings: Settings) -> list[str]:
        """What of a recording is not sent, or not taken; and that nothing can serve more than it is sent, where the
        goal asks for as much as can be."""
        metric, rate_s = self._study.goal.metric, self._options.load.rate_s
        left_out = (*self._options.unused, self._beyond_context(settings))
        unused = [f"traffic: {note}" for note in left_out if note]
        if rate_s is None or metric not in NO_MORE_THAN_SENT:
            return unused
        return [
            *unused,
            f"at {rate_s:g} requests/s no setting has a {metric} beyond what is sent: those that keep up look alike; "
            "raise `rate` beyond what the best one serves, or load by `concurrency`",
        ]

    @property
    def _whose(self) -> str:
        kind, title = self._study.workload.kind, self._dialect.title or self._dialect.name
        return kind if kind.startswith(self._dialect.name) else f"{kind}, which simulates {title}"

    def _meant(self, name: str, release: Version) -> str:
        """The engine's own name for what another one calls so; else the nearest name, or the usual ones."""
        flags = self._dialect.flags
        if own := flags.own_name(name, release):
            return f"{self._dialect.title or self._dialect.name} calls it {own}"
        known = [*flags.names(release), *OWN_KNOBS]
        if meant := nearest(name, known):
            return f"did you mean {meant if meant in flags.flags else flags.own_name(meant, release) or meant}?"
        # hundreds of flags help nobody: where none is close, the usual ones are shown
        return near(name, flags.usual_names(release))

    @property
    def _several_engines(self) -> bool:
        return bool(self._options.engines or self._options.engine_fields)

    def _wrong_values(self, release: Version) -> Iterator[Problem]:
        flags, gpu = {*self._flag_names, *LIMIT_KNOBS}, known_gpu(self._options.gpu)

        def wrong_value(name: str, value: Value) -> str:
            if name not in LIMIT_KNOBS:
                return self._dialect.flags.wrong_value(name, value, release)
            wrong = wrong_limit(name, value)
            return wrong or (beyond_limits(gpu, limits_at({name: value}, NO_LIMITS)) if gpu is not None else "")

        for knob in self._study.space.knobs:
            values = (knob.low, knob.high) if isinstance(knob, Continuous) else knob.values
            if isinstance(knob, Discrete) and len(values) > MOST_VALUES:
                values = (values[0], values[-1])
            if knob.name in flags and (wrong := next((w for v in values if (w := wrong_value(knob.name, v))), "")):
                yield Problem(("space", knob.name), wrong)
        for name, value in self._options.flags.items():
            if wrong := wrong_value(name, value):
                yield Problem(("workload", "flags", name), wrong)

    def metric_problems(self, maker: str) -> Iterator[Problem]:
        """Goals and guards that name what `maker` does not measure."""
        yield from metric_problems(self._study, metrics_of("run", maker))
        goal = self._study.goal
        if goal.metric == "goodput" and not self._study.workload.options.get("slo"):
            yield Problem(("goal", goal.direction), "goodput counts requests within limits; give `slo` to the workload")


def refusal(
    dialect: ServingEngine,
    options: EngineOptions,
    install: Install,
    values: Mapping[str, Value],
    asked: Resources,
    site: Site,
) -> str | None:
    """Why this setting, under our names, cannot start; None where nothing is certain."""
    model, version = known_model(options), dialect.release_of(install)
    if (reason := dialect.refusal(model, values, install, version)) is not None:
        return reason
    try:
        if options.acceptance is not None and (drafts := drafting_of(values)):
            options.acceptance.length(drafts.depth)
        layout = layout_of(values, asked.nodes, asked.gpus or site.gpus_per_node)
        settings = behaving(_checked_settings(dialect, values, version), options, values, model)
    except InputError as error:
        return str(error)
    gpu = known_gpu(options.gpu)
    if gpu is not None and (foreign := other_makers(values.get("attention_backend"), gpu)):
        return str(foreign)  # also one that is not modelled, which `settings` leaves out
    if reason := _tier_refusal(dialect, values, asked, site, 0.0):
        return reason
    if model is None or (dialect.simulated and dialect.on_processors(install, values)):
        return None  # the rules are those of GPUs: on processors SGLang pads heads that its ranks cannot share
    dense_whole = values.get("moe_dense_tp_size") == 1
    kept = model_of(model, values)
    if problems := layout_problems(kept, layout, gpu, settings, role_of(values), dense_whole=dense_whole):
        return str(problems[0])
    if gpu is None or not dialect.simulated or not weights_known(model, values):
        return None
    plan = plan_memory(kept, gpu, layout, settings, role_of(values))
    if plan.verdict == STARTUP_OOM:
        return f"it cannot start: {plan.reason}"
    return _tier_refusal(dialect, values, asked, site, _SURE_OF_POOL * plan.kv_bytes)


def _tier_refusal(
    dialect: ServingEngine, values: Mapping[str, Value], asked: Resources, site: Site, pool_bytes: float
) -> str | None:
    """Why a tier of KV cache cannot be pinned in a node's memory, where the site says how much it has."""
    memory, ranks = site.memory_bytes_per_node, asked.gpus or site.gpus_per_node or 1
    tier = dialect.host_tier_bytes(values, ranks, pool_bytes)
    if memory is None or tier <= memory:
        return None
    have, want = (f"{size / 1e9:,.0f} GB" for size in (memory, tier))
    said = ", ".join(name for name in HOST_TIER_SIZES if name in values)
    return f"the host tiers of {ranks} ranks ({said}) take {want} of a node that has {have}; ask for less of a rank"


def tier_remark(
    dialect: ServingEngine,
    options: EngineOptions,
    values: Mapping[str, Value],
    version: Version,
    asked: Resources,
    site: Site,
) -> str | None:
    """What is taken for granted of a tier of KV cache in a node's memory, since nobody can look at it here."""
    ranks = asked.gpus or site.gpus_per_node or 1
    if not dialect.host_tier_bytes(values, ranks, 1.0):
        return None
    tier = dialect.host_tier_bytes(values, ranks, 0.0)
    if not tier and (found := _expected_deployment(options, values, version, asked, site)) is not None:
        plan = plan_memory(found.model, found.cluster.gpu, found.layout, found.settings, role_of(values))
        tier = dialect.host_tier_bytes(values, ranks, plan.kv_bytes)
    if not tier:
        return (
            "host tiers are so many KV pools, whose size is not known here, and that they fit a node's memory is "
            "assumed; name a `gpu` and a model whose shape is known, or say the tier's size"
        )
    if site.memory_bytes_per_node is not None:
        return None  # looked at: `refusal`
    return (
        f"host tiers take {tier / 1e9:,.0f} GB of a node, and that it has them is assumed; give the site's "
        "`memory_per_node`, and what does not fit is refused before it runs"
    )


def _checked_settings(dialect: ServingEngine, values: Mapping[str, Value], version: Version) -> EngineSettings:
    if dialect.simulated:
        return settings_of(values, _settings_base(version))
    return EngineSettings() if dialect.defaults is None else EngineSettings(engine=dialect.name, version=version)


def _expected_deployment(
    options: EngineOptions, values: Mapping[str, Value], version: Version, asked: Resources, site: Site
) -> Deployment | None:
    """What the twin would simulate; None where model or GPU are not known here. InputError names a value that is not
    taken."""
    model, gpu = known_model(options), known_gpu(options.gpu)
    if model is None or gpu is None:
        return None
    layout = layout_of(values, asked.nodes, asked.gpus or site.gpus_per_node)
    cluster = make_cluster(gpu, layout.nodes, layout.gpus_per_node)
    settings = behaving(settings_of(values, _settings_base(version)), options, values, model)
    return Deployment(model_of(model, values), cluster, layout, settings)


def limited(deployment: Deployment, settings: Settings) -> Deployment:
    """On GPUs that are held to what these settings say. InputError where nobody knows how they would run."""
    cluster = deployment.cluster
    gpu = held_to(cluster.gpu, limits_at(settings, cluster.gpu.limits))
    return replace(deployment, cluster=replace(cluster, node=replace(cluster.node, gpu=gpu)))


def prediction(
    options: EngineOptions,
    values: Mapping[str, Value],
    settings: Settings,
    version: Version,
    asked: Resources,
    site: Site,
    *,
    paced: bool,
) -> SimulationResult | None:
    """What the twin expects of the engine, said before it runs; None where it cannot know model and GPU. `values` are
    the flags of `settings`."""
    from ridgeline.serving.twin.simulate import simulate

    try:
        deployment = _expected_deployment(options, values, version, asked, site)
        if deployment is None:
            return None
        return simulate(limited(deployment, settings), options.load.recipe(paced=paced))
    except InputError:  # a memory plan that cannot start is one of these
        return None


def _settings_base(version: Version) -> EngineSettings:
    """The defaults of a release."""
    return DEFAULTS if version == NEWEST else EngineSettings(version=version)


def known_model(options: EngineOptions) -> Model | None:
    """None where its shape cannot be read here."""
    return _model(options.shape or options.model, options.config)


@lru_cache(maxsize=16)
def _model(name: str, recorded: str) -> Model | None:
    """The model's shape where it can be read here; an engine may know names and paths that this machine does not."""
    try:
        return model_from_text(recorded, name) if recorded else load_model(name)
    except (InputError, ValueError):
        return None


@lru_cache(maxsize=16)
def known_gpu(name: str) -> Gpu | None:
    if not name:
        return None
    try:
        return load_gpu(name)
    except InputError:
        return None


_SURE_OF_POOL = 0.8  # of a predicted KV pool, which a tier of a given ratio must at least hold
DUMMY, LOAD_FORMAT = "dummy", "load_format"
WEIGHTS_RECORD = "weights"  # of `Study.recorded`, beside the interpreters and the model
_OFF = ("", "0", "false", "no", "n", "off")


def behaving(
    settings: EngineSettings, options: EngineOptions, values: Mapping[str, Value], model: Model | None
) -> EngineSettings:
    """With the routing and the accept length that hold for these values. InputError where so many cannot be kept."""
    dummy = values.get(LOAD_FORMAT) == DUMMY
    experts = options.experts or (UNIFORM if dummy else TRAINED)
    if experts == AS_LOADED:
        # a bias on the scores of a router whose weights are next to nothing decides alone
        biased = model is not None and model.experts is not None and model.experts.biased
        experts = COLLAPSED if dummy and biased else TRAINED
    kept = settings.accept_length
    if settings.drafting:
        if options.acceptance is not None:
            kept = options.acceptance.length(settings.drafting.depth)
        elif dummy:
            kept = 1.0
    return replace(settings, experts=experts, accept_length=kept)


class DummyWeights:
    """What an engine with dummy weights is made to do as real ones would, and what is left too different to believe."""

    def __init__(self, study: Study, options: EngineOptions, dialect: ServingEngine, names: KnobNames) -> None:
        self._study, self._options, self._dialect, self._names = study, options, dialect, names

    @property
    def used(self) -> bool:
        """By any setting of the study."""
        return DUMMY in self._values_of(LOAD_FORMAT)

    @property
    def variables(self) -> tuple[str, ...]:
        """All by which an engine is told, in benchmarks only, what to do whatever its weights say."""
        return (*self._routing_variables, *self._dialect.acceptance_variables)

    @property
    def _routing_variables(self) -> tuple[str, ...]:
        switch = self._dialect.simulated_routing
        return switch.variables if switch is not None else ()

    def problems(self) -> Iterator[Problem]:
        """What this engine, in this release, cannot be made to do."""
        if not self.used:
            return
        switch, title = self._dialect.simulated_routing, self._dialect.title or self._dialect.name
        release = self._dialect.release_of(self._options.install(self._study.baseline))
        routing, named = self._options.experts, release_text(self._dialect.name, release)
        if not self._steered(self._study.baseline):
            if routing not in (TRAINED, AS_LOADED):
                what = f"{named} on processors routes by its weights alone; write {AS_LOADED}"
                yield Problem(("workload", "experts"), f"{what}, or ask the twin (kind: twin)")
            if self._options.acceptance is not None:
                what = f"{named} on processors keeps no drafts by order, it stops at the first; remove accept_length"
                yield Problem(("workload", "accept_length"), what)
            return
        if routing not in (TRAINED, AS_LOADED):
            known = switch.values if switch is not None and release_meant(release) >= switch.since else ()
            if routing not in known:
                can = f"it knows {' and '.join(known)}" if known else f"it has no switch for it{_since(switch)}"
                yield Problem(
                    ("workload", "experts"),
                    f"{named} cannot be made to route by {routing}: {can}; write "
                    f"{' or '.join([*known, AS_LOADED])}, or ask the twin (kind: twin), which knows all",
                )
        first = self._dialect.acceptance_since
        if self._options.acceptance is not None and (first is None or release_meant(release) < first):
            since = "no release can" if first is None else f"{title} {'.'.join(map(str, first))} and later can"
            what = f"{named} keeps no drafts by order; {since}"
            yield Problem(("workload", "accept_length"), f"{what}: use one, or remove accept_length")

    def remarks(self) -> Iterator[str]:
        """What the study says of weights, and nothing of it heeds."""
        model, title = known_model(self._options), self._dialect.title or self._dialect.name
        said = {"experts": bool(self._options.experts), "accept_length": self._options.acceptance is not None}
        if names := [name for name, is_said in said.items() if is_said]:
            if not self.used:
                yield f"{' and '.join(names)}: real weights decide in {title}; only the twin's prediction heeds it"
            elif said["experts"] and model is not None and model.experts is None:
                yield f"experts: {model.name} has none"
            elif said["accept_length"] and not (self._drafts() or self._study.space.derived):
                yield f"accept_length: nothing drafts here; {' or '.join(_DRAFTS)} says how, where the engine has it"

    def _drafts(self) -> list[tuple[str, Value]]:
        """The values of this study with which an engine drafts, each with its flag."""
        return [(n, v) for n in _DRAFTS for v in self._values_of(n) if v not in _NO_DRAFT]

    def _asked_env(self, settings: Settings) -> dict[str, str]:
        return {**self._study.site.env, **self._names.asked_env(settings)}

    def env(self, settings: Settings) -> dict[str, str]:
        """By which the engine is made to; nothing of what the study or its site sets itself."""
        return {**self._routing_env(settings), **self._keeping(settings)[0]}

    def values(self, settings: Settings) -> dict[str, Value]:
        """All flags, under our names, with those by which the engine is made to."""
        return self._keeping(settings)[1]

    def accept_length(self, settings: Settings) -> float | None:
        """How many tokens of a verified step the engine is made to keep; None where it is not."""
        values = self._names.values(settings)
        acceptance, drafts = self._options.acceptance, drafting_of(values)
        if acceptance is None or not drafts or values.get(LOAD_FORMAT) != DUMMY:
            return None
        return acceptance.length(drafts.depth)

    def _keeping(self, settings: Settings) -> tuple[dict[str, str], dict[str, Value]]:
        values, length = self._names.values(settings), self.accept_length(settings)
        own = self._asked_env(settings)
        if length is None or any(name in own for name in self._dialect.acceptance_variables):
            return {}, values
        return self._dialect.keeping(values, length)

    def _routing_env(self, settings: Settings) -> dict[str, str]:
        switch = self._dialect.simulated_routing
        if switch is None or not self._may_route(settings) or not self._has_switch(settings) or self._begun_without:
            return {}
        wanted = switch.values.get(self._options.experts or UNIFORM)
        if wanted is None or any(name in self._asked_env(settings) for name in switch.variables):
            return {}
        return {switch.variable: wanted}

    def record(self, settings: Settings) -> dict[str, object]:
        """What the journal keeps: that weights were dummies, and what the engine was made to do."""
        if not self.used:
            return {}
        env = self._asked_env(settings) | self.env(settings)
        routing = {name: env[name] for name in self._routing_variables if name in env}
        kept = self._study.workload.options.get("accept_length")
        said = {"routing": routing, "experts": self._options.experts, "accept_length": kept}
        return {WEIGHTS_RECORD: {LOAD_FORMAT: DUMMY, **{name: value for name, value in said.items() if value}}}

    def receipt(self, settings: Settings) -> dict[str, object]:
        """What one run's session keeps of it; nothing where the engine was made to do nothing."""
        made = {"routing": self._routing_env(settings), "accept_length": self.accept_length(settings)}
        said = {name: value for name, value in made.items() if value}
        return {WEIGHTS_RECORD: {LOAD_FORMAT: DUMMY, **said}} if said else {}

    def doubts(self, all_settings: Iterable[Settings]) -> list[str]:
        """Why real weights would show something else."""
        if not self.used:
            return []
        found = [text for settings in all_settings if (text := self._routing_doubt(settings))]
        drafts = self._drafts()
        if drafts and self._options.acceptance is None:
            computed = {bool(drafting_of({name: value}).passes) for name, value in drafts}
            how = "no ground to choose them by; `accept_length` says how many real ones keep"
            if True in computed:
                found.append(
                    f"{drafts[0][0]}: with dummy weights no drafted token is ever accepted, so what is measured of "
                    f"drafts is their cost without their gain: too slow, and {how}"
                )
            if False in computed:
                # 3.85 of 4 tokens, and 1.0 where they are sampled: vLLM 0.32, two layers of eight experts
                found.append(
                    f"{drafts[0][0]}: dummy weights repeat themselves, so nearly all drafts that are copied from the "
                    f"text are accepted (too fast), or none where tokens are sampled (too slow): {how}"
                )
        elif drafts:
            said = self._study.workload.options.get("accept_length")
            found.append(
                f"accept_length {said}: the engine was made to keep so many drafted tokens; the gain of drafts is "
                "worth as much as that figure"
            )
        return list(dict.fromkeys(found))

    def _routing_doubt(self, settings: Settings) -> str:
        if not self._may_route(settings):
            return ""
        switch, title = self._dialect.simulated_routing, self._dialect.title or self._dialect.name
        env = self._asked_env(settings) | self._routing_env(settings)
        fast = "collapsed routing: dummy weights may send all tokens to the same few experts, which is too fast"
        fast += " (2 and 2.6 times in two shapes on an H200)"
        if known_model(self._options) is None:
            fast = f"if this model has experts, {fast}"
        if switch is None or not self._has_switch(settings):
            release = self._dialect.release_of(self._options.install(settings))
            if not self._steered(settings):
                return f"{fast}; {title} on processors has no switch against it"
            return f"{fast}; {title} {'.'.join(map(str, release))} has no switch against it{_since(switch)}"
        if self._begun_without:
            return f"{fast}; this campaign was begun without {switch.variable}"
        if all(env.get(name, "").lower() in _OFF for name in switch.variables):
            off = f"the study itself has {switch.variable} off"
            return f"{fast}; {'`experts: as-loaded` asks for it' if self._options.experts == AS_LOADED else off}"
        if around := switch.bypassed(self._names.values(settings), self._options.gpu):
            return f"{fast}; {switch.variable} does not reach {around}, whose kernels route tokens themselves"
        if self._dialect.release_of(self._options.install(settings)) == NEWEST:
            unread = "and its release cannot be read here: say it by `version`"
            since = ".".join(map(str, switch.since))
            return f"{fast}; {title} has a switch against it from {since} on, {unread}"
        return ""

    def _may_route(self, settings: Settings) -> bool:
        """Dummy weights of a model with experts, or of one whose shape is not known here: a dense one never asks."""
        model = known_model(self._options)
        return self._names.values(settings).get(LOAD_FORMAT) == DUMMY and (model is None or model.experts is not None)

    def _has_switch(self, settings: Settings) -> bool:
        switch = self._dialect.simulated_routing
        release = self._dialect.release_of(self._options.install(settings))
        return switch is not None and release_meant(release) >= switch.since and self._steered(settings)

    def _steered(self, settings: Settings) -> bool:
        return self._dialect.steered(self._options.install(settings), self._names.values(settings))

    @property
    def _begun_without(self) -> bool:
        """Whether this is a folder to be read whose runs were made before the switch was set by default."""
        recorded = self._study.recorded
        return recorded is not None and WEIGHTS_RECORD not in recorded

    def _values_of(self, name: str) -> Iterator[Value | None]:
        """All that a flag may be in this study, under its own name or the engine's."""
        called = self._dialect.flags.called
        yield from (value for flag, value in self._options.flags.items() if called(flag) == called(name))
        for knob in self._study.space.knobs:
            if called(knob.name) == called(name) and not isinstance(knob, Continuous):
                yield from knob.values


def _since(switch: SimulatedRouting | None) -> str:
    return " that is known here" if switch is None else f", {'.'.join(map(str, switch.since))} and later have"


_DRAFTS = ("speculative_algorithm", "speculative_config")
_NO_DRAFT = (None, "", "none", "default", False)
