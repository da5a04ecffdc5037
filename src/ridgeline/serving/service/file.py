"""Deployment files: YAML in, a Service out, or every problem with its line; and back."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from ridgeline import catalog
from ridgeline.errors import InputError, Problem, StudyError
from ridgeline.records.secrets import looks_secret
from ridgeline.serving.engines.knobs.meaning import layout_of
from ridgeline.serving.engines.knobs.releases import parse_version
from ridgeline.serving.engines.layout_rules import layout_problems
from ridgeline.serving.engines.settings import EngineSettings
from ridgeline.serving.model.config import load_model
from ridgeline.serving.node.preflight import NodeReport, node_from
from ridgeline.serving.ports import LAST_PORT, highest_port
from ridgeline.serving.service.form import ServiceForm
from ridgeline.serving.service.keep.scale import UP
from ridgeline.serving.service.keys import reveals_secret
from ridgeline.serving.service.routers import ROUTERS
from ridgeline.serving.service.servers import port_step, server_of
from ridgeline.serving.service.service import ROLES, USUAL_ROUTER, RoleScale, Service, ServiceUnit
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
        report: NodeReport = node_from(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise StudyError(
            f"preflight: {path}: {error}; write it with `ridgeline site preflight --json > {path.name}`"
        ) from None
    lines = (re.fullmatch(rf"export {_HCA}='?([^']*)'?", line) for line in report.exports)
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
    if service.scale is not None and not service.on_this_machine and (found := _scaled_beyond(service)):
        yield found
    for n, unit in enumerate(service.units):
        if not service.on_this_machine and unit.nodes > site.nodes:
            what = f"a server of {unit.nodes} nodes does not fit {site.name}, which has {site.nodes}"
            yield Problem(("units", n, "nodes"), f"{what}; use fewer, or correct the site")
        if site.gpus_per_node and unit.gpus > site.gpus_per_node:
            what = f"{unit.gpus} GPUs of a node are more than the {site.gpus_per_node} that nodes of {site.name} have"
            yield Problem(("units", n, "gpus"), f"{what}; spread it over more nodes, or correct the site")
    yield from _impossible_layouts(service)


def _scaled_beyond(service: Service) -> Problem | None:
    """Where all roles at their most need more nodes than the site has; `most_servers` may keep them from it."""
    scale, site = service.scale, service.site
    assert scale is not None
    each: dict[str, float] = {unit.role: _node_share(unit, site.gpus_per_node) for unit in service.units}
    wanted = sum(service.slots(unit) * each[unit.role] for unit in service.units)
    if scale.most_servers is not None:
        wanted = min(wanted, scale.most_servers * max(each.values()))
    if math.ceil(wanted - 1e-9) <= site.nodes:
        return None
    role = max(scale.roles, key=lambda role: scale.roles[role].most * each[role])
    others = sum(service.slots(unit) * each[unit.role] for unit in service.units if unit.role != role)
    fits = int((site.nodes - others) / each[role] + 1e-9)
    what = f"most {scale.roles[role].most}: all servers together would need {math.ceil(wanted - 1e-9)} nodes"
    remedy = f"at most {fits} fit" if fits >= 1 else "name fewer of both roles, or `most_servers`"
    return Problem(("scale", role, "most"), f"{what}, and {site.name} has {site.nodes}; {remedy}, or correct the site")


def _node_share(unit: ServiceUnit, node_gpus: int) -> float:
    """Nodes, or the part of one, that a server takes; nothing is known of one without GPUs."""
    if unit.nodes > 1 or not unit.gpus or not node_gpus:
        return float(unit.nodes) if unit.gpus or unit.nodes > 1 else 0.0
    return 1 / max(1, node_gpus // unit.gpus)


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
    router, scale = form.router, form.scale
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
        scale=scale and scale.record(roles={r: rule for r in ROLES if (rule := getattr(scale, r)) is not None}),
    )
    return found


def _from_file(text: str, file: Path) -> str:
    """A path, as those of a file are meant: from where it lies. A plain name is left to the PATH."""
    return str((file.parent / Path(text).expanduser()).absolute()) if "/" in text else text


def _model(text: str, file: Path) -> str:
    """A folder beside the file also by its plain name; what is neither there nor written as a path is a name."""
    path = file.parent / Path(text).expanduser()
    return str(path.absolute()) if path.is_dir() or text.startswith(("./", "../", "~/")) else text


def _scale_disagreements(service: Service) -> Iterator[Problem]:
    """What a `scale` block asks that cannot be, whatever the load."""
    if service.scale is None:
        return
    rules = service.scale.roles
    if not rules:
        yield Problem(("scale",), "names no role; write such as `both: {least: 1, most: 4, running: 24}`")
    units = {role: [n for n, unit in enumerate(service.units) if unit.role == role] for role in ROLES}
    for role, rule in rules.items():
        if not units[role]:
            have = ", ".join(dict.fromkeys(unit.role for unit in service.units))
            yield Problem(("scale", role), f"no unit has `role: {role}`; the units have: {have}")
        elif len(units[role]) > 1:
            what = f"{len(units[role])} units have `role: {role}`, and it doesn't say which of them gets more servers"
            yield Problem(("scale", role), f"{what}; make them one unit, or two services")
        else:
            yield from _limits_disagree(("scale", role), rule, service.units[units[role][0]].replicas, units[role][0])
    yield from _router_and_scale(service, rules)
    total, least = service.scale.most_servers, sum(rule.least for rule in rules.values())
    fixed = sum(unit.replicas for unit in service.units if unit.role not in rules)
    if total is not None and total < least + fixed:
        yield Problem(
            ("scale", "most_servers"), f"is {total}, and the roles never have fewer than {least + fixed}; raise it"
        )


def _limits_disagree(where: tuple[str | int, ...], rule: RoleScale, replicas: int, unit: int) -> Iterator[Problem]:
    if rule.least > rule.most:
        yield Problem((*where, "least"), f"least {rule.least} is more than most {rule.most}; lower it, or raise most")
        return
    if not rule.least <= replicas <= rule.most:
        what = f"replicas is {replicas}, and scale keeps {rule.least} to {rule.most}"
        yield Problem(("units", unit, "replicas"), f"{what}; begin with a number between them")
    for n, entry in enumerate(rule.schedule):
        here = (*where, "schedule", n)
        least, most = entry.least or rule.least, entry.most or rule.most
        if entry.least is None and entry.most is None:
            yield Problem(here, "changes nothing; give it `least`, `most` or both")
        elif least > most:
            yield Problem(here, f"{entry.text}: least {least} is more than most {most}; change one of them")
        elif most > rule.most or least < rule.least:
            what = f"{least} to {most} goes beyond the {rule.least} to {rule.most} of the role"
            yield Problem(here, f"{entry.text}: {what}; stay within them, or widen them")
        for earlier in rule.schedule[:n]:
            if not entry.overlaps(earlier):
                continue
            pairs = ((entry.least, earlier.least, "least"), (entry.most, earlier.most, "most"))
            for own, other, key in pairs:
                if own is not None and other is not None and own != other:
                    what = f"{entry.text}: {key} {own}, and {earlier.text}: {key} {other} overlaps it"
                    yield Problem(here, f"{what}; which of them should hold? Let one end where the other begins")
            floors = [(entry, earlier), (earlier, entry)]
            for low, high in floors:
                if low.least is not None and high.most is not None and low.least > high.most:
                    what = f"{low.text}: least {low.least}, and {high.text}: most {high.most} overlaps it"
                    yield Problem(here, f"{what}; let one end where the other begins")


def _router_and_scale(service: Service, rules: Mapping[str, RoleScale]) -> Iterator[Problem]:
    if service.router is None:
        kind = f"`router: {{kind: {USUAL_ROUTER}}}`"
        yield Problem(("scale",), f"servers come and go behind a router, and there is none; add one: {kind}")
        return
    kind = service.router.kind
    if service.split and not ROUTERS[kind].adds_split:
        able = [name for name, other in ROUTERS.items() if other.adds_split and service.engine in other.engines]
        use = f"use one of: {', '.join(able)}, " if able else ""
        what = f"{kind} takes no prefill or decode server back while it runs"
        yield Problem(("router", "kind"), f"{what}, so that nothing can be scaled; {use}or remove `scale`")
    limit = service.router.most_running
    for role, rule in rules.items():
        if limit is None or rule.running is None or role == "prefill" or rule.most < 2:
            continue
        reach = (1 + UP[-1][1]) * rule.running * (rule.most - 1)
        if limit <= reach:
            reachable = max(1, int(limit / (1 + UP[-1][1]) / rule.running) + 1)
            what = f"the router lets {limit} requests through, so that no load asks for more than {reachable} servers"
            where = ("scale", role, "most")
            yield Problem(where, f"{what}; raise `most_running` above {reach:.0f}, or lower `most` or `running`")


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
    yield from _scale_disagreements(service)
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
            if reveals_secret(name, value) or name in service.secrets:
                what = f"holds a key, token or password; remove it here and write `secrets: [{name}]`"
                yield Problem(("units", n, "env", name), f"{what}: its value is then taken from your environment")
        for name, value in unit.settings.items():
            if reveals_secret(f"--{name.replace('_', '-')}", str(value)):
                yield Problem(("units", n, "settings", name), _PLAIN)
        if _revealed(unit.arguments):
            yield Problem(("units", n, "arguments"), _PLAIN)
    if service.router is not None and _revealed(service.router.arguments):
        yield Problem(("router", "arguments"), _PLAIN)


_PLAIN = (
    "holds a key, token or password, which every user of the node would see among the processes; remove it, and name "
    "the variable that holds it: `api_key_env` for the API key, `secrets` for tokens"
)


def _revealed(argv: Sequence[str]) -> bool:
    """`--flag value` or `--flag=value` of a secret, or a word that is one by its shape."""
    pairs = [(flag, value) for flag, equals, value in (word.partition("=") for word in argv) if equals]
    pairs += pairwise(argv)
    named = any(reveals_secret(flag, value) for flag, value in pairs if flag.startswith("-"))
    return named or any(map(looks_secret, argv))


def _port_clashes(service: Service) -> Iterator[Problem]:
    """Members may come to share a node, so each has ports of its own, and those that an engine derives from it."""
    servers, step = sum(map(service.slots, service.units)), port_step(service.engine, service.units)
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
