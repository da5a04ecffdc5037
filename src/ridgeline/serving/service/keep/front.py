"""`service keep --front URL`: a service that somebody else keeps, as Kubernetes does, watched through its front URL.

A request for one token is sent now and then, as a user would. Nothing is started, ended or changed: whoever `notify`
names is notified when users are not served, and when they are again.
"""

from __future__ import annotations

import http.server
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from ridgeline.serving.service import probe
from ridgeline.serving.service.keep.canary import FRONT_EVERY_S, FRONT_LIMIT_S, REFUSALS
from ridgeline.serving.service.keep.exporter import serve_page


@dataclass
class FrontWatch:
    """`alert` is called with a kind, a member and what was seen."""

    name: str
    url: str
    model: str
    key: str
    say: Callable[[str], None] = lambda line: None
    alert: Callable[[str, str, str], None] = lambda kind, member, text: None
    ask: Callable[[str, str, str, float], str] = probe.why_refused
    counts: Counter[str] = field(default_factory=Counter)
    refusals: int = 0  # in a row
    alerted: bool = False

    def step(self) -> None:
        """One request, and what follows from it."""
        model = self.model or probe.served_model(self.url, self.key)
        why = self.ask(self.url, model, self.key, FRONT_LIMIT_S)
        self.counts["refused" if why else "served"] += 1
        self.refusals = self.refusals + 1 if why else 0
        if why and self.refusals >= REFUSALS and not self.alerted:
            self.alerted = True
            self.say(f"front: refuses ({why})")
            self.alert("refuses", "front", f"{why}, at {self.url}")
        elif not why and self.alerted:
            self.alerted = False
            self.say("front: serves again")
            self.alert("serves-again", "front", f"at {self.url}")

    def run(self, stop: Callable[[], bool]) -> None:
        while not stop():
            began_s = time.monotonic()
            self.step()
            while not stop() and time.monotonic() - began_s < FRONT_EVERY_S:
                time.sleep(0.2)

    def metrics_text(self) -> str:
        own = f'service="{self.name}"'
        lines = ["# TYPE ridgeline_front_serves gauge", f"ridgeline_front_serves{{{own}}} {int(not self.refusals)}"]
        lines.append("# TYPE ridgeline_front_canaries_total counter")
        names = ("served", "refused")
        lines += [f'ridgeline_front_canaries_total{{{own},outcome="{n}"}} {self.counts[n]}' for n in names]
        return "\n".join([*lines, ""])

    def serve_metrics(self, port: int, host: str) -> http.server.ThreadingHTTPServer:
        return serve_page(self.metrics_text, port, host)
