"""Cache-aware routing as sglang-router does it: a session stays where it was sent, a shared beginning draws nobody."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.hardware.cluster import make_cluster
from ridgeline.serving.traffic.replay import Replay, TraceRow
from ridgeline.serving.traffic.texts import Text
from ridgeline.serving.traffic.traffic import Arrival, ClosedLoop, Traffic
from ridgeline.serving.twin.cluster import Router
from ridgeline.serving.twin.simulate import SimulationResult, simulate
from tests.twin import deployments as make


class Stub:
    def __init__(self) -> None:
        self.load = 0


def sent(router: Router, text: Text, tokens: int) -> int:
    engine = router.choose(Arrival(0, 0.0, tokens, 1, text))
    engine.load += 1
    return router.engines.index(engine)


def sessions(shared: int, first: int, count: int = 24, turns: int = 6) -> Replay:
    rows: list[TraceRow] = []
    common = Text(0)
    for session in range(count):
        text = Text(session + 1, common, shared)
        for turn in range(turns):
            after = (len(rows) - 1,) if turn else ()
            rows.append(TraceRow(first + 500 * turn, 20, None, text, session, after, 1.0 if turn else 0.0))
    return Replay(tuple(rows), "made")


def served(routing: str, replay: Replay) -> SimulationResult:
    deployment = replace(make.llama(), cluster=make_cluster("h200", 1, 4), layout=Layout(dp=4, gpus_per_node=4))
    return simulate(replace(deployment, routing=routing), Traffic(replay, len(replay.rows), ClosedLoop(12)))


def test_a_shared_system_prompt_leaves_sessions_spread_and_each_at_its_home() -> None:
    replay = sessions(shared=1000, first=4000)
    home, turns = served("cache-aware", replay), served("round-robin", replay)
    assert home.cache.hit_tokens > 1.2 * turns.cache.hit_tokens
    by_session: dict[int | None, set[str]] = {}
    for record in home.records:
        by_session.setdefault(record.session, set()).add(record.worker)
    assert all(len(workers) == 1 for workers in by_session.values())
    loads = Counter(record.worker for record in home.records)
    assert len(loads) == 4 and max(loads.values()) <= 1.5 * min(loads.values())


@pytest.mark.parametrize(("tokens", "place"), [(3000, 0), (4000, 1)])
def test_more_than_three_tenths_of_a_prompt_must_be_known(tokens: int, place: int) -> None:
    router = Router([Stub(), Stub()], "cache-aware")  # type: ignore[list-item]
    common = Text(0)
    assert sent(router, Text(1, common, 1000), 3000) == 0
    assert sent(router, Text(2, common, 1000), tokens) == place


def test_of_several_that_know_as_much_the_least_loaded_takes_it() -> None:
    router = Router([Stub(), Stub(), Stub()], "cache-aware")  # type: ignore[list-item]
    common = Text(0)
    assert [sent(router, Text(n + 1, common, 1000), 4000) for n in range(2)] == [0, 1]
    assert sent(router, Text(1, common, 1000), 2000) == 0
    assert sent(router, common, 1000) == 1
    assert sent(router, common, 500) == 0


def test_the_longest_known_beginning_counts_not_the_first_that_was_sent() -> None:
    router = Router([Stub(), Stub()], "cache-aware")  # type: ignore[list-item]
    text = Text(0)
    assert sent(router, text, 1000) == 0
    router.engines[0].load = 100
    assert sent(router, text, 3000) == 1  # loads are far apart
    router.engines[0].load = 1
    assert sent(router, text, 4000) == 1


def test_loads_that_are_far_apart_count_more_than_the_cache() -> None:
    """More than 64 apart, and more than half as much again."""
    text = Text(0)
    for load, other, place in ((65, 1, 0), (66, 1, 1), (200, 134, 0), (300, 200, 0), (301, 200, 1)):
        router = Router([Stub(), Stub()], "cache-aware")  # type: ignore[list-item]
        assert sent(router, text, 1000) == 0
        router.engines[0].load, router.engines[1].load = load, other
        assert sent(router, text, 1000) == place
