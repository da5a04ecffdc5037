"""One-time steps that would otherwise be paid inside a measurement, kept per model, GPU, layout and engine release.

rehearse    runs the first trial's own command once and throws the result away: Triton's, FlashInfer's and
            torch.compile's caches are full afterwards
deepgemm    compiles FP8 kernels; a first run otherwise pays 10 to 20 minutes
fused-moe   tunes the fused-MoE kernel for this GPU and split; the engine finds the result by SGLANG_MOE_CONFIG_DIR
deepep      tunes DeepEP's transfers between nodes; the engine gets --deepep-config
eplb        records how often each expert is used under the study's own traffic; gets --init-expert-location

fused-moe and deepep are scripts of SGLang's repository, not of its package: `sources` names a checkout of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ridgeline.records.expression import Value
from ridgeline.records.problem import Problem, near
from ridgeline.workloads.engine.dialect import HEAD, MODEL, EngineDialect, Span, joined
from ridgeline.workloads.engine.flags import Version
from ridgeline.workloads.engine.install import release_of
from ridgeline.workloads.engine.options import EngineOptions, Install

STEPS = ("rehearse", "deepgemm", "fused-moe", "deepep", "eplb")
_FROM_REPOSITORY = {
    "fused-moe": "benchmark/kernels/fused_moe_triton/tuning_fused_moe_triton.py",
    "deepep": "benchmark/kernels/deepep/tuning_deepep.py",
}
# what an engine is told afterwards: flag -> the variable by which the session names the kept file
GIVES = {
    "deepep": ("deepep_config", "RIDGELINE_DEEPEP", "deepep_tuned.json"),
    "eplb": ("init_expert_location", "RIDGELINE_EXPERTS", "experts.pt"),
}
KEEP = "RIDGELINE_KEEP"
# other values of these ask for other kernels or another record
_DECIDING = (
    "tp", "tp_size", "pp", "pp_size", "dp", "dp_size", "ep", "ep_size", "attn_dp", "attn_dp_size", "moe_dense_tp_size",
    "enable_dp_attention", "quantization", "dtype", "kv_cache_dtype", "ep_num_redundant_experts",
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


def problems(options: EngineOptions, engine: str) -> Iterator[Problem]:
    known = STEPS if engine == "sglang" else ("rehearse",)
    for index, step in enumerate(options.prepare):
        where = ("workload", "prepare", index)
        if step not in known:
            yield Problem(where, f"no such step for {engine}; {near(step, known)}")
        elif step in _FROM_REPOSITORY and not options.sources:
            script = _FROM_REPOSITORY[step]
            yield Problem(where, f"{step} is {script} of SGLang's repository; give `sources`, the folder of a checkout")


def refusal(options: EngineOptions, nodes: int) -> str | None:
    """Why a step cannot be done for a trial on so many nodes."""
    if "deepep" in options.prepare and nodes < 2:
        return "prepare: deepep tunes transfers between nodes and needs two of them or more; leave it out"
    return None


def steps(
    options: EngineOptions, dialect: EngineDialect, install: Install, values: Mapping[str, Value], cluster: Span
) -> list[PrepareStep]:
    """The steps of a trial in the order of STEPS; the GPU's name is added to the key on the node."""
    version = release_of(install, dialect)
    layout = {name: values[name] for name in _DECIDING if name in values}
    engine = [dialect.name, install.python, install.container, list(version)]
    made = []
    for name in STEPS:
        if name in options.prepare:
            text = json.dumps([name, *engine, options.model, options.sources, cluster.nodes, layout])
            key = hashlib.sha256(text.encode()).hexdigest()[:16]
            command = _command(name, options, dialect, install, version, values, cluster)
            made.append(PrepareStep(name, key, command, everywhere=name != "fused-moe", serves=name == "eplb"))
    # a rehearsal runs the engine as it will be, so with what the other steps give it
    return sorted(made, key=lambda step: not step.command)


def given_words(prepare: Sequence[str], values: Mapping[str, Value]) -> list[str]:
    """Flags that hand an engine what its steps kept, unless the study sets them itself."""
    words = []
    for name, (flag, variable, _) in GIVES.items():
        if name in prepare and flag not in values:
            words += [f"--{flag.replace('_', '-')}", f"${variable}"]
    return words


def _command(
    name: str,
    options: EngineOptions,
    dialect: EngineDialect,
    install: Install,
    version: Version,
    values: Mapping[str, Value],
    cluster: Span,
) -> str:
    words = dialect.words(values, version)
    match name:
        case "deepgemm":
            own = [install.python, "-m", "sglang.compile_deep_gemm", "--model-path", f"${MODEL}", *words]
            return joined(own) + dialect.several_nodes(cluster)
        case "fused-moe":
            return _fused_moe(f"{options.sources}/{_FROM_REPOSITORY[name]}", install.python, values)
        case "deepep":
            own = [install.python, f"{options.sources}/{_FROM_REPOSITORY[name]}", "--nnodes", str(cluster.nodes)]
            return f'{joined(own)} --node-rank "$rank" --master-addr "${HEAD}"'
        case "eplb":
            words += ["--expert-distribution-recorder-mode", "stat"]
            serve = dialect.serve(install.python, words, cluster)
            return f'SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR="${KEEP}" {serve}'
    return ""


def _fused_moe(script: str, python: str, values: Mapping[str, Value]) -> str:
    """The tuner leaves its JSON where it runs; the engine looks under configs/triton_X_Y_Z."""
    words = [python, script, "--model", f"${MODEL}", "--tp-size", str(values.get("tp", values.get("tp_size", 1)))]
    experts = values.get("ep", values.get("ep_size", 1))
    words += ["--ep-size", str(experts)] if experts != 1 else []
    words += ["--dtype", "fp8_w8a8"] if values.get("quantization") == "fp8" else []
    release = "import triton; print('triton_' + triton.__version__.replace('.', '_'))"
    return (
        f"{joined([*words, '--tune'])} && to=configs/$({joined([python, '-c', release])}) && "
        f'mkdir -p "$to" && mv -- *.json "$to"'
    )
