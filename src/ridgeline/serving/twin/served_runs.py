"""Results of load generators as measured rows: the server that was loaded, what was sent to it, and what came back.

A result names the served model and the load. The engine's settings are in it where the server was asked for them
(`ridgeline bench` and SGLang's bench_serving do); else they come from the server's command line. No result names the
GPU. Where every request was kept, the very requests are replayed; else their recipe or their mean lengths.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.records.expression import Value
from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.flags import engine_flags
from ridgeline.serving.engines.knobs import ROWS, wrong_value
from ridgeline.serving.engines.releases import USUAL_ENGINE
from ridgeline.serving.engines.settings import EngineSettings, layout_of, model_of, parse_engine, role_of, settings_of
from ridgeline.serving.hardware.cluster import gpu_names, make_cluster
from ridgeline.serving.model.config import load_model
from ridgeline.serving.model.model import Model
from ridgeline.serving.traffic.bench_results import BenchRun, BenchSessions, read_bench_results
from ridgeline.serving.traffic.lengths import Fixed
from ridgeline.serving.traffic.replay import Replay, TraceRow
from ridgeline.serving.traffic.texts import Text
from ridgeline.serving.traffic.traffic import (
    AllAtOnce,
    AsRecorded,
    ClosedLoop,
    OpenLoop,
    Pace,
    Traffic,
    cut_short,
    parse_traffic,
)
from ridgeline.serving.twin.measured import Measured

# a 95th percentile of fewer requests than this is the word of three of them
ENOUGH = 60
# more failed requests than this and the others were not served under the load that was asked for
_MOST_FAILED = 0.05
# figure of a row -> latency and percentile of a result
FIGURES = {
    "ttft_p50_s": ("ttft", "p50"),
    "ttft_p95_s": ("ttft", "p95"),
    "tpot_mean_s": ("tpot", "mean"),
    "itl_p50_s": ("itl", "p50"),
}
# Half of the gaps below this share of the mean: tokens came in lumps, and a gap says nothing of a step.
_LUMPS = 0.3


@dataclass(frozen=True, slots=True)
class StatedServer:
    """What the user says of a server, where a result does not. `flags` is its command line, or a part of it."""

    model: str | None = None
    gpu: str | None = None
    engine: str | None = None
    flags: str = ""


def read_served_runs(path: Path, stated: StatedServer) -> list[Measured]:
    """A row for each run of the file that may be trusted; raises InputError where none may."""
    found, refused = [], []
    for run in read_bench_results(path):
        if why := _unfit(run):
            refused.append(f"{run.source}: {why}")
        else:
            found.append(_row(run, stated))
    if not found:
        raise InputError("\n".join(refused))
    return found


def _unfit(run: BenchRun) -> str:
    if run.flaw:
        return f"void, its own load generator was at fault ({run.flaw}); measure again, for example with --workers 2"
    if run.requests - run.failed < 1:
        return "no request was answered; nothing to fit"
    if run.failed > _MOST_FAILED * run.requests:
        return f"{run.failed} of {run.requests} requests failed; measure again with a load that the server answers"
    if run.sessions is not None and run.sessions.warmed:
        return "--cache-warmup filled the cache before the run, which the twin does not; measure again without it"
    if not _values(run):
        return "no time of a first token or between tokens; measure again with streaming"
    return ""


def deployment_of(run: BenchRun, stated: StatedServer) -> Deployment:
    """The server that was loaded; InputError where neither the result nor the user says what is needed."""
    values = dict(_settings(run, stated))
    if role_of(values) != "both":
        raise InputError(
            f"{run.source}: a server of the role {role_of(values)} alone; calibrate from a run against the router, "
            "or from a server that does both"
        )
    if stated.gpu is None:
        raise InputError(f"{run.source}: a result does not name the GPU; give --gpu, one of {', '.join(gpu_names())}")
    engine = _engine(run, stated)
    nodes = values.get("nnodes")
    layout = layout_of(values, nodes if isinstance(nodes, int) else 1, None)
    cluster = make_cluster(stated.gpu, layout.nodes, layout.gpus_per_node)
    return Deployment(model_of(_model(run, stated), values), cluster, layout, settings_of(values, engine))


def _row(run: BenchRun, stated: StatedServer) -> Measured:
    found = deployment_of(run, stated)
    notes = [note for note in (_lengths_note(run), model_note(run, found.model)) if note]
    return Measured(run.source, found, _traffic(run), _values(run), note="; ".join(notes), at_s=run.at_s)


def _values(run: BenchRun) -> dict[str, float]:
    """The figures that the tool measured; one that it made up from others says nothing."""
    found = {}
    for name, (latency, quantile) in FIGURES.items():
        ms = run.latencies_ms.get(latency, {}).get(quantile)
        few = quantile == "p95" and run.requests - run.failed < ENOUGH
        made_up = f"{latency}_ms" in run.derived and latency != "tpot"
        if ms is not None and ms > 0 and not few and not made_up:
            found[name] = ms / 1000
    if found.get("itl_p50_s", math.inf) < _LUMPS * found.get("tpot_mean_s", 0.0):
        del found["itl_p50_s"]
    return found


def _settings(run: BenchRun, stated: StatedServer) -> Iterator[tuple[str, Value]]:
    """What the server said, overruled by its command line where that is given."""
    flags = engine_flags(_engine(run, stated).engine)
    said = flags.from_echo(run.server)
    given = flags.from_arguments(_split(stated.flags))
    if not any(name in ROWS for name in (*said, *given)):
        raise InputError(
            f"{run.source}: does not say how the server was started; give its command line, such as "
            "--server-flags '--tp-size 8 --max-running-requests 256'; on one GPU with all defaults '--tp-size 1'"
        )
    if given.get("attn_dp", said.get("attn_dp", 1)) != 1:
        said.pop("dp", None)
    for name, value in {**said, **given}.items():
        wrong = wrong_value(name, value)
        if wrong and name in given:
            raise InputError(f"--server-flags: {wrong}")
        if not wrong:
            yield name, value


def _split(flags: str) -> list[str]:
    try:
        return shlex.split(flags)
    except ValueError as error:
        raise InputError(
            f"--server-flags {flags!r}: {error}; write the flags as on the server's command line"
        ) from None


def _engine(run: BenchRun, stated: StatedServer) -> EngineSettings:
    text = stated.engine
    if text is None:
        named, version = str(run.server.get("engine") or USUAL_ENGINE), str(run.server.get("version") or "")
        text = f"{named}:{version}" if version[:1].isdigit() else named
    found, said = parse_engine(text.partition("+")[0], EngineSettings()), run.server.get("engine")
    if said and said != found.engine:
        raise InputError(
            f"{run.source}: measured on {said}, but --engine says {found.engine}; leave --engine out or name {said}"
        )
    return found


def _model(run: BenchRun, stated: StatedServer) -> Model:
    if stated.model:
        return load_model(stated.model)
    if (found := _named_model(run)) is not None:
        return found
    raise InputError(
        f"{run.source}: the served model {run.model or 'without a name'!r} is no preset; give --model with a preset or "
        "the path of its config.json"
    )


def _named_model(run: BenchRun) -> Model | None:
    for name in (str(run.server.get("model_path") or ""), run.model):
        try:
            return load_model(name)
        except InputError:
            continue
    return None


def model_note(run: BenchRun, taken: Model) -> str:
    """Where the user says another model than the result: an alias, or the wrong file."""
    named = _named_model(run)
    return f"names {named.name}, taken as {taken.name}" if named is not None and named.name != taken.name else ""


def _traffic(run: BenchRun) -> Traffic:
    if run.sessions is None and _kept_all(run):
        return _replayed(run)
    if run.dataset:
        return _of_recipe(run) if run.max_tokens is None else cut_short(_of_recipe(run), run.max_tokens)
    return Traffic(_mean_lengths(run), max(1, run.requests), _pace(run))


def _of_recipe(run: BenchRun) -> Traffic:
    """The same draw; sessions driven as bench drove them."""
    asked = run.sessions or BenchSessions(run.requests)
    at_once = None if run.rate_s else run.concurrency
    return parse_traffic(
        run.dataset,
        requests=max(asked.requests, run.requests) if run.rate_s else asked.requests or run.requests,
        rate_s=run.rate_s,
        concurrency=at_once if run.sessions is None else None,
        sessions=None if run.sessions is None else at_once,
        closed=asked.closed,
        burstiness=run.burstiness,
        idle_cap_s=asked.rules.think_limit_s,
        start_within=asked.rules.start_within,
        duration_s=asked.duration_s,
        seed=run.seed,
    )


def _kept_all(run: BenchRun) -> bool:
    return bool(run.rows) and sum(row.ok for row in run.rows) >= run.requests - run.failed


def _replayed(run: BenchRun) -> Traffic:
    """Requests that were answered, with their own lengths; at their own times unless places were kept full."""
    good = [row for row in run.rows if row.ok and row.input_tokens > 0]
    timed = all(row.sent_s is not None for row in good)
    opening = Text(0) if run.shared_prefix_tokens else None
    rows = (
        TraceRow(
            row.input_tokens,
            max(1, row.output_tokens),
            row.sent_s,
            None if opening is None else Text(number, opening, run.shared_prefix_tokens),
        )
        for number, row in enumerate(good, start=1)
    )
    lengths = Replay(tuple(rows), run.source)
    pace = _pace(run) if run.concurrency and not run.rate_s else AsRecorded() if timed else _pace(run)
    return Traffic(lengths, len(good), pace)


def _mean_lengths(run: BenchRun) -> Fixed:
    if not (run.requests_s and run.input_tok_s and run.output_tok_s):
        raise InputError(
            f"{run.source}: does not say how long prompts and answers were; keep the requests (`ridgeline bench --out "
            "FILE`, bench_serving --output-details) and give that result"
        )
    lengths = (run.input_tok_s / run.requests_s, run.output_tok_s / run.requests_s)
    return Fixed(*(max(1, round(tokens)) for tokens in lengths))


def _pace(run: BenchRun) -> Pace:
    if run.rate_s:
        return OpenLoop(run.rate_s, run.burstiness)
    return ClosedLoop(run.concurrency) if run.concurrency else AllAtOnce()


def _lengths_note(run: BenchRun) -> str:
    if _kept_all(run) or run.dataset:
        return ""
    return "requests of their mean lengths: the result keeps neither the requests nor their recipe"


def load_of(row: Measured) -> str:
    """`5 requests/s`, `16 at once`: the load of a row, for people."""
    pace = row.traffic.pace
    if isinstance(pace, OpenLoop):
        return f"{pace.rate_s:g} requests/s"
    if isinstance(pace, ClosedLoop):
        return f"{pace.concurrency} at once"
    arrivals = row.traffic.arrivals()
    if isinstance(pace, AsRecorded) and pace.closed:
        return f"{sum(not arrival.after for arrival in arrivals)} at once"
    lasts_s = max(a.at_s for a in arrivals)
    return f"{len(arrivals) / lasts_s:.3g} requests/s" if lasts_s > 0 else f"{len(arrivals)} at once"
