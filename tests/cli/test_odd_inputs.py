"""Odd inputs of the planning verbs: a message that says what, where and what next, never a traceback."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from ridgeline.cli.main import main

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}
ROW = "model,gpu,nodes,gpus,tp,prompts,total_tok_s\nllama-8b,h200,1,1,1,20,"
BENCH = {
    "successful_requests": 5,
    "requests": 5,
    "client": {},
    "model": "llama-8b",
    "server": {"tp": 1},
    "ttft_ms": {"p50": 5},
    "tpot_ms": {"mean": 5},
}
ELSEWHERE = [{"gpu": "a100", "engine": "sglang", "model": "llama-8b"}]
FILES: dict[str, object] = {
    "unquantised.json": {**LLAMA, "quantization_config": {"quant_method": "zzz9"}},
    "shapeless.json": {k: v for k, v in LLAMA.items() if k != "hidden_size"},
    "negative.json": {**LLAMA, "num_hidden_layers": -3},
    "words.json": {**LLAMA, "vocab_size": "many"},
    "cut.json": '{"hidden_size": 40',
    "empty.json": "",
    "list.json": "[1, 2]",
    "empty.csv": "",
    "head.csv": "model,gpu,tp,total_tok_s\n",
    "other.csv": "date,colour\n2020,red\n",
    "nan.csv": f"{ROW}nan\n",
    "inf.csv": f"{ROW}inf\n",
    "huge.csv": f"{ROW}1e300\n",
    "below.csv": f"{ROW}-5\n",
    "nobody.csv": ROW.replace("llama-8b", "llama-9b") + "5000\n",
    "nothing.json": {"hello": "world"},
    "bench.json": BENCH,
    "cut-bench.json": '{"successful_requests": 5, "client": {',
    "nan-bench.json": '{"successful_requests": 5, "client": {}, "requests": NaN}',
    "list-site.json": "[]",
    "nan-site.json": '{"version": 1, "factors": {"compute": NaN}}',
    "old-site.json": {"version": 9, "factors": {}},
    "other-site.json": {"version": 1, "factors": {}, "points": 3, "measured_on": ELSEWHERE},
}
SIMULATE = "twin simulate --gpu h200 --gpus-per-node 1 --requests 5 --traffic fixed:100:10 --model"
CALIBRATE = "twin calibrate --out out.json --from"
PLAN = "plan --model llama-8b --gpu h100 --gpus-per-node 1 --traffic fixed:200:20"
EXPLAIN = "twin explain --model llama-8b --gpu h200 --gpus-per-node 1"
CASES = [
    (f"{SIMULATE} unquantised.json", ("zzz9", "--dtype")),
    (f"{SIMULATE} shapeless.json", ("shapeless.json", "hidden_size missing")),
    (f"{SIMULATE} negative.json", ("num_hidden_layers is -3",)),
    (f"{SIMULATE} words.json", ("vocab_size is 'many'",)),
    (f"{SIMULATE} cut.json", ("cut.json", "not readable as JSON")),
    (f"{SIMULATE} empty.json", ("empty.json", "the file is empty; get")),
    (f"{SIMULATE} list.json", ("not an object",)),
    (f"{SIMULATE} folder", ("folder/config.json", "no such file")),
    (f"{SIMULATE} llama-8b --tp 3", ("tp 3", "use tp 2")),
    (f"{SIMULATE} llama-8b --tp 100000000", ("more than the 16,384",)),
    (f"{SIMULATE} llama-8b --rate nan", ("rate of nan",)),
    (f"{SIMULATE} llama-8b --mem-fraction nan", ("nan is not possible",)),
    (f"{SIMULATE} llama-8b --engine vllm:0.1", ("vllm:0.8 or newer",)),
    (f"{SIMULATE} llama-8b --calibration folder", ("folder", "ridgeline twin calibrate")),
    (f"{SIMULATE} llama-8b --calibration list-site.json", ("holds no factors",)),
    (f"{SIMULATE} llama-8b --calibration nan-site.json", ("factors.compute",)),
    (f"{SIMULATE} llama-8b --calibration old-site.json", ("version 9",)),
    (
        f"{SIMULATE} llama-8b --calibration other-site.json",
        ("measured on A100, not on H200", "leave --calibration out"),
    ),
    (f"{EXPLAIN} --batch 8 --calibration other-site.json", ("measured on A100, not on H200",)),
    (f"{EXPLAIN} --batch 100000000000", ("at most",)),
    (f"{EXPLAIN} --batch 8 --context -1", ("context is -1",)),
    (f"{CALIBRATE} empty.csv", ("empty.csv: holds no rows",)),
    (f"{CALIBRATE} head.csv", ("head.csv: holds no rows",)),
    (f"{CALIBRATE} other.csv", ("other.csv:2", "no model")),
    (f"{CALIBRATE} nan.csv", ("nan.csv:2", "total_tok_s is nan")),
    (f"{CALIBRATE} inf.csv", ("inf.csv:2", "total_tok_s is inf")),
    (f"{CALIBRATE} huge.csv", ("huge.csv:2", "below 1e+12")),
    (f"{CALIBRATE} below.csv", ("below.csv:2", "above zero")),
    (f"{CALIBRATE} nobody.csv", ("did you mean llama-8b?",)),
    (f"{CALIBRATE} folder", ("folder", "ridgeline bench")),
    (f"{CALIBRATE} nothere.log", ("nothere.log", "cannot be read")),
    (f"{CALIBRATE} nothing.json", ("nothing.json: no result that we know",)),
    (f"{CALIBRATE} cut-bench.json", ("cut-bench.json: no result that we know",)),
    (f"{CALIBRATE} nan-bench.json", ("no request was answered",)),
    (f"{CALIBRATE} bench.json", ("--gpu",)),
    (f"{CALIBRATE} bench.json --gpu h200", ("how long prompts and answers were", "bench --out")),
    (f"{CALIBRATE} bench.json --gpu h200 --server-flags '--tp-size x'", ("--server-flags", "tp takes a whole number")),
    (f'{CALIBRATE} bench.json --gpu h200 --server-flags "\'"', ("--server-flags", "No closing quotation")),
    (f"{PLAN} --rate 0", ("rate of 0",)),
    (f"{PLAN} --gpu-hour nan", ("--gpu-hour nan", "2.5")),
    (f"{PLAN} --layout 'tp 3'", ("tp 3", "for example tp 1")),
    (f"{PLAN} --engine vllm:0.2", ("vllm:0.8 or newer",)),
    (f"{PLAN} --calibration other-site.json", ("measured on A100, not on H100",)),
]


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("odd")
    (place / "folder").mkdir()
    for name, content in FILES.items():
        (place / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return place


@pytest.mark.parametrize(("words", "said"), CASES, ids=[words for words, _ in CASES])
def test_a_message_says_what_where_and_what_next(
    odd: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[Any], words: str, said: tuple[str, ...]
) -> None:
    monkeypatch.chdir(odd)
    monkeypatch.setattr(sys, "argv", ["ridgeline", *shlex.split(words)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    message = capsys.readouterr().err
    assert message.startswith("ridgeline: ")
    for part in said:
        assert part in message
    assert not (odd / "out.json").exists()


def test_an_architecture_nobody_knows_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[Any]
) -> None:
    strange = tmp_path / "strange.json"
    strange.write_text(json.dumps({**LLAMA, "architectures": ["FooBarForCausalLM"], "model_type": "foobar"}))
    monkeypatch.setattr(sys, "argv", ["ridgeline", *f"{SIMULATE} {strange}".split()])
    with pytest.raises(SystemExit):
        main()
    assert "architecture FooBarForCausalLM: not one we know" in capsys.readouterr().out
