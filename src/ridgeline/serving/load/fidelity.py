"""How far the load generator's own doings could have moved a figure, and whether the run may count.

A run is void when its own error could exceed 2% of something it reports, or when it could not keep its schedule.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.serving.load.pulse import quantile_s
from ridgeline.serving.load.share import Yield
from ridgeline.serving.requests import Spread, Summary

LIMIT = 0.02
# conversion of a kernel stamp to our clock: two clock readings and the stamp's own resolution
_STAMP_S = 10e-6
_BUSY = 0.95
# a p99 stands on one value in a hundred: half of those wrong and it may be wrong
_MERGED = 0.005
_MORE = "use --workers, another host for the load, or less load"


@dataclass(frozen=True, slots=True)
class Fidelity:
    """The instrument's account of itself. `why` is empty for a run that counts."""

    why: tuple[str, ...]
    lag_ms: Spread | None
    read_delay_p50_ms: float
    read_delay_p99_ms: float
    timestamp_error_ms: float
    kernel_stamped_share: float
    coalesced_share: float
    cpu_share: float
    cpu_ms_per_request: float

    @property
    def void(self) -> bool:
        return bool(self.why)

    def as_json(self) -> dict[str, object]:
        return {
            "send_lag_ms": self.lag_ms.as_json() if self.lag_ms else None,
            "read_delay_p50_ms": round(self.read_delay_p50_ms, 4),
            "read_delay_p99_ms": round(self.read_delay_p99_ms, 4),
            "timestamp_error_ms": round(self.timestamp_error_ms, 4),
            "kernel_stamped_share": round(self.kernel_stamped_share, 4),
            "coalesced_share": round(self.coalesced_share, 4),
            "cpu_share": round(self.cpu_share, 4),
        }


def judge(out: Yield, summary: Summary, gaps_us: dict[int, int], closed: bool) -> Fidelity:
    """`gaps_us` counts the run's inter-token gaps by microsecond."""
    pulse = out.pulse
    stamped = pulse.stamped / max(1, pulse.stamped + pulse.unstamped)
    by_kernel = pulse.stamped > 0 and stamped > 1 - LIMIT / 2
    waits = pulse.ages if by_kernel else pulse.delays
    late50_s, late99_s = quantile_s(waits, 0.5), quantile_s(waits, 0.99)
    total = sum(gaps_us.values())
    coalesced = gaps_us.get(0, 0) / total if total else 0.0
    lag = Spread.of(out.lag_s)
    why: list[str] = []
    if summary.ok == 0:
        why.append(_nothing_came(summary))
    if by_kernel:
        why += _merged_tokens(out, waits, gaps_us, coalesced)
        error50_s = error99_s = _STAMP_S
    else:
        error50_s, error99_s = late50_s, late99_s
    why += _late_stamps(summary, error50_s * 1e3, error99_s * 1e3)
    why += _late_sends(lag, summary, closed)
    if pulse.busiest_share > _BUSY:
        why.append(f"the load generator used {pulse.busiest_share:.0%} of a core and had no time left; {_MORE}")
    if out.lost_workers:
        why.append(f"{out.lost_workers} load processes died and their requests are missing; see their messages above")
    return Fidelity(
        why=tuple(why),
        lag_ms=lag,
        read_delay_p50_ms=late50_s * 1e3,
        read_delay_p99_ms=late99_s * 1e3,
        timestamp_error_ms=error99_s * 1e3,
        kernel_stamped_share=stamped if by_kernel else 0.0,
        coalesced_share=coalesced,
        cpu_share=pulse.busiest_share,
        cpu_ms_per_request=pulse.cpu_s * 1e3 / max(1, len(out.records)),
    )


def _nothing_came(summary: Summary) -> str:
    kinds = ", ".join(f"{kind} x {count}" for kind, count in sorted(summary.errors.items())) or "none was sent"
    return f"no request succeeded ({kinds})"


def _late_stamps(summary: Summary, error50_ms: float, error99_ms: float) -> list[str]:
    found = []
    for name in ("ttft", "itl"):
        spread: Spread | None = getattr(summary, f"{name}_ms")
        if spread is None:
            continue
        for quantile, value, error in (("p50", spread.p50, error50_ms), ("p99", spread.p99, error99_ms)):
            # gaps of zero are tokens of one packet; an error relative to nothing says nothing
            if value > 0 and error > LIMIT * value:
                found.append(
                    f"{name} {quantile} of {value:.3g} ms could be off by {error:.2g} ms, the delay with which this "
                    f"process reads; {_MORE}"
                )
                break
    return found


def _late_sends(lag: Spread | None, summary: Summary, closed: bool) -> list[str]:
    if lag is None or summary.e2e_ms is None:
        return []
    if closed:
        if lag.mean > LIMIT * summary.e2e_ms.mean:
            return [
                f"places stood empty for {lag.mean:.2g} ms between requests of {summary.e2e_ms.mean:.3g} ms, so the "
                f"concurrency asked for was not reached; {_MORE}"
            ]
        return []
    answer = summary.ttft_ms or summary.e2e_ms
    if lag.mean > LIMIT * answer.mean or lag.p99 > max(5.0, 0.1 * answer.p99):
        return [
            f"requests were sent {lag.mean:.2g} ms (p99 {lag.p99:.3g} ms) after their time, so the schedule was not "
            f"kept; {_MORE}"
        ]
    return []


def _merged_tokens(out: Yield, ages: list[int], gaps_us: dict[int, int], coalesced: float) -> list[str]:
    """Tokens read together although they came apart: possible only where reads were later than tokens are apart."""
    if out.merged_firsts > _MERGED * len(out.records):
        return [f"the first tokens of {out.merged_firsts} requests were read late, so TTFT could be too long; {_MORE}"]
    apart = {us: n for us, n in gaps_us.items() if us > 0}
    if not apart or coalesced <= _MERGED:
        return []
    usual_s = _median(apart) * 1e-6
    late = sum(n for k, n in enumerate(ages) if 8192e-9 * (1 << max(0, k - 1)) > usual_s / 2) / max(1, sum(ages))
    # a merged read bears the stamp of its last token, so half of them look less late than half a gap
    if min(2 * late, coalesced) > _MERGED:
        return [f"{coalesced:.1%} of tokens were read together with another one while reads ran late; {_MORE}"]
    return []


def _median(counts: dict[int, int]) -> int:
    half, seen = sum(counts.values()) / 2, 0
    for value in sorted(counts):
        seen += counts[value]
        if seen >= half:
            return value
    return 0


def gaps_by_microsecond(gaps: Sequence[array[float]]) -> dict[int, int]:
    """Every gap of a run, rounded to a microsecond and counted: exact enough, and small however long the run."""
    counts: dict[int, int] = {}
    for seconds in gaps:
        for gap in seconds:
            us = int(gap * 1e6 + 0.5)
            counts[us] = counts.get(us, 0) + 1
    return counts
