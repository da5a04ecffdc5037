"""Scaling rehearsed in virtual time: the rules of `keep` over the twin's engines."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from ridgeline.cli.main import run
from ridgeline.errors import InputError
from ridgeline.serving.service.file import load_service
from ridgeline.serving.service.rehearsed_scaling import ScaledTraffic, rehearse_scaling
from ridgeline.serving.verbs.rehearse import scaling_text

TOGETHER = """\
version: 1
model: llama-70b
engine: {kind: sglang, gpu: h100}
units:
  - {replicas: 2, gpus: 4, settings: {tp: 4}}
router: {kind: smg}
slo: {ttft_p95_ms: 2000, tpot_p95_ms: 60}
scale: {both: {least: 2, most: 6, running: 24}, down_after: 2m}
"""
APART = TOGETHER.replace(
    "  - {replicas: 2, gpus: 4, settings: {tp: 4}}\n",
    "  - {role: prefill, gpus: 4, settings: {tp: 4}}\n  - {role: decode, replicas: 2, gpus: 4, settings: {tp: 4}}\n",
).replace("both: {least: 2, most: 6, running: 24}", "prefill: {most: 3}, decode: {least: 2, most: 6, running: 24}")
MORNING = datetime(2026, 11, 16, 9)


def rehearsed(folder: Path, text: str, traffic: ScaledTraffic):  # type: ignore[no-untyped-def]
    (folder / "service.yaml").write_text(text)
    return rehearse_scaling(load_service(folder / "service.yaml"), traffic, 30.0, MORNING)


def test_a_doubled_load_gets_servers_within_30_s(tmp_path: Path) -> None:
    sent = ScaledTraffic("sharegpt", rate_s=9.0, seconds=420.0, double_at_s=240.0)
    found = rehearsed(tmp_path, TOGETHER, sent)
    assert found.first_up_s is not None
    assert 0 < found.first_up_s <= 30.0
    assert found.scaled.turns == 0
    assert found.scaled.slo_held is True
    most = found.fixed[-1][1]
    assert found.scaled.server_hours < 0.75 * most.server_hours
    assert found.scaled.summary.requests == most.summary.requests == len(sent.arrivals())
    said = scaling_text(found, 30.0)
    assert f"scaled up {found.first_up_s:.0f} s after the load doubled" in said
    assert "6 both all the time" in said
    assert rehearsed(tmp_path, TOGETHER, sent) == found, "the same every time"


def test_a_trace_keeps_its_times_and_servers_leave_when_it_is_quiet(tmp_path: Path) -> None:
    busy = "".join(f'{{"at_s": {n / 12}, "input_tokens": 300, "output_tokens": 300}}\n' for n in range(1200))
    quiet = "".join(f'{{"at_s": {100 + 2 * n}, "input_tokens": 300, "output_tokens": 20}}\n' for n in range(250))
    (tmp_path / "trace.jsonl").write_text(busy + quiet)
    found = rehearsed(tmp_path, TOGETHER, ScaledTraffic(str(tmp_path / "trace.jsonl")))
    changes = [decision.change for _, decision in found.scaled.decisions]
    assert changes[0] > 0
    assert changes[-1] == -1
    assert found.scaled.servers[-1][2] == 2


def test_the_verb_takes_a_recorded_trace_and_a_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, trace = tmp_path / "service.yaml", tmp_path / "trace.jsonl"
    file.write_text(TOGETHER)
    trace.write_text("".join(f'{{"at_s": {n / 12}, "input_tokens": 300, "output_tokens": 300}}\n' for n in range(1200)))

    def said(traffic: str, *words: str) -> dict[str, Any]:
        begins = ["--begins", "2026-11-16 09:00"]
        with pytest.raises(SystemExit) as leaving:
            run(["service", "rehearse", str(file), "--scale", "--traffic", traffic, *begins, "--json", *words])
        assert leaving.value.code in (0, None)
        found: dict[str, Any] = json.loads(capsys.readouterr().out)["scaled"]
        return found

    recorded = said(str(trace))
    assert recorded["seconds"] == pytest.approx(1199 / 12), "all of it, at its own times"
    assert recorded["decisions"][0]["to"] > 2
    first, again, other = (said("sharegpt", "--rate", "5", "--minutes", "2", "--seed", seed) for seed in "778")
    assert first == again != other


def test_split_roles_are_scaled_by_their_ratio(tmp_path: Path) -> None:
    found = rehearsed(tmp_path, APART, ScaledTraffic("sharegpt", rate_s=12.0, seconds=300.0, double_at_s=120.0))
    wanted = {decision.role: decision.wanted for _, decision in found.scaled.decisions}
    assert wanted["decode"] >= 3
    assert wanted["prefill"] == 2
    assert found.scaled.summary.ok == found.scaled.summary.requests


def test_what_cannot_be_rehearsed_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no `scale`"):
        rehearsed(tmp_path, TOGETHER.partition("scale:")[0], ScaledTraffic("sharegpt", 1.0, 10.0))
    with pytest.raises(InputError, match="has no times; say how many come with --rate"):
        rehearsed(tmp_path, TOGETHER, ScaledTraffic("sharegpt", None, 10.0))
