"""SGLang's log: three real ones from an H200, and lines of older versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ridgeline.diagnose.readers.lines import TextFile
from ridgeline.serving.engines.sglang.log import _sglang_facts, read_offline_jsonl, read_sglang_log

SAMPLES = Path(__file__).parent.parent / "samples" / "sglang"
GIB = 2**30

OLD = """\
[2025-07-01 10:00:00 DP1 TP3] Load weight begin. avail mem=78.50 GB
[2025-07-01 10:00:09 DP1 TP3] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=63.50 GB, mem usage=15.00 GB.
[2025-07-01 10:00:10 DP1 TP3] KV Cache is allocated. #tokens: 434214, K size: 26.50 GB, V size: 26.50 GB
[2025-07-01 10:00:11 DP1 TP3] Capture cuda graph begin. This can take up to several minutes. avail mem=9.85 GB
[2025-07-01 10:00:11 DP1 TP3] Capture cuda graph bs [1, 2, 4, 8, 160]
[2025-07-01 10:00:16 DP1 TP3] Capture cuda graph end. Time elapsed: 5.12 s. mem usage=0.68 GB. avail mem=9.17 GB.
[2025-07-01 10:00:17 DP1 TP3] max_total_num_tokens=434214, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=2048, context_len=131072
[2025-07-01 10:00:18 DP1 TP3] Prefill batch. #new-seq: 1, #new-token: 7, #cached-token: 3, token usage: 0.00, #running-req: 0, #queue-req: 2
[2025-07-01 10:00:19 DP1 TP3] Decode batch. #running-req: 4, #token: 41, token usage: 0.02, accept len: 2.71, cuda graph: True, gen throughput (token/s): 33.50, #queue-req: 1
[2025-07-01 10:00:20 DP1 TP3] KV cache pool is full. Retract requests. #retracted_reqs: 7, #new_token_ratio: 0.5731 -> 0.6000
[2025-07-01 10:00:21] The server is fired up and ready to roll!
""".splitlines()  # noqa: E501


def read(name: str):
    return read_sglang_log(TextFile(SAMPLES / name))


def test_a_real_dense_run_gives_its_memory_pool_graphs_and_result() -> None:
    log = read("offline-llama8b-h200-default.log")
    assert len(log.server_args) > 400
    assert log.server_args["mem_fraction_static"] == 0.903
    assert log.server_args["cuda_graph_config"]["decode"]["max_bs"] == 256
    assert log.weights[0].before_bytes == round(139.13 * GIB)
    assert log.weights[0].model_class == "LlamaForCausalLM"
    assert log.kv_pools[0].tokens == log.limits[0].max_total_tokens == 918451
    assert log.kv_pools[0].total_bytes == 2 * round(56.06 * GIB)
    assert [(g.phase, max(g.sizes), g.elapsed_s) for g in log.graphs] == [
        ("prefill", 8192, 10.4),
        ("decode", 256, 3.66),
    ]
    assert log.largest_decode_graph == 256
    result = log.results[0]
    assert (result.successful_requests, result.duration_s, result.total_tok_s) == (1000, 22.11, 21605.42)
    # every request's prompt went through a prefill line after the benchmark mark
    prompt = sum(p.new_tokens + p.cached_tokens for p in log.prefills if p.stamp.line > log.benchmark_line)
    assert prompt == result.input_tokens
    assert not log.failures


def test_a_line_number_is_what_grep_n_says() -> None:
    log = read("offline-dsv2lite-h200-runtime-oom.log")
    lines = (SAMPLES / "offline-dsv2lite-h200-runtime-oom.log").read_bytes().split(b"\n")
    oom = next(f for f in log.failures if f.kind == "cuda-oom")
    assert lines[oom.line - 1].startswith(b"torch.OutOfMemoryError")
    assert oom.ready, "the limits line was printed before: this is an out-of-memory while running"
    assert not log.results


def test_mla_has_one_pool_and_no_k_and_v() -> None:
    pool = read("offline-dsv2lite-h200-mrr1024.log").kv_pools[0]
    assert pool.total_bytes == round(82.40 * GIB)


def test_cached_share_leaves_the_warm_up_out() -> None:
    log = read("offline-llama8b-h200-default.log")
    assert log.cached_token_share() == pytest.approx(933 / 281324)


def test_lines_of_0_4_8() -> None:
    log = read_sglang_log(OLD)
    assert log.weights[0].before_bytes == round(78.5 * GIB)
    assert log.weights[0].stamp.rank("TP") == 3 and log.weights[0].stamp.rank("DP") == 1
    assert log.weights[0].stamp.rank("PP") is None
    assert (log.graphs[0].sizes, log.graphs[0].elapsed_s) == ((1, 2, 4, 8, 160), 5.12)
    assert log.limits[0].available_gpu_bytes is None and log.limits[0].context_len == 131072
    assert (log.prefills[0].cached_tokens, log.prefills[0].queued) == (3, 2)
    assert (log.decodes[0].accept_len, log.decodes[0].gen_tok_s, log.decodes[0].cuda_graph) == (2.71, 33.5, True)
    assert log.retractions[0].requests == 7
    assert log.ready_line == 11


def test_messages_of_two_ranks_on_one_line_are_told_apart() -> None:
    torn = OLD[8].replace("TP3", "TP0") + OLD[8]
    assert [d.stamp.rank("TP") for d in read_sglang_log([torn]).decodes] == [0, 3]


def test_facts_stream_while_the_log_grows() -> None:
    facts = _sglang_facts(iter(OLD))
    assert next(facts).used_bytes == round(15.0 * GIB)


def test_keys_in_the_echo_are_hidden() -> None:
    log = read_sglang_log(["server_args=ServerArgs(model_path='/m', api_key='abc', admin_api_key=None, tp_size=8)"])
    assert dict(log.server_args) == {"model_path": "/m", "api_key": "(hidden)", "admin_api_key": None, "tp_size": 8}


def test_a_torn_echo_gives_only_complete_arguments() -> None:
    log = read_sglang_log(["server_args=ServerArgs(model_path='/m', tp_size=16, mem_fraction_static=0.8"])
    assert dict(log.server_args) == {"model_path": "/m", "tp_size": 16}


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "pool-too-small"),
        (
            "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.4. "
            "Raise --mem-fraction-static above 0.428 (minimum viable = 1 - available/pre = 0.4278).",
            "pool-too-small",
        ),
        ("Exception: Capture cuda graph failed: CUDA out of memory", "graph-capture"),
        ("RuntimeError: Rank 0 scheduler died during initialization (exit code: -9)", "host-oom"),
        ("KVTransferError(bootstrap_room=3): Request timed out after 120.0s in KVPoll.Bootstrapping", "kv-transfer"),
        ("Received sigquit from a child process. It usually means the child failed.", "child-died"),
        ("launch_server.py: error: unrecognized arguments: --tp-sizes 4", "rejected"),
        ("ValueError: bad value", "exception"),
    ],
)
def test_failures_are_told_apart(line: str, kind: str) -> None:
    failures = read_sglang_log([f"[2025-07-01 10:00:18 TP0] {line}"]).failures
    assert [(f.kind, f.ready) for f in failures] == [(kind, False)]


def test_the_result_file_gives_the_same_record_as_the_block() -> None:
    block = read("offline-llama8b-h200-default.log").results[0]
    row = {
        "backend": "engine",
        "successful_requests": 1000,
        "total_latency": 22.11,
        "total_input_tokens": 281324,
        "total_output_tokens": 196445,
        "request_throughput": 45.22,
        "input_throughput": 12721.89,
        "output_throughput": 8883.53,
        "total_throughput": 21605.42,
        "last_gen_throughput": 3805.13,
    }
    (result,) = read_offline_jsonl(["not json", json.dumps(row), "{}", "[1]"])
    assert {f: getattr(result, f) for f in result.__slots__ if f != "line"} == {
        f: getattr(block, f) for f in block.__slots__ if f != "line"
    }
