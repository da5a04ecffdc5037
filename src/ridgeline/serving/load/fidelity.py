"""How far the load generator itself could have shifted a figure, and whether the run counts.

A run is void when its own error could exceed 2% of something it reports, or when it could not keep its schedule.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ridgeline.records.json_form import NOT_IN_JSON, JsonForm, in_json
from ridgeline.serving.load.wire.client_stats import quantile_s
from ridgeline.serving.load.wire.exchange import Gaps
from ridgeline.serving.load.workers.assignment import LoadResult
from ridgeline.serving.traffic.requests import RequestRecord, Slo, Spread, Summary

_LIMIT = 0.02
# conversion of a kernel stamp to our clock: two clock readings and the stamp's own resolution
_STAMP_S = 10e-6
_BUSY = 0.95
_MORE = "use --workers, another host for the load, or less load"


@dataclass(frozen=True, slots=True)
class Fidelity(JsonForm):
    """The instrument's account of itself. `why` is empty for a run that counts."""

    JSON_DIGITS = 4
    why: tuple[str, ...] = field(metadata=NOT_IN_JSON)
    lag_ms: Spread | None = field(metadata=in_json("send_lag_ms"))
    read_delay_p50_ms: float
    read_delay_p99_ms: float
    timestamp_error_ms: float
    kernel_stamped_share: float
    coalesced_share: float
    cpu_share: float
    cpu_ms_per_request: float = field(metadata=NOT_IN_JSON)
    coalesced_requests: int = field(default=0, metadata=in_json("blurred_requests"))
    time_slices: str = field(default="", metadata=in_json("turns"))

    @property
    def void(self) -> bool:
        return bool(self.why)


def judge(
    out: LoadResult, summary: Summary, gaps_us: dict[int, int], closed: bool, limits: Sequence[Slo] = ()
) -> Fidelity:
    """`gaps_us` counts the run's inter-token gaps by microsecond.

    With `limits` the question is whether they were kept, not what the latencies are: an error then matters only where
    it could carry a latency across its limit, and in a latency without a limit not at all.
    """
    scale = _Scale(tuple(limits))
    stats = out.stats
    stamped = stats.stamped / max(1, stats.stamped + stats.unstamped)
    by_kernel = stats.stamped > 0 and stamped > 1 - _LIMIT / 2
    waits = stats.ages if by_kernel else stats.delays
    late50_s, late99_s = quantile_s(waits, 0.5), quantile_s(waits, 0.99)
    lag = Spread.of(out.lag_s)
    why: list[str] = []
    if summary.ok == 0:
        why.append(_nothing_came(out, summary))
    if by_kernel:
        why += _coalesced_tokens(out, summary, gaps_us, scale)
        error50_s = error99_s = _STAMP_S
    else:
        error50_s, error99_s = late50_s, late99_s
    why += _late_stamps(summary, error50_s * 1e3, error99_s * 1e3, scale)
    why += _late_sends(lag, summary, closed, scale)
    if stats.busiest_share > _BUSY:
        why.append(f"the load generator used {stats.busiest_share:.0%} of a core and had no time left; {_MORE}")
    if out.lost_workers:
        why.append(f"{out.lost_workers} load processes died and their requests are missing; see their messages above")
    return Fidelity(
        why=tuple(why),
        lag_ms=lag,
        read_delay_p50_ms=late50_s * 1e3,
        read_delay_p99_ms=late99_s * 1e3,
        timestamp_error_ms=error99_s * 1e3,
        kernel_stamped_share=stamped if by_kernel else 0.0,
        coalesced_share=gaps_us.get(0, 0) / max(1, sum(gaps_us.values())),
        coalesced_requests=len(out.coalesced),
        time_slices=out.time_slices,
        cpu_share=stats.busiest_share,
        cpu_ms_per_request=stats.cpu_s * 1e3 / max(1, len(out.records)),
    )


@dataclass(frozen=True, slots=True)
class _Scale:
    """How much an error matters: as a share of the latency, or by whether it could change what a limit says of it."""

    limits: tuple[Slo, ...]

    def counts(self, latency: str) -> bool:
        return not self.limits or any(slo.latency == latency for slo in self.limits)

    def of(self, latency: str, value_ms: float) -> float:
        """What a delay is a share of."""
        return max(value_ms, min((slo.limit_ms for slo in self.limits if slo.latency == latency), default=0.0))

    def off(self, latency: str, quantile: str, value_ms: float, other_ms: float) -> float:
        """How far off it is to say `value_ms` where it may be `other_ms`; above _LIMIT it must not be said."""
        if not self.limits:
            return abs(other_ms - value_ms) / value_ms
        asked = (slo.limit_ms for slo in self.limits if (slo.latency, slo.quantile) == (latency, quantile))
        return math.inf if any((value_ms <= limit) != (other_ms <= limit) for limit in asked) else 0.0

    def quantiles(self, latency: str) -> tuple[str, ...]:
        """Those by which a delay in reading is judged."""
        return tuple(slo.quantile for slo in self.limits if slo.latency == latency) if self.limits else ("p50", "p99")


def _nothing_came(out: LoadResult, summary: Summary) -> str:
    if out.under_way and not summary.errors:
        return "no request of it has ended yet"
    kinds = ", ".join(f"{kind} x {count}" for kind, count in sorted(summary.errors.items())) or "none was sent"
    return f"no request succeeded ({kinds})"


def _late_stamps(summary: Summary, error50_ms: float, error99_ms: float, scale: _Scale) -> list[str]:
    found = []
    for name in ("ttft", "itl"):
        spread: Spread | None = getattr(summary, f"{name}_ms")
        if spread is None or not scale.counts(name):
            continue
        for quantile in scale.quantiles(name):
            value, error = spread.quantile(quantile), error50_ms if quantile in ("mean", "p50") else error99_ms
            # gaps of zero are tokens of one packet; an error relative to nothing says nothing
            if value > 0 and max(scale.off(name, quantile, value, value + side) for side in (-error, error)) > _LIMIT:
                found.append(
                    f"{name} {quantile} of {value:.3g} ms could be off by {error:.2g} ms, the delay with which this "
                    f"process reads; {_MORE}"
                )
                break
    return found


def _late_sends(lag: Spread | None, summary: Summary, closed: bool, scale: _Scale) -> list[str]:
    if lag is None or summary.e2e_ms is None:
        return []
    if closed:
        if lag.mean > _LIMIT * summary.e2e_ms.mean:
            return [
                f"slots were empty for {lag.mean:.2g} ms between requests of {summary.e2e_ms.mean:.3g} ms, so the "
                f"requested concurrency was not reached; {_MORE}"
            ]
        return []
    answer, name = (summary.ttft_ms, "ttft") if summary.ttft_ms else (summary.e2e_ms, "e2e")
    if not scale.counts(name):
        answer, name = summary.e2e_ms, "e2e"  # how late a first token is was not asked
    if lag.mean > _LIMIT * scale.of(name, answer.mean) or lag.p99 > max(5.0, 0.1 * scale.of(name, answer.p99)):
        return [
            f"requests were sent {lag.mean:.2g} ms (p99 {lag.p99:.3g} ms) after their time, so the schedule was not "
            f"kept; {_MORE}"
        ]
    return []


def _coalesced_tokens(out: LoadResult, summary: Summary, gaps_us: dict[int, int], scale: _Scale) -> list[str]:
    """Figures that would move by more than the limit had the tokens that were read together come early, or late."""
    if not out.coalesced:
        return []
    found = []
    for name, reported in (("ttft", summary.ttft_ms), ("itl", summary.itl_ms)):
        if not scale.counts(name):
            continue
        worst = max(
            (
                (scale.off(name, quantile, value, other), quantile, value, other)
                for possible in (_possible_ttft(out) if name == "ttft" else _possible_itl(out, gaps_us))
                for quantile, value, other in _pairs(reported, possible)
                if value > 0
            ),
            default=(0.0, "", 0.0, 0.0),
        )
        if worst[0] > _LIMIT:
            _, quantile, value, other = worst
            found.append(
                f"{name} {quantile} of {value:.4g} ms could be {other:.4g} ms, since tokens of {len(out.coalesced)} "
                f"requests were read late and together; {_MORE}"
            )
    return found


def _possible_ttft(out: LoadResult) -> Iterator[Spread | None]:
    affected = {answer.number for answer in out.coalesced}
    clear = [t for r in out.records if r.ok and r.number not in affected and (t := r.ttft_s) is not None]
    for side in (0, 1):
        yield Spread.of(clear + [answer.first_s[side] for answer in out.coalesced])


def _possible_itl(out: LoadResult, gaps_us: dict[int, int]) -> Iterator[Spread | None]:
    affected = {answer.number for answer in out.coalesced}
    measured = [r.gaps_s.seconds for r in out.records if r.number in affected and isinstance(r.gaps_s, Gaps)]
    for side in (0, 1):
        counts = Counter(gaps_us)
        counts.subtract(_counted(measured))
        counts.update(_counted([answer.gaps_s[side] for answer in out.coalesced]))
        yield Spread.of([us * 1e-6 for us in counts], list(counts.values()))


def _pairs(reported: Spread | None, possible: Spread | None) -> Iterator[tuple[str, float, float]]:
    if reported is not None and possible is not None:
        for quantile in ("mean", "p50", "p90", "p95", "p99"):
            yield quantile, reported.quantile(quantile), possible.quantile(quantile)


def gaps_by_microsecond(records: Iterable[RequestRecord]) -> Counter[int]:
    """Every gap of the requests that succeeded, rounded to a microsecond and counted: exact enough, and small however
    long the run."""
    counts: Counter[int] = Counter()
    add_gaps(counts, [r for r in records if r.ok])
    return counts


def add_gaps(counts: Counter[int], records: Sequence[RequestRecord]) -> None:
    """Counts the gaps of these requests too, whatever became of them."""
    counts.update(_counted([r.gaps_s.seconds for r in records if isinstance(r.gaps_s, Gaps)]))
    for r in records:
        for gap, times in () if isinstance(r.gaps_s, Gaps) else r.gaps_s:
            counts[int(gap * 1e6 + 0.5)] += times


def _counted(gaps: Sequence[array[float]]) -> Counter[int]:
    return Counter([int(gap * 1e6 + 0.5) for seconds in gaps for gap in seconds])
