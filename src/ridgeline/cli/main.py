"""The command line: a literal table of verbs, each imported only when it is called."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click
import typer
from typer.core import TyperGroup

from ridgeline import __version__
from ridgeline.errors import RidgelineError

# verb -> (module, function, the line `ridgeline --help` shows). Order is the order of a campaign's life.
VERBS: dict[str, tuple[str, str, str]] = {}


class LazyVerbs(TyperGroup):
    """Knows every verb's name and help line without importing any of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module, function, help_line = VERBS[cmd_name]
        if ctx.resilient_parsing or _only_lists(ctx):
            return click.Command(cmd_name, help=help_line)
        verb: Any = getattr(importlib.import_module(module), function)
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(name=cmd_name, help=verb.__doc__ or help_line)(verb)
        return typer.main.get_command(app)


def _only_lists(ctx: click.Context) -> bool:
    return getattr(ctx, "_listing_verbs", False)


def main() -> None:
    raise NotImplementedError
