"""Prove that printed commands can reach the predicted point: read them back as text and work the memory out anew.

Only what is written counts. Settings are taken from the command lines, never from the plan that printed them.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ridgeline.serving.engine.layout import Layout
from ridgeline.serving.engine.layout_rules import layout_problems
from ridgeline.serving.engine.memory import plan_memory
from ridgeline.serving.engine.settings import DEFAULTS, EngineSettings
from ridgeline.serving.hardware.cluster import GIB
from ridgeline.serving.planner.candidates import PlanQuestion
from ridgeline.serving.planner.commands import DEEPEP_LIMIT, DEEPEP_RANK_TOKENS

# Other spellings that versions have had for the same setting.
ALIASES = {
    "--tp": "--tp-size",
    "--tensor-parallel-size": "--tp-size",
    "--pp": "--pp-size",
    "--cuda-graph-max-bs": "--cuda-graph-max-bs-decode",
    "--ep": "--ep-size",
}


@dataclass(frozen=True, slots=True)
class LintPoint:
    """What the twin predicts to be held at once: requests of all engines that decode, and their lengths."""

    running: int
    request_tokens: float
    longest_tokens: int


@dataclass(frozen=True, slots=True)
class LintReport:
    proofs: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems

    def as_json(self) -> dict[str, object]:
        return {"ok": self.ok, "proofs": list(self.proofs), "problems": list(self.problems)}


@dataclass(frozen=True)
class _Server:
    """One engine as its command lines describe it."""

    flags: Mapping[str, str]
    env: Mapping[str, str]
    ranks: tuple[int, ...]

    def number(self, flag: str, default: int) -> int:
        return int(self.flags.get(flag, default))

    @property
    def role(self) -> str:
        mode = self.flags.get("--disaggregation-mode", "null")
        return "both" if mode == "null" else mode

    @property
    def attention_groups(self) -> int:
        if "--enable-dp-attention" in self.flags:
            return self.number("--dp-size", 1)
        return self.number("--attn-dp-size", 1)

    def layout(self, gpus_per_node: int) -> Layout:
        attention = self.attention_groups
        tp, pp = self.number("--tp-size", 1), self.number("--pp-size", 1)
        nodes = max(1, -(-tp * pp // gpus_per_node))
        return Layout(tp, pp, 1, self.number("--ep-size", 1), attention, nodes, gpus_per_node)

    def settings(self, version: tuple[int, ...]) -> EngineSettings:
        fraction = self.flags.get("--mem-fraction-static")
        graph = self.flags.get("--cuda-graph-max-bs-decode")
        off = "--disable-cuda-graph" in self.flags
        if off or self.flags.get("--cuda-graph-backend-decode") == "disabled":
            graph = "0"
        off = off or self.flags.get("--cuda-graph-backend-prefill") == "disabled"
        running = _maybe_int(self.flags.get("--max-running-requests"))
        if running is not None and self.role != "both":
            running *= self.attention_groups  # a role of its own counts for each group
        return EngineSettings(
            version=version,
            attention_backend=self.flags.get("--attention-backend"),
            max_running_requests=running,
            cuda_graph_max_bs=_maybe_int(graph),
            chunked_prefill_size=_maybe_int(self.flags.get("--chunked-prefill-size")),
            mem_fraction=None if fraction is None else float(fraction),
            prefill_graph=False if off else None,
            page_size=self.number("--page-size", DEFAULTS.page_size),
            max_prefill_tokens=self.number("--max-prefill-tokens", DEFAULTS.max_prefill_tokens),
            schedule_conservativeness=float(self.flags.get("--schedule-conservativeness", 1.0)),
            radix_cache="--disable-radix-cache" not in self.flags,
        )


def read_settings(lines: Iterable[str], version: tuple[int, ...]) -> dict[str, EngineSettings]:
    """Settings of each role (both, prefill, decode) as these lines give them. Engines of a role are equal."""
    return {server.role: server.settings(version) for server in _servers(lines).values()}


def lint_commands(lines: Iterable[str], question: PlanQuestion, point: LintPoint) -> LintReport:
    """Whether servers started by these lines would start, run, and hold what was predicted."""
    servers = _servers(lines)
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
    _compare(running, point.running, "requests may run at once", "raise --max-running-requests", proofs, problems)
    _compare(tokens, needed, "tokens fit the KV pools", "raise --mem-fraction-static or add GPUs", proofs, problems)
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
    layout = server.layout(question.cluster.node.gpus)
    settings = server.settings(question.settings.version)
    gpu = question.cluster.gpu
    problems += [f"{name}: {p}" for p in layout_problems(question.model, layout, gpu, settings, server.role)]
    declared = server.number("--nnodes", 1)
    if server.ranks != tuple(range(declared)) or declared < layout.replica_nodes:
        started = ", ".join(map(str, server.ranks))
        problems.append(f"{name}: of {max(declared, layout.replica_nodes)} nodes only ranks {started} are started")
    memory = plan_memory(question.model, gpu, layout, settings, server.role)
    if memory.fits:
        proofs.append(f"{name}: memory fits with {memory.margin_bytes / GIB:.1f} GiB to spare")
    else:
        problems.append(f"{name}: {memory.verdict}: {memory.reason}")
    context = server.number("--context-length", question.model.context_tokens)
    if point.longest_tokens > min(context, max(1, memory.kv_tokens_per_rank)):
        problems.append(f"{name}: the longest request, {point.longest_tokens:,} tokens, does not fit")
    problems += [f"{name}: {p}" for p in _graph_problems(server, layout, memory.running_limit)]
    return memory.running_limit * memory.groups, memory.kv_tokens


def _graph_problems(server: _Server, layout: Layout, rank_limit: int) -> list[str]:
    if server.role == "prefill":
        return []
    found = []
    batch = -(-rank_limit // layout.pp)
    graph = server.settings((0, 5)).cuda_graph_max_bs
    # beyond 512 captured sizes cost more start-up time and memory than the launches they save
    if graph is not None and graph < min(batch, 512):
        found.append(f"graphs end at {graph} requests, {batch} may run: past it the host sets the pace")
    if server.flags.get("--deepep-mode") == "low_latency":
        limit = int(server.env.get(DEEPEP_LIMIT, DEEPEP_RANK_TOKENS))
        if batch > limit:
            found.append(f"low-latency DeepEP takes {limit} tokens a rank, {batch} may run; set {DEEPEP_LIMIT}={batch}")
    return found


def _servers(lines: Iterable[str]) -> dict[str, _Server]:
    """Engines by name. Lines of one engine differ in their node rank only."""
    engines: dict[str, list[tuple[dict[str, str], dict[str, str]]]] = {}
    for line in lines:
        flags, env = _parse(line)
        if "--model-path" not in flags:
            continue
        role = flags.get("--disaggregation-mode", "engine")
        key = flags.get("--dist-init-addr") or f"number {len(engines)}"
        engines.setdefault(f"{role} at {key}" if "--dist-init-addr" in flags else f"{role} {key}", []).append(
            (flags, env)
        )
    return {
        name: _Server(parts[0][0], parts[0][1], tuple(sorted(int(f.get("--node-rank", 0)) for f, _ in parts)))
        for name, parts in engines.items()
    }


def _parse(line: str) -> tuple[dict[str, str], dict[str, str]]:
    words = shlex.split(line)
    env: dict[str, str] = {}
    while words and "=" in words[0] and not words[0].startswith("-"):
        name, _, value = words.pop(0).partition("=")
        env[name] = value
    flags: dict[str, str] = {}
    for place, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, sep, value = word.partition("=")
        following = words[place + 1] if place + 1 < len(words) else ""
        flags[ALIASES.get(name, name)] = value if sep else ("" if following.startswith("--") else following)
    return flags, env


def _maybe_int(text: str | None) -> int | None:
    return None if text is None else int(text)
