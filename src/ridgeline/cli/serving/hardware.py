"""`ridgeline hardware`: the GPUs and fabrics that can be named, your own included."""

from __future__ import annotations

from ridgeline.cli.serving import options as option
from ridgeline.cli.text.json import json_text


def hardware(as_json: option.AsJson = False) -> None:
    """List GPUs and fabrics with their peaks. A YAML file named by RIDGELINE_HARDWARE adds your own.

    Example: ridgeline hardware
    """
    from ridgeline.cli.text.serving.hardware import hardware_text
    from ridgeline.hardware.listing import list_hardware

    answer = list_hardware()
    print(json_text(answer.as_json()) if as_json else hardware_text(answer))
