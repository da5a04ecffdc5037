"""`ridgeline twin calibrate`: fit the twin to a site."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.text.table import aligned, json_text
from ridgeline.errors import InputError
from ridgeline.records.expression import parse_duration
from ridgeline.serving.load import scrape as load_scrape
from ridgeline.serving.twin import calibrate as twin_calibrate
from ridgeline.serving.twin import calibration
from ridgeline.serving.verbs import options as option

if TYPE_CHECKING:
    from ridgeline.serving.twin.calibration import Calibration, ValidatedSetting
    from ridgeline.serving.twin.fit import FactorFit, FactorUncertainty
    from ridgeline.serving.twin.over_time import OverTime


@dataclass(frozen=True)
class CalibrateArguments:
    """Files that were measured, and what they do not say themselves."""

    out: Annotated[Path, typer.Option(help="The calibration file to write.")]
    more: Annotated[list[Path] | None, typer.Argument(help="Files, as with --from.")] = None
    sources: Annotated[
        list[Path] | None,
        typer.Option(
            "--from", help="SGLang logs, CSV files of measured rows, bench results (JSON), or scraped metrics."
        ),
    ] = None
    metrics: Annotated[
        str | None,
        typer.Option(metavar="URL", help="A server under load: scrape its /metrics, and keep the pages beside --out."),
    ] = None
    every: Annotated[str, typer.Option(help="--metrics: time between two looks.")] = "30s"
    lasting: Annotated[str, typer.Option("--for", help="--metrics: how long to scrape.")] = "10m"
    key: Annotated[
        str | None, typer.Option(envvar="RIDGELINE_API_KEY", help="--metrics: API key, sent as a bearer token.")
    ] = None
    calibration: Annotated[
        Path | None,
        typer.Option(help="The calibration to compare the new one with; default: what --out held."),
    ] = None
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
    """Fit the twin's factors to logs, measured rows, benchmark results or a server's metrics, and write them to a file.

    Benchmark results are those of `ridgeline bench` and of the tools that `ridgeline twin import` reads. From several,
    of some hours, it says whether the server became slower.

    Example: ridgeline twin calibrate --from server.log --model llama-8b --gpu h200 --out calibration.json
    """
    if os.path.isdir(asked.out):  # noqa: PTH112  pathlib raises for names no file can have
        raise InputError(f"--out {asked.out} is a folder; name the file to write, such as {asked.out / 'site.json'}")
    before = _before(asked)
    sources = [*(asked.sources or ()), *(asked.more or ())]
    fit = twin_calibrate.calibrate(
        [*sources, *([_scraped(asked)] if asked.metrics else [])],
        model=asked.model,
        gpu=asked.gpu,
        engine=asked.engine,
        server_flags=asked.server_flags,
        before=before,
    )
    with option.writing("--out", asked.out):
        calibration.write_calibration(fit.calibration, asked.out)
    text = calibration_text(fit, asked.out, fit.over_time)
    print(json_text({**fit.as_json(), "out": str(asked.out)}) if asked.as_json else text)


def _before(asked: CalibrateArguments) -> Calibration | None:
    """What is named, or what --out still holds if that is a calibration."""
    if asked.calibration is not None:
        return calibration.read_calibration(asked.calibration)
    try:
        return calibration.read_calibration(asked.out)
    except InputError:
        return None


def _scraped(asked: CalibrateArguments) -> Path:
    """A file of pages beside --out; one of each time, so that hours can be given together."""
    try:
        every_s, lasts_s = (parse_duration(f"{t}s" if t[-1:].isdigit() else t) for t in (asked.every, asked.lasting))
    except ValueError as error:
        raise InputError(f"--every {asked.every} --for {asked.lasting}: {error}") from None
    file = asked.out.with_name(f"{asked.out.stem}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.metrics")
    print(f"scraping {asked.metrics} every {asked.every} for {asked.lasting} into {file}", file=sys.stderr)
    with option.writing("--out", file):
        file.parent.mkdir(parents=True, exist_ok=True)
        load_scrape.scrape(asked.metrics or "", file, every_s=every_s, lasts_s=lasts_s, key=asked.key)
    return file


_MOST = 6  # doubtful points and measured settings that are named
# What is left of the belief before: below the first a factor is known, above the second nothing was learned of it.
KNOWN, UNKNOWN = 0.5, 0.9
# Errors of two factors that move together this much: only their combination is known.
_MIXED_UP = 0.8


def calibration_text(fit: FactorFit, out: Path, seen: OverTime | None = None) -> str:
    c = fit.calibration
    low, high = c.ratio_interval()
    doubted = [p for p in fit.points if p.doubted]
    return "\n".join(
        [
            f"{c.points} point{'' if c.points == 1 else 's'} from {', '.join(c.sources)}",
            f"  {_factors(c)}",
            *([f"  before: {_factors(seen.before)}"] if seen and seen.before else []),
            f"  leave-one-out error, median  {c.leave_one_out or 0:.1%}",
            f"  expect a new setting within {low - 1:+.0%} and {high - 1:+.0%} of the prediction, 9 times of 10",
            *_learned_lines(fit.learned),
            *_scope_lines(c.scope),
            *(_over_time_lines(seen) if seen else []),
            *(f"  note: {remark}" for remark in fit.remarks),
            *(f"  doubtful: {p.name}, {math.expm1(p.left_out):+.0%} from what the others say" for p in doubted[:_MOST]),
            *([f"  and {len(doubted) - _MOST} more"] if len(doubted) > _MOST else []),
            f"written to {out}",
        ]
    )


def _factors(c: Calibration) -> str:
    return "   ".join(f"{name} {value:.2f}" for name, value in c.factors.as_json().items())


def _over_time_lines(seen: OverTime) -> list[str]:
    """Each sitting by the old calibration and by the new, and whether one calibration holds for all."""
    old = "before" if seen.before else "priors"
    head = ("predicted / measured", "", "per token", "", "first token", "")
    columns = ("", "began", old, "new", old, "new")
    rows = [
        (
            r.name,
            r.at,
            *("-" if x is None else f"{x:.2f}" for x in (r.old, r.new, r.old_first_token, r.new_first_token)),
        )
        for r in seen.ratios
    ]
    lines = aligned([head, columns, *rows], left=(0, 1))
    lines += [f"  {trend}" for trend in seen.trends]
    timed = [r.name for r in seen.ratios if r.at]
    if len(timed) > 1 and not seen.trends:
        lines.append("  no load was met twice, so time and load can't be told apart; measure one load again later")
    if seen.drifted:
        lines.append(
            f"  one calibration doesn't hold for all of these: fit the latest ({timed[-1]}) alone, and look for what "
            "changed on the server: clocks and heat of its GPUs, its release, others on its node"
        )
    return lines


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
