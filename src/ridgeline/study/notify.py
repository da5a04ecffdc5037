"""Alerts to a webhook or a command: of `keep`, and of a campaign that ended. None can hold either up."""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ridgeline.errors import InputError
from ridgeline.records.study import NotifyChoice

_HOOK_S = 30.0  # for each way of telling
SAME_AFTER_S = 3600.0  # the same words about the same member are sent once in so long
HOUR_S = 3600.0
_MOST_WAITING = 1000


@dataclass
class Notifier:
    """Call it with a kind, a member and what happened; it returns at once, and a thread of its own tells the world.

    `say` is called, once each, with which way of alerting fails and why.
    """

    name: str
    choice: NotifyChoice
    say: Callable[[str], object]
    clock: Callable[[], float] = time.monotonic
    of: str = "service"  # what the name is that of: a service, or a study
    _sent: dict[tuple[str, str, str], float] = field(default_factory=dict)
    _lately: deque[float] = field(default_factory=deque)  # when the alerts of the last hour were sent
    _held_back: int = 0
    _broken: set[str] = field(default_factory=set)
    _waiting: queue.Queue[dict[str, Any] | None] = field(default_factory=lambda: queue.Queue(_MOST_WAITING))
    _thread: threading.Thread | None = None

    def require_ways(self) -> None:
        """InputError where a way is named that cannot work: nobody would hear of it later."""
        if self.choice.webhook_env and not os.environ.get(self.choice.webhook_env):
            raise InputError(
                f"notify: the variable {self.choice.webhook_env}, which should hold the webhook's address, is not set; "
                f"export it before `service keep`, or remove webhook_env"
            )

    def test(self, limit_s: float = _HOOK_S) -> list[str]:
        """Sends a test alert every way there is and waits for it; what failed."""
        failed = list[str]()
        said, self.say = self.say, failed.append
        self(
            "test", "keep", f"a test alert of `service keep --test-alert` from {socket.gethostname()}; nothing is wrong"
        )
        self.close(limit_s * max(1, len(self.choice.ways)))
        self.say = said
        return failed

    def __call__(self, kind: str, member: str, text: str) -> None:
        if not self.choice.ways:
            return
        now_s, key = self.clock(), (kind, member, text)
        self._sent = {what: at_s for what, at_s in self._sent.items() if now_s - at_s < SAME_AFTER_S}
        while self._lately and now_s - self._lately[0] >= HOUR_S:
            self._lately.popleft()
        if key in self._sent:
            return
        if len(self._lately) >= self.choice.most_an_hour:
            self._held_back += 1
            return
        self._sent[key] = now_s
        self._lately.append(now_s)
        alert = {self.of: self.name, "kind": kind, "member": member, "text": text, "at": round(time.time(), 3)}
        if self._held_back:
            alert["held_back"] = self._held_back
            self._held_back = 0
        if self._thread is None:
            self._thread = threading.Thread(target=self._notify_all, daemon=True)
            self._thread.start()
        try:
            self._waiting.put_nowait(alert)
        except queue.Full:
            self._held_back += 1

    def close(self, limit_s: float = _HOOK_S) -> None:
        """What waits is sent first, within the limit."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join(limit_s)

    def _notify_all(self) -> None:
        while (alert := self._waiting.get()) is not None:
            for way in self.choice.ways:
                try:
                    (_webhook if way == "webhook" else _command)(self.choice, alert)
                except Exception as error:  # whatever a hook does, `keep` goes on
                    if way not in self._broken:
                        self._broken.add(way)
                        self.say(f"notify: {way} failed ({error}); said once, and tried again with the next alert")
                else:
                    self._broken.discard(way)


def _line(alert: Mapping[str, Any]) -> str:
    more = f" ({alert['held_back']} more were held back)" if "held_back" in alert else ""
    named = (alert.get("service") or alert.get("study"), alert["member"], alert["kind"])
    return f"{': '.join(filter(None, named))}: {alert['text']}{more}"


def _webhook(choice: NotifyChoice, alert: Mapping[str, Any]) -> None:
    url = os.environ.get(choice.webhook_env, "") if choice.webhook_env else choice.webhook
    if not url:
        raise ValueError(f"the variable {choice.webhook_env} is empty")
    # `text` is what chat services show; the rest is for programs
    body = json.dumps({**alert, "text": _line(alert), "what": alert["text"]}).encode()
    request = urllib.request.Request(url, body, {"content-type": "application/json"})  # noqa: S310  a person wrote it
    with urllib.request.urlopen(request, timeout=_HOOK_S):  # noqa: S310
        pass


def _command(choice: NotifyChoice, alert: Mapping[str, Any]) -> None:
    """A shell line: the alert as text in $RIDGELINE_ALERT, and as JSON on its input."""
    env = {**os.environ, "RIDGELINE_ALERT": _line(alert), "RIDGELINE_ALERT_KIND": str(alert["kind"])}
    done = subprocess.run(  # noqa: S602  a person wrote it
        choice.command, shell=True, input=json.dumps(alert), env=env, timeout=_HOOK_S, check=False,
        capture_output=True, text=True, errors="replace",
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr.strip()[-200:]}")
