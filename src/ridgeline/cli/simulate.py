"""`ridgeline simulate`: send traffic to a simulated cluster and print what a benchmark would have printed."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ridgeline.cli import serving_options as option


def simulate(
    model: option.ModelName,
    gpu: option.GpuName,
    nodes: option.Nodes = 1,
    gpus_per_node: option.GpusPerNode = 8,
    tp: option.Tp = 1,
    pp: option.Pp = 1,
    dp: option.Dp = 1,
    ep: option.Ep = 1,
    attn_dp: option.AttnDp = 1,
    prefill_groups: option.PrefillGroups = None,
    decode_groups: option.DecodeGroups = None,
    fabric: option.Fabric = None,
    engine: option.EngineName = "sglang",
    dtype: option.Dtype = None,
    kv_dtype: option.KvDtype = None,
    mem_fraction: option.MemFraction = None,
    max_running_requests: option.MaxRunningRequests = None,
    attention_backend: option.AttentionBackend = None,
    cuda_graph_max_bs: option.CudaGraphMaxBs = None,
    chunked_prefill_size: option.ChunkedPrefillSize = None,
    schedule_conservativeness: Annotated[float, typer.Option(help="KV kept free for running requests.")] = 1.0,
    page_size: Annotated[int, typer.Option(help="Tokens of one KV page.")] = 1,
    radix_cache: Annotated[bool, typer.Option(help="Reuse the KV of equal beginnings.")] = True,
    accept_length: Annotated[float, typer.Option(help="Speculative decoding: tokens kept per step.")] = 1.0,
    draft_tokens: Annotated[int, typer.Option(help="Speculative decoding: tokens verified per step.")] = 1,
    routing: Annotated[str, typer.Option(help="round-robin, least-load or cache-aware.")] = "round-robin",
    traffic: option.TrafficText = "sharegpt",
    requests: Annotated[int | None, typer.Option(help="How many; default 1000, or all of a trace.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Closed loop: this many at a time.")] = None,
    rate: Annotated[float | None, typer.Option(help="Open loop: requests per second.")] = None,
    burstiness: Annotated[float, typer.Option(help="Open loop: 0 constant, 1 Poisson, above 1 burstier.")] = 1.0,
    calibration: option.CalibrationFile = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same answer.")] = 0,
    slo: option.Slos = None,
    as_json: option.AsJson = False,
) -> None:
    """Predict throughput and latency of a layout under some traffic, without a GPU.

    Example: ridgeline simulate --model deepseek-r1 --gpu h100 --nodes 2 --tp 16 --traffic sharegpt --requests 2000
    """
    from ridgeline.serving.layout import Layout
    from ridgeline.serving.requests import Slo
    from ridgeline.serving.traffic import parse_traffic
    from ridgeline.serving.twin.calibration import read_calibration
    from ridgeline.serving.twin.deployment import describe
    from ridgeline.serving.twin.engine import EngineSettings, parse_engine
    from ridgeline.serving.twin.simulate import simulate as run
    from ridgeline.serving.twin.simulation_text import simulation_text

    settings = EngineSettings(
        attention_backend=attention_backend,
        max_running_requests=max_running_requests,
        cuda_graph_max_bs=cuda_graph_max_bs,
        chunked_prefill_size=chunked_prefill_size,
        mem_fraction=mem_fraction,
        schedule_conservativeness=schedule_conservativeness,
        page_size=page_size,
        radix_cache=radix_cache,
        accept_length=accept_length,
        draft_tokens=draft_tokens,
    )
    deployment = describe(
        model,
        gpu,
        Layout(tp=tp, pp=pp, dp=dp, ep=ep, attn_dp=attn_dp, nodes=nodes, gpus_per_node=gpus_per_node),
        parse_engine(engine, settings),
        prefill_groups=prefill_groups,
        decode_groups=decode_groups,
        fabric=fabric,
        dtype=dtype,
        kv_dtype=kv_dtype,
        routing=routing,
    )
    sent = parse_traffic(
        traffic, requests=requests, rate_s=rate, concurrency=concurrency, burstiness=burstiness, seed=seed
    )
    result = run(
        deployment,
        sent,
        read_calibration(calibration) if calibration else None,
        [Slo.parse(text) for text in slo or ()],
    )
    print(json.dumps(result.as_json(), indent=2) if as_json else simulation_text(str(deployment), result))
