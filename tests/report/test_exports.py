"""The current metrics, as Prometheus reads them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ridgeline.campaign.status import CampaignStatus
from ridgeline.records.space import Continuous, Discrete, Space
from ridgeline.report.prometheus import metrics_text
from ridgeline.study.history import read_history
from ridgeline.testing import ScriptedAnswer
from tests.campaign.harness import campaign, study


def hostile(root: Path) -> CampaignStatus:
    """A campaign with a crash, a knob that exists at times, and names that are no file names."""
    a, b = Discrete("../a b", (0, 1, 2), ordered=True), Continuous("b", 0.5, 8.0, log=True)
    c = Discrete("c", ("x/../y", True), ordered=False)
    question = study(root, name="../up\n", space=Space((a, b, c), {}), baseline={"../a b": 0, "b": 1.0, "c": True})
    question = replace(question, question="50% <faster>?")

    def answer(settings: Any) -> ScriptedAnswer:
        if settings["c"] == "x/../y":
            return ScriptedAnswer(exit_code=3, stderr="it: failed\n")
        return ScriptedAnswer({"rate": 10.0 + settings["b"], "got/../x": 1.0})

    done = campaign(root, question, answer)
    done.run()
    return CampaignStatus(done.question, question, read_history(root))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> CampaignStatus:
    return hostile(tmp_path_factory.mktemp("done"))


def test_prometheus_gets_one_head_for_each_name_and_escaped_labels(done: CampaignStatus) -> None:
    text = metrics_text((done.as_json(), "rate"))
    heads = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(heads) == len(set(heads))
    assert 'ridgeline_finished{study="../up\\n"} 1' in text.splitlines()
    ok = sum(run.outcome is not None and run.outcome.kind == "ok" for run in done.history.runs.values())
    assert f'ridgeline_runs_total{{study="../up\\n",outcome="ok"}} {ok}' in text.splitlines()
    assert "budget_node_hours" not in text, "what is not limited has no sample"


@pytest.mark.parametrize(
    ("presence", "verdict", "up"), [("here", None, 1), ("elsewhere", None, 1), ("gone", None, 0), ("here", "won", 0)]
)
def test_prometheus_knows_whether_somebody_is_at_work(presence: str, verdict: str | None, up: int) -> None:
    budget = {"trials": None, "wall_s": 60.0, "node_hours": None}
    status = {
        "name": "s", "unit": "", "budget": budget, "controller": {"presence": presence}, "verdict": verdict,
        "stopped": None, "outcomes": {"ok": 3}, "running": [], "trials": 2, "node_hours": 0.5, "wall_s": 30.0,
        "baseline": None, "paused": False, "best": None,
    }  # fmt: skip
    lines = metrics_text((status, "rate")).splitlines()
    assert f'ridgeline_controller_up{{study="s"}} {up}' in lines
    assert f'ridgeline_finished{{study="s"}} {int(verdict is not None)}' in lines
    assert 'ridgeline_budget_seconds{study="s"} 60' in lines
    assert not [line for line in lines if "budget_trials" in line or "baseline_value" in line], "no limit, no sample"
