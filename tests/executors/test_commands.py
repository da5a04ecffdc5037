"""The commands of a batch system hear what was rendered, and nothing that the caller's environment adds to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.errors import SiteError
from ridgeline.executors import batch
from ridgeline.executors.base import with_retries
from ridgeline.executors.batch import run
from ridgeline.executors.dialect import BatchDialect, Blame
from ridgeline.executors.pbs import Pbs
from ridgeline.executors.slurm import Slurm
from ridgeline.records.site import Site

SITE = Site("here", batch="slurm")


def environment(monkeypatch: pytest.MonkeyPatch, dialect: BatchDialect, **variables: str) -> set[str]:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return set(run(["env"], SITE, dialect).stdout.splitlines())


@pytest.mark.parametrize("inside", [True, False], ids=["inside a job", "outside"])
def test_what_slurms_commands_would_obey_is_left_out(monkeypatch: pytest.MonkeyPatch, inside: bool) -> None:
    """sbatch takes SBATCH_PARTITION before the script's own line, and SLURM_NTASKS of a job around it for a request."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    if inside:
        monkeypatch.setenv("SLURM_JOB_ID", "7")
    obeyed = (
        *("SBATCH_PARTITION", "SBATCH_TIMELIMIT", "SBATCH_REQUEUE", "SLURM_NTASKS", "SLURM_TIME_FORMAT"),
        *("SALLOC_ACCOUNT", "SRUN_CPUS_PER_TASK", "SQUEUE_FORMAT", "SACCT_FORMAT", "SCANCEL_STATE", "SINFO_FORMAT"),
        *("SLURM_CLUSTERS", "SLURMD_NODENAME", "SCONTROL_ALL"),
    )
    kept = {"SLURM_CONF": "/etc/s.conf", "SLURM_JWT": "token", "HOME": "/home/me", "OMP_NUM_THREADS": "3"}
    seen = environment(monkeypatch, Slurm(), **dict.fromkeys(obeyed, "1"), **kept)
    assert {*(f"{name}={value}" for name, value in kept.items()), "LC_ALL=C"} <= seen
    assert not [line for line in seen if line.partition("=")[0] in (*obeyed, "SLURM_JOB_ID")]


def test_what_the_commands_of_pbs_would_obey_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With PBS_DPREFIX qsub reads no #PBS line at all; which server it is stays for the user to say."""
    obeyed = ("PBS_DPREFIX", "PBS_QSTAT_EXECONLY", "PBS_JOBID", "PBS_O_WORKDIR", "PBS_NODEFILE", "PBS_QUEUE")
    kept = {"PBS_DEFAULT": "pbs2", "PBS_SERVER": "pbs2", "PBS_CONF_FILE": "/etc/pbs2.conf", "PBS_EXEC": "/opt/pbs"}
    seen = environment(monkeypatch, Pbs(), **dict.fromkeys(obeyed, "1"), **kept)
    assert {f"{name}={value}" for name, value in kept.items()} <= seen
    assert not [line for line in seen if line.partition("=")[0] in obeyed]


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
