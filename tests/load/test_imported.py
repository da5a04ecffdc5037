"""Other tools' results as our records, with the figures that should not be trusted named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ridgeline.serving.load.imported import _imported
from ridgeline.serving.traffic.bench.run import BenchRequest, BenchRun
from ridgeline.serving.traffic.requests import read_records
from ridgeline.serving.verbs.import_results import _imported_text
from tests.command_line import ridgeline

SAMPLES = Path(__file__).parents[1] / "samples" / "bench"


def run(**fields: object) -> BenchRun:
    usual = {
        "tool": "t", "source": "s", "concurrency": 10, "requests": 1000, "requests_s": 100.0, "output_tok_s": 2000.0,
        "latencies_ms": {"ttft": {"mean": 5.0, "p50": 5.0}, "itl": {"mean": 5.0, "p50": 5.0}, "e2e": {"mean": 100.0}},
    }  # fmt: skip
    return BenchRun(**(usual | fields))


def test_a_run_that_adds_up_has_no_doubts():
    assert _imported(run()).doubts == {}


@pytest.mark.parametrize(
    ("fields", "figure", "words"),
    [
        ({"requests_s": 60.0}, "requests_s", "did not keep its load up"),
        ({"requests_s": 150.0, "output_tok_s": 3000.0}, "ttft_ms", "own queue"),
        ({"failed": 3}, "requests_s", "3 of 1000"),
        ({"requests": 20, "latencies_ms": {"ttft": {"p99": 1.0}}}, "p99", "too few"),
        ({"latencies_ms": {"itl": {"mean": 5.0, "p50": 0.0}}}, "itl_ms", "lumps"),
        (
            {"latencies_ms": {"ttft": {"mean": 5.0}, "itl": {"mean": 1.0}, "e2e": {"mean": 100.0}}},
            "itl_ms",
            "TTFT + 19",
        ),
        ({"derived": {"output_tok_s": "output tokens over (latency - TTFT)"}}, "output_tok_s", "not measured"),
    ],
)
def test_figures_that_contradict_each_other_are_marked(fields: dict[str, object], figure: str, words: str):
    one = _imported(run(**fields))
    assert words in one.doubts[figure]
    assert f"do not trust {figure}" in _imported_text([one])


@pytest.mark.parametrize(
    "fields",
    [
        {"requests_s": 91.0, "output_tok_s": 1820.0},  # nine of ten were under way
        {"requests_s": 110.0, "output_tok_s": 2200.0},
        {"requests_s": 60.0, "output_tok_s": 1200.0, "requests": 30},  # three rounds say little
        {"requests_s": 60.0, "output_tok_s": 1200.0, "concurrency": None},
        {"requests_s": None, "output_tok_s": None},
        {"output_tok_s": 100.0},  # answers of one token have no gaps
        {"requests": 100, "latencies_ms": {"ttft": {"p99": 1.0}}},
        {"latencies_ms": {"itl": {"mean": 5.0, "p50": 0.5}}},
        {"latencies_ms": {"ttft": {"mean": 5.0}, "itl": {"mean": 4.75}, "e2e": {"mean": 100.0}}},
        {"output_tok_s": None, "latencies_ms": {"ttft": {"mean": 5.0}, "itl": {"mean": 1.0}, "e2e": {"mean": 100.0}}},
    ],
)
def test_what_is_within_the_usual_is_not_doubted(fields: dict[str, object]):
    assert _imported(run(**fields)).doubts == {}


def test_requests_become_records_and_fill_in_percentiles():
    rows = tuple(BenchRequest(True, 8, 3, 0.1 * k, 0.02, 0.03, (0.005, 0.005)) for k in range(4))
    one = _imported(run(rows=(*rows, BenchRequest(False, 8, 0, error="boom")), latencies_ms={"ttft": {"mean": 20.0}}))
    assert len(one.records) == 5 and one.records[4].status == "failed" and one.records[4].error == "boom"
    third = one.records[2]
    assert (third.sent_s, third.first_token_s, third.end_s) == pytest.approx((0.2, 0.22, 0.23))
    assert third.gaps_s == ((0.005, 1), (0.005, 1)) and one.records[4].first_token_s is one.records[4].end_s is None
    assert one.latencies_ms["ttft"]["p99"] == pytest.approx(20.0) and one.latencies_ms["itl"]["p50"] == pytest.approx(
        5.0
    )


def test_the_command_reads_real_files_and_writes_records(tmp_path: Path):
    files = sorted(map(str, SAMPLES.iterdir()))
    done = ridgeline("twin", "import", *files, "--json", "--out", tmp_path / "r.jsonl")
    answer = json.loads(done.stdout)
    assert done.returncode == 0 and {r["tool"] for r in answer["runs"]} >= {"guidellm", "sglang bench_serving"}
    assert any("not measured" in reason for r in answer["runs"] for reason in r["doubts"].values())
    assert len(list(read_records(tmp_path / "r.jsonl"))) == sum(r["records"] for r in answer["runs"])
