"""Whether what a service does still lies where its plan said: latencies from the servers' own histograms."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ridgeline.serving.service import probe
from ridgeline.serving.service.servers import server_of
from ridgeline.serving.service.service import Service

WINDOW_S = 120.0
RECENT_S, LEAST_RECENT = 60.0, 20
LEAST_REQUESTS = 100  # in a window: a percentile of fewer says little
WINDOWS = 3  # in a row, before the plan is doubted
_QUANTILES = {"p50": 0.5, "p95": 0.95}
_LATENCIES = ("ttft", "e2e")  # of which engines keep histograms
_RATE_ROOM = 1.1  # times what the plan was asked for; beyond it the load has changed, not the engine


@dataclass(frozen=True, slots=True)
class PlanDoubt:
    """`figure` lay outside its interval in several windows; `overloaded`: because more came than was planned for."""

    figure: str
    seen_ms: float
    low_ms: float
    high_ms: float
    requests_s: float
    overloaded: bool

    @property
    def evidence(self) -> str:
        place = "above" if self.seen_ms > self.high_ms else "below"
        return (
            f"{self.figure} is {self.seen_ms:.0f} ms, {place} the plan's {self.low_ms:.0f} to {self.high_ms:.0f} ms, "
            f"at {self.requests_s:.2f} requests/s"
        )


@dataclass
class PlanCheck:
    """Takes metrics pages of all servers that answer users, again and again. Counters that fall start it anew."""

    expected: Mapping[str, Any]
    engine: str
    _first: tuple[float, dict[str, dict[float, float]]] | None = None
    _outside: dict[str, deque[bool]] = field(default_factory=dict)

    def take(self, at_s: float, pages: Iterable[str]) -> list[PlanDoubt]:
        """Doubts after these pages: at the end of a window, and only when those before it said the same."""
        now = _histograms(self.engine, list(pages))
        if self._first is None or any(
            now[name].get(edge, 0.0) < count for name, was in self._first[1].items() for edge, count in was.items()
        ):
            self._first = (at_s, now)
            return []
        began_s, before = self._first
        if at_s - began_s < WINDOW_S:
            return []
        self._first = (at_s, now)
        new = {
            name: {edge: count - before[name].get(edge, 0.0) for edge, count in found.items()}
            for name, found in now.items()
        }
        return self._judge(new, at_s - began_s)

    def _judge(self, new: Mapping[str, Mapping[float, float]], seconds: float) -> list[PlanDoubt]:
        requests = max((max(found.values(), default=0.0) for found in new.values()), default=0.0)
        if requests < LEAST_REQUESTS:
            self._outside.clear()
            return []
        rate_s, planned_s = requests / seconds, float(self.expected.get("requests_s", 0.0))
        overloaded = 0 < _RATE_ROOM * planned_s < rate_s
        found = []
        for figure, (low, high) in self._intervals().items():
            latency, quantile, _ = figure.split("_")
            below_ms, above_ms = _quantile_bounds_ms(new[latency], _QUANTILES[quantile])
            outside = below_ms > high or above_ms < low
            row = self._outside.setdefault(figure, deque(maxlen=WINDOWS))
            row.append(outside)
            if len(row) == WINDOWS and all(row):
                seen_ms = below_ms if below_ms > high else above_ms
                found.append(PlanDoubt(figure, seen_ms, low, high, rate_s, overloaded))
                row.clear()  # and is not said again before as many windows agree again
        return found

    def _intervals(self) -> dict[str, tuple[float, float]]:
        given = self.expected.get("interval", {})
        names = [f"{latency}_{quantile}_ms" for latency in _LATENCIES for quantile in _QUANTILES]
        return {name: (float(given[name][0]), float(given[name][1])) for name in names if name in given}


def _histograms(engine: str, pages: Sequence[str]) -> dict[str, dict[float, float]]:
    """Of every latency, summed over the servers."""
    found: dict[str, dict[float, float]] = {name: {} for name in _LATENCIES}
    metrics = server_of(engine).metrics
    for page in pages:
        for name, histogram in zip(_LATENCIES, (metrics.ttft, metrics.e2e), strict=True):
            for edge, count in probe.buckets(page, histogram).items():
                found[name][edge] = found[name].get(edge, 0.0) + count
    return found


@dataclass
class RecentTtft:
    """TTFT p95 of the last minute, from the servers' histograms; None where too few requests ended in it."""

    engine: str
    _rows: deque[tuple[float, dict[float, float]]] = field(default_factory=deque)

    def take(self, at_s: float, pages: Iterable[str]) -> float | None:
        now = _histograms(self.engine, list(pages))["ttft"]
        if self._rows and (at_s < self._rows[-1][0] or _fell(self._rows[-1][1], now)):
            self._rows.clear()  # a server was added, removed or started again
        self._rows.append((at_s, now))
        while len(self._rows) > 2 and at_s - self._rows[1][0] >= RECENT_S:
            self._rows.popleft()
        first = self._rows[0][1]
        new = {edge: count - first.get(edge, 0.0) for edge, count in now.items()}
        if max(new.values(), default=0.0) < LEAST_RECENT:
            return None
        below_ms, above_ms = _quantile_bounds_ms(new, _QUANTILES["p95"])
        return below_ms if above_ms == float("inf") else (below_ms + above_ms) / 2


def _fell(before: Mapping[float, float], now: Mapping[float, float]) -> bool:
    return any(now.get(edge, 0.0) < count for edge, count in before.items())


def _quantile_bounds_ms(counts: Mapping[float, float], share: float) -> tuple[float, float]:
    """Between which two edges a quantile of a histogram lies; that is all that it can say."""
    edges = sorted(counts)
    total = counts[edges[-1]] if edges else 0.0
    below = 0.0
    for edge in edges:
        if counts[edge] >= share * total:
            return below * 1000, edge * 1000
        below = edge
    return below * 1000, float("inf")


def commands_after(service: Service, file: str, logs: Sequence[str]) -> list[str]:
    """What to do when the plan no longer holds: learn from these very logs, and plan again with that."""
    gpus = sum(unit.replicas * unit.nodes * unit.gpus for unit in service.units)
    nodes = -(-gpus // (service.site.gpus_per_node or 8)) or sum(unit.replicas * unit.nodes for unit in service.units)
    model = f"--model {service.model}"
    gpu = f" --gpu {service.gpu}" if service.gpu else ""
    slos = "".join(f" --slo {name}={limit:g}" for name, limit in service.slo.items())
    learned = f"{service.name}.calibration.json"
    return [
        f"ridgeline twin calibrate --from {' '.join(logs)} --out {learned} {model}{gpu}",
        f"ridgeline plan {model}{gpu} --nodes {nodes}{slos} --calibration {learned} --deploy {file}",
    ]
