"""simulate, explain and calibrate as a user meets them: words in, one JSON document or a clear refusal out."""

import json
from pathlib import Path

import pytest

from ridgeline.cli.main import run
from ridgeline.errors import InputError

SAMPLES = Path(__file__).parents[1] / "samples" / "sglang"
R1 = ["--model", "deepseek-r1", "--gpu", "h100", "--nodes", "2", "--gpus-per-node", "8"]


def call(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    try:
        run(list(words))
    except SystemExit as end:
        assert not end.code
    return capsys.readouterr().out


def test_simulate_prints_one_document(capsys):
    words = ["--tp", "16", "--requests", "50", "--concurrency", "10", "--seed", "3", "--slo", "ttft_p95_ms=5000"]
    answer = json.loads(call(capsys, "simulate", *R1, *words, "--json"))
    assert answer["successful_requests"] == 50
    assert answer["total_tok_s"] == pytest.approx(answer["input_tok_s"] + answer["output_tok_s"])
    low, high = answer["interval"]["total_tok_s"]
    assert low < answer["total_tok_s"] < high
    assert set(answer["ttft_ms"]) == set(answer["itl_ms"]) == {"mean", "p50", "p90", "p95", "p99"}
    assert answer["goodput"] is not None
    assert answer["cpu_s"] > 0
    assert answer["origin"] == "modelled"


def test_simulate_knows_groups(capsys):
    words = ["--prefill-groups", "3x3", "--decode-groups", "1x4", "--traffic", "fixed:2000:20", "--requests", "16"]
    text = call(capsys, "simulate", "--model", "deepseek-v3", "--gpu", "h800", *words)
    assert "P3x3D4" in text
    assert "not calibrated" in text


def test_explain_adds_up(capsys):
    answer = json.loads(call(capsys, "explain", *R1, "--tp", "16", "--batch", "64", "--json"))
    for step in answer["steps"]:
        assert sum(t["ms"] for t in step["terms"]) == pytest.approx(step["ms"])
    assert {s["phase"] for s in answer["steps"]} == {"prefill", "decode"}
    assert "all-reduce over 16" in call(capsys, "explain", *R1, "--tp", "16")


def test_calibrate_then_simulate(capsys, tmp_path):
    site = tmp_path / "site.json"
    log = SAMPLES / "offline-llama8b-h200-default.log"
    fitted = json.loads(call(capsys, "calibrate", "--from", str(log), "--out", str(site), "--json"))
    assert fitted["points"] == len(fitted["fitted"])
    words = ["--model", "llama-8b", "--gpu", "h200", "--gpus-per-node", "1", "--requests", "20"]
    answer = json.loads(call(capsys, "simulate", *words, "--calibration", str(site), "--json"))
    assert answer["calibrated"] is True


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--tp", "16", "--rate", "0"], "above zero"),
        (["--tp", "16", "--traffic", "fixed:163000:2000"], "the context of deepseek-r1 holds"),
        (["--tp", "3"], "not possible"),
        (["--tp", "8", "--nodes", "1"], "does not fit.*\n.*nearest that fits"),
        (["--tp", "16", "--engine", "tgi"], "use sglang"),
        (["--tp", "16", "--attention-backend", "fa9"], "use one of fa3"),
        (["--tp", "16", "--routing", "random"], "round-robin"),
        (["--tp", "16", "--prefill-groups", "3x3"], "come together"),
        (["--tp", "16", "--accept-length", "3"], "draft tokens"),
        (["--tp", "16", "--calibration", "nowhere.json"], "ridgeline calibrate"),
        (["--tp", "16", "--traffic", "fixed:90000:500", "--requests", "2", "--mem-fraction", "0.56"], "KV pool"),
    ],
)
def test_impossible_questions_get_the_nearest_possible_one(words: list[str], says: str):
    with pytest.raises(InputError, match=f"(?s){says}"):
        run(["simulate", *R1, *words])
