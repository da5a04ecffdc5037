"""Deployment files: YAML in, a Service out, or every problem with its line; and back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from ridgeline import catalog
from ridgeline.errors import InputError, Problem, ReadError, StudyError
from ridgeline.records.secrets import looks_secret, masked
from ridgeline.serving.engines.layout_rules import layout_problems
from ridgeline.serving.engines.releases import parse_version
from ridgeline.serving.engines.settings import EngineSettings, layout_of
from ridgeline.serving.model.config import load_model
from ridgeline.serving.node.preflight import read_node
from ridgeline.serving.ports import LAST_PORT, highest_port
from ridgeline.serving.service.members import port_step
from ridgeline.serving.service.routers import ROUTERS
from ridgeline.serving.service.service import USUAL_ROUTER, Service, ServiceForm, ServiceUnit, server_of
from ridgeline.study.forms import read_form
from ridgeline.study.site_file import load_site
from ridgeline.study.yaml_tree import parse_yaml, read_text

_HCA = "NCCL_IB_HCA"


def _with_adapters(service: Service, records: Sequence[str], folder: Path) -> Service:
    """What a unit says itself stays. StudyError where a record cannot be read, or nodes differ."""
    named = {f"{path}": _hca_of(path) for path in _files(records, folder)}
    if len(set(named.values())) > 1:
        seen = "; ".join(f"{path}: {hca or 'none'}" for path, hca in named.items())
        raise StudyError(
            f"preflight: nodes have different adapters ({seen}); name {_HCA} and disaggregation_ib_device in the units"
        )
    hca = next(iter(named.values()), "") or service.site.env.get(_HCA, "")
    return replace(service, units=tuple(_with(unit, hca, service) for unit in service.units)) if hca else service


def _with(unit: ServiceUnit, hca: str, service: Service) -> ServiceUnit:
    split = unit.role != "both"
    env = {_HCA: hca, **unit.env} if split or unit.nodes > 1 else unit.env
    # nixl finds its own way; between servers of one node nothing leaves it
    knob = server_of(service.engine).device_knob
    by_port = split and knob and unit.settings.get("disaggregation_transfer_backend") != "nixl"
    devices = ",".join(dict.fromkeys(name.partition(":")[0] for name in hca.lstrip("=").split(",")))
    settings = {knob: devices, **unit.settings} if by_port else unit.settings
    return unit.model_copy(update={"env": env, "settings": settings})


def _files(records: Sequence[str], folder: Path) -> list[Path]:
    found = []
    for text in records:
        paths = sorted(folder.glob(text)) if "*" in text else [folder / text]
        if not paths:
            raise StudyError(
                f"preflight: {text} names no file; write them with `ridgeline site preflight --json > NODE.json`"
            )
        found += paths
    return found


def _hca_of(path: Path) -> str:
    try:
        exports = read_node(path).exports
    except (InputError, ReadError) as error:
        raise StudyError(f"preflight: {error}") from None
    lines = (re.fullmatch(rf"export {_HCA}='?([^']*)'?", line) for line in exports)
    return next((line[1] for line in lines if line), "")


def load_service(path: Path) -> Service:
    """StudyError lists every problem of the file."""
    tree = parse_yaml(read_text(path), str(path))
    plain = tree.plain()
    problems = list(tree.problems)
    if not isinstance(plain, Mapping):
        raise StudyError([*problems, f"{tree.name}:1: a deployment file is a mapping that begins with `version: 1`"])
    form, found = read_form(ServiceForm, plain, path.parent)
    problems += [tree.message(problem.where, problem.message) for problem in found]
    if problems:
        raise StudyError(problems)
    service = _service(form, path)
    for check in (_disagreements, _impossible):
        if found := list(check(service)):
            raise StudyError([tree.message(problem.where, problem.message) for problem in found])
    return _with_adapters(service, form.preflight, path.parent)


def service_from(plain: Mapping[str, Any]) -> Service:
    """The service that `service_text` would write, without a file between."""
    form, problems = read_form(ServiceForm, plain, Path())
    if problems:
        raise StudyError([str(problem) for problem in problems])
    return _service(form, Path("service.yaml"))


def _impossible(service: Service) -> Iterator[Problem]:
    """What its site, or its GPUs, cannot give."""
    site = service.site
    catalog.part("executors", site.batch)  # refuses a batch system that nobody knows
    for n, unit in enumerate(service.units):
        if not service.on_this_machine and unit.nodes > site.nodes:
            what = f"a server of {unit.nodes} nodes does not fit {site.name}, which has {site.nodes}"
            yield Problem(("units", n, "nodes"), f"{what}; use fewer, or correct the site")
        if site.gpus_per_node and unit.gpus > site.gpus_per_node:
            what = f"{unit.gpus} GPUs of a node are more than the {site.gpus_per_node} that nodes of {site.name} have"
            yield Problem(("units", n, "gpus"), f"{what}; spread it over more nodes, or correct the site")
    yield from _impossible_layouts(service)


def _impossible_layouts(service: Service) -> Iterator[Problem]:
    """Ranks that the GPUs, or the heads of a model that is known here, do not divide into."""
    flags = server_of(service.engine).flags
    try:
        model = load_model(service.model)
    except InputError:
        model = None  # a name that only the engine knows; what a folder lacks, the engine says
    for n, unit in enumerate(service.units):
        values = flags.canonical(unit.settings)
        named = next((name for name in unit.settings if "tp" in flags.canonical({name: unit.settings[name]})), "")
        where = ("units", n, "settings", named) if named else ("units", n)
        try:
            layout = layout_of(values, unit.nodes, unit.gpus or None)
        except InputError as error:
            yield Problem(where, str(error))
            continue
        if model is not None:
            settings = EngineSettings(engine=server_of(service.engine).name, version=service.release)
            yield from (Problem(where, str(p)) for p in layout_problems(model, layout, None, settings, unit.role))
        elif layout.nodes * layout.gpus_per_node % layout.gpus:
            given = f"{unit.nodes} x {unit.gpus} are given"
            yield Problem(where, f"{layout} is {layout.gpus} GPUs, and {given}; make `nodes` x `gpus` as many")


def _service(form: ServiceForm, path: Path) -> Service:
    router = form.router
    found: Service = form.record(
        name=form.name or path.stem,
        model=_model(form.model, path),
        engine=form.engine.kind,
        release=parse_version(form.engine.release) if form.engine.release else server_of(form.engine.kind).latest,
        planned_release=form.engine.release,
        python=_from_file(form.engine.python, path),
        gpu=form.engine.gpu,
        units=tuple(form.units),
        router=router and router.model_copy(update={"python": _from_file(router.python, path)}),
        site=load_site(form.site, path.parent),
        in_turn=form.start == "in-turn",
    )
    return found


def _from_file(text: str, file: Path) -> str:
    """A path, as those of a file are meant: from where it lies. A plain name is left to the PATH."""
    return str((file.parent / Path(text).expanduser()).absolute()) if "/" in text else text


def _model(text: str, file: Path) -> str:
    """A folder beside the file also by its plain name; what is neither there nor written as a path is a name."""
    path = file.parent / Path(text).expanduser()
    return str(path.absolute()) if path.is_dir() or text.startswith(("./", "../", "~/")) else text


def _disagreements(service: Service) -> Iterator[Problem]:
    """What each key alone cannot see."""
    roles = [unit.role for unit in service.units]
    servers = sum(unit.replicas for unit in service.units)
    if "both" in roles and set(roles) != {"both"}:
        yield Problem(("units",), "mixes servers of role both with split ones; deploy them as two services")
    for role, other in (("prefill", "decode"), ("decode", "prefill")):
        if role in roles and other not in roles:
            yield Problem(("units",), f"has {role} servers and none for {other}; add a unit with `role: {other}`")
    if service.router is None and servers > 1:
        yield Problem(("units",), f"has {servers} servers and no router; add one: `router: {{kind: {USUAL_ROUTER}}}`")
    yield from _router_disagreements(service)
    flags = server_of(service.engine).flags
    for n, unit in enumerate(service.units):
        for name in unit.settings:
            if not flags.knows(name):
                yield Problem(("units", n, "settings", name), f"{service.engine} has no such flag; check its spelling")
        since = server_of(service.engine).over_nodes_from
        if unit.nodes > 1 and service.release < since:
            what = f"{service.engine} before {'.'.join(map(str, since))} spreads over nodes with Ray only"
            yield Problem(("units", n, "nodes"), f"{what}; name a newer release, or write `nodes: 1` and more replicas")
    yield from _port_clashes(service)
    yield from _plain_secrets(service)
    if service.engine == "twin" and not service.gpu:
        yield Problem(("engine",), "the twin must know its GPU; add one, such as `gpu: h200`")
    if not service.release:
        yield Problem(("engine", "release"), f"{service.planned_release!r} is not a release; write one such as 0.5.15")


def _plain_secrets(service: Service) -> Iterator[Problem]:
    """Whoever can read the file, a script, a manifest or the list of processes would have them. None is repeated."""
    for n, unit in enumerate(service.units):
        for name, value in unit.env.items():
            if _reveals_secret(name, value) or name in service.secrets:
                what = f"holds a key, token or password; remove it here and write `secrets: [{name}]`"
                yield Problem(("units", n, "env", name), f"{what}: its value is then taken from your environment")
        for name, value in unit.settings.items():
            if _reveals_secret(f"--{name.replace('_', '-')}", str(value)):
                yield Problem(("units", n, "settings", name), _PLAIN)
        if _revealed(unit.arguments):
            yield Problem(("units", n, "arguments"), _PLAIN)
    if service.router is not None and _revealed(service.router.arguments):
        yield Problem(("router", "arguments"), _PLAIN)


def _reveals_secret(name: str, value: str) -> bool:
    """Whether `NAME: value`, or a flag and its value, says a key, token or password in plain text."""
    text = f"{name} {value}" if name.startswith("-") else f"{name}={value}"
    return looks_secret(value) or masked(text) != text


_PLAIN = (
    "holds a key, token or password, which every user of the node would see among the processes; remove it, and name "
    "the variable that holds it: `api_key_env` for the API key, `secrets` for tokens"
)


def _revealed(argv: Sequence[str]) -> bool:
    """`--flag value` or `--flag=value` of a secret, or a word that is one by its shape."""
    pairs = [(flag, value) for flag, equals, value in (word.partition("=") for word in argv) if equals]
    pairs += pairwise(argv)
    named = any(_reveals_secret(flag, value) for flag, value in pairs if flag.startswith("-"))
    return named or any(map(looks_secret, argv))


def _port_clashes(service: Service) -> Iterator[Problem]:
    """Members may come to share a node, so each has ports of its own, and those that an engine derives from it."""
    servers, step = sum(unit.replicas for unit in service.units), port_step(service.engine, service.units)
    last, highest = service.first_port + (servers - 1) * step, highest_port(server_of(service.engine).port_offsets)
    if last > highest:
        reach = LAST_PORT - highest
        why = f"{service.engine} also takes the port {reach} above it" if reach else "there is no such port"
        yield Problem(
            ("first_port",),
            f"the last of {servers} servers would get port {last}, and {why}; start at "
            f"{highest - (servers - 1) * step} or below",
        )
    if service.router is None:
        return
    for port, what in ((service.router.port, "the router"), (service.router.port + 1, "the router's metrics")):
        if service.first_port <= port <= last:
            yield Problem(
                ("router", "port"),
                f"{what} would take port {port}, which is a server's ({service.first_port} to {last}); move `port` or "
                "`first_port`",
            )


def _router_disagreements(service: Service) -> Iterator[Problem]:
    if service.router is None:
        return
    kind, policy, engine, split = service.router.kind, service.router.policy, service.engine, service.split
    dialect = ROUTERS[kind]
    if policy and policy not in dialect.policies:
        known = ", ".join(dialect.policies)
        yield Problem(("router", "policy"), f"{kind} has no policy {policy!r}; it knows {known}")
    if policy in dialect.prefill_policies and not split:
        yield Problem(("router", "policy"), f"{policy} chooses among prefill servers, and no unit has `role: prefill`")
    if split and engine not in dialect.engines:
        able = ", ".join(name for name, other in ROUTERS.items() if engine in other.engines)
        yield Problem(
            ("router", "kind"), f"{kind} cannot pair the prefill and decode servers of {engine}; use one of: {able}"
        )
    if split and service.api_key_env and not dialect.checks_keys:
        # it would send its own key along with everybody's requests
        yield Problem(
            ("api_key_env",),
            f"{kind} neither checks nor passes on the keys of users where roles are split; remove it and put a proxy "
            "that checks them in front",
        )


def service_text(service: Mapping[str, Any]) -> str:
    """A deployment file from its mapping, keys in the order given."""
    return yaml.safe_dump(dict(service), sort_keys=False, default_flow_style=None, width=110)
