"""Nobody takes away the last server that serves: not a person, the keeper or the scaler; and what counts as one."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from ridgeline.errors import InputError, SiteError
from ridgeline.serving.service import rolling
from ridgeline.serving.service.history import ServiceHistory, Started
from ridgeline.serving.service.keep.actions import Actions
from ridgeline.serving.service.keep.scale import (
    LoadHistory,
    ReplicaLimits,
    RoleCount,
    RoleLoad,
    ScaleDecision,
    _fits,
    _more,
    _Now,
    _one_fewer,
    _within_total,
    decide,
    limits_at,
)
from ridgeline.serving.service.keep.scaler import _count_of, _load
from ridgeline.serving.service.keep.watch import ServerPoll
from ridgeline.serving.service.rolling import _judge, _outside, _speed, canary_restart, refuse_last
from ridgeline.serving.service.service import RoleScale, ScaleRules

MONDAY = datetime(2026, 11, 16, tzinfo=UTC)


class Folder:
    """A service folder in memory: servers by name, each ready unless it is said otherwise."""

    is_down = False

    def __init__(self, *names: str, **starts: Any) -> None:
        self.started = {name: Started(1, "t", ready=True) for name in names}
        for name, change in starts.items():
            self.started[name] = replace(self.started[name], **change)
        self.drained: set[str] = set()
        self.leaving: dict[str, float] = {}
        self.replacing: dict[str, str] = {}
        self.retiring: dict[str, float] = {}
        self.growing: dict[str, str] = {}
        self.events: list[dict[str, Any]] = []

    serves = ServiceHistory.serves

    def url(self, member: Any) -> str:
        return f"http://{member.name}"

    def record(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        if event["event"] == "shrinking":
            self.leaving[event["member"]] = self.retiring[event["member"]] = event["until"]


def service(folder: Folder, **roles: str) -> Any:
    """An operator: `roles` by name of server, in order."""
    members = [SimpleNamespace(name=name, role=role, is_router=False) for name, role in roles.items()]

    @contextlib.contextmanager
    def action() -> Iterator[None]:
        yield

    return SimpleNamespace(
        folder=folder,
        servers=members,
        present=members,
        proposed=lambda: members,
        action=action,
        apply_journal=lambda: None,
        say=lambda text: None,
        member=lambda name: next(m for m in members if m.name == name),
        service=SimpleNamespace(name="s"),
    )


def acting(operator: Any, listed: set[str] | None) -> Actions:
    actions = Actions(operator, "service.yaml")
    actions.listed = lambda: None if listed is None else {f"http://{n}": n for n in listed}  # type: ignore[method-assign]
    return actions


@pytest.mark.parametrize(
    ("roles", "starts", "listed", "spared"),
    [
        ({"a": "both", "b": "both"}, {}, {"a", "b"}, True),
        ({"a": "both"}, {}, {"a"}, False),
        ({"a": "both", "b": "both"}, {}, {"a"}, False),  # the other is not in the router
        ({"a": "both", "b": "both"}, {"b": {"ready": False}}, {"a", "b"}, False),
        ({"a": "both", "b": "both"}, {"b": {"ended": "exit code 1"}}, {"a", "b"}, False),
        ({"a": "both", "b": "both"}, {"a": {"ended": "exit code 1"}}, {"a", "b"}, True),  # its own state says nothing
        ({"a": "decode", "b": "prefill"}, {}, {"a", "b"}, False),  # of another role
        ({"a": "decode", "b": "prefill", "c": "decode"}, {}, {"a", "b", "c"}, True),
        ({"a": "both", "b": "both"}, {}, None, False),  # the router does not answer: nobody knows
    ],
)
def test_a_server_is_spared_only_where_another_of_its_role_serves(
    roles: dict[str, str], starts: dict[str, Any], listed: set[str] | None, spared: bool
) -> None:
    operator = service(Folder(*roles, **starts), **roles)
    assert acting(operator, listed)._spared(operator.member("a")) is spared


@pytest.mark.parametrize(
    ("change", "busy", "listed", "gone"),
    [
        (-1, {}, "abc", ["c"]),
        (-2, {}, "abc", ["c", "b"]),
        (-1, {"drained": {"c"}}, "abc", ["b"]),
        (-1, {"leaving": {"c": 1.0}}, "abc", ["b"]),
        (-1, {"replacing": {"c": "c-2"}}, "abc", ["b"]),
        (-1, {}, "c", []),
        (-1, {}, "ac", ["c"]),
    ],
)
def test_the_last_by_number_leave_and_never_the_last_that_serves(
    change: int, busy: dict[str, Any], listed: str, gone: list[str]
) -> None:
    folder = Folder("a", "b", "c")
    vars(folder).update(busy)
    operator = service(folder, a="both", b="both", c="both")
    decision = ScaleDecision("both", 3, 3 + change, "quiet")
    assert acting(operator, set(listed))._shrink(decision) == gone
    events = [(event["event"], event["member"], event["to"]) for event in folder.events]
    assert events == [("shrinking", name, 3 + change) for name in gone]


@pytest.mark.parametrize(
    ("roles", "listed", "refused"),
    [
        ({"a": "both", "b": "both"}, {"a", "b"}, False),
        ({"a": "both", "b": "both"}, {"a"}, True),
        ({"a": "both", "b": "both"}, {"b"}, False),  # it is out already
        ({"a": "both"}, {"a"}, True),
        ({"a": "decode", "b": "prefill"}, {"a", "b"}, True),
    ],
)
def test_a_person_is_refused_the_last_server_of_a_role(
    roles: dict[str, str], listed: set[str], refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = service(Folder(*roles), **roles)
    steps = SimpleNamespace(listed=lambda: {f"http://{name}": name for name in listed})
    monkeypatch.setattr(rolling, "_behind_router", lambda operator, member: steps)
    with pytest.raises(InputError, match="a is the last") if refused else contextlib.nullcontext():
        refuse_last(operator, operator.member("a"))


def test_a_person_is_refused_a_server_of_whom_nobody_knows_whether_it_is_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    operator = service(Folder("a", "b"), a="both", b="both")
    monkeypatch.setattr(rolling, "_behind_router", lambda operator, member: SimpleNamespace(listed=lambda: None))
    with pytest.raises(SiteError, match="does not say which servers it has, and a may be the last"):
        refuse_last(operator, operator.member("a"))


def test_one_server_alone_is_no_canary() -> None:
    operator = service(Folder("a", "b"), a="decode", b="prefill")
    with pytest.raises(InputError, match="there is one decode server, and nothing to compare it with"):
        canary_restart(operator, operator.servers, 1.0, 1.0)


# how many there are


def test_who_is_drained_leaves_or_has_ended_does_not_serve() -> None:
    folder = Folder("a", "b", "c", "d", "e", b={"ended": "x"}, c={"ready": False})
    folder.drained, folder.growing, folder.replacing = {"d"}, {"f": "both", "g": "decode"}, {"a": "a-2"}
    operator = service(folder, a="both", b="both", c="both", d="both", e="both")
    folder.leaving = folder.retiring = {"e": 1.0}
    assert _count_of(operator, "both") == RoleCount(serving=1, starting=3 + 1 + 1, leaving=1)
    assert RoleCount(2, 3, 4).replicas == 5


def polled(at_s: float = 0.0, running: float | None = 4.0, **more: Any) -> ServerPoll:
    return ServerPoll(at_s, **{"running": running, "role": "both", **more})


def test_servers_that_say_nothing_count_as_the_others() -> None:
    polls = {"a": polled(waiting=2.0, kv_share=0.5), "b": polled(running=None), "c": polled(role="decode")}
    assert _load("both", polls, 2, 7.0) == RoleLoad(7.0, 12.0, 4.0, 1.0)
    assert _load("both", {"b": polled(running=None)}, 2, 7.0) is None
    unknown = _load("both", {"a": polled()}, 3, 7.0)
    assert unknown is not None and unknown.kv_share is None and unknown.requests == 12.0


@pytest.mark.parametrize(
    ("count", "fewer"),
    [
        (RoleCount(2), True),
        (RoleCount(1), False),
        (RoleCount(1, starting=1), False),
        (RoleCount(2, starting=1), False),
        (RoleCount(3, leaving=1), False),
    ],
)
def test_one_at_a_time_and_never_the_last_that_serves(count: RoleCount, fewer: bool) -> None:
    decision = _one_fewer("both", count, "why")
    assert (decision is not None) is fewer
    assert decision is None or (decision.replicas, decision.wanted, decision.change) == (2, 1, -1)


def rules(least: int = 1, most: int = 8, total: int | None = None, **targets: Any) -> ScaleRules:
    return ScaleRules({"both": RoleScale(least=least, most=most, **targets)}, down_after_s=600.0, most_servers=total)


def steady(requests: float, until_s: float, step_s: float = 2.0, **more: Any) -> LoadHistory:
    history = LoadHistory(600.0)
    for n in range(int(until_s / step_s) + 1):
        history.take("both", RoleLoad(n * step_s, requests, **more))
    return history


def wanted(scale: ScaleRules, count: RoleCount, history: LoadHistory, now_s: float) -> int | None:
    found = decide(scale, MONDAY, now_s, {"both": count}, history, {"both": 1.0})
    return found[0].wanted if found else None


def test_limits_hold_whatever_the_load() -> None:
    idle, busy = steady(0.0, 1000.0), steady(500.0, 1000.0)
    assert wanted(rules(least=2, running=10), RoleCount(1), idle, 1000.0) == 2
    assert wanted(rules(least=3, running=10), RoleCount(1), idle, 1000.0) == 3, "all at once"
    assert wanted(rules(least=2, running=10), RoleCount(2), idle, 1000.0) is None
    assert wanted(rules(least=2, running=10), RoleCount(3), idle, 1000.0) == 2
    assert wanted(rules(most=4, running=10), RoleCount(6), busy, 1000.0) == 5, "one at a time"
    assert wanted(rules(most=8, running=10), RoleCount(3), busy, 1000.0) == 6, "twice as many at once"
    assert wanted(rules(most=5, running=10), RoleCount(3), busy, 1000.0) == 5
    (short,) = decide(rules(most=3, running=10), MONDAY, 1000.0, {"both": RoleCount(3)}, busy, {"both": 1.0})
    assert short.short and short.change == 0 and short.why.endswith("; most 3")
    assert limits_at(RoleScale(least=2, most=5), MONDAY) == ReplicaLimits(2, 5, "least 2", "most 5")


@pytest.mark.parametrize(
    ("requests", "servers", "more"),
    [(23.0, 2, False), (23.1, 2, True), (21.0, 2, False), (21.1, 2, True)],
)
def test_servers_are_added_above_the_band_and_not_within_it(requests: float, servers: int, more: bool) -> None:
    """Two servers with a target of ten: 15% above it for eight seconds, or 5% for a minute."""
    until_s = 9.0 if requests > 22 else 100.0
    history = steady(requests, until_s, step_s=1.0)
    found = _more(
        "both",
        RoleScale(least=1, most=8, running=10),
        ReplicaLimits(1, 8, "", ""),
        until_s,
        RoleCount(servers),
        history,
    )
    assert (found is not None) is more
    assert found is None or found.wanted == math.ceil(requests / 10)


@pytest.mark.parametrize(("requests", "fits"), [(15.0, True), (15.1, False)])
def test_one_fewer_must_have_stayed_below_three_quarters(requests: float, fits: bool) -> None:
    history = steady(requests, 700.0)
    assert _fits(RoleScale(least=1, most=8, running=10), list(history.loads["both"]), 2) is fits
    assert wanted(rules(running=10), RoleCount(3), history, 700.0) == (2 if fits else None)
    assert (
        _fits(RoleScale(least=1, most=8, running=10), [], 0) is False
        and _fits(RoleScale(least=1, most=8, running=10), [], 1) is True
    )


def test_one_busy_half_minute_keeps_a_server() -> None:
    history = steady(5.0, 400.0)
    for n in range(201, 216):
        history.take("both", RoleLoad(n * 2.0, 30.0))
    for n in range(216, 351):
        history.take("both", RoleLoad(n * 2.0, 5.0))
    assert wanted(rules(running=10), RoleCount(3), history, 700.0) is None
    assert wanted(rules(running=10), RoleCount(3), steady(5.0, 700.0), 700.0) == 2


def test_a_removal_that_had_to_be_taken_back_makes_the_next_one_wait_longer() -> None:
    history = LoadHistory(600.0)
    for removed, added in ((0.0, 3599.0), (5000.0, 8601.0), (10_000.0, 10_010.0)):
        history.change("both", removed, -1)
        history.change("both", added, 1)
    assert history.caution == {"both": 4.0}, "the second one came an hour later, and was another matter"
    for n in range(9):
        history.change("both", 20_000.0 + n, -1)
        history.change("both", 20_000.5 + n, 2)
    assert history.caution["both"] == 8.0 and history.still_s("both", 20_010.0) == pytest.approx(1.5)


def test_all_roles_together_keep_to_the_total_and_who_can_spare_a_server_gives_its_place() -> None:
    scale = ScaleRules(
        {r: RoleScale(least=1, most=9, running=10) for r in ("prefill", "decode")}, down_after_s=600.0, most_servers=6
    )
    more = {"decode": ScaleDecision("decode", 3, 5, "busy")}

    def total(prefill: RoleCount, decode: RoleCount, load: float) -> list[tuple[str, int, bool]]:
        history = LoadHistory(600.0)
        for n in range(10):
            history.take("prefill", RoleLoad(n * 2.0, load))
        counts = {"prefill": prefill, "decode": decode}
        limits = {role: limits_at(rule, MONDAY) for role, rule in scale.roles.items()}
        found = _within_total(_Now(scale, 18.0, counts, history, limits), more)
        return [(decision.role, decision.wanted, decision.short) for decision in found]

    assert total(RoleCount(1), RoleCount(3), 99.0) == [("decode", 5, False)], "two are left"
    assert total(RoleCount(2), RoleCount(3), 99.0) == [("decode", 4, False)], "one is left, and is all that is decided"
    assert total(RoleCount(3), RoleCount(3), 99.0) == [("decode", 3, True)], "none is left"
    assert total(RoleCount(2), RoleCount(3, leaving=1), 99.0) == [("decode", 3, True)], "who leaves has a place still"
    assert total(RoleCount(3), RoleCount(3), 5.0) == [("prefill", 2, False)]
    assert total(RoleCount(2, starting=1), RoleCount(3), 5.0) == [("decode", 3, True)]


def test_a_role_without_targets_follows_what_is_decided_for_the_one_that_has_them() -> None:
    scale = ScaleRules(
        {"decode": RoleScale(least=1, most=9, running=10), "prefill": RoleScale(least=1, most=4)}, down_after_s=600.0
    )
    ratios = {"decode": 4.0, "prefill": 2.0}

    def wanted_of(decode: RoleCount, prefill: int, load: float) -> dict[str, int]:
        history = LoadHistory(600.0)
        for n in range(351):
            history.take("decode", RoleLoad(n * 2.0, load))
        counts = {"decode": decode, "prefill": RoleCount(prefill)}
        return {d.role: d.wanted for d in decide(scale, MONDAY, 700.0, counts, history, ratios)}

    assert wanted_of(RoleCount(4), 2, 35.0) == {}, "half as many, as in the file"
    assert wanted_of(RoleCount(4), 1, 35.0) == {"prefill": 2}
    assert wanted_of(RoleCount(5), 2, 45.0) == {"prefill": 3}, "rounded up"
    assert wanted_of(RoleCount(4), 2, 60.0) == {"decode": 6, "prefill": 3}, "with what is decided now"
    assert wanted_of(RoleCount(9), 4, 85.0) == {}, "no more than its limit"
    assert wanted_of(RoleCount(4), 3, 35.0) == {"prefill": 2}


@pytest.mark.parametrize(("kv", "fits"), [(1.2, True), (1.21, False), (None, True)])
@pytest.mark.parametrize(("waiting", "calm"), [(1.5, True), (1.6, False)])
def test_each_signal_by_itself_keeps_a_server(kv: float | None, fits: bool, waiting: float, calm: bool) -> None:
    rule = RoleScale(least=1, most=8, running=10, waiting=1.0, kv=0.8)
    row = [RoleLoad(n * 2.0, 1.0, waiting, kv) for n in range(30)]
    assert _fits(rule, row, 2) is (fits and calm)


# a change that is tried on one server first


def rows(canary: list[float], others: list[float], on_it: float = 2.0) -> list[dict[str, ServerPoll]]:
    """Polls five seconds apart: tokens that each made between two of them."""
    found = [{"c": polled(0.0, on_it, tokens=0.0), "o": polled(0.0, on_it, tokens=0.0)}]
    made = [0.0, 0.0]
    for n, (own, theirs) in enumerate(zip(canary, others, strict=True), 1):
        made = [made[0] + own, made[1] + theirs]
        found.append({"c": polled(5.0 * n, on_it, tokens=made[0]), "o": polled(5.0 * n, on_it, tokens=made[1])})
    return found


def test_a_change_goes_on_only_where_it_is_shown_to_keep_nine_tenths() -> None:
    verdict = _judge("c", ["o"], rows([95.0] * 8, [100.0] * 8))
    assert verdict.goes_on and "makes 0.95 of the others' tokens a second and request (0.95 to 0.95)" in verdict.reason
    assert _judge("c", ["o"], rows([90.0] * 8, [100.0] * 8)).goes_on, "exactly"
    slower = _judge("c", ["o"], rows([89.0] * 8, [100.0] * 8))
    assert not slower.goes_on and slower.reason.endswith("slower")
    mixed = _judge("c", ["o"], rows([80.0, 80.0, *[100.0] * 4], [100.0] * 6))
    assert not mixed.goes_on and "(0.80 to 1.00): not shown to keep 90%" in mixed.reason
    few = _judge("c", ["o"], rows([100.0] * 5, [100.0] * 5))
    assert not few.goes_on and "too little load" in few.reason and "in 5 polls" in few.reason
    idle = _judge("c", ["o"], rows([100.0] * 9, [100.0] * 9, on_it=0.0))
    assert not idle.goes_on and "in 0 polls" in idle.reason
    dead = rows([100.0] * 9, [100.0] * 9)
    dead[-1]["c"] = polled(45.0, 2.0, ended="exit code 1")
    assert _judge("c", ["o"], dead).reason == "c ended: exit code 1" and not _judge("c", ["o"], []).goes_on


def test_speed_is_tokens_for_each_request_and_second_of_all_that_answer() -> None:
    before = {"a": polled(0.0, 2.0, tokens=10.0), "b": polled(0.0, 4.0, tokens=0.0), "c": polled(0.0, 9.0, tokens=5.0)}
    after = {"a": polled(5.0, 4.0, tokens=40.0), "b": polled(5.0, 4.0, tokens=5.0), "c": polled(5.0, 9.0, ended="x")}
    assert _speed(["a"], before, after) == pytest.approx(30 / (3 * 5))
    assert _speed(["a", "b", "c"], before, after) == pytest.approx(35 / (3 * 5 + 4 * 5)), "who ended is left out"
    assert _speed(["a"], after, {"a": polled(10.0, 4.0, tokens=0.0)}) == 0.0, "a counter that began anew made nothing"


@pytest.mark.parametrize("count", range(40))
def test_the_interval_of_a_median_is_the_binomials(count: int) -> None:
    def at_most(k: int) -> float:
        return sum(math.comb(count, n) for n in range(k + 1)) / 2**count

    fitting = [k for k in range(count) if 2 * at_most(k) <= 0.05 and k + 1 <= count / 2]
    assert _outside(count) == max(fitting, default=None)
