"""YAML files of people's own, with numbers as YAML 1.2 and study files have them: to PyYAML alone 4.8e12 is text."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

_EXPONENT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)[eE][-+]?[0-9]+$")


def read_yaml(text: str) -> Any:
    """The document as plain values; yaml.YAMLError where it is none. What is quoted stays text."""
    import yaml

    return yaml.load(text, Loader=_loader())  # noqa: S506  a safe loader that knows one more way to write a number


@lru_cache(maxsize=1)
def _loader() -> Any:
    import yaml

    # the C twin of the safe loader is ten times faster
    safe: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader: Any = type("NumberLoader", (safe,), {})
    loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))
    return loader
