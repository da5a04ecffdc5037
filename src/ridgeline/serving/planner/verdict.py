"""Is it worth it to split prefill from decode? The best way together against the best way apart, for this traffic.

Both are predicted by the same twin, so most of what it may get wrong it gets wrong for both, and a ratio is surer than
either figure. What remains is drawn: how far prompts and decode steps miss their prediction, each the same for both
ways, and a part of the calibration's own spread that differs, as two layouts do.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles

from ridgeline.serving.planner.candidates import Unit
from ridgeline.serving.planner.operating_point import Option
from ridgeline.serving.planner.scheme import Pair, Scheme
from ridgeline.serving.twin.reach import ITL_SPREAD, PREFILL_SPREAD

DRAWS, _SEED = 2000, 1
# Of the calibration's spread, what two layouts of one model on one cluster do not share.
_OWN_SHARE = 0.5
# A split has two sides to keep in proportion, transfers that can fail and a router that must pair: it has to earn them.
WORTH = 1.1


@dataclass(frozen=True, slots=True)
class SplitVerdict:
    """`gain` is what apart serves for each GPU over what together does, with where nine of ten cases lie."""

    answer: str  # split, do not split, or measure first
    because: str
    together: Option | None
    apart: Option | None
    gain: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def split(self) -> bool:
        return self.answer == "split"

    def as_json(self) -> dict[str, object]:
        layouts = {n: str(o.layout) if o else None for n, o in (("together", self.together), ("apart", self.apart))}
        interval = None if self.low is None or self.high is None else [round(self.low, 4), round(self.high, 4)]
        gain = None if self.gain is None else round(self.gain, 4)
        return {"answer": self.answer, "because": self.because, **layouts, "gain": gain, "interval": interval}


def verdict_on(ranked: Sequence[Option]) -> SplitVerdict:
    """`ranked` are all that were tried, the best first."""
    together = next((o for o in ranked if not isinstance(o.scheme.shape, Pair)), None)
    apart = next((o for o in ranked if isinstance(o.scheme.shape, Pair)), None)
    if apart is None:
        return SplitVerdict("do not split", "these GPUs hold no prefill engine beside a decode engine", together, apart)
    if together is None:
        return SplitVerdict("split", "no engine that does both fits these GPUs", together, apart)
    if together.meets != apart.meets:
        able = "apart" if apart.meets else "together"
        return SplitVerdict(
            "split" if apart.meets else "do not split", f"only {able} keeps every limit", together, apart
        )
    gain = _speed(apart) / _speed(together) if _speed(together) > 0 else math.inf
    if not math.isfinite(gain) or gain <= 0:
        return SplitVerdict("do not split", "neither way serves this traffic within the limits", together, apart)
    low, high = _bounds(together, apart, gain)
    return SplitVerdict(*_judged(low, gain, high), together, apart, gain, low, high)


def _judged(low: float, gain: float, high: float) -> tuple[str, str]:
    if low >= 1.0 and gain >= WORTH:
        return "split", "it serves more for each GPU, beyond what the prediction may miss"
    if gain <= 1.0:
        return "do not split", "it serves no more for each GPU"
    if gain < WORTH:
        least = f"{WORTH - 1:.0%}"
        return "do not split", f"it gains less than {least}, for two sides to keep in proportion and KV to move"
    return "measure first", "the gain is within what the prediction may miss; calibrate, then ask again"


def _speed(option: Option) -> float:
    """Requests per second within the limits, or tokens where there are none, of one GPU."""
    whole = option.capacity_s if option.capacity_s is not None else option.total_tok_s
    return whole / option.scheme.gpus


def _bounds(together: Option, apart: Option, gain: float) -> tuple[float, float]:
    rng = random.Random(_SEED)
    own = _OWN_SHARE * together.scheme.question.calibration.spread
    ratios = []
    for _ in range(DRAWS):
        prefill, decode = math.exp(rng.gauss(0, PREFILL_SPREAD)), math.exp(rng.gauss(0, ITL_SPREAD))
        differs = math.exp(rng.gauss(0, math.sqrt(2) * own))
        changed = _rate(apart.scheme, prefill, decode) / _rate(apart.scheme)
        ratios.append(gain * differs * changed / (_rate(together.scheme, prefill, decode) / _rate(together.scheme)))
    cuts = quantiles(ratios, n=20)
    return min(cuts[0], gain), max(cuts[-1], gain)


def _rate(scheme: Scheme, prefill: float = 1.0, decode: float = 1.0) -> float:
    """Requests per second by step times, where prompts and steps take so many times as long as predicted."""
    shape = scheme.shape
    if isinstance(shape, Unit):
        return 1.0 / (shape.prefill_s * prefill + shape.decode_s * decode)
    sides = (shape.prefill_groups * shape.prefill.rate_s / prefill, shape.decode_groups * shape.decode.rate_s / decode)
    return min(sides)
