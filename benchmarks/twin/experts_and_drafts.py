"""Dummy mixtures that route evenly, and drafts that are kept by order: the twin, not calibrated, beside one H200.

    python benchmarks/twin/experts_and_drafts.py

SGLang 0.5.15, Triton attention, no graphs for prompts, graphs and running requests up to 64; 1,024 tokens in, 256 out,
twice as many requests as there are at once (8 at least), by `ridgeline bench --api completions --ignore-eos`. The host
had no FlashInfer build: GLM-4.5's router with a bias ran as ten small kernels, 31 us a layer, where others have one.
An event of a drafted answer brings several tokens, so that its gaps are judged by TPOT.
"""

from __future__ import annotations

import csv
from pathlib import Path

from ridgeline.serving.engines.deployment import describe
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.settings import EngineSettings
from ridgeline.serving.traffic.traffic import parse_traffic
from ridgeline.serving.twin.simulate import simulate

MEASURED = Path(__file__).parent / "measured"


def main() -> None:
    print(f"{'':<44} {'at once':>7} {'measured':>10} {'twin':>8} {'off':>6}")
    with (MEASURED / "experts-and-drafts.csv").open() as file:
        for row in csv.DictReader(file):
            drafts, kept = int(row["draft_tokens"]), row["accept_length"]
            settings = EngineSettings(
                version=(0, 5, 15), attention_backend="triton", prefill_graph=False, max_running_requests=64,
                cuda_graph_max_bs=64, mem_fraction=float(row["mem_fraction"]), experts=row["experts"],
                draft_tokens=drafts, accept_length=float(kept) if kept else None,
            )  # fmt: skip
            beside = MEASURED / row["model"]
            model = str(beside) if beside.is_file() else row["model"]
            at_once = int(row["concurrency"])
            sent = parse_traffic("fixed:1024:256", requests=max(2 * at_once, 8), concurrency=at_once, seed=at_once)
            found = simulate(describe(model, "h200", Layout(gpus_per_node=1), settings), sent).summary
            for name in ("ttft", "itl", "tpot"):
                if not row[f"{name}_p50_ms"]:
                    continue
                measured, spread = float(row[f"{name}_p50_ms"]), getattr(found, f"{name}_ms")
                what = f"{row['model'].removesuffix('.json')}{f', {drafts - 1} drafted' if drafts > 1 else ''}"
                print(f"{what:<34} {name:>4} p50 {at_once:>7} {measured:>7.2f} ms {spread.p50:>8.2f} "
                      f"{spread.p50 / measured - 1:>+6.0%}")  # fmt: skip


if __name__ == "__main__":
    main()
