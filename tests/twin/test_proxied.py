"""Prefill and decode under vLLM: one after the other; decode reads KV that has room and makes the first token."""

from __future__ import annotations

import pytest

from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.layout import Layout, disaggregated
from ridgeline.serving.engines.settings import EngineSettings, parse_engine
from ridgeline.serving.hardware.cluster import make_cluster
from ridgeline.serving.model.config import load_model
from ridgeline.serving.traffic.traffic import parse_traffic
from ridgeline.serving.twin import disaggregation
from ridgeline.serving.twin.simulate import SimulationResult, simulate

ROLE = Layout(gpus_per_node=8)


def run(traffic: str = "fixed:2000:300", pool: int | None = None, **load: object) -> SimulationResult:
    settings = parse_engine("vllm", EngineSettings(page_size=128))
    deployment = Deployment(load_model("llama-8b"), make_cluster("h100", 1, 8), disaggregated(ROLE, ROLE), settings)
    sent = parse_traffic(traffic, **load)  # type: ignore[arg-type]
    return simulate(deployment, sent, kv_tokens_per_rank=pool)


@pytest.mark.parametrize("pool", [None, 20_000])
def test_every_request_gets_all_its_tokens_once(pool: int | None) -> None:
    result = run("lognormal:1500:150", pool, requests=80, concurrency=40)
    assert [r.status for r in result.records] == ["ok"] * 80
    for record in result.records:
        assert sum(count for _, count in record.gaps_s) == record.output_tokens - 1
        assert record.sent_s < record.first_token_s < record.end_s
    assert max(used for _, used in result.kv_usage) <= 1.0


def test_who_finds_decode_full_waits_before_its_first_token_and_not_after_it() -> None:
    """Ten requests fill the pool of 23,000; the eleventh of forty waits in the decode engine's queue."""
    fits, full = (run(pool=23_000, requests=160, concurrency=users).summary for users in (9, 40))
    assert full.ttft_ms.p50 > 10 * fits.ttft_ms.p50
    assert full.tpot_ms.mean < 1.2 * fits.tpot_ms.mean
    assert full.requests_s > 0.9 * fits.requests_s
    each_s = 1 / full.requests_s
    parts = run(pool=23_000, requests=160, concurrency=40).ttft_parts_ms
    assert list(parts) == ["front end", "prefill queue", "prompt", "decode queue", "KV transfer", "first step"]
    assert parts["decode queue"] > 0.9 * full.ttft_ms.mean
    assert run(requests=36, concurrency=1).ttft_parts_ms["decode queue"] == 0
    assert full.ttft_ms.p50 / 1000 == pytest.approx(30 * each_s, rel=0.2), "thirty are before it"


def test_prompts_are_computed_while_decode_is_full() -> None:
    """Who has waited for room needs its KV and one step then: SGLang would begin with its prompt only now."""
    records = run("fixed:20000:200", pool=50_000, requests=12).records
    alone_s = run("fixed:20000:200", requests=1).records[0].ttft_s
    assert alone_s is not None
    ends = sorted(r.end_s or 0.0 for r in records)
    for record in sorted(records, key=lambda r: r.first_token_s or 0.0)[4:]:
        first_s = record.first_token_s or 0.0
        freed_s = max(end for end in ends if end < first_s)
        assert first_s - freed_s < alone_s / 2


def test_a_decode_engine_that_is_overdrawn_computes_again_what_it_lost() -> None:
    result = run("fixed:1000:1000", 15_000, requests=60, concurrency=30)
    assert result.retractions > 0 and result.summary.ok == 60
    assert result.hit_rate == 0, "what it finds of its own is nobody's prompt in a cache"


def test_asking_for_kv_holds_up_who_decodes_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = {users: run(requests=4 * users, concurrency=users).summary for users in (1, 8)}
    monkeypatch.setattr(disaggregation, "ASKED_BLOCKS_S", 1e12)
    free = {users: run(requests=4 * users, concurrency=users).summary for users in (1, 8)}
    assert slow[1].ttft_ms.mean == pytest.approx(free[1].ttft_ms.mean)
    assert slow[1].tpot_ms.mean == pytest.approx(free[1].tpot_ms.mean)
    # seven others bring a prompt while a request decodes: 2,000 tokens in blocks of 128, twice in each of 32 layers
    asked_ms = 1000 * 2000 / 128 * 64 / 75_000
    assert slow[8].tpot_ms.mean - free[8].tpot_ms.mean == pytest.approx(7 * asked_ms / 299, rel=0.4)
