"""Serving verbs as scripts call them: the promised words and keys, and a message for every impossible question."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from ridgeline.cli.main import main
from ridgeline.cli.text.table import json_text
from ridgeline.serving.model.fields import preset_names
from ridgeline.serving.traffic.requests import read_records
from tests.command_line import ridgeline

SAMPLES = Path(__file__).parents[1] / "samples" / "sglang"
R1 = "--model deepseek-r1 --gpu h100 --nodes 2 --gpus-per-node 8 --tp 16"
ONE = "--model llama-8b --gpu h200 --gpus-per-node 1"


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command line; gives exit code, what was printed, and the message."""

    def run(words: str | list[str]) -> tuple[int, str, str]:
        given = words.split() if isinstance(words, str) else words
        monkeypatch.setattr(sys, "argv", ["ridgeline", *given])
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return run


def document(ask: Any, words: str) -> dict[str, Any]:
    code, out, err = ask(f"{words} --json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


# -- the promised words and keys ----


@pytest.mark.parametrize(
    ("words", "tokens"),
    [
        (f"{R1} --mem-fraction 0.88", 424_274),
        (f"{R1} --attn-dp 16 --mem-fraction 0.88", 214_770),
        ("--model llama-8b --gpu h200 --gpus-per-node 1", 918_451),
        ("--model deepseek-v2-lite --gpu h200 --gpus-per-node 1", 3_358_606),
    ],
)
def test_measured_pools_are_met_within_five_percent(ask: Any, words: str, tokens: int) -> None:
    answer = document(ask, f"plan memory {words}")
    assert answer["kv_tokens_per_rank"] == pytest.approx(tokens, rel=0.05)
    assert answer["kv_gib_per_rank"] > 0
    assert {"verdict", "margin_gib"} <= answer.keys()


def test_what_does_not_fit_is_said_and_what_would(ask: Any) -> None:
    code, out, err = ask("plan memory --model deepseek-r1 --gpu h100 --nodes 1 --gpus-per-node 8 --tp 8 --json")
    answer = json.loads(out)
    assert code == 1 and "does not fit" in err
    assert answer["verdict"] == "startup-oom"
    assert answer["margin_gib"] < 0
    assert answer["nearest"]


def test_too_many_requests_for_the_buffers_are_a_risk(ask: Any) -> None:
    words = "--attention-backend triton --max-running-requests 4096"
    answer = document(ask, f"plan memory --model deepseek-v2-lite --gpu h200 --gpus-per-node 1 {words}")
    assert answer["verdict"] == "runtime-oom-risk"


@pytest.mark.parametrize("pace", ["--concurrency 8", "--rate 4", ""])
def test_simulate_gives_the_promised_keys(ask: Any, pace: str) -> None:
    words = "--engine sglang --attention-backend fa3 --cuda-graph-max-bs 64 --chunked-prefill-size 4096 --seed 3"
    answer = document(ask, f"twin simulate {R1} {words} --traffic fixed:200:20 --requests 30 {pace}")
    for key in ("total_tok_s", "output_tok_s", "duration_s", "cpu_s"):
        assert answer[key] > 0
    assert {"p50", "p95", "p99"} <= answer["ttft_ms"].keys() & answer["itl_ms"].keys()
    assert answer["goodput"] is None
    assert answer["interval"]["total_tok_s"][0] < answer["total_tok_s"] < answer["interval"]["total_tok_s"][1]


def test_records_of_a_simulated_run_are_those_of_a_measured_one(ask: Any, tmp_path: Path) -> None:
    words = f"twin simulate {ONE} --traffic sharegpt --requests 20 --rate 5"
    answer = document(ask, f"{words} --out {tmp_path / 'run.jsonl'}")
    records = list(read_records(tmp_path / "run.jsonl"))
    assert len(records) == answer["successful_requests"] == 20
    for record in records:
        assert record.first_token_s is not None
        assert record.end_s is not None
        assert sum(times for _, times in record.gaps_s) == record.output_tokens - 1
        spent = sum(gap * times for gap, times in record.gaps_s)
        assert spent == pytest.approx(record.end_s - record.first_token_s, abs=1e-3)
    again = document(ask, f"twin simulate {ONE} --traffic {tmp_path / 'run.jsonl'}")
    assert again["total_tok_s"] == pytest.approx(answer["total_tok_s"], rel=1e-3)
    assert ask(f"{words} --out /proc/none/run.jsonl")[0] == 2


def test_groups_take_the_nodes_they_need_and_no_more_than_given(ask: Any) -> None:
    words = "twin simulate --model deepseek-v3 --gpu h800 --prefill-groups 3x3 --decode-groups 1x4 --traffic fixed:99:9"
    assert document(ask, f"{words} --requests 8")["successful_requests"] == 8
    assert document(ask, f"{words} --requests 8 --nodes 13")["successful_requests"] == 8
    code, _, message = ask(f"{words} --requests 8 --nodes 12")
    assert code == 2
    assert "use --nodes 13" in message


def test_ranks_beside_groups_are_said_to_be_unused(ask: Any) -> None:
    words = "--prefill-groups 1 --decode-groups 1 --tp 8 --traffic fixed:99:9 --requests 4"
    code, _, message = ask(f"twin simulate --model deepseek-v3 --gpu h200 {words}")
    assert code == 0
    assert "--tp 8 not used" in message


def test_a_group_has_the_shape_it_is_given(ask: Any) -> None:
    words = "--prefill-groups 1x1 --decode-groups 2x1:attn-dp=4,ep=1 --batch 64"
    answer = document(ask, f"twin explain --model deepseek-v3 --gpu h200 {words}")
    decode = next(step for step in answer["steps"] if step["role"] == "decode")
    assert not any("all-to-all" in term["name"] for term in decode["terms"])


def test_a_model_and_a_gpu_can_be_looked_at(ask: Any) -> None:
    costs = document(ask, "model show deepseek-r1")
    assert costs["parameters"] == pytest.approx(671e9, rel=0.01)
    assert costs["active_parameters"] == pytest.approx(37e9, rel=0.03)
    assert costs["kv_bytes_per_token"] == 70_272
    assert sum(costs["weight_bytes_by_part"].values()) == pytest.approx(costs["weight_bytes"])
    assert "  kimi-k2.7 has the shape of preset kimi-k2.5:" in ask("model show kimi-k2.7")[1]
    answer = document(ask, "twin simulate --model kimi-k2.7 --gpu h200 --tp 8 --requests 4 --rate 1")
    assert answer["assumed"][0].startswith("kimi-k2.7 has the shape of preset kimi-k2.5")
    gpus = document(ask, "plan hardware")["gpus"]
    assert {"a100", "h20", "h100", "h200", "h800", "b200", "l40s"} <= gpus.keys()


def test_nodes_follow_from_the_ranks(ask: Any) -> None:
    assert document(ask, "plan memory --model deepseek-r1 --gpu h100 --tp 16")["cluster"] == "2 x 8 H100"
    assert document(ask, "plan memory --model llama-8b --gpu h100 --tp 2")["cluster"] == "1 x 2 H100"


@pytest.mark.parametrize(
    "verb",
    [
        "plan memory",
        "plan layouts",
        "twin simulate",
        "twin explain",
        "twin calibrate",
        "plan",
        "model show",
    ],
)
def test_help_is_plain_text_with_an_example(ask: Any, verb: str) -> None:
    code, text, _ = ask(f"{verb} --help")
    assert code == 0
    assert f"Example:\n    ridgeline {verb}" in text
    assert "\033" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_json_stays_one_document_whatever_it_holds() -> None:
    tree = {"a": [[0.1, 2], [3, 4]], "b": ["[\n 1\n]", "x, y", {}], "c": [], "d": [{"e": [1]}], "f": "[\n1,\n 2\n]"}
    assert json.loads(json_text(tree)) == tree
    assert "[0.1, 2]" in json_text(tree)


# -- impossible questions ----


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (f"twin simulate {ONE} --slo tfft_p95_ms=50", "did you mean ttft_p95_ms=50"),
        (f"twin simulate {ONE} --slo itl_p95<50", "did you mean itl_p95_ms=50"),
        (f"twin simulate {ONE} --traffic shargpt", "did you mean sharegpt"),
        (f"twin simulate {ONE} --traffic sharegpt:5000:100", "lognormal:5000:100"),
        (f"twin simulate {ONE} --traffic fixed:140000:200", "130,872 in + 200 out"),
        (f"twin simulate {ONE} --traffic .", "a trace is JSONL"),
        (f"twin simulate {ONE} --traffic {'a' * 5000}", "is neither a file nor one of"),
        (f"plan memory --model {'a' * 5000} --gpu h100", "is neither a preset nor"),
        (f"twin simulate {ONE} --rate inf", "above zero"),
        (f"twin simulate {ONE} --requests 99999999999999999999", "send fewer"),
        (f"twin simulate {ONE} --page-size 99999999999999999999", "1 to 1,024"),
        (f"twin simulate {ONE} --accept-length nan", "at least 1 token"),
        (f"twin simulate {ONE} --schedule-conservativeness -1", "0 and above"),
        (f"twin simulate {ONE} --attention-backend flashmla", "use fa3"),
        (f"twin explain {ONE} --batch 1000000", "ask for a batch of at most"),
        (f"twin explain {ONE} --context 1000000", "at most 131,072"),
        ("plan memory --model llama-8b --gpu h100 --tp 1000000000", "use tp 32"),
        ("plan memory --model llama-8b --gpu h100 --gpus-per-node 0", "at least 1"),
        ("plan layouts --model llama-8b --gpus 1048576", "one part of them"),
        ("plan --model llama-8b --gpu h100 --nodes 100000", "one part of them"),
        ("plan --model llama-8b --gpu h100 --gpus-per-node 1 --out /proc/none", "--out /proc/none: cannot be written"),
        ("twin calibrate --from nowhere.log --out x.json", "give the log of an SGLang run"),
        ("twin calibrate --from nowhere.log --out .", "name the file"),
        ("model show llama-8b --tokens 0", "takes 1 to 131,072"),
        ("plan memory --model llama-9b --gpu h100", "did you mean llama-8b"),
        ("plan memory --model llama-8b --gpu h101", "did you mean h100"),
    ],
)
def test_a_refusal_names_the_nearest_thing_that_works(ask: Any, words: str, says: str) -> None:
    code, out, message = ask(words)
    assert code == 2, out
    assert says in message
    assert not out


VALUES = ["0", "-1", "3", "1e9", "nan", "inf", "x", "", "h100", "fixed:0:1", "1x1", "0.5", "99999999999999999999"]
QUESTIONS = [
    f"plan memory {R1} --mem-fraction 0.85 --max-running-requests 256 --cuda-graph-max-bs 64 --dtype fp8",
    f"twin simulate {ONE} --traffic fixed:64:8 --requests 9 --rate 5 --page-size 1 --draft-tokens 2 "
    "--accept-length 1.5",
    "twin simulate --model deepseek-v3 --gpu h800 --prefill-groups 1 --decode-groups 2 --traffic fixed:64:8 "
    "--requests 4",
    f"twin explain {ONE} --batch 8 --context 64 --prompt 64",
    "plan layouts --model mixtral-8x7b --gpus 4 --gpus-per-node 4",
]


@pytest.mark.parametrize("seed", range(60))
def test_no_mangled_command_line_ends_in_a_traceback(ask: Any, seed: int) -> None:
    rng = random.Random(seed)
    words = rng.choice(QUESTIONS).split()
    for _ in range(rng.choice([1, 1, 2])):
        place = rng.randrange(3, len(words))
        words[place] = rng.choice(VALUES)
    code, out, message = ask(words)
    assert code in (0, 2), message
    assert bool(out) is (code == 0)
    assert message or code == 0


@pytest.mark.parametrize("seed", range(20))
def test_no_mangled_log_ends_in_a_traceback(ask: Any, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    raw = bytearray((SAMPLES / "offline-llama8b-h200-default.log").read_bytes()[:60_000])
    for _ in range(30):
        place = rng.randrange(len(raw))
        raw[place : place + rng.randrange(200)] = rng.choice([b"", b"-1", b"nan", b"1e999", b"\n", b"\xff\x00"])
    (tmp_path / "server.log").write_bytes(raw)
    code, _, message = ask(
        ["twin", "calibrate", "--from", str(tmp_path / "server.log"), "--out", str(tmp_path / "site.json")]
    )
    assert code in (0, 2), message


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--concurency", "3"], "--concurrency"), (["--rate", "fast"], "--rate"), (["--slo"], "--slo"), ([], "url")],
)
def test_a_wrong_option_of_bench_is_named(arguments: list[str], said: str) -> None:
    url = ["http://127.0.0.1:1"] if arguments else []
    done = ridgeline("bench", *url, *arguments)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr


def test_bench_options_on_the_command_line_are_those_of_the_load_generator() -> None:
    from ridgeline.serving.load.session import BenchOptions
    from ridgeline.serving.verbs.bench import BenchArguments

    assert BenchArguments("http://h").options() == BenchOptions("http://h")
    assert {f.name for f in fields(BenchArguments)} == {f.name for f in fields(BenchOptions)}


@pytest.mark.parametrize("heavy", ["pydantic", "numpy", "optuna", "rich"])
def test_bench_starts_without_anything_heavy(heavy: str) -> None:
    code = f"""
import sys
from ridgeline.cli.main import run
try:
    run(["bench", "http://127.0.0.1:1", "--requests", "1", "--model", "m", "--concurrency", "1"])
except SystemExit as ended:
    assert ended.code == 3, ended.code
assert {heavy!r} not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=600)


def test_model_without_a_name_lists_the_presets_with_their_sizes(ask: Any) -> None:
    code, out, _ = ask(["model", "list"])
    shown = {line.split()[0]: line.split() for line in out.splitlines() if line.endswith(("fp8", "bf16", "mxfp4"))}
    assert code == 0 and shown.keys() <= set(preset_names())
    assert shown["llama-8b"] == ["llama-8b", "8.0", "B", "8.0", "B", "15.0", "GiB", "bf16"]
    assert shown["deepseek-r1"][1] == "671.0" and shown["deepseek-r1"][3] == "37.6"
    code, out, _ = ask(["model", "list", "--json"])
    listed = json.loads(out)["models"]
    assert code == 0 and {one["name"] for one in listed} == set(preset_names())
    one = json.loads(ask(["model", "show", "deepseek-r1", "--json"])[1])
    (same,) = (size for size in listed if size["name"] == "deepseek-r1")
    assert all(one[key] == same[key] for key in ("parameters", "active_parameters", "weight_bytes", "dtype"))


def test_a_made_model_comes_with_the_command_of_both_engines(ask: Any, tmp_path: Path) -> None:
    code, out, err = ask(["model", "make", "llama-8b", str(tmp_path / "my model"), "--layers", "1"])
    assert code == 0, err
    folder = f"'{tmp_path / 'my model'}'"
    assert f"python3 -m sglang.launch_server --model-path {folder} --load-format dummy" in out
    assert f"vllm serve {folder} --load-format dummy" in out
