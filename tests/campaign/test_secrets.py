"""Secrets that a program prints, or that a study names: in no file, on no screen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ridgeline.campaign.judge import secret_values
from ridgeline.cli.main import main
from ridgeline.records.secrets import SECRETS_FOLDER

TOKEN, NAMED = "hf_abcDEF1234567890ghiJKL", "my-plain-value"
STUDY = """version: 1
name: secretive
{more}
workload:
  kind: command
  run: 'sh talk.sh >&2; echo user $MY_SECRET; echo rate {{x}}; [ {{x}} = 1 ] || exit 3'
  files: [talk.sh]
  metrics: {{rate: {{regex: 'rate (\\d+)'}}, who: {{regex: 'user (.*)', type: text}}}}
space: {{x: [1, 2]}}
goal: {{maximize: rate}}
baseline: {{x: 1}}
stages: {{baseline: {{repeats: 1}}}}
"""


@pytest.fixture
def ridgeline(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str) -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", ["ridgeline", *arguments])
        try:
            main()
            code: object = 0
        except SystemExit as leaving:
            code = leaving.code or 0
        seen = capsys.readouterr()
        return code, seen.out + seen.err

    return run


def test_nothing_that_is_kept_or_shown_holds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ridgeline: Any
) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(STUDY.format(more="secrets: [MY_SECRET]"))
    (tmp_path / "talk.sh").write_text(f"echo api_key={TOKEN}\n")
    monkeypatch.setenv("MY_SECRET", NAMED)
    out = tmp_path / "out"
    _, said = ridgeline("tune", str(study), "--out", str(out))
    _, more = ridgeline("status", str(out), "--json")
    _, rows = ridgeline("study", "export", str(out))
    kept = [out / "journal.jsonl", out / "report.html", *out.glob("runs/*/result.json")]
    scripts = list(out.glob("runs/*/run.sh"))
    assert len(kept) >= 4 and scripts
    assert all('"env"' in path.read_text() for path in kept[2:]), "what was exported is in there"
    for text in (said, more, rows, *(path.read_text() for path in kept)):
        assert TOKEN not in text and NAMED not in text
    assert "api_key=(hidden)" in said, "that there was something is still seen"
    assert not [path for path in scripts if NAMED in path.read_text()]
    assert out.stat().st_mode & 0o777 == 0o700
    code, found = ridgeline("study", "verify", str(out))
    assert code == 0, found
    monkeypatch.delenv("MY_SECRET")
    assert ridgeline("study", "verify", str(out))[0] == 0, "also where the secret is not known"
    # by hand: the reference is filled from the file, or the script says what is missing
    (tmp_path / ".ridgeline" / "secrets").mkdir(parents=True)
    hand = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    command = ["sh", str(scripts[0])]
    lacking = subprocess.run(command, env=hand, capture_output=True, text=True, check=False)
    assert lacking.returncode == 74 and "the secret MY_SECRET is neither" in lacking.stderr
    (tmp_path / ".ridgeline" / "secrets" / "MY_SECRET").write_text("from-a-file\n")
    done = subprocess.run(command, env=hand, capture_output=True, text=True, check=False)
    assert "user from-a-file" in done.stdout


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("secrets: [MY_SECRET]", "MY_SECRET is neither in your environment nor in"),
        ("secrets: [A-B]", "is not a name for an environment variable"),
        ("site: {env: {HF_TOKEN: hf_abcDEF1234567890}}", "HF_TOKEN looks like a key"),
        ("site: {env: {KEY: x}, secrets: [KEY]}", "KEY is among the secrets; remove its value"),
    ],
)
def test_what_is_written_down_or_missing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ridgeline: Any, more: str, says: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("MY_SECRET", raising=False)
    study = tmp_path / "study.yaml"
    study.write_text(STUDY.format(more=more))
    (tmp_path / "talk.sh").write_text("")
    code, said = ridgeline("check", str(study))
    assert code == 2
    assert says in said


def test_a_secret_is_what_the_environment_holds_and_else_what_its_file_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    kept = tmp_path / SECRETS_FOLDER
    kept.mkdir(parents=True)
    (kept / "IN_BOTH").write_text("of the file\n")
    (kept / "IN_FILE").write_text("  of the file alone\n")
    monkeypatch.setenv("IN_BOTH", "of the environment")
    monkeypatch.setenv("IN_ENVIRONMENT", "there alone")
    found = secret_values(["IN_BOTH", "IN_FILE", "IN_ENVIRONMENT", "NOWHERE"])
    assert found == ("of the environment", "of the file alone", "there alone", "")
