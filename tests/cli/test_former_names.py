"""Verbs as they were typed in 0.2 go on working for one release, and say what they are called now."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ridgeline.cli.main import all_commands, all_groups, former_names, run
from ridgeline.errors import InputError
from tests.command_line import ridgeline

# every verb of 0.2 that is not typed so any more, and those of its verbs with subcommands
BEFORE = {
    "edge": "study edge",
    "scale": "study scale",
    "steps": "study steps",
    "nodes": "study nodes",
    "verify": "study verify",
    "export": "study export",
    "compare-studies": "study diff",
    "bug": "study bug",
    "gate": "ci gate",
    "bisect": "ci bisect",
    "schema": "site schema",
    "preflight": "site preflight",
    **{f"grant {verb}": f"site grant {verb}" for verb in ("show", "create", "top-up", "release")},
    "simulate": "twin simulate",
    "explain": "twin explain",
    "calibrate": "twin calibrate",
    "import": "twin import",
    "serve-twin": "twin serve",
    "memory": "plan memory",
    "layouts": "plan layouts",
    "fleet": "plan fleet",
    "hardware": "plan hardware",
    "make-model": "model make",
    **{
        f"deploy {verb}": f"service {verb}"
        for verb in ("check", "render", "up", "status", "restart", "drain", "undrain", "down")
    },
    "keep": "service keep",
    "rehearse": "service rehearse",
}
SAME = {"check", "tune", "status", "best", "report", "resume", "watch", "compare", "diagnose", "bench", "plan"}
SAME |= {"site check", "site list"}
NEW = {"model show", "model list", "mcp", "twin sessions", "plan sessions"}
TWIN = "--model llama-8b --gpu h200 --gpus-per-node 1"


def note(old: str, new: str) -> str:
    return f"ridgeline: `ridgeline {old}` is now `ridgeline {new}`; the old spelling works until 0.4\n"


def test_every_verb_of_today_was_one_or_is_new() -> None:
    assert {*BEFORE.values(), *SAME, *NEW} == all_commands().keys()
    assert {old.split()[0] for old in BEFORE} | {"model"} == former_names().keys()


@pytest.mark.parametrize("old", BEFORE)
def test_a_former_name_shows_the_help_of_its_verb_and_names_it(old: str, capsys: pytest.CaptureFixture[str]) -> None:
    new = BEFORE[old]
    with pytest.raises(SystemExit) as ended:
        run([*new.split(), "--help"])
    today = capsys.readouterr()
    assert not ended.value.code and not today.err
    with pytest.raises(SystemExit) as ended:
        run([*old.split(), "--help"])
    before = capsys.readouterr()
    assert not ended.value.code and before.out == today.out
    first = old.split()[0]
    assert before.err == note(first, former_names()[first])
    assert before.out.startswith(f"Usage: ridgeline {new} ")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("explain", "twin explain", f"{TWIN} --json"),
        ("memory", "plan memory", f"{TWIN} --json"),
        ("memory", "plan memory", "--model deepseek-r1 --gpu h200 --gpus-per-node 1 --json"),  # does not fit
        ("hardware", "plan hardware", ""),
        ("schema", "site schema", "site"),
        ("model", "model show", "llama-8b --json"),
        ("model", "model show", "--dtype fp8 llama-8b"),
        ("model", "model show", "--json"),
        ("model", "model show", ""),
        ("verify", "study verify", "nowhere"),
        ("gate", "ci gate", "nowhere.yaml"),
        ("layouts", "plan layouts", "--model llama-8b"),  # an option is missing
    ],
)
def test_output_and_exit_code_are_those_of_the_verb(old: str, new: str, words: str, tmp_path: Path) -> None:
    before = ridgeline(old, *words.split(), cwd=tmp_path)
    today = ridgeline(*new.split(), *words.split(), cwd=tmp_path)
    assert (before.returncode, before.stdout) == (today.returncode, today.stdout)
    assert before.stderr == note(old, new) + today.stderr
    if "--json" in words:
        assert json.loads(before.stdout)


def test_the_list_of_models_is_what_the_verb_without_a_name_printed() -> None:
    assert ridgeline("model").stdout == ridgeline("model", "list").stdout
    assert ridgeline("model", "--json").stdout == ridgeline("model", "list", "--json").stdout


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("deploy", "`ridgeline service` needs a verb; use one of check, render, up"),
        ("deploy upp x.yaml", "`ridgeline service` has no verb 'upp'; did you mean `ridgeline service up`?"),
        ("grant sho x", "`ridgeline site grant` has no verb 'sho'; did you mean `ridgeline site grant show`?"),
    ],
)
def test_a_former_group_answers_as_the_group_of_today(typed: str, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        run(typed.split())


def test_what_is_typed_as_it_is_called_today_says_nothing_of_it(tmp_path: Path) -> None:
    for words in ("plan hardware", "model list", "model show llama-8b", "site list", "model --help", "plan --help"):
        done = ridgeline(*words.split(), cwd=tmp_path)
        assert done.returncode == 0 and not done.stderr, words
    assert not former_names().keys() & (all_groups().keys() - {"model"})
