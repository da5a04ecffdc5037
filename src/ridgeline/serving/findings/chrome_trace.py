"""Traces of the PyTorch profiler (Chrome's trace format, gzipped or not), read as a stream of events.

A trace of gigabytes is one JSON document, perhaps on one line. Events are taken one after the other out of a window of
text, so memory does not grow with the file. What cannot be decoded is skipped up to the next event, and counted.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ridgeline.serving.findings.kernels import KernelTally

_EVENTS = re.compile(r'"traceEvents"\s{0,100}:\s{0,100}\[')
_NEXT = re.compile(r"[\s,]*")
_NEST = re.compile(r"[\s,\[]*")
_RESUME = re.compile(r'\{\s{0,100}"ph"\s{0,9}:')
_LARGEST_EVENT = 4 << 20  # characters; a single event beyond that is garbage
_TEXT = 220

_Event = dict[str, Any]


class _TraceReader:
    """Hands each complete event ("ph" is X) to `take` with the number of the line it begins on."""

    def __init__(self, take: Callable[[_Event, int, str], None]) -> None:
        self._take = take
        self.damage = ""
        self.skipped = 0

    def read(self, pieces: Iterable[bytes]) -> None:
        decode = codecs.getincrementaldecoder("utf-8")("replace")
        window, line, inside, ended, seen = "", 1, False, False, False
        for piece in pieces:
            window += decode.decode(piece)
            if not inside:
                window, line, inside = _past_opening(window, line, at_start=not seen)
                seen = True
            if inside and not ended:
                at, line, ended = self._events(window, line)
                window = window[at:]
                if len(window) > _LARGEST_EVENT:
                    window, line = self._resume(window, line)
            if ended:
                return
        if inside:
            self.damage = "the trace ends in the middle of its events; what came before was read"

    def _events(self, window: str, line: int) -> tuple[int, int, bool]:
        """Take what is complete: how far, the line there, and whether the list of events has ended."""
        decode, at = _DECODER.raw_decode, 0
        while True:
            gap = _NEXT.match(window, at)
            start = gap.end() if gap else at
            if start >= len(window):
                return at, line, False
            if window[start] == "]":
                return start, line, True
            try:
                event, end = decode(window, start)
            except ValueError:
                # torn, or only not yet complete: the next piece tells, until the window is too large
                return at, line, False
            except RecursionError:
                # too deep for an event; each bracket on its own would cost as much as all of them
                self.skipped += 1
                nest = _NEST.match(window, start + 1)
                event, end = None, nest.end() if nest else start + 1
            begins = line + window.count("\n", at, start)
            if type(event) is dict and event.get("ph") == "X":
                self._take(event, begins, window[start : start + _TEXT])
            line = begins + window.count("\n", start, end)
            at = end

    def _resume(self, window: str, line: int) -> tuple[str, int]:
        """Skip an event that never ends, up to what looks like the beginning of another."""
        self.skipped += 1
        found = _RESUME.search(window, 1)
        at = found.start() if found else len(window) - 200
        return window[at:], line + window.count("\n", 0, at)


_DECODER = json.JSONDecoder()


def _past_opening(window: str, line: int, *, at_start: bool) -> tuple[str, int, bool]:
    """Cut what comes before the list of events; a trace may also be nothing but that list."""
    bare = re.match(r"\s{0,1000}\[", window) if at_start else None
    found = bare or _EVENTS.search(window)
    if found:
        return window[found.end() :], line + window.count("\n", 0, found.end()), True
    keep = max(0, len(window) - 200)
    return window[keep:], line + window.count("\n", 0, keep), False


class _HostOperators:
    """PyTorch's operators on the host, by thread. They call each other, so each is charged with its own time alone."""

    def __init__(self) -> None:
        self._threads: dict[object, list[tuple[float, float, str, int, str]]] = {}
        self._count = 0

    def add(self, event: _Event, name: str, seconds: float, line: int, text: str) -> None:
        start_s = _start_s(event)
        if self._count < _MOST_OPERATORS and start_s is not None:
            self._count += 1
            self._threads.setdefault(event.get("tid"), []).append((start_s, -seconds, name[:200], line, text))

    def tally(self) -> KernelTally | None:
        """Of the busiest thread, which is the one that runs the model; None where there is nothing to tell."""
        tallies = [self._of_thread(events) for events in self._threads.values()]
        return max(tallies, key=lambda tally: tally.kernel_s, default=None)

    def _of_thread(self, events: list[tuple[float, float, str, int, str]]) -> KernelTally:
        tally = KernelTally("torch", on_host=True)
        open_ops: list[tuple[float, list[float]]] = []  # end, and seconds of its own, innermost last
        charged = []
        for start_s, minus_s, name, line, text in sorted(events, key=lambda event: event[:2]):
            end_s = start_s - minus_s
            while open_ops and open_ops[-1][0] <= start_s:
                open_ops.pop()
            own = [-minus_s]
            if open_ops:
                inside = min(end_s, open_ops[-1][0]) - start_s  # a clock's steps may let it end after its caller
                open_ops[-1][1][0] -= inside
                own[0] = inside
            open_ops.append((end_s, own))
            charged.append((name, own, line, text))
            tally.between(start_s, end_s, 0)
        for name, own, line, text in charged:
            tally.add(name, max(0.0, own[0]), line, text)
        return tally


_MOST_OPERATORS = 1_000_000  # that are kept; later ones are not looked at


def read_chrome_trace(pieces: Iterable[bytes]) -> tuple[KernelTally, str]:
    """Kernels, copies and CUDA calls summed up, or the host's operators where no GPU was used; and what was wrong
    with the file, or nothing."""
    tally, operators = KernelTally("torch"), _HostOperators()

    def take(event: _Event, line: int, text: str) -> None:
        duration, category, name = event.get("dur"), event.get("cat"), event.get("name")
        if not isinstance(duration, int | float) or not isinstance(name, str) or not 0 <= duration < 1e12:
            return
        seconds = duration / 1e6
        if category == "kernel":
            tally.add(name[:1000], seconds, line, text)
        elif category in ("gpu_memcpy", "gpu_memset"):
            tally.copies_s += seconds
        elif category in ("cuda_runtime", "cuda_driver"):
            tally.host(name[:200], seconds, line, text)
            return
        else:
            if category == "cpu_op":
                operators.add(event, name, seconds, line, text)
            tally.other_events += 1
            if not tally.other_text:
                tally.other_line, tally.other_text = line, text
            return
        start_s, args = _start_s(event), event.get("args")
        if start_s is not None:
            device = args.get("device") if isinstance(args, dict) else None
            tally.between(start_s, start_s + seconds, device if isinstance(device, int) else 0)

    reader = _TraceReader(take)
    reader.read(pieces)
    if not tally.kernels and (on_host := operators.tally()) is not None:
        on_host.other_events = tally.other_events
        on_host.other_line, on_host.other_text = tally.other_line, tally.other_text
        tally = on_host
    for quoted in (*tally.kernels.values(), *tally.host_calls.values()):
        quoted.line, quoted.text = _named_line(quoted.line, quoted.text)
    tally.other_line, tally.other_text = _named_line(tally.other_line, tally.other_text)
    damage = reader.damage
    if reader.skipped:
        damage = f"{reader.skipped} pieces of the trace are not events and were skipped" + (damage and f"; {damage}")
    return tally, damage


def _named_line(line: int, text: str) -> tuple[int, str]:
    """Of an event over several lines, the one that names it."""
    at = max(0, text.find('"name"'))
    start = text.rfind("\n", 0, at) + 1
    return line + text.count("\n", 0, at), text[start:].partition("\n")[0]


def _start_s(event: _Event) -> float | None:
    """Some writers put the number in quotes."""
    try:
        microseconds = float(event.get("ts", ""))
    except (ValueError, TypeError, OverflowError):
        return None
    return microseconds / 1e6 if abs(microseconds) < 1e18 else None


def pieces_of(lines: Iterable[str]) -> Iterator[bytes]:
    """Lines that did not come from a file, as the bytes they were."""
    for line in lines:
        yield line.encode("utf-8", "replace") + b"\n"
