"""A service rehearsed on this machine: the real router over servers of the twin, under the user's own traffic.

Every policy of the router is loaded alike, then the best one loses a server. Servers and time are the twin's; router,
sockets and load generator are real, so what they add is in the figures, and so is a machine that is too slow for them.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ridgeline.deploy import probe
from ridgeline.deploy.operate import Operator
from ridgeline.deploy.routers import ROUTERS
from ridgeline.deploy.servers import SERVERS
from ridgeline.deploy.service import Service
from ridgeline.errors import InputError
from ridgeline.records.site import LOCAL
from ridgeline.serving.load.bench import BenchResult, bench
from ridgeline.serving.load.options import BenchOptions, plan_from

READY_S = 180.0
LEFT_OUT = ("manual", "passthrough", "random")  # they choose by the request, or by nothing
LOSE_AT = 1 / 3  # of the time of a run
PORTS = 41000
ALIKE, TTFT_ALIKE = 0.03, 0.1  # shares by which runs of the same thing differ here


@dataclass(frozen=True, slots=True)
class RehearsedLoad:
    """What is sent: as `bench` takes it, for so long."""

    traffic: str
    rate_s: float
    seconds: float
    shared_prefix: int = 0


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """One run. `imbalance` is the busiest server's prompt tokens over the mean; `void` says why not to trust it."""

    policy: str
    lost_server: bool
    offered_s: float
    goodput_s: float
    ttft_p95_ms: float | None
    itl_p95_ms: float | None
    failed: int
    imbalance: float
    recovery_s: float | None
    void: str

    def as_json(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__slots__}


def rehearse(
    service: Service, root: Path, load: RehearsedLoad, policies: Sequence[str], say: Callable[[str], None]
) -> list[Rehearsal]:
    """Each policy once, then the best with a server lost. The best has the most goodput, then the least TTFT."""
    pretended = as_twins(service)
    done = []
    for number, policy in enumerate(policies or known_policies(service)):
        say(f"{policy} ...")
        done.append(_run(pretended, root / f"{number:02d}-{policy}", policy, load, lose=False))
    best = best_of(done)
    if sum(unit.replicas for unit in pretended.units if unit.role != "prefill") > 1:
        say(f"{best.policy}, and a server is lost ...")
        done.append(_run(pretended, root / f"lost-{best.policy}", best.policy, load, lose=True))
    return done


def best_of(rehearsals: Sequence[Rehearsal]) -> Rehearsal:
    """The first of those that no other clearly beats: what is within the noise of a run is not a reason to change."""
    whole = [one for one in rehearsals if not one.lost_server]
    most = max(one.goodput_s for one in whole)
    good = [one for one in whole if one.goodput_s >= (1 - ALIKE) * most]
    soonest = min(one.ttft_p95_ms or 0.0 for one in good)
    return next(one for one in good if (one.ttft_p95_ms or 0.0) <= (1 + TTFT_ALIKE) * soonest)


def known_policies(service: Service) -> list[str]:
    if service.router is None:
        raise InputError("there is no router to rehearse; add one to the deployment file")
    known = ROUTERS[service.router.kind].policies
    own = [service.router.policy] if service.router.policy else []
    tried = [policy for policy in known if policy not in LEFT_OUT and (policy != "bucket" or service.split)]
    return list(dict.fromkeys([*own, *tried]))  # the file's own first: another must be better to replace it


def as_twins(service: Service) -> Service:
    """The same servers, pretended here."""
    if not service.gpu:
        raise InputError("name the GPU in the deployment file, such as `engine: {kind: sglang, gpu: h200}`")
    units = tuple(replace(unit, nodes=1, gpus=0, arguments=(), env={}) for unit in service.units)
    model = Path(service.model).name if "/" in service.model else service.model
    return replace(
        service, engine="twin", model=model, python=sys.executable, units=units, site=LOCAL, first_port=PORTS, host=""
    )


def _run(service: Service, root: Path, policy: str, load: RehearsedLoad, lose: bool) -> Rehearsal:
    assert service.router is not None
    chosen = replace(service, router=replace(service.router, policy=policy))
    operator = Operator(chosen, root)
    try:
        url = operator.up(READY_S)
        before = _prompt_tokens(operator)
        with _loss(operator, LOSE_AT * load.seconds if lose else None) as lost:
            result = bench(plan_from(_options(chosen, url, load)))
        return _rehearsal(policy, result, load, before, operator, lost)
    finally:
        operator.down()


def _options(service: Service, url: str, load: RehearsedLoad) -> BenchOptions:
    slos = tuple(f"{name}={limit:g}" for name, limit in service.slo.items())
    return BenchOptions(
        url=url,
        traffic=load.traffic,
        rate_s=load.rate_s,
        duration_s=load.seconds,
        shared_prefix_tokens=load.shared_prefix,
        ignore_eos=True,
        key=probe.key_of(service.api_key_env) or None,
        slos=slos,
    )


@contextmanager
def _loss(operator: Operator, after_s: float | None) -> Iterator[list[float]]:
    """Ends the first server that answers after so long; the list then holds when, on the clock of the records."""
    lost: list[float] = []
    began_s = time.monotonic()

    def strike() -> None:
        victim = next(member for member in operator.servers if member.role != "prefill")
        lost.append(time.monotonic() - began_s)
        try:
            probe.ask(f"{operator.folder.url(victim)}/fault", {"kind": "crash"})
        except OSError:
            return  # it died before it could answer

    timer = None if after_s is None else threading.Timer(after_s, strike)
    if timer is not None:
        timer.start()
    try:
        yield lost
    finally:
        if timer is not None:
            timer.cancel()
            timer.join()


def _rehearsal(
    policy: str,
    result: BenchResult,
    load: RehearsedLoad,
    before: Mapping[str, float],
    operator: Operator,
    lost: Sequence[float],
) -> Rehearsal:
    summary, after = result.summary, _prompt_tokens(operator)
    shares = [tokens - before.get(name, 0.0) for name, tokens in after.items()]
    mean = sum(shares) / len(shares) if shares else 0.0
    failures = [record.sent_s for record in result.records if not record.ok]
    return Rehearsal(
        policy=policy,
        lost_server=bool(lost),
        offered_s=load.rate_s,
        goodput_s=summary.goodput_s if summary.goodput_s is not None else summary.requests_s,
        ttft_p95_ms=summary.ttft_ms.p95 if summary.ttft_ms else None,
        itl_p95_ms=summary.itl_ms.p95 if summary.itl_ms else None,
        failed=len(failures),
        imbalance=max(shares) / mean if mean else 1.0,
        recovery_s=max(0.0, max(failures) - lost[0]) if lost and failures else 0.0 if lost else None,
        void="; ".join(result.fidelity.why) if result.void else "",
    )


def _prompt_tokens(operator: Operator) -> dict[str, float]:
    """What each server that answers has been given so far."""
    name = SERVERS["twin"].prompt_metric
    seen = {member.name: probe.metrics(operator.folder.url(member)) for member in operator.servers}
    roles = {member.name: member.role for member in operator.servers}
    return {member: found[name] for member, found in seen.items() if name in found and roles[member] != "decode"}
