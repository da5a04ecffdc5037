from __future__ import annotations

import math
import random
from statistics import variance

import pytest

from ridgeline.stats.scaling import ScalingLaw, scaling
from ridgeline.stats.student import t_quantile


def times(seed: int, serial: float, crosstalk: float, repeats: int = 3, noise: float = 0.01) -> dict[int, list[float]]:
    rng = random.Random(seed)
    return {
        n: [
            100 * (1 + serial * (n - 1) + crosstalk * n * (n - 1)) / n * math.exp(rng.gauss(0, noise))
            for _ in range(repeats)
        ]
        for n in (1, 2, 4, 8, 16)
    }


def test_a_program_that_stalls_past_four_nodes_is_said_to() -> None:
    found = scaling(times(1, 0.05, 0.02), "minimize", random.Random(0), unit="node")
    assert found.pays_to == 4
    assert found.sure
    assert found.headline.startswith("stops paying after 4 nodes: from 4 to 8 nodes the speed changes by +1")
    assert found.law is not None
    assert found.law.name == "Gunther (USL)"
    assert found.law.peak == pytest.approx(6.9, abs=0.4)


def test_amdahl_needs_no_crosstalk() -> None:
    found = scaling(times(2, 0.05, 0.0), "minimize", random.Random(0))
    assert found.law is not None
    assert found.law.name == "Amdahl"
    assert found.law.serial == pytest.approx(0.05, abs=0.01)
    assert found.pays_to is None
    assert found.headline.startswith("still pays at 16 ranks")


def test_intervals_hold_the_true_speedup() -> None:
    held = 0
    true = 8 / (1 + 0.05 * 7)
    for seed in range(200):
        runs = times(seed, 0.05, 0.0, noise=0.05)
        step = scaling({1: runs[1], 8: runs[8]}, "minimize", random.Random(0)).steps[1]
        assert step.size == 8 and step.speedup_low is not None and step.speedup_high is not None
        held += step.speedup_low <= true <= step.speedup_high
    assert held / 200 > 0.9


def test_the_parameters_of_the_law_lie_in_their_intervals() -> None:
    held = 0
    for seed in range(30):
        law = scaling(times(seed, 0.05, 0.01, noise=0.02), "minimize", random.Random(seed)).law
        assert law is not None and law.crosstalk_low is not None and law.crosstalk_high is not None
        held += law.crosstalk_low <= 0.01 <= law.crosstalk_high
    assert held / 30 > 0.8


def test_a_noisy_step_is_doubted() -> None:
    runs = {1: [100.0, 104.0], 2: [68.0, 75.0], 4: [66.0, 60.0]}
    found = scaling(runs, "minimize", random.Random(0))
    assert not found.sure
    assert found.headline.startswith("may stop paying after")


def test_single_runs_have_no_interval_and_say_so() -> None:
    found = scaling({1: [10.0], 2: [5.2], 4: [5.0]}, "minimize", random.Random(0))
    assert found.steps[1].speedup_low is None
    assert "repeat to be sure" in found.headline
    assert found.law is not None and found.law.serial_low is None


def test_rates_and_times_agree() -> None:
    runs = times(5, 0.05, 0.01)
    rates = {n: [1 / t for t in values] for n, values in runs.items()}
    a, b = (scaling(r, d, random.Random(0)) for r, d in ((runs, "minimize"), (rates, "maximize")))  # type: ignore[arg-type]
    assert [s.speedup for s in a.steps] == pytest.approx([s.speedup for s in b.steps])
    assert a.headline == b.headline


def test_sizes_need_not_start_at_one() -> None:
    found = scaling({2: [50.0, 51.0], 4: [26.0, 26.5]}, "minimize", random.Random(0))
    assert found.steps[1].efficiency == pytest.approx(50.5 / 26.25 / 2, rel=1e-3)
    with pytest.raises(ValueError, match="two sizes"):
        scaling({1: [1.0]}, "minimize", random.Random(0))
    with pytest.raises(ValueError, match="above 0"):
        scaling({1: [1.0], 2: [0.0]}, "minimize", random.Random(0))


def test_the_interval_of_a_speedup_is_students_with_the_noise_of_all_sizes() -> None:
    runs = {1: [100.0, 103.0, 101.0], 8: [14.0, 14.5, 14.1]}
    step = scaling(runs, "minimize", random.Random(0)).steps[1]
    assert step.speedup_low is not None and step.speedup_high is not None
    logs = [[math.log(v) for v in values] for values in runs.values()]
    noise = math.sqrt(sum(variance(values) for values in logs) / 2)
    half = t_quantile(0.975, 4) * noise * math.sqrt(1 / 3 + 1 / 3)
    assert math.log(step.speedup_high / step.speedup_low) == pytest.approx(2 * half)


def test_a_program_that_gains_more_than_its_size_has_no_negative_parts() -> None:
    """Caches may fit only when the work is divided; the law knows nothing better than no losses then."""
    law = scaling({1: [100.0], 2: [45.0], 4: [20.0], 8: [9.0]}, "minimize", random.Random(0)).law
    assert law is not None
    assert (law.serial, law.crosstalk, law.peak) == (0, 0, None)


def test_the_law_is_gunthers() -> None:
    law = ScalingLaw(0.05, None, None, 0.02, None, None, None)
    assert law.speedup(1) == 1.0
    assert law.speedup(8) == pytest.approx(8 / (1 + 0.05 * 7 + 0.02 * 8 * 7))
    fitted = scaling(times(1, 0.05, 0.02, noise=0.0), "minimize", random.Random(0)).law
    assert fitted is not None
    assert (fitted.serial, fitted.crosstalk) == pytest.approx((0.05, 0.02))


def test_the_law_s_intervals_are_of_the_level_asked_for() -> None:
    """Half of all refits lie within a third of the width that holds 95% of them, as of a normal distribution."""
    runs = times(3, 0.1, 0.02, noise=0.01)
    widths = []
    for level in (0.5, 0.95):
        law = scaling(runs, "minimize", random.Random(0), level=level).law
        assert law is not None and law.crosstalk_low is not None and law.crosstalk_high is not None
        assert law.crosstalk_low < law.crosstalk < law.crosstalk_high
        widths.append(law.crosstalk_high - law.crosstalk_low)
    assert widths[1] / widths[0] == pytest.approx(1.96 / 0.674, rel=0.2)
