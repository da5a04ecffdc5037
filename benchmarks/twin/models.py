"""How real config.json files of current models are read: parameters beside what name or card says, cache by kind.

    python benchmarks/twin/models.py [--venv FOLDER]

The configs come with the wheel of aiconfigurator-core, installed into an environment of its own on first use; the
shipped presets follow, where their values come from.
"""

from __future__ import annotations

import argparse
import re

from peer import add_option, wheel

from ridgeline.errors import InputError
from ridgeline.serving.model.config import load_model, preset_names

NEAR = 0.03
# Billions of parameters, all and used by a token, by the models' cards where the name does not say.
CARDS = {
    "DeepSeek-V4-Flash": ("284", "13"),
    "DeepSeek-V4-Pro": ("1600", "49"),
    "DeepSeek-V2-Lite": ("15.7", "2.7"),
    "DeepSeek-": ("671", "37"),
    "Kimi-K2": ("1000", "32"),
    "Kimi-K3": ("2780", "104"),
    "GLM-4.5-Air": ("106", "12"),
    "GLM-4.5": ("355", "32"),
    "GLM-5": ("744", "40"),
    "MiniMax-M2": ("230", "10"),
    "MiniMax-M3": ("428", "23"),
    "MiMo-V2-Flash": ("309", "15"),
    "gpt-oss-120b": ("116.8", "5.13"),
    "gpt-oss-20b": ("20.9", "3.61"),
    "Llama-4-Scout": ("109", "17"),
    "Llama-4-Maverick": ("400", "17"),
    "Mixtral-8x22B": ("141", "39"),
    "Mixtral-8x7B": ("46.7", "12.9"),
    "Qwen3-30B-A3B": ("30.5", "3.3"),
    "Qwen3.8-2.4T-A95B": ("2400", "95"),
    "NVIDIA-Nemotron-3-Nano-30B-A3B": ("31.6", "3.2"),
    "Nemotron-3-Nano-30B-A3B": ("31.6", "3.2"),
    # Gemma's cards count the towers; llama.cpp counts the language half of E2B as 4.65e9
    "gemma-3-4b": ("3.88", "3.88"),
    "gemma-4-E2B": ("4.65", "2.3"),
    "gemma-4-26B-A4B": ("25.2", "3.8"),
    "gemma-4-31B": ("30.7", "30.7"),
}
_WITHOUT_HEAD = ("glm-4.5", "minimax-m3")  # whose cards do not count the LM head as used
_NAME = re.compile(r"-(\d+(?:\.\d+)?)B(?:-A(\d+(?:\.\d+)?)B)?", re.IGNORECASE)


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
            counts[_line(str(path), path.name.removesuffix("_config.json").rpartition("--")[2])] += 1
    for preset in preset_names():
        counts[_line(preset, preset)] += 1
    print("\n" + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))


def _line(config: str, name: str) -> str:
    try:
        model = load_model(config)
    except InputError as error:
        print(f"| {name} | | | | | | | refused: {str(error).rpartition('config.json: ')[2]} |")
        return "refused"
    total, used = said(name)
    counted = model.active_params - (model.vocab * model.hidden if name.lower().startswith(_WITHOUT_HEAD) else 0)
    verdict = "no figure" if total is None else _verdict(model.params, counted, total, used)
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
        if name.lower().startswith(start.lower()):
            return figures
    match = _NAME.search(name)
    return (match[1], match[2]) if match else (None, None)


def _verdict(params: int, active: int, total: str, used: str | None) -> str:
    pairs = [(params, total), (active, used or total)]
    return "right" if all(_agrees(count / 1e9, figure) for count, figure in pairs) else "off"


def _agrees(count: float, figure: str) -> bool:
    """Within 3%, or the figure is this count cut to its digits."""
    digits = len(figure.partition(".")[2])
    return abs(count / float(figure) - 1) <= NEAR or round(count, digits) == float(figure)


if __name__ == "__main__":
    main()
