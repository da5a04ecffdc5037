"""Rows that cannot be what they say they are, on made ones: Llama-70B on H100 as vLLM would serve it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.layout import Layout, disaggregated
from ridgeline.serving.engines.settings import EngineSettings, parse_engine
from ridgeline.serving.hardware.cluster import make_cluster
from ridgeline.serving.model.config import load_model


@pytest.fixture(scope="module")
def doubt() -> Iterator[ModuleType]:
    """The scripts of benchmarks/twin import each other by name."""
    folder = str(Path(__file__).parents[2] / "benchmarks" / "twin")
    sys.path.append(folder)
    yield import_module("doubt")
    sys.path.remove(folder)


def seen(doubt: ModuleType, line: int, layout: Layout, **figures: Any) -> Any:
    settings = parse_engine("vllm:0.10", EngineSettings())
    deployment = Deployment(load_model("llama-70b"), make_cluster("h100", layout.nodes, 8), layout, settings)
    plain = {"prompt": 10_000.0, "answer": 1000.0, "users": 8.0, "tpot_ms": 25.0, "ttft_ms": 2000.0}
    return doubt.Seen("made", f"row {line}", line, deployment, **{**plain, **figures})


def kinds(doubt: ModuleType, *rows: Any) -> list[tuple[int, str]]:
    return [(found.seen.line, found.kind) for found in doubt.doubts(rows)]


def tp(ranks: int, copies: int = 1) -> Layout:
    return Layout(ranks, dp=copies, nodes=-(-ranks * copies // 8))


def test_a_plausible_row_is_not_doubted(doubt: ModuleType) -> None:
    assert kinds(doubt, seen(doubt, 2, tp(4))) == []


def test_a_token_takes_as_long_as_its_weights_take_to_read(doubt: ModuleType) -> None:
    """141 GB over four GPUs of 3.35 TB/s are 10.5 ms, without drafts."""
    fast, drafted = seen(doubt, 2, tp(4), tpot_ms=9.9, ttft_ms=700.0, users=1.0), seen(doubt, 3, tp(4), tpot_ms=9.9)
    settings = replace(drafted.deployment.settings, draft_tokens=3)
    drafted = replace(drafted, deployment=replace(drafted.deployment, settings=settings))
    assert kinds(doubt, fast, drafted) == [(2, "faster than the memory")]
    assert "TPOT 9.9 ms" in str(doubt.doubts([fast])[0]) and "line 2" in str(doubt.doubts([fast])[0])


def test_a_prompt_takes_as_long_as_its_products(doubt: ModuleType) -> None:
    """10,000 tokens of 70.6 billion weights are 1.4 PFLOP: 350 ms on four GPUs of 990 TFLOP/s."""
    fast = seen(doubt, 2, tp(4), ttft_ms=300.0)
    assert kinds(doubt, fast) == [(2, "faster than the tensor cores")]
    assert kinds(doubt, replace(fast, cached=True), replace(fast, line=3, ttft_ms=380.0)) == []
    assert kinds(doubt, seen(doubt, 4, tp(4), requests_s=3.5, ttft_ms=0.0)) == [
        (4, "faster than the tensor cores"), (4, "more KV than memory")]  # fmt: skip


def test_no_engine_keeps_tensor_cores_at_their_full_rate_all_the_time(doubt: ModuleType) -> None:
    """11,000 tokens a request: 2.5 requests a second on four GPUs at 990 TFLOP/s, 1.8 at 0.7 of that."""
    load = {"ttft_ms": 0.0, "tpot_ms": 12.0}
    busy, busier = (seen(doubt, line, tp(4), requests_s=rate, **load) for line, rate in ((2, 1.7), (3, 1.9)))
    assert kinds(doubt, busy, busier) == [(3, "faster than the tensor cores")]
    assert "prompts in a cache?" in str(doubt.doubts([busier])[0])


def test_figures_of_another_configuration_are_named_on_both_rows(doubt: ModuleType) -> None:
    layouts = [disaggregated(tp(4, prefill), tp(4, 4 - prefill)) for prefill in (1, 2, 3)]
    one, same, other = (seen(doubt, line, layout) for line, layout in enumerate(layouts, 2))
    close, far = replace(same, tpot_ms=25.02), replace(other, tpot_ms=25.3)
    assert kinds(doubt, one, close, far) == [
        (2, "another configuration's figures"),
        (3, "another configuration's figures"),
    ]
    assert kinds(doubt, one, replace(one, line=5)) == [], "a run again of the same"
    assert kinds(doubt, one, replace(close, users=16.0)) == []


def test_requests_past_their_first_token_need_room(doubt: ModuleType) -> None:
    """Four GPUs hold 46 requests of 10,500 tokens at vLLM's share, 51 at 0.95."""
    rows = [seen(doubt, line, tp(4), requests_s=rate, tpot_ms=50.0) for line, rate in ((2, 0.9), (3, 1.0), (4, 1.4))]
    assert kinds(doubt, *rows) == [(3, "another memory share"), (4, "more KV than memory")]


def test_more_ranks_that_decode_a_single_request_more_slowly_are_doubted_in_all_rows(doubt: ModuleType) -> None:
    single = {"users": 1.0, "ttft_ms": 700.0}
    four, eight = seen(doubt, 2, tp(4), tpot_ms=20.0, **single), seen(doubt, 3, tp(8), tpot_ms=25.8, **single)
    loaded = seen(doubt, 4, tp(8), users=32.0, tpot_ms=39.4)
    assert kinds(doubt, four, eight, loaded) == [
        (3, "more ranks slower than fewer"),
        (4, "more ranks slower than fewer"),
    ]
    assert kinds(doubt, four, replace(eight, tpot_ms=16.0), loaded) == []


def test_tokens_of_fewer_users_do_not_take_longer(doubt: ModuleType) -> None:
    few, more = seen(doubt, 2, tp(4), users=4.0, tpot_ms=33.0), seen(doubt, 3, tp(4), users=8.0)
    assert kinds(doubt, few, more) == [(2, "fewer users slower than more")]
    assert kinds(doubt, replace(few, tpot_ms=30.0), more) == []
    assert kinds(doubt, few, replace(more, users=6.0)) == [], "one load does not lie far from the other"
    assert kinds(doubt, few, replace(more, ttft_ms=5000.0)) == [], "who waits long is not among those that decode"
    assert kinds(doubt, few, replace(more, deployment=seen(doubt, 3, tp(8)).deployment)) == []


def test_one_engine_over_more_ranks_than_can_share_the_heads_is_read_as_split_roles(
    doubt: ModuleType, tmp_path: Path
) -> None:
    """Of an NVL72 all GPUs of both roles are told as one engine's ranks; 8 ranks can share 128 heads."""
    shape = ("tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
    columns = {"id": "sweep_agg_1024x1024_c4096", "engine": "sglang", "version": "", "model": "deepseek-ai/DeepSeek-R1"}
    columns |= {"gpu": "gb200", "precision": "fp8", "mode": "agg", "input_tokens": "1024", "output_tokens": "1024"}
    columns |= {
        "concurrency": "4096",
        "batch_size": "4096",
        "ttft_ms": "3000",
        "tpot_ms": "30",
        "measured": "2025-11-17",
    }
    roles = {f"{role}{name}": "" for role in ("prefill_", "decode_") for name in (*shape, "num_workers", "batch_size")}
    rows = [columns | roles | dict(zip(shape, (ranks, "1", "1", ranks, "1"), strict=True)) for ranks in ("72", "8")]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(",".join(values) for values in (rows[0], *(row.values() for row in rows))) + "\n")
    (both, one), refused = import_module("public_rows").read_public_rows(path)
    assert not refused
    assert (both.mode, both.deployment.layout.disaggregated, both.deployment.layout.gpus) == ("disagg", True, 72)
    assert (one.mode, one.deployment.layout.disaggregated, one.deployment.layout.tp) == ("agg", False, 8)
