"""What reading and writing journal events costs, by `study/codec.py` and by two libraries that derive the same.

    python benchmarks/journal.py [--events 100000] [--repeats 5]

Needs msgspec beside Ridgeline (`pip install msgspec`); without it its rows are left out. Events are those of a search:
trial, run, submitted and ended, with six measurements each. The libraries get the same events and declarations of the
same fields, rows as named tuples. Prints the lowest CPU time of the repeats: to records and to events for each, a whole
replay of the file, then what importing each takes in a new process.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import TypeAdapter

from ridgeline.records.measurement import Measurement
from ridgeline.records.outcome import Kind, Outcome
from ridgeline.records.run import Cause, Ending, Machine, Resources
from ridgeline.records.trial import Stage, Trial
from ridgeline.study.codec import RunEnded, Submitted, event_of, record_of, run_event
from ridgeline.study.history import read_history

try:
    import msgspec
except ImportError:
    msgspec = None  # type: ignore[assignment]

_MEASURED = ("rate", "wall_s", "cpu_s", "max_rss_bytes", "joules", "energy")
_Setting = Mapping[str, bool | int | float | str | None]


class _Measurement(NamedTuple):
    metric: str
    value: float
    unit: str
    source: str
    origin: str


class _Machine(NamedTuple):
    host: str
    boot: str
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Outcome:
    kind: Kind
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Ending:
    cause: Cause
    started: float
    ended: float
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    nodes: tuple[str, ...] = ()
    leftovers: tuple[str, ...] = ()
    usage: Mapping[str, float] = field(default_factory=dict)
    elapsed: float | None = None
    machines: tuple[_Machine, ...] = ()


@dataclass(frozen=True, slots=True)
class _Trial:
    event: Literal["trial"]
    at: float
    trial: int
    stage: Stage
    proposer: str
    point: _Setting
    settings: _Setting
    why: str = ""
    block: int | None = None


@dataclass(frozen=True, slots=True)
class _Run:
    event: Literal["run"]
    at: float
    run: int
    trial: int
    attempt: int
    folder: str
    resources: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Submitted:
    event: Literal["submitted"]
    at: float
    run: int
    ticket: str


@dataclass(frozen=True, slots=True)
class _Ended:
    event: Literal["ended"]
    at: float
    run: int
    ending: _Ending
    outcome: _Outcome
    measurements: tuple[_Measurement, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)


_TYPES: dict[str, type] = {"trial": _Trial, "run": _Run, "submitted": _Submitted, "ended": _Ended}


def _events(count: int) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = [{"at": 1.0, "event": "opened", "kind": "search", "question": {}, "asked": {}}]
    machine = Machine("n1", "b0a1", ("GPU-1", "GPU-2"))
    for number in range(1, count // 4 + 1):
        point = {"threads": number % 64, "mode": "b", "share": 0.25, "fast": True}
        ending = Ending(Cause.EXITED, 0, started_s=1e9, ended_s=1e9 + 60, nodes=("n1",), machines=(machine,))
        measured = tuple(Measurement(name, number * 1.5, "s", "stdout") for name in _MEASURED)
        four = (
            event_of(Trial(number, point, point, Stage.SEARCH, "guided", "the most is expected here")),
            run_event(number, number, 1, Path(f"runs/{number:04}"), Resources(2, 4, gpus=8)),
            event_of(Submitted(number, f"local-{number}")),
            event_of(RunEnded(number, ending, Outcome(Kind.OK), measured)),
        )
        events += [{"at": float(number), **event} for event in four]
    return events


def _lowest(repeats: int, work: Callable[[], Any]) -> float:
    taken = []
    for _ in range(repeats):
        begun = time.process_time()
        work()
        taken.append(time.process_time() - begun)
    return min(taken)


def _start_ms(repeats: int, code: str) -> float:
    """CPU time of a new process over that of an empty one."""
    timed = "import time; begun = time.process_time(); {}; print((time.process_time() - begun) * 1e3)"
    run = [sys.executable, "-c", timed.format(code)]
    return min(float(subprocess.run(run, capture_output=True, text=True, check=True).stdout) for _ in range(repeats))


def main() -> None:
    gc.disable()  # as a replay does: nothing made here is garbage before the end
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    repeats, events = asked.repeats, _events(asked.events)
    each = 1e6 / len(events)
    said = events[1:]
    adapters: dict[str, TypeAdapter[Any]] = {name: TypeAdapter(kind) for name, kind in _TYPES.items()}
    records = [record_of(event) for event in said]
    rows = [
        ("codec", lambda: [record_of(event) for event in said], lambda: [event_of(record) for record in records]),
    ]
    theirs = [adapters[event["event"]].validate_python(event) for event in said]
    pairs = [(adapters[event["event"]], record) for event, record in zip(said, theirs, strict=True)]
    rows.append(
        (
            "pydantic TypeAdapter",
            lambda: [adapters[event["event"]].validate_python(event) for event in said],
            lambda: [adapter.dump_python(record, mode="json", exclude_defaults=True) for adapter, record in pairs],
        )
    )
    if msgspec is not None:
        made = [msgspec.convert(event, _TYPES[event["event"]]) for event in said]
        rows.append(
            (
                "msgspec",
                lambda: [msgspec.convert(event, _TYPES[event["event"]]) for event in said],
                lambda: [msgspec.to_builtins(record) for record in made],
            )
        )
    print(f"{len(events)} events; µs an event\n{'':22} {'to records':>11} {'to events':>11}")
    for name, read, write in rows:
        print(f"{name:22} {_lowest(repeats, read) * each:11.2f} {_lowest(repeats, write) * each:11.2f}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "journal.jsonl")
        path.write_text("".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events))
        print(f"{'replay of the file':22} {_lowest(repeats, lambda: read_history(Path(folder))) * each:11.2f}")
        if msgspec is not None:
            decode = msgspec.json.Decoder().decode
            took = _lowest(repeats, lambda: [decode(line) for line in path.read_bytes().splitlines()])
            print(f"{'lines to JSON, msgspec':22} {took * each:11.2f}")
        took = _lowest(repeats, lambda: [json.loads(line) for line in path.read_bytes().splitlines()])
        print(f"{'lines to JSON, json':22} {took * each:11.2f}")
    print("start, ms of CPU")
    for code in ("import ridgeline.study.codec", "import pydantic; pydantic.TypeAdapter(int)", "import msgspec"):
        if "msgspec" not in code or msgspec is not None:
            print(f"{code:50} {_start_ms(repeats, code):8.1f}", flush=True)


if __name__ == "__main__":
    main()
