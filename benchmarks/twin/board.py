"""The accuracy board: the twin, from priors alone, and aiconfigurator on other people's measurements.

    python benchmarks/twin/board.py ROWS.csv [--peer] [--known 2] [--venv FOLDER] [--most 1200]

ROWS.csv has the columns of aiconfigurator's silicon_sample.csv. `--peer` asks aiconfigurator-core about the same rows,
in an environment of its own: its times of a mixed and a decode step, put together as its aggregated estimate does.
`--known 2` calibrates every site (engine, release, model, GPU, weights, mode) on two of its rows, drawn once and for
all, and judges up to eight others with and without that.
Errors are |predicted / measured - 1|; TTFT is judged on rows with a version, others carry cold kernels.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import public_rows
from peer import add_option, wheel
from public_rows import PublicRow, read_public_rows

from ridgeline.errors import InputError
from ridgeline.serving.traffic.requests import RequestRecord
from ridgeline.serving.twin.calibrate import TTFT_NOISE
from ridgeline.serving.twin.calibration import Calibration, Factors
from ridgeline.serving.twin.fit import FitObservation, fit
from ridgeline.serving.twin.simulate import SimulationResult, simulate


@dataclass(frozen=True)
class Score:
    """One row with what somebody predicted for it.

    `inside`: whether measured TPOT and TTFT lie in the bounds; `width`: the upper bound of each over the lower.
    """

    row: PublicRow
    ttft_ms: float
    tpot_ms: float
    inside: tuple[bool, bool] = (False, False)
    width: tuple[float, float] = (1.0, 1.0)

    @property
    def tpot(self) -> float:
        return self.tpot_ms / self.row.tpot_ms

    @property
    def ttft(self) -> float:
        return self.ttft_ms / self.row.ttft_ms

    @property
    def throughput(self) -> float:
        """Predicted over measured, of requests in flight over the time each takes."""
        return self._e2e(self.row.ttft_ms, self.row.tpot_ms) / self._e2e(self.ttft_ms, self.tpot_ms)

    def speed(self, *, measured: bool) -> float:
        """Output tokens per second and GPU."""
        ttft, tpot = (self.row.ttft_ms, self.row.tpot_ms) if measured else (self.ttft_ms, self.tpot_ms)
        answer = statistics.mean(r.output_tokens for r in self.row.traffic.lengths.rows)
        return self.row.concurrency * answer / self._e2e(ttft, tpot) / self.row.deployment.layout.gpus

    def _e2e(self, ttft_ms: float, tpot_ms: float) -> float:
        answer = statistics.mean(r.output_tokens for r in self.row.traffic.lengths.rows)
        return ttft_ms + tpot_ms * (answer - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--peer", action="store_true", help="ask aiconfigurator-core, too")
    parser.add_argument("--most", type=int, default=1200, help="requests of one row at most")
    parser.add_argument("--known", type=int, default=0, help="calibrate each site on so many of its rows, too")
    add_option(parser)
    words = parser.parse_args()
    public_rows.MOST = words.most
    rows, refused = read_public_rows(words.rows)
    twin, unanswered = ask_twin(rows)
    unanswered += refused
    print(f"{len(twin)} of {len(rows) + len(refused)} rows answered\n")
    boards = {"twin": twin}
    if words.peer:
        boards["aiconfigurator"] = ask_peer(rows, words.venv)
        both = {s.row.name for s in twin} & {s.row.name for s in boards["aiconfigurator"]}
        for name in list(boards):
            boards[f"{name}, rows both answer"] = [s for s in boards[name] if s.row.name in both]
    if words.known:
        boards |= with_known_rows(twin, words.known)
    summary(boards)
    by_group(twin)
    misses(twin, unanswered)


def ask_twin(
    rows: Sequence[PublicRow], calibration: Calibration | None = None
) -> tuple[list[Score], list[tuple[str, str]]]:
    found, unanswered = [], []
    for row in rows:
        try:
            result = simulate(row.deployment, row.traffic, calibration)
        except InputError as error:
            unanswered.append((row.name, str(error).splitlines()[0]))
            continue
        ttft, tpot = means_ms(result, row.concurrency)
        inside = tuple(
            low / point * value <= measured <= high / point * value
            for value, measured, point, (low, high) in (
                (tpot, row.tpot_ms, result.summary.itl_ms.p50, result.interval["itl_p50_ms"]),
                (ttft, row.ttft_ms, result.summary.ttft_ms.p50, result.interval["ttft_p50_ms"]),
            )
        )
        bounds = (result.interval["itl_p50_ms"], result.interval["ttft_p50_ms"])
        width = tuple(high / low for low, high in bounds)
        found.append(Score(row, ttft, tpot, (inside[0], inside[1]), (width[0], width[1])))
    return found, unanswered


# InferenceX sends so many requests a user (benchmark_lib.sh, srt-slurm's sa-bench), whatever is simulated of them
SENT_EACH = 10


def means_ms(result: SimulationResult, users: int) -> tuple[float, float]:
    """TTFT and TPOT as the rows state them, were every user to send as many requests as the sweep's do.

    Fewer are simulated. The first of all users come together and wait for each other, the last run beside fewer and
    fewer: each of the two is a tenth of what was measured, however much of the simulated run it is.
    """
    ok = [r for r in result.records if r.status == "ok"]
    count = len(result.records)
    last = count - users if count >= 2 * users else count
    parts = [[r for r in ok if low <= r.number < high] for low, high in ((0, users), (users, last), (last, count))]
    weights = [1.0, SENT_EACH - 2.0, 1.0]
    used = [(part, weight) for part, weight in zip(parts, weights, strict=True) if part]
    whole = sum(weight for _, weight in used)
    ttft = sum(w * statistics.mean((r.first_token_s or 0.0) - r.sent_s for r in part) for part, w in used) / whole
    tpot = sum(w * statistics.mean(_tpot_s(r) for r in part) for part, w in used) / whole
    return 1000 * ttft, 1000 * tpot


def _tpot_s(record: RequestRecord) -> float:
    return ((record.end_s or 0.0) - (record.first_token_s or 0.0)) / (record.output_tokens - 1)


# judged rows of one site, and rows it must have besides those that are known
JUDGED, FEWEST = 8, 3


def with_known_rows(scores: Sequence[Score], count: int) -> dict[str, list[Score]]:
    """The rows that are judged with nothing known of their sites, and with `count` rows of each."""
    sites: dict[tuple[str, ...], list[PublicRow]] = defaultdict(list)
    for score in scores:
        if score.row.version:
            sites[score.row.site[:-1]].append(score.row)
    nothing: list[Score] = []
    known: list[Score] = []
    before = {s.row.name: s for s in scores}
    for rows in sites.values():
        random.Random(7).shuffle(rows)
        judged = rows[count : count + JUDGED]
        if len(judged) >= FEWEST:
            calibration = fit([p for row in rows[:count] for p in points(row)], ["known rows"]).calibration
            known += ask_twin(judged, calibration)[0]
            nothing += [before[row.name] for row in judged]
    return {"twin, rows judged": nothing, f"twin, {count} rows of the site known": known}


def points(row: PublicRow) -> list[FitObservation]:
    @lru_cache(maxsize=64)
    def run(factors: Factors) -> tuple[float, float]:
        return means_ms(simulate(row.deployment, row.traffic, Calibration(factors=factors)), row.concurrency)

    return [
        FitObservation(f"{row.name} TTFT", row.ttft_ms, lambda factors: run(factors)[0], TTFT_NOISE, phase=True),
        FitObservation(f"{row.name} TPOT", row.tpot_ms, lambda factors: run(factors)[1], phase=True),
    ]


PEER = """
import json, math, sys
from aiconfigurator_core.sdk.engine import EngineHandle
handles, answers = {}, {}
for row in json.load(sys.stdin):
    key = json.dumps(row["engine"], sort_keys=True)
    try:
        if key not in handles:
            handles[key] = EngineHandle.compile(**row["engine"])
        h, batch, prompt, answer, budget = handles[key], row["batch"], row["prompt"], row["answer"], 8192
        rounds = math.ceil(prompt * batch / budget)
        together = min(budget, prompt * batch)
        running = max(1, batch - math.ceil(together / prompt))
        mixed = h.mixed_step_latency(together, running, prompt, answer)
        alone = h.decode_step_latency(batch, prompt, answer)
        ttft = mixed * math.ceil(prompt / budget) * min(2 + max(0, rounds - 3) / 20, 4)
        only = max(0, answer - rounds)
        answers[row["name"]] = (ttft, (mixed * rounds + alone * only) / max(1, rounds + only))
    except Exception as error:
        print(row["name"], type(error).__name__, str(error)[:100].replace(chr(10), " "), file=sys.stderr)
json.dump(answers, sys.stdout)
"""
QUANT = {"fp8": "fp8_block", "fp4": "nvfp4", "bf16": "bfloat16"}


def ask_peer(rows: Sequence[PublicRow], venv: Path) -> list[Score]:
    wheel(venv, "packaging", "pandas", "pyarrow", "scipy", "pyyaml")
    asked = [question for row in rows if (question := _question(row)) is not None]
    python = str(venv / "bin" / "python")
    run = subprocess.run(
        [python, "-c", PEER], input=json.dumps(asked), capture_output=True, text=True, check=True, timeout=1800
    )
    answers = json.loads(run.stdout.splitlines()[-1])
    print(f"aiconfigurator answered {len(answers)} of {len(asked)} rows where one engine does both phases\n")
    return [Score(row, *answers[row.name]) for row in rows if row.name in answers]


def _question(row: PublicRow) -> dict[str, object] | None:
    layout, model = row.deployment.layout, row.deployment.model
    if layout.disaggregated:
        return None
    lengths = row.traffic.lengths.rows
    dtype = model.weights_dtype
    engine: dict[str, object] = {
        "model_path": row.model, "system": row.gpu if row.gpu.startswith("gb") else f"{row.gpu}_sxm",
        "backend": row.engine, "tp_size": layout.attn_tp, "attention_dp_size": layout.attn_dp,
    }  # fmt: skip
    if model.experts is not None:
        engine |= {"moe_tp_size": layout.tp // layout.ep, "moe_ep_size": layout.ep}
        if dtype in QUANT:
            engine["moe_quant_mode"] = QUANT[dtype]
    return {
        "name": row.name, "engine": engine, "batch": max(1, row.concurrency // layout.attn_dp),
        "prompt": round(statistics.mean(r.input_tokens for r in lengths)),
        "answer": round(statistics.mean(r.output_tokens for r in lengths)),
    }  # fmt: skip


def summary(boards: dict[str, list[Score]]) -> None:
    print(
        "| who | rows | TPOT median | p90 | TTFT median | p90 | throughput median | order (tau) "
        "| inside 90%: TPOT (high/low) | TTFT (high/low) |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for who, scores in boards.items():
        for mode in ("agg", "disagg"):
            mine = [s for s in scores if s.row.mode == mode]
            if mine:
                covered = _inside(mine) if who.startswith("twin") else "| "
                print(f"| {who}, {mode} | {len(mine)} | {_cells(mine)} | {_tau(mine)} | {covered} |")


def _cells(scores: Sequence[Score]) -> str:
    timed = [s for s in scores if s.row.version]
    cells = [_error(scores, lambda s: s.tpot), _error(scores, lambda s: s.tpot, 0.9)]
    cells += [_error(timed, lambda s: s.ttft), _error(timed, lambda s: s.ttft, 0.9)]
    return " | ".join([*cells, _error(scores, lambda s: s.throughput)])


def _error(scores: Sequence[Score], ratio: Callable[[Score], float], share: float = 0.5) -> str:
    if not scores:
        return "-"
    off = sorted(abs(ratio(s) - 1) for s in scores)
    return f"{statistics.median(off) if share == 0.5 else off[int(share * (len(off) - 1))]:.0%}"


def _inside(scores: Sequence[Score]) -> str:
    timed = [s for s in scores if s.row.version] or scores
    cells = []
    for number, rows in enumerate((scores, timed)):
        wide = statistics.median(s.width[number] for s in rows)
        cells.append(f"{statistics.mean(s.inside[number] for s in rows):.0%} ({wide:.1f}x)")
    return " | ".join(cells)


def _tau(scores: Iterable[Score]) -> str:
    """Order of output tokens per second and GPU within each site; pairs measured within 2% have no order."""
    sites: dict[tuple[str, ...], list[Score]] = defaultdict(list)
    for score in scores:
        sites[score.row.site].append(score)
    agree = total = 0
    for mine in sites.values():
        speeds = [(s.speed(measured=True), s.speed(measured=False)) for s in mine]
        for k, (a, x) in enumerate(speeds):
            for b, y in speeds[k + 1 :]:
                if abs(a / b - 1) >= 0.02:
                    total += 1
                    agree += 1 if (a - b) * (x - y) > 0 else -1
    return f"{agree / total:.2f}" if total else "-"


def by_group(scores: Sequence[Score]) -> None:
    print("\n| engine | model | GPU | weights | mode | rows | TPOT median (bias) | TTFT median (bias) |")
    print("|---|---|---|---|---|---|---|---|")
    groups: dict[tuple[str, ...], list[Score]] = defaultdict(list)
    for s in scores:
        dtype = s.row.deployment.model.weights_dtype
        groups[s.row.mode, s.row.engine, s.row.model.rpartition("/")[2], s.row.gpu, dtype].append(s)
    for (mode, engine, model, gpu, dtype), mine in sorted(groups.items()):
        timed = [s for s in mine if s.row.version]
        cells = (_with_bias(mine, lambda s: s.tpot), _with_bias(timed, lambda s: s.ttft))
        print(f"| {engine} | {model} | {gpu} | {dtype} | {mode} | {len(mine)} | {cells[0]} | {cells[1]} |")


def _with_bias(scores: Sequence[Score], ratio: Callable[[Score], float]) -> str:
    if not scores:
        return "-"
    return f"{_error(scores, ratio)} ({statistics.median(map(ratio, scores)) - 1:+.0%})"


def misses(scores: Sequence[Score], unanswered: Sequence[tuple[str, str]]) -> None:
    print("\nfarthest in TPOT:")
    for s in sorted(scores, key=lambda s: -abs(s.tpot - 1))[:10]:
        print(f"  {s.row.name}: measured {s.row.tpot_ms:.1f} ms, predicted {s.tpot_ms:.1f}")
    reasons: dict[str, int] = defaultdict(int)
    for _, reason in unanswered:
        reasons[reason.partition(": ")[2] or reason] += 1
    print("\nnot answered:")
    for reason, count in sorted(reasons.items(), key=lambda item: -item[1]):
        print(f"  {count}: {reason[:140]}")


if __name__ == "__main__":
    main()
