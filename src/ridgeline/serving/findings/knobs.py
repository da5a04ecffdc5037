"""Advice as knobs of a study: which values to try beside the one that ran, and the YAML to paste."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ridgeline import catalog
from ridgeline.diagnose.base import knob
from ridgeline.records.expression import Value
from ridgeline.records.finding import Finding, KnobToTry
from ridgeline.serving.engines.base import engine_named
from ridgeline.serving.engines.failures import NextValues

_ANY_ENGINE = "engine"  # whose knobs those are that every engine has
_MOST_GRAPHS = 4096


@dataclass(frozen=True, slots=True)
class EngineKnobs:
    """An argument of an engine, as its log repeats it, and which way advice moves it."""

    engine: str
    said: Mapping[str, object]

    def named(self, what: str) -> tuple[KnobToTry, ...]:
        """Knobs for one kind of advice; none where the log does not say what ran."""
        moves = engine_named(self.engine).values_to_try.get(what, ())
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

    def _moved(self, name: str, move: NextValues) -> tuple[KnobToTry, ...]:
        current = self.said.get(name, engine_named(self.engine).when_omitted.get(name))
        if isinstance(current, str):
            return knob(self.engine, name, current, move(0.0))
        if not isinstance(current, int | float):
            return ()
        return knob(self.engine, name, current, move(float(current)))

    def _whole(self, name: str) -> int | None:
        value = self.said.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def knobs_yaml(findings: Iterable[Finding]) -> str:
    """`space` and `baseline` of a study, one document for each program; empty where no finding names a knob.

    A knob that several findings name has the values of all of them.
    """
    programs: dict[str, dict[str, list[tuple[KnobToTry, Finding]]]] = {}
    for finding in findings:
        for tried in finding.knobs:
            programs.setdefault(tried.program, {}).setdefault(tried.name, []).append((tried, finding))
    return "---\n".join(_document(program, knobs) for program, knobs in programs.items())


def _study_kinds(program: str) -> tuple[str, ...]:
    """The kinds of workload whose studies take this program's knobs."""
    engines = catalog.names("engines")
    if program == _ANY_ENGINE:
        return tuple(kind for engine in engines for kind in catalog.workloads_of(engine))
    return catalog.workloads_of(program) if program in engines else (program,)


def _document(program: str, knobs: Mapping[str, Sequence[tuple[KnobToTry, Finding]]]) -> str:
    kinds = " or ".join(_study_kinds(program))
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
