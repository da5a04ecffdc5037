"""What TTFT, ITL, TPOT and goodput mean, by hand: the load generator, the twin and `import` all take them from here."""

from __future__ import annotations

import sys

import pytest

from ridgeline.errors import InputError
from ridgeline.serving.traffic.requests import RequestRecord, Slo, Spread, summarise


def request(number: int = 0, **more: object) -> RequestRecord:
    """Due at 1 s, sent at 2 s, first token at 2.5 s, three more at gaps of 0.1 s; done at 2.8 s."""
    plain: dict[str, object] = {
        "scheduled_s": 1.0, "sent_s": 2.0, "first_token_s": 2.5, "end_s": 2.8, "input_tokens": 10, "output_tokens": 4,
        "gaps_s": ((0.1, 3),),
    }  # fmt: skip
    return RequestRecord(number, **{**plain, **more})  # type: ignore[arg-type]


def test_latencies_count_from_the_moment_of_sending() -> None:
    """What a client was late by is no latency of the server: it is reported apart, and voids a run."""
    one = request()
    assert (one.ttft_s, one.e2e_s) == (pytest.approx(0.5), pytest.approx(0.8))
    assert one.tpot_s == pytest.approx(0.1), "over the tokens after the first"
    assert request(output_tokens=1).tpot_s is None
    assert request(first_token_s=None).ttft_s is None
    assert request(end_s=None).e2e_s is None is request(end_s=None).tpot_s


def test_a_limit_is_met_up_to_itself_and_never_by_what_failed() -> None:
    exact = request(sent_s=2.0, first_token_s=2.5, end_s=3.0)
    assert Slo.parse("ttft_p95_ms=500").met_by(exact) and not Slo.parse("ttft_p95_ms=499").met_by(exact)
    assert Slo.parse("e2e_p95_ms=1000").met_by(exact) and not Slo.parse("e2e_p95_ms=999").met_by(exact)
    for name in ("itl", "tpot"):
        assert Slo.parse(f"{name}_p50_ms=167").met_by(exact) and not Slo.parse(f"{name}_p50_ms=166").met_by(exact)
        assert Slo.parse(f"{name}_p50_ms=1").met_by(request(output_tokens=1)), "an answer of one token has no gap"
    assert not Slo.parse("ttft_p95_ms=500").met_by(request(status="cut"))
    assert not Slo.parse("ttft_p95_ms=500").met_by(request(first_token_s=None))


def test_rates_count_what_succeeded_and_goodput_what_met_every_limit() -> None:
    slow = request(1, first_token_s=4.0, end_s=6.0, gaps_s=((2 / 3, 3),))
    failed = request(2, status="http-500", end_s=12.0, first_token_s=None, gaps_s=((9.0, 1),))
    limits = [Slo.parse("ttft_p99_ms=2000"), Slo.parse("tpot_p99_ms=200")]
    hung = request(3, status="timeout", first_token_s=None, end_s=None, gaps_s=())
    got = summarise([request(), slow, failed, hung], limits)
    assert (got.requests, got.ok, got.errors) == (4, 2, {"http-500": 1, "timeout": 1})
    assert got.duration_s == pytest.approx(10.0), "from the first sent to the last end, well or not"
    assert (got.requests_s, got.input_tok_s, got.output_tok_s) == pytest.approx((0.2, 2.0, 0.8))
    assert got.total_tok_s == pytest.approx(2.8)
    assert got.goodput_s == pytest.approx(0.1), "the slow one met one limit of two"
    assert summarise([request()]).goodput_s is None
    assert got.itl_ms is not None and got.ttft_ms is not None and got.tpot_ms is not None
    assert (got.ttft_ms.mean, got.tpot_ms.mean) == pytest.approx((1250.0, (100 + 2000 / 3) / 2))
    assert got.as_json()["ttft_ms"] == got.ttft_ms.as_json()
    assert got.itl_ms.mean == pytest.approx((0.3 + 2.0) / 6 * 1000), "each gap counts once; a failed request's none"
    assert (got.itl_ms.p50, got.itl_ms.p90) == pytest.approx((100.0, 2000 / 3))
    assert got.holds(Slo.parse("ttft_p50_ms=1250")) and not got.holds(Slo.parse("ttft_p50_ms=1249"))
    assert not summarise([failed]).holds(limits[0]), "what was never seen does not hold"


def test_within_a_window_rates_count_what_ended_in_it() -> None:
    got = summarise([request()], duration_s=2.0, completed=[request(), request(1), request(2, status="cut")])
    assert (got.ok, got.requests_s, got.output_tok_s) == (1, 1.0, 4.0)


@pytest.mark.parametrize("numpy", [True, False])
def test_percentiles_of_values_and_of_counted_gaps(monkeypatch: pytest.MonkeyPatch, numpy: bool) -> None:
    if numpy:
        import numpy as np

        assert np
    else:
        monkeypatch.delitem(sys.modules, "numpy", raising=False)
    spread = Spread.of([0.004, 0.001, 0.002, 0.003, 0.005])
    assert spread is not None
    assert (spread.mean, spread.p50, spread.p90, spread.p95, spread.p99) == pytest.approx((3, 3, 4.6, 4.8, 4.96))
    counted = Spread.of([0.010, 0.001, 0.100], [9, 90, 1])
    assert counted is not None
    assert (counted.mean, counted.p50, counted.p90, counted.p95, counted.p99) == pytest.approx((2.8, 1, 1, 10, 10))
    values, counts = [0.01, 0.001, 0.01, 0.1, 0.01], [3, 90, 5, 1, 1]
    assert Spread.of(values, counts) == Spread.of(values[::-1], counts[::-1]), "whatever their order"
    assert Spread.of([]) is None
    assert Spread.of([0.007]) == Spread(*[pytest.approx(7.0)] * 5)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ttft_p95=2000", "not of the form"),
        ("ttft_p95_s=2", "not of the form"),
        ("latency_p95_ms=2", "not of the form"),
        ("ttft_p97_ms=2000", "p97 is not one of"),
        ("ttft_p95_ms=soon", "not a number of milliseconds"),
        ("ttft_p95_ms=0", "above zero"),
        ("ttft_p95_ms=nan", "above zero"),
        ("ttft_p95_ms<2000", "did you mean ttft_p95_ms=2000"),
    ],
)
def test_a_limit_that_is_none_is_refused(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        Slo.parse(text)
    assert str(Slo.parse("ttft_p95_ms=2000")) == "ttft_p95_ms=2000"
