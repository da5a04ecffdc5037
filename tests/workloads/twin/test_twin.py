"""The twin as a workload: the twin's own answer in SGLang's words, refusals before a run is spent, failures as logs."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.campaign.check import check_study
from ridgeline.campaign.judge import judge
from ridgeline.errors import StudyError
from ridgeline.records.outcome import Kind, Outcome
from ridgeline.records.run import Cause, Ending, Resources, Run
from ridgeline.records.site import SPEED_ENV, STOPS_AT_ENV
from ridgeline.records.space import Settings
from ridgeline.records.trial import Stage, Trial
from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.settings import EngineSettings
from ridgeline.serving.engines.sglang.log import read_sglang_log
from ridgeline.serving.hardware.cluster import make_cluster
from ridgeline.serving.model.config import load_model
from ridgeline.serving.traffic.traffic import parse_traffic
from ridgeline.serving.twin.calibration import PRIOR_SPREAD
from ridgeline.serving.twin.simulate import simulate
from ridgeline.serving.workloads.twin.workload import TwinWorkload

EXAMPLE = Path(__file__).parents[3] / "examples" / "04-deepseek-r1-16-gpus" / "study.yaml"
BASELINE: dict[str, object] = {
    "tp": 16,
    "pp": 1,
    "dp": 1,
    "attn_dp": 1,
    "max_running_requests": 1024,
    "mem_fraction_static": 0.80,
    "attention_backend": "fa3",
    "page_size": 1,
}


@pytest.fixture(scope="module")
def twin() -> TwinWorkload:
    workload = check_study(EXAMPLE).workload
    assert isinstance(workload, TwinWorkload)
    return workload


def settings(**changes: object) -> Settings:
    point = {**BASELINE, **changes}
    return {**point, "cuda_graph_max_bs": point["max_running_requests"]}  # type: ignore[dict-item]


def performed(twin: TwinWorkload, folder: Path, *, speed: float = 1.0, **changes: object) -> tuple[Run, Outcome]:
    """The run as a site would have it, and what the campaign makes of it."""
    study = check_study(EXAMPLE).study
    chosen = settings(**changes)
    home = folder / "runs" / "0001"
    job = twin.prepare(Trial(1, chosen, chosen, Stage.SEARCH, "test"), home)
    env = {SPEED_ENV: str(speed), "PATH": "/usr/bin:/bin"}
    code = subprocess.run(["sh", "-c", job.command], cwd=home, env=env, check=False).returncode
    took_s = float((home / "took_s").read_text())
    run = Run(1, 1, 1, home, Resources(2), Ending(Cause.EXITED, code, started_s=1.0, ended_s=1.0 + took_s))
    reading = twin.read(run)
    outcome = judge(run, reading, twin, study, chosen, {})
    return replace(run, measurements=reading.measurements), outcome


def test_the_measured_figure_is_the_twins_own_and_says_that_it_is_modelled(twin: TwinWorkload, tmp_path: Path) -> None:
    run, outcome = performed(twin, tmp_path)
    assert outcome.kind is Kind.OK
    engine = EngineSettings(
        attention_backend="fa3", max_running_requests=1024, cuda_graph_max_bs=1024, mem_fraction=0.80, page_size=1
    )
    deployment = Deployment(load_model("deepseek-r1"), make_cluster("h100", 6, 8), Layout(tp=16, nodes=2), engine)
    alone = simulate(deployment, parse_traffic("sharegpt", requests=2000, seed=2025))
    assert run.metrics["total_tok_s"] == pytest.approx(alone.summary.total_tok_s, rel=1e-4)
    assert run.metrics["kv_tokens"] == alone.memory[0].kv_tokens_per_rank
    assert alone.summary.ttft_ms is not None
    assert run.metrics["ttft_p95_ms"] == pytest.approx(alone.summary.ttft_ms.p95, rel=1e-3)
    assert {m.origin for m in run.measurements} == {"modelled"}


def test_energy_of_a_token_is_measured_and_may_be_the_goal(twin: TwinWorkload, tmp_path: Path) -> None:
    run, _ = performed(twin, tmp_path)
    figures = {m.metric: m for m in twin.read(run).measurements}
    joules = figures["joules_per_output_token"]
    assert joules.origin == "modelled"
    assert joules.value == pytest.approx(16 * figures["gpu_power_w"].value / figures["output_tok_s"].value, rel=0.02)
    goal = replace(twin._study.goal, metric="joules_per_output_token")
    expected = TwinWorkload(replace(twin._study, goal=goal)).expectation(settings())
    assert expected is not None
    assert expected.mean == pytest.approx(joules.value, rel=1e-3)
    assert expected.low < joules.value < expected.high  # type: ignore[operator]


def test_a_slower_node_scales_rates_and_times_alike(twin: TwinWorkload, tmp_path: Path) -> None:
    usual, _ = performed(twin, tmp_path / "a")
    slow, _ = performed(twin, tmp_path / "b", speed=0.8)
    assert slow.metrics["total_tok_s"] == pytest.approx(0.8 * usual.metrics["total_tok_s"], rel=1e-3)
    assert slow.metrics["duration_s"] == pytest.approx(usual.metrics["duration_s"] / 0.8, rel=1e-3)
    assert slow.metrics["ttft_p50_ms"] == pytest.approx(usual.metrics["ttft_p50_ms"] / 0.8, rel=1e-3)
    assert slow.metrics["successful_requests"] == usual.metrics["successful_requests"] == 2000


def test_the_published_order_of_layouts(twin: TwinWorkload, tmp_path: Path) -> None:
    """TP 16 over two nodes is the slowest, more room for requests helps it, PP with attention DP is far ahead."""
    tp16, _ = performed(twin, tmp_path / "a")
    more_memory, _ = performed(twin, tmp_path / "b", mem_fraction_static=0.85)
    pp2, _ = performed(twin, tmp_path / "c", tp=8, pp=2, attn_dp=8, max_running_requests=2048, mem_fraction_static=0.85)
    rates = [run.metrics["total_tok_s"] for run in (tp16, more_memory, pp2)]
    assert rates == sorted(rates)
    assert rates[2] > 1.5 * rates[1]  # published: 17,805 against 10,772


def test_only_the_first_run_of_a_layout_pays_for_compiling(twin: TwinWorkload, tmp_path: Path) -> None:
    first, _ = performed(twin, tmp_path)
    again, _ = performed(twin, tmp_path)
    other, _ = performed(twin, tmp_path, tp=8, pp=2)
    assert 600 <= first.ending.duration_s - again.ending.duration_s <= 1200
    assert other.ending.duration_s > 600
    assert first.metrics["total_tok_s"] == again.metrics["total_tok_s"], "the tax is no part of the measurement"


def test_out_of_memory_while_running_says_so_in_sglangs_words(twin: TwinWorkload, tmp_path: Path) -> None:
    run, outcome = performed(twin, tmp_path, mem_fraction_static=0.89)  # the published out-of-memory
    assert outcome.kind is Kind.OOM_RUN
    assert outcome.evidence is not None
    assert "torch.OutOfMemoryError" in outcome.evidence.text
    assert "total_tok_s" not in run.metrics
    log = read_sglang_log((run.folder / "sglang.log").read_text().splitlines())
    failure = next(f for f in log.failures if f.kind == "cuda-oom")
    assert failure.ready, "it started, and died later"


def test_no_room_for_graphs_is_an_out_of_memory_at_start(twin: TwinWorkload, tmp_path: Path) -> None:
    run, outcome = performed(twin, tmp_path, mem_fraction_static=0.94, max_running_requests=4096)
    assert outcome.kind is Kind.OOM_START
    assert "Capture cuda graph failed" in str(outcome.evidence)
    assert run.ending.duration_s < 1000


def test_a_pool_that_just_misses_is_tried_and_fails_at_start(twin: TwinWorkload, tmp_path: Path) -> None:
    fraction = _fraction_that_just_misses(twin)
    _, outcome = performed(twin, tmp_path, mem_fraction_static=fraction)
    assert outcome.kind is Kind.OOM_START
    assert "--mem-fraction-static" in str(outcome.evidence)
    assert twin.predicted_failure(settings(mem_fraction_static=fraction))


def _fraction_that_just_misses(twin: TwinWorkload) -> float:
    for thousandths in range(700, 300, -1):
        chosen = settings(mem_fraction_static=thousandths / 1000)
        if twin.refusal(chosen) is None and "no room" in (twin.predicted_failure(chosen) or ""):
            return thousandths / 1000
    raise AssertionError("no fraction at which the pool just misses")


def test_knobs_that_change_nothing_here_are_a_doubt(tmp_path: Path) -> None:
    """To the twin all their values are the same: it would call any of them the best."""
    text = EXAMPLE.read_text().replace("  tp: [2, 4, 8, 16]\n", "  tp: [2, 4, 8, 16]\n  schedule_policy: [fcfs, lpm]\n")
    shutil.copytree(EXAMPLE.parent, tmp_path / "study")
    study = tmp_path / "study" / "study.yaml"
    study.write_text(text.replace("baseline: {tp: 16,", "baseline: {tp: 16, schedule_policy: fcfs,"))
    told = check_study(study).workload
    assert isinstance(told, TwinWorkload)
    (doubt,) = told.doubts()
    assert doubt.startswith("schedule_policy: not modelled by the twin")
    chosen = settings(schedule_policy="fcfs")
    assert told.expectation(chosen) == told.expectation({**chosen, "schedule_policy": "lpm"})
    assert check_study(EXAMPLE).workload.doubts() == []


def test_limits_of_gpus_are_settings_of_their_own_and_a_wrong_one_refuses_its_setting_alone(tmp_path: Path) -> None:
    text = EXAMPLE.read_text().replace(
        "  tp: [2, 4, 8, 16]\n", "  tp: [2, 4, 8, 16]\n  gpu_power_limit: [default, 400]\n"
    )
    shutil.copytree(EXAMPLE.parent, tmp_path / "study")
    study = tmp_path / "study" / "study.yaml"
    study.write_text(text.replace("baseline: {tp: 16,", "baseline: {tp: 16, gpu_power_limit: default,"))
    told = check_study(study).workload
    assert isinstance(told, TwinWorkload)
    assert told.doubts() == []
    free, held = (told.expectation(settings(gpu_power_limit=limit)) for limit in ("default", 400))
    assert held.mean < free.mean  # type: ignore[union-attr,operator]
    assert held.high / held.low > free.high / free.low  # type: ignore[union-attr,operator]
    assert "gpu_power_limit: 'much' is no limit" in str(told.refusal(settings(gpu_power_limit="much")))
    assert "} --power-limit=400\n" in told.paste(settings(gpu_power_limit=400))


def test_a_doubt_is_no_refusal(twin: TwinWorkload) -> None:
    risky = settings(mem_fraction_static=0.89)
    assert twin.refusal(risky) is None
    assert "GiB" in str(twin.predicted_failure(risky))
    assert twin.predicted_failure(settings()) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tp": 8, "dp": 2}, "does not fit: weights need"),
        ({"tp": 8}, "nodes would be idle"),
        ({"tp": 16, "pp": 2}, "32 GPUs"),
        ({"attn_dp": 32}, "does not divide tp 16"),
        ({"attention_backend": "flashmla", "page_size": 16}, "with SGLang 0.5.23, page_size 16 is never applied"),
        ({"attn_dp": 16, "max_running_requests": 8}, "give at least 16"),
        ({"mem_fraction_static": 1.2}, "a share between 0 and 1"),
        ({"attention_backend": "fa9"}, "attention_backend takes one of"),
        ({"mem_fraction_static": 0.3}, "does not fit"),
    ],
)
def test_what_cannot_work_is_refused_with_its_reason(
    twin: TwinWorkload, changes: dict[str, object], reason: str
) -> None:
    assert reason in str(twin.refusal(settings(**changes)))


def test_a_pool_the_engine_would_not_have_by_itself_is_not_assumed(twin: TwinWorkload) -> None:
    # SGLang's own fraction leaves nothing here; a higher one must be a value of the study to count
    own = {name: value for name, value in settings(attn_dp=16).items() if name != "mem_fraction_static"}
    assert "does not fit" in str(twin.refusal(own))
    assert twin.refusal(settings(attn_dp=16, mem_fraction_static=0.88)) is None


@given(
    tp=st.sampled_from([1, 2, 4, 8, 16]),
    pp=st.sampled_from([1, 2, 4, 8, 16]),
    attn_dp=st.sampled_from([1, 2, 8, 16]),
    fraction=st.floats(0.05, 0.99),
    running=st.integers(1, 5000),
    backend=st.sampled_from(["fa3", "triton", "flashinfer", "flashmla", "nonsense"]),
)
def test_every_setting_has_an_answer_or_a_reason(
    twin: TwinWorkload, tp: int, pp: int, attn_dp: int, fraction: float, running: int, backend: str
) -> None:
    chosen = settings(
        tp=tp, pp=pp, attn_dp=attn_dp, mem_fraction_static=fraction, max_running_requests=running,
        attention_backend=backend,
    )  # fmt: skip
    refused = twin.refusal(chosen)
    assert refused is None or len(refused) > 10
    assert twin.refusal(chosen) == refused


def test_a_run_that_stops_half_way_leaves_half_a_log_and_no_result(twin: TwinWorkload, tmp_path: Path) -> None:
    chosen = settings()
    home = tmp_path / "runs" / "0001"
    job = twin.prepare(Trial(1, chosen, chosen, Stage.SEARCH, "test"), home)
    subprocess.run(["sh", "-c", job.command], cwd=home, env={STOPS_AT_ENV: "0.5", "PATH": "/usr/bin:/bin"}, check=False)
    reading = twin.read(Run(1, 1, 1, home, Resources(2), Ending(Cause.NODE_FAILED)))
    assert "no result" in reading.problem
    assert "ServerArgs" in (home / "sglang.log").read_text()
    assert not (home.parent / ".compiled").exists(), "kernels that were not finished are not in the cache"


def test_the_log_is_one_that_our_reader_knows(twin: TwinWorkload, tmp_path: Path) -> None:
    run, _ = performed(twin, tmp_path, tp=8, pp=2, attn_dp=4)
    log = read_sglang_log((run.folder / "sglang.log").read_text().splitlines())
    assert log.server_args["tp_size"] == 8
    assert log.server_args["attn_dp_size"] == 4
    assert len(log.weights) == len(log.kv_pools) == len(log.graphs) == len(log.limits) == 1
    assert log.server_args["max_running_requests"] == 1024
    assert log.limits[0].max_running_requests == 256, "a scheduler prints the share of its own attention-DP rank"
    assert [notice.kind for notice in log.notices] == ["compile"] * 4
    assert len(log.prefills) > 10
    assert len(log.decodes) > 10
    assert all(d.gen_tok_s and d.running for d in log.decodes)
    times = [d.stamp.time for d in log.decodes]
    assert times == sorted(times, key=str)
    assert log.results[0].successful_requests == 2000


def test_paste_is_what_a_person_types(twin: TwinWorkload) -> None:
    best = settings(tp=8, pp=2, attn_dp=8, mem_fraction_static=0.88)
    assert twin.paste({**best, "gpus": 16}).splitlines()[2:] == [
        "rank=0 head=$(hostname -I | cut -d' ' -f1)",
        "python3 -m sglang.launch_server --model-path deepseek-r1 --host 127.0.0.1 --port 30000 "
        "--tp-size 8 --pp-size 2 --attn-dp-size 8 --max-running-requests 1024 --mem-fraction-static 0.88 "
        "--attention-backend fa3 --page-size 1 --cuda-graph-max-bs-decode 1024 "
        '--nnodes 2 --node-rank "$rank" --dist-init-addr "$head:20000"',
        ")",
    ]


def test_a_shape_without_weights_is_never_offered_as_if_it_could_be_served(twin: TwinWorkload) -> None:
    offered = twin.offered({**settings(tp=8, pp=2), "gpus": 16})
    assert '--model-path "${WEIGHTS:?' in offered and "deepseek-r1" not in offered


def test_an_older_engine_has_other_flags(tmp_path: Path) -> None:
    text = EXAMPLE.read_text().replace("  model:", "  version: 0.4.10\n  model:")
    file = _written(tmp_path, text)
    old = check_study(file).workload
    assert "--enable-dp-attention --dp-size 8" in old.paste(settings(attn_dp=8))
    assert "--cuda-graph-max-bs 1024" in old.paste(settings())


def _written(folder: Path, text: str) -> Path:
    (folder / "sites").mkdir(parents=True)
    (folder / "sites" / "two-dgx-h100.yaml").write_text((EXAMPLE.parent / "sites" / "two-dgx-h100.yaml").read_text())
    file = folder / "study.yaml"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  mem_fraction_static: {from", "  mem_fraction: {from", "did you mean mem_fraction_static?"),
        ("[fa3, flashinfer, triton]", "[fa3, flashinfr]", "'flashinfr' is not possible"),
        ("tp: [2, 4, 8, 16]", "tp: [2.5, 16]", "tp takes a whole number"),
        ("model: deepseek-r1", "model: deepsek-r1", "deepseek-r1"),
        ("requests: 2000,", "requests: none,", "traffic.requests: is 'none'; it must be a whole number"),
        ("dataset: sharegpt", "datset: sharegpt", "did you mean dataset?"),
        ("dataset: sharegpt", "dataset: sharegp", "neither a file nor one of"),
        ("maximize: total_tok_s", "maximize: total_toks", "did you mean total_tok_s?"),
        ("cached_token_share <", "cached_share <", "cached_share is not a metric"),
        ("  model: deepseek-r1", "  model: deepseek-r1\n  calibraton: x", "did you mean calibration?"),
        (
            "  model: deepseek-r1",
            "  model: deepseek-r1\n  flags: {max_model_len: 512}",
            "no such knob for twin, which simulates SGLang; SGLang calls it context_length",
        ),
        ("tp: 16, pp: 1, dp: 1, attn_dp: 1", "tp: 8, pp: 1, dp: 2, attn_dp: 1", "weights need"),
    ],
)
def test_mistakes_in_the_study_are_named_with_the_nearest_remedy(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    text = EXAMPLE.read_text()
    assert old in text
    if old.startswith("  mem_fraction"):
        text = text.replace("mem_fraction_static: 0.80", "mem_fraction: 0.80")
    with pytest.raises(StudyError) as found:
        check_study(_written(tmp_path, text.replace(old, new)))
    assert message in str(found.value)
    assert "study.yaml:" in str(found.value)


def test_which_gpu_is_simulated_must_be_said_somewhere(tmp_path: Path) -> None:
    text = EXAMPLE.read_text().replace("site: sites/two-dgx-h100.yaml", "site: {nodes: 2}")
    with pytest.raises(StudyError, match="the GPU is not stated"):
        check_study(_written(tmp_path, text))
    (tmp_path / "study.yaml").write_text(text.replace("  model:", "  gpu: h100\n  model:"))
    assert check_study(tmp_path / "study.yaml").workload.refusal(settings()) is None


def test_a_calibration_beside_the_study_is_used(tmp_path: Path) -> None:
    text = EXAMPLE.read_text().replace("  model:", "  calibration: fast.yaml\n  model:")
    file = _written(tmp_path, text)
    (tmp_path / "fast.yaml").write_text(json.dumps({"factors": {"memory": 2.0, "network": 2.0, "compute": 2.0}}))
    fast = check_study(file).workload
    assert isinstance(fast, TwinWorkload)
    plain = check_study(EXAMPLE).workload
    assert isinstance(plain, TwinWorkload)
    quick, _ = performed(fast, tmp_path / "a")
    usual, _ = performed(plain, tmp_path / "b")
    assert quick.metrics["total_tok_s"] > 1.2 * usual.metrics["total_tok_s"]


def test_flags_of_every_trial_and_the_pace_of_requests_are_applied(tmp_path: Path) -> None:
    extra = "  flags: {chunked_prefill_size: 2048, context_length: 16384}\n  concurrency: 32\n  load_format: dummy\n"
    file = _written(tmp_path, EXAMPLE.read_text().replace("  model:", f"{extra}  model:"))
    paced = check_study(file).workload
    assert isinstance(paced, TwinWorkload)
    assert "--chunked-prefill-size 2048" in paced.paste(settings())
    slow, outcome = performed(paced, tmp_path)
    assert outcome.kind is Kind.OK
    assert slow.metrics["ttft_p95_ms"] < 5000, "32 at a time do not wait long"
    assert slow.metrics["total_tok_s"] < 4000


def test_the_study_of_the_example_is_one_for_the_real_engine_too(tmp_path: Path) -> None:
    text = EXAMPLE.read_text().replace("kind: twin ", "kind: sglang-offline ")
    real = "site: {batch: slurm, launcher: srun, nodes: 6, gpus_per_node: 8}"
    checked = check_study(_written(tmp_path, text.replace("site: sites/two-dgx-h100.yaml", real)))
    assert checked.study.workload.kind == "sglang-offline"
    assert "--tp-size 16" in checked.workload.paste(settings())


def test_the_twin_says_what_its_answers_rest_on(twin: TwinWorkload) -> None:
    moves = dict(zip(PRIOR_SPREAD, twin.sensitivities(settings()), strict=True))
    assert min(moves[rate] for rate in ("compute", "memory", "attention", "network")) >= 0
    assert moves["network"] > 0.05, "sixteen ranks over two nodes wait for the network"
    assert moves["host"] <= 0 and moves["prefill_host"] <= 0, "a slower host makes nothing faster"


def test_what_an_answer_rests_on_is_simulated_once(twin: TwinWorkload, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sampler is made again and again while a campaign runs."""
    before = twin.sensitivities(settings())
    monkeypatch.setattr("ridgeline.serving.workloads.twin.workload.simulate", None)
    assert twin.sensitivities(settings()) == before


def test_a_setting_that_cannot_run_and_a_calibrated_twin_rest_on_nothing(
    twin: TwinWorkload, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert twin.sensitivities(settings(tp=3)) == ()
    options = twin._options
    monkeypatch.setattr(twin, "_options", replace(options, calibration=replace(options.calibration, points=5)))
    assert twin.sensitivities(settings()) == ()


def test_settings_that_differ_in_memory_with_room_alone_are_simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated: list[Deployment] = []

    def counted(deployment: Deployment, *rest: object) -> object:
        simulated.append(deployment)
        return simulate(deployment, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("ridgeline.serving.workloads.twin.workload.simulate", counted)
    workload = check_study(EXAMPLE).workload
    assert isinstance(workload, TwinWorkload)
    few, fewer = (settings(max_running_requests=64, mem_fraction_static=share) for share in (0.88, 0.86))
    first, second = workload.expectation(few), workload.expectation(fewer)
    assert first is not None and second is not None and first.mean == second.mean
    assert len(simulated) == 1
    alone = check_study(EXAMPLE).workload
    assert isinstance(alone, TwinWorkload)
    own = alone.expectation(fewer)
    assert own is not None and own.mean == second.mean and len(simulated) == 2


def test_a_shared_simulation_fills_each_pool_by_its_own_size() -> None:
    shared, alone = (check_study(EXAMPLE).workload for _ in range(2))
    assert isinstance(shared, TwinWorkload) and isinstance(alone, TwinWorkload)
    large, small = (
        settings(max_running_requests=64, mem_fraction_static=share, page_size=page)
        for share, page in ((0.88, 1), (0.80, 32))
    )
    shared.expectation(large)
    assert played(shared, small) == played(alone, small) != played(shared, large)


def played(workload: TwinWorkload, chosen: Settings) -> str:
    case = workload._case(chosen)
    assert not isinstance(case, str)
    return workload._play(chosen, case)


def test_a_kv_cache_of_another_dtype_is_simulated_by_itself() -> None:
    workload, alone = (check_study(EXAMPLE).workload for _ in range(2))
    assert isinstance(workload, TwinWorkload) and isinstance(alone, TwinWorkload)
    whole, half = (settings(max_running_requests=64, kv_cache_dtype=dtype) for dtype in ("auto", "fp8_e4m3"))
    first, second, own = workload.expectation(whole), workload.expectation(half), alone.expectation(half)
    assert first is not None and second is not None and own is not None
    assert second.mean == own.mean != first.mean


_SLO = "  slo: [ttft_p95_ms=9000, itl_p95_ms=60]\n"


def limited(folder: Path, more: str = _SLO, load: str = "concurrency: 96") -> TwinWorkload:
    """The example as a study of goodput, with two hundred requests."""
    text = EXAMPLE.read_text().replace("maximize: total_tok_s", "maximize: goodput")
    text = text.replace("requests: 2000,", "requests: 200,").replace(
        "successful_requests == 2000", "failed_requests == 0"
    )
    text = text.replace("  model:", f"  {load}\n{more}  model:")
    workload = check_study(_written(folder, text)).workload
    assert isinstance(workload, TwinWorkload)
    return workload


def test_goodput_is_that_of_the_simulation_and_fewer_meet_the_limits_on_a_slower_node(tmp_path: Path) -> None:
    twin = limited(tmp_path)
    said = twin.expectation(settings())
    assert said is not None and said.mean is not None and said.low is not None and said.high is not None
    usual, _ = performed(twin, tmp_path / "a")
    assert usual.metrics["goodput"] == pytest.approx(said.mean, rel=0.01)
    assert usual.metrics["failed_requests"] == 0
    assert 0 < usual.metrics["goodput"] < usual.metrics["requests_s"]
    slower, _ = performed(twin, tmp_path / "b", speed=0.8)
    assert slower.metrics["requests_s"] == pytest.approx(0.8 * usual.metrics["requests_s"], rel=0.01)
    assert slower.metrics["goodput"] < 0.7 * usual.metrics["goodput"], "near a limit a little slower is a lot less"
    assert said.low < 0.7 * said.mean < said.mean < said.high


def test_goodput_without_limits_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="give `slo` to the workload"):
        limited(tmp_path, more="")


def test_at_a_rate_a_faster_server_gets_no_more_requests(tmp_path: Path) -> None:
    twin = limited(tmp_path, load="rate: 4")
    said = twin.expectation(settings())
    assert said is not None and said.high is not None and said.mean is not None
    assert said.mean <= said.high < 4.3, "of 200 drawn arrivals a few more than four come a second"
    (remark,) = twin.remarks(settings())
    assert "at 4 requests/s no setting has a goodput beyond what is sent" in remark
    assert limited(tmp_path / "b").remarks(settings()) == []
