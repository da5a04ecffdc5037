"""The command line: a literal table of verbs, each imported only when it is called."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from textwrap import fill
from typing import Any

from ridgeline import __version__
from ridgeline.cli.terminal import clean_streams
from ridgeline.errors import (
    ExitCode,
    InputError,
    RidgelineError,
    StoreError,
    StudyError,
    did_you_mean,
)

# heading -> verb -> (module of this room:function, the line `ridgeline --help` shows)
GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Every day": {
        "check": ("campaign.check:check", "Validate a study; count its legal points; say what it may cost."),
        "tune": ("campaign.tune:tune", "Run a study's campaign: baseline, search, confirm."),
        "status": ("campaign.status:status", "Show how far a campaign has got."),
        "best": ("campaign.best:best", "Print the setting to paste, with its interval."),
        "report": ("campaign.report:report", "Write the report of a study folder: HTML, Markdown or PDF."),
    },
    "Tune": {
        "resume": ("campaign.resume:resume", "Continue a campaign that was stopped or killed, or extend it."),
        "watch": ("campaign.watch:watch", "Show campaigns in the browser while they run; steer them."),
        "compare": ("campaign.compare:compare", "Compare two settings of a study in interleaved runs."),
        "edge": ("campaign.edge:edge", "Find the largest safe value of a knob, and the one for production."),
        "scale": ("campaign.scale:scale", "Run one setting over 1..n ranks or nodes; where it stops paying."),
        "steps": ("campaign.steps:steps", "Measure the gain of each change from the baseline to a setting."),
        "site": ("site:site", "Try a site with small real jobs, or list the shipped ones."),
        "schema": ("schema:schema", "Print the JSON schema of study files."),
    },
    "Understand": {
        "diagnose": ("diagnose:diagnose", "Say what logs and profiles mean, with the lines that show it."),
        "nodes": ("campaign.nodes:nodes", "Name slow nodes, with interval and evidence, or say why not."),
        "verify": ("campaign.verify:verify", "Recompute every number of a study folder; list what differs."),
        "compare-studies": ("campaign.compare_studies:compare_studies", "Show what changed between study folders."),
        "export": ("campaign.export:export", "Write all runs of a study folder as CSV, JSON or other formats."),
    },
    "Measure a server": {
        "bench": ("serving.bench:bench", "Load a server: latency, throughput, goodput, with their own error."),
        "import": ("serving.import_results:import_results", "Read result files of other load generators."),
        "preflight": ("serving.preflight:preflight", "Check a node before GPU hours are spent; name the slow one."),
        "make-model": ("serving.make_model:make_model", "Write a model folder of a given shape, with no download."),
    },
    "Predict": {
        "plan": ("serving.plan:plan", "Rank ways to serve a model on given GPUs within latency limits."),
        "simulate": ("serving.simulate:simulate", "Predict throughput and latency of a layout under some traffic."),
        "memory": ("serving.memory:memory", "Say whether a model fits a layout of GPUs, with KV and margin."),
        "layouts": ("serving.layouts:layouts", "List the legal layouts of a model on GPUs."),
        "fleet": ("serving.fleet:fleet", "Size a fleet: prefill and decode nodes for a day's tokens."),
        "explain": ("serving.explain:explain", "Show where an iteration's time goes and what bounds it."),
        "calibrate": ("serving.calibrate:calibrate", "Fit the twin to a site from logs or measured rows."),
        "model": ("serving.model:model", "Say what a model costs: parameters, FLOPs, bytes per token, KV."),
        "hardware": ("serving.hardware:hardware", "List the known GPUs and fabrics, your own included."),
    },
    "Serve": {
        "deploy": ("deploy:deploy", "From a deployment file to a running service, and back."),
        "keep": ("keep:keep", "Watch a service by its tokens; restart servers that died or hang."),
        "rehearse": ("rehearse:rehearse", "Try a router's policies and the loss of a server on twins."),
        "serve-twin": ("serving.serve_twin:serve_twin", "Serve tokens with the twin's timing, to try routers."),
    },
}
VERBS = {verb: row for group in GROUPS.values() for verb, row in group.items()}


ABOUT = """Usage: ridgeline VERB [ARGUMENTS]        ridgeline VERB --help says more

Finds the fastest correct setting of a cluster program, in the fewest
node-hours, with proof.
"""

LONGEST_IN_COLUMN = 10  # a longer verb pushes its own line to the right, so that all others fit 80 columns


def overview() -> str:
    width = max(len(verb) for verb in VERBS if len(verb) <= LONGEST_IN_COLUMN)
    lines = [ABOUT]
    for heading, verbs in GROUPS.items():
        lines += [f"{heading}:", *(f"  {verb:<{width}}  {line}" for verb, (_, line) in verbs.items()), ""]
    return "\n".join([*lines, "Exit codes:", *_exit_codes()])


def _exit_codes() -> Iterator[str]:
    for code in ExitCode:
        yield fill(f"{code.value:>5}  {code.meaning}", 80, subsequent_indent=" " * 7, break_on_hyphens=False)


def verb_named(name: str) -> Callable[..., Any]:
    if name not in VERBS:
        hint = did_you_mean(name, VERBS) or "`ridgeline --help` lists the verbs"
        raise InputError(f"{name!r} is not a verb; {hint}")
    module, _, function = VERBS[name][0].partition(":")
    verb: Callable[..., Any] = getattr(importlib.import_module(f"ridgeline.cli.{module}"), function)
    return verb


def run(arguments: list[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(overview())
    elif arguments[0] == "--version":
        print(f"ridgeline {__version__}")
    else:
        verb = verb_named(arguments[0])
        import typer  # here, so that the overview does not wait for it

        app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        app.command()(verb)
        app(args=arguments[1:], prog_name=f"ridgeline {arguments[0]}")


def main() -> None:
    with clean_streams():
        _main()


def _main() -> None:
    try:
        run(sys.argv[1:])
    except StudyError as error:
        count = len(error.problems)
        print(error, f"{count} problem{'s' if count > 1 else ''}; nothing was run.", sep="\n", file=sys.stderr)
        sys.exit(error.exit_code)
    except RidgelineError as error:
        print(f"ridgeline: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # the reader of our output (head, less) left: not an error of ours
        sys.stderr.close()
        sys.exit(141)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(
            f"ridgeline: {where}{error.strerror or error}; check the path, the space and the permissions",
            file=sys.stderr,
        )
        sys.exit(StoreError.exit_code)
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
