"""One-time steps that would otherwise be paid inside a measurement, kept per model, GPU, layout and engine release.

`rehearse` is every engine's: it runs the first trial's own command once and throws the result away, so that Triton's,
FlashInfer's and torch.compile's caches are full afterwards. `bake` does the same with caches of its own, from which all
later runs of this release, GPU and model start, whatever else uses the user's caches; `bake_into` says what they are
kept as. The others are the engine's own; its dialect lists them. Some are scripts of its repository, not of its
package: `sources` names a checkout.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ridgeline.errors import Problem, near
from ridgeline.records.expression import Value
from ridgeline.records.json_form import NOT_IN_JSON, JsonForm, in_json
from ridgeline.records.launch import PYXIS
from ridgeline.records.site import Site
from ridgeline.serving.engines.base import ServingEngine, Span, StepNeeds
from ridgeline.serving.engines.install import Install
from ridgeline.serving.workloads.engine.options import EngineOptions

REHEARSE, BAKE = "rehearse", "bake"
FOLDER, TAR, OVERLAY = "folder", "tar", "overlay"  # what `bake` keeps its caches as
CACHES, IMAGE = "RIDGELINE_CACHES", "RIDGELINE_CACHE_IMAGE"  # a folder of this node, an image: where a run finds them
CACHES_INSIDE = "/ridgeline-caches"  # where a container sees them, while they are filled and when they are an image
# other values of these ask for other kernels or another record
_DECIDING = (
    "tp", "pp", "dp", "ep", "attn_dp", "moe_dense_tp_size", "moe_a2a_backend", "quantization", "dtype",
    "kv_cache_dtype", "ep_num_redundant_experts",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PrepareStep(JsonForm):
    """`command` runs in the folder that is kept ("" for a rehearsal, which runs the trial's own); `everywhere`: on all
    nodes of the job; `serves`: it is a server, which the session loads and asks for its record."""

    name: str = field(metadata=in_json("step"))
    key: str
    command: str = field(default="", metadata=in_json("own", bool))
    everywhere: bool = field(default=True, metadata=NOT_IN_JSON)
    serves: bool = False
    store: str = field(default="", metadata=in_json(if_any=True))  # of `bake`

    @property
    def script(self) -> str:
        return f"prepare-{self.name}.sh" if self.command else "engine.sh"


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
    if options.bake_into != FOLDER and BAKE not in options.prepare:
        yield Problem(("workload", "bake_into"), "nothing is baked; add `prepare: [bake]`, or leave this out")


def refusal(options: EngineOptions, dialect: ServingEngine, nodes: int, site: Site) -> str | None:
    """Why a step cannot be done for a trial on so many nodes; `site` has the container that its engine runs in."""
    for name, step in dialect.steps.items():
        if name in options.prepare and nodes < step.least_nodes:
            return f"prepare: {name} needs {step.least_nodes} nodes or more; leave it out"
    if BAKE not in options.prepare or options.bake_into == FOLDER:
        return None
    pyxis = site.container_runtime == PYXIS
    if options.bake_into == OVERLAY and (pyxis or not site.container):
        ours = "runs in a container of pyxis" if site.container else "runs in no container"
        return f"bake_into: overlay is laid over an Apptainer image, and this engine {ours}; use `bake_into: tar`"
    if site.container and pyxis and not site.scratch:
        return "bake_into: tar needs the site's `scratch` here: of the node's disks pyxis mounts nothing else"
    return None


def container_options(options: EngineOptions, site: Site) -> str:
    """The site's own, and as shell text the mounts of baked caches for Apptainer, where there are any to mount."""
    if BAKE not in options.prepare or options.bake_into == FOLDER or site.container_runtime == PYXIS:
        return site.container_options
    return f"{site.container_options} {_mounts(options)}".lstrip()


def _mounts(options: EngineOptions) -> str:
    if options.bake_into == TAR:
        return f'${{{CACHES}:+--bind "${CACHES}"}}'
    # an image is mounted read-only; what a run compiles beyond it goes to memory, and with the run
    filled = f'${{{CACHES}:+--bind "${CACHES}:{CACHES_INSIDE}"}}'
    return f'{filled} ${{{IMAGE}:+--overlay "${IMAGE}:ro" --writable-tmpfs}}'


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
        decides = [name, *engine, options.model, options.sources, cluster.nodes, layout]
        store = options.bake_into if name == BAKE else ""
        text = json.dumps([*decides, store] if store not in ("", FOLDER) else decides)
        key = hashlib.sha256(text.encode()).hexdigest()[:16]
        if step := dialect.steps.get(name):
            made.append(PrepareStep(name, key, step.command(needs), step.everywhere, step.serves))
        else:
            made.append(PrepareStep(name, key, store=store))
    return made


def given_arguments(dialect: ServingEngine, prepare: Sequence[str], values: Mapping[str, Value]) -> list[str]:
    """Flags that hand an engine what its steps kept, unless the study sets them itself."""
    found = []
    for name, step in dialect.steps.items():
        if name in prepare and step.flag and step.flag not in values:
            found += [f"--{step.flag.replace('_', '-')}", f"${step.variable}"]
    return found
