"""A real headless Chromium for tests, spoken to over a pipe: no driver, no port, nothing to install but the browser.

with open_browser(tmp_path) as browser:
    tab = browser.open("http://127.0.0.1:8765/", width=400, dark=True)
    tab.until("document.querySelector('h1').textContent === 'done'")
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

LIMIT_S = 60.0  # generous: what is waited for happens, on a loaded machine later
NEEDS_CHROMIUM = pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions"),
    *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--mute-audio"),
)


class Browser:
    def __init__(self, profile: Path) -> None:
        there, self._write = os.pipe()
        self._read, back = os.pipe()
        # out of the way of 3 and 4, which Chromium reads and writes
        high = [fcntl.fcntl(each, fcntl.F_DUPFD, 20) for each in (there, back)]

        def on_three_and_four() -> None:
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        command = ["chromium", *FLAGS, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
        self._process = subprocess.Popen(
            command, preexec_fn=on_three_and_four, pass_fds=(3, 4), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        for each in (there, back, *high):
            os.close(each)
        self._buffer = b""
        self._number = 0
        self.tabs: dict[str, Tab] = {}

    def call(self, method: str, parameters: dict[str, Any], session: str = "") -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        os.write(self._write, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            for got in self._messages(0.2):
                if got.get("id") == self._number:
                    assert "error" not in got, f"{method}: {got['error']}"
                    return dict(got["result"])
        raise AssertionError(f"Chromium did not answer {method} within {LIMIT_S} s")

    def _messages(self, timeout_s: float) -> list[dict[str, Any]]:
        if b"\0" not in self._buffer and select.select([self._read], [], [], timeout_s)[0]:
            self._buffer += os.read(self._read, 1 << 20)
        *whole, self._buffer = self._buffer.split(b"\0")
        messages = [json.loads(each) for each in whole]
        for message in messages:
            if (tab := self.tabs.get(message.get("sessionId", ""))) is not None:
                tab.note(message)
        return messages

    def open(self, url: str, width: int = 1400, height: int = 900, dark: bool = False) -> Tab:
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        tab = self.tabs[session] = Tab(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.call(f"{domain}.enable")
        tab.size(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        tab.call("Emulation.setEmulatedMedia", features=[scheme])
        tab.call("Page.navigate", url=url)
        tab.until("document.readyState === 'complete' && location.href !== 'about:blank'")
        return tab

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)


@dataclass
class Tab:
    browser: Browser
    session: str
    errors: list[str] = field(default_factory=list)  # of the console, of scripts, and requests that were refused

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.call(method, parameters, self.session)

    def note(self, message: dict[str, Any]) -> None:
        what = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(what["exceptionDetails"])[:500])
        elif message.get("method") == "Runtime.consoleAPICalled" and what["type"] in ("error", "assert"):
            self.errors.append(json.dumps(what["args"])[:500])
        elif message.get("method") == "Log.entryAdded" and what["entry"]["level"] == "error":
            self.errors.append(f"{what['entry']['text']} {what['entry'].get('url', '')}")

    def value(self, script: str) -> Any:
        """What an expression gives."""
        got = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in got, got["exceptionDetails"]
        return got["result"].get("value")

    def until(self, condition: str) -> None:
        """Waits until an expression holds; one that cannot be worked out yet does not hold yet."""
        deadline = time.monotonic() + LIMIT_S
        guarded = f"(() => {{ try {{ return Boolean({condition}) }} catch (e) {{ return false }} }})()"
        while not self.value(guarded):
            assert time.monotonic() < deadline, (
                f"never came true: {condition}; errors: {self.errors}\n{self.text()[:2000]}"
            )
            time.sleep(0.05)

    def text(self) -> str:
        return str(self.value("document.body.innerText"))

    def click(self, selector: str) -> None:
        self.value(f"document.querySelector({json.dumps(selector)}).click()")

    def size(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def picture(self, file: Path, whole: bool = True) -> bytes:
        shot = base64.b64decode(self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"])
        file.write_bytes(shot)
        return shot

    @property
    def sideways_px(self) -> int:
        """By how much the page is wider than the window."""
        return int(self.value("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


@contextmanager
def open_browser(folder: Path) -> Iterator[Browser]:
    browser = Browser(folder / "profile")
    try:
        yield browser
    finally:
        browser.close()
