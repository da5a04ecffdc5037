"""Printed commands start with caps that their release accepts and that mean what was simulated, in every role."""

from __future__ import annotations

import shlex
from dataclasses import replace
from functools import lru_cache

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.memory import plan_memory
from ridgeline.serving.engines.settings import EngineSettings
from ridgeline.serving.hardware.cluster import make_cluster
from ridgeline.serving.model.config import load_model
from ridgeline.serving.planner.candidates import PlanQuestion, Unit, make_unit, one_engine_layouts
from ridgeline.serving.planner.commands import written_for
from ridgeline.serving.planner.planner import answer_plan
from ridgeline.serving.planner.scheme import Pair, Scheme
from ridgeline.serving.service.from_results import commands_for, write_plan
from ridgeline.serving.traffic.requests import Slo
from ridgeline.serving.twin.calibration import Calibration
from ridgeline.serving.twin.simulate import build
from ridgeline.serving.verbs.plan import plan_text
from tests.engines.server_args import RELEASES, rank_limit

NEWEST = (0, 5)  # of its line
MODELS = {"deepseek-r1": ("h200", 8), "deepseek-v2-lite": ("h100", 4), "llama-8b": ("h100", 4)}


@lru_cache(maxsize=64)
def question(model: str, release: tuple[int, ...], itl_ms: int) -> PlanQuestion:
    gpu, nodes = MODELS[model]
    limits = (Slo.parse(f"itl_p95_ms={itl_ms}"),)
    known = EngineSettings(version=release)
    return PlanQuestion(load_model(model), make_cluster(gpu, nodes, 8), 1000, 200, limits, known, Calibration())


@st.composite
def schemes(draw: st.DrawFn) -> Scheme:
    model = draw(st.sampled_from(sorted(MODELS)))
    q = question(model, draw(st.sampled_from([*RELEASES, NEWEST])), draw(st.sampled_from([5, 20, 50, 200])))
    units = {role: _unit(draw, model, q, role) for role in draw(st.sampled_from([("both",), ("prefill", "decode")]))}
    if "both" in units:
        return Scheme(q, units["both"], draw(st.integers(1, 3)))
    return Scheme(q, Pair(units["prefill"], units["decode"], *(draw(st.integers(1, 3)) for _ in range(2))))


def _unit(draw: st.DrawFn, model: str, q: PlanQuestion, role: str) -> Unit:
    lay = draw(st.sampled_from(engines(model, role)))
    unit = make_unit(q, lay, role, cap=draw(st.one_of(st.none(), st.integers(1, 4096))))
    assume(unit is not None)
    assert unit is not None
    return unit


@lru_cache(maxsize=64)
def engines(model: str, role: str) -> list[Layout]:
    """Those that fit, of all that a plan would look at."""
    q = question(model, NEWEST, 50)
    every = one_engine_layouts(q, q.cluster.gpus, stages=role == "both")
    return [lay for lay in every if plan_memory(q.model, q.cluster.gpu, lay, q.settings, role).kv_tokens_per_rank]


@settings(derandomize=True, max_examples=60)
@given(schemes())
def test_every_server_starts_and_runs_as_many_requests_as_were_simulated(scheme: Scheme) -> None:
    release = scheme.question.settings.version
    named = RELEASES[-1] if release == NEWEST else release
    assert written_for(scheme) == f"SGLang {'.'.join(map(str, named))}"
    simulated = {unit.role: unit for unit in scheme.units}
    for command in commands_for(scheme, "/m"):
        if "sglang.launch_server" not in command.argv:
            continue
        unit = simulated[{"engine": "both"}.get(command.what.split()[0], command.what.split()[0])]
        arguments = command.argv[command.argv.index("--model-path") :]
        share = rank_limit(arguments, named)
        assert share * unit.layout.attn_dp == unit.settings.max_running_requests == unit.cap
        assert scheme.deployment().role_settings(unit.role).max_running_requests == unit.cap


def test_the_engines_of_a_simulation_run_what_is_printed() -> None:
    """P4D9, whose decode role was once printed with the limit of one of its 72 ranks."""
    q = question("deepseek-r1", (0, 4, 8), 200)
    lay = {"prefill": 32, "decode": 72}
    units = [
        make_unit(q, Layout(n, 1, 1, n, n, nodes=n // 8, gpus_per_node=8), role, cap=8 * n) for role, n in lay.items()
    ]
    assert units[0] is not None and units[1] is not None
    wide = replace(q, cluster=make_cluster("h200", 13, 8))
    scheme = Scheme(wide, Pair(units[0], units[1], 1, 1))
    _, engines, _ = build(scheme.deployment(), Calibration(), None)  # type: ignore[arg-type]
    told = {c.what.split()[0]: c.argv[c.argv.index("--model-path") :] for c in commands_for(scheme, "/m")[:-1]}
    for engine in engines:
        role = engine.name.rstrip("0123456789")
        assert engine.applied.running_limit == lay[role] * rank_limit(told[role], (0, 4, 8))
    decode = told["decode"]
    assert int(decode[decode.index("--max-running-requests") + 1]) == units[1].cap >= 72


def test_the_rule_would_catch_the_limit_of_a_rank() -> None:
    arguments = shlex.split("--tp-size 72 --enable-dp-attention --dp-size 72 --max-running-requests 8")
    with pytest.raises(AssertionError, match="zero"):
        rank_limit(arguments, (0, 5, 3))
    assert rank_limit(shlex.split("--tp-size 72 --attn-dp-size 72 --max-running-requests 8"), (0, 5, 23)) == 1


def test_a_plan_says_for_which_release_its_commands_are(tmp_path) -> None:
    for engine, said in (("sglang", "for SGLang 0.5.23"), ("sglang:0.4.10", "for SGLang 0.4.10")):
        plan = answer_plan("llama-8b", "h100", 1, 1, "fixed:200:50", engine=engine, concurrency=4, top=1)
        assert said in plan_text(plan)
        write_plan(plan, tmp_path / engine)
        assert said in next((tmp_path / engine).glob("*/commands.txt")).read_text()
        assert plan.as_json()["plans"][0]["written_for"] in said
