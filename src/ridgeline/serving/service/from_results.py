"""Deployment files from what was found: a choice of `plan` with its command lines, or the answer of a campaign."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import yaml

from ridgeline import catalog
from ridgeline.errors import InputError, NothingFound
from ridgeline.records.answer import Answer
from ridgeline.records.expression import Value
from ridgeline.records.study import Study
from ridgeline.serving.engines.base import engine_named
from ridgeline.serving.engines.install import Install
from ridgeline.serving.engines.layout_rules import uses_deepep
from ridgeline.serving.engines.releases import release_written
from ridgeline.serving.engines.sglang.failures import BOOTSTRAP_VARIABLE
from ridgeline.serving.hardware.cluster import GIB, held_to, load_gpu
from ridgeline.serving.hardware.gpu_limits import limit_commands, limits_at
from ridgeline.serving.model.config import load_model
from ridgeline.serving.planner.candidates import PlanQuestion, Unit
from ridgeline.serving.planner.commands import (
    Command,
    LintReport,
    lint_commands,
    unit_env,
    unit_values,
    written_for,
)
from ridgeline.serving.planner.operating_point import Option
from ridgeline.serving.planner.planner import Choice, Plan
from ridgeline.serving.planner.scheme import Pair, Scheme
from ridgeline.serving.service.file import service_from, service_text
from ridgeline.serving.service.members import Member, members_of, variable
from ridgeline.serving.service.service import USUAL_ROUTER, server_of
from ridgeline.workloads.base import NO_WEIGHTS, Workload

# SGLang waits five minutes by default, longer than clients do; prompts that wait only for KV room need a few seconds.
_BOOTSTRAP_S = 10


@dataclass(frozen=True, slots=True)
class RoleSetting:
    """`why` is empty where the value says it all; without a value it is left for people to fill in."""

    name: str
    value: Value | None
    why: str = ""


def _role_settings(unit: Unit) -> list[RoleSetting]:
    """Every value of the server's command line, in the order to write them."""
    found = [RoleSetting(name, value, _why(unit, name, value)) for name, value in unit_values(unit).items()]
    experts, ranks = unit.question.model.experts, unit.layout.ep
    if experts is not None and uses_deepep(unit.layout) and (copies := -experts.count % ranks):
        why = f"{experts.count} experts do not divide among {ranks} ranks: copies fill the gap"
        found.append(RoleSetting("ep_num_redundant_experts", copies, why))
    return [*found, *_transfer(unit)]


def _role_variables(unit: Unit) -> list[RoleSetting]:
    """What its environment holds."""
    found = [RoleSetting(name, value) for name, value in unit_env(unit).items()]
    if unit.role == "prefill":
        why = "seconds a prompt waits for a decode server that died; the router then tries another one"
        found.append(RoleSetting(BOOTSTRAP_VARIABLE, str(_BOOTSTRAP_S), why))
    return found


def _why(unit: Unit, name: str, value: Value) -> str:
    match name:
        case "tp":
            return f"{unit.gpus} GPU{'s' if unit.gpus > 1 else ''} in the layout that was simulated"
        case "max_running_requests":
            return _running(unit)
        case "mem_fraction_static" | "gpu_memory_utilization":
            free = f"{unit.memory.margin_bytes / GIB:.1f} GiB of a GPU"
            return f"leaves {free} free while running: the margin to out of memory"
        case "cuda_graph_max_bs" if value:
            return "the largest batch of a rank: without a graph a decode step waits for the host"
        case "cuda_graph_max_bs" if unit.role == "prefill":
            return "prompts differ too much in length to be captured; the memory goes to KV"
        case "cuda_graph_max_bs":
            return "DeepEP's normal mode cannot be captured in graphs"
        case "chunked_prefill_size":
            return _chunk(unit)
        case "max_num_batched_tokens":
            return "tokens of a step, decoded and of prompts: running requests wait for it"
        case "moe_a2a_backend":
            return "each rank has requests of its own: tokens travel to their experts"
        case "deepep_mode":
            return {
                "normal": "batches of prompts are larger than low_latency can dispatch",
                "low_latency": "small batches in CUDA graphs, which normal does not allow",
                "auto": "normal for prompts, low_latency for decode steps",
            }[str(value)]
    return ""


def _running(unit: Unit) -> str:
    ranks = unit.layout.attn_dp
    limit = "" if unit.role == "prefill" else ", as the limits and its KV pool allow"
    if ranks == 1:
        return f"requests at once{limit}"
    engine = engine_named(unit.settings.engine)
    if engine.limits_each_rank:
        return f"requests at once of each of {ranks} attention-DP ranks, {unit.cap} together{limit}"
    return f"{engine.title} divides it by attention DP {ranks}: {unit.cap // ranks} a rank{limit}"


def _chunk(unit: Unit) -> str:
    ranks = unit.layout.attn_dp
    each = f", {unit.chunk_flag // ranks:,} a rank" if ranks > 1 else ""
    if unit.role == "prefill":
        return f"prompt tokens of a step{each}; nothing decodes here, so no token waits for a large one"
    if unit.role == "decode":
        return f"no prompt is computed here; {engine_named(unit.settings.engine).title} sets memory aside by it"
    return f"prompt tokens of a step{each}; the next tokens of running requests wait for it"


def _transfer(unit: Unit) -> Iterator[RoleSetting]:
    if unit.role == "both":
        return
    cluster = unit.question.cluster
    if cluster.nodes == 1:
        yield RoleSetting("disaggregation_transfer_backend", "nixl", "prefill and decode share a node: KV stays on it")
        return
    yield RoleSetting(
        "disaggregation_transfer_backend", "mooncake", f"KV goes from node to node by RDMA over {cluster.fabric.name}"
    )
    yield RoleSetting(
        "disaggregation_ib_device",
        None,
        "from `ridgeline site preflight --json > node.json` on a node, and `preflight: node.json` in this file",
    )


# Requests that may wait in the router for each one that runs: their wait stays below one answer's time.
_WAITING_SHARE = 0.25


def service_of(option: Option, model: str, name: str = "") -> dict[str, Any]:
    """What `file.service_text` writes. Sites differ: the file names none, and so stands for this machine."""
    question = option.scheme.question
    service = _servers_of(option.scheme, model, name)
    router = service.pop("router", None)
    service["slo"] = {str(slo).partition("=")[0]: slo.limit_ms for slo in question.slos}
    service["expected"] = _expected(option)
    return service if router is None else {**service, "router": router}


def _servers_of(scheme: Scheme, model: str, name: str = "") -> dict[str, Any]:
    question, groups = scheme.question, scheme.groups
    running = sum(unit.cap * count for unit, count in groups if unit.role != "prefill")
    size = question.cluster.node.gpus
    units = []
    for unit, count in groups:
        nodes = max(1, -(-unit.gpus // size))
        own = {"role": unit.role, "replicas": count, "nodes": nodes, "gpus": min(unit.gpus, size)}
        settings = {setting.name: setting.value for setting in _role_settings(unit) if setting.value is not None}
        found = {variable.name: str(variable.value) for variable in _role_variables(unit)}
        env = {"env": found} if found else {}
        units.append({**own, "settings": settings, **env})
    service: dict[str, Any] = {
        "version": 1,
        "name": name or question.model.name,
        "model": model,
        "engine": {
            "kind": question.settings.engine,
            "release": ".".join(map(str, release_written(question.settings.engine, question.settings.version))),
            "gpu": question.cluster.gpu.spelled,
        },
        "units": units,
    }
    if sum(count for _, count in groups) > 1:
        policy = {} if isinstance(scheme.shape, Pair) else {"policy": "cache_aware"}
        limits = {"most_running": running, "most_waiting": max(1, int(running * _WAITING_SHARE))}
        service["router"] = {"kind": USUAL_ROUTER, **policy, **limits}
    return service


def commands_for(scheme: Scheme, model: str) -> list[Command]:
    """The command lines of the scheme's deployment, in the order to start them; the same that `service up` runs.

    Nodes are node0, node1, ...; servers of one node listen on its loopback address, as `service up` has them.
    """
    cluster = scheme.question.cluster
    members = members_of(service_from(_servers_of(scheme, model)), node_gpus=cluster.node.gpus)

    def address(number: int) -> str:
        return "127.0.0.1" if cluster.nodes == 1 else f"node{number}"

    known = {variable(member.name): address(member.node) for member in members}
    found = []
    for member in members:
        for rank in range(member.resources.nodes):
            own = {"address": address(member.node + rank), "head": address(member.node), "rank": str(rank)}
            found.append(_command(member, f"node{member.node + rank}", known | own))
    return found


def _command(member: Member, node: str, known: Mapping[str, str]) -> Command:
    more = member.follower_argv if known["rank"] != "0" else ()
    argv = [Template(word).safe_substitute(known) for word in (*member.argv, *more)]
    env = dict(member.env)
    if argv[0] == "env":
        del argv[0]
        while "=" in argv[0]:
            key, _, value = argv.pop(0).partition("=")
            env[key] = value
    role, _, number = member.name.partition("-")
    what = f"{'engine' if role == 'server' else role} {number}".strip()
    return Command(what, node, tuple(argv), env)


class PrintedChoice(NamedTuple):
    """The commands of a choice, and whether they hold what was predicted."""

    commands: list[Command]
    lint: LintReport


def printed(choice: Choice) -> PrintedChoice:
    question = choice.option.scheme.question
    commands = commands_for(choice.option.scheme, _model_folder(question))
    return PrintedChoice(commands, lint_commands(map(str, commands), question, choice.point))


def _model_folder(question: PlanQuestion) -> str:
    """Where a plan's model lies; where its weights are not on this machine, a place for people to correct."""
    return question.model.folder or f"/models/{question.model.name}"


def plan_json(plan: Plan) -> dict[str, object]:
    """The plan, each choice with its commands and what was checked of them."""
    rows = []
    for choice in plan.choices:
        commands, lint = printed(choice)
        own = {"commands": [command.as_json() for command in commands], "lint": lint.as_json()}
        rows.append({**choice.as_json(), **own})
    return {**plan.as_json(), "plans": rows}


def write_plan(plan: Plan, folder: Path) -> Path:
    """For each choice a folder with `commands.txt`, one line a server, and `study.yaml`; beside them the studies that
    measure the halves of the best split alone. The study of the first choice."""
    places = [folder / f"{c.rank:02d}-{str(c.option.layout).replace(' ', '-')}" for c in plan.choices]
    for choice, place in zip(plan.choices, places, strict=True):
        place.mkdir(parents=True, exist_ok=True)
        lines = [f"# for {written_for(choice.option.scheme)}\n"]
        lines += [f"# {c.what} on {c.node}\n{c}\n" for c in printed(choice).commands]
        (place / "commands.txt").write_text("\n".join(lines))
        (place / "study.yaml").write_text(choice.study)
    for name, text in plan.halves.items():
        (folder / name).write_text(text)
    return places[0] / "study.yaml"


def deployable_text(plan: Plan, file: str) -> str:
    """The deployment file of the first choice. NothingFound where it would not keep the limits it was planned for."""
    best, question = plan.choices[0].option, plan.question
    if not best.meets:
        raise NothingFound(
            f"--deploy {file}: not written, as no layout on {question.cluster} is good enough (the nearest, "
            f"{best.layout}, {best.shortfall}); relax that limit, lower the rate, shorten prompts or "
            "answers, or plan with more GPUs"
        )
    head = f"# `ridgeline service check {shlex.quote(file)}` shows every command; name your model's folder and site\n"
    if (
        plan.asked.dtype
        and "quantization" not in question.dtype_settings
        and load_model(plan.asked.model).weights_dtype != plan.asked.dtype
    ):
        head += f"# planned with {plan.asked.dtype} weights: name a folder that holds them so\n"
    if question.model.own_code:
        head += "# its files bring code of their own: where you trust it, write trust_remote_code: true into settings\n"
    return head + _planned_text(best, _model_folder(question))


def _planned_text(option: Option, model: str, name: str = "") -> str:
    """The deployment file with the reason for each setting beside it."""
    service = service_of(option, model, name)
    reasons = [{"settings": _role_settings(unit), "env": _role_variables(unit)} for unit, _ in option.scheme.groups]
    return "".join(_part(key, value, reasons) for key, value in service.items())


def _part(key: str, value: Any, reasons: Sequence[Mapping[str, Sequence[RoleSetting]]]) -> str:
    if key == "units":
        return "\n".join([*_units(value, reasons), ""])
    return service_text({key: value}) if isinstance(value, Mapping) else f"{key}: {_scalar(value)}\n"


def _units(units: Sequence[Mapping[str, Any]], reasons: Sequence[Mapping[str, Sequence[RoleSetting]]]) -> Iterator[str]:
    yield "units:"
    for unit, reasoned in zip(units, reasons, strict=True):
        for number, (key, value) in enumerate(unit.items()):
            start = "- " if number == 0 else "  "
            if key in reasoned:
                yield f"{start}{key}:"
                yield from _commented(reasoned[key])
            else:
                yield f"{start}{key}: {_scalar(value)}"


def _commented(settings: Sequence[RoleSetting]) -> Iterator[str]:
    lines = [
        f"    {'# ' if s.value is None else ''}{s.name}: {'' if s.value is None else _scalar(s.value)}"
        for s in settings
    ]
    width = max(map(len, lines))
    for line, setting in zip(lines, settings, strict=True):
        yield f"{line:<{width}}  # {setting.why}" if setting.why else line


def _scalar(value: object) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("...\n").strip()


def _expected(option: Option) -> dict[str, Any]:
    """Figures with where nine of ten measurements lie; all of them modelled."""
    figures: dict[str, Any] = {"origin": "modelled"}
    if option.capacity_s is not None:
        figures["requests_s"] = round(option.capacity_s, 3)
    figures["interval"] = {name: [round(low, 3), round(high, 3)] for name, (low, high) in option.bounds.items()}
    return figures


# A deployment file from the answer of a campaign on an engine or its twin.

_SIZES = ("nodes", "gpus_per_node", "gpus")


def service_of_answer(study: Study, settings: Mapping[str, Value], change: str) -> dict[str, Any]:
    """`settings` are those to use; `change` is what they brought. InputError where the program is not a server."""
    kind, _, _ = study.workload.kind.partition("-")
    workload: Workload = catalog.part("workloads", study.workload.kind)(study)
    server = workload.served_as(settings)
    if server is None or kind not in (*catalog.names("engines"), "twin"):
        raise InputError(
            f"{study.name} tunes {study.workload.kind}, which is not a server; deploy takes the answer of a study of "
            f"{', '.join(catalog.names('engines'))} or twin"
        )
    options = study.workload.options
    flags = server_of(kind).flags
    resources = study.job.resources(settings)
    # a knob that does not exist at this setting is None
    known = {name: value for name, value in settings.items() if value is not None and flags.knows(name)}
    if server.model == NO_WEIGHTS:
        known.pop("load_format", None)
    chosen = {**server.flags, **known}
    engine: dict[str, Any] = {"kind": server_of(kind).name}
    if kind != "twin":  # whose servers are ours, whatever engine they stand for
        engine |= {"release": server.release} if server.release else {}
        engine |= {"python": server.python} if server.python != Install().python else {}
    if gpu := options.get("gpu"):
        engine["gpu"] = _held_gpu(str(gpu), settings)
    return {
        "version": 1,
        "name": study.name,
        "model": server.model,
        "engine": engine,
        "units": [
            {
                "replicas": 1,
                "nodes": resources.nodes,
                "gpus": resources.gpus,
                "settings": {name: value for name, value in chosen.items() if name not in _SIZES},
                **({"env": dict(server.env)} if server.env else {}),
            }
        ],
        "expected": {"origin": "simulated" if kind == "twin" else "measured", "change": change},
    }


def _held_gpu(name: str, settings: Mapping[str, Value]) -> str:
    """The GPU as these settings hold it, where its figures under such limits can be predicted."""
    usual = load_gpu(name)
    limits = limits_at(settings, usual.limits)
    try:
        return name if limits == usual.limits else held_to(usual, limits).spelled
    except InputError:
        return usual.name


def text_of_answer(study: Study, answer: Answer, path: Path) -> str:
    """The deployment file that serves with the setting to use."""
    settings = study.space.settings(answer.to_use or study.baseline)
    found = service_of_answer(study, settings, answer.change)
    head = f"# `ridgeline service check {shlex.quote(path.name)}` shows every command; add replicas and a router\n"
    if found["model"] == NO_WEIGHTS:
        head += "# benchmark only: no real weights were measured; name the folder of yours as `model`\n"
    if limits := limit_commands(settings):
        head += f"# found with such limits of GPUs: on each node, as root, before its servers: {'; '.join(limits)}\n"
    return head + service_text(found)
