"""Files with names that shells give a meaning to: what `check` accepts runs, and what is pasted runs too."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from ridgeline.campaign.check import check_study
from ridgeline.cli.main import run
from ridgeline.errors import NothingFound, StudyError

STUDY = """\
version: 1
name: s
workload:
  kind: command
  run: {run}
  files: {files}
  metrics: {{rate: {{regex: 'rate (.*)'}}}}
space: {{k: [1, 2]}}
baseline: {{k: 1}}
goal: {{maximize: rate}}
budget: {{trials: 1}}
stages: {{baseline: {{repeats: 1}}, confirm: {{top: 0}}}}
"""
NAMES = [
    "my prog.sh",
    "it's.sh",
    'say "it".sh',
    "$HOME.sh",
    "-dash.sh",
    "über-größe.sh",
    "a;b&c.sh",
    "back`tick.sh",
    "star*[a]?.sh",
    "back\\slash.sh",
    "#hash.sh",
    " both ends ",
    "=a,b:c<d>|(e).sh",
]


def written(folder: Path, name: str, *, below: str = "") -> Path:
    (folder / below).mkdir(parents=True, exist_ok=True)
    (folder / below / name).write_text("echo rate $1\n")
    path, file = folder / "study.yaml", str(Path(below) / name)
    path.write_text(STUDY.format(run=json.dumps(f"sh ./{shlex.quote(name)} {{k}}"), files=json.dumps([file])))
    return path


def measured(out: Path) -> list[str]:
    return [path.read_text() for path in sorted(out.glob("runs/*/stdout"))]


@pytest.mark.parametrize("below", ["", "a folder"])
@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_check_accepts_is_there_in_the_run(tmp_path, name, below, capsys):
    study, out = written(tmp_path / "my study", name, below=below), tmp_path / "out"
    check_study(study)
    with pytest.raises(NothingFound, match="the study asks for no confirmation"):
        run(["tune", str(study), "--out", str(out)])
    assert measured(out) == ["rate 1\n", "rate 2\n"]


@pytest.mark.parametrize("name", ["new\nline.sh", "tab\tstop.sh", "bell\a.sh"])
@pytest.mark.parametrize("linked", [False, True])
def test_a_name_with_a_control_character_is_refused(tmp_path, name, linked):
    path = written(tmp_path, name)
    if linked:
        path.write_text(path.read_text().replace(json.dumps([name]), json.dumps([{"link": name}])))
    with pytest.raises(StudyError) as error:
        check_study(path)
    (told,) = error.value.problems
    assert told.startswith(f"{path}:6: workload.files[0]")
    assert "control character; rename the file" in told
    assert "\n" not in told


@pytest.mark.parametrize("name", ["my prog.c", "it's.c"])
def test_a_source_with_a_blank_in_its_name_reaches_the_build(tmp_path, name, capsys):
    (tmp_path / name).write_text("rate\n")
    study, out = tmp_path / "study.yaml", tmp_path / "out"
    make = json.dumps(f"cp {shlex.quote(name)} prog")
    text = STUDY.format(run="'echo $(cat prog) {k}'", files="[]") + f"builds: {{make: {make}, keep: [prog]}}\n"
    study.write_text(text)
    with pytest.raises(NothingFound, match="the study asks for no confirmation"):
        run(["tune", str(study), "--out", str(out)])
    assert measured(out) == ["rate 1\n", "rate 2\n"]
