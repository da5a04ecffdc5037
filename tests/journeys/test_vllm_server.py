"""A real server: bench it, ask too much of it, find what it carries, bench it through a router."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.journeys.vllm_engine import (
    ROUTER,
    SMALL,
    answered,
    counters,
    free_port,
    missing,
    process,
    ridgeline,
    vllm_servers,
    write_model,
)

pytestmark = [
    pytest.mark.engine,
    pytest.mark.alone,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(bool(missing()), reason=missing() or "present"),
]
REQUESTS, INPUT, OUTPUT = 48, 24, 12
TRIES = 3  # a measurement that distrusts itself is made again


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "small", shape=SMALL)


@pytest.fixture(scope="module")
def servers(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Two, started together: most of a start is Python at work on one core.

    Four requests at once and no more, so that a queue forms at a load any machine can send.
    """
    logs = tmp_path_factory.mktemp("servers")
    words = ("--max-model-len", "512", "--max-num-seqs", "4")
    with ExitStack() as stack:
        yield vllm_servers(stack, model, [logs / "first.log", logs / "second.log"], *words)


@pytest.fixture(scope="module")
def server(servers: list[str]) -> str:
    return servers[0]


def bench_words(url: str, *more: str) -> list[str]:
    lengths = ["--input-tokens", str(INPUT), "--max-tokens", str(OUTPUT), "--ignore-eos"]
    return ["bench", url, *lengths, *more]


def test_bench_agrees_with_what_the_server_counted(server: str, tmp_path: Path) -> None:
    before = counters(server)
    words = bench_words(server, "--concurrency", "4", "--requests", str(REQUESTS), "--out", "requests.jsonl")
    result = answered(*words, cwd=tmp_path)
    after = counters(server)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0.0)

    assert result["successful_requests"] == REQUESTS
    assert result["errors"] == {}
    assert result["model"] == "tiny", "found by itself"
    assert grown("vllm:request_success_total") == REQUESTS
    assert grown("vllm:generation_tokens_total") == REQUESTS * OUTPUT
    assert result["output_tok_s"] * result["duration_s"] == pytest.approx(REQUESTS * OUTPUT, rel=0.01)
    rows = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    assert len(rows) == REQUESTS
    prompt_tokens = grown("vllm:prompt_tokens_total")
    assert result["input_tok_s"] * result["duration_s"] == pytest.approx(prompt_tokens, rel=0.01)
    assert prompt_tokens / REQUESTS == pytest.approx(INPUT, rel=0.2), "a prompt of n words is about n tokens"


def test_our_ttft_is_the_servers_and_what_lies_between(server: str, tmp_path: Path) -> None:
    """The server's own TTFT starts later and ends earlier than the client's, so it must be the smaller one."""
    before = counters(server)
    result = answered(*bench_words(server, "--concurrency", "2", "--requests", "30"), cwd=tmp_path)
    after = counters(server)
    name = "vllm:time_to_first_token_seconds"
    seconds = after[f"{name}_sum"] - before[f"{name}_sum"]
    count = after[f"{name}_count"] - before[f"{name}_count"]
    assert count == 30
    assert result["ttft_ms"]["mean"] >= 1000 * seconds / count * 0.98


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("--input-tokens", "900", "--max-tokens", "4"), "prompt too long"),
        (("--input-tokens", "16", "--max-tokens", "4000"), "400"),
        (("--input-tokens", "16", "--max-tokens", "4", "--model", "no-such-model"), "404"),
    ],
)
def test_what_a_server_refuses_is_counted_by_kind(
    server: str, tmp_path: Path, words: tuple[str, ...], kind: str
) -> None:
    done = ridgeline("bench", server, "--concurrency", "2", "--requests", "4", *words, "--json", cwd=tmp_path)
    assert done.returncode == 3, "nothing answered"
    assert "Traceback" not in done.stderr
    result = json.loads(done.stdout)
    assert result["successful_requests"] == 0
    assert result["void"]
    ((found, count),) = result["errors"].items()
    assert kind in found
    assert count == 4


def test_goodput_lies_where_the_queue_begins_to_hurt(server: str, tmp_path: Path) -> None:
    """Four slots: with 4n at once a request waits n-1 turns. The limit is taken from the machine's own speed, so that
    one turn of waiting keeps it and two break it: up to 4 at once must hold, 16 must not, and the edge lies between.

    A probe that distrusts itself shows nothing; where others keep the machine too busy for an edge, those that trust
    themselves must still lie on both sides of it.
    """
    words = bench_words(server, "--concurrency", "4", "--requests", "40")
    clean = []
    for _ in range(TRIES):
        alone = answered(*words, cwd=tmp_path)
        limit_ms = alone["ttft_ms"]["p95"] + 1.5 * alone["e2e_ms"]["p50"]
        asked = ("--find-goodput", "--slo", f"ttft_p95_ms={limit_ms:.0f}", "--hold", "5", "--within", "300")
        done = ridgeline(*words, *asked, "--json", cwd=tmp_path)
        edge = json.loads(done.stdout) if done.returncode == 0 else None
        assert edge or "void" in done.stderr, done.stderr
        clean += [probe for probe in edge["probes"] if probe["holds"] is not None] if edge else []
        if edge and edge["unjudged"] is None and not edge["out_of_time"]:
            assert edge["axis"] == "concurrency"
            assert 4 <= edge["holds"] < edge["fails"] <= 16, f"limit {limit_ms:.0f} ms: {edge['interval']}"
            assert edge["held"] and edge["held_for_s"] >= 0.99 * 5
            # what counts as good was served, and no probe served more
            assert 0 < edge["goodput_s"] <= 1.05 * max(probe["requests_s"] for probe in edge["probes"])
            break
    assert all(probe["errors"] == {} for probe in clean)
    assert all(probe["holds"] for probe in clean if probe["load"] <= 4)
    assert not any(probe["holds"] for probe in clean if probe["load"] >= 16)
    if {probe["holds"] for probe in clean} != {True, False}:
        busy = os.getloadavg()[0]
        assert busy > 2 * (os.cpu_count() or 1), f"no side of the edge was seen for certain, {done.stderr[-300:]}"
        pytest.skip(f"others keep this machine too busy (load {busy:.1f}) for an edge; what was seen agrees")


def test_the_queue_we_time_is_the_queue_the_server_has(server: str, tmp_path: Path) -> None:
    """At sixteen at once most of a first token's time is waiting for a slot, and the server says how long that was."""
    name = "vllm:request_queue_time_seconds"
    before = counters(server)
    result = answered(*bench_words(server, "--concurrency", "16", "--requests", "64"), cwd=tmp_path)
    after = counters(server)
    assert after[f"{name}_count"] - before.get(f"{name}_count", 0.0) == 64
    queue_ms = 1000 * (after[f"{name}_sum"] - before.get(f"{name}_sum", 0.0)) / 64
    assert 0.6 * result["ttft_ms"]["mean"] < queue_ms < result["ttft_ms"]["mean"]


@pytest.mark.skipif(bool(missing(ROUTER)), reason=missing(ROUTER) or "present")
def test_a_router_in_front_of_two_servers(servers: list[str], tmp_path: Path) -> None:
    port, metrics_port = free_port(), free_port()
    command = [
        str(ROUTER / "bin" / "python"), "-m", "sglang_router.launch_router", "--host", "127.0.0.1",
        "--port", str(port), "--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port),
        "--policy", "round_robin", "--worker-urls", *servers,
    ]  # fmt: skip
    before = [counters(url).get("vllm:request_success_total", 0.0) for url in servers]
    with process(command, port, tmp_path / "router.log", {}) as router:
        # this router lists the model as `unknown`, which its servers do not know
        result = answered(*bench_words(router, "--concurrency", "4", "--requests", "40"), cwd=tmp_path)
    assert result["model"] == "tiny", "as the servers behind it say"
    after = [counters(url)["vllm:request_success_total"] for url in servers]
    assert result["successful_requests"] == 40
    served = [now - then for now, then in zip(after, before, strict=True)]
    assert sum(served) == 40
    assert min(served) >= 15, f"both servers worked: {served}"


PROMPT = {"prompt": "one two three", "max_tokens": 4, "seed": 1}
CHAT = {"messages": [{"role": "user", "content": "one two three"}], "max_tokens": 4, "seed": 1}
COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port, log = free_port(), tmp_path_factory.mktemp("twin") / "twin.log"
    words = ["twin", "serve", "--model", "llama-8b", "--gpu", "h200", "--served-model-name", "tiny", "--api", "vllm"]
    with process([sys.executable, "-m", "ridgeline", *words, "--port", str(port)], port, log, {}) as url:
        yield url


def seen(url: str, path: str, body: dict[str, object]) -> tuple[object, ...]:
    """What a client can act on: the status, whether it is hung up on, who is to blame, how each choice ended."""
    connection = HTTPConnection(url.removeprefix("http://"), timeout=120)
    headers = {"content-type": "application/json", "connection": "close"}
    connection.request("POST", path, json.dumps(body), headers)
    answer = connection.getresponse()
    said, hung_up = json.loads(answer.read()), answer.getheader("connection")
    connection.close()
    if answer.status != 200:
        return answer.status, hung_up, said["error"]["code"], said["error"]["message"].partition("Valid aliases")[0]
    choices = [(one["index"], one["finish_reason"], bool(one["stop_reason"])) for one in said["choices"]]
    return answer.status, hung_up, choices, said["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {**PROMPT, "n": 1, "stop": None}),
        (COMPLETIONS, {**PROMPT, "prompt": ["one two three"]}),
        (COMPLETIONS, {**PROMPT, "max_tokens": 200, "ignore_eos": True}),
        (CHATS, CHAT),
        (CHATS, {**CHAT, "max_tokens": 1}),
    ],
)
def test_the_twin_answers_as_vllm_does(server: str, twin: str, path: str, body: dict[str, object]) -> None:
    assert seen(twin, path, {**body, "model": "tiny"}) == seen(server, path, {**body, "model": "tiny"})


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        (COMPLETIONS, {**PROMPT, "model": "nobody"}, True),
        (CHATS, {**CHAT, "model": "nobody"}, True),
        (COMPLETIONS, {**PROMPT, "n": 0}, False),
        (COMPLETIONS, {**PROMPT, "n": "x"}, False),
        (COMPLETIONS, {**PROMPT, "stop": ""}, False),
        (COMPLETIONS, {**PROMPT, "stop": 5}, False),
        (COMPLETIONS, {**PROMPT, "max_tokens": 10**7}, False),
        (CHATS, {"max_tokens": 4}, False),
    ],
)
def test_the_twin_refuses_as_vllm_does(server: str, twin: str, path: str, body: dict[str, object], words: bool) -> None:
    """`words`: also in the same words."""
    ours, theirs = seen(twin, path, body), seen(server, path, body)
    assert ours[:3] == theirs[:3]
    if words:
        assert str(ours[3]).strip() == str(theirs[3]).strip()
