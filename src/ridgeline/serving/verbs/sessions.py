"""`ridgeline twin sessions`: what the sessions of a trace are like, and of others drawn like them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.text.table import aligned, json_text
from ridgeline.serving.traffic import session_mix
from ridgeline.serving.verbs import options as option

if TYPE_CHECKING:
    from ridgeline.records.exhibit import TextTable


def sessions(
    traffic: Annotated[str, typer.Argument(help="A trace file, sessions:agent, sessions:chat or sessions:FILE.")],
    as_json: option.AsJson = False,
) -> None:
    """Show turns, lengths and times to think of a trace, beside those of sessions drawn like it.

    `--traffic sessions:FILE` sends such sessions, as many as you like; what of the file could not be used is counted.

    Example: ridgeline twin sessions trace.jsonl
    """
    seen = session_mix.look_at(traffic)
    print(json_text(seen.as_json()) if as_json else _text(seen.shown()))


def _text(table: TextTable) -> str:
    return "\n".join([*aligned([table.head, *table.rows], left=(0,)), *(f"  {note}" for note in table.notes)])
