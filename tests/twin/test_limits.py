"""Limits that logs and measured rows give for one attention-DP rank become the whole engine's."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.serving.twin.log_steps import read_run
from ridgeline.serving.twin.measured import read_rows
from tests.engines.server_args import log_line

ROWS = "model,gpu,sglang,layout,max_running_requests,batch,input_len,output_len,latency_s\n"


@pytest.mark.parametrize(
    ("release", "prefill", "decode"),
    [("0.4.8", 128 * 32, 128 * 72), ("0.5.7", 128 * 32, 128 * 72), ("0.5.8", 128, 128), ("", 128, 128)],
)
def test_a_split_measured_before_058_was_limited_for_each_rank(
    tmp_path: Path, release: str, prefill: int, decode: int
) -> None:
    (tmp_path / "rows.csv").write_text(f"{ROWS}deepseek-v3,h800,{release},P4D9,128,64,1000,100,9.5\n")
    (row,) = read_rows(tmp_path / "rows.csv")
    assert row.deployment.role_settings("prefill").max_running_requests == prefill
    assert row.deployment.role_settings("decode").max_running_requests == decode


def test_a_row_of_one_engine_says_the_whole_engines_limit(tmp_path: Path) -> None:
    head = "model,gpu,nodes,sglang,tp,dp,attention_dp,max_running_requests,total_tok_s\n"
    (tmp_path / "rows.csv").write_text(f"{head}deepseek-v3,h800,2,0.4.8,16,16,yes,128,9000\n")
    (row,) = read_rows(tmp_path / "rows.csv")
    assert (row.deployment.layout.attn_dp, row.deployment.layout.dp) == (16, 1)
    assert row.deployment.settings.max_running_requests == 128


@pytest.mark.parametrize("release", [(0, 4, 8), (0, 5, 15), (0, 5, 23)])
def test_a_log_with_attention_dp_gives_the_whole_engines_numbers(tmp_path: Path, release: tuple[int, ...]) -> None:
    groups = ["--attn-dp-size", "8"] if release >= (0, 5, 22) else ["--enable-dp-attention", "--dp-size", "8"]
    told = ["--tp-size", "8", *groups, "--chunked-prefill-size", "8192", "--max-running-requests", "512"]
    lines = [
        log_line(told, release),
        "[2026-01-01 00:00:01 DP0 TP0] max_total_num_tokens=400000, chunked_prefill_size=1024, "
        "max_prefill_tokens=16384, max_running_requests=64, context_len=32768, available_gpu_mem=20.00 GB",
        "[2026-01-01 00:00:02 DP0 TP0] Decode batch, #running-req: 8, #token: 4000, token usage: 0.01, "
        "cuda graph: True, gen throughput (token/s): 400.00, #queue-req: 0",
    ]
    (tmp_path / "server.log").write_text("\n".join(lines) + "\n")
    run = read_run(tmp_path / "server.log", model="deepseek-v2-lite", gpu="h200")
    assert (run.deployment.layout.tp, run.deployment.layout.attn_dp, run.deployment.layout.dp) == (8, 8, 1)
    assert run.deployment.settings.max_running_requests == 512
    assert run.deployment.settings.chunked_prefill_size == 8192
