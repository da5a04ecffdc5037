"""What a row of looks at a server means: it is well, dead, hung, slower than its like, or near the end of its KV.

Nothing is decided from one look. A server is judged by what its engine makes, never by what its /health says.

Hung is who leaves a canary (a request for one token) unanswered while nothing that its engine counts moves, for longer
than the engine can be busy with anything. How long that is:

- its processes can be seen from here, need no GPU, and stand still: `HUNG_AFTER_S`. They are at nothing.
- else a step of prompt tokens is the longest that an engine does without moving a counter. It is given `PATIENCE` times
  the larger of: that step at the pace that this server showed, and the longest quiet from which it came back.
- processes that work on CPUs are given at least `AT_WORK_S`, and so is a server whose pace nobody has seen; `SILENT_S`
  where it has GPUs or another node, and does not even say what it counts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

HUNG_AFTER_S = 10.0  # a canary unanswered and nothing else made for so long
AT_WORK_S = 120.0
SILENT_S = 30.0
PATIENCE, MOST_PATIENCE_S = 3.0, 900.0
CERTAIN = 3.0  # times that: nobody waits for such a server any more, were it the only one
STEP_TOKENS = 16384  # of prompts in one step of an engine, where it was not told a number
WORK_SHARE = 0.1  # of a core; engines that wait for work look for it now and then
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
    asked: bool = False  # a canary was sent, and no answer came since
    confirmed: bool = False  # nor to a second one
    answers: int = 0  # to canaries, so far
    cpu_s: float | None = None  # of its processes, where they can be seen
    stopped: bool = False  # one of them was told to stop
    runnable: bool = False  # one of them works, or would if others left it a core
    on_gpus: bool = False  # it may work while its processes wait
    pace_s: float | None = None  # for each token of a prompt
    step_tokens: int = STEP_TOKENS

    @property
    def made(self) -> float | None:
        return self.tokens if self.progress is None else self.progress

    @property
    def on_it(self) -> float:
        """A server that hangs before it takes a request up has it in its queue for ever."""
        return (self.running or 0.0) + self.waiting

    @property
    def signs(self) -> dict[str, float]:
        """What only an engine that works can move, as far as it is known."""
        found = {"made": self.made, "kv": self.kv_share, "running": self.running, "answers": float(self.answers)}
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Concern:
    """`kind` is dead, hung, slow, refuses or kv-cliff; `evidence` is what was seen, with its numbers.

    `certain`: it serves nobody, so that a restart takes nothing away, were it the last of its role.
    """

    member: str
    kind: str
    evidence: str
    certain: bool = False

    @property
    def needs_restart(self) -> bool:
        return self.kind in ("dead", "hung", "slow", "refuses")


@dataclass
class _Quiet:
    """Since when nothing of a server has moved while a canary waited."""

    since_s: float
    signs: dict[str, float] = field(default_factory=dict)
    looks: int = 1
    runnable: int = 0  # of these looks
    spoke: bool = False  # it gave a page of metrics meanwhile
    cpu_s: float | None = None
    longest_s: float = 0.0  # from which it came back

    def take(self, look: ServerLook) -> None:
        moved = any(self.signs.get(name, value) != value for name, value in look.signs.items())
        self.signs |= look.signs
        if moved and self.looks > 1:
            self.longest_s = max(self.longest_s, look.at_s - self.since_s)
        if moved or not look.asked:
            self.since_s, self.looks, self.runnable, self.cpu_s = look.at_s, 1, 0, look.cpu_s
            self.spoke = False
        else:
            self.looks += 1
            self.runnable += look.runnable
            self.spoke |= look.made is not None
            self.cpu_s = look.cpu_s if self.cpu_s is None else self.cpu_s

    def stands_still(self, look: ServerLook) -> bool:
        """Its processes are at nothing. One that waits for a GPU looks the same, unless it was stopped."""
        if look.stopped:
            return True
        quiet_s = look.at_s - self.since_s
        if look.on_gpus or look.cpu_s is None or self.cpu_s is None or 2 * self.runnable > self.looks:
            return False
        return look.cpu_s - self.cpu_s < WORK_SHARE * quiet_s

    def allowed_s(self, look: ServerLook) -> float:
        """How long it may be quiet before it is hung."""
        if look.role == "router" or self.stands_still(look):
            return HUNG_AFTER_S
        step_s = max((look.pace_s or 0.0) * look.step_tokens, self.longest_s)
        unknown_s = AT_WORK_S if self.spoke else SILENT_S
        least_s = HUNG_AFTER_S if look.pace_s is not None else unknown_s
        if look.cpu_s is not None and not look.on_gpus:
            least_s = AT_WORK_S
        return min(max(least_s, PATIENCE * step_s), MOST_PATIENCE_S)


class Watch:
    """Takes looks at all servers of a service and says what they mean."""

    def __init__(self) -> None:
        self._looks: dict[str, deque[ServerLook]] = {}
        self._quiet: dict[str, _Quiet] = {}

    def take(self, looks: Mapping[str, ServerLook]) -> list[Concern]:
        """Concerns about servers as they are after these looks."""
        for name, look in looks.items():
            row = self._looks.setdefault(name, deque())
            row.append(look)
            while row[-1].at_s - row[0].at_s > WINDOW_S:
                row.popleft()
            self._quiet.setdefault(name, _Quiet(look.at_s)).take(look)
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
        self._quiet.pop(name, None)

    def is_quiet(self, name: str) -> bool:
        """Nothing of it moved between the last two looks."""
        row = list(self._looks.get(name, ()))
        return len(row) > 1 and row[-1].signs == row[-2].signs

    def verdict_in_s(self, name: str) -> float:
        """Until it would be called hung, if it stays as it is."""
        row, quiet = self._looks.get(name), self._quiet.get(name)
        if not row or quiet is None or not row[-1].asked:
            return math.inf
        return quiet.allowed_s(row[-1]) - (row[-1].at_s - quiet.since_s)

    def _hung(self, name: str) -> Concern | None:
        look, quiet = self._looks[name][-1], self._quiet[name]
        quiet_s, allowed_s = look.at_s - quiet.since_s, quiet.allowed_s(look)
        if not (look.asked and look.confirmed) or quiet.looks < LEAST_LOOKS or quiet_s < allowed_s:
            return None
        if look.role == "router":
            return Concern(name, "hung", f"/health gave nothing for {quiet_s:.0f} s", certain=True)
        still = quiet.stands_still(look)
        if look.stopped:
            why = "one of its processes is stopped"
        elif still:
            why = "its processes stand still"
        else:
            why = f"the longest step of this server is taken for {allowed_s / PATIENCE:.0f} s"
        certain = still or quiet_s >= CERTAIN * allowed_s
        evidence = f"{look.on_it:.0f} requests on it and no token for {quiet_s:.0f} s, not even for a canary; {why}"
        return Concern(name, "hung", evidence, certain)

    def _slow(self, name: str, others: Sequence[str]) -> Concern | None:
        if self._looks[name][-1].asked:
            return None  # it makes nothing at all: busy or hung, which is told elsewhere
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
