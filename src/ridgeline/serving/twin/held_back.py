"""Step times of GPUs that are held to a limit of power or a locked clock below what they would take by themselves.

Each pass runs at the highest clock at which it draws no more than the limit (`energy.Draw`), never above the one at
which it would draw the GPU's own limit: there the twin's rates were measured. Below that, small kernels take as many
cycles, tensor cores compute less, and memory is as fast until the clock is some way down.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.settings import Applied
from ridgeline.serving.hardware.cluster import Cluster
from ridgeline.serving.hardware.gpu_limits import NO_LIMITS
from ridgeline.serving.model.model import Model
from ridgeline.serving.twin.calibration import Factors
from ridgeline.serving.twin.energy import draw_of
from ridgeline.serving.twin.operators import Term
from ridgeline.serving.twin.passes import Held
from ridgeline.serving.twin.steptime import StepTime

# An H200 read 1 GB as fast at 0.76 of its clock as at all of it, and in 1.06 times the time at 0.70. Small kernels took
# 1.21 times as long at 0.84, 1.39 at 0.70, large products 1.18 times at 0.70 what they take at 0.84
# (benchmarks/twin/gpu_clock.py). Below 0.69 nobody here looked.
_MEMORY_KEEPS_UP = 0.74
_PACES, _SLOWEST = 100, 5  # paces are hundredths of a pass's usual clock
_OCTAVE = 8  # passes whose contexts differ by less than an eighth of an octave run at one pace
_TOKENS = 16  # as do mixed steps whose prompts differ by fewer


def step_times(model: Model, cluster: Cluster, layout: Layout, applied: Applied, factors: Factors) -> StepTime:
    kind = HeldBack if cluster.gpu.limits else StepTime
    return kind(model, cluster, layout, applied, factors)


def at_pace(cluster: Cluster, pace: float) -> Cluster:
    """The cluster with GPUs at this part of the clock that they take by themselves, whatever they draw."""
    gpu = cluster.gpu
    slower = replace(
        gpu,
        limits=NO_LIMITS,
        cycle=1.0 / pace,
        flops={dtype: rate * pace for dtype, rate in gpu.flops.items()},
        bandwidth_bytes_s=gpu.bandwidth_bytes_s * _reading(pace),
    )
    return replace(cluster, node=replace(cluster.node, gpu=slower))


def _reading(pace: float) -> float:
    return min(1.0, pace / _MEMORY_KEEPS_UP)


class _Pass(NamedTuple):
    rows: float
    logit_rows: float
    context: float
    pairs: float


class HeldBack(StepTime):
    """`held` says of the step that was asked for last what it draws, and how far it was slowed down."""

    def __init__(self, model: Model, cluster: Cluster, layout: Layout, applied: Applied, factors: Factors) -> None:
        gpu = cluster.gpu
        super().__init__(model, at_pace(cluster, 1.0), layout, applied, factors)
        self._draw = draw_of(gpu)
        self._most = gpu.most_w / gpu.power_w if gpu.most_w and gpu.power_w else 1.0
        locked = gpu.limits.clock_mhz
        self.idle_clock = 1.0 if locked is None or gpu.clock_mhz is None else locked / gpu.clock_mhz
        self._at: dict[int, StepTime] = {}
        self._settled: dict[tuple[object, ...], tuple[StepTime, Held]] = {}

    def _times(self, hundredths: int) -> StepTime:
        if hundredths not in self._at:
            slower = at_pace(self._cluster, hundredths / _PACES)
            self._at[hundredths] = StepTime(self.model, slower, self.layout, self.applied, self.factors)
        return self._at[hundredths]

    def _settle(self, key: tuple[object, ...], asked: _Pass, seconds: Callable[[StepTime], float]) -> StepTime:
        """Step times at the pace of this pass; passes of one `key` have one."""
        if key not in self._settled:
            self._settled[key] = self._slowed(asked, seconds)
        times, self.held = self._settled[key]
        return times

    def _slowed(self, asked: _Pass, seconds: Callable[[StepTime], float]) -> tuple[StepTime, Held]:
        usual = self._times(_PACES)
        own = self._draw.own_clock(usual.busy(*asked, seconds(usual)))

        def share(hundredths: int) -> float:
            times, pace = self._times(hundredths), hundredths / _PACES
            busy = times.busy(*asked, seconds(times))
            return self._draw.share(busy._replace(clock=own * pace, reading=_reading(pace)))

        high = max(_SLOWEST, math.floor(_PACES * min(1.0, self.idle_clock / own)))
        if (drawn := share(high)) > self._most:
            low = _SLOWEST
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if share(middle) <= self._most else (low, middle)
            high, drawn = low, share(low)
        return self._times(high), Held(drawn, high / _PACES)

    def _decoding(self, batch: int, context: float) -> StepTime:
        key = batch, _bucket(context / batch)
        asked = _Pass(batch * self.applied.draft_tokens, batch, context, 0.0)
        return self._settle(key, asked, lambda at: at.decode_s(batch, context))

    def _computing(self, tokens: int, pairs: float, sequences: int, largest: int) -> StepTime:
        key = tokens, sequences, largest, _bucket(pairs / tokens)
        asked = _Pass(tokens, sequences, 0.0, pairs)
        return self._settle(key, asked, lambda at: at.prefill_s(tokens, pairs, sequences, largest))

    def decode_line(self, batch: int, context: float) -> tuple[float, float, float]:
        return self._decoding(batch, context).decode_line(batch, context)

    def explain_decode(self, batch: int, context: float) -> list[Term]:
        return self._decoding(batch, context).explain_decode(batch, context)

    def prefill_s(self, tokens: int, pairs: float, sequences: int, largest: int) -> float:
        return self._computing(tokens, pairs, sequences, largest).prefill_s(tokens, pairs, sequences, largest)

    def explain_prefill(self, tokens: int, pairs: float, sequences: int, largest: int) -> list[Term]:
        return self._computing(tokens, pairs, sequences, largest).explain_prefill(tokens, pairs, sequences, largest)

    def mixed_s(self, tokens: int, pairs: float, sequences: int, largest: int, batch: int, context: float) -> float:
        prompts = tokens // _TOKENS, _bucket(pairs / tokens), sequences, largest // _TOKENS
        asked = _Pass(tokens + batch, sequences + batch, context, pairs)

        def seconds(at: StepTime) -> float:
            return at.mixed_s(tokens, pairs, sequences, largest, batch, context)

        return seconds(self._settle((*prompts, batch, _bucket(context / batch)), asked, seconds))


def _bucket(tokens: float) -> int:
    return round(_OCTAVE * math.log2(1 + tokens))
