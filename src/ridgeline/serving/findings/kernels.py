"""One shape for what GPU profilers say about kernels, and nsys read into it (`chrome_trace.py`: PyTorch's traces)."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ridgeline.diagnose.profilers.profile import Call, Function, Profile, is_nccl, summed
from ridgeline.diagnose.readers.lines import number, whole

# first match wins; what a kernel is for is known by its name alone
_CLASSES: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "communication",
        re.compile(
            r"nccl|all_?reduce|all_?gather|reduce_?scatter|cross_device_reduce|all_?to_?all|deep_?ep|nvshmem", re.I
        ),
    ),
    ("MoE", re.compile(r"moe|expert|topk_?(?:softmax|gating)|grouped_?gemm|count_and_sort|permute", re.I)),
    ("elementwise and norms", re.compile(r"(?:rms|layer)_?norm", re.I)),  # FlashInfer's too: its name is no purpose
    (
        "attention",
        re.compile(
            # the last: Triton's, as SGLang and vLLM name them (_fwd_kernel, _fwd_grouped_kernel_stage1)
            r"attn|attention|flash|fmha|\bmla|(?:paged|unified)_?kv|decode_?att|merge_state|\b_fwd_(?:grouped_)?kernel",
            re.I,
        ),
    ),
    (
        "matrix products",
        re.compile(r"gemm|gemv|cutlass|nvjet|cublas|matmul|xmma|splitk|wgmma|\bmm_|::\w{0,12}mm\b|linear", re.I),
    ),
    ("sampling", re.compile(r"sampling|softmax|argmax|sort|top_?[kp]", re.I)),
    ("copies", re.compile(r"memcpy|memset|copy|\bcat", re.I)),
    (
        "elementwise and norms",
        re.compile(
            r"elementwise|norm|rope|rotary|silu|gelu|act_and_mul|quant|triton|index|::(?:add|sub|mul|div)_?$", re.I
        ),
    ),
)
_MOST_NAMES = 20_000  # beyond which new names are only counted together, so that memory stays bounded
_OTHER_NAMES = "(all further names)"


@dataclass(slots=True)
class KernelTime:
    """One kernel, or one CUDA call of the host, by its name, summed up. `line` is where it was longest, or first."""

    name: str
    count: int = 0
    seconds: float = 0.0
    longest_s: float = 0.0
    small: int = 0  # launches shorter than SMALL_S
    small_s: float = 0.0
    line: int = 0
    text: str = ""

    @property
    def purpose(self) -> str:
        return next((label for label, pattern in _CLASSES if pattern.search(self.name[:400])), "other")


SMALL_S = 10e-6  # about what a launch costs the host: shorter kernels leave the GPU waiting


@dataclass(slots=True)
class KernelTally:
    """`span_s` is from the first kernel's start to the last one's end, None where the profile has no times of day.

    `host_calls` are the CUDA calls of the host; `graph_launches` counts CUDA graphs, which hide launches.
    """

    tool: str
    on_host: bool = False  # no GPU was used: `kernels` are operators of the host's busiest thread
    kernels: dict[str, KernelTime] = field(default_factory=dict)
    devices: set[int] = field(default_factory=set)
    start_s: float | None = None
    end_s: float | None = None
    copies_s: float = 0.0
    host_calls: dict[str, KernelTime] = field(default_factory=dict)
    other_events: int = 0  # of the host, in a trace
    other_line: int = 0
    other_text: str = ""

    def add(self, name: str, seconds: float, line: int, text: str) -> None:
        """One launch."""
        kernel = self.kernel(name)
        kernel.count += 1
        kernel.seconds += seconds
        if seconds < SMALL_S:
            kernel.small += 1
            kernel.small_s += seconds
        if seconds > kernel.longest_s or not kernel.text:
            kernel.longest_s, kernel.line, kernel.text = seconds, line, text

    def kernel(self, name: str) -> KernelTime:
        known = self.kernels.get(name)
        if known is None:
            name = name if len(self.kernels) < _MOST_NAMES else _OTHER_NAMES
            known = self.kernels.setdefault(name, KernelTime(name))
        return known

    def host(self, name: str, seconds: float, line: int, text: str, calls: int = 1) -> None:
        """A CUDA call of the host."""
        if name in self.host_calls or len(self.host_calls) < _MOST_NAMES:
            call = self.host_calls.setdefault(name, KernelTime(name, line=line, text=text))
            call.count += calls
            call.seconds += seconds

    def between(self, start_s: float, end_s: float, device: int) -> None:
        self.start_s = start_s if self.start_s is None or start_s < self.start_s else self.start_s
        self.end_s = end_s if self.end_s is None or end_s > self.end_s else self.end_s
        if len(self.devices) < 1024:
            self.devices.add(device)

    @property
    def kernel_s(self) -> float:
        return sum(k.seconds for k in self.kernels.values())

    @property
    def launches(self) -> int:
        return sum(k.count for k in self.kernels.values())

    @property
    def graph_launches(self) -> int:
        return sum(call.count for call in self.host_calls.values() if "GraphLaunch" in call.name)

    @property
    def span_s(self) -> float | None:
        return None if self.start_s is None or self.end_s is None else max(0.0, self.end_s - self.start_s)

    @property
    def idle_share(self) -> float | None:
        """The part of the span in which no kernel ran, at least: kernels of two streams may run at once."""
        span = self.span_s
        if not span:
            return None
        return max(0.0, 1.0 - (self.kernel_s + self.copies_s) / (span * max(1, len(self.devices))))

    def by_purpose(self) -> dict[str, list[KernelTime]]:
        """Kernels by what they are for, longest purpose and longest kernel first."""
        groups: dict[str, list[KernelTime]] = {}
        for kernel in self.kernels.values():
            groups.setdefault(kernel.purpose, []).append(kernel)
        for group in groups.values():
            group.sort(key=lambda k: -k.seconds)
        return dict(sorted(groups.items(), key=lambda g: -total_s(g[1])))


def total_s(kernels: Iterable[KernelTime]) -> float:
    return sum(k.seconds for k in kernels)


# `nsys stats --format csv`: cuda_gpu_kern_sum (kernels), cuda_api_sum (CUDA calls) and mpi_event_sum (MPI calls).
# Several reports may follow each other in one file, as nsys prints them to a terminal.


def read_nsys(lines: Iterable[str]) -> Profile:
    """Kernels (module GPU) and CUDA calls (module CUDA API) become functions; NCCL's kernels are the communication.

    Where no NCCL kernel ran, MPI events are the calls.
    """
    kernels: list[Function] = []
    mpi: list[Call] = []
    for name, seconds, row, line_number, _ in _nsys_rows(lines):
        if (percent := number(row.get("Time (%)"))) is None:
            continue
        if _is_mpi(name, row):
            mpi.append(Call(name, seconds, percent / 100, None, whole(row.get("Instances")), line_number))
        else:
            place = "CUDA API" if "Num Calls" in row else "GPU"
            kernels.append(Function(name, place, percent / 100, seconds, line_number))
    gpu = [f for f in kernels if f.module == "GPU"]
    total_s = sum(f.seconds or 0.0 for f in gpu)
    nccl = [f for f in gpu if is_nccl(f.name)]
    nccl_s = sum(f.seconds or 0.0 for f in nccl)
    calls = [
        Call(
            f.name.partition("(")[0],
            f.seconds or 0.0,
            _ratio(f.seconds, nccl_s),
            _ratio(f.seconds, total_s),
            None,
            f.line,
        )
        for f in nccl
    ]
    return Profile(
        tool="nsys",
        communication_share=nccl_s / total_s if total_s > 0 else None,
        communication_line=nccl[0].line if nccl else (gpu[0].line if gpu else 0),
        calls=summed(calls or mpi),
        functions=tuple(sorted(kernels, key=lambda f: -f.share)),
    )


def read_nsys_kernels(lines: Iterable[str]) -> KernelTally:
    """The kernels of cuda_gpu_kern_sum and the calls of cuda_api_sum; sums only, so a name counts by its mean."""
    tally = KernelTally("nsys")
    for name, seconds, row, line_number, line in _nsys_rows(lines):
        if _is_mpi(name, row):
            continue
        if (calls := whole(row.get("Num Calls"))) is not None:
            tally.host(name, seconds, line_number, line, calls)
            continue
        count = max(1, whole(row.get("Instances")) or 1)
        kernel = tally.kernel(name)
        kernel.count += count
        kernel.seconds += seconds
        if seconds / count < SMALL_S:
            kernel.small += count
            kernel.small_s += seconds
        if seconds >= kernel.longest_s:
            kernel.longest_s, kernel.line, kernel.text = seconds, line_number, line
    return tally


def _is_mpi(name: str, row: Mapping[str, str]) -> bool:
    return name.startswith("MPI_") or "Source" in row


def _nsys_rows(lines: Iterable[str]) -> Iterator[tuple[str, float, dict[str, str], int, str]]:
    """Rows of its tables that have a name and a time: these two, all by column, the number and the text of the line."""
    columns: list[str] = []
    for line_number, raw in enumerate(lines, 1):
        line = raw[:8000]
        if line.startswith(('"Time (%)"', "Time (%),")):
            columns = _cells(line)
        elif columns and line.lstrip(' "')[:1].isdigit():
            row = dict(zip(columns, _cells(line), strict=False))
            nanoseconds, name = number(row.get("Total Time (ns)")), row.get("Name")
            if nanoseconds is not None and nanoseconds >= 0 and name:
                yield name, nanoseconds / 1e9, row, line_number, line
        elif not line.strip():
            columns = []


def _cells(line: str) -> list[str]:
    try:
        return [c.strip() for c in next(csv.reader([line]), [])]
    except csv.Error:
        return []


def _ratio(part: float | None, whole_: float) -> float | None:
    return part / whole_ if part is not None and whole_ > 0 else None
