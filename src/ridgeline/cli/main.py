"""The command line: a literal table of verbs, each imported only when it is called."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from textwrap import dedent, fill, wrap
from typing import Any

from ridgeline import __version__, catalog
from ridgeline.catalog import Wing
from ridgeline.cli.lazily import lazily
from ridgeline.cli.terminal import clean_streams
from ridgeline.errors import ExitCode, InputError, RidgelineError, StoreError, StudyError, nearest

_CAMPAIGN = "ridgeline.cli.campaign"
# What the core brings itself, as every wing does.
CORE = Wing(
    "core",
    verbs={
        "check": (f"{_CAMPAIGN}.check:check", "Validate a study; count its legal points and what they may cost."),
        "tune": (f"{_CAMPAIGN}.tune:tune", "Run a study's campaign: baseline, search, confirm."),
        "resume": (f"{_CAMPAIGN}.resume:resume", "Continue a campaign that was stopped or killed, or extend it."),
        "status": (f"{_CAMPAIGN}.status:status", "Show how far a campaign has got."),
        "best": (f"{_CAMPAIGN}.best:best", "Print the setting to paste, with its interval."),
        "report": (f"{_CAMPAIGN}.report:report", "Write the report of a study: a page, or slides."),
        "watch": (f"{_CAMPAIGN}.watch:watch", "Show campaigns in the browser while they run; steer them."),
        "compare": (f"{_CAMPAIGN}.compare:compare", "Compare two settings, or two commands, in interleaved runs."),
        "diagnose": ("ridgeline.cli.diagnose:diagnose", "Explain logs and profiles, with the lines that show it."),
        "mcp": ("ridgeline.cli.mcp:mcp", "Serve the verbs to coding agents as tools, over stdin and stdout."),
        "study edge": (
            f"{_CAMPAIGN}.questions:edge",
            "Find the largest passing value of a knob, and one to use.",
        ),
        "study scale": (f"{_CAMPAIGN}.questions:scale", "Run one setting on 1..n ranks; find where more stops paying."),
        "study steps": (
            f"{_CAMPAIGN}.questions:steps",
            "Measure the gain of each change on the way to a setting.",
        ),
        "study nodes": (f"{_CAMPAIGN}.nodes:nodes", "List nodes that are measurably slow, with intervals."),
        "study verify": (f"{_CAMPAIGN}.verify:verify", "Recompute every number of a study folder; list what differs."),
        "study export": (f"{_CAMPAIGN}.export:export", "Write all runs of a study folder as CSV, JSON and others."),
        "study diff": (f"{_CAMPAIGN}.compare_studies:compare_studies", "Show what changed between study folders."),
        "study bug": (f"{_CAMPAIGN}.bug:bug", "Write a failed run as a bug report, with a minimal reproduction."),
        "ci gate": (f"{_CAMPAIGN}.gate:gate", "Fail a CI job when a program is slower than its reference."),
        "ci bisect": (f"{_CAMPAIGN}.questions:bisect", "Find the release or commit that made a program slower."),
        "site check": ("ridgeline.cli.site:check", "Test a site with small real jobs: submit, run, launch, cancel."),
        "site list": ("ridgeline.cli.site:list_sites", "List the shipped site files, to copy and fill in."),
        "site schema": ("ridgeline.cli.schema:schema", "Print the JSON schema of study, site or deployment files."),
        "site grant show": ("ridgeline.cli.grant:show", "Show what is spent, reserved and left of a grant, by study."),
        "site grant create": ("ridgeline.cli.grant:create", "Create the file of a grant."),
        "site grant top-up": ("ridgeline.cli.grant:top_up", "Add to a grant."),
        "site grant release": ("ridgeline.cli.grant:release", "Give back what a lost campaign had reserved."),
    },
    groups={
        "study": "Ask more of a study, and use what its folder holds.",
        "ci": "Speed in CI: has a program become slower, and since when?",
        "site": "Where jobs run: test a site, check a node, share a grant.",
        "site grant": "One grant of node-hours that several studies pay from.",
    },
    former={
        **{verb: f"study {verb}" for verb in ("edge", "scale", "steps", "nodes", "verify", "export", "bug")},
        **{verb: f"ci {verb}" for verb in ("gate", "bisect")},
        "compare-studies": "study diff",
        "grant": "site grant",
        "schema": "site schema",
    },
    typed_first={
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
    },
)
_FORMER_UNTIL = "0.4"  # as it was typed in 0.2, which goes on working for one release
_FOR_PROGRAMS = ("mcp",)  # nobody types them: `--help` has a line about them, and no row
_HELP = ("-h", "--help")
Command = Callable[..., Any]


def _wings() -> list[Wing]:
    return [CORE, *(wing for wing, _ in catalog.wings())]


def all_commands() -> dict[str, tuple[str, str]]:
    """What is typed -> (place, line of help): the core's and every wing's, of which the first goes first.

    Without verbs that begin with one that takes arguments: `tune fast` is a study called fast.
    """
    rows: dict[str, tuple[str, str]] = {}
    for wing in _wings():
        rows |= {verb: row for verb, row in wing.verbs.items() if verb not in rows}
    groups = {name for wing in _wings() for name in wing.groups if rows.get(name) is wing.verbs.get(name)}
    return {verb: row for verb, row in rows.items() if not rows.keys() & {*_starts(verb)} - groups}


def _starts(verb: str) -> list[str]:
    """The groups that a verb is in: `site` and `site grant` of `site grant show`."""
    words = verb.split()
    return [" ".join(words[:count]) for count in range(1, len(words))]


def all_groups() -> dict[str, str]:
    """First words of verbs -> line of help."""
    found: dict[str, str] = {}
    known = all_commands()
    for wing in _wings():
        for name in (start for verb in wing.verbs if verb in known for start in _starts(verb)):
            found.setdefault(name, wing.groups.get(name, f"Verbs of the wing {wing.name}."))
    return found


def former_names() -> dict[str, str]:
    """First words that verbs once had -> those of today."""
    return {**catalog.former_verbs(), **CORE.former}


def top() -> tuple[dict[str, str], dict[str, str]]:
    """The verbs and the groups that `ridgeline --help` lists, with their lines."""
    groups = {name: line for name, line in all_groups().items() if " " not in name}
    hidden = {*groups, *_FOR_PROGRAMS}
    verbs = {name: line for name, (_, line) in all_commands().items() if " " not in name and name not in hidden}
    return verbs, groups


def verbs_of(group: str) -> dict[str, str]:
    """The verbs of a group and the groups below it, with their lines."""
    found = {}
    for name, (_, line) in all_commands().items():
        if name.startswith(f"{group} "):
            first, _, deeper = name.removeprefix(f"{group} ").partition(" ")
            found[first] = all_groups()[f"{group} {first}"] if deeper else line
    return found


_ABOUT = """Usage: ridgeline VERB [ARGUMENTS]         ridgeline VERB --help says more
       ridgeline GROUP VERB [ARGUMENTS]   ridgeline GROUP --help lists its verbs

Finds the fastest correct setting of a cluster program, in the fewest
node-hours, with proof. `ridgeline mcp` serves the verbs to coding agents.
"""


def overview() -> str:
    verbs, groups = top()
    width = max(map(len, (*verbs, *groups)))
    broken = [f"The wing {name} could not be loaded: {why}" for name, why in catalog.broken_wings().items()]
    broken += [
        f"The verb {verb!r} of the wing {wing.name} of {package} gives way to another."
        for wing, package in catalog.wings()
        for verb, row in wing.verbs.items()
        if all_commands().get(verb) is not row
    ]
    blocks = [_ABOUT, "Verbs:", *_table(verbs, width), "", "Groups of further verbs:", *_table(groups, width), ""]
    return "\n".join([*blocks, *broken, *([""] if broken else []), "Exit codes:", *_exit_codes()])


def _table(rows: Mapping[str, str], width: int = 0) -> list[str]:
    width = width or max(map(len, rows))
    return [f"  {name:<{width}}  {line}" for name, line in rows.items()]


def _exit_codes() -> Iterator[str]:
    for code in ExitCode:
        yield fill(f"{code.value:>5}  {code.meaning}", 80, subsequent_indent=" " * 7, break_on_hyphens=False)


def command_named(name: str) -> Command:
    """The function behind what is typed: `tune`, `study edge`."""
    if name not in (known := all_commands()):
        raise InputError(f"{name!r} is not a verb; {_meant(name)}")
    with lazily():
        found: Command = catalog.at(known[name][0])
    return found


def _meant(name: str) -> str:
    word = name.lower().strip("-").replace("_", "-")
    if lines := [line for wing in _wings() for line in wing.typed_first.get(word, ())]:
        return f"use {' or '.join(f'`ridgeline {line}`' for line in lines)}"
    return f"{_nearest(word) or '`ridgeline --help` lists the verbs'}{catalog.not_loaded()}"


def _nearest(word: str, group: str = "") -> str:
    """`did you mean ...?` of the verb that was probably meant, first among those of `group`; or nothing."""
    known = [*all_commands(), *all_groups()]
    inside = {path.removeprefix(f"{group} "): path for path in known if path.startswith(f"{group} ")}
    # by its last word, which belongs to the first that has it, and by all of them
    anywhere = {**former_names(), **{path.rpartition(" ")[2]: path for path in reversed(known)}}
    anywhere |= {path: path for path in known}
    exact = inside.get(word) or anywhere.get(word)
    for names in (inside, anywhere):
        if found := exact or names.get(nearest(word, names)):
            return f"did you mean `ridgeline {found}`?"
    return ""


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
    """What `ridgeline GROUP --help` prints: its verbs, and groups below it."""
    lines = [f"Usage: ridgeline {group} VERB [ARGUMENTS]", "", f"  {all_groups()[group]}", "", "Verbs:"]
    lines += _table(verbs_of(group))
    return "\n".join([*lines, "", f"`ridgeline {group} VERB --help` has the options of each and an example."])


def application(command: Command, group: str = "") -> Any:
    """A command as Typer runs it. `group` is that of which it is the first verb, the one without a name of its own."""
    import typer  # here, so that the overview does not wait for it

    text, example = help_of(command)
    if example:
        text = "\n".join([text, "", "\b", *_example_lines(example)])  # \b: keep these lines as they are
    if group:
        text = "\n".join(
            [text, "", "\b", f"Further verbs: ridgeline {group} VERB [ARGUMENTS]", *_table(verbs_of(group))]
        )
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(help=text)(command)
    return app


def run(arguments: list[str], begins: Callable[[], object] = lambda: None) -> None:
    """`begins` is called once the verb is loaded, before it does anything."""
    if not arguments or arguments[0] in (*_HELP, "help"):
        print(overview())
    elif arguments[0] == "--version":
        print(f"ridgeline {__version__}")
    else:
        name, rest = _typed(arguments)
        group = name if name in all_groups() else ""
        if group and group not in all_commands() and rest[:1] and rest[0] in _HELP:
            print(group_text(group))
            return
        if group and (group not in all_commands() or (rest and not rest[0].startswith("-"))):
            raise InputError(_no_verb(group, rest))
        app = application(command_named(name), group)
        begins()
        app(args=rest, prog_name=f"ridgeline {name}")


def _no_verb(group: str, rest: Sequence[str]) -> str:
    if not rest or rest[0].startswith("-"):
        return f"`ridgeline {group}` needs a verb; use one of {', '.join(verbs_of(group))}"
    hint = _nearest(rest[0], group) or f"use one of {', '.join(verbs_of(group))}"
    return f"`ridgeline {group}` has no verb {rest[0]!r}; {hint}{catalog.not_loaded()}"


_MOST_WORDS = 3  # of a verb with its groups: `site grant show`


def _typed(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """The verb or group that is typed, and what follows it; a former name with a line on stderr that has today's."""
    known = {*all_commands(), *all_groups()}
    name, rest = _longest(arguments, known)
    new = former_names().get(name)
    # a former verb may be a group today, whose verbs go first
    if new is None or name in all_commands() or (name in known and rest[:1] and rest[0] in _HELP):
        return name, rest
    note = f"`ridgeline {name}` is now `ridgeline {new}`; the old spelling works until {_FORMER_UNTIL}"
    print(f"ridgeline: {note}", file=sys.stderr, flush=True)
    return _longest([*new.split(), *rest], known)


def _longest(arguments: Sequence[str], known: Collection[str]) -> tuple[str, list[str]]:
    for count in range(min(_MOST_WORDS, len(arguments)), 1, -1):
        if (name := " ".join(arguments[:count])) in known:
            return name, list(arguments[count:])
    return arguments[0], list(arguments[1:])


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
