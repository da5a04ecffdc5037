"""One thing looked at on a node, and all of them together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal["ok", "warn", "fail", "skip"]


@dataclass(frozen=True, slots=True)
class Check:
    """`detail` says what was found and what to do; `samples` are repeated measurements, for comparing nodes."""

    name: str
    status: Status
    detail: str
    unit: str = ""
    samples: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # by what was measured: gpu0, gpu1, all


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What `ridgeline preflight --json` prints, and what --compare reads again."""

    host: str
    checks: tuple[Check, ...]
    versions: Mapping[str, str] = field(default_factory=dict)
    exports: tuple[str, ...] = ()  # lines for the job script

    @property
    def failed(self) -> list[str]:
        return [check.name for check in self.checks if check.status == "fail"]

    def as_json(self) -> dict[str, Any]:
        return {"preflight": 1, "ok": not self.failed, **asdict(self)}


def node_from(document: Any) -> NodeReport:
    """ValueError when the document is not one of ours."""
    if not isinstance(document, dict) or document.get("preflight") != 1:
        raise ValueError("not what `ridgeline preflight --json` prints")
    try:
        checks = tuple(
            Check(**{**check, "samples": {name: tuple(v) for name, v in check["samples"].items()}})
            for check in document["checks"]
        )
        return NodeReport(document["host"], checks, document["versions"], tuple(document["exports"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"incomplete: {error!r}") from None
