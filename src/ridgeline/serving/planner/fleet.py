"""How many nodes a day's traffic needs, from tokens per day and measured or predicted speeds per node."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ridgeline.errors import InputError

_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Fleet:
    """Nodes as fractions: an average over the day. Buy `prefill_whole + decode_whole`, more for peaks."""

    prefill_nodes: float
    decode_nodes: float

    @property
    def total_nodes(self) -> float:
        return self.prefill_nodes + self.decode_nodes

    @property
    def prefill_whole(self) -> int:
        return math.ceil(self.prefill_nodes - 1e-9)

    @property
    def decode_whole(self) -> int:
        return math.ceil(self.decode_nodes - 1e-9)

    @property
    def decode_per_prefill(self) -> float | None:
        return self.decode_nodes / self.prefill_nodes if self.prefill_nodes else None

    def as_json(self) -> dict[str, object]:
        ratio = self.decode_per_prefill
        return {
            "prefill_nodes": round(self.prefill_nodes, 2),
            "decode_nodes": round(self.decode_nodes, 2),
            "total_nodes": round(self.total_nodes, 2),
            "decode_per_prefill": None if ratio is None else round(ratio, 3),
            "prefill_nodes_whole": self.prefill_whole,
            "decode_nodes_whole": self.decode_whole,
        }


def size_fleet(
    input_tokens_per_day: float,
    output_tokens_per_day: float,
    prefill_tok_s: float,
    decode_tok_s: float,
    utilisation: float = 1.0,
) -> Fleet:
    """Nodes of each kind such that a day's tokens take a day at the given speeds, kept busy `utilisation` of it."""
    speeds = {"--prefill-tok-s": prefill_tok_s, "--decode-tok-s": decode_tok_s}
    for name, value in speeds.items():
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"{name} is {value:g}; give the tokens per second one node reaches, above zero")
    amounts = {"--input-tokens-per-day": input_tokens_per_day, "--output-tokens-per-day": output_tokens_per_day}
    for name, value in amounts.items():
        if not (math.isfinite(value) and value >= 0):
            raise InputError(f"{name} is {value:g}; give a number of tokens, zero or more")
    if input_tokens_per_day == output_tokens_per_day == 0:
        raise InputError("no tokens in and none out: there is nothing to size; give at least one of the two")
    if not 0 < utilisation <= 1:
        raise InputError(f"--utilisation is {utilisation:g}; give a share above 0 and up to 1")
    busy_s = _DAY_S * utilisation
    fleet = Fleet(input_tokens_per_day / busy_s / prefill_tok_s, output_tokens_per_day / busy_s / decode_tok_s)
    if not math.isfinite(fleet.total_nodes):
        raise InputError("such a day takes more nodes than can be counted; check the tokens per day and the speeds")
    return fleet
