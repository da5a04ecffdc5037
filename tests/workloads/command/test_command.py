"""The command workload: templates in, metrics out, and every mistake in a study named with its place."""

from __future__ import annotations

import gzip
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.errors import StoreError
from ridgeline.executors.local import LocalExecutor
from ridgeline.records import matching
from ridgeline.records.expression import Expression
from ridgeline.records.guard import parse_guard
from ridgeline.records.outcome import Kind
from ridgeline.records.run import Cause, Ending, Resources, Run
from ridgeline.records.site import Site
from ridgeline.records.space import Discrete, Space
from ridgeline.records.study import Builds, Goal, JobLimits, Study, WorkloadChoice
from ridgeline.records.trial import Stage, Trial
from ridgeline.workloads.command import CommandWorkload

SPACE = Space(
    (
        Discrete("block", [8, 64], ordered=True),
        Discrete("threads", [1, 2], ordered=True),
        Discrete("flag", ["", "-x y"], ordered=False),
    ),
    {"twice": Expression.parse("2 * threads")},
)
POINT = {"block": 64, "threads": 2, "flag": ""}


def study(folder: Path, goal: str = "rate", **options: object) -> Study:
    given = {"run": "./app --block {block}", "metrics": {"rate": {"regex": r"rate (\S+)"}}, **options}
    kept = {name: value for name, value in given.items() if value is not None}
    return Study("s", WorkloadChoice("command", kept), SPACE, Goal(goal, "maximize"), baseline=POINT, folder=folder)


def trial(build: Path | None = None) -> Trial:
    return Trial(1, POINT, SPACE.settings(POINT), Stage.SEARCH, "guided", build=build)


def run(folder: Path, **usage: float) -> Run:
    ending = Ending(Cause.EXITED, 0, started_s=100.0, ended_s=102.5, usage=usage)
    return Run(1, 1, 1, folder, Resources(), ending)


def problems(folder: Path, **options: object) -> dict[str, str]:
    found = CommandWorkload(study(folder, **options)).problems()  # type: ignore[arg-type]
    return {".".join(map(str, problem.where)): problem.message for problem in found}


# templates


def test_command_environment_and_inputs_are_filled(tmp_path: Path) -> None:
    (tmp_path / "app.template").write_text("threads {twice}\nbraces {{}}\n")
    one = study(
        tmp_path,
        run="./app --block {block:04d} {flag} ${{HOME}} {ranks}",
        env={"OMP_NUM_THREADS": "{threads}", "PLAIN": 3},
        inputs={"in/a.txt": "b={block}", "b.txt": {"from": "app.template"}},
    )
    job = CommandWorkload(replace(one, job=JobLimits(nodes=Expression.parse("threads")))).prepare(
        trial(), tmp_path / "run"
    )
    assert job.command == "./app --block 0064  ${HOME} 2"
    assert job.env == {"OMP_NUM_THREADS": "2", "PLAIN": "3"}
    assert (tmp_path / "run/in/a.txt").read_text() == "b=64"
    assert (tmp_path / "run/b.txt").read_text() == "threads 4\nbraces {}\n"
    assert job.resources == Resources(nodes=2)


def test_the_sites_launcher_and_container_are_used(tmp_path: Path) -> None:
    site = Site(launcher="srun", container="/images/app.sif")
    launched = CommandWorkload(replace(study(tmp_path, run="{launch} ./app"), site=site)).prepare(
        trial(), tmp_path / "a"
    )
    assert launched.command.startswith("srun ")
    assert launched.command.endswith("exec /images/app.sif ./app")
    whole = CommandWorkload(replace(study(tmp_path, run="cd x && ./app"), site=site)).prepare(trial(), tmp_path / "b")
    assert whole.command.endswith("exec /images/app.sif sh -c 'cd x && ./app'")


def test_files_are_copied_or_linked(tmp_path: Path) -> None:
    home = tmp_path / "study"
    (home / "big").mkdir(parents=True)
    (home / "small.dat").write_text("s")
    (home / "big/part").write_text("b")
    CommandWorkload(study(home, files=["small.dat", {"link": "big"}])).prepare(trial(), tmp_path / "runs/1")
    folder = tmp_path / "runs/1"
    assert (folder / "small.dat").read_text() == "s"
    assert not (folder / "small.dat").is_symlink()
    assert str((folder / "big").readlink()) == "../../study/big"
    assert (folder / "big/part").read_text() == "b"


@pytest.mark.parametrize(
    ("run", "named"),
    [
        ("cat decks/{block}.nw", "decks/64.nw, which"),
        ("cat 'decks/64.nw'|app", "decks/64.nw, which"),
        ("cat <./notes.txt", " notes.txt, which"),
        ("cat species.dat in.txt --out=none decks64.nw", ""),
        ("cat {build}/notes.txt $HOME/notes.txt /tmp ..", ""),
    ],
)
def test_a_file_that_only_the_study_has_is_remarked(tmp_path: Path, run: str, named: str) -> None:
    (tmp_path / "decks").mkdir()
    for name in ("species.dat", "notes.txt", "decks/64.nw", "in.txt"):
        (tmp_path / name).touch()
    builds = Builds(("make",), ("notes.txt",)) if "{build}" in run else None
    asked = replace(study(tmp_path, run=run, files=["species.dat"], inputs={"in.txt": ""}), builds=builds)
    found = CommandWorkload(asked).remarks(SPACE.settings(POINT))
    assert len(found) == bool(named) and all(named in text and "add `files: [" in text for text in found)
    given = study(tmp_path, run=run, files=["decks", "notes.txt", "species.dat", "in.txt"])
    assert not CommandWorkload(given).remarks(SPACE.settings(POINT))


def test_one_name_for_two_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    assert "once" in problems(tmp_path, inputs={"a": "x"}, files=["a"])["workload.files.0"]


def test_what_a_run_changed_is_left_when_it_is_taken_up_again(tmp_path: Path) -> None:
    (tmp_path / "restart").write_text("old")
    workload = CommandWorkload(study(tmp_path, files=["restart"], inputs={"in": "{block}"}))
    workload.prepare(trial(), tmp_path / "run")
    for name in ("restart", "in"):
        (tmp_path / "run" / name).write_text("changed by the run")
    workload.prepare(trial(), tmp_path / "run")
    assert {(tmp_path / "run" / name).read_text() for name in ("restart", "in")} == {"changed by the run"}


def test_what_was_built_is_linked_and_the_whole_may_be_moved(tmp_path: Path) -> None:
    build = tmp_path / "s/builds/abc"
    (build / "bin").mkdir(parents=True)
    (build / "bin/app").write_text("#!/bin/sh\necho rate 3 $1\n")
    (build / "bin/app").chmod(0o755)
    (build / "stdout").write_text("of the compiler")
    one = replace(study(tmp_path, run="bin/app {build}"), builds=Builds(make=("cc",), keep=("bin/app", "lib*")))
    workload = CommandWorkload(one)
    assert workload.problems() == []
    executor = LocalExecutor(Site())
    ticket = executor.submit(workload.prepare(trial(build), tmp_path / "s/runs/1"))
    while not executor.poll([ticket]):
        executor.wait(5)
    folder = (tmp_path / "s").rename(tmp_path / "moved") / "runs/1"
    again = subprocess.run(["sh", "run.sh"], cwd=folder, capture_output=True, text=True, check=True)
    assert again.stdout == (folder / "stdout").read_text() == "rate 3 ../../builds/abc\n"


def test_a_setting_that_cannot_be_rendered_is_refused_before_it_runs(tmp_path: Path) -> None:
    workload = CommandWorkload(study(tmp_path, run="./app {flag:d}"))
    assert "flag" in (workload.refusal({**SPACE.settings(POINT), "flag": "text"}) or "")
    asks = CommandWorkload(replace(study(tmp_path), job=JobLimits(nodes=Expression.parse("threads - 2"))))
    assert "nodes" in (asks.refusal(SPACE.settings(POINT)) or "")


def test_paste_is_a_line_for_a_shell(tmp_path: Path) -> None:
    (tmp_path / "app").write_text("#!/bin/sh\necho $MODE $@ $(cat in)\n")
    (tmp_path / "app").chmod(0o755)
    one = study(tmp_path, run="./app {block} {flag}", env={"MODE": "it's {threads}"}, inputs={"in": "b {block}"})
    one = replace(one, builds=Builds(make=("echo built {flag}",), keep=("app",)))
    text = CommandWorkload(one).paste({**SPACE.settings(POINT), "flag": "-x y"})
    shown = subprocess.run(["sh", "-c", text], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert shown.stdout == "built -x y\nit's 2 64 -x y b 64\n"


# metrics

TABLE = "step,time,energy\n1,0.5,-10.5\n2,0.25,-11.5\n3,0.75,-11.25\n"


@pytest.mark.parametrize(
    ("metric", "text", "expected"),
    [
        ({"regex": r"rate (\S+)"}, "rate 1\nrate 2.5\n", 2.5),
        ({"regex": r"rate (\S+)", "pick": "first"}, "rate 1\nrate 2.5\n", 1.0),
        ({"regex": r"rate (\S+)", "pick": "max"}, "rate 3\nrate 2.5\n", 3.0),
        ({"regex": r"rate (\S+)", "pick": "sum"}, "rate 3\nrate 2.5\n", 5.5),
        ({"regex": r"rate (\S+)", "pick": "mean"}, "rate 3\nrate 2\n", 2.5),
        ({"regex": r"^\d+$"}, "a1\n42\n", 42.0),
        ({"regex": r"E = (\S+)"}, "E = -1.5D-03", -0.0015),
        ({"regex": r"total\s+(\d+)"}, "total\n   7\n", 7.0),
        ({"json": "a.b"}, '{"a": {"b": 3}}', 3.0),
        ({"json": "runs.1.rate"}, '{"runs": [{"rate": 1}, {"rate": 2}]}', 2.0),
        ({"json": "p50.ms"}, '{"p50.ms": 4}', 4.0),
        ({"json": "lat", "pick": "mean"}, '{"lat": [1, 2, 6]}', 3.0),
        ({"json": "rate"}, 'starting\n{"rate": 1}\n{"rate": 2}\nbye\n', 2.0),
        ({"csv": "time"}, TABLE, 0.75),
        ({"csv": "time", "pick": "min"}, TABLE, 0.25),
        ({"csv": "energy", "row": 1}, TABLE, -11.5),
        ({"csv": "energy", "row": -1}, TABLE, -11.25),
        ({"csv": "b"}, "a;b\n1;2\n", 2.0),
        ({"csv": "b"}, "a   b\n1   2\n", 2.0),
    ],
)
def test_metrics_are_read(tmp_path: Path, metric: dict[str, object], text: str, expected: float) -> None:
    (tmp_path / "out.txt").write_text(text)
    workload = CommandWorkload(study(tmp_path, metrics={"rate": {**metric, "file": "out.txt", "unit": "x/s"}}))
    assert workload.problems() == []
    reading = workload.read(run(tmp_path))
    found = next(m for m in reading.measurements if m.metric == "rate")
    assert (found.value, found.unit, found.source) == (pytest.approx(expected), "x/s", "out.txt")


@pytest.mark.parametrize(
    ("metric", "text", "message"),
    [
        ({"regex": r"rate (\S+)"}, "nothing", "no text matching"),
        ({"regex": r"rate (\S+)"}, "rate nan", "nan"),
        ({"regex": r"rate (\S+)"}, "rate fast", "type: text"),
        ({"json": "a.c"}, '{"a": {"b": 3}}', "a.c"),
        ({"json": "a"}, "not json", "JSON"),
        ({"csv": "speed"}, TABLE, "column speed"),
        ({"csv": "time", "row": 9}, TABLE, "row 9"),
        ({"json": "a"}, "[" * 100_000, "JSON"),
        ({"json": "a"}, f'x\n{{"a": {"[" * 100_000}', "JSON"),
        ({"json": "a"}, f'{{"a": 1{"0" * 400}}}', "not a number"),
        ({"json": "a", "pick": "sum"}, '{"a": [1e308, 1e308]}', "no sum"),
        ({"csv": "time"}, f"time,x\n1,{'y' * 200_000}\n", "column time"),
    ],
)
def test_what_is_missing_is_said(tmp_path: Path, metric: dict[str, object], text: str, message: str) -> None:
    (tmp_path / "stdout").write_text(text)
    reading = CommandWorkload(study(tmp_path, metrics={"rate": metric})).read(run(tmp_path))
    assert message in reading.problem
    assert reading.problem.startswith("rate")


def test_time_and_memory_need_no_pattern(tmp_path: Path) -> None:
    workload = CommandWorkload(study(tmp_path, goal="wall_s", metrics=None))
    assert workload.problems() == []
    reading = workload.read(run(tmp_path, cpu_s=4.0, max_rss_bytes=2.0**20, service_units=1.0))
    assert reading.metrics == {"wall_s": 2.5, "cpu_s": 4.0, "max_rss_bytes": 2.0**20}
    assert reading.problem == ""


def test_a_goal_the_site_did_not_measure_is_a_problem(tmp_path: Path) -> None:
    workload = CommandWorkload(study(tmp_path, goal="max_rss_bytes", metrics=None))
    assert "max_rss_bytes" in workload.read(run(tmp_path)).problem
    assert workload.read(run(tmp_path, max_rss_bytes=1.0)).problem == ""


def test_a_metric_nobody_needs_may_be_missing_a_guarded_one_may_not(tmp_path: Path) -> None:
    metrics = {
        "rate": {"regex": r"rate (\S+)"},
        "note": {"regex": r"note (\w+)", "type": "text"},
        "error": {"regex": r"error (\S+)"},
    }
    one = study(tmp_path, metrics=metrics)
    (tmp_path / "stdout").write_text("rate 2\nnote good\n")
    reading = CommandWorkload(one).read(run(tmp_path))
    assert (reading.problem, reading.texts) == ("", {"note": "good"})
    guarded = replace(one, guards=(parse_guard("error < 1e-6"),))
    assert "error" in CommandWorkload(guarded).read(run(tmp_path)).problem


# mistakes


@pytest.mark.parametrize(
    ("options", "where", "message"),
    [
        ({"rum": "x"}, "workload.rum", "did you mean run?"),
        ({"run": None}, "workload.run", "missing; add it, for example `run: ./app"),
        ({"run": 3}, "workload.run", "command line"),
        ({"run": "./app {blok}"}, "workload.run", "did you mean block?"),
        ({"run": "{build}/app"}, "workload.run", "no `builds`"),
        ({"env": {"A-B": "1"}}, "workload.env.A-B", "environment variable"),
        ({"env": {"A": [1]}}, "workload.env.A", "must be text"),
        ({"env": {"A": "{tread}"}}, "workload.env.A", "did you mean threads?"),
        ({"env": "A=1"}, "workload.env", "pairs"),
        ({"inputs": {"../a": "x"}}, "workload.inputs.../a", "inside the run folder"),
        ({"inputs": {"/a": "x"}}, "workload.inputs./a", "inside the run folder"),
        ({"inputs": {"run.sh": "x"}}, "workload.inputs.run.sh", "choose another name"),
        ({"inputs": {"a": {"from": "gone.in"}}}, "workload.inputs.a.from", "gone.in"),
        ({"inputs": {"a": "{nope}"}}, "workload.inputs.a", "not a knob"),
        ({"files": ["gone.dat"]}, "workload.files.0", "gone.dat"),
        ({"files": "gone.dat"}, "workload.files", "list"),
        ({"metrics": {"rate": {"regx": "a"}}}, "workload.metrics.rate.regx", "did you mean regex?"),
        ({"metrics": {"rate": {"regex": "(a"}}}, "workload.metrics.rate.regex", "not a regular expression"),
        ({"metrics": {"rate": {"regex": "a", "json": "b"}}}, "workload.metrics.rate", "exactly one"),
        ({"metrics": {"rate": {"regex": "a", "pick": "median"}}}, "workload.metrics.rate.pick", "median"),
        ({"metrics": {"rate": {"regex": "a", "type": "float"}}}, "workload.metrics.rate.type", "number"),
        ({"metrics": {"rate": {"regex": "a", "row": 1}}}, "workload.metrics.rate.row", "csv"),
        ({"metrics": {"my rate": {"regex": "a"}}}, "workload.metrics.my rate", "one word"),
        ({"metrics": {"rate": "a"}}, "workload.metrics.rate", "it must be a mapping such as {regex: "),
        ({"metrics": {"rates": {"regex": "a"}}}, "goal.maximize", "did you mean rates?"),
        ({"metrics": {"rate": {"regex": "a", "type": "text"}}}, "goal.maximize", "only a number"),
        ({"signatures": [{"pattern": "("}]}, "workload.signatures.0.pattern", "not a regular expression"),
        ({"signatures": [{"kind": "crash"}]}, "workload.signatures.0.pattern", "missing"),
        ({"signatures": [{"pattern": "a", "kind": "oom"}]}, "workload.signatures.0.kind", "oom-"),
        ({"signatures": [{"pattern": "a", "knd": "crash"}]}, "workload.signatures.0.knd", "did you mean kind?"),
    ],
)
def test_mistakes_are_named_with_their_place(
    tmp_path: Path, options: dict[str, object], where: str, message: str
) -> None:
    found = problems(tmp_path, **options)
    assert message in found[where]


def test_a_guard_on_something_unknown(tmp_path: Path) -> None:
    one = replace(study(tmp_path), guards=(parse_guard("rate > 0"), parse_guard("chcksum within 1 of baseline")))
    (problem,) = CommandWorkload(one).problems()
    assert problem.where == ("guards", 1)
    assert "chcksum" in problem.message


# failures


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("run.sh: 20: ./app: not found", Kind.REJECTED),
        ("/x/run.sh: line 20: app: command not found", Kind.REJECTED),
        ("write: No space left on device", Kind.SITE_FAULT),
        ("./app: error while loading shared libraries: libfoo.so", Kind.REJECTED),
        ("Killed", Kind.OOM_RUN),
        ("run.sh: line 19:  4242 Killed                  ./app", Kind.OOM_RUN),
        ("terminate called after throwing an instance of 'std::bad_alloc'", Kind.OOM_RUN),
        ("mmap: Cannot allocate memory", Kind.OOM_RUN),
        ("Segmentation fault (core dumped)", Kind.CRASH),
        ("Illegal instruction", Kind.CRASH),
        ("MPI_ABORT was invoked on rank 0", Kind.CRASH),
        ("app: unrecognized option '--fast'", Kind.REJECTED),
        ("There are not enough slots available in the system", Kind.REJECTED),
        ("app: not found in the table of species", None),
        ("iteration 3 killed 4 neurons", None),
    ],
)
def test_failures_are_told_apart_by_what_programs_say(tmp_path: Path, line: str, kind: Kind | None) -> None:
    workload = CommandWorkload(study(tmp_path))
    found = next((s.kind for s in workload.signatures if s.pattern.search(line)), None)
    assert found is kind


def test_signatures_of_the_study_go_first(tmp_path: Path) -> None:
    signatures = [{"pattern": "Segmentation fault", "kind": "rejected", "reason": "grid too coarse"}]
    first = CommandWorkload(study(tmp_path, signatures=signatures)).signatures[0]
    assert (first.kind, first.reason) == (Kind.REJECTED, "grid too coarse")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot fill"):
        CommandWorkload(study(tmp_path)).prepare(trial(), tmp_path / "file" / "run")


def test_a_metric_of_the_study_comes_before_the_built_in_of_that_name(tmp_path: Path) -> None:
    (tmp_path / "stdout").write_text("rate 7\ntook 1.5 s\n")
    plain = CommandWorkload(study(tmp_path)).read(run(tmp_path, cpu_s=2.0))
    assert plain.metrics == {"wall_s": 2.5, "cpu_s": 2.0, "rate": 7.0}
    own = {"rate": {"regex": r"rate (\S+)"}, "wall_s": {"regex": r"took (\S+)", "unit": "s"}}
    found = CommandWorkload(study(tmp_path, metrics=own)).read(run(tmp_path, cpu_s=2.0))
    assert [m.value for m in found.measurements if m.metric == "wall_s"] == [1.5]


@pytest.mark.parametrize(
    ("metric", "text", "value"),
    [
        ({"regex": r"mode (\S+)", "type": "text", "pick": "first"}, "mode slow\nmode fast\n", "slow"),
        ({"regex": r"mode (\S+)", "type": "text"}, "mode slow\nmode fast\n", "fast"),
        ({"csv": "rate"}, "\n  \nrun,rate\n\n1,5\n\n2,7\n", 7.0),
        ({"json": "rate"}, 'starting\n{"rate": 4}\n{"rate": \n{"other": 1}\ndone\n', 4.0),
    ],
)
def test_output_between_other_lines_is_read_all_the_same(
    tmp_path: Path, metric: dict[str, object], text: str, value: float | str
) -> None:
    """Blank lines around a table, a JSON line that was cut off, and words that come again."""
    (tmp_path / "out.txt").write_text(text)
    reading = CommandWorkload(study(tmp_path, metrics={"found": {**metric, "file": "out.txt"}})).read(run(tmp_path))
    assert {**reading.texts, **reading.metrics}["found"] == value


def test_a_pattern_that_ran_out_of_its_time_is_said_although_nothing_depends_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matching, "BASE_S", 0.2)
    (tmp_path / "stdout").write_text(f"rate 7\n{'a' * 40}!\n")
    metrics = {"rate": {"regex": r"rate (\S+)"}, "aside": {"regex": "(a+)+$"}}
    reading = CommandWorkload(study(tmp_path, metrics=metrics)).read(run(tmp_path))
    assert reading.metrics["rate"] == 7.0
    assert "aside: in stdout, the pattern '(a+)+$' was given up" in reading.problem


@pytest.mark.parametrize("written", ["true", "false", "[3, true]"])
def test_true_is_no_number(tmp_path: Path, written: str) -> None:
    (tmp_path / "stdout").write_text(f'{{"rate": {written}}}\n')
    reading = CommandWorkload(study(tmp_path, metrics={"rate": {"json": "rate"}})).read(run(tmp_path))
    assert "rate" not in reading.metrics
    assert f"rate: {'false' if written == 'false' else 'true'} in stdout is not a number" in reading.problem


def test_a_metric_is_read_out_of_a_gzipped_file(tmp_path: Path) -> None:
    (tmp_path / "out.gz").write_bytes(gzip.compress(b"rate 7\n"))
    metrics = {"rate": {"regex": r"rate (\S+)", "file": "out.gz"}}
    assert CommandWorkload(study(tmp_path, metrics=metrics)).read(run(tmp_path)).metrics["rate"] == 7.0
