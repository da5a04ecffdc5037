"""One-time steps that would otherwise be paid inside a measurement, kept per model, GPU, layout and engine release.

`rehearse` is every engine's: it runs the first trial's own command once and throws the result away, so that Triton's,
FlashInfer's and torch.compile's caches are full afterwards. `bake` does the same with caches of its own, from which all
later runs of this release, GPU and model start, whatever else uses the user's caches. The others are the engine's own;
its dialect lists them. Some are scripts of its repository, not of its package: `sources` names a checkout.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ridgeline.engines.base import ServingEngine, Span, StepNeeds
from ridgeline.engines.install import Install
from ridgeline.errors import near
from ridgeline.records.expression import Value
from ridgeline.records.problem import Problem
from ridgeline.workloads.engine.options import EngineOptions

REHEARSE, BAKE = "rehearse", "bake"
# other values of these ask for other kernels or another record
_DECIDING = (
    "tp", "pp", "dp", "ep", "attn_dp", "moe_dense_tp_size", "moe_a2a_backend", "quantization", "dtype",
    "kv_cache_dtype", "ep_num_redundant_experts",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PrepareStep:
    """`command` runs in the folder that is kept ("" for a rehearsal, which runs the trial's own); `everywhere`: on all
    nodes of the job; `serves`: it is a server, which the session loads and asks for its record."""

    name: str
    key: str
    command: str = ""
    everywhere: bool = True
    serves: bool = False

    @property
    def script(self) -> str:
        return f"prepare-{self.name}.sh" if self.command else "engine.sh"

    def as_json(self) -> dict[str, object]:
        return {"step": self.name, "key": self.key, "own": bool(self.command), "serves": self.serves}


def problems(options: EngineOptions, dialect: ServingEngine) -> Iterator[Problem]:
    known = (REHEARSE, BAKE, *dialect.steps)
    for index, step in enumerate(options.prepare):
        where = ("workload", "prepare", index)
        if step not in known:
            yield Problem(where, f"no such step for {dialect.name}; {near(step, known)}")
        elif step not in (REHEARSE, BAKE) and (script := dialect.steps[step].script) and not options.sources:
            yield Problem(
                where, f"{step} is {script} of the engine's repository; give `sources`, the folder of a checkout"
            )


def refusal(options: EngineOptions, dialect: ServingEngine, nodes: int) -> str | None:
    """Why a step cannot be done for a trial on so many nodes."""
    for name, step in dialect.steps.items():
        if name in options.prepare and nodes < step.least_nodes:
            return f"prepare: {name} needs {step.least_nodes} nodes or more; leave it out"
    return None


def steps(
    options: EngineOptions, dialect: ServingEngine, install: Install, values: Mapping[str, Value], cluster: Span
) -> list[PrepareStep]:
    """The steps of a trial in the dialect's order; the GPU's name is added to the key on the node."""
    version = dialect.release_of(install)
    layout = {name: values[name] for name in _DECIDING if name in values}
    engine = [dialect.name, install.python, install.container, list(version)]
    needs = StepNeeds(install.python, dialect.flags.arguments(values, version), values, cluster, options.sources)
    made = []
    for name in (*dialect.steps, BAKE, REHEARSE):  # a rehearsal runs the engine with what the other steps give it
        if name not in options.prepare:
            continue
        text = json.dumps([name, *engine, options.model, options.sources, cluster.nodes, layout])
        key = hashlib.sha256(text.encode()).hexdigest()[:16]
        if step := dialect.steps.get(name):
            made.append(PrepareStep(name, key, step.command(needs), step.everywhere, step.serves))
        else:
            made.append(PrepareStep(name, key))
    return made


def given_arguments(dialect: ServingEngine, prepare: Sequence[str], values: Mapping[str, Value]) -> list[str]:
    """Flags that hand an engine what its steps kept, unless the study sets them itself."""
    found = []
    for name, step in dialect.steps.items():
        if name in prepare and step.flag and step.flag not in values:
            found += [f"--{step.flag.replace('_', '-')}", f"${step.variable}"]
    return found
