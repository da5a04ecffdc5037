"""The knobs of a simulated SGLang: their names in a study, what values they take, and the flags they stand for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ridgeline.records.expression import Value
from ridgeline.records.space import Settings
from ridgeline.serving.engine.layout import Layout
from ridgeline.serving.engine.settings import BACKENDS, EngineSettings


@dataclass(frozen=True, slots=True)
class Knob:
    """`field` is what it sets in Layout or EngineSettings; `flag` is SGLang's, empty where versions differ."""

    field: str
    flag: str
    takes: str  # whole, count, share, number, switch or backend
    layout: bool = False

    @property
    def echo(self) -> str:
        """Its name in the ServerArgs line of a log."""
        return self.flag.removeprefix("--").replace("-", "_") or {"attn_dp": "attn_dp_size"}.get(self.field, self.field)


KNOBS: Mapping[str, Knob] = {
    "tp": Knob("tp", "--tp-size", "whole", layout=True),
    "pp": Knob("pp", "--pp-size", "whole", layout=True),
    "dp": Knob("dp", "--dp-size", "whole", layout=True),
    "ep": Knob("ep", "--ep-size", "whole", layout=True),
    "attn_dp": Knob("attn_dp", "", "whole", layout=True),
    "max_running_requests": Knob("max_running_requests", "--max-running-requests", "whole"),
    "mem_fraction_static": Knob("mem_fraction", "--mem-fraction-static", "share"),
    "attention_backend": Knob("attention_backend", "--attention-backend", "backend"),
    "page_size": Knob("page_size", "--page-size", "whole"),
    "cuda_graph_max_bs": Knob("cuda_graph_max_bs", "", "count"),
    "chunked_prefill_size": Knob("chunked_prefill_size", "--chunked-prefill-size", "whole"),
    "max_prefill_tokens": Knob("max_prefill_tokens", "--max-prefill-tokens", "whole"),
    "schedule_conservativeness": Knob("schedule_conservativeness", "--schedule-conservativeness", "number"),
    "disable_radix_cache": Knob("radix_cache", "--disable-radix-cache", "switch"),
}


def wrong_value(name: str, value: Value) -> str:
    """Why this knob cannot have this value; empty when it can. A knob that does not exist at a point has none."""
    takes = KNOBS[name].takes
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    fits = {
        "whole": number >= 1 and number.is_integer(),
        "count": number >= 0 and number.is_integer(),
        "share": 0 < number < 1,
        "number": number > 0,
        "switch": isinstance(value, bool),
        "backend": value in BACKENDS,
    }
    if value is None or fits[takes]:
        return ""
    wanted = {
        "whole": "a whole number of at least 1",
        "count": "a whole number, 0 for none",
        "share": "a share between 0 and 1",
        "number": "a number above 0",
        "switch": "true or false",
        "backend": f"one of {', '.join(BACKENDS)}",
    }
    return f"{value!r} is not possible; {name} takes {wanted[takes]}"


def layout_of(settings: Settings, nodes: int, gpus_per_node: int) -> Layout:
    sizes = {k.field: int(settings[n]) for n, k in KNOBS.items() if k.layout and settings.get(n) is not None}  # type: ignore[arg-type]
    return replace(Layout(nodes=nodes, gpus_per_node=gpus_per_node), **sizes)  # type: ignore[arg-type]


def engine_of(settings: Settings, version: EngineSettings) -> EngineSettings:
    """InputError says which value the engine would not take."""
    given = {
        k.field: _typed(k, value) for n, k in KNOBS.items() if not k.layout and (value := settings.get(n)) is not None
    }
    return replace(version, **given)  # type: ignore[arg-type]


def _typed(knob: Knob, value: Value) -> Value:
    if knob.takes in ("whole", "count"):
        return int(value)  # type: ignore[arg-type]
    return not value if knob.takes == "switch" else value


def flags(settings: Settings, version: tuple[int, ...]) -> str:
    """As typed after `python -m sglang...`; settings that are no knobs of the engine are left out."""
    from ridgeline.serving.engine.flag_names import flag_names

    renamed = flag_names(version)
    words = []
    for name, knob in KNOBS.items():
        value = settings.get(name)
        if value is None or value is False or (name in ("dp", "ep", "attn_dp", "pp") and value == 1):
            continue
        flag = knob.flag or renamed["attention_dp" if name == "attn_dp" else "graph_max_bs"]
        if name == "cuda_graph_max_bs" and value == 0:
            words.append(renamed["no_graph"])
        else:
            words.append(
                flag if value is True else f"{flag} {value:g}" if isinstance(value, float) else f"{flag} {value}"
            )
    return " ".join(words)
