"""The first day with an own C program: a list of releases, a locale with a decimal comma, too few blocks.

The program prints a rate that follows from its settings alone: no clock, no luck. A notebook cell that is edited twice
is in test_notebook.py, experts without weights are in test_dummy_experts.py.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.command_line import ridgeline

PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int count, char **words) {
    const char *all = getenv("LC_ALL"), *numeric = getenv("LC_NUMERIC");
    const char *locale = all && *all ? all : numeric && *numeric ? numeric : "C";
    const char *releases[] = {"2.8", "2.9", "2.10", "2.11"};
    int rates[] = {110, 120, 195, 130};
    for (int i = 0; count == 2 && i < 4; i++)
        if (!strcmp(words[1], releases[i])) {
            printf("rate %d%c%d steps/s\n", rates[i] / 100, strncmp(locale, "de_", 3) ? '.' : ',', rates[i] % 100);
            return 0;
        }
    fprintf(stderr, "no release %s\n", count == 2 ? words[1] : "");
    return 2;
}
"""
STUDY = """\
version: 1
name: own-c
workload:
  kind: command
  run: ./rate {{release}}
{env}  metrics: {{rate: {{regex: 'rate ([0-9.]+)', unit: steps/s}}}}
builds: {{make: gcc -O1 rate.c -o rate, sources: [rate.c], keep: [rate]}}
space: {{release: [2.8, 2.9, 2.10, 2.11]}}
goal: {{maximize: rate}}
baseline: {{release: 2.8}}
budget: {{trials: 3}}
search: {{sampler: grid}}
confirm: {{top: 1, blocks: {blocks}, repeats: 1}}
"""
GERMAN = {"LC_ALL": "de_DE.UTF-8", "LC_NUMERIC": "de_DE.UTF-8", "LANG": "de_DE.UTF-8"}


def own(home: Path, *, blocks: int = 3, env: str = "") -> Path:
    home.mkdir(exist_ok=True)
    (home / "rate.c").write_text(PROGRAM)
    (home / "study.yaml").write_text(STUDY.format(blocks=blocks, env=env))
    return home / "study.yaml"


def in_a_german_shell(home: Path, *words: object) -> subprocess.CompletedProcess[str]:
    return ridgeline(*words, cwd=home, env={**os.environ, **GERMAN})


def runs(folder: Path) -> list[dict[str, Any]]:
    return json.loads(ridgeline("study", "export", folder, "--format", "json").stdout)["runs"]


def test_the_release_that_was_written_wins_and_is_the_one_that_runs(tmp_path: Path) -> None:
    home = tmp_path / "my program"
    study = own(home)
    assert "4 legal points of 4" in ridgeline("check", study).stdout
    tuned = in_a_german_shell(home, "tune", study, "--out", home / "out")
    assert tuned.returncode == 0, tuned.stdout + tuned.stderr
    best = ridgeline("best", home / "out", "--json")
    answer = json.loads(best.stdout)
    assert best.returncode == 0 and answer["confirmed"]
    assert answer["settings"] == {"release": "2.10"}
    pasted = subprocess.run(
        ["env", "-i", "PATH=/usr/bin:/bin", "sh", "-c", answer["paste"]], cwd=tmp_path, capture_output=True, text=True
    )
    assert pasted.stdout == "rate 1.95 steps/s\n"


def test_a_number_with_a_comma_is_an_error_and_no_win(tmp_path: Path) -> None:
    home = tmp_path / "own"
    study = own(home, env="  env: {LC_ALL: de_DE.UTF-8}\n")
    tuned = ridgeline("tune", study, "--out", home / "out")
    said = tuned.stdout + tuned.stderr
    assert tuned.returncode not in (0, 2), said
    assert "1,10" in said, "the text that was printed"
    assert ridgeline("best", home / "out").returncode == tuned.returncode


def test_two_blocks_are_refused_before_anything_runs(tmp_path: Path) -> None:
    home = tmp_path / "own"
    study = own(home, blocks=2)
    for verb in (["check"], ["tune", "--out", home / "out"]):
        refused = ridgeline(verb[0], study, *verb[1:])
        assert refused.returncode == 2
        assert "2 blocks can never give a verdict; use 3 or more" in refused.stdout + refused.stderr
    assert not (home / "out").exists()
