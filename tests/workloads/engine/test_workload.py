"""What the engine workloads promise before and after a run: problems, refusals, files, readings."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline import catalog
from ridgeline.campaign.check import check_study
from ridgeline.records.expression import Expression
from ridgeline.records.guard import parse_guard
from ridgeline.records.run import PREDICTED, Cause, Ending, Resources, Run
from ridgeline.records.site import Site
from ridgeline.records.study import Goal, JobLimits
from ridgeline.serving.engines.install import Install
from ridgeline.serving.engines.releases import parse_version
from ridgeline.serving.engines.sglang.engine import SGLANG
from ridgeline.serving.traffic.requests import read_records
from ridgeline.serving.workloads.engine.options import Load
from ridgeline.serving.workloads.engine.session.prepare import _write_dataset
from tests.workloads.engine.studies import SAMPLES, sglang_offline, sglang_serve, study, trial, vllm_serve

EXAMPLES = Path(__file__).parents[3] / "examples" / "05-sglang-h200"


def finished(folder: Path) -> Run:
    return Run(1, 1, 1, folder, Resources(), Ending(Cause.EXITED, 0, started_s=10.0, ended_s=12.0))


def messages(workload) -> list[str]:
    return [f"{'.'.join(map(str, p.where))}: {p.message}" for p in workload.problems()]


def job(**sizes: str) -> JobLimits:
    return JobLimits(**{name: Expression.parse(text) for name, text in sizes.items()})


def test_a_wrong_knob_is_named_with_the_right_one(tmp_path: Path) -> None:
    found = messages(sglang_offline(study(tmp_path, knobs={"mem_fraction": [0.8], "tp": [1]})))
    assert found == ["space.mem_fraction: no such knob for sglang-offline; did you mean mem_fraction_static?"]


def test_environment_engine_and_knobs_that_something_else_reads_are_accepted(tmp_path: Path) -> None:
    knobs = {"NCCL_ALGO": ["Tree"], "engine": ["/opt/a"], "width": [8], "boxes": [2]}
    asked = study(tmp_path, knobs=knobs, env={"WIDTH": "{width}"})
    assert messages(sglang_offline(replace(asked, job=job(nodes="boxes")))) == []


def test_a_flag_of_another_release_is_a_problem_that_says_when_it_came_or_went(tmp_path: Path) -> None:
    old = sglang_offline(study(tmp_path, knobs={"moe_runner_backend": ["triton"]}, version="0.4.8"))
    assert "added in 0.5.1" in messages(old)[0]
    new = sglang_offline(study(tmp_path, knobs={"enable_ep_moe": [True]}, version="0.5.23"))
    assert "removed in 0.5.3" in messages(new)[0]


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"modle": "x"}, "workload.modle"),
        ({"traffic": {"dataset": "nowhere.json"}}, "workload.traffic"),
        ({"traffic": {"request": 5}}, "workload.traffic.request"),
        ({"traffic": {"requests": -5}}, "workload.traffic.requests"),
        ({"concurrency": 8}, "workload.concurrency"),
        ({"gpu": "h2000"}, "workload.gpu"),
        ({"prepare": ["coffee"]}, "workload.prepare.0"),
        ({"ready_limit": "soon"}, "workload.ready_limit"),
        ({"version": "newest"}, "workload.version"),
        ({"flags": {"tp": [1, 2]}}, "workload.flags.tp"),
        ({"flags": {"tepee": 2}}, "workload.flags.tepee"),
        ({"env": {"A": "{nothing}"}}, "workload.env.A"),
        ({"env": {"NCCL-DEBUG": "INFO"}}, "workload.env.NCCL-DEBUG"),
        ({"engines": {"a": 3}}, "workload.engines.a"),
    ],
)
def test_mistakes_are_problems_with_their_place(tmp_path: Path, options: dict, where: str) -> None:
    assert [m.partition(":")[0] for m in messages(sglang_offline(study(tmp_path, **options)))] == [where]


def test_a_served_study_must_say_how_hard_to_load_and_by_which_limits(tmp_path: Path) -> None:
    asked = study(tmp_path, "sglang-serve", goal="goodput", concurrency=None)
    found = messages(sglang_serve(asked))
    assert any("concurrency" in m for m in found)
    assert any("slo" in m for m in found)
    assert messages(sglang_serve(study(tmp_path, "sglang-serve", slo=["ttft_p95=3"])))
    wrong = messages(sglang_serve(study(tmp_path, "sglang-serve", goal="goodput", concurrency=4, slo=["e2e_ms=5000"])))
    assert len(wrong) == 1 and "e2e_p99_ms=5000" in wrong[0], "limits that are there but wrong are not asked for again"


def test_goals_and_guards_name_metrics_that_exist(tmp_path: Path) -> None:
    asked = replace(study(tmp_path), goal=Goal("total_toks", "maximize"), guards=(parse_guard("kv_token > 1"),))
    found = messages(sglang_offline(asked))
    assert "did you mean total_tok_s?" in found[0]
    assert "did you mean kv_tokens?" in found[1]
    assert messages(sglang_offline(study(tmp_path, goal="ttft_p95_ms")))
    assert not messages(sglang_serve(study(tmp_path, "sglang-serve", goal="ttft_p95_ms")))


@pytest.mark.parametrize(
    ("knobs", "reason"),
    [
        ({"mem_fraction_static": [0.1]}, "no room for a single token"),
        ({"tp": [3]}, "3 GPUs"),
        ({"tp": [2]}, "2 GPUs"),
        ({"page_size": [64], "chunked_prefill_size": [100]}, "multiple of page_size"),
        ({"disaggregation_mode": ["prefill"], "deepep_mode": ["low_latency"]}, "prefill engine"),
        ({"attention_backend": ["trtllm_mla"]}, "trtllm"),
        ({"ep": [2]}, "no experts"),
    ],
)
def test_what_certainly_cannot_start_is_refused_with_its_reason(tmp_path: Path, knobs: dict, reason: str) -> None:
    asked = replace(study(tmp_path, knobs=knobs, gpu="h200"), job=job(gpus="1"))
    assert reason in (sglang_offline(asked).refusal(asked.baseline) or "")


@pytest.mark.parametrize(
    ("release", "mode", "refused"),
    [("0.4.8", "auto", True), ("0.4.8", None, True), ("0.4.8", "normal", False), ("0.4.9", "auto", False)],
)
def test_deepep_auto_with_attention_dp_is_refused_where_the_release_refuses_it(release, mode, refused) -> None:
    values = {"tp": 16, "attn_dp": 16, "moe_a2a_backend": "deepep", **({"deepep_mode": mode} if mode else {})}
    reason = SGLANG.refusal(None, values, Install(), parse_version(release))
    assert bool(reason) == refused
    if refused:
        assert "set deepep_mode: normal" in reason
    assert SGLANG.refusal(None, {**values, "attn_dp": 1}, Install(), parse_version(release)) is None


def test_a_risk_is_not_refused_and_an_unknown_model_is_left_to_the_engine(tmp_path: Path) -> None:
    knobs = {"mem_fraction_static": [0.97], "max_running_requests": [4096], "attention_backend": ["triton"]}
    risky = replace(study(tmp_path, knobs=knobs, model="deepseek-v2-lite", gpu="h200"), job=job(gpus="1"))
    assert sglang_offline(risky).refusal(risky.baseline) is None
    unknown = study(tmp_path, knobs={"tp": [3]}, model="somebody/some-model")
    assert sglang_offline(unknown).refusal(unknown.baseline) is None
    shaped = study(tmp_path, knobs={"tp": [3]}, model="somebody/some-model", shape="llama-8b")
    assert sglang_offline(shaped).refusal(shaped.baseline)


def test_several_nodes_need_a_launcher_and_get_ranks_and_an_address(tmp_path: Path) -> None:
    asked = replace(study(tmp_path, knobs={"tp": [16]}, model="deepseek-r1"), job=job(nodes="2", gpus="8"))
    assert "launcher" in (sglang_offline(asked).refusal(asked.baseline) or "")
    for launcher, text in (
        ("srun", "srun --nodes=2 --ntasks=2"),
        ("openmpi", "--map-by ppr:1:node"),
        ("mpich", "-ppn 1"),
    ):
        there = replace(asked, site=Site(launcher=launcher, gpus_per_node=8))
        workload = sglang_offline(there)
        assert workload.refusal(there.baseline) is None
        workload.prepare(trial(there), tmp_path / launcher)
        assert text in json.loads((tmp_path / launcher / "session.json").read_text())["start"]
        script = (tmp_path / launcher / "engine.sh").read_text()
        assert '--nnodes 2 --node-rank "$rank" --dist-init-addr "$RIDGELINE_HEAD:$RIDGELINE_RENDEZVOUS"' in script


def test_prepare_twice_and_elsewhere_writes_the_same(tmp_path: Path) -> None:
    asked = study(tmp_path)
    first = sglang_offline(asked).prepare(trial(asked), tmp_path / "a")
    files = {p.name: p.read_text() for p in (tmp_path / "a").iterdir()}
    assert sglang_offline(asked).prepare(trial(asked), tmp_path / "a") == first
    other = sglang_offline(asked).prepare(trial(asked), tmp_path / "b")
    assert files == {p.name: p.read_text() for p in (tmp_path / "a").iterdir()}
    assert files == {p.name: p.read_text() for p in (tmp_path / "b").iterdir()}
    assert replace(other, name=first.name, folder=first.folder) == first


def test_the_engine_is_an_axis(tmp_path: Path) -> None:
    engines = {"old": {"venv": "/opt/old", "version": "0.5.12"}, "new": {"container": "new.sif", "version": "0.5.23"}}
    asked = study(tmp_path, knobs={"engine": ["old", "new"], "cuda_graph_max_bs": [8]}, engines=engines)
    workload = sglang_serve(replace(asked, workload=replace(asked.workload, kind="sglang-serve")))
    workload.prepare(trial(asked), tmp_path / "old")
    workload.prepare(trial(asked, engine="new"), tmp_path / "new")
    old, new = ((tmp_path / name / "engine.sh").read_text() for name in ("old", "new"))
    assert "/opt/old/bin/python -m sglang.launch_server" in old
    assert "--cuda-graph-max-bs 8" in old
    assert f"exec {tmp_path}/new.sif python3 -m sglang.launch_server" in new
    assert "--cuda-graph-max-bs-decode 8" in new


def test_knobs_go_before_the_studys_constants_and_nccl_settings_bring_their_proof(tmp_path: Path) -> None:
    asked = study(tmp_path, knobs={"tp": [1], "NCCL_ALGO": ["Tree"]}, flags={"tp_size": 4, "page_size": 1})
    job_asked = sglang_offline(asked).prepare(trial(asked), tmp_path / "run")
    script = (tmp_path / "run" / "engine.sh").read_text()
    assert "--tp-size 1" in script
    assert "--tp-size 4" not in script
    assert job_asked.env["NCCL_DEBUG"] == "INFO"


def test_paste_is_the_command_a_person_would_type(tmp_path: Path) -> None:
    asked = study(tmp_path, knobs={"max_running_requests": [512], "NCCL_ALGO": ["Tree"]}, engine="python3")
    text = sglang_offline(asked).paste(asked.baseline)
    make, command = text.split(" &&\n")
    assert make == f"{shlex.quote(sys.executable)} -m ridgeline model make llama-8b models/llama-8b"
    assert command.startswith("NCCL_ALGO=Tree ")
    assert "python3 -m sglang.launch_server --model-path models/llama-8b " in command
    assert "--max-running-requests 512" in text
    assert "RIDGELINE" not in text


def test_the_examples_are_sound() -> None:
    for path in EXAMPLES.glob("study-*.yaml"):
        checked = check_study(path)
        assert checked.refusal(checked.study.baseline) is None


def sample_run(tmp_path: Path, sample: str, knobs: dict) -> Run:
    asked = study(tmp_path, knobs=knobs, traffic={"dataset": "sharegpt", "requests": 1000})
    sglang_offline(asked).prepare(trial(asked), tmp_path / "run")
    shutil.copy(SAMPLES / sample, tmp_path / "run" / "engine.log")
    return finished(tmp_path / "run")


def test_a_captured_run_gives_its_figures_and_proof(tmp_path: Path) -> None:
    knobs = {"max_running_requests": [1024], "cuda_graph_max_bs": [512], "mem_fraction_static": [0.8]}
    run = sample_run(tmp_path, "offline-dsv2lite-h200-mrr1024.log", knobs)
    reading = sglang_offline(study(tmp_path, knobs=knobs)).read(run)
    assert (reading.problem, reading.unverified, reading.contaminated) == ("", "", "")
    found = reading.metrics
    assert found["total_tok_s"] == 14547.50
    assert (found["kv_tokens"], found["graph_max_bs"], found["running_limit"]) == (2844459, 512, 1024)
    assert found["cached_token_share"] == pytest.approx(0.0033, abs=1e-4)
    assert found["retractions"] == 0
    assert 0 < found["eager_decode_share"] < 0.5
    assert sglang_offline(study(tmp_path, knobs=knobs)).read(run) == reading


def test_a_setting_that_was_not_applied_makes_the_run_unverified(tmp_path: Path) -> None:
    knobs = {"max_running_requests": [2048], "mem_fraction_static": [0.85]}
    run = sample_run(tmp_path, "offline-dsv2lite-h200-mrr1024.log", knobs)
    said = sglang_offline(study(tmp_path, knobs=knobs)).read(run).unverified
    assert "asked for mem_fraction_static 0.85, the engine applied 0.8" in said
    assert "max_running_requests 2048" in said


def test_the_twin_says_beforehand_what_it_expects_and_that_it_is_modelled(tmp_path: Path) -> None:
    knobs = {"max_running_requests": [1024], "cuda_graph_max_bs": [512], "mem_fraction_static": [0.8]}
    options = {"model": "deepseek-v2-lite", "gpu": "h200", "flags": {"attention_backend": "triton"}}
    asked = replace(study(tmp_path, knobs=knobs, traffic={"dataset": "sharegpt:281:196"}, **options), job=job(gpus="1"))
    sglang_offline(asked).prepare(trial(asked), tmp_path / "run")
    shutil.copy(SAMPLES / "offline-dsv2lite-h200-mrr1024.log", tmp_path / "run" / "engine.log")
    reading = sglang_offline(asked).read(finished(tmp_path / "run"))
    expected = next(m for m in reading.measurements if m.metric == "predicted_tok_s")
    assert expected.origin == "modelled"
    assert expected.value == pytest.approx(reading.metrics["total_tok_s"], rel=0.5)
    unknown = study(tmp_path, knobs=knobs)
    sglang_offline(unknown).prepare(trial(unknown), tmp_path / "other")
    assert "predicted_tok_s" not in sglang_offline(unknown).read(finished(tmp_path / "other")).metrics


def test_of_sessions_the_twin_says_every_request_beforehand(tmp_path: Path) -> None:
    rows = [
        {"session": s, "t": t, "think_time": 1, "input_length": 640 + 64 * t, "output_length": 5, "blocks": 10 + t,
         "block_tokens": 64, "shared_with_previous": 9 + t if t else 0}
        for s in range(3) for t in range(2)
    ]  # fmt: skip
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    for dataset, there in ((str(tmp_path / "chats.jsonl"), True), ("sharegpt:281:196", False)):
        load = {"dataset": dataset, "requests": 6}
        asked = study(tmp_path, "sglang-serve", gpu="h200", traffic=load, concurrency=3)
        asked = replace(asked, job=job(gpus="1"))
        folder = tmp_path / f"run-{there}"
        sglang_serve(asked).prepare(trial(asked), folder)
        assert (folder / PREDICTED).exists() == there
        assert json.loads((folder / "session.json").read_text())["predicted_tok_s"] > 0
    foretold = [*read_records(tmp_path / "run-True" / PREDICTED)]
    assert sorted((r.session, r.turn, r.input_tokens) for r in foretold) == [
        (s, t, 640 + 64 * t) for s in range(3) for t in range(2)
    ]
    assert all(r.ttft_s and r.gaps_s == () for r in foretold) and any(r.cached_tokens for r in foretold)


def test_too_few_answers_are_a_problem(tmp_path: Path) -> None:
    knobs = {"max_running_requests": [1024]}
    run = sample_run(tmp_path, "offline-dsv2lite-h200-mrr1024.log", knobs)
    path = run.folder / "session.json"
    path.write_text(path.read_text().replace('"requests": 1000', '"requests": 1001'))
    assert "1000 of 1001" in sglang_offline(study(tmp_path, knobs=knobs)).read(run).problem


@pytest.mark.parametrize("file", ["engine.log", "session.json", "measured.json", "offline.jsonl"])
@pytest.mark.parametrize(
    "content", [None, b"", b"\xff\xfe\x00", b"{" * 5000, b"[1]", b'{"summary": 3, "asked": 4, "load": []}']
)
def test_bad_output_is_a_problem_in_words_never_an_exception(tmp_path: Path, file: str, content: bytes | None) -> None:
    for kind, make in (("sglang-offline", sglang_offline), ("vllm-serve", vllm_serve)):
        asked = study(tmp_path, kind, knobs={"tp": [1]})
        folder = tmp_path / kind
        make(asked).prepare(trial(asked), folder)
        (folder / file).unlink(missing_ok=True)
        if content is not None:
            (folder / file).write_bytes(content)
        assert make(asked).read(finished(folder)).problem
        assert make(asked).read(finished(tmp_path / "gone")).problem


def test_the_data_set_holds_the_traffic_word_by_word_and_decoys_without_an_answer(tmp_path: Path) -> None:
    load = Load("fixed:20:6", requests=5, seed=1)
    _write_dataset(load, tmp_path / "d.json", decoys=7)
    turns = [
        [t["value"].split() for t in row["conversations"]] for row in json.loads((tmp_path / "d.json").read_text())
    ]
    measured = [row for row in turns if row[1]]
    assert [(len(q), len(a)) for q, a in measured] == [(20, 6)] * 5
    assert len(turns) == 12
    assert len({tuple(q[:4]) for q, _ in turns}) == 12


def test_a_log_of_requests_becomes_a_data_set_and_chats_are_taken_as_they_are(tmp_path: Path) -> None:
    log, chats, made = tmp_path / "sglang.log", tmp_path / "chats.json", tmp_path / "d.json"
    meta = {"prompt_tokens": 41, "completion_tokens": 8, "e2e_latency": 0.5}
    log.write_text(f"[2026-05-20 08:02:44] Finish: obj=GenerateReqInput(), out={{'meta_info': {meta}}}\n")
    _write_dataset(Load(str(log), requests=1), made)
    ((asked, said),) = [[t["value"].split() for t in row["conversations"]] for row in json.loads(made.read_text())]
    assert (len(asked), len(said)) == (41, 8)
    turns = [{"from": "human", "value": "hello there"}, {"from": "gpt", "value": "yes indeed"}]
    chats.write_text(json.dumps([{"conversations": turns}]))
    _write_dataset(Load(str(chats), requests=1), made)
    assert made.read_text() == chats.read_text()


def test_requests_that_no_context_holds_are_named_before_anything_runs(tmp_path: Path) -> None:
    def beyond(tokens: int, **flags: int) -> list[str]:
        (tmp_path / str(tokens)).mkdir(exist_ok=True)
        load = {"traffic": {"input_tokens": tokens, "output_tokens": 10, "requests": 2}, "concurrency": 1}
        asked = study(tmp_path / str(tokens), "vllm-serve", {"tp": [1]}, model="llama-8b", flags=flags, **load)
        return [problem.message for problem in vllm_serve(asked).problems()]

    assert not beyond(131_000)
    assert any(
        "2 of 2 requests exceed the context of 131,072 tokens, and vLLM refuses them" in p for p in beyond(131_070)
    )
    assert any("the context of 4,096 tokens" in problem for problem in beyond(5000, max_model_len=4096))
    agents = study(tmp_path, "vllm-serve", {"tp": [1]}, model="llama-8b", traffic="sessions:agent", concurrency=2)
    assert any("requests exceed the context of 131,072" in str(text) for text in vllm_serve(agents).remarks({"tp": 1}))


def test_what_of_a_recording_is_not_sent_is_said_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_text('{"input_length": 100, "output_length": 2}\n{"input_length": 100}\n')
    asked = study(tmp_path, "vllm-serve", {"tp": [1]}, traffic={"dataset": "trace.jsonl", "requests": 1}, concurrency=1)
    remarks = vllm_serve(asked).remarks({"tp": 1})
    assert "traffic: 1 request without whole numbers input_length and output_length, left out" in remarks


@pytest.mark.parametrize("kind", ["sglang-offline", "sglang-serve", "vllm-offline", "vllm-serve"])
def test_what_a_job_says_about_itself_is_comment_and_its_script_is_sound(tmp_path: Path, kind: str) -> None:
    asked = study(tmp_path, kind, {"tp": [1]}, prepare=["rehearse"])
    workload = catalog.part("workloads", kind)(asked)
    lines = workload.prepare(trial(asked), tmp_path / "run").command.splitlines()
    assert "the engine (engine.sh)" in lines[0]
    assert [line for line in lines if not line.startswith("# ")] == lines[-1:]
    assert lines[-1].startswith("exec ")
    assert subprocess.run(["sh", "-n", str(tmp_path / "run" / "engine.sh")], check=False).returncode == 0


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("mem_fraction_static", "vLLM calls it gpu_memory_utilization"),
        ("chunked_prefill_size", "vLLM calls it max_num_batched_tokens"),
        ("max_running_request", "did you mean max_num_seqs?"),
        ("block_sizes", "did you mean block_size?"),
        ("colour", "max_num_seqs"),
    ],
)
def test_an_unknown_flag_of_vllm_is_answered_in_vllms_names(tmp_path: Path, name: str, remedy: str) -> None:
    asked = study(tmp_path, "vllm-offline", {name: [0.8]}, engine="python3")
    (found,) = messages(catalog.part("workloads", "vllm-offline")(asked))
    assert remedy in found
    assert "mem_fraction_static" not in found.partition(";")[2]
    assert "max_running_requests" not in found


def test_what_was_recorded_of_a_model_gives_the_same_runs_where_the_model_is_not(tmp_path: Path) -> None:
    shape = tmp_path / "models" / "nemo"
    shape.mkdir(parents=True)
    shutil.copy(EXAMPLES / "mistral-nemo-12b" / "config.json", shape)
    asked = study(tmp_path, kind="sglang-serve", model="./models/nemo", gpu="h200")
    before = sglang_serve(asked)
    before.prepare(trial(asked), tmp_path / "a")
    seen = json.loads(json.dumps(before.programs()))  # as a journal keeps it
    shutil.rmtree(shape)
    after = sglang_serve(replace(asked, recorded=seen))
    after.prepare(trial(asked), tmp_path / "b")
    first, second = ((tmp_path / name / "session.json").read_text() for name in ("a", "b"))
    assert json.loads(first)["make_model"] and json.loads(first)["predicted_tok_s"] > 0
    assert second == first
    assert after.paste(asked.baseline) == before.paste(asked.baseline)
    assert after.refusal({"mem_fraction_static": 0.1}) == before.refusal({"mem_fraction_static": 0.1}) != None  # noqa: E711


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"hicache_size": [200], "tp": [8], "enable_hierarchical_cache": [False]}, ""),
        ({"hicache_size": [200], "tp": [8], "enable_hierarchical_cache": [True]}, "take 1,600 GB of a node that has"),
        ({"hicache_size": [50], "tp": [8], "enable_hierarchical_cache": [True]}, ""),
    ],
)
def test_a_host_tier_must_fit_the_memory_of_a_node(tmp_path: Path, knobs: dict[str, list[object]], words: str) -> None:
    asked = study(tmp_path, knobs=knobs, version="0.5.18")
    site = replace(asked.site, memory_bytes_per_node=10**12, gpus_per_node=8)
    said = sglang_offline(replace(asked, site=site, job=job(gpus="8"))).refusal(trial(asked).settings) or ""
    assert words in said and said.startswith("with SGLang 0.5.18, " if words else "")
    assert bool(said) == bool(words)
