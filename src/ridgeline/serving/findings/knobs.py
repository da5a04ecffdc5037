"""Advice as knobs of an engine: which values to try beside the one that ran."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ridgeline.diagnose.base import knob
from ridgeline.records.finding import KnobToTry
from ridgeline.serving.engines.base import engine_named
from ridgeline.serving.engines.failures import NextValues

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
