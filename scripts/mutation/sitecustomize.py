"""Which functions of Ridgeline each test calls, for `scripts/mutants`: a pytest plugin that Python imports by itself.

Python imports a module of this name when it starts, so processes that tests start are recorded, too: by the name of the
test that pytest keeps in the environment. Only calls are traced, no lines: that costs little. What a fixture of a
module or a session called counts for every test that asks for it, and caches are emptied before each test: else only
the first of several tests would be known to call what they all rest on. After five seconds of work a test has called
most of what it calls, and is traced no longer.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
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
_FIXTURE = "RIDGELINE_REACH_FIXTURE"
_TRACED_S = 5.0


def _trace(frame: FrameType, event: str, arg: object) -> None:
    code = frame.f_code
    _called[id(code)] = code  # hashing a code object takes longer than the call


def _write(test: str, seconds: float, called: dict[int, CodeType], fixtures: list[str]) -> None:
    functions = {
        code.co_filename.partition(_SOURCE)[2] + "::" + code.co_qualname.partition(".<locals>")[0]
        for code in list(called.values())
        if _SOURCE in code.co_filename
    }
    line = json.dumps({"test": test, "s": seconds, "calls": sorted(functions), "fixtures": fixtures}) + "\n"
    with (Path(os.environ["RIDGELINE_REACH"]) / f"{os.getpid()}.jsonl").open("a") as file:
        file.write(line)


def _write_process() -> None:
    test = os.environ.get(_FIXTURE) or os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    if test and "RIDGELINE_REACH" in os.environ:
        _write(test, 0.0, _called, [])


def _wide(item: Any) -> list[str]:
    """The fixtures of the test that other tests share."""
    found = (defined[-1] for defined in item._fixtureinfo.name2fixturedefs.values())
    return [_name(fixture) for fixture in found if fixture.scope != "function"]


def _name(fixture: Any) -> str:
    return f"fixture {fixture.baseid} {fixture.argname}"


def pytest_runtest_protocol(item: Any) -> Iterator[None]:
    for name, module in list(sys.modules.items()):
        if name.startswith("ridgeline"):
            for value in list(vars(module).values()):
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()
    _called.clear()
    signal.signal(signal.SIGVTALRM, lambda *_: sys.settrace(None))
    signal.setitimer(signal.ITIMER_VIRTUAL, _TRACED_S)
    sys.settrace(_trace)
    begun = time.monotonic()
    yield
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    if item.nodeid not in _failed:
        _write(item.nodeid, time.monotonic() - begun, _called, _wide(item))


def pytest_fixture_setup(fixturedef: Any) -> Iterator[None]:
    if fixturedef.scope == "function":
        yield
        return
    name, before = _name(fixturedef), dict(_called)
    outer = os.environ.get(_FIXTURE)
    _called.clear()
    os.environ[_FIXTURE] = name
    yield
    if outer is None:
        del os.environ[_FIXTURE]
    else:
        os.environ[_FIXTURE] = outer
    _write(name, 0.0, _called, [])
    _called.update(before)


# pytest is not imported by every process
pytest_runtest_protocol.hookwrapper = True  # type: ignore[attr-defined]
pytest_fixture_setup.hookwrapper = True  # type: ignore[attr-defined]


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
