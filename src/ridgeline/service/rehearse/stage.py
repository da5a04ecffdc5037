"""The stage of a rehearsal: the servers of a deployment file as twins on this machine, at ports nobody uses."""

from __future__ import annotations

import sys
from dataclasses import replace

from ridgeline.errors import InputError
from ridgeline.ports import claim_row
from ridgeline.records.expression import Value
from ridgeline.records.site import LOCAL
from ridgeline.service.admission import twin_model
from ridgeline.service.routers import ROUTERS
from ridgeline.service.servers import TWIN_OPTIONS, server_of
from ridgeline.service.service import Service, ServiceUnit
from ridgeline.twin.server.serve import BOOTSTRAP_VARIABLE

LEFT_OUT = ("manual", "passthrough")  # they choose by what a client says


def known_policies(service: Service) -> list[str]:
    """Those of the router that can serve this file; the file's own first: another must be better to replace it."""
    if service.router is None:
        raise InputError("there is no router to rehearse; add one to the deployment file")
    known = ROUTERS[service.router.kind].policies
    own = [service.router.policy or ROUTERS[service.router.kind].usual]
    tried = [policy for policy in known if policy not in LEFT_OUT and (policy != "bucket" or service.split)]
    return list(dict.fromkeys([*own, *tried]))


def as_twins(service: Service, speed: float = 1.0) -> Service:
    """The same servers, pretended here, and the same router before them, away from one that may be serving."""
    if not service.gpu:
        raise InputError("name the GPU in the deployment file, such as `engine: {kind: sglang, gpu: h200}`")
    assert service.router is not None
    servers = sum(unit.replicas for unit in service.units)
    port = claim_row(2 * servers + 2)
    return replace(
        service,
        engine="twin",
        model=twin_model(service.model),
        python=sys.executable,
        units=tuple(_pretended(service, unit, speed) for unit in service.units),
        router=replace(service.router, port=port),
        site=LOCAL,
        first_port=port + 2,
        first_bootstrap_port=port + 2 + servers,
        host="",
    )


def _pretended(service: Service, unit: ServiceUnit, speed: float) -> ServiceUnit:
    flags = server_of(service.engine).flags
    settings: dict[str, Value] = {
        name: value for name, value in flags.canonical(unit.settings).items() if name in TWIN_OPTIONS
    }
    env = {name: value for name, value in unit.env.items() if name == BOOTSTRAP_VARIABLE}
    arguments = () if speed == 1 else ("--speed", f"{speed:g}")
    return replace(unit, nodes=1, gpus=0, settings=settings, arguments=arguments, env=env)
