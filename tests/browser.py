"""A real headless Chromium for tests and pictures, driven over a pipe with its own protocol: no package, no port.

with open_browser(tmp_path) as browser:
    tab = browser.open("http://127.0.0.1:8765/", width=400, dark=True)
    tab.until("document.querySelector('h1').textContent === 'done'")
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NEEDS_CHROMIUM = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
LIMIT_S = 600.0  # what is waited for happens, on a loaded machine later
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-extensions", "--disable-background-networking", "--disable-component-update", "--hide-scrollbars"),
)
# Chromium reads commands from descriptor 3 and answers on 4
_AS_3_AND_4 = """import fcntl, os, sys
there = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 20) for number in sys.argv[1:3]]
os.dup2(there[0], 3), os.dup2(there[1], 4)
os.execv(sys.argv[3], sys.argv[3:])"""


class Browser:
    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        there, self._write = os.pipe()
        self._read, back = os.pipe()
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
        launch = [sys.executable, "-c", _AS_3_AND_4, str(there), str(back), *command]
        with (profile.parent / "chromium.log").open("wb") as log:
            self._process = subprocess.Popen(
                launch,
                pass_fds=(there, back),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        os.close(there)
        os.close(back)
        self._buffer = b""
        self._number = 0
        self._tabs: dict[str, Tab] = {}

    def call(self, method: str, parameters: dict[str, Any], session: str = "") -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        os.write(self._write, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            for got in self._messages():
                if got.get("id") == self._number:
                    assert "error" not in got, f"{method}: {got['error']}"
                    return dict(got["result"])
        raise AssertionError(f"Chromium did not answer {method} within {LIMIT_S} s")

    def _messages(self) -> list[dict[str, Any]]:
        if b"\0" not in self._buffer and select.select([self._read], [], [], 0.2)[0]:
            piece = os.read(self._read, 1 << 20)
            assert piece, "Chromium ended; chromium.log beside its profile may say why"
            self._buffer += piece
        *whole, self._buffer = self._buffer.split(b"\0")
        messages = [json.loads(each) for each in whole]
        for message in messages:
            if (tab := self._tabs.get(message.get("sessionId", ""))) is not None:
                tab.note(message)
        return messages

    def tab(self) -> Tab:
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        tab = self._tabs[session] = Tab(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.call(f"{domain}.enable")
        return tab

    def open(self, url: str, width: int = 1400, height: int = 900, *, dark: bool = False) -> Tab:
        """The page in a tab of its own."""
        tab = self.tab()
        tab.open(url, width, height, dark=dark)
        return tab

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        # its helpers may outlive it for a moment, and write into the profile that the caller then removes
        with suppress(ProcessLookupError):
            for _ in range(500):
                os.killpg(self._process.pid, signal.SIGKILL)
                time.sleep(0.01)
        os.close(self._read)
        os.close(self._write)


@dataclass
class Tab:
    """`errors` are those of the console and of scripts, warnings too, and requests that were refused."""

    browser: Browser
    session: str
    errors: list[str] = field(default_factory=list)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.call(method, parameters, self.session)

    def note(self, message: dict[str, Any]) -> None:
        method, what = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(what["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(what["args"])[:500])
        elif method == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{what['entry']['text']} {what['entry'].get('url', '')}")

    def open(self, url: str, width: int = 1400, height: int = 900, *, dark: bool = False, scripts: bool = True) -> None:
        """Returns once the page is loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        # a page that replaces itself by the same address is a new one when this mark is gone
        self.value("window.before = true")
        self.call("Page.navigate", url=url)
        self.until("!window.before && document.readyState === 'complete'")

    def value(self, script: str) -> Any:
        """What an expression gives; also where the page's own scripts are off."""
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

    def hover(self, selector: str) -> None:
        """The pointer goes to the middle of the first one: a real event of the browser, not one made by a script."""
        found = f"document.querySelector({json.dumps(selector)})"
        self.value(f"{found}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        box = self.value(f"{found}.getBoundingClientRect().toJSON()")
        middle = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **middle)

    def picture(self, selector: str = "", scale: float = 1.0) -> bytes:
        """A PNG of the whole page, or of the first element that fits."""
        clip = {**self.value(_BOX % json.dumps(selector)), "scale": scale}
        shot = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(shot["data"])

    def screen(self) -> bytes:
        """A PNG of what the window shows."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def complaints(self) -> list[str]:
        """What is wrong with the page as it is laid out: sideways scrolling, labels of a figure that overlap, text
        with too little contrast, and what a screen reader would miss: names, roles, order of headings, ids.

        Checked on geometry and computed style, since pictures differ with a machine's fonts.
        """
        wide = [f"{self.sideways_px} px wider than the window"] if self.sideways_px > 0 else []
        return [*wide, *self.value(_OVERLAPS), *self.value(_CONTRAST), *self.value(_UNSAID)]

    @property
    def sideways_px(self) -> int:
        """By how much the page is wider than the window."""
        return int(self.value("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


_OVERLAPS = r"""[...document.querySelectorAll('svg[role=img]')].flatMap(svg => {
  if (!svg.getClientRects().length) return [];
  const texts = [...svg.querySelectorAll('text')].filter(t => t.textContent.trim())
    .map(t => ({text: t.textContent, box: t.getBoundingClientRect()}));
  const clash = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1.5
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3;
  return texts.flatMap((one, at) => texts.slice(at + 1).filter(other => clash(one.box, other.box))
    .map(other => (svg.closest('[id]')?.id ?? 'a figure') + ': ' + one.text + ' | ' + other.text));
})"""

# WCAG 2: 4.5 to 1, and 3 to 1 for large text; figures' text on the page's own background
_CONTRAST = r"""(() => {
  const canvas = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
  const drawn = colour => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    const d = canvas.getImageData(0, 0, 1, 1).data; return [d[0], d[1], d[2], d[3] / 255]; };
  const known = new Map();  // a page has few colours, and to draw one takes longer than all else here
  const rgba = colour => { if (!known.has(colour)) known.set(colour, drawn(colour)); return known.get(colour); };
  const linear = v => v / 255 <= .03928 ? v / 255 / 12.92 : ((v / 255 + .055) / 1.055) ** 2.4;
  const light = c => { const [r, g, b] = c.map(linear);
    return .2126 * r + .7152 * g + .0722 * b; };
  const behind = e => { for (; e; e = e.parentElement) { const c = rgba(getComputedStyle(e).backgroundColor);
    if (c[3] > .99) return c; } return rgba('white'); };
  const found = new Set();
  for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.getClientRects().length || e.closest('script,style,title')) continue;
    const style = getComputedStyle(e), inside = e.closest('svg');
    if (inside && /\bin[0-9f]/.test(e.getAttribute('class') ?? '')) continue;
    const [r, g, b] = rgba(inside ? style.fill : style.color), back = behind(e);
    const [one, two] = [light([r, g, b]), light(back.slice(0, 3))];
    const ratio = (Math.max(one, two) + .05) / (Math.min(one, two) + .05);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    const named = `${e.tagName}.${e.getAttribute('class')} ${ratio.toFixed(2)} ${e.textContent.slice(0, 30)}`;
    if (ratio < (large ? 3 : 4.5)) found.add(named);
  }
  return [...found];
})()"""

# what axe asks first
_UNSAID = r"""(() => {
  const found = [], all = what => [...document.querySelectorAll(what)], hidden = e => !!e.closest('[aria-hidden=true]');
  const wrong = (what, elements) => found.push(...elements.map(e => what + ': ' + e.outerHTML.slice(0, 120)));
  const text = e => (e.textContent.trim() || e.getAttribute('aria-label') || e.title || '').trim();
  if (document.documentElement.lang !== 'en') found.push('the page has no language');
  if (!document.title.trim()) found.push('the page has no title');
  if (all('h1').length !== 1) found.push(all('h1').length + ' h1');
  if (all('main').length !== 1) found.push(all('main').length + ' main');
  wrong('a figure without a name', all('svg').filter(e => !/\p{L}/u.test(e.ariaLabel ?? '') && !hidden(e)));
  wrong('a button or link without a name', all('button, a[href], summary').filter(e => !text(e)));
  wrong('a field without a label', all('input, select, textarea')
    .filter(e => e.type !== 'hidden' && !e.labels?.length && !e.getAttribute('aria-label')));
  wrong('a bar without a name', all('progress').filter(e => !e.getAttribute('aria-label') && !e.labels?.length));
  wrong('a frame without a title', all('iframe').filter(e => !e.title));
  wrong('a table heading that says nothing', all('th').filter(e => !text(e)));
  const range = document.createRange();
  const tall = e => { range.selectNodeContents(e); return range.getBoundingClientRect().height; };
  wrong('a heading of a table that is broken within a word', all('th').filter(e => e.getClientRects().length
    && !/[\s_-]/.test(e.textContent.trim()) && tall(e) > 1.9 * parseFloat(getComputedStyle(e).lineHeight)));
  wrong('a cell too narrow for its text', all('td').filter(e => e.textContent.length > 60
    && e.getClientRects().length && e.getBoundingClientRect().width < 130));
  wrong('a term outside of a list of terms', all('dt, dd').filter(e => !e.closest('dl')));
  wrong('an item outside of a list', all('li').filter(e => !/^[OU]L$/.test(e.parentNode.tagName)));
  const headings = all('h1,h2,h3,h4,h5').filter(e => e.getClientRects().length);
  const level = e => e ? +e.tagName[1] : 0;
  wrong('a level of headings is skipped', headings.filter((e, at) => level(e) > level(headings[at - 1]) + 1));
  // a box that scrolls must be reached by keyboard
  wrong('a box that scrolls and takes no focus', all('main *').filter(e =>
    /auto|scroll/.test(getComputedStyle(e).overflowX + getComputedStyle(e).overflowY)
    && (e.scrollWidth > e.clientWidth + 1 || e.scrollHeight > e.clientHeight + 1)
    && e.tabIndex < 0 && !e.querySelector('a[href], button, input, [tabindex]')));
  const ids = new Set();
  for (const {id} of all('[id]')) { if (ids.has(id)) found.push('an id twice: ' + id); ids.add(id); }
  return found;
})()"""

_BOX = """(what => { const e = what ? document.querySelector(what) : document.documentElement;
 const b = e.getBoundingClientRect(); return {x: b.left + scrollX, y: b.top + scrollY, width: b.width,
 height: Math.min(16000, what ? b.height : document.documentElement.scrollHeight)}; })(%s)"""


@contextmanager
def open_browser(folder: Path) -> Iterator[Browser]:
    """Ended when the block is left."""
    browser = Browser(folder / "profile")
    try:
        yield browser
    finally:
        browser.close()


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
