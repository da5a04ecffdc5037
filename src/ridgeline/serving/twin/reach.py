"""How far a calibration can be trusted for a setting that is not the one it was measured on.

The widths are what public rows show (docs/accuracy.md): sites calibrated on two of their rows, judged on rows of other
layouts and loads, of other releases and precisions, and of other models on the same GPUs. Corrections of a whole phase
do not carry over to another model: there they did more harm than good.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources

from ridgeline.errors import InputError
from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.releases import title_of
from ridgeline.serving.model.config import load_model, preset_names
from ridgeline.serving.traffic.requests import RequestRecord, Spread, Summary
from ridgeline.serving.twin.calibration import (
    PHASES,
    UNCALIBRATED_SPREAD,
    Calibration,
    Factors,
    ValidatedSetting,
)
from ridgeline.serving.twin.energy import HELD_BACK_SPREAD
from ridgeline.serving.twin.rates import has_tables

# Standard deviations of log(measured / predicted) that come on top: of speeds, and of first tokens.
LAYOUT = (0.08, 0.20)
LOAD = (0.06, 0.30)
RELEASE = (0.10, 0.20)
_PRECISION = (0.09, 0.10)
# Never measured: what a network factor nobody saw, and a router and a transfer, may do. As wide as without calibration.
NODES = (0.15, 0.20)
APART = (0.30, 0.45)
# A load this many times beyond those that were measured is another regime.
_BEYOND = 2.0
# Of the corrections of a phase, what carries over to other weights of the same model.
_OTHER_WEIGHTS_SHARE = 0.5


# Where nothing of the site was measured: what a setting that no public or own row covers adds. A new model, and a new
# model on a new GPU, are what rows that nobody here had seen showed in November 2026 (79 and 59% inside intervals made
# for seen ones, 50 and 40%). A GPU with operator tables of its own is nearer, as is a model of a known family.
_NEW_FAMILY, _NEW_MODEL = (0.11, 0.49), (0.06, 0.25)
_NEW_GPU, _TABLED_GPU = (0.26, 0.68), (0.18, 0.50)
_NEW_ENGINE = (0.20, 0.50)
_DRAFTED = (0.12, 0.12)


@dataclass(frozen=True, slots=True)
class Validation:
    """How far a setting is from the nearest one whose predictions were compared with measurements.

    `speed` and `first_token` are standard deviations of log(measured / predicted) that come on top.
    """

    speed: float = 0.0
    first_token: float = 0.0
    line: str = ""


@lru_cache(maxsize=1)
def validated() -> tuple[ValidatedSetting, ...]:
    """Settings whose predictions were compared with measurements: validated.csv, written by benchmarks/twin/gate.py."""
    text = (resources.files("ridgeline.serving.twin") / "validated.csv").read_text()
    return tuple(
        ValidatedSetting(
            gpu=row["gpu"],
            engine=row["engine"],
            release=row["release"],
            model=row["model"],
            weights=row["weights"],
            shape="",
            apart=row["apart"] == "yes",
            fewest=float(row["fewest"]),
            most=float(row["most"]),
        )
        for row in csv.DictReader(text.splitlines())
    )


def validation(
    deployment: Deployment, under_way: float, scenes: Sequence[ValidatedSetting] | None = None
) -> Validation:
    """`scenes` are those to compare with, instead of all that were validated."""
    asked = ValidatedSetting.of(deployment, under_way, under_way)
    drafted = deployment.role_settings("decode" if asked.apart else "both").draft_tokens > 1
    chosen = validated() if scenes is None else scenes
    if not chosen:
        speed, first = (math.hypot(*widths) for widths in zip(_NEW_ENGINE, _NEW_FAMILY, _NEW_GPU, strict=True))
        return Validation(speed, first)
    tabled = has_tables(deployment.cluster.gpu)
    found = _least_unlike(chosen, asked, mixture=deployment.model.experts is not None, tabled=tabled)
    if drafted:
        found = [*found, ("drafting, seen for DeepSeek-R1 and for three models on one H200", _DRAFTED)]
    found = [*found, *_held(deployment)]
    if not found:
        return Validation()
    speed, first = (math.hypot(*(widths[n] for _, widths in found)) for n in (0, 1))
    return Validation(speed, first, f"never compared with a measurement: {'; '.join(text for text, _ in found)}")


def _held(deployment: Deployment) -> list[tuple[str, tuple[float, float]]]:
    """What bounds owe to it is `UncertaintySources.held_back`: it hangs on the clock that is left."""
    words = deployment.cluster.gpu.limits.words
    return [(f"GPUs held to {' and '.join(words)}", (0.0, 0.0))] if words else []


def _least_unlike(
    chosen: Sequence[ValidatedSetting], asked: ValidatedSetting, *, mixture: bool, tabled: bool
) -> list[tuple[str, tuple[float, float]]]:
    """Differences from the nearest of these; of several that are as near, from a mixture or a dense model as asked."""
    ranked = [(scene.model, _unlike(scene, asked, tabled=tabled)) for scene in chosen]
    least = min(_width(differences) for _, differences in ranked)
    near = [(model, differences) for model, differences in ranked if _width(differences) == least]
    return next((differences for model, differences in near if _is_mixture(model) == mixture), near[0][1])


@lru_cache(maxsize=64)
def _is_mixture(model: str) -> bool | None:
    """None of a model that was measured once and is no preset."""
    return load_model(model).experts is not None if model in preset_names() else None


def _width(differences: Sequence[tuple[str, tuple[float, float]]]) -> float:
    return math.hypot(*(width for _, widths in differences for width in widths))


def _unlike(scene: ValidatedSetting, asked: ValidatedSetting, *, tabled: bool) -> list[tuple[str, tuple[float, float]]]:
    """In what a setting differs from one that was validated: in words, with what it adds to the widths."""
    found: list[tuple[str, tuple[float, float]]] = []
    if scene.engine != asked.engine:
        found.append((f"{title_of(asked.engine)} (nearest: {title_of(scene.engine)})", _NEW_ENGINE))
    elif _line(scene) != _line(asked):
        found.append((f"release {asked.release} (nearest: {scene.release})", RELEASE))
    if scene.model != asked.model:
        kin = _family(scene.model) == _family(asked.model)
        found.append((f"{asked.model} (nearest: {scene.model})", _NEW_MODEL if kin else _NEW_FAMILY))
    if scene.gpu != asked.gpu:
        found.append((f"{asked.gpu.upper()} (nearest: {scene.gpu.upper()})", _TABLED_GPU if tabled else _NEW_GPU))
    if scene.weights != asked.weights:
        found.append((f"weights in {asked.weights} (nearest: {scene.weights})", _PRECISION))
    if scene.apart != asked.apart:
        found.append(("prefill and decode apart" if asked.apart else "prefill and decode together", RELEASE))
    if asked.most and not scene.fewest / _BEYOND <= asked.most <= scene.most * _BEYOND:
        found.append((f"{_load_text(asked.most)} at once in an engine (nearest: {scene.loads})", LOAD))
    return found


def _load_text(requests: float) -> str:
    if requests > 1.5:
        return f"{requests:.0f} requests"
    return "about one request" if requests > 0.5 else "hardly a request"


def _line(scene: ValidatedSetting) -> str:
    """0.5.9 of a 0.5 that is refined for years, 0.18 of an engine with a new minor number every month."""
    parts = scene.release.split(".")
    return ".".join(parts[: 3 if parts[:2] == ["0", "5"] else 2])


def _family(model: str) -> str:
    """`deepseek` of deepseek-v3.2, `qwen3` of qwen3-32b: letters and digits up to the first dash or dot."""
    return re.split(r"[-.]", model)[0]


@dataclass(frozen=True, slots=True)
class CalibrationReach:
    """A calibration as it applies to one setting, and a sentence about it; empty where nothing is calibrated."""

    calibration: Calibration
    line: str = ""


def at_once(summary: Summary, layout: Layout) -> float:
    """Requests under way in one engine on average: their rate times their stay."""
    stay_s = summary.e2e_ms.mean / 1000 if summary.e2e_ms else 0.0
    return summary.requests_s * stay_s / max(1, (layout.decode or layout).dp)


def factors_for(calibration: Calibration, deployment: Deployment) -> Factors:
    """The factors that carry over to this deployment. Raises InputError for another GPU or engine."""
    near = _nearest(calibration, deployment)
    if near is None:
        return calibration.factors
    share = _phase_share(near, ValidatedSetting.of(deployment, 0, 0))
    kept = {name: getattr(calibration.factors, name) ** share for name in PHASES}
    return calibration.factors if share == 1.0 else replace(calibration.factors, **kept)


def reach(calibration: Calibration, deployment: Deployment, under_way: float) -> CalibrationReach:
    """`under_way`: requests in one engine, on average."""
    if not calibration.points:
        return CalibrationReach(calibration)
    near = _nearest(calibration, deployment)
    if near is None:
        return CalibrationReach(
            calibration, f"as far as {_range(calibration)}; the file does not say what was measured"
        )
    new = [*_new(near, ValidatedSetting.of(deployment, under_way, under_way)), *_held(deployment)]
    if not new:
        where = f"{near.model}, {near.shape}, {near.loads} at once"
        return CalibrationReach(calibration, f"the setting that was calibrated ({where}): {_range(calibration)}")
    spread = math.hypot(calibration.spread, *(width for _, (width, _) in new))
    if near.model != deployment.model.name:
        spread = max(spread, UNCALIBRATED_SPREAD)
    first = math.hypot(*(width for _, (_, width) in new))
    wide = replace(calibration, spread=spread, first_token_spread=first)
    news = "; ".join(text for text, _ in new)
    return CalibrationReach(wide, f"less than where it was calibrated ({_range(calibration)}): {news}; {_range(wide)}")


def _nearest(calibration: Calibration, deployment: Deployment) -> ValidatedSetting | None:
    """The measured setting that differs least; None where the file names none."""
    scenes = calibration.scope
    if not scenes:
        return None
    gpu, engine = deployment.cluster.gpu.name, deployment.settings.engine
    sources = ", ".join(calibration.sources) or "its file"
    here = [s for s in scenes if s.gpu == gpu]
    if not here:
        raise InputError(
            f"this calibration ({sources}) was measured on {_names(s.gpu.upper() for s in scenes)}, not on "
            f"{gpu.upper()}; calibrate on {gpu.upper()} with `ridgeline twin calibrate`, or leave --calibration out"
        )
    mine = [s for s in here if s.engine == engine]
    if not mine:
        names = _names(title_of(s.engine) for s in here)
        raise InputError(
            f"this calibration ({sources}) was measured on {names}, not on {title_of(engine)}: their hosts and "
            f"front ends differ; calibrate from a run of {title_of(engine)}, or leave --calibration out"
        )
    asked = ValidatedSetting.of(deployment, 0, 0)
    return min(mine, key=lambda s: (s.model != asked.model, s.weights != asked.weights, len(_new(s, asked))))


def _phase_share(near: ValidatedSetting, asked: ValidatedSetting) -> float:
    if near.model != asked.model:
        return 0.0
    return 1.0 if near.weights == asked.weights else _OTHER_WEIGHTS_SHARE


def _new(near: ValidatedSetting, asked: ValidatedSetting) -> list[tuple[str, tuple[float, float]]]:
    """What nobody measured: in words, with what it adds to the widths."""
    found: list[tuple[str, tuple[float, float]]] = []
    if near.model != asked.model:
        found.append((f"another model than {near.model}, corrections of whole phases not used", (0.0, 0.20)))
    elif near.weights != asked.weights:
        found.append((f"weights in {asked.weights}, not {near.weights}", _PRECISION))
    if near.release and near.release != asked.release:
        found.append((f"release {asked.release}, not {near.release}", RELEASE))
    if near.apart != asked.apart:
        found.append((f"{asked.shape}, not {near.shape}", APART))
    elif near.shape != asked.shape:
        found.append((f"{asked.shape}, not {near.shape}", LAYOUT))
    if asked.between_nodes and not near.between_nodes:
        found.append(("between nodes", NODES))
    if asked.most and near.most and not near.fewest / _BEYOND <= asked.most <= near.most * _BEYOND:
        found.append((f"{_load_text(asked.most)} at once in an engine, not {near.loads}", LOAD))
    return found


def _range(calibration: Calibration) -> str:
    low, high = calibration.ratio_interval()
    return f"speeds within {low - 1:+.0%} and {high - 1:+.0%}"


def _names(values: Iterable[str]) -> str:
    return " and ".join(dict.fromkeys(values))


# How sure each figure of a simulated run is: nine of ten measured ones should lie between its two bounds.
#
# A calibration states how far a new setting's speed falls from its prediction. Three things vary more than that speed,
# and what a figure owes to them widens it: prefill rounds without graphs, decode steps that wait for the host, and
# kernels compiled while a burst is served. docs/accuracy.md counts how often measured rows fall inside.

# Standard deviations of log(measured / predicted), beyond the calibration's own. Steps without a graph took 21 to 39 ms
# for the same work on one machine within minutes; rounds of the same groups on the same nodes differed by half.
PREFILL_SPREAD = 0.30
HOST_SPREAD = 0.25
TTFT_SPREAD = 0.26
ITL_SPREAD = 0.06
# While nothing of a site was measured: how far the speed of public rows falls from its prediction, by what they run.
# With 0.11, nine tenths of SGLang's 259 rows reached 12% beyond the bounds of TPOT, of vLLM's 379 rows 15%.
UNMEASURED_SPREAD = 0.13
# Prefill and decode apart: what a router, a transfer and two engines add.
APART_SPREAD = 0.28
APART_TTFT_SPREAD = 0.40
# Mixtures under vLLM before 0.14 took up to twice as long as their kernels when this was chosen. Some of the reasons
# were found since (`expert_rows`, `sorts_logits`); it was left as it was.
_OLD_EXPERTS_SPREAD = 0.30
# Users who wait for each other: a few percent more or less speed decide between a short queue and a long one. From this
# share of the mean TTFT on, its spread grows up to the second figure where waiting is all of it, and the queue may not
# be there at all: then what is left is the wait of the luckiest.
_QUEUED_FROM, _QUEUE_SPREAD = 0.7, 0.85
# First bursts of a size on groups that compile their kernels while serving waited up to this much longer.
COMPILE_WAIT_S = 6.0


_COMPARED = Validation()


@dataclass(frozen=True, slots=True)
class UncertaintySources:
    """What a run's figures rest on: the share of its time in prefill, the share waiting for the host, and a stall."""

    prefill_share: float = 0.0
    host_share: float = 0.0
    stall_s: float = 0.0
    apart: bool = False  # prefill and decode on GPUs of their own
    old_experts: bool = False  # a mixture under a release of vLLM that was slower than its kernels
    queued_share: float = 0.0  # of the mean TTFT: what the luckiest request did not wait
    sent_for_s: float = 0.0  # when the last request is sent, where that is not the server's doing
    held_back: float = 0.0  # the part of their usual clock that its passes lost to a limit, on average
    validation: Validation = _COMPARED  # how far this is from anything whose prediction was compared


def intervals(
    summary: Summary, last_ttft_s: float | None, calibration: Calibration, doubts: UncertaintySources
) -> dict[str, tuple[float, float]]:
    """Bounds by the name of the figure. Latencies carry the percentile, as in an SLO: ttft_p95_ms. `speed` is how slow
    and how fast the real thing may be, over what is predicted."""
    apart = apart_ttft = queue = 0.0
    if calibration.points == 0:
        new = doubts.validation
        calibration = replace(
            calibration, spread=math.hypot(UNMEASURED_SPREAD, new.speed), first_token_spread=new.first_token
        )
        old = _OLD_EXPERTS_SPREAD if doubts.old_experts else 0.0
        apart, apart_ttft = (APART_SPREAD, APART_TTFT_SPREAD) if doubts.apart else (old, old)
        queue = _QUEUE_SPREAD * max(0.0, doubts.queued_share - _QUEUED_FROM) / (1.0 - _QUEUED_FROM)
    held_back = HELD_BACK_SPREAD * doubts.held_back
    whole = math.hypot(PREFILL_SPREAD * doubts.prefill_share, HOST_SPREAD * doubts.host_share, apart, held_back)
    low, high = calibration.ratio_interval(whole)
    longest_s = summary.duration_s * high + doubts.stall_s
    shortest_s = max(summary.duration_s * low, min(doubts.sent_for_s, summary.duration_s))
    slowest = summary.duration_s / longest_s if longest_s > 0 else 1.0
    # a faster server gets no more than is sent: its speed is not bounded by that, its throughput is
    fastest = summary.duration_s / shortest_s if shortest_s > 0 else 1.0
    bounds = {"speed": (slowest, 1.0 / low), "duration_s": (shortest_s, longest_s)}
    for name, value in (("total_tok_s", summary.total_tok_s), ("output_tok_s", summary.output_tok_s)):
        bounds[name] = (value * slowest, value * fastest)
    alone = math.hypot(
        TTFT_SPREAD, HOST_SPREAD * doubts.host_share, apart_ttft, calibration.first_token_spread, held_back
    )
    ttft = calibration.ratio_interval(math.hypot(alone, queue))
    if queue:
        least = calibration.ratio_interval(alone)[0] * (1.0 - doubts.queued_share)
        ttft = min(ttft[0], least), ttft[1]
    itl = math.hypot(ITL_SPREAD, HOST_SPREAD * doubts.host_share, apart, held_back)
    bounds |= _latency("ttft", summary.ttft_ms, ttft, doubts.stall_s)
    bounds |= _latency("itl", summary.itl_ms, calibration.ratio_interval(itl), 0.0)
    bounds |= _latency("e2e", summary.e2e_ms, (low, high), doubts.stall_s)
    for quantile in ("p50", "p95", "p99"):
        if (ttft_ms := bounds.get(f"ttft_{quantile}_ms")) and (e2e_ms := bounds.get(f"e2e_{quantile}_ms")):
            # an answer ends after its first token, so it may end as late as that may come
            bounds[f"e2e_{quantile}_ms"] = e2e_ms[0], max(e2e_ms[1], ttft_ms[1])
    if last_ttft_s is not None:
        low, high = ttft
        bounds["ttft_last_ms"] = (last_ttft_s * low * 1000, (last_ttft_s * high + doubts.stall_s) * 1000)
    return bounds


def queued_share(records: Sequence[RequestRecord]) -> float:
    """How much of the mean TTFT the luckiest request did not wait."""
    waits = [t for r in records if (t := r.ttft_s) is not None]
    return 1.0 - min(waits) * len(waits) / sum(waits) if waits and sum(waits) > 0 else 0.0


def _latency(
    name: str, spread: Spread | None, ratios: tuple[float, float], stall_s: float
) -> dict[str, tuple[float, float]]:
    if spread is None:
        return {}
    points = {"p50": spread.p50, "p95": spread.p95, "p99": spread.p99}
    return {f"{name}_{q}_ms": (v * ratios[0], v * ratios[1] + stall_s * 1000) for q, v in points.items()}
