"""How many tokens a verified step of speculative decoding keeps, where nobody says: measured lengths by draft depth.

The lengths are InferenceX's reference curves (August 2026): the coding prompts of SPEED-Bench, thinking on, vLLM with
real drafts on B300. Other prompts keep fewer: DeepSeek's own MTP layer kept 0.7 of a token less at depth 3 with
thinking on than without.
"""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.model.model import Model


@dataclass(frozen=True, slots=True)
class _Curve:
    """Tokens kept with one, two, ... drafted ones, the verified one included."""

    models: tuple[str, ...]  # beginnings of their names
    source: str
    kept: tuple[float, ...]


_CURVES = (
    _Curve(("deepseek-v3", "deepseek-r1", "deepseek-v4"), "DeepSeek-V4-Pro's MTP layer",
           (1.79, 2.27, 2.49, 2.54, 2.55, 2.55, 2.54, 2.58)),
    _Curve(("glm-5",), "GLM-5.2's MTP layer", (1.84, 2.50, 2.99, 3.33, 3.61, 3.78, 3.91, 4.06)),
    _Curve(("kimi-k2",), "Kimi-K2.5 with EAGLE3", (1.83, 2.43, 2.88, 3.24, 3.46, 3.62, 3.71, 3.77)),
    _Curve(("qwen3.5",), "Qwen3.5-397B's MTP layer", (1.93, 2.73, 3.39, 3.97, 4.41, 4.80, 5.04, 5.21)),
)  # fmt: skip


def usual_accept_length(model: Model, draft_tokens: int) -> float:
    """Of a step that verifies so many tokens, all but one of them drafted; 1 where no curve is known."""
    curve = _curve(model)
    if draft_tokens < 2 or curve is None:
        return 1.0
    return curve.kept[min(draft_tokens - 1, len(curve.kept)) - 1]


def acceptance_assumed(model: Model, draft_tokens: int) -> str:
    """The sentence for an answer that rests on it."""
    curve, length = _curve(model), usual_accept_length(model, draft_tokens)
    if curve is None:
        return f"no draft of {model.name} is ever kept, since none was measured; --accept-length says how many are"
    kept = f"{length:g} of {draft_tokens} verified tokens are kept"
    return f"{kept}, as {curve.source} did on coding prompts; --accept-length says otherwise"


def _curve(model: Model) -> _Curve | None:
    return next((curve for curve in _CURVES if model.name.lower().startswith(curve.models)), None)
