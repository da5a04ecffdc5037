"""Promises that every way through the twin keeps: one engine, replicas, split groups, speculative decoding.

Here every engine is looked at, event by event; test_conservation.py looks at what a run reports.
"""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as example_settings
from hypothesis import strategies as st

from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.traffic.traffic import Fixed, LogNormal, Traffic
from ridgeline.serving.twin.calibration import Calibration, Factors
from ridgeline.serving.twin.cluster import serve
from ridgeline.serving.twin.request import Request
from ridgeline.serving.twin.scheduler import Engine
from ridgeline.serving.twin.simulate import build, simulate
from tests.twin import deployments as make
from tests.twin.test_conservation import check

slow = example_settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def replicas(routing: str, copies: int = 3, **settings: object) -> Deployment:
    one = make.llama(**settings)
    node = replace(one.cluster.node, gpus=copies)
    layout = replace(one.layout, dp=copies, nodes=1, gpus_per_node=copies)
    return replace(one, layout=layout, cluster=replace(one.cluster, node=node), routing=routing)


@st.composite
def speculation(draw: st.DrawFn) -> dict[str, object]:
    drafts = draw(st.integers(2, 6))
    # people write 1.9 and not 1.8734; with such numbers the last token may fall exactly on the end of a step
    tenths = st.integers(10, 10 * drafts).map(lambda n: n / 10)
    return {"draft_tokens": drafts, "accept_length": draw(tenths | st.floats(1, drafts))}


paths = st.one_of(
    st.builds(lambda s: make.llama(**s), make.settings),
    st.builds(lambda s: make.llama(**s), speculation()),
    st.builds(replicas, st.sampled_from(["round-robin", "least-load", "cache-aware"])),
    st.builds(make.split, st.sampled_from(["P2D2", "P2x2D2", "P2D4"])),
    st.just(make.r1("h800", tp=16, attn_dp=16, ep=16)),
)


def ran(deployment: Deployment, sent: Traffic, pool: int | None = None) -> tuple[list[Engine], list[Request]]:
    front, engines, _ = build(deployment, Calibration(), sent, pool)
    return engines, serve(front, sent.arrivals(), sent.concurrency)[0]


@slow
@given(paths, make.traffic(60))
def test_no_engine_turns_time_back_or_holds_more_than_its_pool(deployment: Deployment, sent: Traffic):
    engines, requests = ran(deployment, sent)
    for engine in engines:
        assert all(later >= earlier for (earlier, _), (later, _) in pairwise(engine.usage))
        assert all(-1e-6 <= used <= engine.pool_tokens + 1e-6 for _, used in engine.usage)
        assert engine.load == 0
        assert engine.idle
        assert engine.used_tokens == pytest.approx(0, abs=1e-6)
    assert sum(r.arrival.output_tokens for r in requests if not r.failure) == sum(
        r.generated for r in requests if not r.failure
    )
    assert len(requests) == sent.requests


@slow
@given(speculation(), make.traffic(60))
@example({"draft_tokens": 2, "accept_length": 1.9}, Traffic(Fixed(50, 20), 2))
@example({"draft_tokens": 4, "accept_length": 3.8}, Traffic(Fixed(50, 96), 2))
def test_speculative_runs_conserve_too(drafted: dict[str, object], sent: Traffic):
    check(simulate(make.llama(**drafted), sent), sent)


@slow
@given(speculation(), make.traffic(60), st.integers(4000, 9000))
@example(
    {"draft_tokens": 5, "accept_length": 2.6312641004263235},  # one is sent back right after a round of prompts
    Traffic(LogNormal(157.17235041493984, 42.045143667687675, 0.533528835905425, 0.9759839899486236), 59, seed=1),
    6344,
)
def test_speculative_runs_in_a_tight_pool_conserve_too(drafted: dict[str, object], sent: Traffic, pool: int):
    deployment = make.llama(schedule_conservativeness=0.05, **drafted)
    check(simulate(deployment, sent, kv_tokens_per_rank=max(pool, sent.longest_tokens() + 8)), sent)


@slow
@given(make.traffic(60), st.integers(0, 8000), st.sampled_from(["P2D2", "P2x2D2"]))
def test_a_tight_pool_of_split_groups_never_overflows(sent: Traffic, spare: int, words: str):
    pool = sent.longest_tokens() + 1 + spare
    engines, _ = ran(make.split(words, rank_limit=8), sent, pool)
    assert all(used <= e.pool_tokens + 1e-6 for e in engines for _, used in e.usage)


@slow
@given(
    st.sampled_from([make.llama(), make.r1(tp=16), make.r1("h800", tp=16, attn_dp=16, ep=16), make.split("P2D2")]),
    st.integers(1, 300),
    st.integers(1, 2000),
    st.integers(1, 200),
    st.sampled_from(["compute", "memory", "attention", "network"]),
    st.floats(1, 4),
)
def test_a_burst_on_a_better_machine_never_takes_longer(
    deployment: Deployment, count: int, prompt: int, answer: int, name: str, by: float
):
    sent = Traffic(Fixed(prompt, answer), count)
    before = simulate(deployment, sent)
    after = simulate(deployment, sent, Calibration(Factors(**{name: by})))
    assert after.summary.duration_s <= before.summary.duration_s * (1 + 1e-9)


@slow
@given(make.open_loops(80))
def test_an_engine_that_is_left_alone_ends_as_one_that_is_looked_at(sent: Traffic):
    """Open loops move an engine only when its load matters; that must not change what happens to anybody."""
    deployment = replicas("round-robin")
    plain = ran(deployment, sent)[1]
    _, engines, _ = build(deployment, Calibration(), sent)
    watched = []
    for turn, arrival in enumerate(sorted(sent.arrivals(), key=lambda a: (a.at_s, a.number))):
        for engine in engines:
            engine.advance_to(arrival.at_s)
        watched.append(Request(arrival, arrival.at_s, arrival.input_tokens))
        engines[turn % len(engines)].submit(watched[-1], arrival.at_s)
    for engine in engines:
        engine.advance_to(float("inf"))
    watched.sort(key=lambda r: r.arrival.number)
    assert [r.worker for r in watched] == [r.worker for r in plain]
    # an arrival that falls on the boundary of two steps may be rounded to either side of it: one step of difference
    assert [r.end_s for r in watched] == pytest.approx([r.end_s for r in plain], rel=0.01, abs=0.02)
