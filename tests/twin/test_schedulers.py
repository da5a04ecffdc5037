"""Other ways to schedule: vLLM's mixed steps, and an engine that looks for new requests only now and then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ridgeline.errors import InputError
from ridgeline.serving.engines.deployment import describe
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.settings import EngineSettings, parse_engine, resolve
from ridgeline.serving.hardware.cluster import load_gpu
from ridgeline.serving.model.config import load_model
from ridgeline.serving.traffic.traffic import parse_traffic
from ridgeline.serving.twin.simulate import SimulationResult, simulate

LAYOUT = Layout(gpus_per_node=1)


def run(engine: str, traffic: str = "fixed:4000:200", *, requests: int = 64, **load: object) -> SimulationResult:
    settings = parse_engine(engine, EngineSettings(radix_cache=False))
    deployment = describe("llama-8b", "h200", LAYOUT, settings)
    return simulate(deployment, parse_traffic(traffic, requests=requests, **load))  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("load", [{}, {"concurrency": 16}, {"rate_s": 6.0}])
def test_every_request_gets_all_its_tokens_in_order(engine: str, load: dict[str, object]) -> None:
    result = run(engine, "lognormal:1500:150", requests=80, **load)
    assert len(result.records) == 80
    for record in result.records:
        assert record.status == "ok"
        assert sum(count for _, count in record.gaps_s) == record.output_tokens - 1
        assert record.sent_s <= record.first_token_s <= record.end_s
        spent = sum(gap * count for gap, count in record.gaps_s)
        assert spent == pytest.approx(record.end_s - record.first_token_s)


def test_mixed_steps_keep_tokens_coming_while_prompts_are_computed() -> None:
    """SGLang computes all prompts that wait before anybody's next token, vLLM one budget of them at a time."""
    runs = [run(engine, "lognormal:4000:100:0.8", requests=96, concurrency=48) for engine in ("vllm", "sglang")]
    longest = [max(gap for record in r.records for gap, _ in record.gaps_s) for r in runs]
    assert longest[0] < 0.6 * longest[1]


def test_a_mixed_engine_that_runs_out_of_cache_sends_the_latest_back() -> None:
    settings = parse_engine("vllm", EngineSettings(radix_cache=False))
    deployment = describe("llama-8b", "h200", LAYOUT, settings)
    tight = simulate(deployment, parse_traffic("fixed:500:400", requests=40), kv_tokens_per_rank=12_000)
    assert tight.retractions > 0
    assert all(r.status == "ok" and r.output_tokens == 400 for r in tight.records)
    assert max(used for _, used in tight.kv_usage) <= 1.0


@pytest.mark.parametrize("release", ["0.10", "0.19"])
def test_vllm_beyond_what_its_pool_holds_is_as_fast_as_at_its_limit(release: str) -> None:
    deployment = describe("llama-8b", "h200", LAYOUT, parse_engine(f"vllm:{release}", EngineSettings()))
    results = [
        simulate(deployment, parse_traffic("fixed:10000:1000", requests=200, concurrency=users),
                 kv_tokens_per_rank=220_000)
        for users in (19, 80)
    ]  # fmt: skip
    at_limit, beyond = results
    assert at_limit.retractions == 0 and 0 < beyond.retractions < 60
    assert beyond.summary.requests_s > 0.8 * at_limit.summary.requests_s
    assert beyond.summary.tpot_ms is not None and at_limit.summary.tpot_ms is not None
    assert beyond.summary.tpot_ms.mean < 1.3 * at_limit.summary.tpot_ms.mean


@pytest.mark.parametrize("release", ["0.17.0", "0.32.0"])
def test_a_prompt_that_loses_its_room_half_way_is_sent_back(release: str) -> None:
    """The pool was overdrawn by 8% once: answers grow while the pieces of a prompt come."""
    settings = parse_engine(f"vllm:{release}", EngineSettings(radix_cache=False, chunked_prefill_size=512))
    deployment = describe("llama-8b", "h200", LAYOUT, settings)
    sent = parse_traffic("lognormal:2000:600:0.7", requests=60, seed=3)
    tight = simulate(deployment, sent, kv_tokens_per_rank=sent.longest_tokens() + 12_000)
    assert tight.retractions > 0
    assert all(r.status == "ok" for r in tight.records)
    assert max(used for _, used in tight.kv_usage) <= 1.0


def test_vllm_has_defaults_of_its_own() -> None:
    model, lay = load_model("llama-8b"), Layout()

    def applied(engine: str, gpu: str = "h100"):
        return resolve(parse_engine(engine, EngineSettings()), model, load_gpu(gpu), lay, 10**6)

    assert (applied("vllm").chunk_tokens, applied("vllm").running_limit) == (8192, 1024)
    assert (applied("vllm", "l40s").chunk_tokens, applied("vllm", "l40s").running_limit) == (2048, 256)
    assert applied("vllm").mixed and not applied("sglang").mixed
    assert applied("vllm:0.17.0").overlap and not applied("vllm:0.12.0").overlap


def test_drafting_switched_the_overlapped_scheduler_off_up_to_sglang_0_5_10() -> None:
    model, gpu = load_model("deepseek-r1"), load_gpu("h200")

    def overlaps(release: str, **settings: object) -> bool:
        chosen = parse_engine(f"sglang:{release}", EngineSettings(**settings))
        return resolve(chosen, model, gpu, Layout(tp=8), 10**6).overlap

    assert overlaps("0.5.10") and not overlaps("0.5.10", draft_tokens=3)
    assert overlaps("0.5.11", draft_tokens=3)
    assert overlaps("0.5.8", draft_tokens=3, draft_overlap=True)
    assert not overlaps("0.5.11", draft_tokens=3, draft_overlap=False)


def test_drafts_bring_limits_of_their_own_with_sglang() -> None:
    model, gpu = load_model("deepseek-r1"), load_gpu("h200")

    def applied(engine: str, **settings: object):
        return resolve(parse_engine(engine, EngineSettings(**settings)), model, gpu, Layout(tp=8), 10**6)

    drafts = {"draft_tokens": 4, "draft_method": "EAGLE"}
    assert applied("sglang").running_limit > applied("sglang", **drafts).running_limit == 48
    assert applied("sglang", **drafts, max_running_requests=256).running_limit == 256
    assert applied("vllm", **drafts).running_limit == applied("vllm").running_limit
    # mixed chunks beside drafts: no release before 0.5.19, and never drafts from the text itself
    chunks = {"mixed_chunk": True}
    assert applied("sglang:0.5.18", **chunks).mixed and not applied("sglang:0.5.18", **chunks, **drafts).mixed
    assert applied("sglang:0.5.19", **chunks, **drafts).mixed
    assert not applied("sglang:0.5.23", **chunks, draft_tokens=12, draft_method="NGRAM").mixed


def test_waiting_for_the_host_while_drafting_is_no_reason_for_old_vllms_wide_bounds() -> None:
    deployments = (
        describe("deepseek-v2-lite", "h200", LAYOUT, parse_engine(engine, EngineSettings(draft_tokens=2)))
        for engine in ("sglang:0.5.9", "vllm:0.12.0")
    )
    drafted, old = (simulate(each, parse_traffic("fixed:200:50", requests=4)) for each in deployments)
    assert old.doubts.old_experts and not drafted.doubts.old_experts


def test_before_asynchronous_scheduling_every_step_waited_for_the_host() -> None:
    old, new = (run(f"vllm:{release}", "fixed:200:200", concurrency=8) for release in ("0.12.0", "0.17.0"))
    assert old.summary.itl_ms.p50 > new.summary.itl_ms.p50 + 1.5


@pytest.mark.parametrize("text", ["vllm:0.6.1", "tgi", "vllm:new"])
def test_an_engine_that_is_not_simulated_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="not simulated"):
        parse_engine(text, EngineSettings())


def test_post_releases_are_releases() -> None:
    assert parse_engine("sglang:0.5.8.post1", EngineSettings()).version == (0, 5, 8)


@pytest.mark.parametrize("load", [{"concurrency": 24}, {"rate_s": 8.0}])
def test_a_rare_look_makes_new_requests_wait_and_loses_none(load: dict[str, object]) -> None:
    settings = EngineSettings(radix_cache=False)
    traffic = parse_traffic("lognormal:600:300", requests=96, **load)  # type: ignore[arg-type]
    often, rarely = (
        simulate(describe("llama-8b", "h200", LAYOUT, replace(settings, recv_interval=n)), traffic) for n in (1, 30)
    )
    assert len(rarely.records) == 96
    assert all(r.status == "ok" for r in rarely.records)
    # half of thirty steps of about 6 ms
    assert rarely.summary.ttft_ms.p50 > often.summary.ttft_ms.p50 + 40
    assert rarely.summary.ttft_ms.p50 < often.summary.ttft_ms.p50 + 300


def test_looks_keep_their_rhythm_when_nobody_came_for_a_while() -> None:
    """Ends fall anywhere between two looks, so that the next request waits half an interval on average."""
    settings = EngineSettings(radix_cache=False, recv_interval=40)
    deployment = describe("llama-8b", "h200", LAYOUT, settings)
    traffic = parse_traffic("lognormal:200:300:0.5", requests=120, concurrency=4)
    polled = simulate(deployment, traffic, front_end=False).summary
    always = simulate(
        replace(deployment, settings=replace(settings, recv_interval=1)), traffic, front_end=False
    ).summary
    assert polled.ttft_ms is not None
    assert always.ttft_ms is not None
    assert always.itl_ms is not None
    waited = (polled.ttft_ms.mean - always.ttft_ms.mean) / always.itl_ms.p50
    assert 12 <= waited <= 28
