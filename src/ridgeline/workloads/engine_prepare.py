"""One-time steps that would otherwise be paid inside a measurement, kept per model, GPU, layout and engine release.

`deepgemm` compiles FP8 kernels (a first run otherwise pays 10 to 20 minutes); `rehearse` runs the first trial's own
command once and throws the result away, which fills Triton's, FlashInfer's and torch.compile's caches. Fused-MoE
and DeepEP tuning and EPLB's record are programs of SGLang's repository, not of its package: name their commands in a
study's `builds`, see docs/guides/tune-sglang.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from ridgeline.records.expression import Value
from ridgeline.workloads.engine_dialect import MODEL, joined
from ridgeline.workloads.engine_options import Install

STEPS = ("deepgemm", "rehearse")
_LAYOUT = ("tp", "tp_size", "pp", "pp_size", "dp", "dp_size", "ep", "ep_size", "attn_dp", "attn_dp_size")


def preparation(
    step: str, engine: str, install: Install, model: str, values: Mapping[str, Value], words: Sequence[str]
) -> dict[str, str]:
    """The step's command ("" for a rehearsal, which runs the trial's own) and the key under which it counts as done.

    The GPU's name is added to the key on the node.
    """
    names = [n for n in _LAYOUT if n in values]
    deciding = [step, engine, install.python, install.container, install.version, model]
    text = json.dumps([*deciding, {name: values[name] for name in names}])
    command = ""
    if step == "deepgemm":
        command = joined([install.python, "-m", "sglang.compile_deep_gemm", "--model-path", f"${MODEL}", *words])
    return {"step": step, "key": hashlib.sha256(text.encode()).hexdigest()[:16], "command": command}
