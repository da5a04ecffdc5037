"""A service rehearsed on this machine: the real router over servers of the twin, under the user's own traffic.

Every policy of the router is loaded with skewed traffic, and the better half of them with the traffic as it is; the
best one then loses a server, has one that hangs, and is offered more than it can serve. Servers and time are the
twin's; router, sockets and load generator are real, so what they add is in the figures, and so is a machine that is
too slow for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ridgeline.deploy import probe
from ridgeline.deploy.admission import AdmissionLimits
from ridgeline.deploy.operate import Operator
from ridgeline.deploy.rehearse.faults import kept, struck, victim
from ridgeline.deploy.rehearse.stage import as_twins, known_policies
from ridgeline.deploy.rehearse.staged import StagedService, staged
from ridgeline.deploy.rehearse.traffic import UNFINISHED, RehearsedLoad, send
from ridgeline.deploy.servers import SERVERS
from ridgeline.deploy.service import RouterChoice, Service
from ridgeline.errors import SiteError
from ridgeline.serving.load.bench import BenchResult
from ridgeline.serving.traffic.requests import RequestRecord, Slo

STRIKE_AT, STRIKE_S = 1 / 3, 4.0  # of the time of a run, and at the latest
LOSS_DRAIN_S = 12.0  # what a lost server had is given to others by then, or to nobody
HUNG_S = 30.0  # a run must outlast the looks that find a hung server
OVERLOAD, OVERLOAD_S = 1.5, 12.0  # places must be taken before any request is too many
ALIKE, TTFT_ALIKE = 0.03, 0.1  # shares by which runs of the same thing differ here
PLAIN, SKEWED, KILLED, HUNG, OVERLOADED = "traffic", "skewed", "killed", "hung", "overload"


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """One run. `case` is traffic, skewed, killed, hung or overload.

    `goodput_s` are requests a second that kept every limit; `lost` those that failed before their first token, `cut`
    after it, `refused` with 429 and its like. `imbalance` is the busiest server's prompt tokens over the mean.
    `recovery_s` is how long after a loss requests still failed. `void` says why not to trust the run.
    """

    policy: str
    case: str
    offered_s: float
    goodput_s: float
    ttft_p95_ms: float | None
    itl_p95_ms: float | None
    lost: int
    cut: int
    refused: int
    imbalance: float
    recovery_s: float | None
    void: str

    def as_json(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__slots__}


def rehearse(
    service: Service,
    root: Path,
    load: RehearsedLoad,
    policies: Sequence[str],
    say: Callable[[str], None],
    limits: AdmissionLimits | None = None,
) -> list[Rehearsal]:
    """Every policy, the better half again, then the best under loss and, with limits, under overload with them."""
    assert service.router is not None
    twins = as_twins(service, load.speed)
    router = service.router
    done: list[Rehearsal] = []
    with staged(twins, root) as stage:

        def run(case: str, sent: RehearsedLoad, choice: RouterChoice) -> None:
            say(f"{choice.policy}, {case} ...")
            done.append(_run(stage, twins, choice, case, sent, root))

        for policy in policies or known_policies(service):
            try:
                run(SKEWED, load, replace(router, policy=policy))
            except SiteError as error:
                say(f"{policy}: left out: {error}")
        if not done:
            raise SiteError("the router came up with none of these policies; see what it says above")
        for policy in better_half(done, own=known_policies(service)[0]):
            run(PLAIN, load, replace(router, policy=policy))
        chosen = replace(router, policy=best_of(done))
        if limits is not None:
            over = replace(load, rate_s=OVERLOAD * limits.requests_s, seconds=max(OVERLOAD_S, load.seconds))
            run(OVERLOADED, over, _limited(chosen, limits))
        if victim(stage.operator(chosen)) is not None:
            run(HUNG, replace(load.times(0.5), seconds=max(HUNG_S, load.seconds)), chosen)
            run(KILLED, load, chosen)
    return done


def _limited(router: RouterChoice, limits: AdmissionLimits) -> RouterChoice:
    told = limits.for_router(router.kind)
    wait = limits.longest_wait_s if told["longest_wait"] else None
    waiting = limits.most_waiting if wait else 0
    return replace(router, most_running=limits.most_running, most_waiting=waiting, longest_wait_s=wait)


def better_half(rehearsals: Sequence[Rehearsal], own: str = "") -> list[str]:
    """Policies that may still be the best, the last one tried first, and the file's own in any case."""
    most = max(one.goodput_s for one in rehearsals)

    def rank(one: Rehearsal) -> tuple[float, float]:
        behind = 1 - one.goodput_s / most if most else 0.0
        return (behind if behind > ALIKE else 0.0, one.ttft_p95_ms or 0.0)

    ranked = [one.policy for one in sorted(rehearsals, key=rank)]
    half = max(2, -(-len(ranked) // 2))
    others = [policy for policy in ranked if policy != own]
    kept = {own, *others[: half - (own in ranked)]}
    return [one.policy for one in reversed(rehearsals) if one.policy in kept]


def best_of(rehearsals: Sequence[Rehearsal]) -> str:
    """The first policy that no other clearly beats: what is within the noise of a run is not a reason to change."""
    whole = {one.policy for one in rehearsals if one.case == PLAIN}
    goodput: dict[str, float] = {}
    first_ms: dict[str, float] = {}
    for one in rehearsals:
        if one.case in (PLAIN, SKEWED) and (one.policy in whole or not whole):
            goodput[one.policy] = goodput.get(one.policy, 0.0) + one.goodput_s
            first_ms[one.policy] = max(first_ms.get(one.policy, 0.0), one.ttft_p95_ms or 0.0)
    most = max(goodput.values())
    good = [policy for policy, reached in goodput.items() if reached >= (1 - ALIKE) * most]
    soonest = min(first_ms[policy] for policy in good)
    return next(policy for policy in good if first_ms[policy] <= (1 + TTFT_ALIKE) * soonest)


def _run(
    stage: StagedService, twins: Service, router: RouterChoice, case: str, load: RehearsedLoad, scratch: Path
) -> Rehearsal:
    operator, url = stage.behind(router)
    before = _prompt_tokens(operator)
    how = case if case in (KILLED, HUNG) else ""
    watched = kept(lambda: stage.operator(router), wanted=case == HUNG)
    with watched, struck(operator, how, min(STRIKE_S, STRIKE_AT * load.seconds)) as lost:
        result = send(twins, url, load, scratch if case == SKEWED else None, at_least_s=LOSS_DRAIN_S if how else 0.0)
    if how:
        stage.servers_were_lost()
    return _rehearsal(router.policy, case, result, load, _imbalance(before, _prompt_tokens(operator)), lost)


def _rehearsal(
    policy: str, case: str, result: BenchResult, load: RehearsedLoad, imbalance: float, lost: Sequence[float]
) -> Rehearsal:
    summary, records = result.summary, result.records
    refused = [record for record in records if _refused(record)]
    failed = [r for r in records if not r.ok and not _refused(r) and not (r.status == UNFINISHED and _comes(r, lost))]
    good = sum(_kept_limits(record, summary.slos) for record in records)
    ends = [record.end_s or record.sent_s for record in failed]
    return Rehearsal(
        policy=policy,
        case=case,
        offered_s=load.rate_s,
        goodput_s=good / load.seconds / load.speed,
        ttft_p95_ms=summary.ttft_ms.p95 * load.speed if summary.ttft_ms else None,
        itl_p95_ms=summary.itl_ms.p95 * load.speed if summary.itl_ms else None,
        lost=sum(record.first_token_s is None for record in failed),
        cut=sum(record.first_token_s is not None for record in failed),
        refused=len(refused),
        imbalance=imbalance,
        recovery_s=max([0.0, *(end_s - lost[0] for end_s in ends)]) if lost else None,
        void="; ".join(result.fidelity.why) if result.void else "",
    )


def _comes(record: RequestRecord, lost: Sequence[float]) -> bool:
    """Of an answer that nobody waited for to its end. Without a first token so long after a loss it is lost, too."""
    return record.first_token_s is not None or not lost


def _kept_limits(record: RequestRecord, slos: Sequence[Slo]) -> bool:
    """An answer that was still coming when the run ended is judged by what came of it."""
    seen = replace(record, status="ok") if record.status == UNFINISHED else record
    return seen.ok and seen.first_token_s is not None and all(slo.met_by(seen) for slo in slos)


def _refused(record: RequestRecord) -> bool:
    """Over a limit, and told so: sglang-router answers 408 to whoever waited in vain, smg and SGLang answer 503."""
    full = "admission" in record.error or "queue is full" in record.error
    return record.status in ("http-429", "http-408") or (record.status == "http-503" and full)


def _imbalance(before: dict[str, float], after: dict[str, float]) -> float:
    # a server that was started again counts from zero
    given = [(tokens, before.get(name, 0.0)) for name, tokens in after.items()]
    shares = [tokens - had if tokens >= had else tokens for tokens, had in given]
    mean = sum(shares) / len(shares) if shares else 0.0
    return max(shares) / mean if mean > 0 else 1.0


def _prompt_tokens(operator: Operator) -> dict[str, float]:
    """What each server that answers has been given so far."""
    name = SERVERS["twin"].prompt_metric
    asked = [member for member in operator.servers if member.role != "decode"]
    seen = {member.name: probe.metrics(operator.folder.url(member)) for member in asked}
    return {member: found[name] for member, found in seen.items() if name in found}
