"""ridgeline study edge|scale|steps and ridgeline ci bisect: questions, each answered in a study folder of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ridgeline.campaign import asked, assembly, check
from ridgeline.cli.campaign import live
from ridgeline.cli.options import takes
from ridgeline.errors import InputError

_Study = Annotated[Path, typer.Argument(help="The study file.")]
_At = Annotated[str, typer.Option(help="Setting of the other knobs: 'knob=value,knob=value', or 'baseline'.")]
_AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@dataclass(frozen=True)
class EdgeArguments:
    """A knob of a study, and how sure its edge is to be."""

    study: _Study
    knob: Annotated[str, typer.Option(help="The knob to raise, such as mem_fraction_static.")]
    at: _At = "baseline"
    repeats: Annotated[int, typer.Option(min=1, help="Runs that must pass at the edge.")] = 3
    margin: Annotated[
        float, typer.Option(min=0, max=0.9, help="How far below the edge to stay in production, as a share of it.")
    ] = 0.03
    fails: Annotated[
        float | None,
        typer.Option(help="Run the value for production until at most this share of its runs fails, such as 0.1."),
    ] = None
    out: Annotated[Path | None, typer.Option(help="Study folder to write; studies/NAME-edge-KNOB by default.")] = None
    as_json: _AsJson = False


@takes(EdgeArguments)
def edge(wish: EdgeArguments) -> None:
    """Find the largest value of a knob that passes, with few crashes, and the value to use in production.

    Runs of the value for production show how often it fails at most: 3 leave two thirds open, 31 one in ten.

    Run it again, or `ridgeline resume` its folder, to continue after a stop.

    Exit code 1: no value passed, or the budget ended before the edge was found.

    Example: ridgeline study edge study.yaml --knob threads --repeats 2
    """
    found = check.check_study(wish.study)
    question = asked.edge_of(
        found, wish.knob, wish.at, repeats=wish.repeats, margin=wish.margin, fails=wish.fails, out=wish.out
    )
    live.drive(*question, wish.as_json)


def scale(
    study: _Study,
    over: Annotated[
        str | None,
        typer.Option(
            help="The knob to scale; default: the first of nodes, ranks_per_node, ranks and threads that the study has."
        ),
    ] = None,
    at: _At = "baseline",
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each size, interleaved.")] = 3,
    out: Annotated[Path | None, typer.Option(help="Study folder to write.")] = None,
    as_json: _AsJson = False,
) -> None:
    """Run one setting on 1..n ranks, nodes or threads: speed-up, parallel efficiency, and where more stops paying off.

    Exit code 0: shown. 1: fewer than two sizes passed. 7: too few runs to tell whether more pays.

    Example: ridgeline study scale study.yaml --over threads
    """
    live.drive(*asked.scaling(check.check_study(study), over, at, repeats, out), as_json)


def steps(
    study: Annotated[Path, typer.Argument(help="The study file, or a study folder.")],
    setting: Annotated[
        str | None,
        typer.Argument(
            metavar="SETTING",
            help="'knob=value,knob=value' changes the baseline; or the study folder that confirmed it.",
            show_default="what the study folder confirmed",
        ),
    ] = None,
    blocks: Annotated[int | None, typer.Option(min=3, help="Interleaved blocks.")] = None,
    each: Annotated[
        bool, typer.Option("--each", help="One step for every changed knob, also where there are more than six.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Study folder to write; beside the study folder, else studies/NAME-steps, or NAME-steps-each."
        ),
    ] = None,
    as_json: _AsJson = False,
) -> None:
    """Measure the gain of each change on the way from the baseline to a setting, in interleaved runs of all steps.

    Up to six changed knobs are a step each. More go group by group: the study's own `groups: {fast: [a, b], slow: [c]}`
    in that order, then by the knobs' names (environment, layout, batch and memory, back end, network). --each makes a
    step of every knob; those that are only legal together stay one step, and the answer says why.

    Given a study folder, the setting is the one it confirmed. A setting with fewer changes is preferred if it is shown
    to be within 1%. Run it again, or `ridgeline resume` its folder, to continue after a stop.

    Exit code 0: the setting is better. 1: no detectable difference. 6: it is worse. 7: too few runs to judge.

    Example: ridgeline study steps studies/first
    """
    folder = study if study.is_dir() else None
    found = check.check_study(study) if folder is None else assembly.check_study_again(folder)
    if setting is None and folder is None:
        raise InputError(
            f"steps: no setting; name its changes ('knob=value,…') or the study folder that confirmed it after {study}"
        )
    confirmed = Path(str(study) if setting is None else setting)
    meant = confirmed if setting is None or (confirmed / "journal.jsonl").exists() else setting
    live.drive(*asked.steps_to(found, meant, blocks, each=each, beside=folder, out=out), as_json)


@dataclass(frozen=True)
class BisectArguments:
    """The history of a study, its ends, and what is worth finding."""

    study: _Study
    over: Annotated[str, typer.Option(help="The knob whose values are the history, in order: releases, commits.")]
    good: Annotated[str | None, typer.Option(help="A value that was fast; the first by default.")] = None
    bad: Annotated[str | None, typer.Option(help="A value that is slow; the last by default.")] = None
    at: _At = "baseline"
    slower: Annotated[float, typer.Option(min=0.1, max=100, help="Slowdown worth finding, in percent.")] = 3.0
    runs: Annotated[int, typer.Option(min=8, help="At most so many runs.")] = 400
    out: Annotated[Path | None, typer.Option(help="Study folder to write; studies/NAME-bisect-KNOB by default.")] = None
    as_json: _AsJson = False


@takes(BisectArguments)
def bisect(wish: BisectArguments) -> None:
    """Find the change that made a program slower, under noise: which value of an ordered knob.

    Both ends are run again first. Values that cannot be built or run are skipped. Run it again, or `ridgeline resume`
    its folder, to continue after a stop.

    Exit code 0: found. 1: not reproduced here, or an end does not run. 7: not resolved within the runs or the budget.

    Example: ridgeline ci bisect study.yaml --over threads --good 4 --bad 1
    """
    found, ends, slower = check.check_study(wish.study), (wish.good, wish.bad), wish.slower / 100
    question = asked.bisecting(found, wish.over, ends, wish.at, slower=slower, runs=wish.runs, out=wish.out)
    live.drive(*question, wish.as_json)
