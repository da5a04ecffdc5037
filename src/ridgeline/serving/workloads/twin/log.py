"""From a simulation, or the reason why there can be none, to the log an SGLang benchmark would have written.

The lines are SGLang's own wording, so that whatever reads, judges or explains real logs does the same with these. Times
of start-up are those of a large model on fast local disks; none of them enters a measurement.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.failures import OUT_OF_MEMORY
from ridgeline.serving.engines.knobs import rank_share
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.memory import STARTUP_OOM, MemoryPlan, decode_graph_sizes
from ridgeline.serving.engines.settings import resolve
from ridgeline.serving.engines.sglang.failures import CHILD_DIED, GRAPHS_FAILED, POOL_TOO_SMALL, SCHEDULER_FAILED
from ridgeline.serving.hardware.cluster import GIB
from ridgeline.serving.metrics import LATENCIES, TWIN_QUANTILES
from ridgeline.serving.twin.simulate import SimulationResult, first_run_tax_s

_INIT_S = 25.0  # imports, processes, communicators
_LOAD_S, _LOAD_S_PER_GIB = 10.0, 1.0
_CAPTURE_S_PER_SIZE = 0.5
_WARMUP_S = 10.0
_OOM_AT = 0.3  # share of the benchmark after which the batch is so full that an allocation fails
_DECODE_LINES, _PREFILL_LINES = 40, 40
KERNELS, _KERNEL = 4, "Entering DeepGEMM JIT Pre-Compile session, kernel"
# needs that are there before the first request comes; the rest of the reserve is asked for while running
_AT_START = ("request table", "cuda graphs", "attention workspace", "communication", "libraries and fragments")

_Line = tuple[float, bool, str]  # second, whether SGLang puts the time in front, text


@dataclass
class Transcript:
    """What `player` performs."""

    ranks: str
    startup: list[_Line] = field(default_factory=list)
    startup_s: float = 0.0
    benchmark: list[_Line] = field(default_factory=list)
    benchmark_s: float = 0.0
    compile: str = ""  # the kernels that it needs, by name
    compile_at_s: float = 0.0
    compile_s: float = 0.0
    bench: dict[str, Any] = field(default_factory=dict)
    exit_code: int = 0

    def say(self, text: str, after_s: float = 0.0) -> None:
        self.startup_s += after_s
        self.startup.append((round(self.startup_s, 3), True, text))

    @property
    def text(self) -> str:
        """As the player reads it. A number that follows the speed has no quotes around it in JSON either."""
        bench = re.sub(r'"(<(?:rate|seconds|joules|goodput) [\d. ]+>)"', r"\1", json.dumps(self.bench))
        facts = ("ranks", "startup_s", "benchmark_s", "compile", "compile_at_s", "compile_s", "exit_code")
        rows: list[tuple[Any, ...]] = [*((name, getattr(self, name)) for name in facts), ("bench", bench)]
        kernels: list[_Line] = [(n / KERNELS, True, f"{_KERNEL} {n + 1} of {KERNELS}") for n in range(KERNELS)]
        parts = (("compile", kernels), ("startup", self.startup), ("benchmark", self.benchmark))
        for part, lines in parts:
            rows += [(part, at_s, "stamped" if stamped else "plain", text) for at_s, stamped, text in lines]
        return "".join("\t".join(map(str, row)) + "\n" for row in rows)


def compose(
    deployment: Deployment, plan: MemoryPlan, result: SimulationResult | None, flags: Mapping[str, Any]
) -> Transcript:
    """`result` is None where the engine does not come up."""
    layout = deployment.layout
    play = Transcript(" DP0 TP0" if layout.attn_dp > 1 else " TP0" if layout.replica_gpus > 1 else "")
    echo = ", ".join(f"{name}={value!r}" for name, value in flags.items())
    play.say(f"server_args=ServerArgs({echo})", 5.0)
    if not _start(play, deployment, plan) or result is None:
        play.exit_code = 1
        return play
    _serve(play, deployment, plan, result)
    return play


def _start(play: Transcript, deployment: Deployment, plan: MemoryPlan) -> bool:
    """Whether the engine comes up."""
    weights, free = plan.weight_bytes / GIB, plan.free_bytes / GIB
    play.say(f"Load weight begin. avail mem={free:.2f} GB", _INIT_S)
    load_s = _LOAD_S + _LOAD_S_PER_GIB * weights
    done = f"Load weight end. elapsed={load_s:.2f} s, type={deployment.model.name}"
    play.say(f"{done}, avail mem={max(0.0, free - weights):.2f} GB, mem usage={weights:.2f} GB.", load_s)
    if plan.verdict == STARTUP_OOM:
        _die(play, (POOL_TOO_SMALL,))
        return False
    kv = plan.kv_bytes / GIB
    play.say(
        f"KV Cache is allocated. dtype: torch.bfloat16, #tokens: {plan.kv_tokens_per_rank}, KV size: {kv:.2f} GB", 1.0
    )
    left = max(0.0, free - weights - kv)
    play.say(f"Memory pool end. avail mem={left:.2f} GB")
    if seconds := first_run_tax_s(deployment.model):
        # kernels for the shapes of this layout; the next run finds them in the cache
        layout = deployment.layout
        play.compile = f"tp{layout.tp}-pp{layout.pp}-ep{layout.ep}-attn-dp{layout.attn_dp}"
        play.compile_at_s, play.compile_s = play.startup_s + 0.5, seconds
        play.startup_s += 1.0
    sizes = decode_graph_sizes(_graph_max_bs(deployment))
    play.say(f"Capture target decode CUDA graph begin. backend=full, num_tokens_per_bs=1, avail mem={left:.2f} GB")
    early = sum(plan.needs.get(name, 0.0) for name in _AT_START)
    if early > plan.reserve_bytes:
        play.startup_s += 5.0
        _die(play, GRAPHS_FAILED)
        return False
    took_s, used = _CAPTURE_S_PER_SIZE * sizes, plan.needs.get("cuda graphs", 0.0) / GIB
    left = max(0.0, left - early / GIB)
    captured = f"Capture target decode CUDA graph end. elapsed={took_s:.2f} s, mem usage={used:.2f} GB"
    play.say(f"{captured}, avail mem={left:.2f} GB.", took_s)
    # a scheduler prints the limit of its own attention-DP rank
    limits = f"max_total_num_tokens={plan.kv_tokens_per_rank}, max_running_requests={plan.running_limit}"
    play.say(f"{limits}, context_len={deployment.model.context_tokens}, available_gpu_mem={left:.2f} GB")
    play.startup_s += _WARMUP_S
    return True


def _graph_max_bs(deployment: Deployment) -> int:
    d = deployment
    return resolve(d.settings, d.model, d.cluster.gpu, d.layout, pool_tokens=1).graph_max_bs


def _serve(play: Transcript, deployment: Deployment, plan: MemoryPlan, result: SimulationResult) -> None:
    layout, graph_max_bs = deployment.layout, _graph_max_bs(deployment)
    summary = result.summary
    play.benchmark_s = summary.duration_s
    play.benchmark = [
        (0.0, True, ""),
        (0.0, False, "Benchmark..."),
        *sorted([*_prefills(result, layout), *_decodes(result, layout, plan, graph_max_bs)]),
    ]
    if not plan.fits:
        play.benchmark_s *= _OOM_AT
        play.benchmark = [line for line in play.benchmark if line[0] <= play.benchmark_s]
        late = {name: size for name, size in plan.needs.items() if name not in _AT_START}
        asked = max(late.values()) / GIB
        free = max(0.0, asked + plan.margin_bytes / GIB)
        _die(play, (f"{OUT_OF_MEMORY}. Tried to allocate {asked:.2f} GiB. GPU 0 has {free:.2f} GiB free.",))
        return
    play.benchmark += [(summary.duration_s, False, text) for text in _result_block(result)]
    sent = sum(r.input_tokens for r in result.records)
    play.bench = {"cached_token_share": round(sum(r.cached_tokens for r in result.records) / sent, 6)}
    for name in LATENCIES:
        spread = getattr(summary, f"{name}_ms")
        if spread is not None:
            play.bench |= {f"{name}_{q}_ms": f"<seconds {spread.quantile(q):.3f}>" for q in TWIN_QUANTILES}
    play.bench |= {"retractions": result.retractions, "failed_requests": summary.requests - summary.ok}
    if (watts := result.gpu_power_w) is not None:
        play.bench["gpu_power_w"] = round(watts, 6)
    if (joules := result.joules_per_output_token) is not None:
        play.bench["joules_per_output_token"] = f"<joules {joules:.9f}>"
    if summary.slos:
        # how many times slower each request could be within all limits: on a slower node fewer meet them
        margins = (min(slo.margin(record) for slo in summary.slos) for record in result.records)
        told = " ".join(f"{min(margin, 99.0):.4f}" for margin in margins if margin > 0)
        play.bench["goodput"] = f"<goodput {summary.duration_s:.4f} {told}>"


def _die(play: Transcript, words: Sequence[str]) -> None:
    """As the scheduler does: an exception in a child, which takes the whole engine down."""
    at_s, lines = (play.benchmark_s, play.benchmark) if play.benchmark else (play.startup_s, play.startup)
    lines.append((at_s, True, SCHEDULER_FAILED))
    lines += [(at_s, False, text) for text in words]
    lines.append((at_s, True, CHILD_DIED))
    play.exit_code = 1


def _prefills(result: SimulationResult, layout: Layout) -> Iterator[_Line]:
    """A part of the prefill rounds: requests whose first token came at the same moment were one round."""
    rounds: dict[float, list[Any]] = {}
    for record in result.records:
        if record.first_token_s is not None:
            rounds.setdefault(record.first_token_s, []).append(record)
    times = sorted(rounds)
    groups, waiting = layout.attn_dp * layout.dp, _Waiting(result)
    for at_s in times[:: max(1, len(times) // _PREFILL_LINES)]:
        batch = rounds[at_s]
        cached = sum(r.cached_tokens for r in batch)
        new = sum(r.input_tokens for r in batch) - cached
        counts = f"#new-seq: {rank_share(len(batch), groups)}, #new-token: {rank_share(new, groups)}"
        yield at_s, True, f"Prefill batch, {counts}, #cached-token: {cached // groups}, {waiting.queue(at_s, groups)}"


def _decodes(result: SimulationResult, layout: Layout, plan: MemoryPlan, graph_max_bs: int) -> Iterator[_Line]:
    """What one attention group of one copy decodes, at evenly spaced moments."""
    import numpy as np

    rows = [
        (r.first_token_s, r.end_s, r.output_tokens)
        for r in result.records
        if r.first_token_s is not None and r.end_s is not None
    ]
    first, end, answer = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    rate = answer / np.maximum(end - first, 1e-9)
    groups, waiting = layout.attn_dp * layout.dp, _Waiting(result)
    held_at_s, held = zip(*result.kv_usage, strict=True)
    for n in range(1, _DECODE_LINES):
        at_s = result.summary.duration_s * n / _DECODE_LINES
        now = (first <= at_s) & (at_s < end)
        if not now.any():
            continue
        running = rank_share(int(now.sum()), groups)
        # what the scheduler holds, not what the requests add up to: a prefix is held once, and a request that was sent
        # back holds nothing
        usage = float(np.interp(at_s, held_at_s, held))
        tokens = int(usage * plan.kv_tokens_per_rank)
        graph = running <= graph_max_bs
        speed = float(rate[now].sum()) / groups
        text = f"#running-req: {running}, #token: {tokens}, token usage: {usage:.2f}, cuda graph: {graph}"
        text += f", gen throughput (token/s): <rate {speed:.2f}>, {waiting.queue(at_s, groups)}"
        yield at_s, True, f"Decode batch, {text}"


class _Waiting:
    """Requests that were sent and had no first token yet."""

    def __init__(self, result: SimulationResult) -> None:
        import numpy as np

        times = [(r.sent_s, r.first_token_s or 0.0) for r in result.records]
        self._sent, self._first = np.array(times, dtype=float).reshape(-1, 2).T

    def queue(self, at_s: float, groups: int) -> str:
        waiting = int(((self._sent <= at_s) & (at_s < self._first)).sum())
        return f"#queue-req: {waiting // groups}"


def _result_block(result: SimulationResult) -> list[str]:
    s = result.summary
    good = [r for r in result.records if r.ok]
    rows = {
        "Backend": "engine",
        "Successful requests": str(s.ok),
        "Benchmark duration (s)": f"<seconds {s.duration_s:.4f}>",
        "Total input tokens": str(sum(r.input_tokens for r in good)),
        "Total generated tokens": str(sum(r.output_tokens for r in good)),
        "Request throughput (req/s)": f"<rate {s.requests_s:.4f}>",
        "Input token throughput (tok/s)": f"<rate {s.input_tok_s:.4f}>",
        "Output token throughput (tok/s)": f"<rate {s.output_tok_s:.4f}>",
        "Total token throughput (tok/s)": f"<rate {s.total_tok_s:.4f}>",
    }
    head, foot = " Offline Throughput Benchmark Result ".center(50, "="), "=" * 50
    return [head, *(f"{name + ':':<40} {value}" for name, value in rows.items()), foot]
