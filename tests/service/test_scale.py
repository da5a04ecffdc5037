"""Scaling decisions: within limits, by the schedule, quick up and slow down, and never back and forth."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ridgeline.errors import StudyError
from ridgeline.serving.service.file import load_service
from ridgeline.serving.service.keep.scale import LoadHistory, RoleCount, RoleLoad, ScaleDecision, decide, limits_at
from ridgeline.serving.service.members import members_of
from ridgeline.serving.service.service import RoleScale, ScaleRules, ScheduleEntry, Service

MONDAY = datetime(2026, 11, 16, tzinfo=UTC)
POLL_S = 2.0


class Cluster:
    """Servers that take `start_s` to start and `drain_s` to end; what `decide` says is done."""

    def __init__(
        self, scale: ScaleRules, replicas: Mapping[str, int], start_s: float = 60.0, drain_s: float = 20.0
    ) -> None:
        self.scale, self.start_s, self.drain_s = scale, start_s, drain_s
        self.serving = dict(replicas)
        self.starting: list[tuple[float, str]] = []
        self.leaving: list[tuple[float, str]] = []
        self.history = LoadHistory(scale.down_after_s)
        self.ratios = {role: float(n) for role, n in replicas.items()}
        self.now_s = 0.0
        self.decisions: list[tuple[float, ScaleDecision]] = []

    def count(self, role: str) -> RoleCount:
        waits, ends = (sum(of == role for _, of in rows) for rows in (self.starting, self.leaving))
        return RoleCount(self.serving[role], waits, ends)

    def poll(self, load: Callable[[str, float], RoleLoad | None]) -> None:
        self.now_s += POLL_S
        for row, change in ((self.starting, 1), (self.leaving, 0)):
            for item in [item for item in row if item[0] <= self.now_s]:
                row.remove(item)
                self.serving[item[1]] += change
                self.history.change(item[1], self.now_s)
        for role in self.serving:
            if (seen := load(role, self.now_s)) is not None:
                self.history.take(role, seen)
        counts = {role: self.count(role) for role in self.serving}
        wall = MONDAY + timedelta(seconds=self.now_s)
        for decision in decide(self.scale, wall, self.now_s, counts, self.history, self.ratios):
            if not decision.change:
                continue
            self.decisions.append((self.now_s, decision))
            self.history.change(decision.role, self.now_s, decision.change)
            if decision.change > 0:
                self.starting += [(self.now_s + self.start_s, decision.role)] * decision.change
            else:
                self.serving[decision.role] += decision.change
                self.leaving += [(self.now_s + self.drain_s, decision.role)] * -decision.change

    def run(self, load: Callable[[str, float], RoleLoad | None], until_s: float) -> list[tuple[float, ScaleDecision]]:
        before = len(self.decisions)
        while self.now_s < until_s:
            self.poll(load)
        return self.decisions[before:]


def one(least: int = 1, most: int = 8, **targets: float) -> ScaleRules:
    return ScaleRules({"both": RoleScale(least=least, most=most, **targets)}, down_after_s=600.0)  # type: ignore[arg-type]


def noisy(mean: Callable[[float], float], seed: int, life_s: float = 10.0) -> Callable[[str, float], RoleLoad]:
    """Requests under way as users have them: Poisson arrivals that each stay for some seconds."""
    rng, on = random.Random(seed), [mean(0.0)]

    def load(role: str, at_s: float) -> RoleLoad:
        arrive, leave = mean(at_s) * POLL_S / life_s, on[0] * POLL_S / life_s
        on[0] = max(0.0, on[0] + rng.gauss(arrive, math.sqrt(arrive)) - rng.gauss(leave, math.sqrt(max(leave, 0.01))))
        return RoleLoad(at_s, on[0])

    return load


def steady(requests: float, **more: float) -> Callable[[str, float], RoleLoad]:
    return lambda role, at_s: RoleLoad(at_s, requests, **more)


@pytest.mark.parametrize("seed", range(20))
def test_a_doubled_load_is_answered_within_30_s(seed: int) -> None:
    rng = random.Random(seed)
    servers, target = rng.randint(1, 6), rng.choice([24.0, 64.0])
    before = rng.uniform(0.7, 0.85) * servers * target
    load = noisy(lambda at_s: before * (2 if at_s > 300 else 1), seed)
    cluster = Cluster(one(servers, servers, running=target), {"both": servers})
    assert not cluster.run(load, 300.0)
    cluster.scale = one(servers, 24, running=target)
    ((at_s, decision),) = cluster.run(load, 332.0)
    assert at_s - 300 <= 30.0
    assert decision.change > 0
    assert "requests on each of" in decision.why


@pytest.mark.parametrize("seed", range(20))
def test_a_load_that_doubles_from_half_of_its_target_is_seen_as_it_rises(seed: int) -> None:
    """It would come to rest at its target: no mean is far above that, and waiting for one takes a minute."""
    rng = random.Random(seed)
    servers, target = rng.randint(4, 10), rng.choice([24.0, 64.0])
    before = 0.6 * servers * target
    load = noisy(lambda at_s: before * (2 if at_s > 300 else 1), seed)
    cluster = Cluster(one(servers, 24, running=target), {"both": servers})
    assert not cluster.run(load, 300.0)
    found = cluster.run(load, 330.0)
    assert len(found) == 1, "one decision"
    assert found[0][1].change > 0


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("seed", range(3))
def test_a_load_that_stays_is_no_rise(seed: int, share: float) -> None:
    """At any load below the target."""
    servers, target = 3, 24.0
    cluster = Cluster(one(servers, 8, running=target), {"both": servers})
    found = cluster.run(noisy(lambda at_s: share * servers * target, seed), 1800.0)
    assert not [decision for _, decision in found if "rising" in decision.why]


def test_a_small_load_may_double_without_a_server() -> None:
    cluster = Cluster(one(4, 8, running=24.0), {"both": 4})
    assert not cluster.run(noisy(lambda at_s: 14.0 * (2 if at_s > 300 else 1), 3), 600.0)


@pytest.mark.parametrize("seed", [*range(6), 19])
def test_noise_makes_nobody_add_and_remove_in_turn(seed: int) -> None:
    rng = random.Random(1000 + seed)
    mean = rng.uniform(10.0, 150.0)
    cluster = Cluster(one(1, 12, running=rng.choice([12.0, 24.0])), {"both": 4})
    cluster.run(noisy(lambda at_s: mean, seed), 4 * 3600.0)
    late = [decision.change > 0 for at_s, decision in cluster.decisions if at_s > 5400]  # it finds its place first
    turns = sum(a != b for a, b in itertools.pairwise(late))
    assert turns == 0, cluster.decisions


@pytest.mark.parametrize("seed", range(10))
def test_nothing_ever_leaves_the_limits(seed: int) -> None:
    """Any load, also absurd ones, with polls that fail, and a schedule."""
    rng = random.Random(seed)
    least, most = sorted((rng.randint(1, 4), rng.randint(4, 9)))
    entry = ScheduleEntry(**{"from": "01:00"}, to="02:00", least=rng.randint(least, most))
    rule = RoleScale(least=least, most=most, running=10.0, waiting=2.0, kv=0.8, schedule=[entry])
    cluster = Cluster(ScaleRules({"both": rule}, down_after_s=120.0), {"both": least}, start_s=rng.uniform(2, 200))

    def load(role: str, at_s: float) -> RoleLoad | None:
        if rng.random() < 0.2:
            return None
        wild = rng.choice([0.0, rng.uniform(0, 200), 1e9])
        return RoleLoad(at_s, wild, rng.uniform(0, 50), rng.choice([None, rng.uniform(0, 9)]))

    while cluster.now_s < 7200:
        cluster.poll(load)
        count = cluster.count("both")
        assert least <= count.replicas <= most
        assert count.serving >= 1
        assert not (count.leaving and count.starting and cluster.decisions[-1][1].change < 0), (
            "removed while one starts"
        )
    assert all(decision.why for _, decision in cluster.decisions)


def test_servers_are_removed_one_at_a_time_and_late() -> None:
    cluster = Cluster(one(1, 8, running=10.0), {"both": 4})
    found = cluster.run(steady(5.0), 3600.0)
    assert [decision.wanted for _, decision in found] == [3, 2, 1]
    times = [at_s for at_s, _ in found]
    assert times[0] >= 0.9 * 600
    assert all(later - at_s >= 600 for at_s, later in itertools.pairwise(times))
    assert "3 would have carried the load of the last 10 min below 75%" in found[0][1].why


def test_between_the_thresholds_nothing_happens() -> None:
    for share in (0.8, 0.9, 1.0):
        assert not Cluster(one(1, 8, running=10.0), {"both": 4}).run(steady(40.0 * share), 7200.0)


def test_a_start_under_way_is_waited_for() -> None:
    cluster = Cluster(one(1, 8, running=10.0), {"both": 2}, start_s=300.0)
    found = cluster.run(lambda role, at_s: RoleLoad(at_s, 40.0 if at_s < 60 else 80.0), 335.0)
    assert [decision.wanted for _, decision in found] == [4], "what they will take over is not known yet"
    found = cluster.run(steady(80.0), 400.0)
    assert [decision.wanted for _, decision in found] == [8]


def test_the_limit_of_a_role_is_said() -> None:
    history = LoadHistory(600.0)
    for n in range(8):
        history.take("both", RoleLoad(n * POLL_S, 100.0))
    (found,) = decide(one(1, 3, running=10.0), MONDAY, 14.0, {"both": RoleCount(3)}, history, {"both": 3.0})
    assert (found.change, found.short) == (0, True)
    assert found.why == "33.3 requests on each of 3 servers, target 10 requests; most 3"


@pytest.mark.parametrize(
    ("targets", "load", "why"),
    [
        ({"kv": 0.5}, RoleLoad(0, 0, kv_share=1.8), "90% of the KV pool on each of 2 servers, target 50%"),
        ({"waiting": 2.0}, RoleLoad(0, 9, waiting=9.0), "4.5 requests wait on each of 2 servers, target 2"),
    ],
)
def test_every_signal_can_ask_for_more(targets: dict[str, float], load: RoleLoad, why: str) -> None:
    cluster = Cluster(one(1, 8, **targets), {"both": 2})
    (found,) = cluster.run(lambda role, at_s: replace(load, at_s=at_s), 30.0)
    assert found[1].why.startswith(why)
    assert found[1].wanted > 2


def test_one_signal_is_enough_to_keep_a_server() -> None:
    cluster = Cluster(one(1, 8, running=10.0, waiting=1.0), {"both": 4})
    assert not cluster.run(steady(1.0, waiting=3.5), 3600.0), "on fewer, more would wait"


# schedules

OFFICE = ScheduleEntry(**{"from": "08:00"}, to="20:00", days="mon-fri", least=4)
NIGHT = ScheduleEntry(**{"from": "22:00"}, to="06:00", days="fri", most=2)


@pytest.mark.parametrize(
    ("hours", "least", "most"),
    [(7.99, 1, 8), (8.0, 4, 8), (19.99, 4, 8), (20.0, 1, 8), (5 * 24 + 12, 1, 8), (4 * 24 + 23, 1, 2),
     (5 * 24 + 5, 1, 2),
     (5 * 24 + 6, 1, 8), (6 * 24 + 23, 1, 8)],
)  # fmt: skip
def test_limits_by_day_and_time(hours: float, least: int, most: int) -> None:
    found = limits_at(RoleScale(least=1, most=8, schedule=[OFFICE, NIGHT]), MONDAY + timedelta(hours=hours))
    assert (found.least, found.most) == (least, most)


def test_the_schedule_adds_at_once_and_removes_one_by_one() -> None:
    scale = ScaleRules({"both": RoleScale(least=1, most=8, schedule=[OFFICE])})
    cluster = Cluster(scale, {"both": 1})
    (morning,) = cluster.run(steady(0.0), 9 * 3600.0)
    assert (morning[0], morning[1].wanted) == (8 * 3600.0, 4)
    assert morning[1].why == "08:00 to 20:00 mon-fri: least 4"
    evening = cluster.run(steady(0.0), 21 * 3600.0)
    assert [decision.wanted for _, decision in evening] == [3, 2, 1]
    assert evening[0][0] == 20 * 3600.0


# split roles


def split(**more: float) -> ScaleRules:
    roles = {"prefill": RoleScale(least=1, most=4), "decode": RoleScale(least=2, most=8, running=10.0)}
    return ScaleRules(roles, down_after_s=600.0, **more)  # type: ignore[arg-type]


def test_a_role_without_targets_keeps_the_ratio_of_the_units() -> None:
    cluster = Cluster(split(), {"prefill": 1, "decode": 2})
    found = cluster.run(steady(40.0), 120.0)
    assert {d.role: d.wanted for _, d in found} == {"decode": 4, "prefill": 2}
    assert found[1][1].why == "2 prefill for 4 decode servers, the ratio of the units"
    later = cluster.run(steady(1.0), 7200.0)
    assert cluster.serving == {"prefill": 1, "decode": 2}
    assert all(decision.change == -1 for _, decision in later)


def test_a_role_that_can_spare_a_server_gives_its_place() -> None:
    roles = {"prefill": RoleScale(least=1, most=4, running=10.0), "decode": RoleScale(least=1, most=4, running=10.0)}
    cluster = Cluster(ScaleRules(roles, most_servers=4), {"prefill": 2, "decode": 2})
    found = cluster.run(lambda role, at_s: RoleLoad(at_s, 30.0 if role == "decode" else 1.0), 60.0)
    assert [(d.role, d.wanted) for _, d in found] == [("prefill", 1), ("decode", 3)]
    assert found[0][1].why.startswith("gives its place to decode: 15 requests on each of 2 servers")
    assert found[1][0] - found[0][0] >= 20.0, "it is empty before the other one starts"


@pytest.mark.parametrize("seed", range(10))
def test_the_total_is_never_passed(seed: int) -> None:
    rng = random.Random(seed)
    roles = {"prefill": RoleScale(least=1, most=6, running=10.0), "decode": RoleScale(least=1, most=6, running=10.0)}
    cluster = Cluster(ScaleRules(roles, down_after_s=60.0, most_servers=7), {"prefill": 2, "decode": 3})
    while cluster.now_s < 3600:
        cluster.poll(lambda role, at_s: RoleLoad(at_s, rng.uniform(0, 100)))
        counts = [cluster.count(role) for role in roles]
        assert sum(count.replicas + count.leaving for count in counts) <= 7
        assert all(count.serving >= 1 for count in counts)


# the deployment file

FILE = """\
version: 1
model: llama-8b
engine: {kind: twin, gpu: h200}
units:
  - {replicas: 2, gpus: 4, settings: {tp: 4}}
router: {kind: smg, port: 9000}
site: {name: cluster, batch: slurm, nodes: 3, gpus_per_node: 8, launcher: srun}
scale:
  both:
    least: 2
    most: 6
    running: 24
    schedule:
      - {from: "08:00", to: "20:00", days: mon-fri, least: 4}
"""
SPLIT_FILE = """\
version: 1
model: llama-8b
engine: {kind: vllm}
units:
  - {role: prefill, settings: {tp: 1}}
  - {role: decode, replicas: 2, settings: {tp: 1}}
router: {kind: vllm-router, port: 9000}
scale: {prefill: {most: 2}, decode: {most: 4, running: 8}}
"""


def loaded(folder: Path, text: str) -> Service:
    path = folder / "service.yaml"
    path.write_text(text)
    return load_service(path)


def test_a_scale_block_is_read(tmp_path: Path) -> None:
    scale = loaded(tmp_path, FILE).scale
    assert scale is not None
    rule = scale.roles["both"]
    assert (rule.least, rule.most, rule.running, scale.down_after_s) == (2, 6, 24.0, 600.0)
    assert limits_at(rule, MONDAY + timedelta(hours=9)).least_why == "08:00 to 20:00 mon-fri: least 4"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("least: 2\n", "least: 7\n", ":10: scale.both.least: least 7 is more than most 6; lower it, or raise most"),
        ("most: 6", "most: 7",
         ":11: scale.both.most: most 7: all servers together would need 4 nodes, and cluster has 3; at most"),
        ("replicas: 2", "replicas: 1", "replicas is 1, and scale keeps 2 to 6; begin with a number between them"),
        ("least: 4}", "least: 9}", "08:00 to 20:00 mon-fri: least 9 is more than most 6"),
        ("least: 4}", "most: 1}", "08:00 to 20:00 mon-fri: least 2 is more than most 1"),
        ("least: 4}", "least: 1}", "1 to 6 goes beyond the 2 to 6 of the role"),
        (", least: 4}", "}", "changes nothing; give it `least`, `most` or both"),
        ("least: 4}", 'least: 4}\n      - {from: "19:00", to: "22:00", least: 3}',
         "schedule[1]: 19:00 to 22:00: least 3, and 08:00"),
        ("least: 4}", 'least: 4}\n      - {from: "19:00", to: "22:00", most: 3}',
         "least 4, and 19:00 to 22:00: most 3 overlaps it"),
        ('"20:00"', '"25:00"', "'25:00' is not a time of the day"),
        ("mon-fri", "mo-fr", "'mo-fr' are no days; write such as mon-fri or sat,sun"),
        ("  both:", "  prefill:", ":9: scale.prefill: no unit has `role: prefill`; the units have: both"),
        ("router: {kind: smg, port: 9000}\n", "", "servers come and go behind a router, and there is none"),
        ("port: 9000}", "port: 9000, most_running: 100}", "no load asks for more than 4 servers"),
        ("site:", "  - {gpus: 4, settings: {tp: 4}}\nsite:", "2 units have `role: both`, and it doesn't say which"),
        ("running: 24", "runing: 24", "no such key of scale; did you mean running?"),
    ],
)  # fmt: skip
def test_a_block_that_contradicts_itself_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = FILE.replace(old, new)
    if new.startswith("  - {gpus"):
        text = FILE.replace("router:", "  - {gpus: 4, settings: {tp: 4}}\nrouter:")
    assert text != FILE
    with pytest.raises(StudyError) as refused:
        loaded(tmp_path, text)
    assert message in str(refused.value)


def test_a_router_that_takes_no_server_back_cannot_be_scaled(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="vllm-router takes no prefill or decode server back while it runs"):
        loaded(tmp_path, SPLIT_FILE)


def test_entries_that_agree_may_overlap(tmp_path: Path) -> None:
    more = 'least: 4}\n      - {from: "20:00", to: "22:00", least: 3}\n      - {from: "19:00", to: "21:00", most: 5}'
    assert loaded(tmp_path, FILE.replace("least: 4}", more)).scale


def test_every_server_keeps_its_ports_and_gpus_whoever_else_runs(tmp_path: Path) -> None:
    text = FILE.replace("site:", "#").replace("replicas: 2", "replicas: 3")
    service = loaded(tmp_path, text)
    some = {m.name: m for m in members_of(service, scaled={"both": {0, 5}})}
    every = {m.name: m for m in members_of(service, scaled={"both": range(6)})}
    assert list(some) == ["server-0", "server-5", "router"]
    assert some["server-5"].line == every["server-5"].line
    assert len({m.port for m in every.values()}) == 7
    second = members_of(service, {f"server-{n}" for n in range(6)}, scaled={"both": range(6)})
    assert not {m.port for m in second[:-1]} & {m.port for m in every.values()}
