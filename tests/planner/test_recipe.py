"""The guided order: what it writes can be run as it stands, goes on from what was confirmed, and leaves out no setting
that people who tuned the same machines tried."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from ridgeline import catalog
from ridgeline.campaign.check import check_study
from ridgeline.campaign.recipe import StageBefore, write_stage
from ridgeline.errors import InputError, NothingFound
from ridgeline.records.expression import Value
from ridgeline.records.study import Study
from ridgeline.serving.planner.recipe import write
from tests.command_line import ridgeline

MEASURED = Path(__file__).parents[2] / "benchmarks" / "twin" / "measured"
SITE = "version: 1\nname: two\nbatch: slurm\nnodes: 9\ngpus_per_node: 8\nlauncher: srun\n"


def study_of(text: str, folder: Path) -> Study:
    """As `ridgeline check` passes it; its problems fail the test."""
    path = folder / "study.yaml"
    path.write_text(text)
    return check_study(path).study


def words(text: str) -> list[str]:
    return text.split()


# From the first stage to the last on the twin.


def test_every_stage_runs_on_the_twin_and_the_last_confirms_all_of_them_together(tmp_path: Path) -> None:
    given = "model=deepseek-v3 gpu=h200 gpus=8 concurrency=16 requests=60 traffic=fixed:1000:300 kind=twin"
    stages: list[str] = []
    asked = words(given)
    while (wrote := ridgeline("tune", "--recipe", "sglang", *asked, cwd=tmp_path)).returncode == 0:
        name = wrote.stdout.partition(".yaml")[0]
        stages.append(name.removeprefix("deepseek-v3-"))
        told = [line.split("ridgeline ")[1] for line in wrote.stdout.splitlines() if "ridgeline " in line]
        assert told[0] == f"tune {name}.yaml", "the command that runs it"
        ran = ridgeline(*told[0].split(), "--trials", 3, cwd=tmp_path)
        assert ran.returncode in (0, 1), ran.stderr
        asked = told[-1].split()[3:] if len(told) > 1 else [f"after=studies/{name}"]
    assert stages == ["1-layout", "2-back-ends", "4-batch", "5-drafts", "7-proof"]
    assert "was the last stage" in wrote.stderr and wrote.returncode == 1
    proof = study_of((tmp_path / "deepseek-v3-7-proof.yaml").read_text(), tmp_path)
    assert set(proof.baseline.values()) == {"default"}, "the engine's own choice of everything"
    assert "Confirmed" in ridgeline("best", "studies/deepseek-v3-7-proof", cwd=tmp_path).stdout
    drafts = (tmp_path / "deepseek-v3-5-drafts.yaml").read_text()
    assert "memory: skipped" in (tmp_path / "deepseek-v3-4-batch.yaml").read_text()
    assert "flags:" in drafts and "confirmed up to studies/deepseek-v3-4-batch" in drafts


def test_it_runs_nothing_and_overwrites_nothing_that_was_edited(tmp_path: Path) -> None:
    asked = ["tune", "--recipe", "sglang", "model=llama-8b", "gpu=h200", "gpus=2", "kind=twin"]
    shown = ridgeline(*asked, "--dry-run", cwd=tmp_path)
    assert shown.stdout.startswith("version: 1") and not list(tmp_path.iterdir())
    for _ in range(2):
        assert ridgeline(*asked, cwd=tmp_path).returncode == 0
    file = tmp_path / "llama-8b-1-layout.yaml"
    assert [path.name for path in tmp_path.iterdir()] == [file.name] and file.read_text() == shown.stdout
    file.write_text(f"{shown.stdout}# mine\n")
    again = ridgeline(*asked, cwd=tmp_path)
    assert again.returncode == 2 and "differs" in again.stderr
    nowhere = ridgeline(*asked, "--out", "none/other.yaml", cwd=tmp_path)
    assert nowhere.returncode == 2 and "there is no folder none;" in nowhere.stderr
    assert ridgeline(*asked, "--out", "other.yaml", cwd=tmp_path).stdout.startswith("other.yaml: stage 1 of 7")


def test_only_a_finished_stage_of_the_same_recipe_leads_on(tmp_path: Path) -> None:
    asked = ["tune", "--recipe", "sglang"]
    ridgeline(*asked, "model=llama-8b", "gpu=h200", "gpus=8", "requests=300", "kind=twin", cwd=tmp_path)
    text = (tmp_path / "llama-8b-1-layout.yaml").read_text().replace("confirm: {top: 2", "confirm: {top: 0")
    (tmp_path / "unconfirmed.yaml").write_text(text)
    (tmp_path / "own.yaml").write_text("\n".join(li for li in text.splitlines() if not li.startswith("recipe:")))
    for name in ("unconfirmed", "own"):
        ridgeline("tune", f"{name}.yaml", "--trials", 4, "--out", name, cwd=tmp_path)
    wrong = ridgeline(*asked, "after=unconfirmed", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "nothing is confirmed to go on from" in wrong.stderr and "ridgeline resume" in wrong.stderr
    assert "a study that no recipe wrote" in ridgeline(*asked, "after=own", cwd=tmp_path).stderr


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("", "needs model=, gpu=, gpus="),
        ("llama-8b", "KEY=VALUE"),
        ("modell=llama-8b", "did you mean model"),
        ("model=llamma-8b gpu=h200 gpus=1", "llama-8b"),
        ("model=llama-8b gpu=h2000 gpus=1", "GPU 'h2000' is not known"),
        ("model=llama-8b gpu=h200 gpus=12", "use 8 or 16"),
        ("model=llama-8b gpu=h200 gpus=all", "whole number"),
        ("model=deepseek-r1 gpu=h100 gpus=8", "nearest that fits: 2 nodes"),
        ("model=llama-8b gpu=h200 gpus=1 rate=4", "slo="),
        ("model=llama-8b gpu=h200 gpus=1 slo=ttft_p95_ms=900", "give rate= or concurrency="),
        ("model=llama-8b gpu=h200 gpus=1 kind=sglang-serve", "give rate= or concurrency="),
        ("model=llama-8b gpu=h200 gpus=1 kind=vllm-serve", "sglang-serve"),
        ("model=llama-8b gpu=h200 gpus=1 role=decode", "concurrency="),
        ("model=llama-8b gpu=h200 gpus=1 algorithm=EAGLE", "draft="),
        ("model=deepseek-r1 gpu=h200 gpus=16", "site=FILE"),
        ("model=llama-8b gpu=h200 gpus=1 traffic=fixed:200000:10", "1,000 of 1,000 requests exceed the context"),
        ("model=llama-8b gpu=h200 gpus=1 traffic=sessions:agent concurrency=8", "requests exceed the context"),
        ("model=llama-8b gpu=h200 gpus=1 traffic=sessions:chat", "give concurrency=, so many sessions"),
        ("model=deepseek-r1 gpu=h200 gpus=8 load_format=dummy experts=even", "write uniform"),
        ("model=deepseek-r1 gpu=h200 gpus=8 load_format=dummy accept_length=glm-52", "did you mean glm-5.2"),
    ],
)
def test_what_is_wrong_is_said_with_what_would_do(given: str, says: str) -> None:
    with pytest.raises(InputError) as wrong:
        write_stage("sglang", words(given))
    assert says in str(wrong.value)


def test_an_unknown_recipe_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(InputError, match="did you mean sglang"):
        write_stage("sglnag", [])


# Each stage asks only what has more than one answer.


def follow(
    given: str, wanted: Mapping[str, Value], folder: Path, engine: str = "sglang"
) -> tuple[dict[str, str], set[str]]:
    """A setting that somebody ran, taken through all stages: in each that asks for it, it is the answer.

    Text of each stage by its name, and what of the setting was in no stage's space.
    """
    (folder / "two.yaml").write_text(SITE)
    pairs = dict(word.split("=", 1) for word in given.split()) | {"site": str(folder / "two.yaml")}
    texts: dict[str, str] = {}
    missed, before = set(wanted), None
    while True:
        try:
            stage = write(engine, pairs, before)
        except NothingFound:
            return texts, missed
        study = study_of(stage.text, folder)
        assert study.recipe is not None
        name = study.recipe.stage
        texts[name] = stage.text
        asked = {knob.name: knob for knob in study.space.knobs if knob.name in wanted}
        point = {**study.baseline, **{n: wanted[n] for n, k in asked.items() if wanted[n] in k.values}}
        settings = study.space.settings(point)
        if name != "proof":
            missed -= {n for n in wanted if settings.get(n) == wanted[n]}
            refusal = catalog.part("workloads", study.workload.kind)(study).refusal(settings)
            assert refusal is None or name == "memory", f"{name}: {refusal}"
            assert study.space.refusal(point) is None, name
        before = StageBefore(name, study, point, folder / name)


def test_drafts_need_layers_that_draft_or_a_draft_model(tmp_path: Path) -> None:
    given = "model=llama-8b gpu=h200 gpus=1 concurrency=8 traffic=fixed:500:100"
    texts, _ = follow(given, {"attention_backend": "triton"}, tmp_path)
    assert "drafts" not in texts and "no draft model is given (draft=)" in texts["proof"]
    wanted: dict[str, Value] = {"speculative_algorithm": "EAGLE3", "speculative_num_steps": 3}
    texts, missed = follow(f"{given} draft=/models/eagle3", wanted, tmp_path)
    assert not missed and "/models/eagle3" in texts["drafts"]
    texts, _ = follow("model=deepseek-r1 gpu=h200 gpus=8 load_format=dummy", {}, tmp_path)
    assert "drafts" not in texts


def test_a_model_that_starts_and_dies_under_its_own_limit_has_a_recipe(tmp_path: Path) -> None:
    """DeepSeek-V2-Lite on one H200 did, with the 4096 requests that the engine allows by itself."""
    setting = {"max_running_requests": 1024, "cuda_graph_max_bs": 512, "attention_backend": "triton"}
    texts, missed = follow("model=deepseek-v2-lite gpu=h200 gpus=1", setting, tmp_path)
    assert missed == set() and "is the only layout" in texts["back-ends"]


@pytest.mark.parametrize(
    ("gpu", "kernels"), [("gb10", set()), ("h200", {"fa3", "triton"}), ("mi300x", {"aiter", "triton"})]
)
def test_only_kernels_that_know_a_models_sinks_are_asked(gpu: str, kernels: set[str], tmp_path: Path) -> None:
    """SGLang: "GptOssForCausalLM requires one of ..."; on a GB10 that leaves Triton, which it takes by itself."""
    texts, _ = follow(f"model=gpt-oss-120b gpu={gpu} gpus=1", {}, tmp_path)
    knobs = study_of(texts["back-ends"], tmp_path).space.knobs
    assert {value for knob in knobs if knob.name == "attention_backend" for value in knob.values} == kernels


@pytest.mark.parametrize(
    ("given", "setting"),
    [
        # aiter keeps 85% of any fraction: what holds the weights without it does not with it
        ("glm-5.2 gpu=mi355x gpus=8", {"attn_dp": 8, "ep": 8, "attention_backend": "aiter", "page_size": 64}),
        # DeepEP's usual chunk takes so much of the engine's own fraction that the weights have no room
        ("deepseek-r1 gpu=h200 gpus=8 concurrency=16", {"attn_dp": 8, "ep": 8, "attention_backend": "triton"}),
    ],
)
def test_a_baseline_starts_where_weights_leave_little_room(
    given: str, setting: dict[str, Value], tmp_path: Path
) -> None:
    texts, missed = follow(f"model={given} requests=64", {"tp": 8, **setting}, tmp_path)
    assert not missed and "proof" in texts, "each stage passed `ridgeline check`"


def test_drafts_are_asked_beside_attention_dp_where_no_release_is_named(tmp_path: Path) -> None:
    given = "model=deepseek-v3 gpu=h200 gpus=8 requests=60 kind=twin"
    wanted: dict[str, Value] = {"tp": 8, "attn_dp": 8, "speculative_algorithm": "EAGLE", "speculative_num_steps": 2}
    texts, _ = follow(given, wanted, tmp_path)
    assert "attn_dp: 8" in texts["drafts"]


def test_the_engines_own_limit_written_out_is_no_baseline_that_dies(tmp_path: Path) -> None:
    """A vocabulary of 128,256 on a small GPU: the engine allows 4096 requests, logits of so many do not fit."""
    shape = {"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
             "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
             "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "tie_word_embeddings": True}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(shape))
    given = f"model={tmp_path / 'config.json'} gpu=l40s gpus=1 rate=20 slo=itl_p95_ms=50 kind=twin"
    texts, _ = follow(given, {"attention_backend": "flashinfer"}, tmp_path)
    study = study_of(texts["batch"], tmp_path)
    assert catalog.part("workloads", "twin")(study).predicted_failure(study.space.settings(study.baseline)) is None


@pytest.mark.parametrize("model", ["llama-70b", "deepseek-r1"])
def test_the_same_order_has_the_names_of_another_engine(model: str, tmp_path: Path) -> None:
    wanted = {"tp": 8, "pp": 1, "max_num_batched_tokens": 16384, "gpu_memory_utilization": 0.9}
    texts, missed = follow(f"model={model} gpu=h200 gpus=8 requests=9000", wanted, tmp_path, "vllm")
    assert missed == set() and list(texts)[-1] == "proof"
    assert not any("mem_fraction_static" in text or "chunked_prefill_size" in text for text in texts.values())


def test_vllm_drafts_under_its_own_names(tmp_path: Path) -> None:
    wanted: dict[str, Value] = {"speculative_algorithm": "mtp", "speculative_num_steps": 2}
    given = "gpus=8 requests=200 load_format=dummy accept_length=2.4"
    texts, missed = follow(f"model=deepseek-r1 gpu=h200 {given}", wanted, tmp_path, "vllm")
    assert not missed and "eagle_topk" not in texts["drafts"]
    texts, _ = follow(f"model=deepseek-r1 gpu=h200 {given} version=0.21.0", {}, tmp_path, "vllm")
    assert "drafts" not in texts, "its releases had one argument for all of them"
    own: dict[str, Value] = {"speculative_algorithm": "eagle3", "speculative_draft_model_path": "/models/eagle3"}
    given = f"{given.replace('gpus=8', 'gpus=1')} draft=/models/eagle3"
    assert follow(f"model=llama-8b gpu=h200 {given}", own, tmp_path, "vllm")[1] == set()


# What four teams reported, as special cases. `use` and other columns that are no setting are left out.

# settings that only the rows' notes have
_NCCL = {"NCCL Tree + LL128": {"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL128"}}
_RADIX = {"radix cache off (median of three)": {"disable_radix_cache": True}}


def offline_rows() -> list[dict[str, str]]:
    with (MEASURED / "offline.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("row", offline_rows(), ids=lambda row: f"{row['site']}-{row['total_tok_s'] or row['result']}")
def test_each_offline_setting_of_three_teams_is_a_point_of_the_recipe(row: dict[str, str], tmp_path: Path) -> None:
    wanted: dict[str, Value] = {"tp": int(row["tp"])}
    if int(row["pp"]) > 1:
        wanted["pp"] = int(row["pp"])
    if row["attention_dp"] == "yes":
        wanted["attn_dp"] = int(row["dp"])
    for name in ("max_running_requests", "cuda_graph_max_bs", "mem_fraction_static", "attention_backend"):
        if row[name] != "default":
            wanted[name] = row[name] if name == "attention_backend" else float(row[name])
    wanted |= _NCCL.get(row["note"], {}) | _RADIX.get(row["note"], {})
    given = f"model=deepseek-r1 gpu={row['gpu']} gpus={row['gpus']} version={row['sglang']} requests={row['prompts']}"
    texts, missed = follow(f"{given} load_format=dummy", wanted, tmp_path)
    assert missed == set()
    assert "total_tok_s" in texts["layout"] and "prepare: [rehearse, deepgemm]" in texts["layout"]


# `--max-running-requests 128`, page size 1, memory fraction 0.81 and no radix cache in every script of the H800 reports
_SCRIPTS: Mapping[str, Value] = {"max_running_requests": 128, "mem_fraction_static": 0.81, "disable_radix_cache": True}


def test_one_engine_on_h800_that_serves_is_a_point_of_the_recipe(tmp_path: Path) -> None:
    with (MEASURED / "colocated-h800.csv").open() as file:
        rows = list(csv.DictReader(file))
    names = ("tp", "ep", "attn_dp", "cuda_graph_max_bs")
    (setting,) = {tuple((name, int(row[name])) for name in names) for row in rows}
    release, most = rows[0]["sglang"], max(int(row["batch"]) for row in rows)
    given = (
        f"model=deepseek-v3 gpu=h800 gpus=16 version={release} concurrency={most} input_tokens=128 output_tokens=128"
    )
    _, missed = follow(given, {**dict(setting), **_SCRIPTS}, tmp_path)
    # users' prompts share beginnings: without the cache only a benchmark of random ones is measured
    assert missed == {"disable_radix_cache"}


# GPUs of one engine of each role that they ran; three nodes for prefill, see below
_ENGINES = {"P4D6": (32, 48), "P4D9": (32, 72), "P2D2": (16, 16), "P2D4-chunk-small": (16, 32), "P3x3D4": (0, 32)}


@pytest.mark.parametrize("layout", _ENGINES)
def test_engines_of_split_roles_on_h800_are_points_of_the_recipe(layout: str, tmp_path: Path) -> None:
    with (MEASURED / "disaggregated.csv").open() as file:
        row = max((r for r in csv.DictReader(file) if r["layout"] == layout), key=lambda r: int(r["batch"]))
    load = f"concurrency={row['batch']} input_tokens={row['input_len']} output_tokens={row['output_len']}"
    for role, gpus in zip(("prefill", "decode"), _ENGINES[layout], strict=True):
        if not gpus:
            continue
        wanted: dict[str, Value] = {"tp": gpus, "ep": gpus, "attn_dp": gpus, **_SCRIPTS}
        if role == "decode":
            wanted["cuda_graph_max_bs"] = int(row["cuda_graph_max_bs"])
        elif row["chunked_prefill_size"] and "chunk" not in layout:
            wanted["chunked_prefill_size"] = int(row["chunked_prefill_size"])
        # the first release that decodes without a prefill server, which theirs did not
        release = "0.5.2" if role == "decode" else row["sglang"]
        given = f"model=deepseek-v3 gpu=h800 gpus={gpus} version={release} role={role} {load}"
        texts, missed = follow(given, wanted, tmp_path)
        # what an engineer who knows the load leaves out of it
        everything = " ".join("".join(texts.values()).replace("#", " ").split())
        if "mem_fraction_static" in missed:
            missed.remove("mem_fraction_static")
            assert "more of it changes nothing" in everything, "its pool holds all requests that there are"
        if "max_running_requests" in missed:
            missed.remove("max_running_requests")
            assert int(row["batch"]) < 128, "a limit above what is sent is none"
        if "cuda_graph_max_bs" in missed:
            missed.remove("cuda_graph_max_bs")
            assert int(row["cuda_graph_max_bs"]) > int(row["batch"]) / gpus, "no rank ever has so many requests"
        assert missed == set(), role


def test_three_nodes_of_prefill_in_one_group_did_not_start_in_that_release(tmp_path: Path) -> None:
    """P3x3 is three servers of such groups; one alone, which a recipe tunes, is refused with what was seen."""
    (tmp_path / "two.yaml").write_text(SITE)
    with pytest.raises(InputError, match="fits in no layout"):
        write_stage(
            "sglang",
            words(
                f"model=deepseek-v3 gpu=h800 gpus=24 version=0.4.8 role=prefill concurrency=8 site={tmp_path}/two.yaml"
            ),
        )
