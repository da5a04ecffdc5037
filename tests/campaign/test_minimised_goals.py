"""A campaign that minimises a time runs the same settings and says the same as one that maximises its rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ridgeline import catalog
from ridgeline.campaign.assembly import assemble_campaign, assemble_folder
from ridgeline.campaign.check import check_study
from ridgeline.campaign.kinds import gate
from ridgeline.campaign.kinds.base import CampaignQuestion
from ridgeline.campaign.kinds.bisect import BisectQuestion
from ridgeline.campaign.kinds.compare import ComparisonQuestion
from ridgeline.campaign.kinds.edge import EdgeQuestion
from ridgeline.campaign.kinds.gate import GateQuestion
from ridgeline.campaign.kinds.scale import ScalingQuestion
from ridgeline.campaign.kinds.search import SearchQuestion
from ridgeline.campaign.kinds.steps import StepsQuestion
from ridgeline.campaign.status import read_status
from ridgeline.study.history import read_history

STUDY = """\
version: 1
name: mirrored
workload:
  kind: command
  run: >-
    awk 'BEGIN {{ r = 100 + 20 * {x} - 3 * {x} * {x} + 10 * {y};
    printf "rate %.12g\\ntime %.12g\\n", r, 1000 / r; exit {x} > 7 }}'
  metrics: {{rate: {{regex: 'rate (.*)'}}, time: {{regex: 'time (.*)'}}}}
space: {{x: {{from: 0, to: 9}}, y: [0, 1]}}
goal: {{GOAL}}
baseline: {{x: 1, y: 0}}
budget: {{trials: 8}}
search: {{sampler: SAMPLER, seed: 3, sentinel_every: 3}}
confirm: {{top: 2, blocks: 3, warmup: never}}
job: {{limit: 60}}
""".replace("{{", "{").replace("}}", "}")  # fmt: skip


def rate(x: int, y: int) -> float:
    return 100 + 20 * x - 3 * x * x + 10 * y


@dataclass(frozen=True)
class Ended:
    """What a campaign came to, without the names and values of its metric."""

    tried: list[tuple[str, dict[str, Any]]]
    conclusion: str
    settings: Mapping[str, Any] | None
    keep: bool
    worse: bool
    gain: tuple[float, float | None, float | None] | None
    comparisons: list[tuple[str, str, float | None]]


def ended(root: Path, question: CampaignQuestion, goal: str, sampler: str = "random") -> Ended:
    root.mkdir()
    (root / "study.yaml").write_text(STUDY.replace("GOAL", goal).replace("SAMPLER", sampler))
    folder = assemble_folder(check_study(root / "study.yaml"), root / "out", "mirrored")
    with assemble_campaign(folder, question) as running:
        running.run()
    answer, history = read_status(root / "out").answer, read_history(root / "out")
    assert history.verdict is not None
    gain = answer.candidate.gain if answer.candidate is not None else None
    ends = (
        None if gain is None else tuple(None if e is None else round(e, 6) for e in (gain.ratio, gain.low, gain.high))
    )
    return Ended(
        [(trial.stage.value, dict(trial.point)) for trial in history.trials.values()],
        history.verdict.conclusion,
        answer.to_use,
        answer.keep,
        answer.worse,
        ends,  # type: ignore[arg-type]
        [
            (row["candidate"], row["verdict"], None if row["estimate"] is None else round(row["estimate"], 6))
            for row in history.verdict.details.get("comparisons", ())
        ],
    )


def point(x: int, y: int = 0) -> dict[str, Any]:
    return {"x": x, "y": y}


STORED = [rate(1, 0) * (1 + 0.001 * (n % 5)) for n in range(12)]
QUESTIONS: dict[str, tuple[CampaignQuestion, str]] = {
    "search": (SearchQuestion(), "confirmed"),
    "compare, better": (ComparisonQuestion(point(1), point(3), 3), "confirmed"),
    "compare, worse": (ComparisonQuestion(point(3), point(1), 3), "worse"),
    "edge": (EdgeQuestion("x", point(1), repeats=2), ""),
    "scale": (ScalingQuestion("x", [point(1), point(2), point(3)], 2), ""),
    "steps": (StepsQuestion([point(2), point(3)], ["first", "second"], None, 3), ""),
    "gate, slower": (GateQuestion(point(0), STORED), "slower"),
    "gate, not slower": (GateQuestion(point(1), STORED), ""),
    "bisect": (BisectQuestion("x", [point(x) for x in (3, 2, 1, 0)]), ""),
    "bisect, nothing": (BisectQuestion("x", [point(x) for x in (0, 1, 2)]), ""),
}


def test_every_kind_is_asked() -> None:
    assert {question.kind for question, _ in QUESTIONS.values()} == set(catalog.TABLE["kinds"])


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_time_is_minimised_as_its_rate_is_maximised(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "machine_state", lambda runs: None)  # however busy the machine of the tests is
    question, concluded = QUESTIONS[name]
    mirrored = question
    if isinstance(question, GateQuestion):
        mirrored = replace(question, stored=[1000 / value for value in STORED])
    as_rate = ended(tmp_path / "rate", question, "maximize: rate")
    as_time = ended(tmp_path / "time", mirrored, "minimize: time")
    assert as_time == as_rate
    assert concluded in as_rate.conclusion
