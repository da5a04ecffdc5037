"""The commands of a batch system hear what the user set, and not what the job we ourselves run in was given."""

from __future__ import annotations

import pytest

from ridgeline.errors import SiteError
from ridgeline.executors.commands import run
from ridgeline.executors.slurm.dialect import Slurm
from ridgeline.records.site import Site

SITE = Site("here", batch="slurm")


def environment(monkeypatch: pytest.MonkeyPatch, **variables: str) -> set[str]:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return set(run(["env"], SITE, Slurm()).stdout.splitlines())


def test_inside_a_job_its_variables_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """sbatch would take SLURM_NTASKS of the job around it for a request."""
    seen = environment(monkeypatch, SLURM_JOB_ID="7", SLURM_NTASKS="4", SLURM_CONF="/etc/s.conf", HOME="/home/me")
    assert {"SLURM_CONF=/etc/s.conf", "HOME=/home/me", "LC_ALL=C"} <= seen
    assert not [line for line in seen if line.startswith(("SLURM_NTASKS", "SLURM_JOB_ID"))]


def test_outside_a_job_the_users_own_settings_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert "SLURM_TIME_FORMAT=standard" in environment(monkeypatch, SLURM_TIME_FORMAT="standard")


def test_a_command_that_is_not_there_says_where_to_run() -> None:
    with pytest.raises(SiteError, match="login node"):
        run(["no-such-batch-system"], SITE, Slurm())
