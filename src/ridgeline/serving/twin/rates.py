"""How fast each family of kernels runs on each GPU: a few physical numbers, fitted to measured operator tables.

    seconds of a kernel = floor + (compute^4 + memory^4)^(1/4)

where `compute` is FLOPs over a share of the peak and `memory` bytes over a share of the bandwidth: the slower of the
two far from where they meet, a fifth more where they do. `rates.yaml` keeps the numbers and where each is from;
benchmarks/twin/operators.py fits them and prints how far the forms are from the tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from ridgeline.serving.hardware.cluster import Gpu

# GPUs without tables of their own, and whose kernels theirs resemble most.
_LIKE = {"h800": "h100", "h20": "h200", "a100-40gb": "a100"}
# Everybody else: of a kind with those that were measured.
_BY_GENERATION = {"ampere": "a100", "ada": "l40s", "hopper": "h100", "blackwell": "b200"}
_FALLBACK_GPU = "h100"
_ONE_STAGE_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True)
class Rate:
    """One family on one GPU: the time of its smallest kernel, and shares of peak and bandwidth at full size."""

    floor_s: float
    peak: float
    memory: float

    def seconds(self, peak_s: Any, stream_s: Any) -> Any:
        """Of a kernel that takes `peak_s` at the peak's rate and `stream_s` at the bandwidth's. Arrays are fine."""
        return self.floor_s + ((peak_s / self.peak) ** 4 + (stream_s / self.memory) ** 4) ** 0.25

    def overlapped(self, peak_s: float, stream_s: float) -> float:
        """The same without the floor."""
        return float(self.seconds(peak_s, stream_s) - self.floor_s)


@dataclass(frozen=True, slots=True)
class ExpertRate:
    """Grouped products over experts: each asked expert computes whole tiles, and copies of tokens move besides."""

    rate: Rate
    tile: float
    moved: float  # how often the activations of a routed copy cross the memory
    ramp: float = 0.0  # columns of an expert on a rank at which half of the peak's share is reached
    passed: float = 0.0  # how often those of a copy do that another expert rank computes

    def widened(self, columns: Any) -> Any:
        """The share of its peak that products of so many columns reach."""
        return columns / (columns + self.ramp)

    def crossings(self, routed: Any, copies: Any) -> Any:
        """How often activations as wide as a copy's cross the memory of a rank that computes `routed` of all `copies`.

        Kernels keep rows for copies of other ranks, too, fill them with zeros and add these up (vllm PR 58051).
        """
        return routed * self.moved + (copies - routed) * self.passed

    def rows(self, routed: Any, asked: Any) -> Any:
        """Rows that are computed for `routed` copies of tokens on `asked` experts."""
        whole = asked * self.tile
        more = routed + whole / 2
        return more + (whole - more) * (whole > more)


@dataclass(frozen=True, slots=True)
class Reduction:
    """An all-reduce inside a node: a delay that may grow with ranks, and the share of the link it reaches.

    Larger messages are reduced in two stages, after each of which ranks wait for each other: `stage_s` more a rank.
    """

    delay_s: float
    rank_s: float
    share: float
    fade: float  # a shared bus: the share falls by this power of the ranks beyond two
    stage_s: float

    def delay(self, ranks: Any, nbytes: Any = 0.0) -> Any:
        # two ranks need one stage, up to four below 512 KiB, more below 256 (both engines' custom_all_reduce.cuh)
        twice = (ranks > 2) & (nbytes >= _ONE_STAGE_BYTES / (1 + (ranks > 4)))
        return self.delay_s + (self.rank_s + self.stage_s * twice) * ranks

    def bus_share(self, ranks: float) -> Any:
        return self.share * (2 / ranks) ** self.fade


class Kernels:
    """The families of one GPU."""

    def __init__(self, rows: Mapping[str, Any]) -> None:
        self._rows = rows

    def gemm(self, dtype: str) -> Rate:
        return _rate(_row(self._rows["gemm"], _DENSE.get(dtype, dtype)))

    def experts(self, dtype: str) -> ExpertRate:
        row = _row(self._rows["experts"], dtype)
        return ExpertRate(
            _rate(row), float(row["tile"]), float(row["moved"]), float(row["ramp"]), row.get("passed", 0.0)
        )

    def decode(self, backend: str, *, mla: bool) -> Rate:
        return _rate(_row(self._rows["mla_decode" if mla else "decode"], _UNMEASURED.get(backend, backend)))

    def prefill(self, backend: str, *, mla: bool) -> Rate:
        return _rate(_row(self._rows["mla_prefill" if mla else "prefill"], _UNMEASURED.get(backend, backend)))

    def states(self, phase: str) -> Rate:
        return _rate(_row(self._rows["states"], phase))

    @property
    def reduction(self) -> Reduction:
        row = self._rows["all_reduce"]
        return Reduction(
            row["delay_us"] * 1e-6, row["rank_us"] * 1e-6, row["share"], row["fade"], row["stage_us"] * 1e-6
        )


# AMD's own kernels: no measurement of them is at hand, and Triton's are the only others that run there.
_UNMEASURED = {"aiter": "triton", "wave": "triton"}
# Weights without tensor cores of their own are unpacked and multiplied in 16 bits.
_DENSE = {"fp16": "bf16", "fp32": "bf16", "int8": "fp8", "int4": "bf16", "mxfp4": "bf16"}


def _row(rows: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = rows.get(name) or rows[rows["otherwise"]]
    return found


def _rate(row: Mapping[str, Any]) -> Rate:
    return Rate(row["floor_us"] * 1e-6, row.get("peak", 1.0), row.get("memory", 1.0))


def kernels_of(gpu: Gpu, kernel_set: str = "") -> Kernels:
    """Kernels of this GPU, or of the measured one that it resembles most.

    `kernel_set` names those of another engine, or of an older release; families that were not measured for it are the
    newest SGLang's.
    """
    tables = _tables()
    name = _LIKE.get(gpu.name, gpu.name)
    if name not in tables:
        name = _BY_GENERATION.get(gpu.generation, _FALLBACK_GPU)
    return _kernels(name, kernel_set)


def has_tables(gpu: Gpu) -> bool:
    """Whether this very GPU's kernels were measured."""
    return gpu.name in _tables()


@lru_cache(maxsize=64)
def _kernels(gpu: str, kernel_set: str) -> Kernels:
    rows = _tables()[gpu]
    others = rows.get("others", {}).get(kernel_set, {})
    return Kernels({**rows, **{family: {**rows[family], **mine} for family, mine in others.items()}})


@lru_cache(maxsize=1)
def _tables() -> Mapping[str, Any]:
    import yaml

    text = (resources.files("ridgeline.serving.twin") / "rates.yaml").read_text()
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    tables: Mapping[str, Any] = yaml.load(text, Loader=loader)["gpus"]  # noqa: S506
    return tables
