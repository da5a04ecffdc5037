"""SGLang, 0.4.8 to 0.5.23: its server, offline benchmark and one-time steps, what its pages and ports are called.

Its flags are in flags.txt, its log in log.py, its failures in failures.py. The steps that it can be prepared by:

deepgemm    compiles FP8 kernels; a first run otherwise pays 10 to 20 minutes
fused-moe   tunes the fused-MoE kernel for this GPU and split; the engine finds the result by SGLANG_MOE_CONFIG_DIR
deepep      tunes DeepEP's transfers between nodes; the engine gets --deepep-config
eplb        records how often each expert is used under the study's own traffic; gets --init-expert-location

fused-moe and deepep are scripts of SGLang's repository, not of its package.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType

from ridgeline.records.expression import Value, is_number
from ridgeline.records.launch import OnNode
from ridgeline.records.measurement import Measurement
from ridgeline.records.run import OWN_LOG
from ridgeline.serving.engines.base import (
    DATASET,
    HEAD,
    KEEP,
    MODEL,
    NSYS,
    OFFLINE_RESULT,
    PORT,
    EngineLog,
    HostCosts,
    MetricNames,
    OfflineBatch,
    OneTimeStep,
    ServerLaunch,
    ServingEngine,
    SimulatedRouting,
    Span,
    StepNeeds,
    joined,
    known,
)
from ridgeline.serving.engines.behaviour import UNIFORM
from ridgeline.serving.engines.exclusions import excluded
from ridgeline.serving.engines.flags import EngineFlags, engine_flags
from ridgeline.serving.engines.install import Install
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.layout_rules import deepep_values, mode_refusal
from ridgeline.serving.engines.memory import MemoryPlan
from ridgeline.serving.engines.releases import Version, release_meant
from ridgeline.serving.engines.settings import EngineSettings, layout_of, role_of, values_of
from ridgeline.serving.engines.sglang.defaults import SglangDefaults
from ridgeline.serving.engines.sglang.drafts import draft_refusal
from ridgeline.serving.engines.sglang.exclusions import EXCLUSIONS
from ridgeline.serving.engines.sglang.failures import TEXTS, VALUES_TO_TRY
from ridgeline.serving.engines.sglang.log import (
    READY,
    KvPool,
    OfflineResult,
    SglangLog,
    read_offline_jsonl,
    read_sglang_log,
)
from ridgeline.serving.hardware.cluster import Gpu
from ridgeline.serving.model.model import Model
from ridgeline.serving.ports import BOOTSTRAP_PORT, DerivedPorts

_FUSED_MOE = "benchmark/kernels/fused_moe_triton/tuning_fused_moe_triton.py"
_DEEPEP = "benchmark/kernels/deepep/tuning_deepep.py"
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

_METRICS = MetricNames(
    running="sglang:num_running_reqs",
    waiting="sglang:num_queue_reqs",
    kv_share="sglang:token_usage",
    used_tokens="sglang:num_used_tokens",
    pool_tokens="sglang:max_total_num_tokens",
    output_tok_s="sglang:gen_throughput",
    retractions="sglang:num_retracted_reqs",
    made="sglang:inter_token_latency_seconds_count",
    prompt_tokens="sglang:prompt_tokens_total",
    output_tokens="sglang:generation_tokens_total",
    cached_tokens="sglang:cached_tokens_total",
    requests="sglang:num_requests_total",
    aborted="sglang:num_aborted_requests_total",
    ttft="sglang:time_to_first_token_seconds",
    e2e="sglang:e2e_request_latency_seconds",
    itl="sglang:inter_token_latency_seconds",
    prompt_lengths="sglang:prompt_tokens_histogram",  # with --collect-tokens-histogram
    output_lengths="sglang:generation_tokens_histogram",
    # An answer's tokens are counted when it is finished: one of minutes would look like a hang, but for the gaps
    # between its tokens, which are counted as they happen.
    live=("sglang:time_to_first_token_seconds_count", "sglang:inter_token_latency_seconds_count"),
    progress=("sglang:generation_tokens_total", "sglang:prompt_tokens_total", "sglang:num_used_tokens"),
)


def _deepgemm(needs: StepNeeds) -> str:
    own = [needs.python, "-m", "sglang.compile_deep_gemm", "--model-path", f"${MODEL}", *needs.arguments]
    return joined(own) + SGLANG.several_nodes(needs.cluster)


def _fused_moe(needs: StepNeeds) -> str:
    """The tuner leaves its JSON where it runs; the engine looks under configs/triton_X_Y_Z."""
    layout = layout_of(needs.values, needs.cluster.nodes, None)
    words = [needs.python, f"{needs.sources}/{_FUSED_MOE}", "--model", f"${MODEL}", "--tp-size", str(layout.tp)]
    words += ["--ep-size", str(layout.ep)] if layout.ep != 1 else []
    words += ["--dtype", "fp8_w8a8"] if needs.values.get("quantization") == "fp8" else []
    release = "import triton; print('triton_' + triton.__version__.replace('.', '_'))"
    return (
        f"{joined([*words, '--tune'])} && to=configs/$({joined([needs.python, '-c', release])}) && "
        f'mkdir -p "$to" && mv -- *.json "$to"'
    )


def _deepep(needs: StepNeeds) -> str:
    own = [needs.python, f"{needs.sources}/{_DEEPEP}", "--nnodes", str(needs.cluster.nodes)]
    return f'{joined(own)} --node-rank "$rank" --master-addr "${HEAD}"'


def _eplb(needs: StepNeeds) -> str:
    arguments = [*needs.arguments, "--expert-distribution-recorder-mode", "stat"]
    return f'SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR="${KEEP}" {SGLANG.serve(needs.python, arguments, needs.cluster)}'


_STEPS: Mapping[str, OneTimeStep] = {
    "deepgemm": OneTimeStep(_deepgemm),
    "fused-moe": OneTimeStep(_fused_moe, script=_FUSED_MOE, variable="SGLANG_MOE_CONFIG_DIR", everywhere=False),
    "deepep": OneTimeStep(
        _deepep,
        script=_DEEPEP,
        flag="deepep_config",
        variable="RIDGELINE_DEEPEP",
        file="deepep_tuned.json",
        least_nodes=2,
    ),
    "eplb": OneTimeStep(
        _eplb, flag="init_expert_location", variable="RIDGELINE_EXPERTS", file="experts.pt", serves=True
    ),
}


# "GptOssForCausalLM requires one of ...", all releases that know it (model_specific_overrides of 0.5.23)
_SINKS = ("triton", "trtllm_mha", "fa3", "fa4", "aiter", "ascend", "intel_amx", "intel_xpu")
_KEPT = "SGLANG_SIMULATE_ACC_LEN"
# the release whose front end was measured on a machine of ours
_SERVED_HERE: Version = (0, 5, 15)


class Sglang(ServingEngine):
    name = "sglang"
    title = "SGLang"
    logs_graphs = True
    packages: tuple[str, ...] = ("sglang",)
    latest = (0, 5, 23)
    owned_by = "sglang"
    image = "lmsysorg/sglang:v{}"
    ready_line = READY
    offline_mark = "Benchmark..."
    offline_spans = True
    decoys = 30  # its benchmark leaves out rows by length until it has as many as were asked for
    decode_alone: Mapping[str, Value] = MappingProxyType(
        {"disaggregation_mode": "decode", "disaggregation_transfer_backend": "fake"}
    )
    # KV that a decode server takes as sent, with its `fake` transfer
    decode_alone_body: Mapping[str, object] = MappingProxyType(
        {"bootstrap_host": "2.2.2.2", "bootstrap_port": BOOTSTRAP_PORT, "bootstrap_room": 0}
    )
    host_variable = "SGLANG_HOST_IP"
    simulated = True
    bootstraps = True
    device_knob = "disaggregation_ib_device"
    memory_flag, running_flag = "--mem-fraction-static", "--max-running-requests"
    plan_legend = (
        "cap, chunk, fraction: --max-running-requests, --chunked-prefill-size, --mem-fraction-static of an engine;",
        "of a split, the cap of a decode engine and the chunk of a prefill engine",
    )
    cache_variables = MappingProxyType({**ServingEngine.cache_variables, "SGLANG_DG_CACHE_DIR": "deepgemm"})
    profiles_from = ()
    info_path = "/server_info"
    repeats_arguments = True
    # It pretends the other half: servers of split roles make tokens for nobody else but a router.
    generate_path = "/health_generate"
    metrics = _METRICS
    stop_field = "matched_stop"
    derived_ports: tuple[DerivedPorts, ...] = (
        DerivedPorts(
            (10_000,),
            "gRPC; refused above 65,535 even where gRPC is off",
            "sglang 0.5.15.post1, srt/server_args.py: grpc_port = port + 10000",
        ),
        DerivedPorts(
            tuple(range(233, 240)),
            "queues between processes under attention DP on one node",
            "sglang 0.5.15.post1, srt/server_args.py: ZMQ_TCP_PORT_DELTA 233 and the six after it",
        ),
        DerivedPorts(
            (13,),
            "handshake of attention DP where no rendezvous is given",
            "sglang 0.5.15.post1, srt/managers/data_parallel_controller.py: DP_ATTENTION_HANDSHAKE_PORT_DELTA",
        ),
    )
    rendezvous_ports: tuple[DerivedPorts, ...] = (
        DerivedPorts(
            (1, 2, 3, 4, 5, 6, 13),
            "queues and handshake of attention DP over several nodes",
            "sglang 0.5.15.post1, srt/server_args.py: port_base = dist_init_port + 1, load_collector = port_base + 5",
        ),
    )
    port_spacing, rendezvous_spacing = 8, 14
    # Read in the repository's tags: srt/environ.py has the variable from v0.5.13 on (not v0.5.12.post1), and
    # srt/layers/moe/topk.py heeds it in select_experts, which the back ends named here go around (TopK.forward_cuda,
    # v0.5.13 to v0.5.15). On Blackwell srt/server_args.py (v0.5.13) chooses flashinfer_trtllm itself for some models.
    simulated_routing = SimulatedRouting(
        "SGLANG_SIMULATE_UNIFORM_EXPERTS",
        {UNIFORM: "1"},
        (0, 5, 13),
        others=("SGLANG_SIMULATE_ROUND_ROBIN_EXPERTS",),
        around=("triton_kernel", "flashinfer_trtllm", "flashinfer_mxfp4", "experimental_sgl_trtllm"),
        around_on=("b200", "b300", "gb200", "gb300"),
    )
    # Read in the repository's tags: srt/environ.py has it from v0.5.3 on (SIMULATE_ACC_LEN before), and
    # `match-expected` draws so that the mean is the one asked for (`multinomial`, the default up to 0.5.10, does not).
    acceptance_since = (0, 5, 3)
    acceptance_variables = (_KEPT, "SGLANG_SIMULATE_ACC_METHOD", "SGLANG_SIMULATE_ACC_TOKEN_MODE")
    failure_texts = TEXTS
    values_to_try = VALUES_TO_TRY
    when_omitted = MappingProxyType({"kv_cache_dtype": "auto", "schedule_conservativeness": 1.0})
    steps: Mapping[str, OneTimeStep] = _STEPS
    defaults = SglangDefaults()
    costs = HostCosts(request_s=6e-6, accept_s=5e-3, ranks_accept_s=15e-3, hand_over_s=8e-6, stream_s=90e-6,
                      intake_s=2e-3, send_s=45e-6)  # fmt: skip

    def front_end_costs(self, version: Version) -> HostCosts:
        """45 us a token: 22,000 tokens a second, as reported of 512 users of Llama-8B; that it was an older release of
        SGLang is our reading.

        70 us and 6.5 ms a request: 0.5.15 on one H200's host, chosen so that 51.5 requests a second are too many for it
        and 40 are not, as measured.
        """
        if release_meant(version) < _SERVED_HERE:
            return self.costs
        return replace(self.costs, intake_s=6.5e-3, send_s=70e-6)

    @cached_property
    def flags(self) -> EngineFlags:
        return engine_flags(self.name)

    def entry(self, model: str, nodes: int) -> list[str]:
        return ["-m", "sglang.launch_server", "--model-path", model]

    def profiler_body(self, tool: str, steps: int, folder: str) -> dict[str, object]:
        activities = ["CUDA_PROFILER"] if tool == NSYS else ["CPU", "GPU"]
        # stacks make a trace several times as large, and nothing here reads them
        return {"output_dir": folder, "num_steps": steps, "activities": activities, "with_stack": False}

    def keeping(self, values: Mapping[str, Value], length: float) -> tuple[dict[str, str], dict[str, Value]]:
        return {_KEPT: f"{length:g}", "SGLANG_SIMULATE_ACC_METHOD": "match-expected"}, dict(values)

    def over_nodes(self, span: Span) -> list[str]:
        meeting = OnNode(f"{span.head}:{span.port}")
        return ["--nnodes", str(span.nodes), "--node-rank", span.rank, "--dist-init-addr", meeting]

    def server_argv(self, launch: ServerLaunch) -> list[str]:
        argv = [launch.python, *self.entry(launch.model, launch.span.nodes), *launch.arguments, *launch.address]
        argv += ["--enable-metrics", *launch.name]
        if launch.first_gpu:
            argv += ["--base-gpu-id", str(launch.first_gpu)]
        if launch.role != "both":
            argv += ["--disaggregation-mode", launch.role]
        if launch.role == "prefill":
            argv += ["--disaggregation-bootstrap-port", str(launch.bootstrap_port)]
        return argv + (self.over_nodes(launch.span) if launch.span.nodes > 1 else [])

    def planned_values(
        self, layout: Layout, settings: EngineSettings, role: str, memory: MemoryPlan, gpu: Gpu
    ) -> dict[str, Value]:
        return {**values_of(layout, settings), **deepep_values(layout, role, settings.version)}

    def talks_through_ports(self, values: Mapping[str, Value]) -> bool:
        """Under attention DP; else its processes talk through files."""
        groups = values.get("attn_dp", 1)
        return bool(values.get("enable_dp_attention")) or (isinstance(groups, int) and groups > 1)

    def offline(
        self, python: str, arguments: Sequence[str], batch: OfflineBatch, version: Version, cluster: Span
    ) -> str:
        new = release_meant(version) >= _BENCHMARKS
        module = "sglang.benchmark.offline_throughput" if new else "sglang.bench_offline_throughput"
        own = ["--model-path", f"${MODEL}", "--dataset-name", "sharegpt", "--dataset-path", DATASET]
        own += ["--port", f"${PORT}"]  # its queues take ports after this one, and others may use the default
        own += ["--num-prompts", str(batch.requests), "--seed", str(batch.seed), "--result-filename", OFFLINE_RESULT]
        own += ["--skip-warmup"] if batch.warmup == 0 else []
        return joined([python, "-m", module, *own, *arguments]) + self.several_nodes(cluster)

    def read(self, lines: Iterable[str], measured_from: int = 0) -> EngineLog:
        log = read_sglang_log(lines)
        return EngineLog(
            failures=log.failures,
            weights_loaded=bool(log.weights),
            echo=log.server_args,
            figures=_figures(log),
            cached_share=log.cached_token_share(measured_from),
            running_limit=log.running_limit,
        )

    def offline_result(self, text: str, lines: Iterable[str]) -> tuple[Measurement, ...]:
        results = read_offline_jsonl(text.splitlines()) or read_sglang_log(lines).results
        source = OFFLINE_RESULT if text.strip() else OWN_LOG
        return _offline_figures(results[-1], source) if results and results[-1].duration_s > 0 else ()

    def refusal(
        self, model: Model | None, values: Mapping[str, Value], install: Install, version: Version
    ) -> str | None:
        deepep = values.get("moe_a2a_backend") == "deepep" or values.get("enable_deepep_moe")
        groups, mode = values.get("attn_dp"), values.get("deepep_mode")
        if deepep or mode is not None:
            attn_dp = groups if deepep and isinstance(groups, int) else 1
            if (reason := mode_refusal(mode, role_of(values), attn_dp, version)) is not None:
                return reason
        backend = values.get("attention_backend")
        if model is not None and model.attention_sinks and backend not in (None, *_SINKS):
            return f"{backend} knows no attention sinks, which {model.name} has; use fa3, triton, aiter or trtllm_mha"
        if (reason := draft_refusal(model, values, version)) is not None:
            return reason
        return excluded(EXCLUSIONS, values, version)

    def host_tier_bytes(self, values: Mapping[str, Value], ranks: int, pool_bytes: float) -> float:
        """Every rank has a tier of its own: `hicache_size` GB of 10^9 bytes, or `hicache_ratio` times its KV pool."""
        if values.get("enable_hierarchical_cache") is not True:
            return 0.0
        size, ratio = values.get("hicache_size"), values.get("hicache_ratio", 0.0)
        each = float(size) * 1e9 if is_number(size) and size else float(ratio) * pool_bytes if is_number(ratio) else 0.0
        return ranks * each

    def introspect(self) -> str:
        return _INTROSPECT


def _figures(log: SglangLog) -> tuple[Measurement, ...]:
    pools = [pool.total_bytes for pool in log.kv_pools if pool.total_bytes is not None]
    free = [limits.available_gpu_bytes for limits in log.limits if limits.available_gpu_bytes is not None]
    eager = sum(d.cuda_graph is False for d in log.decodes)
    figures = (
        ("kv_tokens", _kv_tokens(log.kv_pools)),
        ("kv_bytes", max(pools, default=None)),
        ("memory_after_load_bytes", min((w.avail_bytes for w in log.weights), default=None)),
        ("weights_bytes", max((w.used_bytes or 0 for w in log.weights), default=None)),
        ("memory_to_spare_bytes", min(free, default=None)),
        ("running_limit", log.running_limit),
        ("graph_max_bs", log.largest_decode_graph),
        ("graph_capture_s", max((g.elapsed_s or 0.0 for g in log.graphs), default=None)),
        ("retractions", sum(r.requests for r in log.retractions) if log.limits else None),
        ("peak_running", max((d.running for d in log.decodes), default=None)),
        ("accept_length", _accept_length(log)),
        ("eager_decode_share", eager / len(log.decodes) if log.decodes else None),
    )
    return known(figures, OWN_LOG)


def _accept_length(log: SglangLog) -> float | None:
    """Over the batches of the log, each as heavy as the requests in it."""
    kept = [(d.accept_len, d.running) for d in log.decodes if d.accept_len is not None and d.running]
    weight = sum(running for _, running in kept)
    return sum(length * running for length, running in kept) / weight if weight else None


def _kv_tokens(pools: Iterable[KvPool]) -> int | None:
    """Attention groups have a pool each; the ranks of one group say the same, or the tightest counts."""
    groups: dict[int | None, int] = {}
    for pool in pools:
        group = pool.stamp.rank("DP")
        groups[group] = min(groups.get(group, pool.tokens), pool.tokens)
    return sum(groups.values()) if groups else None


def _offline_figures(result: OfflineResult, source: str) -> tuple[Measurement, ...]:
    both = result.input_tokens + result.output_tokens
    figures = (
        ("total_tok_s", result.total_tok_s or both / result.duration_s),
        ("output_tok_s", result.output_tok_s or result.output_tokens / result.duration_s),
        ("input_tok_s", result.input_tok_s or result.input_tokens / result.duration_s),
        ("requests_s", result.request_s or result.successful_requests / result.duration_s),
        ("duration_s", result.duration_s),
        ("successful_requests", result.successful_requests),
        ("input_tokens", result.input_tokens),
        ("output_tokens", result.output_tokens),
    )
    return known(figures, source)


SGLANG = Sglang()
