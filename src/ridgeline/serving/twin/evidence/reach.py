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
from ridgeline.serving.engines.knobs.releases import title_of
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.model.config import load_model, preset_names
from ridgeline.serving.traffic.requests import Summary
from ridgeline.serving.twin.calibration import UNCALIBRATED_SPREAD, Calibration
from ridgeline.serving.twin.evidence.scope import ValidatedSetting, ValidatedSettings
from ridgeline.serving.twin.factors import PHASES, Factors
from ridgeline.serving.twin.kernels.rates import has_tables

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
def validated() -> ValidatedSettings:
    """Settings whose predictions were compared with measurements: validated.csv, written by benchmarks/twin/gate.py."""
    text = (resources.files("ridgeline.serving.twin.evidence") / "validated.csv").read_text()
    return ValidatedSettings(
        tuple(
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
    )


def validation(deployment: Deployment, under_way: float, scenes: ValidatedSettings | None = None) -> Validation:
    """`scenes` are those to compare with, instead of all that were validated."""
    asked = ValidatedSetting.of(deployment, under_way, under_way)
    drafted = deployment.role_settings("decode" if asked.apart else "both").draft_tokens > 1
    chosen = validated().scenes if scenes is None else scenes.scenes
    if not chosen:
        speed, first = (math.hypot(*widths) for widths in zip(_NEW_ENGINE, _NEW_FAMILY, _NEW_GPU, strict=True))
        return Validation(speed, first)
    tabled = has_tables(deployment.cluster.gpu)
    found = _least_unlike(chosen, asked, mixture=deployment.model.experts is not None, tabled=tabled)
    if drafted:
        found = [*found, ("drafting, seen on a dozen rows of DeepSeek-R1 alone", _DRAFTED)]
    if not found:
        return Validation()
    speed, first = (math.hypot(*(widths[n] for _, widths in found)) for n in (0, 1))
    return Validation(speed, first, f"never compared with a measurement: {'; '.join(text for text, _ in found)}")


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
        found.append((f"{asked.most:.0f} requests at once in an engine (nearest: {scene.loads})", LOAD))
    return found


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
    new = _new(near, ValidatedSetting.of(deployment, under_way, under_way))
    if not new:
        return CalibrationReach(calibration, f"the setting that was calibrated ({_where(near)}): {_range(calibration)}")
    spread = math.hypot(calibration.spread, *(width for _, (width, _) in new))
    if near.model != deployment.model.name:
        spread = max(spread, UNCALIBRATED_SPREAD)
    first = math.hypot(*(width for _, (_, width) in new))
    wide = replace(calibration, spread=spread, first_token_spread=first)
    news = "; ".join(text for text, _ in new)
    return CalibrationReach(wide, f"less than where it was calibrated ({_range(calibration)}): {news}; {_range(wide)}")


def _nearest(calibration: Calibration, deployment: Deployment) -> ValidatedSetting | None:
    """The measured setting that differs least; None where the file names none."""
    scenes = calibration.scope.scenes
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
        found.append((f"{asked.most:.0f} requests at once in an engine, not {near.loads}", LOAD))
    return found


def _where(scene: ValidatedSetting) -> str:
    return f"{scene.model}, {scene.shape}, {scene.loads} at once"


def _range(calibration: Calibration) -> str:
    low, high = calibration.ratio_interval()
    return f"speeds within {low - 1:+.0%} and {high - 1:+.0%}"


def _names(values: Iterable[str]) -> str:
    return " and ".join(dict.fromkeys(values))
