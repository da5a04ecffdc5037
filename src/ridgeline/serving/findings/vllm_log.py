"""What a vLLM log means for the setting that produced it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ridgeline.diagnose.base import Analyzer, LogSummary, Quote, RawFinding, SummaryFigure, cited
from ridgeline.records.finding import Finding
from ridgeline.records.measurement import unit_of
from ridgeline.serving.engines.releases import parse_version
from ridgeline.serving.engines.vllm.defaults import usual_fraction
from ridgeline.serving.engines.vllm.engine import VLLM
from ridgeline.serving.engines.vllm.log import VllmTally, tally_vllm_log
from ridgeline.serving.findings.served import (
    EngineKnobs,
    failure_claims,
    queue_growth,
    served_figures,
    told_to_stop,
    what_limits,
)

_HITS = 0.05
_STARVED_SHARE = 0.2


def analyze(source: str, lines: Iterable[str]) -> list[Finding]:
    """Findings of one server's or engine's log, in one pass and constant memory."""
    log = tally_vllm_log(lines)
    release = parse_version(log.said.version) or VLLM.defaults.current
    knobs = EngineKnobs(VLLM.name, {"gpu_memory_utilization": usual_fraction(release), **log.said.args})
    claims = [*failure_claims(VLLM, log, knobs)]
    for rule in (_preemptions, _pool, _cap, _hits, _starved):
        claims += rule(log, knobs)
    claims += [*told_to_stop(VLLM, log), *queue_growth(VLLM, log, knobs), *what_limits(VLLM, log, fewest_lines=3)]
    return cited(source, log.texts(), claims)


def _portray(lines: Iterable[str]) -> LogSummary:
    log = tally_vllm_log(lines)
    figures = [
        *served_figures(log.served),
        SummaryFigure("requests preempted", log.said.preemptions),
        SummaryFigure("KV cache size", float(sum(c.tokens for c in log.said.kv_caches)), unit_of("kv_tokens")),
        SummaryFigure("prefix cache hits, peak", log.prefix_hit_share, "share"),
    ]
    return LogSummary(tuple(figures), log.said.args)


def _preemptions(log: VllmTally, knobs: EngineKnobs) -> Iterator[RawFinding]:
    if not log.said.preemptions or not log.line("preemption"):
        return
    yield RawFinding(
        f"{log.said.preemptions} requests were preempted for lack of KV cache and computed again",
        (Quote(log.line("preemption"), "reempt"),),
        "Raise --gpu-memory-utilization, lower --max-num-seqs, or use --kv-cache-dtype fp8 where accuracy allows.",
        "warning",
        knobs=knobs.named("retractions"),
        key="vllm.preemptions",
    )


def _pool(log: VllmTally, knobs: EngineKnobs) -> Iterator[RawFinding]:
    totals = log.served.totals
    if not totals.full:
        return
    size = [Quote(log.line("pool"))] if log.line("pool") else []
    yield RawFinding(
        f"the KV cache was full in {totals.full} of {log.rows} throughput lines while requests waited",
        (*size, Quote(log.line("full"), "KV cache usage")),
        "The cache limits the batch: give it more memory, or spread the model over more GPUs. Requests may "
        "also have been preempted, which 0.32 does not log: see vllm:num_preemptions_total of /metrics.",
        share=totals.share(totals.full_s),
        # the CPU build's pool is set by an environment variable that the log does not repeat
        knobs=() if any(c.device == "CPU" for c in log.said.kv_caches) else knobs.named("more-pool"),
        key="vllm.pool-full",
    )


def _cap(log: VllmTally, knobs: EngineKnobs) -> Iterator[RawFinding]:
    totals = log.served.totals
    if log.cap is None or not totals.capped:
        return
    yield RawFinding(
        f"requests waited at the cap of {log.cap} running sequences with the KV cache below 80%",
        (Quote(log.line("limits"), "max_num_seqs"), Quote(log.line("capped"), "Running")),
        "Raise --max-num-seqs.",
        share=totals.share(totals.capped_s),
        knobs=knobs.named("cap"),
        key="vllm.cap",
    )


def _hits(log: VllmTally, _: EngineKnobs) -> Iterator[RawFinding]:
    if log.prefix_hit_share <= _HITS:
        return
    yield RawFinding(
        f"up to {log.prefix_hit_share:.0%} of prompt tokens came from the prefix cache",
        (Quote(log.line("hits"), "Prefix cache hit rate"),),
        "If users do not share these prefixes, the prompts were seen before and the result is too good: use new "
        "seeds, or --no-enable-prefix-caching for a measurement.",
        "warning",
        key="vllm.contaminated",
    )


def _starved(log: VllmTally, knobs: EngineKnobs) -> Iterator[RawFinding]:
    totals = log.served.totals
    share = totals.share(totals.starved_s)
    if share is None or share < _STARVED_SHARE:
        return
    yield RawFinding(
        f"prompts were read while running requests got hardly a token, for {share:.0%} of the working time",
        (Quote(log.line("starved"), "Avg prompt throughput"),),
        "Under a latency limit, lower --max-num-batched-tokens so that prefill and decode share a step.",
        share=share,
        knobs=knobs.named("chunk"),
        key="vllm.prefill-starves-decode",
    )


ANALYZER = Analyzer(
    "vllm-log",
    "log of a vLLM server or engine",
    re.compile(
        r"vLLM API server version|\b[GCXT]PU KV cache size: |Avg prompt throughput: |LLM engine \(v"
        r"|^\((?:APIServer|EngineCore\w*|Vllm\w+|Worker\w*)(?: \w+=\d+)* pid=\d|^vllm:num_|EngineCore failed to start"
        r"|^vllm(?: serve)?: error: |[/ ]vllm/(?:v1|engine|entrypoints|executor)/"
    ),
    analyze,
    _portray,
    failures="own",
)
