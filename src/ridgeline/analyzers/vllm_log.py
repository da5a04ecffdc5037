"""What a vLLM log means for the setting that produced it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ridgeline.analyzers.base import Analyzer, Claimed, Quote, cited, rereadable
from ridgeline.analyzers.engine_failures import failure_claims
from ridgeline.analyzers.knobs import EngineKnobs
from ridgeline.readers.vllm_log import VllmLog, read_vllm_log
from ridgeline.records.finding import Finding


def analyze(source: str, lines: Iterable[str]) -> list[Finding]:
    """Findings of one server's or engine's log."""
    text = rereadable(lines)
    log = read_vllm_log(text)
    last_work = max((t.line for t in log.throughput), default=0)
    failures = failure_claims(
        "vllm", [(f.kind, f.ready, f.line) for f in log.failures], last_work, EngineKnobs("vllm", log.args)
    )
    return cited(source, text, [*failures, *_preemptions(log), *_pool(log), *_cap(log), *_hits(log)])


def _preemptions(log: VllmLog) -> list[Claimed]:
    if not log.preemptions or log.preemption_line is None:
        return []
    return [
        Claimed(
            f"{log.preemptions} requests were preempted for lack of KV cache and computed again",
            (Quote(log.preemption_line, "reempt"),),
            "Raise --gpu-memory-utilization, lower --max-num-seqs, or use --kv-cache-dtype fp8 where accuracy allows.",
            "warning",
        )
    ]


def _pool(log: VllmLog) -> list[Claimed]:
    full = [t for t in log.throughput if (t.kv_share or 0.0) >= 0.95 and (t.waiting or 0) > 0]
    if not full:
        return []
    size = [Quote(log.kv_caches[0].line)] if log.kv_caches else []
    return [
        Claimed(
            f"the KV cache was full in {len(full)} of {len(log.throughput)} throughput lines while requests waited",
            (*size, Quote(full[0].line, "KV cache usage")),
            "The cache limits the batch: give it more memory, or spread the model over more GPUs. Requests may "
            "also have been preempted, which 0.32 does not log: see vllm:num_preemptions_total of /metrics.",
        )
    ]


def _cap(log: VllmLog) -> list[Claimed]:
    cap = log.args.get("max_num_seqs")
    if not isinstance(cap, int) or log.args_line is None:
        return []
    capped = [t for t in log.throughput if (t.waiting or 0) > 0 and (t.running or 0) >= cap and (t.kv_share or 0) < 0.8]
    if not capped:
        return []
    return [
        Claimed(
            f"requests waited at the cap of {cap} running sequences with the KV cache below 80%",
            (Quote(log.args_line, "max_num_seqs"), Quote(capped[0].line, "Running")),
            "Raise --max-num-seqs.",
        )
    ]


def _hits(log: VllmLog) -> list[Claimed]:
    hits = [t for t in log.throughput if (t.prefix_hit_share or 0.0) > 0.05]
    if not hits:
        return []
    top = max(hits, key=lambda t: t.prefix_hit_share or 0.0)
    return [
        Claimed(
            f"up to {top.prefix_hit_share:.0%} of prompt tokens came from the prefix cache",
            (Quote(top.line, "Prefix cache hit rate"),),
            "If users do not share these prefixes, the prompts were seen before and the result is too good: use new "
            "seeds, or --no-enable-prefix-caching for a measurement.",
            "warning",
        )
    ]


ANALYZER = Analyzer(
    "vllm-log",
    "log of a vLLM server or engine",
    re.compile(
        r"vLLM API server version|\b[GCXT]PU KV cache size: |Avg prompt throughput: |LLM engine \(v"
        r"|^\((?:APIServer|EngineCore\w*) pid=\d|^vllm:num_"
    ),
    analyze,
)
