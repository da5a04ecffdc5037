"""What `best` prints, and the script that it writes, run in a clean shell in any folder."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from ridgeline.cli.main import run

STUDY = """\
version: 1
name: s
workload:
  kind: command
  run: {run}
  metrics: {{rate: {{regex: 'rate (.*)'}}}}
{more}
space: {{k: [1, 2]}}
baseline: {{k: 1}}
goal: {{maximize: rate}}
budget: {{trials: 1}}
stages: {{baseline: {{repeats: 1}}, confirm: {{top: 1, blocks: 5, repeats: 1}}}}
"""
# the rate depends on the setting alone
PROGRAM = "#!/bin/sh\necho rate ${1}${EXTRA:+.5}\n"
KINDS = {
    "a file": ("./'my prog.sh' {k}", "  files: [my prog.sh]"),
    "a file and a variable": ("./'my prog.sh' {k}", "  files: [my prog.sh]\n  env: {EXTRA: '{k}'}"),
    "an input": ("sh -c '. ./in.sh' {k}", "  inputs: {in.sh: 'echo rate {k}'}"),
    "a file and an input": ("./'my prog.sh' $(cat in)", "  files: [my prog.sh]\n  inputs: {in: '{k}'}"),
    "a file in a folder": ("./deep.sh {k}", "  files: [below/deep.sh]"),
    "a build": ("./built", "builds: {make: \"cp 'my prog.sh' built; sed -i 's/$.1./{k}/' built\", keep: [built]}"),
    "a build and an input": (
        "./built $(cat in)",
        "  inputs: {in: '{k}'}\nbuilds: {make: \"cp 'my prog.sh' built\", keep: [built]}",
    ),
    "no file": ("echo rate {k}", ""),
}


def tuned(home: Path, run_text: str, more: str) -> Path:
    (home / "below").mkdir(parents=True)
    for path in (home / "my prog.sh", home / "below" / "deep.sh"):
        path.write_text(PROGRAM)
        path.chmod(0o755)
    (home / "study.yaml").write_text(STUDY.format(run=json.dumps(run_text), more=more))
    told(["tune", home / "study.yaml", "--out", home / "out"])
    return home / "out"


def told(arguments: list[object]) -> None:
    with pytest.raises(SystemExit) as leaving:
        run([str(argument) for argument in arguments])
    assert leaving.value.code in (0, None)


def in_a_clean_shell(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    return subprocess.run(["env", "-i", "sh", *arguments], cwd=folder, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("where", ["home", "my home's"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_answer_runs_in_another_folder(tmp_path, kind, where, capsys):
    out = tuned(tmp_path / where, *KINDS[kind])
    capsys.readouterr()
    told(["best", out, "--json", "--script", out / "best.sh"])
    paste = json.loads(capsys.readouterr().out)["paste"]
    rate = "rate 2.5" if "variable" in kind else "rate 2"
    pasted = in_a_clean_shell(["-c", paste], tmp_path / "else where")
    assert (pasted.stdout.strip(), pasted.returncode) == (rate, 0), pasted.stderr
    assert paste.startswith("cd ") == (kind not in ("no file", "an input"))
    script = in_a_clean_shell([str(out / "best.sh")], tmp_path / "else where")
    assert (script.stdout.strip(), script.returncode) == (rate, 0), script.stderr
    # it does not depend on the author's folder either
    for path in (tmp_path / where).glob("*.sh"):
        path.unlink()
    again = in_a_clean_shell([str(out / "best.sh")], tmp_path / "else where")
    assert (again.stdout.strip(), again.returncode) == (rate, 0), again.stderr
    assert not (out / "sources" / "run-by-hand").exists()


def test_the_script_says_what_is_missing(tmp_path, capsys):
    out = tuned(tmp_path / "home", *KINDS["a file"])
    told(["best", out, "--script", out / "best.sh"])
    (out / "sources" / "my prog.sh").unlink()
    script = in_a_clean_shell([str(out / "best.sh")], tmp_path)
    assert script.returncode == 66
    assert f"{out}/sources/my prog.sh is missing; bring the study folder back" in script.stderr


def test_the_script_can_be_printed(tmp_path, capsys):
    out = tuned(tmp_path / "home", *KINDS["no file"])
    capsys.readouterr()
    told(["best", out, "--script", "-"])
    text = capsys.readouterr().out
    assert text.startswith("#!/bin/sh\n# s: k 2\n")
    assert in_a_clean_shell(["-c", text], tmp_path).stdout == "rate 2\n"
