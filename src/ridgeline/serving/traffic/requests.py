"""What happened to each request, measured or simulated, and the figures that follow from it.

The load generator and the twin both write `RequestRecord`, so every figure below is computed by one piece of code, and
a simulated run can be compared with a measured one line by line. Times are seconds on the clock of the run that wrote
them.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate
from math import fsum
from operator import itemgetter
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, ReadError, nearest
from ridgeline.records.json_form import NOT_IN_JSON, JsonForm, also_in_json, in_json
from ridgeline.serving.metrics import LATENCIES, QUANTILES

_QUANTILES = (50, 90, 95, 99)
REQUESTS = "requests.jsonl"  # of a folder: its records


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One user's prompt, from the moment it should have been sent to its last token.

    `gaps_s` is run-length encoded: (gap, how many times in a row), one gap between each two successive tokens.
    `status` is "ok" or the kind of failure; a failed request keeps whatever times it reached.
    """

    number: int
    scheduled_s: float
    sent_s: float
    first_token_s: float | None
    end_s: float | None
    input_tokens: int
    output_tokens: int
    status: str = "ok"
    first_byte_s: float | None = None
    gaps_s: Collection[tuple[float, int]] = ()
    cached_tokens: int = 0
    host_tokens: int = 0  # of these, brought back from the host's memory
    reasoning_tokens: int = 0
    error: str = ""
    worker: str = ""
    counted_tokens: int | None = None  # events that carried text, where output_tokens is the server's own count
    prompt_by_usage: int | None = None  # the server's own counts, believed or not; None where it sent none
    output_by_usage: int | None = None
    session: int | None = None  # whose turn it is, counted from 0
    turn: int = 0

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_token_s is None else self.first_token_s - self.sent_s

    @property
    def e2e_s(self) -> float | None:
        return None if self.end_s is None else self.end_s - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first."""
        if self.first_token_s is None or self.end_s is None or self.output_tokens < 2:
            return None
        return (self.end_s - self.first_token_s) / (self.output_tokens - 1)


@dataclass(frozen=True, slots=True)
class Spread(JsonForm):
    """Mean and percentiles of one latency, in milliseconds."""

    JSON_DIGITS = 4
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values_s: Sequence[float], counts: Sequence[int] | None = None) -> Spread | None:
        """Weighted when `counts` is given. None when there is nothing to describe."""
        if len(values_s) == 0:
            return None
        if counts is None:
            ordered = sorted(values_s)
            points = []
            for q in _QUANTILES:
                low, share = divmod((len(ordered) - 1) * q / 100.0, 1.0)
                below, above = ordered[int(low)], ordered[min(int(low) + 1, len(ordered) - 1)]
                points.append(below + (above - below) * share)
            return cls(fsum(ordered) / len(ordered) * 1000.0, *(p * 1000.0 for p in points))
        pairs = sorted(zip(values_s, counts, strict=True), key=itemgetter(0))
        sums = list(accumulate(n for _, n in pairs))
        total = sums[-1]
        # the smallest value whose share of all gaps reaches the quantile
        index = (bisect_left(sums, (q / 100.0 - 1e-12) * total) for q in _QUANTILES)
        weighted = (pairs[min(k, len(pairs) - 1)][0] * 1000.0 for k in index)
        return cls(fsum(v * n for v, n in pairs) / total * 1000.0, *weighted)

    def quantile(self, name: str) -> float:
        if name not in QUANTILES:
            raise InputError(f"{name!r} is not a percentile we report; use mean, p50, p90, p95 or p99")
        return float(getattr(self, name))


@dataclass(frozen=True, slots=True)
class Slo:
    """A limit such as `ttft_p95_ms=2000`. Judged per run by its percentile, and per request for goodput."""

    latency: str  # ttft, itl, tpot or e2e
    quantile: str  # mean, p50, p90, p95, p99
    limit_ms: float

    @classmethod
    def parse(cls, text: str) -> Slo:
        name, sep, limit = text.partition("=")
        parts = name.strip().split("_")
        if not sep or len(parts) != 3 or parts[2] != "ms" or parts[0] not in LATENCIES:
            raise InputError(f"SLO {text!r} is not of the form ttft_p95_ms=2000 (ttft, itl, tpot or e2e){_meant(text)}")
        if parts[1] not in QUANTILES:
            raise InputError(f"SLO {text!r}: {parts[1]} is not one of {', '.join(QUANTILES)}")
        try:
            limit_ms = float(limit)
        except ValueError:
            raise InputError(f"SLO {text!r}: {limit!r} is not a number of milliseconds") from None
        if not limit_ms > 0:
            raise InputError(f"SLO {text!r}: the limit must be above zero")
        return cls(parts[0], parts[1], limit_ms)

    def __str__(self) -> str:
        return f"{self.metric}={self.limit_ms:g}"

    @property
    def metric(self) -> str:
        return f"{self.latency}_{self.quantile}_ms"

    def met_by(self, record: RequestRecord) -> bool:
        """Whether this one request stayed under the limit; ITL of one request is the mean of its gaps."""
        value = self._value_s(record)
        return record.ok and value is not None and value * 1000.0 <= self.limit_ms

    def margin(self, record: RequestRecord) -> float:
        """How many times slower this one request could be and still meet the limit; 0 where it failed."""
        value = self._value_s(record)
        return self.limit_ms / max(value * 1000.0, 1e-6) if record.ok and value is not None else 0.0

    def _value_s(self, record: RequestRecord) -> float | None:
        if self.latency in ("itl", "tpot"):
            return record.tpot_s if record.output_tokens > 1 else 0.0
        return record.ttft_s if self.latency == "ttft" else record.e2e_s


def stated_slos(given: object) -> list[Slo]:
    """The limits that a study gives its workload as `slo`: a text or a list of them; what is none is left out."""
    found = []
    for text in given if isinstance(given, list | tuple) else (given,):
        try:
            found.append(Slo.parse(str(text)))
        except InputError:
            continue
    return found


def _meant(text: str) -> str:
    """The limit that a misspelled one is nearest to."""
    name, sep, limit = (text if "=" in text else re.sub(r"[<>:]=?", "=", text, count=1)).partition("=")
    known = [f"{latency}_{quantile}_ms" for latency in LATENCIES for quantile in ("p95", "p50", "p99", "p90", "mean")]
    meant = nearest(name.strip().lower(), known, likeness=0.5)
    return f"; did you mean {meant}{sep}{limit}?" if meant else ""


@dataclass(frozen=True, slots=True)
class Summary(JsonForm):
    """The figures of one run. Rates count successful requests and their tokens over `duration_s`: all of them, or those
    that ended within it where it is a window of a longer run."""

    requests: int
    ok: int = field(metadata=in_json("successful_requests"))
    duration_s: float
    requests_s: float
    input_tok_s: float
    output_tok_s: float
    ttft_ms: Spread | None
    itl_ms: Spread | None
    tpot_ms: Spread | None
    e2e_ms: Spread | None
    goodput_s: float | None = field(default=None, metadata=in_json("goodput"))
    slos: tuple[Slo, ...] = field(default=(), metadata=NOT_IN_JSON)
    errors: Mapping[str, int] = field(default_factory=dict)

    @property
    @also_in_json()
    def total_tok_s(self) -> float:
        return self.input_tok_s + self.output_tok_s

    @property
    @also_in_json("slos")
    def held_slos(self) -> dict[str, bool]:
        return {str(slo): self.holds(slo) for slo in self.slos}

    @property
    def overshoot(self) -> float:
        """The worst latency that was seen, as a share of its limit."""
        seen = [(slo, getattr(self, f"{slo.latency}_ms")) for slo in self.slos]
        return max((spread.quantile(slo.quantile) / slo.limit_ms for slo, spread in seen if spread), default=0.0)

    def holds(self, slo: Slo) -> bool:
        """Whether the run's own percentile stays under the limit; a latency that was never seen does not hold."""
        spread: Spread | None = getattr(self, f"{slo.latency}_ms")
        return spread is not None and spread.quantile(slo.quantile) <= slo.limit_ms

    def rows(self, bounds: Mapping[str, tuple[float, float]] | None = None) -> tuple[tuple[str, str, str], ...]:
        """What it comes to for a table: name, value, and between which two of them it should lie."""
        figures = {name: getattr(self, name) for name in ("requests_s", "output_tok_s", "total_tok_s")}
        for name in LATENCIES:
            if (spread := getattr(self, f"{name}_ms")) is not None:
                figures |= {f"{name}_p50_ms": spread.p50, f"{name}_p95_ms": spread.p95}
        figures |= {} if self.goodput_s is None else {"goodput": self.goodput_s}
        return stated_rows(figures, bounds or {})


def stated_rows(
    figures: Mapping[str, float | None], bounds: Mapping[str, tuple[float, float]]
) -> tuple[tuple[str, str, str], ...]:
    """Name, value, and between which two of them it should lie; without what is not known."""
    said = {name: f"{low:,.4g} to {high:,.4g}" for name, (low, high) in bounds.items()}
    return tuple((name, f"{v:,.4g}", said.get(name, "")) for name, v in figures.items() if v is not None)


def summarise(
    records: Iterable[RequestRecord],
    slos: Sequence[Slo] = (),
    duration_s: float | None = None,
    gaps_s: Iterable[tuple[float, int]] | None = None,
    completed: Iterable[RequestRecord] | None = None,
) -> Summary:
    """All figures of a run. `gaps_s` may replace the records' own gaps where a writer holds them in a shorter form.

    `completed` are the requests that ended within `duration_s`, where those are others than the ones whose latency is
    asked for: rates count them.
    """
    rows = list(records)
    good = [r for r in rows if r.ok]
    counted = good if completed is None else [r for r in completed if r.ok]
    if duration_s is None:
        ends = [r.end_s for r in rows if r.end_s is not None]
        duration_s = max(ends) - min(r.sent_s for r in rows) if ends else 0.0
    per_s = 1.0 / duration_s if duration_s > 0 else 0.0
    runs = [run for r in good for run in r.gaps_s] if gaps_s is None else list(gaps_s)
    met = sum(all(slo.met_by(r) for slo in slos) for r in counted)
    return Summary(
        requests=len(rows),
        ok=len(good),
        duration_s=duration_s,
        requests_s=len(counted) * per_s,
        input_tok_s=sum(r.input_tokens for r in counted) * per_s,
        output_tok_s=sum(r.output_tokens for r in counted) * per_s,
        ttft_ms=Spread.of([t for r in good if (t := r.ttft_s) is not None]),
        itl_ms=Spread.of([g for g, _ in runs], [n for _, n in runs]),
        tpot_ms=Spread.of([t for r in good if (t := r.tpot_s) is not None]),
        e2e_ms=Spread.of([t for r in good if (t := r.e2e_s) is not None]),
        goodput_s=met * per_s if slos else None,
        slos=tuple(slos),
        errors=dict(Counter(r.status for r in rows if not r.ok)),
    )


# Request records on disk: one JSON object a line, written as each request ends.

_NAMES = tuple(f.name for f in fields(RequestRecord))


class RecordsFile:
    """Records are appended to it. The driver flushes it ten times a second, so a killed run loses next to nothing.

    A disk that fills up does not end the measurement: writing stops and `problem` says why.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.problem = ""
        try:
            self._file = path.open("w", encoding="utf-8")
        except OSError as bad:
            raise InputError(f"--out {path}: {bad.strerror}; name a file or folder that can be written") from None

    def write(self, record: RequestRecord) -> None:
        if not self.problem:
            self._attempt(self._file.write, record_line(record))

    def flush(self) -> None:
        if not self.problem:
            self._attempt(self._file.flush)

    def close(self) -> None:
        self.flush()
        self._attempt(self._file.close)

    def _attempt(self, act: Callable[..., object], *arguments: str) -> None:
        try:
            act(*arguments)
        except OSError as bad:
            self.problem = self.problem or f"{self._path}: {bad.strerror}; the records on disk end there"


def write_records(path: Path, records: Iterable[RequestRecord]) -> None:
    """A whole run at once, as one that was simulated."""
    records_file = RecordsFile(path)
    for record in records:
        records_file.write(record)
    records_file.close()
    if records_file.problem:
        raise InputError(f"--out {records_file.problem}")


def record_line(record: RequestRecord) -> str:
    row: dict[str, Any] = {name: getattr(record, name) for name in _NAMES if name != "gaps_s"}
    row = {name: round(value, 6) if isinstance(value, float) else value for name, value in row.items()}
    row["gaps_s"] = [[round(gap, 6), times] for gap, times in record.gaps_s]
    return json.dumps(row, separators=(",", ":")) + "\n"


def read_records(path: Path) -> Iterator[RequestRecord]:
    """The records of a file that `ridgeline bench --out` wrote; a torn last line, left by a kill, is passed over."""
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
                row["gaps_s"] = tuple((gap, times) for gap, times in row["gaps_s"])
                yield RequestRecord(**{name: row[name] for name in _NAMES if name in row})
            except (ValueError, KeyError, TypeError) as bad:
                if not line.endswith("\n"):
                    return
                raise ReadError(f"{path}:{number}: not a request record ({bad})") from None
