"""Fixtures that more than one room's tests need."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from tests import slurm_cluster

# `python3` may be a shell script that looks up which one to start, as pyenv's shims do; tests start it very often.
_PYTHONS = Path(sys.base_prefix) / "bin"
if (_PYTHONS / "python3").exists() and Path(shutil.which("python3") or "").parent != _PYTHONS:
    os.environ["PATH"] = f"{_PYTHONS}{os.pathsep}{os.environ['PATH']}"

# What a cluster, a shell or a continuous integration sets for its users is none of a test's business: jobs inherit it.
_FOREIGN = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "OMPI_", "MPICH_", "I_MPI_", "NCCL_", "UCX_"),
    *("SLURM_", "SBATCH_", "SALLOC_", "SRUN_", "SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_", "PBS_", "QSUB_"),
    *("LC_", "LANGUAGE", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "GITHUB_", "CUDA_", "SGLANG_", "VLLM_"),
    *("RIDGELINE_SCRATCH", "RIDGELINE_HARDWARE"),
)
for _name in [name for name in os.environ if name.startswith(_FOREIGN)]:
    del os.environ[_name]
os.environ["LANG"] = "C.UTF-8"

# a shell that starts tests in the background has them, and all that they start, ignore the interrupts that some send
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# somebody else's package: its tests run where it is installed, by test_plugin_package.py
collect_ignore = ["plugin_package"]

# The same examples on every machine and in every run: what a random draw would find is for `scripts/fuzz` to find.
# No deadline: no test asserts how fast it is, and on a loaded machine an example may take any time.
settings.register_profile("fixed", deadline=None, derandomize=True, database=None)
settings.register_profile(
    "fuzz",
    deadline=None,
    derandomize=False,
    max_examples=500,
    database=DirectoryBasedExampleDatabase(Path(__file__).parent.parent / ".hypothesis" / "examples"),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("fixed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow ones first, as many in front of what each worker begins with: begun last, they are waited for alone."""
    slow = [item for item in items if item.get_closest_marker("slow")]
    others = [item for item in items if not item.get_closest_marker("slow")]
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    each = -(-len(others) // workers)
    items[:] = [item for n in range(workers) for item in (*slow[n::workers], *others[n * each : (n + 1) * each])]


@pytest.fixture(scope="session", autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What verbs keep for their user is not written into the home of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def _cluster() -> Iterator[slurm_cluster.SlurmCluster]:
    if reason := slurm_cluster.missing():
        pytest.skip(reason)
    with slurm_cluster.slurm_cluster() as cluster:
        yield cluster


@pytest.fixture
def slurm(_cluster: slurm_cluster.SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> slurm_cluster.SlurmCluster:
    """A real Slurm of four nodes with two cores each, shared by the whole session."""
    for name, value in _cluster.env.items():
        monkeypatch.setenv(name, value)
    return _cluster


@pytest.fixture
def pbs_standin(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """qsub, qstat, qdel and qselect that follow a real server's formats; the path of their state."""
    state = tmp_path_factory.mktemp("pbs")
    commands = Path(__file__).parent / "pbs_standin"
    monkeypatch.setenv("PBS_STANDIN", str(state))
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    return state
