"""What a row of looks at a server means: it is well, dead, hung, slower than its like, or near the end of its KV.

Nothing is decided from one look. A server is judged by the tokens it makes, never by what its /health says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

HUNG_AFTER_S = 8.0  # requests on it and no token for so long
LEAST_LOOKS = 3
SLOW_SHARE = 0.4  # of the median of the others' tokens a second and running request
SLOW_AFTER_S = 15.0
KV_NEAR = 0.9  # of the pool: beyond it requests are soon thrown out and computed again
WINDOW_S = 60.0


@dataclass(frozen=True, slots=True)
class ServerLook:
    """One look at a server. None: it did not say. `ended` is why its job is over, where it is.

    `progress` grows with anything that the server makes; where it is not known, tokens are.
    """

    at_s: float
    running: float | None = None
    tokens: float | None = None
    kv_share: float | None = None
    waiting: float = 0.0
    ended: str = ""
    progress: float | None = None
    role: str = ""  # only servers of the same one are alike

    @property
    def made(self) -> float | None:
        return self.tokens if self.progress is None else self.progress

    @property
    def on_it(self) -> float:
        """A server that hangs before it takes a request up has it in its queue for ever."""
        return (self.running or 0.0) + self.waiting


@dataclass(frozen=True, slots=True)
class Concern:
    """`kind` is dead, hung, slow or kv-cliff; `evidence` is what was seen, with its numbers."""

    member: str
    kind: str
    evidence: str

    @property
    def needs_restart(self) -> bool:
        return self.kind in ("dead", "hung", "slow")


class Watch:
    """Takes looks at all servers of a service and says what they mean."""

    def __init__(self) -> None:
        self._looks: dict[str, deque[ServerLook]] = {}

    def take(self, looks: Mapping[str, ServerLook]) -> list[Concern]:
        """Concerns about servers as they are after these looks."""
        for name, look in looks.items():
            row = self._looks.setdefault(name, deque())
            row.append(look)
            while row[-1].at_s - row[0].at_s > WINDOW_S:
                row.popleft()
        found = []
        for name in looks:
            alike = [other for other, look in looks.items() if other != name and look.role == looks[name].role]
            concern = self._of(name, alike)
            if concern is not None:
                found.append(concern)
        return found

    def _of(self, name: str, others: Sequence[str]) -> Concern | None:
        row = list(self._looks[name])
        if row[-1].ended:
            # a batch system that is restarted may forget a job for a moment
            again = len(row) > 1 and row[-2].ended
            return Concern(name, "dead", row[-1].ended) if again else None
        return self._hung(name) or self._slow(name, others) or self._kv(name)

    def forget(self, name: str) -> None:
        """It was started anew: what was seen of it before says nothing."""
        self._looks.pop(name, None)

    def _hung(self, name: str) -> Concern | None:
        """Requests were on it at every look since the last token, and that is long ago."""
        row = list(self._looks[name])
        last = row[-1]
        if last.made is None:
            since = _trailing(row, lambda look: look.made is None)
        else:
            since = _trailing(row, lambda look: look.made == last.made and look.on_it > 0)
        quiet_s = since[-1].at_s - since[0].at_s if since else 0.0
        if len(since) < LEAST_LOOKS or quiet_s < HUNG_AFTER_S:
            return None
        if last.made is None:
            return Concern(name, "hung", f"/metrics gave nothing for {quiet_s:.0f} s")
        return Concern(name, "hung", f"{last.on_it:.0f} requests on it and no token for {quiet_s:.0f} s")

    def _slow(self, name: str, others: Sequence[str]) -> Concern | None:
        own = self._pace(name)
        rates = [rate for other in others if (rate := self._pace(other)) is not None]
        if own is None or not rates or own >= SLOW_SHARE * median(rates):
            return None
        return Concern(name, "slow", f"{own:.1f} tokens/s for each running request, others {median(rates):.1f}")

    def _pace(self, name: str) -> float | None:
        """Tokens a second for each request that ran, over the last looks; None where that cannot be told yet."""
        row = [look for look in self._looks.get(name, ()) if look.tokens is not None]
        if len(row) < LEAST_LOOKS or row[-1].at_s - row[0].at_s < SLOW_AFTER_S:
            return None
        running = sum(look.running or 0.0 for look in row) / len(row)
        made = (row[-1].tokens or 0.0) - (row[0].tokens or 0.0)
        return made / (row[-1].at_s - row[0].at_s) / running if running >= 1 else None

    def _kv(self, name: str) -> Concern | None:
        row = list(self._looks[name])[-LEAST_LOOKS:]
        if len(row) < LEAST_LOOKS or any((look.kv_share or 0.0) < KV_NEAR for look in row):
            return None
        return Concern(name, "kv-cliff", f"its KV pool is {row[-1].kv_share:.0%} full, at {LEAST_LOOKS} looks in a row")


def _trailing(row: Sequence[ServerLook], holds: Callable[[ServerLook], bool]) -> list[ServerLook]:
    """The looks at the end of a row for which it holds."""
    found: list[ServerLook] = []
    for look in reversed(row):
        if not holds(look):
            break
        found.append(look)
    return found[::-1]
