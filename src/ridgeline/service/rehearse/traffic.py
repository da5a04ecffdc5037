"""What a rehearsal sends: the user's traffic, and the same with hot prefixes and a few very long prompts."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from ridgeline.load.bench import BenchResult, bench
from ridgeline.load.options import BenchOptions, plan_from
from ridgeline.service import probe
from ridgeline.service.service import Service
from ridgeline.traffic.requests import Slo
from ridgeline.traffic.traces import PREFIX_BLOCK_TOKENS
from ridgeline.traffic.traffic import Arrival, parse_traffic

SEED = 7
# Prefixes as users have them: a few system prompts that most requests share, and many that hardly anybody does.
PREFIXES, PREFIX_BLOCKS, ZIPF = 16, 2, 1.2
LONG_EVERY, LONG_TIMES = 12, 5  # one prompt in so many is this much longer
# What a laptop's core carries of token events beside router and load generator, with room to spare.
_MACHINE_TOKENS_S = 8000.0
PATIENCE_S = 20.0  # of a client that gets nothing; a hung server is found and ended within it
DRAIN_S = 1.5
UNFINISHED = "unfinished"
SAMPLE = 1000  # requests that tell how long answers are


@dataclass(frozen=True, slots=True)
class RehearsedLoad:
    """What is sent: as `bench` takes it, for so long. `speed` is how much faster than real the servers' time passes.

    Of skewed traffic a share of `plain` requests stays as it is.
    """

    traffic: str
    rate_s: float
    seconds: float
    shared_prefix: int = 0
    speed: float = 1.0
    seed: int = SEED
    plain: float = 0.0

    def times(self, share: float) -> RehearsedLoad:
        return replace(self, rate_s=share * self.rate_s)


def bearable(load: RehearsedLoad) -> RehearsedLoad:
    """The load, or as much of it as this machine can pretend to serve in time."""
    some = replace(load, rate_s=min(load.rate_s, SAMPLE / load.seconds), speed=1.0)
    tokens = fmean(arrival.output_tokens for arrival in _arrivals(some))
    most_s = _MACHINE_TOKENS_S / tokens / load.speed
    return load if load.rate_s <= most_s else replace(load, rate_s=most_s)


def send(
    service: Service, url: str, load: RehearsedLoad, skewed_in: Path | None = None, at_least_s: float = 0.0
) -> BenchResult:
    """One run. With `skewed_in`, a folder, the traffic is skewed by way of a trace that is written there.

    Long answers are not waited for: only, and `at_least_s`, until it is clear which requests keep their limits.
    """
    slos = tuple(f"{name}={limit / load.speed:g}" for name, limit in service.slo.items())
    options = BenchOptions(
        url=url,
        traffic=load.traffic,
        rate_s=load.rate_s * load.speed,
        duration_s=load.seconds,
        shared_prefix_tokens=load.shared_prefix,
        ignore_eos=True,
        key=probe.key_of(service.api_key_env) or None,
        slos=slos,
        seed=load.seed,
        timeout_s=PATIENCE_S,
    )
    if skewed_in is not None:
        trace = skewed_in / "skewed.jsonl"
        trace.write_text(skewed_trace(load))
        options = replace(options, traffic=str(trace), rate_s=None, duration_s=None)
    plan = plan_from(options)
    return bench(replace(plan, give_up_s=load.seconds + max(at_least_s, _drain_s(plan.slos))))


def _drain_s(slos: Sequence[Slo]) -> float:
    """After this, who has no first token is late in any case, and so is who is not finished within a limit on that."""
    return max([DRAIN_S, *(1.2 * slo.limit_ms / 1000 for slo in slos if slo.latency in ("ttft", "e2e"))])


def skewed_trace(load: RehearsedLoad) -> str:
    """The same requests at the same times, most with one of a few prefixes before them, and some prompts long."""
    rng = random.Random(load.seed)
    weights = [1 / (n + 1) ** ZIPF for n in range(PREFIXES)]
    lines = []
    for arrival in _arrivals(load):
        group = rng.choices(range(PREFIXES), weights)[0]
        own = arrival.input_tokens * (LONG_TIMES if rng.randrange(LONG_EVERY) == 0 else 1)
        row: dict[str, object] = {
            "at_s": round(arrival.at_s / load.speed, 4),
            "input_length": PREFIX_BLOCKS * PREFIX_BLOCK_TOKENS + own,
            "output_length": arrival.output_tokens,
            "hash_ids": [PREFIX_BLOCKS * group + n for n in range(PREFIX_BLOCKS)],
        }
        if load.plain and rng.random() < load.plain:
            row |= {"input_length": arrival.input_tokens, "hash_ids": []}
        lines.append(json.dumps(row))
    return "\n".join([*lines, ""])


def _arrivals(load: RehearsedLoad) -> list[Arrival]:
    if Path(load.traffic).exists():
        recorded = parse_traffic(load.traffic, rate_s=load.rate_s, seed=load.seed).arrivals()
        return [arrival for arrival in recorded if arrival.at_s < load.seconds * load.speed] or recorded[:1]
    count = max(10, int(load.rate_s * load.seconds * load.speed))
    return list(parse_traffic(load.traffic, requests=count, rate_s=load.rate_s, seed=load.seed).arrivals())
