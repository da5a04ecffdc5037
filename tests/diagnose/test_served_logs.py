"""Logs of serving engines over time: what limits a server, what a stop looks like, in one pass and constant memory."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from ridgeline import catalog
from ridgeline.diagnose.base import Analyzer, diagnose
from ridgeline.diagnose.readers.lines import TextFile
from ridgeline.records.finding import Finding
from ridgeline.serving.engines.served import LogTally, ServedSecond, ServedTally
from ridgeline.serving.engines.sglang.engine import SGLANG as ENGINE
from ridgeline.serving.engines.sglang.log import read_sglang_log
from ridgeline.serving.engines.sglang.tally import tally_sglang_log
from ridgeline.serving.engines.vllm.log import tally_vllm_log
from ridgeline.serving.findings import vllm_log
from ridgeline.serving.findings.served import EngineKnobs, queue_growth, served_figures, what_limits

ROOT = Path(__file__).resolve().parent.parent.parent
SERVED = next((ROOT / "examples/05-sglang-h200/results/llama-8b-serve/runs").glob("0001-*/engine.log"))
SGLANG = sorted((ROOT / "tests/samples/sglang").iterdir())
ANALYZERS: list[Analyzer] = [catalog.part("analyzers", name) for name in catalog.shipped("analyzers")]

LIMITS = "[2026-11-15 10:00:00] max_total_num_tokens=1000, chunked_prefill_size=8192, max_running_requests=64"
READY = "[2026-11-15 10:00:00] The server is fired up and ready to roll!"


def decode(second: int, running: int = 20, usage: float = 0.3, queued: int = 0, graph: bool = True) -> str:
    return (
        f"[2026-11-15 10:{second // 60:02d}:{second % 60:02d}] Decode batch, #running-req: {running}, #token: 9, "
        f"token usage: {usage:.2f}, cuda graph: {graph}, gen throughput (token/s): 9.00, #queue-req: {queued}"
    )


def prefill(second: int, running: int, tokens: int = 100, cached: int = 0) -> str:
    return (
        f"[2026-11-15 10:{second // 60:02d}:{second % 60:02d}] Prefill batch, #new-seq: 1, #new-token: {tokens}, "
        f"#cached-token: {cached}, token usage: 0.10, #running-req: {running}, #queue-req: 0, "
    )


def analyzed(kind: str, lines: Iterable[str]) -> dict[str, Finding]:
    analyzer: Analyzer = catalog.part("analyzers", kind)
    return {finding.key: finding for finding in analyzer.analyze("file", list(lines))}


def test_a_healthy_served_log_says_what_limits_it_and_how_it_was_used() -> None:
    found = {f.key: f for f in diagnose(SERVED, ANALYZERS).findings}
    assert not [f for f in found.values() if f.severity in ("fault", "warning")]
    said = found["sglang.limit"].claim
    for part in (
        "what came in was the limit",
        "at most 192 of 256",
        "KV pool was 2% full",
        "100% of decode lines used",
    ):
        assert part in said
    assert "decode 55%, prefill 35%, idle 10% of the time" in said
    assert 0.3 < (found["sglang.prefill-starves-decode"].share or 0) < 0.45


STOP = "[2026-11-15 10:05:00] SIGTERM received. signum=None frame=None. Draining requests and shutting down..."
QUIT = "[2026-11-15 10:05:01] SIGQUIT received. signum=None, frame=None. It usually means one child failed."


def test_a_server_that_was_told_to_stop_did_not_fail() -> None:
    work = [LIMITS, READY, decode(1)]
    stopped = analyzed("sglang-log", [*work, STOP, QUIT, "RuntimeError: the pipe is closed"])
    assert set(stopped) == {"sglang.stopped"} and stopped["sglang.stopped"].severity == "note"
    crashed = analyzed("sglang-log", [*work, QUIT])
    assert crashed["sglang.failed-child-died"].severity == "fault"
    # what failed before it was stopped stays a failure
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    assert "sglang.failed-cuda-oom" in analyzed("sglang-log", [*work, oom, STOP, QUIT])


def test_a_vllm_server_that_was_told_to_stop_did_not_fail() -> None:
    stop = "(APIServer pid=1) INFO 11-15 04:43:43 [launcher.py:254] [shutdown] API server: shutdown triggered"
    died = "(APIServer pid=1) ERROR 11-15 04:43:44 [core_client.py:1] EngineDeadError: EngineCore encountered an issue"
    assert set(analyzed("vllm-log", [stop, died])) == {"vllm.stopped"}
    assert "vllm.failed-child-died" in analyzed("vllm-log", [died])


def test_a_queue_that_grows_is_told_from_one_that_comes_and_goes() -> None:
    growing = [LIMITS, *(decode(s, 64, 0.3, 5 * s) for s in range(1, 80))]
    found = analyzed("sglang-log", growing)["sglang.queue-growth"]
    assert found.severity == "warning" and "more came in than was served" in found.claim
    assert [k.name for k in found.knobs] == ["max_running_requests"] and 128 in found.knobs[0].values
    burst = [LIMITS, *(decode(s, 64, 0.3, 400 if 20 < s < 40 else 0) for s in range(1, 80))]
    assert "sglang.queue-growth" not in analyzed("sglang-log", burst)


def test_the_share_at_stake_is_time_and_not_lines() -> None:
    capture = [
        "[2026-11-15 10:00:00] Capture target decode CUDA graph begin. bs=[1, 2, 8]",
        "[2026-11-15 10:00:01] Capture target decode CUDA graph end. elapsed=1.0 s, mem usage=0.2 GB.",
    ]
    # ten lines within graphs take one second, two lines beyond them nine seconds
    fast = [decode(10, 8), *(decode(11, 8) for _ in range(10))]
    slow = [decode(16, 9, graph=False), decode(20, 9, graph=False)]
    found = analyzed("sglang-log", [LIMITS, *capture, *fast, *slow])["sglang.graph-misses"]
    assert found.share == pytest.approx(0.9)
    assert "2 of 13 decode lines" in found.claim


def test_time_without_work_is_nobodys() -> None:
    lines = [prefill(0, 0), decode(1), decode(2), prefill(602, 0), decode(603), decode(604)]
    totals = tally_sglang_log(lines).served.totals
    assert totals.span_s == 604 and totals.idle_s == 600 and totals.busy_s == 4


def test_what_limits_a_server() -> None:
    def limit(**of: object) -> str:
        lines = [LIMITS, READY, *(decode(s, **of) for s in range(1, 40))]  # type: ignore[arg-type]
        return analyzed("sglang-log", lines)["sglang.limit"].claim

    assert limit(usage=0.99, queued=3).startswith("the KV pool was the limit")
    assert limit(running=64, queued=3).startswith("the cap on running requests was the limit")
    assert limit(queued=3).startswith("requests waited for their prefill")
    assert limit().startswith("what came in was the limit")


@pytest.mark.parametrize(
    ("of", "limit", "share"),
    [
        # of hundred seconds of decoding a quarter is much; what is named first wins
        ({"full": 25, "waiting": 25}, "the KV pool was the limit", 0.25),
        ({"full": 24, "waiting": 24}, "what came in was the limit", None),
        ({"full": 24, "capped": 25, "waiting": 49}, "the cap on running requests was the limit", 0.25),
        ({"full": 25, "capped": 75, "waiting": 100}, "the KV pool was the limit", 0.25),
        ({"eager": 30, "beyond": 30, "waiting": 40}, "the host was the limit: batches beyond", 0.3),
        ({"eager": 30, "beyond": 0}, "what came in was the limit", None),
        ({"waiting": 40}, "requests waited for their prefill", 0.4),
        ({"waiting": 24}, "what came in was the limit", None),
    ],
)
def test_a_quarter_of_the_working_time_makes_a_limit(of: dict[str, int], limit: str, share: float | None) -> None:
    tally = tallied(of)
    (found,) = what_limits(ENGINE, LogTally(tally, 64, {"limits": (3, "")}))
    assert found.claim.startswith(limit) and found.share == (share and pytest.approx(share))
    graphs = 100 - of.get("eager", 0)
    assert "16 requests ran at once (at most 30 of 64); the KV pool was 50% full (at most 70%); " in found.claim
    assert f"; {graphs}% of decode lines used CUDA graphs" in found.claim
    figures = {figure.name: figure.value for figure in served_figures(tally)}
    assert figures["lines with requests waiting"] == of.get("waiting", 0) / 100
    assert figures["lines without a CUDA graph"] == of.get("eager", 0) / 100
    assert (figures["running requests, mean"], figures["running requests, most"]) == (16, 30)
    assert (figures["KV pool, mean"], figures["KV pool, peak"]) == (pytest.approx(0.5), 0.7)
    assert figures["decode rate, mean"] == pytest.approx(900.0) and figures["time covered"] == 100.0
    assert (figures["time in decode"], figures["time in prefill"], figures["time idle"]) == (1.0, 0.0, 0.0)


def tallied(of: dict[str, int]) -> ServedTally:
    """A hundred decode lines of a second each; the first so many are of each of these kinds, capped after full."""
    tally = ServedTally()
    tally.add(0.0, ServedSecond())
    for at in range(100):
        kinds = {name: int(at < count) for name, count in of.items()}
        kinds["capped"] = int(of.get("full", 0) <= at < of.get("full", 0) + of.get("capped", 0))
        tally.add(at + 1.0, ServedSecond(1, 1, running=16, kv_share=0.5, decode_tok_s=900.0, **kinds))
    tally.totals.most_running, tally.totals.peak_kv_share = 30, 0.7
    return tally


@pytest.mark.parametrize(
    ("queue", "grows"),
    [
        (lambda s: 10 if s >= 60 else 5, "from 5 to 10"),  # ten wait at the end, twice as many as at the beginning
        (lambda s: 9 if s >= 60 else 4, ""),
        (lambda s: 10 if s >= 60 else 6, ""),
        (lambda s: 10 if s >= 60 else 0, "from 0 to 10"),
        (lambda s: 10 if s >= 60 else 20 if 20 <= s < 40 else 0, ""),  # it was longer before
    ],
)
def test_a_queue_has_grown_when_its_last_quarter_is_twice_the_first(queue: Callable[[int], int], grows: str) -> None:
    tally = ServedTally()
    for at in range(80):
        tally.add(float(at), ServedSecond(1, 1, queued=queue(at), waiting=queue(at) > 0))
    log = LogTally(tally, 64, {"waiting": (4, ""), "last-waiting": (79, "")})
    found = list(queue_growth(ENGINE, log, EngineKnobs("sglang", {})))
    assert [claim.claim.partition(" waiting")[0] for claim in found] == ([f"the queue grew {grows}"] if grows else [])
    assert [[quote.line for quote in claim.quotes] for claim in found] == ([[4, 79]] if grows else [])


@pytest.mark.parametrize(("lines", "full", "told"), [(40, 4, True), (40, 3, False), (12, 2, True), (12, 1, False)])
def test_a_pool_that_is_full_in_a_tenth_of_the_lines_twice_at_least_limits_the_batch(
    lines: int, full: int, told: bool
) -> None:
    work = [decode(s, usage=0.99 if s <= full else 0.3, queued=3 if s <= full else 0) for s in range(1, lines + 1)]
    found = analyzed("sglang-log", [LIMITS, READY, *work]).get("sglang.pool-full")
    assert (found is not None) == told
    if found is not None:
        assert f"full in {full} of {lines} decode lines while requests waited" in found.claim
        assert "--mem-fraction-static" in found.advice and found.knobs


def test_a_log_that_ends_before_the_server_is_ready() -> None:
    (found,) = analyzed("sglang-log", ["server_args=ServerArgs(model_path='/m', tp_size=1)"]).values()
    assert found.key == "sglang.never-ready"


@pytest.mark.parametrize("path", [*SGLANG, SERVED], ids=lambda p: p.name)
def test_blocks_and_single_lines_tell_the_same(path: Path) -> None:
    log, tally = read_sglang_log(TextFile(path)), tally_sglang_log(TextFile(path))
    start = log.benchmark_line or 0
    decodes = [d for d in log.decodes if d.stamp.line > start]
    prefills = [p for p in log.prefills if p.stamp.line > start]
    totals = tally.served.totals
    assert (totals.decodes, totals.prefills) == (len(decodes), len(prefills))
    assert totals.running == sum(d.running for d in decodes)
    assert totals.decode_tok_s == pytest.approx(sum(d.gen_tok_s or 0 for d in decodes))
    assert totals.eager == sum(d.cuda_graph is False for d in decodes)
    assert totals.starved == sum(bool(p.running) for p in prefills)
    assert tally.cached_tokens == sum(p.cached_tokens for p in prefills)
    assert tally.cached_token_share == log.cached_token_share()
    work = [*log.decodes, *log.prefills]
    assert tally.last_work_line == max([b.stamp.line for b in work] + [r.line for r in log.results], default=0)
    for line, text in tally.texts().items():
        assert text == path.read_bytes().split(b"\n")[line - 1].decode("utf-8", "replace")[: len(text)].rstrip("\r")


@pytest.mark.parametrize("seed", range(12))
def test_blocks_and_single_lines_tell_the_same_of_a_damaged_log(seed: int) -> None:
    pick = random.Random(seed)
    text = bytearray(pick.choice([*SGLANG, SERVED]).read_bytes().replace(b"Benchmark...", b"Go"))
    for _ in range(400):
        here = pick.randrange(len(text))
        swap = pick.choice(
            (b"", b"x", b"9", b",", b"\n", b"]", b"[", b": ", b" ", b"-1", b".", b"\xff", b"\r", b"True")
        )
        text[here : here + pick.randrange(3)] = swap
    lines = [line.decode("utf-8", "replace") for line in bytes(text).split(b"\n")]
    log, tally = read_sglang_log(lines), tally_sglang_log(lines)
    totals = tally.served.totals
    assert (totals.decodes, totals.prefills) == (len(log.decodes), len(log.prefills))
    assert totals.running == sum(d.running for d in log.decodes)
    assert totals.decode_tok_s == pytest.approx(sum(d.gen_tok_s or 0 for d in log.decodes))
    assert tally.new_tokens == sum(p.new_tokens for p in log.prefills)


def test_batch_lines_of_other_releases_and_of_ranks_count_too() -> None:
    old = (
        "[2025-07-01 10:00:20 DP0 TP0] Decode batch. #running-req: 3, #token: 9, token usage: 0.50, accept len: 2.10, "
    )
    old += "cuda graph: False, gen throughput (token/s): 9.00, #queue-req: 4"
    two = decode(1, 5).replace("]", " DP0 TP0]", 1) + decode(1, 6).replace("]", " DP1 TP4]", 1)
    totals = tally_sglang_log([old, two]).served.totals
    assert (totals.decodes, totals.running, totals.eager, totals.waiting) == (3, 14, 1, 1)


def test_a_batch_line_of_another_shape_is_on_the_same_clock() -> None:
    other = decode(5, 30).replace("#token: 9", "#full token: 9").replace("token usage", "full token usage")
    totals = tally_sglang_log([READY, other, decode(9), other.replace(":05]", ":11]"), decode(12)]).served.totals
    assert (totals.decodes, totals.span_s, totals.decode_s) == (4, 7.0, 7.0)


def test_a_second_is_shared_by_all_of_its_lines_whatever_stands_between_them() -> None:
    between = (
        "[2026-11-15 10:00:04] Tool call parser is ready, nothing to see here and enough text to be read as a line"
    )
    alone = [READY, decode(2), decode(4), prefill(4, 3), decode(4)]
    first = tally_sglang_log(alone).served.totals
    assert (first.decode_s, first.prefill_s) == (pytest.approx(4 / 3), pytest.approx(2 / 3))
    assert tally_sglang_log([*alone[:3], between, *alone[3:]]).served.totals == first


def test_a_long_log_takes_no_more_memory_than_a_short_one(tmp_path: Path) -> None:
    path = tmp_path / "long.log"
    rows = [decode(s % 3600, s % 64, 0.2, s % 3) + "\n" + prefill(s % 3600, 3) + "\n" for s in range(3600)]
    path.write_text("".join(rows) * 12)
    tracemalloc.start()
    tally = tally_sglang_log(TextFile(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert tally.served.totals.decodes == 12 * 3600 and path.stat().st_size > 11_000_000
    assert peak < 25_000_000, "a block of lines and its rows, never the log"


def test_the_course_of_the_queue_stays_short_however_long_the_log_is() -> None:
    tally = ServedTally()
    for second in range(100_000):
        tally.add(float(second), ServedSecond(lines=1, decodes=1, queued=second // 1000))
    queue = tally.queue_over_time()
    assert 100 <= len(queue) <= 240
    assert queue[0] < 1 and queue[-1] > 98 and queue == sorted(queue)


def test_vllm_rows_add_up() -> None:
    row = (
        "INFO 11-15 04:42:{:02d} [loggers.py:335] Engine 000: Avg prompt throughput: {} tokens/s, Avg generation "
        "throughput: {} tokens/s, Running: {} reqs, Waiting: {} reqs, GPU KV cache usage: {}%"
    )
    lines = [row.format(s, 5000.0, 1.0, 20, 3, 99.0) for s in range(0, 50, 10)] + [row.format(50, 0, 0, 0, 0, 0)]
    totals = tally_vllm_log(lines).served.totals
    assert (totals.decodes, totals.full, totals.starved, totals.span_s, totals.idle_s) == (5, 5, 5, 50.0, 10.0)
    found = analyzed("vllm-log", lines)
    assert found["vllm.prefill-starves-decode"].share == 1.0
    assert found["vllm.limit"].claim.startswith("the KV pool was the limit")


SPLIT = ROOT / "examples/06-deploy/results/split-6-cores"


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("decode-0.log", "up to 108 requests at once waited here for their KV: prefill servers, or the way from them,"),
        ("prefill-0.log", "up to 107 requests at once were read and had not handed over their KV: the transfer,"),
    ],
)
def test_both_sides_of_a_split_service_say_that_kv_is_the_limit(log: str, said: str) -> None:
    """Their queues are empty, so by every other figure nothing waits."""
    findings = diagnose(SPLIT / log, ANALYZERS).findings
    (found,) = (f for f in findings if f.severity == "warning")
    assert found.claim.startswith(said)
    assert "transfer-req: 108" in found.evidence[0].text or "inflight-req: 107" in found.evidence[0].text
    assert not [f for f in findings if "what came in was the limit" in f.claim]


def test_a_few_transfers_are_no_limit() -> None:
    lines = [LIMITS, READY]
    for second in range(40):
        told = decode(second).replace(", cuda graph", ", #prealloc-req: 0, #transfer-req: 3, cuda graph")
        lines.append(told)
    tally = tally_sglang_log(lines)
    assert (tally.fetching.lines, tally.fetching.many, tally.fetching.most) == (40, 0, 3)


def test_advice_with_no_time_at_stake_is_not_given() -> None:
    """The first line of a log has no length: what only it shows cost no time that can be told."""
    start = "INFO 11-15 03:41:00 [utils.py:1] non-default args: {'max_num_seqs': 32}"
    row = (
        "INFO 11-15 03:41:{second} [loggers.py:127] Engine 000: Avg prompt throughput: 9.0 tokens/s, Avg generation "
        "throughput: 900.0 tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, GPU KV cache usage: 40.0%"
    )
    capped = [start, row.format(second=10, running=32, waiting=5), row.format(second=20, running=8, waiting=0)]
    findings = vllm_log.ANALYZER.analyze("log", capped)
    assert not [f for f in findings if f.key == "vllm.cap"]
    capped.append(row.format(second=30, running=32, waiting=5))
    (cap,) = [f for f in vllm_log.ANALYZER.analyze("log", capped) if f.key == "vllm.cap"]
    assert cap.share == 0.5
    shares = [f.share for f in vllm_log.ANALYZER.analyze("log", capped) if f.severity == "advice"]
    assert shares == sorted(shares, key=lambda share: -(share or 0.0))


@pytest.mark.parametrize(("release", "usual"), [("0.19.1", 0.9), ("0.23.0", 0.92)])
def test_the_memory_that_vllm_took_unasked_is_that_of_its_release(release: str, usual: float) -> None:
    started = [
        f"INFO 11-16 10:00:00 [api_server.py:1] vLLM API server version {release}",
        "INFO 11-16 10:00:00 [utils.py:2] non-default args: {'model': 'm', 'max_num_seqs': 8}",
        "ERROR 11-16 10:00:09 [core.py:3] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    ]
    knobs = [k for finding in vllm_log.analyze("vllm.log", started) for k in finding.knobs]
    (memory,) = [k for k in knobs if k.name == "gpu_memory_utilization"]
    assert memory.current == usual
