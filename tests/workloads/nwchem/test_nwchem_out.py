"""NWChem 7.0.2 outputs, captured from Debian's builds; some molecular-orbital listings are cut out."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.diagnose.readers.lines import TextFile
from ridgeline.nwchem.output import NwchemOut, read_nwchem_out

SAMPLES = Path(__file__).parents[2] / "samples" / "nwchem"


def read(name: str) -> NwchemOut:
    return read_nwchem_out(TextFile(SAMPLES / name))


def test_a_good_run_gives_everything() -> None:
    out = read("semidirect-1h2o-2ranks.out")
    assert out.finished and out.converged and not out.failures
    assert (out.version, out.program, out.nproc) == ("7.0.2", "nwchem.openmpi", 2)
    assert out.energy("DFT") == -76.420369152168 and out.energy("SCF") == -76.026772054292
    assert out.asked_bytes("stack") == 26214401 * 8 and out.asked_bytes("global") == 400 * 2**20
    assert [t.theory for t in out.tasks] == ["SCF", "DFT"]
    assert (out.total.cpu_s, out.total.wall_s) == (0.4, 0.5)
    assert out.iterative_s == (0.3,)
    assert out.cached_share == 1.0
    assert sum(i.theory == "DFT" for i in out.iterations) == 6
    assert out.ga.calls["get"] == 3873 and out.ga.remote_bytes["put"] == 3.48e4 and out.ga_peak_bytes == 170496
    assert (out.heap_peak_bytes, out.stack_peak_bytes) == (160577576, 22510824)
    assert (out.grid, out.electrons, out.basis_functions) == ("medium", 10, 24)


def test_a_direct_run_has_no_cache() -> None:
    out = read("direct-1h2o.out")
    assert out.cached_share is None and out.energy("DFT") == -76.420369138691


def test_a_partly_cached_run_says_how_much() -> None:
    cache = read("partly-cached-2h2o.out").integral_caches[-1]
    assert (cache.direct_share, cache.cached_share) == (pytest.approx(0.516), pytest.approx(0.484))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("not-converged.out", "not-converged"),
        ("mpich-diverged.out", "not-converged"),
        ("memory-inconsistent.out", "memory-inconsistent"),
        ("no-basis.out", "basis"),
    ],
)
def test_a_failed_run_is_never_finished_and_names_its_cause_first(name: str, kind: str) -> None:
    out = read(name)
    assert not out.finished and not out.converged
    assert out.failures[0].kind == kind


def test_an_energy_is_printed_even_without_convergence() -> None:
    out = read("not-converged.out")
    assert out.energy("DFT") is not None and not out.converged


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (" Memory_Defaults: Global memory limit unreasonable                0", "memory-limit"),
        (" dft_main0d: Error creating ga                    0", "ga-create"),
        ("MA error: MA_init: could not allocate 838860800080 bytes", "ma-init"),
        (" xc_input: invalid format                 0", "input"),
        (" ptsalloc: increase memory                 0", "memory-small"),
        ("0:Segmentation Violation error, status=: 11", "segfault"),
        ("mpirun noticed that process rank 0 exited on signal 11 (Segmentation fault).", "segfault"),
    ],
)
def test_failures_of_the_field(line: str, kind: str) -> None:
    assert [f.kind for f in read_nwchem_out([line]).failures] == [kind]


def test_numbers_in_fortran_notation_and_stars() -> None:
    rows = [
        " d= 0,ls=0.0,diis     1   -152.7837923923 -1.89D+02  1.58D-02  6.44D-01     4.5",
        " d= 0,ls=0.0,diis     2   **************** -1.89D+02  1.58D-02  6.44D-01     4.5",
        " Total times  cpu:   *******s     wall:        7.0s",
    ]
    out = read_nwchem_out(rows)
    assert len(out.iterations) == 1
    assert not out.finished, "a time that overflowed its column is not a time"
