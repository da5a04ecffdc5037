"""The models that come with the package, each a config.json of public shape."""

from __future__ import annotations

from importlib import resources

PRESETS = resources.files("ridgeline.model") / "presets"


def preset_names() -> list[str]:
    return sorted(f.name.removesuffix(".json") for f in PRESETS.iterdir() if f.name.endswith(".json"))
