"""Keeping a service running. One loop of four parts:

- what was **accepted** to run (`serving/service/folder.py`), read again at every poll: nothing is started otherwise;
- what is **seen** (`seen.py`): a poll of every member and what comes of the canaries;
- what is **judged** (`watch.py`): concerns that several polls agree on;
- what is **done** (`actions.py`, step by step in `service/steps.py`), with its reason in the journal before it happens.

Nothing here waits for a server: a restart is begun, and the server is put back by a later poll that finds it ready. So
the others stay watched meanwhile, and a keeper that was killed at any point is simply followed by the next one.
"""

from __future__ import annotations

import errno
import gzip
import http.server
import math
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec

from ridgeline.errors import InputError, RidgelineError, SiteError
from ridgeline.serving.service.history import RESTART_FAILED
from ridgeline.serving.service.keep.actions import Actions
from ridgeline.serving.service.keep.canary import OUTCOMES, REFUSALS
from ridgeline.serving.service.keep.seen import MEMBER_STATES, Seen
from ridgeline.serving.service.keep.watch import Concern
from ridgeline.serving.service.members import Member
from ridgeline.serving.service.operate import Operator
from ridgeline.study.lock import LockHeld

_LARGEST_BYTES = 100_000_000
_KEPT = 3  # older parts, as NAME.1.gz (the latest) and so on


def rotate(path: Path, largest_bytes: int | None = None) -> bool:
    """Whether it was large enough. Lines that are written in the moment of it may be lost, as with copytruncate."""
    try:
        if path.stat().st_size < (_LARGEST_BYTES if largest_bytes is None else largest_bytes):
            return False
    except FileNotFoundError:
        return False
    partial = path.with_name(f"{path.name}.partial")
    try:
        with path.open("rb") as source, gzip.open(partial, "wb", compresslevel=1) as out:
            shutil.copyfileobj(source, out)
    except OSError:
        partial.unlink(missing_ok=True)  # the disk is full, perhaps: this shall not fill it further
        raise
    for number in range(_KEPT - 1, 0, -1):
        older = path.with_name(f"{path.name}.{number}.gz")
        if older.exists():
            older.replace(path.with_name(f"{path.name}.{number + 1}.gz"))
    partial.replace(path.with_name(f"{path.name}.1.gz"))
    os.truncate(path, 0)
    return True


P = ParamSpec("P")


def _is_disk_full(error: BaseException | None) -> bool:
    """Whether it came of a file system, or a quota, that takes no more bytes."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    return False


POLL_EVERY_S = 2.0
_AGAIN_AFTER_S = 60.0  # the same message about the same member is printed once in so long
RETRY_S, _LONGEST_RETRY_S = 5.0, 300.0  # before an action that failed is tried again; twice as long each time
_RENEW_SHARE = 0.1  # of a batch system's limit
_REPLACE_AGAIN_S = 300.0  # after a replacement that did not start
_ROTATE_EVERY = 30  # polls
_STARTS = 3.0  # times the longest start that was seen, for each member


def renewal_lead_s(limit_s: float, starting_s: float) -> float:
    """How long before a batch system's limit members begin to be replaced; starting all of them takes `starting_s`."""
    return min(limit_s / 2, max(_RENEW_SHARE * limit_s, _STARTS * starting_s))


# what `keep` sends alerts of and counts, from 0 on
ALERTS = (
    "dead", "back-off", "hung", "slow", "refuses", "wrong-key", "given-up", "kv-cliff", "failed",
    "replace-failed", "serves-again",
)  # fmt: skip


@dataclass
class Keeper:
    """`dry_run` says what would be done and does nothing.

    `alert` is called with what a person may have to know: a kind, a member and what was seen and done.
    """

    operator: Operator
    dry_run: bool = False
    ready_s: float = 1800.0
    file: str = "FILE"
    clock: Callable[[], float] = time.monotonic
    alert: Callable[[str, str, str], None] = lambda kind, member, text: None
    counts: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(("polls", *ALERTS), 0)))
    _said: dict[tuple[str, str], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.seen = Seen(self.operator, self.clock)
        self._actions = Actions(self.operator, self.file, self._notify)
        self._absent: dict[str, int] = {}  # polls in a row at which the router did not list it
        self._failed: dict[str, tuple[int, float]] = {}  # by member: failures in a row, and the next try
        self._refused: dict[str, str] = {}  # by member: why its canaries are refused, as people were told

    def run(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Until `stop` says so."""
        while not stop():
            began_s = self.clock()
            try:
                self.step()
            except (RidgelineError, OSError) as error:
                # the batch system is away, or another verb of `service` is running: retried at the next poll
                self._say("keep", "waits", str(error))
            time.sleep(max(0.0, POLL_EVERY_S - (self.clock() - began_s)))

    def step(self) -> list[Concern]:
        """One poll of every member, and what follows."""
        operator, folder = self.operator, self.operator.folder
        operator.refresh()
        self.counts["polls"] += 1
        if folder.is_down:
            self.seen.note()
            return []
        if folder.accepted is None and folder.started:
            raise InputError(
                "an earlier release started this service, and nothing says what was accepted to run; accept what the "
                f"file says with `ridgeline service up {self.file}`, which leaves alone what runs"
            )
        members = [member for member in operator.present if member.name in folder.started]
        self.seen.look(members)
        concerns = self._judged(members)
        self.seen.ask(members)
        for concern in concerns:
            self._attempt(concern.member, self._follow, concern)
        if not self.dry_run:
            self._go_on(members)
            self._renew()
            self._rotate_logs(members)
        self.seen.note()
        return concerns

    def _judged(self, members: Sequence[Member]) -> list[Concern]:
        found = self.seen.watch.take(self.seen.polls)
        named = {concern.member for concern in found}
        broken = (self.seen.broken(m) for m in members if m.name not in named)
        found += [concern for concern in (*broken, *map(self._late, members)) if concern is not None]
        for member in members:
            self._tell_of_refusals(member)
        return found + self.seen.refusing()

    # judging

    def _tell_of_refusals(self, member: Member) -> None:
        """A server that takes no canaries is not known to work: a person must know. A wrong key is told at once."""
        canaries = self.seen.canaries(member)
        if canaries is None or not (canaries.wrong_key or canaries.refusals >= REFUSALS):
            if canaries is None or canaries.good:
                self._refused.pop(member.name, None)
            return
        kind = "wrong-key" if canaries.wrong_key else "refuses"
        if self._refused.get(member.name) == kind:
            return
        self._refused[member.name] = kind
        remedy = f"set {self.operator.service.api_key_env or 'api_key_env'} to the key that it was started with"
        what = f"it refuses canaries ({canaries.why})"
        text = f"{what}: {remedy}" if canaries.wrong_key else f"{what}; they are tried again"
        self.operator.say(f"{member.name}: {kind} ({text})")
        self._notify(kind, member.name, text)

    def _late(self, member: Member) -> Concern | None:
        """Started, and not ready in its time; how long it waits in a queue is not its fault."""
        folder = self.operator.folder
        start, began_s = folder.started[member.name], folder.began_s(member)
        waited_s = time.time() - (began_s or start.at_s)
        queued = not began_s and not self.operator.service.on_this_machine
        if start.ready or start.ended or not start.ticket or queued or waited_s < self.ready_s:
            return None
        return Concern(member.name, "hung", f"not ready {waited_s:.0f} s after its start", certain=True)

    # acting

    def _follow(self, concern: Concern) -> None:
        if self.dry_run:
            would = "; would be restarted" if concern.needs_restart else ""
            self._say(concern.member, concern.kind, f"{concern.evidence}{would}")
        elif concern.member in self.operator.folder.replacing:
            return  # another one is on its way to its place
        elif concern.needs_restart:
            if self._actions.restart(concern):
                self.seen.forget(concern.member)
            elif next_try_s := self.operator.folder.next_try_in_s(concern.member) if concern.kind == "dead" else 0.0:
                text = f"{concern.evidence}; back-off, next try in {next_try_s:.0f} s"
                if self._say(concern.member, concern.kind, text):
                    self._notify("back-off", concern.member, text)
            else:
                self._say(concern.member, concern.kind, f"{concern.evidence}; nothing is done yet")
        else:
            self._actions.near_cliff(concern)

    def _go_on(self, members: Sequence[Member]) -> None:
        """What an earlier poll, or an earlier keeper, began."""
        folder = self.operator.folder
        listed = self._actions.listed()
        if listed is not None:
            self._attempt("stand-in", self._actions.attend, listed)
        for member in members:
            self._attempt(member.name, self._actions.go_on, member, listed)
        for member in self.operator.present:
            if member.name not in folder.started and member.name in folder.replacing.values():
                self._attempt(member.name, self._actions.go_on, member, listed)
        for member in members:
            if member.is_router or listed is None or member.name in folder.out or not folder.serves(member.name):
                continue
            absent = folder.url(member) not in listed
            self._absent[member.name] = self._absent.get(member.name, 0) + 1 if absent else 0
            if self._absent[member.name] > 1:
                self._attempt(member.name, self._actions.put_back, member)

    def _attempt(self, name: str, act: Callable[P, object], *args: P.args, **named: P.kwargs) -> None:
        """An action that fails is tried again, ever more rarely, and keeps nobody from the others."""
        times, again_s = self._failed.get(name, (0, -math.inf))
        if self.clock() < again_s:
            return
        try:
            act(*args, **named)
        except LockHeld:
            raise
        except (RidgelineError, OSError) as error:
            # a disk that is full has room again from one moment to the next
            wait_s = RETRY_S if _is_disk_full(error) else min(RETRY_S * 2**times, _LONGEST_RETRY_S)
            self._failed[name] = (times + 1, self.clock() + wait_s)
            self.operator.say(f"{name}: {error}; tried again in {wait_s:.0f} s")
            self._notify("failed", name, str(error))
            try:
                self._actions.record({"event": RESTART_FAILED, "member": name, "reason": str(error), "again_s": wait_s})
            except (RidgelineError, OSError) as unwritten:
                self._say("keep", "cannot write its journal", str(unwritten))
        else:
            if name not in self.operator.folder.started or self.operator.folder.serves(name):
                self._failed.pop(name, None)

    def _renew(self) -> None:
        """Jobs of a batch system end at their limit: each member gives its place to another one before, in turn."""
        operator, folder = self.operator, self.operator.folder
        limit_s = operator.service.job_limit_s
        if math.isinf(limit_s) or folder.leaving or folder.retiring or folder.replacing:
            return
        starts = [s.ready_at_s - s.at_s for s in folder.started.values() if s.ready]
        lead_s = renewal_lead_s(limit_s, max(starts, default=0.0) * len(operator.members))
        serving = [m for m in operator.members if folder.serves(m.name) and folder.began_s(m)]
        left = {m.name: folder.began_s(m) + limit_s - time.time() for m in serving}
        for member in sorted(serving, key=lambda m: (m.is_router, left[m.name])):
            if left[member.name] > lead_s or time.time() - folder.not_replaced.get(member.name, 0.0) < _REPLACE_AGAIN_S:
                continue
            why = f"its job ends in {left[member.name] / 60:.0f} min"
            if not member.is_router:
                self._attempt(member.name, self._actions.replace, member, why)
            elif left[member.name] < lead_s / 2 or not any(poll.on_it for poll in self.seen.polls.values()):
                self._attempt(member.name, self._actions.renew_router, member, why)
            return

    def _rotate_logs(self, members: Sequence[Member]) -> None:
        if not self.operator.service.on_this_machine or self.counts["polls"] % _ROTATE_EVERY:
            return
        for log in (self.operator.folder.log(member) for member in members):
            for path in (log, log.with_name("stdout")):
                self._attempt(f"log {path}", rotate, path)

    def _notify(self, kind: str, member: str, text: str) -> None:
        self.counts[kind] += 1
        self.alert(kind, member, text)

    def _say(self, member: str, kind: str, what: str) -> bool:
        """Whether it was time to say it again."""
        now_s, key = self.clock(), (member, kind)
        if now_s - self._said.get(key, -_AGAIN_AFTER_S) < _AGAIN_AFTER_S:
            return False
        self._said[key] = now_s
        self.operator.say(f"{member}: {kind} ({what})")
        return True


def _metrics_text(keeper: Keeper) -> str:
    """Of its last poll; the journal is not read again for it."""
    lines: list[str] = []

    def family(name: str, rows: Iterable[tuple[float, dict[str, str]]]) -> None:
        lines.append(f"# TYPE ridgeline_{name} {'counter' if name.endswith('_total') else 'gauge'}")
        for value, own in rows:
            labels = {"service": keeper.operator.service.name, **own}
            text = ",".join(f'{key}="{label}"' for key, label in labels.items())
            lines.append(f"ridgeline_{name}{{{text}}} {value}")

    seen = [({"member": row.member}, row) for row in keeper.seen.states]
    family("keep_polls_total", [(keeper.counts["polls"], {})])
    kinds = sorted(kind for kind in list(keeper.counts) if kind != "polls")
    family("keep_events_total", ((keeper.counts[kind], {"kind": kind}) for kind in kinds))
    family("member_starts_total", ((row.starts, own) for own, row in seen))
    family("member_stalled", ((int(row.stalled), own) for own, row in seen))
    family("member_next_try_seconds", ((round(row.next_try_s), own) for own, row in seen))
    family("member_state", ((int(s == row.state), own | {"state": s}) for own, row in seen for s in MEMBER_STATES))
    # by what came of each canary: the share that is not answered is the server's error rate, with and without users
    family("member_canaries_total", ((row.canaries[o], own | {"outcome": o}) for own, row in seen for o in OUTCOMES))
    statuses = ("2xx", "4xx", "5xx")
    family("member_requests_total", ((row.requests[s], own | {"status": s}) for own, row in seen for s in statuses))
    return "\n".join([*lines, ""])


def serve_metrics(keeper: Keeper, port: int) -> http.server.ThreadingHTTPServer:
    """In a thread of its own, until `shutdown`. SiteError where the port is taken."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path.partition("?")[0] == "/metrics"
            body = _metrics_text(keeper).encode() if found else b"see /metrics\n"
            self.send_response(200 if found else 404)
            self.send_header("content-type", "text/plain; version=0.0.4")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Page)
    except OSError as error:
        raise SiteError(f"127.0.0.1:{port}: {error.strerror}; choose another port for --metrics") from None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
