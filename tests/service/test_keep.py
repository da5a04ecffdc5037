"""`keep` over twin servers: what it restarts, what not, and that another keeper can take over at any point."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ridgeline.serving.service import history, probe
from ridgeline.serving.service.file import load_service
from ridgeline.serving.service.keep import actions, canary, watch
from ridgeline.serving.service.keep.keeper import Keeper
from ridgeline.serving.service.keep.watch import Concern
from ridgeline.serving.service.operate import Operator
from ridgeline.serving.service.routers import RouterAdmin
from ridgeline.study.journal import read_events

from .test_operate import ask, fault, operator, processes_of
from .test_operate import file as file  # a service of twins behind a stand-in router


def until(keeper: Keeper, done: Callable[[], bool], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, keeper.operator.status()
        keeper.step()
        time.sleep(0.2)


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "HUNG_AFTER_S", 2.0)
    monkeypatch.setattr(canary, "CONFIRM_S", 1.0)
    monkeypatch.setattr(canary, "IDLE_EVERY_S", 1.0)


def listed(service: Operator) -> set[str]:
    assert service.router is not None
    return set(RouterAdmin(service.folder.url(service.router), "").workers())


def events(file: Path, what: str) -> list[dict[str, object]]:
    return [event for event in read_events(file.parent / "service" / "journal.jsonl") if event["event"] == what]


def ask_and_forget(url: str) -> None:
    with contextlib.suppress(OSError):
        ask(url)


@pytest.mark.parametrize("kind", ["hang", "spin"])
def test_a_hung_server_is_found_by_its_tokens_and_restarted(
    file: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Nobody sends a request, its gauges say that nothing is on it, and /health that it is well.

    The second of them uses all of a core while it hangs, and its pace was never measured: its like have one.
    """
    impatient(monkeypatch)
    service = operator(file)
    url = service.up(120)
    server = service.member("server-1")
    keeper = Keeper(service, ready_s=120)
    fault(service.folder.url(server), kind)
    assert probe.is_healthy(service.folder.url(server)), "and it goes on saying that it is well"
    acted: list[str] = []
    service.say = acted.append
    until(keeper, lambda: "server-1: serves again" in acted)
    assert acted[0].startswith("server-1: hung (0 requests on it and no token for")
    assert "not even for a canary; the longest step of this server is taken for" in acted[0]
    generations = {name: start.generation for name, start in service.folder.started.items()}
    assert generations == {"server-0": 1, "server-1": 2, "router": 1}
    assert service.folder.url(server) in listed(service)
    assert [ask(url) for _ in range(4)] == [2] * 4
    (restart,) = events(file, "mend")
    assert (restart["why"], restart["member"]) == ("hung", "server-1")
    assert "no token" in str(restart["evidence"])
    assert keeper.step() == []


def test_a_server_in_a_long_prefill_is_left_alone(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt of seconds in one step: no counter moves, no canary is answered, and it is not a hang."""
    impatient(monkeypatch)
    monkeypatch.setattr(canary, "PACE_TOKENS", (512, 2048))
    settings = "{tp: 1, chunked_prefill_size: 65536, mem_fraction_static: 0.8}, arguments: [--speed, '0.2']"
    file.write_text(file.read_text().replace("{tp: 1}", settings))
    service = operator(file)
    service.up(120)
    server = service.member("server-1")
    keeper = Keeper(service, ready_s=120)
    until(keeper, lambda: keeper.seen.knows_paces and keeper.seen.polls["server-1"].pace_s is not None, 600)
    took_s: list[float] = []

    def prompt() -> None:
        began_s = time.monotonic()
        body = {"model": "llama-8b", "prompt": [5] * 60_000, "max_tokens": 1}
        probe.ask(f"{service.folder.url(server)}/v1/completions", body, timeout_s=600)
        took_s.append(time.monotonic() - began_s)

    asks = threading.Thread(target=prompt)
    asks.start()
    until(keeper, lambda: bool(took_s), 600)
    asks.join()
    assert took_s[0] > 2 * watch.HUNG_AFTER_S, "long enough to be taken for a hang"
    assert events(file, "mend") == []
    assert max(start.generation for start in service.folder.started.values()) == 1


def test_a_slow_server_leaves_the_router_is_emptied_and_started_again(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = operator(file)
    service.up(120)
    keeper = Keeper(service, ready_s=120)
    member = service.member("server-0")
    monkeypatch.setattr(actions.Actions, "may_end", lambda self, member, until_s: False)
    keeper._actions.restart(Concern("server-0", "slow", "1 token/s, others 9"))
    keeper.step()
    monkeypatch.undo()
    assert listed(service) == {service.folder.url(service.member("server-1"))}
    assert service.folder.started["server-0"].generation == 1, "what it has may be finished"
    follower = Keeper(operator(file), ready_s=120)  # the first keeper was killed here
    until(follower, lambda: service.folder.url(member) in listed(service))
    assert follower.operator.folder.started["server-0"].generation == 2

    keeper.operator.folder.refresh()
    with service.action():
        RouterAdmin(service.folder.url(service.front), "").take_away(service.folder.url(service.member("server-1")))
        service.folder.record({"event": "drained", "member": "server-1"})
    assert not keeper._actions.restart(Concern("server-0", "slow", "")), "slow is better than nobody"


def test_a_router_that_is_killed_comes_back_without_what_was_drained(file: Path) -> None:
    from ridgeline.serving.service.steps import drain

    service = operator(file)
    url = service.up(120)
    with service.action():
        drain(service, service.member("server-1"))
    assert [state.state for state in operator(file).status()] == ["ready", "drained", "ready"]
    for pid in processes_of(file.parent / "service" / "members" / "router"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    said: list[str] = []
    service.say = said.append
    keeper = Keeper(service, ready_s=120)
    until(keeper, lambda: "router: serves again" in said)
    assert said[0].startswith("router: dead (")
    assert listed(service) == {service.folder.url(service.member("server-0"))}
    assert ask(url) == 2


def test_a_start_that_a_killed_keeper_left_behind_is_finished(file: Path) -> None:
    service = operator(file)
    service.up(120)
    with service.action():
        service.folder.record({"event": "mend", "member": "server-1", "why": "hung", "evidence": "as if"})
        RouterAdmin(service.folder.url(service.front), "").take_away(service.folder.url(service.member("server-1")))
        service.stop(service.member("server-1"))
        service.ensure(service.member("server-1"))
    follower = Keeper(operator(file), ready_s=120)
    until(follower, lambda: len(listed(service)) == 2)
    assert follower.operator.folder.started["server-1"].generation == 2


def test_what_breaks_again_and_again_is_left_out(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = operator(file)
    service.up(120)
    with service.action():
        for _ in range(actions.MOST_RESTARTS):
            service.folder.record({"event": "mend", "member": "server-1", "why": "hung", "evidence": "as if"})
        service.folder.record({"event": "back", "member": "server-1"})
    monkeypatch.setattr(actions, "ROLE_WAIT_S", 0.0)
    said: list[str] = []
    service.say = said.append
    keeper, deadline = Keeper(service, file="two.yaml"), time.monotonic() + 90
    while not keeper._actions.restart(Concern("server-1", "hung", "no token for 9 s")):
        assert time.monotonic() < deadline, "a router that is busy is asked again, and not for ever"
        time.sleep(0.2)
    assert "after 3 restarts; left out of the router" in said[0]
    assert "`ridgeline service restart two.yaml server-1`" in said[0]
    assert service.folder.started["server-1"].generation == 1
    assert listed(service) == {service.folder.url(service.member("server-0"))}
    follower = Keeper(operator(file))
    for _ in range(3):
        follower.step()
    assert len(listed(service)) == 1, "and it stays out"


SPLIT = """\
version: 1
model: llama-8b
engine: {kind: sglang, gpu: h200}
router: {kind: sglang-router, port: 9000}
units: [{role: prefill, replicas: 2, settings: {tp: 1}}, {role: decode, replicas: 2, settings: {tp: 1}}]
"""


@pytest.fixture
def split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Operator:
    """Four servers of two roles that say they are up; each runs what its name says in `RUNNING`."""
    path = tmp_path / "pd.yaml"
    path.write_text(SPLIT)
    service = Operator(load_service(path), tmp_path / "service")
    running = {"prefill-0": 30, "prefill-1": 10, "decode-0": 25, "decode-1": 15}
    monkeypatch.setattr(service.folder, "url", lambda member: f"http://{member.name}")
    monkeypatch.setattr(
        probe, "metrics_page", lambda url: f"sglang:num_running_reqs {running[url.removeprefix('http://')]}\n"
    )
    return service


def test_a_request_in_split_roles_is_counted_once(split: Operator) -> None:
    """It is on a prefill server first and on a decode server then; what the router holds is those that decode."""
    said: list[str] = []
    split.say = said.append
    cliff = Concern("decode-0", "kv-cliff", "its KV pool is 93% full, at 3 polls in a row")
    Keeper(split, file="pd.yaml")._actions.near_cliff(cliff)
    assert "write `most_running: 34` into pd.yaml" in said[0], "0.85 of the 25 and 15 that decode"
    assert split.folder.started == {}, "it says so, and restarts nothing: streams would be cut off"


def test_a_lower_limit_is_named_once_in_a_while(split: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    said, now_s = list[str](), [1000.0]
    split.say = said.append
    monkeypatch.setattr(actions.time, "monotonic", lambda: now_s[0])
    keeper = Keeper(split)
    cliff = Concern("decode-0", "kv-cliff", "93% full")
    for passed_s in (0.0, actions.LIMIT_AGAIN_S - 1, 2.0):
        now_s[0] += passed_s
        keeper._actions.near_cliff(cliff)
    assert len(said) == 2, "what is lowered needs time to show"


def test_a_concern_is_said_once_in_a_while_and_not_at_every_look(split: Operator) -> None:
    said, now_s = list[str](), [0.0]
    split.say = said.append
    keeper = Keeper(split, dry_run=True, clock=lambda: now_s[0])
    for at_s, kind in ((0.0, "slow"), (2.0, "slow"), (2.0, "hung"), (58.0, "slow"), (61.0, "slow")):
        now_s[0] = at_s
        keeper._follow(Concern("decode-0", kind, f"at {at_s:g}"))
    assert [line.split()[1] for line in said] == ["slow", "hung", "slow"]


def test_restarts_of_long_ago_do_not_count(split: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper, done = Keeper(split), list[str]()
    monkeypatch.setattr(keeper._actions, "_give_up", lambda member, concern: done.append("given up") or True)
    monkeypatch.setattr(keeper._actions, "_spared", lambda member: True)
    with split.action():
        for _ in range(actions.MOST_RESTARTS):
            split.folder.record({"event": "mend", "member": "decode-1", "why": "hung", "evidence": "as if"})
        split.folder.record({"event": "back", "member": "decode-1"})
    later_s = time.time() + history.RESTARTS_WITHIN_S + 5
    monkeypatch.setattr(actions.time, "time", lambda: later_s)
    assert keeper._actions.restart(Concern("decode-1", "hung", "no token for 9 s"))
    assert done == []
    assert "decode-1" in split.folder.leaving


def test_a_slow_server_may_finish_what_it_has_for_a_while(split: Operator) -> None:
    keeper = Keeper(split)
    started(split, "decode-0")
    member = split.member("decode-0")
    assert not keeper._actions.may_end(member, time.time() + actions.LEAVE_S), "25 requests are on it"
    assert keeper._actions.may_end(member, time.time() - 1), "but not for ever"


def started(service: Operator, *names: str) -> None:
    """As if they were up."""
    with service.action():
        for name in names:
            for event in ("planned", "submitted", "ready"):
                told = {"event": event, "member": name, "generation": 1, "ticket": "1 x", "url": f"http://{name}"}
                service.folder.record(told)


def test_one_prompt_does_not_take_every_server_of_a_role(split: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    """The router tries it on the next server: what looks like a hang there is looked at for longer."""
    keeper, now_s = Keeper(split), [float(int(time.time()))]
    monkeypatch.setattr(actions.time, "time", lambda: now_s[0])
    everybody = ("prefill-0", "prefill-1", "decode-0", "decode-1")
    started(split, *everybody)
    monkeypatch.setattr(keeper._actions, "listed", lambda: {f"http://{name}": "" for name in everybody})

    def restarts(name: str, after_s: float, kind: str = "hung") -> bool:
        now_s[0] += after_s
        return keeper._actions.restart(Concern(name, kind, "as if", certain=True))

    assert restarts("decode-0", 0.0)
    assert not restarts("decode-1", actions.ROLE_WAIT_S - 1)
    assert restarts("prefill-0", 0.0), "another role is another matter"
    assert restarts("decode-1", 2.0)
    with split.action():
        for name in everybody:
            split.folder.record({"event": "back", "member": name})
    assert not restarts("decode-0", 2 * actions.ROLE_WAIT_S - 1), "and twice as long after the second"
    assert restarts("decode-0", 2.0)
    assert restarts("decode-1", 0.0, "dead"), "who is dead is not taken from anybody"
    with split.action():
        for name in everybody:
            split.folder.record({"event": "back", "member": name})
    assert restarts("decode-1", 250.0), "what comes minutes later is new trouble"
    assert not restarts("decode-0", actions.ROLE_WAIT_S - 1)
    assert restarts("decode-0", 2.0)


def test_the_last_server_of_a_role_is_left_alone_unless_it_surely_serves_nobody(
    split: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = Keeper(split)
    started(split, "prefill-0", "prefill-1", "decode-0", "decode-1")
    monkeypatch.setattr(keeper._actions, "listed", lambda: {"http://prefill-0": "", "http://decode-0": ""})
    for kind in ("slow", "hung"):
        assert not keeper._actions.restart(Concern("decode-0", kind, "as if"))
    assert "decode-0" not in split.folder.leaving
    assert keeper._actions.restart(Concern("decode-0", "hung", "its processes stand still", certain=True))


def test_what_dies_again_and_again_is_started_ever_more_rarely(
    split: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper, now_s = Keeper(split), [float(int(time.time()))]
    monkeypatch.setattr(actions.time, "time", lambda: now_s[0])
    started(split, "decode-0")
    waits = []
    for _ in range(5):
        waited_s = 0.0
        while not keeper._actions.restart(Concern("decode-0", "dead", "exit code 1")):
            now_s[0] += 5.0
            waited_s += 5.0
        waits.append(waited_s)
        with split.action():
            split.folder.record({"event": "back", "member": "decode-0"})
    assert waits == list(history.DEAD_WAITS_S)


def test_a_server_that_the_router_lost_is_put_back_after_two_looks(
    split: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper, back = Keeper(split), list[str]()
    decoding = [split.member("decode-0"), split.member("decode-1")]
    started(split, "decode-0", "decode-1")
    both, one = {"http://decode-0": "", "http://decode-1": ""}, {"http://decode-0": ""}
    monkeypatch.setattr(keeper._actions, "put_back", lambda member: back.append(member.name))

    def looks(*lists: dict[str, str] | None) -> list[str]:
        back.clear()
        for listed in lists:
            monkeypatch.setattr(keeper._actions, "listed", lambda listed=listed: listed)
            monkeypatch.setattr(keeper._actions, "go_on", lambda member, listed: None)
            keeper._go_on(decoding)
        return list(back)

    assert looks(both, one, both, one) == [], "it may be about to be listed again"
    assert looks(both, one, one) == ["decode-1"]
    assert looks(None, None, None) == [], "a router that does not answer says nothing"
    split.folder.drained.add("decode-1")
    assert looks(one, one, one) == [], "who was drained stays out"


def test_a_server_that_never_gets_ready_is_found(split: Operator) -> None:
    keeper = Keeper(split, ready_s=100.0)
    with split.action():
        split.folder.record({"event": "planned", "member": "decode-0", "generation": 1})
        split.folder.record({"event": "submitted", "member": "decode-0", "generation": 1, "ticket": "1 x"})
    start = split.folder.started["decode-0"]
    assert keeper._late(split.member("decode-0")) is None
    start.at_s -= 150.0
    late = keeper._late(split.member("decode-0"))
    assert late is not None and late.kind == "hung"
    assert late.evidence.startswith("not ready 15")


def test_a_dry_run_and_a_service_that_was_taken_down_are_left_alone(file: Path) -> None:
    service = operator(file)
    service.up(120)
    fault(service.folder.url(service.member("server-1")), "crash")
    said: list[str] = []
    service.say = said.append
    keeper = Keeper(service, dry_run=True)
    deadline = time.monotonic() + 60
    while not keeper.step():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert said == ["server-1: dead (exit code 1; would be restarted)"]
    assert service.folder.started["server-1"].generation == 1
    router, out = RouterAdmin(service.folder.url(service.front), ""), service.folder.url(service.member("server-0"))
    router.take_away(out)
    for _ in range(4):
        keeper.step()
    assert out not in router.workers(), "nobody is put back either"
    operator(file).down()
    assert Keeper(operator(file)).step() == []
    assert processes_of(file.parent / "service") == []


def test_another_deploy_at_work_is_waited_for(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the journal for one act only: for longer is an exception, which is said, and no end of the watching."""
    service = operator(file)
    service.up(120)
    fault(service.folder.url(service.member("server-1")), "crash")
    keeper, said = Keeper(service, ready_s=120), list[str]()
    service.say = said.append
    polls = iter(range(8))
    monkeypatch.setattr("ridgeline.serving.service.keep.keeper.POLL_EVERY_S", 0.2)
    monkeypatch.setattr("ridgeline.serving.service.operate.ACTION_WAIT_S", 0.1)
    with operator(file).action():
        keeper.run(lambda: next(polls, None) is None)
    assert "is being run by process" in said[0]
    until(keeper, lambda: "server-1: serves again" in said)


def test_a_person_who_waits_for_a_server_does_not_stop_the_watching(file: Path) -> None:
    """A restart of a hung server waits for its requests; another one dies meanwhile, and is restarted."""
    service = operator(file)
    service.up(120)
    fault(service.folder.url(service.member("server-1")), "crash")
    keeper, said = Keeper(service, ready_s=120), list[str]()
    service.say = said.append
    with operator(file).commanding():
        until(keeper, lambda: "server-1: serves again" in said)
