"""Step times out of an SGLang log: every Decode line holds a batch, a context and a rate, every Prefill line a chunk.

A log names neither the model's shape nor the GPU's kind; both are recognised where that is safe (the model by its
class, its KV bytes per token and its weight, the GPU by its memory or by kernel file names), else they must be given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.files import read_unzipped
from ridgeline.records.expression import Value
from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.knobs import engine_total, rank_share, wrong_value
from ridgeline.serving.engines.layout import Layout, rank_kv_bytes_per_token, rank_weight_bytes
from ridgeline.serving.engines.memory import free_bytes
from ridgeline.serving.engines.releases import USUAL_ENGINE
from ridgeline.serving.engines.settings import EngineSettings, layout_of, parse_engine, resolve, settings_of
from ridgeline.serving.engines.sglang.engine import SGLANG
from ridgeline.serving.engines.sglang.log import DecodeBatch, PrefillBatch, SglangLog, read_sglang_log
from ridgeline.serving.hardware.cluster import GIB, gpu_names, load_gpu, make_cluster
from ridgeline.serving.model.config import load_model
from ridgeline.serving.model.model import Model
from ridgeline.serving.twin.calibration import Factors
from ridgeline.serving.twin.fit import FitObservation
from ridgeline.serving.twin.held_back import step_times
from ridgeline.serving.twin.steptime import StepTime

PRESETS = {
    "llama-8b": ("LlamaForCausalLM",),
    "llama-70b": ("LlamaForCausalLM",),
    "qwen2.5-7b": ("Qwen2ForCausalLM",),
    "qwen3-32b": ("Qwen3ForCausalLM",),
    "qwen3-235b-a22b": ("Qwen3MoeForCausalLM",),
    "mixtral-8x7b": ("MixtralForCausalLM",),
    "deepseek-v2-lite": ("DeepseekV2ForCausalLM",),
    "deepseek-v3": ("DeepseekV3ForCausalLM",),
}
STEP_NOISE = 0.10
# A step without a graph is the host's, and hosts differ from run to run: in six runs on H200 machines 343 requests took
# 24.8 to 39.1 ms a step, while steps with graphs agreed within 2%.
EAGER_NOISE = 0.20
# Lines of one log are not independent: all of one kind together count as this many points. Those without a graph share
# their run's host and are one.
_KIND_WORTH = {"graph": 6.0, "eager": 1.0, "prefill": 6.0}
# A step more than this far from the median of its kind is a first run, a compile or a pause, not the machine's speed.
_FARTHEST_RATIO = 3.0
# of the echo; how large graphs and rounds became, the log's other lines say better
_ECHOED = ("attention_backend", "mem_fraction_static", "disable_radix_cache")
_DEVICE = re.compile(r"device_name=NVIDIA_([A-Z]+\d+\w*?)[._]")


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """What a log says about one run: the deployment it ran on, its KV pool, and its steps."""

    source: str
    deployment: Deployment
    kv_tokens_per_rank: int | None
    log: SglangLog


def read_run(path: Path, *, model: str | None = None, gpu: str | None = None, engine: str | None = None) -> LoggedRun:
    """`engine` is the server that wrote the log, as `sglang:0.5.15`: no line of it names the release."""
    stated = parse_engine(engine or USUAL_ENGINE, EngineSettings())
    if stated.engine != SGLANG.name:
        raise InputError(
            f"{path}: logs are read of SGLang only, not of {stated.engine}; give results of `ridgeline bench` for it"
        )
    try:
        lines = read_unzipped(path).decode("utf-8", errors="replace").splitlines()
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror or error}); give the log of an SGLang run, or a CSV file"
        ) from None
    log = read_sglang_log(lines)
    if not (log.decodes or log.prefills):
        raise InputError(
            f"{path}: {'' if lines else 'empty, '}no 'Prefill batch' or 'Decode batch' line; calibrate from the log of "
            "an SGLang server or of offline_throughput at log level info, with at least a few requests served, from "
            "pages of /metrics, or from results of benches"
        )
    echoed = SGLANG.flags.from_echo(log.server_args)
    values = {name: value for name, value in echoed.items() if not wrong_value(name, value)}
    nodes = values.get("nnodes")
    copies = {name: value for name, value in values.items() if name != "dp"}  # the log is of one copy
    layout = layout_of(copies, nodes if isinstance(nodes, int) else 1, None)
    shape = load_model(model) if model else _model(path, log, layout)
    device = next((m[1].lower() for line in lines if (m := _DEVICE.search(line))), None)
    chip = gpu or device or _gpu(path, log, layout)
    cluster = make_cluster(chip, layout.nodes, layout.gpus_per_node)
    settings = replace(_settings(log, values, layout), version=stated.version)
    pools = [p.tokens for p in log.kv_pools]
    pool = pools[-1] if pools else None
    return LoggedRun(str(path), Deployment(shape, cluster, layout, settings), pool, log)


def observations(run: LoggedRun) -> list[FitObservation]:
    """The log's steps as points for the fit, first runs and pauses left out."""
    steps = [*_decode_steps(run), *_prefill_steps(run)]
    if not steps:
        raise InputError(f"{run.source}: batch lines, but none with a rate; raise the log level or run longer")
    kinds = [step.name.partition(" ")[0] for step in steps]
    worth = {kind: min(1.0, _KIND_WORTH[kind] / kinds.count(kind)) for kind in set(kinds)}
    return [replace(step, weight=worth[kind]) for step, kind in zip(steps, kinds, strict=True)]


def _batches(log: SglangLog) -> list[PrefillBatch | DecodeBatch]:
    both: list[PrefillBatch | DecodeBatch] = [*log.prefills, *log.decodes]
    return sorted(both, key=lambda batch: batch.stamp.line)


def _step_time(run: LoggedRun, factors: Factors) -> StepTime:
    d = run.deployment
    applied = resolve(d.settings, d.model, d.cluster.gpu, d.layout, run.kv_tokens_per_rank or 1)
    return step_times(d.model, d.cluster, d.layout, applied, factors)


def _decode_steps(run: LoggedRun) -> Iterator[FitObservation]:
    """Between two lines of one rank the batch shrank from one to the other: the mean of both stands for the steps."""
    ranks = run.deployment.layout.attn_dp
    before: dict[tuple[str, ...], DecodeBatch] = {}
    for line in _batches(run.log):
        if isinstance(line, PrefillBatch):
            before.pop(line.stamp.ranks, None)  # the next line's rate holds prefill time too
            continue
        last = before.get(line.stamp.ranks)
        before[line.stamp.ranks] = line
        if last is None or not line.gen_tok_s or line.tokens is None or last.tokens is None:
            continue
        if last.cuda_graph != line.cuda_graph:
            continue  # part of the interval ran with graphs, part without
        batch = (line.running + last.running) / 2
        context = (line.tokens + last.tokens) / 2
        accepted = line.accept_len or 1.0
        seconds = batch * accepted / line.gen_tok_s
        yield _decode_point(run, round(batch * ranks), context * ranks, seconds, graph=bool(line.cuda_graph))


def _decode_point(run: LoggedRun, batch: int, context: float, seconds: float, *, graph: bool) -> FitObservation:
    chosen = replace(run.deployment.settings, cuda_graph_max_bs=4096 if graph else 0)
    seen = replace(run, deployment=replace(run.deployment, settings=chosen))
    return FitObservation(
        f"{'graph' if graph else 'eager'} decode of {batch} requests, {context:,.0f} tokens",
        seconds,
        lambda factors: _step_time(seen, factors).decode_s(batch, context),
        STEP_NOISE if graph else EAGER_NOISE,
    )


def _prefill_steps(run: LoggedRun) -> Iterator[FitObservation]:
    """Only rounds that follow another full round: other rates hold idle or decode time."""
    # a line is of one attention-DP rank
    chunk = rank_share(run.deployment.settings.chunked_prefill_size or 8192, run.deployment.layout.attn_dp)
    found: list[tuple[PrefillBatch, float]] = []
    previous: PrefillBatch | DecodeBatch | None = None
    for line in _batches(run.log):
        after_full = isinstance(previous, PrefillBatch) and previous.new_tokens >= 0.9 * chunk
        previous = line
        if isinstance(line, PrefillBatch) and line.input_tok_s and after_full and line.new_tokens >= 0.9 * chunk:
            found.append((line, line.new_tokens / line.input_tok_s))
    times = sorted(s for _, s in found)
    middle = times[len(times) // 2] if times else 0.0
    for line, seconds in found:
        if middle / _FARTHEST_RATIO < seconds < middle * _FARTHEST_RATIO:
            yield _prefill_point(run, line, seconds)


def _prefill_point(run: LoggedRun, line: PrefillBatch, seconds: float) -> FitObservation:
    ranks = run.deployment.layout.attn_dp
    tokens, prompts = line.new_tokens * ranks, max(1, line.new_seqs) * ranks
    pairs = tokens * tokens / prompts / 2
    largest = max(1, line.new_tokens // max(1, line.new_seqs))
    return FitObservation(
        f"prefill of {tokens} tokens, {prompts} prompts",
        seconds,
        lambda factors: _step_time(run, factors).prefill_s(tokens, pairs, prompts, largest),
        STEP_NOISE,
    )


def _settings(log: SglangLog, values: Mapping[str, Value], layout: Layout) -> EngineSettings:
    """What the echo says, overruled by what the log shows to have been applied."""
    limits = log.limits[-1] if log.limits else None
    # the scheduler of one attention-DP rank prints its own share
    shares = {
        "max_running_requests": limits.max_running_requests if limits else None,
        "chunked_prefill_size": limits.chunked_prefill_size if limits else None,
    }
    seen = {name: engine_total(share, layout.attn_dp) for name, share in shares.items() if share}
    asked = {name: value for name, value in values.items() if name in _ECHOED}
    found = settings_of({**asked, **seen})
    prefill_graph = next((p.cuda_graph for p in log.prefills if p.cuda_graph is not None), None)
    return replace(found, cuda_graph_max_bs=log.largest_decode_graph, prefill_graph=prefill_graph)


def _model(path: Path, log: SglangLog, layout: Layout) -> Model:
    """The preset of the log's model class with the same KV bytes per token, if its weights are about as heavy.

    About, because test set-ups cut the vocabulary; layers and heads decide the speed and show in the KV cache.
    """
    loaded = next((w for w in log.weights if w.used_bytes), None)
    pool = next((p for p in log.kv_pools if p.total_bytes), None)
    if loaded is not None and loaded.used_bytes and pool is not None and pool.total_bytes:
        weight, per_token = loaded.used_bytes, pool.total_bytes / pool.tokens
        for name, kinds in PRESETS.items():
            model = load_model(name)
            same_kv = abs(rank_kv_bytes_per_token(model, layout) / per_token - 1) < 0.02
            same_weight = abs(rank_weight_bytes(model, layout) / weight - 1) < 0.15
            if (loaded.model_class or "") in kinds and same_kv and same_weight:
                return model
    raise InputError(
        f"{path}: cannot tell which model this is (path {log.server_args.get('model_path', 'unknown')!r}); "
        "give --model with a preset or the path of its config.json"
    )


def _gpu(path: Path, log: SglangLog, layout: Layout) -> str:
    free = next((w.before_bytes for w in log.weights if w.before_bytes), None)
    if free is not None:
        near = [n for n in gpu_names() if abs(free_bytes(load_gpu(n), layout) - free) < 0.02 * free]
        if len(near) == 1:
            return near[0]
        if near:
            raise InputError(f"{path}: {free / GIB:.1f} GiB free could be {' or '.join(near)}; give --gpu")
    raise InputError(f"{path}: cannot tell which GPU this is; give --gpu, one of {', '.join(gpu_names())}")
