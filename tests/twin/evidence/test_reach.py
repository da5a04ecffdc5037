"""How far a calibration holds: wider with every step away from what was measured, refused on another machine."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.errors import InputError
from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.settings import EngineSettings
from ridgeline.serving.hardware.cluster import make_cluster
from ridgeline.serving.model.config import load_model
from ridgeline.serving.traffic.traffic import parse_traffic
from ridgeline.serving.twin.calibration import (
    UNCALIBRATED_SPREAD,
    Calibration,
    Factors,
    ValidatedSetting,
    merged,
    read_calibration,
)
from ridgeline.serving.twin.explain import explain
from ridgeline.serving.twin.reach import factors_for, reach
from ridgeline.serving.twin.simulate import simulate


def deployed(
    model: str = "llama-8b", gpu: str = "h200", tp: int = 1, nodes: int = 1, dtype: str | None = None, **engine: object
) -> Deployment:
    layout = Layout(tp=tp, nodes=nodes, gpus_per_node=-(-tp // nodes))
    cluster = make_cluster(gpu, nodes, layout.gpus_per_node)
    return Deployment(load_model(model).with_dtype(dtype), cluster, layout, EngineSettings(**engine))


HOME = deployed()
SITE = Calibration(
    factors=Factors(decode=1.2, prefill=0.9, host=1.3),
    spread=0.06,
    points=8,
    sources=("bench.json",),
    scope=merged([ValidatedSetting.of(HOME, 2, 2), ValidatedSetting.of(HOME, 40, 40)]),
)


def test_where_it_was_measured_it_is_as_sure_as_the_fit():
    known = reach(SITE, HOME, 20)
    assert known.calibration == SITE
    assert "the setting that was calibrated (llama-8b, tp 1, 2 to 40 at once)" in known.line


@pytest.mark.parametrize(
    ("asked", "under_way", "said"),
    [
        (deployed(tp=2), 20, "tp 2, not tp 1"),
        (deployed(tp=4, nodes=2), 20, "between nodes"),
        (deployed(dtype="fp8"), 20, "weights in fp8, not bf16"),
        (deployed("qwen3-32b"), 20, "another model than llama-8b"),
        (deployed(version=(0, 4, 10)), 20, "release 0.4.10, not 0.5.23"),
        (HOME, 400, "400 requests at once in an engine, not 2 to 40"),
        (HOME, 0.5, "hardly a request at once in an engine, not 2 to 40"),
    ],
)
def test_what_is_new_is_named_and_widens(asked: Deployment, under_way: float, said: str):
    known = reach(SITE, asked, under_way)
    assert said in known.line
    assert "less than where it was calibrated" in known.line
    assert known.calibration.spread > SITE.spread
    assert known.calibration.first_token_spread > 0


def test_more_that_is_new_is_wider():
    far = [reach(SITE, d, n).calibration.spread for d, n in ((HOME, 20), (deployed(tp=2), 20), (deployed(tp=2), 400))]
    assert far == sorted(set(far))


def test_of_several_measured_settings_the_nearest_counts():
    both = replace(SITE, scope=(*SITE.scope, ValidatedSetting.of(deployed(tp=2), 2, 40)))
    assert reach(both, deployed(tp=2), 20).calibration.spread == SITE.spread


def test_corrections_of_whole_phases_stay_with_their_model():
    assert factors_for(SITE, HOME) == SITE.factors
    other = factors_for(SITE, deployed("qwen3-32b"))
    assert (other.decode, other.prefill, other.host) == (1.0, 1.0, 1.3)
    assert reach(SITE, deployed("qwen3-32b"), 20).calibration.spread >= UNCALIBRATED_SPREAD
    half = factors_for(SITE, deployed(dtype="fp8"))
    assert half.decode == pytest.approx(1.2**0.5)


def test_another_gpu_or_engine_is_refused_with_what_to_do():
    sent = parse_traffic("fixed:100:10", requests=4, concurrency=2)
    with pytest.raises(
        InputError, match=r"measured on H200, not on H100; calibrate on H100 .* leave --calibration out"
    ):
        simulate(deployed(gpu="h100"), sent, SITE)
    with pytest.raises(InputError, match=r"measured on SGLang, not on vLLM"):
        simulate(deployed(engine="vllm", version=(0, 17)), sent, SITE)
    with pytest.raises(InputError, match="not on H100"):
        explain(deployed(gpu="h100"), 8, 100, 100, SITE)


def test_a_simulation_says_it_and_widens_its_intervals():
    sent = parse_traffic("fixed:100:10", requests=40, concurrency=8)
    near, far = simulate(HOME, sent, SITE), simulate(deployed(tp=2), sent, SITE)
    assert "that was calibrated" in near.reach
    assert "tp 2, not tp 1" in far.as_json()["reach"]
    for name in ("total_tok_s", "ttft_p95_ms", "itl_p95_ms"):
        (low, high), (far_low, far_high) = near.interval[name], far.interval[name]
        assert far_high / far_low > high / low
    # first tokens are less sure than speeds far from what was measured
    widths = {name: math.log(far.interval[name][1] / far.interval[name][0]) for name in ("ttft_p50_ms", "itl_p50_ms")}
    before = {name: math.log(near.interval[name][1] / near.interval[name][0]) for name in widths}
    grown = {name: widths[name] ** 2 - before[name] ** 2 for name in widths}
    assert grown["ttft_p50_ms"] > 2 * grown["itl_p50_ms"] > 0
    assert "that was calibrated" not in simulate(HOME, sent).reach


def test_a_file_that_does_not_say_where_it_was_measured_is_taken_and_said():
    silent = replace(SITE, scope=())
    assert "does not say what was measured" in reach(silent, deployed(gpu="h100"), 5).line
    assert factors_for(silent, deployed("qwen3-32b")) == SITE.factors


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ({"gpu": "h200"}, "not a list of settings"),
        ([3], r"measured_on\[0\] is 3"),
        ([{"gpu": "h200", "colour": "red"}], "colour is not known"),
        ([{"gpu": "h200"}], "no engine"),
        ([{"gpu": "h200", "engine": "sglang", "model": "m", "most": "lots"}], "most is 'lots'"),
        ([{"gpu": "h200", "engine": "sglang", "model": "m", "apart": "no"}], "apart is 'no'"),
        ([{"gpu": "h200", "engine": "sglang", "model": "m", "most": -1}], "most is -1"),
    ],
)
def test_an_edited_file_is_checked(tmp_path: Path, rows: object, named: str):
    path = tmp_path / "site.json"
    path.write_text(json.dumps({"version": 1, "factors": {}, "measured_on": rows}))
    with pytest.raises(InputError, match=named):
        read_calibration(path)
