"""`keep` scales a service: servers are added and removed as decided; whoever follows a killed keeper finishes it."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from ridgeline.serving.service import probe
from ridgeline.serving.service.folder import ServiceFolder
from ridgeline.serving.service.keep.exporter import _metrics_text
from ridgeline.serving.service.keep.keeper import Keeper
from ridgeline.serving.service.keep.scale import ScaleDecision
from ridgeline.serving.service.keep.scaler import (
    GROW_AGAIN_S,
    scale_states,
)
from ridgeline.serving.service.members import members_of
from ridgeline.serving.service.operate import Operator
from ridgeline.study.journal import read_events

from .test_goes_on import FILE, World, fresh, run_until, settle
from .test_goes_on import world as world  # a site and a router in memory

SCALE = "scale: {both: {least: 1, most: 4, running: 10}, down_after: 10m}\n"
TWO, THREE, FOUR = (["router", *(f"server-{n}" for n in range(count))] for count in (2, 3, 4))


@pytest.fixture
def scaled(world: World) -> World:
    (world.root / "two.yaml").write_text(FILE + SCALE)
    return world


class Driven:
    """A keeper whose clock and whose servers' load are ours."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch, dry_run: bool = False) -> None:
        self.now_s, self.load, self.said, self.told = 0.0, 0.0, list[str](), list[str]()
        self.world, self.finished = world, True  # what a server had when it left the router
        monkeypatch.setattr(probe, "metrics_page", self.page)
        self.service = fresh(world)
        self.service.say = self.said.append
        self.keeper = Keeper(
            self.service, dry_run, clock=lambda: self.now_s, alert=lambda kind, member, text: self.told.append(kind)
        )

    def page(self, url: str) -> str:
        """Every server has its part of what users send."""
        servers = max(1, len(self.service.servers))
        each = 0.0 if self.finished and url not in self.world.listed else self.load / servers
        made = f"sglang:generation_tokens_total {100 * self.now_s}\n"  # tokens, as long as it serves
        return f"{made}sglang:num_running_reqs {each}\nsglang:num_queue_reqs 0\nsglang:token_usage 0.1\n"

    def run(self, seconds: float, load: float) -> None:
        end_s, self.load = self.now_s + seconds, load
        while self.now_s < end_s:
            self.now_s += 2.0
            self.keeper.step()


def up(world: World) -> None:
    fresh(world).up(60)


@pytest.mark.slow
def test_servers_are_added_under_load_and_removed_after_it(scaled: World, monkeypatch: pytest.MonkeyPatch) -> None:
    up(scaled)
    kept = Driven(scaled, monkeypatch)
    kept.run(60, 15.0)
    assert scaled.running() == TWO, "below its target"
    kept.run(50, 35.0)
    assert scaled.running() == FOUR
    assert sorted(scaled.listed) == sorted(kept.service.folder.url(m) for m in kept.service.servers)
    assert len(scaled.listed) == 4
    assert any(line.startswith("scale: from 2 to 3 both servers: ") for line in kept.said)
    why = "11.7 requests on each of 3 servers, target 10 requests"
    assert f"scale: from 3 to 4 both servers: {why}; server-3 added" in kept.said
    assert "scale-up" in kept.told
    kept.run(700, 15.0)
    assert scaled.running() == THREE, "one at a time"
    kept.run(3000, 1.0)
    assert scaled.running() == ["router", "server-0"]
    assert scaled.least >= 1, "and the router always had one"
    assert kept.told.count("scale-down") == 3
    kept.run(7200, 0.0)
    assert scaled.running() == ["router", "server-0"], "never the last one"


def test_a_server_leaves_the_router_and_finishes_before_it_ends(scaled: World, monkeypatch: pytest.MonkeyPatch) -> None:
    up(scaled)
    kept = Driven(scaled, monkeypatch)
    kept.finished = False
    kept.keeper._actions.scale(ScaleDecision("both", 2, 1, "as if"))
    kept.run(10, 8.0)
    assert scaled.running() == TWO, "it still has requests"
    assert list(scaled.listed) == [kept.service.folder.url(kept.service.member("server-0"))]
    (state,) = scale_states(kept.service, 0.0)
    assert (state.serving, state.leaving, state.change) == (1, 1, "down to 1: as if")
    kept.run(4, 0.0)
    assert scaled.running() == ["router", "server-0"]


def test_one_that_leaves_is_not_taken_for_slow(scaled: World, monkeypatch: pytest.MonkeyPatch) -> None:
    up(scaled)
    kept = Driven(scaled, monkeypatch)
    kept.run(60, 15.0)
    kept.finished = False
    kept.keeper._actions.scale(ScaleDecision("both", 2, 1, "as if"))
    kept.run(60, 15.0)
    assert not [line for line in kept.said if "slow" in line]
    assert not [e for e in read_events(scaled.root / "service" / "journal.jsonl") if e["event"] == "mend"]


def test_one_that_still_finishes_comes_back_first(scaled: World, monkeypatch: pytest.MonkeyPatch) -> None:
    up(scaled)
    kept = Driven(scaled, monkeypatch)
    kept.finished = False
    kept.keeper._actions.scale(ScaleDecision("both", 2, 1, "as if"))
    kept.run(10, 8.0)
    kept.keeper._actions.scale(ScaleDecision("both", 1, 2, "as if"))
    kept.run(4, 8.0)
    assert scaled.running() == TWO
    assert len(scaled.listed) == 2
    assert kept.service.folder.started["server-1"].generation == 1, "it was never ended"


def scaling(change: int) -> Callable[[Operator], None]:
    def act(service: Operator) -> None:
        keeper = Keeper(service)
        keeper._actions.scale(ScaleDecision("both", 2, 2 + change, "as if"))
        for _ in range(6):
            keeper.step()

    return act


@pytest.mark.parametrize("change", [1, 2, -1])
def test_scaling_that_is_killed_at_any_line_is_finished_by_the_next_keeper(scaled: World, change: int) -> None:
    for lines in itertools.count(1):
        up(scaled)
        ended = run_until(lambda: scaling(change)(fresh(scaled)), lines)
        service = settle(scaled)
        journal = list(read_events(scaled.root / "service" / "journal.jsonl"))
        since = journal[max(n for n, event in enumerate(journal) if event["event"] == "up") :]
        begun = sum(event["event"] in ("growing", "shrinking") for event in since)
        assert begun == (abs(change) if ended else min(begun, abs(change)))
        expected = 2 + (begun if change > 0 else -begun)
        assert scaled.running() == ["router", *(f"server-{n}" for n in range(expected))], "each runs once"
        assert sorted(scaled.listed) == sorted(service.folder.url(m) for m in service.servers)
        assert not (service.folder.growing or service.folder.retiring)
        fresh(scaled).down()
        assert scaled.running() == []
        assert not (fresh(scaled).folder.added or fresh(scaled).folder.removed), "the next one begins as the file says"
        if ended:
            assert lines > 3, "it has several lines"
            break


def test_a_dry_run_only_says_it(scaled: World, monkeypatch: pytest.MonkeyPatch) -> None:
    up(scaled)
    kept = Driven(scaled, monkeypatch, dry_run=True)
    kept.run(30, 35.0)
    assert scaled.running() == TWO
    assert (
        "scale: would go from 2 to 4 both servers (17.5 requests on each of 2 servers, target 10 requests)" in kept.said
    )


def test_one_that_does_not_start_is_not_tried_again_at_once(scaled: World, monkeypatch: pytest.MonkeyPatch) -> None:
    up(scaled)
    kept = Driven(scaled, monkeypatch)
    monkeypatch.setattr(probe, "is_healthy", lambda url: not url.endswith(("30002", "30003")))
    kept.run(14, 27.0)
    assert scaled.running() == THREE
    scaled.jobs[kept.service.folder.started["server-2"].ticket] = "no such partition"
    kept.run(60, 27.0)
    assert scaled.running() == TWO
    assert kept.told.count("scale-failed") == 1
    monkeypatch.setattr(probe, "is_healthy", lambda url: True)
    kept.run(GROW_AGAIN_S + 30, 27.0)
    assert scaled.running() == THREE


def test_limits_of_a_role_are_told_once(scaled: World, monkeypatch: pytest.MonkeyPatch) -> None:
    up(scaled)
    kept = Driven(scaled, monkeypatch)
    kept.run(200, 500.0)
    assert scaled.running() == FOUR
    assert any(line.startswith("scale: both needs more servers (125 requests on each of 4") for line in kept.said)
    assert kept.told.count("scale-limit") >= 1


def test_a_router_that_starts_again_knows_those_that_were_added(scaled: World, monkeypatch: pytest.MonkeyPatch) -> None:
    up(scaled)
    kept = Driven(scaled, monkeypatch)
    kept.run(30, 27.0)
    assert scaled.running() == THREE
    after = Operator(kept.service.service, scaled.root / "service")
    assert after.router is not None
    assert list(after.router.after) == ["server-0", "server-1", "server-2"]
    with after.action():
        after.folder.record({"event": "growing", "member": "server-3", "role": "both", "to": 4, "why": "as if"})
        after.apply_journal()
    assert "server-3" not in after.router.after, "nor waits for one that is not ready: a queue may be long"


def test_the_next_keeper_waits_as_long_as_this_one_would(scaled: World, monkeypatch: pytest.MonkeyPatch) -> None:
    up(scaled)
    Driven(scaled, monkeypatch).run(30, 27.0)
    follower = Driven(scaled, monkeypatch)
    follower.run(560, 1.0)
    assert scaled.running() == THREE
    follower.run(60, 1.0)
    assert scaled.running() == TWO


def test_metrics_and_status_know_it(scaled: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from ridgeline.serving.verbs.deploy import _scale_text

    up(scaled)
    kept = Driven(scaled, monkeypatch)
    kept.run(30, 27.0)
    text = _metrics_text(kept.keeper)
    assert 'ridgeline_scale_servers{service="two",role="both",state="serving"} 3' in text
    assert 'ridgeline_scale_least{service="two",role="both"} 1' in text
    assert 'ridgeline_scale_most{service="two",role="both"} 4' in text
    assert 'ridgeline_keep_events_total{service="two",kind="scale-up"} 1' in text
    (line,) = _scale_text(scale_states(kept.service, 0.0)).splitlines()
    assert line.startswith("scale: 3 both servers serve (least 1, most 4); ")
    assert line.endswith("up to 3: 13.5 requests on each of 2 servers, target 10 requests")


def test_without_the_block_the_file_holds_again(scaled: World, monkeypatch: pytest.MonkeyPatch) -> None:
    up(scaled)
    Driven(scaled, monkeypatch).run(30, 27.0)
    (scaled.root / "two.yaml").write_text(FILE)
    after = fresh(scaled)
    assert [m.name for m in after.servers] == ["server-0", "server-1", "server-2"], "nobody has applied it yet"
    after.up(60)
    assert [m.name for m in after.servers] == ["server-0", "server-1"]
    assert [m.name for m in after._everybody() if m not in after.present] == ["server-2"]
    assert ServiceFolder(scaled.root / "service", after.service).added == {"server-2"}
    after.down()
    assert scaled.running() == []
    assert members_of(after.service)[0].port == members_of(fresh(scaled).service)[0].port
