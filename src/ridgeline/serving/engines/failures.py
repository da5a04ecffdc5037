"""How serving engines fail: what each failure means, which way the next proposal moves, and what to advise a person.

What an engine prints when it fails is in its home (`sglang/failures.py`, `vllm/log.py`) as rows of `FailureText`;
its log reader, the workload that judges a run and `diagnose` all read those rows, and take their meaning from here.

The session that ran the engine reads its log when it fails and says `ridgeline: failure=NAME: engine.log:LINE: TEXT`,
with ` at start` after the name where the engine had not served yet: only it can know. Runs that were ended from outside
have no such line; for them the raw lines of the log are looked at, as far as they leave no doubt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ridgeline.errors import did_you_mean
from ridgeline.records.expression import Value
from ridgeline.records.outcome import Kind, Move, Signature
from ridgeline.serving.engines.flags import EngineFlags

HOST_TIER_SIZES = ("hicache_ratio", "hicache_size", "kv_offloading_size")
# what an engine may tell to raise or lower when it refuses a setting
_SAID = ("memory", "requests", "chunk", "graph", "length", *HOST_TIER_SIZES)
MARK, _AT_START = "ridgeline: failure=", " at start"


@dataclass(frozen=True, slots=True)
class EngineFailure:
    """`reason` is said of a run. `claim` and `advice` are what `diagnose` says of a log; `{memory_flag}` stands for the
    engine's flag. `try_` names what the advice moves: a row of the engine's `values_to_try`. `survived`: an engine may
    print it and go on working, and then it is no failure."""

    name: str
    kind: Kind
    reason: str
    moves: tuple[tuple[str, int], ...] = ()  # (lever of the table of knobs or a flag, direction), the surest first
    claim: str = ""
    advice: str = ""
    try_: str = ""
    survived: bool = False


# Start-up and run-time failures of memory ask for opposite moves, so the kind of a failure alone is not enough.
_DOWN = (("memory", -1), ("requests", -1), ("chunk", -1))
# The cause first: what follows it in a log is only its echo. What an engine may survive comes after what it never does.
FAILURES: tuple[EngineFailure, ...] = (
    EngineFailure(
        "gpu-in-use",
        Kind.NODE_FAULT,
        "the GPU is in use by another process",
        claim="another process uses memory of the GPU",
        advice="See with nvidia-smi which one, and end it or take another node: no memory fraction makes up for it.",
    ),
    EngineFailure(
        "gpu-broken",
        Kind.NODE_FAULT,
        "a GPU of the node, its driver or its fabric does not work",
        claim="a GPU, its driver or its fabric failed",
        advice="Look at dmesg for `Xid`, have the node drained, and run this setting again on another one.",
    ),
    EngineFailure(
        "port-taken",
        Kind.SITE_FAULT,
        "a port is in use or can't be used; another is picked next time",
        claim="the port is in use, perhaps by an engine that is still shutting down",
        advice="Wait for the old process to end, or use another port.",
    ),
    EngineFailure(
        "gpu-limits",
        Kind.REJECTED,
        "the driver did not hold the GPUs to that limit: run as root (in a container with --cap-add SYS_ADMIN), have "
        "the site set it, or leave the knob out",
        claim="the driver did not hold the GPUs to the limit of power or clock that was asked for",
        advice="Run as root, in a container with --cap-add SYS_ADMIN, or have the site set it.",
    ),
    EngineFailure(
        "rejected",
        Kind.REJECTED,
        "the engine refused its arguments",
        claim="the engine refused its arguments",
        advice="Correct the argument named in the line; flags change between engine versions.",
    ),
    EngineFailure(
        "split",
        Kind.REJECTED,
        "the model does not divide over so many GPUs: use fewer for each copy",
        (("spread", -1),),
        "the model does not divide over so many GPUs",
        "Use fewer GPUs for each copy and more copies: heads must divide by tp, and with weights quantized in blocks "
        "every part must be a multiple of the block.",
    ),
    EngineFailure(
        "fraction-too-high",
        Kind.OOM_START,
        "less memory is free at start than the setting asks for: lower it",
        (("memory", -1),),
        "less memory is free at start than the setting asks for, and nobody else uses it",
        "Lower {memory_flag}: driver and contexts keep a part of every GPU, the system a part of the host.",
        "less-memory",
    ),
    EngineFailure(
        "host-cache",
        Kind.REJECTED,
        "the host has no memory for the KV cache that it was to hold: make that cache smaller",
        tuple((flag, -1) for flag in HOST_TIER_SIZES),
        "the host has no memory for the KV cache that it was to hold",
        "Make the host's cache smaller, or ask for more host memory: what is set counts for each rank.",
    ),
    EngineFailure(
        "pool-too-small",
        Kind.OOM_START,
        "no room for the KV pool after the weights were loaded: raise the memory fraction, or the number of KV blocks "
        "where one is set",
        (("memory", +1), ("length", -1)),
        "no room for the KV pool after the weights were loaded",
        "Raise the memory fraction (the opposite of what an out-of-memory while running needs), or the number of KV "
        "blocks where one is set, shorten the context, or spread the weights over more GPUs.",
        "more-pool",
    ),
    EngineFailure(
        "oom-run",
        Kind.OOM_RUN,
        "out of GPU memory while running, not at start: lower the memory fraction or the requests at once",
        _DOWN,
        "out of GPU memory while running (not at start)",
        "Lower {memory_flag} so that activations and workspaces have room, or cap the running requests; "
        "`ridgeline study edge` finds the largest that passes.",
        "less-memory",
    ),
    EngineFailure(
        "pool-ran-out",
        Kind.OOM_RUN,
        "the KV pool ran out while running: fewer requests at once, or a larger pool",
        (("requests", -1), ("memory", +1)),
        "the KV pool ran out while running",
        "Cap the running requests, or raise {memory_flag}: it is the pool that was too small, not the GPU's free "
        "memory.",
        "retractions",
    ),
    EngineFailure(
        "graph-capture",
        Kind.OOM_START,
        "CUDA graphs could not be captured: lower the memory fraction or the largest graph",
        (("memory", -1), ("graph", -1), ("requests", -1)),
        "CUDA graphs could not be captured",
        "Lower the memory fraction or the largest graph batch; without graphs decode is slower.",
        "fewer-graphs",
    ),
    EngineFailure(
        "warm-up",
        Kind.OOM_START,
        "out of GPU memory while warming up for as many requests as may run: fewer of them, or a lower memory fraction",
        (("requests", -1), ("memory", -1)),
        "out of GPU memory while warming up for as many requests as may run",
        "Cap the running requests lower, or lower {memory_flag}.",
        "less-memory",
    ),
    EngineFailure(
        "oom-start",
        Kind.OOM_START,
        "out of GPU memory while starting: lower the memory fraction",
        (("memory", -1), ("requests", -1)),
        "out of GPU memory while starting",
        "Weights, graphs and pool do not fit together: lower {memory_flag}, capture fewer graphs, or use more GPUs.",
        "less-memory",
    ),
    EngineFailure(
        "weights",
        Kind.OOM_START,
        "the weights do not fit the GPU: spread them over more",
        (("spread", +1),),
        advice="Spread the weights over more GPUs, or load them quantized.",
    ),
    EngineFailure(
        "host-oom",
        Kind.CRASH,
        "the host ran out of memory and ended a process",
        claim="the host ran out of memory and killed a process",
        advice="Ask for more host memory, load weights one rank at a time, or stage the model on local disk.",
    ),
    EngineFailure(
        "kv-transfer",
        Kind.CRASH,
        "the transfer of KV between prefill and decode failed or timed out",
        claim="the transfer of KV between prefill and decode did not start or timed out",
        advice="Check the InfiniBand devices given to --disaggregation-ib-device and that both sides can reach each "
        "other.",
    ),
    EngineFailure(
        "host-limit",
        Kind.SITE_FAULT,
        "a limit of the node was reached: files, processes or shared memory",
        claim="a limit of the node was reached",
        advice="Raise the limit that the line names for this job.",
        survived=True,
    ),
    EngineFailure(
        "hub",
        Kind.SITE_FAULT,
        "the model hub could not be reached",
        claim="the model hub could not be reached, and the cache does not hold what was asked for",
        advice="Give the model as a local folder, or fill the cache where there is a network, then set HF_HOME and "
        "HF_HUB_OFFLINE=1 on the nodes: many have no way out.",
        survived=True,
    ),
    EngineFailure(
        "no-model",
        Kind.REJECTED,
        "the model's files are not there, incomplete, or may not be read",
        claim="the model's files are not there, incomplete, or may not be read",
        advice="Check the path or name of the model, and that its folder is complete: config, tokenizer, all weights.",
        survived=True,
    ),
    EngineFailure(
        "unknown-model",
        Kind.REJECTED,
        "this release of the engine does not know the model",
        claim="this release of the engine does not know the model",
        advice="Use a newer release of the engine; the line says what it lacks.",
        survived=True,
    ),
    EngineFailure(
        "not-installed",
        Kind.REJECTED,
        "the node lacks a package or a compiler that this setting needs",
        claim="the node lacks a package or a compiler that this setting needs",
        advice="Install what the line names into the engine's environment, or choose a back end that does without.",
        survived=True,
    ),
    EngineFailure(
        "no-kernel",
        Kind.REJECTED,
        "there is no kernel for this GPU: choose another back end",
        claim="the chosen back end has no kernel for this GPU, model or data type",
        advice="Choose another back end for attention, MoE or quantization, or a build of the engine for this GPU.",
        survived=True,
    ),
    EngineFailure(
        "nvshmem",
        Kind.REJECTED,
        "the GPUs could not set up NVSHMEM, which DeepEP needs",
        claim="NVSHMEM, which DeepEP needs, could not be set up",
        advice="Have the site give what IBGDA wants (a privileged container, NVreg_EnableStreamMemOPs=1 and "
        "PeerMappingOverride=1 for the driver), or use --moe-a2a-backend none.",
    ),
    EngineFailure(
        "kernel-fault",
        Kind.CRASH,
        "a GPU kernel failed at this setting",
        claim="a GPU kernel failed",
        advice="Run it once with CUDA_LAUNCH_BLOCKING=1 to see which, and try another back end for it. If only one "
        "node does it, have its GPU looked at.",
    ),
    EngineFailure(
        "graphs-refused",
        Kind.CRASH,
        "CUDA graphs could not be captured, and not for want of memory",
        claim="CUDA graphs could not be captured, and not for want of memory",
        advice="Look for the cause in the line and above it: less memory does not help. Without graphs it may run.",
    ),
    EngineFailure(
        "network",
        Kind.SITE_FAULT,
        "the nodes or ranks could not reach each other",
        claim="the nodes or ranks could not reach each other",
        advice="Check the address, the firewall and NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME and NCCL_IB_HCA; a log with "
        "NCCL_DEBUG=INFO tells `ridgeline diagnose` more.",
    ),
    EngineFailure(
        "nccl",
        Kind.CRASH,
        "NCCL failed",
        claim="NCCL failed",
        advice="Often the GPU has no memory left for its buffers, or a peer died first. Run again with "
        "NCCL_DEBUG=INFO and give that log to `ridgeline diagnose`.",
    ),
    EngineFailure(
        "watchdog",
        Kind.HANG,
        "a rank stopped answering until the watchdog ended it",
        claim="a rank stopped answering until the watchdog ended it",
        advice="Look for a node or link that is slower or gone; raise the limit only if a long compile explains it.",
    ),
    EngineFailure("not-ready", Kind.HANG, "the engine was not ready in time"),
    EngineFailure("no-answer", Kind.HANG, "the engine lives but answered no request"),
    EngineFailure(
        "refused",
        Kind.REJECTED,
        "the engine refused the setting while starting",
        claim="the engine refused the setting",
        advice="The line says what does not go together; correct the flag that it names.",
        survived=True,
    ),
    EngineFailure(
        "missing",
        Kind.SITE_FAULT,
        "the engine is not installed where it was looked for",
        claim="the engine is not installed where it was looked for",
        advice="Install it there, or name the environment that has it under `workload: engine`.",
    ),
    EngineFailure(
        "signal",
        Kind.CRASH,
        "the engine died by a signal",
        claim="a signal killed a process of the engine",
        advice="Exit code -11 is a crash in native code, -9 the system's memory limit: look at dmesg of that node.",
    ),
    EngineFailure(
        "exception",
        Kind.CRASH,
        "the engine stopped with an exception",
        claim="the engine stopped with an exception",
        advice="The cause is in the lines above the quoted one.",
        survived=True,
    ),
    EngineFailure(
        "peer-lost",
        Kind.CRASH,
        "a rank lost the connection to another, which ended first",
        claim="a rank lost the connection to another, which ended first",
        advice="The cause is in the log of the other rank or node.",
        survived=True,
    ),
    EngineFailure(
        "child-died",
        Kind.CRASH,
        "a process of the engine ended and took it along",
        claim="a child process ended and took the engine with it",
        advice="The cause is above the quoted line; if not, look in the logs of the other nodes.",
    ),
    EngineFailure("no-profile", Kind.CRASH, "the run under the profiler left no profile"),
    EngineFailure("died", Kind.CRASH, "the engine ended before its time"),
)
BY_NAME = {failure.name: failure for failure in FAILURES}
SURVIVED = frozenset(failure.name for failure in FAILURES if failure.survived)


@dataclass(frozen=True, slots=True)
class FailureText:
    """A line of the log that tells of a failure. `kind` is a name of the table above, or cuda-oom, which is another one
    before the engine was ready than after. `sure`: the line leaves no doubt, whatever else the log says. `advice` is
    there where the line allows more than its kind. `holds`: what the pattern's groups must say besides."""

    kind: str
    pattern: re.Pattern[str]
    sure: bool = False
    advice: str = ""
    holds: Callable[[re.Match[str]], bool] | None = None

    @property
    def meaning(self) -> EngineFailure:
        """Of the line alone, without knowing how far the engine had come."""
        return BY_NAME.get(self.kind) or BY_NAME[_READ_AS[self.kind][True]]

    def shown_by(self, line: str) -> bool:
        found = self.pattern.search(line)
        return found is not None and (self.holds is None or self.holds(found))


# What engines print because of the libraries they share: sockets, argparse, torch.
PORT_IN_USE = FailureText("port-taken", re.compile(r"[Aa]ddress already in use|EADDRINUSE"), sure=True)
WRONG_ARGUMENTS = FailureText(
    "rejected",
    re.compile(r"error: (?:unrecognized arguments|argument -|ambiguous option|the following arguments are required)"),
    sure=True,
)
WATCHDOG = FailureText(
    "watchdog", re.compile(r"[Ww]atchdog (?:timeout|caught collective operation timeout)"), sure=True
)
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory"
CUDA_OOM = FailureText(
    "cuda-oom",
    re.compile(
        r"OutOfMemoryError: CUDA out of memory|CUDA (?:driver )?error: out of memory|Triton Error \[CUDA\]: out of mem"
        r"|CUBLAS_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation"
    ),
    sure=True,
)
# the engines share this code: fp8.py, fp8_utils.py, marlin_utils.py, distributed/utils.py; sglang 19045, 26107
SPLIT = (
    FailureText("split", re.compile(r"must be divisible by tensor parallel size"), sure=True),
    FailureText(
        "split",
        re.compile(
            r"is not divisible by (?:weight quantization block_[nk]| ?(?:min_thread_[nk]|group_size) ?=)"
            r"|AssertionError: \d{1,9} is not divisible by \d{1,5}$"
        ),
    ),
)
_NO_COMPILER = (
    "Load a CUDA toolkit of torch's release and ninja, and set CUDA_HOME: FlashInfer, Triton and DeepGEMM compile "
    "kernels on the node. Or install flashinfer-cubin and flashinfer-jit-cache of flashinfer-python's very release."
)


def _text(kind: str, pattern: str, advice: str = "", sure: bool = False) -> FailureText:
    return FailureText(kind, re.compile(pattern), sure, advice)


# what the parser itself says, SGLang's of flags that it retired too (0.5.23, arg_groups/argparse_actions.py)
PARSER_ERROR = _text("rejected", r"^(?:\S*launch_server\.py|sglang(?: serve)?|vllm(?: serve)?): error: ")


# In the order in which one line is asked; an engine's own rows stand before them. The lines are as logs pasted in
# public issues have them (sgl-project/sglang, vllm-project/vllm, flashinfer-ai/flashinfer; 2025 and 2026).
LIBRARY_TEXTS: tuple[FailureText, ...] = (
    # torch 2.6 to 2.13 on CUDA 12 and 13; 48, 74, 79... are the codes of hardware (NVIDIA's table of Xid errors), 13,
    # 31 and 43 those of a program's own fault
    _text(
        "gpu-broken",
        r"uncorrectable (?:NVLink |ECC )?error|GPU is lost|fallen off the bus|CUDA error: system not yet initialized"
        r"|CUDA error: hardware stack error|Unable to determine the device handle for GPU"
        r"|Xid \([^)]{1,60}\): (?:48|62|64|74|79|9[245]|119|120|140|143)\b",
        sure=True,
    ),
    # what a session on another node of the job says before its engine starts
    *(_text(name, rf"^{MARK}{name}\b", sure=True) for name in ("gpu-limits", "gpu-in-use", "gpu-broken")),
    _text("gpu-in-use", r"CUDA-capable device\(s\) is/are busy or unavailable", sure=True),
    # a GPU that the wheel has no code for: sglang 24302, 38515
    _text(
        "no-kernel",
        r"no kernel image is available",
        "The engine's build has no code for this GPU: install the wheel or container made for its compute capability.",
    ),
    # sglang 18203, 29646: for want of a library, or a torch of another release
    _text(
        "not-installed",
        r"Could not load any common_ops library",
        "sglang-kernel does not fit torch or CUDA of this environment: install the releases that the engine pins.",
    ),
    # sglang 8513: kernels tuned for the 227 KiB of a datacentre GPU
    _text(
        "no-kernel",
        r"out of resource: shared memory",
        "Choose another back end (attention, MoE), or a smaller page or block: the kernel was tuned for a GPU with "
        "more shared memory.",
    ),
    # a back end that wants another GPU: sglang 25564, 28297, 35080, and all that their sources refuse alike
    _text(
        "no-kernel",
        r"Error: .{0,160}(?:[Rr]equires?|[Oo]nly).{0,90}(?:\b(?:SM|sm_)\W{0,3}\d|Hopper|Blackwell|compute capability)",
        "Leave the back end's flag out, and the engine takes one that fits this GPU; or name another.",
    ),
    # flashinfer 1781, 1919, sglang 5389, 25487
    _text(
        "not-installed",
        r"Ninja build failed|(?<!\")Could not find nvcc|No such file or directory: '(?:\S*/)?(?:nvcc|ninja)'"
        r"|nvcc: not found|Error building extension '|Failed to find C compiler|CUDA_HOME environment variable"
        r" is not set|Command '\['(?:ninja|\S*nvcc)'",
        _NO_COMPILER,
    ),
    _text("not-installed", r"fatal error: Python\.h: No such file", "Install the headers of Python (python3-dev)."),
    _text("missing", r"No module named '?(?:sglang|vllm)\b(?!\.)"),
    _text(
        "not-installed",
        r"ModuleNotFoundError: No module named '|ImportError: .{0,120}(?i:please install|not installed)",
    ),
    # huggingface_hub 0.30 to 1.15, transformers 4.5x and 5
    _text(
        "no-model",
        r"GatedRepoError|Access to model .{1,120} is restricted|You are trying to access a gated repo",
        "Ask for access on the model's page and give HF_TOKEN to the job (`secrets` of the site), or use a local copy.",
    ),
    _text(
        "hub",
        r"OSError: We couldn't connect to 'https?://|LocalEntryNotFoundError: |OfflineModeIsEnabled"
        r"|MaxRetryError: HTTPSConnectionPool\(host='(?:huggingface\.co|hf-mirror\.com|www\.modelscope\.cn)'"
        r"|Cannot reach https?://\S+: offline mode is enabled",
    ),
    _text(
        "no-model",
        r"RepositoryNotFoundError|HFValidationError|is not a local folder and is not a valid model identifier"
        r"|Repo id must be in the form|does not appear to have (?:a )?files? named"
        r"|Can't load (?:the )?(?:tokenizer|configuration|config) (?:for|of) '|[Cc]annot find any model weights"
        r"|Invalid repository ID or local directory|Couldn't instantiate the backend tokenizer"
        r"|SafetensorError: Error while deserializing",
    ),
    _text(
        "unknown-model",
        r"(?:contains custom code which must be executed|trust_remote_code=True`? to|pass the argument "
        r"`trust_remote_code=True|restart the server with --trust-remote-code)",
        "The model brings code of its own: if you trust it, set trust_remote_code: true among the flags.",
    ),
    _text(
        "unknown-model",
        r"but Transformers does not recognize this architecture|upgrade (?:your )?transformers",
        "transformers is older than the model: use a newer release of the engine, which brings the right one.",
    ),
    _text(
        "unknown-model",
        r"was supported in vLLM until|is not supported in-tree anymore",
        "Use the older release, or install the plugin, that the line names.",
    ),
    _text(
        "unknown-model",
        r"Model architectures? .{1,200} (?:are|is) not supported|has no (?:vLLM|SGL?ang) implementation",
    ),
    # sglang 4259
    _text(
        "host-limit",
        r"Error while creating shared memory segment|unable to \w{1,12} shared memory"
        r"|insufficient shared memory \(shm\)|No space left on device: '?/(?:dev/shm|psm_)",
        "Give the ranks a larger /dev/shm: start the container with --ipc=host or --shm-size=32g (in Kubernetes an "
        "emptyDir in memory there).",
    ),
    # vLLM warns of it in backquotes at every start with few files
    _text("host-limit", r"(?<!`)OSError: \[Errno 24\]", "Raise the limit of open files: `ulimit -n 65536` in the job."),
    _text(
        "host-limit",
        r"can't start new thread|(?:BlockingIO|OS)Error: \[Errno 11\]",
        "Raise the limit of processes (`ulimit -u`, or pids of the container): every rank starts hundreds of threads.",
    ),
    _text(
        "nvshmem",
        r"nvshmem(?:i_\w{1,30})?[ :].{0,60}(?:initialization|setup connections) failed"
        r"|cannot allocate mlx5dv_devx_uar|ibgda_\w{1,30} failed|Unable to create ah\.",
    ),
    _text(
        "kernel-fault",
        r"CUDA error: (?:an illegal memory access|an illegal instruction|misaligned address|device-side assert"
        r"|unspecified launch failure)|Failed to encode tensor map: 700",
    ),
    _text(
        "network",
        r"Timed out after \d{1,6} seconds waiting for clients|client socket has timed out after"
        r"|Gloo connectFullMesh failed|gaierror: |ncclSystemError|NCCL error: unhandled system error",
    ),
    _text("peer-lost", r"Connection closed by (?:remote )?peer|ncclRemoteError|NCCL error: remote process exited"),
    _text("nccl", r"ncclUnhandledCudaError|ncclInternalError|ncclInvalidUsage|NCCL error: (?:unhandled cuda|internal)"),
    WATCHDOG,
    CUDA_OOM,
    # "(exit code: -9)" is SGLang's and vLLM's; the rest the kernel's and the interpreter's
    _text(
        "host-oom",
        r"exit code:? -9\b|Out of memory: Killed process|oom-kill|DefaultCPUAllocator: can't allocate memory"
        r"|\[Errno 12\] Cannot allocate memory",
    ),
    _text("signal", r"Segmentation fault|Fatal Python error:|exit code:? -\d{1,2}\b"),
)
# what ends a traceback, with the modules in front; an assert without a text has nothing behind it, and the "Internal
# Server Error" of an access log is no exception
RAISED = r"(?:\w{1,40}\.){0,5}(?:\w{0,60}(?:Error|Exception|OutOfResources): |\w{1,60}(?:Error|Exception)\s*$)"
# Each line that one of these rows matches has one of these words: most stand in an exception.
LIBRARY_WORDS = (
    *("rror", "xception", "emory", "oom-", "fault", "exit code", "atchdog", "ADDRINUSE", "in use", "Xid ", "inja"),
    *("GPU is lost", "off the bus", "common_ops", "nvcc", "nvshmem", "ibgda_", "mlx5dv", "create ah", MARK),
)


# Values of a knob to try, from the one that ran; by what the advice is about, the knobs it moves.
NextValues = Callable[[float], Sequence[Value]]
ValuesToTry = Mapping[str, tuple[tuple[str, NextValues], ...]]
_MOST_MEMORY = 0.94


def times(*factors: float) -> NextValues:
    return lambda value: [max(1, round(value * factor)) for factor in factors] if value >= 1 else []


def plus(*steps: float) -> NextValues:
    """Shares of a GPU's memory."""
    return lambda value: [round(value + s, 3) for s in steps if 0.3 <= value + s <= _MOST_MEMORY]


def one_of(*values: Value) -> NextValues:
    return lambda _: values


class LogFailure(NamedTuple):
    """A line of a log that tells of a failure: `kind` as `FailureText` has it. `ready` says whether the engine had come
    as far as to allocate everything: an out-of-memory asks for opposite remedies before and after."""

    kind: str
    ready: bool
    line: int
    text: str


def kind_in(line: str, texts: Sequence[FailureText]) -> str:
    """The first row that this line shows; empty where it shows none."""
    return next((text.kind for text in texts if text.shown_by(line)), "")


def signatures(
    flags: EngineFlags, texts: Sequence[FailureText], memory_flag: str = "the memory fraction"
) -> tuple[Signature, ...]:
    """The lines by which a run of an engine with these flags is judged, each with the moves that help against it, and
    what a person should do."""

    def signature(
        pattern: str | re.Pattern[str], f: EngineFailure, said: str, early: bool, move: tuple[Move, ...]
    ) -> Signature:
        remedy = said.format(memory_flag=memory_flag).rstrip(".")
        return Signature(
            re.compile(pattern), f.kind, f.reason, advice=move, at_start=early, remedy=remedy[:1].lower() + remedy[1:]
        )

    refused = BY_NAME["refused"]
    rows = [
        *(
            signature(
                rf"^{MARK}{text.kind}(?:{_AT_START})?: .*(?:{text.pattern.pattern})",
                text.meaning,
                text.advice,
                True,
                advice(text.meaning, flags),
            )
            for text in texts
            if text.advice and text.kind in BY_NAME
        ),
        *(
            signature(rf"^{MARK}{refused.name}(?:{_AT_START})?: .*{said}", refused, refused.advice, True, moves)
            for said, moves in _moves_said(flags)
        ),
    ]
    ours = [
        signature(rf"^{MARK}{f.name}{_AT_START if early else ''}: ", f, f.advice, early, advice(f, flags))
        for f in FAILURES
        for early in (False, True)
    ]
    raw = [
        signature(text.pattern, f, text.advice or f.advice, False, advice(f, flags))
        for text in texts
        if text.sure and (f := text.meaning)
    ]
    return (*rows, *ours, *raw)


_UP, _DOWNWARDS = r"(?i:rais|increas|enlarg)\w*", r"(?i:lower|reduc|decreas|shorten)\w*"


def _moves_said(flags: EngineFlags) -> Iterator[tuple[str, tuple[Move, ...]]]:
    """Engines that refuse a setting often say which flag to raise or lower; as they spell it, and as a knob."""
    for names in filter(None, (_knobs(lever, flags) for lever in _SAID)):
        spelled = "|".join(re.escape(name).replace("_", "[-_]") for name in sorted(names, key=len, reverse=True))
        for verb, direction in ((_UP, 1), (_DOWNWARDS, -1)):
            moves = tuple(Move(name, direction, BY_NAME["refused"].reason) for name in names)
            yield rf"{verb} (?:the )?[`'\"]?(?:--)?(?:{spelled})\b", moves


def advice(failure: EngineFailure, flags: EngineFlags) -> tuple[Move, ...]:
    """Which knobs to move, and which way, so that this failure does not happen again; the surest first."""
    why = failure.reason.partition(":")[0]
    return tuple(Move(knob, direction, why) for lever, direction in failure.moves for knob in _knobs(lever, flags))


def _knobs(lever: str, flags: EngineFlags) -> list[str]:
    return flags.levers(lever) or [lever for name in flags.flags if name == lever]


@dataclass(frozen=True, slots=True)
class FailureCause:
    """The failure a log shows, with its line. `line` 0: the log itself says nothing. `at_start`: before it served."""

    name: str
    line: int
    text: str
    at_start: bool = False

    def marked_line(self, log: str) -> str:
        where = f"{log}:{self.line}: " if self.line else ""
        return f"{MARK}{self.name}{_AT_START if self.at_start else ''}: {where}{self.text.strip()[:500]}"


# What the readers call a failure -> ours, before the engine was ready and after
_READ_AS = {
    "cuda-oom": ("oom-start", "oom-run"),
    "pool-too-small": ("pool-too-small", "oom-run"),
    "refused": ("refused", "exception"),
}
# an engine that refuses a combination of settings says so by one of these while it starts
_REFUSALS = re.compile(
    r"(?:AssertionError|ValueError|NotImplementedError|pydantic\S*ValidationError)\b"
    r"|\b(?:not|only) (?:\w+ )?support|nsupported"
)
_RANK = {failure.name: number for number, failure in enumerate(FAILURES)}


def _meant(kind: str, ready: bool, text: str) -> str:
    """Our name for what a reader found; its own where that is none of ours."""
    name = _READ_AS.get(kind, (kind, kind))[ready]
    return "refused" if name == "exception" and not ready and _REFUSALS.search(text) else name


def cause_of(failures: Iterable[tuple[str, bool, int, str]], weights_loaded: bool) -> FailureCause | None:
    """The cause among (kind, whether the engine was ready, line, text), as the readers give them."""
    found: list[FailureCause] = []
    for kind, ready, line, text in failures:
        name = _meant(kind, ready, text)
        if name == "oom-start" and not weights_loaded:
            name = "weights"
        if name in _RANK:
            found.append(FailureCause(name, line, text))
    # the last exception is the one that ended it; of everything else the first is the cause
    return min(found, key=lambda c: (_RANK[c.name], -c.line if c.name == "exception" else c.line), default=None)


# `diagnose` ranks a port that is taken below what an engine says of its memory, and an exception, which may have been
# handled, below a child that died; of a run that failed the judge has it the other way round.
_LATE = ("port-taken", "watchdog", "signal", "peer-lost", "child-died", "exception")


def leading_cause(failures: Iterable[tuple[str, bool, int, str]]) -> tuple[str, EngineFailure, int] | None:
    """Of (kind, whether the engine was ready, line, text): the cause as a person reads it, its kind and its line."""
    found = min(failures, key=lambda f: _place(_meant(f[0], f[1], f[3])), default=None)
    if found is None:
        return None
    kind, ready, line, text = found
    name = _meant(kind, ready, text)
    return kind, BY_NAME.get(name) or BY_NAME["exception"], line


def _place(name: str) -> int:
    return len(FAILURES) + _LATE.index(name) if name in _LATE else _RANK.get(name, 2 * len(FAILURES))


def advice_on(line: str, failure: EngineFailure, texts: Sequence[FailureText], flags: EngineFlags) -> str:
    """What to advise a person whose log says this: what its row says, else what its kind says; and where the engine
    itself names flags, those, or what was meant by one that there is not."""
    row = next((text for text in texts if text.shown_by(line)), None)
    said = row.advice if row is not None and row.advice else failure.advice
    named = dict.fromkeys(_FLAGS.findall(line))
    missing = [flag for flag in named if _field(flag) in flags.flags and flag not in said][:4]
    more = [f" The engine itself names {', '.join(missing)}."] if missing else []
    if failure.name == "rejected":
        known = [f"--{name.replace('_', '-')}" for name in flags.flags]
        unknown = [flag for flag in named if _field(flag) not in flags.flags]
        more += [f" For {flag}, {meant}" for flag in unknown if (meant := did_you_mean(flag, known))]
    return said + "".join(more)


def _field(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")


_FLAGS = re.compile(r"(?<![\w-])--[a-z][a-z0-9]*(?:-[a-z0-9]+)*|(?<=`)[a-z]+(?:_[a-z]+)+(?=`)")
