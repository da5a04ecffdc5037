"""What is read from an engine's run, by hand: units, rates, and what makes a run unverified or contaminated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ridgeline.records.measurement import Measurement, unit_of
from ridgeline.serving.engines.base import EngineLog
from ridgeline.serving.engines.sglang import engine as sglang
from ridgeline.serving.engines.sglang.log import OfflineResult, read_sglang_log
from ridgeline.serving.engines.vllm import engine as vllm
from ridgeline.serving.workloads.engine import reading
from ridgeline.serving.workloads.engine.reading import AskedSettings


def values(measurements: Any) -> dict[str, float]:
    return {m.metric: m.value for m in measurements}


RATES = {"total_tok_s": 60.0, "output_tok_s": 10.0, "input_tok_s": 50.0, "requests_s": 2.0}
COUNTS = {"duration_s": 4.0, "successful_requests": 8.0, "input_tokens": 200.0, "output_tokens": 40.0}


def test_rates_of_an_offline_run_are_its_counts_over_its_seconds() -> None:
    """Where SGLang does not print a rate itself."""
    fields: dict[str, Any] = dict.fromkeys(OfflineResult.__dataclass_fields__)
    plain = {"successful_requests": 8, "duration_s": 4.0, "input_tokens": 200, "output_tokens": 40}
    result = OfflineResult(**{**fields, **plain})
    found = list(sglang._offline_figures(result, "offline.jsonl"))
    assert values(found) == RATES | COUNTS
    assert {m.metric: m.unit for m in found}["requests_s"] == "requests/s"


def test_a_rate_of_requests_has_one_unit_wherever_it_was_measured() -> None:
    offline = vllm._offline_figures({"elapsed_time": 4.0, "num_requests": 8}, (), {})
    served = reading._served({"requests_s": 2.0, "duration_s": 4.0})
    units = [{m.metric: m.unit for m in found}["requests_s"] for found in (offline, served)]
    assert {*units, unit_of("requests_s")} == {"requests/s"}


def test_vllms_own_counts_come_before_what_follows_from_its_rates() -> None:
    result = {"elapsed_time": 4.0, "num_requests": 8, "total_num_tokens": 240}
    assert values(vllm._offline_figures(result, (), {"prompt": 200.0, "output": 40.0})) == RATES | COUNTS
    assert values(vllm._offline_figures(result, (2.0, 60.0, 10.0), {})) == RATES | COUNTS
    bare = values(vllm._offline_figures(result, (), {}))
    assert bare == {"total_tok_s": 60.0, "requests_s": 2.0, "duration_s": 4.0, "successful_requests": 8.0}
    for broken in ({**result, "elapsed_time": 0.0}, {**result, "elapsed_time": "soon"}, {"elapsed_time": 4.0}):
        assert list(vllm._offline_figures(broken, (), {})) == []


def test_capturing_graphs_takes_as_long_as_the_slowest_rank() -> None:
    lines = [
        f"[2026-11-15 10:00:0{rank} TP{rank}] Capture cuda graph end. Time elapsed: {seconds:.2f} s. "
        "mem usage=1.00 GB. avail mem=9.00 GB."
        for rank, seconds in enumerate((5.25, 7.5))
    ]
    found = values(sglang._figures(read_sglang_log(lines)))
    assert found["graph_capture_s"] == 7.5


def test_energy_is_told_per_token_where_both_are_known() -> None:
    found = {name: Measurement(name, value) for name, value in {**RATES, **COUNTS, "energy_j": 480.0}.items()}
    told = {name: (joules.metric, joules.value, joules.unit) for name, joules in reading._per_token(found).items()}
    assert told == {
        "joules_per_token": ("joules_per_token", 2.0, "J/token"),
        "joules_per_output_token": ("joules_per_output_token", 12.0, "J/token"),
    }
    assert reading._per_token({name: m for name, m in found.items() if name != "energy_j"}) == {}


def vllm_kept(length: float) -> EngineLog:
    line = f"SpecDecoding metrics: Mean acceptance length: {length:.2f}, Accepted throughput: 9.00 tokens/s, Drafted "
    return vllm.VLLM.read([line + "throughput: 21.00 tokens/s, Accepted: 9 tokens, Drafted: 21 tokens, Per-position"])


@pytest.mark.parametrize(
    ("asked", "log", "version", "says"),
    [
        (AskedSettings(), EngineLog(), "0.5.6", []),
        (AskedSettings(version="0.5.6"), EngineLog(), "0.5.6.post1", []),
        (AskedSettings(version="0.5.1"), EngineLog(), "0.5.10", ["the study says release 0.5.1, the engine is 0.5.10"]),
        (AskedSettings(version="0.5"), EngineLog(), "0.5.10", []),
        (AskedSettings(version="0.5.6"), EngineLog(), "0.5.7", ["the study says release 0.5.6, the engine is 0.5.7"]),
        (AskedSettings(echo={"tp": 8}), EngineLog(echo={"tp": 8}), "", []),
        (AskedSettings(echo={"tp": 8}), EngineLog(echo={"tp": 4}), "", ["asked for tp 8, the engine applied 4"]),
        (AskedSettings(echo={"tp": 8}), EngineLog(echo={}), "", []),
        (AskedSettings(echo={"o": '{"a": [1, true]}'}), EngineLog(echo={"o": "{'a': [1, True]}"}), "", []),
        (AskedSettings(echo={"o": '{"a": 1}'}), EngineLog(echo={"o": "{'a': 2}"}), "", ['asked for o {"a": 1}']),
        (AskedSettings(echo={"on": True}), EngineLog(echo={"on": False}), "", ["asked for on True"]),
        (AskedSettings(echo={"share": 0.9}), EngineLog(echo={"share": 0.9000000000001}), "", []),
        (AskedSettings(echo={"share": 0.9}), EngineLog(echo={"share": 0.903}), "", ["asked for share 0.9"]),
        (AskedSettings(echo={"max_running_requests": 64}), EngineLog(running_limit=64), "", []),
        (
            AskedSettings(echo={"max_running_requests": 64}),
            EngineLog(running_limit=63),
            "",
            ["asked for max_running_requests 64, the engine runs 63 at most"],
        ),
        (AskedSettings(echo={"max_running_requests": 64}, attention_groups=8), EngineLog(running_limit=8), "", []),
        (AskedSettings(accept_length=2.0), vllm_kept(2.19), "", []),
        (AskedSettings(accept_length=2.0), vllm_kept(2.21), "", ["accept length of 2, the engine kept 2.21"]),
        (AskedSettings(accept_length=2.0), EngineLog(), "", []),  # a run too short to say
    ],
)
def test_what_the_engine_did_not_apply_is_said(
    tmp_path: Path, asked: AskedSettings, log: EngineLog, version: str, says: list[str]
) -> None:
    found = list(reading._unapplied(asked, log, version, tmp_path))
    assert len(found) == len(says)
    assert all(told in said for told, said in zip(says, found, strict=True))


def contaminated(log: EngineLog, needed: set[str], traffic: str = "fixed:1:1", **summary: Any) -> bool:
    measured = {"summary": {"successful_requests": 5, "e2e_ms": {"mean": 100.0}, **summary}}
    return bool(list(reading._contaminations({"load": {"traffic": traffic}}, measured, log, needed)))


def test_prompts_that_were_seen_before_spoil_a_run_unless_a_trace_repeats_them() -> None:
    cached = EngineLog(cached_share=reading.LARGEST_CACHED_SHARE + 0.01)
    assert contaminated(cached, set())
    assert not contaminated(EngineLog(cached_share=reading.LARGEST_CACHED_SHARE), set())
    assert not contaminated(cached, set(), "/data/trace.jsonl")


def test_a_load_generator_that_distrusts_itself_spoils_latencies_and_where_it_starved_rates_too() -> None:
    calm = {"void": True, "client": {"send_lag_ms": {"mean": 0.1}, "cpu_share": 0.2}}
    late = {"void": True, "client": {"send_lag_ms": {"mean": 50.0}, "cpu_share": 0.2}}
    busy = {"void": True, "client": {"send_lag_ms": {"mean": 0.1}, "cpu_share": 0.999}}
    log = EngineLog()
    assert contaminated(log, {"ttft_p95_ms"}, **calm)
    assert not contaminated(log, {"output_tok_s"}, **calm), "late stamps do not touch throughput"
    assert contaminated(log, {"output_tok_s"}, **late)
    assert contaminated(log, {"output_tok_s"}, **busy)
    assert contaminated(log, {"output_tok_s"}, **{**calm, "successful_requests": 0})
    assert not contaminated(log, {"ttft_p95_ms"}, **{**late, "void": False})


def test_requests_that_failed_and_figures_that_are_missing_are_a_problem() -> None:
    found = {"total_tok_s": Measurement("total_tok_s", 5.0, "tok/s", "x")}
    served = {**found, "successful_requests": Measurement("successful_requests", 9.0, "", "x")}
    assert list(reading._problems({"load": {"requests": 9}}, served, {"total_tok_s"})) == []
    (told,) = reading._problems({"load": {"requests": 10}}, served, {"total_tok_s"})
    assert told.startswith("9 of 10 requests succeeded")
    assert list(reading._problems({}, found, {"ttft_p95_ms", "loss"})) == ["ttft_p95_ms was not measured in this run"]
    assert [told.split(";")[0] for told in reading._problems({}, {}, {"ttft_p95_ms"})] == ["no result was written"]
