"""Load a server and say what it did, what the load generator itself did, and whether the figures may be trusted."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.records.exhibit import Shown, TextTable
from ridgeline.serving.load.cache_hits import CacheHits, counters_of, hits_by_answers, hits_by_counters
from ridgeline.serving.load.discover import Server, discover
from ridgeline.serving.load.fidelity import Fidelity, gaps_by_microsecond, judge
from ridgeline.serving.load.wire.endpoint import Endpoint
from ridgeline.serving.load.workers.assignment import Assignment, LoadResult
from ridgeline.serving.load.workers.worker import run_worker
from ridgeline.serving.traffic.flow import Flow, Stretch, flow_of
from ridgeline.serving.traffic.requests import RequestRecord, Slo, Summary, summarise
from ridgeline.serving.traffic.session_summary import SessionSummary, summarise_sessions
from ridgeline.serving.traffic.traffic import (
    Arrival,
    AsRecorded,
    ClosedLoop,
    OpenLoop,
    SessionRules,
    Traffic,
    dataset_of,
    lasting,
    no_collection,
)
from ridgeline.serving.traffic.turns import Again, sessions_of


def _notes_on(plan: BenchPlan, server: Server, out: LoadResult, summary: Summary, flow: Flow | None) -> tuple[str, ...]:
    stream = plan.stream
    notes = [*([server.note] if server.note else []), *plan.traffic.notes]
    good = [r for r in out.records if r.ok]
    if out.interrupted:
        notes.append(f"stopped early: {len(out.records)} requests ended, {out.unfinished} under way were dropped")
    for kind in sorted(summary.errors):
        example = next(r.error for r in out.records if r.status == kind)
        notes.append(f"{kind} x {summary.errors[kind]}: {example}" if example else f"{kind} x {summary.errors[kind]}")
    if out.paused:
        notes.append(f"{out.paused} answers carried Retry-After; their slots waited (5 s at most) before going on")
    events, tokens = sum(r.counted_tokens or 0 for r in good), sum(r.output_tokens for r in good)
    if stream and events and tokens > 1.02 * events:
        notes.append(
            f"{tokens / events:.2f} tokens came per event by the server's usage: "
            "itl_ms is the time between events, tpot_ms per token"
        )
    notes += _count_notes(good)
    if stream and good and not events:
        notes.append("the server answered in one piece although a stream was asked for: no TTFT, no ITL")
    notes += [text] if flow and (text := flow.doubt(summary.e2e_ms)) else []
    if out.stats.clock_steps:
        notes.append(f"the wall clock was moved {out.stats.clock_steps} times; all times are on the monotonic clock")
    if 0 < len(good) < 100:
        notes.append(f"{len(good)} requests are few for a p99; 1000 or more make it steady")
    if out.records_problem:
        notes.append(out.records_problem)
    return tuple(notes)


def _count_notes(good: Sequence[RequestRecord]) -> list[str]:
    """Where tokens were counted otherwise than by the server's usage."""
    notes = []
    if uncounted := sum(r.output_by_usage is None for r in good):
        notes.append(f"{uncounted} answers came without usage: each event with text counts as one token, at least")
    counts = [(r.prompt_by_usage, r.input_tokens) for r in good]
    if said := [usage for usage, words in counts if usage is not None and usage != words]:
        notes.append(
            f"usage says {sum(said) / len(said):.0f} tokens a prompt in {len(said)} answers, which the words that were "
            "sent cannot be: input tokens are counted by the words"
        )
    return notes


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """Everything that a bench does. `salt` None means prompts that no run before has sent.

    What is still under way `give_up_s` after the start is ended, with the status "unfinished". With `cache_warmup` the
    first request of each session that begins in its middle is sent before the run and not measured.
    """

    endpoint: Endpoint
    traffic: Traffic
    model: str | None = None
    stream: bool = True
    ignore_eos: bool = False
    extra: Mapping[str, object] = field(default_factory=dict)
    shared_prefix_tokens: int = 0
    slos: tuple[Slo, ...] = ()
    duration_s: float | None = None
    most_at_once: int | None = None
    timeout_s: float = 120.0
    warmup: int = 0
    cache_warmup: bool = False
    max_tokens: int | None = None  # that answers of `traffic` were cut to
    workers: int = 1
    records_path: Path | None = None
    salt: int | None = None
    give_up_s: float | None = None

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise InputError(f"{self.workers} workers send nothing; use 1 or more")
        if self.duration_s is not None and not self.duration_s > 0:
            raise InputError(f"a duration of {self.duration_s:g} s measures nothing; use one above zero")
        if not self.timeout_s > 0:
            raise InputError(f"a timeout of {self.timeout_s:g} s lets nothing answer; use one above zero")


@dataclass(frozen=True, slots=True, repr=False)
class BenchResult(Shown):
    """What a bench measured. `records` holds every request.

    `flow` is there where requests had times of their own or a duration; rates in the summary then count what completed
    in that window. `sessions` is there where turns waited for answers; `cache_hits` has what the server said of its
    prefix cache then, one for each place where it says so.
    """

    plan: BenchPlan
    model: str
    summary: Summary
    fidelity: Fidelity
    records: Sequence[RequestRecord]
    notes: tuple[str, ...] = ()
    interrupted: bool = False
    flow: Flow | None = None
    sessions: SessionSummary | None = None
    cache_hits: tuple[CacheHits, ...] = ()
    server: Mapping[str, object] = field(default_factory=dict)  # what it said of itself: engine, release, settings
    at_s: float | None = None  # when it began, on the clock on the wall

    @property
    def void(self) -> bool:
        return self.fidelity.void

    @property
    def holds(self) -> bool:
        """Whether every SLO was kept, with no failed request."""
        return self.summary.ok == self.summary.requests > 0 and all(map(self.summary.holds, self.summary.slos))

    def shown(self) -> TextTable:
        void = f"VOID, {'; '.join(self.fidelity.why)}: " if self.void else ""
        title = f"{void}{self.plan.endpoint.url}: {self.summary.ok} of {self.summary.requests} requests, measured"
        return TextTable(title, ("", "measured", ""), self.summary.rows(), notes=self.notes)

    def as_json(self) -> dict[str, object]:
        plan, shown = self.plan, self.summary.as_json()
        flow = {} if self.flow is None else self.flow.as_json()
        return {
            "url": plan.endpoint.url,
            "api": plan.endpoint.interface,
            "model": self.model,
            **(
                {}
                if self.at_s is None
                else {"at": datetime.fromtimestamp(self.at_s, UTC).isoformat(timespec="seconds")}
            ),
            "load": _describe_load(plan) | _session_rules(plan),
            "traffic": {
                "dataset": dataset_of(plan.traffic),
                "requests": plan.traffic.requests,
                "seed": plan.traffic.seed,
                "shared_prefix_tokens": plan.shared_prefix_tokens,
                **({} if plan.max_tokens is None else {"max_tokens": plan.max_tokens}),
            },
            **({"records_file": str(plan.records_path)} if plan.records_path else {}),
            **({"server": dict(self.server)} if self.server else {}),
            **{k: round(v, 4) if isinstance(v, float) else v for k, v in (shown | flow).items()},
            **({} if self.sessions is None else {"sessions": self.sessions.as_json()}),
            **({"cache_hits": [hits.as_json() for hits in self.cache_hits]} if self.cache_hits else {}),
            "failed_requests": self.summary.requests - self.summary.ok,
            "reasoning_tokens": sum(r.reasoning_tokens for r in self.records if r.ok),
            "cpu_ms_per_request": round(self.fidelity.cpu_ms_per_request, 4),
            "void": self.void,
            "why": "; ".join(self.fidelity.why),
            "notes": list(self.notes),
            "interrupted": self.interrupted,
            "client": self.fidelity.as_json() | {"workers": plan.workers},
        }


def bench(plan: BenchPlan) -> BenchResult:
    """Runs the plan. A server's faults are counted in the result; only what the user must fix is raised."""
    server, salt = warmed_up(plan)
    with no_collection():
        arrivals, endless = _schedule(plan)
        first, arrivals = parted_for_warmup(arrivals) if plan.cache_warmup else ([], arrivals)
        assignment = assignment_of(plan, server, salt, arrivals, endless)
    notes: list[str] = []
    if plan.cache_warmup:
        sent = _send(
            replace(assignment_of(plan, server, salt, first), duration_s=None, records_path=None), plan.workers
        )
        notes.append(f"cache warm-up: {sum(r.ok for r in sent.records)} of {len(first)} first requests were answered")
    timeout_s = min(10.0, plan.timeout_s)
    before = counters_of(plan.endpoint, server, timeout_s) if assignment.turns else {}
    at_s = time.time()
    out = _send(assignment, plan.workers)
    result = replace(_result(plan, server, out), at_s=at_s)
    if not assignment.turns:
        return result
    hits = (
        hits_by_answers(out.records, out.cache_reports),
        hits_by_counters(before, counters_of(plan.endpoint, server, timeout_s)) if before else None,
    )
    return replace(
        result,
        sessions=summarise_sessions(out.records, out.unsent, plan.slos, result.summary.duration_s),
        cache_hits=tuple(each for each in hits if each is not None),
        notes=(*notes, *result.notes),
    )


def parted_for_warmup(arrivals: Sequence[Arrival]) -> tuple[list[Arrival], list[Arrival]]:
    """The first requests of sessions that begin in their middle, to be sent by themselves, and all the others.

    What waited for one of these begins its session, after the time that its user thinks.
    """
    first = [
        arrival
        for session in sessions_of(arrivals)
        if min(arrival.turn for arrival in session) > 0
        for arrival in session
        if not arrival.after
    ]
    gone = {arrival.number for arrival in first}
    rest = []
    for arrival in arrivals:
        left = tuple(number for number in arrival.after if number not in gone)
        if arrival.number in gone:
            continue
        begins = arrival.after and not left
        rest.append(replace(arrival, after=left, at_s=arrival.think_s) if begins else replace(arrival, after=left))
    return first, rest


def _send(assignment: Assignment, workers: int = 1) -> LoadResult:
    if workers == 1:
        return run_worker(assignment)
    # one worker runs in this process and need not pay for multiprocessing's start-up
    from ridgeline.serving.load.workers.pool import run_workers

    return run_workers(workers, assignment)


def _describe_load(plan: BenchPlan) -> dict[str, object]:
    pace = plan.traffic.pace
    if isinstance(pace, ClosedLoop):
        return {"sessions" if plan.traffic.has_sessions else "concurrency": pace.concurrency}
    if isinstance(pace, OpenLoop):
        name = "sessions_s" if plan.traffic.has_sessions else "rate_s"
        return {name: pace.rate_s, "burstiness": pace.burstiness}
    if isinstance(pace, AsRecorded) and pace.closed:
        return {"schedule": "sessions as recorded"}
    return {"schedule": "as recorded" if any(a.at_s for a in plan.traffic.arrivals()) else "all at once"}


def _session_rules(plan: BenchPlan) -> dict[str, object]:
    """How its sessions were driven, where that was asked for: what a replay of them must do too."""
    rules = plan.traffic.rules
    said = {"idle_cap_s": rules.think_limit_s, "start_within": rules.start_within or None}
    said |= {"duration_s": plan.duration_s, "cache_warmup": plan.cache_warmup or None}
    return {k: v for k, v in said.items() if v is not None} if plan.traffic.has_sessions else {}


def assignment_of(
    plan: BenchPlan, server: Server, salt: int, arrivals: Sequence[Arrival] = (), endless: bool = False
) -> Assignment:
    again = Again.of(plan.traffic, arrivals) if endless else None
    return Assignment(
        endpoint=plan.endpoint,
        address=server.address,
        arrivals=tuple(arrivals),
        slots=plan.traffic.concurrency or 0 if arrivals or again else 0,
        model=server.model,
        stream=plan.stream,
        ignore_eos=plan.ignore_eos,
        extra=plan.extra,
        salt=salt,
        shared_prefix_tokens=plan.shared_prefix_tokens,
        most_at_once=plan.most_at_once,
        endless=endless,
        turns=again is not None or any(arrival.after for arrival in arrivals),
        again=again,
        duration_s=plan.duration_s,
        timeout_s=plan.timeout_s,
        records_path=plan.records_path,
        give_up_s=plan.give_up_s,
    )


def _schedule(plan: BenchPlan) -> tuple[list[Arrival], bool]:
    """(arrivals, whether to repeat the list)"""
    traffic = plan.traffic
    if isinstance(traffic.pace, OpenLoop) and plan.duration_s is not None:
        arrivals = lasting(replace(traffic, duration_s=plan.duration_s)).arrivals()
        return [a for a in arrivals if a.at_s < plan.duration_s], False
    return traffic.arrivals(), isinstance(traffic.pace, ClosedLoop) and plan.duration_s is not None


def warmed_up(plan: BenchPlan) -> tuple[Server, int]:
    """The server of a plan, and what makes this run's prompts its own; those of the warm-up are others, so that nothing
    measured is already in a cache."""
    server = discover(plan.endpoint, plan.model, min(10.0, plan.timeout_s))
    salt = int.from_bytes(os.urandom(4)) >> 1 if plan.salt is None else plan.salt
    if plan.warmup:
        pace, seed = ClosedLoop(plan.traffic.concurrency or 8), plan.traffic.seed + 1
        hurry = SessionRules(think_limit_s=0.0)
        first = replace(plan.traffic, requests=plan.warmup, pace=pace, seed=seed, rules=hurry)
        short = replace(plan, traffic=first, records_path=None, duration_s=None)
        _send(assignment_of(short, server, salt + 1, *_schedule(short)))
    return server, salt


def _result(plan: BenchPlan, server: Server, out: LoadResult) -> BenchResult:
    records = out.records
    gaps_us = gaps_by_microsecond(records)
    pace = plan.traffic.pace
    closed = isinstance(pace, ClosedLoop) or (isinstance(pace, AsRecorded) and pace.closed)
    window_s = _window_s(plan, out)
    if window_s is None:
        flow, summary = None, summary_of(records, plan.slos, gaps_us=gaps_us)
    else:
        flow = flow_of(records, window_s, closed=closed)
        summary = summary_of(records, plan.slos, Stretch(0.0, window_s), gaps_us=gaps_us)
    return BenchResult(
        plan=plan,
        model=server.model,
        summary=summary,
        fidelity=judge(out, summary, gaps_us, closed),
        records=records,
        notes=_notes_on(plan, server, out, summary, flow),
        interrupted=out.interrupted,
        flow=flow,
        server=server.settings,
    )


def _window_s(plan: BenchPlan, out: LoadResult) -> float | None:
    """How long requests were due; None where that is the whole run, as in a closed loop of so many requests."""
    pace, planned_s = plan.traffic.pace, plan.duration_s
    if planned_s is None and isinstance(pace, OpenLoop):
        begins = len(sessions_of(plan.traffic.arrivals())) if plan.traffic.has_sessions else plan.traffic.requests
        planned_s = begins / pace.rate_s
    elif planned_s is None and isinstance(pace, AsRecorded):
        planned_s = max((r.scheduled_s for r in out.records), default=0.0)
    if planned_s and out.interrupted:
        planned_s = min(planned_s, max((r.end_s or 0.0 for r in out.records), default=0.0))
    return planned_s or None


def summary_of(
    records: Sequence[RequestRecord],
    slos: Sequence[Slo],
    window: Stretch | None = None,
    due: Sequence[RequestRecord] | None = None,
    gaps_us: Mapping[int, int] | None = None,
) -> Summary:
    """Latencies of the requests that are `due` (all of them if left out), rates of what completed in `window`."""
    asked = records if due is None else due
    counts = gaps_by_microsecond(asked) if gaps_us is None else gaps_us
    gaps = [(us * 1e-6, n) for us, n in sorted(counts.items())]
    if window is None:
        return summarise(asked, slos, gaps_s=gaps)
    return summarise(asked, slos, window.seconds, gaps, window.ended(records))
