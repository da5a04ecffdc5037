"""A request that is declared once, as a dataclass: a function that takes it is called with its fields."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
Request = TypeVar("Request")
Result = TypeVar("Result")


def takes(request: Callable[P, Request]) -> Callable[[Callable[[Request], Result]], Callable[P, Result]]:
    """`@takes(BenchOptions) def bench(asked)` is called as `bench(url, concurrency=8)`, with types and defaults."""

    def of(function: Callable[[Request], Result]) -> Callable[P, Result]:
        @functools.wraps(function)
        def called(*args: P.args, **named: P.kwargs) -> Result:
            return function(request(*args, **named))

        # what `help`, notebooks and the reference show; types are those of two modules, so they are looked up here
        fields = inspect.signature(request)
        called.__signature__ = fields.replace(  # type: ignore[attr-defined]
            return_annotation=inspect.signature(function).return_annotation
        )
        known = inspect.signature(request, eval_str=True).parameters
        called.__annotations__ = {name: each.annotation for name, each in known.items()}
        called.__annotations__["return"] = inspect.signature(function, eval_str=True).return_annotation
        del called.__wrapped__
        return called

    return of
