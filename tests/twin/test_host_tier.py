"""KV that comes back from the host's memory: what is found there, how long it takes, and who waits."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ridgeline.errors import InputError
from ridgeline.serving.engines.layout import Layout, rank_kv_bytes_per_token
from ridgeline.serving.engines.settings import DEFAULTS, parse_engine, resolve, settings_of, values_of
from ridgeline.serving.hardware.cluster import GIB, make_cluster
from ridgeline.serving.model.config import load_model
from ridgeline.serving.traffic.texts import Text
from ridgeline.serving.twin.mixed import MixedEngine
from ridgeline.serving.twin.scheduler import Engine
from tests.twin.test_eviction_order import engine, request, running, sent


def with_tier(kind: type[Engine] = Engine, tokens: int = 5000, **settings: object) -> Engine:
    """A pool of 1,000 tokens, and a host from which a token takes a tenth of a second."""
    tier = {"host_tokens": tokens, "host_token_s": 0.1, **settings}
    return engine(kind, radix_cache=True, pool=1000, chunk_tokens=4000, **tier)


def served(one: Engine, number: int, text: Text, tokens: int) -> float:
    """When the prompt of one who comes now has been computed, counted from now."""
    before = one.clock
    (came,) = sent(one, request(number, tokens, 2, text))
    while not one.idle:
        one.advance(1e9)
    assert came.first_s is not None
    return came.first_s - before


@pytest.mark.parametrize("kind", [Engine, MixedEngine])
def test_what_the_gpu_forgot_is_brought_back_and_not_computed_again(kind: type[Engine]) -> None:
    one, first, second = with_tier(kind), Text(1), Text(2)
    assert served(one, 1, first, 600) == 600
    assert served(one, 2, second, 700) == 700, "the end of the first goes"
    assert one.cache is not None and one.cache.matched(first, 1000) < 300
    here = one.cache.matched(first, 700)
    spent_s = served(one, 3, first, 650)
    back_s = (600 - here) * 0.1
    assert spent_s == pytest.approx(50 + back_s if kind is MixedEngine else max(50, back_s))
    assert one.cache_use.hit_tokens == here and one.cache_use.host_hit_tokens == 600 - here


def test_others_go_on_while_vllm_waits_for_the_host() -> None:
    one, first = with_tier(MixedEngine), Text(1)
    served(one, 1, first, 600)
    served(one, 2, Text(2), 700)
    sent(one, request(3, 10, 500))
    one.advance(one.clock + 1)
    (back,) = sent(one, request(4, 620, 5, first))
    steps = one.step_number
    one.advance(1e9)
    one.advance(1e9)
    assert back.loaded_s > one.clock or 4 in running(one)
    assert one.step_number > steps, "whoever runs gets tokens meanwhile"
    while back.end_s is None:
        one.advance(1e9)
    assert back.first_s is not None and back.first_s >= back.loaded_s


@pytest.mark.parametrize(
    ("policy", "once", "twice"),
    [("write_through", True, True), ("write_through_selective", False, True), ("write_back", True, True)],
)
def test_a_write_policy_says_what_the_host_has(policy: str, once: bool, twice: bool) -> None:
    for uses, there in ((1, once), (2, twice)):
        one, chat = with_tier(host_policy=policy), Text(1)
        for number in range(uses):
            served(one, number, chat, 400 + number)
        assert one.tier is not None
        if policy == "write_back":
            assert one.tier.kept.tokens == 0, "nothing has been forgotten yet"
        served(one, 9, Text(2), 900)
        assert (one.tier.kept.matched(chat, 401) > 0) == there


def test_the_host_forgets_what_was_used_longest_ago() -> None:
    one = with_tier(tokens=1000)
    for number in range(4):
        served(one, number, Text(number), 600)
    assert one.tier is not None and one.tier.kept.tokens <= 1000


def test_the_size_of_a_tier_is_counted_as_each_engine_counts_it() -> None:
    model, gpu, lay = load_model("deepseek-r1"), make_cluster("h200", 1, 8).gpu, Layout(tp=8)
    token_bytes = rank_kv_bytes_per_token(model, lay)

    def tokens(engine: str, **values: object) -> int:
        settings = settings_of(values, parse_engine(engine, DEFAULTS))  # type: ignore[arg-type]
        return resolve(settings, model, gpu, lay, 100_000).host_tokens

    assert tokens("sglang", enable_hierarchical_cache=True, hicache_size=100) == int(100e9 / token_bytes)
    assert tokens("sglang", enable_hierarchical_cache=True, hicache_ratio=3) == 300_000
    assert tokens("sglang", enable_hierarchical_cache=True) == 200_000, "twice the pool, where nobody says"
    assert tokens("sglang", hicache_size=100) == 0, "nothing before it is switched on"
    assert tokens("vllm", kv_offloading_size=800) == int(800 * GIB / 8 / token_bytes), "of all ranks together"
    lmcache = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
    of_a_rank = {"kv_connector_extra_config": {"lmcache.local_cpu": True, "lmcache.max_local_cpu_size": 100}}
    by_json = tokens("vllm", tp=8, kv_transfer_config=json.dumps(lmcache | of_a_rank))
    assert by_json == tokens("vllm", kv_offloading_size=800), "LMCache counts for each rank"
    assert tokens("vllm") == tokens("vllm", kv_transfer_config=json.dumps(lmcache)) == 0, "of a size nobody said"
    by_pools = replace(parse_engine("vllm", DEFAULTS), host_tier_ratio=2.0)
    with pytest.raises(InputError, match="vllm takes no host tier in KV pools"):
        resolve(by_pools, model, gpu, lay, 100_000)


@pytest.mark.parametrize(
    ("engine", "values"),
    [
        ("sglang", {"enable_hierarchical_cache": True, "hicache_size": 64.0, "hicache_write_policy": "write_back"}),
        ("sglang", {"enable_hierarchical_cache": True, "hicache_ratio": 4.0}),
        ("sglang", {"radix_eviction_policy": "lfu"}),
        ("vllm", {"kv_offloading_size": 600.0}),
    ],
)
def test_what_was_asked_for_is_what_a_command_asks_for(engine: str, values: dict[str, object]) -> None:
    settings = settings_of(values, parse_engine(engine, DEFAULTS))  # type: ignore[arg-type]
    found = values_of(Layout(), settings)
    assert {name: found.get(name) for name in values} == values
