"""How many nodes a day's traffic needs, from tokens per day and measured or predicted speeds per node."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ridgeline.errors import InputError
from ridgeline.records.json_form import JsonForm, also_in_json, digits, in_json

_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Fleet(JsonForm):
    """Nodes as fractions: an average over the day. Buy `prefill_whole + decode_whole`, more for peaks."""

    prefill_nodes: float = field(metadata=in_json(to=digits(2)))
    decode_nodes: float = field(metadata=in_json(to=digits(2)))

    @property
    @also_in_json(to=digits(2))
    def total_nodes(self) -> float:
        return self.prefill_nodes + self.decode_nodes

    @property
    @also_in_json("prefill_nodes_whole")
    def prefill_whole(self) -> int:
        return math.ceil(self.prefill_nodes - 1e-9)

    @property
    @also_in_json("decode_nodes_whole")
    def decode_whole(self) -> int:
        return math.ceil(self.decode_nodes - 1e-9)

    @property
    @also_in_json(to=digits(3))
    def decode_per_prefill(self) -> float | None:
        return self.decode_nodes / self.prefill_nodes if self.prefill_nodes else None


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
