"""What a serving engine must provide: one object of `ServingEngine`, in a folder of its own, and a row of the catalog.

Everything that is known about one engine is asked of that object: its command lines, its flags and defaults, what its
log says and how it fails, what its /metrics page calls things, which ports and paths it has, what it costs. No other
room may hold a copy, or ask for an engine by its name; the reader of a file that only one engine writes imports that
engine's object. What runs on a node imports this: nothing heavy here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from ridgeline import catalog
from ridgeline.records.expression import Value
from ridgeline.records.measurement import Measurement, reported
from ridgeline.serving.engines.failures import (
    CUDA_OOM,
    PORT_IN_USE,
    WATCHDOG,
    WRONG_ARGUMENTS,
    FailureText,
    ValuesToTry,
)
from ridgeline.serving.engines.flags import EngineFlags
from ridgeline.serving.engines.install import Install, flags_of, version_of
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.memory import MemoryPlan
from ridgeline.serving.engines.releases import NEWEST, Version, parse_version
from ridgeline.serving.engines.settings import EngineDefaults, EngineSettings, values_of
from ridgeline.serving.hardware.cluster import Gpu
from ridgeline.serving.model.model import Model
from ridgeline.serving.ports import DerivedPorts, offsets_of

DATASET = "dataset.json"
OFFLINE_RESULT = "offline.jsonl"
# What the session puts into the engine's environment, because only it knows them.
PORT, MODEL, HEAD, RENDEZVOUS = "RIDGELINE_PORT", "RIDGELINE_MODEL", "RIDGELINE_HEAD", "RIDGELINE_RENDEZVOUS"
KEEP = "RIDGELINE_KEEP"  # the folder in which a one-time step leaves its results
TORCH, NSYS = "torch", "nsys"  # profilers of servers: an engine's own, and NVIDIA's around it


@dataclass(frozen=True, slots=True)
class EngineLog:
    """What an engine's log says, in the words all engines share.

    `failures` are (kind, whether the engine was ready, line, text); `echo` is what the engine says it applied;
    `cached_share` is the part of the measured prompts' tokens that came from a cache.
    """

    failures: tuple[tuple[str, bool, int, str], ...] = ()
    weights_loaded: bool = False
    echo: Mapping[str, object] = field(default_factory=dict)
    version: str = ""
    figures: tuple[Measurement, ...] = ()
    cached_share: float | None = None
    running_limit: int | None = None  # requests one attention group may run, as applied


@dataclass(frozen=True, slots=True)
class Span:
    """The nodes one engine spans, and where they meet: by default, by what a session puts into the environment."""

    nodes: int = 1
    head: str = f"${HEAD}"
    port: str = f"${RENDEZVOUS}"
    rank: str = "$rank"


@dataclass(frozen=True, slots=True)
class OfflineBatch:
    """What an engine's own offline benchmark is asked to run; `warmup` None leaves it to the benchmark."""

    requests: int
    seed: int = 0
    warmup: int | None = None


@dataclass(frozen=True, slots=True)
class ServerLaunch:
    """One server of a service. `host` and `span` may name variables of the node; `number` is its place among all.

    `bootstrap_port` is that of a prefill server; `visible_gpus` are those of a machine that it shares with others.
    """

    python: str
    model: str
    arguments: Sequence[str]  # the flags of its setting
    host: str
    port: int
    role: str = "both"
    bootstrap_port: int = 0
    number: int = 0
    first_gpu: int = 0
    visible_gpus: str = ""
    served_name: str = ""
    span: Span = Span()

    @property
    def address(self) -> list[str]:
        return ["--host", self.host, "--port", str(self.port)]

    @property
    def name(self) -> list[str]:
        return ["--served-model-name", self.served_name] if self.served_name else []


@dataclass(frozen=True, slots=True)
class StepNeeds:
    """What the command of a one-time step is made from."""

    python: str
    arguments: Sequence[str]  # those of the trial
    values: Mapping[str, Value]
    cluster: Span
    sources: str  # a checkout of the engine's repository


@dataclass(frozen=True, slots=True)
class OneTimeStep:
    """`script` is the file of the engine's repository that it runs, "" where the package holds it. `flag` hands the
    engine the kept `file`, by the environment variable `variable`; without a flag the variable names the whole folder.
    """

    command: Callable[[StepNeeds], str]
    script: str = ""
    flag: str = ""
    variable: str = ""
    file: str = ""
    everywhere: bool = True  # on all nodes of the job
    serves: bool = False  # it is a server, which the session loads and asks for its record
    least_nodes: int = 1


@dataclass(frozen=True, slots=True)
class MetricNames:
    """What the engine's /metrics page calls our figures; "" where it has none."""

    running: str = ""  # requests that run
    waiting: str = ""  # requests that wait
    kv_share: str = ""  # of the KV pool that is used
    used_tokens: str = ""
    pool_tokens: str = ""
    output_tok_s: str = ""
    retractions: str = ""
    made: str = ""  # counted as each token is made
    prompt_tokens: str = ""  # so far
    output_tokens: str = ""  # so far; some engines count them when an answer is finished
    cached_tokens: str = ""
    cache_queries: str = ""
    requests: str = ""
    aborted: str = ""
    ttft: str = ""  # histograms, in seconds
    e2e: str = ""
    itl: str = ""  # between two tokens of an answer
    prompt_lengths: str = ""  # histograms, in tokens, counted when an answer is finished
    output_lengths: str = ""
    live: tuple[str, ...] = ()  # whose sum counts tokens as they come out
    progress: tuple[str, ...] = ()  # and what else grows only while a server works
    former: tuple[tuple[str, str], ...] = ()  # what an older release called them, and what they are called now


def figures_of_page(text: str) -> dict[str, float]:
    """Every figure of a /metrics page, summed over its labels."""
    found: dict[str, float] = {}
    for name, value in re.findall(r"^([a-zA-Z_:][\w:]*)(?:\{[^}]*\})? (\S+)$", text, re.MULTILINE):
        try:
            found[name] = found.get(name, 0.0) + float(value)
        except ValueError:
            continue
    return found


@dataclass(frozen=True, slots=True)
class SimulatedRouting:
    """The switch by which an engine, for benchmarks only, draws a token's experts itself, whatever its weights say:
    `values` has what it is set to for each routing that it knows.

    `others` do the same in another way, and exclude it. `around` are values of `moe_runner_backend` whose kernels route
    tokens themselves and never ask; on GPUs of the generations `around_on` the engine chooses such a one by itself.
    """

    variable: str
    values: Mapping[str, str]
    since: Version
    others: tuple[str, ...] = ()
    around: tuple[str, ...] = ()
    around_on: tuple[str, ...] = ()

    @property
    def variables(self) -> tuple[str, ...]:
        return (self.variable, *self.others)

    def bypassed(self, values: Mapping[str, Value], gpu: str) -> str:
        """What a server so set, under our names, routes by instead; empty: it heeds the switch."""
        asked = values.get("moe_runner_backend")
        if asked in self.around:
            return f"moe_runner_backend {asked}"
        if asked in (None, "auto") and gpu.lower().startswith(self.around_on) and self.around_on:
            return f"what it chooses by itself on {gpu} (set moe_runner_backend)"
        return ""


@dataclass(frozen=True, slots=True)
class HostCosts:
    """Seconds that the processes around the GPUs take, before a site was measured; docs/twin.md says from what."""

    request_s: float  # scheduling and sampling, each request of a step
    accept_s: float  # each request, besides tokenising
    ranks_accept_s: float  # and more where schedulers are several and each gets a copy
    hand_over_s: float  # each token of a prompt
    stream_s: float  # each stream of a step, before its tokens are seen
    # of the process that takes requests in and sends tokens out, one after another; what it does not manage waits
    intake_s: float = 0.0  # each request
    send_s: float = 0.0  # each message to a user: a token, or as many as --stream-interval says
    computed_s: float = 0.0  # each token of a prompt that no cache has, besides handing it over
    # Python, dispatch and launch of one kernel without a graph: 80 to 100 us in our H200 logs of SGLang, half of that
    # on faster hosts
    launch_s: float = 65e-6


class ServingEngine:
    """One engine. Say what has no default here; readers get whatever was printed, and raise for none of it."""

    name: str
    title: str = ""  # as people write it; "": its name
    packages: tuple[str, ...]  # names of the distribution whose version counts, the first that is there
    module: str = ""  # that its interpreter must be able to import; "": its name
    latest: Version = NEWEST  # the newest release whose flags were read
    owned_by: str = ""  # who owns the models of its /v1/models
    image: str = ""  # the published one, with {} for its release

    # its own benchmark, and how a session runs it
    ready_line: str = ""  # a part of the log line that says the engine serves; "" where health alone says it
    offline_mark: str = ""  # a part of what its offline benchmark prints when it begins to measure
    offline_spans: bool = False  # whether its offline benchmark runs over several nodes
    decoys: int = 0  # rows of data for each request that its offline benchmark reads and does not send
    decode_alone: Mapping[str, Value] = MappingProxyType({})  # flags of a server that decodes as if all KV had come
    decode_alone_body: Mapping[str, object] = MappingProxyType({})  # and what each request says to it
    logs_graphs: bool = False  # whether each batch in its log says if a CUDA graph ran it
    simulated: bool = False  # whether the twin knows its memory and speed
    # that it can be prepared by, beside a rehearsal, which every engine can
    steps: Mapping[str, OneTimeStep] = MappingProxyType({})

    # by which it and the compilers that it uses learn where to keep what they compile just in time
    cache_variables: Mapping[str, str] = MappingProxyType(
        {
            "TRITON_CACHE_DIR": "triton",
            "TORCHINDUCTOR_CACHE_DIR": "inductor",
            "FLASHINFER_WORKSPACE_BASE": "flashinfer",
            "DG_JIT_CACHE_DIR": "deepgemm",
        }
    )

    # its own profiler, by /start_profile and /stop_profile of its servers, and the first release of which it stops by
    # itself after so many steps; None: it has none
    profiles_from: Version | None = None

    # environment and arguments of its servers
    host_variable: str = ""  # by which an engine is given its own address among several nodes; "" where it needs none
    key_variable: str = ""  # by which it takes its API key; "": as an argument only
    over_nodes_from: Version = ()  # the first release of which one server may spread over several nodes
    follower_argv: tuple[str, ...] = ()  # more words on the nodes of a server that are not its first
    bootstraps: bool = False  # its prefill servers have a port where decode servers fetch their KV
    device_knob: str = ""  # by which split roles are given the network adapters that carry KV
    memory_flag: str = "the memory fraction"
    running_flag: str = "the running requests"

    # what dummy weights of a mixture of experts need, from the first release that has it; None: it has none
    simulated_routing: SimulatedRouting | None = None
    # and what drafts with dummy weights need: the first release that keeps as many drafted tokens as it is told, and
    # the variables that tell it
    acceptance_since: Version | None = None
    acceptance_variables: tuple[str, ...] = ()

    loads_model: bool = True  # from a folder that its nodes must see, with tokens where a hub wants them

    # one step of a server
    step_knob: str = "chunked_prefill_size"  # that limits its prompt tokens
    largest_step_tokens: int = 16384  # where nobody sets it
    works_on_cpus: bool = True  # without GPUs: its processes' CPU time shows whether it works

    # what its servers answer
    info_path: str = ""  # where a server tells about itself
    repeats_arguments: bool = False  # and whether that lists the arguments it was started with
    generate_path: str = ""  # a path that makes a token, also on servers of split roles; "": only /v1/completions does
    metrics: MetricNames = MetricNames()
    stop_field: str = "stop_reason"  # of an answer's choice: the string that ended it

    # ports that it works out from those that it is given, and how far apart those of servers on one machine are
    derived_ports: tuple[DerivedPorts, ...] = ()
    rendezvous_ports: tuple[DerivedPorts, ...] = ()
    port_spacing: int = 1
    rendezvous_spacing: int = 1

    plan_legend: tuple[str, ...] = ()  # what a plan's table of settings calls cap, chunk and fraction
    limits_each_rank: bool = False  # its limit of running requests is that of each attention-DP rank, not of all
    planned_whole: bool = False  # planned only as engines of one node that do both phases, without attention DP

    draft_algorithms: tuple[str, str] = ("EAGLE", "EAGLE3")  # by a model's own layers, and usually by a draft model

    failure_texts: tuple[FailureText, ...] = (PORT_IN_USE, WRONG_ARGUMENTS, WATCHDOG, CUDA_OOM)
    values_to_try: ValuesToTry = MappingProxyType({})  # what `diagnose` advises, as knobs of a study
    when_omitted: Mapping[str, Value] = MappingProxyType({"kv_cache_dtype": "auto"})  # where its log repeats no value
    defaults: EngineDefaults | None = None  # None: the twin does not know it
    costs: HostCosts = HostCosts(6e-6, 5e-3, 15e-3, 8e-6, 90e-6)

    @property
    def flags(self) -> EngineFlags:
        raise NotImplementedError

    def front_end_costs(self, version: Version) -> HostCosts:
        """What the processes in front of the scheduler take in this release."""
        return self.costs

    def entry(self, model: str, nodes: int) -> list[str]:
        """The program and its model, after the interpreter: `-m MODULE --model MODEL`."""
        raise NotImplementedError

    def over_nodes(self, span: Span) -> list[str]:
        """What a command gains on each node of several; nothing for one."""
        return []

    def serve(self, python: str, arguments: Sequence[str], cluster: Span) -> str:
        """Shell text of the server that a session measures, on each node."""
        own = ["--host", "127.0.0.1", "--port", f"${PORT}"]
        return joined([python, *self.entry(f"${MODEL}", cluster.nodes), *own, *arguments]) + self.several_nodes(cluster)

    def keeping(self, values: Mapping[str, Value], length: float) -> tuple[dict[str, str], dict[str, Value]]:
        """Environment and values, under our names, by which a server so set keeps `length` tokens of each verified step
        on average, whatever its drafts say."""
        return {}, dict(values)

    def profiler_arguments(self, tool: str, steps: int) -> list[str]:
        """What a server is started with so that it can record so many steps: into PROFILE_FOLDER by its own profiler,
        or as a range of the CUDA profiler, which nsys records."""
        return []

    def profiler_body(self, tool: str, steps: int, folder: str) -> dict[str, object]:
        """What /start_profile is asked with."""
        return {}

    def several_nodes(self, cluster: Span) -> str:
        """`over_nodes` as the end of a shell line; empty for one node."""
        if cluster.nodes == 1:
            return ""
        more = f' $([ "$rank" = 0 ] || echo {" ".join(self.follower_argv)})' if self.follower_argv else ""
        return f" {joined(self.over_nodes(cluster))}{more}"

    def server_argv(self, launch: ServerLaunch) -> list[str]:
        """The command line of one server of a service, on each of its nodes."""
        own = [launch.python, *self.entry(launch.model, launch.span.nodes), *launch.arguments]
        return [*own, *launch.address, *launch.name, *self.over_nodes(launch.span)]

    def planned_values(
        self, layout: Layout, settings: EngineSettings, role: str, memory: MemoryPlan, gpu: Gpu
    ) -> dict[str, Value]:
        """Layout, memory and scheduling of one engine of a plan, every value written out; not its role."""
        return values_of(layout, settings)

    def meant(self, values: Mapping[str, Value], usual: Callable[[], MemoryPlan], gpu: Gpu) -> dict[str, Value]:
        """Values of a command line with those that the twin takes for the engine's own; `usual` is its memory plan."""
        return dict(values)

    def step_tokens(self, values: Mapping[str, Value], on_gpus: bool) -> int:
        """Prompt tokens that a server so set, under our names, takes into one step at most."""
        set_to = values.get(self.step_knob)
        return set_to if isinstance(set_to, int) and set_to > 0 else self.largest_step_tokens

    def talks_through_ports(self, values: Mapping[str, Value]) -> bool:
        """Whether a server so set, under our names, binds its derived ports."""
        return bool(self.derived_ports)

    @property
    def port_offsets(self) -> tuple[int, ...]:
        """Everything that is bound, or refused, because of its port, as what is added to it."""
        return offsets_of(self.derived_ports)

    @property
    def rendezvous_offsets(self) -> tuple[int, ...]:
        return offsets_of(self.rendezvous_ports)

    def offline(
        self, python: str, arguments: Sequence[str], batch: OfflineBatch, version: Version, cluster: Span
    ) -> str:
        """Shell text of its own benchmark, which reads DATASET and leaves OFFLINE_RESULT."""
        raise NotImplementedError

    def read(self, lines: Iterable[str], measured_from: int = 0) -> EngineLog:
        """What the log says; batches up to line `measured_from` belong to the warm-up."""
        raise NotImplementedError

    def offline_result(self, text: str, lines: Iterable[str]) -> tuple[Measurement, ...]:
        """Throughput figures from the result file's text, or from the log where that is empty."""
        return ()

    def refusal(
        self, model: Model | None, values: Mapping[str, Value], install: Install, version: Version
    ) -> str | None:
        """Why this build of the engine certainly does not start so, beyond what holds for every engine."""
        return None

    def host_tier_bytes(self, values: Mapping[str, Value], ranks: int, pool_bytes: float) -> float:
        """What its tiers of KV cache take of the memory of a node with so many ranks; `pool_bytes` is a rank's own."""
        return 0.0

    def on_processors(self, install: Install, values: Mapping[str, Value]) -> bool:
        """Whether this build, so set under our names, certainly computes on CPUs."""
        return values.get("device") == "cpu"

    def steered(self, install: Install, values: Mapping[str, Value]) -> bool:
        """Whether this build, so set, heeds the switches by which dummy weights behave as real ones."""
        return True

    def introspect(self) -> str:
        """Python text that prints the installed engine's flags as JSON, name to kind: value, switch, toggle or list."""
        return "print('{}')"

    def release_of(self, install: Install) -> Version:
        """As the study says, as the engine on this machine says or said, or the newest we know of."""
        text = install.version
        if not text and not install.container:
            text = next((version for package in self.packages if (version := version_of(install, package))), "")
        return parse_version(text) or NEWEST

    def self_reported(self, install: Install, names: Iterable[str]) -> dict[str, object]:
        """What an installed one says of itself, for the journal; of its flags only those of these names."""
        versions = {package: version for package in self.packages if (version := version_of(install, package))}
        wanted = tuple(names)
        flags = flags_of(install, self.introspect()) if wanted else {}
        return {"versions": versions, "flags": {name: flags[name] for name in wanted if name in flags}}


def engine_named(name: str) -> ServingEngine:
    """The home of an engine, ours or a plugin's; InputError where there is none of that name."""
    found: ServingEngine = catalog.part("engines", name)
    return found


def joined(words: Iterable[str]) -> str:
    """Shell text; words that read one of the session's variables stay readable by the shell."""
    return " ".join(f'"{word}"' if word.startswith("$") else shlex.quote(word) for word in words)


def known(figures: Iterable[tuple[str, float | None]], source: str) -> tuple[Measurement, ...]:
    """Metrics by their names, those that have a value."""
    return tuple(reported(name, value, source) for name, value in figures if value is not None)
