"""Prove that printed commands can reach the predicted point: read them back as text and work the memory out anew.

Only what is written counts. Settings are taken from the command lines, never from the plan that printed them.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ridgeline.records.expression import Value
from ridgeline.records.json_form import NOT_IN_JSON, JsonForm, also_in_json
from ridgeline.serving.engines.base import engine_named
from ridgeline.serving.engines.flags import engine_flags
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.layout_rules import layout_problems, mode_refusal, uses_deepep
from ridgeline.serving.engines.memory import MemoryPlan, plan_memory
from ridgeline.serving.engines.releases import release_text
from ridgeline.serving.engines.settings import EngineSettings, layout_of, role_of, settings_of
from ridgeline.serving.hardware.cluster import GIB
from ridgeline.serving.planner.candidates import PlanQuestion, Unit
from ridgeline.serving.planner.scheme import Scheme

# Arguments of the servers of a scheme, in our names and in the flags of their release.

# DeepEP's low-latency kernels take this many tokens a rank unless told otherwise.
DEEPEP_RANK_TOKENS = 128
DEEPEP_LIMIT = "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"


@dataclass(frozen=True, slots=True)
class Command(JsonForm):
    """One line to run on one node."""

    what: str  # engine 0, prefill 1, router
    node: str
    argv: tuple[str, ...] = field(metadata=NOT_IN_JSON)
    env: Mapping[str, str] = field(default_factory=dict, metadata=NOT_IN_JSON)

    @also_in_json("command")
    def __str__(self) -> str:
        env = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
        return " ".join([*env, *map(shlex.quote, self.argv)])


def unit_env(unit: Unit) -> dict[str, str]:
    """What must be in the environment of its servers."""
    rank_batch = -(-unit.cap // (unit.layout.attn_dp * unit.layout.pp))
    if unit.role != "prefill" and uses_deepep(unit.layout) and rank_batch > DEEPEP_RANK_TOKENS:
        return {DEEPEP_LIMIT: str(rank_batch)}
    return {}


def unit_values(unit: Unit) -> dict[str, Value]:
    """Layout, memory, scheduling and dtypes of one engine under our names, every value written out; not its role."""
    engine, gpu = engine_named(unit.settings.engine), unit.question.cluster.gpu
    own = engine.planned_values(unit.layout, unit.settings, unit.role, unit.memory, gpu)
    return {**own, **unit.question.dtype_settings}


def unit_arguments(unit: Unit) -> list[str]:
    """The same in the flags of its release, with its role."""
    values = unit_values(unit)
    if unit.role != "both":
        values["disaggregation_mode"] = unit.role
    return engine_flags(unit.settings.engine).arguments(values, unit.settings.version)


def written_for(scheme: Scheme) -> str:
    """`SGLang 0.5.23`: the release whose flags the commands have."""
    settings = scheme.question.settings
    return release_text(settings.engine, settings.version)


@dataclass(frozen=True, slots=True)
class LintPoint:
    """What the twin predicts to be held at once: requests of all engines that decode, and their lengths."""

    running: int
    request_tokens: float
    longest_tokens: int


@dataclass(frozen=True, slots=True)
class LintReport(JsonForm):
    proofs: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    @also_in_json()
    def ok(self) -> bool:
        return not self.problems


@dataclass(frozen=True)
class _Server:
    """One engine as its command lines describe it: settings under our names, and its environment."""

    values: Mapping[str, Value]
    env: Mapping[str, str]
    ranks: tuple[int, ...]

    def number(self, name: str, default: int) -> int:
        value = self.values.get(name)
        return value if isinstance(value, int) else default

    @property
    def role(self) -> str:
        return role_of(self.values)

    def layout(self, gpus_per_node: int) -> Layout:
        gpus = self.number("tp", 1) * self.number("pp", 1)
        return layout_of(self.values, max(1, -(-gpus // gpus_per_node)), gpus_per_node)


def lint_commands(lines: Iterable[str], question: PlanQuestion, point: LintPoint) -> LintReport:
    """Whether servers started by these lines would start, run, and hold what was predicted."""
    servers = _servers(lines, question.settings.engine)
    proofs: list[str] = []
    problems: list[str] = []
    running = tokens = 0
    for name, server in servers.items():
        held, pool = _check(name, server, question, point, proofs, problems)
        if server.role != "prefill":
            running += held
            tokens += pool
    if not any(s.role != "prefill" for s in servers.values()):
        problems.append("no command starts a server that generates tokens")
    needed = round(point.running * point.request_tokens)
    engine = engine_named(question.settings.engine)
    _compare(running, point.running, "requests may run at once", f"raise {engine.running_flag}", proofs, problems)
    _compare(tokens, needed, "tokens fit the KV pools", f"raise {engine.memory_flag} or add GPUs", proofs, problems)
    return LintReport(tuple(proofs), tuple(problems))


def _compare(has: int, needs: int, what: str, remedy: str, proofs: list[str], problems: list[str]) -> None:
    if has < needs:
        problems.append(f"{has:,} {what}, the predicted point needs {needs:,}; {remedy}")
    else:
        proofs.append(f"{has:,} {what}, the predicted point needs {needs:,}")


def _check(
    name: str, server: _Server, question: PlanQuestion, point: LintPoint, proofs: list[str], problems: list[str]
) -> tuple[int, int]:
    """Requests and KV tokens this server can hold; what is wrong with it is added to `problems`."""
    gpu, engine, version = question.cluster.gpu, question.settings.engine, question.settings.version
    layout, default = server.layout(question.cluster.node.gpus), EngineSettings(engine=engine, version=version)

    def usual() -> MemoryPlan:
        return plan_memory(question.model, gpu, layout, settings_of(server.values, default))

    server = replace(server, values=engine_named(engine).meant(server.values, usual, gpu))
    settings = settings_of(server.values, default)
    problems += [f"{name}: {p}" for p in layout_problems(question.model, layout, gpu, settings, server.role)]
    for knob, value in question.dtype_settings.items():
        if server.values.get(knob) != value:
            problems.append(f"{name}: {knob} is not {value}, with which it was planned")
    declared = server.number("nnodes", 1)
    if server.ranks != tuple(range(declared)) or declared < layout.replica_nodes:
        started = ", ".join(map(str, server.ranks))
        problems.append(f"{name}: of {max(declared, layout.replica_nodes)} nodes only ranks {started} are started")
    mode = server.values.get("deepep_mode")
    if mode is not None and (reason := mode_refusal(mode, server.role, layout.attn_dp, version)) is not None:
        problems.append(f"{name}: {reason}")
    memory = plan_memory(question.model, gpu, layout, settings, server.role)
    if memory.fits:
        proofs.append(f"{name}: memory fits with {memory.margin_bytes / GIB:.1f} GiB to spare")
    else:
        problems.append(f"{name}: {memory.verdict}: {memory.reason}")
    context = server.number("context_length", question.model.context_tokens)
    if point.longest_tokens > min(context, max(1, memory.kv_tokens_per_rank)):
        problems.append(f"{name}: the longest request, {point.longest_tokens:,} tokens, does not fit")
    problems += [f"{name}: {p}" for p in _graph_problems(server, memory.running_limit, layout, settings)]
    return memory.running_limit * memory.groups, memory.kv_tokens


def _graph_problems(server: _Server, rank_limit: int, layout: Layout, settings: EngineSettings) -> list[str]:
    if server.role == "prefill":
        return []
    found = []
    batch = -(-rank_limit // layout.pp)
    graph = settings.cuda_graph_max_bs
    # DeepEP's normal mode takes none; beyond 512 captured sizes cost more start-up time and memory than they save
    if server.values.get("deepep_mode") != "normal" and graph is not None and graph < min(batch, 512):
        found.append(f"graphs end at {graph} requests, {batch} may run: past it the host sets the pace")
    if server.values.get("deepep_mode") == "low_latency":
        limit = int(server.env.get(DEEPEP_LIMIT, DEEPEP_RANK_TOKENS))
        if batch > limit:
            found.append(f"low-latency DeepEP takes {limit} tokens a rank, {batch} may run; set {DEEPEP_LIMIT}={batch}")
    return found


def _servers(lines: Iterable[str], engine: str) -> dict[str, _Server]:
    """Engines by name. Lines of one engine differ in their node rank only."""
    engines: dict[str, list[tuple[dict[str, Value], dict[str, str]]]] = {}
    for line in lines:
        values, env = _parse(line, engine)
        if not {"model_path", "model"} & values.keys():
            continue
        role = values.get("disaggregation_mode", "engine")
        address = values.get("dist_init_addr")
        name = f"{role} at {address}" if address else f"{role} number {len(engines)}"
        engines.setdefault(name, []).append((values, env))
    return {
        name: _Server(parts[0][0], parts[0][1], tuple(sorted(int(str(v.get("node_rank", 0))) for v, _ in parts)))
        for name, parts in engines.items()
    }


def _parse(line: str, engine: str) -> tuple[dict[str, Value], dict[str, str]]:
    arguments = shlex.split(line)
    env: dict[str, str] = {}
    while arguments and "=" in arguments[0] and not arguments[0].startswith("-"):
        name, _, value = arguments.pop(0).partition("=")
        env[name] = value
    return engine_flags(engine).from_arguments(arguments), env
