"""A service rehearsed on this machine: the real router over servers of the twin, under the user's own traffic.

Every policy of the router is loaded with skewed traffic; where one looks better than the file's own, both are loaded in
pairs of runs with the same requests, and the file's own stays unless the other is shown to be better. The policy that
is kept then loses a server, has one that hangs, and is offered more than it can serve. Servers and time are the
twin's; router, sockets and load generator are real, so what they add is in the figures, and so is a machine that is
too slow for them.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from ridgeline.errors import InputError, SiteError
from ridgeline.records.site import LOCAL
from ridgeline.serving.engines.sglang.failures import BOOTSTRAP_VARIABLE
from ridgeline.serving.load.bench import BenchResult, bench
from ridgeline.serving.load.session import BenchOptions, plan_from
from ridgeline.serving.ports import claim_row
from ridgeline.serving.service import probe
from ridgeline.serving.service.admission import AdmissionLimits, twin_model
from ridgeline.serving.service.keep.keeper import Keeper
from ridgeline.serving.service.members import TWIN_OPTIONS, Member
from ridgeline.serving.service.operate import Operator
from ridgeline.serving.service.routers import ROUTERS, USUAL_POLICY
from ridgeline.serving.service.service import RouterChoice, Service, ServiceUnit, server_of
from ridgeline.serving.traffic.requests import RequestRecord, Slo
from ridgeline.serving.traffic.traces import PREFIX_BLOCK_TOKENS
from ridgeline.serving.traffic.traffic import Arrival, parse_traffic
from ridgeline.serving.twin.server.metrics import LATE_TOKENS, MADE_TOKENS
from ridgeline.stats.compare import Block, Comparison, Direction, Verdict, confirm, order_of_block

# What a rehearsal sends: the user's traffic, and the same with hot prefixes and a few very long prompts.

_SEED = 7
# Prefixes as users have them: a few system prompts that most requests share, and many that hardly anybody does.
_PREFIXES, _PREFIX_BLOCKS, _ZIPF = 16, 2, 1.2
_LONG_EVERY, _LONG_TIMES = 12, 5  # one prompt in so many is this much longer
# What a laptop's core carries of token events beside router and load generator, with room to spare.
_MACHINE_TOKENS_S = 8000.0
_PATIENCE_S = 20.0  # of a client that gets nothing; a hung server is found and ended within it
_DRAIN_S = 1.5
_UNFINISHED = "unfinished"
_SAMPLE = 1000  # requests that tell how long answers are


@dataclass(frozen=True, slots=True)
class RehearsedLoad:
    """What is sent: as `bench` takes it, for so long. `speed` is how much faster than real the servers' time passes.

    Of skewed traffic a share of `plain` requests stays as it is.
    """

    traffic: str
    rate_s: float
    seconds: float
    shared_prefix: int = 0
    speed: float = 1.0
    seed: int = _SEED
    plain: float = 0.0


def sustainable(load: RehearsedLoad) -> RehearsedLoad:
    """The load, or as much of it as this machine can pretend to serve in time."""
    some = replace(load, rate_s=min(load.rate_s, _SAMPLE / load.seconds), speed=1.0)
    tokens = fmean(arrival.output_tokens for arrival in _arrivals(some))
    most_s = _MACHINE_TOKENS_S / tokens / load.speed
    return load if load.rate_s <= most_s else replace(load, rate_s=most_s)


def _send(
    service: Service, url: str, load: RehearsedLoad, skewed_in: Path | None = None, at_least_s: float = 0.0
) -> BenchResult:
    """One run. With `skewed_in`, a folder, the traffic is skewed by way of a trace that is written there.

    Long answers are not waited for: only, and `at_least_s`, until it is clear which requests keep their limits.
    """
    slos = tuple(f"{name}={limit / load.speed:g}" for name, limit in service.slo.items())
    options = BenchOptions(
        url=url,
        traffic=load.traffic,
        rate_s=load.rate_s * load.speed,
        duration_s=load.seconds,
        shared_prefix_tokens=load.shared_prefix,
        ignore_eos=True,
        key=probe.key_of(service.api_key_env) or None,
        slos=slos,
        seed=load.seed,
        timeout_s=_PATIENCE_S,
    )
    if skewed_in is not None:
        trace = skewed_in / "skewed.jsonl"
        trace.write_text(_skewed_trace(load))
        options = replace(options, traffic=str(trace), rate_s=None, duration_s=None)
    plan = plan_from(options)
    return bench(replace(plan, give_up_s=load.seconds + max(at_least_s, _drain_s(plan.slos))))


def _drain_s(slos: Sequence[Slo]) -> float:
    """After this, who has no first token is late in any case, and so is who is not finished within a limit on that."""
    return max([_DRAIN_S, *(1.2 * slo.limit_ms / 1000 for slo in slos if slo.latency in ("ttft", "e2e"))])


def _skewed_trace(load: RehearsedLoad) -> str:
    """The same requests at the same times, most with one of a few prefixes before them, and some prompts long."""
    rng = random.Random(load.seed)
    weights = [1 / (n + 1) ** _ZIPF for n in range(_PREFIXES)]
    lines = []
    for arrival in _arrivals(load):
        group = rng.choices(range(_PREFIXES), weights)[0]
        own = arrival.input_tokens * (_LONG_TIMES if rng.randrange(_LONG_EVERY) == 0 else 1)
        row: dict[str, object] = {
            "at_s": round(arrival.at_s / load.speed, 4),
            "input_length": _PREFIX_BLOCKS * PREFIX_BLOCK_TOKENS + own,
            "output_length": arrival.output_tokens,
            "hash_ids": [_PREFIX_BLOCKS * group + n for n in range(_PREFIX_BLOCKS)],
        }
        if load.plain and rng.random() < load.plain:
            row |= {"input_length": arrival.input_tokens, "hash_ids": []}
        lines.append(json.dumps(row))
    return "\n".join([*lines, ""])


def _arrivals(load: RehearsedLoad) -> list[Arrival]:
    if Path(load.traffic).exists():
        recorded = parse_traffic(load.traffic, rate_s=load.rate_s, seed=load.seed).arrivals()
        return [arrival for arrival in recorded if arrival.at_s < load.seconds * load.speed] or recorded[:1]
    count = max(10, int(load.rate_s * load.seconds * load.speed))
    return list(parse_traffic(load.traffic, requests=count, rate_s=load.rate_s, seed=load.seed).arrivals())


# Where a rehearsal runs: the servers of a deployment file as twins on this machine, at ports nobody uses.

_LEFT_OUT = ("manual", "passthrough")  # they choose by what a client says


def known_policies(service: Service) -> list[str]:
    """Those of the router that can serve this file; the file's own first: another must be better to replace it."""
    if service.router is None:
        raise InputError("there is no router to rehearse; add one to the deployment file")
    known = ROUTERS[service.router.kind].policies
    own = [service.router.policy or USUAL_POLICY]
    tried = [policy for policy in known if policy not in _LEFT_OUT and (policy != "bucket" or service.split)]
    return list(dict.fromkeys([*own, *tried]))


def _as_twins(service: Service, speed: float = 1.0) -> Service:
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
        units=tuple(_as_twin(service, unit, speed) for unit in service.units),
        router=service.router.model_copy(update={"port": port}),
        site=LOCAL,
        first_port=port + 2,
        first_bootstrap_port=port + 2 + servers,
        host="",
    )


def _as_twin(service: Service, unit: ServiceUnit, speed: float) -> ServiceUnit:
    known = server_of(service.engine).flags.canonical(unit.settings)
    settings = {name: value for name, value in known.items() if name in TWIN_OPTIONS}
    env = {name: value for name, value in unit.env.items() if name == BOOTSTRAP_VARIABLE}
    arguments = [] if speed == 1 else ["--speed", f"{speed:g}"]
    own = {"nodes": 1, "gpus": 0, "settings": settings, "arguments": arguments, "env": env}
    return unit.model_copy(update=own)


_READY_S = 180.0


class RehearsalService:
    """`twins` as `_as_twins` made them: servers that run once for all runs, and are started again only when lost."""

    def __init__(self, twins: Service, root: Path) -> None:
        self._twins, self._root = twins, root
        self._before: RouterChoice | None = None

    def operator(self, router: RouterChoice) -> Operator:
        assert self._twins.router is not None
        argv = list(router.arguments)
        if router.kind in ("smg", "sglang-router"):
            # nobody waits for answers that were given up: by default these wait for minutes, until they are killed
            argv += ["--shutdown-grace-period-secs", "0"]
        placed = router.model_copy(update={"port": self._twins.router.port, "arguments": argv})
        return Operator(replace(self._twins, router=placed), self._root)

    def behind(self, router: RouterChoice) -> tuple[Operator, str]:
        """The whole service up behind such a router, with its URL, every prefix forgotten."""
        operator = self.operator(router)
        if router != self._before and operator.router is not None:
            self._before = None
            operator.stop(operator.router)
        url = operator.up(_READY_S)
        self._before = router
        for server in operator.servers:
            with contextlib.suppress(OSError):
                probe.ask(f"{operator.folder.url(server)}/flush_cache", {}, key=operator.key)
        return operator, url

    def after_loss(self, operator: Operator, lost_ticket: str) -> None:
        """The next run starts a new router, which knows every server, and the lost server where nobody has replaced it.

        Whether `keep` found it is what the run shows; the next run must not wait for a server that hangs for ever.
        """
        self._before = None
        operator.refresh()
        member = _replaceable_server(operator)
        if member is not None and _ticket_of(operator, member) == lost_ticket:
            operator.stop(member)

    def close(self) -> None:
        """Nothing of it runs afterwards."""
        Operator(self._twins, self._root).down()


_FAULTS = {"killed": "crash", "hung": "hang"}


def _replaceable_server(operator: Operator) -> Member | None:
    """The first server whose work another one could take over."""
    for member in operator.servers:
        if member.role != "prefill" and sum(other.role == member.role for other in operator.servers) > 1:
            return member
    return None


def _ticket_of(operator: Operator, member: Member | None) -> str:
    start = operator.folder.started.get(member.name) if member is not None else None
    return start.ticket if start is not None else ""


@contextlib.contextmanager
def _injected_fault(operator: Operator, how: str, after_s: float) -> Iterator[list[float]]:
    """A server is lost after so long; the list then holds when, in seconds from now. Nothing is lost for ''."""
    lost: list[float] = []
    member, began_s = _replaceable_server(operator), time.monotonic()

    def inject() -> None:
        assert member is not None
        lost.append(time.monotonic() - began_s)
        with contextlib.suppress(OSError):  # it may die before it can answer
            probe.ask(f"{operator.folder.url(member)}/fault", {"kind": _FAULTS[how]})

    timer = threading.Timer(after_s, inject) if how and member is not None else None
    if timer is not None:
        timer.start()
    try:
        yield lost
    finally:
        if timer is not None:
            timer.cancel()
            timer.join()


@contextlib.contextmanager
def kept(operator: Operator) -> Iterator[None]:
    """With `ridgeline service keep` running on the service meanwhile."""
    over, keeper = threading.Event(), Keeper(operator)
    runs = threading.Thread(target=keeper.run, args=(over.is_set,))
    runs.start()
    try:
        deadline = time.monotonic() + _KEEPER_S
        while not keeper.seen.knows_paces and time.monotonic() < deadline:
            time.sleep(0.1)  # as one that has watched the service for a while
        yield
    finally:
        over.set()
        runs.join()


_KEEPER_S = 15.0  # for a keeper to measure the servers
_FAULT_AT, _FAULT_AFTER_S = 1 / 3, 2.0  # of the time of a run, and at the latest
# What a lost server had is given to others by then, or to nobody; split roles wait for each other first.
_LOSS_DRAIN_S, _SPLIT_LOSS_DRAIN_S = 5.0, 12.0
HUNG_S = 26.0  # a run must outlast the polls that find a hung server
_OVERLOAD, _OVERLOAD_S = 1.5, 12.0  # places must be taken before any request is too many
# Pairs of runs, and how sure they must be: a file is changed by them. Goodput and TTFT are both compared, after each of
# _SHOWN_AFTER pairs; a policy that gains too little to matter is dropped after any pair from _LEAST_PAIRS on.
LEVEL, _LEAST_PAIRS, _SHOWN_AFTER = 0.99, 3, (4, 6)
_PART = 0.375  # of the time of a run: of each policy's first one, and of each one of a pair
WORTH, _TTFT_WORTH = 0.03, 0.1  # gains below these shares are no reason to change a file, however sure they are
PAIRED, _SKEWED, KILLED, HUNG, OVERLOADED = "pairs", "skewed", "killed", "hung", "overload"


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """One run. `case` is skewed, pairs, killed, hung or overload.

    `goodput_s` are requests a second that kept every limit; `lost` those that failed before their first token, `cut`
    after it, `refused` with 429 or a similar code. `imbalance` is the busiest server's prompt tokens over the mean.
    `recovery_s` is how long after a loss requests still failed. `void` says why the run shows nothing: this machine
    was too slow to send the requests, or to be the servers.
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
        """Without the figures of a run that is void."""
        told = ("policy", "case", "offered_s", "void")
        return {n: getattr(self, n) if n in told or not self.void else None for n in self.__slots__}


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """The file's `own` policy, the one to use, and how the best other one compares with it in pairs of runs."""

    own: str
    policy: str
    other: str = ""  # empty where none looked better at first
    goodput: Comparison | None = None
    ttft: Comparison | None = None

    @property
    def changed(self) -> bool:
        return self.policy != self.own

    def as_json(self) -> dict[str, object]:
        found: dict[str, object] = {"own": self.own, "other": self.other or None, "level": LEVEL}
        for name, comparison in (("goodput", self.goodput), ("ttft_p95", self.ttft)):
            if comparison is not None:
                interval = [comparison.low, comparison.high]
                own = {"verdict": comparison.verdict.value, "estimate": comparison.estimate, "interval": interval}
                found[name] = {**own, "scale": comparison.scale, "pairs": comparison.blocks}
        return found


@dataclass(frozen=True, slots=True)
class Rehearsed:
    runs: tuple[Rehearsal, ...]
    choice: PolicyChoice


def rehearse(
    service: Service,
    root: Path,
    load: RehearsedLoad,
    policies: Sequence[str],
    say: Callable[[str], None],
    limits: AdmissionLimits | None = None,
) -> Rehearsed:
    """Every policy, pairs of runs where one looks better than the file's own, then the choice under loss and, with
    limits, under overload with them."""
    assert service.router is not None
    twins = _as_twins(service, load.speed)
    router = service.router
    done: list[Rehearsal] = []
    short = replace(load, seconds=max(1.0, _PART * load.seconds))
    tried = list(policies or known_policies(service))
    with contextlib.closing(RehearsalService(twins, root)) as rehearsed:

        def with_policy(policy: str) -> RouterChoice:
            return router.model_copy(update={"policy": policy})

        def run(case: str, sent: RehearsedLoad, choice: RouterChoice) -> Rehearsal:
            done.append(_run(rehearsed, twins, choice, case, sent, root))
            return done[-1]

        for policy in tried:
            try:
                say(f"{policy}, {_SKEWED} ...")
                run(_SKEWED, short, with_policy(policy))
            except SiteError as error:
                say(f"{policy}: left out: {error}")
        if not done:
            raise SiteError("the router came up with none of these policies; see what it says above")
        ran = [one.policy for one in done]
        own = next((policy for policy in known_policies(service)[:1] if policy in ran), ran[0])
        decided = PolicyChoice(own, own)
        if other := _challenger(done, own):
            say(f"{own} and {other}, {PAIRED} ...")
            both = (own, other)

            def one_of(pair: int, which: int) -> Rehearsal:
                sent = replace(short, plain=0.5, seed=load.seed + 1 + pair)
                return run(PAIRED, sent, with_policy(both[which]))

            decided = _in_pairs(own, other, one_of, load.seed)
        chosen = with_policy(decided.policy)
        if limits is not None:
            say(f"{chosen.policy}, {OVERLOADED} ...")
            over = replace(load, rate_s=_OVERLOAD * limits.requests_s, seconds=max(_OVERLOAD_S, load.seconds))
            run(OVERLOADED, over, _limited(chosen, limits))
        if _replaceable_server(rehearsed.operator(chosen)) is not None:
            say(f"{chosen.policy}, {HUNG} and {KILLED} ...")
            run(HUNG, replace(load, rate_s=load.rate_s / 2, seconds=max(HUNG_S, load.seconds)), chosen)
            run(KILLED, load, chosen)
    return Rehearsed(tuple(done), decided)


def _challenger(first: Sequence[Rehearsal], own: str) -> str:
    """The policy that did best of the others at first, or none where even that one did no better than the file's.

    So much goodput and so much TTFT weigh the same as are worth a change of the file.
    """

    def score(one: Rehearsal) -> float:
        if one.void or one.goodput_s <= 0 or not one.ttft_p95_ms:
            return -math.inf
        return math.log(one.goodput_s) / WORTH - math.log(one.ttft_p95_ms) / _TTFT_WORTH

    kept = next(math.inf if one.void else score(one) for one in first if one.policy == own)
    others = [one for one in first if one.policy != own and score(one) > kept]
    return max(others, key=score).policy if others else ""


def _in_pairs(own: str, other: str, run: Callable[[int, int], Rehearsal], seed: int) -> PolicyChoice:
    """`run(pair, which)` loads the file's own policy (0) or the other (1); both of a pair get the same requests.

    Which of them begins is drawn for each pair, so that whatever the machine does meanwhile favours neither. No
    more pairs are run than it takes: until the other is shown to be better, or gains too little to matter. A pair
    with a run that is void says nothing.
    """
    seen: list[tuple[Rehearsal, Rehearsal]] = []
    for pair in range(_SHOWN_AFTER[-1]):
        found = {which: run(pair, which) for which in order_of_block(2, pair, 1, seed)}
        seen += [(found[0], found[1])] if not (found[0].void or found[1].void) else []
        choice = _choice(own, other, seen)
        if len(seen) in _SHOWN_AFTER and choice.changed:
            return choice
        assert choice.goodput is not None and choice.ttft is not None
        if len(seen) >= _LEAST_PAIRS and not (_gains(choice.goodput, WORTH) or _gains(choice.ttft, _TTFT_WORTH)):
            break
    return replace(choice, policy=own)


def _choice(own: str, other: str, seen: Sequence[tuple[Rehearsal, Rehearsal]]) -> PolicyChoice:
    goodput = _compared(other, [(a.goodput_s, b.goodput_s) for a, b in seen], "maximize")
    times = [(a.ttft_p95_ms, b.ttft_p95_ms) for a, b in seen]
    ttft = _compared(other, [(a, b) for a, b in times if a is not None and b is not None], "minimize")
    more = _shown(goodput, WORTH)
    sooner = _shown(ttft, _TTFT_WORTH) and goodput.verdict is not Verdict.WORSE
    return PolicyChoice(own, other if more or sooner else own, other, goodput, ttft)


def _gains(comparison: Comparison, worth: float) -> bool:
    if comparison.estimate is None:
        return False
    return comparison.estimate > 0 if comparison.scale == "difference" else comparison.estimate >= 1 + worth


def _compared(other: str, pairs: Sequence[tuple[float, float]], direction: Direction) -> Comparison:
    blocks = [Block(n, (), [own], {other: [new]}) for n, (own, new) in enumerate(pairs)]
    # what may go wrong is divided among the two figures and the times at which they may show something
    share = 1 / 2 / len(_SHOWN_AFTER)
    return confirm(blocks or [Block(0, (), [], {other: []})], LEVEL, direction, share=share).comparisons[other]


def _shown(comparison: Comparison, worth: float) -> bool:
    return comparison.verdict is Verdict.BETTER and _gains(comparison, worth)


def _limited(router: RouterChoice, limits: AdmissionLimits) -> RouterChoice:
    """As they would be written into the file."""
    return RouterChoice.model_validate({**router.model_dump(by_alias=True), **limits.for_router(router.kind)})


def _run(
    rehearsed: RehearsalService, twins: Service, router: RouterChoice, case: str, load: RehearsedLoad, scratch: Path
) -> Rehearsal:
    alone = case not in (_SKEWED, PAIRED)
    operator, url = rehearsed.behind(router)
    before = _counters(operator)
    how = case if case in (KILLED, HUNG) else ""
    lost_ticket = _ticket_of(operator, _replaceable_server(operator))
    drain_s = _SPLIT_LOSS_DRAIN_S if twins.split else _LOSS_DRAIN_S
    watched = kept(rehearsed.operator(router)) if case == HUNG else contextlib.nullcontext()
    with watched, _injected_fault(operator, how, min(_FAULT_AFTER_S, _FAULT_AT * load.seconds)) as lost:
        result = _send(twins, url, load, None if alone else scratch, at_least_s=drain_s if how else 0.0)
    counted = _counted(before, _counters(operator))
    if how:
        rehearsed.after_loss(operator, lost_ticket)
    return _rehearsal(router.policy, case, result, load, counted, lost)


def _rehearsal(
    policy: str, case: str, result: BenchResult, load: RehearsedLoad, counted: _Counters, lost: Sequence[float]
) -> Rehearsal:
    summary, records = result.summary, result.records
    refused = [record for record in records if _refused(record)]
    failed = [
        r
        for r in records
        if not (r.ok or _refused(r))
        # nobody waited for the end of an answer that comes; without a first token so long after a loss it is lost, too
        and not (r.status == _UNFINISHED and (r.first_token_s is not None or not lost))
    ]
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
        imbalance=_imbalance(counted),
        recovery_s=max([0.0, *(end_s - lost[0] for end_s in ends)]) if lost else None,
        void="; ".join([*(result.fidelity.why if result.void else ()), *_starved(counted)]),
    )


def _kept_limits(record: RequestRecord, slos: Sequence[Slo]) -> bool:
    """An answer that was still coming when the run ended is judged by what came of it."""
    seen = replace(record, status="ok") if record.status == _UNFINISHED else record
    return seen.ok and seen.first_token_s is not None and all(slo.met_by(seen) for slo in slos)


def _refused(record: RequestRecord) -> bool:
    """Refused over a limit: sglang-router answers 408 to whoever waited in vain, smg and SGLang answer 503."""
    full = "admission" in record.error or "queue is full" in record.error
    return record.status in ("http-429", "http-408") or (record.status == "http-503" and full)


_Counters = Mapping[str, Mapping[str, float]]  # by server: what it has counted
_LATE_SHARE = 0.05  # of a server's tokens, above which it was no server of that speed


def _counters(operator: Operator) -> _Counters:
    """Of each server that answers."""
    return {member.name: probe.metrics(operator.folder.url(member)) for member in operator.servers}


def _counted(before: _Counters, after: _Counters) -> _Counters:
    """In between. A server that was started again counts from zero."""
    return {
        name: {n: v - had if v >= (had := before.get(name, {}).get(n, 0.0)) else v for n, v in now.items()}
        for name, now in after.items()
    }


def _starved(counted: _Counters) -> Iterator[str]:
    """Servers that this machine was too busy for: their figures would be its own."""
    for name, seen in counted.items():
        made, late = seen.get(MADE_TOKENS, 0.0), seen.get(LATE_TOKENS, 0.0)
        if late > _LATE_SHARE * made:
            yield f"this machine was too busy to be {name}: {late / made:.0%} of its tokens came late; lower --speed"


def _imbalance(counted: _Counters) -> float:
    """The busiest server's prompt tokens over the mean of those that get prompts."""
    metric = server_of("twin").metrics.prompt_tokens
    shares = [seen[metric] for name, seen in counted.items() if metric in seen and not name.startswith("decode")]
    mean = sum(shares) / len(shares) if shares else 0.0
    return max(shares) / mean if mean > 0 else 1.0
