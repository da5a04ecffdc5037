"""Arguments of the servers of a scheme, in our names and in the flags of their release."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from ridgeline.records.expression import Value
from ridgeline.records.json_form import NOT_IN_JSON, JsonForm, also_in_json
from ridgeline.serving.engines.base import engine_named
from ridgeline.serving.engines.deepep import uses_deepep
from ridgeline.serving.engines.knobs.engine_flags import engine_flags
from ridgeline.serving.engines.knobs.releases import release_text
from ridgeline.serving.planner.candidates import Unit
from ridgeline.serving.planner.pairing import Pair
from ridgeline.serving.planner.scheme import Scheme

# DeepEP's low-latency kernels take this many tokens a rank unless told otherwise.
DEEPEP_RANK_TOKENS = 128
DEEPEP_LIMIT = "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"


@dataclass(frozen=True, slots=True)
class Command(JsonForm):
    """One line to run on one node."""

    what: str  # engine 0, prefill 1, router
    node: str
    argv: tuple[str, ...] = field(metadata=NOT_IN_JSON)
    env: Mapping[str, str] = field(default_factory=dict, metadata=NOT_IN_JSON)

    @also_in_json("command")
    def __str__(self) -> str:
        env = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
        return " ".join([*env, *map(shlex.quote, self.argv)])


def groups_of(scheme: Scheme) -> list[tuple[Unit, int]]:
    if isinstance(scheme.shape, Pair):
        p, d = scheme.shape.prefill_groups, scheme.shape.decode_groups
        return [(scheme.shape.prefill, scheme.copies * p), (scheme.shape.decode, scheme.copies * d)]
    return [(scheme.shape, scheme.copies)]


def unit_env(unit: Unit) -> dict[str, str]:
    """What must be in the environment of its servers."""
    rank_batch = -(-unit.cap // (unit.layout.attn_dp * unit.layout.pp))
    if unit.role != "prefill" and uses_deepep(unit.layout) and rank_batch > DEEPEP_RANK_TOKENS:
        return {DEEPEP_LIMIT: str(rank_batch)}
    return {}


def unit_values(unit: Unit) -> dict[str, Value]:
    """Layout, memory, scheduling and dtypes of one engine under our names, every value written out; not its role."""
    engine, gpu = engine_named(unit.settings.engine), unit.question.cluster.gpu
    own = engine.planned_values(unit.layout, unit.settings, unit.role, unit.cap, unit.chunk_flag, unit.memory, gpu)
    return {**own, **unit.question.dtype_settings}


def unit_arguments(unit: Unit) -> list[str]:
    """The same in the flags of its release, with its role."""
    values = unit_values(unit)
    if unit.role != "both":
        values["disaggregation_mode"] = unit.role
    return engine_flags(unit.settings.engine).arguments(values, unit.settings.version)


def written_for(scheme: Scheme) -> str:
    """`SGLang 0.5.23`: the release whose flags the commands have."""
    settings = scheme.question.settings
    return release_text(settings.engine, settings.version)
