"""How long one ask takes with 500 lessons, a tenth of them failures, and 20,000 candidates.

python -m benchmarks.search.ask_time
"""

from __future__ import annotations

import math
import os
import random
import statistics
import time

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

from ridgeline import catalog  # noqa: E402
from ridgeline.records.lesson import Lesson  # noqa: E402
from ridgeline.records.space import Discrete, Space  # noqa: E402

LESSONS, ASKS = 500, 10


def main() -> None:
    space = Space(tuple(Discrete(f"k{i}", tuple(range(6)), True) for i in range(8)), {})
    for name in ("guided", "tpe"):
        sampler = catalog.part("samplers", name)(space, 0, {}, lambda point: None)
        rng = random.Random(0)
        times = []
        for turn in range(LESSONS + ASKS):
            point = {knob.name: knob.at(rng.random()) for knob in space.knobs}
            if turn >= LESSONS:
                wall, cpu = time.perf_counter(), time.process_time()
                point = sampler.ask().point
                times.append((time.perf_counter() - wall, time.process_time() - cpu))
            value = math.exp(-sum((float(v) - 2) ** 2 for v in point.values()) / 40)  # type: ignore[arg-type]
            failed = float(point["k0"]) + float(point["k1"]) > 8  # type: ignore[arg-type]
            sampler.tell(Lesson(point, None if failed else value * math.exp(rng.gauss(0, 0.03))))
        first, later = times[0], times[1:]
        wall, cpu = (1000 * statistics.median(column) for column in zip(*later, strict=True))
        told = f"the first {1000 * first[1]:.0f} ms CPU"
        print(f"{name:7} {wall:6.0f} ms wall, {cpu:5.0f} ms CPU an ask ({told}, which fills the pool)")


if __name__ == "__main__":
    main()
