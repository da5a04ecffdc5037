"""Traces of PyTorch: what they show, read as streams, torn or whole."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path

import pytest

from ridgeline import catalog
from ridgeline.diagnose.base import Analyzer, Diagnosis, diagnose, opened
from ridgeline.diagnose.comparison import compare_files
from ridgeline.serving.findings.chrome_trace import read_chrome_trace
from ridgeline.serving.findings.kernels import KernelTime

ANALYZERS: list[Analyzer] = [catalog.part("analyzers", name) for name in catalog.shipped("analyzers")]
TRACE = Path(__file__).parent.parent / "samples" / "torch-trace" / "decode-moe-eager.json"


def of(path: Path) -> Diagnosis:
    return diagnose(path, ANALYZERS)


def claims(path: Path) -> list[str]:
    return [f.claim for f in of(path).findings]


def test_a_trace_reads_the_same_zipped_and_on_one_line(tmp_path: Path) -> None:
    document = json.loads(TRACE.read_text())
    one_line, zipped = tmp_path / "one.json", tmp_path / "trace.json.gz"
    one_line.write_text(json.dumps(document))
    zipped.write_bytes(gzip.compress(TRACE.read_bytes()))
    assert claims(one_line) == claims(zipped) == claims(TRACE)
    assert of(zipped).notes == ()
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps([e for e in document["traceEvents"] if e["ph"] == "X"]))
    assert claims(bare) == claims(TRACE)


def test_a_torn_trace_gives_what_came_before_and_a_note(tmp_path: Path) -> None:
    cut = tmp_path / "cut.json"
    cut.write_bytes(TRACE.read_bytes()[:-20_000])
    assert "ends in the middle" in of(cut).notes[0] and any("NCCL kernels" in c for c in claims(cut))
    zipped = tmp_path / "cut.json.gz"
    zipped.write_bytes(gzip.compress(TRACE.read_bytes())[:-900])
    assert "gzip data ends too early" in of(zipped).notes[0] and claims(zipped)


def test_an_event_that_is_garbage_is_skipped_and_the_rest_is_read() -> None:
    kernel = b'{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 5, "args": {"device": 0}}'
    broken = b'{"ph": "X", "cat": "kernel", "name": "k", "ts": \xff\xfe oops '
    text = (
        b'{"traceEvents": [' + b",".join([kernel] * 100) + b"," + broken + b"," + b",".join([kernel] * 60_000) + b"]}"
    )
    pieces = [text[n : n + 65_536] for n in range(0, len(text), 65_536)]
    tally, damage = read_chrome_trace(pieces)
    assert tally.launches > 60_000 and "skipped" in damage


def test_nonsense_in_a_trace_is_left_out() -> None:
    events = [
        {"ph": "X", "cat": "kernel", "name": "k", "dur": "long", "ts": 1},
        {"ph": "X", "cat": "kernel", "name": ["k"], "dur": 1, "ts": 1},
        {"ph": "X", "cat": "kernel", "name": "k", "dur": -5, "ts": 1},
        {"ph": "X", "cat": "kernel", "name": "good", "dur": 5, "ts": "nan", "args": [1]},
        {"ph": "X", "cat": "kernel", "name": "good", "dur": 5, "ts": True, "args": {"device": "no"}},
        [1, 2, 3],
    ]
    tally, _ = read_chrome_trace([json.dumps({"traceEvents": events}).encode()])
    assert {k.name: k.count for k in tally.kernels.values()} == {"good": 2}
    deep = b'{"traceEvents": [' + b"[" * 100_000 + b"]" * 100_000 + b"]}"
    read_chrome_trace([deep])


def test_a_long_trace_takes_no_more_memory_than_a_short_one() -> None:
    event = b'{"ph": "X", "cat": "kernel", "name": "kernel_%d", "ts": %d, "dur": 5.0, "args": {"device": 0}},\n'
    piece = b"".join(event % (n % 50, n) for n in range(1_000))

    def peak_of(count: int) -> int:
        tracemalloc.start()
        tally, _ = read_chrome_trace([b'{"traceEvents": [\n', *[piece] * count])
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert tally.launches == 1_000 * count
        return peak

    assert peak_of(25) < peak_of(2) + len(piece)


def test_names_without_end_do_not_fill_the_memory() -> None:
    events = (b'{"ph": "X", "cat": "kernel", "name": "k%d", "ts": 1, "dur": 5},' % n for n in range(25_000))
    tally, _ = read_chrome_trace([b'{"traceEvents": [', *events, b'{"ph": "M"}]}'])
    assert len(tally.kernels) == 20_001 and tally.launches == 25_000


@pytest.mark.parametrize(
    ("name", "purpose"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "communication"),
        ("void sglang::cross_device_reduce_1stage<__nv_bfloat16, 8>", "communication"),
        ("fused_moe_kernel", "MoE"),
        ("void moe_align_block_size_kernel<int>", "MoE"),
        ("void flash::flash_fwd_splitkv_kernel<...>", "attention"),
        ("_fwd_grouped_kernel_stage1", "attention"),
        ("_fwd_kernel_stage2", "attention"),
        (
            "kernel_cutlass_kernel_flashinfernormkernelsfused_add_rmsnormFusedAddRMSNormKernel",
            "elementwise and norms",
        ),
        ("nvjet_tst_128x8_64x12_2x1_v_bz_TNT", "matrix products"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", "matrix products"),
        ("void at::native::vectorized_elementwise_kernel<4>", "elementwise and norms"),
        ("_C::onednn_mm", "matrix products"),
        ("aten::linear", "matrix products"),
        ("vllm::unified_kv_cache_update", "attention"),
        ("aten::mul_", "elementwise and norms"),
        ("mystery", "other"),
    ],
)
def test_what_a_kernel_is_for(name: str, purpose: str) -> None:
    assert KernelTime(name).purpose == purpose


def _op(name: str, start: float, duration: float, thread: int = 1) -> dict:
    return {"ph": "X", "cat": "cpu_op", "name": name, "ts": start, "dur": duration, "tid": thread}


def test_operators_of_a_trace_without_a_gpu_are_charged_with_their_own_time(tmp_path: Path) -> None:
    """linear calls addmm, which calls copy_: 100 us in all, of which copy_ has 20 and addmm 70; then 100 us of gap."""
    events = [_op("aten::linear", 0, 100), _op("aten::addmm", 5, 90), _op("aten::copy_", 10, 20)]
    events += [_op("vllm::all_reduce", 200, 50), _op("aten::mul", 0, 10, thread=2)]
    trace = tmp_path / "cpu.json"
    trace.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    said = claims(trace)
    assert any(
        "PyTorch's operators is matrix products 53%, communication 33%, copies 13%; one ran for at most 60%" in claim
        for claim in said
    ), said
    assert any("no operator of PyTorch ran for at least 40% of the 0.00 s" in claim for claim in said), said
    portray = catalog.part("analyzers", "torch-trace").portray
    figures = {figure.name: figure.value for figure in portray(opened(trace)).figures}
    assert figures["CPU thread without an operator, at least"] == pytest.approx(0.4)
    assert figures["operator aten::addmm"] == pytest.approx(70e-6)


def test_decode_on_an_h200_is_matrix_products_and_tritons_attention() -> None:
    """SGLang 0.5.15 with Triton's attention, 20 steps before and after its batch and graphs were tuned."""
    results = Path(__file__).parents[2] / "examples/05-sglang-h200/results/llama-8b-profile/runs"
    before, after = (claims(path) for path in sorted(results.glob("*/profile/*.trace.json.gz")))
    assert any(said.startswith("GPU time is matrix products 50%, attention 39%") for said in before)
    assert any("the host's launches are the limit" in said for said in before)
    assert any(said.startswith("GPU time is matrix products 52%, attention 38%") for said in after)
    assert not any("the host's launches are the limit" in said for said in after)


def test_products_are_compared_whatever_their_tiles() -> None:
    """Larger batches take other tiles of the same library, so that no name would be in both profiles."""
    results = Path(__file__).parents[2] / "examples/05-sglang-h200/results/llama-8b-profile/runs"
    found = compare_files(*sorted(results.glob("*/profile/*.trace.json.gz")), ANALYZERS)
    (products,) = (figure for figure in found.figures if figure.name == "kernel nvjet_sm90_tst (all tiles)")
    assert (products.first, products.second) == (pytest.approx(0.118, abs=0.002), pytest.approx(0.0875, abs=0.002))
