"""simulate, explain and calibrate as a user meets them: words in, one JSON document or a clear refusal out."""

import json
from pathlib import Path

import pytest

from ridgeline.cli.main import run
from ridgeline.errors import InputError
from ridgeline.serving.engines.releases import NEWEST, release_text

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
    answer = json.loads(call(capsys, "twin", "simulate", *R1, *words, "--json"))
    assert answer["successful_requests"] == 50
    assert answer["total_tok_s"] == pytest.approx(answer["input_tok_s"] + answer["output_tok_s"])
    low, high = answer["interval"]["total_tok_s"]
    assert low < answer["total_tok_s"] < high
    assert set(answer["ttft_ms"]) == set(answer["itl_ms"]) == {"mean", "p50", "p90", "p95", "p99"}
    assert answer["goodput"] is not None
    assert answer["cpu_s"] > 0
    assert answer["origin"] == "modelled"


@pytest.mark.parametrize(("rate", "piles_up"), [("5", False), ("60", True)])
def test_simulate_says_where_requests_pile_up(capsys, rate: str, piles_up: bool):
    words = ["--model", "llama-8b", "--gpu", "h100", "--gpus-per-node", "1", "--max-running-requests", "4"]
    words += ["--traffic", "fixed:100:10", "--requests", "600", "--rate", rate]
    assert json.loads(call(capsys, "twin", "simulate", *words, "--json"))["flow"]["saturated"] is piles_up
    assert ("load        saturated: " in call(capsys, "twin", "simulate", *words)) is piles_up


def test_simulate_knows_groups(capsys):
    words = ["--prefill-groups", "3x3", "--decode-groups", "1x4", "--traffic", "fixed:2000:20", "--requests", "16"]
    text = call(capsys, "twin", "simulate", "--model", "deepseek-v3", "--gpu", "h800", *words)
    assert "P3x3D4" in text
    assert "not calibrated" in text


def test_explain_adds_up(capsys):
    answer = json.loads(call(capsys, "twin", "explain", *R1, "--tp", "16", "--batch", "64", "--json"))
    for step in answer["steps"]:
        assert sum(t["ms"] for t in step["terms"]) == pytest.approx(step["ms"])
    assert {s["phase"] for s in answer["steps"]} == {"prefill", "decode"}
    assert "all-reduce over 16" in call(capsys, "twin", "explain", *R1, "--tp", "16")


def test_calibrate_then_simulate(capsys, tmp_path):
    site = tmp_path / "site.json"
    log = SAMPLES / "offline-llama8b-h200-default.log"
    fitted = json.loads(call(capsys, "twin", "calibrate", "--from", str(log), "--out", str(site), "--json"))
    assert fitted["points"] == len(fitted["fitted"])
    words = ["--model", "llama-8b", "--gpu", "h200", "--gpus-per-node", "1", "--requests", "20"]
    answer = json.loads(call(capsys, "twin", "simulate", *words, "--calibration", str(site), "--json"))
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
        (["--tp", "16", "--accept-length", "3"], "at least 2 drafted tokens"),
        (["--tp", "16", "--calibration", "nowhere.json"], "ridgeline twin calibrate"),
        (["--tp", "16", "--traffic", "fixed:90000:500", "--requests", "2", "--mem-fraction", "0.56"], "KV pool"),
    ],
)
def test_impossible_questions_get_the_nearest_possible_one(words: list[str], says: str):
    with pytest.raises(InputError, match=f"(?s){says}"):
        run(["twin", "simulate", *R1, *words])


SMALL = ("--model", "qwen3-32b", "--gpu", "h200", "--gpus-per-node", "1")


def test_what_was_simulated_is_stated(capsys):
    """Engine, release, dtypes, chunk and graphs, whoever chose them, in words and in JSON."""
    text = call(capsys, "twin", "simulate", *SMALL, "--requests", "20", "--max-running-requests", "7")
    (line,) = [line for line in text.splitlines() if line.startswith("  engine ")]
    for part in ("sglang 0.5", "weights bf16, KV bf16", "fa3, chunk 8192, graphs to", "at most 7 running"):
        assert part in line
    applied = json.loads(call(capsys, "twin", "simulate", *SMALL, "--requests", "20", "--engine", "vllm", "--json"))[
        "engines"
    ]
    assert (applied["both"]["engine"], applied["both"]["kv_cache"]) == ("vllm", "bf16")


def test_drawn_requests_beyond_the_context_are_cut_and_that_is_said(capsys):
    words = ("--traffic", "lognormal:20000:400:1.5", "--requests", "50", "--rate", "1")
    answer = json.loads(call(capsys, "twin", "simulate", *SMALL, *words, "--json"))
    assert answer["successful_requests"] == 50
    assert any("requests exceed the context of 40,960 tokens and are cut to it" in note for note in answer["assumed"])


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_release_beyond_those_that_are_known_is_said_to_be_taken_for_one(capsys, engine: str):
    def assumed(release: str) -> list[str]:
        return json.loads(call(capsys, "twin", "simulate", *SMALL, "--requests", "9", "--engine", release, "--json"))[
            "assumed"
        ]

    newest = release_text(engine, NEWEST)
    number = newest.split()[1]
    assert any(f"newer than {newest}" in note for note in assumed(f"{engine}:{number}.1"))
    for known in (engine, f"{engine}:{number}", f"{engine}:{number.rpartition('.')[0]}"):
        assert not any("newer than" in note for note in assumed(known))


def test_users_in_lock_step_are_pointed_out(capsys):
    words = ("--requests", "40", "--concurrency", "8", "--json")
    same = json.loads(call(capsys, "twin", "simulate", *SMALL, "--traffic", "fixed:100:10", *words))
    assert any("lock-step" in note for note in same["assumed"])
    apart = json.loads(call(capsys, "twin", "simulate", *SMALL, "--traffic", "uniform:50-150:5-15", *words))
    assert apart["assumed"] == []


def test_the_end_of_an_answer_is_never_bounded_before_its_first_token(capsys):
    words = ("--traffic", "fixed:1000:100", "--requests", "300", "--concurrency", "64", "--json")
    bounds = json.loads(call(capsys, "twin", "simulate", *SMALL, *words))["interval"]
    for q in ("p50", "p95", "p99"):
        assert bounds[f"e2e_{q}_ms"][1] >= bounds[f"ttft_{q}_ms"][1]
