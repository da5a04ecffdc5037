"""Performs a play: what a simulated engine would have written, at the speed of the nodes it is given.

A program of its own that imports next to nothing: it is started a hundred times in a campaign, and to import json, re
and pathlib takes longer than all the rest. `python player.py PLAY SPEED STOPS_AT TOOK_FILE`; PLAY is what `log.compose`
made: rows of fields that tabs part, facts and then lines with the second they are written at. `<rate 12.3>`,
`<seconds 4.5>`, `<joules 0.25>` (at the same watts) and `<goodput 60.0 1.2 0.8>` (the duration, the margins of the
requests) in them follow the speed. It leaves sglang.log, bench.json and the seconds it took.
"""

from __future__ import annotations

import os
import sys
import time

_COMPILED = "../.compiled"  # the kernels that runs of this study have compiled so far
_SHUTDOWN_S = 8.0


def _perform(play: str, speed: float, stops_at: float, took_file: str, now_s: float) -> int:
    """The exit code. `stops_at` below 1: nothing more is written after that share of the run."""
    facts, lines = _read(play)
    compiled = f"{_COMPILED}/{facts['compile']}"
    # only the first run of a layout compiles its kernels; one that fails before does not come so far
    tax_s = 0.0 if os.path.exists(compiled) else float(facts["compile_s"])
    compile_at_s, began_s = float(facts["compile_at_s"]), float(facts["startup_s"]) + tax_s
    took_s = began_s + float(facts["benchmark_s"]) / speed + _SHUTDOWN_S
    written = []
    for part, at_s, stamped, text in lines:
        if part == "compile" and tax_s:
            written.append((compile_at_s + at_s * tax_s, stamped, text))
        elif part == "startup":
            written.append((at_s + (tax_s if at_s >= compile_at_s else 0.0), stamped, text))
        elif part == "benchmark":
            written.append((began_s + at_s / speed, stamped, _scaled(text, speed)))
    written.sort(key=lambda line: line[0])
    ranks = facts["ranks"]
    _write("sglang.log", "".join(_stamped(ranks, now_s, *line) for line in written if line[0] <= stops_at * took_s))
    _write(took_file, f"{took_s:.3f}\n")
    if stops_at < 1.0:
        return 1
    if tax_s:
        os.makedirs(_COMPILED, exist_ok=True)
        _write(compiled, "")
    if facts["exit_code"] == "0":
        _write("bench.json", _scaled(facts["bench"], speed) + "\n")
    return int(facts["exit_code"])


_Play = tuple[dict[str, str], list[tuple[str, float, bool, str]]]


def _read(play: str) -> _Play:
    """Facts by name; lines with the part of the run that they belong to."""
    with open(play, encoding="utf-8") as file:
        text = file.read()
    rows = [row.split("\t", 3) for row in text.split("\n")[:-1]]
    facts = {row[0]: row[1] for row in rows if len(row) == 2}
    return facts, [(row[0], float(row[1]), row[2] == "stamped", row[3]) for row in rows if len(row) == 4]


def _scaled(text: str, speed: float) -> str:
    found, *marked = text.split("<")
    for each in marked:
        mark, _, rest = each.partition(">")
        kind, _, number = mark.partition(" ")
        if kind == "rate":
            found += f"{float(number) * speed:.2f}{rest}"
        elif kind == "seconds":
            found += f"{float(number) / speed:.2f}{rest}"
        elif kind == "joules":
            found += f"{float(number) / speed:.6g}{rest}"
        elif kind == "goodput":
            duration_s, *margins = map(float, number.split())
            found += f"{sum(margin * speed >= 1.0 for margin in margins) * speed / duration_s:.3f}{rest}"
        else:  # no mark of ours
            found += f"<{each}"
    return found


def _stamped(ranks: str, now_s: float, at_s: float, stamped: bool, text: str) -> str:
    stamp = time.strftime("[%Y-%m-%d %H:%M:%S", time.localtime(now_s + at_s))
    return f"{stamp}{ranks}] {text}\n" if stamped else f"{text}\n"


def _write(file: str, text: str) -> None:
    with open(file, "w", encoding="utf-8") as out:
        out.write(text)


if __name__ == "__main__":
    play, speed, stops_at, took_file = sys.argv[1:]
    sys.exit(_perform(play, float(speed), float(stops_at), took_file, time.time()))
