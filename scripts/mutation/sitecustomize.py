"""Which functions of Ridgeline each test calls, for `scripts/mutants`: a pytest plugin that Python imports by itself.

Python imports a module of this name when it starts, so processes that tests start are recorded, too: by the name of the
test that pytest keeps in the environment. Only calls are traced, no lines: that costs little.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_SOURCE = "/src/ridgeline/"
_called: dict[int, CodeType] = {}
_failed: set[str] = set()


def _trace(frame: FrameType, event: str, arg: object) -> None:
    code = frame.f_code
    _called[id(code)] = code  # hashing a code object takes longer than the call


def _write(test: str, seconds: float) -> None:
    functions = {
        code.co_filename.partition(_SOURCE)[2] + "::" + code.co_qualname.partition(".<locals>")[0]
        for code in list(_called.values())
        if _SOURCE in code.co_filename
    }
    line = json.dumps({"test": test, "s": seconds, "calls": sorted(functions)}) + "\n"
    with (Path(os.environ["RIDGELINE_REACH"]) / f"{os.getpid()}.jsonl").open("a") as file:
        file.write(line)


def _write_process() -> None:
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    if test and "RIDGELINE_REACH" in os.environ:
        _write(test, 0.0)


def pytest_runtest_protocol(item: Any) -> Iterator[None]:
    _called.clear()
    sys.settrace(_trace)
    begun = time.monotonic()
    yield
    if item.nodeid not in _failed:
        _write(item.nodeid, time.monotonic() - begun)


pytest_runtest_protocol.hookwrapper = True  # type: ignore[attr-defined]  # pytest is not imported by every process


def pytest_runtest_logreport(report: Any) -> None:
    if not report.passed:
        _failed.add(report.nodeid)


if "RIDGELINE_REACH" in os.environ:
    sys.settrace(_trace)
    threading.settrace(_trace)
    if (
        "PYTEST_CURRENT_TEST" in os.environ
        or Path(sys.argv[0] if hasattr(sys, "argv") else "").name == "command_line.py"
    ):
        atexit.register(_write_process)
        os.register_at_fork(after_in_child=_called.clear)
