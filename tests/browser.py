"""Headless Chromium for tests: opens a page at a width, in light or dark, with or without scripts; looks and clicks.

Driven over a pipe with Chromium's own protocol, so no package and no port is needed.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@dataclass
class Browser:
    """One tab. `console` holds what pages wrote there as warnings and errors, and exceptions nobody caught."""

    process: subprocess.Popen[bytes]
    to_browser: int
    from_browser: int
    session: str = ""
    console: list[str] = field(default_factory=list)
    _buffer: bytes = b""
    _last: int = 0
    _events: list[str] = field(default_factory=list)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._last:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            piece = os.read(self.from_browser, 1 << 20)
            assert piece, "Chromium ended"
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(line)
        self._note(answer)
        return answer

    def _note(self, answer: dict[str, Any]) -> None:
        method, told = answer.get("method"), answer.get("params", {})
        self._events.append(str(method))
        if method == "Runtime.exceptionThrown":
            self.console.append(json.dumps(told["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.console.append(json.dumps(told["args"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.console.append(told["entry"]["text"])

    def open(self, url: str, width: int = 1400, *, dark: bool = False, scripts: bool = True) -> None:
        """Returns once the page is loaded."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self._events.clear()
        self.call("Page.navigate", url=url)
        while "Page.loadEventFired" not in self._events:
            self._read()

    def value(self, expression: str) -> Any:
        """What an expression gives on the page; also where its own scripts are off."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def picture(self, selector: str = "", scale: float = 1.0) -> bytes:
        """A PNG of the whole page, or of the first element that fits."""
        box = self.value(_BOX % json.dumps(selector))
        clip = {**box, "scale": scale}
        shot = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(shot["data"])


_BOX = """(what => { const e = what ? document.querySelector(what) : document.documentElement;
 const b = e.getBoundingClientRect(); return {x: b.left + scrollX, y: b.top + scrollY, width: b.width,
 height: Math.min(16000, what ? b.height : document.documentElement.scrollHeight)}; })(%s)"""


# Chromium reads commands from descriptor 3 and answers on 4
_AS_3_AND_4 = """import fcntl, os, sys
there = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 20) for number in sys.argv[1:3]]
os.dup2(there[0], 3), os.dup2(there[1], 4)
os.execv(sys.argv[3], sys.argv[3:])"""


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Ended when the block is left."""
    assert CHROMIUM is not None
    read_there, write_here = os.pipe()
    read_here, write_there = os.pipe()
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
        "--hide-scrollbars", f"--user-data-dir={profile}", "about:blank",
    ]  # fmt: skip
    launch = [sys.executable, "-c", _AS_3_AND_4, str(read_there), str(write_there), *command]
    with (profile.parent / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            launch, pass_fds=(read_there, write_there), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    os.close(read_there)
    os.close(write_there)
    tab = Browser(process, write_here, read_here)
    try:
        target = tab.call("Target.createTarget", url="about:blank")["targetId"]
        tab.session = tab.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            tab.call(f"{domain}.enable")
        yield tab
    finally:
        os.close(write_here)
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(read_here)


@dataclass(frozen=True)
class Pixels:
    """A picture as colours, to see whether anything was drawn."""

    width: int
    height: int
    rows: tuple[bytes, ...]
    depth: int

    def colours(self) -> dict[bytes, int]:
        found: dict[bytes, int] = {}
        for row in self.rows:
            for at in range(0, len(row), self.depth):
                pixel = row[at : at + 3]
                found[pixel] = found.get(pixel, 0) + 1
        return found


def pixels(png: bytes) -> Pixels:
    """Of a PNG as Chromium writes it: eight bits a channel, with or without alpha, not interlaced."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    at, packed, width, height, depth = 8, b"", 0, 0, 4
    while at < len(png):
        length, kind = int.from_bytes(png[at : at + 4]), png[at + 4 : at + 8]
        body = png[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, height, depth = int.from_bytes(body[:4]), int.from_bytes(body[4:8]), {2: 3, 6: 4}[body[9]]
        elif kind == b"IDAT":
            packed += body
        at += 12 + length
    raw, stride = zlib.decompress(packed), width * depth
    rows: list[bytes] = []
    before = bytearray(stride)
    for y in range(height):
        start = y * (stride + 1)
        before = _unfiltered(raw[start], bytearray(raw[start + 1 : start + 1 + stride]), before, depth)
        rows.append(bytes(before))
    return Pixels(width, height, tuple(rows), depth)


def _unfiltered(kind: int, row: bytearray, above: bytearray, depth: int) -> bytearray:
    for i in range(len(row)):
        left = row[i - depth] if i >= depth else 0
        up, corner = above[i], above[i - depth] if i >= depth else 0
        if kind == 1:
            row[i] = (row[i] + left) & 255
        elif kind == 2:
            row[i] = (row[i] + up) & 255
        elif kind == 3:
            row[i] = (row[i] + (left + up) // 2) & 255
        elif kind == 4:
            row[i] = (row[i] + _paeth(left, up, corner)) & 255
    return row


def _paeth(left: int, up: int, corner: int) -> int:
    guess = left + up - corner
    distances = (abs(guess - left), abs(guess - up), abs(guess - corner))
    return (left, up, corner)[distances.index(min(distances))]
