"""A bench of a server calibrates the twin: what its result says is replayed, what it lacks is asked for."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.errors import InputError
from ridgeline.serving.traffic.requests import write_records
from ridgeline.serving.traffic.traffic import AsRecorded, ClosedLoop, OpenLoop, Traffic, dataset_of, parse_traffic
from ridgeline.serving.twin.calibrate import calibrate
from ridgeline.serving.twin.calibration import Calibration, Factors, read_calibration, write_calibration
from ridgeline.serving.twin.fit import FactorFit
from ridgeline.serving.twin.served_runs import StatedServer, read_served_runs
from ridgeline.serving.twin.simulate import SimulationResult, simulate
from ridgeline.serving.verbs.calibrate import calibration_text
from tests.twin import deployments as make

SAMPLES = Path(__file__).parents[2] / "samples" / "bench"
# a server with a slow front end and slower steps than the priors say
OTHER = Calibration(factors=Factors(front_end=3.0, decode=1.3, prefill=1.3))
SERVER = {"engine": "sglang", "version": "0.5.23", "model_path": "llama-8b", "tp": 1}


def served(sent: Traffic, site: Calibration | None = OTHER) -> SimulationResult:
    return simulate(make.llama(), sent, site)


def document(sent: Traffic, result: SimulationResult, **more: object) -> dict:
    pace = sent.pace
    load = {"concurrency": pace.concurrency} if isinstance(pace, ClosedLoop) else {"rate_s": pace.rate_s}
    told = {"dataset": dataset_of(sent), "requests": sent.requests, "seed": sent.seed}
    figures = {**result.summary.as_json(), "failed_requests": 0, "void": False, "client": {"workers": 1}}
    return {"url": "http://x", "model": "llama-8b", "load": load, "traffic": told, "server": SERVER, **figures, **more}


def written(path: Path, sent: Traffic, **more: object) -> Path:
    path.write_text(json.dumps(document(sent, served(sent), **more)))
    return path


LIGHT = parse_traffic("sharegpt", requests=80, rate_s=4)
BUSY = parse_traffic("sharegpt", requests=150, rate_s=12)


def missed(site: Calibration | None) -> dict[str, float]:
    """How far each figure at another rate is from what the server does there."""
    truth, said = served(BUSY).summary, served(BUSY, site).summary
    pairs = {"ttft": (said.ttft_ms, truth.ttft_ms), "tpot": (said.tpot_ms, truth.tpot_ms)}
    return {name: abs(a.p50 / b.p50 - 1) for name, (a, b) in pairs.items()}


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("bench") / "bench.json", LIGHT)


@pytest.fixture(scope="module")
def site(light: Path) -> FactorFit:
    """Calibrated on the light load alone."""
    return calibrate([light], gpu="h200")


def test_a_bench_at_one_rate_brings_another_rate_closer(site: FactorFit):
    before, after = missed(None), missed(site.calibration)
    assert before["ttft"] > 0.3
    assert before["tpot"] > 0.1
    assert after["ttft"] < 0.7 * before["ttft"]
    assert after["tpot"] < 0.5 * before["tpot"]
    assert site.calibration.factors.front_end > 1.5


def test_what_one_rate_does_not_tell_is_said(site: FactorFit, light: Path, tmp_path: Path):
    text = calibration_text(site, tmp_path / "site.json")
    assert "one load only (4 requests/s)" in text
    assert "says nothing of" in text
    assert "network" in text.partition("says nothing of")[2].partition("\n")[0]
    both = calibrate([light, written(tmp_path / "busy.json", BUSY)], gpu="h200")
    assert not any("one load only" in remark for remark in both.remarks)


def test_the_very_requests_are_replayed_where_they_were_kept(tmp_path: Path):
    result = served(LIGHT)
    write_records(tmp_path / "requests.jsonl", result.records)
    kept = document(LIGHT, result, records_file="elsewhere/requests.jsonl")
    (tmp_path / "requests.summary.json").write_text(json.dumps(kept))
    (row,) = read_served_runs(tmp_path / "requests.jsonl", StatedServer(gpu="h200"))
    again = [(a.input_tokens, a.output_tokens) for a in row.traffic.arrivals()]
    assert again == [(a.input_tokens, a.output_tokens) for a in LIGHT.arrivals()]
    assert isinstance(row.traffic.pace, AsRecorded)
    assert not row.note


def test_a_sweep_is_a_row_for_each_of_its_points(tmp_path: Path):
    loads = [parse_traffic("fixed:200:20", requests=40, concurrency=n) for n in (1, 4)]
    points = [document(sent, served(sent)) for sent in loads]
    points.append({**points[0], "void": True, "why": "it was late"})
    (tmp_path / "sweep.json").write_text(json.dumps({"url": "http://x", "grid": {}, "points": points}))
    rows = read_served_runs(tmp_path / "sweep.json", StatedServer(gpu="h200"))
    assert [row.traffic.concurrency for row in rows] == [1, 4]


def test_a_result_without_requests_or_recipe_is_taken_at_its_mean_lengths(tmp_path: Path):
    path = written(tmp_path / "bench.json", LIGHT, traffic={})
    (row,) = read_served_runs(path, StatedServer(gpu="h200"))
    assert isinstance(row.traffic.pace, OpenLoop)
    assert "mean lengths" in row.note


@pytest.mark.parametrize(
    ("change", "told", "asked_for"),
    [
        ({}, StatedServer(), "--gpu"),
        ({"server": {}}, StatedServer(gpu="h200"), "--server-flags"),
        ({"server": {"tp": 1}, "model": "gpt-9"}, StatedServer(gpu="h200"), "--model"),
        ({"void": True, "why": "sent late"}, StatedServer(gpu="h200"), "sent late"),
        ({"failed_requests": 60}, StatedServer(gpu="h200"), "60 of 80 requests failed"),
        ({"failed_requests": 80}, StatedServer(gpu="h200"), "no request was answered"),
        ({"ttft_ms": None, "tpot_ms": None, "itl_ms": None}, StatedServer(gpu="h200"), "streaming"),
        ({"server": {**SERVER, "disaggregation_mode": "decode"}}, StatedServer(gpu="h200"), "router"),
        ({}, StatedServer(gpu="h200", flags="--tp-size 0"), "--server-flags"),
        ({}, StatedServer(gpu="h200", engine="trt:1"), "not simulated"),
    ],
)
def test_what_is_missing_or_broken_is_named(tmp_path: Path, change: dict, told: StatedServer, asked_for: str):
    path = written(tmp_path / "bench.json", LIGHT, **change)
    with pytest.raises(InputError, match=asked_for):
        read_served_runs(path, told)


def test_flags_of_a_vllm_server_are_read_as_its_own(tmp_path: Path):
    path = written(tmp_path / "bench.json", LIGHT, server={"engine": "vllm", "version": "0.17.0"})
    told = StatedServer(gpu="h200", flags="vllm serve x --tensor-parallel-size 2 --max-num-seqs 64")
    (row,) = read_served_runs(path, told)
    assert row.deployment.layout.tp == 2
    assert row.deployment.settings.max_running_requests == 64
    assert (row.deployment.settings.engine, row.deployment.settings.version) == ("vllm", (0, 17, 0))


def test_results_of_other_load_generators_calibrate_too():
    told = StatedServer("llama-8b", "h200", "vllm", "--tensor-parallel-size 1")
    (row,) = read_served_runs(SAMPLES / "vllm-bench-serve-0.32.0.json", told)
    assert row.traffic.concurrency == 2
    assert {"ttft_p50_s", "tpot_mean_s"} <= row.values.keys()
    (sglang,) = read_served_runs(SAMPLES / "sglang-bench-serving-0.5.6.jsonl", replace(told, engine="sglang"))
    assert sglang.traffic.requests == 500
    assert "itl_p50_s" not in sglang.values  # its tokens came in lumps


def test_the_file_keeps_what_was_measured(site: FactorFit, tmp_path: Path):
    write_calibration(site.calibration, tmp_path / "site.json")
    (scene,) = read_calibration(tmp_path / "site.json").scope
    assert (scene.gpu, scene.engine, scene.release, scene.model, scene.shape) == (
        "h200", "sglang", "0.5.23", "llama-8b", "tp 1",
    )  # fmt: skip
    assert 1 < scene.fewest == scene.most < 20


def test_sessions_are_replayed_as_sessions_whether_or_not_each_request_was_kept(tmp_path: Path):
    sent = parse_traffic("sessions:chat", requests=60, sessions=4)
    kept = tmp_path / "requests.jsonl"
    write_records(kept, served(sent).records)
    for more in ({}, {"records_file": str(kept)}):
        path = written(tmp_path / "bench.json", sent, load={"sessions": 4}, **more)
        (row,) = read_served_runs(path, StatedServer(gpu="h200"))
        assert row.traffic.pace == ClosedLoop(4)
        assert any(arrival.after for arrival in row.traffic.arrivals())


def test_an_engine_or_a_model_that_contradicts_the_result_is_named(light: Path):
    with pytest.raises(InputError, match="measured on sglang, but --engine says vllm"):
        calibrate([light], gpu="h200", engine="vllm:0.12.0")
    said = "\n".join(calibrate([light], gpu="h200", model="qwen2.5-7b").remarks)
    assert "names llama-8b, taken as qwen2.5-7b" in said
