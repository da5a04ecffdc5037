"""The rules of a task that somebody else set: what a competition or a benchmark forbids and fixes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ridgeline.records.measurement import Reading
from ridgeline.records.run import Ending

BREAKS = "breaks the task's rules: "  # begins the reason of a run that is refused for it
_ASSIGNED = re.compile(r"(?<![\w$-])([A-Za-z_]\w*)=")


@dataclass(frozen=True, slots=True)
class TaskRules:
    """None and empty are no rule. `forbidden_env` and `nodes` may be patterns such as NCCL_*; `wall_s` is per job."""

    forbidden_flags: tuple[str, ...] = ()
    forbidden_env: tuple[str, ...] = ()
    model: str | None = None
    seed: int | None = None
    prompts: int | None = None
    wall_s: float | None = None
    nodes: tuple[str, ...] = ()

    @property
    def named_nodes(self) -> tuple[str, ...]:
        """The allowed nodes, where each is named; nothing where a pattern is among them."""
        return () if any(set("*?[") & set(name) for name in self.nodes) else self.nodes

    def flags_in(self, texts: Iterable[str]) -> list[str]:
        """Which forbidden flags these commands hold, as words of their own."""
        joined = "\n".join(texts)
        return [flag for flag in self.forbidden_flags if re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", joined)]

    def variables_in(self, texts: Iterable[str], names: Iterable[str] = ()) -> list[str]:
        """Which forbidden variables these commands set, or are among these names."""
        found = dict.fromkeys((*(name for text in texts for name in _ASSIGNED.findall(text)), *names))
        return [name for name in found if any(fnmatchcase(name, pattern) for pattern in self.forbidden_env)]

    def broken_by(self, ending: Ending, reading: Reading) -> Iterator[str]:
        """What a run broke, by what its program says that it applied, what it measured, and where it was."""
        for flag in self.switched_on(reading.applied):
            yield f"the engine applied {flag}, which the task forbids"
        model = reading.applied.get("model_path", reading.applied.get("model"))
        if self.model is not None and model is not None and _last(str(model)) != _last(self.model):
            yield f"the engine loaded {model}, the task is about {self.model}"
        answered = reading.metrics.get("successful_requests")
        if self.prompts is not None and answered is not None and answered != self.prompts:
            yield f"{answered:.0f} prompts were answered, the task has {self.prompts}"
        if self.wall_s is not None and ending.duration_s > self.wall_s:
            yield f"it took {ending.duration_s:.0f} s, the task allows {self.wall_s:.0f} s"
        if outside := [node for node in ending.nodes if not self.allows_node(node)]:
            yield f"it ran on {', '.join(outside)}, the task allows {', '.join(self.nodes)}"

    def switched_on(self, applied: Mapping[str, object]) -> list[str]:
        """Forbidden switches that are on. The value of a flag that takes one may be the engine's own default."""
        return [flag for flag in self.forbidden_flags if applied.get(flag.lstrip("-").replace("-", "_")) is True]

    def allows_node(self, name: str) -> bool:
        short = name.partition(".")[0]
        return not self.nodes or any(fnmatchcase(name, each) or fnmatchcase(short, each) for each in self.nodes)

    def fixed(self) -> Mapping[str, int | str]:
        """What the study's workload must say, by our names."""
        values = {"model": self.model, "seed": self.seed, "prompts": self.prompts}
        return {name: value for name, value in values.items() if value is not None}


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
