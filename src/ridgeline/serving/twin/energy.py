"""What GPUs draw while they serve: watts by what each pass keeps at work, and joules for each token of an answer.

A GPU that holds an engine draws its idle watts whatever it does; tensor cores and memory add theirs for the time in
which they are at work. Nothing draws more than its limit: clocks fall before.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from ridgeline.serving.hardware.cluster import Gpu, load_gpu
from ridgeline.serving.twin.operators import Busy
from ridgeline.serving.twin.passes import PassMeans
from ridgeline.serving.twin.steptime import StepTime
from ridgeline.stats.stated_range import NORMAL_90


@dataclass(frozen=True, slots=True)
class Draw:
    """Shares of a GPU's limit of power at its highest clock: idle, and what is added by parts at work all the time:
    tensor cores on rows of decode steps and on prompts, and memory.

    `spread` is the standard deviation of log(measured / predicted) watts.
    """

    idle: float
    tensor: float
    prompts: float
    memory: float
    spread: float

    def share(self, busy: Busy) -> float:
        """Of a GPU that is kept busy so; more than 1 where its clock gives way."""
        dynamic = math.pow(busy.clock, _FALLS)
        tensor = busy.tensor * (self.tensor + (self.prompts - self.tensor) * busy.prompts)
        # half of what memory adds is drawn by the chips beside the GPU, by what they are read
        memory = self.memory * busy.memory * (busy.reading + dynamic) / 2
        return self.idle_at(busy.clock) + tensor * dynamic + memory

    def idle_at(self, clock: float) -> float:
        return self.idle * (1 - _IDLE_FALLS * (1 - clock))

    def own_clock(self, busy: Busy) -> float:
        """The highest at which it draws no more than its own limit."""
        low, high = 0.0, 1.0
        if self.share(busy) <= 1.0:
            return high
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            if self.share(busy._replace(clock=middle)) <= 1.0:
                low = middle
            else:
                high = middle
        return low


ENERGY_FIGURES = ("gpu_power_w", "joules_per_output_token")  # of a result, each with its interval
# Idle: 125 to 135 W of an H200 that holds an engine (samples of examples/05-sglang-h200). Prompts: with this a prompt's
# pass draws the limit at the clocks of those samples, 0.82 to 0.89 of the highest; large products say 1.2 to 1.7
# (`benchmarks/twin/gpu_power.py`). The others were chosen on public loads of vLLM 0.11 (`benchmarks/twin/energy.py`).
_H100, _B200 = Draw(0.18, 0.45, 1.30, 0.60, 0.12), Draw(0.22, 0.70, 1.30, 0.60, 0.36)
_MEASURED = {"h100": _H100, "b200": _B200}
_BY_GENERATION = {"hopper": _H100, "blackwell": _B200}
_OTHER = Draw(0.20, 0.60, 1.30, 0.60, 0.0)
# Of a GPU of which no such load was seen: of a generation that was, and of another one.
_NEAR, _FAR = 0.20, 0.35
# How watts fall with the clock. Of parts at work: what products on an H200 draw above idle falls with the 2.5th to 3rd
# power of the clock, told by how fast they run (`benchmarks/twin/gpu_power.py`). Idle: 81 W at 345 MHz, 125 W at 1,980.
_FALLS, _IDLE_FALLS, _HALVINGS = 2.6, 0.4, 14
# Beyond all that: a GPU that was held back on purpose has not been measured here. Of the part of the clock it loses.
HELD_BACK_SPREAD = 0.3


def draw_of(gpu: Gpu) -> Draw:
    """What parts of this GPU draw; wider where it is derived from others'."""
    if gpu.name in _MEASURED:
        return _MEASURED[gpu.name]
    near = _BY_GENERATION.get(gpu.generation)
    known = near or _OTHER
    wide = replace(known, spread=math.hypot(known.spread, _NEAR if near else _FAR))
    if near is None or gpu.power_w is None:
        return wide
    # fewer tensor cores for its watts draw a smaller part of them
    cores = min(1.0, gpu.flops_of("bf16") / gpu.power_w / _flops_a_watt(gpu.generation))
    return replace(wide, tensor=wide.tensor * cores, prompts=wide.prompts * cores)


@lru_cache(maxsize=4)
def _flops_a_watt(generation: str) -> float:
    measured = load_gpu(next(name for name, draw in _MEASURED.items() if draw is _BY_GENERATION[generation]))
    assert measured.power_w is not None
    return measured.flops_of("bf16") / measured.power_w


@dataclass(frozen=True, slots=True)
class Energy:
    """Of a run: watts of one GPU on average, and all joules of the GPUs.

    `tensor` and `memory` are shares of the time in which they would be at work on GPUs that nothing holds, `prompts`
    that of tensor cores for prompts; `limit_w` is of one GPU. `held_back` is the part of their usual clock that passes
    lost to a limit, on average.
    """

    gpu_power_w: float
    joules: float
    tensor: float
    prompts: float
    memory: float
    limit_w: float
    held_back: float
    spread: float

    def bounds(self, output_tokens: float, slow: float, fast: float) -> dict[str, tuple[float, float]]:
        """`slow` and `fast` are the least and the most throughput there may be, over what is predicted."""
        least = most = NORMAL_90 * self.spread
        most = min(most, math.log(self.limit_w / self.gpu_power_w))
        each = self.joules / output_tokens
        fewer, more = math.hypot(least, math.log(fast)), math.hypot(most, math.log(slow))
        return {
            "gpu_power_w": (self.gpu_power_w * math.exp(-least), self.gpu_power_w * math.exp(most)),
            "joules_per_output_token": (each * math.exp(-fewer), each * math.exp(more)),
        }


class Worked(NamedTuple):
    """What one engine did."""

    times: StepTime
    passes: Iterable[PassMeans]


def energy_of(engines: Iterable[Worked], gpu: Gpu, duration_s: float) -> Energy | None:
    """Of all GPUs of these engines in that time, idle but for their passes; None where their limit is not known."""
    limit_w = gpu.most_w
    if gpu.power_w is None or limit_w is None or duration_s <= 0:
        return None
    draw, most = draw_of(gpu), limit_w / gpu.power_w
    drawn_s = tensor_s = prompts_s = memory_s = lost_s = busy_s = all_s = 0.0  # each in seconds of a GPU
    for engine in engines:
        gpus, idle_s = engine.times.layout.replica_gpus, duration_s
        for each in engine.passes:
            busy = engine.times.busy(each.rows, each.logit_rows, each.context, each.pairs, each.seconds)
            seconds = gpus * each.times * each.seconds
            drawn_s += seconds * min(most, each.share or draw.share(busy))
            tensor_s, memory_s = tensor_s + seconds * busy.tensor, memory_s + seconds * busy.memory
            prompts_s += seconds * busy.tensor * busy.prompts
            lost_s, busy_s = lost_s + seconds * (1 - (each.pace or 1.0)), busy_s + seconds
            idle_s -= each.times * each.seconds
        drawn_s += gpus * max(0.0, idle_s) * min(most, draw.idle_at(engine.times.idle_clock))
        all_s += gpus * duration_s
    held_back = lost_s / busy_s if busy_s else 0.0
    return Energy(
        gpu_power_w=gpu.power_w * drawn_s / all_s,
        joules=gpu.power_w * drawn_s,
        tensor=tensor_s / all_s,
        prompts=prompts_s / all_s,
        memory=memory_s / all_s,
        limit_w=limit_w,
        held_back=held_back,
        spread=math.hypot(draw.spread, HELD_BACK_SPREAD * held_back),
    )
