"""Rows of the public record as deployments and traffic: what each was measured on, and with which load.

Columns are those of aiconfigurator's silicon_sample.csv; most rows are InferenceX sweeps, which draw lengths uniformly
from 0.8 to 1.0 of the stated ones.
"""

from __future__ import annotations

import csv
import random
from dataclasses import dataclass, replace
from pathlib import Path

from recipes import Recipe, launched, recipes_of

from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.layout import Layout, disaggregated
from ridgeline.serving.engines.memory import STARTUP_OOM, plan_memory
from ridgeline.serving.engines.settings import EngineSettings, parse_engine
from ridgeline.serving.hardware.cluster import make_cluster
from ridgeline.serving.model.config import load_model
from ridgeline.serving.model.model import Model
from ridgeline.serving.traffic.replay import Replay, TraceRow
from ridgeline.serving.traffic.traffic import ClosedLoop, Traffic

MODELS = {"nvidia/Llama-3.1-8B-Instruct-FP8": "llama-8b"}
NODE = {"gb200": 4, "gb300": 4}
SHORTEST = 0.8
GENEROUS = 0.95
RANK_CHUNK = 8192
# prompt tokens a second of a GPU that prefill roles of published pairs were given, and a decode step to count with
PREFILL_TOK_S, STEP_S, MOST_ENGINES = {"gb200": 12_000, "gb300": 12_000}, {"gb200": 0.02, "gb300": 0.02}, 6
# requests of one length: SGLang's prefill-first rounds keep them in step, vLLM's mixed steps tell them apart
ALIKE = {"sglang": 1.0, "vllm": 0.9}
# the first places of a closed loop start together; by then their ends have drifted apart
ROUNDS, FEWEST, MOST = 6, 24, 4000
# a run needs its first round, one between, and its last, in which places empty
LEAST_ROUNDS = 3


@dataclass(frozen=True)
class PublicRow:
    """One measured point: what ran, the load, and the means that were measured."""

    name: str
    engine: str
    version: str
    model: str
    gpu: str
    mode: str
    deployment: Deployment
    traffic: Traffic
    concurrency: int
    ttft_ms: float
    tpot_ms: float
    drafting: str = ""  # mtp, none, "none?" where the sheet has both and the row does not say, "" where nobody says
    others: tuple[Deployment, ...] = ()  # what else may have run, where more than one recipe fits

    @property
    def site(self) -> tuple[str, ...]:
        """Rows that differ in layout and load alone."""
        lengths = self.name.split("_agg_")[-1].split("_disagg_")[-1].partition("_")[0]
        dtype = self.deployment.model.weights_dtype
        return (self.engine, self.version, self.model, self.gpu, dtype, self.mode, lengths)


def read_public_rows(path: Path) -> tuple[list[PublicRow], list[tuple[str, str]]]:
    """Every row that can be asked about, and (name, reason) of the others.

    What is known of some rows besides, drafting and engines of each role, is in a file named after this one, -labels.
    """
    found, refused = [], []
    labels = path.with_name(f"{path.stem}-labels.csv")
    known: dict[str, dict[str, str]] = {}
    if labels.exists():
        with labels.open() as file:
            known = {label["id"]: label for label in csv.DictReader(file)}
    with path.open() as file:
        for row in csv.DictReader(file):
            try:
                found.append(_row(row, known.get(row["id"], {})))
            except ValueError as error:
                refused.append((row["id"], str(error).splitlines()[0]))
    return found, refused


def _row(row: dict[str, str], label: dict[str, str]) -> PublicRow:
    """The row as the recipe that is assumed made it, and what else may have run."""
    row = _renamed(row)
    recipes = recipes_of(row, row["gpu"].removesuffix("_sxm"), label) if row["mode"] == "disagg" else []
    if not recipes:
        return _as_told(row, label.get("spec_method", ""), None)
    assumed = recipes[0]
    drafting = assumed.words["drafting"]
    if any(r.drafts != assumed.drafts for r in recipes):
        drafting += "?"
    others = tuple(_as_told(row, drafting, recipe).deployment for recipe in recipes[1:])
    return replace(_as_told(row, drafting, assumed), others=others)


def _as_told(row: dict[str, str], drafting: str, recipe: Recipe | None) -> PublicRow:
    model = _model(row)
    gpu = row["gpu"].removesuffix("_sxm")
    size = NODE.get(gpu, 8)
    gpu_bytes = make_cluster(gpu, 1, size).gpu.memory_bytes
    numbered = _release(row)
    if row["mode"] == "disagg":
        if recipe:
            row = {**row, **recipe.shape()}
        row = _told_apart(row, gpu, model)
        roles = (_layout(row, role, size, model, gpu_bytes) for role in ("prefill_", "decode_"))
        layout = disaggregated(*roles)
        concurrency = _number(row["concurrency"]) or _number(row["decode_batch_size"]) * layout.decode.dp
    else:
        layout = _layout(row, "", size, model, gpu_bytes)
        concurrency = _number(row["concurrency"]) or _number(row["batch_size"]) * layout.attn_dp
    cluster = make_cluster(gpu, layout.nodes, size)
    requests = min(max(ROUNDS * concurrency, FEWEST), max(MOST, LEAST_ROUNDS * concurrency))
    # rows with a date, and those that analyse them again, are InferenceX's; the others sent requests of one length
    shortest = SHORTEST if row["measured"] or "gap_analysis" in row["id"] else ALIKE[row["engine"]]
    decoding = layout.decode or layout
    settings = plain = _settings(row["engine"], numbered, -(-concurrency // (decoding.dp * decoding.attn_dp)))
    if row["engine"] == "sglang" and shortest == SHORTEST and cluster.gpu.generation == "blackwell":
        # InferenceX's recipes for SGLang on Blackwell look for new requests every 10 steps, every 30 from 16 users on
        settings = replace(settings, recv_interval=30 if concurrency >= 16 else 10)
    if row["engine"] == "sglang" and (
        row["mode"] == "disagg" or (shortest == SHORTEST and cluster.gpu.generation == "blackwell")
    ):
        # the same recipes, and those of split roles, send 50 tokens at a time and start six tokenizers
        settings = replace(settings, stream_interval=50, tokenizer_workers=6)
    if layout.prefill is not None and gpu in NODE and layout.prefill.attn_dp > 1:
        # recipes for NVL72 give each rank of a prefill engine this much at a time
        settings = replace(settings, chunked_prefill_size=RANK_CHUNK * layout.prefill.attn_dp)
    if drafting == "mtp":
        settings = replace(settings, draft_tokens=DRAFT_TOKENS)
    deployment = Deployment(model, cluster, layout, settings)
    if row["mode"] == "agg" and shortest == SHORTEST:
        deployment = launched(deployment, plain, row["measured"], concurrency, int(row["input_tokens"])) or deployment
    deployment = recipe.told(deployment) if recipe else _fitted(deployment)
    lengths = _lengths(int(row["input_tokens"]), int(row["output_tokens"]), requests, shortest)
    return PublicRow(
        name=row["id"],
        engine=row["engine"],
        version=row["version"],
        model=row["model"],
        gpu=gpu,
        mode=row["mode"],
        deployment=deployment,
        traffic=Traffic(lengths, requests, ClosedLoop(concurrency)),
        concurrency=concurrency,
        ttft_ms=float(row["ttft_ms"]),
        tpot_ms=float(row["tpot_ms"]),
        drafting=drafting,
    )


# Recipes of one engine for both phases draft two tokens and verify three (--speculative-num-draft-tokens 3). They set
# SGLANG_ENABLE_SPEC_V2 in their shell and do not export it, so that the overlapped scheduler stays off.
DRAFT_TOKENS = 3


# SGLang's newest release at the time, for rows that name a nightly build or nothing
RELEASES = (("2025-12", "0.5.5"), ("2026-02", "0.5.6"), ("2026-04", "0.5.9"))


def _release(row: dict[str, str]) -> str:
    """The release a row ran, or the one of its day; empty for the newest."""
    release = row["version"].partition("-")[0]
    if release[:1].isdigit():
        return release
    day = row["measured"] or ("2026-02-20" if row["version"] == "nightly-dev" else "")
    if row["engine"] != "sglang" or not day:
        return ""
    return next((name for before, name in RELEASES if day < before), "")


def _fitted(deployment: Deployment) -> Deployment:
    """With a larger share of memory where the engine's own would not start: recipes set it, rows do not state it."""
    layout, settings = deployment.layout, deployment.settings
    roles = {"both": layout} if layout.prefill is None else {"prefill": layout.prefill, "decode": layout.decode}
    plans = (plan_memory(deployment.model, deployment.cluster.gpu, lay, settings, role) for role, lay in roles.items())
    if any(plan.verdict == STARTUP_OOM for plan in plans):
        return replace(deployment, settings=replace(settings, mem_fraction=GENEROUS))
    return deployment


def _settings(engine: str, release: str, rank_requests: int) -> EngineSettings:
    # random prompts share nothing, and the sweeps' recipes capture graphs up to what a rank decodes
    plain = EngineSettings(radix_cache=False, cuda_graph_max_bs=rank_requests if rank_requests > 512 else None)
    return parse_engine(f"{engine}:{release}" if release else engine, plain)


def _model(row: dict[str, str]) -> Model:
    model = load_model(MODELS.get(row["model"], row["model"]))
    dtype = row["precision"] or ("fp8" if "FP8" in row["model"] else None)
    if dtype == "fp4" and model.weights_dtype == "mxfp4":
        dtype = None
    return model.with_dtype(dtype)


def _layout(row: dict[str, str], role: str, size: int, model: Model, gpu_bytes: float) -> Layout:
    """`tp_size` is that of an attention group; tp = expert tp x expert ranks, both above 1, is one of them.

    A tp that cannot share the heads (72 ranks, 128 heads) can only have been attention DP with expert parallelism.
    """
    tp, pp = int(row[f"{role}tp_size"]), int(row[f"{role}pp_size"] or 1)
    attn_dp = _number(row[f"{role}attention_dp_size"]) or 1
    moe_tp, ep = _number(row[f"{role}moe_tp_size"]) or 1, _number(row[f"{role}moe_ep_size"]) or 1
    if attn_dp == 1 and moe_tp * ep > tp and moe_tp * ep % tp == 0 and not row[f"{role}attention_dp_size"]:
        attn_dp = moe_tp * ep // tp  # experts on more ranks than an attention group has: groups that are not stated
    copies = (
        (
            _number(row[f"{role}num_workers"])
            or _unstated(row, role, row["gpu"].removesuffix("_sxm"), tp * attn_dp, size)
        )
        if role
        else 1
    )
    held_bytes = sum(m.nbytes for m in model.matrices)
    if tp == moe_tp * ep and moe_tp > 1 and ep > 1 and attn_dp == 1 and held_bytes / moe_tp < gpu_bytes:
        tp = moe_tp
    if role == "" and attn_dp == tp and ep == tp * attn_dp:
        # vLLM rows of attention DP state the number of GPUs twice; they decode like as many GPUs as either says
        tp, ep = 1, attn_dp
    ranks = tp * attn_dp
    ep = ep if ranks % ep == 0 else 1
    if attn_dp == 1 and model.attention.heads % tp:
        attn_dp = ep = tp
    return Layout(ranks, pp, copies, ep, attn_dp, nodes=-(-ranks * pp * copies // size), gpus_per_node=size)


def _renamed(row: dict[str, str]) -> dict[str, str]:
    """What counts all GPUs of an NVL72 as the ranks of one engine, which no engine can split the heads over, is split
    roles: the loads of November 2025 were published so, and two weeks later as split, with the same TPOT within 2%."""
    if row["mode"] != "agg" or row["gpu"] not in NODE or _model(row).attention.heads % int(row["tp_size"]) == 0:
        return row
    shape = ("tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
    roles = {f"{role}{name}": row[name] for role in ("prefill_", "decode_") for name in shape}
    return {**row, **roles, "mode": "disagg"}


def _told_apart(row: dict[str, str], gpu: str, model: Model) -> dict[str, str]:
    """A tp that cannot share the heads, the same for both roles, counts the GPUs of both together.

    20, 48 and 72 GPUs of an NVL72 are published with their roles as well: four decode engines of four GPUs and one for
    prompts, or 32 ranks that decode and prefill engines of eight GPUs (four in FP4) on the others.
    """
    total = int(row["prefill_tp_size"])
    if gpu not in NODE or row["decode_tp_size"] != row["prefill_tp_size"] or model.attention.heads % total == 0:
        return row
    if total < 32:
        prefill, decode = (4, 1), (4, (total - 4) // 4)
    else:
        each = 4 if row["precision"] == "fp4" else 8
        prefill, decode = (each, (total - 32) // each), (32, 1)
    found = dict(row)
    for role, (ranks, engines) in (("prefill_", prefill), ("decode_", decode)):
        groups = 1 if total < 32 else ranks
        shape = {"tp_size": ranks // groups, "attention_dp_size": groups, "moe_tp_size": ranks // groups}
        shape |= {"moe_ep_size": groups, "num_workers": engines}
        found |= {f"{role}{name}": str(value) for name, value in shape.items()}
    return found


def _unstated(row: dict[str, str], role: str, gpu: str, ranks: int, size: int) -> int:
    """Engines of a role where a row does not say: most published pairs have two decode engines of a node for each
    prefill engine, and more of these where users would wait for them longest."""
    if role == "decode_":
        return 2 if ranks == size else 1
    prompts_s = _number(row["concurrency"]) / (int(row["output_tokens"]) * STEP_S.get(gpu, 0.03))
    engines = prompts_s * int(row["input_tokens"]) / (PREFILL_TOK_S.get(gpu, 6_000) * ranks)
    return min(max(1, round(engines)), MOST_ENGINES)


def _number(text: str) -> int:
    return int(float(text)) if text else 0


def _lengths(prompt: int, answer: int, count: int, shortest: float) -> Replay:
    rng = random.Random(1)
    rows = tuple(
        TraceRow(round(prompt * rng.uniform(shortest, 1)), max(2, round(answer * rng.uniform(shortest, 1))))
        for _ in range(count)
    )
    return Replay(rows, "public row")
