"""vLLM's log, versions 0.6 to 0.33, GPU and CPU builds: applied arguments, KV cache, throughput, drafts, preemptions.

The text of /metrics may be part of the file; recent versions count preemptions only there.

Text that is torn or foreign gives fewer facts, never an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from ridgeline.diagnose.readers.lines import gib, number, plain, whole
from ridgeline.serving.engines.failures import (
    LIBRARY_TEXTS,
    LIBRARY_WORDS,
    PARSER_ERROR,
    PORT_IN_USE,
    RAISED,
    SPLIT,
    WRONG_ARGUMENTS,
    FailureText,
    LogFailure,
    ValuesToTry,
    kind_in,
    one_of,
    plus,
    times,
)
from ridgeline.serving.engines.python_repr import read_arguments, read_call, read_pairs
from ridgeline.serving.engines.served import LogTally, ServedSecond

# What vLLM prints when it fails, 0.6 to 0.33. The first row that a line shows counts, the more telling first.

_FREE_MEMORY = re.compile(
    r"Error: Free memory on device.{0,20}\((?P<free>[\d.]{1,9})/(?P<all>[\d.]{1,9}) GiB\) on startup is less than "
    r"(?:desired GPU|the engine's budget)"
)
_NEARLY_ALL = 0.9


def _nobody_elses(found: re.Match[str]) -> bool:
    """So much of the GPU is free that what lacks is the driver's and the contexts'."""
    free, there = number(found["free"]), number(found["all"])
    return free is not None and there is not None and free >= _NEARLY_ALL * there


TEXTS: tuple[FailureText, ...] = (
    PORT_IN_USE,
    # "Port 8000 is already in use, trying port 8001" is no failure
    FailureText("port-taken", re.compile(r"Could not find open port after")),
    # v1/core/kv_cache_utils.py, since 0.33 kv_cache_planning.py
    FailureText(
        "pool-too-small",
        re.compile(r"To serve at least one request with the model's max seq len|No available memory for the cache"),
        sure=True,
    ),
    FailureText(
        "pool-too-small",
        re.compile(r"No available memory for|larger than the maximum number of tokens that can be stored in KV cache"),
    ),
    # v1/worker/utils.py and gpu_worker.py; before 0.13 without the name of the device; vllm 20305, 25837, 55169, 56830
    FailureText("fraction-too-high", _FREE_MEMORY, holds=_nobody_elses),
    FailureText("gpu-in-use", _FREE_MEMORY),
    # v1/worker/cpu_worker.py of all releases
    FailureText(
        "fraction-too-high",
        re.compile(r"less than desired CPU memory utilization|on kv cache allocation is less than requested memory"),
        advice="Lower VLLM_CPU_KVCACHE_SPACE or --kv-cache-memory-bytes, or free memory of the host.",
    ),
    FailureText("gpu-in-use", re.compile(r"Error in memory profiling\. Initial free memory"), sure=True),
    WRONG_ARGUMENTS,
    PARSER_ERROR,
    FailureText(
        "rejected",
        re.compile(r"User-specified max_model_len \(\d{1,9}\) is greater than the derived max_model_len"),
        sure=True,
    ),
    *SPLIT,
    FailureText("rejected", re.compile(r"error: argument ")),
    # gpu_model_runner.py: after the KV cache was made, for as many requests as may run
    FailureText("warm-up", re.compile(r"CUDA out of memory occurred when warming up"), sure=True),
    # a worker that another node holds, or that hangs, is waited for so long (VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS)
    FailureText("watchdog", re.compile(r"RPC call to \w{1,40} timed out"), sure=True),
    # v1/kv_offload/cpu: host memory is mapped and pinned at start
    FailureText(
        "host-cache",
        re.compile(
            r"cudaHostRegister failed|Shared offload region creator failed|Failed to (?:map|pin) .{0,40}offload"
        ),
        advice="Lower --kv-offloading-size, or ask for more host memory.",
    ),
    # v1/attention/selector, platforms/cuda.py
    FailureText(
        "no-kernel",
        re.compile(r"No valid attention backend found|Selected backend .{1,80} is not valid for this configuration"),
        advice="Leave --attention-backend out so that vLLM chooses, or change what the reasons in the line name (data "
        "type of the KV cache, block size, head size).",
    ),
    FailureText(
        "refused",
        re.compile(r"No common block size for "),
        advice="Leave --block-size out, or set it to a multiple of what the line names for each back end.",
    ),
    FailureText("kv-transfer", re.compile(r"NIXL (?:transfer failure|compatibility hash mismatch)|nixlBackendError")),
    FailureText(
        "not-installed",
        re.compile(r"Error: NIXL is not available"),
        advice="Install nixl into the engine's environment.",
    ),
    *LIBRARY_TEXTS,
    FailureText(
        "child-died",
        re.compile(
            r"Engine core initialization failed|EngineCore failed to start|Engine core proc \S+ died|EngineDeadError"
            r"|WorkerProc (?:initialization )?failed|Worker proc \S+ died"
        ),
    ),
    # pydantic says in the line below its name what is wrong
    FailureText(
        "refused", re.compile(r"^\s*(?:\([^)]{1,60}\)\s*)?(?:Value|Assertion) error, |\[type=\w{1,40}, input_value=")
    ),
    FailureText("exception", re.compile(rf"(?:^|\s)(?!\S{{1,60}}ValidationError: \d+ validation error){RAISED}")),
)
# Each line that a row matches has one of these. Looking for them is many times faster than trying the rows.
WORDS = (*LIBRARY_WORDS, "max seq len", "died", "failed")
VALUES_TO_TRY: ValuesToTry = {
    "cap": (("max_num_seqs", times(2, 4)),),
    "more-pool": (("gpu_memory_utilization", plus(0.02, 0.04)), ("kv_cache_dtype", one_of("fp8"))),
    "less-memory": (("gpu_memory_utilization", plus(-0.04, -0.08)), ("max_num_seqs", times(0.5, 0.25))),
    "retractions": (("max_num_seqs", times(0.5)), ("gpu_memory_utilization", plus(0.02, 0.04))),
    "chunk": (("max_num_batched_tokens", times(0.5, 0.25)),),
}


_VERSION = re.compile(r"(?:API server version|LLM engine \(v|█  version)\s?v?(\d[\w.+]{1,40})", re.ASCII)
_KV_TOKENS = re.compile(r"\b(GPU|CPU|XPU|TPU|HPU) KV cache size: ([\d,]{1,20}) tokens", re.ASCII)
_KV_MEMORY = re.compile(r"Available KV cache memory: ([\d.]{1,20}) GiB", re.ASCII)
_WEIGHTS = re.compile(
    r"Model loading took ([\d.]{1,20}) (?:GiB|GB)(?: memory)?(?: and ([\d.]{1,20}) seconds)?", re.ASCII
)
_GRAPHS = re.compile(r"Graph capturing finished in ([\d.]{1,20}) secs?, took -?[\d.]{1,20} GiB", re.ASCII)
# of each ten seconds in which something was drafted; before 0.11 the share of accepted tokens comes first
_DRAFTS = re.compile(
    r"SpecDecoding metrics: .{0,60}?Mean acceptance length: ([\d.]{1,9}),.{0,120}? Drafted: (\d{1,12}) tokens", re.ASCII
)
# an engine reports what it got over at these levels, tracebacks too
_GOT_OVER = re.compile(r"^(?:\([^)]{1,60}\) ){0,3}(?:DEBUG|INFO|WARNING) \d\d-\d\d ", re.ASCII)
# the last line of a start, of all releases; what is printed between the KV cache and it is still the start
_STARTED = ("init engine (profile, create kv cache", "Application startup complete", "Avg prompt throughput")
_PREEMPTED = re.compile(r"preempted by .{1,60} mode because|total_num_cumulative_preemption=", re.ASCII)
_CUMULATIVE = re.compile(r"total_num_cumulative_preemption=(\d{1,9})", re.ASCII)
# of /metrics: 0.32 resets the log's own counter before it prints it, so its log keeps silent
_METRIC = re.compile(r"^vllm:num_preemptions(?:_total)?(?:\{[^}]{0,300}\})? ([\d.eE+]{1,20})\s*$", re.ASCII)
_TIME = re.compile(r"\bINFO (\d\d-\d\d \d\d:\d\d:\d\d)\b", re.ASCII)
_MOST_CACHES = 10_000
_SECRETS = ("api_key", "hf_token", "ssl_keyfile_password")


@dataclass(frozen=True, slots=True)
class KvCache:
    device: str
    tokens: int
    line: int


@dataclass(frozen=True, slots=True)
class Throughput:
    """The line vLLM prints every ten seconds. Shares are 0 to 1; `preemptions` is None where the version is silent."""

    line: int
    engine: int
    running: int | None
    waiting: int | None
    kv_share: float | None
    prefix_hit_share: float | None
    preemptions: int | None
    prompt_tok_s: float | None = None
    decode_tok_s: float | None = None
    time: str = ""  # month-day hours:minutes:seconds, as vLLM writes it


@dataclass(slots=True)
class VllmLog:
    """Takes one line after the other. Whoever sums up instead of gathering replaces `row` and `failure`."""

    version: str = ""
    args: Mapping[str, object] = field(default_factory=dict)
    engine_config: Mapping[str, object] = field(default_factory=dict)
    kv_caches: list[KvCache] = field(default_factory=list)
    kv_bytes: int | None = None
    weights_bytes: int | None = None
    weights_s: float | None = None
    graphs_s: float | None = None
    throughput: list[Throughput] = field(default_factory=list)
    drafted: int = 0  # tokens
    drafted_lengths: float = 0.0  # accept lengths, each as often as tokens were drafted
    preemptions: int = 0
    preempted_line: int = 0
    failures: list[LogFailure] = field(default_factory=list)
    ready: bool = False

    @property
    def accept_length(self) -> float | None:
        """Over all intervals, each as heavy as the tokens drafted in it: the line does not count its drafts."""
        return self.drafted_lengths / self.drafted if self.drafted else None

    def row(self, row: Throughput) -> None:
        self.throughput.append(row)

    def failure(self, failure: LogFailure) -> None:
        self.failures.append(failure)

    def line(self, line_number: int, line: str) -> None:
        self.ready = self.ready or any(said in line for said in _STARTED)
        if "Avg prompt throughput" in line:
            row = _throughput(line, line_number)
            if row is not None:
                self.row(row)
                self._preempted(row.preemptions or 0, line_number)
        elif (found := _DRAFTS.search(line)) and (length := number(found[1])) is not None:
            self.drafted += int(found[2])
            self.drafted_lengths += length * int(found[2])
        elif found := _KV_TOKENS.search(line):
            tokens = whole(found.group(2).replace(",", ""))
            if tokens is not None and len(self.kv_caches) < _MOST_CACHES:
                self.kv_caches.append(KvCache(found.group(1), tokens, line_number))
            # 0.32 says both in one line
            self._said_once(line)
        elif (found := _METRIC.match(line)) and (counted := number(found.group(1))):
            self.preemptions, self.preempted_line = self.preemptions + round(counted), line_number
        elif _PREEMPTED.search(line):
            count = _CUMULATIVE.search(line)
            known = int(count.group(1)) if count else 0
            self._preempted(max(1, known - self.preemptions), line_number)
        elif not self._said_once(line) and (kind := _failure(line)):
            self.failure(LogFailure(kind, self.ready, line_number, line[:500]))

    def _preempted(self, count: int, line_number: int) -> None:
        if count:
            self.preemptions += count
            self.preempted_line = self.preempted_line or line_number

    def _said_once(self, line: str) -> bool:
        """Facts that a log states once; the first statement counts. Says whether the line was one."""
        if found := _VERSION.search(line):
            self.version = self.version or found.group(1)
        if "non-default args: {" in line:
            return self._started_with(read_pairs(line, line.index("non-default args: {")))
        if "args: Namespace(" in line:
            return self._started_with(read_call(line, line.index("Namespace("))[0])
        if "LLM engine (v" in line and "with config: " in line:
            self.engine_config = self.engine_config or read_arguments(line, line.index("with config: ") + 13)
            return True
        if (found := _KV_MEMORY.search(line)) and (size := gib(found.group(1))) is not None:
            self.kv_bytes = size if self.kv_bytes is None else self.kv_bytes
        elif found := _WEIGHTS.search(line):
            if self.weights_bytes is None:
                self.weights_bytes, self.weights_s = gib(found.group(1)), number(found.group(2))
        elif (found := _GRAPHS.search(line)) and self.graphs_s is None:
            self.graphs_s = number(found.group(1))
        return found is not None

    def _started_with(self, values: Mapping[str, object]) -> bool:
        if not self.args:
            self.args = {k: "(hidden)" if k in _SECRETS and v is not None else v for k, v in values.items()}
        return True


def read_vllm_log(lines: Iterable[str]) -> VllmLog:
    """Gather the facts of a log."""
    log = VllmLog()
    for line_number, raw in enumerate(lines, 1):
        log.line(line_number, plain(raw))
    return log


def _failure(line: str) -> str:
    """The kind of failure that a line tells of; empty where it tells of none."""
    if not any(word in line for word in WORDS) or _GOT_OVER.match(line):
        return ""
    return kind_in(line, TEXTS)


def _throughput(line: str, line_number: int) -> Throughput | None:
    row: dict[str, str] = {}
    for cell in line[line.index("Avg prompt throughput") :].split(","):
        label, separator, value = cell.rpartition(": ")
        if separator:
            row[label.strip()] = value.split(" ")[0].rstrip("%.")
    if number(row.get("Avg prompt throughput")) is None or number(row.get("Avg generation throughput")) is None:
        return None  # torn
    engine = re.search(r"Engine (\d{1,6}):", line)
    usage = next((v for k, v in row.items() if k.endswith("KV cache usage")), None)
    return Throughput(
        line=line_number,
        engine=int(engine.group(1)) if engine else 0,
        running=whole(row.get("Running")),
        waiting=whole(row.get("Waiting", row.get("Pending"))),
        kv_share=_share(usage),
        prefix_hit_share=_share(row.get("Prefix cache hit rate")),
        preemptions=whole(row.get("Preemptions")),
        prompt_tok_s=number(row.get("Avg prompt throughput")),
        decode_tok_s=number(row.get("Avg generation throughput")),
        time=stamp.group(1) if (stamp := _TIME.search(line[:120])) else "",
    )


def _share(percent: str | None) -> float | None:
    value = number(percent)
    return None if value is None else value / 100


# A vLLM log of any length, summed up in constant memory and in one pass.

_FULL, _ROOM = 0.95, 0.8
_STARVED_TOK_S = 1.0  # decoded tokens a second and running request, below which they practically stand still
_EPOCH = datetime(2000, 1, 1)  # a leap year: the log does not name one
# the processes of a server that was asked to stop print lines that otherwise mean a crash
_STOPS = (
    "[shutdown] API server: shutdown triggered",
    "INFO:     Shutting down",
    "Received SIGTERM",
    "Received signal 15",
)


@dataclass(slots=True)
class VllmTally(LogTally):
    """All that a log said; `said`: what it says once."""

    echoes = ("signal", "peer-lost", "child-died", "exception")

    said: VllmLog = field(default_factory=VllmLog)
    prefix_hit_share: float = 0.0
    rows: int = 0


def tally_vllm_log(lines: Iterable[str]) -> VllmTally:
    """Sum up a log; torn or foreign text gives less, never an error."""
    reader = _Tallying()
    for line_number, raw in enumerate(lines, 1):
        if '" 200 OK' not in raw:
            reader.take(line_number, plain(raw))
    return reader.tally


class _Tallying(VllmLog):
    def __init__(self) -> None:
        super().__init__()
        self.tally = VllmTally(said=self)
        self.text, self.number = "", 0

    def take(self, line_number: int, text: str) -> None:
        self.text, self.number = text[:20_000], line_number
        known_args, known_caches, known_preempted = bool(self.args), len(self.kv_caches), self.preempted_line
        if not self.tally.stop_line and any(stop in text for stop in _STOPS):
            self.tally.stop_line = line_number
            self._quote("stop")
        self.line(line_number, text)
        if self.args and not known_args:
            cap = self.args.get("max_num_seqs")
            self.tally.cap = cap if isinstance(cap, int) and not isinstance(cap, bool) else None
            self._quote("limits")
        if len(self.kv_caches) > known_caches:
            self._quote("pool")
        if self.preempted_line and not known_preempted:
            self._quote("preemption")

    def row(self, row: Throughput) -> None:
        tally, totals = self.tally, self.tally.served.totals
        running, waiting, kv_share = row.running or 0, row.waiting or 0, row.kv_share or 0.0
        tally.last_work_line = row.line
        tally.rows += 1
        second = ServedSecond(lines=1)
        if not running and not waiting:
            second.from_idle = True
        else:
            second.decodes, second.running, second.queued = 1, running, waiting
            second.kv_share, second.decode_tok_s = kv_share, row.decode_tok_s or 0.0
            self._limits(second, running, waiting, kv_share)
            if row.prompt_tok_s and running and (row.decode_tok_s or 0.0) < _STARVED_TOK_S * running:
                second.starved = 1
                self._quote("starved")
        if kv_share > totals.peak_kv_share:
            totals.peak_kv_share = kv_share
            self._quote("peak", again=True)
        if running > totals.most_running:
            totals.most_running = running
            self._quote("busiest", again=True)
        if (hits := row.prefix_hit_share or 0.0) > tally.prefix_hit_share:
            tally.prefix_hit_share = hits
            self._quote("hits", again=True)
        tally.served.add(_seconds(row.time), second)

    def _limits(self, second: ServedSecond, running: int, waiting: int, kv_share: float) -> None:
        if not waiting:
            return
        second.waiting = 1
        self._quote("waiting")
        self._quote("last-waiting", again=True)
        cap = self.tally.cap
        if kv_share >= _FULL:
            second.full = 1
            self._quote("full")
        elif cap is not None and running >= cap and kv_share < _ROOM:
            second.capped = 1
            self._quote("capped")

    def failure(self, failure: LogFailure) -> None:
        if name := self.tally.failed(failure):
            self._quote(name, again=True)

    def _quote(self, name: str, *, again: bool = False) -> None:
        if again or name not in self.tally.quotes:
            self.tally.quotes[name] = (self.number, self.text)


def _seconds(text: str) -> float | None:
    try:
        return (datetime.strptime(f"2000-{text}", "%Y-%m-%d %H:%M:%S") - _EPOCH).total_seconds() if text else None
    except ValueError:
        return None
