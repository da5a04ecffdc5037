"""The commands of a batch system hear what the user set, and not what the job we ourselves run in was given."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.errors import SiteError
from ridgeline.executors import batch
from ridgeline.executors.base import with_retries
from ridgeline.executors.batch import run
from ridgeline.executors.dialect import Blame
from ridgeline.executors.pbs import Pbs
from ridgeline.executors.slurm import Slurm
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


def test_a_command_that_may_not_be_run_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where somebody's PATH names a folder that we may not look into."""
    (tmp_path / "no-such-batch-system").write_text("#!/bin/sh\n")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(SiteError, match="login node"):
        run(["no-such-batch-system"], SITE, Slurm())


def test_a_command_that_hangs_is_ended_and_nobody_knows_what_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "COMMAND_LIMIT_S", 0.2)
    for dialect in (Slurm(), Pbs()):
        answer = batch.run(["sleep", "60"], Site(name="here"), dialect)
        assert answer.code == 124
        assert dialect.refusal(answer, Site()).blame is Blame.UNSURE, "it may have been submitted"
        assert dialect.read_poll(answer) is None


def test_two_do_not_submit_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "COMMAND_LIMIT_S", 0.2)
    path = tmp_path / "submission"
    path.write_text("name\n")
    still = pytest.raises(SiteError, match="another process is still submitting")
    with batch.submitting(path), still as busy, batch.submitting(path):
        pass
    assert busy.value.transient
    with batch.submitting(path):
        pass


class LeavingError(Exception):
    """Somebody pressed Ctrl-C."""


def test_while_a_site_is_away_a_wish_to_leave_is_heard() -> None:
    def away() -> str:
        raise SiteError("away", transient=True)

    def leave() -> None:
        raise LeavingError

    with pytest.raises(LeavingError):
        with_retries(away, leave, 1000.0)
    with pytest.raises(SiteError, match="away"):
        with_retries(away, leave, -1.0)
