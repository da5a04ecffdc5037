"""Every option of the Python API arrives where it is meant for, each with a value of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ridgeline
from ridgeline import api
from ridgeline.campaign import asked
from ridgeline.campaign.kinds.compare import ComparisonQuestion
from ridgeline.campaign.kinds.search import SearchQuestion
from ridgeline.errors import InputError
from ridgeline.records.study import DEFAULT_SAMPLER
from ridgeline.serving import api as serving_api
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.settings import EngineSettings
from ridgeline.serving.load import session
from ridgeline.serving.load.edge import GoodputTerms
from ridgeline.serving.planner import planner
from ridgeline.serving.traffic.requests import Slo
from ridgeline.serving.traffic.traffic import ClosedLoop, OpenLoop
from ridgeline.study.codec import Extension

STUDY = {
    "name": "options",
    "workload": {"kind": "command", "run": "echo rate {x}", "metrics": {"rate": {"regex": "rate (.*)"}}},
    "space": {"x": [1, 2, 3]},
    "baseline": {"x": 1},
    "goal": {"maximize": "rate"},
    "budget": {"trials": 3},
    "job": {"limit": 60},
}


class Stopped(Exception):
    """Ends a call at the place where its arguments were to arrive."""


def caught(
    monkeypatch: pytest.MonkeyPatch, name: str, call: Callable[[], object], of: Any = api
) -> inspect.BoundArguments:
    """What `of.name` was called with."""
    seen = list[inspect.BoundArguments]()
    signature = inspect.signature(getattr(of, name))

    def stop(*args: Any, **named: Any) -> None:
        seen.append(signature.bind(*args, **named))
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(of, name, stop)
        with pytest.raises(Stopped):
            call()
    return seen[0]


def test_tune(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    asked = caught(
        monkeypatch, "assemble_or_resume", lambda: ridgeline.tune(STUDY, out=tmp_path / "out", trials=7, seed=9)
    )
    found, path, name, question = asked.args
    assert (path, name, question) == (tmp_path / "out", "options", SearchQuestion(7, 9, DEFAULT_SAMPLER))
    assert found.study.budget.trials == 3 and found.study.baseline == {"x": 1}
    plain = caught(monkeypatch, "assemble_or_resume", lambda: ridgeline.tune(STUDY))
    assert plain.args[1] == Path("studies/options") and plain.args[3] == SearchQuestion(None, None, DEFAULT_SAMPLER)


def test_tune_runs_the_question_that_the_folder_gave_back_and_tells_progress(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = SimpleNamespace(path=tmp_path / "made")
    assembled: list[dict[str, Any]] = []
    monkeypatch.setattr(api, "assemble_or_resume", lambda *args, **named: (assembled.append(named), (folder, None))[1])
    monkeypatch.setattr(api._Given, "settle", lambda self, folder: None)
    asked = caught(monkeypatch, "_run", lambda: ridgeline.tune(STUDY, progress=print))
    assert asked.arguments == {"folder": folder, "question": None, "progress": print}
    assert assembled == [{"whole": True}]


def test_the_seed_of_a_search_is_that_of_its_sampler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By what is tried: the same seed the same settings, another one others."""
    monkeypatch.chdir(tmp_path)
    asked = {**STUDY, "space": {"x": {"from": 1, "to": 90}}, "search": {"sampler": "random"}, "confirm": {"top": 0}}

    def tried(out: str, **options: Any) -> list[Any]:
        found = ridgeline.tune(asked, out=tmp_path / out, **options)
        return [row["set.x"] for row in found.runs if row["stage"] == "search"]

    first = tried("a", seed=5, trials=4)
    assert len(first) == 4, "the budget of the study says 3"
    assert tried("b", seed=5, trials=4) == first and tried("c", seed=6, trials=4) != first


def test_compare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    call = lambda: ridgeline.compare(STUDY, {"x": 3}, {"x": 2}, tmp_path / "out", blocks=5)  # noqa: E731
    _, where, name, question = caught(monkeypatch, "assemble_next_folder", call, asked).args
    assert (where, name) == (tmp_path / "out", "options-compare")
    assert isinstance(question, ComparisonQuestion)
    assert (question.a, question.b, question.blocks) == ({"x": 2}, {"x": 3}, 5)
    against = caught(monkeypatch, "assemble_next_folder", lambda: ridgeline.compare(STUDY, {"x": 3}), asked).args
    assert against[1] is None and (against[3].a, against[3].b) == ({"x": 1}, {"x": 3})


def test_resume(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(api, "read_status", lambda folder: None)
    monkeypatch.setattr(api.StudyFolder, "open", lambda path: ("opened", path))
    result = api.StudyResult(tmp_path)

    def extension(**options: Any) -> Any:
        return caught(monkeypatch, "_run", lambda: result.resume(**options)).arguments

    asked = extension(blocks=3, wall="20m", node_hours=1.5, progress=print)
    assert asked["folder"] == ("opened", tmp_path) and asked["question"] is None and asked["progress"] is print
    assert asked["extension"] == Extension(blocks=3, wall_s=1200.0, node_hours=1.5)
    assert extension(trials=4)["extension"] == Extension(trials=4)
    assert extension()["extension"] is None
    for wrong in ({"wall": "soon"}, {"trials": 0}, {"trials": 1, "blocks": 1}):
        with pytest.raises(InputError):
            result.resume(**wrong)


def test_simulate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(serving_api, "read_calibration", lambda path: ("read", path))
    layout, settings = Layout(tp=2, gpus_per_node=2), EngineSettings(mem_fraction=0.77)

    def simulated(**options: Any) -> tuple[Any, ...]:
        call = lambda: ridgeline.simulate("llama-8b", "h100", "fixed:11:7", **options)  # noqa: E731
        return caught(monkeypatch, "simulate_deployment", call, serving_api).args

    deployment, traffic, fitted, slos = simulated(
        layout=layout, settings=settings, engine="vllm:0.17.0", requests=13, rate_s=3.0, slos=["ttft_p95_ms=9"],
        calibration=tmp_path / "fit.json", seed=21, dtype="fp8",
    )  # fmt: skip
    assert (deployment.model.name, deployment.cluster.node.gpu.name, deployment.layout) == ("llama-8b", "h100", layout)
    assert (deployment.settings.engine, deployment.settings.version) == ("vllm", (0, 17, 0))
    assert deployment.settings.mem_fraction == 0.77
    assert (
        (traffic.requests, traffic.seed) == (13, 21)
        and isinstance(traffic.pace, OpenLoop)
        and traffic.pace.rate_s == 3.0
    )
    assert fitted == ("read", tmp_path / "fit.json")
    assert [*slos] == [Slo.parse("ttft_p95_ms=9")]
    closed = simulated(concurrency=5)[1]
    assert isinstance(closed.pace, ClosedLoop) and closed.pace.concurrency == 5 and closed.seed == 0


def test_plan_hands_on_every_option_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "nodes": 3, "gpus_per_node": 5, "traffic": "fixed:11:7", "rate_s": 3.5, "seed": 23, "requests": 29,
        "slos": ["itl_p95_ms=9"], "engine": "vllm",
    }  # fmt: skip
    call = lambda: ridgeline.plan("llama-8b", "h100", **given)  # noqa: E731
    question, rate_s = caught(monkeypatch, "schemes_for", call, planner).args
    model, cluster, settings = question.model, question.cluster, question.settings
    assert (model.name, cluster.node.gpu.name, cluster.nodes) == ("llama-8b", "h100", 3)
    assert cluster.node.gpus == 5 and settings.engine == "vllm" and question.slos == (Slo.parse("itl_p95_ms=9"),)
    sent = caught(monkeypatch, "parse_traffic", call, planner).kwargs
    assert (sent["requests"], sent["seed"], sent["rate_s"], rate_s) == (29, 23, 3.5, 3.5)


def test_what_is_declared_is_what_can_be_given() -> None:
    for function, request in (
        (ridgeline.bench, session.BenchOptions),
        (ridgeline.plan, planner.PlanRequest),
        (ridgeline.simulate, serving_api.SimulationRequest),
        (ridgeline.find_goodput, serving_api.GoodputRequest),
    ):
        assert list(inspect.signature(function).parameters) == [each.name for each in fields(request)]
        assert function.__doc__
    with pytest.raises(TypeError, match="concurency"):
        ridgeline.bench("http://127.0.0.1:9", concurency=3)


def test_find_goodput_searches_on_its_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"slos": ["ttft_p95_ms=9"], "hold_s": 7.0, "within_s": 70.0, "start": 3.0, "seed": 5}
    call = lambda: ridgeline.find_goodput("http://127.0.0.1:9", **given)  # noqa: E731
    found = caught(monkeypatch, "run_session", call, serving_api)
    assert found.kwargs["goodput"] == GoodputTerms(7.0, 70.0, 3.0)
    assert [str(slo) for slo in found.args[0].slos] == [str(Slo.parse("ttft_p95_ms=9"))]


def test_bench_hands_on_every_option(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"concurrency": 3, "requests": 7, "slos": ["ttft_p95_ms=9"], "headers": ["A: b"], "model": "m"}
    call = lambda: ridgeline.bench("http://127.0.0.1:9", **given)  # noqa: E731
    asked = caught(monkeypatch, "plan_from", call, serving_api).args[0]
    assert asked.url == "http://127.0.0.1:9"
    for name, value in given.items():
        assert getattr(asked, name) == value, name


def test_progress_tells_each_run_once_and_none_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told: list[str] = []
    asked = {**STUDY, "confirm": {"top": 0}, "search": {"sampler": "random", "sentinel_every": 0}}
    found = ridgeline.tune(asked, out=tmp_path / "out", trials=1, progress=told.append)
    assert [line.split(",")[0] for line in told] == [f"run {n}" for n in range(1, len(found.runs) + 1)]
    assert all("rate" in line for line in told)
    more: list[str] = []
    after = found.resume(trials=1, progress=more.append)
    assert [line.split(",")[0] for line in more] == [f"run {n}" for n in range(len(told) + 1, len(after.runs) + 1)]


WORDS = {
    "name": "words",
    "workload": {
        "kind": "command",
        "run": "printf '%s\\n' {mode} > mode; echo rate {x}",
        "metrics": {"rate": {"regex": "rate (.*)"}},
    },
    "space": {"mode": ["a", "b,c"], "x": [1, 2, 4]},
    "baseline": {"mode": "a", "x": 1},
    "goal": {"maximize": "rate"},
    "budget": {"trials": 2},
}


def test_a_value_with_a_comma_is_one_value(tmp_path: Path) -> None:
    found = ridgeline.compare(WORDS, {"mode": "b,c", "x": 2}, out=tmp_path / "out")
    assert found.best == {"mode": "b,c", "x": 2} and found.gain is not None and found.gain.ratio == pytest.approx(2)


def test_every_question_of_the_command_line_can_be_asked(tmp_path: Path) -> None:
    study = {**STUDY, "space": {"x": [1, 2, 3, 4]}}
    checked = ridgeline.check(study)
    assert (checked.space.legal, checked.study.name) == (4, "options") and checked.cost.runs is not None
    edge = ridgeline.edge(study, "x", out=tmp_path / "edge", repeats=2, margin=0.25)
    assert edge.answer.kind == "edge" and edge.best == {"x": 3}, "a quarter below the largest that passes"
    scaled = ridgeline.scale(study, "x", out=tmp_path / "scale", repeats=3)
    assert scaled.answer.kind == "scale" and {row["set.x"] for row in scaled.runs} == {1, 2, 3, 4}
    steps = ridgeline.steps(study, {"x": 4}, tmp_path / "steps", blocks=3)
    assert steps.answer.kind == "steps" and steps.confirmed and steps.best == {"x": 4}
    slower = {**study, "goal": {"minimize": "rate"}}
    cut = ridgeline.bisect(slower, "x", out=tmp_path / "bisect", ends=(2, 4), slower=0.2)
    assert cut.answer.kind == "bisect" and {row["set.x"] for row in cut.runs} <= {2, 3, 4} and bool(cut)
    assert ridgeline.verify(tmp_path / "steps").mismatches == []
    with pytest.raises(InputError, match="no setting"):
        ridgeline.steps(study)


def test_a_gate_measures_its_reference_then_judges_by_it(tmp_path: Path) -> None:
    reference = tmp_path / "speed.json"
    first = ridgeline.gate(STUDY, reference, update=True, at={"x": 2}, runs=12, out=tmp_path / "first")
    assert first.answer.conclusion == "measured" and reference.is_file()
    same = ridgeline.gate(STUDY, reference, at={"x": 2}, out=tmp_path / "same")
    assert same.answer.conclusion == "not-slower" and bool(same)
    worse = ridgeline.gate(STUDY, at={"x": 1}, old={"x": 3}, out=tmp_path / "worse")
    assert worse.answer.conclusion == "slower" and not worse


def test_a_log_is_explained(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text("sh: 1: nosuchprogram: not found\n")
    found = ridgeline.diagnose_file(log)
    assert found.kinds and any("nosuchprogram" in str(finding) for finding in found.findings)
