"""One way to serve, tried in the twin: what it reaches within the limits, where it breaks, what a failure costs.

A rate is searched for at which every limit is still kept, and a burst at which the first token begins to wait.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ridgeline.errors import InputError
from ridgeline.records.json_form import JsonForm, also_in_json
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.planner.candidates import PlanQuestion, Unit, colocated_units, make_unit
from ridgeline.serving.planner.scheme import Pair, Scheme, pairs, varied_pairs
from ridgeline.serving.traffic.requests import Slo, Summary
from ridgeline.serving.traffic.traffic import AllAtOnce, ClosedLoop, OpenLoop, Traffic, no_collection
from ridgeline.serving.twin.energy import ENERGY_FIGURES
from ridgeline.serving.twin.request import TooLate

MOST_REQUESTS, _MOST_OFFLINE = 8000, 4000
# Of 150 a queue close to the capacity has hardly begun: it came out 10% too high where answers are short.
_FEWEST = 400
# A run sends this many times what is under way at a time: in a shorter one overload is over before its queue shows.
_STAYS = 8.0
# An engine is planned to run at this share of the rate at which it would just keep the limits.
_HEADROOM = 0.9
_OVERLOAD, _UNSEEN = 1.25, 0.03  # more than step times allow; what a queue may grow by before a limit shows it
_WORTH = 1.02  # smaller prefill steps must serve so many times as much


@dataclass(frozen=True, slots=True)
class Knee(JsonForm):
    """The burst at which TTFT takes off: `batch` requests of `input_tokens` at once, and what holds them up."""

    batch: int
    input_tokens: int
    bound: str  # running limit, or prefill speed

    @property
    @also_in_json()
    def tokens(self) -> int:
        return self.batch * self.input_tokens


@dataclass(frozen=True)
class Option:
    """A scheme at its operating point. Rates are of the whole scheme, percentiles those of any slice."""

    scheme: Scheme
    rate_s: float | None  # offered; None when requests are sent as answers come
    capacity_s: float | None  # the highest rate that keeps every limit; None where none was searched
    summary: Summary
    interval: Mapping[str, tuple[float, float]]  # of one slice, as `twin simulate` states it
    gpu_power_w: float | None = None
    joules_per_output_token: float | None = None  # None: the GPU's limit of power is not known
    knee: Knee | None = None
    reach: str = ""  # how far the calibration holds for this layout
    keeps_up: bool = True  # with the rate; requests pile up otherwise
    users: int | None = None  # of a closed loop

    @property
    def layout(self) -> Layout:
        return self.scheme.layout

    @property
    def goodput_s(self) -> float:
        """Requests per second that keep every limit; all of them when there is none.

        At an offered rate it is that rate times the share that keeps them: a short run's filling and draining do not
        count against a service that never stops. Beyond the capacity the queue grows without end, and only its first
        requests would be counted: there it is the capacity at most.
        """
        if self.rate_s is None:
            return self.requests_s * _share_within(self.summary)
        good_s = self.rate_s * _share_within(self.summary)
        return min(good_s, self.capacity_s) if self.overloaded and self.capacity_s else good_s

    @property
    def _busy_slices(self) -> float:
        """How many slices the whole is, were each as busy as the simulated one."""
        return self.scheme.slices if self.users is None else self.users / self.scheme.users_each(self.users)

    @property
    def requests_s(self) -> float:
        """Requests per second of the run; a short one fills and drains."""
        return self.summary.requests_s * self._busy_slices

    @property
    def overloaded(self) -> bool:
        """More is offered than the limits allow."""
        able_s = math.inf if self.capacity_s is None else self.capacity_s
        return not self.meets and self.rate_s is not None and self.rate_s > able_s

    @property
    def total_tok_s(self) -> float:
        if self.rate_s is not None and self.summary.requests and not self.overloaded:
            q = self.scheme.question
            return self.rate_s * (q.input_tokens + q.output_tokens) * self.summary.ok / self.summary.requests
        return self.summary.total_tok_s * self._busy_slices

    @property
    def gpu_hours_per_million(self) -> float | None:
        """GPU-hours that a million tokens take, in and out; None where there are none."""
        return self.scheme.gpus / 3600.0 / self.total_tok_s * 1e6 if self.total_tok_s > 0 else None

    @property
    def most_joules_per_token(self) -> float | None:
        """Were every GPU at its limit of power all the time: of the GPUs alone. None where that limit is not known."""
        power_w, hours = self.scheme.question.cluster.gpu.most_w, self.gpu_hours_per_million
        return None if power_w is None or hours is None else power_w * hours * 3600.0 / 1e6

    @property
    def speed_ratios(self) -> tuple[float, float]:
        """How slow and how fast the real thing may be, over what is predicted, in nine of ten cases."""
        return self.interval["speed"]

    @property
    def bounds(self) -> dict[str, tuple[float, float]]:
        """Where nine of ten measurements lie: latencies, and the speed that was not given with the rate."""
        found = {name: both for name, both in self.interval.items() if name.endswith("_ms") or name in ENERGY_FIGURES}
        low, high = self.speed_ratios
        if self.capacity_s is not None:
            found["capacity"] = (low * self.capacity_s, high * self.capacity_s)
        if self.rate_s is None:
            found["total_tok_s"] = (low * self.total_tok_s, high * self.total_tok_s)
        return found

    @property
    def broken(self) -> tuple[Slo, ...]:
        return tuple(s for s in self.summary.slos if not self.summary.holds(s))

    @property
    def meets(self) -> bool:
        return keeps_limits(self.summary) and self.keeps_up

    @property
    def shortfall(self) -> str:
        """What a choice that does not meet its limits does instead."""
        if self.broken:
            return f"breaks {', '.join(map(str, self.broken))}, at worst {self.summary.overshoot:.3g} times its limit"
        if not self.keeps_up:
            return f"carries {self.capacity_s:,.4g} of {self.rate_s:,.4g} requests/s, so that they pile up"
        if self.summary.ok < self.summary.requests:
            return f"fails {self.summary.requests - self.summary.ok} of {self.summary.requests} requests"
        return "keeps them by its percentiles, but not in as many single requests"

    @property
    def margin_bytes(self) -> float:
        """Memory to spare on the tightest GPU."""
        return min(u.memory.margin_bytes for u in self.scheme.units)


def _share_within(summary: Summary) -> float:
    """Of all requests sent, those that kept every limit."""
    if summary.goodput_s is None or not summary.requests:
        return summary.ok / max(1, summary.requests)
    return summary.goodput_s * summary.duration_s / summary.requests


def keeps_limits(summary: Summary) -> bool:
    """Whether the run's percentiles keep every limit, and as many single requests do as the percentile says.

    The second half matters: gaps between tokens may be short at the 95th percentile and still, by a few long stalls,
    make most answers slower than the limit.
    """
    kept = all(summary.holds(s) for s in summary.slos)
    return kept and summary.ok == summary.requests and _share_within(summary) >= _share_wanted(summary.slos)


def _share_wanted(slos: Sequence[Slo]) -> float:
    return max((_QUANTILE_SHARE[s.quantile] for s in slos), default=0.0)


# The smallest prefill step of its own that is tried: below it launches weigh more than what they compute. Steps that
# decode anyway may hold fewer tokens of prompts.
_SMALL_CHUNK = 2048
_MIXED_CHUNKS = (4096, 2048, 1024, 512, 256)
_QUANTILE_SHARE = {"mean": 0.5, "p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def tried(scheme: Scheme, traffic: Traffic) -> Option:
    """A scheme under the traffic that was asked for, with as few copies as keep the limits where a rate was given."""
    pace = traffic.pace
    rate_s = capacity = None
    if isinstance(pace, OpenLoop):
        scheme, able_s = _searched(scheme, traffic)
        most, rate_s = scheme.slices, pace.rate_s
        needed = most if able_s <= 0 else math.ceil(rate_s / (_HEADROOM * able_s / most))
        scheme = scheme.with_slices(max(1, min(needed, most)))
        capacity = able_s * scheme.slices / most
        sent = _share(traffic, scheme, rate_s)
    elif isinstance(pace, AllAtOnce) and scheme.question.slos:
        scheme, capacity = _searched(scheme, traffic)
        rate_s = _HEADROOM * capacity if capacity > 0 else 0.05 * scheme.shape.rate_s * scheme.copies
        sent = _share(traffic, scheme, rate_s)
    elif isinstance(pace, ClosedLoop):
        scheme = scheme.with_slices(min(scheme.slices, pace.concurrency))  # more have nothing to do
        each = scheme.users_each(pace.concurrency)
        sent = replace(traffic, pace=ClosedLoop(each), requests=min(traffic.requests, max(200, 4 * each)))
    else:
        scheme = scheme.with_slices(min(scheme.slices, traffic.requests))
        # not fewer: a shorter offline run is slower for its longer tail
        sent = replace(traffic, requests=min(traffic.requests // scheme.slices, _MOST_OFFLINE))
    run = scheme.run(sent)
    return Option(
        scheme,
        rate_s,
        capacity,
        run.summary,
        run.interval,
        run.gpu_power_w,
        run.joules_per_output_token,
        reach=run.reach,
        users=traffic.concurrency,
        keeps_up=not capacity or rate_s is None or rate_s <= capacity or not _hides_queues(scheme, sent),
    )


def _share(traffic: Traffic, scheme: Scheme, rate_s: float) -> Traffic:
    """One slice's part of an open loop, long enough for queues to settle."""
    each = max(rate_s / scheme.slices, 1e-6)
    stay_s = scheme.main.decode_s * scheme.main.cap
    count = int(min(MOST_REQUESTS, max(_FEWEST, _STAYS * each * stay_s)))
    burstiness = traffic.pace.burstiness if isinstance(traffic.pace, OpenLoop) else 1.0
    return replace(traffic, pace=OpenLoop(each, burstiness), requests=count)


def _searched(scheme: Scheme, traffic: Traffic) -> tuple[Scheme, float]:
    """The highest rate that keeps every limit, with smaller prefill steps or mixed chunks if those keep more."""
    best, capacity = scheme, _capacity(scheme, traffic)
    unit = scheme.shape
    if not isinstance(unit, Unit) or unit.question.itl_limit_s is None:
        return best, capacity
    for other in _gentler(unit):
        if reached := _capacity(replace(scheme, shape=other), traffic, least_s=_WORTH * capacity):
            best, capacity = replace(scheme, shape=other), reached
    return best, capacity


def _gentler(unit: Unit) -> Iterator[Unit]:
    """The same engine with prompts in smaller steps, and in the steps that decode: running answers wait less."""
    chunk = unit.times.applied.chunk_tokens // unit.layout.pp
    always = unit.times.applied.mixed
    sizes = [(max(_SMALL_CHUNK, chunk // 4), False), (_mixed_chunk(unit), not always)]
    for size, mixed in sizes:
        if size and (mixed or size < chunk):
            other = make_unit(unit.question, unit.layout, "both", chunk=size, cap=unit.cap, mixed=mixed)
            if other is not None:
                yield other


def _mixed_chunk(unit: Unit) -> int:
    """The largest budget whose steps, full of prompts and of running requests, keep the ITL limit; 0 if none does."""
    layout, question, limit_s = unit.layout, unit.question, unit.question.itl_limit_s
    if layout.attn_dp > 1 or layout.pp > 1 or limit_s is None:
        return 0
    for size in _MIXED_CHUNKS:
        pairs = size * question.input_tokens / 2
        held = unit.cap * question.context_tokens
        if unit.times.mixed_s(size, pairs, 1, size, unit.cap, held) <= limit_s:
            return size
    return 0


def _hides_queues(scheme: Scheme, sent: Traffic) -> bool:
    """Whether a server that falls behind by _UNSEEN of this load would still keep its limits until the run ends."""
    assert isinstance(sent.pace, OpenLoop)
    limit_s = scheme.question.limit_s("ttft", "e2e")
    return limit_s is None or limit_s > _UNSEEN * sent.requests / sent.pace.rate_s


def _completed_s(scheme: Scheme, sent: Traffic) -> float:
    """Requests per second that the whole scheme completes of more than it can."""
    return scheme.slices * scheme.summary(sent).requests_s


def _capacity(scheme: Scheme, traffic: Traffic, least_s: float = 0.0) -> float:
    """Requests per second of the whole scheme that keep every limit; zero when a trickle, or `least_s`, breaks one."""
    guess = scheme.bound_s

    most_late = 1 - _share_wanted(scheme.question.slos)

    def keeps(rate_s: float) -> bool:
        try:
            summary = scheme.summary(_share(traffic, scheme, rate_s), most_late)
        except TooLate:
            return False
        return keeps_limits(summary)

    if least_s and not keeps(least_s):
        return 0.0
    good, bad = least_s, _OVERLOAD * max(guess, least_s)
    flood = _share(traffic, scheme, bad)
    if _hides_queues(scheme, flood):
        bad = min(bad, _completed_s(scheme, flood))
        if bad <= least_s or keeps(bad):
            return bad if bad > least_s else 0.0
    # runs of a large cluster are long, and its figures no surer for it
    large = _share(traffic, scheme, guess).requests >= MOST_REQUESTS
    rate, halvings = 0.7 * min(guess, bad), 2 if large else 3
    if good == 0.0 and isinstance(scheme.shape, Pair):
        # a split mostly comes near to what its steps allow: its first halving is tried without the lower end
        middle = math.sqrt(rate * bad)
        if keeps(middle):
            good, halvings = middle, halvings - 1
        elif keeps(rate):
            good, bad, halvings = rate, middle, halvings - 1
        else:
            bad, rate = rate, 0.45 * rate
    while good == 0.0 and rate > 0.04 * guess:
        if keeps(rate):
            good = rate
        else:
            bad, rate = rate, 0.45 * rate
    for _ in range(halvings if good else 0):
        middle = math.sqrt(good * bad)
        if keeps(middle):
            good = middle
        else:
            bad = middle
    return good


# Which of all ways to serve are simulated: the best by step times, of different shapes and risks, less the beaten.

# Engines that do both, pairs of each class of loss, pairs that are tried whatever else was found.
_COLOCATED_TRIED, _PAIRS_EACH, _PAIRS_LEAST = 6, 3, 2
# On more nodes than these a run of a pair is long: fewer of each class are tried.
_FEW_NODES, _PAIRS_LARGE = 16, 2
# A bound from step times is this much too low at most.
_BOUND_SLACK = 1.1


def named_scheme(text: str, considered: Sequence[Scheme]) -> Scheme:
    """The fastest by step times of those that are written so."""
    wanted = " ".join(text.lower().split())
    found = [s for s in considered if str(s.layout).lower() == wanted]
    if not found:
        some = "; ".join(dict.fromkeys(str(s.layout) for s in (*considered[:3], *considered[-3:])))
        raise InputError(
            f"--layout {text!r} is none of the {len(considered):,} that fit these GPUs; write it as in a plan's table, "
            f"for example {some}"
        )
    return max(found, key=lambda s: s.bound_s)


def schemes_for(question: PlanQuestion, rate_s: float | None) -> tuple[list[Scheme], list[Scheme]]:
    """All there are, and those that are worth a simulation, in the order to try them."""
    gpus = question.cluster.gpus
    engines, split = colocated_units(question, gpus), pairs(question, gpus, rate_s)
    schemes = [Scheme(question, u, gpus // u.gpus) for u in varied(engines)]
    each = _PAIRS_EACH if question.cluster.nodes <= _FEW_NODES else _PAIRS_LARGE
    schemes += [Scheme(question, p) for p in varied_pairs(split, each)]
    every = [Scheme(question, u, gpus // u.gpus) for u in engines] + [Scheme(question, p) for p in split]
    return every, schemes


@no_collection()
def try_all(schemes: Sequence[Scheme], traffic: Traffic, rate_s: float | None, *, every: bool = False) -> list[Option]:
    """Simulates all but those that step times already show to serve less than one that was simulated; or `every` one,
    for what serves less may take less energy."""
    options: list[Option] = []
    split = 0
    for scheme in schemes:
        pair = isinstance(scheme.shape, Pair)
        if every or (pair and split < _PAIRS_LEAST) or not any(_beats(o, scheme, rate_s) for o in options):
            options.append(tried(scheme, traffic))
            split += pair
    return options


def _beats(option: Option, scheme: Scheme, rate_s: float | None) -> bool:
    """As much of the option as the scheme's GPUs hold serves more than the scheme ever could, at no more risk."""
    if not option.meets:
        return False
    able_s = _BOUND_SLACK * scheme.bound_s
    if rate_s is not None:
        return able_s < rate_s
    slices = option.scheme.slices
    held = min(slices, scheme.gpus * slices // option.scheme.gpus)
    if held == 0 or option.goodput_s * held / slices <= able_s:
        return False
    return option.scheme.with_slices(held).loss() <= scheme.loss() + 1e-9


def varied(units: Sequence[Unit]) -> list[Unit]:
    """The most promising engines, at most two of the same tp and pp, so that different shapes are tried."""
    chosen: list[Unit] = []
    for unit in units:
        same = sum((u.layout.tp, u.layout.pp) == (unit.layout.tp, unit.layout.pp) for u in chosen)
        if same < 2 and len(chosen) < _COLOCATED_TRIED:
            chosen.append(unit)
    return chosen
