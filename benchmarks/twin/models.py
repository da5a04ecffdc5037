"""How real config.json files of current models are read: parameters beside what name or card says, cache by kind.

    python benchmarks/twin/models.py [--venv FOLDER]

The configs come with the wheel of aiconfigurator-core, installed into an environment of its own on first use.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from peer import add_option, wheel

from ridgeline.errors import InputError
from ridgeline.serving.model.config import load_model
from ridgeline.serving.model.model import Model

NEAR = 0.03
# Billions of parameters, all and used by a token, by the models' cards where the name does not say.
CARDS = {
    "DeepSeek-V4-Flash": ("284", "13"),
    "DeepSeek-V4-Pro": ("1600", "49"),
    "DeepSeek-": ("671", "37"),
    "Kimi-K2": ("1000", "32"),
    "GLM-5": ("744", "40"),
    "MiniMax-M2": ("230", "10"),
    "MiMo-V2-Flash": ("309", "15"),
    "gpt-oss-120b": ("116.8", "5.13"),
    "gpt-oss-20b": ("20.9", "3.61"),
    "Llama-4-Scout": ("109", "17"),
    "Llama-4-Maverick": ("400", "17"),
    "Mixtral-8x22B": ("141", "39"),
    "Mixtral-8x7B": ("46.7", "12.9"),
    "Qwen3-30B-A3B": ("30.5", "3.3"),
    "NVIDIA-Nemotron-3-Nano-30B-A3B": ("31.6", "3.2"),
    "Gemma-4-26B-A4B": ("25.2", "3.8"),
    "gemma-4-26B-A4B": ("25.2", "3.8"),
    "Gemma-4-31B": ("30.7", "30.7"),
}
_NAME = re.compile(r"-(\d+(?:\.\d+)?)B(?:-A(\d+(?:\.\d+)?)B)?")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_option(parser)
    folder = wheel(parser.parse_args().venv) / "model_configs"
    counts = {"right": 0, "refused": 0, "no figure": 0, "off": 0}
    print(
        "| config | parameters e9 (said) | used e9 (said) | KV bytes a token | windows | state MiB | weights GiB "
        "| verdict |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for path in sorted(folder.glob("*_config.json")):
        if "hf_quant" not in path.name:
            counts[_line(path)] += 1
    print("\n" + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))


def _line(path: Path) -> str:
    name = path.name.removesuffix("_config.json").rpartition("--")[2]
    try:
        model = load_model(str(path))
    except InputError as error:
        print(f"| {name} | | | | | | | refused: {str(error).rpartition('config.json: ')[2]} |")
        return "refused"
    total, used = said(name)
    verdict = "no figure" if total is None else _verdict(model, total, used)
    windows = ", ".join(f"{w} x {size:,.0f}" for w, size in model.window_kv)
    print(
        f"| {name} | {model.params / 1e9:,.2f} ({total or '?'}) "
        f"| {model.active_params / 1e9:,.2f} ({used or total or '?'}) "
        f"| {model.kv_bytes_per_token:,.0f} | {windows} | {model.state_bytes_per_request / 2**20:.1f} "
        f"| {model.weight_bytes / 2**30:,.0f} {model.weights_dtype} | {verdict} |"
    )
    for note in model.notes:
        print(f"| | {note} |")
    return verdict


def said(name: str) -> tuple[str | None, str | None]:
    """Parameters and used parameters as digits, from the card or else the name."""
    for start, figures in CARDS.items():
        if name.startswith(start):
            return figures
    match = _NAME.search(name)
    return (match[1], match[2]) if match else (None, None)


def _verdict(model: Model, total: str, used: str | None) -> str:
    pairs = [(model.params, total), (model.active_params, used or total)]
    return "right" if all(_agrees(count / 1e9, figure) for count, figure in pairs) else "off"


def _agrees(count: float, figure: str) -> bool:
    """Within 3%, or the figure is this count cut to its digits."""
    digits = len(figure.partition(".")[2])
    return abs(count / float(figure) - 1) <= NEAR or round(count, digits) == float(figure)


if __name__ == "__main__":
    main()
