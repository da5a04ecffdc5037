"""What a serving engine's log shows: what limits it, how it was used, whether the queue grows, why it failed.

A healthy log has something to say too: how busy the engine was, and what would have to change for it to serve more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean

from ridgeline.diagnose.base import Quote, RawFinding, SummaryFigure, knob
from ridgeline.records.finding import KnobToTry
from ridgeline.records.measurement import unit_of
from ridgeline.serving.engines.base import ServingEngine, engine_named
from ridgeline.serving.engines.failures import SURVIVED, NextValues, advice_on, leading_cause
from ridgeline.serving.engines.served import LogTally, ServedTally, ServedTotals

_MUCH = 0.25  # of the working time, from which on something is called the limit
_MOST_GRAPHS = 4096


@dataclass(frozen=True, slots=True)
class EngineKnobs:
    """An argument of an engine, as its log repeats it, and which way advice moves it."""

    engine: str
    said: Mapping[str, object]

    def named(self, what: str) -> tuple[KnobToTry, ...]:
        """Knobs for one kind of advice; none where the log does not say what ran."""
        moves = engine_named(self.engine).values_to_try.get(what, ())
        return tuple(k for name, move in moves for k in self._moved(name, move))

    def graphs_up_to(self, batch: int) -> tuple[KnobToTry, ...]:
        """Graphs for the batches that ran, or batches that the graphs hold."""
        largest = self._whole("cuda_graph_max_bs")
        if largest is None:
            return ()
        enough = min(_MOST_GRAPHS, 1 << (batch - 1).bit_length())
        graphs = knob(self.engine, "cuda_graph_max_bs", largest, [enough])
        cap = self._whole("max_running_requests")
        return graphs + (knob(self.engine, "max_running_requests", cap, [largest]) if cap else ())

    def _moved(self, name: str, move: NextValues) -> tuple[KnobToTry, ...]:
        current = self.said.get(name, engine_named(self.engine).when_omitted.get(name))
        if isinstance(current, str):
            return knob(self.engine, name, current, move(0.0))
        if not isinstance(current, int | float):
            return ()
        return knob(self.engine, name, current, move(float(current)))

    def _whole(self, name: str) -> int | None:
        value = self.said.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def what_limits(
    engine: ServingEngine, log: LogTally, *, offline: bool = False, fewest_lines: int = 10
) -> Iterator[RawFinding]:
    """One note: where the time went, how full batch and pool were, and what holds the engine back; nothing of a run
    with fewer decode lines."""
    quotes = [Quote(line) for line in dict.fromkeys(map(log.line, ("limits", "busiest", "peak"))) if line]
    if log.served.totals.decodes < fewest_lines or not quotes:
        return
    limit, advice, share = _limit(engine, log.served.totals, offline)
    yield RawFinding(
        f"{limit}; {_usage(engine, log)}",
        tuple(quotes[:2]),
        advice,
        "note",
        share=share,
        key=f"{engine.name}.limit",
    )


def _usage(engine: ServingEngine, log: LogTally) -> str:
    totals = log.served.totals
    parts = [f"{totals.running / totals.decodes:.0f} requests ran at once (at most {totals.most_running}"]
    parts[0] += f" of {log.cap})" if log.cap else ")"
    parts.append(f"the KV pool was {totals.kv_share / totals.decodes:.0%} full (at most {totals.peak_kv_share:.0%})")
    if totals.eager < totals.decodes and engine.logs_graphs:
        parts.append(f"{1 - totals.eager / totals.decodes:.0%} of decode lines used CUDA graphs")
    split = [(totals.decode_s, "decode"), (totals.prefill_s, "prefill"), (totals.idle_s, "idle")]
    if totals.span_s >= 5 and totals.prefills:
        parts.append(", ".join(f"{name} {seconds / totals.span_s:.0%}" for seconds, name in split) + " of the time")
    return "; ".join(parts)


def _limit(engine: ServingEngine, totals: ServedTotals, offline: bool) -> tuple[str, str, float | None]:
    def much(seconds: float, lines: int) -> bool:
        share = totals.share(seconds)
        return lines > 0 and (lines / totals.decodes if share is None else share) >= _MUCH

    if much(totals.full_s, totals.full):
        return "the KV pool was the limit", "See the advice on the pool above.", totals.share(totals.full_s)
    if much(totals.capped_s, totals.capped):
        advice = f"Raise {engine.running_flag}; see the advice on the cap above."
        return "the cap on running requests was the limit", advice, totals.share(totals.capped_s)
    if much(totals.beyond_s, totals.beyond):
        advice = "Capture graphs for the batches that ran; see the advice above."
        return "the host was the limit: batches beyond the CUDA graphs", advice, totals.share(totals.beyond_s)
    if much(totals.waiting_s, totals.waiting):
        advice = "Requests waited with room in pool and batch: look at prefill (chunk size, prompts) and the policy."
        return "requests waited for their prefill", advice, totals.share(totals.waiting_s)
    if offline:
        advice = "The engine took all of it at once and then ran dry: give a run more requests to see its limit."
        return "the batch it was given was the limit: hardly anything waited", advice, None
    advice = (
        "The engine kept up: more load is what it takes to see its limit. `ridgeline bench --find-goodput` raises it "
        "until the latency limits break."
    )
    return "what came in was the limit: hardly anything waited", advice, None


def queue_growth(engine: ServingEngine, log: LogTally, knobs: EngineKnobs) -> Iterator[RawFinding]:
    """The queue at the end of the log is far longer than at its beginning: more came in than was served."""
    queue = log.served.queue_over_time()
    if len(queue) < 8 or not log.line("waiting"):
        return
    quarter = len(queue) // 4
    early, half, late = map(fmean, (queue[:quarter], queue[quarter : 2 * quarter], queue[-quarter:]))
    if late < 10 or late < 2 * max(1.0, early) or late < half:
        return
    yield RawFinding(
        f"the queue grew from {early:.0f} to {late:.0f} waiting requests: more came in than was served",
        tuple(Quote(line) for line in dict.fromkeys((log.line("waiting"), log.line("last-waiting"))) if line),
        "Latency grows without bound at this rate: send less here, add a replica, or raise what limits it.",
        "warning",
        share=log.served.totals.share(log.served.totals.waiting_s),
        knobs=knobs.named("cap"),
        key=f"{engine.name}.queue-growth",
    )


def served_figures(tally: ServedTally) -> tuple[SummaryFigure, ...]:
    """What two logs are compared by."""
    totals = tally.totals
    if not totals.decodes:
        return ()
    figures = [
        SummaryFigure("decode rate, mean", totals.decode_tok_s / totals.decodes, unit_of("output_tok_s")),
        SummaryFigure("running requests, mean", totals.running / totals.decodes),
        SummaryFigure("running requests, most", totals.most_running),
        SummaryFigure("KV pool, mean", totals.kv_share / totals.decodes, "share"),
        SummaryFigure("KV pool, peak", totals.peak_kv_share, "share"),
        SummaryFigure("lines with requests waiting", totals.waiting / totals.decodes, "share"),
        SummaryFigure("lines without a CUDA graph", totals.eager / totals.decodes, "share"),
    ]
    if totals.span_s > 0:
        figures += [
            SummaryFigure("time covered", totals.span_s, "s"),
            SummaryFigure("time in decode", totals.decode_s / totals.span_s, "share"),
            SummaryFigure("time in prefill", totals.prefill_s / totals.span_s, "share"),
            SummaryFigure("time idle", totals.idle_s / totals.span_s, "share"),
        ]
    return tuple(figures)


def failure_claims(engine: ServingEngine, log: LogTally, knobs: EngineKnobs) -> Iterator[RawFinding]:
    """One claim for the cause of a failed run.

    What an engine may survive, and after which it went on working, is no failure.
    """
    texts = log.texts()
    failures = ((kind, ready, line, texts.get(line, "")) for (kind, ready), line in log.failures.items())
    found = leading_cause(f for f in failures if f[0] not in SURVIVED or f[2] > log.last_work_line)
    if found is None:
        return
    kind, failure, line = found
    advice = advice_on(texts.get(line, ""), failure, engine.failure_texts, engine.flags).format(
        memory_flag=engine.memory_flag
    )
    key, tried = f"{engine.name}.failed-{kind}", knobs.named(failure.try_)
    yield RawFinding(failure.claim, (Quote(line),), advice, "fault", knobs=tried, key=key)


def told_to_stop(engine: ServingEngine, log: LogTally) -> Iterator[RawFinding]:
    if log.stop_line:
        advice = "Nothing to do: what its processes say to each other after that line is the stop, not a crash."
        claim, key = "the server was told to stop", f"{engine.name}.stopped"
        yield RawFinding(claim, (Quote(log.stop_line),), advice, "note", key=key)
