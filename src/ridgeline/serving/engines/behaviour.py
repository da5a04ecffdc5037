"""What weights decide and a shape does not: which experts a token goes to, and how many drafted tokens are kept.

The twin must be told, and so must an engine with dummy weights: their routers send every token to the same few experts,
and their drafts are never right. A study says it by `experts` and `accept_length`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from ridgeline.errors import InputError, near

TRAINED, UNIFORM, NORMAL, AS_LOADED, COLLAPSED = "", "uniform", "normal", "as-loaded", "collapsed"
_ZIPF = re.compile(r"zipf:(\d+(?:\.\d+)?)")
_LARGEST_ZIPF = 4.0


def parse_routing(text: str) -> str:
    """How tokens find their experts, as written in a study; InputError where it is none."""
    zipf = _ZIPF.fullmatch(text)
    if zipf and not 0 < float(zipf[1]) <= _LARGEST_ZIPF:
        raise InputError(f"experts {text!r}: the exponent of a Zipf law is above 0 and at most {_LARGEST_ZIPF:g}")
    if not zipf and text not in (UNIFORM, NORMAL, AS_LOADED):
        raise InputError(
            f"experts {text!r} is not known; write uniform, zipf:1.2 (or another exponent), normal (as vLLM draws it) "
            "or as-loaded"
        )
    return text


def popularity(routing: str, parts: int, count: int, trained_spread: float) -> tuple[float, ...]:
    """How often experts are asked for, over the mean, in so many equal parts of `count` experts.

    A trained router's popularity is log-normal. vLLM's `normal` maps a normal draw through a sigmoid onto the experts'
    numbers (routing_simulator_router.py, 0.20 to 0.33).
    """
    from statistics import NormalDist

    normal, places = NormalDist(), [(part + 0.5) / parts for part in range(parts)]
    if routing == UNIFORM:
        return (1.0,) * parts
    if routing == NORMAL:
        raw = [normal.pdf(math.log(at / (1 - at))) / (at * (1 - at)) for at in places]
    elif zipf := _ZIPF.fullmatch(routing):
        raw = [(at * count + 0.5) ** -float(zipf[1]) for at in places]
    else:
        raw = [math.exp(trained_spread * normal.inv_cdf(at)) for at in places]
    return tuple(each * parts / sum(raw) for each in raw)


@dataclass(frozen=True, slots=True)
class AcceptanceCurve:
    """Tokens kept of a verified step with one, two, ... drafted ones, the verified one included."""

    name: str
    kept: tuple[float, ...]
    source: str
    models: tuple[str, ...] = ()  # beginnings of the names of those for which it is taken where nobody says

    def length(self, drafted: int) -> float:
        return self.kept[min(drafted, len(self.kept)) - 1] if drafted else 1.0


# InferenceX's reference curves (golden_al_distribution, August 2026): the coding prompts of SPEED-Bench, up to 4,096
# tokens an answer, vLLM with real drafts on B300. Other prompts keep fewer.
CURVES = tuple(
    AcceptanceCurve(name, kept, source, models)
    for name, source, models, kept in (
        ("deepseek-v4-pro", "DeepSeek-V4-Pro's MTP layer", ("deepseek-v3", "deepseek-r1", "deepseek-v4"),
         (1.79, 2.27, 2.49, 2.54, 2.55, 2.55, 2.54, 2.58)),
        ("deepseek-v4-pro:no-thinking", "DeepSeek-V4-Pro's MTP layer without thinking", (),
         (1.92, 2.61, 2.97, 3.00, 3.10, 3.16, 3.00, 3.11)),
        ("deepseek-v4-pro-dspark", "DeepSeek-V4-Pro-0813 with DSpark", (),
         (1.84, 2.51, 3.01, 3.36, 3.61, 3.77, 3.73, 3.47)),
        ("glm-5.2", "GLM-5.2's MTP layer", ("glm-5",), (1.84, 2.50, 2.99, 3.33, 3.61, 3.78, 3.91, 4.06)),
        ("kimi-k2.5", "Kimi-K2.5 with EAGLE3", ("kimi-k2",), (1.83, 2.43, 2.88, 3.24, 3.46, 3.62, 3.71, 3.77)),
        ("kimi-k2.5:no-thinking", "Kimi-K2.5 with EAGLE3 without thinking", (),
         (1.80, 2.33, 2.75, 3.06, 3.25, 3.43, 3.46, 3.51)),
        ("kimi-k3-dspark", "Kimi-K3 with DSpark", ("kimi-k3",), (1.84, 2.45, 2.87, 3.22, 3.44, 3.54, 3.78, 3.88)),
        ("kimi-k3-dspark-block", "Kimi-K3 with DSpark, sampled drafts verified in blocks", (),
         (1.85, 2.51, 3.00, 3.36, 3.62, 3.75, 3.84, 4.00)),
        ("minimax-m3", "MiniMax-M3 with EAGLE3", ("minimax-m3",), (1.78, 2.38, 2.83, 3.11, 3.35, 3.45, 3.53, 3.74)),
        ("minimax-m3:no-thinking", "MiniMax-M3 with EAGLE3 without thinking", (),
         (1.84, 2.52, 2.93, 3.41, 3.59, 3.57, 3.85, 4.06)),
        ("minimax-m3-gqa", "MiniMax-M3 with EAGLE3 (GQA)", (), (1.79, 2.39, 2.78, 3.02, 3.21, 3.30, 3.52, 3.51)),
        ("minimax-m3-gqa:no-thinking", "MiniMax-M3 with EAGLE3 (GQA) without thinking", (),
         (1.83, 2.46, 2.97, 3.29, 3.72, 3.76, 3.75, 3.93)),
        ("qwen3.5", "Qwen3.5-397B's MTP layer", ("qwen3.5",), (1.93, 2.73, 3.39, 3.97, 4.41, 4.80, 5.04, 5.21)),
        ("qwen3.5:no-thinking", "Qwen3.5-397B's MTP layer without thinking", (),
         (1.92, 2.70, 3.33, 3.83, 4.20, 4.48, 4.73, 4.71)),
    )
)  # fmt: skip

CURVE_NAMES = tuple(curve.name for curve in CURVES)


def usual_curve(model: str) -> AcceptanceCurve | None:
    """The curve that is taken for a model of this name where nobody says; None where none was measured."""
    return next((curve for curve in CURVES if model.lower().startswith(curve.models or ("\0",))), None)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How many tokens a verified step keeps, by how many were drafted: one length for all depths, or a curve."""

    curve: AcceptanceCurve | None = None
    fixed: float | None = None

    def length(self, drafted: int) -> float:
        """InputError where so many cannot be kept."""
        if self.curve is not None:
            return self.curve.length(drafted)
        assert self.fixed is not None
        if self.fixed > drafted + 1:
            need = math.ceil(self.fixed) - 1
            raise InputError(
                f"an accept length of {self.fixed:g} needs at least {need} drafted token{'s' * (need > 1)}, this "
                f"setting drafts {drafted}; draft more, or give the lengths of each depth (accept_length: [1.8, 2.3, "
                "2.5], or the name of a curve)"
            )
        return self.fixed


def parse_acceptance(said: object) -> Acceptance:
    """A length such as 2.4, the lengths of one, two, ... drafted tokens, or the name of a measured curve."""
    if isinstance(said, str):
        try:
            typed = [float(part) for part in said.split(",")]  # as on a command line: 2.4, or 1.8,2.3,2.5
            return parse_acceptance(typed if len(typed) > 1 else typed[0])
        except ValueError:
            named = next((curve for curve in CURVES if curve.name == said), None)
        if named is None:
            raise InputError(f"no acceptance curve is called {said!r}; {near(said, CURVE_NAMES)}")
        return Acceptance(named)
    lengths = [_length(each) for each in (said if isinstance(said, list | tuple) else [said])]
    if not lengths:
        raise InputError("an empty list says no accept length; give one for one drafted token, for two, and so on")
    if not isinstance(said, list | tuple):
        return Acceptance(fixed=lengths[0])
    for drafted, kept in enumerate(lengths, 1):
        if kept > drafted + 1:
            raise InputError(f"of {drafted} drafted tokens at most {drafted + 1} can be kept, not {kept:g}")
    return Acceptance(AcceptanceCurve("your own", tuple(lengths), "the study"))


def _length(said: object) -> float:
    if not isinstance(said, int | float) or isinstance(said, bool):
        raise InputError(f"{said!r} is no accept length; give one such as 2.4, a list by drafted tokens, or a curve")
    if not 1 <= said < math.inf:
        raise InputError(f"an accept length of {said:g} is none; a verified step keeps at least 1 token")
    return float(said)


@dataclass(frozen=True, slots=True)
class Drafting:
    """What one step drafts and verifies: `passes` of the drafting layers, each over `branches` of a request, and
    `tokens` of a request verified, the one that was sampled included. One token is no drafting."""

    tokens: int = 1
    passes: int = 0
    branches: int = 1
    depth: int = 0  # drafted tokens that one answer can keep

    def __bool__(self) -> bool:
        return self.tokens > 1


# Algorithms whose drafts come from the text itself, and those that draft all tokens in one pass.
_NO_PASSES = frozenset({"ngram", "suffix", "ngram_gpu"})
_ONE_PASS = frozenset({"dflash", "dspark", "medusa", "domino"})


def drafting(method: str, tokens: int, steps: int | None, branches: int) -> Drafting:
    """From the settings of an engine: verified tokens, drafting steps, and branches of the tree of drafts."""
    if tokens <= 1:
        return Drafting()
    depth = tokens - 1 if steps is None or steps < 1 else min(steps, tokens - 1)
    passes = 0 if method.lower() in _NO_PASSES else 1 if method.lower() in _ONE_PASS else depth
    return Drafting(tokens, passes, branches, depth)
