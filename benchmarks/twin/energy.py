"""Watts and joules of a token: what the twin predicts beside loads of vLLM on H100 and B200 that others measured.

    python benchmarks/twin/energy.py EVIDENCE [--sample 4]

EVIDENCE holds public/ml-energy.csv: loads of ML.ENERGY's benchmark, steady state of a closed loop, watts of all GPUs
together. Its rows have no licence that we know of and are not kept here. The recipes (chunk, expert ranks, sampling
by temperature and top-p, front ends, asynchronous scheduling, how many requests) are in the repository
ml-energy/benchmark. Answers are spread as its histograms of lengths are; lengths of prompts are not stated, and taken
as 300 tokens of chats and 250 of GPQA. Tokens count as there: from when all places have answered once until fewer
requests are left than places.

Errors are |predicted / measured - 1|. "Left out": what tensor cores and memory draw is chosen on the other models.
Joules of a token rest on the twin's throughput, and beside it on the measured one, which tells the two errors apart.
The peer draws a constant share of the GPU's limit, chosen on the other models too, at the twin's throughput.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.settings import EngineSettings, parse_engine
from ridgeline.serving.hardware.cluster import make_cluster
from ridgeline.serving.model.config import PRESETS, load_model
from ridgeline.serving.model.model import Model
from ridgeline.serving.traffic.lengths import LogNormal
from ridgeline.serving.traffic.requests import RequestRecord
from ridgeline.serving.traffic.traffic import ClosedLoop, Traffic, no_collection
from ridgeline.serving.twin.calibration import Calibration
from ridgeline.serving.twin.energy import Energy, Worked, draw_of, energy_of
from ridgeline.serving.twin.simulate import SimulationResult, result_of, run_to_end

RELEASE, CHUNK, SERVERS = "vllm:0.11", 8192, 3
FAR_OFF = 1.5
_QWEN = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_key_value_heads": 8, "head_dim": 128,
    "attention_bias": False, "vocab_size": 151936, "max_position_embeddings": 40960, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}  # fmt: skip
# What the twin has no preset of, by their config.json: the preset that they differ from, and in what.
SHAPES: dict[str, tuple[str, Mapping[str, object]]] = {
    "qwen3-14b": ("", {**_QWEN, "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 40,
                       "num_attention_heads": 40}),
    "qwen3-8b": ("", {**_QWEN, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
                      "num_attention_heads": 32}),
    "nvidia-nemotron-nano-12b-v2": ("", {
        "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "conv_kernel": 4, "head_dim": 128,
        "hidden_size": 5120, "intermediate_size": 20480, "mamba_head_dim": 80, "mamba_num_heads": 128,
        "hybrid_override_pattern": "M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M-",
        "max_position_embeddings": 131072, "mlp_hidden_act": "relu2", "n_groups": 8, "num_attention_heads": 40,
        "num_hidden_layers": 62, "num_key_value_heads": 8, "ssm_state_size": 128, "tie_word_embeddings": False,
        "vocab_size": 131072, "torch_dtype": "bfloat16"}),
    # Meta leaves attention in 16 bits
    "llama-3.1-405b-instruct-fp8": ("llama-405b", {"quantization_config": {
        "quant_method": "fbgemm_fp8", "modules_to_not_convert": ["model.layers.*.self_attn"]}}),
    "llama-4-maverick-17b-128e-instruct-fp8": ("llama-4-scout", {
        "num_local_experts": 128, "interleave_moe_layer_step": 2, "max_position_embeddings": 1048576}),
}  # fmt: skip
PRESET_OF = {
    "deepseek-v3.1": "deepseek-v3",
    "gemma-3-27b-it": "gemma-3-27b",
    "llama-3.1-8b-instruct": "llama-8b",
    "qwen3-30b-a3b-thinking-2507": "qwen3-30b-a3b",
    "qwen3-235b-a22b-instruct-2507-fp8": "qwen3-235b-a22b",
    "qwen3-235b-a22b-thinking-2507-fp8": "qwen3-235b-a22b",
}


@dataclass(frozen=True)
class Task:
    """Its lengths, log-normal: means and spreads of prompts and answers, and the most tokens of an answer. It has so
    many prompts, of which recipes send whole rounds, `margin` requests for each place or more."""

    prompt: int
    prompt_sigma: float
    answer_sigma: float
    longest: int
    prompts: int
    margin: float

    def traffic(self, users: int, answer: float) -> Traffic:
        lengths = LogNormal(self.prompt, answer, self.prompt_sigma, self.answer_sigma, _LONGEST_PROMPT, self.longest)
        sent = self.prompts * math.ceil(self.margin * users / self.prompts)
        return Traffic(lengths, min(sent, max(_FEWEST, _ROUNDS * users)), ClosedLoop(users))


# 12 models' answers have standard deviations of 0.9 to 1.1 of their means in chats and 0.5 to 0.9 in GPQA; prompts are
# spread as ShareGPT's are, questions less.
CHAT, GPQA = Task(300, 1.1, 0.8, 4096, 1024, 1.5), Task(250, 0.5, 0.6, 32768, 198, 1.15)
# No run is longer than so many requests for each place: a few places are soon steady.
_LONGEST_PROMPT, _ROUNDS, _FEWEST = 2048, 6, 120
_TAKEN = 0.95  # of the most requests at once, in the steady state: who has answered makes room for the next


@dataclass(frozen=True)
class EnergyRow:
    """One load, and what was measured: watts of all GPUs, output tokens a second, the median gap between tokens."""

    name: str
    deployment: Deployment
    traffic: Traffic
    users: int
    watts: float
    tok_s: float
    itl_ms: float

    @property
    def gpus(self) -> int:
        return self.deployment.layout.gpus

    @property
    def joules(self) -> float:
        return self.watts / self.tok_s


def read_energy_rows(path: Path) -> list[EnergyRow]:
    with path.open() as file:
        return [_row(row) for row in csv.DictReader(file)]


def _row(row: dict[str, str]) -> EnergyRow:
    gpus, users = int(row["num_gpus"]), int(row["max_num_seqs"])
    task = GPQA if row["task"] == "gpqa" else CHAT
    asked = EngineSettings(
        max_running_requests=users,
        chunked_prefill_size=CHUNK,
        overlap=True,
        top_p=True,
        tokenizer_workers=SERVERS,
    )
    # its column of tensor parallelism says 1 where experts are spread: vLLM's ranks then share the attention
    layout = Layout(gpus, ep=int(row["expert_parallel"]), nodes=1, gpus_per_node=gpus)
    cluster = make_cluster(row["gpu_model"].lower(), 1, gpus)
    return EnergyRow(
        name=f"{row['task']} {row['model_id'].rpartition('/')[2]} {row['gpu_model']}x{gpus} {users}",
        deployment=Deployment(
            _model(row["model_id"], row["weight_precision"]), cluster, layout, parse_engine(RELEASE, asked)
        ),
        traffic=task.traffic(users, float(row["avg_output_len"])),
        users=users,
        watts=float(row["avg_power_watts"]),
        tok_s=float(row["output_throughput_tokens_per_sec"]),
        itl_ms=float(row["median_itl_ms"]),
    )


def _model(name: str, precision: str) -> Model:
    short = name.rpartition("/")[2].lower()
    if short in SHAPES:
        preset, differs = SHAPES[short]
        config = json.loads((PRESETS / f"{preset}.json").read_text()) if preset else {}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / short / "config.json"
            path.parent.mkdir()
            path.write_text(json.dumps({**config, **differs}))
            model = load_model(str(path))
    else:
        model = load_model(PRESET_OF.get(short, short))
    model = model.with_dtype("fp8" if precision == "fp8" else None)
    # DeepSeek's recipe takes FlashInfer's experts instead of DeepGEMM's
    return replace(model, weight_block=128 if "qwen3-235b" in short else 0)


@dataclass(frozen=True)
class Judged:
    """A row beside its prediction. `energy` and `tok_s` are of the steady state, in which all places are taken;
    `left_out` are watts of a GPU by what the other models' rows say."""

    row: EnergyRow
    result: SimulationResult
    energy: Energy
    tok_s: float
    left_out: float = 0.0
    peer: float = 0.0

    @property
    def gpu_w(self) -> float:
        return self.energy.gpu_power_w

    @property
    def joules(self) -> float:
        return self.gpu_w * self.row.gpus / self.tok_s

    def bounds(self, figure: str) -> tuple[float, float]:
        """Of watts of a GPU, or of joules in the steady state."""
        low, high = self.result.interval[figure]
        here = {"gpu_power_w": self.gpu_w, "joules_per_output_token": self.joules}[figure]
        scale = here / (getattr(self.result, figure) or math.nan)
        return low * scale, high * scale


def judged(rows: Iterable[EnergyRow]) -> list[Judged]:
    found = []
    for row in rows:
        try:
            found.append(_judged(row))
        except InputError as error:
            print(f"not answered: {row.name}: {str(error).splitlines()[0]}")
    return [each for gpu in _gpus(found) for each in _left_out([j for j in found if _gpu(j) == gpu])]


def _judged(row: EnergyRow) -> Judged:
    nothing = Calibration()
    with no_collection():
        run = run_to_end(row.deployment, row.traffic, nothing)
        (engine,) = run.engines
        most = max(each.logit_rows for each in engine.passes)  # fewer than there are places where KV is full
        steady = [each for each in engine.passes if each.logit_rows > _TAKEN * most]
        seconds = sum(each.times * each.seconds for each in steady)
        energy = energy_of([Worked(engine.times, steady)], row.deployment.cluster.gpu, seconds)
        assert energy is not None
        result = result_of(run, row.deployment, nothing)
    # hundreds of rows would keep millions of requests
    return Judged(row, replace(result, records=()), energy, _steady_tok_s(result.records, row.users))


def _steady_tok_s(records: Sequence[RequestRecord], users: int) -> float:
    """From when all places have answered once until fewer requests are left than there are places."""
    starts = sorted(r.first_token_s for r in records if r.first_token_s is not None)
    ends = sorted(r.end_s for r in records if r.end_s is not None)
    begin_s, end_s = starts[users - 1], ends[max(0, len(ends) - users - 2)]
    return sum(_between(r, begin_s, end_s) for r in records) / (end_s - begin_s)


def _between(record: RequestRecord, begin_s: float, end_s: float) -> float:
    """Tokens of one answer in that time."""
    at_s, made = record.first_token_s or 0.0, 0.0
    for gap_s, count in record.gaps_s:
        after_s = at_s + gap_s * count
        if gap_s:
            made += max(0.0, min(after_s, end_s) - max(at_s, begin_s)) / gap_s
        at_s = after_s
    return made


def _left_out(mine: Sequence[Judged]) -> list[Judged]:
    found = []
    for model in dict.fromkeys(_model_name(j) for j in mine):
        others = [j for j in mine if _model_name(j) != model] or list(mine)
        tensor, memory = fitted(others)
        share = statistics.median(_share(j) for j in others)
        for j in mine:
            if _model_name(j) == model:
                limit_w, draw = _limit_w(j), draw_of(j.row.deployment.cluster.gpu)
                watts = min(limit_w, j.gpu_w * _added(j, tensor, memory) / _added(j, draw.tensor, draw.memory))
                found.append(replace(j, left_out=watts, peer=share * limit_w))
    return found


def fitted(rows: Sequence[Judged]) -> tuple[float, float]:
    """Shares that tensor cores on decode rows and memory draw, by least squares of relative errors; neither below 0.
    Rows whose speed is far off say nothing of them."""
    cc = cm = mm = cy = my = 0.0
    for j in rows:
        if not 1 / FAR_OFF < j.tok_s / j.row.tok_s < FAR_OFF:
            continue
        energy, draw = j.energy, draw_of(j.row.deployment.cluster.gpu)
        # as much below the sum of its parts, for passes at the limit, as the prediction is
        share = _share(j) * _added(j, draw.tensor, draw.memory) * _limit_w(j) / j.gpu_w
        c, m = (energy.tensor - energy.prompts) / share, energy.memory / share
        y = 1.0 - _known_share(j) / share
        cc, cm, mm, cy, my = cc + c * c, cm + c * m, mm + m * m, cy + c * y, my + m * y
    whole = cc * mm - cm * cm
    tensor, memory = (cy * mm - my * cm) / whole, (my * cc - cy * cm) / whole
    if tensor < 0:
        return 0.0, my / mm
    return (tensor, memory) if memory >= 0 else (cy / cc, 0.0)


def _added(j: Judged, tensor: float, memory: float) -> float:
    """The share of the limit that a GPU would draw without a limit, were these the parts'."""
    energy = j.energy
    return _known_share(j) + tensor * (energy.tensor - energy.prompts) + memory * energy.memory


def _known_share(j: Judged) -> float:
    """Idle, and what prompts draw: not chosen on these rows."""
    draw, energy = draw_of(j.row.deployment.cluster.gpu), j.energy
    return draw.idle + draw.prompts * energy.prompts


def _share(j: Judged) -> float:
    return j.row.watts / j.row.gpus / _limit_w(j)


def _limit_w(j: Judged) -> float:
    limit_w = j.row.deployment.cluster.gpu.power_w
    assert limit_w is not None
    return limit_w


def _gpu(j: Judged) -> str:
    return j.row.deployment.cluster.gpu.name


def _gpus(found: Iterable[Judged]) -> list[str]:
    return list(dict.fromkeys(map(_gpu, found)))


def _model_name(j: Judged) -> str:
    return j.row.deployment.model.name


FIGURES: dict[str, Callable[[Judged], float]] = {  # predicted over measured
    "watts": lambda j: j.gpu_w * j.row.gpus / j.row.watts,
    "watts, left out": lambda j: j.left_out * j.row.gpus / j.row.watts,
    "watts, peer": lambda j: j.peer * j.row.gpus / j.row.watts,
    "J/token": lambda j: j.joules / j.row.joules,
    "J/token, left out": lambda j: j.left_out * j.row.gpus / j.tok_s / j.row.joules,
    "J/token, peer": lambda j: j.peer * j.row.gpus / j.tok_s / j.row.joules,
    "J/token at the limit": lambda j: _limit_w(j) * j.row.gpus / j.tok_s / j.row.joules,
    "J/token, measured tok/s": lambda j: j.gpu_w * j.row.gpus / j.row.watts,
    "tok/s": lambda j: j.tok_s / j.row.tok_s,
    "ITL": lambda j: (j.result.summary.itl_ms.p50 if j.result.summary.itl_ms else math.nan) / j.row.itl_ms,
}
_SHOWN = tuple(name for name in FIGURES if name != "J/token, measured tok/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("evidence", type=Path)
    parser.add_argument("--sample", type=int, default=1, help="every N-th row")
    options = parser.parse_args()
    found = judged(read_energy_rows(options.evidence / "public" / "ml-energy.csv")[:: options.sample])
    groups = {"all": found} | {gpu: [j for j in found if _gpu(j) == gpu] for gpu in _gpus(found)}
    groups |= {f"{_gpu(j)} {_model_name(j)}": [] for j in found}
    for j in found:
        groups[f"{_gpu(j)} {_model_name(j)}"].append(j)
    print("| rows | " + " | ".join(f"{name}: median (bias), p90" for name in _SHOWN) + " | inside: watts, J/token |")
    print("|" + "---|" * (len(_SHOWN) + 2))
    for group, mine in groups.items():
        cells = [f"{group}, {len(mine)}", *(_errors(mine, FIGURES[name]) for name in _SHOWN)]
        inside = [
            statistics.mean(low <= value(j) <= high for j in mine for low, high in (j.bounds(figure),))
            for figure, value in (
                ("gpu_power_w", lambda j: j.row.watts / j.row.gpus),
                ("joules_per_output_token", lambda j: j.row.joules),
            )
        ]
        print("| " + " | ".join([*cells, f"{inside[0]:.0%}, {inside[1]:.0%}"]) + " |")
    for gpu in _gpus(found):
        mine = [j for j in found if _gpu(j) == gpu]
        tensor, memory = fitted(mine)
        off = sorted(abs(math.log(j.left_out * j.row.gpus / j.row.watts)) for j in mine)
        print(
            f"\n{gpu}: tensor {tensor:.2f}, memory {memory:.2f}; 90% of log errors below {off[int(0.9 * len(off))]:.2f}"
        )
    print("\nworst J/token")
    for j in sorted(found, key=lambda j: -abs(math.log(j.joules / j.row.joules)))[:15]:
        print(
            f"  {j.row.name}: {j.row.joules:.3g} J/token, predicted {j.joules:.3g}; "
            f"{j.row.watts / j.row.gpus:.0f} W a GPU, predicted {j.gpu_w:.0f}; "
            f"{j.row.tok_s:.0f} tok/s, predicted {j.tok_s:.0f}"
        )


def _errors(mine: Sequence[Judged], of: Callable[[Judged], float]) -> str:
    ratios = [of(j) for j in mine]
    off = sorted(abs(ratio - 1) for ratio in ratios)
    return f"{statistics.median(off):.1%} ({statistics.median(ratios) - 1:+.0%}), {off[int(0.9 * (len(off) - 1))]:.0%}"


if __name__ == "__main__":
    main()
