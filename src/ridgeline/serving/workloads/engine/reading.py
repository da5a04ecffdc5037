"""From a finished run of an engine to measurements, with the proof of what was applied."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from ridgeline.diagnose.readers.lines import TextFile
from ridgeline.errors import ReadError
from ridgeline.files import read_text
from ridgeline.records.expression import Value, is_number
from ridgeline.records.measurement import Measurement, Reading, metric_named, metrics_of, reported
from ridgeline.records.run import OWN_LOG, Run
from ridgeline.serving.engines.base import OFFLINE_RESULT, EngineLog, ServingEngine
from ridgeline.serving.engines.knobs import engine_total, rank_share
from ridgeline.serving.engines.nccl_log import read_nccl_log
from ridgeline.serving.hardware.gpu_limits import CLOCK
from ridgeline.serving.metrics import LATENCIES, QUANTILES
from ridgeline.serving.traffic.requests import REQUESTS

MEASURED = "measured.json"
ANSWERS = "answers.jsonl"
QUESTION_METRICS = frozenset({"accuracy", "accuracy_change", "answer_agreement", "questions_asked"})
# Prompts of a run are made for it; a share above this came from a run or a warm-up that sent the same ones.
LARGEST_CACHED_SHARE = 0.05
# Engines draw how many of a step's drafts are kept: over some dozens of steps the mean is this close to what was asked.
_KEPT_OFF = 0.1
_CLOCK_ABOVE = 1.03  # drivers take the nearest clock that a GPU has
# A client whose places stand empty for longer than this share of an answer, or whose core is full, limits throughput.
_LARGEST_LAG_SHARE, _BUSY_CLIENT = 0.05, 0.95


@dataclass(frozen=True, slots=True)
class AskedSettings:
    """What a trial asked of the engine, under the names by which logs repeat it; travels in session.json."""

    echo: Mapping[str, Value] = field(default_factory=dict)
    nccl: Mapping[str, str] = field(default_factory=dict)
    version: str = ""
    attention_groups: int = 1
    accept_length: float | None = None  # that it was made to keep of its drafts


def read_run(dialect: ServingEngine, run: Run, needed: set[str]) -> Reading:
    """Everything the run's files say. Nothing here raises for what an engine wrote."""
    session, measured = _json(run.folder / "session.json"), _json(run.folder / MEASURED)
    try:
        start, end = measured.get("measured_from_line"), measured.get("measured_to_line")
        lines = islice(TextFile(run.folder / OWN_LOG), int(end) if end else None)
        log = dialect.read(lines, int(start or 0))
    except ReadError:
        log = EngineLog()
    found = {m.metric: m for m in log.figures}
    for measurement in (*_results(dialect, run.folder, session, measured), *_session_figures(measured)):
        found[measurement.metric] = measurement
    if log.cached_share is not None:
        found["cached_token_share"] = reported("cached_token_share", log.cached_share, OWN_LOG)
    found.setdefault("wall_s", reported("wall_s", run.ending.duration_s, "run"))
    found |= _per_token(found)
    expected = session.get("predicted_tok_s")
    if isinstance(expected, int | float) and math.isfinite(expected):
        # said before the run, by the twin: beside what was measured, it shows how far the twin can be trusted
        found["predicted_tok_s"] = reported("predicted_tok_s", expected, "session.json", "modelled")
    asked = AskedSettings(**session["asked"]) if isinstance(session.get("asked"), dict) else AskedSettings()
    version = str(measured.get("engine_version") or log.version or "")
    return Reading(
        measurements=tuple(found.values()),
        texts={"engine_version": version} if version else {},
        unverified="; ".join([*_unapplied(asked, log, version, run.folder), *_faster_clock(session, measured)]),
        contaminated="; ".join(_contaminations(session, measured, log, needed)),
        wrong=_inaccurate(measured),
        problem="; ".join(_problems(session, found, needed)),
        applied=log.echo,
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _results(
    dialect: ServingEngine, folder: Path, session: Mapping[str, Any], measured: Mapping[str, Any]
) -> Iterable[Measurement]:
    if not session.get("serves"):
        try:
            text = read_text(folder / OFFLINE_RESULT) if (folder / OFFLINE_RESULT).exists() else ""
            return dialect.offline_result(text, TextFile(folder / OWN_LOG))
        except (OSError, ReadError):
            return ()
    summary = measured.get("summary")
    return tuple(_served(summary)) if isinstance(summary, dict) else ()


def _served(summary: Mapping[str, Any]) -> Iterator[Measurement]:
    plain = ("total_tok_s", "output_tok_s", "input_tok_s", "requests_s", "duration_s", "goodput")
    for name in (*plain, "successful_requests", "failed_requests"):
        yield from _figure(name, summary.get(name))
    for latency in LATENCIES:
        spread = summary.get(f"{latency}_ms") or {}
        for quantile in QUANTILES if isinstance(spread, dict) else ():
            yield from _figure(f"{latency}_{quantile}_ms", spread.get(quantile))


def _session_figures(measured: Mapping[str, Any]) -> Iterator[Measurement]:
    yield from _figure("ready_s", measured.get("ready_s"))
    baked, ready_s = measured.get("baked"), measured.get("ready_s")
    if isinstance(baked, dict) and is_number(baked.get("ready_s")) and is_number(ready_s):
        yield from _figure("start_saved_s", baked["ready_s"] - ready_s)
    yield from _figure("perplexity", measured.get("perplexity"))
    answered = measured.get("questions")
    if isinstance(answered, dict):
        for name in sorted(QUESTION_METRICS):
            yield from _figure(name, answered.get(name))
    monitored = measured.get("monitor")
    for name, value in monitored.items() if isinstance(monitored, dict) else ():
        yield from _figure(str(name), value)


def _faster_clock(session: Mapping[str, Any], measured: Mapping[str, Any]) -> Iterator[str]:
    """Drivers do not tell what a clock is locked to: it shows in what was seen of it under load."""
    limits, seen = session.get("gpu_limits"), measured.get("monitor")
    locked = limits.get(CLOCK) if isinstance(limits, dict) else None
    mean = seen.get("gpu_sm_mean_mhz") if isinstance(seen, dict) else None
    if is_number(locked) and is_number(mean) and mean > locked * _CLOCK_ABOVE:
        yield f"{CLOCK} {locked:g}: the GPUs ran at {mean:.0f} MHz on average"


def _inaccurate(measured: Mapping[str, Any]) -> str:
    """What is wrong with the answers to the questions of known answer, held against those of the study's first run."""
    found = measured.get("questions")
    if not isinstance(found, dict) or found.get("decision", "kept") == "kept":
        return ""
    lost, allowed = -100 * float(found["accuracy_change"]), 100 * float(found["allowed_loss"])
    text = (
        f"{found['accuracy']:.1%} of {found['questions_asked']} questions right, {lost:.1f} points lost against the "
        f"baseline's answers (at most {-100 * found['low']:.1f}); {allowed:g} are allowed"
    )
    if found["decision"] == "lost":
        return f"less accurate: {text}"
    return f"not shown to be as accurate: {text}; {found['needed']} questions would tell"


def _figure(name: str, value: object) -> Iterator[Measurement]:
    if metric_named(name) is not None and is_number(value) and math.isfinite(value):
        yield reported(name, value, MEASURED)


def _per_token(found: Mapping[str, Measurement]) -> dict[str, Measurement]:
    energy, seconds, per_token = found.get("energy_j"), found.get("duration_s"), dict[str, Measurement]()
    for name, counted in (("joules_per_token", "total_tok_s"), ("joules_per_output_token", "output_tok_s")):
        rate = found.get(counted)
        if energy is not None and rate is not None and seconds is not None and rate.value * seconds.value > 0:
            joules = energy.value / (rate.value * seconds.value)
            per_token[name] = reported(name, joules, MEASURED)
    return per_token


def _unapplied(asked: AskedSettings, log: EngineLog, version: str, folder: Path) -> Iterator[str]:
    # 0.5.1 is 0.5.1.post2, and not 0.5.10
    if asked.version and version and not re.match(rf"{re.escape(asked.version)}(?!\d)", version):
        yield f"the study says release {asked.version}, the engine is {version}"
    for name, value in asked.echo.items():
        if name in log.echo and not _same(value, log.echo[name]):
            yield f"asked for {name} {value}, the engine applied {log.echo[name]}"
    limit, wanted = log.running_limit, asked.echo.get("max_running_requests")
    groups = asked.attention_groups
    if limit is not None and isinstance(wanted, int) and limit < rank_share(wanted, groups):
        yield f"asked for max_running_requests {wanted}, the engine runs {engine_total(limit, groups)} at most"
    kept = next((figure.value for figure in log.figures if figure.metric == "accept_length"), None)
    if asked.accept_length is not None and kept is not None and abs(kept / asked.accept_length - 1) > _KEPT_OFF:
        yield f"asked for an accept length of {asked.accept_length:g}, the engine kept {kept:.2f}"
    if asked.nccl:
        try:
            said = read_nccl_log(TextFile(folder / OWN_LOG)).unapplied(asked.nccl)
        except ReadError:
            said = {}
        for name, other in said.items():
            yield f"asked for {name}={asked.nccl[name]}, NCCL says {other or 'nothing of it'}"


def _same(asked: Value, echoed: object) -> bool:
    if isinstance(asked, bool) or isinstance(echoed, bool):
        return bool(asked) == bool(echoed)
    if isinstance(asked, int | float) and isinstance(echoed, int | float):
        return math.isclose(asked, echoed, rel_tol=1e-9)
    return str(asked) == str(echoed) or _parsed(asked) == _parsed(echoed)


def _parsed(value: object) -> object:
    """A flag that takes JSON is logged as Python writes it: `{"a": true}` as `{'a': True}`."""
    text = str(value)
    if not text.startswith(("{", "[")):
        return text
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(text)
        except (ValueError, SyntaxError):
            continue
    return text


def _contaminations(
    session: Mapping[str, Any], measured: Mapping[str, Any], log: EngineLog, needed: set[str]
) -> Iterator[str]:
    share = log.cached_share
    load = session.get("load")
    replayed = isinstance(load, dict) and Path(str(load.get("traffic", ""))).is_absolute()
    if share is not None and share > LARGEST_CACHED_SHARE and not replayed:
        yield f"{share:.0%} of the prompts' tokens came from a cache: they were seen before"
    summary = measured.get("summary")
    if (
        isinstance(summary, dict)
        and summary.get("void")
        and (needed & ({*metrics_of("serve")} - {*metrics_of("offline")}) or _starved(summary))
    ):
        yield f"the load generator voids its own run: {summary.get('why') or 'no reason given'}"


def _starved(summary: Mapping[str, Any]) -> bool:
    """Whether the client itself held back the load. Late time stamps spoil latencies; throughput they do not touch."""
    client = summary.get("client") or {}
    lag, answer = client.get("send_lag_ms") or {}, summary.get("e2e_ms") or {}
    late = float(lag.get("mean") or 0.0) > _LARGEST_LAG_SHARE * float(answer.get("mean") or 0.0)
    return late or float(client.get("cpu_share") or 0.0) > _BUSY_CLIENT or not summary.get("successful_requests")


def _problems(session: Mapping[str, Any], found: Mapping[str, Measurement], needed: set[str]) -> Iterator[str]:
    if "total_tok_s" not in found:
        yield "no result was written; the end of engine.log says how far the engine came"
        return
    load = session.get("load")
    wanted = load.get("requests") if isinstance(load, dict) else None
    served = found.get("successful_requests")
    if served is not None and isinstance(wanted, int) and served.value < wanted:
        yield f"{served.value:.0f} of {wanted} requests succeeded; the others are in engine.log or {REQUESTS}"
    for name in sorted(needed & {*metrics_of("run", "offline", "serve")} - found.keys()):
        yield f"{name} was not measured in this run"
