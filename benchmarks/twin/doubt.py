"""Rows of measured sets that cannot be what they say they are, each with its line and the reason.

    python benchmarks/twin/doubt.py EVIDENCE [--only board,llm-d]

A row is doubtful where it is faster than its hardware can be (weights read at the memory's full rate, a prompt's
products at the tensor cores' full rate, those of the whole run at what engines get of it), where its figures are
another configuration's to three digits, or where another setting than the stated one explains it: more requests past
their first token than the KV pool holds, a single request that more ranks decode more slowly than fewer, or tokens of a
few users that take longer than those of more. Nothing here asks the twin how fast a row should be.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import agent_sessions
import rate_driven
from accuracy import HERE, STUDY
from llmd_rows import read_llmd_rows
from public_rows import read_public_rows
from served_rows import served_deployment, stamped

from ridgeline.errors import InputError
from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.layout import Layout, matrix_shards
from ridgeline.serving.engines.memory import plan_memory
from ridgeline.serving.hardware.cluster import make_cluster
from ridgeline.serving.model.config import load_model
from ridgeline.serving.model.model import Model
from ridgeline.serving.twin.measured import read_rows

# KV that a row must need beyond what its pool holds, time that more ranks must take beyond fewer, and fewer users
# beyond more
OVERFULL, SLOWER, STALLED = 1.05, 1.1, 1.25
# of all memory that is free before the weights: the most that anybody gives an engine
GENEROUS = 0.95
# of the tensor cores' full rate, all the time: large products alone reach 0.8 on an H200 in 16 bits (gpu_power.py), the
# busiest row of the board that nothing explains otherwise 0.5
BUSIEST = 0.7
FILES: tuple[tuple[str, str, dict[str, object]], ...] = (
    ("offline", "offline.csv", {"model": "deepseek-r1"}),
    ("own", "own-h200.csv", {}),
    ("colocated", "colocated-h800.csv", {"model": "deepseek-v3", "settings": STUDY}),
    ("split", "disaggregated.csv", {"model": "deepseek-v3", "settings": STUDY}),
)


@dataclass(frozen=True)
class Seen:
    """One measured row. Figures that nobody measured are 0; `users` too, where requests come at a rate."""

    set: str
    row: str
    line: int
    deployment: Deployment
    prompt: float
    answer: float
    users: float = 0.0
    tpot_ms: float = 0.0
    ttft_ms: float = 0.0
    requests_s: float = 0.0
    cached: bool = False  # prompts may be in a prefix cache

    @property
    def decoding(self) -> Layout:
        return self.deployment.layout.decode or self.deployment.layout

    @property
    def prefilling(self) -> Layout:
        return self.deployment.layout.prefill or self.deployment.layout

    @property
    def rate_s(self) -> float:
        """Requests a second: as measured, or as many as a closed loop makes with these latencies."""
        each_ms = self.ttft_ms + self.tpot_ms * (self.answer - 1)
        if self.requests_s or not (self.users and self.tpot_ms and self.ttft_ms):
            return self.requests_s
        return 1000 * self.users / each_ms


@dataclass(frozen=True)
class Doubt:
    seen: Seen
    kind: str
    reason: str

    def __str__(self) -> str:
        return f"{self.seen.set}, line {self.seen.line}, {self.seen.row}: {self.reason}"


# -- what makes a row doubtful ----------------------------------------------------------------------------------------


def _rank_step_bytes(model: Model, layout: Layout) -> float:
    """Weights that a rank reads at least for one token of one request, pipeline stages together: of experts only those
    that this token is sent to, spread evenly."""
    found = 0.0
    for m in model.matrices:
        if m.part not in ("embedding", "vision"):
            found += m.nbytes * m.used / m.per_layer / matrix_shards(m, layout, model)
    return found


def too_fast(rows: Sequence[Seen]) -> Iterator[Doubt]:
    """Faster than the hardware's roofs."""
    for seen in rows:
        model, gpu = seen.deployment.model, seen.deployment.cluster.gpu
        drafts = seen.deployment.settings.draft_tokens
        least_ms = 1000 * _rank_step_bytes(model, seen.decoding) / gpu.bandwidth_bytes_s / drafts
        if 0 < seen.tpot_ms < least_ms:
            why = f"TPOT {seen.tpot_ms:.3g} ms, and reading a token's weights takes {least_ms:.3g}"
            yield Doubt(seen, "faster than the memory", why + ("" if drafts > 1 else "; drafts that nobody states?"))
        flops = sum(m.flops_per_token for m in model.matrices if m.part != "vision")
        peak = gpu.flops_of(model.weights_dtype)
        ranks = seen.prefilling.replica_gpus
        ttft_ms = 1000 * flops * seen.prompt / peak / ranks
        if 0 < seen.ttft_ms < ttft_ms and not seen.cached:
            why = f"TTFT {seen.ttft_ms:.4g} ms, and the prompt's products take {ttft_ms:.4g}; prompts in a cache?"
            yield Doubt(seen, "faster than the tensor cores", why)
        tokens_s = seen.rate_s * (seen.answer + (0 if seen.cached else seen.prompt))
        most = BUSIEST * peak * seen.deployment.layout.gpus / flops
        if tokens_s > most:
            why = f"{tokens_s:,.0f} tokens/s; at most {most:,.0f} can be"
            why += "" if seen.cached else "; prompts in a cache?"
            yield Doubt(seen, "faster than the tensor cores", why)


def repeated(rows: Sequence[Seen]) -> Iterator[Doubt]:
    """All figures another configuration's, to three digits. Both are named: which of the two ran, nobody can tell."""
    alike: dict[tuple[str, ...], list[Seen]] = defaultdict(list)
    for seen in rows:
        figures = tuple(f"{value:.3g}" for value in (seen.tpot_ms, seen.ttft_ms, seen.requests_s) if value)
        if len(figures) > 1:
            alike[seen.set, seen.deployment.model.name, f"{seen.users:g}", *figures].append(seen)
    for same in alike.values():
        for seen in same:
            others = [o for o in same if str(o.deployment.layout) != str(seen.deployment.layout)]
            if others:
                whose = f"line {others[0].line}, {others[0].deployment.layout}"
                why = f"{seen.deployment.layout}, with the figures of {whose}"
                yield Doubt(seen, "another configuration's figures", why)


def overfull(rows: Sequence[Seen]) -> Iterator[Doubt]:
    """More requests past their first token than the KV pool holds: arrivals times the time that each spends there."""
    for seen in rows:
        rate = seen.rate_s
        if not rate or not seen.tpot_ms or seen.cached:
            continue
        inside = rate * seen.tpot_ms / 1000 * (seen.answer - 1)
        needed = inside * (seen.prompt + seen.answer / 2)
        pool = _pool(seen, None)
        if needed <= OVERFULL * pool:
            continue
        most = _pool(seen, GENEROUS)
        why = f"{inside:.0f} requests past their first token need {needed:,.0f} tokens of KV; "
        if not most:
            yield Doubt(
                seen, "a layout that does not start", f"{seen.decoding} has no room for KV at any share of memory"
            )
        elif needed <= most:
            yield Doubt(seen, "another memory share", why + f"{pool:,.0f} fit, {most:,.0f} with {GENEROUS:g} of memory")
        else:
            why += f"{most:,.0f} fit with {GENEROUS:g} of memory: they wait after it, or KV is kept in fewer bits"
            yield Doubt(seen, "more KV than memory", why)


def _pool(seen: Seen, fraction: float | None) -> float:
    """Tokens of KV that all engines hold that decode, at the stated share of memory or at least at this one."""
    d, role = seen.deployment, "decode" if seen.deployment.layout.decode else "both"
    settings = d.role_settings(role)
    if fraction is not None:
        settings = replace(settings, mem_fraction=max(fraction, settings.mem_fraction or 0.0))
    return plan_memory(d.model, d.cluster.gpu, seen.decoding, settings, role).kv_tokens * seen.decoding.dp


def out_of_order(rows: Sequence[Seen]) -> Iterator[Doubt]:
    """A single request that more ranks decode more slowly than fewer: all rows of that configuration."""
    single: dict[tuple[object, ...], dict[int, Seen]] = defaultdict(dict)
    for seen in rows:
        lay = seen.decoding
        if seen.tpot_ms and 0 < seen.users <= 1 and lay.attn_dp == lay.pp == 1:
            kept = single[_kin(seen)].setdefault(lay.tp, seen)
            if seen.tpot_ms < kept.tpot_ms:
                single[_kin(seen)][lay.tp] = seen
    for seen in rows:
        mine = single.get(_kin(seen), {})
        slow = mine.get(seen.decoding.tp)
        fewer = [o for tp, o in mine.items() if slow is not None and tp < seen.decoding.tp]
        fast = min(fewer, key=lambda o: o.tpot_ms, default=None)
        if slow is not None and fast is not None and slow.tpot_ms > SLOWER * fast.tpot_ms:
            why = f"TP{slow.decoding.tp} decodes a single request in {slow.tpot_ms:.3g} ms (line {slow.line}), "
            why += f"TP{fast.decoding.tp} in {fast.tpot_ms:.3g} (line {fast.line}): another all-reduce, image or node?"
            yield Doubt(seen, "more ranks slower than fewer", why)


def fewer_slower(rows: Sequence[Seen]) -> Iterator[Doubt]:
    """One engine for both phases whose tokens take longer than those of twice as many users, who wait no longer."""
    alike: dict[tuple[object, ...], list[Seen]] = defaultdict(list)
    for seen in rows:
        if seen.users and seen.tpot_ms and not seen.cached and not seen.deployment.layout.disaggregated:
            lengths = round(seen.prompt, -2), round(seen.answer, -2)
            alike[*_kin(seen), str(seen.deployment.layout), lengths].append(seen)
    for same in alike.values():
        for seen in same:
            more = [o for o in same if o.users >= 2 * seen.users and seen.tpot_ms > STALLED * o.tpot_ms]
            more = [o for o in more if o.ttft_ms < 2 * seen.ttft_ms]
            if more:
                why = f"{seen.users:g} users at {seen.tpot_ms:.3g} ms a token, {more[0].users:g} at "
                why += f"{more[0].tpot_ms:.3g} (line {more[0].line}): cold kernels or neighbours?"
                yield Doubt(seen, "fewer users slower than more", why)


def _kin(seen: Seen) -> tuple[object, ...]:
    d = seen.deployment
    release = d.settings.version
    return seen.set, d.model.name, d.model.weights_dtype, d.cluster.gpu.name, release, d.layout.disaggregated


CHECKS: tuple[Callable[[Sequence[Seen]], Iterator[Doubt]], ...] = (
    too_fast, repeated, overfull, out_of_order, fewer_slower,
)  # fmt: skip


def doubts(rows: Sequence[Seen]) -> list[Doubt]:
    return [doubt for check in CHECKS for doubt in check(rows)]


# -- the sets of the gate, as rows ------------------------------------------------------------------------------------


def _lines(path: Path, name: str) -> Mapping[str, int]:
    with path.open() as file:
        return {row[name]: line for line, row in enumerate(csv.DictReader(file), 2)}


def _board(evidence: Path) -> Iterator[Seen]:
    path = evidence / "public" / "serving-rows.csv"
    lines = _lines(path, "id")
    for row in read_public_rows(path)[0]:
        sent = [(a.input_tokens, a.output_tokens) for a in row.traffic.arrivals()]
        prompt, answer = (statistics.mean(values) for values in zip(*sent, strict=True))
        ttft_ms = row.ttft_ms if row.version else 0.0
        yield Seen(
            "board", row.name, lines[row.name], row.deployment, prompt, answer, row.concurrency, row.tpot_ms, ttft_ms
        )


def llmd(evidence: Path) -> Iterator[Seen]:
    for line, row in enumerate(read_llmd_rows(evidence / "public" / "llm-d-llama70b-h100.csv"), 2):
        found = Seen("llm-d", row.name, line, row.deployment, *row.lengths, row.concurrency, row.tpot_ms, row.ttft_ms)
        yield replace(found, requests_s=row.requests_s)


def _rates(evidence: Path) -> Iterator[Seen]:
    with (evidence / "public" / "rate-driven.csv").open() as file:
        for line, row in enumerate(csv.DictReader(file), 2):
            name = f"{row['experiment']} {row['rate_s']}/s"
            found = Seen("rate-driven", name, line, rate_driven.stage(row)[0], 0.0, 0.0, cached=True)
            prompt, answer = float(row["prompt_len_mean"]), float(row["output_tokens"])
            figures = {"ttft_ms": float(row["ttft_mean_ms"]), "requests_s": float(row["achieved_rate"])}
            yield replace(found, prompt=prompt, answer=answer, **figures)  # type: ignore[arg-type]


def _measured(evidence: Path) -> Iterator[Seen]:
    for name, file, options in FILES:
        for row in read_rows(HERE / "measured" / file, **options):  # type: ignore[arg-type]
            sent = [(a.input_tokens, a.output_tokens) for a in row.traffic.arrivals()]
            prompt, answer = (statistics.mean(values) for values in zip(*sent, strict=True))
            values, line = row.values, int(row.source.rpartition(":")[2])
            found = Seen(name, row.source, line, row.deployment, prompt, answer, len(sent), cached=name == "own")
            if row.result == "ok":
                yield replace(
                    found,
                    tpot_ms=1000 * values.get("itl_p50_s", 0.0),
                    ttft_ms=1000 * values.get("ttft_s", 0.0),
                    requests_s=values.get("total_tok_s", 0.0) / (prompt + answer),
                )


def _served(evidence: Path) -> Iterator[Seen]:
    with (evidence / "served-h200.csv").open() as file:
        for line, row in enumerate(csv.DictReader(file), 2):
            found = Seen("served", row["load"], line, served_deployment(), 281.0, 196.0)
            yield replace(found, ttft_ms=float(row["ttft_p50_ms"]), tpot_ms=float(row["itl_p50_ms"] or 0.0))


def _per_request(evidence: Path) -> Iterator[Seen]:
    for name, deployment, _, stamps in stamped(evidence):
        for line, r in enumerate(stamps, 1):
            first_s = r["first_token_ts"]
            tpot_ms = 1000 * (r["last_token_ts"] - first_s) / max(1, r["output_toks"] - 1)
            found = Seen("per-request", f"{name} request {line}", line, deployment, r["input_toks"], r["output_toks"])
            yield replace(found, ttft_ms=1000 * (first_s - r["queued_ts"]), tpot_ms=tpot_ms)


def _agents(evidence: Path) -> Iterator[Seen]:
    for path in sorted((evidence / "public" / "agentic").glob("*/summary.csv")):
        words = agent_sessions.arguments().parse_args([str(path.parent)])
        model = load_model(words.model).with_dtype(None, words.kv_dtype)
        with path.open() as file:
            for line, row in enumerate(csv.DictReader(file), 2):
                if row["status"] == "SUCCESS":
                    tp = int(row["tp"])
                    settings = agent_sessions.settings_of(words)
                    deployment = Deployment(model, make_cluster(words.gpu, 1, 8), Layout(tp=tp, ep=tp), settings)
                    found = Seen("agents", f"{row['users']} users", line, deployment, 0.0, 0.0, int(row["users"]))
                    figures = {"tpot_ms": float(row["p50_tpot_ms"]), "ttft_ms": float(row["p50_ttft_ms"])}
                    yield replace(found, cached=True, **figures)  # type: ignore[arg-type]


SETS: dict[str, Callable[[Path], Iterable[Seen]]] = {
    "board": _board,
    "llm-d": llmd,
    "rate-driven": _rates,
    "measured": _measured,
    "served": _served,
    "per-request": _per_request,
    "agents": _agents,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("evidence", type=Path)
    parser.add_argument("--only", default="", help=f"sets, with commas between: {', '.join(SETS)}")
    options = parser.parse_args()
    for name in options.only.split(",") if options.only else SETS:
        try:
            rows = list(SETS[name](options.evidence))
        except (OSError, InputError) as error:
            print(f"{name}: not read: {error}")
            continue
        found = doubts(rows)
        kinds = Counter(doubt.kind for doubt in found)
        lines = len({(doubt.seen.set, doubt.seen.line) for doubt in found})
        of = "".join(f"; {count} {kind}" for kind, count in kinds.items())
        print(f"{name}: {lines} of {len(rows)} rows are doubtful{of}")
        for doubt in found:
            print(f"  {doubt}")


if __name__ == "__main__":
    main()
