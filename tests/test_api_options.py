"""Every option of the Python API arrives where it is meant for, each with a value of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ridgeline
from ridgeline import api
from ridgeline.campaign.kinds.compare import ComparisonQuestion
from ridgeline.campaign.kinds.search import SearchQuestion
from ridgeline.records.study import DEFAULT_SAMPLER
from ridgeline.serving import api as serving_api
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.settings import EngineSettings
from ridgeline.serving.load.bench import BenchResult
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
    asked = caught(monkeypatch, "assemble_or_resume", lambda: ridgeline.tune(STUDY, tmp_path / "out", trials=7, seed=9))
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
        found = ridgeline.tune(asked, tmp_path / out, **options)
        return [row["set.x"] for row in found.runs if row["stage"] == "search"]

    first = tried("a", seed=5, trials=4)
    assert len(first) == 4, "the budget of the study says 3"
    assert tried("b", seed=5, trials=4) == first and tried("c", seed=6, trials=4) != first


def test_compare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    call = lambda: ridgeline.compare(STUDY, {"x": 3}, {"x": 2}, tmp_path / "out", blocks=5)  # noqa: E731
    _, where, name, question = caught(monkeypatch, "assemble_next_folder", call).args
    assert (where, name) == (tmp_path / "out", "options-compare")
    assert isinstance(question, ComparisonQuestion)
    assert (question.a, question.b, question.blocks) == ({"x": 2}, {"x": 3}, 5)
    against = caught(monkeypatch, "assemble_next_folder", lambda: ridgeline.compare(STUDY, {"x": 3})).args
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
        "nodes": 3, "gpus_per_node": 5, "traffic": "fixed:11:7", "rate_s": 3.5, "concurrency": 17,
        "slos": ["itl_p95_ms=9"], "engine": "vllm", "top": 19, "seed": 23, "requests": 29,
    }  # fmt: skip
    named = [name for name, p in inspect.signature(ridgeline.plan).parameters.items() if p.kind is p.KEYWORD_ONLY]
    assert set(named) <= set(given), "an option that is not tried here"
    asked = caught(monkeypatch, "answer_plan", lambda: ridgeline.plan("llama-8b", "h100", **given), serving_api)
    assert asked.args[:2] == ("llama-8b", "h100")
    assert {name: asked.arguments[name] for name in given} == given


def test_bench_hands_on_every_option(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"concurrency": 3, "requests": 7, "slos": ["ttft_p95_ms=9"], "headers": ["A: b"], "model": "m"}
    call = lambda: ridgeline.bench("http://127.0.0.1:9", **given)  # noqa: E731
    asked = caught(monkeypatch, "plan_from", call, serving_api).args[0]
    assert asked.url == "http://127.0.0.1:9"
    for name, value in given.items():
        assert getattr(asked, name) == (tuple(value) if isinstance(value, list) else value), name
    assert BenchResult is not None


def test_progress_tells_each_run_once_and_none_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told: list[str] = []
    asked = {**STUDY, "confirm": {"top": 0}, "search": {"sampler": "random", "sentinel_every": 0}}
    found = ridgeline.tune(asked, tmp_path / "out", trials=1, progress=told.append)
    assert [line.split(",")[0] for line in told] == [f"run {n}" for n in range(1, len(found.runs) + 1)]
    assert all("rate" in line for line in told)
    more: list[str] = []
    after = found.resume(trials=1, progress=more.append)
    assert [line.split(",")[0] for line in more] == [f"run {n}" for n in range(len(told) + 1, len(after.runs) + 1)]
