"""Step times of GPUs that are held to a limit of power or a locked clock below what they would take by themselves.

Each pass runs at the highest clock at which it draws no more than the limit (`energy.Draw`): a decode step that waits
for memory draws little, and seldom notices one. At a lower clock small kernels take as many cycles, tensor cores
compute less, and memory is as fast until the clock is far down.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.settings import Applied
from ridgeline.serving.hardware.cluster import Cluster
from ridgeline.serving.hardware.gpu_limits import NO_LIMITS
from ridgeline.serving.model.model import Model
from ridgeline.serving.twin.calibration import Factors
from ridgeline.serving.twin.energy import draw_of
from ridgeline.serving.twin.operators import Busy, Term
from ridgeline.serving.twin.steptime import StepTime

# The clock, of the highest, at which the twin's rates of tensor cores were measured: prompts bring an H200 to its own
# limit, which holds it to 0.74 to 0.89 (benchmarks/twin/gpu_power.py, samples of examples/05-sglang-h200).
_SETTLED = 0.8
# Down to 0.82 of its clock an H200 read memory as fast as ever; below this nobody here looked.
_MEMORY_KEEPS_UP = 0.5
_STEP, _LOWEST = 0.05, 0.2
_GRAIN = 8  # passes that differ by less than an eighth of an octave of context run at one clock


def step_times(model: Model, cluster: Cluster, layout: Layout, applied: Applied, factors: Factors) -> StepTime:
    kind = HeldBack if cluster.gpu.limits else StepTime
    return kind(model, cluster, layout, applied, factors)


def at_clock(cluster: Cluster, clock: float) -> Cluster:
    """The cluster with GPUs that run at this share of their highest clock, whatever they draw."""
    gpu = cluster.gpu
    slower = replace(
        gpu,
        limits=NO_LIMITS,
        cycle=1.0 / clock,
        flops={dtype: rate * min(1.0, clock / _SETTLED) for dtype, rate in gpu.flops.items()},
        bandwidth_bytes_s=gpu.bandwidth_bytes_s * min(1.0, clock / _MEMORY_KEEPS_UP),
    )
    return replace(cluster, node=replace(cluster.node, gpu=slower))


class HeldBack(StepTime):
    """At the locked clock, or at the highest, and slower where a pass would draw more than the limit."""

    def __init__(self, model: Model, cluster: Cluster, layout: Layout, applied: Applied, factors: Factors) -> None:
        gpu = cluster.gpu
        locked, highest = gpu.limits.clock_mhz, gpu.clock_mhz
        top = 1.0 if locked is None or highest is None else locked / highest
        super().__init__(model, at_clock(cluster, top), layout, applied, factors)
        self._usual, self._draw = cluster, draw_of(gpu)
        self._most = gpu.most_w / gpu.power_w if gpu.most_w and gpu.power_w else 1.0
        lower = (1.0 - n * _STEP for n in range(1, round((1.0 - _LOWEST) / _STEP) + 1))
        self._clocks = (top, *(clock for clock in lower if clock < top)) if self._most < 1.0 else (top,)
        self._at: dict[float, StepTime] = {}
        self._decoding: dict[tuple[int, int], StepTime] = {}
        self._computing: dict[tuple[int, int, int, int], StepTime] = {}

    # -- the clock of a pass ----------------------------------------------------------------------------------------

    def _ladder(self) -> Iterator[StepTime]:
        """Step times at each clock, the highest first."""
        for clock in self._clocks:
            if clock not in self._at:
                slower = at_clock(self._usual, clock)
                self._at[clock] = StepTime(self.model, slower, self.layout, self.applied, self.factors)
            yield self._at[clock]

    def _within(
        self, rows: float, logit_rows: float, context: float, pairs: float, seconds: Callable[[StepTime], float]
    ) -> StepTime:
        """Step times at the highest clock at which this pass draws no more than the limit; the lowest where none is."""
        for times in self._ladder():
            busy = times.busy(rows, logit_rows, context, pairs, seconds(times))
            if self._draw.share(busy) <= self._most:
                break
        return times

    def _decode_times(self, batch: int, context: float) -> StepTime:
        key = batch, round(_GRAIN * math.log2(1 + context / batch))
        if key not in self._decoding:
            rows = batch * self.applied.draft_tokens
            self._decoding[key] = self._within(rows, batch, context, 0.0, lambda at: at.decode_s(batch, context))
        return self._decoding[key]

    def _prefill_times(self, tokens: int, pairs: float, sequences: int, largest: int) -> StepTime:
        key = tokens, sequences, largest, round(_GRAIN * math.log2(1 + pairs / tokens))
        if key not in self._computing:
            self._computing[key] = self._within(
                tokens, sequences, 0.0, pairs, lambda at: at.prefill_s(tokens, pairs, sequences, largest)
            )
        return self._computing[key]

    # -- what the engines ask ---------------------------------------------------------------------------------------

    def decode_line(self, batch: int, context: float) -> tuple[float, float, float]:
        return self._decode_times(batch, context).decode_line(batch, context)

    def explain_decode(self, batch: int, context: float) -> list[Term]:
        return self._decode_times(batch, context).explain_decode(batch, context)

    def prefill_s(self, tokens: int, pairs: float, sequences: int, largest: int) -> float:
        return self._prefill_times(tokens, pairs, sequences, largest).prefill_s(tokens, pairs, sequences, largest)

    def explain_prefill(self, tokens: int, pairs: float, sequences: int, largest: int) -> list[Term]:
        return self._prefill_times(tokens, pairs, sequences, largest).explain_prefill(tokens, pairs, sequences, largest)

    def mixed_s(self, tokens: int, pairs: float, sequences: int, largest: int, batch: int, context: float) -> float:
        def seconds(at: StepTime) -> float:
            return at.mixed_s(tokens, pairs, sequences, largest, batch, context)

        return seconds(self._within(tokens + batch, sequences + batch, context, pairs, seconds))

    def busy(self, rows: float, logit_rows: float, context: float, pairs: float, seconds: float) -> Busy:
        return self._within(rows, logit_rows, context, pairs, lambda _: seconds).busy(
            rows, logit_rows, context, pairs, seconds
        )
