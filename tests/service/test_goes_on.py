"""Every act of `keep` and of a person, killed at every line of the journal: whoever comes next finishes it."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ridgeline.errors import SiteError
from ridgeline.executors.base import Executor
from ridgeline.records.run import Cause, Ending, Job
from ridgeline.serving.service import probe
from ridgeline.serving.service.file import load_service
from ridgeline.serving.service.folder import ServiceFolder
from ridgeline.serving.service.history import STEADY_S
from ridgeline.serving.service.keep.exporter import _metrics_text
from ridgeline.serving.service.keep.keeper import Keeper
from ridgeline.serving.service.keep.logs import rotate
from ridgeline.serving.service.keep.watch import Concern
from ridgeline.serving.service.members import members_of
from ridgeline.serving.service.operate import Operator
from ridgeline.serving.service.rolling import drain, restart, undrain
from ridgeline.serving.service.router_admin import RouterAdmin
from ridgeline.study.journal import Journal, failure, read_events

FILE = """\
version: 1
model: llama-8b
engine: {kind: twin, gpu: h200}
router: {kind: sglang-router, port: 9000}
units: [{replicas: 2, settings: {tp: 1}}]
"""


FULL = os.open("/dev/full", os.O_WRONLY)


class Killed(BaseException):
    """As SIGKILL: nothing of the process runs after it, but that its lock is dropped."""


class World(Executor):
    """A site and a router in memory: jobs that start at once, and what the router lists. It outlives every keeper."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.jobs: dict[str, str] = {}  # ticket -> how it ended, empty while it runs
        self.listed: dict[str, str] = {}
        self.refusals = 0  # submissions that will fail
        self.least = 9  # servers that the router ever listed after it gave one up

    def take_away(self, url: str) -> None:
        self.listed.pop(url, None)
        self.least = min(self.least, len(self.listed))

    # the executor

    slots, detached = 9, False

    def script(self, job: Job) -> str:
        return job.command

    def submit(self, job: Job) -> str:
        if self.refusals:
            self.refusals -= 1
            raise SiteError("the batch system is away", transient=True)
        self.jobs[str(job.folder)] = ""
        (job.folder.parent.parent / "address").write_text("127.0.0.1\n")
        if "router" in job.name:
            self.listed = {url: url for url in self.urls()}
        return str(job.folder)

    def urls(self) -> list[str]:
        """Of the servers that run: a router that starts waits for them."""
        service = load_service(self.root / "two.yaml")
        folder = ServiceFolder(self.root / "service", service)
        every = [*members_of(service)[:2], *members_of(service, ("server-0", "server-1"))[:2]]
        return [folder.url(m) for m in every if any(f"/{m.name}/" in t and not end for t, end in self.jobs.items())]

    def find(self, job: Job) -> str | None:
        return str(job.folder) if str(job.folder) in self.jobs else None

    def poll(self, tickets: Any) -> Mapping[str, Ending]:
        return {t: Ending(Cause.CANCELLED, reason=self.jobs[t]) for t in tickets if self.jobs.get(t)}

    def cancel(self, ticket: str) -> None:
        self.jobs[ticket] = "cancelled"

    def wait(self, timeout_s: float) -> None:
        pass

    def running(self) -> list[str]:
        return sorted(Path(t).parent.parent.name for t, end in self.jobs.items() if not end)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    (tmp_path / "two.yaml").write_text(FILE)
    site = World(tmp_path)
    monkeypatch.setattr("ridgeline.serving.service.operate.catalog.part", lambda kind, name: lambda site_: site)
    monkeypatch.setattr("ridgeline.serving.service.operate.why_not_free", lambda port, host: "")
    monkeypatch.setattr("ridgeline.serving.service.operate.POLL_S", 0.0)
    monkeypatch.setattr(probe, "is_healthy", lambda url: True)
    monkeypatch.setattr(probe, "metrics_page", lambda url: "")
    monkeypatch.setattr(probe, "served_model", lambda url, key: "m")
    monkeypatch.setattr(probe, "first_answer", lambda url, model, key: {})
    monkeypatch.setattr(probe, "warm_up", lambda url, model, key: None)
    monkeypatch.setattr(probe, "ask_for_token", lambda *a, **k: probe.TokenAnswer())
    monkeypatch.setattr("ridgeline.serving.service.keep.seen.Canaries.poll", lambda *a, **k: None)
    monkeypatch.setattr("ridgeline.serving.service.keep.seen.RouterCanary.poll", lambda self, servers_idle: None)
    monkeypatch.setattr(RouterAdmin, "workers", lambda self: {url: {} for url in site.listed})
    monkeypatch.setattr(RouterAdmin, "take_away", lambda self, url: site.take_away(url))
    monkeypatch.setattr(RouterAdmin, "add", lambda self, url, role, **_: site.listed.update({url: url}))
    monkeypatch.setattr("ridgeline.serving.service.keep.keeper.RETRY_S", 0.0)
    yield site


def fresh(world: World) -> Operator:
    return Operator(load_service(world.root / "two.yaml"), world.root / "service")


def by_keep(kind: str, name: str = "server-1") -> Callable[[Operator], None]:
    def act(service: Operator) -> None:
        keeper = Keeper(service)
        assert keeper._actions.restart(Concern(name, kind, "as if", certain=True))
        for _ in range(6):
            keeper.step()

    return act


def replaced(service: Operator) -> None:
    keeper = Keeper(service)
    keeper._actions.replace(service.member("server-1"), "its job ends in 10 min")
    for _ in range(6):
        keeper.step()


def commanded(act: Callable[[Operator], None]) -> Callable[[Operator], None]:
    def command(service: Operator) -> None:
        with service.commanding():
            act(service)

    return command


BACK = ["router", "server-0", "server-1"]
ACTS: dict[str, tuple[Callable[[Operator], None], list[str]]] = {
    "hung": (by_keep("hung"), BACK),
    "slow": (by_keep("slow"), BACK),
    "dead": (by_keep("dead"), BACK),
    "router": (by_keep("dead", "router"), BACK),
    "replaced": (replaced, ["router", "server-0", "server-1-b"]),
    "restart": (commanded(lambda s: restart(s, [s.member("server-1")], 60)), BACK),
    "force": (commanded(lambda s: restart(s, [s.member("server-1")], 60, force=True)), BACK),
    "rolling": (commanded(lambda s: restart(s, s.servers, 60)), BACK),
    "restart-router": (commanded(lambda s: restart(s, [s.member("router")], 60)), BACK),
}


def run_until(act: Callable[[], object], lines: int) -> bool:
    """The act, killed after so many lines of the journal; whether it came to its end before."""
    left, whole = itertools.count(), ServiceFolder.record

    def record(self: ServiceFolder, event: Mapping[str, Any]) -> None:
        whole(self, event)
        if next(left) + 1 == lines:
            raise Killed

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
        patch.setattr(ServiceFolder, "record", record)
        act()
        return True
    return False


def settle(world: World) -> Operator:
    service = fresh(world)
    keeper = Keeper(service, ready_s=60)
    for _ in range(14):
        keeper.step()
    return service


def whole(world: World, service: Operator, names: list[str]) -> None:
    assert world.running() == names, "each runs once"
    assert sorted(world.listed) == sorted(service.folder.url(m) for m in service.servers), "all are in the router"
    assert {m.name for m in service.members} == set(names)
    assert not (service.folder.leaving or service.folder.retiring or service.folder.replacing)


@pytest.mark.parametrize("name", ACTS)
def test_an_act_that_is_killed_at_any_line_is_finished_by_the_next_keeper(world: World, name: str) -> None:
    act, names = ACTS[name]
    for lines in itertools.count(1):
        fresh(world).up(60)
        before = len(list(read_events(world.root / "service" / "journal.jsonl")))
        ended = run_until(lambda: act(fresh(world)), lines)
        service = settle(world)
        whole(world, service, names if ended or has_begun(world, before, names) else BACK)
        fresh(world).down()
        assert world.running() == []
        if ended:
            assert lines > 3, "it has several lines"
            break


def has_begun(world: World, before: int, names: list[str]) -> bool:
    events = list(read_events(world.root / "service" / "journal.jsonl"))[before:]
    return names == BACK or any(event["event"] == "replacing" for event in events)


@pytest.mark.parametrize("down_first", [False, True])
def test_up_and_down_killed_at_any_line_are_finished_by_the_next(world: World, down_first: bool) -> None:
    for lines in itertools.count(1):
        if down_first:
            fresh(world).up(60)
        ended = run_until(fresh(world).down if down_first else lambda: fresh(world).up(60), lines)
        if down_first:
            running = world.running()
            settle(world)
            assert world.running() == running, "nobody starts what is on its way down"
            fresh(world).up(60)
        else:
            fresh(world).up(60)
        whole(world, settle(world), BACK)
        fresh(world).down()
        assert world.running() == []
        if ended:
            break


def test_a_drain_that_is_killed_is_finished_and_stays(world: World) -> None:
    for lines in (1, 2):
        fresh(world).up(60)
        run_until(lambda: commanded(lambda s: drain(s, s.member("server-1")))(fresh(world)), lines)
        service = settle(world)
        assert list(world.listed) == [service.folder.url(service.member("server-0"))]
        run_until(lambda: commanded(lambda s: undrain(s, s.member("server-1")))(fresh(world)), lines)
        whole(world, settle(world), BACK)
        fresh(world).down()


def test_a_submission_that_fails_is_tried_again(world: World) -> None:
    service = fresh(world)
    service.up(60)
    world.jobs[service.folder.started["server-1"].ticket] = "node failed"
    world.refusals = 3
    said: list[str] = []
    follower = fresh(world)
    follower.say = said.append
    keeper = Keeper(follower)
    for _ in range(12):
        keeper.step()
        time.sleep(0.01)
    whole(world, follower, BACK)
    assert sum("the batch system is away; tried again in" in line for line in said) == 3
    events = [e["event"] for e in read_events(world.root / "service" / "journal.jsonl")]
    assert events.count("mend-failed") == 3, "a person who looks later sees it too"


def no_space(path: Path) -> None:
    """As the journal says it."""
    try:
        os.write(FULL, b"x")
    except OSError as error:
        raise failure(path, path.parent, error) from None


class FullDisk:
    """Takes no line of the journal between the `first` and the `last` that somebody tries to write."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, first: int, last: int) -> None:
        self.tried, self.first, self.last, self.written = 0, first, last, Journal.append
        monkeypatch.setattr(Journal, "append", lambda journal, event: self.append(journal, event))

    def append(self, journal: Journal, event: Mapping[str, Any]) -> None:
        self.tried += 1
        if not self.first <= self.tried <= self.last:
            self.written(journal, event)
            return
        no_space(journal.path)


@pytest.mark.parametrize("first", range(1, 6))
def test_a_disk_that_fills_up_at_any_line_costs_no_server(
    world: World, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """A server dies meanwhile: `keep` goes on watching, says so, and repairs it when there is room again."""
    fresh(world).up(60)
    service, told = fresh(world), list[tuple[str, str]]()
    world.jobs[service.folder.started["server-1"].ticket] = "killed"
    keeper = Keeper(service, alert=lambda kind, member, text: told.append((kind, text)))
    disk = FullDisk(monkeypatch, first, first + 20)
    polls = 0
    while disk.tried <= disk.last:
        keeper.step()
        polls += 1
        assert polls < 200
    assert keeper.counts["polls"] == polls, "it went on watching"
    assert any(kind == "failed" and "full; free some space" in text for kind, text in told)
    for _ in range(8):
        keeper.step()
    whole(world, service, BACK)


def test_a_full_disk_is_tried_again_at_the_same_pace(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ridgeline.serving.service.keep.keeper.RETRY_S", 5.0)
    now_s, tries = [0.0], list[float]()
    keeper = Keeper(fresh(world), clock=lambda: now_s[0])

    def fails() -> None:
        tries.append(now_s[0])
        no_space(world.root)

    for _ in range(21):
        keeper._attempt("server-0", fails)
        now_s[0] += 1.0
    assert tries == [0.0, 5.0, 10.0, 15.0, 20.0]


def test_a_log_that_cannot_be_rotated_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "stderr"
    log.write_bytes(b"x" * 100)

    def full(source: Any, out: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("ridgeline.serving.service.keep.logs.shutil.copyfileobj", full)
    with pytest.raises(OSError, match="No space left"):
        rotate(log, 50)
    assert [path.name for path in tmp_path.iterdir()] == ["stderr"]


def test_a_member_in_back_off_is_called_so(world: World) -> None:
    """In `status`, in the metrics and in the alerts, with when it is tried again."""
    fresh(world).up(60)
    service, told = fresh(world), list[tuple[str, str]]()
    keeper = Keeper(service, alert=lambda kind, member, text: told.append((kind, text)))
    for _ in range(2):
        for _ in range(6):
            keeper.step()
        world.jobs[service.folder.started["server-1"].ticket] = "exit code 1"
    for _ in range(3):
        keeper.step()
    waits = service.folder.next_try_in_s("server-1")
    assert 0 < waits <= 15, "it died again"
    (state,) = [state for state in fresh(world).status() if state.name == "server-1"]
    assert state.state == "back-off"
    assert re.fullmatch(r"back-off, next try in \d+ s: exit code 1", state.detail)
    page = _metrics_text(keeper)
    assert 'member="server-1",state="back-off"} 1' in page
    assert re.search(r'next_try_seconds\{service="\w+",member="server-1"\} [1-9]', page)
    assert next(text for kind, text in told if kind == "back-off").startswith("exit code 1; back-off, next try in")
    fresh(world).down()
    assert {state.state for state in fresh(world).status()} == {"down"}


def test_what_served_well_for_minutes_is_not_in_a_crash_loop(world: World) -> None:
    """Four faults in half an hour, minutes apart, are four faults: none waits for the one before."""
    fresh(world).up(60)
    service = fresh(world)
    at_s = time.time() - 1500
    with service.action():
        for generation in range(2, 6):
            name = {"member": "server-1"}
            service.folder.record({"at": at_s, "event": "mend", "why": "dead", "evidence": "exit code 1", **name})
            service.folder.record({"at": at_s, "event": "planned", "generation": generation, **name})
            service.folder.record({"at": at_s + 20, "event": "ready", "url": "", **name})
            at_s += 20 + STEADY_S
        assert service.folder.restarts("server-1") == [], "it serves well now"
        at_s -= STEADY_S - 5
        service.folder.record({"at": at_s, "event": "mend", "why": "dead", "evidence": "exit code 1", **name})
    assert len(service.folder.restarts("server-1")) == 2, "it died five seconds after it was ready"


def test_three_quick_faults_are_forgotten_after_minutes_of_service(world: World) -> None:
    """A server that hung then was given up, after 14 minutes of good service, for restarts before those."""
    fresh(world).up(60)
    service = fresh(world)
    at_s = time.time() - 1400
    with service.action():
        for generation, served_s in ((2, 160), (3, 180), (4, 820)):
            name = {"member": "server-1"}
            service.folder.record({"at": at_s, "event": "mend", "why": "dead", "evidence": "exit code 1", **name})
            service.folder.record({"at": at_s, "event": "planned", "generation": generation, **name})
            service.folder.record({"at": at_s, "event": "submitted", "ticket": f"{generation}", **name})
            service.folder.record({"at": at_s + 50, "event": "ready", "url": "", **name})
            at_s += 50 + served_s
    keeper = Keeper(service)
    assert keeper._actions.restart(Concern("server-1", "hung", "as if", certain=True))
    last = [event["event"] for event in read_events(service.folder.root / "journal.jsonl")][-1]
    assert last == "mend", "and not drained"


def test_a_retry_waits_longer_each_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ridgeline.serving.service.keep.keeper.RETRY_S", 5.0)
    now_s, tries = [0.0], list[float]()
    keeper = Keeper(fresh(world), clock=lambda: now_s[0])

    def fails() -> None:
        tries.append(now_s[0])
        raise SiteError("no")

    for _ in range(80):
        keeper._attempt("server-0", fails)
        now_s[0] += 1.0
    assert tries == [0.0, 5.0, 15.0, 35.0, 75.0]


# a batch system's limit

SLURM = "site: {name: virtual, batch: slurm, nodes: 4, launcher: srun}\nlimit: 1h\n"


def aged(world: World, *names: str) -> None:
    """As if their jobs had begun most of an hour ago."""
    for name in names:
        os.utime(world.root / "service" / "members" / name / "address", (time.time() - 3400,) * 2)


def test_servers_give_their_places_to_others_before_their_jobs_end(world: World) -> None:
    """In turn, the next one serving before the last one goes; the router last."""
    (world.root / "two.yaml").write_text(FILE + SLURM)
    service = fresh(world)
    service.up(60)
    keeper = Keeper(service)
    for _ in range(3):
        keeper.step()
    assert world.running() == BACK, "there is time"
    aged(world, *BACK)
    seen = list[list[str]]()
    for _ in range(30):
        keeper.step()
        if not seen or world.running() != seen[-1]:
            seen.append(world.running())
    assert world.least == 2, "none was taken out before another one served"
    assert max(len(names) for names in seen) == 4, "one at a time"
    assert world.running() == ["router", "server-0-b", "server-1-b"]
    assert sorted(world.listed) == sorted(service.folder.url(m) for m in service.servers)
    ports = {member.port for member in (*members_of(service.service), *service.members)}
    assert len(ports) == 5, "two that share a node for a while have ports of their own"
    assert service.folder.started["router"].generation == 2
    assert f"http://$at_server_0_b:{service.servers[0].port}" in service.members[-1].line

    aged(world, "server-0-b", "server-1-b")
    for _ in range(30):
        keeper.step()
    assert world.running() == BACK, "and back to their first places the next time"


def test_a_replacement_that_does_not_start_leaves_the_old_one_serving(world: World) -> None:
    (world.root / "two.yaml").write_text(FILE + SLURM)
    service = fresh(world)
    service.up(60)
    told = list[str]()
    keeper = Keeper(service, alert=lambda kind, member, text: told.append(kind))
    keeper._actions.replace(service.member("server-1"), "its job ends in 10 min")
    world.jobs[service.folder.started["server-1-b"].ticket] = "no such partition"
    for _ in range(6):
        keeper.step()
    assert world.running() == BACK
    assert len(world.listed) == 2
    assert told == ["replace-failed"]
    aged(world, *BACK)
    for _ in range(4):
        keeper.step()
    assert "server-1-b" not in world.running(), "it is not tried again at once"
    assert "server-0-b" in world.running(), "the others have their turn"


def test_a_job_that_waits_in_a_queue_is_not_late(world: World) -> None:
    (world.root / "two.yaml").write_text(FILE + SLURM)
    service = fresh(world)
    service.up(60)
    with service.action():
        for event in ("planned", "submitted"):
            told = {"event": event, "member": "server-1", "generation": 2, "ticket": "2 x", "at": time.time() - 9000}
            service.folder.record(told)
    address = world.root / "service" / "members" / "server-1" / "address"
    address.unlink()
    keeper = Keeper(service, ready_s=60)
    assert keeper._late(service.member("server-1")) is None
    address.write_text("127.0.0.1\n")
    os.utime(address, (time.time() - 100,) * 2)
    assert keeper._late(service.member("server-1")) is not None, "but one that has begun and is not ready is"


def test_a_server_is_ready_when_it_has_answered_a_sampled_request(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGLang is healthy, and its first sampled request waits for over a minute: its kernels are compiled then."""
    compiled, asked = threading.Event(), []

    def wait_for_kernels(url: str, model: str, key: str) -> None:
        asked.append(url)
        compiled.wait(600)

    monkeypatch.setattr(probe, "warm_up", wait_for_kernels)
    service = fresh(world)
    with service.commanding(), service.action():
        service._accept_file([member.name for member in service.members])
        for member in service.servers:
            service.ensure(member)
    first = service.servers[0]
    assert not service.is_ready(first) and not service.is_ready(first)
    assert asked == [service.folder.url(first)], "once"
    Keeper(service).step()
    assert not service.folder.started[first.name].ready
    compiled.set()
    service.until_ready(service.servers, 600)
    assert service.folder.started[first.name].ready
