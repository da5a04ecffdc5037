"""How long prompts and answers are: fixed, uniform, log-normal, like ShareGPT, in sessions, or as recorded."""

from __future__ import annotations

import math
import os
import random
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist

from ridgeline.errors import InputError, did_you_mean
from ridgeline.serving.traffic.replay import Replay, TraceRow
from ridgeline.serving.traffic.session_mix import SessionMix, parse_sessions
from ridgeline.serving.traffic.traces import read_trace

# The published ShareGPT runs: 2000 prompts, 626,729 input and 388,685 output tokens.
_SHAREGPT_INPUT_MEAN = 626_729 / 2000
_SHAREGPT_OUTPUT_MEAN = 388_685 / 2000
_LONGEST = 1_000_000  # tokens of a prompt or an answer, where nothing else is said


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

    def draw(self, count: int, rng: random.Random) -> list[TraceRow]:
        return [TraceRow(self.input_tokens, self.output_tokens)] * count


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every length of a range as likely as any other; stratified as those of `LogNormal`."""

    input_tokens: tuple[int, int]
    output_tokens: tuple[int, int]

    def __post_init__(self) -> None:
        for least, most in (self.input_tokens, self.output_tokens):
            if not 1 <= least <= most <= _LONGEST:
                raise InputError(
                    f"{self}: a range goes from its shortest to its longest length, 1 to {_LONGEST:,} tokens, "
                    "for example uniform:800-1000:100-200"
                )

    def __str__(self) -> str:
        ranges = (f"{least}-{most}" for least, most in (self.input_tokens, self.output_tokens))
        return f"uniform:{':'.join(ranges)}"

    def draw(self, count: int, rng: random.Random) -> list[TraceRow]:
        inputs, outputs = (_evenly(count, *ends, rng) for ends in (self.input_tokens, self.output_tokens))
        return list(map(TraceRow, inputs, outputs))


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Log-normal lengths with the given means after clipping; a mean that clipping makes impossible is refused.

    Draws are stratified: the k-th of n lengths comes from the k-th n-th of the distribution, then all are shuffled, so
    that even a few hundred requests have the stated mean and tail and a small trial resembles a large one.
    """

    input_mean: float
    output_mean: float
    input_sigma: float = 1.0
    output_sigma: float = 1.0
    input_limit: int = _LONGEST
    output_limit: int = _LONGEST

    def __post_init__(self) -> None:
        if not (self.input_mean >= 1 and self.output_mean >= 1):
            raise InputError(f"mean lengths {self.input_mean:g}:{self.output_mean:g} must both be at least one token")
        if not (0 <= self.input_sigma <= 3 and 0 <= self.output_sigma <= 3):
            raise InputError("the sigma of log-normal lengths must be between 0 (all equal) and 3; 1 is typical")
        self._check_mean("prompts", self.input_mean, self.input_sigma, self.input_limit)
        self._check_mean("answers", self.output_mean, self.output_sigma, self.output_limit)

    def _check_mean(self, whose: str, mean: float, sigma: float, limit: int) -> None:
        # past this mean more than half of all lengths would be the longest one, and nothing of the shape is left
        most = min(_clipped_mean(limit, sigma, limit), limit - 1)
        if mean > most:
            freer = f"lognormal:{self.input_mean:g}:{self.output_mean:g}:{sigma:g}, which cuts at {_LONGEST:,}"
            remedy = f", or {freer}" if limit < _LONGEST and mean < _LONGEST / 2 else ""
            raise InputError(
                f"{whose} of {mean:,g} tokens on average cannot come from lengths of at most {limit:,}; "
                f"use a mean up to {math.floor(most):,}{remedy}"
            )

    def draw(self, count: int, rng: random.Random) -> list[TraceRow]:
        inputs = _stratified(count, self.input_mean, self.input_sigma, self.input_limit, rng)
        outputs = _stratified(count, self.output_mean, self.output_sigma, self.output_limit, rng)
        return list(map(TraceRow, inputs, outputs))


def sharegpt(input_mean: float = _SHAREGPT_INPUT_MEAN, output_mean: float = _SHAREGPT_OUTPUT_MEAN) -> LogNormal:
    """Lengths that resemble ShareGPT's first turns.

    Answers follow a log-normal with sigma 0.98 cut at 1024 tokens: the survival curve that a real run's decode log
    shows (95% still running after 26 tokens, 56% after 106, 11% after 425, 2% at 985). Prompts are wider.
    """
    return LogNormal(input_mean, output_mean, 1.1, 0.98, 2048, 1024)


Lengths = Fixed | Uniform | LogNormal | SessionMix | Replay


def parse_lengths(text: str) -> Lengths:
    """Lengths from the words of the command line; a trace file by its path."""
    kind, _, rest = text.partition(":")
    if kind == "sharegpt":
        return sharegpt(*_numbers(text, rest, 2)) if rest else sharegpt()
    if kind == "fixed":
        tokens = _numbers(text, rest, 2)
        if any(t != int(t) for t in tokens):
            raise InputError(f"traffic {text!r}: lengths are whole tokens, for example fixed:1024:128")
        return Fixed(int(tokens[0]), int(tokens[1]))
    if kind == "uniform":
        return _uniform(text, rest)
    if kind == "lognormal":
        values = _numbers(text, rest, 3) if rest.count(":") == 2 else [*_numbers(text, rest, 2), 1.0]
        return LogNormal(values[0], values[1], values[2], values[2])
    if kind == "sessions":
        return parse_sessions(text)
    path = Path(text)
    if not text or not os.path.exists(path):  # noqa: PTH110  pathlib raises for names no file can have
        hint = did_you_mean(kind, ("sharegpt", "fixed", "uniform", "lognormal", "sessions"))
        raise InputError(
            f"traffic {text!r} is neither a file nor one of sharegpt, sharegpt:IN:OUT, fixed:IN:OUT, "
            "uniform:FROM-TO:FROM-TO, lognormal:IN:OUT[:SIGMA], sessions:agent, sessions:chat"
            f"{'; ' if hint else ''}{hint}"
        )
    return read_trace(path)


def _uniform(text: str, rest: str) -> Uniform:
    parts = [part.split("-") for part in rest.split(":")]
    if len(parts) != 2 or not all(len(part) in (1, 2) and all(p.isdecimal() for p in part) for part in parts):
        raise InputError(f"traffic {text!r} needs two ranges of whole tokens, for example uniform:800-1000:100-200")
    prompts, answers = ((int(part[0]), int(part[-1])) for part in parts)
    return Uniform(prompts, answers)


def _numbers(text: str, rest: str, count: int) -> list[float]:
    parts = rest.split(":")
    try:
        values = [float(p) for p in parts]
    except ValueError:
        values = []
    if len(values) != count or not all(math.isfinite(v) for v in values):
        raise InputError(f"traffic {text!r} needs {count} numbers after its name, for example fixed:1024:128")
    return values


def _evenly(count: int, least: int, most: int, rng: random.Random) -> list[int]:
    offset = rng.random()
    lengths = [least + int((k + offset) / count * (most - least + 1)) for k in range(count)]
    rng.shuffle(lengths)
    return lengths


def _stratified(count: int, mean: float, sigma: float, limit: int, rng: random.Random) -> list[int]:
    lengths = list(_in_order(count, mean, sigma, limit, rng.random()))
    rng.shuffle(lengths)
    return lengths


@lru_cache(maxsize=16)  # a search simulates the same traffic for hundreds of settings
def _in_order(count: int, mean: float, sigma: float, limit: int, offset: float) -> tuple[int, ...]:
    median = _median_for_mean(mean, sigma, limit)
    normal = NormalDist().inv_cdf
    # inv_cdf is undefined at 0 and 1; the offset never reaches them because of the half step kept at either end
    shares = ((k + 0.05 + 0.9 * offset) / count for k in range(count))
    return tuple(max(1, min(limit, round(median * math.exp(sigma * normal(share))))) for share in shares)


def _median_for_mean(mean: float, sigma: float, limit: int) -> float:
    """The median whose log-normal, cut at one token and at `limit`, has the wanted mean."""
    low, high = mean * 1e-9, float(limit)
    for _ in range(80):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _clipped_mean(middle, sigma, limit) < mean else (low, middle)
    return low


def _clipped_mean(median: float, sigma: float, limit: int) -> float:
    if sigma == 0:
        return max(1.0, min(median, limit))
    cdf = NormalDist().cdf
    shortest, longest = -math.log(median) / sigma, math.log(limit / median) / sigma
    between = median * math.exp(sigma * sigma / 2) * (cdf(longest - sigma) - cdf(shortest - sigma))
    return cdf(shortest) + between + limit * (1 - cdf(longest))
