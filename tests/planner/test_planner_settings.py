"""What a plan prints is what it simulated: flags, linter, study and twin read one record of settings for each role."""

import itertools
import shlex
from dataclasses import replace

import pytest
import yaml

from ridgeline.errors import InputError
from ridgeline.serving.engines.deployment import describe, role_text
from ridgeline.serving.engines.flags import engine_flags
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.settings import EngineSettings, resolve, role_of, settings_of
from ridgeline.serving.hardware.cluster import make_cluster
from ridgeline.serving.model.config import load_model
from ridgeline.serving.planner.candidates import PlanQuestion, colocated_units
from ridgeline.serving.planner.commands import Command
from ridgeline.serving.planner.planner import answer_plan
from ridgeline.serving.planner.scheme import Scheme, pairs
from ridgeline.serving.service.from_results import commands_for, printed
from ridgeline.serving.traffic.requests import Slo
from ridgeline.serving.twin.calibration import Calibration
from ridgeline.serving.twin.simulate import build

LIMITS = tuple(map(Slo.parse, ("ttft_p95_ms=2000", "itl_p95_ms=50")))
INVENTORIES = [
    ("deepseek-r1", "h200", 2, 8, (313, 194), {}),
    ("deepseek-r1", "h800", 13, 8, (2000, 500), {}),
    ("deepseek-r1", "h800", 8, 8, (1024, 256), {"version": (0, 4, 10)}),
    ("deepseek-v2-lite", "h200", 1, 8, (500, 200), {"attention_backend": "triton"}),
    ("llama-8b", "h100", 1, 4, (4000, 50), {"page_size": 16, "radix_cache": False}),
    ("llama-8b", "l40s", 2, 4, (200, 300), {"max_prefill_tokens": 8192, "schedule_conservativeness": 0.5}),
    ("mixtral-8x7b", "a100", 1, 4, (300, 200), {"chunked_prefill_size": 4096}),
]


def candidates(model, gpu, nodes, size, lengths, settings) -> list[Scheme]:
    cluster = make_cluster(gpu, nodes, size)
    q = PlanQuestion(load_model(model), cluster, *lengths, LIMITS, EngineSettings(**settings), Calibration())
    engines = [Scheme(q, u, cluster.gpus // u.gpus) for u in colocated_units(q, cluster.gpus)]
    return [*engines, *(Scheme(q, p) for p in pairs(q, cluster.gpus))]


def read_settings(commands: list[Command], version: tuple[int, ...]) -> dict[str, EngineSettings]:
    """Settings of each role as its command lines give them. Engines of a role are equal."""
    said = [engine_flags("sglang").from_arguments(list(command.argv)) for command in commands]
    servers = [values for values in said if "model_path" in values]
    return {role_of(values): settings_of(values, EngineSettings(version=version)) for values in servers}


@pytest.mark.parametrize("inventory", INVENTORIES, ids=lambda i: f"{i[0]}-{i[2]}x{i[3]}-{i[1]}")
def test_printed_flags_are_the_settings_that_were_simulated(inventory) -> None:
    schemes = candidates(*inventory)
    assert schemes
    for scheme in schemes:
        deployment = scheme.deployment()
        printed = read_settings(commands_for(scheme, "/m"), scheme.question.settings.version)
        assert set(printed) == {u.role for u in scheme.units}
        for unit in scheme.units:
            assert printed[unit.role] == deployment.role_settings(unit.role) == unit.settings


@pytest.mark.parametrize("inventory", INVENTORIES[:2] + INVENTORIES[4:5], ids=lambda i: f"{i[0]}-{i[1]}")
def test_engines_of_a_simulation_apply_what_is_printed(inventory) -> None:
    for scheme in candidates(*inventory)[-8:]:
        q, deployment = scheme.question, scheme.deployment()
        printed = read_settings(commands_for(scheme, "/m"), q.settings.version)
        _, engines, memory = build(deployment, q.calibration, None)
        applied = {engine.times.applied for engine in engines}
        pools = [plan.kv_tokens_per_rank for plan in memory]
        units = scheme.units
        assert pools == [u.memory.kv_tokens_per_rank for u in units]
        assert applied == {
            resolve(printed[u.role], q.model, q.cluster.gpu, u.layout, pool)
            for u, pool in zip(units, pools, strict=True)
        }


@pytest.fixture(scope="module")
def split():
    plan = answer_plan("llama-8b", "h100", 1, 4, "fixed:2000:100", slos=["ttft_p95_ms=2000", "itl_p95_ms=20"], top=20)
    return next(c for c in plan.choices if c.option.layout.disaggregated)


def test_rows_of_a_plan_are_the_flags_of_its_commands(split) -> None:
    row, version = split.as_json(), split.option.scheme.question.settings.version
    commands = printed(split).commands
    read = read_settings(commands, version)
    for role in ("prefill", "decode"):
        told = row["settings"][role]
        flags = next(c.argv for c in commands if c.what.startswith(role))
        assert flags[flags.index("--max-running-requests") + 1] == str(told["max_running_requests"])
        assert told["chunked_prefill_size"] == read[role].chunked_prefill_size
        assert told["mem_fraction"] == read[role].mem_fraction
        assert told["cuda_graph_max_bs"] == read[role].cuda_graph_max_bs
        assert told["attention_backend"] == read[role].attention_backend


def test_the_study_of_a_split_asks_the_twin_for_the_same_settings(split) -> None:
    study = yaml.safe_load(split.study)
    fields = {**study["baseline"], "cuda_graph_max_bs": min(512, study["baseline"]["max_running_requests"])}
    words = shlex.split(study["workload"]["run"].format(**fields))
    given = dict(itertools.pairwise(words))
    again = describe(
        "llama-8b",
        "h100",
        Layout(nodes=1, gpus_per_node=4),
        EngineSettings(attention_backend=given["--attention-backend"]),
        prefill_groups=given["--prefill-groups"],
        decode_groups=given["--decode-groups"],
        fabric=given["--fabric"],
    )
    planned = split.option.scheme.deployment()
    assert again.layout == planned.layout
    for role in ("prefill", "decode"):
        assert again.role_settings(role) == planned.role_settings(role)


def test_settings_of_one_role_leave_the_other_alone() -> None:
    shared = EngineSettings(max_running_requests=64, chunked_prefill_size=8192)
    lay = Layout(nodes=1)
    d = describe(
        "llama-8b", "h100", lay, shared, prefill_groups="1x4gpu:chunk=2048,fraction=0.7", decode_groups="1x4gpu"
    )
    assert d.role_settings("prefill").chunked_prefill_size == 2048
    assert d.role_settings("prefill").mem_fraction == 0.7
    assert d.role_settings("prefill").max_running_requests == 64
    assert d.role_settings("decode") == replace(shared, max_running_requests=64)
    assert role_text(d.role_settings("prefill")).startswith("running=64,")
    with pytest.raises(InputError, match="chunk=big"):
        describe("llama-8b", "h100", lay, prefill_groups="1x4gpu:chunk=big", decode_groups="1x4gpu")
