"""One shape for what GPU profilers say about kernels: nsys (CSV or SQLite) and traces of the PyTorch profiler."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

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
    """One kernel by its name, summed over its launches. `line` is where it was longest, or first."""

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
        return _purpose_of(self.name)


SMALL_S = 10e-6  # about what a launch costs the host: shorter kernels leave the GPU waiting


def _purpose_of(name: str) -> str:
    return next((label for label, pattern in _CLASSES if pattern.search(name[:400])), "other")


@dataclass(slots=True)
class KernelTally:
    """`span_s` is from the first kernel's start to the last one's end, None where the profile has no times of day.

    `host_s` are seconds of the host in CUDA calls, by name; `graph_launches` counts CUDA graphs, which hide launches.
    """

    tool: str
    on_host: bool = False  # no GPU was used: `kernels` are operators of the host's busiest thread
    kernels: dict[str, KernelTime] = field(default_factory=dict)
    devices: set[int] = field(default_factory=set)
    start_s: float | None = None
    end_s: float | None = None
    copies_s: float = 0.0
    host_s: dict[str, float] = field(default_factory=dict)
    host_calls: dict[str, int] = field(default_factory=dict)
    host_line: dict[str, tuple[int, str]] = field(default_factory=dict)
    other_events: int = 0  # of the host, in a trace
    other_line: int = 0
    other_text: str = ""
    sizes_known: bool = True  # whether single launches were seen, and not only sums

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
        if name in self.host_s or len(self.host_s) < _MOST_NAMES:
            self.host_s[name] = self.host_s.get(name, 0.0) + seconds
            self.host_calls[name] = self.host_calls.get(name, 0) + calls
            self.host_line.setdefault(name, (line, text))

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
        return sum(count for name, count in self.host_calls.items() if "GraphLaunch" in name)

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
