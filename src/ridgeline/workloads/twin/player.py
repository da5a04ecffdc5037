"""Performs a play: what a simulated engine would have written, at the speed of the nodes it is given.

A program of its own that imports nothing of ours, for it is started a hundred times in a campaign:
`python player.py PLAY SPEED STOPS_AT TOOK_FILE`. PLAY is what `log.compose` made: lines with the second they are
written at, `<rate 12.3>` and `<seconds 4.5>` in them, which follow the speed. It leaves sglang.log, bench.json and the
seconds it took.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

_Line = tuple[float, bool, str]
_Part = dict[str, Any]

_COMPILED = Path("../.compiled")  # the kernels that runs of this study have compiled so far
_SHUTDOWN_S = 8.0


def _perform(play: _Part, speed: float, stops_at: float, took_file: str, now_s: float) -> int:
    """The exit code. `stops_at` below 1: nothing more is written after that share of the run."""
    tax_s = _tax_s(play["compile"])
    lines = [*_compiling(play["compile"], tax_s), *_starting(play, tax_s), *_serving(play, speed, tax_s)]
    took_s = play["startup_s"] + tax_s + play["benchmark_s"] / speed + _SHUTDOWN_S
    said = [line for line in sorted(lines, key=lambda line: line[0]) if line[0] <= stops_at * took_s]
    Path("sglang.log").write_text("".join(_written(play["ranks"], now_s, *line) for line in said))
    Path(took_file).write_text(f"{took_s:.3f}\n")
    if stops_at < 1.0:
        return 1
    if tax_s:
        _COMPILED.mkdir(exist_ok=True)
        (_COMPILED / play["compile"]["key"]).touch()
    if play["exit_code"] == 0:
        Path("bench.json").write_text(_scaled(json.dumps(play["bench"], indent=1), speed) + "\n")
    return int(play["exit_code"])


def _tax_s(compiling: _Part | None) -> float:
    """Only the first run of a layout compiles its kernels; one that fails before does not come so far."""
    return 0.0 if not compiling or (_COMPILED / compiling["key"]).exists() else float(compiling["seconds"])


def _compiling(compiling: _Part | None, tax_s: float) -> list[_Line]:
    if not compiling or not tax_s:
        return []
    texts = compiling["lines"]
    return [(compiling["at_s"] + n * tax_s / len(texts), True, text) for n, text in enumerate(texts)]


def _starting(play: _Part, tax_s: float) -> list[_Line]:
    at_s = play["compile"]["at_s"] if play["compile"] else 0.0
    return [(s + (tax_s if s >= at_s else 0.0), stamped, text) for s, stamped, text in play["startup"]]


def _serving(play: _Part, speed: float, tax_s: float) -> list[_Line]:
    began_s = play["startup_s"] + tax_s
    return [(began_s + s / speed, stamped, _scaled(text, speed)) for s, stamped, text in play["benchmark"]]


def _scaled(text: str, speed: float) -> str:
    text = re.sub(r'"?<rate ([\d.]+)>"?', lambda m: f"{float(m[1]) * speed:.2f}", text)
    return re.sub(r'"?<seconds ([\d.]+)>"?', lambda m: f"{float(m[1]) / speed:.2f}", text)


def _written(ranks: str, now_s: float, at_s: float, stamped: bool, text: str) -> str:
    stamp = time.strftime("[%Y-%m-%d %H:%M:%S", time.localtime(now_s + at_s))
    return f"{stamp}{ranks}] {text}\n" if stamped else f"{text}\n"


if __name__ == "__main__":
    file, speed, stops_at, took_file = sys.argv[1:]
    sys.exit(_perform(json.loads(Path(file).read_text()), float(speed), float(stops_at), took_file, time.time()))
