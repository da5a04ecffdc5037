"""What vLLM prints when it fails, 0.6 to 0.32. The first row that a line shows counts, the more telling first."""

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
    PORT_IN_USE,
    # "Port 8000 is already in use, trying port 8001" is no failure
    FailureText("port-taken", re.compile(r"Could not find open port after")),
    FailureText(
        "pool-too-small",
        re.compile(r"To serve at least one request with the model's max seq len|No available memory for the cache"),
        sure=True,
    ),
    FailureText("pool-too-small", re.compile(r"No available memory for")),
    WRONG_ARGUMENTS,
    FailureText(
        "rejected",
        re.compile(r"User-specified max_model_len \(\d{1,9}\) is greater than the derived max_model_len"),
        sure=True,
    ),
    FailureText("rejected", re.compile(r"must be divisible by tensor parallel size"), sure=True),
    FailureText("rejected", re.compile(r"error: argument ")),
    WATCHDOG,
    # a worker that another node holds, or that hangs, is waited for so long (VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS)
    FailureText("watchdog", re.compile(r"RPC call to \w{1,40} timed out"), sure=True),
    CUDA_OOM,
    FailureText(
        "child-died", re.compile(r"Engine core initialization failed|Engine core proc \S+ died|EngineDeadError")
    ),
    FailureText("exception", re.compile(r"(?:^|\s)(?:\w{1,60}Error|\w{1,60}Exception): ")),
)
# Each line that a row matches has one of these. Looking for them is many times faster than trying the rows.
WORDS = ("rror", "xception", "memory", "max seq len", "died", "ADDRINUSE", "already in use", "atchdog")
VALUES_TO_TRY: ValuesToTry = {
    "cap": (("max_num_seqs", times(2, 4)),),
    "more-pool": (("gpu_memory_utilization", plus(0.02, 0.04)), ("kv_cache_dtype", one_of("fp8"))),
    "less-memory": (("gpu_memory_utilization", plus(-0.04, -0.08)), ("max_num_seqs", times(0.5, 0.25))),
    "retractions": (("max_num_seqs", times(0.5)), ("gpu_memory_utilization", plus(0.02, 0.04))),
    "chunk": (("max_num_batched_tokens", times(0.5, 0.25)),),
}
