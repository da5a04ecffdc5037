"""What SGLang prints when it fails, 0.4.8 to 0.5.23. The first row that a line shows counts, the more telling first."""

from __future__ import annotations

import re

from ridgeline.serving.engines.failures import (
    LIBRARY_TEXTS,
    LIBRARY_WORDS,
    PARSER_ERROR,
    PORT_IN_USE,
    RAISED,
    SPLIT,
    WRONG_ARGUMENTS,
    FailureText,
    ValuesToTry,
    one_of,
    plus,
    times,
)

TEXTS: tuple[FailureText, ...] = (
    # ports before `exception`: SGLang refuses a port by a ValueError, as it refuses a setting (0.5.15)
    PORT_IN_USE,
    FailureText("port-taken", re.compile(r"SGLANG_GRPC_PORT \(\d{1,9}\) must "), sure=True),
    FailureText(
        "port-taken",
        re.compile(
            r"^ValueError: Port out of range|"
            r"_port(?: at \d{1,5})? (?:is not available|is used by a process already|has invalid port number)|"
            r"engine_info_bootstrap_port \d{1,5} is already in use"
        ),
    ),
    # all releases; since 0.5.12 with the value that was too low (pool_configurator.py)
    FailureText(
        "pool-too-small",
        re.compile(r"Not enough memory\. Please try (?:to increase|increasing) --mem-fraction-static"),
        sure=True,
    ),
    # 0.5.15 on, kv_cache_configurator.py
    FailureText("pool-too-small", re.compile(r"Loaded weights leave no GPU memory for the KV cache"), sure=True),
    # pools of sliding windows and of one worst request (0.5.20 on: pool_configurator.py, unified_memory_pool.py); the
    # last one of all releases (tp_worker.py)
    FailureText(
        "pool-too-small",
        re.compile(
            r"SWA pool .{0,80}(?:leaves no room for the full|cannot hold even one request)|cannot fit ONE worst-case"
            r" request|AssertionError: Memory pool size is too small|max_running_request is zero"
        ),
    ),
    # model_runner.py, since 0.5.20 distributed/bootstrap.py: an error, or a warning where
    # SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK is off
    FailureText("gpu-in-use", re.compile(r"(?:Runtime|Value)Error: The memory capacity is unbalanced")),
    *SPLIT,
    # mem_cache/pool_host/base.py and its like; 0.5.23 also hicache_auto_size.py; sglang 34972, 38832, 39744
    FailureText(
        "host-cache",
        re.compile(r"Error: (?:Not enough host memory|No host memory is left for HiCache)"),
        advice="Lower --hicache-size or --hicache-ratio, which count for each rank and leave 10 GB of the host alone, "
        "or ask for more host memory.",
    ),
    FailureText(
        "host-cache",
        re.compile(r"cudaHostRegister failed|cudaHostAlloc failed"),
        advice="Lower --hicache-size or --hicache-ratio, raise the limit of locked memory (`ulimit -l unlimited`), or "
        "pin less at a time (SGLANG_HICACHE_HOST_REGISTER_CHUNK_GB, where the release knows it): the driver could not "
        "pin so much.",
    ),
    WRONG_ARGUMENTS,
    PARSER_ERROR,
    # allocation.py (mem_cache/common.py before 0.5.20), memory_pool.py; sglang 7353, 10408
    FailureText(
        "pool-ran-out",
        re.compile(
            r"[Oo]ut of memory\. Try to lower your batch size|alloc_req_slots runs out of memory"
            r"|Not enough space for mamba (?:cache|ping pong)"
        ),
    ),
    # a request that its client gave up is none (sglang 12688)
    FailureText("kv-transfer", re.compile(r"KVTransferError\((?!.{0,80}Aborted by AbortReq)"), sure=True),
    FailureText(
        "kv-transfer", re.compile(r"failed to register to bootstrap server after|Transfer Engine initialization failed")
    ),
    # not every capture that fails lacks memory: what the libraries' rows don't tell is refused
    FailureText(
        "graph-capture",
        re.compile(
            r"Capture (?:\w+ ){0,3}(?:cuda|CUDA) graph failed.{0,300}"
            r"(?:out of mem|CUBLAS_STATUS_(?:ALLOC_FAILED|NOT_INIT)|MemoryAlloc)"
        ),
        sure=True,
    ),
    FailureText("host-oom", re.compile(r"scheduler died during initialization \(exit code: -9\)"), sure=True),
    *LIBRARY_TEXTS,
    FailureText("graphs-refused", re.compile(r"Capture (?:\w+ ){0,3}(?:cuda|CUDA|CPU) graph failed"), sure=True),
    FailureText(
        "child-died",
        re.compile(
            r"Received sigquit from a child process|SIGQUIT received\.|scheduler died during init"
            r"|Subprocess \S+ \(pid=\d+\) crashed"
        ),
    ),
    FailureText("exception", re.compile(rf"Scheduler hit an exception|^{RAISED}")),
)
# The lines themselves, for a simulated engine that fails as SGLang does.
POOL_TOO_SMALL = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
GRAPHS_FAILED = (
    "Exception: Capture cuda graph failed: CUDA out of memory.",
    "Possible solutions:",
    "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)",
)
SCHEDULER_FAILED = "Scheduler hit an exception: Traceback (most recent call last):"
CHILD_DIED = "Received sigquit from a child process. It usually means the child failed."
KV_TRANSFER = "KVTransferError"
# How long a prefill server waits for a decode server before it says so, and the variable that changes it.
BOOTSTRAP_LIMIT_S = 120.0
BOOTSTRAP_VARIABLE = "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT"
# Each line that a row matches has one of these. Looking for them is many times faster than trying the rows.
WORDS = (*LIBRARY_WORDS, "SIGQUIT", "sigquit", "failed")
VALUES_TO_TRY: ValuesToTry = {
    "cap": (("max_running_requests", times(2, 4)),),
    "no-graphs": (("disable_cuda_graph", one_of(False)),),
    "more-pool": (("mem_fraction_static", plus(0.02, 0.04)), ("kv_cache_dtype", one_of("fp8_e5m2"))),
    "less-memory": (("mem_fraction_static", plus(-0.04, -0.08)), ("max_running_requests", times(0.5, 0.25))),
    "fewer-graphs": (("mem_fraction_static", plus(-0.04, -0.08)), ("cuda_graph_max_bs", times(0.5))),
    "retractions": (("schedule_conservativeness", one_of(1.0, 1.3, 1.6)), ("max_running_requests", times(0.5))),
    "chunk": (("chunked_prefill_size", times(0.5, 0.25)),),
}
