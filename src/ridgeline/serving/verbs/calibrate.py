"""`ridgeline twin calibrate`: fit the twin to a site."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.text.table import json_text
from ridgeline.errors import InputError
from ridgeline.serving.twin import calibrate as twin_calibrate
from ridgeline.serving.twin import calibration
from ridgeline.serving.verbs import options as option

if TYPE_CHECKING:
    from ridgeline.serving.twin.calibration import ValidatedSetting
    from ridgeline.serving.twin.fit import FactorFit, FactorUncertainty


@dataclass(frozen=True)
class CalibrateArguments:
    """Files that were measured, and what they do not say themselves."""

    sources: Annotated[
        list[Path], typer.Option("--from", help="SGLang logs, CSV files of measured rows, or bench results (JSON).")
    ]
    out: Annotated[Path, typer.Option(help="The calibration file to write.")]
    more: Annotated[list[Path] | None, typer.Argument(help="Further files.")] = None
    model: Annotated[str | None, typer.Option(help="Preset or config.json, if a file does not name it.")] = None
    gpu: Annotated[str | None, typer.Option(help="The GPU, if a file does not name it.")] = None
    engine: Annotated[
        str | None,
        typer.Option(
            help="The engine and its release, if a file does not name it (no log does): sglang:0.5.9, vllm:0.17.0."
        ),
    ] = None
    server_flags: Annotated[
        str,
        typer.Option(
            metavar="FLAGS",
            help="Its command line, if the result does not have it: '--tp-size 8 --max-running-requests 256'.",
        ),
    ] = ""
    as_json: option.AsJson = False


@option.takes(CalibrateArguments)
def calibrate(asked: CalibrateArguments) -> None:
    """Fit the twin's factors to logs, measured rows or benchmark results, and write them to a file.

    Benchmark results are those of `ridgeline bench` and of the tools that `ridgeline twin import` reads.

    Example: ridgeline twin calibrate --from server.log --model llama-8b --gpu h200 --out calibration.json
    """
    if os.path.isdir(asked.out):  # noqa: PTH112  pathlib raises for names no file can have
        raise InputError(f"--out {asked.out} is a folder; name the file to write, such as {asked.out / 'site.json'}")
    fit = twin_calibrate.calibrate(
        [*asked.sources, *(asked.more or ())],
        model=asked.model,
        gpu=asked.gpu,
        engine=asked.engine,
        server_flags=asked.server_flags,
    )
    with option.writing("--out", asked.out):
        calibration.write_calibration(fit.calibration, asked.out)
    print(json_text({**fit.as_json(), "out": str(asked.out)}) if asked.as_json else calibration_text(fit, asked.out))


_MOST = 6  # doubtful points and measured settings that are named
# What is left of the belief before: below the first a factor is known, above the second nothing was learned of it.
KNOWN, UNKNOWN = 0.5, 0.9
# Errors of two factors that move together this much: only their combination is known.
_MIXED_UP = 0.8


def calibration_text(fit: FactorFit, out: Path) -> str:
    c = fit.calibration
    low, high = c.ratio_interval()
    doubted = [p for p in fit.points if p.doubted]
    return "\n".join(
        [
            f"{c.points} point{'' if c.points == 1 else 's'} from {', '.join(c.sources)}",
            "  " + "   ".join(f"{name} {value:.2f}" for name, value in c.factors.as_json().items()),
            f"  leave-one-out error, median  {c.leave_one_out or 0:.1%}",
            f"  expect a new setting within {low - 1:+.0%} and {high - 1:+.0%} of the prediction, 9 times of 10",
            *_learned_lines(fit.learned),
            *_scope_lines(c.scope),
            *(f"  note: {remark}" for remark in fit.remarks),
            *(f"  doubtful: {p.name}, {math.expm1(p.left_out):+.0%} from what the others say" for p in doubted[:_MOST]),
            *([f"  and {len(doubted) - _MOST} more"] if len(doubted) > _MOST else []),
            f"written to {out}",
        ]
    )


def _learned_lines(learned: Sequence[FactorUncertainty]) -> list[str]:
    """What these files could determine, and what they could not."""
    found: dict[str, list[str]] = {"determined": [], "partly": [], "says nothing of": []}
    for f in learned:
        if f.left < KNOWN * f.believed:
            found["determined"].append(f"{f.name} +-{math.expm1(f.left):.0%}")
        else:
            found["says nothing of" if f.left > UNKNOWN * f.believed else "partly"].append(f.name)
    lines = (
        ["  " + "; ".join(f"{what} {', '.join(names)}" for what, names in found.items() if names)] if learned else []
    )
    known = [f for f in learned if f.name not in found["says nothing of"]]
    pairs = {tuple(sorted((f.name, f.mixed_with))) for f in known if abs(f.alike) > _MIXED_UP}
    return lines + [f"  can't separate {a} from {b}: only their combination is known" for a, b in sorted(pairs)]


def _scope_lines(scope: Sequence[ValidatedSetting]) -> list[str]:
    lines = [
        f"  measured on {s.model} ({s.weights}), {s.gpu.upper()}, {s.engine} {s.release}, {s.shape}, "
        f"{s.loads} requests at once"
        for s in scope[:_MOST]
    ]
    more = len(scope) - _MOST
    return lines + ([f"  and on {more} more settings"] if more > 0 else [])
