"""The knee, and the documents of the command."""

from __future__ import annotations

import json

import pytest

from ridgeline.serving.load.edge import take_off
from tests.command_line import ridgeline
from tests.load.scripted import Scripted, tokens


def test_the_knee_is_where_ttft_doubles():
    assert take_off([(1, 10.0), (2, 10.0), (4, 10.0), (8, 40.0)]) == pytest.approx(4 * 2**0.5)
    assert take_off([(1, 10.0), (64, 19.0)]) is None
    assert take_off([]) is None


@pytest.mark.parametrize(
    ("more", "keys"),
    [
        ([], {"requests_s", "ttft_ms", "itl_ms", "errors", "cpu_ms_per_request", "void", "why", "goodput"}),
        (["--find-goodput", "--slo", "e2e_p95_ms=0.001", "--hold", "1", "--within", "30"], None),
    ],
)
def test_the_command_prints_one_document(more: list[str], keys: set[str] | None):
    with Scripted(tokens(4, first_s=0.005)) as server:
        words = ("bench", server.url, "--concurrency", "2", "--requests", "10", "--max-tokens", "4", "--json")
        done = ridgeline(*words, *more)
    assert "Traceback" not in done.stderr
    if keys is None:
        # on a busy machine the last runs may be void, which is no verdict
        void = "was void" in done.stderr
        assert done.returncode == (7 if void else 1) and (void or "does not hold" in done.stderr)
    else:
        answer = json.loads(done.stdout)
        assert keys <= set(answer), done.stderr
        if "ttft_ms" in answer:
            assert set(answer["ttft_ms"]) == {"mean", "p50", "p90", "p95", "p99"}
