"""What the kernels of a GPU profile mean, whichever tool wrote it: communication, launches, MoE, an idle GPU."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

from ridgeline.diagnose.base import Analyzer, LogSummary, Quote, RawFinding, SummaryFigure, cited, rereadable
from ridgeline.diagnose.profilers.findings import judged
from ridgeline.diagnose.readers.lines import TextFile
from ridgeline.records.finding import Finding
from ridgeline.serving.findings.chrome_trace import pieces_of, read_chrome_trace
from ridgeline.serving.findings.kernels import SMALL_S, KernelTally, KernelTime, read_nsys, read_nsys_kernels, total_s

_ALL_REDUCE = re.compile(r"all_?reduce|cross_device_reduce", re.IGNORECASE)
_NCCL = re.compile(r"nccl", re.IGNORECASE)
_TILE = re.compile(r"_\d+x\d+(?:_\w+)?$", re.ASCII)


def _kernel_claims(tally: KernelTally) -> list[RawFinding]:
    """Claims from most to least telling."""
    if tally.kernel_s <= 0 or tally.on_host:
        return [*_no_kernels(tally), *(_operators(tally) if tally.kernel_s > 0 else ())]
    rules = (_communication, _launches, _idle, _moe, _copies, _split)
    return [claim for rule in rules for claim in rule(tally)]


def _no_kernels(tally: KernelTally) -> Iterator[RawFinding]:
    if not tally.other_text.strip():
        return
    yield RawFinding(
        f"the trace holds {tally.other_events:,} events of the host and no kernel of a GPU",
        (Quote(tally.other_line, '"name"', tally.other_text),),
        "Record CUDA as well: ProfilerActivity.CUDA in PyTorch; `nsys profile -t cuda` sees any program.",
        "note",
        key="kernels.none",
    )


def _operators(tally: KernelTally) -> list[RawFinding]:
    """Of a trace without a GPU: what the busiest thread of the host did."""
    groups, idle = tally.by_purpose(), tally.idle_share or 0.0
    first = next(iter(groups.values()))
    claims = [
        RawFinding(
            f"CPU time in PyTorch's operators is {_purposes(tally)}; one ran for at most {1 - idle:.0%} of the time",
            _quotes(first[:1]),
            "The first of these is where a faster kernel, another data type or more threads pay.",
            "note",
            key="operators.split",
        )
    ]
    if idle >= 0.3:
        claims.append(
            RawFinding(
                f"no operator of PyTorch ran for at least {idle:.0%} of the {tally.span_s:.2f} s profiled",
                _quotes(first[:1]),
                "The gaps are Python, the scheduler, or waiting for requests: use a larger batch, and more load.",
                share=idle,
                key="operators.gaps",
            )
        )
    communication = total_s(groups.get("communication", ())) / tally.kernel_s
    if communication >= 0.1:
        claims.append(
            RawFinding(
                f"communication takes {communication:.0%} of the CPU time in PyTorch's operators",
                _quotes(groups["communication"][:2]),
                "Try a smaller tensor-parallel size, or a larger batch; waiting for a slow rank looks the same.",
                share=communication * (1 - idle),
                key="operators.communication",
            )
        )
    return claims


def _purposes(tally: KernelTally) -> str:
    groups = list(tally.by_purpose().items())[:5]
    return ", ".join(f"{name} {total_s(group) / tally.kernel_s:.0%}" for name, group in groups)


def _communication(tally: KernelTally) -> Iterator[RawFinding]:
    kernels = tally.by_purpose().get("communication", [])
    share = total_s(kernels) / tally.kernel_s
    if share < 0.1:
        return
    reduces = total_s(k for k in kernels if _ALL_REDUCE.search(k.name)) / tally.kernel_s
    what = "NCCL kernels take" if any(_NCCL.search(k.name) for k in kernels) else "communication kernels take"
    part = f", all-reduce {reduces:.0%}" if reduces else ""
    yield RawFinding(
        f"{what} {share:.0%} of GPU time{part}",
        _quotes(kernels[:2]),
        "Try a smaller tensor-parallel size (pipeline or data parallel for the rest), a larger batch, and read "
        "algorithm and protocol from a log with NCCL_DEBUG=INFO before setting any. Where it runs beside compute "
        "on a stream of its own, less than this is lost; waiting for a slow rank looks the same.",
        "warning" if share >= 0.3 else "advice",
        share=_of_time(tally, share),
        key="kernels.communication",
    )


def _launches(tally: KernelTally) -> Iterator[RawFinding]:
    """Kernels shorter than a launch, and a GPU that waits for them: the host is the limit."""
    kernels = list(tally.kernels.values())
    small = sum(k.small for k in kernels)
    share, idle = small / tally.launches, tally.idle_share
    if share < 0.5 or (idle is not None and idle < 0.15):
        return
    if idle is None and sum(k.small_s for k in kernels) < 0.2 * tally.kernel_s:
        return
    most = sorted(kernels, key=lambda k: -k.small)
    waits = f", and no kernel ran for at least {idle:.0%} of the time" if idle is not None else ""
    graphs = (
        f" {tally.graph_launches} CUDA graphs were launched, so part of the work is captured already: find what is not."
        if tally.graph_launches
        else " No CUDA graph was launched."
        if tally.host_calls
        else ""
    )
    yield RawFinding(
        f"{share:.0%} of {tally.launches:,} kernel launches last under {SMALL_S * 1e6:.0f} us{waits}: the host's "
        "launches are the limit",
        _quotes(most[:2]),
        "Capture decode in CUDA graphs up to the batch that runs (SGLang --cuda-graph-max-bs, vLLM without "
        f"--enforce-eager), use a larger batch, or fuse small kernels (torch.compile).{graphs}",
        "warning" if idle is not None else "advice",
        share=idle,
        key="kernels.launch-bound",
    )


def _idle(tally: KernelTally) -> Iterator[RawFinding]:
    idle = tally.idle_share
    if idle is None or idle < 0.3 or any(_launches(tally)):
        return
    longest = sorted(tally.kernels.values(), key=lambda k: -k.seconds)[:1]
    call = sorted(tally.host_calls.values(), key=lambda k: -k.seconds)[:1]
    waits = f" The host was longest in {call[0].name}." if call else ""
    yield RawFinding(
        f"no kernel ran for at least {idle:.0%} of the {tally.span_s:.2f} s profiled",
        _quotes([*longest, *call]),
        f"Look for start-up, compilation, input and waiting in the gaps, or profile a steady part.{waits}",
        share=idle,
        key="kernels.idle",
    )


def _moe(tally: KernelTally) -> Iterator[RawFinding]:
    kernels = tally.by_purpose().get("MoE", [])
    share = total_s(kernels) / tally.kernel_s
    if share < 0.15:
        return
    yield RawFinding(
        f"MoE kernels take {share:.0%} of GPU time",
        _quotes(kernels[:2]),
        "Look in the engine's log for a missing tuned configuration of the fused MoE kernel, try other runners "
        "(--moe-runner-backend) and expert parallelism; small batches per expert waste the most.",
        share=_of_time(tally, share),
        key="kernels.moe",
    )


def _copies(tally: KernelTally) -> Iterator[RawFinding]:
    kernels = tally.by_purpose().get("copies", [])
    copies_s = tally.copies_s + total_s(kernels)
    share = copies_s / (tally.kernel_s + tally.copies_s)
    if share < 0.1:
        return
    longest = kernels[:1] or sorted(tally.kernels.values(), key=lambda k: -k.seconds)[:1]
    yield RawFinding(
        f"copies take {share:.0%} of GPU time",
        _quotes(longest),
        "Keep data on the GPU, copy from pinned memory on a stream of its own, and look for KV offloading.",
        share=_of_time(tally, share),
        key="kernels.copies",
    )


def _split(tally: KernelTally) -> Iterator[RawFinding]:
    first = next(iter(tally.by_purpose().values()))
    idle = "" if tally.idle_share is None else f"; a kernel ran for at most {1 - tally.idle_share:.0%} of the time"
    yield RawFinding(
        f"GPU time is {_purposes(tally)}{idle}",
        _quotes(first[:1]),
        "The first of these is where a faster kernel or another back end pays; compare with `ridgeline twin explain`.",
        "note",
        key="kernels.split",
    )


def _of_time(tally: KernelTally, share: float) -> float:
    """A share of GPU time as a share of all time, where the profile tells how long the GPU had nothing to do."""
    return share * (1 - tally.idle_share) if tally.idle_share is not None else share


def _quotes(kernels: Iterable[KernelTime]) -> tuple[Quote, ...]:
    return tuple(Quote(k.line, k.name[:60], k.text) for k in kernels)


def _kernel_summary(tally: KernelTally) -> LogSummary:
    if tally.kernel_s <= 0:
        return LogSummary()
    unit, calls, place = ("operator", "calls", "CPU thread") if tally.on_host else ("kernel", "launches", "GPU")
    figures = [
        SummaryFigure(f"{unit} time", tally.kernel_s, "s"),
        SummaryFigure(f"{unit} {calls}", tally.launches),
        *(
            SummaryFigure(f"{name} of {unit} time", total_s(group) / tally.kernel_s, "share")
            for name, group in tally.by_purpose().items()
        ),
    ]
    if tally.span_s:
        without = f"{place} without {'an' if tally.on_host else 'a'} {unit}, at least"
        figures.insert(0, SummaryFigure("time profiled", tally.span_s, "s"))
        figures.insert(1, SummaryFigure(without, tally.idle_share or 0.0, "share"))
    together: dict[str, float] = defaultdict(float)
    for kernel in tally.kernels.values():
        # a library takes a product's tile by its size, so that two batches have hardly a name in common
        together[_TILE.sub(" (all tiles)", kernel.name)[:60]] += kernel.seconds
    longest = sorted(together.items(), key=lambda item: -item[1])[:10]
    figures += [SummaryFigure(f"{unit} {name}", seconds, "s") for name, seconds in longest]
    return LogSummary(tuple(figures))


def _analyze_csv(source: str, lines: Iterable[str]) -> list[Finding]:
    text = rereadable(lines)
    return cited(source, text, [*judged(read_nsys(text)), *_kernel_claims(read_nsys_kernels(text))])


def _analyze_trace(source: str, lines: Iterable[str]) -> list[Finding]:
    tally, damage = _trace(lines)
    findings = cited(source, {}, _kernel_claims(tally))
    if damage and isinstance(lines, TextFile):
        lines.damage = lines.damage or damage
    return findings


def _trace(lines: Iterable[str]) -> tuple[KernelTally, str]:
    return read_chrome_trace(lines.pieces() if isinstance(lines, TextFile) else pieces_of(lines))


NSYS = Analyzer(
    "nsys",
    "nsys stats CSV",
    re.compile(r"^\"?Time \(%\)\"?,\"?Total Time \(ns\)"),
    _analyze_csv,
    lambda lines: _kernel_summary(read_nsys_kernels(lines)),
)
TRACE = Analyzer(
    "torch-trace",
    "trace of the PyTorch profiler (Chrome's format)",
    re.compile(
        r'^\s{0,100}\{?\s{0,100}"(?:schemaVersion|traceEvents|deviceProperties)"\s?:|^\s{0,20}\[?\s{0,20}\{\s?"ph"\s?:'
    ),
    _analyze_trace,
    lambda lines: _kernel_summary(_trace(lines)[0]),
)
