"""What became of sessions, measured or simulated: how long they took, how many kept the limits, TTFT by turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ridgeline.records.json_form import JsonForm, also_in_json, digits
from ridgeline.serving.traffic.requests import RequestRecord, Slo, Spread

# turns are counted from 1; the last class has no end
_TurnClasses = Sequence[tuple[int, int | None]]
_CLASSES: _TurnClasses = ((1, 1), (2, 5), (6, 20), (21, None))
# of a figure, which has room for more
FINE_CLASSES: _TurnClasses = (*((n, n) for n in range(1, 6)), (6, 10), (11, 20), (21, 50), (51, None))


@dataclass(frozen=True, slots=True)
class TurnLatency(JsonForm):
    """TTFT of the turns with these numbers."""

    turns: str
    requests: int
    ttft_ms: Spread


@dataclass(frozen=True, slots=True)
class SessionSummary(JsonForm):
    """The sessions of a run. One is completed when all its requests were answered, failed when one of them was not
    (what comes after is then not sent), and cut off when the run ended first.

    `kept` of them were completed with every request within the limits. A session's time runs from when its first
    request was due to its last answer, thinking included.
    """

    JSON_DIGITS = 4
    begun: int
    completed: int
    failed: int
    cut_off: int
    unsent_requests: int
    completed_s: float  # a second
    session_p50_s: float | None
    session_p95_s: float | None
    kept: int | None = None
    kept_s: float | None = None  # a second
    ttft_by_turn: tuple[TurnLatency, ...] = field(default=())

    @property
    @also_in_json(to=digits(4))
    def kept_share(self) -> float | None:
        """Of the sessions that ended."""
        ended = self.completed + self.failed
        return None if self.kept is None or not ended else self.kept / ended


def summarise_sessions(
    records: Sequence[RequestRecord], unsent: Mapping[int, int], slos: Sequence[Slo], duration_s: float
) -> SessionSummary:
    """`unsent`: of each session that did not come to its end, how many requests have no record."""
    by_session: dict[int, list[RequestRecord]] = {}
    for record in records:
        if record.session is not None:
            by_session.setdefault(record.session, []).append(record)
    failed = [name for name, rows in by_session.items() if not all(r.ok for r in rows)]
    completed = {name: rows for name, rows in by_session.items() if not unsent.get(name) and all(r.ok for r in rows)}
    times = Spread.of(
        [max(r.end_s or 0.0 for r in rows) - min(r.scheduled_s for r in rows) for rows in completed.values()]
    )
    kept = sum(all(slo.met_by(r) for slo in slos for r in rows) for rows in completed.values()) if slos else None
    per_s = 1.0 / duration_s if duration_s > 0 else 0.0
    return SessionSummary(
        begun=len(by_session),
        completed=len(completed),
        failed=len(failed),
        cut_off=len(by_session) - len(completed) - len(failed),
        unsent_requests=sum(unsent.get(name, 0) for name in failed),
        completed_s=len(completed) * per_s,
        session_p50_s=None if times is None else times.p50 / 1e3,
        session_p95_s=None if times is None else times.p95 / 1e3,
        kept=kept,
        kept_s=None if kept is None else kept * per_s,
        ttft_by_turn=ttft_by_turn(records),
    )


def ttft_by_turn(records: Sequence[RequestRecord], classes: _TurnClasses = _CLASSES) -> tuple[TurnLatency, ...]:
    """Of the classes that have any."""
    found = []
    for first, last in classes:
        ttft_s = [
            t
            for r in records
            if r.ok and first <= r.turn + 1 and (last is None or r.turn < last) and (t := r.ttft_s) is not None
        ]
        if spread := Spread.of(ttft_s):
            found.append(TurnLatency(turns_text(first, last), len(ttft_s), spread))
    return tuple(found)


def turns_text(first: int, last: int | None) -> str:
    return f"{first}" if first == last else f"{first} and later" if last is None else f"{first} to {last}"
