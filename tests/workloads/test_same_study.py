"""A study for the twin is a study for the real engine: only kind and site differ, and its settings mean the same."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline import catalog
from ridgeline.records.expression import Expression, Value
from ridgeline.records.run import Cause, Ending, Resources, Run
from ridgeline.records.site import Site
from ridgeline.records.space import Discrete, Space
from ridgeline.records.study import Goal, JobLimits, Study, WorkloadChoice
from ridgeline.records.trial import Stage, Trial
from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.releases import NEWEST, parse_version, read_flags
from ridgeline.serving.workloads.engine.settings import _expected_deployment
from ridgeline.serving.workloads.engine.workload import EngineWorkload
from ridgeline.serving.workloads.twin.workload import TwinWorkload
from ridgeline.workloads.base import Workload

SITE = Site(batch="simulated", nodes=2, gpus_per_node=8)
KINDS = ("sglang-offline", "sglang-serve", "twin")


def study(kind: str, knobs: dict[str, list[Value]], model: str = "deepseek-r1", **options: object) -> Study:
    chosen: dict[str, object] = {"model": model, "gpu": "h200", "traffic": {"dataset": "fixed:64:8", "requests": 40}}
    chosen |= {"concurrency": 8} if kind == "sglang-serve" else {}
    chosen |= {"version": "0.5.23", **options}
    space = Space(tuple(Discrete(name, values, ordered=False) for name, values in knobs.items()), {})
    baseline = {name: values[0] for name, values in knobs.items()}
    asked = Study("same", WorkloadChoice(kind, chosen), space, Goal("total_tok_s", "maximize"), baseline, Path())
    job = JobLimits(nodes=Expression.parse("2"), gpus=Expression.parse("8"))
    return replace(asked, site=replace(SITE, launcher="srun"), job=job)


def workloads(knobs: dict[str, list[Value]], **options: object) -> dict[str, tuple[Workload, Study]]:
    made = {kind: study(kind, knobs, **options) for kind in KINDS}
    return {kind: (catalog.part("workloads", kind)(asked), asked) for kind, asked in made.items()}


def deployments(knobs: dict[str, list[Value]], **options: object) -> dict[str, Deployment | str | None]:
    """What each kind takes the baseline to be, or why it refuses it."""
    found: dict[str, Deployment | str | None] = {}
    for kind, (workload, asked) in workloads(knobs, **options).items():
        assert workload.problems() == []
        refused = workload.refusal(asked.baseline)
        if refused is not None:
            found[kind] = re.sub(r"^with SGLang [^,]*, (it cannot start: )?|^does not fit: ", "", refused)
        elif isinstance(workload, TwinWorkload):
            found[kind] = workload._case(asked.baseline).deployment  # type: ignore[union-attr]
        else:
            assert isinstance(workload, EngineWorkload)
            values = workload._names.values(asked.baseline)
            release = parse_version(str(asked.workload.options["version"])) or NEWEST
            found[kind] = _expected_deployment(workload._options, values, release, Resources(2, gpus=8), asked.site)
    return found


def same(found: dict[str, Deployment | str | None]) -> bool:
    first, *others = found.values()
    if isinstance(first, str):
        return all(first == other for other in others)
    parts = [(d.model, d.layout, d.settings) for d in found.values() if isinstance(d, Deployment)]
    return len(parts) == len(found) and all(part == parts[0] for part in parts)


@pytest.mark.parametrize(
    "knobs",
    [
        {"tp_size": 16, "disable_cuda_graph": True},
        {"tp": 16, "cuda_graph_max_bs": 0},
        {"tensor_parallel_size": 16, "cuda_graph_max_bs_decode": 64, "max_running_requests": "default"},
        {"tp": 16, "disable_radix_cache": True, "schedule_conservativeness": 0.4, "max_prefill_tokens": 4096},
        {"tp": 16, "dp_size": 16, "enable_dp_attention": True, "moe_a2a_backend": "deepep"},
        {"tp": 16, "attn_dp_size": 16, "ep_size": 16, "max_running_requests": 512, "chunked_prefill_size": -1},
        {"tp": 16, "kv_cache_dtype": "fp8_e5m2", "attention_backend": "aiter", "schedule_policy": "lpm"},
        {"tp": 16, "mem_fraction_static": "default", "page_size": "default", "NCCL_ALGO": "Tree"},
        {"tp": 16, "attn_dp": 16, "max_running_requests": 8},  # no request for a rank
        {"tp": 8, "dp": 2, "attn_dp": 4},  # copies and attention DP at once
        {"tp": 16, "disaggregation_mode": "prefill", "deepep_mode": "low_latency"},
        {"tp": 16, "mem_fraction_static": 0.2},
    ],
    ids=lambda knobs: " ".join(f"{k}={v}" for k, v in knobs.items()),
)
def test_a_study_means_the_same_to_engine_and_twin(knobs: dict[str, Value]) -> None:
    found = deployments({name: [value] for name, value in knobs.items()})
    assert same(found), found


@settings(derandomize=True, max_examples=40)
@given(
    st.fixed_dictionaries(
        {"tp": st.sampled_from([8, 16])},
        optional={
            "pp_size": st.sampled_from([1, 2]),
            "attn_dp": st.sampled_from([1, 8, 16]),
            "ep": st.sampled_from([1, 8, 16]),
            "max_running_requests": st.sampled_from(["default", 4, 64, 2048]),
            "mem_fraction_static": st.sampled_from(["default", 0.8, 0.9]),
            "cuda_graph_max_bs": st.sampled_from(["default", 0, 256]),
            "disable_cuda_graph": st.booleans(),
            "disable_radix_cache": st.booleans(),
            "attention_backend": st.sampled_from(["default", "fa3", "triton", "torch_native"]),
            "page_size": st.sampled_from([1, 64]),
            "chunked_prefill_size": st.sampled_from([-1, 2048, 8192]),
            "quantization": st.sampled_from(["fp8", "awq"]),
        },
    )
)
def test_any_settings_mean_the_same_to_engine_and_twin(knobs: dict[str, Value]) -> None:
    found = deployments({name: [value] for name, value in knobs.items()})
    assert same(found), found


def test_flags_that_are_the_same_in_every_trial_count_too() -> None:
    constants = {"flags": {"tp_size": 16, "disable_cuda_graph": True, "context_length": 8192}}
    found = deployments({"max_running_requests": [64]}, **constants)
    assert same(found)
    assert isinstance(deployment := found["twin"], Deployment)
    assert deployment.layout.tp == 16
    assert deployment.settings.cuda_graph_max_bs == 0
    over = deployments({"tp": [8], "pp": [2], "mem_fraction_static": [0.9]}, **constants)
    assert same(over)
    assert isinstance(deployment := over["twin"], Deployment)
    assert deployment.layout.tp == 8, "a knob overrules a constant under any of its names"


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"mem_fraction": [0.8]}, "did you mean mem_fraction_static?"),
        ({"mem_fraction_static": [1.2]}, "a share between 0 and 1"),
        ({"attention_backend": ["fa33"]}, "'fa33' is not possible"),
        ({"max_running_requests": [0]}, "a whole number of at least 1"),
        ({"disable_radix_cache": [3]}, "true or false"),
    ],
)
def test_a_mistake_is_one_for_engine_and_twin(knobs: dict[str, list[Value]], message: str) -> None:
    for kind, (workload, _) in workloads(knobs).items():
        said = [str(problem.message) for problem in workload.problems()]
        assert any(message in text for text in said), f"{kind}: {said}"


def test_a_flag_of_another_release_is_named_by_all() -> None:
    for workload, _ in workloads({"moe_runner_backend": ["triton"]}, version="0.4.8").values():
        assert any("has no moe_runner_backend yet" in problem.message for problem in workload.problems())


def test_every_flag_of_the_release_may_be_a_knob() -> None:
    plain: dict[str, list[Value]] = {
        name: [True if flag.kind == "switch" else "x"]
        for name, flag in read_flags("sglang").items()
        if flag.there((0, 5, 23))
    }
    for workload, _ in workloads(plain).values():
        assert not [p for p in workload.problems() if "no such knob" in p.message or "has no" in p.message]


def test_an_engine_run_carries_the_twins_own_answer(tmp_path: Path) -> None:
    knobs: dict[str, list[Value]] = {"tp_size": [16], "disable_cuda_graph": [True], "disable_radix_cache": [True]}
    made = workloads(knobs)
    for kind in ("sglang-offline", "twin"):
        workload, asked = made[kind]
        workload.prepare(Trial(1, asked.baseline, asked.baseline, Stage.SEARCH, "test"), tmp_path / kind)
    predicted = json.loads((tmp_path / "sglang-offline" / "session.json").read_text())["predicted_tok_s"]
    twin, asked = made["twin"]
    job = twin.prepare(Trial(1, asked.baseline, asked.baseline, Stage.SEARCH, "test"), tmp_path / "twin")
    subprocess.run(["sh", "-c", job.command], cwd=tmp_path / "twin", env={"PATH": "/usr/bin:/bin"}, check=True)
    reading = twin.read(Run(1, 1, 1, tmp_path / "twin", Resources(2), Ending(Cause.EXITED, 0, started_s=0, ended_s=1)))
    measured = {m.metric: m.value for m in reading.measurements}
    assert measured["total_tok_s"] == pytest.approx(predicted, rel=1e-4)
