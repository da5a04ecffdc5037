"""`reef`: a serving engine of a page. This object is all that Ridgeline needs to know about it."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ridgeline.records.measurement import Measurement, reported
from ridgeline.serving.engines.base import (
    DATASET,
    MODEL,
    OFFLINE_RESULT,
    EngineLog,
    OfflineBatch,
    ServingEngine,
    Span,
    joined,
)
from ridgeline.serving.engines.failures import FailureText, kind_in
from ridgeline.serving.engines.flags import EngineFlags
from ridgeline.serving.engines.knobs import ROWS, Domain, KnobRow, Spelling
from ridgeline.serving.engines.releases import Flag, Version

# every flag of its command line: value, switch, toggle or list
_FLAGS = [Flag("slots", "value"), Flag("step_ms", "value"), Flag("eager", "switch")]
_ROWS = [
    # a knob that Ridgeline has a name for: its meaning, its values and what failures ask of it are known
    replace(ROWS["max_running_requests"], spelled={"reef": (Spelling("slots"),)}, default="4"),
    # one that only reef has
    KnobRow("step_ms", {"reef": (Spelling("step_ms"),)}, Domain.NUMBER, "1", unit="ms"),
]
_STARTED = re.compile(r"^reef (\S+) starts with (\{.*\})$")
# what it prints when it fails: `sure` where the line alone leaves no doubt
_FAILURES = (FailureText("cuda-oom", re.compile(r"^reef: out of memory"), sure=True),)


class Reef(ServingEngine):
    name = "reef"
    packages = ("tidepool",)  # whose version is the engine's
    ready_line = "reef is open"
    failure_texts = _FAILURES
    flags = EngineFlags("reef", {flag.name: flag for flag in _FLAGS}, _ROWS)

    def entry(self, model: str, nodes: int) -> list[str]:
        return ["-m", "tidepool.reef", "--model", model]

    def offline(
        self, python: str, arguments: Sequence[str], batch: OfflineBatch, version: Version, cluster: Span
    ) -> str:
        own = ["--model", f"${MODEL}", "--dataset", DATASET, "--result", OFFLINE_RESULT]
        return joined([python, "-m", "tidepool.reef", *own, *arguments])

    def read(self, lines: Iterable[str], measured_from: int = 0) -> EngineLog:
        version, echo, failures, ready = "", {}, [], False
        for number, line in enumerate(lines, 1):
            ready = ready or self.ready_line in line
            if started := _STARTED.match(line):
                version, echo = started[1], _mapping(started[2])
            elif kind := kind_in(line, self.failure_texts):
                failures.append((kind, ready, number, line))  # before it was ready or after: other advice
        return EngineLog(tuple(failures), weights_loaded=bool(echo), echo=echo, version=version)

    def offline_result(self, text: str, lines: Iterable[str]) -> tuple[Measurement, ...]:
        found = ((name, _mapping(text).get(name)) for name in ("total_tok_s", "duration_s", "successful_requests"))
        return tuple(reported(name, value, OFFLINE_RESULT) for name, value in found if isinstance(value, int | float))


def _mapping(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


REEF = Reef()
