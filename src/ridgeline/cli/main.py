"""The command line: a literal table of verbs, each imported only when it is called."""

from __future__ import annotations

import importlib
import sys
from typing import Annotated, Any

import click
import typer
from typer.core import TyperGroup

from ridgeline import __version__
from ridgeline.errors import RidgelineError, StudyError

# verb -> (module:function, the line `ridgeline --help` shows). The order is that of a campaign's life.
VERBS: dict[str, tuple[str, str]] = {
    "check": ("ridgeline.cli.check:check", "Validate a study; print the size of its legal space and what it may cost."),
    "tune": ("ridgeline.cli.tune:tune", "Run a study's campaign: baseline, search, confirm."),
    "resume": ("ridgeline.cli.resume:resume", "Go on with a campaign that was stopped or killed."),
    "status": ("ridgeline.cli.status:status", "Say how far a campaign is."),
    "best": ("ridgeline.cli.best:best", "Print the setting to paste, with its interval."),
    "compare": ("ridgeline.cli.compare:compare", "Compare two settings of a study in interleaved runs."),
    "report": ("ridgeline.cli.report:report", "Write the one-page HTML report of a study folder."),
    "export": ("ridgeline.cli.export:export", "Write all runs of a study folder as CSV or JSON."),
    "schema": ("ridgeline.cli.schema:schema", "Print the JSON schema of study files."),
}


class LazyVerbs(TyperGroup):
    """Knows every verb's name and help line without importing any of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module, _, function = VERBS[cmd_name][0].partition(":")
        verb: Any = getattr(importlib.import_module(module), function)
        app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        app.command(name=cmd_name)(verb)
        return typer.main.get_command(app)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(verb, line) for verb, (_, line) in VERBS.items()])


app = typer.Typer(cls=LazyVerbs, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True, no_args_is_help=True)
def ridgeline(
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    """Find the fastest correct setting of a cluster program, in the fewest node-hours, with proof.

    Exit codes: 0 done; 1 nothing passed the guards or no answer yet; 2 the study or the command line is wrong;
    3 the site refused; 4 an output could not be read; 5 the study folder is locked, damaged or its disk is full;
    130 stopped by Ctrl-C (go on with `ridgeline resume`).
    """
    if version:
        typer.echo(f"ridgeline {__version__}")
        raise typer.Exit


def main() -> None:
    try:
        app()
    except StudyError as error:
        count = len(error.problems)
        print(error, f"{count} problem{'s' if count > 1 else ''}; nothing was run.", sep="\n", file=sys.stderr)
        sys.exit(error.exit_code)
    except RidgelineError as error:
        print(f"ridgeline: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # the reader of our output (head, less) left: not an error of ours
        sys.stderr.close()
        sys.exit(141)
