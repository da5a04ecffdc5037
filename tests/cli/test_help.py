"""Help that can be trusted: an example that runs for every command, a page for every subcommand, nothing slow."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from ridgeline.cli.main import (
    CORE,
    all_commands,
    all_groups,
    application,
    commands,
    former_names,
    group_text,
    help_of,
    run,
    top,
    verbs_of,
)
from ridgeline.errors import ExitCode, InputError, RidgelineError
from ridgeline.study.grant import create
from tests.command_line import ridgeline

ROOT = Path(__file__).parents[2]
WIDTH = 80
COMMANDS = dict(commands())
STUDY = """\
version: 1
name: first
workload:
  kind: command
  run: "echo rate $(({threads} * 10 + {block}))"
  metrics: {rate: {regex: 'rate (.*)'}}
space: {threads: [1, 2, 4], block: [1, 2]}
goal: {maximize: rate}
baseline: {threads: 1, block: 1}
budget: {trials: 3}
stages: {baseline: {repeats: 1}}
confirm: {top: 1, blocks: 3}
job: {limit: 60}
"""
SERVICE = """\
version: 1
name: two
model: llama-8b
engine: {kind: twin, gpu: h200, python: PYTHON}
units:
  - {replicas: 1, settings: {tp: 1}}
"""
# they wait for a server, start servers, run until they are stopped, or need a run that failed (test_bug.py has one)
# so their examples are parsed, not run
PARSED = {
    *("bench", "watch", "mcp", "service keep", "twin serve", "service rehearse"),
    *("service up", "service drain", "service undrain", "service restart"),
    *("study bug", "site grant release", "ci gate"),
}
NO_GPU = 3  # what `site preflight` says of a machine without one


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that examples name: a study, two study folders, a deployment file, logs and results."""
    home = tmp_path_factory.mktemp("examples")
    (home / "study.yaml").write_text(STUDY)
    (home / "service.yaml").write_text(SERVICE.replace("PYTHON", sys.executable))
    shutil.copy(ROOT / "tests/samples/sglang/offline-llama8b-h200-default.log", home / "server.log")
    shutil.copy(ROOT / "tests/samples/bench/vllm-bench-serve-0.32.0.json", home / "results.json")
    done = ridgeline("tune", "study.yaml", "--out", "studies/first", cwd=home)
    assert done.returncode == 0, done.stderr
    shutil.copytree(home / "studies/first", home / "studies/second")
    create(home / "grant.jsonl", 10.0)
    return home


def example_of(name: str) -> list[str]:
    _, example = help_of(COMMANDS[name])
    words = shlex.split(example)
    assert words[: 1 + len(name.split())] == ["ridgeline", *name.split()], example
    return words[1:]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_of_every_command_runs(
    name: str, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = example_of(name)
    if name in PARSED:
        parsed = typer.main.get_command(application(COMMANDS[name])).make_context(name, words[len(name.split()) :])
        assert parsed.params
        return
    shutil.copytree(prepared, tmp_path / "here", symlinks=True)
    monkeypatch.chdir(tmp_path / "here")
    if name == "tune":
        shutil.rmtree("studies/first")
    try:
        run(words)
    except SystemExit as ended:
        assert not ended.code, f"{words} ended with {ended.code}"
    except RidgelineError as error:
        expected = {"site preflight": NO_GPU, "study nodes": ExitCode.CANNOT_JUDGE}  # on one node there are no peers
        assert error.exit_code == expected.get(name), error


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_a_terminal_and_its_example_can_be_pasted(name: str) -> None:
    done = ridgeline(*name.split(), "--help", env={**os.environ, "COLUMNS": str(WIDTH)})
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and lines[0].startswith(f"Usage: ridgeline {name}")
    assert not [line for line in lines if len(line) > WIDTH]
    assert not [line for line in lines[1:] if line.endswith(("...", "\N{HORIZONTAL ELLIPSIS}"))]
    start = lines.index("  Example:") + 1
    pasted = "\n".join(lines[start : lines.index("", start)]).replace("\\\n", "")  # as a shell reads it
    assert "\n" not in pasted, "a shell would take it for two commands"
    assert shlex.split(pasted)[1:] == example_of(name)


def test_the_overview_has_ten_verbs_and_seven_groups_of_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    run(["--help"])
    shown = capsys.readouterr().out
    verbs, groups = (
        block.splitlines() for block in shown.split("Verbs:\n")[1].split("\n\nExit codes:")[0].split("\n\n")
    )
    ten = "check tune resume status best report watch compare diagnose bench"
    seven = "study ci site twin plan model service"
    assert [line.split()[0] for line in verbs] == ten.split()
    assert [line.split()[0] for line in groups[1:]] == seven.split() and groups[0].startswith("Groups")
    assert all(line.endswith((".", "?")) and len(line) <= WIDTH for line in (*verbs, *groups[1:]))
    assert max(map(len, shown.splitlines())) <= WIDTH
    assert [" ".join(names) for names in top()] == [ten, seven]
    former = [old for old in former_names() if old not in all_groups()]
    assert len(former) > 20 and not [old for old in former if f"\n  {old} " in shown]


GROUPS = {
    "study": "edge scale steps nodes verify export diff bug",
    "ci": "gate bisect",
    "site": "check list schema grant preflight",
    "site grant": "show create top-up release",
    "twin": "simulate explain calibrate import sessions serve",
    "plan": "fleet sessions memory layouts hardware",
    "model": "show list make",
    "service": "check render up status drain undrain restart down keep rehearse",
}


@pytest.mark.parametrize("group", all_groups())
def test_a_group_lists_its_verbs(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert list(verbs_of(group)) == GROUPS[group].split()
    if group in COMMANDS:  # `plan` is a verb too
        with pytest.raises(SystemExit):
            run([group, "--help"])
        shown = capsys.readouterr().out
    else:
        run([*group.split(), "--help"])
        shown = capsys.readouterr().out
        assert shown.strip() == group_text(group)
        needs = f"`ridgeline {group}` needs a verb; use one of {GROUPS[group].replace(' ', ', ')}"
        if group != "model":  # which lists the models, as it did
            with pytest.raises(InputError, match=needs):
                run(group.split())
    lines = shown.splitlines()
    assert not [line for line in lines if len(line) > WIDTH]
    for verb, line in verbs_of(group).items():
        assert [each.split(None, 1) for each in lines if each.split()[:1] == [verb]] == [[verb, line]]


def test_a_group_that_is_a_verb_takes_its_verbs_before_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(["plan", "hardware"])
    assert "h200" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        run(["plan", "--nodes", "2"])
    assert ended.value.code == 2 and "Missing option '--model'" in capsys.readouterr().err
    with pytest.raises(
        InputError, match=r"`ridgeline plan` has no verb 'memry'; did you mean `ridgeline plan memory`\?"
    ):
        run(["plan", "memry"])


@pytest.mark.parametrize("word", CORE.typed_first)
def test_a_word_that_people_try_first_names_commands_that_exist(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert word not in all_commands()
    for line in CORE.typed_first[word]:
        name = max((name for name in COMMANDS if f"{line} ".startswith(f"{name} ")), key=len)
        with pytest.raises(SystemExit):
            run([*name.split(), "--help"])
        shown = capsys.readouterr().out
        assert all(option in shown for option in line.split() if option.startswith("--")), line
    with pytest.raises(InputError, match="is not a verb; use `ridgeline ") as refused:
        run([word])
    assert all(f"`ridgeline {line}`" in str(refused.value) for line in CORE.typed_first[word])


def test_a_word_that_is_no_verb_is_answered_with_the_verb_that_does_it() -> None:
    for typed, meant in (
        ("find-goodput", "bench URL --find-goodput"),
        ("--find_goodput", "bench URL --find-goodput"),
        ("Optimize", "tune STUDY.yaml"),
        ("sweep", "tune STUDY.yaml"),
        ("benchmark", "bench URL"),
        ("serve", "service up SERVICE.yaml"),
    ):
        with pytest.raises(InputError, match=f"is not a verb; use `ridgeline {meant}"):
            run([typed])
    for typed, meant in (
        ("tunne", "tune"),
        ("simulat", "twin simulate"),
        ("gaet", "ci gate"),
        ("diff", "study diff"),
        ("sevice", "service"),
        ("compare-studes", "study diff"),
        ("make-modl", "model make"),
        ("up", "service up"),
    ):
        with pytest.raises(InputError, match=rf"'{typed}' is not a verb; did you mean `ridgeline {meant}`\?"):
            run([typed])
    with pytest.raises(InputError, match="'qqqq' is not a verb; `ridgeline --help` lists the verbs"):
        run(["qqqq"])


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("twin simulat", "twin simulate"),
        ("twin layouts", "plan layouts"),  # of another group
        ("study tune", "tune"),
        ("site grant topup", "site grant top-up"),
        ("service statu", "service status"),  # not the verb at the top
        ("site chek", "site check"),
    ],
)
def test_a_verb_that_a_group_does_not_have_is_answered_with_the_nearest(typed: str, meant: str) -> None:
    group, _, word = typed.rpartition(" ")
    with pytest.raises(
        InputError, match=rf"`ridgeline {group}` has no verb '{word}'; did you mean `ridgeline {meant}`\?"
    ):
        run(typed.split())
    with pytest.raises(InputError, match="`ridgeline ci` has no verb 'qqqq'; use one of gate, bisect"):
        run(["ci", "qqqq"])


def test_a_verb_of_a_group_takes_only_its_own_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["service", "down", "service.yaml", "--rolling"])
    assert ended.value.code == 2
    assert "No such option: --rolling" in capsys.readouterr().err


def test_help_and_the_start_of_a_verb_import_nothing_heavy() -> None:
    """What is loaded before a verb begins: neither a library that takes long nor a room that does the work."""
    code = """
import sys
from ridgeline.cli.main import application, commands
for name, command in commands():
    application(command)
heavy = {"pydantic", "numpy", "optuna", "scipy", "rich", "yaml", "starlette", "uvicorn"}
light = {"catalog", "cli", "errors", "records", "stats", "serving", "nwchem"}
light |= {f"serving.{room}" for room in ("verbs", "wing", "engines", "ports")} | {"nwchem.wing"}
# what is named and not yet loaded waits in a module of another type; packages are empty
loaded = [name for name, module in sys.modules.items() if type(module) is type(sys) and not hasattr(module, "__path__")]
names = (m.split(".")[1:] for m in loaded if m.startswith("ridgeline."))
rooms = {".".join(n[:2]) if n[0] in ("serving", "nwchem") else n[0] for n in names} - light
print(*sorted(heavy & sys.modules.keys() | rooms))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout.split() == []
