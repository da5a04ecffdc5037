"""What GPUs draw while they serve: watts by what each pass keeps at work, and joules for each token of an answer.

A GPU that holds an engine draws its idle watts whatever it does; tensor cores and memory add theirs for the time in
which they are at work. Nothing draws more than its limit: clocks fall before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.serving.hardware.cluster import Gpu
from ridgeline.serving.twin.scheduler import Engine
from ridgeline.stats.stated_range import NORMAL_90


@dataclass(frozen=True, slots=True)
class Draw:
    """Shares of a GPU's limit of power: idle, and what is added by tensor cores, and by memory, at work all the time.

    `spread` is the standard deviation of log(measured / predicted) watts.
    """

    idle: float
    tensor: float
    memory: float
    spread: float


ENERGY_FIGURES = ("gpu_power_w", "joules_per_output_token")  # of a result, each with its interval
# Idle: 125 to 135 W of an H200 that holds an engine (samples of examples/05-sglang-h200). The others were chosen on
# public loads of vLLM 0.11 (`benchmarks/twin/energy.py`).
_H100, _B200 = Draw(0.18, 0.50, 0.60, 0.13), Draw(0.22, 0.70, 0.60, 0.28)
_MEASURED = {"h100": _H100, "b200": _B200}
_BY_GENERATION = {"hopper": _H100, "blackwell": _B200}
_OTHER = Draw(0.20, 0.60, 0.60, 0.0)
# Of a GPU of which no such load was seen: of a generation that was, and of another one.
_NEAR, _FAR = 0.20, 0.35


def draw_of(gpu: Gpu) -> Draw:
    """What parts of this GPU draw; wider where it is derived from others'."""
    if gpu.name in _MEASURED:
        return _MEASURED[gpu.name]
    near = _BY_GENERATION.get(gpu.generation)
    known = near or _OTHER
    return Draw(known.idle, known.tensor, known.memory, math.hypot(known.spread, _NEAR if near else _FAR))


@dataclass(frozen=True, slots=True)
class Energy:
    """Of a run: watts of one GPU on average, and all joules of the GPUs.

    `tensor` and `memory` are shares of the time in which they are at work; `limit_w` is of one GPU.
    """

    gpu_power_w: float
    joules: float
    tensor: float
    memory: float
    limit_w: float
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


def energy_of(engines: Sequence[Engine], gpu: Gpu, duration_s: float) -> Energy | None:
    """Of all GPUs of these engines from the first request to the last token; None where their limit is not known."""
    if gpu.power_w is None or duration_s <= 0:
        return None
    draw = draw_of(gpu)
    drawn_s = tensor_s = memory_s = all_s = 0.0  # each in seconds of a GPU
    for engine in engines:
        gpus, idle_s = engine.times.layout.replica_gpus, duration_s
        for each in engine.passes:
            work = engine.times.work(each.rows, each.logit_rows, each.context, each.pairs)
            seconds = each.times * each.seconds
            tensor, memory = (min(1.0, part_s / each.seconds) for part_s in work)
            drawn_s += gpus * seconds * min(1.0, draw.idle + draw.tensor * tensor + draw.memory * memory)
            tensor_s, memory_s = tensor_s + gpus * seconds * tensor, memory_s + gpus * seconds * memory
            idle_s -= seconds
        drawn_s += gpus * max(0.0, idle_s) * draw.idle
        all_s += gpus * duration_s
    power_w = gpu.power_w * drawn_s / all_s
    return Energy(power_w, gpu.power_w * drawn_s, tensor_s / all_s, memory_s / all_s, gpu.power_w, draw.spread)
