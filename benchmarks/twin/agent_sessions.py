"""Agents that come back, against a server whose KV pool they outgrow: measured beside the twin.

    python benchmarks/twin/agent_sessions.py FOLDER [--users 8 16 24]

FOLDER is one of EVIDENCE/public/agentic: summary.csv has a row for each number of users, *.requests.csv.gz some of the
runs request by request. Nothing is calibrated. What each user sends is known up to where its requests were recorded
in any run of the folder; later turns grow as recorded ones did, drawn with a fixed seed. What the client did not
record, and the server's counters show, is in `GROWTH`.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.settings import DEFAULTS, parse_engine
from ridgeline.serving.hardware.cluster import make_cluster
from ridgeline.serving.model.config import load_model
from ridgeline.serving.traffic.replay import Replay, TraceRow
from ridgeline.serving.traffic.requests import summarise
from ridgeline.serving.traffic.texts import Text
from ridgeline.serving.traffic.traffic import ClosedLoop, Traffic
from ridgeline.serving.twin.simulate import simulate

RUN_S = 1800.0
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--users", type=int, nargs="*")
    words = parser.parse_args()
    recorded = Recorded(words.folder)
    cluster = make_cluster("b200", 1, 8)
    model = load_model("deepseek-r1-nvfp4").with_dtype(None, "fp8")
    with (words.folder / "summary.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["status"] == "SUCCESS"]
    rows.sort(key=lambda row: (row["offload"] == "on", int(row["users"])))
    print(
        "users tier  | TTFT p50 s: measured twin | TPOT p50 ms | requests/s | hit % (counter): measured twin (prompt)"
    )
    for row in rows:
        users = int(row["users"])
        if words.users and users not in words.users:
            continue
        settings = replace(parse_engine("vllm:0.19.1", DEFAULTS), mem_fraction=0.9)
        if row["offload"] == "on":
            settings = replace(settings, host_tier_size=600.0)
        tp = int(row["tp"])
        deployment = Deployment(model, cluster, Layout(tp=tp, ep=tp), settings)
        replay = recorded.sessions(users, 42)
        traffic = Traffic(replay, len(replay.rows), ClosedLoop(users), duration_s=RUN_S)
        result = simulate(deployment, traffic)
        ended = [r for r in result.records if r.end_s is not None and r.end_s <= RUN_S]
        seen = summarise(ended, duration_s=RUN_S)
        hits = sum(r.cached_tokens for r in ended) / max(1, sum(r.input_tokens for r in ended))
        asked = result.cache
        print(
            f"{users:5} {row['offload']:4} | {float(row['p50_ttft_ms']) / 1e3:9.2f} {seen.ttft_ms.p50 / 1e3:9.2f}"
            f" | {float(row['p50_tpot_ms']):6.1f} {seen.tpot_ms.p50:6.1f}"
            f" | {float(row['throughput_rps']):6.3f} {len(ended) / RUN_S:6.3f}"
            f" | {float(row['gpu_hit_rate']) * 1:6.1f} {100 * (asked.counted_hits / max(1, asked.counted_tokens)):6.1f} ({100 * hits:.1f})"
            f" cpu {row['cpu_hit_rate'] or '-':>5.5} {100 * asked.host_hit_tokens / max(1, asked.prompt_tokens - asked.hit_tokens):.1f} | {len(ended)} {result.retractions} {result.cpu_s:.2f} s"
        )


if __name__ == "__main__":
    main()
