"""Options of a verb that are declared as a record.

Typer reads a verb's options from its signature. `takes` writes the fields of a record of arguments into that signature,
so that a verb receives the record and adds only what is its own.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, get_type_hints


def takes(record: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turns a verb whose first parameter is such a record into a command with an option for each of its fields."""

    def declare(verb: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(record, include_extras=True)
        shared = [
            inspect.Parameter(
                f.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if f.default is MISSING else f.default,
                annotation=hints[f.name],
            )
            for f in fields(record)
        ]
        own = list(inspect.signature(verb, eval_str=True).parameters.values())[1:]
        own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]

        @functools.wraps(verb)
        def command(**given: Any) -> None:
            verb(record(**{p.name: given.pop(p.name) for p in shared if p.name in given}), **given)

        command.__signature__ = inspect.Signature([*shared, *own])  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in (*shared, *own)}
        return command

    return declare
