"""vLLM's log and NCCL's lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.diagnose.readers.lines import TextFile
from ridgeline.serving.engines.nccl_log import read_nccl_log
from ridgeline.serving.engines.vllm.engine import VLLM
from ridgeline.serving.engines.vllm.log import read_vllm_log

SAMPLES = Path(__file__).parent.parent / "samples"


def test_vllm_v1() -> None:
    log = read_vllm_log(TextFile(SAMPLES / "vllm" / "gpu-0.11-full-cache.log"))
    assert log.version == "0.11.0"
    assert log.args["max_num_seqs"] == 512 and log.args["gpu_memory_utilization"] == 0.35
    assert log.args["api_key"] == "(hidden)"
    assert log.engine_config["tensor_parallel_size"] == 1 and log.engine_config["dtype"] == "torch.bfloat16"
    assert (log.kv_caches[0].device, log.kv_caches[0].tokens) == ("GPU", 257392)
    assert log.kv_bytes == round(31.42 * 2**30)
    assert (log.weights_s, log.graphs_s) == (1.217335, 6.0)
    assert [t.running for t in log.throughput] == [381, 342, 120]
    assert log.throughput[1].kv_share == pytest.approx(0.996)
    assert log.preemptions == 0, "it may have preempted, but this log does not say"


def test_vllm_cpu_0_32_is_real() -> None:
    log = read_vllm_log(TextFile(SAMPLES / "vllm" / "cpu-0.32-full-cache.log"))
    assert log.version == "0.32.0" and log.args["num_gpu_blocks_override"] == 40
    assert (log.kv_caches[0].device, log.kv_caches[0].tokens) == ("CPU", 5120)
    assert [t.waiting for t in log.throughput] == [34, 27, 18, 16, 6, 0, 0]
    assert log.engine_config["dtype"] == "torch.float32" and not log.failures
    refused = read_vllm_log(TextFile(SAMPLES / "vllm" / "cpu-0.32-rejected.log"))
    assert [f.kind for f in refused.failures] == ["rejected"]


def test_preemptions_are_counted_from_metrics_and_from_logs_that_tell() -> None:
    line = "Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 1.0 tokens/s, Running: 9 reqs, "
    told = line + "Waiting: 3 reqs, Preemptions: 4, GPU KV cache usage: 99.0%"
    assert read_vllm_log([told, told]).preemptions == 8
    metrics = ['vllm:num_preemptions_total{engine="0"} 41.0', 'vllm:num_preemptions_total{engine="1"} 2.0']
    assert read_vllm_log(metrics).preemptions == 43


def test_accept_lengths_count_by_what_was_drafted() -> None:
    told = (  # 0.32 on a CPU
        "(APIServer pid=219) INFO 11-19 01:15:11 [metrics.py:120] SpecDecoding metrics: Mean acceptance length: 3.83, "
        "Accepted throughput: 8.49 tokens/s, Drafted throughput: 8.49 tokens/s, Accepted: 17 tokens, Drafted: 17 "
        "tokens, Per-position acceptance rate: 1.000, 1.000, 0.833, Avg Draft acceptance rate: 100.0%",
        "(APIServer pid=219) INFO 11-19 01:15:14 [metrics.py:120] SpecDecoding metrics: Mean acceptance length: 1.00, "
        "Accepted throughput: 0.00 tokens/s, Drafted throughput: 1.50 tokens/s, Accepted: 0 tokens, Drafted: 3 tokens, "
        "Per-position acceptance rate: 0.000, 0.000, 0.000, Avg Draft acceptance rate: 0.0%",
    )
    figures = {figure.metric: figure.value for figure in VLLM.read(told).figures}
    assert figures["accept_length"] == pytest.approx((3.83 * 17 + 1.0 * 3) / 20)
    before = "SpecDecoding metrics: Draft acceptance rate: 62.5%, Mean acceptance length: 2.88, Accepted: 15 tokens, "
    assert read_vllm_log(
        [before + "Drafted: 24 tokens, Per-position acceptance rate: 0.9"]
    ).accept_length == pytest.approx(2.88)
    assert read_vllm_log([told[0][:150]]).accept_length is None, "torn"


def test_vllm_v0() -> None:
    log = read_vllm_log(TextFile(SAMPLES / "vllm" / "v0-preempting.log"))
    assert log.args["max_num_seqs"] == 256 and log.preemptions == 51
    assert (log.throughput[0].running, log.throughput[0].waiting) == (201, 55)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("ValueError: To serve at least one request with the model's max seq len (131072), 16 GiB", "pool-too-small"),
        ("ValueError: User-specified max_model_len (9) is greater than the derived max_model_len (8)", "rejected"),
        ("ValueError: Total number of attention heads (5) must be divisible by tensor parallel size (2).", "split"),
        ("RuntimeError: Engine core initialization failed. See root cause above.", "child-died"),
    ],
)
def test_vllm_failures(line: str, kind: str) -> None:
    assert [f.kind for f in read_vllm_log([line]).failures] == [kind]


def test_nccl_over_infiniband() -> None:
    log = read_nccl_log(TextFile(SAMPLES / "nccl" / "two-nodes-ib.txt"))
    assert log.version == "2.21.5+cuda12.4" and log.network and log.network.value == "IB" and log.nranks == 16
    assert [(n.name, n.link) for n in log.nics] == [("mlx5_0", "IB"), ("mlx5_2", "RoCE")]
    first = log.chosen[0]
    assert (first.size_bytes, first.algorithm, first.protocol) == (14336, "TREE", "LL128")
    assert log.transports[0].name == "P2P/CUMEM/read" and log.transports[0].channels == 2


def test_a_setting_that_nccl_does_not_echo_is_unapplied() -> None:
    log = read_nccl_log(TextFile(SAMPLES / "nccl" / "two-nodes-ib.txt"))
    asked = {"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL", "NCCL_MIN_NCHANNELS": "4", "NCCL_DEBUG": "INFO"}
    assert log.unapplied(asked) == {"NCCL_PROTO": "LL128", "NCCL_MIN_NCHANNELS": None}


def test_silence_proves_nothing() -> None:
    assert read_nccl_log(["no lines of NCCL"]).unapplied({"NCCL_ALGO": "Tree"}) == {}


def test_nccl_over_sockets() -> None:
    log = read_nccl_log(TextFile(SAMPLES / "nccl" / "sockets.txt"))
    assert log.network and log.network.value == "Socket" and {n.link for n in log.nics} == {"Socket"}
    assert log.unapplied({"NCCL_IB_DISABLE": "0"}) == {}
    assert len(log.warnings) == 1


def test_a_request_that_was_answered_with_an_error_is_no_end_of_the_engine() -> None:
    answered = 'INFO:     127.0.0.1:44912 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error'
    assert read_vllm_log([answered]).failures == []
    assert [f.kind for f in read_vllm_log([answered, "ERROR 11-19 [core.py:700] AssertionError"]).failures] == [
        "exception"
    ]
