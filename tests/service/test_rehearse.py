"""Rehearsals: real processes on this machine, twin servers behind a router, one run for each policy and case."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from ridgeline.errors import InputError, SiteError
from ridgeline.serving.load.bench import BenchPlan, BenchResult
from ridgeline.serving.load.fidelity import Fidelity
from ridgeline.serving.load.session import BenchOptions, plan_from
from ridgeline.serving.service import rehearsal
from ridgeline.serving.service.admission import AdmissionLimits
from ridgeline.serving.service.file import load_service
from ridgeline.serving.service.keep import canary, keeper, watch
from ridgeline.serving.service.members import members_of
from ridgeline.serving.service.rehearsal import (
    PolicyChoice,
    Rehearsal,
    Rehearsed,
    RehearsedLoad,
    _as_twins,
    _challenger,
    _counted,
    _drain_s,
    _imbalance,
    _in_pairs,
    _kept_limits,
    _limited,
    _rehearsal,
    _send,
    _skewed_trace,
    known_policies,
    rehearse,
    sustainable,
)
from ridgeline.serving.service.service import RouterChoice, server_of
from ridgeline.serving.traffic.requests import RequestRecord, Slo, summarise
from ridgeline.serving.twin.server.metrics import LATE_TOKENS, MADE_TOKENS
from ridgeline.serving.verbs.rehearse import _rehearsals_text, _router_text
from ridgeline.serving.verbs.rehearse import rehearse as rehearse_verb
from ridgeline.stats.compare import Verdict
from ridgeline.study.journal import read_events

from .test_operate import file as file  # a service of twins behind a stand-in router
from .test_operate import processes_of

POLICIES = [("poor", 6.0, 50.0), ("slow", 9.9, 400.0), ("soon", 9.8, 100.0), ("late", 10.0, 300.0)]
BENCHED = plan_from(BenchOptions(url="http://127.0.0.1:9", traffic="fixed:10:5", rate_s=1.0, duration_s=1.0))
LIMITS = AdmissionLimits(16, 3, 1.0, 18, "KV pool", 10.0, 0.5)


def run(policy: str, goodput_s: float, ttft_ms: float, case: str = "traffic") -> Rehearsal:
    return Rehearsal(policy, case, 10.0, goodput_s, ttft_ms, 10.0, 0, 0, 0, 1.0, None, "")


def test_only_a_policy_that_looks_better_than_the_files_is_compared_with_it() -> None:
    first = [run(name, goodput, ttft, "skewed") for name, goodput, ttft in POLICIES]
    assert _challenger(first, "poor") == "soon", "of those that keep as much, the one whose first tokens come soonest"
    assert _challenger(first, "late") == "soon"
    assert _challenger(first, "soon") == "", "the others are much later for hardly more"
    assert _challenger([run("own", 0.0, 100.0), run("other", 9.0, 200.0)], "own") == "other"
    assert _challenger(first[:1], "poor") == ""


NOISE = 0.04  # what two runs of the same thing differ by on busy cores


def rehearsed_with(
    monkeypatch: pytest.MonkeyPatch, file: Path, seed: int, goodput: dict[str, float], ttft: dict[str, float]
) -> None:
    """`service rehearse` of runs that take no time; policies not named are like the others."""
    rng = random.Random(seed)

    def at_once(stage: object, twins: object, router: RouterChoice, case: str, load: object, *_: object) -> Rehearsal:
        policy = router.policy
        return run(
            policy,
            10.0 * goodput.get(policy, 1.0) * rng.lognormvariate(0, NOISE),
            100.0 * ttft.get(policy, 1.0) * rng.lognormvariate(0, 4 * NOISE),
            case,
        )

    monkeypatch.setattr("ridgeline.serving.service.rehearsal._run", at_once)
    monkeypatch.setattr("ridgeline.serving.service.admission.admission_of", lambda *_: LIMITS)
    before = file.read_text()
    rehearse_verb(
        file=file, seed=7, traffic="fixed:50:4", rate=10.0, seconds=8.0, shared_prefix=0, policy=None, speed=1.0
    )
    assert file.read_text() == before, "the file is its owner's"


def written_by(said: str, file: Path) -> dict[str, object]:
    """What the end of the output wants in the file, under `router`."""
    told: dict[str, dict[str, object]] = yaml.safe_load(said.split(f"write into {file}:\n")[1])
    return told["router"]


@pytest.mark.parametrize("seed", range(20))
def test_policies_that_are_alike_leave_the_files_own(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    before = load_service(file).router
    assert before is not None
    rehearsed_with(monkeypatch, file, seed, {}, {})
    said = capsys.readouterr().out
    assert f"use {before.policy or 'cache_aware'}; " in said
    assert "policy" not in written_by(said, file)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("better", [({"power_of_two": 1.3}, {}), ({}, {"power_of_two": 0.4})], ids=["more", "sooner"])
def test_a_policy_that_is_clearly_better_is_to_be_written(
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    seed: int,
    better: tuple[dict[str, float], dict[str, float]],
) -> None:
    rehearsed_with(monkeypatch, file, seed, *better)
    said = capsys.readouterr().out
    assert written_by(said, file)["policy"] == "power_of_two"
    assert re.search(r"^ *[46] pairs of runs +goodput/s", said, re.MULTILINE), said
    assert re.search(r"^ *power_of_two +\d+\.\d+ \(\d+\.\d+ to \d+\.\d+\)", said, re.MULTILINE), said
    assert re.search(r"power_of_two, (goodput|ttft p95): .*\(99%: .*; [46] blocks\)", said), said


def pairs_of(goodput: tuple[float, float], ttft: tuple[float, float], noise: float, seed: int = 7) -> PolicyChoice:
    """What pairs of runs decide that take no time: own and other, with noise of so much in every figure."""
    rng = random.Random(seed)

    def one(pair: int, which: int) -> Rehearsal:
        first_ms = ttft[which] * rng.lognormvariate(0, noise)
        return run("x", goodput[which] * rng.lognormvariate(0, noise), first_ms, "pairs")

    return _in_pairs("own", "other", one, seed)


def test_a_sure_gain_that_is_worth_nothing_changes_nothing() -> None:
    choice = pairs_of((10.0, 10.1), (100.0, 100.0), 1e-6)
    assert choice.goodput is not None
    assert choice.goodput.verdict is Verdict.BETTER
    assert choice.policy == "own"


def test_no_more_pairs_are_run_than_it_takes() -> None:
    def ran(choice: PolicyChoice) -> tuple[str, int]:
        assert choice.goodput is not None
        return choice.policy, choice.goodput.blocks

    assert ran(pairs_of((10.0, 9.0), (100.0, 130.0), 0.001)) == ("own", 3), "no gain that would matter"
    assert ran(pairs_of((10.0, 14.0), (100.0, 100.0), 0.001)) == ("other", 4), "shown"
    assert ran(pairs_of((10.0, 13.0), (100.0, 100.0), 0.2, seed=1)) == ("own", 6), "it may be, and is not shown"


def test_policies_that_are_alike_are_told_apart_in_one_rehearsal_of_a_hundred_at_most() -> None:
    changed = sum(pairs_of((10.0, 10.0), (100.0, 100.0), 0.3, seed).changed for seed in range(300))
    assert changed <= 3


def test_each_policy_begins_as_many_pairs_and_both_get_the_same_requests() -> None:
    order: list[tuple[int, int]] = []

    def seen(pair: int, which: int) -> Rehearsal:
        order.append((pair, which))
        return run("x", 10.0 + which * (pair % 2 + 1), 100.0, "pairs")

    _in_pairs("own", "other", seen, 7)
    begun = [which for (pair, which), (before, _) in zip(order, [(-1, 0), *order], strict=False) if pair != before]
    assert sorted(begun) == [0, 0, 0, 1, 1, 1]


def test_an_answer_that_was_still_coming_is_judged_by_what_came() -> None:
    slos = [Slo.parse("ttft_p95_ms=500"), Slo.parse("tpot_p95_ms=50")]
    cut = RequestRecord(0, 0.0, 0.0, 0.4, 2.4, 10, 101, status="unfinished")
    assert _kept_limits(cut, slos)
    assert not _kept_limits(replace(cut, end_s=9.4), slos), "too slow so far"
    assert not _kept_limits(replace(cut, first_token_s=None), []), "nothing came"
    assert not _kept_limits(replace(cut, status="http-503"), slos)
    assert _drain_s(slos) == 1.5
    assert _drain_s([Slo.parse("e2e_p95_ms=20000")]) == 24.0


GOOD = RequestRecord(0, 0.0, 0.0, 0.1, 0.5, 10, 5)


def judged(
    records: list[RequestRecord],
    speed: float = 1.0,
    lost: tuple[float, ...] = (),
    slos: tuple[Slo, ...] = (),
    late: float = 0.0,
) -> Rehearsal:
    """What a run of ten seconds with these requests comes to."""
    load = RehearsedLoad("fixed:10:5", rate_s=2.0, seconds=10.0, speed=speed)
    trusted = Fidelity((), None, 0.0, 0.0, 0.0, 1.0, 0.0, 0.1, 1.0)
    result = BenchResult(BENCHED, "m", summarise(records, slos), trusted, records)
    counted = {name: {MADE_TOKENS: 1000.0, LATE_TOKENS: n} for name, n in (("server-0", 0.0), ("server-1", late))}
    return _rehearsal("random", "overload", result, load, counted, lost)


def test_figures_are_those_of_real_time_however_fast_the_twins_run() -> None:
    """At speed 4, ten seconds here are forty there: 20 good answers are half an answer a second."""
    real, quick = judged([GOOD] * 20), judged([GOOD] * 20, speed=4.0)
    assert (real.goodput_s, quick.goodput_s) == (2.0, 0.5)
    assert real.ttft_p95_ms == pytest.approx(100.0)
    assert quick.ttft_p95_ms == pytest.approx(400.0)
    assert real.offered_s == quick.offered_s == 2.0


def test_the_limits_of_the_service_are_those_of_real_time_too(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """2 s of the user's time are half a second of twins that run four times as fast, and so many more requests come."""
    sent: list[BenchPlan] = []
    monkeypatch.setattr(rehearsal, "bench", sent.append)
    service = replace(load_service(file), slo={"ttft_p95_ms": 2000.0, "e2e_p95_ms": 40000.0})
    for speed in (1.0, 4.0):
        _send(service, "http://127.0.0.1:9", RehearsedLoad("fixed:10:5", 3.0, 6.0, speed=speed))
    assert [[slo.limit_ms for slo in plan.slos] for plan in sent] == [[2000.0, 40000.0], [500.0, 10000.0]]
    assert [plan.traffic.pace.rate_s for plan in sent] == [3.0, 12.0]  # type: ignore[union-attr]
    assert [plan.duration_s for plan in sent] == [6.0, 6.0]
    assert [plan.give_up_s for plan in sent] == [6.0 + 48.0, 6.0 + 12.0], "until it is clear who is late"
    _send(service, "http://127.0.0.1:9", RehearsedLoad("fixed:10:5", 3.0, 6.0, speed=4.0), at_least_s=30.0)
    assert sent[-1].give_up_s == 36.0


def test_only_who_is_told_that_it_is_full_was_refused() -> None:
    """A 503 of a server that is gone is a lost request, whatever the router's limits are."""
    failed = [
        replace(GOOD, status="http-429", first_token_s=None),
        replace(GOOD, status="http-408", first_token_s=None),
        replace(GOOD, status="http-503", error="no permit: admission queue", first_token_s=None),
        replace(GOOD, status="http-503", error="The request queue is full.", first_token_s=None),
        replace(GOOD, status="http-503", error="no available workers", first_token_s=None),
        replace(GOOD, status="http-500", error="queue is full of bugs", first_token_s=None),
        replace(GOOD, status="broken"),
    ]
    found = judged([GOOD, *failed])
    assert (found.refused, found.lost, found.cut) == (4, 2, 1)
    assert found.goodput_s == pytest.approx(0.1)


def test_how_long_requests_failed_after_a_loss() -> None:
    failed = [replace(GOOD, status="broken", end_s=end_s) for end_s in (4.5, 7.0, 6.0)]
    assert judged([GOOD, *failed], lost=(4.0,)).recovery_s == pytest.approx(3.0)
    assert judged([GOOD], lost=(4.0,)).recovery_s == 0.0, "nobody noticed"
    assert judged([GOOD, *failed]).recovery_s is None, "nothing was lost"


def test_an_answer_that_never_began_after_a_loss_is_lost() -> None:
    waiting = replace(GOOD, status="unfinished", first_token_s=None)
    coming = replace(GOOD, status="unfinished")
    assert judged([waiting, coming]).lost == 0, "the run was over first"
    after = judged([waiting, coming], lost=(1.0,))
    assert (after.lost, after.cut) == (1, 0)


def test_a_run_on_a_host_that_was_too_busy_to_be_the_servers_is_void() -> None:
    """The same overload came to 1.8 or 36 requests/s, by who else used the cores: that is no figure of the service."""
    assert judged([GOOD] * 20, late=50.0).void == "", "a few late tokens are no harm"
    void = judged([GOOD] * 20, late=51.0)
    assert void.void == "this machine was too busy to be server-1: 5% of its tokens came late; lower --speed"
    assert [void.as_json()[name] for name in ("goodput_s", "ttft_p95_ms", "lost", "imbalance")] == [None] * 4
    assert (void.as_json()["policy"], void.as_json()["void"]) == ("random", void.void)
    own = run("random", 9.0, 100.0)
    said = _rehearsals_text(Rehearsed((own, void), PolicyChoice("random", "random")), LIMITS, 10.0, 1.0)
    assert re.search(r"^  random +overload +void +2.00 +- +- +- +- +- +-$", said, re.MULTILINE), said
    assert f"random, overload: void: {void.void}" in said
    assert "kept the SLO" not in said and "offered" not in said


def test_void_runs_choose_no_policy() -> None:
    worse, better = run("own", 5.0, 300.0), run("other", 50.0, 10.0)
    assert _challenger([worse, better], "own") == "other"
    assert _challenger([worse, replace(better, void="busy")], "own") == ""
    assert _challenger([replace(worse, void="busy"), better], "own") == "", "nobody knows what the file's own can do"
    ran: list[int] = []

    def sometimes(pair: int, which: int) -> Rehearsal:
        ran.append(pair)
        void = "busy" if pair in (0, 3) and which else ""
        return replace(better if which else worse, void=void, goodput_s=(50.0 if which else 5.0) + pair / 10)

    found = _in_pairs("own", "other", sometimes, 7)
    assert found.goodput is not None
    assert (max(ran), found.goodput.blocks, found.policy) == (5, 4, "other"), "six pairs, of which four count"
    never = _in_pairs("own", "other", lambda pair, which: replace(better, void="busy"), 7)
    assert never.policy == "own"


@pytest.mark.parametrize("seed", [7, 8])
def test_the_seed_draws_the_requests(file: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    sent: list[RehearsedLoad] = []

    def at_once(stage: object, twins: object, router: RouterChoice, case: str, load: object, *_: object) -> Rehearsal:
        assert isinstance(load, RehearsedLoad)
        sent.append(load)
        return run(router.policy, 10.0, 100.0, case)

    monkeypatch.setattr("ridgeline.serving.service.rehearsal._run", at_once)
    monkeypatch.setattr("ridgeline.serving.service.admission.admission_of", lambda *_: LIMITS)
    rehearse_verb(
        file=file, traffic="sharegpt", rate=10.0, seconds=8.0, shared_prefix=0, policy=["random"], seed=seed, speed=1.0
    )
    assert {load.seed for load in sent} == {seed}
    assert (_skewed_trace(sent[0]) == _skewed_trace(replace(sent[0], seed=7))) == (seed == 7)


def test_a_server_that_was_started_again_counts_from_zero() -> None:
    prompts = server_of("twin").metrics.prompt_tokens

    def imbalance(before: dict[str, float], after: dict[str, float]) -> float:
        return _imbalance(_counted(*({n: {prompts: v} for n, v in row.items()} for row in (before, after))))

    assert imbalance({"a": 1000.0, "b": 1000.0}, {"a": 1300.0, "b": 1100.0}) == pytest.approx(1.5)
    assert imbalance({"a": 1000.0, "b": 1000.0}, {"a": 1100.0, "b": 300.0}) == pytest.approx(1.5), "b is new"
    assert imbalance({"a": 1000.0}, {"a": 1300.0, "decode-0": 50.0}) == 1.0, "those that decode get no prompts"
    assert imbalance({}, {"a": 5.0}) == 1.0
    assert imbalance({"a": 7.0}, {"a": 7.0}) == 1.0, "nothing was sent"


def test_a_router_that_cannot_queue_is_told_to_refuse_at_once() -> None:
    queues = _limited(RouterChoice(kind="smg"), LIMITS)
    assert (queues.most_running, queues.most_waiting, queues.longest_wait_s) == (16, 3, 1.0)
    refuses = _limited(RouterChoice(kind="sglang-router"), LIMITS)
    assert (refuses.most_running, refuses.most_waiting, refuses.longest_wait_s) == (16, 0, None)


def test_the_files_own_policy_is_tried_first(file: Path) -> None:
    service = load_service(file)
    assert service.router is not None
    assert known_policies(service) == ["cache_aware", "random", "round_robin", "power_of_two"], "the router's usual one"
    own = replace(service, router=service.router.model_copy(update={"policy": "power_of_two"}))
    assert known_policies(own)[0] == "power_of_two"
    with pytest.raises(InputError, match="no router"):
        known_policies(replace(service, router=None))


def test_servers_of_a_cluster_become_twins_of_the_same_settings(tmp_path: Path) -> None:
    path = tmp_path / "r1.yaml"
    path.write_text(
        "version: 1\nmodel: /models/deepseek-r1\nengine: {kind: sglang, gpu: h100}\n"
        "units: [{nodes: 2, gpus: 8, replicas: 2, settings: {tp: 16, load_format: dummy}}]\n"
        "router: {policy: cache_aware}\nsite: {name: c, batch: slurm, nodes: 8, launcher: srun}\n"
    )
    twins = _as_twins(load_service(path), speed=4.0)
    assert (twins.engine, twins.model, twins.site.batch) == ("twin", "deepseek-r1", "local")
    assert twins.units[0].settings == {"tp": 16}, "what the twin does not know is left out"
    assert "--speed 4" in members_of(twins)[0].line
    assert twins.router is not None
    assert twins.router.port != 8000, "a router may be serving there"
    with pytest.raises(InputError, match="name the GPU"):
        _as_twins(replace(twins, gpu=""))


def test_the_ports_of_split_twins_are_their_own(tmp_path: Path) -> None:
    path = tmp_path / "pd.yaml"
    path.write_text(
        "version: 1\nmodel: llama-8b\nengine: {kind: sglang, gpu: h100}\nrouter: {}\n"
        "units: [{role: prefill, replicas: 2, settings: {tp: 1}}, {role: decode, settings: {tp: 1}}]\n"
    )
    prefill, second, *_ = members_of(_as_twins(load_service(path)))
    ports = {word for member in (prefill, second) for word in member.argv if word.isdigit()}
    assert "8998" not in ports
    assert "bucket" in known_policies(load_service(path))


def test_a_skewed_trace_shares_prefixes_unevenly_and_keeps_the_times() -> None:
    load = RehearsedLoad("fixed:100:10", rate_s=20.0, seconds=20.0)
    rows = [json.loads(line) for line in _skewed_trace(load).splitlines()]
    assert len(rows) == 400
    assert rows[-1]["at_s"] == pytest.approx(20.0, rel=0.1)
    counts = sorted((sum(row["hash_ids"] == [2 * n, 2 * n + 1] for row in rows) for n in range(16)), reverse=True)
    assert counts[0] > 4 * counts[8] > 0
    assert {row["input_length"] for row in rows} == {1124, 1524}
    quick = [json.loads(line) for line in _skewed_trace(replace(load, speed=2.0)).splitlines()]
    assert len(quick) == 800
    assert quick[-1]["at_s"] == pytest.approx(20.0, rel=0.1)
    mixed = [json.loads(line) for line in _skewed_trace(replace(load, plain=0.5)).splitlines()]
    assert sum(row["input_length"] == 100 and not row["hash_ids"] for row in mixed) == pytest.approx(200, rel=0.2)
    assert _skewed_trace(replace(load, seed=8)) != _skewed_trace(load)


def test_no_more_is_sent_than_this_machine_can_pretend_to_serve() -> None:
    small = RehearsedLoad("fixed:100:10", 20.0, 10.0)
    assert sustainable(small) == small
    assert sustainable(replace(small, rate_s=9999.0)).rate_s == pytest.approx(800.0)
    assert sustainable(replace(small, rate_s=9999.0, speed=4.0)).rate_s == pytest.approx(200.0)


def test_every_policy_is_loaded_and_then_servers_are_lost(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The servers are started once, and again only when they were lost."""
    monkeypatch.setattr("ridgeline.serving.service.rehearsal.HUNG_S", 5.0)
    monkeypatch.setattr(watch, "HUNG_AFTER_S", 4.0)
    monkeypatch.setattr(canary, "CONFIRM_S", 0.5)
    monkeypatch.setattr(keeper, "POLL_EVERY_S", 0.2)
    load = RehearsedLoad("fixed:50:4", rate_s=10.0, seconds=1.5)
    rehearsed = rehearse(load_service(file), tmp_path / "runs", load, ["round_robin"], lambda line: None, LIMITS)
    done = rehearsed.runs
    assert [one.case for one in done] == ["skewed", "overload", "hung", "killed"]
    assert done[0].goodput_s > 0
    assert (done[0].lost, done[0].cut) == (0, 0)
    assert done[1].offered_s == pytest.approx(15.0)
    assert done[3].lost > 0, "this stand-in does not poll whether its servers live; a router does"
    assert done[3].recovery_s is not None
    starts = [e["member"] for e in read_events(tmp_path / "runs" / "journal.jsonl") if e["event"] == "planned"]
    assert starts.count("server-1") == 1, "the others are lost, this one stays"
    assert starts.count("router") == 4, "for the policy, with limits, without, and after a server was lost"
    assert processes_of(tmp_path / "runs") == []
    trusted = tuple(replace(one, void="") for one in done)  # however busy this machine was
    text = _rehearsals_text(replace(rehearsed, runs=trusted), LIMITS, 20.0, 1.0)
    assert "use round_robin; most_running 16: 18 at once is the edge (KV pool)" in text
    assert "this machine can sustain 10 of 20 requests/s" in text
    assert "a server hung, with keep watching: " in text


def test_a_hung_server_that_keep_has_not_found_in_time_does_not_hold_up_the_next_run(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ridgeline.serving.service.rehearsal.HUNG_S", 1.5)
    monkeypatch.setattr(watch, "HUNG_AFTER_S", 10_000.0)
    load = RehearsedLoad("fixed:50:4", rate_s=10.0, seconds=1.5)
    rehearsed = rehearse(load_service(file), tmp_path / "runs", load, ["round_robin"], lambda line: None)
    assert [one.case for one in rehearsed.runs] == ["skewed", "hung", "killed"]
    starts = [e["member"] for e in read_events(tmp_path / "runs" / "journal.jsonl") if e["event"] == "planned"]
    assert starts.count("server-0") == 2, "after the run in which it hung"
    assert processes_of(tmp_path / "runs") == []


def test_a_policy_with_which_the_router_does_not_start_is_left_out(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_or_not(stage: object, twins: object, router: RouterChoice, case: str, *_: object) -> Rehearsal:
        if router.policy == "bucket":
            raise SiteError("router ended before it was ready: invalid choice: 'bucket'")
        return run(router.policy, 10.0, 100.0, case)

    monkeypatch.setattr("ridgeline.serving.service.rehearsal._run", run_or_not)
    load, said = RehearsedLoad("fixed:50:4", 10.0, 1.0), list[str]()
    done = rehearse(load_service(file), tmp_path, load, ["bucket", "random"], said.append)
    assert {one.policy for one in done.runs} == {"random"}
    assert any(line.startswith("bucket: left out: router ended before it was ready") for line in said)
    with pytest.raises(SiteError, match="none of these policies"):
        rehearse(load_service(file), tmp_path, load, ["bucket"], said.append)


def test_what_to_write_into_the_file_is_printed_and_can_be_read_back(file: Path) -> None:
    before = file.read_text()
    service = load_service(file)
    for kind, waits in (("smg", (16, 3, 1.0)), ("sglang-router", (16, 0, None))):
        assert service.router is not None
        asked = replace(service, router=service.router.model_copy(update={"kind": kind}))
        told = yaml.safe_load(_router_text(asked, PolicyChoice("random", "power_of_two"), LIMITS))
        written = yaml.safe_load(before)
        written["router"] = {**written["router"], "kind": kind, **told["router"]}
        file.write_text(yaml.safe_dump(written))
        router = load_service(file).router
        assert router is not None
        assert router.policy == "power_of_two"
        assert (router.most_running, router.most_waiting, router.longest_wait_s) == waits
    kept = yaml.safe_load(_router_text(service, PolicyChoice("random", "random"), LIMITS))
    assert "policy" not in kept["router"], "the file's own is not shown to be worse"


def test_limits_without_a_wait_are_those_that_a_file_can_hold() -> None:
    """Where the servers are late by themselves nothing is left to wait: a router waits for a second at least."""
    limited = _limited(RouterChoice(kind="smg"), replace(LIMITS, longest_wait_s=0.0))
    assert limited.longest_wait_s == 1.0
    assert RouterChoice.model_validate_json(limited.model_dump_json(by_alias=True)) == limited
