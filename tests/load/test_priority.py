"""Short time slices are asked for while sending only, and the run says what came of it."""

from __future__ import annotations

import sys

import pytest

from ridgeline.serving.load.bench import bench
from ridgeline.serving.load.session import BenchOptions, plan_from
from ridgeline.serving.load.workers import worker
from tests.load.scripted import Scripted, tokens


def test_time_slices_are_given_back():
    with worker.short_time_slices() as first:
        assert first.startswith(("short", "usual"))
    with worker.short_time_slices() as again:
        assert again == first


def test_a_system_without_the_call_goes_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with worker.short_time_slices() as text:
        assert text.startswith("usual")


def test_a_run_says_how_it_was_scheduled():
    with Scripted(tokens(2)) as server:
        result = bench(plan_from(BenchOptions(url=server.url, concurrency=1, requests=2, max_tokens=2)))
    client = result.as_json()["client"]
    assert isinstance(client, dict) and client["turns"] == result.fidelity.time_slices != ""
