"""What an SGLang log means for the setting that produced it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ridgeline.diagnose.base import Analyzer, LogSummary, Quote, RawFinding, SummaryFigure, cited
from ridgeline.records.finding import Finding, Severity
from ridgeline.records.measurement import unit_of
from ridgeline.serving.engines.sglang.engine import SGLANG
from ridgeline.serving.engines.sglang.tally import SglangTally, tally_sglang_log
from ridgeline.serving.findings.served import (
    EngineKnobs,
    failure_claims,
    queue_growth,
    served_figures,
    told_to_stop,
    what_limits,
)

# Chat templates and chance give a few shared tokens; above this a benchmark's prompts were seen before.
_CONTAMINATED_SHARE = 0.02
_STARVED_SHARE = 0.35
_MUCH = 0.25  # of the batch lines, from which on the transfer of KV is called the limit


def _analyze(source: str, lines: Iterable[str]) -> list[Finding]:
    """Findings of one engine's or server's log, in one pass and constant memory."""
    log = tally_sglang_log(lines)
    knobs = _knobs(log)
    claims = [*failure_claims(SGLANG, log, knobs)]
    for rule in (
        _contaminated,
        _graphs,
        _pool,
        _retractions,
        _capped,
        _compiles,
        _chunks,
        _notices,
        _answers,
        _never_ready,
    ):
        claims += rule(log, knobs)
    claims += told_to_stop(SGLANG, log)
    held_up = _held_up_by_kv(log)
    claims += [*held_up, *queue_growth(SGLANG, log, knobs)]
    if not held_up:
        claims += what_limits(SGLANG, log, offline=_offline(log))
    return cited(source, log.texts(), claims)


def _portray(lines: Iterable[str]) -> LogSummary:
    log = tally_sglang_log(lines)
    figures = list(served_figures(log.served))
    if log.result is not None:
        figures.insert(0, SummaryFigure("result: duration", log.result.duration_s, unit_of("duration_s")))
        if log.result.total_tok_s is not None:
            figures.insert(0, SummaryFigure("result: throughput", log.result.total_tok_s, unit_of("total_tok_s")))
    figures += [
        SummaryFigure("requests taken back", log.retracted),
        SummaryFigure("KV pool size", _tokens(log), unit_of("kv_tokens")),
    ]
    if (share := log.cached_token_share) is not None:
        figures.append(SummaryFigure("prompt tokens from cache", share, "share"))
    return LogSummary(tuple(figures), log.settings)


def _tokens(log: SglangTally) -> float:
    return float(log.pool.tokens if log.pool else 0)


def _knobs(log: SglangTally) -> EngineKnobs:
    said = {**log.settings, "cuda_graph_max_bs": log.largest_graph}
    if not isinstance(said.get("max_running_requests"), int):
        said["max_running_requests"] = log.cap
    if log.limits:
        said["chunked_prefill_size"] = log.limits.chunked_prefill_size
    return EngineKnobs(SGLANG.name, said)


def _contaminated(log: SglangTally, _: EngineKnobs) -> Iterator[RawFinding]:
    share = log.cached_token_share
    if share is None or share <= _CONTAMINATED_SHARE:
        return
    yield RawFinding(
        f"{share:.1%} of the prompt tokens came from the cache: these prompts were seen before",
        (Quote(log.line("cached"), "#cached-token"),),
        "Unless users really share these prefixes, the result is too good. Use another seed for warm-up and "
        "measurement, call /flush_cache between runs, or measure with --disable-radix-cache.",
        "warning",
        key="sglang.contaminated",
    )


def _graphs(log: SglangTally, knobs: EngineKnobs) -> Iterator[RawFinding]:
    totals, largest = log.served.totals, log.largest_graph
    if not totals.eager:
        return
    capture = [Quote(log.line("graphs"))] if log.line("graphs") else []
    if largest is None:
        yield RawFinding(
            f"{totals.eager} of {totals.decodes} decode lines ran without a CUDA graph, and none was captured",
            (*capture, Quote(log.line("eager"))),
            "Decode steps of small batches are then limited by the host. Leave CUDA graphs on unless they do not "
            "fit; lower --mem-fraction-static a little to make room for them.",
            share=totals.share(totals.eager_s),
            knobs=knobs.named("no-graphs"),
            key="sglang.no-graphs",
        )
        return
    if not totals.beyond:
        return
    yield RawFinding(
        f"{totals.beyond} of {totals.decodes} decode lines ran more requests ({log.least_beyond} to "
        f"{log.most_beyond}) than the largest captured CUDA graph holds ({largest}), so the host became the limit",
        (*capture, Quote(log.line("beyond"))),
        f"Raise --cuda-graph-max-bs-decode (older versions: --cuda-graph-max-bs) towards {log.most_beyond}, or set "
        f"--max-running-requests to {largest}. Larger graphs cost memory: watch the KV pool.",
        share=totals.share(totals.beyond_s),
        knobs=knobs.graphs_up_to(log.most_beyond),
        key="sglang.graph-misses",
    )


def _pool(log: SglangTally, knobs: EngineKnobs) -> Iterator[RawFinding]:
    totals = log.served.totals
    if totals.full < max(2, totals.decodes // 10):
        return
    free = log.limits.available_gpu_bytes if log.limits else None
    spare = f" {free / 2**30:.1f} GiB of GPU memory stayed free after start." if free else ""
    pool = [Quote(log.line("pool"))] if log.line("pool") else []
    yield RawFinding(
        f"the KV pool limits the batch: full in {totals.full} of {totals.decodes} decode lines while requests waited",
        (*pool, Quote(log.line("full"), "token usage")),
        f"Raise --mem-fraction-static in small steps (`ridgeline study edge` finds the last safe value), use "
        f"--kv-cache-dtype fp8_e5m2 where accuracy allows, or spread the model over more GPUs.{spare}",
        share=totals.share(totals.full_s),
        knobs=knobs.named("more-pool"),
        key="sglang.pool-full",
    )


def _retractions(log: SglangTally, knobs: EngineKnobs) -> Iterator[RawFinding]:
    if not log.retracted:
        return
    lines = dict.fromkeys((log.line("retraction"), log.line("last-retraction")))
    yield RawFinding(
        f"{log.retracted} requests were taken back because the KV pool was full, and computed again later",
        tuple(Quote(line) for line in lines),
        "Raise --schedule-conservativeness (1.3, say), lower --max-running-requests, or give the pool more memory.",
        "warning",
        knobs=knobs.named("retractions"),
        key="sglang.retractions",
    )


def _capped(log: SglangTally, knobs: EngineKnobs) -> Iterator[RawFinding]:
    """Requests wait although the pool has room: the cap on running requests is the limit."""
    totals = log.served.totals
    if log.cap is None or totals.capped < max(2, totals.decodes // 10):
        return
    yield RawFinding(
        f"requests waited in {totals.capped} of {totals.decodes} decode lines at the cap of {log.cap} running "
        f"requests, with the KV pool at most {log.capped_kv_share:.0%} full",
        (Quote(log.line("limits"), "max_running_requests"), Quote(log.line("capped"))),
        "Raise --max-running-requests, and --cuda-graph-max-bs-decode with it.",
        share=totals.share(totals.capped_s),
        knobs=knobs.named("cap"),
        key="sglang.cap",
    )


def _compiles(log: SglangTally, _: EngineKnobs) -> Iterator[RawFinding]:
    if not log.late_compiles:
        return
    yield RawFinding(
        f"kernels were compiled while the run was being measured ({log.late_compiles} lines)",
        (Quote(log.line("compile")),),
        "The first run of a setting pays this once. Compile before (sglang.compile_deep_gemm, a warm-up with the "
        "same shapes) and measure again; do not count this run.",
        "warning",
        key="sglang.late-compiles",
    )


def _chunks(log: SglangTally, knobs: EngineKnobs) -> Iterator[RawFinding]:
    """Prefill keeps running requests from their next token: in one long stretch, or over the whole log."""
    totals, stretch = log.served.totals, log.longest
    share = totals.share(totals.starved_s)
    chunk = log.limits.chunked_prefill_size if log.limits else None
    advice = (
        "Right for a batch of requests known beforehand; under a latency limit try a smaller --chunked-prefill-size "
        "or --enable-mixed-chunk."
    )
    severity: Severity = "note" if _offline(log) else "advice"
    if stretch.chunks >= 10 and chunk:
        seconds = stretch.last_s - stretch.first_s if stretch.last_s and stretch.first_s else 0.0
        lasting = f" for {seconds:.0f} s" if seconds else ""
        claim = (
            f"{stretch.chunks} full prefill chunks of {chunk} tokens in a row{lasting}, while up to {stretch.running} "
            "running requests got no token"
        )
        quotes: tuple[Quote, ...] = (Quote(log.line("stretch-first")), Quote(log.line("stretch-last")))
    elif share is not None and share >= _STARVED_SHARE and totals.busy_s >= 5 and log.line("starved"):
        claim = f"prefill took {share:.0%} of the working time while other requests were waiting for their next token"
        quotes = (Quote(log.line("starved")),)
    else:
        return
    yield RawFinding(claim, quotes, advice, severity, share, knobs.named("chunk"), "sglang.prefill-starves-decode")


def _offline(log: SglangTally) -> bool:
    """A batch known beforehand has no latency to keep: prefill first is then no fault of the setting."""
    return log.result is not None or log.line("benchmark") > 0 or not log.line("ready")


def _answers(log: SglangTally, _: EngineKnobs) -> Iterator[RawFinding]:
    failed = sum(count for code, count in log.refused.items() if code.startswith("5") and code != "503")
    if failed < 2 or not log.line("answered-5"):
        return
    yield RawFinding(
        f"{failed} requests were answered with a server error",
        (Quote(log.line("answered-5")),),
        "Look for the exception above each; a measurement with failed requests does not count.",
        "warning",
        key="sglang.server-errors",
    )


def _never_ready(log: SglangTally, _: EngineKnobs) -> Iterator[RawFinding]:
    if not log.line("settings") or log.limits or log.failures or log.stop_line or log.last_work_line:
        return
    yield RawFinding(
        "the log ends before the engine was ready, without saying why",
        (Quote(log.line("settings"), "ServerArgs("),),
        "It is still starting, or was killed from outside (time limit, memory of the node): look at the batch "
        "system's record of the job.",
        "warning",
        key="sglang.never-ready",
    )


def _held_up_by_kv(log: SglangTally) -> list[RawFinding]:
    """One warning, where for much of the log many requests of prefill or decode servers had their KV on its way.

    Such a server looks idle in every other figure: its queue is empty, since what waits was taken in already.
    """
    sides = (
        ("fetching", log.fetching, "waited here for their KV", "prefill servers, or the way from them,"),
        ("unsent", log.unsent, "were read and had not handed over their KV", "the transfer, or the decode servers,"),
    )
    return [
        RawFinding(
            f"up to {side.most} requests at once {what}: {whose} are the limit",
            (Quote(log.line(name)),),
            "Look at the other side's log for the same minutes. If neither is busy, the transfer is slow: check its "
            "back end and device (--disaggregation-transfer-backend, --disaggregation-ib-device; `ridgeline site "
            "preflight` names the devices) and the host's cores, which hand out every transfer.",
            "warning",
            share=side.many / side.lines,
            key="sglang.kv-on-its-way",
        )
        for name, side, what, whose in sides
        if side.many > 0 and side.many >= _MUCH * side.lines and log.line(name)
    ]


def _notices(log: SglangTally, _: EngineKnobs) -> Iterator[RawFinding]:
    for kind, claim, advice in _NOTICES:
        if line := log.line(kind):
            severity: Severity = "note" if kind == "deprecated" else "advice"
            yield RawFinding(claim, (Quote(line),), advice, severity, key=f"sglang.{kind}")


_NOTICES = (
    (
        "moe-untuned",
        "the fused MoE kernel has no tuned configuration for this GPU and shape",
        "Tune it once with SGLang's benchmark/kernels/fused_moe_triton/tuning_fused_moe_triton.py and keep the file "
        "with the engine; every later run of this model and GPU gains.",
    ),
    (
        "deprecated",
        "a flag in use will be removed",
        "Use the name the line proposes, so that the study survives the next engine version.",
    ),
)

ANALYZER = Analyzer(
    "sglang-log",
    "log of an SGLang server or engine",
    # those that fail at start may say no more than where it was
    re.compile(
        r"ServerArgs\(model_path=|\bserver_args=\{|(?:Prefill|Decode) batch.{0,40}#(?:new-seq|running-req)"
        r"|Scheduler hit an exception: |[/ ]sglang/(?:srt/|launch_server)|^\S*launch_server\.py: error: "
    ),
    _analyze,
    _portray,
    failures="own",
)
