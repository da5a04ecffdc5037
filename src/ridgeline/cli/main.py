"""The command line: a literal table of verbs, each imported only when it is called."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from textwrap import dedent, fill, wrap
from typing import Any

from ridgeline import __version__, catalog
from ridgeline.cli.terminal import clean_streams
from ridgeline.errors import (
    ExitCode,
    InputError,
    RidgelineError,
    StoreError,
    StudyError,
    did_you_mean,
)

_CAMPAIGN = "ridgeline.cli.campaign"
# heading -> verb -> (place, the line `ridgeline --help` shows). At the place is a function, or for a verb with
# subcommands a table of them: name -> function. Wings bring verbs of their own (`catalog.Wing`).
_GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Every day": {
        "check": (
            f"{_CAMPAIGN}.check:check",
            "Validate a study; count its legal points and what they may cost.",
        ),
        "tune": (f"{_CAMPAIGN}.tune:tune", "Run a study's campaign: baseline, search, confirm."),
        "status": (f"{_CAMPAIGN}.status:status", "Show how far a campaign has got."),
        "best": (f"{_CAMPAIGN}.best:best", "Print the setting to paste, with its interval."),
        "report": (
            f"{_CAMPAIGN}.report:report",
            "Write the report of a study: a page, or slides.",
        ),
    },
    "Tune": {
        "resume": (
            f"{_CAMPAIGN}.resume:resume",
            "Continue a campaign that was stopped or killed, or extend it.",
        ),
        "watch": (f"{_CAMPAIGN}.watch:watch", "Show campaigns in the browser while they run; steer them."),
        "compare": (
            f"{_CAMPAIGN}.compare:compare",
            "Compare two settings, or two commands, in interleaved runs.",
        ),
        "gate": (f"{_CAMPAIGN}.gate:gate", "Fail a CI job when a program is slower than its reference."),
        "bisect": (f"{_CAMPAIGN}.bisect:bisect", "Find the release or commit that made a program slower."),
        "edge": (
            f"{_CAMPAIGN}.edge:edge",
            "Find the largest passing value of a knob, and the production one.",
        ),
        "scale": (f"{_CAMPAIGN}.scale:scale", "Run one setting on 1..n ranks; find where more stops paying."),
        "steps": (
            f"{_CAMPAIGN}.steps:steps",
            "Measure the gain of each change from the baseline to a setting.",
        ),
        "grant": ("ridgeline.cli.grant:ACTIONS", "Show, create and top up a grant that studies share."),
        "site": ("ridgeline.cli.site:ACTIONS", "Test a site with small real jobs, or list the shipped site files."),
        "schema": ("ridgeline.cli.schema:schema", "Print the JSON schema of study, site or deployment files."),
    },
    "Understand": {
        "diagnose": ("ridgeline.cli.diagnose:diagnose", "Explain logs and profiles, with the lines that show it."),
        "nodes": (f"{_CAMPAIGN}.nodes:nodes", "List nodes that are measurably slow, with intervals."),
        "verify": (
            f"{_CAMPAIGN}.verify:verify",
            "Recompute every number of a study folder; list what differs.",
        ),
        "compare-studies": (
            f"{_CAMPAIGN}.compare_studies:compare_studies",
            "Show what changed between study folders.",
        ),
        "bug": (f"{_CAMPAIGN}.bug:bug", "Write a failed run as a bug report, with a minimal reproduction."),
        "export": (
            f"{_CAMPAIGN}.export:export",
            "Write all runs of a study folder as CSV, JSON or other formats.",
        ),
    },
}
_HELP = ("-h", "--help")
Command = Callable[..., Any]
VERBS = {verb: row for group in _GROUPS.values() for verb, row in group.items()}


def all_verbs() -> dict[str, dict[str, tuple[str, str]]]:
    """Heading -> verb -> (place, line of help): the core's and every wing's."""
    return {**_GROUPS, **catalog.verbs()}


def verb_lines() -> dict[str, str]:
    return {verb: line for verbs in all_verbs().values() for verb, (_, line) in verbs.items()}


# Words that people try first, and the command line that does it; likeness of letters would name another verb.
TYPED_FIRST: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("optimize", "optimise", "search", "autotune"), ("tune STUDY.yaml",)),
    **dict.fromkeys(("run", "start"), ("tune STUDY.yaml",)),
    **dict.fromkeys(("analyze", "analyse", "logs", "log"), ("diagnose FILE", "report FOLDER")),
    "profile": ("diagnose FILE",),
    "sweep": ("tune STUDY.yaml",),
    **dict.fromkeys(("continue", "extend"), ("resume FOLDER",)),
    **dict.fromkeys(("dashboard", "live", "monitor", "ui"), ("watch FOLDER",)),
    **dict.fromkeys(("slides", "deck"), ("report FOLDER --format slides",)),
    **dict.fromkeys(("show", "result", "results"), ("best FOLDER", "report FOLDER")),
    **dict.fromkeys(("validate", "lint"), ("check STUDY.yaml",)),
}


_ABOUT = """Usage: ridgeline VERB [ARGUMENTS]        ridgeline VERB --help says more

Finds the fastest correct setting of a cluster program, in the fewest
node-hours, with proof.
"""

_LONGEST_IN_COLUMN = 10  # a longer verb pushes its own line to the right, so that all others fit 80 columns


def overview() -> str:
    width = max(len(verb) for verb in verb_lines() if len(verb) <= _LONGEST_IN_COLUMN)
    lines = [_ABOUT]
    for heading, verbs in all_verbs().items():
        lines += [f"{heading}:", *(f"  {verb:<{width}}  {line}" for verb, (_, line) in verbs.items()), ""]
    broken = [f"The wing {name} could not be loaded: {why}" for name, why in catalog.broken_wings().items()]
    return "\n".join([*lines, *broken, *([""] if broken else []), "Exit codes:", *_exit_codes()])


def _exit_codes() -> Iterator[str]:
    for code in ExitCode:
        yield fill(f"{code.value:>5}  {code.meaning}", 80, subsequent_indent=" " * 7, break_on_hyphens=False)


def verb_named(name: str) -> Command | dict[str, Command]:
    """The function behind a verb, or its table of subcommands."""
    place = VERBS[name][0] if name in VERBS else catalog.verb_place(name)
    if not place:
        raise InputError(f"{name!r} is not a verb; {_meant(name)}")
    found: Command | dict[str, Command] = catalog.at(place)
    return found


def _meant(name: str) -> str:
    word = name.lower().strip("-").replace("_", "-")
    lines = [
        *TYPED_FIRST.get(word, ()),
        *(line for wing, _ in catalog.wings() for line in wing.typed_first.get(word, ())),
    ]
    if lines:
        return f"use {' or '.join(f'`ridgeline {line}`' for line in lines)}"
    return f"{did_you_mean(name, verb_lines()) or '`ridgeline --help` lists the verbs'}{catalog.not_loaded()}"


def commands() -> Iterator[tuple[str, Command]]:
    """Everything that can be run, as it is typed: `tune`, `deploy up`. Imports every verb."""
    for verb in verb_lines():
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
    lines = [f"Usage: ridgeline {verb} SUBCOMMAND [ARGUMENTS]", "", f"  {verb_lines()[verb]}", "", "Subcommands:"]
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
