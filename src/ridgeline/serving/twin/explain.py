"""Where an iteration's time goes: every term of a decode step and of a prefill round, and what bounds it."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.errors import InputError
from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.twin.calibration import Calibration
from ridgeline.serving.twin.operators import Term
from ridgeline.serving.twin.simulate import step_time
from ridgeline.serving.twin.steptime import StepTime


@dataclass(frozen=True, slots=True)
class Explanation:
    """One iteration of one role. The terms add up to `seconds`."""

    phase: str  # decode or prefill
    role: str
    batch: int
    tokens: int  # cached tokens of a decode step, new tokens of a prefill round
    terms: tuple[Term, ...]

    @property
    def seconds(self) -> float:
        return sum(t.seconds for t in self.terms)

    @property
    def by_bound(self) -> dict[str, float]:
        sums: dict[str, float] = {}
        for term in self.terms:
            sums[term.bound] = sums.get(term.bound, 0.0) + term.seconds
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    @property
    def bound(self) -> str:
        return next(iter(self.by_bound))

    def as_json(self) -> dict[str, object]:
        return {
            "phase": self.phase,
            "role": self.role,
            "batch": self.batch,
            "tokens": self.tokens,
            "ms": self.seconds * 1000,
            "bound": self.bound,
            "by_bound_ms": {name: s * 1000 for name, s in self.by_bound.items()},
            "terms": [{"name": t.name, "ms": t.seconds * 1000, "bound": t.bound} for t in self.terms],
        }


def explain(
    deployment: Deployment,
    batch: int,
    context_tokens: int,
    prompt_tokens: int,
    calibration: Calibration | None = None,
) -> list[Explanation]:
    """A decode step of `batch` requests of `context_tokens` each, and a full prefill round of such prompts.

    In a disaggregated layout each role is explained on its own engine.
    """
    _check_lengths(deployment, batch, context_tokens, prompt_tokens)
    calibration = calibration or Calibration()
    found = []
    for role, chosen in deployment.layout.roles.items():
        times, _, pool = step_time(deployment, chosen, role, calibration)
        if role != "decode":
            found.append(_prefill(times, role, prompt_tokens))
        if role != "prefill":
            cached = batch * context_tokens
            _check_pool(batch, context_tokens, pool)
            found.append(Explanation("decode", role, batch, cached, tuple(times.explain_decode(batch, cached))))
    return found


def _check_lengths(deployment: Deployment, batch: int, context_tokens: int, prompt_tokens: int) -> None:
    for name, value in (("batch", batch), ("context", context_tokens), ("prompt", prompt_tokens)):
        if value < 1:
            raise InputError(f"{name} is {value}; give at least 1")
    longest, model = max(context_tokens, prompt_tokens), deployment.model
    if longest > model.context_tokens:
        raise InputError(
            f"{longest:,} tokens are more than the context of {model.name} holds; ask for at most "
            f"{model.context_tokens:,}"
        )


def _check_pool(batch: int, context_tokens: int, pool_tokens: int) -> None:
    """A step that no engine could ever run would only mislead."""
    if batch * context_tokens > pool_tokens:
        raise InputError(
            f"{batch:,} requests of {context_tokens:,} tokens do not fit the KV pool of {pool_tokens:,}; "
            f"ask for a batch of at most {pool_tokens // context_tokens:,}, or more GPUs"
        )


def _prefill(times: StepTime, role: str, prompt: int) -> Explanation:
    """A round filled with prompts of one length, cut to the chunk."""
    chunk = times.applied.chunk_tokens
    piece = min(prompt, max(1, chunk // (times.layout.attn_dp * times.layout.pp)))
    count = max(1, chunk // piece)
    pairs = count * piece * (piece + 1) / 2
    terms = times.explain_prefill(count * piece, pairs, count, piece)
    return Explanation("prefill", role, count, count * piece, tuple(terms))
