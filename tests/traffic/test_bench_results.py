"""Result files of other load generators: real ones, trimmed, and every shape of damage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.serving.traffic.bench_results import BenchRun, read_bench_results

SAMPLES = Path(__file__).parents[1] / "samples" / "bench"

VLLM = {
    "date": "20261115-040000", "endpoint_type": "openai-chat", "model_id": "toy", "tokenizer_id": "toy",
    "num_prompts": 4, "request_rate": "inf", "max_concurrency": 2, "duration": 2.0, "completed": 3,
    "total_input_tokens": 400, "total_output_tokens": 60, "request_throughput": 1.5, "output_throughput": 30.0,
    "total_token_throughput": 230.0, "mean_ttft_ms": 21.0, "median_ttft_ms": 20.0, "p99_ttft_ms": 30.0,
    "mean_itl_ms": 5.0, "median_itl_ms": 5.0, "p99_itl_ms": 6.0, "mean_e2el_ms": 116.0, "median_e2el_ms": 115.0,
    "ttfts": [0.02, 0.021, 0.022, 0.0], "itls": [[0.005] * 19, [0.005] * 19, [0.005] * 19, []],
    "input_lens": [100, 100, 100, 100], "output_lens": [20, 20, 20, 0], "errors": ["", "", "", "Connection refused"],
}  # fmt: skip
ONE_BATCH = {
    "run_name": "default", "batch_size": 16, "input_len": 1024, "output_len": 16, "latency": 1.2,
    "input_throughput": 20480.0, "output_throughput": 640.0, "overall_throughput": 13866.0, "last_ttft": 0.8,
    "last_gen_throughput": 700.0, "acc_length": -1,
}  # fmt: skip


def one(path: Path) -> BenchRun:
    runs = read_bench_results(path)
    assert len(runs) == 1
    return runs[0]


def written(tmp_path: Path, document: object, name: str = "r.json") -> Path:
    path = tmp_path / name
    path.write_text(json.dumps(document))
    return path


def test_sglang_bench_serving():
    run = one(SAMPLES / "sglang-bench-serving-0.5.6.jsonl")
    assert (run.tool, run.concurrency, run.requests, run.failed) == ("sglang bench_serving", 64, 500, 0)
    assert run.requests_s == pytest.approx(121.118, abs=1e-3)
    assert run.latencies_ms["ttft"]["p50"] == pytest.approx(167.272, abs=1e-3)
    assert run.latencies_ms["itl"]["p95"] == pytest.approx(71.774, abs=1e-3)
    assert len(run.rows) == 3 and all(r.ok and r.output_tokens == 20 and len(r.gaps_s) == 19 for r in run.rows)
    assert run.rate_s is None  # written as Infinity


def test_guidellm():
    run = one(SAMPLES / "guidellm-0.8.1.json")
    assert (run.tool, run.concurrency, run.requests, run.failed) == ("guidellm", 16, 100, 0)
    assert run.latencies_ms["ttft"]["p50"] == pytest.approx(31.543, abs=1e-3)
    assert run.latencies_ms["e2e"]["mean"] == pytest.approx(161.89, abs=0.01)
    assert "itl_ms" in run.derived and run.rows[0].output_tokens == 20
    assert run.rows[0].sent_s is not None and min(r.sent_s or 0.0 for r in run.rows) == 0.0
    assert all(r.ok and r.error == "" for r in run.rows)


def test_vllm_bench(tmp_path: Path):
    run = one(written(tmp_path, VLLM))
    assert (run.tool, run.model, run.requests, run.failed) == ("vllm bench serve", "toy", 4, 1)
    assert run.input_tok_s == 200.0 and run.latencies_ms["e2e"] == {"mean": 116.0, "p50": 115.0}
    assert [r.ok for r in run.rows] == [True, True, True, False]
    assert run.rows[0].e2e_s == pytest.approx(0.02 + 19 * 0.005) and run.rows[3].error == "Connection refused"


def test_a_file_that_vllm_bench_wrote():
    run = one(SAMPLES / "vllm-bench-serve-0.32.0.json")
    assert (run.tool, run.model, run.concurrency, run.requests, run.failed) == ("vllm bench serve", "fake", 2, 4, 0)
    assert run.rate_s is None and run.input_tok_s == pytest.approx(313.7, abs=0.1)
    assert run.latencies_ms["ttft"]["p50"] == pytest.approx(29.724, abs=1e-3)
    assert all(r.ok and r.output_tokens == 8 and len(r.gaps_s) == 7 for r in run.rows)
    # the tool's own figure of the whole request, not the sum of its parts
    assert run.rows[0].e2e_s == pytest.approx(0.067485, abs=1e-6)


@pytest.mark.parametrize(
    ("written_by", "input_tok_s"),
    [
        # 0.4.7 to 0.5.1 keep the TTFT to themselves; 0.5.21 and later add what decoding did
        ({k: v for k, v in ONE_BATCH.items() if k not in ("input_throughput", "last_ttft", "acc_length")}, None),
        (ONE_BATCH | {"total_output_tokens": 256, "num_early_stopped": 0, "cache_hit_rate": None}, 20480.0),
    ],
    ids=["0.4.7", "0.5.21"],
)
def test_one_batch_server_of_every_version(tmp_path: Path, written_by: dict[str, object], input_tok_s: float | None):
    run = one(written(tmp_path, written_by, "r.jsonl"))
    assert (run.concurrency, run.requests, run.input_tok_s) == (16, 16, input_tok_s)
    assert ("input_tok_s" in run.derived) == (input_tok_s is not None) and "output_tok_s" in run.derived


def test_one_batch_server_says_how_its_throughput_was_made(tmp_path: Path):
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps(ONE_BATCH) + "\n" + json.dumps(ONE_BATCH | {"batch_size": 32}) + "\n" + '{"batch')
    runs = read_bench_results(path)
    assert [r.concurrency for r in runs] == [16, 32]
    assert "latency - TTFT" in runs[0].derived["output_tok_s"] and runs[0].latencies_ms["e2e"]["mean"] == 1200.0


def test_evalscope():
    run = one(SAMPLES / "evalscope-1.14.1")
    assert (run.tool, run.concurrency, run.requests, run.failed) == ("evalscope perf", 16, 100, 0)
    assert run.latencies_ms["ttft"]["mean"] == 30.74 and run.latencies_ms["ttft"]["p50"] == pytest.approx(
        30.86, abs=0.01
    )
    assert run.latencies_ms["e2e"]["p99"] == pytest.approx(134.0, abs=0.1)


def test_genai_bench():
    run = one(SAMPLES / "genai-bench-0.0.5.json")
    assert (run.tool, run.concurrency, run.requests, run.failed) == ("genai-bench", 16, 146, 0)
    assert run.latencies_ms["ttft"]["p50"] == pytest.approx(221.22, abs=0.01) and "tpot_ms" in run.derived
    assert (
        len(run.rows) == 3 and run.rows[0].output_tokens == 20 and run.rows[0].ttft_s == pytest.approx(0.096, abs=0.001)
    )


def test_evalscope_of_both_generations(tmp_path: Path):
    new = {
        "Test Duration (s)": 10.0, "Concurrency": 8, "Request Rate (req/s)": -1, "Total Requests": 100,
        "Success Requests": 99, "Failed Requests": 1, "Req Throughput (req/s)": 9.9, "Avg Latency (s)": 0.8,
        "Output Throughput (tok/s)": 198.0, "Total Throughput (tok/s)": 1188.0, "Avg TTFT (ms)": 32.0,
        "Avg ITL (ms)": 5.1,
    }  # fmt: skip
    written(tmp_path, new, "benchmark_summary.json")
    rows = [{"Percentiles": "50%", "TTFT (ms)": 30.0, "Latency (s)": 0.7}, {"Percentiles": "99%", "TTFT (ms)": 60.0}]
    written(tmp_path, rows, "benchmark_percentile.json")
    run = one(tmp_path)
    assert (run.tool, run.concurrency, run.rate_s, run.failed) == ("evalscope perf", 8, None, 1)
    assert run.latencies_ms["ttft"] == {"mean": 32.0, "p50": 30.0, "p99": 60.0}
    assert run.latencies_ms["e2e"] == {"mean": 800.0, "p50": 700.0} and run.input_tok_s == 990.0
    open_loop = {k: v for k, v in new.items() if not k.startswith("Output")} | {"Request Rate (req/s)": 12.5}
    paced = one(written(tmp_path, open_loop, "paced.json"))
    assert (paced.rate_s, paced.input_tok_s, paced.output_tok_s) == (12.5, None, None)
    old = {
        "Time taken for tests (s)": 10.0, "Number of concurrency": 8, "Total requests": 100, "Failed requests": 0,
        "Request throughput (req/s)": 10.0, "Average latency (s)": 0.8, "Average time to first token (s)": 0.032,
    }  # fmt: skip
    assert one(written(tmp_path, old, "old.json")).latencies_ms["ttft"]["mean"] == pytest.approx(32.0)


def test_genai_bench_in_seconds_and_in_milliseconds(tmp_path: Path):
    stats = {"ttft": {"mean": 0.03, "p50": 0.025, "p99": 0.09}, "e2e_latency": {"mean": 0.2}}
    whole = {
        "num_concurrency": 16, "run_duration": 12.0, "requests_per_second": 80.0, "num_requests": 1000,
        "num_error_requests": 2, "mean_output_throughput_tokens_per_s": 1600.0, "stats": stats,
    }  # fmt: skip
    rows = [
        {"ttft": 0.03, "e2e_latency": 0.2, "num_input_tokens": 9, "num_output_tokens": 20, "error_code": None},
        {"error_code": 500, "error_message": "overloaded"},
    ]
    whole["model"] = "toy"
    document = {"aggregated_metrics": whole, "individual_request_metrics": rows, "_time_unit": "s"}
    run = one(written(tmp_path, document))
    assert run.latencies_ms["ttft"] == {"mean": 30.0, "p50": 25.0, "p99": 90.0} and run.rows[0].ttft_s == 0.03
    assert (run.model, run.requests, run.failed, run.duration_s, run.output_tok_s) == ("toy", 1000, 2, 12.0, 1600.0)
    assert [(r.ok, r.error, r.e2e_s) for r in run.rows] == [(True, "", 0.2), (False, "overloaded", None)]
    in_ms = one(written(tmp_path, document | {"_time_unit": "ms"}))
    assert in_ms.latencies_ms["ttft"]["p50"] == pytest.approx(0.025) and in_ms.rows[0].ttft_s == pytest.approx(3e-5)


def test_aiperf_with_its_requests():
    run = one(SAMPLES / "aiperf-0.13.0")
    assert (run.tool, run.concurrency, run.model, run.requests) == ("aiperf", 16, "fake", 100)
    assert run.latencies_ms["itl"]["p50"] == pytest.approx(3.19, abs=0.01)  # between chunks, not one mean per request
    assert run.output_tok_s == pytest.approx(2000 / 1.264138752)  # the server's count, not the tool's tokenizer
    assert len(run.rows) == 3 and run.rows[0].output_tokens == 20 and len(run.rows[0].gaps_s) == 19
    assert min(r.sent_s or 0.0 for r in run.rows) == 0.0


def test_aiperf_of_an_older_shape(tmp_path: Path):
    document = {
        "request_throughput": {"unit": "requests/sec", "avg": 187.0},
        "request_latency": {"unit": "ms", "avg": 300.0, "p50": 290.0, "p99": 500.0},
        "request_count": {"unit": "requests", "avg": 3000.0},
        "time_to_first_token": {"unit": "ms", "avg": 130.0, "p50": 122.0},
        "inter_token_latency": {"unit": "ms", "avg": 9.0, "p50": 9.0},
        "output_token_throughput": {"unit": "tokens/sec", "avg": 3740.0},
        "benchmark_duration": {"unit": "sec", "avg": 16.0},
        "input_config": {"loadgen": {"concurrency": 128}, "endpoint": {"model_names": ["toy"]}},
    }
    run = one(written(tmp_path, document))
    assert (run.tool, run.concurrency, run.model, run.requests) == ("aiperf", 128, "toy", 3000)
    assert run.latencies_ms["ttft"]["p50"] == 122.0 and "itl" not in run.latencies_ms
    assert "tpot_ms" in run.derived and run.input_tok_s is None
    more = {"total_isl": {"avg": 32000.0}, "error_request_count": {"avg": 7.0}}
    whole = one(written(tmp_path, document | more, "more.json"))
    assert (whole.requests, whole.failed, whole.input_tok_s) == (3007, 7, 2000.0)
    with pytest.raises(InputError):
        one(written(tmp_path, {"request_throughput": {"avg": 1.0}}, "half.json"))


def test_aiperf_says_where_its_tokenizer_is_not_the_servers(tmp_path: Path):
    """Real figures of 0.13.0: 150 tokens by the tool where the server made 30, so its TPOT is a fifth."""
    document = {
        "request_throughput": {"avg": 20.89}, "request_latency": {"unit": "ms", "avg": 174.77},
        "inter_token_latency": {"unit": "ms", "avg": 0.91}, "benchmark_duration": {"avg": 1.9},
        "total_osl": {"avg": 6000.0}, "total_usage_completion_tokens": {"avg": 1200.0},
        "total_isl": {"avg": 6000.0}, "total_usage_prompt_tokens": {"avg": 1472.0},
    }  # fmt: skip
    run = one(written(tmp_path, document))
    assert (run.input_tok_s, run.output_tok_s) == (pytest.approx(1472 / 1.9), pytest.approx(1200 / 1.9))
    assert "6,000 where the server counted 1,200" in run.derived["tpot_ms"]
    agreed = one(written(tmp_path, document | {"total_osl": {"avg": 1210.0}}))
    assert "averaged away" in agreed.derived["tpot_ms"]


INFERENCE_PERF = SAMPLES / "inference-perf-0.7.0"


def test_inference_perf_with_its_requests():
    run = one(INFERENCE_PERF)  # the summary and the report for llm-d beside it are the same run once more
    assert run.source.endswith("stage_0_lifecycle_metrics.json")
    assert (run.tool, run.rate_s, run.requests, run.failed) == ("inference-perf", 2.0, 4, 0)
    assert run.latencies_ms["ttft"]["p50"] == pytest.approx(14.23, abs=0.01)
    assert run.latencies_ms["e2e"]["mean"] == pytest.approx(160.90, abs=0.01)
    # its own tokenizer makes 150 tokens of the server's 30: rates go by the server's count, gaps by its chunks
    assert run.output_tok_s == pytest.approx(30 * 4 / 1.29858, rel=1e-3)
    assert "150 where the server counted 30" in run.derived["tpot_ms"]
    assert "itl" not in run.latencies_ms and "itl_ms" not in run.derived
    assert [(r.ok, r.input_tokens, r.output_tokens, len(r.gaps_s)) for r in run.rows] == [(True, 4, 30, 29)] * 4
    assert min(r.sent_s or 0.0 for r in run.rows) == 0.0
    assert run.rows[0].e2e_s == pytest.approx(run.rows[0].ttft_s + sum(run.rows[0].gaps_s), abs=0.02)


def test_inference_perf_of_several_stages_has_no_requests_of_one(tmp_path: Path):
    stage = json.loads((INFERENCE_PERF / "stage_0_lifecycle_metrics.json").read_text())
    rows = json.loads((INFERENCE_PERF / "per_request_lifecycle_metrics.json").read_text())
    for number in range(2):
        written(tmp_path, stage, f"stage_{number}_lifecycle_metrics.json")
    written(tmp_path, rows * 2, "per_request_lifecycle_metrics.json")
    first, second = read_bench_results(tmp_path)
    assert first.rows == second.rows == ()
    assert "150 where the server counted 30" in first.derived["itl_ms"]
    failed = {**rows[0], "error": {"error_type": "HTTP Error 500", "error_msg": "out of memory"}}
    alone = tmp_path / "alone"
    alone.mkdir()
    written(alone, [failed, *rows[1:]], "per_request_lifecycle_metrics.json")
    written(alone, stage, "summary_lifecycle_metrics.json")
    run = one(alone)
    assert [(r.ok, r.error) for r in run.rows][:2] == [(False, "out of memory"), (True, "")]


def test_a_report_of_llm_d():
    run = one(INFERENCE_PERF / "inference-perf.partial.stage_0.yaml")
    assert (run.tool, run.requests, run.failed) == ("llm-d benchmark report", 4, 0)
    assert run.latencies_ms["ttft"]["p50"] == pytest.approx(14.23, abs=0.01)  # written in seconds
    assert run.latencies_ms["tpot"]["mean"] == pytest.approx(0.95, abs=0.01)  # in s/token
    assert run.duration_s and run.requests_s == pytest.approx(3.08, abs=0.01)


def test_reports_of_llm_d_in_both_generations(tmp_path: Path):
    new = """
version: 0.2.1
run: {time: {duration: PT1M40.5S}}
scenario:
  load: {standardized: {tool: inference-perf, rate_qps: 10.0, concurrency: .inf}}
  stack: [{standardized: {kind: generic}}, {standardized: {kind: inference_engine, model: {name: Qwen/Qwen3-0.6B}}}]
results:
  request_performance:
    aggregate:
      latency: {time_to_first_token: {units: ms, mean: 36.0, p99: 50.0}, request_latency: {units: s, mean: 0.5}}
      requests: {total: 500, failures: 3}
      throughput: {request_rate: {mean: 9.5}, output_token_rate: {mean: 950.0}, input_token_rate: {mean: 95.0}}
"""
    (tmp_path / "report.yaml").write_text(new)
    run = one(tmp_path / "report.yaml")
    assert (run.tool, run.model) == ("llm-d benchmark report of inference-perf", "Qwen/Qwen3-0.6B")
    assert (run.requests, run.failed, run.rate_s, run.concurrency, run.duration_s) == (500, 3, 10.0, None, 100.5)
    assert run.latencies_ms == {"ttft": {"mean": 36.0, "p99": 50.0}, "e2e": {"mean": 500.0}}
    assert (run.requests_s, run.output_tok_s, run.input_tok_s) == (9.5, 950.0, 95.0)
    old = """
version: '0.1'
scenario: {model: {name: toy}, load: {name: vllm-benchmark}}
metrics:
  time: {duration: 16.5}
  requests: {total: 100, failures: 0}
  latency: {time_to_first_token: {units: ms, mean: 47.0, p50: 45.0}}
  throughput: {output_tokens_per_sec: 120.0, requests_per_sec: 6.0}
"""
    (tmp_path / "report.yaml").write_text(old)
    run = one(tmp_path / "report.yaml")
    assert (run.tool, run.model, run.duration_s) == ("llm-d benchmark report of vllm-benchmark", "toy", 16.5)
    assert (run.requests_s, run.output_tok_s, run.latencies_ms["ttft"]["p50"]) == (6.0, 120.0, 45.0)
    (tmp_path / "report.yaml").write_text("metrics: [unclosed")
    with pytest.raises(InputError, match=r"report\.yaml"):
        read_bench_results(tmp_path / "report.yaml")


def test_inference_x(tmp_path: Path):
    """Rates per GPU become rates of the service, seconds milliseconds; a list is as many runs."""
    together = {
        "hw": "b200", "tp": 4, "ep": 1, "conc": 64, "model": "toy", "framework": "vllm", "tput_per_gpu": 900.0,
        "output_tput_per_gpu": 100.0, "mean_ttft": 0.5, "median_ttft": 0.4, "p99_ttft": 1.25, "mean_tpot": 0.01,
        "mean_intvty": 100.0, "mean_e2el": 9.5,
    }  # fmt: skip
    apart = {
        **together, "disagg": True, "num_prefill_gpu": 4, "num_decode_gpu": 12, "framework": "dynamo-sglang",
        "tput_per_gpu": 600.0,
    }  # fmt: skip
    first, second = read_bench_results(written(tmp_path, [together, apart]))
    assert (first.tool, first.model, first.concurrency) == ("InferenceX", "toy", 64)
    assert (first.output_tok_s, first.input_tok_s, first.requests_s) == (400.0, 3200.0, None)
    assert first.latencies_ms["ttft"] == {"mean": 500.0, "p50": 400.0, "p99": 1250.0}
    assert first.latencies_ms["e2e"]["mean"] == 9500.0 and first.server == {"engine": "vllm"}
    assert (second.output_tok_s, second.input_tok_s) == (1200.0, 16 * 600.0 - 1200.0)
    assert second.server == {}


@pytest.mark.parametrize("content", [b"", b"not json", b"[1, 2]", b'{"a": 1}', b"\xff\xfe\x00", b'{"benchmarks": []}'])
def test_what_is_no_result_is_named(tmp_path: Path, content: bytes):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"x\.json"):
        read_bench_results(path)


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(InputError, match="No such file"):
        read_bench_results(tmp_path / "nothing.json")


junk = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_damaged_results_give_less_and_never_a_surprise(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    guidellm, stage = (
        json.loads((SAMPLES / name).read_text())
        for name in ("guidellm-0.8.1.json", "inference-perf-0.7.0/stage_0_lifecycle_metrics.json")
    )
    inference_x = {"conc": 4, "tput_per_gpu": 9.0, "output_tput_per_gpu": 1.0, "tp": 2, "mean_ttft": 0.5}
    shapes = [VLLM, ONE_BATCH, guidellm, stage, inference_x, {"aggregated_metrics": {"stats": {}}}]
    document = data.draw(st.sampled_from(shapes))
    damaged = json.loads(json.dumps(document))
    for _ in range(data.draw(st.integers(1, 4))):
        node = damaged
        while isinstance(node, dict) and node:
            key = data.draw(st.sampled_from(sorted(node)))
            if data.draw(st.booleans()) or not isinstance(node[key], dict):
                node[key] = data.draw(junk)
                break
            node = node[key]
    path = tmp_path_factory.mktemp("damaged") / "r.json"
    path.write_text(json.dumps(damaged))
    try:
        runs = read_bench_results(path)
    except InputError:
        return
    assert all(isinstance(run, BenchRun) for run in runs)
