"""Nobody takes away the last server that serves: not a person, not the keeper; and what counts as one."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ridgeline.errors import InputError, SiteError
from ridgeline.serving.service import steps as rolling
from ridgeline.serving.service.history import ServiceHistory, Started
from ridgeline.serving.service.keep.actions import Actions
from ridgeline.serving.service.keep.watch import ServerPoll
from ridgeline.serving.service.steps import _judge, _outside, _speed, canary_restart, refuse_last


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
        self.events: list[dict[str, Any]] = []

    serves = ServiceHistory.serves

    def url(self, member: Any) -> str:
        return f"http://{member.name}"

    def record(self, event: dict[str, Any]) -> None:
        self.events.append(event)


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


def polled(at_s: float = 0.0, running: float | None = 4.0, **more: Any) -> ServerPoll:
    return ServerPoll(at_s, **{"running": running, "role": "both", **more})


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
    assert _speed(["a"], after, {"a": polled(10.0, 4.0, tokens=0.0)}) == 0.0, "a counter that began again made nothing"


@pytest.mark.parametrize("count", range(40))
def test_the_interval_of_a_median_is_the_binomials(count: int) -> None:
    def at_most(k: int) -> float:
        return sum(math.comb(count, n) for n in range(k + 1)) / 2**count

    fitting = [k for k in range(count) if 2 * at_most(k) <= 0.05 and k + 1 <= count / 2]
    assert _outside(count) == max(fitting, default=None)
