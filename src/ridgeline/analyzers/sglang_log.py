"""What an SGLang log means for the setting that produced it."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable

from ridgeline.analyzers.base import Analyzer, Claimed, Quote, cited, rereadable
from ridgeline.analyzers.engine_failures import failure_claims
from ridgeline.readers.sglang.facts import DecodeBatch, PrefillBatch, SglangLog
from ridgeline.readers.sglang.log import read_sglang_log
from ridgeline.records.finding import Finding

# Chat templates and chance give a few shared tokens; above this a benchmark's prompts were seen before.
CONTAMINATED_SHARE = 0.02


def analyze(source: str, lines: Iterable[str]) -> list[Finding]:
    """Findings of one engine's or server's log."""
    text = rereadable(lines)
    log = read_sglang_log(text)
    work = [p.stamp.line for p in log.prefills] + [d.stamp.line for d in log.decodes] + [r.line for r in log.results]
    failed = [(f.kind, f.ready, f.stamp.line) for f in log.failures]
    failures = failure_claims("sglang", failed, max(work, default=0))
    rules = (_contaminated, _graphs, _pool, _retractions, _queue, _compiles, _chunks, _notices)
    return cited(source, text, [*failures, *(claim for rule in rules for claim in rule(log))])


def _measured(log: SglangLog) -> tuple[list[PrefillBatch], list[DecodeBatch]]:
    start = log.benchmark_line or 0
    return [p for p in log.prefills if p.stamp.line > start], [d for d in log.decodes if d.stamp.line > start]


def _contaminated(log: SglangLog) -> list[Claimed]:
    share = log.cached_token_share
    if share is None or share <= CONTAMINATED_SHARE:
        return []
    prefills, _ = _measured(log)
    most = max(prefills, key=lambda p: p.cached_tokens)
    return [
        Claimed(
            f"{share:.1%} of the prompt tokens came from the cache: these prompts were seen before",
            (Quote(most.stamp.line, "#cached-token"),),
            "Unless users really share these prefixes, the result is too good. Use another seed for warm-up and "
            "measurement, call /flush_cache between runs, or measure with --disable-radix-cache.",
            "warning",
        )
    ]


def _graphs(log: SglangLog) -> list[Claimed]:
    largest = log.largest_decode_graph
    _, decodes = _measured(log)
    without = [d for d in decodes if d.cuda_graph is False]
    if not without:
        return []
    capture = [Quote(g.stamp.line) for g in log.graphs if g.phase == "decode"][:1]
    worst = max(without, key=lambda d: d.running)
    quotes = (*capture, Quote(worst.stamp.line))
    if largest is None:
        return [
            Claimed(
                f"{len(without)} of {len(decodes)} decode lines ran without a CUDA graph, and none was captured",
                quotes,
                "Decode steps of small batches are then limited by the host. Leave CUDA graphs on unless they do not "
                "fit; lower --mem-fraction-static a little to make room for them.",
            )
        ]
    beyond = [d for d in without if d.running > largest]
    if not beyond:
        return []
    return [
        Claimed(
            f"{len(beyond)} of {len(decodes)} decode lines ran more requests ({min(d.running for d in beyond)} to "
            f"{worst.running}) than the largest captured CUDA graph holds ({largest}), so the host became the limit",
            quotes,
            f"Raise --cuda-graph-max-bs-decode (older versions: --cuda-graph-max-bs) towards {worst.running}, or set "
            f"--max-running-requests to {largest}. Larger graphs cost memory: watch the KV pool.",
        )
    ]


def _pool(log: SglangLog) -> list[Claimed]:
    _, decodes = _measured(log)
    full = [d for d in decodes if (d.token_usage or 0.0) >= 0.95 and (d.queued or 0) > 0]
    if len(full) < max(2, len(decodes) // 10):
        return []
    free = log.limits[-1].available_gpu_bytes if log.limits else None
    spare = f" {free / 2**30:.1f} GiB of GPU memory stayed free after start." if free else ""
    pool = [Quote(log.kv_pools[0].stamp.line)] if log.kv_pools else []
    return [
        Claimed(
            f"the KV pool limits the batch: full in {len(full)} of {len(decodes)} decode lines while requests waited",
            (*pool, Quote(full[0].stamp.line, "token usage")),
            f"Raise --mem-fraction-static in small steps (`ridgeline edge` finds the last safe value), use "
            f"--kv-cache-dtype fp8_e5m2 where accuracy allows, or spread the model over more GPUs.{spare}",
        )
    ]


def _retractions(log: SglangLog) -> list[Claimed]:
    if not log.retractions:
        return []
    requests = sum(r.requests for r in log.retractions)
    first, last = log.retractions[0].stamp.line, log.retractions[-1].stamp.line
    return [
        Claimed(
            f"{requests} requests were taken back because the KV pool was full, and computed again later",
            tuple(Quote(line) for line in dict.fromkeys((first, last))),
            "Raise --schedule-conservativeness (1.3, say), lower --max-running-requests, or give the pool more memory.",
            "warning",
        )
    ]


def _queue(log: SglangLog) -> list[Claimed]:
    """Requests wait although the pool has room: the cap on running requests is the limit."""
    _, decodes = _measured(log)
    caps = [lim.max_running_requests for lim in log.limits if lim.max_running_requests]
    if not caps or not decodes:
        return []
    cap = min(caps)
    capped = [d for d in decodes if (d.queued or 0) > 0 and d.running >= 0.98 * cap and (d.token_usage or 0.0) < 0.8]
    if len(capped) < max(2, len(decodes) // 10):
        return []
    usage = max(d.token_usage or 0.0 for d in capped)
    return [
        Claimed(
            f"requests waited in {len(capped)} of {len(decodes)} decode lines at the cap of {cap} running requests, "
            f"with the KV pool at most {usage:.0%} full",
            (Quote(log.limits[0].stamp.line, "max_running_requests"), Quote(capped[0].stamp.line)),
            "Raise --max-running-requests, and --cuda-graph-max-bs-decode with it.",
        )
    ]


def _compiles(log: SglangLog) -> list[Claimed]:
    start = log.benchmark_line or log.ready_line
    late = [c for c in log.compiles if start is not None and c.stamp.line > start]
    if not late:
        return []
    return [
        Claimed(
            f"kernels were compiled while the run was being measured ({len(late)} lines)",
            (Quote(late[0].stamp.line),),
            "The first run of a setting pays this once. Compile before (sglang.compile_deep_gemm, a warm-up with the "
            "same shapes) and measure again; do not count this run.",
            "warning",
        )
    ]


def _chunks(log: SglangLog) -> list[Claimed]:
    """Long stretches of full prefill chunks keep running requests from their next token."""
    chunk = log.limits[-1].chunked_prefill_size if log.limits else None
    if not chunk or chunk < 0:
        return []
    longest: list[PrefillBatch] = []
    stretch: list[PrefillBatch] = []
    decode_lines = [d.stamp.line for d in log.decodes]
    for batch in log.prefills:
        interrupted = stretch and _between(decode_lines, stretch[-1].stamp.line, batch.stamp.line)
        if batch.new_tokens < 0.95 * chunk or not batch.running or interrupted:
            stretch = []
        if batch.new_tokens >= 0.95 * chunk and batch.running:
            stretch.append(batch)
        if len(stretch) > len(longest):
            longest = stretch
    if len(longest) < 10:
        return []
    first, last = longest[0], longest[-1]
    seconds = (last.stamp.time - first.stamp.time).total_seconds() if first.stamp.time and last.stamp.time else None
    lasting = f" for {seconds:.0f} s" if seconds else ""
    return [
        Claimed(
            f"{len(longest)} full prefill chunks of {chunk} tokens in a row{lasting}, while up to "
            f"{last.running} running requests got no token",
            (Quote(first.stamp.line), Quote(last.stamp.line)),
            "Right for a batch of requests known beforehand; under a latency limit try a smaller "
            "--chunked-prefill-size or --enable-mixed-chunk.",
            "note",
        )
    ]


def _between(lines: list[int], low: int, high: int) -> bool:
    """Whether a sorted list has a number between the two."""
    return bisect_left(lines, low) < bisect_left(lines, high)


def _notices(log: SglangLog) -> list[Claimed]:
    claims = []
    for kind, claim, advice in _NOTICES:
        said = [n for n in log.notices if n.kind == kind]
        if said:
            claims.append(
                Claimed(claim, (Quote(said[0].stamp.line),), advice, "note" if kind == "deprecated" else "advice")
            )
    return claims


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
    re.compile(r"ServerArgs\(model_path=|(?:Prefill|Decode) batch.{0,40}#(?:new-seq|running-req)"),
    analyze,
)
