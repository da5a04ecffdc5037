"""What a dry run shows: for each of the first trials the line that starts its ranks, then the whole script."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.cli.main import run

SITE = "batch: slurm\nlauncher: srun\nnodes: 4\ncores_per_node: 8\n"
TAIL = "site: cluster.yaml\ngoal: {minimize: wall_s}\nbudget: {trials: 3}\nsearch: {sampler: grid}\n"
COMMAND = """
version: 1
name: melt
workload: {kind: command, run: "{launch} ./melt --block {block}"}
space: {block: [32, 64]}
baseline: {block: 64}
job: {nodes: 2, ranks_per_node: 4}
"""
NWCHEM = """
version: 1
name: water
workload: {kind: nwchem, theory: scf, basis: sto-3g, molecule: water.xyz, reference_energy: -75, program: /opt/nwchem}
space: {ranks: [2, 4]}
baseline: {ranks: 4}
job: {ranks_per_node: ranks}
"""
WATER = "3\n\nO 0 0 0\nH 0 0 1\nH 0 1 0\n"


@pytest.mark.parametrize(
    ("study", "lines"),
    [
        (COMMAND, ["# command: srun --nodes=2 --ntasks=8 ./melt --block 64"]),
        (NWCHEM, ["# command: srun --nodes=1 --ntasks=4 sh rank.sh", '# rank.sh: exec "$program" nwchem.nw']),
    ],
    ids=["command", "nwchem"],
)
def test_the_line_that_starts_the_ranks_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], study: str, lines: list[str]
) -> None:
    (tmp_path / "cluster.yaml").write_text(SITE)
    (tmp_path / "water.xyz").write_text(WATER)
    (tmp_path / "study.yaml").write_text(study + TAIL)
    with pytest.raises(SystemExit) as leaving:
        run(["tune", str(tmp_path / "study.yaml"), "--dry-run"])
    printed = capsys.readouterr()
    assert leaving.value.code in (0, None), printed.err
    shown = printed.out.splitlines()
    first = shown.index(next(line for line in shown if line.startswith("# trial 1")))
    script = shown.index("#!/bin/sh")
    for line in lines:
        assert line in shown[first:script], printed.out
