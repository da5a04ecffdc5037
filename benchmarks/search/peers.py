"""Other people's optimisers behind our seam, for races side by side; each needs its package in this Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

PEERS: Mapping[str, Callable[..., Any]] = {}
