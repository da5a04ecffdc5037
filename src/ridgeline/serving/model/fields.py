"""A config.json with a memory: of where it came from, and of which fields somebody has asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any

from ridgeline.errors import InputError

# The models that come with the package, each a config.json of public shape.

PRESETS = resources.files("ridgeline.serving.model") / "presets"


def preset_names() -> list[str]:
    return sorted(f.name.removesuffix(".json") for f in PRESETS.iterdir() if f.name.endswith(".json"))


# no published model comes near; past them a config is broken, and counting would never end
_MOST_LAYERS, _MOST_OF_ANYTHING = 10_000, 10**9


# what a user can do with a model whose config is not understood
MEASURE_IT = "measure a server that runs it instead (`ridgeline bench --help`)"


class Fields:
    """Every refusal names the file and the field; `unread` tells what nobody has looked at."""

    def __init__(self, config: Mapping[str, Any], source: str) -> None:
        self.config, self.source = config, source
        self._asked: set[str] = set()

    def value(self, name: str, default: Any = None) -> Any:
        self._asked.add(name)
        found = self.config.get(name)
        return default if found is None else found

    def text(self, name: str) -> str:
        return str(self.value(name, ""))

    def first(self, *names: str) -> str | None:
        """The first of these fields that says something; the others are taken to say the same."""
        return next((name for name in [n for n in names if self.value(n)]), None)

    def unread(self) -> dict[str, Any]:
        return {name: value for name, value in self.config.items() if name not in self._asked}

    def refuse(self, name: str, why: str) -> InputError:
        return InputError(f"{self.source}: {name} {why}")

    def not_understood(self, name: str, what: str) -> InputError:
        return self.refuse(name, f"{what} is not understood; {MEASURE_IT}")

    def need(self, *names: str) -> None:
        missing = [n for n in names if self.value(n) is None]
        if missing:
            raise InputError(
                f"{self.source}: {', '.join(missing)} missing; a config.json of the Llama, Qwen or DeepSeek kind "
                f"has {'it' if len(missing) == 1 else 'them'}: write what the model's card says into a copy of the "
                "file, or give a preset (`ridgeline model list` has them)"
            )

    def positive(self, name: str, default: int | None = None) -> int:
        value = self.value(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise self.refuse(name, f"is {value!r}; it must be a whole number above zero{_unquoted(value)}")
        return self._bounded(name, value)

    def count(self, name: str, default: int = 0) -> int:
        """A whole number that may be zero; left out, null or false, it is the default."""
        value = self.value(name) or default
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.refuse(name, f"is {value!r}; it must be a whole number, zero or above{_unquoted(value)}")
        return self._bounded(name, value)

    def per_layer(self, name: str, layers: int) -> list[Any] | None:
        """A list with an entry for each layer; longer ones speak of draft layers at their end."""
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) < layers:
            raise self.refuse(name, f"is not a list with an entry for each of the {layers} layers")
        return value[:layers]

    def _bounded(self, name: str, value: int) -> int:
        limit = _MOST_LAYERS if name == "num_hidden_layers" else _MOST_OF_ANYTHING
        if value > limit:
            raise self.refuse(name, f"is {value:,}, more than any model has ({limit:,}); check the file")
        return value


def _unquoted(value: object) -> str:
    return f": write {value} without quotes" if isinstance(value, str) and value.isdecimal() else ""


def where(pattern: list[Any], *values: Any) -> tuple[int, ...]:
    """Layers whose entry is one of these."""
    return tuple(n for n, value in enumerate(pattern) if value in values)
