"""Agents that come back, against a server whose KV pool they outgrow: measured beside the twin.

    python benchmarks/twin/agent_sessions.py FOLDER [--users 8 16 24] [--model M] [--gpu G] [--engine vllm:0.19.1]

FOLDER is one of EVIDENCE/public/agentic: summary.csv has a row for each number of users, *.requests.csv.gz some of the
runs request by request. Nothing is calibrated. What a user sends is known as far as any run of the folder recorded it;
its later turns grow as recorded ones did, drawn with a fixed seed, and who comes to an end goes on with a session of
EVIDENCE/public/traces/agent-sessions.jsonl. Hits are shares of prompt tokens, the host's those of what the GPU had not.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.settings import DEFAULTS, EngineSettings, parse_engine
from ridgeline.serving.hardware.cluster import make_cluster
from ridgeline.serving.model.config import load_model
from ridgeline.serving.traffic.replay import Replay, TraceRow
from ridgeline.serving.traffic.requests import summarise
from ridgeline.serving.traffic.texts import Text
from ridgeline.serving.traffic.traffic import ClosedLoop, Traffic
from ridgeline.serving.twin.simulate import SimulationResult, simulate

RUN_S, SEED = 1800.0, 42
# The server counts 5% more tokens than the client's tokenizer, and what an answer leaves in the next prompt (its text
# without the reasoning) that the client counts as it was recorded: 720 to 850 tokens a turn more.
TOKENS, GROWTH = 1.05, 790
THINK_LIMIT_S = 60.0
CONTEXT = 163_840
# of a session, within which users began
ADVANCE = 0.7


@dataclass(frozen=True, slots=True)
class Turn:
    """One request as the client recorded it; lengths are the server's."""

    prompt: int
    answer: int
    new: int  # prompt tokens that the turn before did not have
    think_s: float


class Recorded:
    """All runs of a folder: what each user began with, what each trace goes on with, and what turns are like."""

    def __init__(self, folder: Path) -> None:
        self.whole = _whole_sessions(folder.parent.parent / "traces" / "agent-sessions.jsonl")
        self.begins: dict[str, tuple[str, int]] = {}
        self.known: dict[tuple[str, int], Turn] = {}
        thinks: list[float] = []
        for path in sorted(folder.glob("*.requests.csv.gz")):
            users: dict[str, list[dict[str, str]]] = {}
            with gzip.open(path, "rt") as file:
                for row in csv.DictReader(file):
                    users.setdefault(row["user_id"], []).append(row)
            for user, rows in users.items():
                self.begins.setdefault(user, (rows[0]["trace_id"], int(rows[0]["request_idx"])))
                for before, row in zip([None, *rows], rows, strict=False):
                    think_s = 0.0
                    if before is not None and before["success"] == "True" and before["trace_id"] == row["trace_id"]:
                        ended_s = float(before["start_s"]) + float(before["ttlt"])
                        think_s = min(THINK_LIMIT_S, max(0.0, float(row["start_s"]) - ended_s))
                        thinks.append(think_s)
                    place = row["trace_id"], int(row["request_idx"])
                    answer = int(row["output_tokens_actual"])
                    if answer or place not in self.known:
                        new = int(row["cache_miss_blocks"]) * 64
                        self.known[place] = Turn(int(row["input_tokens"]), answer, new, think_s)
        self.turns = [turn for turn in self.known.values() if turn.answer]
        self.thinks = thinks

    def sessions(self, users: int, seed: int) -> Replay:
        """A session for each user from where it began, then others from their beginning for whom comes to an end."""
        rng, rows = random.Random(seed), list[TraceRow]()
        for session, (trace, first) in enumerate(list(self.begins.values())[:users]):
            least = first / ADVANCE
            longer = [turns for turns in map(len, self.whole) if turns > least]
            self._add(rows, rng, session, trace, first, rng.choice(longer) if longer else round(least) + 1)
        for session, whole in enumerate(rng.sample(self.whole, len(self.whole)) * 3, start=users):
            self._add(rows, rng, session, "", 0, len(whole), whole)
        return Replay(tuple(rows), "agents")

    def _add(
        self, rows: list[TraceRow], rng: random.Random, session: int, trace: str, first: int, end: int,
        whole: Sequence[Turn] = (),
    ) -> None:  # fmt: skip
        prompt, grown, text = 0, 0, Text(session)
        for place in range(first, end):
            drawn, think_s = rng.choice(self.turns), rng.choice(self.thinks)
            turn = whole[place] if whole else self.known.get((trace, place))
            prompt = turn.prompt if turn is not None else prompt + drawn.new
            answer = (turn.answer if turn is not None and not whole else 0) or drawn.answer
            tokens = round(prompt * TOKENS) + grown
            if tokens + answer > CONTEXT:
                break
            if whole and turn is not None and turn.new > turn.prompt / 2:
                text = Text(1000 + len(rows))  # compacted, or another conversation
            after = () if place == first else (len(rows) - 1,)
            rows.append(TraceRow(tokens, answer, None, text, session, after, think_s if after else 0.0))
            grown += GROWTH


def _whole_sessions(path: Path) -> list[list[Turn]]:
    """Sessions of the same collection, from their first request to their last."""
    found: dict[str, list[Turn]] = {}
    with path.open() as file:
        for row in map(json.loads, file):
            new = row["input_length"] - row["shared_with_previous"] * row["block_tokens"]
            turn = Turn(row["input_length"], row["output_length"], new, row["think_time"] or 0.0)
            found.setdefault(row["session"], []).append(turn)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class Run:
    """One number of users: what was measured, what the twin says, and its whole result."""

    users: int
    tier: bool
    measured: Mapping[str, float]
    predicted: Mapping[str, float]
    deployment: Deployment
    result: SimulationResult


def settings_of(words: argparse.Namespace) -> EngineSettings:
    return replace(parse_engine(words.engine, DEFAULTS), mem_fraction=words.mem_fraction)


def runs(folder: Path, words: argparse.Namespace) -> Iterator[Run]:
    recorded = Recorded(folder)
    model = load_model(words.model).with_dtype(None, words.kv_dtype)
    with (folder / "summary.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["status"] == "SUCCESS"]
    rows.sort(key=lambda row: (row["offload"] == "on", int(row["users"])))
    for row in rows:
        users, tier, tp = int(row["users"]), row["offload"] == "on", int(row["tp"])
        if words.users and users not in words.users:
            continue
        settings = settings_of(words)
        settings = replace(settings, host_tier_size=words.tier) if tier else settings
        layout = Layout(tp=tp, ep=tp if words.experts_parallel else 1)
        deployment = Deployment(model, make_cluster(words.gpu, 1, 8), layout, settings)
        replay = recorded.sessions(users, SEED)
        result = simulate(deployment, Traffic(replay, len(replay.rows), ClosedLoop(users), duration_s=RUN_S))
        ended = [r for r in result.records if r.end_s is not None and r.end_s <= RUN_S]
        seen, use = summarise(ended, duration_s=RUN_S), result.cache
        assert seen.ttft_ms is not None
        assert seen.tpot_ms is not None
        # the counter of hits looks up who waits for room again and again, so that it says something only where all fit
        measured = {"ttft": float(row["p50_ttft_ms"]), "tpot": float(row["p50_tpot_ms"]),
                    "rate": float(row["throughput_rps"]), "hit": float(row["gpu_hit_rate"]),
                    "host": float(row["cpu_hit_rate"] or 0.0)}  # fmt: skip
        missed = max(1, use.prompt_tokens - use.hit_tokens)
        predicted = {"ttft": seen.ttft_ms.p50, "tpot": seen.tpot_ms.p50, "rate": len(ended) / RUN_S,
                     "hit": 100 * use.counted_hits / max(1, use.counted_tokens),
                     "host": 100 * use.host_hit_tokens / missed}  # fmt: skip
        yield Run(users, tier, measured, predicted, deployment, result)


def knee(found: Sequence[Run], which: str) -> tuple[int, int]:
    """Between which two numbers of users TTFT takes off: by more than any other two neighbours on the way."""
    values = [(run.users, getattr(run, which)["ttft"]) for run in found]
    low, high = max(pairwise(values), key=lambda pair: pair[1][1] / pair[0][1])
    return low[0], high[0]


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--users", type=int, nargs="*")
    parser.add_argument("--model", default="deepseek-r1-nvfp4")
    parser.add_argument("--kv-dtype", default="fp8")
    parser.add_argument("--gpu", default="b200")
    parser.add_argument("--engine", default="vllm:0.19.1")
    parser.add_argument("--mem-fraction", type=float, default=0.9)
    parser.add_argument("--no-expert-parallel", dest="experts_parallel", action="store_false")
    parser.add_argument("--tier", type=float, default=600.0, help="size of the host tier, as the engine counts it")
    return parser


def main() -> None:
    words = arguments().parse_args()
    found = list(runs(words.folder, words))
    print("              TTFT p50, s       TPOT p50, ms    requests/s       hit, %          host, %")
    print("users tier   meas.    twin     meas.  twin     meas.  twin     meas.  twin     meas.  twin   sent back  CPU")
    for run in found:
        m, p = run.measured, run.predicted
        print(
            f"{run.users:5} {'yes' if run.tier else 'no':4} {m['ttft'] / 1e3:7.2f} {p['ttft'] / 1e3:7.2f}"
            f"   {m['tpot']:7.1f} {p['tpot']:5.1f}   {m['rate']:7.3f} {p['rate']:.3f}   {m['hit']:7.1f} {p['hit']:5.1f}"
            f"   {m['host']:7.1f} {p['host']:5.1f}   {run.result.retractions:9} {run.result.cpu_s:6.2f}"
        )
    apart = {tier: {run.users: run for run in found if run.tier == tier} for tier in (False, True)}
    for tier, mine in apart.items():
        if len(mine) > 1:
            measured, predicted = (knee(list(mine.values()), which) for which in ("measured", "predicted"))
            said = " and ".join(map(str, measured)), " and ".join(map(str, predicted))
            print(f"{'with' if tier else 'without'} the tier TTFT takes off between {said[0]} users, twin {said[1]}")
    for users in sorted(apart[False].keys() & apart[True].keys()):
        gain = [
            getattr(apart[False][users], which)["ttft"] / getattr(apart[True][users], which)["ttft"]
            for which in ("measured", "predicted")
        ]
        print(f"{users:5} users: the tier makes TTFT p50 {gain[0]:.2f} times as short, twin {gain[1]:.2f}")


if __name__ == "__main__":
    main()
