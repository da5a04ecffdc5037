"""What `keep` does to a service: each action is in the journal, with its reason, before it happens.

An action is never waited for. Its first line says what is to become of a member, and every later poll goes on with it
(`steps.py`): so the others stay watched, and whoever comes after a keeper that was killed finds the same line.

While a router has no server it is answered for: 503 with Retry-After, which clients take for a reason to try again. smg
answers 404 when it knows no server, as if the model's name were wrong, and clients give up; sglang-router and
vllm-router answer 503 and do not say when to come back. So `keep` adds itself to such a router as a server that refuses
everything, and leaves when the first server is back. Nothing of ours is in the path of requests that can be served. If
`keep` ends meanwhile the router finds its address dead, and says 503 by itself.
"""

from __future__ import annotations

import http.server
import json
import math
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from ridgeline.serving.service.history import RESTART
from ridgeline.serving.service.keep.watch import Concern
from ridgeline.serving.service.members import SECOND, Member, first_slot
from ridgeline.serving.service.operate import Operator
from ridgeline.serving.service.routers import RouterAdmin
from ridgeline.serving.service.steps import Steps

RETRY_AFTER_S = 5
_PRIORITY = 1  # of 50 that servers have: by it one of an earlier keeper is known
_ERROR = {"message": "no server is ready; try again", "type": "server_error", "param": None, "code": "no_server"}


class _Refusing(http.server.BaseHTTPRequestHandler):
    model = ""  # of the service, by which routers know what a server is for

    def do_GET(self) -> None:
        card = {"id": self.model, "object": "model", "owned_by": "ridgeline"}
        info = {"model_path": self.model, "served_model_name": self.model}
        self._answer(200, {"object": "list", "data": [card]} if self.path == "/v1/models" else info)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self._answer(503, {"error": _ERROR})

    def _answer(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        if status == 503:
            self.send_header("retry-after", str(RETRY_AFTER_S))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class StandIn:
    """In the router while no server is."""

    def __init__(self) -> None:
        self._server: http.server.ThreadingHTTPServer | None = None
        self._url = ""

    def attend(self, admin: RouterAdmin, listed: Mapping[str, Mapping[str, Any]], model: str, serve: bool) -> None:
        """Comes where no server of the router serves, and goes, with those of earlier keepers, where one does."""
        if serve:
            for url in [url for url, row in listed.items() if row.get("priority") == _PRIORITY]:
                admin.take_away(url)
        elif self._url not in listed:
            admin.add(self._listen(admin.url, model), "both", priority=_PRIORITY)

    def _listen(self, router: str, model: str) -> str:
        """At the address by which this machine reaches the router, and so the router this machine."""
        if self._server is None:
            at = urlsplit(router)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as towards:
                towards.connect((at.hostname, at.port))
                address = towards.getsockname()[0]
            handler = type("_Refusing", (_Refusing,), {"model": model})
            self._server = http.server.ThreadingHTTPServer((address, 0), handler)
            self._url = f"http://{address}:{self._server.server_port}"
            threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self._url


LEAVE_S = 60.0  # a slow server may take so long over what it has
MOST_RESTARTS = 3  # of one member, lately; what breaks again and again is not cured by another start
# One prompt may look like a hang on every server that the router tries it on: between two of a role there is a wait.
ROLE_WAIT_S = 30.0  # after the first, then twice as long each time
_NEXT_WITHIN_S = 60.0  # of the end of that wait: a prompt that goes round looks like a hang as soon as anybody looks
_LOWER_TO = 0.85  # of the requests that are under way
LIMIT_AGAIN_S = 120.0  # before another one is named


class Actions(Steps):
    """One keeper's decisions, carried out. `alert` gets a kind, a member and what a person may have to know."""

    def __init__(
        self,
        operator: Operator,
        file: str,
        alert: Callable[[str, str, str], None] = lambda kind, member, text: None,
    ) -> None:
        super().__init__(operator, alert)
        self._file = file
        self._limit_said_s = -math.inf
        self._stand_in = StandIn()

    def record(self, event: Mapping[str, Any]) -> None:
        with self._operator.action():
            self._operator.folder.record(event)

    def attend(self, listed: Mapping[str, Mapping[str, Any]]) -> None:
        """While no server is in the router somebody must say so. Where roles are split routers say it themselves."""
        operator, folder, admin = self._operator, self._folder, self.admin()
        if admin is None or operator.service.split:
            return
        serve = {folder.url(m) for m in operator.servers if folder.serves(m.name) and m.name not in folder.out}
        model = operator.service.served_name or operator.service.model
        self._stand_in.attend(admin, listed, model, bool(serve & listed.keys()))

    def restart(self, concern: Concern) -> bool:
        """Whether anything was begun about it."""
        operator, folder = self._operator, self._folder
        member = operator.member(concern.member)
        generation = folder.generation(member.name)
        if self._waits(member, concern):
            return False
        spared = self._spared(member)  # asked once: a router that is busy for a moment answers differently
        if not (spared or concern.certain or concern.kind == "dead"):
            return False
        if spared and concern.kind in ("hung", "slow") and len(folder.restarts(member.name)) >= MOST_RESTARTS:
            return self._give_up(member, concern)
        with operator.action():
            if folder.is_down or member.name in folder.leaving or folder.generation(member.name) != generation:
                return False  # somebody else was quicker
            event: dict[str, Any] = {"event": RESTART, "member": member.name, "why": concern.kind}
            until_s = round(time.time() + (LEAVE_S if concern.kind == "slow" else 0.0), 3)
            folder.record({**event, "evidence": concern.evidence, "until": until_s})
            out = "" if member.is_router else "taken out and "
            operator.say(f"{member.name}: {concern.kind} ({concern.evidence}); {out}started again")
        self._alert(concern.kind, member.name, f"{concern.evidence}; it is started again")
        return True

    def _waits(self, member: Member, concern: Concern) -> bool:
        """What was done to it, or to others of its role, needs time to show."""
        folder = self._folder
        if concern.kind == "dead" or member.is_router:
            return folder.next_try_in_s(member.name) > 0
        alike = [other.name for other in self._operator.servers if other.role == member.role]
        acts = sorted(at_s for name in alike for at_s in folder.restarts(name, ("hung", "slow")))
        wait_s, last_s = ROLE_WAIT_S, -math.inf
        for at_s in acts:
            wait_s = 2 * wait_s if at_s - last_s < wait_s + _NEXT_WITHIN_S else ROLE_WAIT_S
            last_s = at_s
        return time.time() - last_s < wait_s

    def _give_up(self, member: Member, concern: Concern) -> bool:
        operator = self._operator
        if operator.folder.url(member) not in (self.listed() or {}):
            return False
        with operator.action():
            event = {"event": "drained", "member": member.name, "why": concern.kind, "evidence": concern.evidence}
            operator.folder.record(event)
            self.take_out(member)
        text = (
            f"{concern.kind} ({concern.evidence}) after {MOST_RESTARTS} restarts; left out of the router. "
            f"Look at {operator.folder.log(member)}, then `ridgeline service restart {self._file} {member.name}`"
        )
        operator.say(f"{member.name}: {text}")
        self._alert("given-up", member.name, text)
        return True

    def _spared(self, member: Member) -> bool:
        """Whether others of its role serve: it is not the last one."""
        listed, folder = self.listed(), self._operator.folder
        if listed is None or member.is_router:
            return False
        others = [other for other in self._operator.servers if other.role == member.role and other.name != member.name]
        return any(folder.url(other) in listed and folder.serves(other.name) for other in others)

    def near_cliff(self, concern: Concern) -> None:
        """Says which limit would keep the router below it: a new one needs a new router, which cuts streams off."""
        operator = self._operator
        if operator.router is None or time.monotonic() - self._limit_said_s < LIMIT_AGAIN_S:
            return
        self._limit_said_s = time.monotonic()
        under_way = sum(operator.running(member) for member in operator.servers if member.role != "prefill")
        limit = max(1, int(_LOWER_TO * under_way))
        say = f"write `most_running: {limit}` into {self._file} and `ridgeline service restart {self._file} router`"
        operator.say(f"{concern.member}: {concern.kind} ({concern.evidence}); {say}")
        self._alert(concern.kind, concern.member, f"{concern.evidence}; {say}")

    def replace(self, member: Member, why: str) -> None:
        """Another server is started in its place; it serves until that one does."""
        operator, folder = self._operator, self._operator.folder
        first = first_slot(member.name)
        by = first if member.name != first else f"{first}{SECOND}"
        with operator.action():
            if folder.is_down or member.name in folder.replacing:
                return
            folder.record({"event": "replacing", "member": member.name, "by": by, "why": why})
            operator.say(f"{member.name}: {why}; {by} takes its place")
            operator.ensure(operator.member(by))

    def renew_router(self, router: Member, why: str) -> None:
        """It has one address: it is started again, which cuts off what streams through it."""
        with self._operator.action():
            self._operator.folder.record({"event": "leaving", "member": router.name, "why": why, "until": 0.0})
        self._operator.say(f"{router.name}: {why}; started again")
