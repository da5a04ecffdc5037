"""What SGLang prints when it fails, 0.4.8 to 0.5.23. The first row that a line shows counts, the more telling first."""

from __future__ import annotations

import re

from ridgeline.serving.engines.failures import (
    CUDA_OOM,
    PORT_IN_USE,
    WATCHDOG,
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
    FailureText(
        "pool-too-small",
        re.compile(r"Not enough memory\. Please try (?:to increase|increasing) --mem-fraction-static"),
        sure=True,
    ),
    # 0.5.15
    FailureText("pool-too-small", re.compile(r"Loaded weights leave no GPU memory for the KV cache"), sure=True),
    WRONG_ARGUMENTS,
    FailureText("graph-capture", re.compile(r"Capture (?:\w+ ){0,3}(?:cuda|CUDA) graph failed"), sure=True),
    FailureText("host-oom", re.compile(r"scheduler died during initialization \(exit code: -9\)"), sure=True),
    FailureText("kv-transfer", re.compile(r"KVTransferError\("), sure=True),
    WATCHDOG,
    CUDA_OOM,
    FailureText("host-oom", re.compile(r"\(exit code: -9\)|Out of memory: Killed process|oom-kill")),
    FailureText("signal", re.compile(r"Segmentation fault|Fatal Python error:|\(exit code: -\d{1,2}\)")),
    FailureText(
        "child-died", re.compile(r"Received sigquit from a child process|SIGQUIT received\.|scheduler died during init")
    ),
    FailureText("exception", re.compile(r"Scheduler hit an exception|^\w{0,60}(?:Error|Exception): ")),
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
WORDS = (
    "in use",
    "ADDRINUSE",
    "rror",
    "xception",
    "emory",
    "SIGQUIT",
    "sigquit",
    "atchdog",
    "failed",
    "exit code",
    "fault",
    "oom-",
)
VALUES_TO_TRY: ValuesToTry = {
    "cap": (("max_running_requests", times(2, 4)),),
    "no-graphs": (("disable_cuda_graph", one_of(False)),),
    "more-pool": (("mem_fraction_static", plus(0.02, 0.04)), ("kv_cache_dtype", one_of("fp8_e5m2"))),
    "less-memory": (("mem_fraction_static", plus(-0.04, -0.08)), ("max_running_requests", times(0.5, 0.25))),
    "fewer-graphs": (("mem_fraction_static", plus(-0.04, -0.08)), ("cuda_graph_max_bs", times(0.5))),
    "retractions": (("schedule_conservativeness", one_of(1.0, 1.3, 1.6)), ("max_running_requests", times(0.5))),
    "chunk": (("chunked_prefill_size", times(0.5, 0.25)),),
}
