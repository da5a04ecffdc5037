"""Intervals are checked on measurements that the calibration never saw: each row is left out in its turn."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.settings import EngineSettings
from ridgeline.serving.hardware.cluster import make_cluster
from ridgeline.serving.model.config import load_model
from ridgeline.serving.planner.planner import answer_plan
from ridgeline.serving.traffic.requests import Slo
from ridgeline.serving.traffic.traffic import Traffic, parse_traffic
from ridgeline.serving.twin.calibrate import calibrate, row_observations
from ridgeline.serving.twin.calibration import Calibration
from ridgeline.serving.twin.fit import fit
from ridgeline.serving.twin.measured import Measured, read_rows
from ridgeline.serving.twin.reach import UncertaintySources, intervals, queued_share
from ridgeline.serving.twin.simulate import simulate

LLAMA_LOG = Path(__file__).parents[1] / "samples" / "sglang" / "offline-llama8b-h200-default.log"
# DeepSeek-V3 on two nodes of eight H800, prefill and decode together, no graphs, at most 128 requests (published)
BURSTS = """batch,input_len,output_len,latency_s,ttft_s
1,128,128,24.85,1.71
8,128,128,29.41,2.21
128,128,128,30.1,1.54
256,128,128,59.03,31.64
1024,128,128,232.41,205.42
256,128,32,17.94,10.94
256,128,8,6.3,4.82
256,128,1,3.67,3.67
"""
# (model, requests at once, largest graph, chunk, fraction, tok/s): 400 chats on one H200, SGLang 0.5.15, Triton;
# repeated settings by their median (examples/05-sglang-h200/results)
OFFLINE = [
    ("llama-8b", 4096, 256, 8192, 0.903, 16132),
    ("llama-8b", 512, 512, 8192, 0.88, 17995),
    ("llama-8b", 256, 128, 2048, 0.80, 15114),
    ("llama-8b", 512, 256, 8192, 0.88, 16596),
    ("llama-8b", 4096, 128, 4096, 0.903, 13696),
    ("deepseek-v2-lite", 4096, 256, 8192, 0.80, 9612),
    ("deepseek-v2-lite", 512, 512, 8192, 0.80, 11721),
    ("deepseek-v2-lite", 256, 128, 4096, 0.75, 5727),
    ("deepseek-v2-lite", 512, 256, 8192, 0.85, 9114),
]


@pytest.fixture(scope="module")
def bursts(tmp_path_factory: pytest.TempPathFactory) -> list[Measured]:
    path = tmp_path_factory.mktemp("rows") / "bursts.csv"
    path.write_text(BURSTS)
    settings = EngineSettings(max_running_requests=128, cuda_graph_max_bs=0, mem_fraction=0.81, radix_cache=False)
    layout = Layout(tp=16, ep=16, attn_dp=16, nodes=2)
    rows = read_rows(path, model="deepseek-v3", gpu="h800", settings=settings)
    cluster = make_cluster("h800", 2, 8)
    return [replace(r, deployment=replace(r.deployment, layout=layout, cluster=cluster)) for r in rows]


def test_rows_left_out_fall_inside_in_nine_of_ten_cases(bursts: list[Measured]):
    inside, widths = [], []
    for number, row in enumerate(bursts):
        seen = [bursts[(number + step) % len(bursts)] for step in (2, 5)]
        site = fit([p for r in seen for p in row_observations(r)], ["two rows"]).calibration
        bounds = simulate(row.deployment, row.traffic, site).interval
        for metric, name, unit in (("latency_s", "duration_s", 1), ("ttft_s", "ttft_last_ms", 1000)):
            low, high = bounds[name]
            inside.append(low <= row.values[metric] * unit <= high)
            widths.append(high / low)
    assert sum(inside) >= 0.85 * len(inside)
    assert sorted(widths)[len(widths) // 2] < 6  # and they say something


def test_settings_and_a_model_that_the_log_never_saw_fall_inside():
    site = calibrate([LLAMA_LOG]).calibration
    inside, errors = 0, []
    for model, limit, graph, chunk, fraction, tok_s in OFFLINE:
        chosen = EngineSettings(
            attention_backend="triton",
            max_running_requests=limit,
            cuda_graph_max_bs=graph,
            chunked_prefill_size=chunk,
            mem_fraction=fraction,
        )
        one = Deployment(load_model(model), make_cluster("h200", 1, 1), Layout(gpus_per_node=1), chosen)
        result = simulate(one, parse_traffic("sharegpt", requests=400, seed=2025), site)
        low, high = result.interval["total_tok_s"]
        inside += low <= tok_s <= high
        errors.append(abs(result.summary.total_tok_s / tok_s - 1))
    assert inside == len(OFFLINE)
    assert sum(e < 0.10 for e in errors) >= len(OFFLINE) - 1


def test_one_strange_row_does_not_lead_the_others_astray(bursts: list[Measured]):
    row = bursts[2]
    strange = replace(row, values={"latency_s": 60.0, "ttft_s": 31.0})  # kernels were compiled meanwhile, say
    two = [p for r in (row, bursts[7]) for p in row_observations(r)]
    good = fit(two, ["two rows"]).calibration
    with_it = fit([*two, *row_observations(strange)], ["three rows"]).calibration
    for name, value in with_it.factors.as_json().items():
        assert value == pytest.approx(good.factors.as_json()[name], rel=0.35)
    assert with_it.spread > good.spread


def test_a_plan_states_what_simulate_states():
    sent = parse_traffic("fixed:300:100", requests=400, concurrency=64)
    asked = {"requests": 400, "concurrency": 64, "slos": ["ttft_p95_ms=2000"]}
    answer = answer_plan("llama-8b", "h200", 1, 1, "fixed:300:100", **asked)
    best = answer.choices[0].option
    assert best.interval["itl_p95_ms"] == again(best.scheme.deployment(), sent).interval["itl_p95_ms"]
    low, high = best.bounds["total_tok_s"]
    assert low < best.total_tok_s < high
    said = answer.as_json()["plans"][0]["interval"]["ttft_p95_ms"]
    assert said == [round(v, 4) for v in best.interval["ttft_p95_ms"]]


def again(deployment: Deployment, sent: Traffic) -> object:
    return simulate(deployment, replace(sent, requests=256), slos=[Slo.parse("ttft_p95_ms=2000")])


def test_what_varies_more_widens_its_own_figures():
    site = Calibration(spread=0.1, points=5)
    sent = parse_traffic("fixed:300:100", requests=20)
    one = Deployment(load_model("llama-8b"), make_cluster("h200", 1, 1), Layout(gpus_per_node=1))
    summary = simulate(one, sent).summary
    plain, waits = (intervals(summary, 1.0, site, d) for d in (UncertaintySources(), UncertaintySources(0.0, 1.0, 6.0)))
    for name in plain:
        width = [math.log(b[name][1] / b[name][0]) for b in (plain, waits)]
        assert width[1] > width[0]
    assert waits["ttft_last_ms"][1] > 6000


def bounds(doubts: UncertaintySources, figure: str, points: int = 0) -> tuple[float, float]:
    result = simulate(
        Deployment(load_model("llama-8b"), make_cluster("h200", 1, 1), Layout(gpus_per_node=1)),
        parse_traffic("fixed:100:20", requests=20, concurrency=4),
    )
    return intervals(result.summary, None, Calibration(points=points), doubts)[figure]


def width(doubts: UncertaintySources, figure: str, points: int = 0) -> float:
    low, high = bounds(doubts, figure, points)
    return high / low


def test_without_a_measurement_bounds_are_as_wide_as_public_rows_scatter():
    assert width(UncertaintySources(), "itl_p50_ms") < 1.65
    assert width(UncertaintySources(), "ttft_p50_ms") < 3
    assert width(UncertaintySources(old_experts=True), "itl_p50_ms") > 1.5 * width(UncertaintySources(), "itl_p50_ms")


def test_a_queue_makes_ttft_unsure_and_nothing_else():
    calm, queued = UncertaintySources(queued_share=0.6), UncertaintySources(queued_share=0.95)
    assert width(calm, "ttft_p50_ms") == width(UncertaintySources(), "ttft_p50_ms")
    assert width(queued, "ttft_p50_ms") > 3 * width(calm, "ttft_p50_ms")
    assert width(queued, "itl_p50_ms") == width(calm, "itl_p50_ms")
    assert width(queued, "ttft_p50_ms", points=4) == width(calm, "ttft_p50_ms", points=4)


def test_where_waiting_is_most_of_ttft_the_queue_may_not_be_there_at_all():
    low = {share: bounds(UncertaintySources(queued_share=share), "ttft_p50_ms")[0] for share in (0.0, 0.6, 0.99)}
    assert low[0.6] == low[0.0]
    assert low[0.99] == pytest.approx(0.01 * low[0.0])


def test_users_of_a_loop_that_is_too_full_are_queued():
    deployment = Deployment(load_model("llama-8b"), make_cluster("h200", 1, 1), Layout(gpus_per_node=1))
    full = replace(deployment, settings=EngineSettings(max_running_requests=4))
    shares = [
        queued_share(simulate(d, parse_traffic("fixed:100:50", requests=96, concurrency=24)).records)
        for d in (deployment, full)
    ]
    assert shares[0] < 0.95 < shares[1]


def test_no_server_is_predicted_to_serve_more_than_it_is_sent():
    deployment = Deployment(load_model("llama-8b"), make_cluster("h200", 1, 1), Layout(nodes=1, gpus_per_node=1))
    tokens_s = 10 * (1000 + 100)
    paced = simulate(deployment, parse_traffic("fixed:1000:100", requests=400, rate_s=10, burstiness=0))
    low, high = paced.interval["total_tok_s"]
    assert 0.7 * tokens_s < low < paced.summary.total_tok_s <= high < 1.01 * tokens_s
    assert paced.interval["duration_s"][0] > 39.8
    assert paced.interval["speed"][1] > 1.2, "the server may well be faster: its latencies, not its throughput"
    full = simulate(deployment, parse_traffic("fixed:1000:100", requests=400, concurrency=64))
    assert full.interval["total_tok_s"][1] == pytest.approx(full.summary.total_tok_s * full.interval["speed"][1])
