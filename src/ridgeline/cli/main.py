"""The command line: a literal table of verbs, each imported only when it is called."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
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
# What is typed after `ridgeline` -> (place of a function, the line that help shows; empty: the first of its docstring).
# Wings bring more (`catalog.Wing`).
_COMMANDS: dict[str, tuple[str, str]] = {
    "check": (f"{_CAMPAIGN}.check:check", "Validate a study; count its legal points and what they may cost."),
    "tune": (f"{_CAMPAIGN}.tune:tune", "Run a study's campaign: baseline, search, confirm."),
    "resume": (f"{_CAMPAIGN}.resume:resume", "Continue a campaign that was stopped or killed, or extend it."),
    "status": (f"{_CAMPAIGN}.status:status", "Show how far a campaign has got."),
    "best": (f"{_CAMPAIGN}.best:best", "Print the setting to paste, with its interval."),
    "report": (f"{_CAMPAIGN}.report:report", "Write the report of a study: a page, or slides."),
    "watch": (f"{_CAMPAIGN}.watch:watch", "Show campaigns in the browser while they run; steer them."),
    "compare": (f"{_CAMPAIGN}.compare:compare", "Compare two settings, or two commands, in interleaved runs."),
    "diagnose": ("ridgeline.cli.diagnose:diagnose", "Explain logs and profiles, with the lines that show it."),
    "study edge": (f"{_CAMPAIGN}.edge:edge", "Find the largest passing value of a knob, and the production one."),
    "study scale": (f"{_CAMPAIGN}.scale:scale", "Run one setting on 1..n ranks; find where more stops paying."),
    "study steps": (f"{_CAMPAIGN}.steps:steps", "Measure the gain of each change from the baseline to a setting."),
    "study nodes": (f"{_CAMPAIGN}.nodes:nodes", "List nodes that are measurably slow, with intervals."),
    "study verify": (f"{_CAMPAIGN}.verify:verify", "Recompute every number of a study folder; list what differs."),
    "study export": (f"{_CAMPAIGN}.export:export", "Write all runs of a study folder as CSV, JSON or other formats."),
    "study diff": (f"{_CAMPAIGN}.compare_studies:compare_studies", "Show what changed between study folders."),
    "study bug": (f"{_CAMPAIGN}.bug:bug", "Write a failed run as a bug report, with a minimal reproduction."),
    "ci gate": (f"{_CAMPAIGN}.gate:gate", "Fail a CI job when a program is slower than its reference."),
    "ci bisect": (f"{_CAMPAIGN}.bisect:bisect", "Find the release or commit that made a program slower."),
    "site check": ("ridgeline.cli.site:check", ""),
    "site list": ("ridgeline.cli.site:list_sites", ""),
    "site schema": ("ridgeline.cli.schema:schema", "Print the JSON schema of study, site or deployment files."),
    "site grant show": ("ridgeline.cli.grant:show", ""),
    "site grant create": ("ridgeline.cli.grant:create", ""),
    "site grant top-up": ("ridgeline.cli.grant:top_up", ""),
    "site grant release": ("ridgeline.cli.grant:release", ""),
}
_GROUPS = {
    "study": "More questions to a study, and what a study folder holds.",
    "ci": "Speed in CI: has a program become slower, and since when?",
    "site": "Where jobs run: try a site, its files, and a grant that studies share.",
    "site grant": "Show, create and top up a grant that studies share.",
}
# As it was typed until 0.2, which goes on working for one release.
_FORMER = {
    **{verb: f"study {verb}" for verb in ("edge", "scale", "steps", "nodes", "verify", "export", "bug")},
    **{verb: f"ci {verb}" for verb in ("gate", "bisect")},
    "compare-studies": "study diff",
    "grant": "site grant",
    "schema": "site schema",
}
_HELP = ("-h", "--help")
Command = Callable[..., Any]


def all_commands() -> dict[str, tuple[str, str]]:
    """What is typed -> (place, line of help): the core's and every wing's."""
    return {**_COMMANDS, **{verb: row for verb, row in catalog.verbs().items() if verb not in _COMMANDS}}


def all_groups() -> dict[str, str]:
    return {**_GROUPS, **{name: line for wing, _ in catalog.wings() for name, line in wing.groups.items()}}


def former_names() -> dict[str, str]:
    return {**{old: new for wing, _ in catalog.wings() for old, new in wing.former.items()}, **_FORMER}


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


def overview() -> str:
    groups = {name: line for name, line in all_groups().items() if " " not in name}
    rows = {name: line for name, (_, line) in all_commands().items() if " " not in name and name not in groups}
    broken = [f"The wing {name} could not be loaded: {why}" for name, why in catalog.broken_wings().items()]
    blocks = [_ABOUT, "Verbs:", *_table(rows), "", "Groups (`ridgeline GROUP` lists their verbs):", *_table(groups), ""]
    return "\n".join([*blocks, *broken, *([""] if broken else []), "Exit codes:", *_exit_codes()])


def _table(rows: Mapping[str, str]) -> list[str]:
    width = max(map(len, rows))
    return [f"  {name:<{width}}  {line}" for name, line in rows.items()]


def _exit_codes() -> Iterator[str]:
    for code in ExitCode:
        yield fill(f"{code.value:>5}  {code.meaning}", 80, subsequent_indent=" " * 7, break_on_hyphens=False)


def command_named(name: str) -> Command:
    """The function behind what is typed: `tune`, `study edge`."""
    place = _COMMANDS[name][0] if name in _COMMANDS else catalog.verb_place(name)
    if not place:
        raise InputError(f"{name!r} is not a verb; {_meant(name)}")
    found: Command = catalog.at(place)
    return found


def _meant(name: str) -> str:
    word = name.lower().strip("-").replace("_", "-")
    tables = [TYPED_FIRST, *(wing.typed_first for wing, _ in catalog.wings())]
    lines = [line for table in tables for line in table.get(word, ())]
    if lines:
        return f"use {' or '.join(f'`ridgeline {line}`' for line in lines)}"
    known = [*all_commands(), *all_groups()]
    last = [path for path in known if path.rpartition(" ")[2] == word]
    meant = f"did you mean {last[0]!r}?" if last else did_you_mean(name, known)
    return f"{meant or '`ridgeline --help` lists the verbs'}{catalog.not_loaded()}"


def commands() -> Iterator[tuple[str, Command]]:
    """Everything that can be run, as it is typed. Imports every verb."""
    yield from ((name, command_named(name)) for name in all_commands())


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


def group_text(group: str) -> str:
    """What `ridgeline GROUP` prints: its verbs, and groups below it."""
    rows = {}
    for name, (_, line) in all_commands().items():
        first, _, rest = name.removeprefix(f"{group} ").partition(" ")
        if name.startswith(f"{group} "):
            below = all_groups().get(f"{group} {first}") if rest else None
            rows[first] = below or line or help_of(command_named(name))[0].splitlines()[0]
    lines = [f"Usage: ridgeline {group} VERB [ARGUMENTS]", "", f"  {all_groups()[group]}", "", "Verbs:", *_table(rows)]
    return "\n".join([*lines, "", f"`ridgeline {group} VERB --help` has the options of each and an example."])


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
        name, rest = _typed(arguments)
        if name in all_groups() and name not in all_commands():
            if rest and rest[0] not in _HELP:
                known = [path.removeprefix(f"{name} ") for path in all_commands() if path.startswith(f"{name} ")]
                hint = (
                    did_you_mean(rest[0], known)
                    or f"use one of {', '.join(dict.fromkeys(k.split()[0] for k in known))}"
                )
                raise InputError(f"`ridgeline {name}` has no verb {rest[0]!r}; {hint}")
            print(group_text(name))
            return
        loaded(command_named(name))(args=rest, prog_name=f"ridgeline {name}")


def _typed(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """The verb or group that is typed, and what follows it. Names until 0.2 are taken, with a line that has the new one."""
    first, *rest = arguments
    known = {**all_commands(), **all_groups()}
    if first not in known and (new := former_names().get(first)):
        print(
            f"ridgeline: `{first}` is `ridgeline {new}` now; the old name goes with the next release", file=sys.stderr
        )
        arguments = [*new.split(), *rest]
    words = len(arguments)
    while words > 1 and " ".join(arguments[:words]) not in known:
        words -= 1
    return " ".join(arguments[:words]), list(arguments[words:])


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
