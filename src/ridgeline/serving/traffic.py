"""What users send: how long each prompt and answer is, which prompts share a beginning, and when they arrive.

`Traffic` is the recipe, `arrivals()` the list it stands for; the same recipe and seed always give the same list, so the
load generator and the twin can replay exactly the same requests. Tokens are counted, text is never needed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from statistics import NormalDist

from ridgeline.errors import InputError
from ridgeline.serving.traces import TraceRow, read_trace

# The published ShareGPT runs: 2000 prompts, 626,729 input and 388,685 output tokens.
SHAREGPT_INPUT_MEAN = 626_729 / 2000
SHAREGPT_OUTPUT_MEAN = 388_685 / 2000


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request before anybody has served it. `at_s` is when it should be sent, counted from the run's start.

    `prefix_hashes` names the prompt's blocks of `traces.PREFIX_BLOCK_TOKENS` tokens from its beginning: two prompts
    that start with the same hashes start with the same text and may share KV cache.
    """

    number: int
    at_s: float
    input_tokens: int
    output_tokens: int
    prefix_hashes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Fixed:
    """Every prompt and every answer of one length."""

    input_tokens: int
    output_tokens: int

    def __post_init__(self) -> None:
        if self.input_tokens < 1 or self.output_tokens < 1:
            raise InputError(
                f"fixed:{self.input_tokens}:{self.output_tokens}: both lengths must be at least one token, "
                "for example fixed:1024:128"
            )

    def draw(self, count: int, rng: random.Random) -> list[tuple[int, int]]:
        return [(self.input_tokens, self.output_tokens)] * count


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Log-normal lengths with the given means after clipping.

    Draws are stratified: the k-th of n lengths comes from the k-th n-th of the distribution, then all are shuffled, so
    that even a few hundred requests have the stated mean and tail and a small trial resembles a large one.
    """

    input_mean: float
    output_mean: float
    input_sigma: float = 1.0
    output_sigma: float = 1.0
    input_limit: int = 1_000_000
    output_limit: int = 1_000_000

    def __post_init__(self) -> None:
        if not (self.input_mean >= 1 and self.output_mean >= 1):
            raise InputError(f"mean lengths {self.input_mean:g}:{self.output_mean:g} must both be at least one token")
        if not (0 <= self.input_sigma <= 3 and 0 <= self.output_sigma <= 3):
            raise InputError("the sigma of log-normal lengths must be between 0 (all equal) and 3; 1 is typical")

    def draw(self, count: int, rng: random.Random) -> list[tuple[int, int]]:
        inputs = _stratified(count, self.input_mean, self.input_sigma, self.input_limit, rng)
        outputs = _stratified(count, self.output_mean, self.output_sigma, self.output_limit, rng)
        return list(zip(inputs, outputs, strict=True))


def sharegpt(input_mean: float = SHAREGPT_INPUT_MEAN, output_mean: float = SHAREGPT_OUTPUT_MEAN) -> LogNormal:
    """Lengths that resemble ShareGPT's first turns.

    Answers follow a log-normal with sigma 0.98 cut at 1024 tokens: the survival curve that a real run's decode log
    shows (95% still running after 26 tokens, 56% after 106, 11% after 425, 2% at 985). Prompts are wider.
    """
    return LogNormal(input_mean, output_mean, 1.1, 0.98, 2048, 1024)


@dataclass(frozen=True, slots=True)
class Replay:
    """The lengths, and where it has them the times and shared prefixes, of a recorded trace."""

    rows: tuple[TraceRow, ...]
    source: str

    @property
    def timed(self) -> bool:
        return all(row.at_s is not None for row in self.rows)

    def draw(self, count: int, rng: random.Random) -> list[tuple[int, int]]:
        return [(row.input_tokens, row.output_tokens) for row in self.rows[:count]]


Lengths = Fixed | LogNormal | Replay


@dataclass(frozen=True, slots=True)
class AllAtOnce:
    """Everything is sent at time zero, as an offline benchmark does."""


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """At most `concurrency` requests are under way; the next is sent when one ends."""

    concurrency: int

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise InputError(f"concurrency {self.concurrency} would send nothing; use 1 or more")


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Requests arrive at `rate_s` per second, whatever the server does.

    `burstiness` is the squared coefficient of variation of the gaps: 0 constant, 1 Poisson, above 1 burstier (gamma).
    """

    rate_s: float
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        if not (self.rate_s > 0 and math.isfinite(self.rate_s)):
            raise InputError(
                f"a rate of {self.rate_s:g} requests/s cannot be sent; give a number above zero, "
                "or leave it out to send everything at once"
            )
        if not 0 <= self.burstiness <= 100:
            raise InputError(f"burstiness {self.burstiness:g} is outside 0 (constant) to 100; 1 is Poisson")


@dataclass(frozen=True, slots=True)
class AsRecorded:
    """The times of the replayed trace, `speed` times as fast."""

    speed: float = 1.0

    def __post_init__(self) -> None:
        if not self.speed > 0:
            raise InputError(f"a trace cannot be replayed at speed {self.speed:g}; use a speed above zero")


Pace = AllAtOnce | ClosedLoop | OpenLoop | AsRecorded


@dataclass(frozen=True, slots=True)
class Traffic:
    """A recipe for requests: lengths, pace, how many, and the seed that makes it repeatable."""

    lengths: Lengths
    requests: int
    pace: Pace = field(default_factory=AllAtOnce)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.requests < 1:
            raise InputError(f"{self.requests} requests is nothing to send; use 1 or more")
        if isinstance(self.pace, AsRecorded) and not (isinstance(self.lengths, Replay) and self.lengths.timed):
            raise InputError("this traffic carries no times to replay; give a rate, a concurrency, or send all at once")

    @property
    def concurrency(self) -> int | None:
        """The most requests under way at a time in a closed loop; None when the pace sets no such limit."""
        return self.pace.concurrency if isinstance(self.pace, ClosedLoop) else None

    def arrivals(self) -> list[Arrival]:
        """Every request, in order of time. In a closed loop all are due at zero and wait for a free place."""
        rng = random.Random(self.seed)
        lengths = self.lengths.draw(self.requests, rng)
        times = self._times(len(lengths), rng)
        hashes: Sequence[tuple[int, ...]] = [()] * len(lengths)
        if isinstance(self.lengths, Replay):
            hashes = [row.prefix_hashes for row in self.lengths.rows[: len(lengths)]]
        rows = zip(times, lengths, hashes, strict=True)
        return [Arrival(number, at, i, o, h) for number, (at, (i, o), h) in enumerate(rows)]

    def longest_tokens(self) -> int:
        """Tokens that the longest request needs in the context window."""
        return max(a.input_tokens + a.output_tokens for a in self.arrivals())

    def _times(self, count: int, rng: random.Random) -> list[float]:
        if isinstance(self.pace, OpenLoop):
            return _open_loop_times(count, self.pace, rng)
        if isinstance(self.pace, AsRecorded):
            assert isinstance(self.lengths, Replay)
            recorded = [row.at_s or 0.0 for row in self.lengths.rows[:count]]
            first = min(recorded)
            return [(at - first) / self.pace.speed for at in recorded]
        return [0.0] * count


def parse_traffic(
    text: str,
    *,
    requests: int | None = None,
    rate_s: float | None = None,
    concurrency: int | None = None,
    burstiness: float = 1.0,
    seed: int = 0,
) -> Traffic:
    """Traffic from the words of the command line.

    `sharegpt`, `sharegpt:IN:OUT` (other means), `fixed:IN:OUT`, `lognormal:IN:OUT[:SIGMA]`, or a trace file. Without a
    rate or a concurrency a timed trace keeps its own times and everything else is sent at once.
    """
    if rate_s is not None and concurrency is not None:
        raise InputError("give a rate (open loop) or a concurrency (closed loop), not both")
    lengths = _parse_lengths(text)
    count = requests
    if isinstance(lengths, Replay):
        count = len(lengths.rows) if requests is None else requests
        if count > len(lengths.rows):
            raise InputError(f"{lengths.source} holds {len(lengths.rows)} requests; ask for that many or fewer")
    pace: Pace = AllAtOnce()
    if rate_s is not None:
        pace = OpenLoop(rate_s, burstiness)
    elif concurrency is not None:
        pace = ClosedLoop(concurrency)
    elif isinstance(lengths, Replay) and lengths.timed:
        pace = AsRecorded()
    return Traffic(lengths, 1000 if count is None else count, pace, seed)


def _parse_lengths(text: str) -> Lengths:
    kind, _, rest = text.partition(":")
    if kind == "sharegpt":
        return sharegpt(*_numbers(text, rest, 2)) if rest else sharegpt()
    if kind == "fixed":
        tokens = _numbers(text, rest, 2)
        if any(t != int(t) for t in tokens):
            raise InputError(f"traffic {text!r}: lengths are whole tokens, for example fixed:1024:128")
        return Fixed(int(tokens[0]), int(tokens[1]))
    if kind == "lognormal":
        values = _numbers(text, rest, 3) if rest.count(":") == 2 else [*_numbers(text, rest, 2), 1.0]
        return LogNormal(values[0], values[1], values[2], values[2])
    path = Path(text)
    if not text or not path.exists():
        near = get_close_matches(kind, ("sharegpt", "fixed", "lognormal"), 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InputError(
            f"traffic {text!r} is neither a file nor one of sharegpt, sharegpt:IN:OUT, fixed:IN:OUT, "
            f"lognormal:IN:OUT[:SIGMA]{hint}"
        )
    return Replay(tuple(read_trace(path)), str(path))


def _numbers(text: str, rest: str, count: int) -> list[float]:
    parts = rest.split(":")
    try:
        values = [float(p) for p in parts]
    except ValueError:
        values = []
    if len(values) != count or not all(math.isfinite(v) for v in values):
        raise InputError(f"traffic {text!r} needs {count} numbers after its name, for example fixed:1024:128")
    return values


def _stratified(count: int, mean: float, sigma: float, limit: int, rng: random.Random) -> list[int]:
    median = _median_for_mean(mean, sigma, limit)
    normal = NormalDist().inv_cdf
    offset = rng.random()
    # inv_cdf is undefined at 0 and 1; the offset never reaches them because of the half step kept at either end
    shares = ((k + 0.05 + 0.9 * offset) / count for k in range(count))
    lengths = [max(1, min(limit, round(median * math.exp(sigma * normal(share))))) for share in shares]
    rng.shuffle(lengths)
    return lengths


def _median_for_mean(mean: float, sigma: float, limit: int) -> float:
    """The median whose log-normal, cut at `limit`, has the wanted mean."""
    if mean >= limit:
        raise InputError(
            f"a mean length of {mean:g} tokens cannot come from lengths of at most {limit}; "
            "use a smaller mean, or lognormal:IN:OUT, which cuts at a million"
        )
    cdf = NormalDist().cdf

    def clipped_mean(median: float) -> float:
        if sigma == 0:
            return min(median, limit)
        edge = math.log(limit / median) / sigma
        return median * math.exp(sigma * sigma / 2) * cdf(edge - sigma) + limit * (1 - cdf(edge))

    low, high = mean * math.exp(-sigma * sigma), float(limit)
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if clipped_mean(middle) < mean else (low, middle)
    return low


def _open_loop_times(count: int, pace: OpenLoop, rng: random.Random) -> list[float]:
    times, now = [], 0.0
    for _ in range(count):
        times.append(now)
        if pace.burstiness == 0:
            now += 1.0 / pace.rate_s
        elif pace.burstiness == 1:
            now += rng.expovariate(pace.rate_s)
        else:
            now += rng.gammavariate(1.0 / pace.burstiness, pace.burstiness / pace.rate_s)
    # Given how many arrive in a span, where in it they fall is what is random: stretching the draw to the span that
    # the rate asks for keeps its shape and spares a short run an offered rate some percent off what was typed.
    last_s, wanted_s = times[-1], (count - 1) / pace.rate_s
    return [at * wanted_s / last_s for at in times] if last_s > 0 else times
