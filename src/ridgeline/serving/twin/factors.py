"""How far a site is from the priors: a handful of physical factors, each 1 until a measurement says otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from ridgeline.errors import InputError
from ridgeline.records.json_form import JsonForm

# A machine this many times faster or slower than the priors is another machine.
FARTHEST = 1000.0


@dataclass(frozen=True, slots=True)
class Factors(JsonForm):
    """The first four multiply rates (above 1 is faster), the others multiply times (above 1 is slower)."""

    compute: float = 1.0  # matrix products limited by FLOP/s
    memory: float = 1.0  # weights and activations streamed from HBM
    attention: float = 1.0  # attention kernels of the chosen back end
    network: float = 1.0  # collectives, delay and rate alike
    host: float = 1.0  # Python and launches of the engine's process in decode steps
    prefill_host: float = 1.0  # the same in prefill rounds: metadata, irregular shapes, waiting for counts
    decode: float = 1.0  # the GPU's part of a decode step as a whole, whatever of it the priors miss
    prefill: float = 1.0  # the same of a prefill round
    front_end: float = 1.0  # tokenizer, HTTP, detokenizer and the queues between them

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 1 / FARTHEST <= value <= FARTHEST:
                raise InputError(
                    f"factor {field.name} is {value!r}; it must be a number above zero, from {1 / FARTHEST:g} to "
                    f"{FARTHEST:g}, 1 where nothing is known"
                )

    @classmethod
    def of(cls, values: Mapping[str, float], where: str = "factors") -> Factors:
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise InputError(f"{where}: {unknown[0]} is not a factor; known: {', '.join(sorted(known))}")
        return cls(**{name: float(value) for name, value in values.items()})


PRIORS = Factors()
NAMES = tuple(f.name for f in fields(Factors))
# How far, as a standard deviation of the logarithm, sites are believed to differ from the priors before any
# measurement. Memory bandwidth hardly varies between healthy machines; hosts and their Python differ widely.
PRIOR_SPREAD: Mapping[str, float] = {
    "compute": 0.25,
    "memory": 0.12,
    "attention": 0.35,
    "network": 0.35,
    "host": 0.50,
    "prefill_host": 0.60,
    "decode": 0.20,
    "prefill": 0.20,
    "front_end": 0.50,
}
# The two that stand for a whole phase: what is wrong with its kernels together. First tokens and times between tokens
# of whole runs show which phase is off and hardly which kernel. Steps of many sizes tell kernels apart, and what they
# say holds for other models too; a throughput tells no phase from the other.
PHASES = ("decode", "prefill")


def prior_spreads(*, phases: bool) -> dict[str, float]:
    """What is believed of each factor; `phases`: figures of single phases are among what was measured."""
    return {name: spread for name, spread in PRIOR_SPREAD.items() if phases or name not in PHASES}
