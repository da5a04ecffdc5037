"""How many sessions a pool holds: small cases worked out by hand, and what the verb makes of them."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.settings import EngineSettings, parse_engine, settings_of, values_of
from ridgeline.serving.hardware.cluster import make_cluster
from ridgeline.serving.model.config import load_model
from ridgeline.serving.planner import sessions as planner_sessions
from ridgeline.serving.planner.candidates import PlanQuestion, make_unit
from ridgeline.serving.planner.commands import unit_arguments
from ridgeline.serving.planner.sessions import SessionsPlan
from ridgeline.serving.traffic.replay import Replay, TraceRow
from ridgeline.serving.traffic.requests import Slo
from ridgeline.serving.traffic.texts import Text
from ridgeline.serving.traffic.traffic import ClosedLoop, Traffic
from ridgeline.serving.twin.calibration import Calibration
from ridgeline.serving.twin.cluster import POLICIES
from ridgeline.serving.twin.simulate import simulate, step_time
from ridgeline.serving.verbs import plan_sessions as plan_sessions_verb
from tests.command_line import ridgeline
from tests.twin import deployments as make

TOKEN_BYTES = 2 * 32 * 8 * 128 * 2  # of llama-8b: keys and values, layers, heads, 16 bits


def chats(prompt: int = 4000, *, shared: int = 0, same: bool = True, output: int = 20) -> Traffic:
    """Sessions of four turns, 20 s apart. With `same` each turn goes on where the one before ended."""
    rows: list[TraceRow] = []
    common = Text(0)
    for session in range(12):
        text = Text(session + 1, common, shared)
        for turn in range(4):
            after = (len(rows) - 1,) if turn else ()
            own = text if same else Text(1000 + len(rows))
            rows.append(TraceRow(prompt + 100 * turn, output, None, own, session, after, 20.0 if turn else 0.0))
    return Traffic(Replay(tuple(rows), "made"), len(rows), ClosedLoop(1), duration_s=240.0)


def planned(
    monkeypatch: pytest.MonkeyPatch, traffic: Traffic, pool: int | None, *slos: str, host_bytes: float | None = None
) -> SessionsPlan:
    with monkeypatch.context() as patched:
        if pool:
            patched.setattr(planner_sessions, "simulate", partial(simulate, kv_tokens_per_rank=pool))
            patched.setattr(planner_sessions, "step_time", partial(step_time, kv_tokens_per_rank=pool))
        limits = tuple(map(Slo.parse, slos))
        search = planner_sessions._Search(make.llama(), traffic, Calibration(), limits)
        planner_sessions._limit_waiting([search], limits)
        search.most()
        return search.plan(host_bytes)


def test_a_pool_of_9000_tokens_holds_two_sessions_of_4300_and_not_three(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(monkeypatch, chats(), 9000, "ttft_p50_ms=100")
    assert (plan.sessions, plan.fails, plan.cause) == (2, 3, "KV pool")
    two, three = (next(load for load in plan.loads if load.sessions == n) for n in (2, 3))
    assert two.holds and not three.holds and three.broken == ("ttft_p50_ms=100",)
    assert 2 * 4000 < two.live_tokens < 9000 < three.live_tokens < 3 * 4400
    assert "3 sessions hold 12," in plan.why and "room for 9,000" in plan.why
    assert "<- knee" in repr(plan) and plan.host_tier is None


def test_what_all_sessions_begin_with_is_held_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """3,000 tokens of instructions and 1,170 more of each session on average: five hold 8,850, six 10,020."""
    plan = planned(monkeypatch, chats(shared=3000), 9000, "ttft_p50_ms=100")
    assert (plan.sessions, plan.fails, plan.cause) == (5, 6, "KV pool")
    five = next(load for load in plan.loads if load.sessions == 5)
    assert five.live_tokens == pytest.approx(8850, abs=100)


def test_a_host_tier_pays_by_as_many_sessions_as_it_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """3 GB hold 22,888 tokens: five sessions of 4,320, not six; 2 GB hold three."""
    assert 5 * 4320 < 3e9 / TOKEN_BYTES < 6 * 4320 and 3 * 4320 < 2e9 / TOKEN_BYTES < 4 * 4320
    plan = planned(monkeypatch, chats(), 9000, "ttft_p50_ms=100", host_bytes=3.4e9)
    assert plan.sessions == 2 and plan.host_tier is not None and plan.host_tier.pays
    assert (plan.host_tier.sessions, plan.host_tier.size) == (5, 3.0)
    assert plan.host_tier.flags == "--enable-hierarchical-cache --hicache-size 3"
    assert any(load.host_tier and load.host_hit_rate > 0.3 for load in plan.loads)


def test_a_host_tier_does_not_pay_where_prompts_are_new(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(monkeypatch, chats(8000, same=False), None, "ttft_p95_ms=600", host_bytes=1e12)
    assert plan.sessions >= 2 and plan.cause == "prefill"
    assert plan.host_tier is not None and not plan.host_tier.pays and "prefill" in plan.host_tier.why
    assert max(load.slow_tokens for load in plan.loads) > 7900


def test_decode_is_the_knee_where_a_limit_on_tokens_is(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = planned(monkeypatch, chats(200, output=400), None).loads[0]
    assert alone.tpot_ms is not None
    limit = f"tpot_p50_ms={1.3 * alone.tpot_ms.p50:.3f}"
    plan = planned(monkeypatch, chats(200, output=400), None, limit, "ttft_p95_ms=10000")
    assert plan.sessions >= 1 and plan.cause == "decode"


def test_without_a_limit_ttft_must_not_take_off(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(monkeypatch, chats(), 9000)
    alone = next(load for load in plan.loads if load.sessions == 1).ttft_ms
    assert alone is not None and [(s.latency, s.quantile) for s in plan.limits] == [("ttft", "p95")]
    assert plan.limits[0].limit_ms == pytest.approx(5 * alone.p95, rel=0.01)


def test_a_short_run_of_one_session_sets_no_limit() -> None:
    """A short run of one session may hold no more than a prompt that is in the cache."""
    ms = [
        planner_sessions._Search(make.llama(), replace(chats(), duration_s=s), Calibration(), ()).alone_ms()
        for s in (50.0, 2000.0)
    ]
    assert ms[0] == pytest.approx(ms[1], rel=0.1)


def test_all_layouts_keep_the_same_limit() -> None:
    """A layout that is slow when it is alone holds no more sessions for that."""
    fast, slow = (planner_sessions._Search(make.llama(), chats(prompt), Calibration(), ()) for prompt in (4000, 16_000))
    planner_sessions._limit_waiting([slow, fast], ())
    assert slow.limits == fast.limits and slow.alone_ms() > 2 * fast.alone_ms()
    assert fast.limits[0].limit_ms == pytest.approx(5 * fast.alone_ms(), rel=0.01)


def test_a_run_without_an_answer_holds_nothing() -> None:
    search = planner_sessions._Search(make.llama(), replace(chats(), duration_s=1e-6), Calibration(), ())
    with pytest.raises(planner_sessions.InputError, match="plan a longer --duration"):
        search.alone_ms()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--duration", "-60"], "a duration of -60 s measures nothing"),
        (["--host-memory", "-1"], "--host-memory -1 GiB is no memory"),
        (["--top", "0"], "--top 0 would compare no layout"),
        (["--nodes", "0"], "a cluster of 0 nodes"),
        (["--routing", "all"], "the routers of one layout; say which"),
        (["--routing", "all", "--tp", "2"], "say --dp 2 or more"),
        (["--gpus-per-node", "0"], "has no GPU"),
        (["--host-tier", "2000", "--host-memory", "100"], "take 3,725 GiB, and --host-memory says 100"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: list[object], said: str) -> None:
    found = ridgeline(*WORDS, *options)
    assert found.returncode == 2 and said in found.stderr


def test_where_one_session_is_too_much_nothing_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(monkeypatch, chats(), 9000, "ttft_p50_ms=1", host_bytes=3e9)
    assert (plan.sessions, plan.fails, plan.cause) == (0, 1, "one session") and len(plan.loads) == 1
    assert plan.host_tier is not None and plan.host_tier.why == "does not pay: one session alone fails"


def test_what_no_cause_explains_is_not_named_one() -> None:
    search = planner_sessions._Search(make.llama(), chats(), Calibration(), (Slo.parse("ttft_p95_ms=1"),))
    free = replace(search.at(4), prefill_share=0.1, host_share=0.0, slow_tokens=10)
    cause, why = search._why(free)
    assert cause == "can't be attributed"
    assert "ttft_p95_ms=1 is broken while the KV pool has room; prefill takes 10% of the time" in why


def test_a_p95_says_how_few_requests_it_rests_on(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(monkeypatch, chats(), 9000, "ttft_p50_ms=100")
    alone, several = plan.loads[0], max(plan.loads, key=lambda load: load.requests)
    assert 0 < alone.requests < 60
    assert plan._row(alone)[2].endswith(f" ms of {alone.requests}")
    assert plan._row(replace(several, requests=60))[2].endswith(" ms")
    assert any("p95 of fewer than 60 requests says of how many" in note for note in plan.shown().notes)


@given(st.integers(1, 30_000), st.integers(2, 20_000))
def test_a_bracket_closes_to_a_tenth_in_few_runs(limit: int, guess: int) -> None:
    tried: list[int] = []

    def holds(sessions: int) -> bool:
        tried.append(sessions)
        return sessions <= limit

    found = planner_sessions._bracketed(holds, guess)
    least = min(limit, planner_sessions.MOST_SESSIONS)
    assert found <= least and (found + 1 > least or found * planner_sessions.NEAR >= least)
    assert len(tried) <= 35 and len(set(tried)) == len(tried)


@pytest.mark.parametrize(
    ("engine", "size", "ratio", "said"),
    [
        ("sglang", 100.0, 0.0, "--enable-hierarchical-cache --hicache-size 100"),
        ("sglang", 0.0, 2.5, "--enable-hierarchical-cache --hicache-ratio 2.5"),
        ("vllm", 600.0, 0.0, "--kv-offloading-size 600"),
    ],
)
def test_printed_commands_ask_for_the_host_tier(engine: str, size: float, ratio: float, said: str) -> None:
    settings = parse_engine(engine, EngineSettings(host_tier_size=size, host_tier_ratio=ratio))
    question = PlanQuestion(load_model("llama-8b"), make_cluster("h200", 1, 1), 4000, 100, (), settings, Calibration())
    unit = make_unit(question, Layout(gpus_per_node=1), "both")
    assert unit is not None and said in " ".join(unit_arguments(unit))
    read = settings_of(values_of(unit.layout, unit.settings), settings)
    assert (read.host_tier_size, read.host_tier_ratio) == (size, ratio)


WORDS = ("plan", "sessions", "--model", "llama-8b", "--gpu", "h100", "--gpus-per-node", 2, "--traffic", "sessions:chat",
         "--idle-cap", 5, "--duration", 60)  # fmt: skip


def test_the_verb_compares_layouts_and_marks_the_knee() -> None:
    words = (*WORDS, "--slo", "tpot_p95_ms=7", "--slo", "ttft_p95_ms=200", "--top", 2)
    said = ridgeline(*words)
    assert said.returncode == 0, said.stderr
    assert "<- knee" in said.stdout and "other layouts" in said.stdout and "knee: " in said.stdout
    document = json.loads(ridgeline(*words, "--json").stdout)
    assert document["sessions"] == max(plan["sessions"] for plan in document["plans"]) > 0
    assert document["plans"][0]["loads"][0]["sessions"] == 1


def test_a_router_that_sends_sessions_home_holds_more_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each copy's pool holds two sessions that come back to it; dealt out in turn, both copies need all of them."""
    monkeypatch.setattr(planner_sessions, "simulate", partial(simulate, kv_tokens_per_rank=9000))
    monkeypatch.setattr(planner_sessions, "step_time", partial(step_time, kv_tokens_per_rank=9000))
    monkeypatch.setattr(planner_sessions, "parse_traffic", lambda *_, **__: chats())
    asked = planner_sessions.SessionsRequest(
        "llama-8b", "h200", Layout(dp=2, gpus_per_node=2), slos=("ttft_p50_ms=100",), routing="all", host_memory_gib=0
    )
    answer = planner_sessions.plan_sessions(asked)
    held = {plan.routing: plan.sessions for plan in answer.plans}
    assert held.keys() == set(POLICIES) and held["cache-aware"] == 4 > held["round-robin"]
    assert answer.best.as_json()["routing"] == "cache-aware" and ", cache-aware: at most 4" in repr(answer.best)
    assert "other routers" in plan_sessions_verb._text(answer) and "dp 2 round-robin" in plan_sessions_verb._text(
        answer
    )


def test_turns_that_go_where_their_context_is_not_are_the_routers_doing() -> None:
    copies = replace(make.llama(), cluster=make_cluster("h200", 1, 2), layout=Layout(dp=2, gpus_per_node=2))
    seen = planner_sessions._Search(copies, chats(), Calibration(), ())
    found = seen.at(3)
    seen.loads[0.0, 1] = replace(found, sessions=1, hit_rate=0.9)
    cause, why = seen._why(replace(found, hit_rate=0.5, live_tokens=12_000))
    assert cause == "router" and "round-robin sends turns to copies that do not hold their context: 50.0%" in why
    assert seen._why(replace(found, hit_rate=0.5, live_tokens=seen.pool_tokens))[0] == "KV pool"


def test_a_layout_of_ones_is_a_layout() -> None:
    words = (*WORDS, "--tp", 1, "--slo", "ttft_p95_ms=200", "--top", 2)
    (plan,) = json.loads(ridgeline(*words, "--json").stdout)["plans"]
    assert plan["layout"] == "tp 1"


def test_the_verb_ends_with_1_where_nothing_holds() -> None:
    found = ridgeline(*WORDS, "--tp", 2, "--slo", "tpot_p95_ms=0.1")
    assert found.returncode == 1 and "one session alone breaks tpot_p95_ms=0.1" in found.stderr


def test_traffic_without_sessions_is_refused() -> None:
    found = ridgeline(*WORDS, "--traffic", "fixed:10:10")
    assert found.returncode == 2 and "needs sessions" in found.stderr


def test_engines_that_decode_alone_are_refused() -> None:
    apart = make.split()
    with pytest.raises(planner_sessions.InputError, match="prefill and decode"):
        planner_sessions._Search(apart, chats(), Calibration(), ())
    assert isinstance(apart, Deployment)
