"""`ridgeline simulate`: send traffic to a simulated cluster and print what a benchmark would have printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ridgeline.serving.requests import Spread
    from ridgeline.serving.twin.simulate import SimulationResult


def simulate(
    model: Annotated[str, typer.Option(help="A preset, or the path of a config.json.")],
    gpu: Annotated[str, typer.Option(help="a100, h20, h100, h200, h800, b200, l40s, or one of your own.")],
    nodes: Annotated[int, typer.Option(help="Nodes.")] = 1,
    gpus_per_node: Annotated[int, typer.Option(help="GPUs of one node.")] = 8,
    tp: Annotated[int, typer.Option(help="Tensor parallel ranks.")] = 1,
    pp: Annotated[int, typer.Option(help="Pipeline stages.")] = 1,
    dp: Annotated[int, typer.Option(help="Whole copies of the engine behind a router.")] = 1,
    ep: Annotated[int, typer.Option(help="Ranks that hold whole experts.")] = 1,
    attn_dp: Annotated[int, typer.Option(help="Attention groups inside tp, each with its own requests.")] = 1,
    prefill_groups: Annotated[
        str | None, typer.Option(help="3x3: three prefill groups of three nodes; 4: one of four.")
    ] = None,
    decode_groups: Annotated[str | None, typer.Option(help="Likewise for decode, such as 1x4.")] = None,
    fabric: Annotated[
        str | None, typer.Option(help="ib-ndr, roce-400, ...; default: what such GPUs come with.")
    ] = None,
    engine: Annotated[str, typer.Option(help="sglang, or sglang:0.4.10 for an older version's defaults.")] = "sglang",
    dtype: Annotated[str | None, typer.Option(help="Weights: bf16, fp8, int4, ...; default: the config's.")] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="KV cache: bf16 or fp8.")] = None,
    mem_fraction: Annotated[float | None, typer.Option(help="--mem-fraction-static.")] = None,
    max_running_requests: Annotated[int | None, typer.Option(help="Requests decoded at once, whole engine.")] = None,
    attention_backend: Annotated[str | None, typer.Option(help="fa3, flashinfer, triton, ...")] = None,
    cuda_graph_max_bs: Annotated[int | None, typer.Option(help="Largest captured decode batch; 0: no graphs.")] = None,
    chunked_prefill_size: Annotated[int | None, typer.Option(help="Tokens of one prefill round.")] = None,
    schedule_conservativeness: Annotated[float, typer.Option(help="KV kept free for running requests.")] = 1.0,
    page_size: Annotated[int, typer.Option(help="Tokens of one KV page.")] = 1,
    radix_cache: Annotated[bool, typer.Option(help="Reuse the KV of equal beginnings.")] = True,
    accept_length: Annotated[float, typer.Option(help="Speculative decoding: tokens kept per step.")] = 1.0,
    draft_tokens: Annotated[int, typer.Option(help="Speculative decoding: tokens verified per step.")] = 1,
    routing: Annotated[str, typer.Option(help="round-robin, least-load or cache-aware.")] = "round-robin",
    traffic: Annotated[
        str, typer.Option(help="sharegpt, sharegpt:IN:OUT, fixed:IN:OUT, lognormal:IN:OUT[:SIGMA], or a trace file.")
    ] = "sharegpt",
    requests: Annotated[int | None, typer.Option(help="How many; default 1000, or all of a trace.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Closed loop: this many at a time.")] = None,
    rate: Annotated[float | None, typer.Option(help="Open loop: requests per second.")] = None,
    burstiness: Annotated[float, typer.Option(help="Open loop: 0 constant, 1 Poisson, above 1 burstier.")] = 1.0,
    calibration: Annotated[Path | None, typer.Option(help="A file made by `ridgeline calibrate`.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same answer.")] = 0,
    slo: Annotated[list[str] | None, typer.Option(help="ttft_p95_ms=2000; may be repeated.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
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
    print(json.dumps(result.as_json(), indent=2) if as_json else _text(str(deployment), result))


def _text(title: str, result: SimulationResult) -> str:
    s = result.summary
    low, high = result.interval["total_tok_s"]
    known = "calibrated" if result.calibrated else "not calibrated"
    peak = max(used for _, used in result.kv_usage)
    lines = [
        f"{title}   (modelled, {known})",
        f"  total       {s.total_tok_s:10,.0f} tok/s   90%: {low:,.0f} to {high:,.0f}",
        f"  output      {s.output_tok_s:10,.0f} tok/s   {s.requests_s:.2f} requests/s",
        f"  duration    {s.duration_s:10,.2f} s       {s.ok} of {s.requests} requests",
        *(_spread(name, spread) for name, spread in (("TTFT", s.ttft_ms), ("ITL", s.itl_ms), ("E2E", s.e2e_ms))),
        f"  KV pool     {result.memory[-1].kv_tokens:10,} tokens  {peak:.0%} used at most, "
        f"{result.retractions} retracted",
        f"  memory      {result.verdict}: {result.memory[-1].reason}",
    ]
    if s.goodput_s is not None:
        held = ", ".join(f"{slo} {'holds' if s.holds(slo) else 'broken'}" for slo in s.slos)
        lines.append(f"  goodput     {s.goodput_s:10.2f} requests/s   {held}")
    lines += [f"  failed      {count:10,} requests: {kind}" for kind, count in s.errors.items()]
    return "\n".join(line for line in lines if line)


def _spread(name: str, spread: Spread | None) -> str:
    if spread is None:
        return ""
    return f"  {name:<8}    p50 {spread.p50:,.1f}   p95 {spread.p95:,.1f}   p99 {spread.p99:,.1f} ms"
