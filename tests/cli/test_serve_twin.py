"""`ridgeline twin serve` as a person starts it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

TWIN = ("--model", "llama-8b", "--gpu", "h200", "--tp", "1")


def start(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ridgeline", "twin", "serve", *TWIN, *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_it_says_where_it_listens_serves_and_ends_when_told() -> None:
    port = free_port()
    server = start("--port", port)
    try:
        assert server.stdout is not None
        lines = [server.stdout.readline(), server.stdout.readline()]
        assert lines == ["twin of llama-8b on 1 x 1 H200, tp 1\n", f"listens on http://127.0.0.1:{port}\n"]
        body = json.dumps({"prompt": "one two", "max_tokens": 3}).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/completions", body, timeout=60) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == 3
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0
    finally:
        server.kill()
        server.communicate()


def test_a_crash_on_demand_is_a_crash() -> None:
    server = start("--port", free_port(), "--fault", "crash")
    _, errors = server.communicate(timeout=600)
    assert server.returncode == 1
    assert "fault: crash" in errors


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (("--fault", "sleep"), 2, "fault 'sleep' is not known"),
        (("--role", "both-ways"), 2, "role 'both-ways' is not known"),
        (("--api", "tgi"), 2, "api 'tgi' is not known"),
        (("--speed", "0"), 2, "speed 0 is outside"),
        (("--dp", "2", "--role", "decode"), 2, "start a server for each copy"),
    ],
)
def test_what_cannot_be_served_is_said_at_once(words: tuple[str, ...], code: int, what: str) -> None:
    server = start("--port", free_port(), *words)
    _, errors = server.communicate(timeout=600)
    assert server.returncode == code, errors
    assert what in errors
