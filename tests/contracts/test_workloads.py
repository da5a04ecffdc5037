"""What every workload promises. One joins by a `Bench` in `BENCHES`: a study it accepts, and a finished run of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest

from ridgeline import catalog
from ridgeline.records.expression import Value
from ridgeline.records.run import Cause, Ending, Resources, Run
from ridgeline.records.space import Discrete, Space
from ridgeline.records.study import Goal, Study, WorkloadChoice
from ridgeline.records.trial import Stage, Trial
from ridgeline.testing import FunctionWorkload, ScriptedAnswer
from ridgeline.workloads.base import Workload
from ridgeline.workloads.command.workload import CommandWorkload
from ridgeline.workloads.nwchem.workload import NwchemWorkload
from ridgeline.workloads.twin.workload import TwinWorkload
from tests.workloads.engine.studies import study as engine_study
from tests.workloads.nwchem.runs import GUARD
from tests.workloads.nwchem.runs import SAMPLES as NWCHEM_SAMPLES
from tests.workloads.nwchem.runs import checked as nwchem_study

ENGINES = [f"{engine}-{ending}" for engine in catalog.TABLE["engines"] for ending in catalog.ENGINE_WORKLOADS]


@dataclass
class Bench:
    """`make` builds the workload from a study; `write_run` leaves in a folder what a good run would, in file `log`."""

    make: Callable[[Study], Workload]
    study: Study
    write_run: Callable[[Path], None]
    log: str = "stdout"
    pasted: Mapping[str, Value] = field(default_factory=lambda: {"size": 4, "mode": "b c"})
    value: float = 4.5  # of the goal's metric in that run


def command_bench(folder: Path) -> Bench:
    (folder / "mesh.dat").write_text("mesh")
    (folder / "table.dat").write_text("table")
    options = {
        "run": "./app --size {size}",
        "env": {"MODE": "{mode}"},
        "inputs": {"in/app.in": "size = {size}\n"},
        "files": ["mesh.dat", {"link": "table.dat"}],
        "metrics": {"rate": {"regex": r"rate (\S+)"}},
    }
    return Bench(
        CommandWorkload, study(folder, "command", options), lambda run: _write(run / "stdout", "rate 4.5 GF/s\n")
    )


def function_bench(folder: Path) -> Bench:
    def make(study: Study) -> Workload:
        return FunctionWorkload(study, lambda settings: ScriptedAnswer({"rate": 2.0 * float(settings["size"] or 0)}))

    return Bench(make, study(folder, "function", {}), lambda run: _write(run / "stdout", '{"rate": 4.5}\n'))


def twin_bench(folder: Path) -> Bench:
    knobs = (Discrete("tp", [1, 2], ordered=True), Discrete("max_running_requests", [8, 64], ordered=True))
    options = {"model": "llama-8b", "gpu": "h100", "traffic": {"dataset": "fixed:64:8", "requests": 20}}
    twin = replace(
        study(folder, "twin", options),
        space=Space(knobs, {}),
        goal=Goal("total_tok_s", "maximize"),
        baseline={"tp": 1, "max_running_requests": 8},
    )

    def write_run(run: Path) -> None:
        rows = {
            "Successful requests": 20,
            "Benchmark duration (s)": 320,
            "Total input tokens": 1280,
            "Total generated tokens": 160,
            "Total token throughput (tok/s)": 4.5,
        }
        block = "".join(f"{name}: {value}\n" for name, value in rows.items())
        _write(run / "sglang.log", f"=== Offline Throughput Benchmark Result ===\n{block}{'=' * 50}\n")
        _write(run / "bench.json", "{}")

    return Bench(TwinWorkload, twin, write_run, "sglang.log", {"tp": 2, "attention_backend": "fa3"})


OFFLINE = {
    "sglang": {
        "successful_requests": 1000,
        "total_latency": 10.0,
        "total_input_tokens": 40,
        "total_output_tokens": 5,
        "total_throughput": 4.5,
    },
    "vllm": {"num_requests": 1000, "elapsed_time": 10.0, "total_num_tokens": 45},
}


def engine_bench(folder: Path, kind: str) -> Bench:
    serves = kind.endswith("serve")
    asked = engine_study(folder, kind, {"tp": [1, 2]})
    served = {"summary": {"total_tok_s": 4.5, "successful_requests": 1000, "duration_s": 10.0}}
    log = "measured.json" if serves else "offline.jsonl"
    result = served if serves else OFFLINE[kind.partition("-")[0]]

    def write_run(run: Path) -> None:
        _write(run / "engine.log", "")
        _write(run / log, json.dumps(result))

    return Bench(catalog.part("workloads", kind), asked, write_run, log, {"tp": 2})


def nwchem_bench(folder: Path) -> Bench:
    found = nwchem_study(folder, "{grid: [fine, medium]}", more=f"baseline: {{grid: fine}}\n{GUARD}")
    water = replace(found.study, goal=Goal("nwchem_wall_s", "minimize"))
    sample = (NWCHEM_SAMPLES / "direct-1h2o.out").read_text()
    return Bench(
        NwchemWorkload, water, lambda run: _write(run / "stdout", sample), pasted={"grid": "medium"}, value=0.5
    )


BENCHES: dict[str, Callable[[Path], Bench]] = {
    "command": command_bench,
    "function": function_bench,
    "twin": twin_bench,
    "nwchem": nwchem_bench,
    **{kind: partial(engine_bench, kind=kind) for kind in ENGINES},
}


def test_every_workload_of_the_catalog_is_held_to_these_promises() -> None:
    assert set(catalog.names("workloads")) <= set(BENCHES)


def study(folder: Path, kind: str, options: dict[str, object]) -> Study:
    space = Space((Discrete("size", [1, 2, 4], ordered=True), Discrete("mode", ["a", "b c"], ordered=False)), {})
    return Study(
        "promises",
        WorkloadChoice(kind, options),
        space,
        Goal("rate", "maximize"),
        baseline={"size": 1, "mode": "a"},
        folder=folder,
    )


def _write(path: Path, text: str) -> None:
    path.write_text(text)


@pytest.fixture(params=[pytest.param(make, id=name) for name, make in BENCHES.items()])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    home = tmp_path / "study"
    home.mkdir()
    made: Bench = request.param(home)
    return made


def trial(bench: Bench, number: int = 1) -> Trial:
    point = bench.study.baseline
    return Trial(number, point, bench.study.space.settings(point), Stage.BASELINE, "user")


def run(folder: Path, **ending: object) -> Run:
    end = Ending(**{"cause": Cause.EXITED, "exit_code": 0, "started_s": 10.0, "ended_s": 12.0, **ending})  # type: ignore[arg-type]
    return Run(1, 1, 1, folder, Resources(), end)


def content(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): str(path.readlink())
        if path.is_symlink()
        else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if not path.is_dir()
    }


def test_a_good_study_has_no_problems_and_its_baseline_is_not_refused(bench: Bench) -> None:
    workload = bench.make(bench.study)
    assert workload.problems() == []
    assert workload.refusal(bench.study.space.settings(bench.study.baseline)) is None


def test_prepare_twice_writes_the_same_files_and_the_same_job(bench: Bench, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "0001"
    first = bench.make(bench.study).prepare(trial(bench), folder)
    files = content(folder)
    second = bench.make(bench.study).prepare(trial(bench), folder)
    assert first == second
    assert content(folder) == files
    assert first.folder == folder
    assert first.command.strip()


def test_prepare_in_another_folder_differs_only_by_the_folder(bench: Bench, tmp_path: Path) -> None:
    workload = bench.make(bench.study)
    one = workload.prepare(trial(bench), tmp_path / "runs" / "0001")
    two = workload.prepare(trial(bench, 2), tmp_path / "runs" / "0002")
    assert content(one.folder) == content(two.folder)
    assert replace(two, name=one.name, folder=one.folder) == one


def test_limits_of_the_study_reach_the_job(bench: Bench, tmp_path: Path) -> None:
    limits = replace(bench.study.job, limit_s=7.0, silence_limit_s=3.0)
    job = bench.make(replace(bench.study, job=limits)).prepare(trial(bench), tmp_path / "run")
    assert (job.limit_s, job.silence_limit_s) == (7.0, 3.0)


def test_reading_twice_gives_the_same(bench: Bench, tmp_path: Path) -> None:
    workload, folder = bench.make(bench.study), tmp_path / "run"
    workload.prepare(trial(bench), folder)
    bench.write_run(folder)
    reading = workload.read(run(folder))
    assert reading.problem == ""
    assert reading.metrics[bench.study.goal.metric] == bench.value
    assert bench.make(bench.study).read(run(folder)) == reading


@pytest.mark.parametrize("output", [None, b"", b"\xff\xfe\x00 rate nan", b"rate fast", b"{" * 5000, b"\0" * 5000])
def test_bad_output_is_a_problem_in_words_never_an_exception(
    bench: Bench, tmp_path: Path, output: bytes | None
) -> None:
    workload, folder = bench.make(bench.study), tmp_path / "run"
    workload.prepare(trial(bench), folder)
    if output is not None:
        (folder / bench.log).write_bytes(output)
    reading = workload.read(run(folder))
    assert reading.problem
    assert bench.study.goal.metric not in reading.metrics


def test_a_deleted_folder_is_a_problem_in_words(bench: Bench, tmp_path: Path) -> None:
    assert bench.make(bench.study).read(run(tmp_path / "gone")).problem


def test_paste_names_the_values(bench: Bench) -> None:
    text = bench.make(bench.study).paste(bench.pasted)
    for value in bench.pasted.values():
        assert str(value) in text
