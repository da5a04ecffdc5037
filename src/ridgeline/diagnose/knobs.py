"""Advice as knobs of a study: which values to try beside the one that ran, and the YAML to paste."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ridgeline.diagnose.base import knob
from ridgeline.records.expression import Value
from ridgeline.records.finding import Finding, KnobToTry

# whose knobs -> the kinds of workload whose studies take them
STUDY_KINDS = {
    "sglang": ("sglang-offline", "sglang-serve"),
    "vllm": ("vllm-offline", "vllm-serve"),
    "engine": ("sglang-offline", "sglang-serve", "vllm-offline", "vllm-serve"),
    "nwchem": ("nwchem",),
}
_MOST_GRAPHS = 4096
_MOST_MEMORY = 0.94


@dataclass(frozen=True, slots=True)
class EngineKnobs:
    """An argument of an engine, as its log repeats it, and which way advice moves it."""

    engine: str
    said: Mapping[str, object]

    def named(self, what: str) -> tuple[KnobToTry, ...]:
        """Knobs for one kind of advice; none where the log does not say what ran."""
        moves = _MOVES[self.engine].get(what, ())
        return tuple(k for name, move in moves for k in self._moved(name, move))

    def graphs_up_to(self, batch: int) -> tuple[KnobToTry, ...]:
        """Graphs for the batches that ran, or batches that the graphs hold."""
        largest = self._whole("cuda_graph_max_bs")
        if largest is None:
            return ()
        enough = min(_MOST_GRAPHS, 1 << (batch - 1).bit_length())
        graphs = knob(self.engine, "cuda_graph_max_bs", largest, [enough])
        cap = self._whole("max_running_requests")
        return graphs + (knob(self.engine, "max_running_requests", cap, [largest]) if cap else ())

    def _moved(self, name: str, move: Callable[[float], Sequence[Value]]) -> tuple[KnobToTry, ...]:
        current = self.said.get(name, _DEFAULTS[self.engine].get(name))
        if isinstance(current, str):
            return knob(self.engine, name, current, move(0.0))
        if not isinstance(current, int | float):
            return ()
        return knob(self.engine, name, current, move(float(current)))

    def _whole(self, name: str) -> int | None:
        value = self.said.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _times(*factors: float) -> Callable[[float], Sequence[Value]]:
    return lambda value: [max(1, round(value * factor)) for factor in factors] if value >= 1 else []


def _plus(*steps: float) -> Callable[[float], Sequence[Value]]:
    return lambda value: [round(value + s, 3) for s in steps if 0.3 <= value + s <= _MOST_MEMORY]


def _one_of(*values: Value) -> Callable[[float], Sequence[Value]]:
    return lambda _: values


_Moves = dict[str, tuple[tuple[str, Callable[[float], Sequence[Value]]], ...]]
_MOVES: dict[str, _Moves] = {
    "sglang": {
        "cap": (("max_running_requests", _times(2, 4)),),
        "no-graphs": (("disable_cuda_graph", _one_of(False)),),
        "more-pool": (("mem_fraction_static", _plus(0.02, 0.04)), ("kv_cache_dtype", _one_of("fp8_e5m2"))),
        "less-memory": (("mem_fraction_static", _plus(-0.04, -0.08)), ("max_running_requests", _times(0.5, 0.25))),
        "fewer-graphs": (("mem_fraction_static", _plus(-0.04, -0.08)), ("cuda_graph_max_bs", _times(0.5))),
        "retractions": (
            ("schedule_conservativeness", _one_of(1.0, 1.3, 1.6)),
            ("max_running_requests", _times(0.5)),
        ),
        "chunk": (("chunked_prefill_size", _times(0.5, 0.25)),),
    },
    "vllm": {
        "cap": (("max_num_seqs", _times(2, 4)),),
        "more-pool": (("gpu_memory_utilization", _plus(0.02, 0.04)), ("kv_cache_dtype", _one_of("fp8"))),
        "less-memory": (("gpu_memory_utilization", _plus(-0.04, -0.08)), ("max_num_seqs", _times(0.5, 0.25))),
        "retractions": (("max_num_seqs", _times(0.5)), ("gpu_memory_utilization", _plus(0.02, 0.04))),
        "chunk": (("max_num_batched_tokens", _times(0.5, 0.25)),),
    },
}
# what an engine does when nothing is said; vLLM's log repeats only what was said
_DEFAULTS: dict[str, dict[str, Value]] = {
    "sglang": {"schedule_conservativeness": 1.0, "kv_cache_dtype": "auto"},
    "vllm": {"kv_cache_dtype": "auto"},
}


def knobs_yaml(findings: Iterable[Finding]) -> str:
    """`space` and `baseline` of a study, one document for each program; empty where no finding names a knob.

    A knob that several findings name has the values of all of them.
    """
    programs: dict[str, dict[str, list[tuple[KnobToTry, Finding]]]] = {}
    for finding in findings:
        for tried in finding.knobs:
            programs.setdefault(tried.program, {}).setdefault(tried.name, []).append((tried, finding))
    return "---\n".join(_document(program, knobs) for program, knobs in programs.items())


def _document(program: str, knobs: Mapping[str, Sequence[tuple[KnobToTry, Finding]]]) -> str:
    kinds = " or ".join(STUDY_KINDS[program])
    lines = [f"# study of kind {kinds}: add to its space and baseline", "space:"]
    for name, tried in knobs.items():
        values = sorted(dict.fromkeys(v for t, _ in tried for v in t.values), key=_in_order)
        for _, finding in tried:
            lines.append(f"  # {_one_line(finding.claim)}")
        lines.append(f"  {name}: [{', '.join(map(_scalar, values))}]")
    lines.append("baseline:")
    lines += [f"  {name}: {_scalar(tried[0][0].current)}" for name, tried in knobs.items()]
    return "\n".join(lines) + "\n"


def _in_order(value: Value) -> tuple[int, float, str]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return 0, float(value), ""
    return 1, 0.0, str(value)


def _one_line(claim: str) -> str:
    text = "".join(c if c.isprintable() else " " for c in claim)
    return text if len(text) <= 76 else text[:75] + "…"


def _scalar(value: Value) -> str:
    """JSON's way to write a number, a truth or a text is one of YAML's too."""
    return json.dumps(value, ensure_ascii=False)
