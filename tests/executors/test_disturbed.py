"""A whole campaign on a real Slurm under everything that happens to campaigns, beside a calm one of the same study."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import slurm_cluster
from tests.disturbed import ON_SLURM, RUNS_OF_A_CALM_ONE, SlurmSystem, Stage, audit

pytestmark = pytest.mark.slurm

FAULTS = (
    (2, "controller killed, job ends alone"),
    (3, "job cancelled"),
    (4, "controller killed before the job's id is read"),
    (6, "job requeued"),
    (7, "server restarted"),
    (8, "controller killed as it submits"),
    (10, "slurmd restarted"),
    (12, "queue hangs"),
    (17, "controller and submission killed, accounting off"),
    (18, "node down"),
    (19, "job cancelled"),
    (20, "controller killed, job runs on"),
)


@pytest.fixture
def system() -> Iterator[SlurmSystem]:
    """Of its own: daemons come and go here. KillWait as Slurm has it by default, since nothing here ignores a TERM."""
    if reason := slurm_cluster.missing():
        pytest.skip(reason)
    with slurm_cluster.slurm_cluster(kill_wait_s=30) as cluster:
        yield SlurmSystem(cluster)


@pytest.mark.timeout(1500)  # about a minute of its own; the machine may be busy with other things
@pytest.mark.slow
def test_a_disturbed_campaign_loses_nothing_submits_nothing_twice_and_finds_the_same(
    system: SlurmSystem, tmp_path: Path
) -> None:
    assert {kind for _, kind in FAULTS} == set(ON_SLURM)
    calm, disturbed = Stage(tmp_path / "calm", system), Stage(tmp_path / "disturbed", system, FAULTS)
    calm.play()
    disturbed.play()
    expected, found = audit(calm), audit(disturbed)
    assert expected.runs == RUNS_OF_A_CALM_ONE
    assert found.runs > RUNS_OF_A_CALM_ONE, "what fell to a fault was run again"
    kills = sum("killed" in kind for _, kind in FAULTS)
    assert len(disturbed.events("opened")) == 1 + kills + 1, "one more brings the ledger up to date"
    for each in (expected, found):
        assert (each.lost, each.twice, each.left) == ((), (), ())
        assert each.verified
        assert each.ledger_s == pytest.approx(each.books_s, rel=0.02)
    # not where its blocks ran: a node that was lost for a while sends later ones elsewhere
    assert shown_by(found.answer) == shown_by(expected.answer)
    assert found.answer["winner"] == {"x": 8}


def shown_by(answer: Mapping[str, Any]) -> list[tuple[str, str, float]]:
    rows = answer["comparisons"]
    return [(row["candidate"], row["verdict"], round(row["estimate"], 9)) for row in rows]
