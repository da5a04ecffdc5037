"""What looks like a secret is hidden; what engines write all day is not."""

from __future__ import annotations

import time

import pytest

from ridgeline.records.secrets import HIDDEN, looks_secret, masked

SECRET = "x7Qp9ZkL2mN4"


@pytest.mark.parametrize(
    "line",
    [
        f"api_key=sk-{SECRET}abcdef",
        f"'api_key': '{SECRET}'",
        f"OPENAI_API_KEY={SECRET}",
        f"login with hf_{SECRET}abcdefghijkl failed",
        f"Authorization: Bearer {SECRET}.abc-def",
        f"curl -H 'Authorization: Basic {SECRET}'",
        f"AWS_SECRET_ACCESS_KEY={SECRET}/abc+def",
        f"aws_access_key_id = {SECRET}",
        f"https://user:{SECRET}@host.example/path",
        f"postgres://:{SECRET}@db/x",
        f"--api-key {SECRET} --port 30000",
        f"--hf-token={SECRET}",
        f"password: {SECRET}",
        f"token = {SECRET}",
        f"ghp_{SECRET}{SECRET}",
        f"eyJhbGciOiJI.{SECRET}.{SECRET}",
    ],
)
def test_secrets_are_hidden(line: str) -> None:
    assert SECRET not in masked(f"before {line} after")
    assert HIDDEN in masked(line)
    assert masked(masked(line)) == masked(line)


@pytest.mark.parametrize(
    "line",
    [
        "Decode batch. #running-req: 7, #token: 11905, token usage: 0.01, gen throughput (token/s): 301.2",
        "Prefill batch. #new-token: 128, #cached-token: 0, token usage: 0.85",
        "max_total_num_tokens=423424, chunked_prefill_size=8192, api_key=None",
        "pip install hf_transfer hf_hub_download sk-learn",
        "task-based key-value store at http://127.0.0.1:30000/v1",
        "rate 12.5 GF/s checksum 0xdeadbeefdeadbeef",
        "risk-assessment-2024-report",
    ],
)
def test_what_is_no_secret_is_left_alone(line: str) -> None:
    assert masked(line) == line


def test_named_values_are_hidden_wherever_they_stand() -> None:
    assert masked("it said plain-words here", ["plain-words", "", "e"]) == f"it said {HIDDEN} here"


def test_aws_keys_and_tokens_are_known_by_their_shape() -> None:
    assert looks_secret("AKIAIOSFODNN7EXAMPLE")
    assert looks_secret("hf_abcDEF123456")
    assert not looks_secret("EMPTY")
    assert not looks_secret("/models/hf_cache")


@pytest.mark.parametrize("letter", ["a", "-", "_", "'", " ", "eyJ", "token", "://", "sk-", "api_key="])
def test_no_line_takes_long(letter: str) -> None:
    began = time.process_time()
    masked(letter * (4096 // len(letter)))
    assert time.process_time() - began < 2.0
