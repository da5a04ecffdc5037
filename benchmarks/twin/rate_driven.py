"""Loads of a constant rate: vLLM on H100 for ten to twenty minutes, some of them more than it can serve.

    python benchmarks/twin/rate_driven.py RATES.csv

Columns are those of inference-sim's training runs. Nothing is calibrated. A stage whose queue grows without end is
overloaded; its latencies depend on when its clients gave up (300 s here), so that it is judged by that verdict alone.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import tempfile
from pathlib import Path

from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.settings import EngineSettings, parse_engine
from ridgeline.serving.hardware.cluster import make_cluster
from ridgeline.serving.model.config import load_model
from ridgeline.serving.model.model import Model
from ridgeline.serving.traffic.replay import Replay, TraceRow
from ridgeline.serving.traffic.texts import Text
from ridgeline.serving.traffic.traffic import OpenLoop, Traffic
from ridgeline.serving.twin.simulate import simulate

# hidden, layers, heads, KV heads, width of the FFN, context: as their config.json say
SHAPES = {
    "meta-llama/Llama-2-7b-hf": (4096, 32, 32, 32, 11008, 4096),
    "meta-llama/Llama-2-70b-hf": (8192, 80, 64, 8, 28672, 4096),
    "codellama/CodeLlama-34b-Instruct-hf": (8192, 48, 64, 8, 22016, 16384),
}
PRESETS = {"mistralai/Mixtral-8x7B-v0.1": "mixtral-8x7b"}
# Answers have as many tokens as were asked for: (E2E - TTFT) / 2 TPOT is 248.6 in every stage that kept up, whatever a
# client's tokenizer counted afterwards (TPOT counts two messages a token, and is not judged). The load generator goes
# round a few users, each of whom sends one prompt again and again: all but the end of it is in the prefix cache.
# a queue grows without end where the last tenth of requests waits longer than this many times the first
GROWN, WAIT_S = 4.0, 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path)
    words = parser.parse_args()
    misses: dict[str, list[float]] = {"e2e": [], "ttft": []}
    right = total = 0
    with words.rows.open() as file:
        for row in csv.DictReader(file):
            overloaded = float(row["ttft_mean_ms"]) > 10_000
            found, ratios = _ask(row)
            right, total = right + (found == overloaded), total + 1
            stage = f"{row['experiment'][16:]:<32} {row['rate_s']:>3}/s"
            print(f"{stage}  overloaded {overloaded!s:<5} said {found!s:<5}", end="")
            if not overloaded:
                for name, ratio in ratios.items():
                    misses[name].append(abs(ratio - 1))
                print("  " + "  ".join(f"{name} {ratio - 1:+.0%}" for name, ratio in ratios.items()), end="")
            print()
    print(f"overload told right: {right} of {total}")
    print("median error: " + ", ".join(f"{name} {statistics.median(found):.0%}" for name, found in misses.items()))


def _model(name: str) -> Model:
    if name in PRESETS:
        return load_model(PRESETS[name])
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size",
             "max_position_embeddings")  # fmt: skip
    shape = dict(zip(names, SHAPES[name], strict=True))
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32000,
              "torch_dtype": "float16", "tie_word_embeddings": False, **shape}  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name.rpartition("/")[2].lower().removesuffix("-hf") / "config.json"
        path.parent.mkdir()
        path.write_text(json.dumps(config))
        return load_model(str(path))


def stage(row: dict[str, str]) -> tuple[Deployment, Traffic]:
    """What ran, and what was sent to it."""
    tp = int(row["tp"])
    plain = EngineSettings(
        max_running_requests=int(row["max_num_seqs"]), chunked_prefill_size=int(row["max_num_batched_tokens"])
    )
    layout = Layout(tp, nodes=1, gpus_per_node=max(tp, 1))
    deployment = Deployment(_model(row["model"]), make_cluster("h100", 1, tp), layout, parse_engine("vllm:0.15", plain))
    rate, count = float(row["rate_s"]), int(float(row["rate_s"]) * float(row["duration_s"]))
    users = int(row["system_prompts"]) * int(row["users_per_prompt"])
    prompt, made = round(float(row["prompt_len_mean"])), int(row["output_tokens"])
    prompts = [Text(user) for user in range(users)]
    lengths = tuple(TraceRow(prompt, made, text=prompts[number % users]) for number in range(count))
    return deployment, Traffic(Replay(lengths, "rate"), count, OpenLoop(rate, 0.0))


def _ask(row: dict[str, str]) -> tuple[bool, dict[str, float]]:
    records = simulate(*stage(row)).records
    ttft = [(r.first_token_s or 0.0) - r.sent_s for r in records]
    e2e = [(r.end_s or 0.0) - r.sent_s for r in records]
    part = max(1, len(records) // 10)
    first, last = statistics.mean(ttft[:part]), statistics.mean(ttft[-part:])
    means = {"e2e": e2e, "ttft": ttft}
    ratios = {name: 1000 * statistics.mean(values) / float(row[f"{name}_mean_ms"]) for name, values in means.items()}
    return last > WAIT_S and last > GROWN * first, ratios


if __name__ == "__main__":
    main()
