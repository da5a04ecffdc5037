"""Where an iteration's time goes, for a terminal."""

from __future__ import annotations

from ridgeline.twin.explain import Explanation

_REMEDIES = {
    "compute": "faster tensor cores, a smaller dtype, or more GPUs",
    "memory": "more memory bandwidth, a smaller dtype, or more GPUs that share the weights",
    "network": "fewer ranks that must talk, a faster fabric, or attention DP and pipeline stages instead of TP",
    "latency": "fewer, larger kernels; larger batches use the same gaps better",
    "host": "a larger --cuda-graph-max-bs, smaller batches per rank, or a faster CPU",
}


def explanation_text(step: Explanation) -> str:
    kind = "cached" if step.phase == "decode" else "new"
    lines = [f"{step.phase}   {step.seconds * 1000:.2f} ms   {step.batch:,} requests, {step.tokens:,} {kind} tokens"]
    for t in sorted(step.terms, key=lambda t: -t.seconds):
        if t.seconds > 0:
            lines.append(f"  {t.seconds * 1000:10.3f} ms  {t.seconds / step.seconds:4.0%}  {t.name:<44} {t.bound}")
    return "\n".join([*lines, f"  mostly {step.bound}: {_REMEDIES[step.bound]}"])
