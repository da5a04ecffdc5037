"""How long one ask takes with 500 observations, a tenth of them failures, and 20,000 candidates.

Without anything predicted; with an expectation that is right, and with one whose order is reversed. What the
expectation itself takes to answer is not counted.

python -m benchmarks.search.ask_time
"""

from __future__ import annotations

import math
import os
import random
import statistics
import time
from dataclasses import dataclass

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

from benchmarks.search.peers import made_by  # noqa: E402
from ridgeline.records.observation import Expectation, Observation  # noqa: E402
from ridgeline.records.space import Discrete, Point, Space  # noqa: E402
from ridgeline.samplers.base import Prior  # noqa: E402

LESSONS, ASKS = 500, 10


def speed(point: Point) -> float:
    return math.exp(-sum((float(v) - 2) ** 2 for v in point.values()) / 40)  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Foretold(Prior):
    """Six things that it rests on, as the twin has."""

    power: float

    def __call__(self, point: Point) -> Expectation:
        mean = speed(point) ** self.power
        return Expectation(mean, 0.8 * mean, 1.2 * mean, 0.95)

    def sensitivities(self, point: Point) -> tuple[float, ...]:
        return tuple(0.02 * float(point[f"k{i}"]) for i in range(6))  # type: ignore[arg-type]


def main() -> None:
    space = Space(tuple(Discrete(f"k{i}", tuple(range(6)), True) for i in range(8)), {})
    for name in ("guided", "expecting", "reversed", "tpe"):
        kind = "tpe" if name == "tpe" else "guided"
        sampler = made_by(kind)(space, 0, {}, lambda point: None)
        if name in ("expecting", "reversed"):
            sampler.expect(_Foretold(-1.0 if name == "reversed" else 1.0))
        rng = random.Random(0)
        times = []
        for turn in range(LESSONS + ASKS):
            point = {knob.name: knob.at(rng.random()) for knob in space.knobs}
            if turn >= LESSONS:
                wall, cpu = time.perf_counter(), time.process_time()
                point = sampler.ask().point
                times.append((time.perf_counter() - wall, time.process_time() - cpu))
            value = speed(point)
            failed = float(point["k0"]) + float(point["k1"]) > 8  # type: ignore[arg-type]
            sampler.tell(Observation(point, None if failed else value * math.exp(rng.gauss(0, 0.03))))
        first, later = times[0], times[1:]
        wall, cpu = (1000 * statistics.median(column) for column in zip(*later, strict=True))
        told = f"the first {1000 * first[1]:.0f} ms CPU"
        print(f"{name:9} {wall:6.0f} ms wall, {cpu:5.0f} ms CPU an ask ({told}, which fills the pool)")


if __name__ == "__main__":
    main()
