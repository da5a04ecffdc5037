"""The files of a run folder and the environment of a run: what an engine is started with, on one node or many.

One-time steps would otherwise be paid inside a measurement, and are kept per model, GPU, layout and engine release.
`rehearse` is every engine's: it runs the first trial's own command once and throws the result away, so that Triton's,
FlashInfer's and torch.compile's caches are full afterwards. `bake` does the same with caches of its own, from which all
later runs of this release, GPU and model start, whatever else uses the user's caches. The others are the engine's own;
its dialect lists them. Some are scripts of its repository, not of its package: `sources` names a checkout.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeline.errors import Problem, near
from ridgeline.records.expression import Value
from ridgeline.records.launch import Binding, contained, launch, rank_text
from ridgeline.records.run import PREDICTED, PROFILE_FOLDER, Resources
from ridgeline.records.site import Site
from ridgeline.records.space import Settings
from ridgeline.records.study import ProfileStage, Study
from ridgeline.serving.engines.base import HEAD, MODEL, NSYS, PORT, RENDEZVOUS, ServingEngine, Span, StepNeeds
from ridgeline.serving.engines.install import Install
from ridgeline.serving.engines.releases import NEWEST
from ridgeline.serving.hardware.gpu_limits import asked_limits, held_while_pasted, limit_commands
from ridgeline.serving.model.config import preset_names
from ridgeline.serving.ports import RENDEZVOUS_PORT, SGLANG_PORT
from ridgeline.serving.traffic.requests import record_line
from ridgeline.serving.workloads.engine.options import BAKE, REHEARSE, EngineOptions
from ridgeline.serving.workloads.engine.reading import AskedSettings
from ridgeline.serving.workloads.engine.settings import (
    DUMMY,
    LOAD_FORMAT,
    DummyWeights,
    KnobNames,
    prediction,
)
from ridgeline.workloads.base import NO_WEIGHTS, ServedAs
from ridgeline.workloads.run_folder import build_lines, pasted_run

if TYPE_CHECKING:
    from ridgeline.serving.twin.simulate import SimulationResult

# other values of these ask for other kernels or another record
_DECIDING = (
    "tp", "pp", "dp", "ep", "attn_dp", "moe_dense_tp_size", "moe_a2a_backend", "quantization", "dtype",
    "kv_cache_dtype", "ep_num_redundant_experts",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PrepareStep:
    """`command` runs in the folder that is kept ("" for a rehearsal, which runs the trial's own); `everywhere`: on all
    nodes of the job; `serves`: it is a server, which the session loads and asks for its record."""

    name: str
    key: str
    command: str = ""
    everywhere: bool = True
    serves: bool = False

    @property
    def script(self) -> str:
        return f"prepare-{self.name}.sh" if self.command else "engine.sh"

    def as_json(self) -> dict[str, object]:
        return {"step": self.name, "key": self.key, "own": bool(self.command), "serves": self.serves}


def step_problems(options: EngineOptions, dialect: ServingEngine) -> Iterator[Problem]:
    known = (REHEARSE, BAKE, *dialect.steps)
    for index, step in enumerate(options.prepare):
        where = ("workload", "prepare", index)
        if step not in known:
            yield Problem(where, f"no such step for {dialect.name}; {near(step, known)}")
        elif step not in (REHEARSE, BAKE) and (script := dialect.steps[step].script) and not options.sources:
            yield Problem(
                where, f"{step} is {script} of the engine's repository; give `sources`, the folder of a checkout"
            )


def step_refusal(options: EngineOptions, dialect: ServingEngine, nodes: int) -> str | None:
    """Why a step cannot be done for a trial on so many nodes."""
    for name, step in dialect.steps.items():
        if name in options.prepare and nodes < step.least_nodes:
            return f"prepare: {name} needs {step.least_nodes} nodes or more; leave it out"
    return None


def steps_of(
    options: EngineOptions, dialect: ServingEngine, install: Install, values: Mapping[str, Value], cluster: Span
) -> list[PrepareStep]:
    """The steps of a trial in the dialect's order; the GPU's name is added to the key on the node."""
    version = dialect.release_of(install)
    layout = {name: values[name] for name in _DECIDING if name in values}
    engine = [dialect.name, install.python, install.container, list(version)]
    needs = StepNeeds(install.python, dialect.flags.arguments(values, version), values, cluster, options.sources)
    made = []
    for name in (*dialect.steps, BAKE, REHEARSE):  # a rehearsal runs the engine with what the other steps give it
        if name not in options.prepare:
            continue
        decides = [name, *engine, options.model, options.sources, cluster.nodes, layout]
        key = hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:16]
        if step := dialect.steps.get(name):
            made.append(PrepareStep(name, key, step.command(needs), step.everywhere, step.serves))
        else:
            made.append(PrepareStep(name, key))
    return made


def given_arguments(dialect: ServingEngine, prepare: Sequence[str], values: Mapping[str, Value]) -> list[str]:
    """Flags that hand an engine what its steps kept, unless the study sets them itself."""
    found = []
    for name, step in dialect.steps.items():
        if name in prepare and step.flag and step.flag not in values:
            found += [f"--{step.flag.replace('_', '-')}", f"${step.variable}"]
    return found


@dataclass(frozen=True, slots=True)
class PastedServer:
    """`model` "" leaves it to people to name one; `arguments` are the engine's; `site` is where it runs, in its
    container; `prepare` are its one-time steps."""

    dialect: ServingEngine
    python: str
    model: str
    arguments: Sequence[str]
    env: Mapping[str, str]
    site: Site
    resources: Resources
    prepare: Sequence[str] = ()
    before: Sequence[str] = ()

    def text(self) -> str:
        command = contained(self.site, self.resources, self._server())
        return pasted_run(self.site, self.env, "\n".join([*self._first(), command]), self.before)

    def _server(self) -> str:
        # what the session finds out on the node, as a person would choose it
        model = shlex.quote(self.model) if self.model else _WEIGHTS
        known = {f'"${MODEL}"': model, f'"${PORT}"': str(SGLANG_PORT)}
        known |= {f"${HEAD}": "$head", f"${RENDEZVOUS}": str(RENDEZVOUS_PORT)}
        text = self.dialect.serve(self.python, self.arguments, Span(self.resources.nodes))
        for variable, value in known.items():
            text = text.replace(variable, value)
        return text

    def _first(self) -> Iterator[str]:
        """What a person must say that nobody can know for them."""
        if self.resources.nodes > 1:
            # not every shell that is typed into knows comments
            then = "on the next, set rank=1 and head to what echo $head prints here"
            yield f": 'first of {self.resources.nodes} nodes; {then}'"
            # not its name, which many nodes take for 127.0.1.1
            yield "rank=0 head=$(hostname -I | cut -d' ' -f1)"
        for name, step in self.dialect.steps.items():
            if name in self.prepare and step.variable:
                what = step.file or "folder"
                yield f'export {step.variable}="${{{step.variable}:?set it to the {what} that the step {name} kept}}"'


def made_model(shape: str) -> tuple[str, str]:
    """The folder of a model that is a shape alone, and the command that makes it there."""
    path = Path(shape)
    folder = f"models/{path.parent.name if path.name == 'config.json' else path.stem}"
    return folder, shlex.join([sys.executable, "-m", "ridgeline", "model", "make", shape, folder])


# what a command says in place of weights that nobody has
_WEIGHTS = '"${WEIGHTS:?benchmark only: set it to the folder of real weights}"'
BENCHMARK_ONLY = (
    "to serve with this setting (benchmark only: no real weights were measured; set WEIGHTS to the folder of yours)"
)
SESSION, _ENGINE_SCRIPT, _NSYS_SCRIPT = "session.json", "engine.sh", "nsys.sh"
_RANK_PROGRAM = "ridgeline.serving.workloads.engine.session.rank"


class Scripts:
    """Everything that is written for a trial; the same trial gives the same text."""

    def __init__(
        self, study: Study, options: EngineOptions, dialect: ServingEngine, names: KnobNames, *, serves: bool
    ) -> None:
        self._study, self._options, self._dialect, self._names = study, options, dialect, names
        self._serves = serves
        self.dummy = DummyWeights(study, options, dialect, names)

    def files(
        self,
        settings: Settings,
        env: Mapping[str, str],
        questions: Mapping[str, object] | None = None,
        profile: ProfileStage | None = None,
    ) -> dict[str, str]:
        """Name to text: session.json, engine.sh, a script for each one-time step, and the twin's requests."""
        resources, nsys = self._study.job.resources(settings), profile is not None and profile.tool == NSYS
        predicted = self._prediction(settings, resources)
        session = self._session(settings, resources, env, predicted) | ({"questions": questions} if questions else {})
        if profile is not None:
            session |= {"serves": True, "profile": {**asdict(profile), "nsys": self._start(_NSYS_SCRIPT, Resources())}}
        return {
            SESSION: json.dumps(session, indent=1) + "\n",
            _ENGINE_SCRIPT: self._script("The engine", self.engine(settings, profile), settings, resources),
            # nsys as the engine finds it, in its container: for its version, and for what it recorded
            **({_NSYS_SCRIPT: self._script("nsys", 'nsys "$@"', settings, Resources())} if nsys else {}),
            **{
                step.script: self._script(f"One-time step {step.name}", step.command, settings, resources, keeps=True)
                for step in self._steps(settings, resources)
                if step.command
            },
            **({} if predicted is None or predicted.sessions is None else {PREDICTED: _without_gaps(predicted)}),
        }

    def comments(self, settings: Settings, profile: ProfileStage | None = None) -> str:
        """What run.sh will come to, for people who read it: the exact commands of the engine and its one-time steps."""
        resources = self._study.job.resources(settings)
        parts = [
            f"once for model, GPU, layout and release ({step.script}): {step.command}"
            for step in self._steps(settings, resources)
            if step.command
        ]
        parts += [f"on each node, as root: {line}" for line in limit_commands(settings)]
        parts.append(f"the engine ({_ENGINE_SCRIPT}): {self.engine(settings, profile)}")
        # a command may hold a program of several lines, and each of them must stay a comment
        return "".join(f"# {line}\n" for text in parts for line in text.splitlines())

    def engine(self, settings: Settings, profile: ProfileStage | None = None) -> str:
        """The engine's command on one node. Under its profiler it is always a server: only that can be told when."""
        install = self._options.install(settings)
        arguments, cluster = self._arguments(settings, install), Span(self._study.job.resources(settings).nodes)
        if profile is not None:
            arguments += self._dialect.profiler_arguments(profile.tool, profile.steps)
        if self._serves or profile is not None:
            server = self._dialect.serve(install.python, arguments, cluster)
            return f"{_nsys(cluster)} {server}" if profile is not None and profile.tool == NSYS else server
        version = self._dialect.release_of(install)
        return self._dialect.offline(install.python, arguments, self._options.load.batch, version, cluster)

    def _arguments(self, settings: Settings, install: Install, *, offered: bool = False) -> list[str]:
        """Those of the setting, and those that hand the engine what its one-time steps kept."""
        values = self._names.values(settings) if offered else self.dummy.values(settings)
        if offered and values.get(LOAD_FORMAT) == DUMMY:
            del values[LOAD_FORMAT]
        arguments = self._dialect.flags.arguments(values, self._dialect.release_of(install))
        return [*arguments, *given_arguments(self._dialect, self._options.prepare, values)]

    def paste(self, settings: Settings, *, offered: bool = False) -> str:
        """As a person would type it to serve with these settings; `offered`: to people who want answers, and so never
        with weights that are none."""
        install, builds = self._options.install(settings), self._study.builds
        model, before = self._options.model, build_lines(builds, settings) if builds else []
        offered, site = offered and self.benchmark_only(settings), self.site(install)
        if offered:
            model = ""
        elif self._makes_model:
            model, make = made_model(model)
            before = [*before, make]
        before += held_while_pasted(settings)
        return PastedServer(
            self._dialect,
            install.python,
            model,
            self._arguments(settings, install, offered=offered),
            self._without_routing(self.env(settings)) if offered else self.env(settings) | self.dummy.env(settings),
            replace(site, env=self._without_routing(site.env)) if offered else site,
            self._study.job.resources(settings),
            self._options.prepare,
            before,
        ).text()

    def benchmark_only(self, settings: Settings) -> bool:
        """Whether what is measured at these settings has no real weights."""
        return self._makes_model or self._names.values(settings).get(LOAD_FORMAT) == DUMMY

    def _without_routing(self, env: Mapping[str, str]) -> dict[str, str]:
        """Without what an engine heeds in benchmarks only."""
        return {name: value for name, value in env.items() if name not in self.dummy.variables}

    @property
    def measures_dummies(self) -> bool:
        return self.dummy.used or self._makes_model

    @property
    def _makes_model(self) -> bool:
        """Whether the model is a shape alone, made into a folder where it is served."""
        return self._options.model in preset_names() or self._options.model.endswith(".json")

    def env(self, settings: Settings, build: str = ".") -> dict[str, str]:
        """The trial's environment. `{build}` is the folder that the study's `builds` made, seen from the run folder."""
        env = self._names.asked_env(settings, build)
        if any(name.startswith("NCCL_") for name in env):
            # NCCL ignores what it does not understand without a word; its own echo is the proof
            env.setdefault("NCCL_DEBUG", "INFO")
            env.setdefault("NCCL_DEBUG_SUBSYS", "INIT,ENV,TUNING")
        return env

    def served_as(self, settings: Settings, *, offered: bool = True) -> ServedAs:
        """`offered`: to people who want answers, as `paste` has it."""
        install = self._options.install(settings)
        release, none = self._dialect.release_of(install), offered and self.benchmark_only(settings)
        called = self._dialect.flags.called
        return ServedAs(
            NO_WEIGHTS if none else self._options.model.removesuffix("/config.json"),
            install.python,
            "" if release == NEWEST else ".".join(map(str, release)),
            {n: v for n, v in self._options.flags.items() if not (none and (called(n), v) == (LOAD_FORMAT, DUMMY))},
            self._without_routing(self._names.asked_env(settings)),
        )

    @property
    def launcher(self) -> str:
        return self._options.launcher or self._study.site.launcher

    def site(self, install: Install) -> Site:
        """With the container that this engine runs in."""
        return replace(self._study.site, container=install.container or self._study.site.container)

    def _steps(self, settings: Settings, resources: Resources) -> list[PrepareStep]:
        install = self._options.install(settings)
        return steps_of(self._options, self._dialect, install, self._names.values(settings), Span(resources.nodes))

    def _prediction(self, settings: Settings, resources: Resources) -> SimulationResult | None:
        if not self._dialect.simulated:
            return None
        version, site = self._dialect.release_of(self._options.install(settings)), self._study.site
        values = self._names.values(settings)
        return prediction(self._options, values, settings, version, resources, site, paced=self._serves)

    def _session(
        self, settings: Settings, resources: Resources, env: Mapping[str, str], predicted: SimulationResult | None
    ) -> dict[str, object]:
        install = self._options.install(settings)
        version, values = self._dialect.release_of(install), self._names.values(settings)
        asked = AskedSettings(
            echo=self._dialect.flags.echo(self.dummy.values(settings), version),
            nccl={n: v for n, v in env.items() if n.startswith("NCCL_")},
            version=install.version,
            attention_groups=_whole(values.get("attn_dp")),
            accept_length=self.dummy.accept_length(settings),
        )
        return {
            "engine": self._dialect.name,
            "python": "" if install.container else install.python,
            "serves": self._serves,
            "model": self._options.model,
            "make_model": self._makes_model,
            "start": self._start(_ENGINE_SCRIPT, resources),
            "nodes": resources.nodes,
            "interface": self._study.site.interface,
            "load": asdict(self._options.load),
            "ready_limit_s": self._options.ready_limit_s,
            "prepare": [
                step.as_json() | {"start": self._start(step.script, there), "nodes": there.nodes}
                for step in self._steps(settings, resources)
                for there in (resources if step.everywhere else Resources(),)
            ],
            "asked": asdict(asked),
            "predicted_tok_s": None if predicted is None else predicted.summary.total_tok_s,
            **({"gpu_limits": limits} if (limits := asked_limits(settings)) else {}),
            **self.dummy.receipt(settings),
            **({"perplexity": self._options.perplexity} if self._options.perplexity else {}),
        }

    def _start(self, script: str, resources: Resources) -> str:
        """How the session starts a script: by itself, or on every node by the site's launcher."""
        if resources.nodes == 1:
            return f"sh ./{script}"
        one_each = replace(resources, ranks_per_node=1)
        plain = replace(self._study.site, container="")
        # an engine pins its own processes; a launcher would tie all of them to one core
        free = Binding(bind_to="none")
        program = f'{shlex.quote(sys.executable)} -m {_RANK_PROGRAM} "$PWD/{script}"'
        return launch(plain, one_each, program, free, launcher=self.launcher)

    def _script(self, what: str, command: str, settings: Settings, resources: Resources, keeps: bool = False) -> str:
        install = self._options.install(settings)
        # launchers other than srun bring no environment along
        rank = f"rank={rank_text()}\n[ -r ./env ] && . ./env\n" if resources.nodes > 1 else ""
        site = self.site(install)
        if keeps:
            # a step may be several commands, and leaves its results where it runs
            inside = f"sh -c {shlex.quote(command)}" if site.container else command
            run = f'export rank\ncd "$RIDGELINE_KEEP" || exit 1\n{contained(site, resources, inside)}'
        else:
            run = f"exec {contained(site, resources, command)}"
        return (
            f"#!/bin/sh\n# {what} on one node. session.json says what is done with it.\n"
            'cd "$(dirname "$0")" || exit 1\n[ -r ./session.env ] && . ./session.env\n'
            f"{rank}{run}\n"
        )


def _nsys(cluster: Span) -> str:
    """Records nothing until the engine opens a range of the CUDA profiler, then until that ends; the engine goes on."""
    each = '-"$rank"' if cluster.nodes > 1 else ""
    # kernels inside CUDA graphs one by one, and those of worker processes; no sampling of CPUs, which many sites forbid
    what = "--trace=cuda,nvtx --cuda-graph-trace=node --trace-fork-before-exec=true --sample=none --cpuctxsw=none"
    range_ = "--capture-range=cudaProfilerApi --capture-range-end=stop"
    return f"nsys profile {what} {range_} --force-overwrite=true --output={PROFILE_FOLDER}/nsys{each}"


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 1


def _without_gaps(predicted: SimulationResult) -> str:
    """The requests as `bench` would write them; gaps between tokens would be most of it."""
    return "".join(record_line(replace(record, gaps_s=())) for record in predicted.records)
