"""What a server's counters say between two looks at it, as measured rows for the fit.

Counters are differences, never totals since the start. The sums of the histograms of first tokens and of gaps are
exact. Together they are the time that requests spent in the server: divided by the time between the looks, how many
were under way (Little's law); each divided by what it counts, a mean. A median is known within its bucket. Stretches of
like load in one hour are taken together. Counters don't say how requests arrive: the twin keeps as many under way as
there were, and what it says of requests that come by themselves goes into the noise.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median

from ridgeline import catalog
from ridgeline.errors import InputError
from ridgeline.serving.engines.base import MetricNames, ServingEngine, engine_named
from ridgeline.serving.traffic.bench_results import BenchRun
from ridgeline.serving.traffic.lengths import Lengths, LogNormal
from ridgeline.serving.traffic.replay import Replay
from ridgeline.serving.traffic.texts import Text
from ridgeline.serving.traffic.traffic import AsRecorded, OpenLoop, Traffic
from ridgeline.serving.twin.fit import RUN_NOISE
from ridgeline.serving.twin.measured import METRICS, Measured
from ridgeline.serving.twin.metrics_pages import PLAIN, Figure, MetricsPages, read_pages
from ridgeline.serving.twin.served_runs import StatedServer, deployment_of, model_note
from ridgeline.serving.twin.simulate import simulate
from ridgeline.stats.wording import count

_HOUR_S = 3600.0
_FEWEST = 20  # requests; fewer are not fitted
_STEADY = 1.5  # a stretch counts where the one before or after it has a load this near: else it began or ended in it
# A first token is counted when it comes: where it takes more of the time between two looks, it is of another stretch.
_LATE = 0.1
_LIKE = 2.0  # loads between two powers of it are one load
# A simulation sends so many rounds of requests: enough that filling up and running empty hardly count.
_ROUNDS, _LEAST, _MOST_SENT = 20, 400, 1500
_MOST_WINDOWS = 8  # the fit simulates each about a hundred times
_GAP = 5.0  # looks so many times farther apart than usual: nobody knows what was in between
# A median whose bucket is wider than two runs differ is not used; the mean is exact.
_WIDEST = {"ttft": 0.15, "itl": RUN_NOISE}
# A figure that depends so much on how requests arrive, as a logarithm, says nothing of the machine.
_MOST_UNSURE = 0.35
_USUAL_SIGMA = 1.0  # of lengths, where the page has no histogram of them
_BORN = ("process_start_time_seconds", PLAIN)
_FIGURES = (("ttft_mean_s", "ttft", False), ("ttft_p50_s", "ttft", True), ("itl_mean_s", "itl", False),
            ("itl_p50_s", "itl", True))  # fmt: skip


@dataclass
class Window:
    """What was counted in stretches of time of like load."""

    begin_s: float = math.inf
    end_s: float = 0.0
    lasts_s: float = 0.0
    counted: defaultdict[Figure, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, begin_s: float, end_s: float, counted: Mapping[Figure, float]) -> None:
        self.begin_s, self.end_s = min(self.begin_s, begin_s), max(self.end_s, end_s)
        self.lasts_s += end_s - begin_s
        for figure, number in counted.items():
            self.counted[figure] += number

    def of(self, name: str) -> float:
        return self.counted[name, PLAIN]

    def mean(self, histogram: str, least: float = 0.0) -> float:
        """`least`: how many there were at least, where the histogram may count several as one."""
        return self.of(f"{histogram}_sum") / max(least, self.of(f"{histogram}_count"))

    def under_way(self, names: MetricNames) -> float:
        return (self.of(f"{names.ttft}_sum") + self.of(f"{names.itl}_sum")) / self.lasts_s

    def buckets(self, histogram: str) -> list[tuple[float, float, float]]:
        """Lower edge, upper edge and how many, of each bucket that holds any."""
        so_far = [(0.0, 0.0), *sorted((e, n) for (name, e), n in self.counted.items() if name == f"{histogram}_bucket")]
        return [(low, high, many - before) for (low, before), (high, many) in pairwise(so_far) if many > before]

    def median(self, histogram: str) -> tuple[float, float]:
        """Where it lies if its bucket is evenly filled, and how unsure that is, as a logarithm."""
        buckets = self.buckets(histogram)
        left = sum(many for *_, many in buckets) / 2
        for low, high, many in buckets:
            if left <= many:
                unsure = math.log(high / low) / math.sqrt(12) if low else math.inf
                return low + (high - low) * left / many, unsure
            left -= many
        return math.inf, math.inf

    def sigma(self, histogram: str) -> float:
        """Of the logarithms, less what numbers anywhere in their buckets would have."""
        logs = [(math.log(max(low, 1.0)), math.log(high), many) for low, high, many in self.buckets(histogram)
                if 1.0 <= high < math.inf]  # fmt: skip
        total = sum(many for *_, many in logs)
        if not total:
            return _USUAL_SIGMA
        mean = sum((low + high) / 2 * many for low, high, many in logs) / total
        parts = (((low + high) / 2 - mean) ** 2 - (high - low) ** 2 / 12 for low, high, _ in logs)
        variance = sum(part * many for part, (*_, many) in zip(parts, logs, strict=True)) / total
        return min(2.0, math.sqrt(max(0.0, variance)))


def read_windows(path: Path, stated: StatedServer) -> tuple[list[Measured], list[str]]:
    """Rows for the fit, and what of the file was left out, with the reason; InputError where nothing is left."""
    pages = read_pages(path)
    engine = _engine(pages)
    left_out: list[str] = []
    windows = sorted(_windows(pages, engine.metrics, left_out), key=lambda w: -w.of(f"{engine.metrics.ttft}_count"))
    served = [w for w in windows if w.of(f"{engine.metrics.ttft}_count") >= _FEWEST]
    served = [w for w in served if all(w.of(name) > 0 for name in _needed(engine.metrics))]
    if len(served) < len(windows):
        few = count(len(windows) - len(served), "load")
        left_out.append(f"{few} that fewer than {_FEWEST} requests met: not fitted")
    if len(served) > _MOST_WINDOWS:
        left_out.append(f"of {len(served)} hours and loads the {_MOST_WINDOWS} with most requests are fitted")
    rows = []
    for window in sorted(served[:_MOST_WINDOWS], key=lambda w: w.begin_s):
        row = _row(window, pages, engine, stated, left_out)
        rows += [row] if row.values else []
    if not rows:
        why = "; ".join(left_out) or "one page only, and counters are compared between two"
        raise InputError(
            f"{path}: nothing to fit: {why}; scrape longer, while the server is loaded (`ridgeline bench` does that)"
        )
    return rows, [f"{path.name}: {what}" for what in dict.fromkeys(left_out)]


def _engine(pages: MetricsPages) -> ServingEngine:
    """Whose pages these are."""
    homes = [home for home in map(engine_named, catalog.names("engines")) if home.metrics.itl]
    seen = {name for page in pages.pages for name, _ in page.figures}
    several = [home for home in homes if f"{home.metrics.ttft}_count" in seen]
    if not several:
        wanted = " nor ".join(f"{home.metrics.ttft}_count" for home in homes)
        raise InputError(
            f"{pages.source}: neither {wanted}; give pages of a server that has answered requests, not of a router "
            "(SGLang shows its own with --enable-metrics)"
        )
    named = {"engines": [home.title for home in several], "models": pages.named("model_name")}
    for what, names in (named | {"servers": pages.named("instance")}).items():
        if len(names) > 1:
            raise InputError(
                f"{pages.source}: figures of {len(names)} {what} ({', '.join(names[:3])}); give those of one server "
                "and one model at a time"
            )
    (found,) = several
    answered = [page.figures for page in pages.pages if page.figures.get((f"{found.metrics.ttft}_count", PLAIN))]
    shown = {name for figures in answered for name, _ in _under_todays_names(figures, found.metrics)}
    # before its first request a server may show none of them
    if answered and (missing := [name for name in _needed(found.metrics) if name not in shown]):
        raise InputError(
            f"{pages.source}: no {', '.join(missing)} as a number; give whole pages of the engine's own /metrics"
        )
    return found


def _needed(names: MetricNames) -> tuple[str, ...]:
    """How many requests were under way, came and ended follows from these."""
    return (f"{names.ttft}_sum", f"{names.itl}_sum", f"{names.itl}_count", f"{names.e2e}_count")


def _windows(pages: MetricsPages, names: MetricNames, left_out: list[str]) -> list[Window]:
    """By hour and load, of stretches in which the load was steady."""
    loaded = list(_loaded(pages, names, left_out))
    loads = [0.0, *(stretch.under_way(names) for stretch in loaded), 0.0]
    found: dict[tuple[int, int], Window] = {}
    unsteady = late = 0
    for stretch, sooner, load, later in zip(loaded, loads, loads[1:], loads[2:], strict=False):
        hour = int((stretch.begin_s - loaded[0].begin_s) / _HOUR_S)
        if stretch.mean(names.ttft, 1.0) > _LATE * stretch.lasts_s:
            late += 1
        elif len(loaded) > 1 and not any(load / _STEADY < other < load * _STEADY for other in (sooner, later)):
            unsteady += 1
        else:
            window = found.setdefault((hour, round(math.log(load, _LIKE))), Window())
            window.add(stretch.begin_s, stretch.end_s, stretch.counted)
    if unsteady:
        left_out.append(f"{count(unsteady, 'interval')} with a load unlike those before and after: not fitted")
    if late:
        left_out.append(
            f"{count(late, 'interval')} in which first tokens took above {_LATE:.0%} of it: not fitted; look less "
            "often (--every), or load it less"
        )
    return list(found.values())


def _loaded(pages: MetricsPages, names: MetricNames, left_out: list[str]) -> Iterator[Window]:
    """Between each two looks. A server that was started anew, a clock that was set, torn pages, gaps and idle time are
    left out."""
    looks = [(page.at_s, _under_todays_names(page.figures, names)) for page in pages.pages if page.figures]
    if silent := len(pages.pages) - len(looks):
        left_out.append(f"no page came {count(silent, 'time')}")
    usual_s = median([b - a for (a, _), (b, _) in pairwise(looks) if b > a] or [math.inf])
    torn = {page.at_s for page in pages.pages if page.torn}
    whole, known = [], set[Figure]()
    for at_s, figures in looks:
        counted = {figure for figure in figures if figure[0].startswith(_counting(names))}
        if at_s in torn or not counted >= known:
            torn.add(at_s)
        else:
            whole.append((at_s, figures))
            known = counted
    if torn:
        left_out.append(
            f"{count(len(torn), 'page')} cut off, or without counters that were there before, the first at "
            f"{_clock(min(torn))}: left out"
        )
    wrong: dict[str, list[str]] = defaultdict(list)
    idle_s = 0.0
    for (begin_s, one), (end_s, other) in pairwise(whole):
        moved = {f: other[f] - one.get(f, 0.0) for f in other if f[0].startswith(_counting(names))}
        between = f"{_clock(begin_s)} and {_clock(end_s)}"
        if end_s <= begin_s:
            wrong["the clock went back" if end_s < begin_s else "no time passed"].append(between)
        elif end_s - begin_s > _GAP * usual_s:
            wrong["no page"].append(between)
        elif min(moved.values(), default=0.0) < 0 or one.get(_BORN) != other.get(_BORN):
            wrong["the server was started anew"].append(between)
        else:
            stretch = Window()
            stretch.add(begin_s, end_s, moved)
            if stretch.under_way(names) > 0:
                yield stretch
            else:
                idle_s += stretch.lasts_s
    for what, where in wrong.items():
        again = f", and {count(len(where) - 1, 'time')} more" if len(where) > 1 else ""
        left_out.append(f"{what} between {where[0]}{again}: left out")
    if idle_s:
        left_out.append(f"{idle_s:.0f} s without load: not fitted")


def _counting(names: MetricNames) -> tuple[str, ...]:
    """Beginnings of the names that only ever grow."""
    return tuple(name for name in (names.ttft, names.itl, names.e2e, names.prompt_tokens, names.output_tokens,
                                   names.cached_tokens, names.cache_queries, names.prompt_lengths,
                                   names.output_lengths) if name)  # fmt: skip


def _under_todays_names(figures: Mapping[Figure, float], names: MetricNames) -> dict[Figure, float]:
    """Under today's names, where a release has a former one alone."""
    found = dict(figures)
    for former, now in names.former:
        if not any(name.startswith(now) for name, _ in figures):
            found |= {(name.replace(former, now), e): n for (name, e), n in figures.items() if name.startswith(former)}
    return found


def _row(
    window: Window, pages: MetricsPages, engine: ServingEngine, stated: StatedServer, left_out: list[str]
) -> Measured:
    names, model = engine.metrics, "".join(pages.named("model_name"))
    run = BenchRun("metrics", pages.source, model=model, server={"engine": engine.name, **pages.server})
    deployment = deployment_of(run, stated)
    left_out += [note] if (note := model_note(run, deployment.model)) else []
    first = window.of(f"{names.ttft}_count")
    kept_up = _traffic(window, names)
    by_itself = replace(kept_up, lengths=_alone(kept_up.lengths), pace=OpenLoop(first / window.lasts_s))
    both = [simulate(deployment, traffic) for traffic in (kept_up, by_itself)]
    # a step of speculative decoding makes several tokens in one gap
    gaps = {"itl": window.of(names.made) - first}
    values, noise = {}, {}
    for metric, kind, middle in _FIGURES:
        histogram = getattr(names, kind)
        value, unsure = window.median(histogram) if middle else (window.mean(histogram, gaps.get(kind, 0.0)), 0.0)
        if unsure > _WIDEST[kind]:
            left_out.append(f"no median of {kind}: no bucket is narrow enough there; the mean is used")
            continue
        either = [METRICS[metric](result) or math.inf for result in both]
        arrival = abs(math.log(either[0] / either[1])) / 2 if max(either) < math.inf else math.inf
        if arrival > _MOST_UNSURE:
            left_out.append(
                f"{metric} from {_clock(window.begin_s)}: not fitted, as it depends on how requests arrive, which no "
                "counter says; a result of `ridgeline bench` does"
            )
            continue
        values[metric] = value
        noise[metric] = math.hypot(unsure, arrival, 1 / math.sqrt(first) if kind == "ttft" else 0.0)
    source = f"{Path(pages.source).name} {_clock(window.begin_s)}"
    return Measured(source, deployment, kept_up, values, noise=noise, at_s=(window.begin_s + window.end_s) / 2)


def _traffic(window: Window, names: MetricNames) -> Traffic:
    """As many requests under way as there were, one after the other at each place, which begin one by one.

    Lengths are log-normal around the means, as wide as the page's histograms; the cached share of a prompt is one that
    all share.
    """
    at_once, ended = max(1, round(window.under_way(names))), window.of(f"{names.e2e}_count")
    inputs, outputs = (
        max(1.0, window.mean(exact) if window.of(f"{exact}_count") else window.of(tokens) / ended)
        for exact, tokens in ((names.prompt_lengths, names.prompt_tokens), (names.output_lengths, names.output_tokens))
    )
    drawn = LogNormal(inputs, outputs, window.sigma(names.prompt_lengths), window.sigma(names.output_lengths))
    looked_up = window.of(names.cache_queries or names.prompt_tokens)
    share = min(1.0, window.of(names.cached_tokens) / looked_up) if looked_up > 0 else 0.0
    between_s = window.lasts_s / window.of(f"{names.ttft}_count")
    opening = Text(0) if share > 0 else None
    requests = min(_MOST_SENT, max(_LEAST, _ROUNDS * at_once))
    rows = [
        replace(
            row,
            at_s=place * between_s if place < at_once else None,
            text=opening and Text(place + 1, opening, int(share * row.input_tokens)),
            session=place % at_once,
            after=(place - at_once,) if place >= at_once else (),
        )
        for place, row in enumerate(drawn.draw(requests, random.Random(0)))
    ]
    return Traffic(Replay(tuple(rows), "metrics"), requests, AsRecorded(closed=True))


def _alone(lengths: Lengths) -> Lengths:
    """The same requests, of which none waits for another."""
    assert isinstance(lengths, Replay)
    return replace(lengths, rows=tuple(replace(row, session=None, after=()) for row in lengths.rows))


def _clock(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M:%S}Z"
