"""Failures of engines are told apart with their line, and each says which way to move."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from ridgeline.diagnose.readers.failures import PROGRAM_FAILURES
from ridgeline.diagnose.readers.lines import TextFile
from ridgeline.records.outcome import Kind
from ridgeline.serving.engines.base import ServingEngine
from ridgeline.serving.engines.failures import (
    BY_NAME,
    FAILURES,
    OUT_OF_MEMORY,
    FailureCause,
    advice,
    cause_of,
    signatures,
)
from ridgeline.serving.engines.releases import NEWEST
from ridgeline.serving.engines.sglang.engine import SGLANG
from ridgeline.serving.engines.sglang.failures import CHILD_DIED, GRAPHS_FAILED, POOL_TOO_SMALL, SCHEDULER_FAILED
from ridgeline.serving.engines.vllm.engine import VLLM
from ridgeline.serving.findings.sglang_log import ANALYZER
from tests.workloads.engine.studies import SAMPLES

LOADED = "[2026-11-15 02:47:48] Load weight end. elapsed=0.15 s, type=T, avail mem=110.24 GB, mem usage=28.89 GB."
READY = "[2026-11-15 02:48:10] max_total_num_tokens=100, chunked_prefill_size=8192, max_running_requests=4096"
SIGNATURES = signatures(SGLANG.flags, SGLANG.failure_texts)
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.81 GiB."


def cause(*lines: str, dialect=SGLANG) -> str:
    log = dialect.read(lines)
    found = cause_of(log.failures, log.weights_loaded)
    return found.name if found else ""


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((LOADED, "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."), "pool-too-small"),
        ((LOADED, READY, OOM, "[2026-11-15 02:40:47] SIGQUIT received. signum=None"), "oom-run"),
        ((LOADED, OOM), "oom-start"),
        ((OOM,), "weights"),
        ((LOADED, "Exception: Capture cuda graph failed: CUDA out of memory"), "graph-capture"),
        (("Rank 0 scheduler died during initialization (exit code: -9). If you see OOM",), "host-oom"),
        ((READY, "KVTransferError(bootstrap_room=1): timed out after 120.0s in KVPoll.Bootstrapping"), "kv-transfer"),
        (("launch_server.py: error: unrecognized arguments: --attn-db-size 8",), "rejected"),
        (("launch_server.py: error: argument --attention-backend: invalid choice: 'x'",), "rejected"),
        (("AssertionError: page size 64 needs fa3",), "refused"),
        ((READY, "AssertionError: page size 64 needs fa3"), "exception"),
        ((READY, "AssertionError: Mem Leak Detected! total_tokens=71 vs self.max_total_num_tokens=72"), "exception"),
        (("OSError: [Errno 98] Address already in use",), "port-taken"),
        ((READY, "[2026-11-15 02:40:47] Watchdog timeout (self.watchdog_last_forward_tick)"), "watchdog"),
        (("[2026-11-15 02:40:47] Received sigquit from a child process. It usually means",), "child-died"),
        ((LOADED, READY), ""),
    ],
)
def test_sglang_failures(lines: tuple[str, ...], expected: str) -> None:
    assert cause(*lines) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "ValueError: To serve at least one request with the model's max seq len (131072), (16.0 GiB",
            "pool-too-small",
        ),
        ("ValueError: User-specified max_model_len (9999) is greater than the derived max_model_len", "rejected"),
        ("ValueError: Total number of attention heads (32) must be divisible by tensor parallel size (3).", "split"),
        ("api_server.py: error: unrecognized arguments: --max-num-seq 3", "rejected"),
        ("(EngineCore pid=561) ERROR TimeoutError: RPC call to execute_model timed out.", "watchdog"),
    ],
)
def test_vllm_failures(line: str, expected: str) -> None:
    assert cause(line, dialect=VLLM) == expected


def test_the_captured_run_time_oom_is_one_and_its_line_is_kept() -> None:
    log = SGLANG.read(TextFile(SAMPLES / "offline-dsv2lite-h200-runtime-oom.log"))
    found = cause_of(log.failures, log.weights_loaded)
    assert found is not None
    assert found.name == "oom-run"
    said = found.marked_line("engine.log")
    assert "Tried to allocate 7.81 GiB" in said
    assert next(s.kind for s in SIGNATURES if s.pattern.search(said)) is Kind.OOM_RUN


def test_start_up_and_run_time_failures_of_memory_ask_for_opposite_moves() -> None:
    moves = {f.name: [(m.knob, m.direction) for m in advice(f, SGLANG.flags)] for f in FAILURES}
    assert moves["pool-too-small"][0] == ("mem_fraction_static", +1)
    assert moves["oom-run"][0] == ("mem_fraction_static", -1)
    assert moves["graph-capture"][0] == ("mem_fraction_static", -1)
    assert not moves["host-oom"]
    assert advice(BY_NAME["oom-run"], VLLM.flags)[0].knob == "gpu_memory_utilization"


@pytest.mark.parametrize("dialect", [SGLANG, VLLM], ids=lambda dialect: dialect.name)
def test_every_move_is_about_a_flag_that_the_engine_has(dialect: ServingEngine) -> None:
    known = set(dialect.flags.names(NEWEST)) | {"VLLM_CPU_KVCACHE_SPACE"}
    for failure in FAILURES:
        assert {move.knob for move in advice(failure, dialect.flags)} <= known, failure.name


@pytest.mark.parametrize("early", [False, True])
def test_every_failure_has_a_line_of_its_own(early: bool) -> None:
    for failure in FAILURES:
        line = FailureCause(failure.name, 3, "some text", at_start=early).marked_line("engine.log")
        first = next(s for s in SIGNATURES if s.pattern.search(line))
        assert (first.kind, first.reason, first.at_start) == (failure.kind, failure.reason, early)
        assert first.advice == advice(failure, SGLANG.flags)
    assert len({(f.kind, f.reason) for f in FAILURES}) == len(FAILURES)


# as sglang 0.5.15.post1, vllm 0.32.0 and their libraries write them
PORT_LINES = (
    (SGLANG, "ValueError: SGLANG_GRPC_PORT (68123) must be between 1 and 65535"),
    (SGLANG, "ValueError: SGLANG_GRPC_PORT (30000) must differ from --port (30000)"),
    (SGLANG, "ValueError: dist_init_port at 30233 is not available in 30 seconds. "),
    (SGLANG, "ValueError: rpc_port has invalid port number 65540. Valid TCP port range is 0-65535."),
    (SGLANG, "zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:30234')"),
    (SGLANG, "ERROR: [Errno 98] error while attempting to bind on address ('::1', 30000): address already in use"),
    (VLLM, "OSError: [Errno 98] Address already in use"),
    (VLLM, "RuntimeError: Could not find open port after 1000 attempts starting from port 29510"),
    (VLLM, "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
           "port: 29501, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"),
)  # fmt: skip


@pytest.mark.parametrize(("dialect", "line"), PORT_LINES)
def test_a_port_that_cannot_be_used_is_never_the_settings_fault(dialect: ServingEngine, line: str) -> None:
    later = "ValueError: the setting is refused"  # what follows in a log is only its echo
    assert cause(line, later, dialect=dialect) == "port-taken"
    assert BY_NAME["port-taken"].kind is Kind.SITE_FAULT
    assert not BY_NAME["port-taken"].kind.caused_by_setting


def test_a_port_that_vllm_looks_for_elsewhere_is_no_failure() -> None:
    line = "INFO 11-16 08:00:00 network_utils.py:248] Port 8000 is already in use, trying port 8001"
    assert not VLLM.read([line]).failures


@pytest.mark.parametrize(
    "line",
    [
        'panicked on an `Err` value: Os { code: 98, kind: AddrInUse, message: "Address already in use" }',
        "thread '<unnamed>' panicked: failed to install Prometheus metrics exporter: FailedToCreateHTTPListener",
        "OSError: [Errno 98] Address already in use",
    ],
)
def test_any_program_whose_port_is_taken_met_the_site_not_its_setting(line: str) -> None:
    first = next(s for s in PROGRAM_FAILURES if s.pattern.search(line))
    assert first.kind is Kind.SITE_FAULT


# what torch, NCCL, the driver and the system print, whichever engine they end; and the engines themselves
MORE_LINES = (
    (SGLANG, "RuntimeError: CUDA error: uncorrectable ECC error encountered", "gpu-broken"),
    (SGLANG, "[Tue Nov 17 2026] NVRM: Xid (PCI:0000:c1:00): 79, pid=4711, GPU has fallen off the bus.", "gpu-broken"),
    (SGLANG, "[Tue Nov 17 2026] NVRM: Xid (PCI:0000:c1:00): 31, pid=4711, Ch 00000008, MMU Fault", ""),
    (VLLM, "(Worker_TP3 pid=77) ERROR 09-14 11:20:31 [multiproc_executor.py:870] torch.AcceleratorError: CUDA error: "
           "CUDA-capable device(s) is/are busy or unavailable", "gpu-in-use"),
    (SGLANG, "RuntimeError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. pre_model_"
             "load_memory=71.2, local_gpu_memory=138.1, local_gpu_memory * 0.9=124.29", "gpu-in-use"),
    (SGLANG, "The memory capacity is unbalanced. Some GPUs may be occupied by other processes.", ""),
    (VLLM, "ValueError: Free memory on device cuda:0 (138.4/139.8 GiB) on startup is less than desired GPU memory "
           "utilization (0.995, 139.1 GiB). Decrease GPU memory utilization or reduce", "fraction-too-high"),
    (VLLM, "ValueError: Free memory on device (3.22/4.0 GiB) on startup is less than desired GPU memory utilization "
           "(0.9, 3.6 GiB). Decrease GPU memory utilization or reduce GPU memory", "gpu-in-use"),
    (SGLANG, "RuntimeError: SWA pool cap (4096 tokens, 1.20 GiB) leaves no room for the full KV pool within the "
             "available 1.00 GiB. Reduce --max-running-requests", "pool-too-small"),
    (SGLANG, "RuntimeError: Capture prefill CUDA graph failed: CUDA out of memory. Tried to allocate", "graph-capture"),
    (SGLANG, "RuntimeError: Prefill out of memory. Try to lower your batch size.", "pool-ran-out"),
    (SGLANG, "Subprocess scheduler_0 (pid=812) crashed with exit code -9. Triggering SIGQUIT", "host-oom"),
    (SGLANG, "Subprocess scheduler_0 (pid=812) crashed with exit code 1. Triggering SIGQUIT for cleanup", "child-died"),
    (VLLM, "(EngineCore pid=1) ERROR 07-09 10:00:00 [multiproc_executor.py:315] Worker proc VllmWorker-2 died "
           "unexpectedly (exit code: -9), shutting down executor.", "host-oom"),
    (SGLANG, "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.",
     "network"),
    (SGLANG, "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]",
     "peer-lost"),
    (VLLM, "(Worker_TP1 pid=9) ERROR 09-14 11:20:31 [core.py:1] RuntimeError: NCCL error: internal error", "nccl"),
    (SGLANG, "/opt/nvshmem/src/modules/transport/ibgda/ibgda.cpp:1889: NULL value cannot allocate mlx5dv_devx_uar",
     "nvshmem"),
    (SGLANG, "OSError: You are trying to access a gated repo.", "no-model"),
    (SGLANG, "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them",
     "hub"),
    (SGLANG, "ImportError: Please install mooncake by following the instructions at", "not-installed"),
    (SGLANG, "ModuleNotFoundError: No module named 'deep_ep'", "not-installed"),
    (SGLANG, "/opt/py/bin/python: Error while finding module specification for 'sglang.launch_server' "
             "(ModuleNotFoundError: No module named 'sglang')", "missing"),
    (SGLANG, "AssertionError: FlashAttention v3 Backend requires SM>=80 and SM<=90. Please use", "no-kernel"),
    (SGLANG, "OSError: [Errno 24] Too many open files", "host-limit"),
    # vLLM says so at every start where it may not open many
    (VLLM, "(APIServer pid=9) WARNING 11-18 23:57:47 [system_utils.py:255] Found ulimit of 20000. This can cause fd "
           "limit errors like `OSError: [Errno 24] Too many open files`. Consider increasing with ulimit -n", ""),
    (VLLM, "WARNING 08-01 22:46:36 [import_utils.py:408] RuntimeError: Could not find nvcc", ""),
    (SGLANG, "launch_server.py: error: --enable-ep-moe is removed. Use --ep-size instead.", "rejected"),
    (SGLANG, "AssertionError", "refused"),
    (SGLANG, "RuntimeError: Unsupported quantization config: bits=3, sym=False", "refused"),
    (SGLANG, "torch.AcceleratorError: CUDA error: an illegal memory access was encountered", "kernel-fault"),
)  # fmt: skip


@pytest.mark.parametrize(("dialect", "line", "expected"), MORE_LINES)
def test_lines_of_a_start_that_failed(dialect: ServingEngine, line: str, expected: str) -> None:
    assert cause(line, dialect=dialect) == expected


def test_what_the_memory_statement_says_outweighs_what_a_lost_peer_does() -> None:
    """The other ranks of a group lose their connection when one of them has no memory left."""
    lost = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]"
    assert cause(LOADED, lost, "torch.distributed.DistBackendError: ncclRemoteError: A call failed", OOM) == "oom-start"
    assert cause(LOADED, lost, "AssertionError: page size 64 needs fa3") == "refused"


def test_vllm_is_starting_until_it_says_that_it_has_started() -> None:
    """Graphs and samplers are warmed up after the KV cache was made."""
    loaded = "(Worker pid=1) INFO 11-18 23:53:58 [gpu_model_runner.py:1] Model loading took 15.3 GiB and 12.2 seconds"
    pool = "(EngineCore pid=1) INFO 11-18 23:53:59 [kv_cache_utils.py:2327] GPU KV cache size: 85,104 tokens"
    started = (
        "(EngineCore pid=1) INFO 11-18 23:54:30 [core.py:403] init engine (profile, create kv cache, warmup model)"
    )
    assert cause(loaded, pool, OOM, dialect=VLLM) == "oom-start"
    assert cause(loaded, pool, started, OOM, dialect=VLLM) == "oom-run"


@pytest.mark.parametrize(
    ("engine", "line", "knob", "direction"),
    [
        (SGLANG, "ValueError: the decode graph exceeds its capacity. Raise the environment value or lower "
                 "--cuda-graph-max-bs-decode.", "cuda_graph_max_bs_decode", -1),
        (SGLANG, "ValueError: budget exceeded: raise it or lower --chunked-prefill-size/--max-prefill-tokens.",
         "chunked_prefill_size", -1),
        (VLLM, "  Value error, max_num_batched_tokens is too small. Please increase `max_num_batched_tokens`.",
         "max_num_batched_tokens", +1),
        (SGLANG, "ValueError: page size 64 needs fa3", "", 0),
    ],
)  # fmt: skip
def test_a_refusal_that_names_the_flag_to_move_moves_it(
    engine: ServingEngine, line: str, knob: str, direction: int
) -> None:
    said = FailureCause("refused", 3, line, at_start=True).marked_line("engine.log")
    first = next(s for s in signatures(engine.flags, engine.failure_texts) if s.pattern.search(said))
    assert first.kind is Kind.REJECTED
    assert ((knob, direction) in {(m.knob, m.direction) for m in first.advice}) is bool(knob)
    assert {m.direction for m in first.advice} <= {direction}


def test_what_an_engine_survived_is_no_failure_of_its_log() -> None:
    """A hub that could not be asked for one file of many, and then it served."""
    hub = "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them"
    work = "[2026-11-15 02:06:40] Decode batch, #running-req: 9, #token: 287, token usage: 0.31, cuda graph: True, "
    work += "gen throughput (token/s): 2366.31, #queue-req: 0"
    found = ANALYZER.analyze("engine.log", [LOADED, hub, READY, work])
    assert not [f for f in found if f.severity == "fault"]
    failed = ANALYZER.analyze("engine.log", [LOADED, hub])
    assert [f.key for f in failed if f.severity == "fault"] == ["sglang.failed-hub"]


@pytest.mark.parametrize("dialect", [SGLANG, VLLM], ids=lambda dialect: dialect.name)
def test_only_what_the_setting_caused_teaches_the_search(dialect: ServingEngine) -> None:
    site = {"gpu-in-use", "gpu-broken", "port-taken", "host-limit", "hub", "network", "missing"}
    assert {f.name for f in FAILURES if not f.kind.caused_by_setting} == site
    assert not [f.name for f in FAILURES if f.name in site and advice(f, dialect.flags)]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((LOADED, POOL_TOO_SMALL), "pool-too-small"),
        ((LOADED, *GRAPHS_FAILED), "graph-capture"),
        ((LOADED, READY, OUT_OF_MEMORY), "oom-run"),
        ((READY, SCHEDULER_FAILED), "exception"),
        ((CHILD_DIED,), "child-died"),
    ],
)
def test_a_simulated_engine_s_lines_are_read_as_sglang_s(lines: tuple[str, ...], expected: str) -> None:
    assert cause(*lines) == expected


def test_what_an_engine_prints_when_it_fails_stands_in_its_home_alone() -> None:
    """`diagnose/readers/failures.py` has what any program prints."""
    src = Path(__file__).resolve().parents[2] / "src" / "ridgeline"
    texts = [text for text in (*SGLANG.failure_texts, *VLLM.failure_texts) if text.sure]
    copies = [
        f"{path.relative_to(src)}:{node.lineno}: {node.value}"
        for path in sorted(src.rglob("*.py"))
        if path.relative_to(src).parts[:2] not in (("serving", "engines"), ("diagnose", "readers"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if any(text.pattern.search(node.value) for text in texts)
    ]
    assert copies == []
