"""`check` shows every problem of a study at once, and a program that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.campaign.check import check_study
from ridgeline.campaign.preview import whole_check
from ridgeline.errors import StudyError
from ridgeline.workloads.command import first_program

_LINES = {
    "run": ("  run: ./app {k}", "  runn: ./app {k}", "workload.runn: no such key of command; did you mean run?"),
    "regex": (
        "  metrics: {t: {regex: 't (.*)'}}",
        "  metrics: {t: {regexp: 't (.*)'}}",
        "workload.metrics.t.regexp: no such key; did you mean regex?",
    ),
    "goal": ("goal: {minimize: t}", "goal: {minimize: tt}", "goal.minimize: command has no metric tt"),
    "guard": ("guards: [t > 0]", "guards: [nn > 0]", "guards[0]: nn is not a metric"),
    "baseline": ("baseline: {k: 1}", "baseline: {k: 5}", "baseline.k: 5 is not in the space"),
    "budget": ("budget: {trials: 3}", "budget: {trails: 3}", "budget.trails: no such key; did you mean trials?"),
    "twice": ("name: x", "name: x\nname: y", "name: this key is also in line"),
}


def _problems(folder: Path, *wrong: str, space: str = "space: {k: [1, 2]}") -> str:
    line = {name: row[name in wrong] for name, row in _LINES.items()}
    path = folder / "study.yaml"
    path.write_text(
        f"version: 1\n{line['twice']}\nworkload:\n  kind: command\n{line['run']}\n{line['regex']}\n{space}\n"
        f"{line['goal']}\n{line['guard']}\n{line['baseline']}\n{line['budget']}\n"
    )
    (folder / "app").write_text("")
    try:
        check_study(path)
    except StudyError as error:
        return str(error)
    return ""


def test_none_hides_behind_another(tmp_path: Path) -> None:
    assert _problems(tmp_path) == ""
    for one in _LINES:
        for other in _LINES:
            said = _problems(tmp_path, one, other).splitlines()
            wanted = {_LINES[one][2], _LINES[other][2]}
            assert all(any(want in line for line in said) for want in wanted), (one, other, said)
            assert len(said) == len(wanted), said
    said = _problems(tmp_path, *_LINES).splitlines()
    assert len(said) == len(_LINES)
    numbers = [int(line.split(":")[1]) for line in said]
    assert numbers == sorted(numbers)


def test_a_space_that_cannot_be_read_hides_no_misspelt_key_and_makes_up_none(tmp_path: Path) -> None:
    for space in ("space: {k: []}", "space: {k: {form: 1, to: 3}}", "spaec: {k: [1, 2]}"):
        said = _problems(tmp_path, "run", "regex", "budget", space=space)
        for name in ("run", "regex", "budget"):
            assert _LINES[name][2] in said, space
        assert "{k} is not" not in said and len(said.splitlines()) == 4, said


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("./app --x {k}", "./app"),
        ("A=1 B='2 3' nosuch | tee log", "nosuch"),
        ("nosuch;echo", "nosuch"),
        ("cd x && ./app", ""),
        ("for i in 1 2; do ./app; done", ""),
        ("(./app)", ""),
        ("$HOME/app", ""),
        ("~/app", ""),
        ("'unclosed", ""),
        ("", ""),
    ],
)
def test_the_first_program_is_named_where_it_is_certain(command: str, program: str) -> None:
    assert first_program(command) == program


@pytest.mark.parametrize(
    ("run", "more", "says"),
    [
        ("./nosuch {k}", "", "`run` starts ./nosuch, which is not in"),
        ("nosuch-command {k}", "", "nosuch-command, which is not on the PATH of this machine; install it"),
        ("/no/such/app {k}", "", "/no/such/app, which is not an executable file on this machine"),
        ("./plain {k}", "files: [plain]", "./plain, which is not an executable file; chmod +x it"),
        ("./plain {k}", "", "add `files: [plain]`"),
        # nothing to say
        ("sh plain {k}", "files: [plain]", ""),
        ("./runs {k}", "files: [runs]", ""),
        ("own {k}", "env: {PATH: '$PWD/bin:$PATH'}", None),
        ("own {k}", "env: {PATH: BIN}", ""),
        ("cd /tmp && ./made {k}", "", ""),
        ("./made-{k}", "files: []\nbuilds: {make: ['cc -DK={k} -o made-{k} runs'], keep: ['made-*']}", ""),
        ("./app-{k}", "", "`run` starts ./app-1, which is not in"),
        ("nosuch-command {k}", "files: []\nsite: {batch: slurm}", ""),
        ("nosuch-command {k}", "files: []\njob: {modules: [app]}", ""),
    ],
)
def test_a_program_that_is_not_there_is_noted(run: str, more: str, says: str | None, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    (tmp_path / "runs").write_text("#!/bin/sh\n")
    (tmp_path / "runs").chmod(0o755)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "own").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "own").chmod(0o755)
    option, _, rest = more.replace("BIN", str(tmp_path / "bin")).partition("\n")
    path = tmp_path / "study.yaml"
    path.write_text(
        f"version: 1\nname: x\nworkload:\n  kind: command\n  run: {run}\n  {option}\n"
        f"space: {{k: [1, 2]}}\nbaseline: {{k: 1}}\ngoal: {{minimize: wall_s}}\n{rest}\n"
    )
    notes = [note for note in whole_check(check_study(path)).remarks if "`run`" in note]
    if says is None:  # a PATH that only a shell knows: what is on ours may be said to be missing, and no more
        assert all("own" in note for note in notes)
    else:
        assert bool(notes) is bool(says) and (not says or says in notes[0]), notes


def test_a_missing_file_is_to_be_put_there_or_named_rightly(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(
        "version: 1\nname: x\nworkload: {kind: command, run: 'sh a.sh {k}', files: [a.sh]}\nspace: {k: [1, 2]}\n"
        "baseline: {k: 1}\ngoal: {minimize: wall_s}\n"
    )
    with pytest.raises(StudyError, match=r"a\.sh is not in .*; put it there, or correct the name"):
        check_study(path)
