"""SGLang, 0.4.8 to 0.5.23: flags that moved, its server and offline benchmark, its log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TypeVar

from ridgeline.engines.deepep import mode_refusal
from ridgeline.engines.knobs.engine_flags import EngineFlags, engine_flags
from ridgeline.engines.knobs.meaning import role_of
from ridgeline.engines.knobs.releases import Version, release_meant
from ridgeline.model.model import Model
from ridgeline.readers.sglang.facts import OfflineResult, SglangLog, Stamp
from ridgeline.readers.sglang.log import read_sglang_log
from ridgeline.readers.sglang.offline import read_offline_jsonl
from ridgeline.records.expression import Value
from ridgeline.records.measurement import Measurement
from ridgeline.records.metrics import reported
from ridgeline.workloads.engine.dialect import (
    DATASET,
    ENGINE_LOG,
    MODEL,
    OFFLINE_RESULT,
    PORT,
    EngineDialect,
    EngineLog,
    OneTimeStep,
    Span,
    joined,
)
from ridgeline.workloads.engine.options import Install, Load
from ridgeline.workloads.engine.sglang_steps import SGLANG_STEPS, serve, several_nodes

# sglang.benchmark.offline_throughput; sglang.bench_offline_throughput went with 0.5.21
_BENCHMARKS: Version = (0, 5, 15)

_INTROSPECT = """
import argparse, json
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
kinds = {}
for action in parser._actions:
    for option in action.option_strings:
        if option.startswith("--") and option != "--help":
            kind = "switch" if action.nargs == 0 else "list" if action.nargs in ("+", "*") else "value"
            kinds[option[2:].replace("-", "_")] = kind
print(json.dumps(kinds))
"""

F = TypeVar("F")


class SglangDialect(EngineDialect):
    name = "sglang"
    packages = ("sglang",)
    ready_line = "The server is fired up and ready to roll"

    offline_spans = True
    decode_alone: Mapping[str, Value] = MappingProxyType(
        {"disaggregation_mode": "decode", "disaggregation_transfer_backend": "fake"}
    )
    host_variable = "SGLANG_HOST_IP"
    simulated = True
    decoys = 30  # its benchmark leaves out rows by length until it has as many as were asked for
    steps: Mapping[str, OneTimeStep] = SGLANG_STEPS

    @cached_property
    def flags(self) -> EngineFlags:
        return engine_flags("sglang")

    def serve(self, python: str, arguments: Sequence[str], cluster: Span) -> str:
        return serve(python, arguments, cluster)

    def offline(self, python: str, arguments: Sequence[str], load: Load, version: Version, cluster: Span) -> str:
        new = release_meant(version) >= _BENCHMARKS
        module = "sglang.benchmark.offline_throughput" if new else "sglang.bench_offline_throughput"
        own = ["--model-path", f"${MODEL}", "--dataset-name", "sharegpt", "--dataset-path", DATASET]
        own += ["--port", f"${PORT}"]  # its queues take ports after this one, and others may use the default
        own += ["--num-prompts", str(load.requests), "--seed", str(load.seed), "--result-filename", OFFLINE_RESULT]
        own += ["--skip-warmup"] if load.warmup == 0 else []
        return joined([python, "-m", module, *own, *arguments]) + self.several_nodes(cluster)

    def read(self, lines: Iterable[str], measured_from: int = 0) -> EngineLog:
        log = read_sglang_log(lines)
        return EngineLog(
            failures=tuple((f.kind, f.ready, f.stamp.line, f.text) for f in log.failures),
            weights_loaded=bool(log.weights),
            echo=log.server_args,
            figures=tuple(_figures(log)),
            cached_share=_cached_share(log, measured_from),
            running_limit=min((x.max_running_requests for x in log.limits if x.max_running_requests), default=None),
        )

    def offline_result(self, text: str, lines: Iterable[str]) -> tuple[Measurement, ...]:
        results = read_offline_jsonl(text.splitlines()) or read_sglang_log(lines).results
        source = OFFLINE_RESULT if text.strip() else ENGINE_LOG
        return tuple(_offline_figures(results[-1], source)) if results and results[-1].duration_s > 0 else ()

    def refusal(
        self, model: Model | None, values: Mapping[str, Value], install: Install, version: Version
    ) -> str | None:
        deepep = values.get("moe_a2a_backend") == "deepep" or values.get("enable_deepep_moe")
        groups, mode = values.get("attn_dp"), values.get("deepep_mode")
        if deepep or mode is not None:
            attn_dp = groups if deepep and isinstance(groups, int) else 1
            if (reason := mode_refusal(mode, role_of(values), attn_dp, version)) is not None:
                return reason
        page, chunk = values.get("page_size"), values.get("chunked_prefill_size")
        if isinstance(page, int) and isinstance(chunk, int) and page > 1 and chunk > 0 and chunk % page:
            return f"chunked_prefill_size {chunk} is not a multiple of page_size {page}"
        return None

    def several_nodes(self, cluster: Span) -> str:
        return several_nodes(cluster)

    def introspect(self) -> str:
        return _INTROSPECT


def _cached_share(log: SglangLog, measured_from: int) -> float | None:
    if not measured_from:
        return log.cached_token_share
    measured = [p for p in log.prefills if p.stamp.line > measured_from]
    cached = sum(p.cached_tokens for p in measured)
    prompt = cached + sum(p.new_tokens for p in measured)
    return cached / prompt if prompt else None


def _figures(log: SglangLog) -> Iterable[Measurement]:
    def figure(name: str, value: float | None) -> Iterable[Measurement]:
        if value is not None:
            yield reported(name, value, ENGINE_LOG)

    tokens = _over_groups(log.kv_pools, lambda pool: pool.stamp, lambda pool: pool.tokens)
    yield from figure("kv_tokens", tokens)
    pools = [pool.total_bytes for pool in log.kv_pools if pool.total_bytes is not None]
    yield from figure("kv_bytes", max(pools, default=None))
    yield from figure("memory_after_load_bytes", min((w.avail_bytes for w in log.weights), default=None))
    yield from figure("weights_bytes", max((w.used_bytes or 0 for w in log.weights), default=None))
    free = [limits.available_gpu_bytes for limits in log.limits if limits.available_gpu_bytes is not None]
    yield from figure("memory_to_spare_bytes", min(free, default=None))
    running = [limits.max_running_requests for limits in log.limits if limits.max_running_requests]
    yield from figure("running_limit", min(running, default=None))
    yield from figure("graph_max_bs", log.largest_decode_graph)
    yield from figure("graph_capture_s", max((g.elapsed_s or 0.0 for g in log.graphs), default=None))
    yield from figure("retractions", sum(r.requests for r in log.retractions) if log.limits else None)
    yield from figure("peak_running", max((d.running for d in log.decodes), default=None))
    eager = [d for d in log.decodes if d.cuda_graph is False]
    yield from figure("eager_decode_share", len(eager) / len(log.decodes) if log.decodes else None)


def _over_groups(facts: Iterable[F], stamp: Callable[[F], Stamp], value: Callable[[F], int]) -> int | None:
    """Attention groups have a pool each; the ranks of one group say the same, or the tightest counts."""
    groups: dict[int | None, int] = {}
    for fact in facts:
        group = stamp(fact).rank("DP")
        groups[group] = min(groups.get(group, value(fact)), value(fact))
    return sum(groups.values()) if groups else None


def _offline_figures(result: OfflineResult, source: str) -> Iterable[Measurement]:
    both = result.input_tokens + result.output_tokens
    rows = (
        ("total_tok_s", result.total_tok_s or both / result.duration_s),
        ("output_tok_s", result.output_tok_s or result.output_tokens / result.duration_s),
        ("input_tok_s", result.input_tok_s or result.input_tokens / result.duration_s),
        ("requests_s", result.request_s or result.successful_requests / result.duration_s),
        ("duration_s", result.duration_s),
        ("successful_requests", float(result.successful_requests)),
        ("input_tokens", float(result.input_tokens)),
        ("output_tokens", float(result.output_tokens)),
    )
    for name, value in rows:
        yield reported(name, value, source)


SGLANG = SglangDialect()
