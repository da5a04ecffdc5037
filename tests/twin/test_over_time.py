"""Results of several hours: each beside the prediction of before and of now, and a server that drifts is found out."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as example_settings
from hypothesis import strategies as st

from ridgeline.serving.traffic.traffic import parse_traffic
from ridgeline.serving.twin.calibrate import calibrate
from ridgeline.serving.twin.calibration import Calibration, Factors, ValidatedSetting, write_calibration
from ridgeline.serving.twin.fit import RUN_NOISE, FitObservation
from ridgeline.serving.twin.over_time import Sitting, Trend, over_time
from ridgeline.serving.verbs.calibrate import calibration_text
from tests.twin.evidence.test_served_runs import OTHER, document, served

HOUR_S = 3600.0
SENT = parse_traffic("fixed:200:20", requests=24, concurrency=4)


def sitting(hour: float, slower: float, name: str = "", metric: str = "tpot_mean_s") -> Sitting:
    """Measured `slower` times as long as the factor decode says."""
    point = FitObservation(f"{name or hour} {metric}", 0.01 * slower, lambda f: 0.01 * f.decode)
    return Sitting(name or f"{hour}", hour * HOUR_S, (point,))


def trend_of(*sittings: Sitting, loads: dict[str, float] | None = None) -> Trend | None:
    found = over_time(sittings, loads or {s.name: 4.0 for s in sittings}, None, Factors()).trends
    return next((trend for trend in found if trend.of == "time per token"), None)


def test_a_server_that_becomes_slower_is_found_out_with_a_number():
    trend = trend_of(*(sitting(h, 1.0 + 0.05 * h) for h in range(6)))
    assert trend is not None and trend.beyond_noise
    assert trend.low < 0.25 < trend.high
    assert trend.lasts_s == 5 * HOUR_S
    assert "slower beyond noise, +2" in str(trend) and "in 5h (" in str(trend)


@example_settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(-1, 1), min_size=2, max_size=8))
def test_what_runs_differ_by_is_no_drift(errors: list[float]):
    trend = trend_of(*(sitting(h, math.exp(RUN_NOISE * e)) for h, e in enumerate(errors)))
    assert trend is not None
    assert not trend.beyond_noise or len(errors) > 4, "two runs alone show hardly any noise"
    assert trend.low <= trend.slower <= trend.high


def test_another_load_is_not_another_hour():
    light, busy = sitting(0, 1.0, "light"), sitting(4, 1.5, "busy")
    assert trend_of(light, busy, loads={"light": 2, "busy": 20}) is None, "the twin may miss one of the loads"
    again = [sitting(1, 1.0, "light again"), sitting(5, 1.5, "busy again")]
    loads = {"light": 2, "light again": 2.2, "busy": 20, "busy again": 19}
    trend = trend_of(light, busy, *again, loads=loads)
    assert trend is not None and trend.slower == pytest.approx(0, abs=1e-9)


def test_a_rate_that_falls_is_a_server_that_is_slower():
    points = (sitting(0, 1.2), sitting(6, 1.0))
    rates = [replace(s, points=tuple(replace(p, name="x total_tok_s") for p in s.points)) for s in points]
    trend = trend_of(*rates)
    assert trend is not None and trend.slower == pytest.approx(0.2, abs=0.01)


@pytest.fixture(scope="module")
def hours(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three benches of one server, which is half as fast again slower at the end."""
    folder, paths = tmp_path_factory.mktemp("hours"), []
    for hour, decode in ((9, 1.0), (12, 1.25), (15, 1.5)):
        site = replace(OTHER, factors=replace(OTHER.factors, decode=decode))
        shown = document(SENT, served(SENT, site), at=f"2026-11-19T{hour:02}:00:00+00:00")
        paths.append(folder / f"{hour:02}.json")
        paths[-1].write_text(json.dumps(shown))
    return paths


def test_drift_is_said_with_what_to_do(hours: list[Path], tmp_path: Path):
    before = Calibration(Factors(decode=1.1), sources=("last week",))
    found = calibrate(hours[::-1], gpu="h200", before=before)
    seen = found.over_time
    assert seen is not None and seen.drifted
    assert [row.name for row in seen.ratios] == ["09.json", "12.json", "15.json"], "in the order of time"
    old, new = ([getattr(row, name) for row in seen.ratios] for name in ("old", "new"))
    assert old[0] > old[1] > old[2] and new[0] > 1 > new[2]
    text = calibration_text(found, tmp_path / "site.json", found.over_time)
    assert "before: compute 1.00" in text and "decode 1.10" in text
    assert "time per token: slower beyond noise" in text
    assert "doesn't hold for all of these: fit the latest (15.json) alone" in text
    told = json.loads(json.dumps(found.as_json()))["over_time"]
    assert told["before"]["factors"]["decode"] == 1.1
    assert told["ratios"][2]["at"] == "2026-11-19T15:00:00Z"


def test_a_steady_server_has_one_calibration(hours: list[Path], tmp_path: Path):
    again = tmp_path / "again.json"
    again.write_text(hours[0].read_text().replace("T09:", "T19:"))
    found = calibrate([hours[0], again], gpu="h200")
    assert found.over_time is not None and found.over_time.trends and not found.over_time.drifted
    assert "doesn't hold" not in calibration_text(found, tmp_path / "site.json", found.over_time)
    assert "priors" in calibration_text(found, tmp_path / "site.json", found.over_time)


def test_results_without_a_time_have_no_drift(hours: list[Path], tmp_path: Path):
    bare = [tmp_path / path.name for path in hours[:2]]
    for path, to in zip(hours, bare, strict=False):
        to.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "at"}))
    found = calibrate(bare, gpu="h200")
    assert found.over_time is not None and not found.over_time.trends
    assert len(found.over_time.ratios) == 2


def test_one_result_alone_is_compared_only_with_a_calibration_before(hours: list[Path]):
    assert calibrate(hours[:1], gpu="h200").over_time is None
    assert calibrate(hours[:1], gpu="h200", before=Calibration()).over_time is not None


def test_a_calibration_of_another_machine_is_not_compared_with(hours: list[Path], tmp_path: Path):
    scene = ValidatedSetting("h100", "sglang", "0.5.9", "llama-8b", "bf16", "tp 1")
    found = calibrate(hours[:1], gpu="h200", before=Calibration(scope=(scene,)))
    assert found.over_time is None
    assert any("measured on H100 with sglang: not compared" in remark for remark in found.remarks)
    write_calibration(found.calibration, tmp_path / "site.json")
