"""One call of `ridgeline bench`: its options made a plan; then a run, or a search for goodput."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ridgeline.errors import ExitCode, InputError
from ridgeline.serving.load.bench import BenchPlan, BenchResult, bench
from ridgeline.serving.load.edge import Edge, GoodputTerms, Probe
from ridgeline.serving.load.goodput import FirstEstimate, find_goodput
from ridgeline.serving.load.stream import LiveStream
from ridgeline.serving.load.wire.endpoint import parse_endpoint
from ridgeline.serving.traffic.requests import Slo
from ridgeline.serving.traffic.traffic import OpenLoop, Traffic, cut_short, parse_traffic

_CONCURRENCY = 8
_OUTPUT_TOKENS = 128
_ANY_RATE_S = 1.0


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What the user typed, unchecked."""

    url: str
    concurrency: int | None = None
    rate_s: float | None = None
    burstiness: float = 1.0
    sessions: int | None = None
    closed: bool = False
    idle_cap_s: float | None = None
    start_within: float = 0.0
    cache_warmup: bool = False
    requests: int | None = None
    duration_s: float | None = None
    traffic: str | None = None
    input_tokens: int = 128
    max_tokens: int | None = None
    ignore_eos: bool = False
    shared_prefix_tokens: int = 0
    model: str | None = None
    api: str | None = None
    key: str | None = None
    headers: Sequence[str] = ()
    ca_file: Path | None = None
    body: str | None = None
    stream: bool = True
    slos: Sequence[str] = ()
    warmup: int = 0
    workers: int = 1
    timeout_s: float = 120.0
    seed: int = 0
    out: Path | None = None
    find_goodput: bool = False


def plan_from(options: BenchOptions) -> BenchPlan:
    if options.warmup < 0 or options.shared_prefix_tokens < 0:
        raise InputError("--warmup and --shared-prefix count requests and tokens; use 0 or more")
    endpoint = parse_endpoint(
        options.url, interface=options.api, key=options.key, headers=_headers(options.headers), ca_file=options.ca_file
    )
    return BenchPlan(
        endpoint=endpoint,
        traffic=_traffic(options),
        model=options.model,
        stream=options.stream,
        ignore_eos=options.ignore_eos,
        extra=_body(options.body),
        shared_prefix_tokens=options.shared_prefix_tokens,
        slos=tuple(map(Slo.parse, options.slos)),
        duration_s=options.duration_s,
        most_at_once=options.concurrency if options.rate_s is not None else None,
        timeout_s=options.timeout_s,
        warmup=options.warmup,
        cache_warmup=options.cache_warmup,
        max_tokens=options.max_tokens if options.traffic else None,
        workers=options.workers,
        records_path=_records_path(options.out),
    )


def _traffic(options: BenchOptions) -> Traffic:
    text = options.traffic or f"fixed:{options.input_tokens}:{options.max_tokens or _OUTPUT_TOKENS}"
    if options.max_tokens is not None and options.max_tokens < 1:
        raise InputError(f"--max-tokens {options.max_tokens}: an answer has at least one token")
    if options.cache_warmup and not options.start_within:
        raise InputError("--cache-warmup sends what precedes a session's middle; add --start-within, for example 0.7")
    if options.cache_warmup and options.find_goodput:
        raise InputError("--find-goodput leaves out what comes before the load has settled; leave out --cache-warmup")
    in_sessions = options.sessions is not None or options.closed
    rate_s, concurrency = options.rate_s, options.concurrency
    if rate_s is not None and not in_sessions:
        concurrency = None  # it bounds an open loop
    if not in_sessions and rate_s is None and concurrency is None:
        if options.find_goodput:
            rate_s = _ANY_RATE_S  # the axis is what counts: the search finds out where to begin
        elif not Path(text).exists():
            concurrency = _CONCURRENCY
    traffic = parse_traffic(
        text,
        requests=options.requests,
        rate_s=rate_s,
        concurrency=concurrency,
        burstiness=options.burstiness,
        sessions=options.sessions,
        closed=options.closed,
        idle_cap_s=options.idle_cap_s,
        start_within=options.start_within,
        seed=options.seed,
        usual_requests=max(100, 10 * (concurrency or options.sessions or 0), math.ceil(10 * (rate_s or 0))),
    )
    if options.find_goodput and isinstance(traffic.pace, OpenLoop) and traffic.has_sessions:
        raise InputError("--find-goodput walks the number of sessions at once; say --sessions N, where to begin")
    if options.rate_s is not None and options.concurrency is not None and traffic.has_sessions:
        raise InputError("sessions that begin at a --rate have no limit on requests at once; leave out --concurrency")
    return cut_short(traffic, options.max_tokens) if options.traffic and options.max_tokens else traffic


def _headers(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for k, text in enumerate(given, start=1):
        name, colon, value = text.partition(":")
        if not colon:
            # the text may be a secret that was pasted without its name, so it is not repeated here
            raise InputError(f"--header number {k} has no colon; write --header 'Name: value'")
        found[name.strip()] = value
    return found


def _body(text: str | None) -> dict[str, object]:
    if text is None:
        return {}
    try:
        fields = json.loads(text)
    except ValueError as bad:
        raise InputError(f"--body is not JSON ({bad}); for example --body '{{\"temperature\": 0}}'") from None
    if not isinstance(fields, dict):
        raise InputError("--body must be a JSON object, for example --body '{\"temperature\": 0}'")
    return fields


def _records_path(out: Path | None) -> Path | None:
    if out is None:
        return None
    folder = out.is_dir() or out.suffix == ""
    try:
        (out if folder else out.parent).mkdir(parents=True, exist_ok=True)
    except OSError as bad:
        raise InputError(f"--out {out}: {bad.strerror}; name a file or folder that can be written") from None
    return out / "requests.jsonl" if folder else out


@dataclass(frozen=True, slots=True)
class BenchSession:
    found: BenchResult | Edge
    document: dict[str, object]
    exit_code: ExitCode = ExitCode.DONE


def run_session(
    plan: BenchPlan,
    *,
    goodput: GoodputTerms | None,
    progress: Callable[[Probe | FirstEstimate], None],
) -> BenchSession:
    """Searches for goodput where its terms are given. `progress` is called with each probe while a search lasts; the
    document is also kept beside the records."""
    if goodput is None:
        result = bench(plan)
        code = ExitCode.DONE if result.summary.ok else ExitCode.SITE
        session = BenchSession(result, result.as_json(), ExitCode.INTERRUPTED if result.interrupted else code)
    else:
        edge = find_goodput(plan, lambda: LiveStream(plan), terms=goodput, note=progress)
        # a search without both ends has no answer, nor has one that did not hold its own for as long as was asked
        code = ExitCode.DONE if edge.fails is not None and edge.held else ExitCode.CANNOT_JUDGE
        document = {"url": plan.endpoint.url, **edge.as_json()}
        session = BenchSession(edge, document, ExitCode.INTERRUPTED if edge.interrupted else code)
    if plan.records_path is not None:
        plan.records_path.with_suffix(".summary.json").write_text(json.dumps(session.document, indent=1) + "\n")
    return session
