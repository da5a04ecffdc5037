from __future__ import annotations

import math
import random
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from ridgeline.stats import slow_nodes
from ridgeline.stats.nodes import (
    EACH_RUN,
    MOST_NEW,
    MOST_RUNS,
    NodeRun,
    NodeRuns,
    corrected,
    corrections,
    looked_at,
    node_effects,
)


def runs(seed: int, count: int, slow: dict[str, float], width: int = 1, noise: float = 0.01) -> list[NodeRun]:
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        nodes = tuple(sorted(rng.sample(["n1", "n2", "n3", "n4"], width)))
        setting = rng.choice("ab")
        log = (0.5 if setting == "a" else 0.0) + rng.gauss(0, noise)
        log += min(slow.get(node, 0.0) for node in nodes)
        made.append(NodeRun(setting, nodes, 100 * math.exp(log)))
    return made


@pytest.mark.parametrize("width", [1, 2])
def test_one_slow_node_is_named_and_no_other(width: int) -> None:
    effects = {e.node: e for e in node_effects(runs(1, 40, {"n2": math.log(0.91)}, width), "maximize")}
    assert effects["n2"].verdict == "slow"
    assert effects["n2"].low is not None and effects["n2"].high is not None
    assert effects["n2"].low <= 0.91 <= effects["n2"].high
    assert re.fullmatch(r"node n2 is \d+% slower than its peers \(95%: \d+ to \d+\)", str(effects["n2"]))
    assert [n for n, e in effects.items() if e.verdict in ("slow", "fast")] == ["n2"]


def test_equal_nodes_are_rarely_accused() -> None:
    accused = sum(
        any(e.verdict in ("slow", "fast") for e in node_effects(runs(seed, 20, {}, noise=0.03), "maximize"))
        for seed in range(300)
    )
    assert accused / 300 < 0.05 + 0.035


def test_too_few_runs_accuse_nobody() -> None:
    few = [NodeRun("a", ("n1",), 100.0), NodeRun("a", ("n1",), 101.0), NodeRun("a", ("n2",), 50.0)]
    assert {e.verdict for e in node_effects(few, "maximize")} == {"undecided"}
    assert "too little to judge" in str(node_effects(few, "maximize")[0])


def test_nodes_used_only_together_cannot_be_told_apart() -> None:
    rng = random.Random(0)
    pairs = [("n1", "n2"), ("n3", "n4")] * 8
    data = [NodeRun("a", pair, (100 if "n1" in pair else 50) * math.exp(rng.gauss(0, 0.01))) for pair in pairs]
    assert {e.verdict for e in node_effects(data, "maximize")} == {"undecided"}


def test_a_slow_setting_is_not_a_slow_node() -> None:
    """Node n2 ran mostly the slow setting; its runs are slow, the node is not."""
    rng = random.Random(2)
    plan = [("a", "n1")] * 8 + [("b", "n1")] * 3 + [("a", "n2")] * 3 + [("b", "n2")] * 8
    data = [NodeRun(s, (n,), (100 if s == "a" else 60) * math.exp(rng.gauss(0, 0.01))) for s, n in plan]
    assert {e.verdict for e in node_effects(data, "maximize")} == {"usual"}


def test_of_two_nodes_the_slow_one_is_named() -> None:
    rng = random.Random(3)
    data = [NodeRun("a", (n,), (10 if n == "n1" else 12) * math.exp(rng.gauss(0, 0.01))) for n in ("n1", "n2") * 6]
    effects = {e.node: e.verdict for e in node_effects(data, "minimize")}
    assert effects["n2"] == "slow"
    assert effects["n1"] != "fast"


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_corrected_values_no_longer_depend_on_the_node(direction: str) -> None:
    sign = 1 if direction == "maximize" else -1
    data = runs(4, 60, {"n3": sign * math.log(0.8)})
    factors = corrections(node_effects(data, direction), direction)  # type: ignore[arg-type]
    assert set(factors) == {"n3"}
    fixed = [NodeRun(r.setting, r.nodes, corrected(r.value, r.nodes, factors)) for r in data]
    assert not corrections(node_effects(fixed, direction), direction)  # type: ignore[arg-type]
    assert corrected(5.0, (), factors) == 5.0


def test_a_job_is_corrected_by_its_node_that_is_furthest_off() -> None:
    assert corrected(10.0, ("a", "b"), {"a": 1.05, "b": 0.8}) == pytest.approx(8.0)
    assert corrected(10.0, ("a", "b"), {"a": 1.3, "b": 0.9}) == pytest.approx(13.0)
    assert corrected(10.0, ("c",), {"a": 1.3}) == corrected(10.0, (), {"a": 1.3}) == 10.0


def test_rates_of_a_slow_node_are_raised_and_times_lowered() -> None:
    slow = replace(node_effects(runs(1, 24, {"n1": 0.9}), "maximize")[0], node="n1", likely=0.9)
    assert corrections([slow], "maximize") == {"n1": pytest.approx(1 / 0.9, rel=0.003)}
    assert corrections([slow], "minimize") == {"n1": pytest.approx(0.9, rel=0.003)}
    assert corrections([replace(slow, likely=1.001), replace(slow, likely=None)], "maximize") == {}


def test_of_very_many_runs_those_of_repeated_settings_and_the_latest_are_looked_at() -> None:
    once = [NodeRun(f"s{n}", ("a",), 1.0, (), n) for n in range(200)]
    twice = [NodeRun("again", ("b",), 1.0, (), n) for n in (200, 201)]
    found = looked_at([*twice, *once])
    assert found[:2] == tuple(twice)
    assert found[2:] == tuple(once[-(MOST_RUNS - 2) :])


def test_one_node_has_no_peers() -> None:
    assert [e.verdict for e in node_effects([NodeRun("a", ("n1",), 1.0)] * 9, "maximize")] == ["undecided"]


def spread_runs(plan: str) -> list[NodeRun]:
    """`a1 b2`: setting a on n1, setting b on n2; node n1 is half as fast, runs hardly differ."""
    rng = random.Random(5)
    return [
        NodeRun(setting, (f"n{node}",), (50 if node == "1" else 100) * math.exp(rng.gauss(0, 1e-3)))
        for setting, node in plan.split()
    ]


@pytest.mark.parametrize(
    ("plan", "verdict"),
    [
        ("a1 a1 a1 a2 a2 a2", "slow"),
        ("a1 a1 a2 a2 a2 a2 a2 a2", "undecided"),  # two runs there
        ("a1 a1 a1 a1 a1 a1 a2 a2", "undecided"),  # two runs elsewhere
        ("a1 a1 b1 a2 b2 b2", "undecided"),  # three degrees of freedom: six runs less two settings and a node
    ],
)
def test_nobody_is_accused_on_less_than_three_runs_here_and_elsewhere_and_four_degrees_of_freedom(
    plan: str, verdict: str
) -> None:
    effects = {e.node: e.verdict for e in node_effects(spread_runs(plan), "maximize")}
    assert effects["n1"] == verdict


def searched(seed: int, spread: float, drift: float = 0.0, slow: float = 0.9, noise: float = 0.01) -> list[NodeRun]:
    """The baseline four times on each of three nodes, and thirty settings that ran once each; n1 is slow."""
    rng = random.Random(seed)
    settings = ["base"] * 12 + [f"s{number}" for number in range(30)]
    rng.shuffle(settings)
    levels = {setting: rng.gauss(0, spread) for setting in settings}
    places = {"base": 0}
    made = []
    for place, setting in enumerate(settings):
        node = f"n{places['base'] % 3 + 1}" if setting == "base" else f"n{rng.randint(1, 3)}"
        places["base"] += setting == "base"
        log = levels[setting] + rng.gauss(0, noise) + math.log(slow) * (node == "n1") + drift * place / len(settings)
        made.append(NodeRun(setting, (node,), math.exp(log), (("x", setting),), place))
    return made


@pytest.mark.parametrize("spread", [0.02, 0.3, 3.0])
def test_settings_of_a_search_blur_no_repeats_however_much_they_differ(spread: float) -> None:
    effects = {e.node: e for e in node_effects(searched(3, spread), "maximize")}
    assert {node: e.verdict for node, e in effects.items()} == {"n1": "slow", "n2": "usual", "n3": "usual"}
    low, high = effects["n1"].low, effects["n1"].high
    assert low is not None and high is not None
    assert low < 0.9 < high
    assert high - low < 0.08


def test_a_machine_that_drifts_makes_no_node_slow() -> None:
    """The first node was mostly used early, and the machine gained a tenth since."""
    rng = random.Random(4)
    nodes = ["n2"] * 2 + ["n1"] * 9 + ["n2"] * 2 + ["n3", "n2"] * 8
    data = [
        NodeRun("base", (node,), math.exp(0.1 * place / len(nodes) + rng.gauss(0, 0.003)), place=place)
        for place, node in enumerate(nodes)
    ]
    assert not [e for e in node_effects(data, "maximize") if e.verdict in ("slow", "fast")]
    as_if_steady = [NodeRun(run.setting, run.nodes, run.value) for run in data]
    assert [e for e in node_effects(as_if_steady, "maximize") if e.verdict in ("slow", "fast")]


def test_what_values_are_corrected_by_is_pulled_toward_none() -> None:
    effects = {e.node: e for e in node_effects(searched(5, 0.3, slow=0.9, noise=0.03), "maximize")}
    speed, likely = effects["n1"].speed, effects["n1"].likely
    assert speed is not None and likely is not None
    assert speed < likely < 1
    alike = node_effects(searched(5, 0.3, slow=1.0), "maximize")
    assert all(abs(factor - 1) < 0.011 for factor in corrections(alike, "maximize").values())


def repeats(told: dict[str, list[float]], seed: int = 6) -> list[NodeRun]:
    """Runs of one setting by the nodes of the job ('n1 n2'), in logs of speed, in an order of their own."""
    made = [(tuple(nodes.split()), log) for nodes, logs in told.items() for log in logs]
    random.Random(seed).shuffle(made)
    return [NodeRun("base", nodes, math.exp(log), place=place) for place, (nodes, log) in enumerate(made)]


def test_disturbed_runs_neither_hide_a_slow_node_nor_make_one() -> None:
    calm = [0.0, 0.01, -0.01, 0.02, 0.0]
    slow = [-0.07, -0.08, -0.09, -0.54, -0.08]
    hidden = node_effects(repeats({"n1": slow, "n2": calm, "n3": [*calm, -0.4], "n4": calm}), "maximize")
    assert {e.node: e.verdict for e in hidden} == {"n1": "slow", "n2": "usual", "n3": "usual", "n4": "usual"}
    assert hidden[0].low is not None and hidden[0].high is not None
    assert hidden[0].low < 0.92 < hidden[0].high
    made = node_effects(repeats({"n1": [-0.3, 0.01, -0.25], "n2": calm, "n3": calm, "n4": calm}), "maximize")
    assert {e.verdict for e in made} == {"usual"}


def test_a_job_waits_for_its_slowest_node() -> None:
    """n1 is 20% slow and n2 10%; jobs on both are as slow as on n1 alone."""
    rng = random.Random(8)
    pairs = ("n1 n2", "n1 n3", "n1 n4", "n2 n3", "n2 n4", "n3 n4", "n3 n5", "n4 n5", "n2 n5")
    slow = {pair: math.log(0.8 if "n1" in pair else 0.9 if "n2" in pair else 1.0) for pair in pairs}
    data = repeats({pair: [slow[pair] + rng.gauss(0, 0.01) for _ in range(5)] for pair in pairs})
    effects = {e.node: e for e in node_effects(data, "maximize")}
    assert {node for node, e in effects.items() if e.verdict == "slow"} == {"n1", "n2"}
    assert effects["n1"].speed == pytest.approx(0.8, abs=0.02)
    assert effects["n2"].speed == pytest.approx(0.9, abs=0.02)
    factors = corrections([*effects.values()], "maximize")
    assert corrected(80.0, ("n1", "n2"), factors) == pytest.approx(100, abs=3)
    assert corrected(90.0, ("n2", "n3"), factors) == pytest.approx(100, abs=3)


def test_few_runs_that_are_alike_by_luck_accuse_nobody() -> None:
    lucky = {"n1": [-0.042, -0.045, -0.041], "n2": [0.0], "n3": [-0.003], "n4": [-0.006]}
    assert "slow" not in {e.verdict for e in node_effects(repeats(lucky), "maximize")}


def test_numpy_has_one_thread_and_the_programs_of_a_campaign_choose_theirs() -> None:
    code = "import os; os.environ.pop('OPENBLAS_NUM_THREADS', None); import ridgeline.stats.arrays, threading"
    tell = "print(os.environ.get('OPENBLAS_NUM_THREADS'), len(os.listdir('/proc/self/task')))"
    done = subprocess.run([sys.executable, "-c", f"{code}; {tell}"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["None", "1"]


def long_campaign(count: int) -> list[NodeRun]:
    """Six nodes, the baseline after every eighth setting; n1 is slow."""
    rng, made = random.Random(7), []
    for number in range(count):
        node = f"n{rng.randrange(6)}"
        setting = "base" if number % 9 == 0 else f"s{number}"
        speed = (0.9 if node == "n1" else 1.0) * math.exp(rng.gauss(0, 0.015))
        made.append(NodeRun(setting, (node,), 100 * speed, (("x", number % 17),), number))
    return made


def test_what_one_more_run_costs_does_not_grow_with_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    weighed: list[int] = []
    monkeypatch.setattr(slow_nodes, "judged", lambda runs, known, sign: weighed.append(len(runs)) or tuple(known))
    counted, each = NodeRuns(), list[int]()
    for run in long_campaign(3000):
        counted.add(run)
        before = len(weighed)
        counted.effects("maximize")
        counted.effects("maximize")
        each.append(len(weighed) - before)
    assert set(each) == {0, 1}, "once, however often it is asked"
    assert sum(each[:EACH_RUN]) >= EACH_RUN - 2, "early every run counts"
    assert sum(each[1000:2000]) <= 1000 / MOST_NEW + 1
    assert sum(each[2000:]) <= 1000 / MOST_NEW + 1
    assert max(weighed) <= MOST_RUNS


def test_odds_depend_on_the_runs_and_not_on_when_somebody_asked() -> None:
    made, asked = long_campaign(150), NodeRuns()
    for run in made:
        asked.add(run)
        if run.place % 40 == 0:
            asked.effects("maximize")
    assert asked.effects("maximize") == NodeRuns(made).effects("maximize") == node_effects(made, "maximize")
    assert [e.node for e in node_effects(made, "maximize") if e.verdict == "slow"] == ["n1"]


@pytest.mark.parametrize("width", [1, 2])
def test_runs_and_repeats_are_counted_as_they_come(width: int) -> None:
    rng, made = random.Random(11), []
    for number in range(300):
        nodes = tuple(rng.sample("abcdef", width))
        made.append(NodeRun(f"s{rng.randrange(60)}", nodes, 1.0, (), number))
    counted = NodeRuns(made)
    effects = {effect.node: effect for effect in counted.effects("maximize")}
    for node in "abcdef":
        elsewhere = {run.setting for run in made if node not in run.nodes}
        here = [run.setting for run in made if node in run.nodes]
        assert effects[node].runs == len(here)
        assert effects[node].repeated == sum(setting in elsewhere for setting in here)
    times, on, last = counted.of(made[0].setting)
    same = [run for run in made if run.setting == made[0].setting]
    assert (times, last) == (len(same), same[-1].nodes)
    assert sum(on.values()) == width * len(same)
