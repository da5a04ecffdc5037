"""Calibration finds what is there, leaves alone what nobody measured, and predicts other settings of its machine."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as example_settings
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.serving.traffic.traffic import OpenLoop, parse_traffic
from ridgeline.serving.twin.calibrate import calibrate, row_observations
from ridgeline.serving.twin.calibration import Calibration, Factors, read_calibration, write_calibration
from ridgeline.serving.twin.fit import FitObservation, _share, fit
from ridgeline.serving.twin.measured import read_rows
from ridgeline.serving.twin.simulate import simulate
from ridgeline.serving.verbs.calibrate import calibration_text
from tests.twin import deployments as make

SAMPLES = Path(__file__).parents[1] / "samples" / "sglang"
LLAMA_LOG = SAMPLES / "offline-llama8b-h200-default.log"


def observed(name: str, true: Factors, shares: dict[str, float]) -> FitObservation:
    """A step whose time is a sum of parts, each governed by one factor."""

    def seconds(f: Factors) -> float:
        return sum(s * (getattr(f, n) if "host" in n else 1 / getattr(f, n)) for n, s in shares.items())

    return FitObservation(name, seconds(true), seconds)


@example_settings(deadline=None, max_examples=25)
@given(st.floats(0.6, 1.6), st.floats(0.5, 2.0))
def test_factors_are_found_again(compute: float, host: float):
    true = Factors(compute=compute, host=host)
    points = [observed(f"c{n}", true, {"compute": 0.1, "memory": 0.001}) for n in range(8)]
    points += [observed(f"h{n}", true, {"host": 0.05}) for n in range(8)]
    found = fit(points, ["made"]).calibration
    assert found.factors.compute == pytest.approx(compute, rel=0.03)
    assert found.factors.host == pytest.approx(host, rel=0.03)
    assert found.factors.network == pytest.approx(1.0, abs=1e-6)


def test_two_contradicting_points_do_not_explode():
    slow, fast = Factors(memory=0.2), Factors(memory=5.0)
    points = [observed("slow", slow, {"memory": 1.0}), observed("fast", fast, {"memory": 1.0})]
    found = fit(points, ["made"]).calibration
    assert all(0.3 < value < 3 for value in found.factors.as_json().values())
    assert found.spread > 0.4  # it knows that it does not know


@pytest.mark.parametrize(
    ("alone", "unfitted", "share"),
    [
        ([0.5, 0.2, 0.3], [2.0, 2.0, 2.0], 1.0),  # each is predicted better by the others: all the way
        ([3.0, 3.0, 3.0], [1.0, 1.0, 1.0], 0.0),  # each is misled by the others: stay
        ([-2.0, -2.0, -2.0], [2.0, 2.0, 2.0], 0.5),  # too far by as much as the priors fell short
        ([3.0, 3.0], [1.0, 1.0], 1.0),  # of two, nobody can say which is wrong
        ([1.0, 1.0, 1.0], [0.9, 0.9, 0.9], 1.0),  # not clearly worse
        ([90.0, 0.1, 0.1, 0.1], [5.0, 2.0, 2.0, 2.0], 1.0),  # a strange one does not decide for the others
    ],
)
def test_a_fit_goes_as_far_as_left_out_rows_gain_by_it(alone: list[float], unfitted: list[float], share: float):
    assert _share(np.array(alone), np.array(unfitted), np.ones(len(alone))) == pytest.approx(share)


def test_more_rows_of_one_kind_never_move_the_fit_away_from_them():
    true, shares = Factors(compute=1.3), {"compute": 0.8, "memory": 0.2}
    misses = []
    for count in (0, 1, 2, 4, 8):
        points = [observed(f"row {n}", true, shares) for n in range(count)]
        factors = fit(points, ["site"]).calibration.factors if points else Factors()
        asked = observed("new", true, shares)
        misses.append(abs(math.log(asked.measured / asked.predict(factors))))
    assert all(later <= sooner + 1e-6 for sooner, later in itertools.pairwise(misses))


def test_a_row_that_the_others_contradict_is_named():
    shares = {"compute": 1.0}
    points = [observed(f"row {n}", Factors(compute=1.1), shares) for n in range(5)]
    found = fit([*points, observed("cold", Factors(compute=0.2), shares)], ["site"])
    assert [point.name for point in found.points if point.doubted] == ["cold"]
    assert found.calibration.factors.compute == pytest.approx(1.1, abs=0.05)
    assert "doubtful: cold" in calibration_text(found, Path("site.json"))


def test_a_phase_that_is_off_does_not_move_the_other():
    def tpot(f: Factors) -> float:
        return f.decode * (0.004 / f.compute + 0.006 / f.memory)

    def ttft(f: Factors) -> float:
        return f.prefill * (0.08 / f.compute + 0.02 / f.memory)

    rows = range(2)
    points = [FitObservation(f"TPOT {n}", 1.4 * tpot(Factors()), tpot, phase=True) for n in rows]
    points += [FitObservation(f"TTFT {n}", ttft(Factors()), ttft, 0.15, phase=True) for n in rows]
    found = fit(points, ["site"]).calibration.factors
    assert tpot(found) == pytest.approx(1.4 * tpot(Factors()), rel=0.05)
    assert ttft(found) == pytest.approx(ttft(Factors()), rel=0.04)
    assert found.decode > 1.2


def test_agreeing_points_narrow_the_interval():
    true = Factors(memory=1.1)
    few, many = (fit([observed(str(n), true, {"memory": 1.0}) for n in range(k)], ["m"]).calibration for k in (1, 20))
    assert many.spread < few.spread < Calibration().spread


# total tokens per second measured on the machine of the log, whose own run is the first
MEASURED = [
    ("its own run", {}, 1000, 21605.42),
    ("fewer prompts, first run on a cold machine", {}, 200, 12423.67),
]


@pytest.fixture(scope="module")
def site() -> Calibration:
    return calibrate([LLAMA_LOG]).calibration


@pytest.mark.parametrize(("name", "settings", "requests", "tok_s"), MEASURED)
def test_one_log_predicts_other_settings_of_its_machine(site, name, settings, requests, tok_s):
    sent = parse_traffic("sharegpt:281.324:196.445", requests=requests)
    result = simulate(make.llama(attention_backend="triton", **settings), sent, site)
    assert result.summary.total_tok_s == pytest.approx(tok_s, rel=0.10)
    low, high = result.interval["total_tok_s"]
    assert low < tok_s < high


def test_the_log_of_one_model_predicts_another_on_the_same_machine(site):
    from ridgeline.serving.engines.deployment import Deployment
    from ridgeline.serving.engines.layout import Layout
    from ridgeline.serving.engines.settings import EngineSettings
    from ridgeline.serving.hardware.cluster import make_cluster
    from ridgeline.serving.model.config import load_model

    chosen = EngineSettings(
        attention_backend="triton", max_running_requests=1024, cuda_graph_max_bs=512, mem_fraction=0.8
    )
    one_gpu = Layout(gpus_per_node=1)
    deployment = Deployment(load_model("deepseek-v2-lite"), make_cluster("h200", 1, 1), one_gpu, chosen)
    result = simulate(deployment, parse_traffic("sharegpt:281.324:196.445", requests=1000), site)
    assert result.summary.total_tok_s == pytest.approx(14547.5, rel=0.10)


def test_leave_one_out_error_of_a_log_is_small(site):
    assert site.points > 40
    assert site.leave_one_out is not None
    assert site.leave_one_out < 0.08


def test_rows_of_a_csv_calibrate_too(tmp_path: Path):
    true = Calibration(factors=Factors(host=1.5, memory=0.9))
    sent = parse_traffic("sharegpt", requests=300, seed=2025)
    tok_s = simulate(make.r1("h100"), sent, true).summary.total_tok_s
    rows = tmp_path / "rows.csv"
    rows.write_text(f"nodes,gpus,tp,prompts,total_tok_s,result\n2,16,16,300,{tok_s},ok\n2,16,16,300,,oom\n")
    found = calibrate([rows], model="deepseek-r1", gpu="h100")
    again = simulate(make.r1("h100"), sent, found.calibration).summary.total_tok_s
    assert again == pytest.approx(tok_s, rel=0.03)
    assert found.calibration.points == 1


def test_rows_of_a_served_load_are_read(tmp_path: Path):
    rows = tmp_path / "rows.csv"
    head = "model,gpu,gpus,prompts,concurrency,rate,total_tok_s,ttft_p95_s,itl_p95_s"
    rows.write_text(f"{head}\nllama-8b,h200,1,50,8,,900,0.4,0.012\nllama-8b,h200,1,50,,20,900,,\n")
    closed, opened = read_rows(rows)
    assert closed.traffic.concurrency == 8
    assert closed.values == {"total_tok_s": 900, "ttft_p95_s": 0.4, "itl_p95_s": 0.012}
    assert opened.traffic.pace == OpenLoop(20)
    assert {p.name.split()[1] for p in row_observations(closed)} == set(closed.values)


def test_the_file_keeps_everything(tmp_path: Path):
    kept = Calibration(Factors(host=1.25, network=0.8), 0.11, 7, ("a.log",), 0.04)
    write_calibration(kept, tmp_path / "sites" / "here.json")
    assert read_calibration(tmp_path / "sites" / "here.json") == kept
    low, high = kept.ratio_interval()
    assert math.log(high) == pytest.approx(-math.log(low))


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("empty.log", "nothing here\n", "no 'Prefill batch' or 'Decode batch' line"),
        ("rows.csv", "tp,total_tok_s\n", "holds no rows"),
        ("rows.csv", "tp,total_tok_s\n8,fast\n", "rows.csv:2: total_tok_s is 'fast'"),
        ("rows.csv", "tp,total_tok_s,result\n8,100,oom\n", "no row with result ok"),
        ("rows.csv", "tp,total_tok_s\neight,100\n", "tp is 'eight'"),
    ],
)
def test_files_without_speeds_are_refused(tmp_path: Path, name: str, text: str, says: str):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=says):
        calibrate([tmp_path / name], model="llama-8b", gpu="h200")


def test_a_row_without_a_model_asks_for_it(tmp_path: Path):
    (tmp_path / "rows.csv").write_text("tp,total_tok_s\n8,100\n")
    with pytest.raises(InputError, match="no model; add a column named model or give --model"):
        calibrate([tmp_path / "rows.csv"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[1, 2]", "holds no factors"),
        ('{"factors": {"speed": 2}}', "speed is not a factor"),
        ('{"factors": {"host": 0}}', "above zero"),
        ('{"factors": {}, "spread": -1}', "spread"),
        ("{", "not YAML"),
    ],
)
def test_a_damaged_calibration_is_refused(tmp_path: Path, text: str, says: str):
    (tmp_path / "site.json").write_text(text)
    with pytest.raises(InputError, match=says):
        read_calibration(tmp_path / "site.json")


def test_a_logs_release_is_the_users_word_and_a_guess_is_called_one():
    told = calibrate([LLAMA_LOG], gpu="h200", engine="sglang:0.5.15")
    assert {s.release for s in told.calibration.scope} == {"0.5.15"}
    assert not any("release" in remark for remark in told.remarks)
    guessed = calibrate([LLAMA_LOG], gpu="h200")
    (scene,) = guessed.calibration.scope
    assert any(f"taken as {scene.release}" in remark for remark in guessed.remarks)
    with pytest.raises(InputError, match="of SGLang only"):
        calibrate([LLAMA_LOG], gpu="h200", engine="vllm:0.17.0")
