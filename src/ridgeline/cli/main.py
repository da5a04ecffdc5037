"""The command line: a literal table of verbs, each imported only when it is called."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from textwrap import dedent, fill, wrap
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

# heading -> verb -> (module of this room:name, the line `ridgeline --help` shows). The name is a function, or for a
# verb with subcommands a table of them: name -> function.
_GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Every day": {
        "check": ("campaign.check:check", "Validate a study; count its legal points and what they may cost."),
        "tune": ("campaign.tune:tune", "Run a study's campaign: baseline, search, confirm."),
        "status": ("campaign.status:status", "Show how far a campaign has got."),
        "best": ("campaign.best:best", "Print the setting to paste, with its interval."),
        "report": (
            "campaign.report:report",
            "Write the report of a study: a page, slides, or text for a paper.",
        ),
    },
    "Tune": {
        "resume": ("campaign.resume:resume", "Continue a campaign that was stopped or killed, or extend it."),
        "watch": ("campaign.watch:watch", "Show campaigns in the browser while they run; steer them."),
        "compare": ("campaign.compare:compare", "Compare two settings, or two commands, in interleaved runs."),
        "gate": ("campaign.gate:gate", "Fail a CI job when a program is slower than its reference."),
        "bisect": ("campaign.bisect:bisect", "Find the release or commit that made a program slower."),
        "edge": ("campaign.edge:edge", "Find the largest passing value of a knob, and the production one."),
        "scale": ("campaign.scale:scale", "Run one setting on 1..n ranks; find where more stops paying."),
        "steps": ("campaign.steps:steps", "Measure the gain of each change from the baseline to a setting."),
        "grant": ("grant:ACTIONS", "Show, create and top up a grant that studies share."),
        "site": ("site:ACTIONS", "Test a site with small real jobs, or list the shipped site files."),
        "schema": ("schema:schema", "Print the JSON schema of study, site or deployment files."),
    },
    "Understand": {
        "diagnose": ("diagnose:diagnose", "Explain logs and profiles, with the lines that show it."),
        "nodes": ("campaign.nodes:nodes", "List nodes that are measurably slow, with intervals."),
        "verify": ("campaign.verify:verify", "Recompute every number of a study folder; list what differs."),
        "compare-studies": ("campaign.compare_studies:compare_studies", "Show what changed between study folders."),
        "bug": ("campaign.bug:bug", "Write a failed run as a bug report, with a minimal reproduction."),
        "export": ("campaign.export:export", "Write all runs of a study folder as CSV, JSON or other formats."),
    },
    "Measure a server": {
        "bench": ("serving.bench:bench", "Load a server: latency, throughput, goodput, and their error."),
        "import": ("serving.import_results:import_results", "Read result files of other load generators."),
        "preflight": ("serving.preflight:preflight", "Check a node before GPU hours are spent on it; compare nodes."),
        "make-model": ("serving.make_model:make_model", "Write a model folder of a given shape, with no download."),
    },
    "Predict": {
        "plan": ("serving.plan:plan", "Rank ways to serve a model on given GPUs within latency limits."),
        "simulate": ("serving.simulate:simulate", "Predict throughput and latency of a layout under given traffic."),
        "memory": ("serving.memory:memory", "Check whether a model fits the GPUs, with KV pool and margin."),
        "layouts": ("serving.layouts:layouts", "List the legal layouts of a model on GPUs."),
        "fleet": ("serving.fleet:fleet", "Size a fleet: prefill and decode nodes for a day's tokens."),
        "explain": ("serving.explain:explain", "Show where an iteration's time goes and what bounds it."),
        "calibrate": ("serving.calibrate:calibrate", "Fit the twin to a site from logs or measured rows."),
        "model": ("serving.model:model", "Show what a model costs: parameters, FLOPs, KV; or list models."),
        "hardware": ("serving.hardware:hardware", "List the known GPUs and fabrics, your own included."),
    },
    "Serve": {
        "deploy": ("deploy:ACTIONS", "Start, inspect, restart and stop a service from a deployment file."),
        "keep": ("keep:keep", "Watch a service by its tokens; restart servers that die or hang."),
        "rehearse": ("rehearse:rehearse", "Try router policies and the loss of a server on twin servers."),
        "serve-twin": ("serving.serve_twin:serve_twin", "Serve tokens with the twin's timing, to try routers."),
    },
}
_HELP = ("-h", "--help")
Command = Callable[..., Any]
VERBS = {verb: row for group in _GROUPS.values() for verb, row in group.items()}
# Words that people try first, and the command line that does it; likeness of letters would name another verb.
_GOODPUT = "bench URL --find-goodput --slo ttft_p95_ms=2000"
TYPED_FIRST: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("find-goodput", "goodput", "saturate"), (_GOODPUT,)),
    **dict.fromkeys(("benchmark", "load", "loadtest"), ("bench URL",)),
    **dict.fromkeys(("optimize", "optimise", "search", "autotune"), ("tune STUDY.yaml",)),
    **dict.fromkeys(("run", "start"), ("tune STUDY.yaml", "bench URL", "deploy up SERVICE.yaml")),
    **dict.fromkeys(("serve", "launch"), ("deploy up SERVICE.yaml", "serve-twin")),
    **dict.fromkeys(("analyze", "analyse", "logs", "log"), ("diagnose FILE", "report FOLDER")),
    "profile": ("diagnose FILE", "explain"),
    "sweep": ("bench URL --sweep GRID", "tune STUDY.yaml"),
    **dict.fromkeys(("continue", "extend"), ("resume FOLDER",)),
    **dict.fromkeys(("dashboard", "live", "monitor", "ui"), ("watch FOLDER",)),
    **dict.fromkeys(("slides", "paper", "deck"), ("report FOLDER --format slides", "report FOLDER --format paper")),
    **dict.fromkeys(("show", "result", "results"), ("best FOLDER", "report FOLDER")),
    **dict.fromkeys(("predict", "estimate", "twin"), ("simulate", "plan")),
    **dict.fromkeys(("validate", "lint"), ("check STUDY.yaml",)),
}


_ABOUT = """Usage: ridgeline VERB [ARGUMENTS]        ridgeline VERB --help says more

Finds the fastest correct setting of a cluster program, in the fewest
node-hours, with proof.
"""

_LONGEST_IN_COLUMN = 10  # a longer verb pushes its own line to the right, so that all others fit 80 columns


def overview() -> str:
    width = max(len(verb) for verb in VERBS if len(verb) <= _LONGEST_IN_COLUMN)
    lines = [_ABOUT]
    for heading, verbs in _GROUPS.items():
        lines += [f"{heading}:", *(f"  {verb:<{width}}  {line}" for verb, (_, line) in verbs.items()), ""]
    return "\n".join([*lines, "Exit codes:", *_exit_codes()])


def _exit_codes() -> Iterator[str]:
    for code in ExitCode:
        yield fill(f"{code.value:>5}  {code.meaning}", 80, subsequent_indent=" " * 7, break_on_hyphens=False)


def verb_named(name: str) -> Command | dict[str, Command]:
    """The function behind a verb, or its table of subcommands."""
    if name not in VERBS:
        raise InputError(f"{name!r} is not a verb; {_meant(name)}")
    module, _, attribute = VERBS[name][0].partition(":")
    found: Command | dict[str, Command] = getattr(importlib.import_module(f"ridgeline.cli.{module}"), attribute)
    return found


def _meant(name: str) -> str:
    if lines := TYPED_FIRST.get(name.lower().strip("-").replace("_", "-")):
        return f"use {' or '.join(f'`ridgeline {line}`' for line in lines)}"
    return did_you_mean(name, VERBS) or "`ridgeline --help` lists the verbs"


def commands() -> Iterator[tuple[str, Command]]:
    """Everything that can be run, as it is typed: `tune`, `deploy up`. Imports every verb."""
    for verb in VERBS:
        found = verb_named(verb)
        if isinstance(found, dict):
            yield from ((f"{verb} {action}", command) for action, command in found.items())
        else:
            yield verb, found


def help_of(command: Command) -> tuple[str, str]:
    """What a command's docstring says of it, and the command line behind its `Example:`."""
    first, _, rest = (command.__doc__ or "").partition("\n")
    text, _, example = f"{first}\n{dedent(rest)}".strip().partition("\n\nExample: ")
    return text, " ".join(example.split())


def _example_lines(example: str) -> list[str]:
    """A command line over as many lines as 80 columns take, to be pasted as it stands."""
    whole = re.sub(r"(--\S+) (?!--)", "\\1\N{NO-BREAK SPACE}", example)  # an option and its value stay on one line
    lines = wrap(whole, 74, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    pieces = [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]
    return ["Example:", *(f"  {piece} \\" for piece in pieces[:-1]), f"  {pieces[-1]}"]


def _actions_text(verb: str, actions: dict[str, Command]) -> str:
    width = max(map(len, actions))
    lines = [f"Usage: ridgeline {verb} SUBCOMMAND [ARGUMENTS]", "", f"  {VERBS[verb][1]}", "", "Subcommands:"]
    lines += [f"  {name:<{width}}  {help_of(action)[0].splitlines()[0]}" for name, action in actions.items()]
    return "\n".join([*lines, "", f"`ridgeline {verb} SUBCOMMAND --help` has the options of each and an example."])


def application(command: Command) -> Any:
    """A command as Typer runs it."""
    import typer  # here, so that the overview does not wait for it

    text, example = help_of(command)
    if example:
        text = "\n".join([text, "", "\b", *_example_lines(example)])  # \b: keep these lines as they are
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(help=text)(command)
    return app


def run(arguments: list[str], begins: Callable[[], object] = lambda: None) -> None:
    """`begins` is called once the verb is loaded, before it does anything."""

    def loaded(command: Command) -> Any:
        app = application(command)
        begins()
        return app

    if not arguments or arguments[0] in (*_HELP, "help"):
        print(overview())
    elif arguments[0] == "--version":
        print(f"ridgeline {__version__}")
    else:
        verb, *rest = arguments
        found = verb_named(verb)
        if not isinstance(found, dict):
            loaded(found)(args=rest, prog_name=f"ridgeline {verb}")
        elif rest and rest[0] in _HELP:
            print(_actions_text(verb, found))
        else:
            action, *rest = rest or [""]
            if action not in found:
                hint = did_you_mean(action, found) or f"use one of {', '.join(found)}"
                what = f"has no subcommand {action!r}" if action else "needs a subcommand"
                raise InputError(f"`ridgeline {verb}` {what}; {hint}")
            loaded(found[action])(args=rest, prog_name=f"ridgeline {verb} {action}")


def main(begins: Callable[[], object] = lambda: None) -> None:
    with clean_streams():
        _main(begins)


def _main(begins: Callable[[], object]) -> None:
    try:
        run(sys.argv[1:], begins)
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
