"""The server as a client, a router and an operator meet it: real sockets on the loopback address."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from ridgeline.errors import InputError, SiteError
from ridgeline.serving.engines.deployment import Deployment, describe
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.settings import DEFAULTS, EngineSettings
from ridgeline.serving.engines.sglang.engine import SGLANG
from ridgeline.serving.load.discover import discover
from ridgeline.serving.load.wire.endpoint import parse_endpoint
from ridgeline.serving.twin.calibration import Calibration
from ridgeline.serving.twin.server.live import Fault, parse_fault
from ridgeline.serving.twin.server.roles import PrefillRole
from ridgeline.serving.twin.server.serve import ServedTwin, TwinServer

FAST = 200.0  # the twin's seconds in one of ours: what is said counts here, not when


def llama(settings: EngineSettings = DEFAULTS, dp: int = 1) -> Deployment:
    return describe("llama-8b", "h200", Layout(1, dp=dp, nodes=1, gpus_per_node=dp), settings)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Running:
    """A server on a thread of this process."""

    def __init__(self, server: TwinServer, loop: asyncio.AbstractEventLoop) -> None:
        self.server, self._loop = server, loop
        self.port, self.bootstrap_port = server.served.port, server.served.bootstrap_port

    def call(self, method: str, path: str, body: object = None, key: str = "") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        text = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection.request(method, path, text, headers)
        answer = connection.getresponse()
        status, said = answer.status, answer.read()
        connection.close()
        return status, said

    def json(self, path: str, body: object = None) -> Any:
        status, said = self.call("GET" if body is None else "POST", path, body)
        assert status == 200, said
        return json.loads(said)

    def settled(self, ready: Any, limit_s: float = 30.0) -> None:
        """Waits until `ready()` holds on the server's own thread."""

        async def wait() -> None:
            async with asyncio.timeout(limit_s):
                while not ready():
                    await asyncio.sleep(0.01)

        asyncio.run_coroutine_threadsafe(wait(), self._loop).result(limit_s + 5)


@contextmanager
def serving(deployment: Deployment | None = None, **options: Any) -> Iterator[Running]:
    calibration = options.pop("calibration", None)
    served = ServedTwin(deployment or llama(), **{"port": free_port(), "speed": FAST, **options})
    loop = asyncio.new_event_loop()
    server = TwinServer(served, calibration)
    listening = threading.Event()
    task = loop.create_task(server.run(listening.set))

    def work() -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(task)
        except asyncio.CancelledError:
            pass
        finally:
            listening.set()
            for left in asyncio.all_tasks(loop):
                left.cancel()
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()

    thread = threading.Thread(target=work)
    thread.start()
    assert listening.wait(30)
    try:
        yield Running(server, loop)
    finally:
        if not loop.is_closed():
            loop.call_soon_threadsafe(task.cancel)
        thread.join(30)


@pytest.fixture(scope="module")
def twin() -> Iterator[Running]:
    with serving() as running:
        yield running


def test_a_whole_answer_has_what_was_asked_and_counts_it(twin: Running) -> None:
    said = twin.json("/v1/completions", {"prompt": "one two three", "max_tokens": 7})
    assert said["object"] == "text_completion"
    assert said["usage"]["prompt_tokens"] == 3
    assert said["usage"]["completion_tokens"] == 7
    assert len(said["choices"][0]["text"].split()) == 7
    assert said["choices"][0]["finish_reason"] == "length"


def test_a_chat_is_answered_as_a_chat(twin: Running) -> None:
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hello you"}]},
    ]
    said = twin.json("/v1/chat/completions", {"messages": messages, "max_completion_tokens": 4})
    assert said["choices"][0]["message"]["role"] == "assistant"
    assert said["usage"] | {"prompt_tokens_details": None} == {
        "prompt_tokens": 4,
        "completion_tokens": 4,
        "total_tokens": 8,
        "prompt_tokens_details": None,
    }


def events(body: bytes) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in body.decode().split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_stream_has_an_event_a_token_and_the_usage_last(twin: Running, path: str) -> None:
    asked = {"prompt": "one two", "messages": [{"role": "user", "content": "one two"}], "max_tokens": 5}
    status, body = twin.call("POST", path, {**asked, "stream": True, "stream_options": {"include_usage": True}})
    assert status == 200
    said = events(body)
    choices = [event["choices"][0] for event in said if event["choices"]]
    texts = [c["text"] if "text" in c else c["delta"].get("content", "") for c in choices]
    assert len([text for text in texts if text]) == 5
    assert choices[-1]["finish_reason"] == "length"
    assert said[-1]["usage"]["completion_tokens"] == 5


def test_sglangs_own_interface_counts_in_its_events(twin: Running) -> None:
    asked = {"input_ids": [5, 6, 7, 8], "sampling_params": {"max_new_tokens": 3}, "stream": True}
    status, body = twin.call("POST", "/generate", asked)
    assert status == 200
    said = events(body)
    assert [event["meta_info"]["completion_tokens"] for event in said] == [1, 2, 3, 3]
    assert said[0]["meta_info"]["prompt_tokens"] == 4
    assert said[-1]["meta_info"]["finish_reason"]["type"] == "length"


@pytest.mark.parametrize(
    ("path", "body", "what"),
    [
        ("/v1/completions", b"{", "not JSON"),
        ("/v1/completions", b"[1]", "not a JSON object"),
        ("/v1/completions", {"max_tokens": 3}, "prompt is neither"),
        ("/v1/completions", {"prompt": ["a", "b"]}, "several prompts"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 0}, "at least one token"),
        ("/v1/completions", {"prompt": "a", "max_tokens": "many"}, "at least one token"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 10**7}, "more than the context"),
        ("/v1/completions", {"prompt": "a", "n": 2}, "n: the twin makes one answer to a prompt; leave it out"),
        ("/generate", {"text": "a", "sampling_params": {"n": 0}}, "n: the twin makes one answer to a prompt"),
        ("/v1/completions", {"prompt": "a", "stop": "tide"}, "stop: the twin makes every token that is asked for"),
        ("/v1/completions", {"prompt": "a", "stop": ["x"]}, "leave it out, or ask a real server"),
        ("/v1/chat/completions", {"messages": []}, "at least one message"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_reason(twin: Running, path: str, body: object, what: str) -> None:
    status, said = twin.call("POST", path, body)
    assert status == 400
    assert what in json.loads(said)["error"]["message"]


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        ("/v1/completions", "logprobs", 0),
        ("/v1/completions", "logprobs", 5),
        ("/v1/completions", "guided_json", {"type": "object"}),
        ("/v1/chat/completions", "logprobs", True),
        ("/v1/chat/completions", "tools", [{"type": "function", "function": {"name": "f"}}]),
        ("/v1/chat/completions", "functions", [{"name": "f"}]),
        ("/v1/chat/completions", "response_format", {"type": "json_object"}),
        ("/v1/chat/completions", "response_format", {"type": "json_schema", "json_schema": {}}),
        ("/generate", "return_logprob", True),
    ],
)
def test_what_the_twin_would_ignore_is_refused_by_name(twin: Running, path: str, field: str, value: object) -> None:
    body = {"/generate": {"text": "one"}, "/v1/completions": PROMPT}.get(path, CHAT)
    status, said = twin.call("POST", path, {**body, field: value})
    error = json.loads(said)["error"]
    assert (status, error["code"], error["type"], error["param"]) == (400, 400, "BadRequestError", field)
    assert error["message"].startswith(f"{field}: the twin makes no")


def test_fields_that_ask_for_nothing_are_served(twin: Running) -> None:
    nothing = {"logprobs": False, "tools": [], "tool_choice": "none", "response_format": {"type": "text"}}
    assert twin.call("POST", "/v1/chat/completions", {**CHAT, **nothing})[0] == 200
    assert twin.call("POST", "/v1/completions", {**PROMPT, "logprobs": None})[0] == 200


PROMPT: dict[str, Any] = {"prompt": "one two", "max_tokens": 5}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "one two"}], "max_tokens": 5}


@pytest.mark.parametrize(("path", "body"), [("/v1/completions", PROMPT), ("/v1/chat/completions", CHAT)])
def test_a_model_that_is_not_served_is_a_404_as_openai_has_it(twin: Running, path: str, body: dict[str, Any]) -> None:
    status, said = twin.call("POST", path, {"model": "nobody", **body})
    error = json.loads(said)["error"]
    assert status == error["code"] == 404
    assert error["message"] == "The model `nobody` does not exist."
    assert (error["type"], error["param"]) == ("NotFoundError", "model")
    assert twin.call("POST", path, {"model": "llama-8b", **body})[0] == 200
    assert twin.call("POST", path, body)[0] == 200, "without a name there is only one to mean"


def texts(answers: list[Any]) -> dict[int, str]:
    """What came of each choice of a stream of completions or chat."""
    found: dict[int, str] = {}
    for event in answers:
        for choice in event.get("choices", []) if isinstance(event, dict) else []:
            piece = choice["text"] if "text" in choice else choice["delta"].get("content", "")
            found[choice["index"]] = found.get(choice["index"], "") + piece
    return found


@pytest.mark.parametrize("harmless", [{"n": 1}, {"n": None}, {"stop": None}, {"stop": []}])
def test_what_asks_for_nothing_more_is_served(twin: Running, harmless: dict[str, Any]) -> None:
    said = twin.json("/v1/completions", {**PROMPT, **harmless})
    assert [choice["text"] for choice in said["choices"]] == [" tide" * 5]
    assert said["choices"][0]["finish_reason"] == "length" and said["usage"]["completion_tokens"] == 5
    streamed = events(twin.call("POST", "/v1/completions", {**PROMPT, **harmless, "stream": True})[1])
    assert texts(streamed) == {0: " tide" * 5}


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_wants_no_more_is_hung_up_on_after_its_answer(twin: Running, stream: bool) -> None:
    with socket.create_connection(("127.0.0.1", twin.port), timeout=30) as sock:
        body = json.dumps({**PROMPT, "stream": stream}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + body)
        said = b""
        while piece := sock.recv(65536):  # ends only when the server hangs up
            said += piece
    assert b"\r\nconnection: close\r\n" in said.partition(b"\r\n\r\n")[0] + b"\r\n"
    assert said.rstrip().endswith(b"0" if stream else b"}")


def test_other_paths_and_other_methods_are_named(twin: Running) -> None:
    assert twin.call("GET", "/nothing")[0] == 404
    assert twin.call("GET", "/v1/completions")[0] == 405


def test_what_is_not_http_is_answered_and_ended(twin: Running) -> None:
    with socket.create_connection(("127.0.0.1", twin.port), timeout=30) as sock:
        sock.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        said = b""
        while piece := sock.recv(4096):
            said += piece
    assert said.startswith(b"HTTP/1.1 400")


def test_one_connection_serves_many_requests(twin: Running) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", twin.port, timeout=60)
    for tokens in (1, 3, 2):
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": tokens}))
        assert json.loads(connection.getresponse().read())["usage"]["completion_tokens"] == tokens
    connection.close()


def test_routers_find_what_they_ask_for(twin: Running) -> None:
    info = twin.json("/server_info")
    assert info["tp_size"] == 1
    assert info["disaggregation_mode"] == "null"
    assert info["max_running_requests"] >= 1
    assert twin.json("/v1/models")["data"][0]["id"] == "llama-8b"
    assert twin.json("/model_info")["model_path"] == "llama-8b"
    assert twin.json("/get_load")[0]["num_reqs"] == 0
    assert len(twin.json("/v1/loads")["loads"]) == 1


def metric(running: Running, name: str) -> float:
    _, text = running.call("GET", "/metrics")
    line = next(line for line in text.decode().splitlines() if line.startswith((name + "{", name + " ")))
    return float(line.split()[-1])


def test_metrics_count_requests_and_tokens_as_sglang_names_them() -> None:
    with serving() as running:
        for _ in range(3):
            running.json("/v1/completions", {"prompt": "one two three four", "max_tokens": 5})
        assert metric(running, "sglang:num_requests_total") == 3
        assert metric(running, "sglang:prompt_tokens_total") == 12
        assert metric(running, "sglang:generation_tokens_total") == 15
        assert metric(running, "sglang:time_to_first_token_seconds_count") == 3
        assert metric(running, "sglang:inter_token_latency_seconds_count") == 12
        assert metric(running, "sglang:num_running_reqs") == 0


def test_metrics_of_vllm_bear_its_names() -> None:
    with serving(api="vllm") as running:
        running.json("/v1/completions", {"prompt": "one two", "max_tokens": 2})
        assert metric(running, "vllm:generation_tokens_total") == 2
        assert metric(running, "vllm:kv_cache_usage_perc") == 0


def test_a_twin_says_which_engine_it_computes_whoever_it_answers_as() -> None:
    with serving(llama(EngineSettings(engine="vllm")), api="sglang") as running:
        server = discover(parse_endpoint(f"http://127.0.0.1:{running.port}"), None)
    assert server.settings["engine"] == "vllm"


def test_without_the_key_only_health_and_metrics_answer() -> None:
    with serving(api_key="secret") as running:
        body = {"prompt": "a", "max_tokens": 1}
        assert running.call("POST", "/v1/completions", body)[0] == 401
        assert running.call("POST", "/v1/completions", body, key="wrong")[0] == 401
        assert running.call("POST", "/v1/completions", body, key="secret")[0] == 200
        assert running.call("GET", "/health")[0] == 200
        assert running.call("GET", "/v1/models")[0] == 401


def test_equal_beginnings_are_found_in_the_cache_where_there_is_one() -> None:
    prompt = [n % 50 for n in range(2000)]
    for radix_cache, cached in ((True, 1984), (False, 0)):
        with serving(llama(EngineSettings(radix_cache=radix_cache))) as running:
            running.json("/v1/completions", {"prompt": prompt, "max_tokens": 2})
            said = running.json("/v1/completions", {"prompt": prompt, "max_tokens": 2})
            assert said["usage"]["prompt_tokens_details"]["cached_tokens"] == cached


def test_a_full_queue_refuses_as_sglang_does() -> None:
    with serving(queue_limit=1) as running:
        running.json("/fault", {"kind": "hang"})
        body = json.dumps({"prompt": "a", "max_tokens": 4}).encode()
        with socket.create_connection(("127.0.0.1", running.port), timeout=30) as sock:
            sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            running.settled(lambda: running.server.api.gauges().waiting == 1)
            status, said = running.call("POST", "/v1/completions", body)
            assert (status, b"queue is full" in said) == (503, True)
            running.json("/fault", {"kind": "none"})
            assert sock.recv(100).startswith(b"HTTP/1.1 200"), "who waits is served"
        assert running.json("/v1/completions", {"prompt": "a", "max_tokens": 2})["usage"]["completion_tokens"] == 2


def test_tokens_are_counted_while_an_answer_is_under_way() -> None:
    """SGLang adds an answer to its tokens when it is finished; whoever watches its progress needs the gaps."""
    with serving(speed=1.0) as running:
        body = json.dumps({"prompt": "a", "max_tokens": 100_000, "stream": True}).encode()
        with socket.create_connection(("127.0.0.1", running.port), timeout=30) as sock:
            sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            running.settled(lambda: running.server.api.gauges().made > 3)
            assert metric(running, "sglang:inter_token_latency_seconds_count") > 3
            assert metric(running, "sglang:generation_tokens_total") == 0


def test_of_an_engine_that_hangs_the_gauges_stay_as_they_were() -> None:
    """As of real ones: their engine, which stands still, is who tells them."""
    with serving() as running:
        running.json("/fault", {"kind": "hang"})
        body = json.dumps({"prompt": "a", "max_tokens": 4}).encode()
        with socket.create_connection(("127.0.0.1", running.port), timeout=30) as sock:
            sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            running.settled(lambda: running.server.api.gauges().waiting == 1)
            url = f"http://127.0.0.1:{running.port}"
            with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
                page = answer.read().decode()
            with urllib.request.urlopen(f"{url}/health", timeout=30) as answer:
                assert answer.status == 200
    assert re.search(r"^sglang:num_queue_reqs\S* 0$", page, re.MULTILINE)


def test_a_client_that_hangs_up_frees_the_engine() -> None:
    with serving(speed=1.0) as running:
        engine = running.server.role.engines[0].engine
        body = json.dumps({"prompt": "a", "max_tokens": 100_000, "stream": True}).encode()
        with socket.create_connection(("127.0.0.1", running.port), timeout=30) as sock:
            sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            assert sock.recv(100).startswith(b"HTTP/1.1 200")
        running.settled(lambda: engine.idle)
        assert (engine.load, engine.used_tokens) == (0, 0)
        assert running.server.api.counters.aborted == 1


def test_a_hung_server_is_healthy_and_silent() -> None:
    with serving() as running:
        assert running.json("/fault", {"kind": "hang"}) == {"fault": "hang"}
        assert running.call("GET", "/health")[0] == 200
        assert running.call("GET", "/health_generate")[0] == 503, "SGLang asks its engine for a token there"
        body = json.dumps({"prompt": "a", "max_tokens": 2}).encode()
        with socket.create_connection(("127.0.0.1", running.port), timeout=0.3) as sock:
            sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            with pytest.raises(TimeoutError):
                sock.recv(100)
            running.json("/fault", {"kind": "none"})
            sock.settimeout(30)
            assert sock.recv(100).startswith(b"HTTP/1.1 200")
        assert running.call("GET", "/health_generate")[0] == 200


def test_health_generate_waits_as_long_as_sglang_does_for_a_token() -> None:
    with serving(speed=1.0) as running:
        running.json("/fault", {"kind": "hang"})
        with socket.create_connection(("127.0.0.1", running.port), timeout=0.3) as sock:
            sock.sendall(b"GET /health_generate HTTP/1.1\r\nhost: x\r\n\r\n")
            with pytest.raises(TimeoutError):
                sock.recv(100)
            running.json("/fault", {"kind": "none"})
            sock.settimeout(30)
            assert sock.recv(100).startswith(b"HTTP/1.1 200")


def test_flushed_prefixes_are_computed_again() -> None:
    prompt = list(range(600))
    with serving() as running:
        for flushed, cached in ((False, 0), (False, 576), (True, 0)):
            if flushed:
                assert running.call("POST", "/flush_cache")[0] == 200
            said = running.json("/v1/completions", {"prompt": prompt, "max_tokens": 2})
            assert said["usage"]["prompt_tokens_details"]["cached_tokens"] == cached


def test_a_prompt_passes_the_tokenizer_first() -> None:
    slow = Calibration(factors=replace(Calibration().factors, front_end=1000.0))
    prompt = {"prompt": "a", "max_tokens": 1}
    with serving(calibration=slow) as running:
        running.json("/v1/completions", prompt)
        assert metric(running, "sglang:time_to_first_token_seconds_sum") > 1000 * SGLANG.costs.accept_s


def test_several_copies_share_the_requests() -> None:
    with serving(llama(dp=2)) as running:
        for _ in range(4):
            running.json("/v1/completions", {"prompt": "a", "max_tokens": 3})
        assert [live.engine.step_number for live in running.server.role.engines] == [4, 4]


def test_a_taken_port_is_named() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        server = TwinServer(ServedTwin(llama(), port=port))
        with pytest.raises(SiteError, match=rf"127.0.0.1:{port}: .*choose another port"):
            asyncio.run(server.run())


@pytest.mark.parametrize(
    ("text", "fault"),
    [("hang", Fault("hang")), ("hang@30", Fault("hang", 30.0)), ("slow:2.5@1", Fault("slow", 1.0, 2.5))],
)
def test_faults_as_they_are_written(text: str, fault: Fault) -> None:
    assert parse_fault(text) == fault


@pytest.mark.parametrize("text", ["", "sleep", "hang:3", "hang@soon", "slow:0", "slow@-1", "slow:nan"])
def test_unknown_faults_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="fault"):
        parse_fault(text)


# prefill and decode apart


@contextmanager
def split(**options: Any) -> Iterator[tuple[Running, Running]]:
    with (
        serving(role="prefill", bootstrap_port=free_port(), **options) as prefill,
        serving(role="decode", **options) as decode,
    ):
        yield prefill, decode


def both(prefill: Running, decode: Running, body: dict[str, object]) -> tuple[tuple[int, bytes], tuple[int, bytes]]:
    """What a router does: the same body to both, at once."""
    answers: dict[str, tuple[int, bytes]] = {}
    ask = threading.Thread(target=lambda: answers.update(prefill=prefill.call("POST", "/v1/completions", body)))
    ask.start()
    answers["decode"] = decode.call("POST", "/v1/completions", body)
    ask.join(60)
    return answers["prefill"], answers["decode"]


def paired(prefill: Running, room: int, tokens: int = 6) -> dict[str, object]:
    where = {"bootstrap_host": "127.0.0.1", "bootstrap_port": prefill.bootstrap_port, "bootstrap_room": room}
    return {"prompt": "one two three", "max_tokens": tokens, **where}


def test_split_roles_meet_in_the_room_and_decode_answers() -> None:
    with split() as (prefill, decode):
        for room in (7, 2**62 + 1):
            (status_p, _), (status_d, said) = both(prefill, decode, paired(prefill, room))
            assert (status_p, status_d) == (200, 200)
            assert json.loads(said)["usage"]["completion_tokens"] == 6
        for running in (prefill, decode):
            engine = running.server.role.engines[0].engine
            running.settled(lambda engine=engine: engine.load == 0)
            assert (engine.used_tokens, engine.promised_tokens) == (0, 0)


def test_a_prompt_is_not_computed_before_its_decode_server_is_ready() -> None:
    with split() as (prefill, decode):
        body = paired(prefill, 11)
        ask = threading.Thread(target=lambda: prefill.call("POST", "/v1/completions", body))
        ask.start()
        engine = prefill.server.role.engines[0].engine
        prefill.settled(lambda: prefill.server.api._number == 1)
        assert engine.prefill_s == 0
        assert decode.call("POST", "/v1/completions", body)[0] == 200
        ask.join(60)
        assert engine.prefill_s > 0


def test_a_prefill_server_that_is_not_there_fails_the_request_and_frees_its_room() -> None:
    with serving(role="decode") as decode:
        where = {"bootstrap_host": "127.0.0.1", "bootstrap_port": free_port(), "bootstrap_room": 1}
        status, said = decode.call("POST", "/v1/completions", {"prompt": "a b", "max_tokens": 3, **where})
        assert status == 500
        assert "KVTransferError" in json.loads(said)["error"]["message"]
        engine = decode.server.role.engines[0].engine
        assert (engine.load, engine.promised_tokens) == (0, 0)


def test_a_prompt_whose_decode_server_never_comes_fails_in_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A router that waits for both sides can then try another pair."""
    monkeypatch.setenv("SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT", "3")
    with serving(role="prefill", bootstrap_port=free_port(), speed=10.0) as prefill:
        status, said = prefill.call("POST", "/v1/completions", paired(prefill, 5))
        assert status == 500
        assert "KVTransferError" in json.loads(said)["error"]["message"]
        role, engine = prefill.server.role, prefill.server.role.engines[0].engine
        assert isinstance(role, PrefillRole)
        assert (engine.load, engine.used_tokens, role._held) == (0, 0, {})


def test_a_router_that_gives_a_prompt_up_frees_the_prefill_server_too() -> None:
    with serving(role="prefill", bootstrap_port=free_port(), speed=1.0) as prefill:
        role, engine = prefill.server.role, prefill.server.role.engines[0].engine
        assert isinstance(role, PrefillRole)
        for room, ready in ((1, False), (2, True)):  # one waits for its decode server, one is in the queue of prompts
            if ready:
                prefill.json("/fault", {"kind": "hang"})
                with socket.create_connection(("127.0.0.1", prefill.bootstrap_port), timeout=30) as link:
                    link.sendall(b"%d\n" % room)
                    hang_up_early(prefill, room)
            else:
                hang_up_early(prefill, room)
            prefill.settled(lambda room=room: prefill.server.api.counters.aborted == room)
            assert (engine.load, engine.used_tokens, role._held) == (0, 0, {})


def hang_up_early(prefill: Running, room: int) -> None:
    body = json.dumps(paired(prefill, room)).encode()
    with socket.create_connection(("127.0.0.1", prefill.port), timeout=30) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        prefill.settled(lambda: prefill.server.api._number == room)


def test_lost_kv_fails_after_its_time_limit() -> None:
    with split(speed=400.0) as (prefill, decode):
        decode.json("/fault", {"kind": "kv-timeout"})
        status, said = decode.call("POST", "/v1/completions", paired(prefill, 3))
        assert status == 500
        assert "did not arrive" in json.loads(said)["error"]["message"]


def test_decode_alone_takes_the_fake_room() -> None:
    with serving(role="decode") as decode:
        body = {
            "bootstrap_host": "2.2.2.2",
            "bootstrap_port": 8998,
            "bootstrap_room": 5,
            "prompt": "a",
            "max_tokens": 4,
        }
        assert decode.json("/v1/completions", body)["usage"]["completion_tokens"] == 4


def test_vllms_way_hands_the_kv_parameters_on() -> None:
    with split(api="vllm") as (prefill, decode):
        wanted = {"do_remote_decode": True, "do_remote_prefill": False}
        first = prefill.json(
            "/v1/completions", {"prompt": "one two three", "max_tokens": 1, "kv_transfer_params": wanted}
        )
        handed = first["kv_transfer_params"]
        assert handed["do_remote_prefill"] is True
        said = decode.json(
            "/v1/completions", {"prompt": "one two three", "max_tokens": 5, "kv_transfer_params": handed}
        )
        assert said["usage"]["completion_tokens"] == 5
