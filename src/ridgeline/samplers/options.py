"""What a study may say to a sampler. Every problem is an InputError whose message begins with `option: `."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from ridgeline.errors import InputError


def check_names(sampler: str, options: Mapping[str, object], known: tuple[str, ...]) -> None:
    """Refuse an option that the sampler does not have."""
    for name in options:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known) or 'none'}"
            raise InputError(f"{name}: the sampler {sampler} has no such option; {hint}")


def choice(options: Mapping[str, object], name: str, allowed: tuple[str, ...]) -> str:
    """The option's value, the first of `allowed` when it is not given."""
    value = options.get(name, allowed[0])
    if not isinstance(value, str) or value not in allowed:
        raise InputError(f"{name}: {value!r} stands here; it must be one of {', '.join(allowed)}")
    return value


def whole_number(options: Mapping[str, object], name: str, default: int, least: int) -> int:
    value = options.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError(f"{name}: {value!r} stands here; it must be a whole number of at least {least}")
    return value
