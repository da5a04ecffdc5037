"""Half of serving measured on its own: what a prefill or a decode server of a split does, on one GPU."""

from __future__ import annotations

import json
from pathlib import Path

from ridgeline.records.outcome import Kind
from tests.workloads.engine.studies import run_for_real, sglang_serve, study, vllm_serve, with_standin

LOAD = {"input_tokens": 12, "output_tokens": 20, "requests": 6}


def measured(folder: Path, alone: str) -> tuple[dict[str, float], str]:
    asked = with_standin(study(folder, "sglang-serve", traffic=LOAD, warmup=1, goal="output_tok_s", alone=alone))
    outcome, reading = run_for_real(sglang_serve(asked), asked, folder / "run")
    # on a machine that is busy with other tests the load generator may rightly distrust itself
    assert outcome.kind is Kind.OK or "load generator" in outcome.reason, outcome
    return dict(reading.metrics), (folder / "run" / "engine.sh").read_text()


def tokens_made(folder: Path) -> list[int]:
    rows = (folder / "run" / "requests.jsonl").read_text().splitlines()
    return [json.loads(row)["output_tokens"] for row in rows]


def test_prefill_alone_asks_for_one_token_of_each_answer(tmp_path: Path) -> None:
    found, engine = measured(tmp_path, "prefill")
    assert found["successful_requests"] == 6
    assert tokens_made(tmp_path) == [1] * 6
    assert "disaggregation" not in engine, "a server as any other: nobody waits for what it prefills"


def test_decode_alone_is_a_decode_server_whose_kv_comes_from_nowhere(tmp_path: Path) -> None:
    found, engine = measured(tmp_path, "decode")
    assert found["successful_requests"] == 6
    assert tokens_made(tmp_path) == [20] * 6
    assert "--disaggregation-mode decode" in engine
    assert "--disaggregation-transfer-backend fake" in engine


def test_an_engine_that_cannot_is_refused(tmp_path: Path) -> None:
    (problem,) = vllm_serve(study(tmp_path, "vllm-serve", {"max_num_seqs": [8]}, alone="decode")).problems()
    assert problem.where == ("workload", "alone")
    assert "no way to decode without a prefill server" in problem.message
    assert not vllm_serve(study(tmp_path, "vllm-serve", {"max_num_seqs": [8]}, alone="prefill")).problems()
