"""What is pasted starts what the run started: the same arguments, environment and input files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ridgeline.executors import script
from ridgeline.records.site import LOCAL, Site
from ridgeline.records.space import Discrete, Space
from ridgeline.records.study import Builds, Goal, Study, WorkloadChoice
from ridgeline.records.trial import Stage, Trial
from ridgeline.workloads.command import CommandWorkload
from ridgeline.workloads.run_folder import _is_one_program

# writes down how it was started, and what it found in its folder
PROBE = """\
#!{python} -IS
import json, os, sys, tempfile
seen = {{"arguments": sys.argv[1:], "env": {{n: os.environ.get(n) for n in {names!r}}}}}
seen["files"] = {{n: open(n, newline="").read() if os.path.isfile(n) else None for n in {files!r}}}
number, path = tempfile.mkstemp(dir=os.path.join({records!r}, os.environ["HOME"].rsplit("/")[-1]))
os.write(number, json.dumps(seen, sort_keys=True).encode())
"""
VARIABLES = ("T", "U", "IFS")
anything = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12) | st.sampled_from(
    [
        "",
        "-n",
        "it's",
        'a "b" c',
        "two\nlines\n",
        "$HOME `x` \\",
        "END_OF_INPUT\n",
        "naïve 漢",
        " lead",
        "~",
        "#no",
        "*",
    ]
)
pieces = st.sampled_from(
    [
        *("./probe", "./probe -x 1", "./probe $T", "./probe \"$U\" 'a  b'", "cd . &&", "cd .;", "sh -c './probe $T'"),
        *("export T=9;", "export T;", "exec", "env", "time", "if true; then ./probe yes; fi", "{ ./probe b; }", "U=7"),
        *("> out", "| cat", "&&", "||", ";", "!", "# ./probe", "'#'", "\n", "exit 3", "set -- a;", "command", "true"),
    ]
)
# a command of comments alone is an error of run.sh
runs = st.lists(pieces, min_size=1, max_size=5).map(" ".join).filter(lambda run: re.search(r"^\s*[^\s#]", run, re.M))


@dataclass(frozen=True)
class Asked:
    run: str
    t: str = "3"
    u: str = "x"
    content: str = ""  # of an input, empty for none
    site: Site = LOCAL


def study_in(home: Path, asked: Asked, **options: object) -> Study:
    """Its program is beside it; `data/table` is copied, `link` linked."""
    files = ["table", "in", "sub dir/in", "-in", "link"] if asked.content else []
    (home / "study/data").mkdir(parents=True)
    for kind in ("run", "paste"):
        (home / "records" / kind).mkdir(parents=True)
    python = Path(sys.executable).resolve()  # a path with a space cannot stand after #!
    probe = PROBE.format(python=python, names=VARIABLES, files=files, records=str(home / "records"))
    (home / "study/probe").write_text(probe)
    (home / "study/probe").chmod(0o755)
    (home / "study/data/table").write_text("1 2 3\n")
    (home / "study/link").write_text("linked")
    (home / "study/in").write_text("a template that must stay")
    if asked.content:
        options["inputs"] = dict.fromkeys(files[1:4], "{content}")
        options.setdefault("files", ["probe", "data/table", {"link": "link"}])
    given = {"run": "{run}", "env": {"T": "{t}", "U": "{u}"}, "files": ["probe"], **options}
    values = {"run": asked.run, "t": asked.t, "u": asked.u, "content": asked.content}
    space = Space(tuple(Discrete(name, [value], ordered=False) for name, value in values.items()), {})
    goal = Goal("wall_s", "minimize")
    return Study("s", WorkloadChoice("command", given), space, goal, values, home / "study", site=asked.site)


def shell(home: Path, kind: str, *arguments: str, cwd: Path) -> int:
    clean = {"PATH": os.environ["PATH"], "HOME": str(home / kind)}
    done = subprocess.run(arguments, cwd=cwd, env=clean, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    return done.returncode


def started(home: Path, kind: str) -> list[object]:
    return sorted((json.loads(path.read_text()) for path in (home / "records" / kind).iterdir()), key=json.dumps)


def run_and_paste(
    study: Study, home: Path, sh: str = "sh"
) -> tuple[tuple[int, list[object]], tuple[int, list[object]]]:
    workload = CommandWorkload(study)
    assert workload.problems() == []
    trial = Trial(1, study.baseline, study.space.settings(study.baseline), Stage.SEARCH, "guided")
    job = workload.prepare(trial, home / "runs/1")
    script.write(job, study.site, script.render(job, study.site))
    ended = shell(home, "run", "sh", "run.sh", cwd=job.folder), started(home, "run")
    text = workload.paste(trial.settings)
    return ended, (shell(home, "paste", sh, "-c", text, cwd=home / "study"), started(home, "paste"))


@example(Asked("cd . && sh -c './probe $T'"))
@example(Asked("./probe", t="two\nlines", content="x\nEND_OF_INPUT\n\n"))
@example(Asked("./probe -x 1", content="no newline"))
@example(Asked("./probe", site=Site(env={"T": "site", "IFS": "1"}, setup=("U=8",))))
@given(st.builds(Asked, runs, anything, anything, st.just("") | anything))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_what_is_pasted_starts_what_the_run_started(asked: Asked) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        ran, pasted = run_and_paste(study_in(home, asked), home)
        assert pasted == ran
        assert (home / "study/in").read_text() == "a template that must stay"


def test_the_probe_sees_variables_and_files(tmp_path: Path) -> None:
    asked = Asked("cd . && sh -c './probe $T'", t="3", content="text\n")
    ran, pasted = run_and_paste(study_in(tmp_path, asked), tmp_path, sh="bash")
    assert pasted == ran
    files = {"table": "1 2 3\n", "in": "text\n", "sub dir/in": "text\n", "-in": "text\n", "link": "linked"}
    assert ran == (0, [{"arguments": ["3"], "env": {"T": "3", "U": "x", "IFS": None}, "files": files}])


def test_what_was_built_is_pasted_with_its_environment(tmp_path: Path) -> None:
    asked = Asked("bin/probe {build}", content="x")
    study = study_in(tmp_path, asked, run="bin/probe -b", files=["data/table"])
    make = ("mkdir -p bin", 'test "$FLAGS" = "-O {t}" && cp probe bin/probe')
    study = replace(study, builds=Builds(make=make, keep=("bin/probe",), env={"FLAGS": "-O {t}"}))
    assert (
        shell(tmp_path, "paste", "sh", "-c", CommandWorkload(study).paste(study.baseline), cwd=tmp_path / "study") == 0
    )
    (seen,) = started(tmp_path, "paste")
    assert seen["arguments"] == ["-b"]  # type: ignore[index]
    broken = replace(study, builds=replace(study.builds, make=("false", "true")))
    assert shell(tmp_path, "paste", "sh", "-c", CommandWorkload(broken).paste(study.baseline), cwd=tmp_path / "study")
    assert len(started(tmp_path, "paste")) == 1, "nothing is started after a build that failed"


@pytest.mark.parametrize(
    ("run", "text"),
    [
        ("./probe --block 64 'a;b'", "T=3 U='x y' ./probe --block 64 'a;b'"),
        ("cd . && ./probe", "(\nexport T=3\nexport U='x y'\ncd . && ./probe\n)"),
        ("exec ./probe", "(\nexport T=3\nexport U='x y'\nexec ./probe\n)"),
        ("A=1 ./probe", "(\nexport T=3\nexport U='x y'\nA=1 ./probe\n)"),
    ],
)
def test_one_program_is_one_line_all_else_a_subshell(tmp_path: Path, run: str, text: str) -> None:
    study = study_in(tmp_path, Asked(run, u="x y"))
    assert CommandWorkload(study).paste(study.baseline) == text


@pytest.mark.parametrize(
    "command",
    [
        *(
            "a;b",
            "a&",
            "a|b",
            "a>b",
            "a<b",
            "(a)",
            "a $b",
            "a `b`",
            "a\nb",
            "cd b",
            "a=b c",
            "export a",
            "if a",
            "a 'b",
        ),
        *('a "$b"', "! a", "{ a", "a #b", "~/a", "a \\", ""),
    ],
)
def test_shell_text_is_not_taken_for_a_program(command: str) -> None:
    assert not _is_one_program(command)
