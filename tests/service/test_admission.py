"""Limits of a router: as many as the twin's servers bear within the SLO and their KV pools, and no more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from ridgeline.errors import InputError
from ridgeline.serving.engines.deployment import describe
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.service import admission
from ridgeline.serving.service.admission import BELOW_EDGE, admission_of
from ridgeline.serving.service.file import load_service
from ridgeline.serving.service.members import members_of
from ridgeline.serving.service.routers import router_promise
from ridgeline.serving.service.servers import FULL_KV_SHARE
from ridgeline.serving.service.service import Service
from ridgeline.serving.traffic.requests import RequestRecord, Slo, summarise
from ridgeline.serving.traffic.traffic import parse_traffic
from ridgeline.serving.twin.simulate import simulate
from ridgeline.serving.verbs.deploy import service_summary

TEXT = """\
version: 1
model: llama-70b
engine: {kind: sglang, gpu: h100}
units: [{replicas: 2, gpus: 4, settings: {tp: 4}}]
router: {kind: smg, policy: power_of_two}
slo: {ttft_p95_ms: 2000, tpot_p95_ms: 40}
"""
TRAFFIC = "fixed:500:60"


def service(folder: Path, text: str = TEXT) -> Service:
    path = folder / "service.yaml"
    path.write_text(text)
    return load_service(path)


def test_a_tighter_slo_lets_fewer_in(tmp_path: Path) -> None:
    loose = admission_of(service(tmp_path), TRAFFIC)
    tight = admission_of(service(tmp_path, TEXT.replace("tpot_p95_ms: 40", "tpot_p95_ms: 25")), TRAFFIC)
    assert (loose.bound, tight.bound) == ("tpot_p95_ms", "tpot_p95_ms")
    assert 0 < tight.most_running < loose.most_running < loose.edge
    assert tight.requests_s < loose.requests_s
    assert loose.most_running >= int(BELOW_EDGE * loose.edge) - 2


def test_twice_the_servers_bear_twice_as_much(tmp_path: Path) -> None:
    two = service(tmp_path)
    four = replace(two, units=(two.units[0].model_copy(update={"replicas": 4}),))
    assert admission_of(four, TRAFFIC).most_running == 2 * admission_of(two, TRAFFIC).most_running


def test_a_small_pool_is_the_edge_before_the_slo_is(tmp_path: Path) -> None:
    text = TEXT.replace("tp: 4", "tp: 4, mem_fraction_static: 0.5").replace("2000, tpot_p95_ms: 40", "60000")
    found = admission_of(service(tmp_path, text), "fixed:2000:200")
    assert found.bound == "KV pool"
    assert 0.5 < found.kv_share <= FULL_KV_SHARE


def test_who_waits_in_the_router_may_still_keep_the_slo(tmp_path: Path) -> None:
    found = admission_of(service(tmp_path), TRAFFIC)
    assert 0 < found.longest_wait_s < 2.0
    assert found.most_waiting <= found.longest_wait_s * found.requests_s, "the last in the queue gets in before that"


def test_the_first_wave_of_a_run_is_no_measure(tmp_path: Path) -> None:
    """All at once only at the start of a simulation: a service that runs gets one request for each that ends."""
    text = TEXT.replace("ttft_p95_ms: 2000, tpot_p95_ms: 40", "ttft_p95_ms: 400")
    found = admission_of(service(tmp_path, text), "lognormal:500:200:0.5")
    assert found.edge > 100
    assert simulate_burst(found.edge // 2) > 3 * 400, "so many prompts at once take much longer"


def simulate_burst(count: int) -> float:
    deployment = describe("llama-70b", "h100", Layout(4, nodes=1, gpus_per_node=4))
    spread = simulate(deployment, parse_traffic("lognormal:500:200:0.5", requests=count)).summary.ttft_ms
    assert spread is not None
    return spread.p95


def test_an_slo_that_one_request_breaks_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="even one request at a time breaks tpot_p95_ms"):
        admission_of(service(tmp_path, TEXT.replace("tpot_p95_ms: 40", "tpot_p95_ms: 1")), TRAFFIC)


def test_without_an_slo_the_limit_is_where_more_brings_nothing(tmp_path: Path) -> None:
    text = TEXT.replace("slo: {ttft_p95_ms: 2000, tpot_p95_ms: 40}\n", "")
    found = admission_of(service(tmp_path, text), "fixed:4000:20")
    assert found.bound == "throughput"


def test_split_roles_are_asked_together(tmp_path: Path) -> None:
    units = (
        "units: [{role: prefill, replicas: 2, gpus: 2, settings: {tp: 2, mem_fraction_static: 0.88}}, "
        "{role: decode, gpus: 4, settings: {tp: 4, max_running_requests: 256}}]"
    )
    text = TEXT.replace("units: [{replicas: 2, gpus: 4, settings: {tp: 4}}]", units)
    found = admission_of(service(tmp_path, text), TRAFFIC)
    more = admission_of(service(tmp_path, text.replace("replicas: 2", "replicas: 3")), TRAFFIC)
    assert found.bound == "ttft_p95_ms", "prompts are what two small servers compute for one large one"
    assert more.requests_s > found.requests_s


def test_routers_are_told_in_their_own_words(tmp_path: Path) -> None:
    found = admission_of(service(tmp_path), TRAFFIC)
    router = service(tmp_path).router
    assert router is not None
    router = router.model_copy(update={"most_running": 30, "most_waiting": 4, "longest_wait_s": 2.0})
    smg = members_of(replace(service(tmp_path), router=router))[-1].line
    assert "--max-concurrent-requests 30 --queue-size 4 --queue-timeout-secs 2" in smg
    assert "--disable-worker-overload-protection --power-of-two-load-metric least_requests" in smg
    other = router.model_copy(update={"kind": "sglang-router", "most_waiting": 0, "longest_wait_s": None})
    line = members_of(replace(service(tmp_path), router=other))[-1].line
    assert "--max-concurrent-requests 30 --rate-limit-tokens-per-second 1 --queue-size 0" in line
    assert found.for_router("sglang-router")["most_waiting"] == 0


def test_a_router_without_a_breaker_before_replicas(tmp_path: Path) -> None:
    """The 400s of clients are no sign of a broken server."""
    leaky = service(tmp_path, TEXT.replace("kind: smg", "kind: sglang-router"))
    assert "--disable-circuit-breaker" in members_of(leaky)[-1].line


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("kind: smg", "kind: smg", ""),
        (
            "kind: smg",
            "kind: sglang-router",
            "or give each server max_running_requests and max_queued_requests",
        ),
        ("kind: sglang,", "kind: vllm,", "for more than a minute of it use `kind: smg`. It also refuses without"),
        ("policy:", "most_waiting: 4, policy:", "408 within a second to whoever waits; write `most_waiting: 0`"),
        ("tp: 4", "tp: 4, max_queued_requests: 3", "refuses without Retry-After; where clients need it use"),
    ],
)
def test_it_is_said_which_router_keeps_the_promise(tmp_path: Path, old: str, new: str, said: str) -> None:
    text = TEXT if new == "kind: smg" else TEXT.replace("kind: smg", "kind: sglang-router").replace(old, new)
    choice = service(tmp_path, text.replace("policy: power_of_two", "policy: power_of_two, most_running: 9"))
    promise = router_promise(choice)
    assert said in promise if said else promise == ""
    assert promise in service_summary(choice, members_of(choice))


# what follows from a run of the twin


ANSWERS = [RequestRecord(n, 0.0, 0.0, 0.5, 2.0, 10, 31) for n in range(20)]  # 0.5 s to the first token, 2 s in all
LATE = [Slo.parse("ttft_p95_ms=400")]


def test_places_that_are_always_taken_answer_as_many_as_their_time_allows() -> None:
    assert admission._rate_s(summarise(ANSWERS), 8) == pytest.approx(4.0)
    assert admission._rate_s(summarise([]), 8) == 0.0


@pytest.mark.parametrize(
    ("slos", "wait_s"),
    [
        ([], 2.0),  # no longer than an answer takes
        (["ttft_p95_ms=2000"], 1.5),
        (["ttft_p95_ms=2000", "e2e_p95_ms=2300"], 0.3),
        (["tpot_p95_ms=60"], 2.0),  # waiting does not make tokens slower
        (["ttft_p95_ms=400"], 0.0),
    ],
)
def test_a_request_may_wait_for_what_its_limits_leave(slos: list[str], wait_s: float) -> None:
    assert admission._wait_s(summarise(ANSWERS), [Slo.parse(each) for each in slos]) == pytest.approx(wait_s)


def gives_way(
    monkeypatch: pytest.MonkeyPatch, slos: list[Slo], before_s: float = 0.0, retractions: int = 0, fullest: float = 0.5
) -> str:
    """What the verdict on eight at once is, which answer four requests a second."""
    result = SimpleNamespace(retractions=retractions, kv_usage=((0.0, 0.1), (1.0, fullest), (2.0, 0.2)))
    monkeypatch.setattr(admission, "_run", lambda one, traffic, at_once, slos: (result, summarise(ANSWERS, slos)))
    why, rate_s = admission._verdict(None, None, 8, slos, before_s)  # type: ignore[arg-type]
    assert rate_s == pytest.approx(4.0)
    return why


def test_what_gives_way_first_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gives_way(monkeypatch, []) == ""
    assert gives_way(monkeypatch, [], retractions=1) == "KV pool"
    assert gives_way(monkeypatch, [], fullest=0.95) == "KV pool", "at its fullest, not at its end"
    assert gives_way(monkeypatch, [], fullest=0.89) == ""
    assert gives_way(monkeypatch, LATE) == "ttft_p95_ms"
    assert gives_way(monkeypatch, [Slo.parse("ttft_p95_ms=600")]) == ""


def test_more_at_once_for_hardly_more_throughput_is_only_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gives_way(monkeypatch, [], before_s=3.9) == "throughput"
    assert gives_way(monkeypatch, [], before_s=3.5) == ""
    assert gives_way(monkeypatch, [Slo.parse("ttft_p95_ms=600")], before_s=3.9) == "", "a limit says what is too much"
