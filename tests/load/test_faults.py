"""A server's faults are counted by kind, never end in a traceback, and never cost the results so far."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from email.utils import formatdate
from pathlib import Path

import pytest

from ridgeline.errors import InputError, SiteError
from ridgeline.serving.load.bench import BenchResult, bench
from ridgeline.serving.load.session import BenchOptions, plan_from
from ridgeline.serving.load.wire import client_stats
from ridgeline.serving.traffic.requests import read_records
from tests.command_line import ridgeline
from tests.load.scripted import Behaviour, Line, Request, Scripted, delta, event, tokens

KEY = "sk-very-secret-0123456789"


def run(behaviour: Behaviour, **wishes: object) -> BenchResult:
    with Scripted(behaviour) as server:
        return bench(
            plan_from(BenchOptions(**{"url": server.url, "concurrency": 2, "requests": 6, "max_tokens": 4, **wishes}))
        )


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def errors_of(result: BenchResult) -> dict[str, int]:
    return dict(result.summary.errors)


def refusing(status: str, words: str, **fields: str) -> Behaviour:
    return lambda line, request: line.document({"error": {"message": words}}, status, **fields)


@pytest.mark.parametrize("count", [10, 10_000])
def test_refused_connections_are_all_counted(count: int):
    plan = plan_from(BenchOptions(url=f"http://127.0.0.1:{free_port()}", concurrency=128, requests=count))
    result = bench(plan)
    assert errors_of(result) == {"refused": count}
    assert result.void and "no request succeeded" in result.fidelity.why[0]


def test_a_host_that_does_not_exist_is_named():
    with pytest.raises(SiteError, match=r"no-such-host\.invalid"):
        bench(plan_from(BenchOptions(url="http://no-such-host.invalid:8000", requests=1)))


@pytest.mark.parametrize(
    ("status", "words", "kind"),
    [
        ("401 Unauthorized", "Incorrect API key provided", "http-401"),
        ("404 Not Found", "The model `nope` does not exist.", "http-404 unknown model"),
        ("400 Bad Request", "This model's maximum context length is 1024 tokens", "http-400 prompt too long"),
        ("400 Bad Request", "max_tokens=9 cannot be greater than max_model_len=8", "http-400 prompt too long"),
        ("400 Bad Request", "unknown field", "http-400"),
        ("500 Internal Server Error", "boom", "http-500"),
    ],
)
def test_http_errors_have_a_kind_and_keep_their_sentence(status: str, words: str, kind: str):
    result = run(refusing(status, words))
    assert errors_of(result) == {kind: 6}
    assert any(words in note for note in result.notes)


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
def test_a_place_that_was_told_to_wait_waits(status: str):
    began = time.monotonic()
    result = run(refusing(status, "slow down", Retry_After="0.2"))
    assert errors_of(result) == {f"http-{status[:3]}": 6}
    assert time.monotonic() - began > 0.4  # two slots, three rounds, two waits between them
    assert any("Retry-After" in note for note in result.notes)


def test_retry_after_may_be_a_date():
    def behave(line: Line, request: Request) -> None:
        later = formatdate(time.time() + 2, usegmt=True)
        refusing("503 Service Unavailable", "slow down", Retry_After=later)(line, request)

    began = time.monotonic()
    result = run(behave, requests=4)
    assert errors_of(result) == {"http-503": 4}
    assert time.monotonic() - began > 0.9  # dates have whole seconds: two seconds ahead are at least one
    assert any("Retry-After" in note for note in result.notes)


@pytest.mark.parametrize("value", ["Fri, 31 Dec 1999 23:59:59 GMT", "soon", "-3", "inf", ""])
def test_retry_after_that_is_past_or_nonsense_is_no_reason_to_wait(value: str):
    began = time.monotonic()
    assert errors_of(run(refusing("503 Service Unavailable", "x", Retry_After=value))) == {"http-503": 6}
    assert time.monotonic() - began < 100


def test_a_stream_cut_in_mid_token_is_cut_and_keeps_its_times():
    def cut(line: Line, request: Request) -> str | None:
        if request.number % 2:
            return tokens(4)(line, request)
        line.stream_head()
        line.chunk(event(delta(" one")))
        line.chunk(event(delta(" two"))[:25])
        return "close"

    result = run(cut)
    assert set(errors_of(result)) == {"cut"} and result.summary.ok > 0
    broken = next(r for r in result.records if not r.ok)
    assert broken.first_token_s is not None and broken.counted_tokens == 1


def test_a_reset_in_mid_stream_is_cut():
    def reset(line: Line, request: Request) -> None:
        line.stream_head()
        line.chunk(event(delta(" one")))
        time.sleep(0.02)
        line.reset()

    assert set(errors_of(run(reset))) == {"cut"}


def test_a_close_delimited_stream_that_stops_early_is_cut():
    def stop(line: Line, request: Request) -> str:
        line.write(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", event(delta(" one")))
        return "close"

    assert errors_of(run(stop)) == {"cut": 6}


@pytest.mark.parametrize(
    "body",
    [
        event(delta(" one")) + b'data: {"choices": [{"del\n\n',
        b"data: <html>busy</html>\n\n",
        b"<html>busy</html>\n",
        b"data: 17\n\n",
    ],
)
def test_malformed_events_are_told_apart_from_silence(body: bytes):
    def behave(line: Line, request: Request) -> None:
        line.stream_head()
        line.chunk(body)
        line.end()

    assert errors_of(run(behave)) == {"malformed": 6}


def test_a_stream_that_says_nothing_is_empty():
    def behave(line: Line, request: Request) -> None:
        line.stream_head()
        line.chunk(event(b"[DONE]"))
        line.end()

    assert errors_of(run(behave)) == {"empty": 6}


def test_an_error_inside_the_stream_is_an_error():
    def behave(line: Line, request: Request) -> None:
        line.stream_head()
        line.chunk(event(delta(" one")))
        line.chunk(event({"error": {"message": "out of KV cache"}}))
        line.end()

    result = run(behave)
    assert errors_of(result) == {"error-event": 6} and any("out of KV cache" in n for n in result.notes)


def test_something_that_is_not_http():
    assert errors_of(run(lambda line, request: line.write(b"SSH-2.0-OpenSSH_9.2\r\n"))) == {"malformed-http": 6}


def test_a_server_that_never_answers_times_out():
    began = time.monotonic()
    result = run(lambda line, request: time.sleep(30), timeout_s=0.3, model="toy")
    assert errors_of(result) == {"timeout": 6} and time.monotonic() - began < 25


def test_a_stream_that_stalls():
    def stall(line: Line, request: Request) -> None:
        line.stream_head()
        line.chunk(event(delta(" one")))
        time.sleep(30)

    assert errors_of(run(stall, timeout_s=0.3)) == {"stalled": 6}


def test_a_connection_dropped_while_idle_is_opened_again():
    def once(line: Line, request: Request) -> str:
        tokens(4)(line, request)
        return "close"  # without having said Connection: close

    result = run(once, requests=8)
    assert result.summary.ok == 8


def test_without_a_model_list_the_run_goes_on():
    with Scripted(tokens(4), models=None) as server:
        server.behaviour = lambda line, r: (
            line.document({}, "404 Not Found") if r.method == "GET" else tokens(4)(line, r)
        )
        result = bench(plan_from(BenchOptions(url=server.url, concurrency=1, requests=2, max_tokens=4)))
        assert result.summary.ok == 2 and "model" not in server.posts[0].json
        assert any("/v1/models" in note for note in result.notes)


@pytest.mark.parametrize("reachable", [True, False])
def test_a_router_that_does_not_know_its_model_is_asked_for_a_server_that_does(reachable: bool):
    """sglang-router lists the model of a vLLM as `unknown`, which the vLLM behind it answers with 404."""
    with Scripted(tokens(4), models=["behind"]) as worker, Scripted(tokens(4), models=["unknown"]) as router:
        where = worker.url if reachable else "http://127.0.0.1:1"
        router.behaviour = lambda line, r: (
            line.document({"workers": [{"url": where}]}) if r.method == "GET" else tokens(4)(line, r)
        )
        result = bench(plan_from(BenchOptions(url=router.url, concurrency=1, requests=2, max_tokens=4)))
        assert router.posts[0].json["model"] == ("behind" if reachable else "unknown")
        (note,) = [note for note in result.notes if "unknown" in note]
        assert ("serves `behind`" if reachable else "name it with --model") in note


def test_a_moved_wall_clock_moves_no_figure(monkeypatch: pytest.MonkeyPatch):
    real, calls = time.time_ns, 0

    def stepping() -> int:
        nonlocal calls
        calls += 1
        return real() + (3_600_000_000_000 if calls > 12 else 0)

    monkeypatch.setattr(client_stats.time, "time_ns", stepping)
    result = run(tokens(4, gap_s=0.01, first_s=0.02), requests=20)
    assert result.summary.ok == 20
    assert result.summary.ttft_ms is not None and 15 < result.summary.ttft_ms.p50 < 500
    assert any("clock" in note for note in result.notes)


def test_keys_appear_nowhere(tmp_path: Path):
    def echo(line: Line, request: Request) -> None:
        given = request.headers["authorization"]
        line.document({"error": {"message": f"bad key {given} {request.headers['x-team']}"}}, "401 Unauthorized")

    with Scripted(echo) as server:
        command = [
            "bench", server.url, "--requests", "3", "--concurrency", "1",
            "--key", KEY, "--header", "X-Team: hush-hush-value", "--out", str(tmp_path / "kept"),
        ]  # fmt: skip
        for extra in ([], ["--json"]):
            done = ridgeline(*command, *extra)
            assert done.returncode == 3, done.stderr
            seen = done.stdout + done.stderr + "".join(p.read_text() for p in (tmp_path / "kept").iterdir())
            assert KEY not in seen and "hush-hush-value" not in seen and "Traceback" not in seen
        assert server.posts[0].headers["authorization"] == f"Bearer {KEY}"
        assert KEY not in repr(plan_from(BenchOptions(url=server.url, key=KEY)))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_keeps_what_has_ended(tmp_path: Path, number: signal.Signals, workers: int):
    with Scripted(tokens(4, gap_s=0.005)) as server:
        out = tmp_path / "records.jsonl"
        process = subprocess.Popen(
            [sys.executable, "-m", "ridgeline", "bench", server.url, "--concurrency", "4", "--requests", "100000",
             "--out", str(out), "--json", "--workers", str(workers)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        deadline = time.monotonic() + 30
        while len(server.posts) < 40 and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(process.pid, number)
        stdout, stderr = process.communicate(timeout=600)
    answer = json.loads(stdout)
    assert process.returncode == 130 and "Traceback" not in stderr
    assert answer["interrupted"] and 10 < answer["successful_requests"] < 100_000
    assert len(list(read_records(out))) == answer["requests"]


def test_a_killed_run_leaves_its_records(tmp_path: Path):
    with Scripted(tokens(4, gap_s=0.005)) as server:
        out = tmp_path / "records.jsonl"
        process = subprocess.Popen(
            [sys.executable, "-m", "ridgeline", "bench", server.url, "--concurrency", "4", "--requests", "100000",
             "--out", str(out)], stdout=subprocess.PIPE,
        )  # fmt: skip
        deadline = time.monotonic() + 30
        while len(server.posts) < 100 and time.monotonic() < deadline:
            time.sleep(0.02)
        process.kill()
        process.communicate(timeout=600)
    assert len(list(read_records(out))) > 20


@pytest.mark.parametrize(
    "wish",
    [
        {"url": "ftp://127.0.0.1"}, {"url": "http://"}, {"url": "http://127.0.0.1:99999"}, {"concurrency": 0},
        {"rate_s": 0.0}, {"requests": 0}, {"max_tokens": 0}, {"workers": 0}, {"timeout_s": 0.0}, {"duration_s": -1.0},
        {"slos": ("ttft=3",)}, {"body": "{"}, {"body": "[1]"},
        {"headers": ("no colon",)}, {"headers": ("X: a\r\nEvil: b",)}, {"api": "soap"}, {"traffic": "nonsense"},
        {"url": "http://user:word@127.0.0.1"}, {"body": '{"messages": []}'}, {"input_tokens": 0},
    ],
    ids=str,
)  # fmt: skip
def test_bad_input_is_named_before_anything_is_sent(wish: dict[str, object]):
    with pytest.raises(InputError), Scripted(tokens(2)) as server:
        try:
            bench(plan_from(BenchOptions(**{"url": server.url, "requests": 1, **wish})))
        finally:
            assert not server.posts
