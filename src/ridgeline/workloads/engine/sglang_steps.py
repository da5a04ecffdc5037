"""SGLang's server, and the one-time steps that SGLang can be prepared by.

deepgemm    compiles FP8 kernels; a first run otherwise pays 10 to 20 minutes
fused-moe   tunes the fused-MoE kernel for this GPU and split; the engine finds the result by SGLANG_MOE_CONFIG_DIR
deepep      tunes DeepEP's transfers between nodes; the engine gets --deepep-config
eplb        records how often each expert is used under the study's own traffic; gets --init-expert-location

fused-moe and deepep are scripts of SGLang's repository, not of its package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ridgeline.engines.knobs.meaning import layout_of
from ridgeline.workloads.engine.dialect import HEAD, KEEP, MODEL, PORT, RENDEZVOUS, OneTimeStep, Span, StepNeeds, joined

_FUSED_MOE = "benchmark/kernels/fused_moe_triton/tuning_fused_moe_triton.py"
_DEEPEP = "benchmark/kernels/deepep/tuning_deepep.py"


def serve(python: str, arguments: Sequence[str], cluster: Span) -> str:
    own = ["--model-path", f"${MODEL}", "--host", "127.0.0.1", "--port", f"${PORT}"]
    return joined([python, "-m", "sglang.launch_server", *own, *arguments]) + several_nodes(cluster)


def several_nodes(cluster: Span) -> str:
    if cluster.nodes == 1:
        return ""
    return f' --nnodes {cluster.nodes} --node-rank "$rank" --dist-init-addr "${HEAD}:${RENDEZVOUS}"'


def _deepgemm(needs: StepNeeds) -> str:
    own = [needs.python, "-m", "sglang.compile_deep_gemm", "--model-path", f"${MODEL}", *needs.arguments]
    return joined(own) + several_nodes(needs.cluster)


def _fused_moe(needs: StepNeeds) -> str:
    """The tuner leaves its JSON where it runs; the engine looks under configs/triton_X_Y_Z."""
    layout = layout_of(needs.values, needs.cluster.nodes, None)
    words = [needs.python, f"{needs.sources}/{_FUSED_MOE}", "--model", f"${MODEL}", "--tp-size", str(layout.tp)]
    words += ["--ep-size", str(layout.ep)] if layout.ep != 1 else []
    words += ["--dtype", "fp8_w8a8"] if needs.values.get("quantization") == "fp8" else []
    release = "import triton; print('triton_' + triton.__version__.replace('.', '_'))"
    return (
        f"{joined([*words, '--tune'])} && to=configs/$({joined([needs.python, '-c', release])}) && "
        f'mkdir -p "$to" && mv -- *.json "$to"'
    )


def _deepep(needs: StepNeeds) -> str:
    own = [needs.python, f"{needs.sources}/{_DEEPEP}", "--nnodes", str(needs.cluster.nodes)]
    return f'{joined(own)} --node-rank "$rank" --master-addr "${HEAD}"'


def _eplb(needs: StepNeeds) -> str:
    arguments = [*needs.arguments, "--expert-distribution-recorder-mode", "stat"]
    return f'SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR="${KEEP}" {serve(needs.python, arguments, needs.cluster)}'


SGLANG_STEPS: Mapping[str, OneTimeStep] = {
    "deepgemm": OneTimeStep(_deepgemm),
    "fused-moe": OneTimeStep(_fused_moe, script=_FUSED_MOE, variable="SGLANG_MOE_CONFIG_DIR", everywhere=False),
    "deepep": OneTimeStep(
        _deepep,
        script=_DEEPEP,
        flag="deepep_config",
        variable="RIDGELINE_DEEPEP",
        file="deepep_tuned.json",
        least_nodes=2,
    ),
    "eplb": OneTimeStep(
        _eplb, flag="init_expert_location", variable="RIDGELINE_EXPERTS", file="experts.pt", serves=True
    ),
}
