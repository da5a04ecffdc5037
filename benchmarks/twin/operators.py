"""How far the twin's operator forms are from measured tables, by family and GPU; and the fit of their constants.

    python benchmarks/twin/operators.py [--venv FOLDER] [--write src/ridgeline/serving/twin/rates.yaml]

The tables come with the wheel of aiconfigurator-core (Apache-2.0), installed into an environment of its own on first
use; this file runs itself again in there, for it has pyarrow and scipy. Without --write nothing is fitted: the
constants the package ships are judged.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peer import RELEASE, add_option, wheel

SRC = Path(__file__).parents[2] / "src"
FOLDERS = {
    "a100": "a100_sxm", "h100": "h100_sxm", "h200": "h200_sxm", "b200": "b200_sxm", "b300": "b300_sxm",
    "gb200": "gb200", "gb300": "gb300", "l40s": "l40s", "rtx-pro-6000": "rtx_pro_6000_server",
}  # fmt: skip
WEIGHT_BYTES = {"bf16": 2.0, "fp8": 1.0, "fp4": 0.5625, "int4": 0.52, "mxfp4": 0.53}
GEMM = {"bfloat16": "bf16", "fp8_block": "fp8", "fp8": "fp8", "nvfp4": "fp4"}
EXPERTS = {"bfloat16": "bf16", "fp8_block": "fp8", "nvfp4": "fp4", "int4_wo": "int4", "w4a8_mxfp4_mxfp8": "mxfp4",
           "w4a16_mxfp4": "mxfp4"}  # fmt: skip
LINK = {"a100": 300e9, "l40s": 32e9, "rtx-pro-6000": 64e9, "h100": 450e9, "h200": 450e9}
# GPUs of a node where it has fewer than eight: tables of more ranks are NCCL's between nodes, five times as slow, which
# no engine runs inside an NVLink domain
NODE = {"gb200": 4, "gb300": 4}
MOST = 6000
# The name of a set of constants in rates.yaml, and whose tables it is fitted to: the newest release without a number.
NEWEST, OLDER, VLLM = "sglang", "sglang-0.5.10", "vllm"
KERNEL_SETS = {NEWEST: ("sglang", "*"), OLDER: ("sglang", "0.5.10"), VLLM: ("vllm", "*")}
# floors in us, shares of a peak, a tile in rows, how often activations move: what a fit may find
BOUNDS = {"floor_us": (0.5, 200), "peak": (0.01, 1), "memory": (0.05, 1), "tile": (1, 128), "moved": (0.2, 8),
          "ramp": (1, 6000), "passed": (0.01, 20), "delay_us": (0.5, 50), "rank_us": (0.001, 10), "share": (0.02, 1),
          "fade": (0.001, 3), "stage_us": (0.001, 10)}  # fmt: skip

STARTS = {"floor_us": 8, "peak": 0.5, "memory": 0.7, "tile": 32, "moved": 1.6, "ramp": 200, "delay_us": 5,
          "passed": 0.5, "rank_us": 0.1, "share": 0.6, "fade": 0.05, "stage_us": 2.0}  # fmt: skip
SLOW = {"floor_us": 40, "peak": 0.1, "memory": 0.9, "tile": 16, "moved": 1, "ramp": 80}


@dataclass
class Family:
    """Measured points of one family, and the form that should meet them."""

    path: tuple[str, ...]  # where its constants stand in rates.yaml
    seconds: Any
    names: tuple[str, ...]
    form: Callable[[dict[str, float]], Any]
    source: str
    of_others: bool = False  # its constants are fitted with those of an earlier family of this path as they are


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_option(parser)
    parser.add_argument("--write", type=Path, help="fit, and write the constants here")
    words = parser.parse_args()
    folder = wheel(words.venv, "pandas", "pyarrow", "scipy", "pyyaml")
    if "pyarrow" not in sys.modules and os.environ.get("RIDGELINE_INSIDE") != "1":
        inside = {**os.environ, "RIDGELINE_INSIDE": "1", "PYTHONPATH": f"{SRC}:{Path(__file__).parent}"}
        python = str(words.venv / "bin" / "python")
        sys.exit(subprocess.run([python, __file__, *sys.argv[1:]], env=inside).returncode)
    run(folder / "systems" / "data", words.write)


def run(data: Path, write: Path | None) -> None:
    import yaml

    from ridgeline.serving.twin import rates

    shipped = {} if write else rates._tables()
    found: dict[str, dict[str, Any]] = {}
    print("| GPU | kernels of | family | points | median error | p90 | constants |\n|---|---|---|---|---|---|---|")
    for gpu, folder in FOLDERS.items():
        for kernels in KERNEL_SETS:
            known = shipped.get(gpu) if kernels == NEWEST else shipped.get(gpu, {}).get("others", {}).get(kernels)
            for family in families(gpu, data / folder, kernels):
                mine = found.setdefault(gpu, {})
                mine = mine if kernels == NEWEST else mine.setdefault("others", {}).setdefault(kernels, {})
                values = _at(known, family.path) if write is None else _fit(family, mine)
                _place(mine, family, values)
                median, tail = _errors(family, values)
                text = " ".join(f"{k} {values[k]:.3g}" for k in family.names)
                cells = (gpu, kernels, " ".join(family.path), len(family.seconds), f"{median:.0%}", f"{tail:.0%}", text)
                print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    if write:
        complete(found)
        write.write_text(HEAD + yaml.safe_dump({"gpus": found}, sort_keys=False, width=120))


HEAD = f"""# Constants of the twin's kernel forms (see rates.py), fitted by benchmarks/twin/operators.py to the tables
# of aiconfigurator-core {RELEASE} (Apache-2.0), newest SGLang release of each: the least mean of |log(form / table)|.
# `source` names table, release and points; where it says "as X" nobody measured it, and X's numbers stand in.
"""


def families(gpu: str, folder: Path, kernels: str) -> Iterator[Family]:
    """`kernels` names engine and release: those of another engine or an older release where their tables differ."""
    engine, release = KERNEL_SETS[kernels]
    yield from _experts(gpu, folder, engine, release)
    yield from _reductions(gpu, folder, engine, release)
    if kernels != OLDER:
        yield from _gemms(gpu, folder, engine)
    if kernels == NEWEST:  # vLLM's attention and states are within a tenth of these
        yield from _attention(gpu, folder)
        yield from _states(gpu, folder)
        yield from _mla(gpu, folder)


def _table(folder: Path, pattern: str) -> tuple[Any, str]:
    import pyarrow.parquet as pq

    files = sorted(
        folder.glob(pattern),
        key=lambda f: [int("".join(filter(str.isdigit, p)) or 0) for p in f.parent.name.split(".")],
    )
    if not files:
        return None, ""
    frame = pq.read_table(files[-1]).to_pandas()
    return frame[frame["latency"] > 0] if "latency" in frame else frame, f"{files[-1].name}, {files[-1].parent.name}"


def _thin(frame: Any) -> Any:
    return frame.sample(MOST, random_state=1) if len(frame) > MOST else frame


def _columns(frame: Any, *names: str) -> list[Any]:
    return [frame[name].to_numpy(dtype=float) for name in names]


def _peaks(gpu: str, dtype: str) -> tuple[float, float]:
    from ridgeline.serving.hardware.cluster import load_gpu

    found = load_gpu(gpu)
    return found.flops_of(dtype), found.bandwidth_bytes_s


def _rate(values: dict[str, float]) -> Any:
    from ridgeline.serving.twin.rates import Rate

    return Rate(values["floor_us"] * 1e-6, values.get("peak", 1.0), values.get("memory", 1.0))


def _gemms(gpu: str, folder: Path, engine: str) -> Iterator[Family]:
    frame, source = _table(folder, f"gemm/{engine}/*/gemm_perf.parquet")
    if frame is None:
        return
    seen: set[str] = set()
    for name, dtype in GEMM.items():
        mine = frame[(frame.gemm_dtype == name) & (frame.n >= 512) & (frame.k >= 512)]
        # vLLM's FP8 products were measured without a graph: 60 to 190 us of launching each, which no decode step has
        if len(mine) < 100 or dtype in seen or (engine == "vllm" and dtype == "fp8"):
            continue
        seen.add(dtype)
        mine = _thin(mine)
        m, n, k = _columns(mine, "m", "n", "k")
        flops, bandwidth = _peaks(gpu, dtype)
        wide = WEIGHT_BYTES[dtype]
        peak_s, stream_s = 2 * m * n * k / flops, (n * k * wide + m * (k * wide + 2 * n)) / bandwidth
        yield Family(
            ("gemm", dtype), mine.latency.to_numpy() / 1e3, ("floor_us", "peak", "memory"),
            lambda v, a=peak_s, b=stream_s: _rate(v).seconds(a, b), f"{source}, {name}",
        )  # fmt: skip


def _attention(gpu: str, folder: Path) -> Iterator[Family]:
    flops, bandwidth = _peaks(gpu, "bf16")
    frame, source = _table(folder, "attention/sglang/*/generation_attention_perf.parquet")
    if frame is not None:
        frame = _unwindowed(frame[(frame.step >= 127) & (frame.kv_cache_dtype == "bfloat16")])
        for backend, mine in frame.groupby("kernel_source"):
            batch, context, heads, kv_heads, width = _columns(
                mine, "batch_size", "step", "num_heads", "num_key_value_heads", "head_dim"
            )
            stream_s = batch * context * 2 * kv_heads * width * 2 / bandwidth
            peak_s = 4 * heads * width * batch * context / flops
            yield Family(
                ("decode", _backend(backend, frame.kernel_source)), mine.latency.to_numpy() / 1e3,
                ("floor_us", "peak", "memory"), lambda v, a=peak_s, b=stream_s: _rate(v).seconds(a, b), source,
            )  # fmt: skip
    frame, source = _table(folder, "attention/sglang/*/context_attention_perf.parquet")
    if frame is not None:
        frame = _unwindowed(frame[(frame.isl >= 128) & (frame.attn_dtype == "bfloat16") & (frame.head_dim <= 128)])
        for backend, mine in frame.groupby("kernel_source"):
            batch, tokens, heads, width = _columns(mine, "batch_size", "isl", "num_heads", "head_dim")
            peak_s = 2 * heads * width * batch * tokens * (tokens + 1) / flops
            yield Family(
                ("prefill", _backend(backend, frame.kernel_source)), mine.latency.to_numpy() / 1e3,
                ("floor_us", "peak"), lambda v, a=peak_s: _rate(v).seconds(a, 0.0), source,
            )  # fmt: skip


def _unwindowed(frame: Any) -> Any:
    return frame[frame.window_size == 0] if "window_size" in frame else frame


def _backend(name: str, others: Any = ()) -> str:
    """Our word for it. On Blackwell's servers SGLang runs TensorRT-LLM's kernels where nothing is chosen."""
    if "trtllm_mha" in set(others):
        return {"trtllm_mha": "flashinfer", "flashinfer": "flashinfer_own"}.get(name, name)
    return {"flash_attention": "fa3"}.get(name, name)


def _mla(gpu: str, folder: Path) -> Iterator[Family]:
    flops, bandwidth = _peaks(gpu, "bf16")
    frame, source = _table(folder, "mla/sglang/*/generation_mla_perf.parquet")
    if frame is None:
        return
    frame = frame[(frame.kv_cache_dtype == "bfloat16") & (frame.step >= 127) & (frame.num_heads >= 8)]
    for backend, mine in frame.groupby("kernel_source"):
        batch, context, heads = _columns(mine, "batch_size", "step", "num_heads")
        stream_s, peak_s = batch * context * 576 * 2 / bandwidth, 2 * heads * 1088 * batch * context / flops
        yield Family(
            ("mla_decode", _backend(backend)), mine.latency.to_numpy() / 1e3, ("floor_us", "peak", "memory"),
            lambda v, a=peak_s, b=stream_s: _rate(v).seconds(a, b), source,
        )  # fmt: skip
    frame, source = _table(folder, "mla/sglang/*/context_mla_perf.parquet")
    frame = frame[(frame.kv_cache_dtype == "bfloat16") & (frame.isl >= 128)]
    for backend, mine in frame.groupby("kernel_source"):
        batch, tokens, heads = _columns(mine, "batch_size", "isl", "num_heads")
        # FA3 and Triton were measured on the latent itself, which takes (1024 + 64) / (192 + 128) times the FLOPs
        pair = 640 if "trtllm" in backend else 2176
        peak_s = pair * heads * batch * tokens * (tokens + 1) / 2 / flops
        yield Family(
            ("mla_prefill", _backend(backend)), mine.latency.to_numpy() / 1e3, ("floor_us", "peak"),
            lambda v, a=peak_s: _rate(v).seconds(a, 0.0), source,
        )  # fmt: skip


def _experts(gpu: str, folder: Path, engine: str, release: str) -> Iterator[Family]:
    seen: set[str] = set()
    for name, dtype in EXPERTS.items():
        # SGLang's table of MXFP4 on Hopper was measured on weights unpacked to 16 bits, which no server does
        whose = ("vllm", "*") if name == "w4a16_mxfp4" and release == "*" else (engine, release)
        frame, source = _table(folder, f"moe/{whose[0]}/{whose[1]}/moe_perf.parquet")
        # Blackwell has no table of the older release, which ran Triton's kernels on 16-bit experts
        untabled = frame is None and release != "*" and dtype == "bf16"
        if untabled:
            frame, source = _table(folder, "moe/sglang/*/moe_perf.parquet")
        # the newest set holds vLLM's MXFP4 on Hopper already, and what recipes of both engines choose on Blackwell
        if frame is None or (engine == "vllm" and dtype == "mxfp4"):
            continue
        mine = frame[(frame.moe_dtype == name) & (frame.distribution == _routing(frame)) & (frame.num_experts >= 16)]
        chosen = mine.kernel_source.str.contains("trtllm")
        if untabled:
            mine = mine[~chosen]
        elif dtype in ("fp8", "fp4", "mxfp4") and chosen.any():
            mine = mine[chosen]  # what engines choose on Blackwell; Triton is there for comparison
        whole = mine[mine.moe_ep_size == 1]
        # ranks of one node, and where every expert is asked as often, which needs no word on the fullest rank
        parted = frame[(frame.moe_dtype == name) & (frame.num_experts >= 16) & (frame.distribution == "balanced")]
        parted = _thin(parted[parted.kernel_source.isin(mine.kernel_source) & parted.moe_ep_size.between(2, 8)])
        # few tables slice 4-bit experts; there the ranks of expert parallelism speak for batches so small that the
        # copies of other ranks take no time
        mine = _thin(whole if len(whole) >= 300 else mine[(mine.moe_ep_size == 1) | (mine.num_tokens <= 64)])
        if len(mine) < 200 or dtype in seen:
            continue
        seen.add(dtype)
        peaks = _peaks(gpu, "bf16" if dtype in ("int4", "mxfp4") and gpu[0] == "h" else dtype)
        names, told = ("floor_us", "peak", "memory", "tile", "moved", "ramp"), f"{whose[0]} {source}, {name}"
        form = _expert_form(mine, dtype, *peaks)
        yield Family(("experts", dtype), mine.latency.to_numpy() / 1e3, names, form, told)
        if len(parted) >= 100:
            form = _expert_form(parted, dtype, *peaks)
            yield Family(("experts", dtype), parted.latency.to_numpy() / 1e3, ("passed",), form, "", of_others=True)


def _expert_form(rows: Any, dtype: str, flops: float, bandwidth: float) -> Callable[[dict[str, float]], Any]:
    import numpy as np

    from ridgeline.serving.twin.rates import ExpertRate

    tokens, hidden, width, k, count, tp, ep = _columns(
        rows, "num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"
    )
    one = 3 * hidden * width / tp
    # "balanced" tables deal copies to experts in turn: nobody is asked twice before everybody was asked once
    asked = np.minimum(count, tokens * k) / ep
    routed = tokens * k / ep
    stream_s = asked * one * WEIGHT_BYTES[dtype] / bandwidth
    copy_s = (2 * hidden + 4 * width / tp) * 2 / bandwidth / 0.75

    def form(v: dict[str, float]) -> Any:
        expert = ExpertRate(_rate(v), v["tile"], v["moved"], v["ramp"], v.get("passed", 0.0))
        peak_s = 2 * one * expert.rows(routed, asked) / flops / expert.widened(width / tp)
        return expert.rate.seconds(peak_s, stream_s) + copy_s * expert.crossings(routed, tokens * k)

    return form


# Copies for each expert from which all of them are asked, however unequally.
ALL_ASKED = 8


def _routing(frame: Any) -> Any:
    """Which of a table's routings to read: the one whose touched experts are known; where that is all, a skewed one."""
    import numpy as np

    copies = frame.num_tokens * frame.topk / frame.num_experts
    return np.where(copies < ALL_ASKED, "balanced", "power_law_1.2")


def _states(gpu: str, folder: Path) -> Iterator[Family]:
    frame, source = _table(folder, "linear_attention/sglang/*/gdn_perf.parquet")
    if frame is None:
        return
    flops, bandwidth = _peaks(gpu, "bf16")
    for phase, kernel in (("decode", "recurrent"), ("prefill", "chunk_gated")):
        mine = _thin(frame[frame.kernel_source.str.contains(kernel)])
        if len(mine) < 100:
            continue
        batch, tokens, heads, key, value = _columns(
            mine, "batch_size", "num_tokens", "num_v_heads", "head_k_dim", "head_v_dim"
        )
        peak_s = 6 * tokens * heads * key * value / flops
        stream_s = 2 * batch * heads * key * value * 4 / bandwidth
        names = ("floor_us", "memory") if phase == "decode" else ("floor_us", "peak")
        form = (
            (lambda v, b=stream_s: _rate(v).seconds(0.0, b))
            if phase == "decode"
            else (lambda v, a=peak_s: _rate(v).seconds(a, 0.0))
        )
        yield Family(("states", phase), mine.latency.to_numpy() / 1e3, names, form, source)


def _reductions(gpu: str, folder: Path, engine: str, release: str) -> Iterator[Family]:
    from ridgeline.serving.twin.rates import Reduction

    frame, source = _table(folder, f"comm/{engine}/{release}/custom_allreduce_perf.parquet")
    if frame is None:
        return
    mine = frame[~frame.kernel_source.str.contains("eager") & (frame.num_gpus <= NODE.get(gpu, 8))]
    ranks, size = _columns(mine, "num_gpus", "message_size")
    link = LINK.get(gpu, 900e9)
    moved_s = 2 * (ranks - 1) / ranks * size * 2 / link

    def form(v: dict[str, float]) -> Any:
        how = Reduction(v["delay_us"] * 1e-6, v["rank_us"] * 1e-6, v["share"], v["fade"], v["stage_us"] * 1e-6)
        return how.delay(ranks, 2 * size) + moved_s / how.bus_share(ranks)

    names = ("delay_us", "rank_us", "share", "fade", "stage_us")
    yield Family(("all_reduce",), mine.latency.to_numpy() / 1e3, names, form, source)


def _fit(family: Family, rows: dict[str, Any]) -> dict[str, float]:
    import numpy as np
    from scipy.optimize import minimize

    known = _at(rows, family.path) if family.of_others else {}
    low, high = (np.log([BOUNDS[n][k] for n in family.names]) for k in (0, 1))

    def miss(x: Any) -> float:
        values = known | dict(zip(family.names, np.exp(np.clip(x, low, high)), strict=True))
        outside = np.abs(x - np.clip(x, low, high)).sum()
        return float(np.mean(np.abs(np.log(family.form(values) / family.seconds))) + outside)

    # from a usual kernel, and from one that unpacks its weights and is far from the peak, where that is clearly nearer
    best, slow = (
        minimize(
            miss, np.log([start[n] for n in family.names]), method="Nelder-Mead",
            options={"maxiter": 3000, "xatol": 1e-3, "fatol": 1e-5},
        )
        for start in (STARTS, STARTS | SLOW)
    )  # fmt: skip
    best = slow if slow.fun < 0.98 * best.fun else best
    found = {n: float(f"{v:.3g}") for n, v in zip(family.names, np.exp(np.clip(best.x, low, high)), strict=True)}
    return known | found


def _at(known: Any, path: tuple[str, ...]) -> dict[str, float]:
    for name in path:
        known = known[name]
    return dict(known)


def _place(rows: dict[str, Any], family: Family, values: dict[str, float]) -> None:
    here = rows
    for name in family.path[:-1]:
        here = here.setdefault(name, {})
    source = {} if family.of_others else {"source": f"{family.source}, {len(family.seconds):,} points"}
    here[family.path[-1]] = values | source


def _errors(family: Family, values: dict[str, float]) -> tuple[float, float]:
    import numpy as np

    off = np.abs(family.form(values) / family.seconds - 1)
    return float(np.median(off)), float(np.quantile(off, 0.9))


# Who speaks for a family that a GPU has no table of, and which back end for one nobody measured.
ELDERS = {"a100": "h100", "l40s": "h100", "rtx-pro-6000": "b200"}
OTHERWISE = {"gemm": ("bf16",), "experts": ("fp8", "bf16"), "decode": ("fa3", "flashinfer"),
             "mla_decode": ("fa3", "trtllm_mla", "triton"), "prefill": ("fa3", "flashinfer"),
             "mla_prefill": ("trtllm_mla", "fa3", "triton"), "states": ("decode",)}  # fmt: skip


def complete(found: dict[str, dict[str, Any]]) -> None:
    """Families without a table are taken from a GPU that has one, and say so."""
    for gpu, rows in found.items():
        elder = ELDERS.get(gpu, "b200")
        for name, choices in OTHERWISE.items():
            here = rows.setdefault(name, {})
            # Triton on the latent was measured on the smaller GPUs alone
            for other in (elder, "l40s"):
                for key, row in found[other].get(name, {}).items() if gpu != other else ():
                    if key not in here and isinstance(row, dict):
                        here[key] = {**row, "source": f"as {other}"}
            here["otherwise"] = next(c for c in choices if c in here)


if __name__ == "__main__":
    main()
