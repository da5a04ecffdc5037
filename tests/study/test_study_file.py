"""Good studies load as written; damaged ones are refused and nothing else happens."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ridgeline.errors import StudyError
from ridgeline.records.guard import Closeness
from ridgeline.records.space import Continuous, Discrete
from ridgeline.records.study import BaselineStage, Budget, ConfirmStage, SearchStage
from ridgeline.study.study_file import read_study_file
from tests.strategies import as_yaml, study_documents

GOOD = sorted((Path(__file__).parent / "good").glob("*.yaml"))
HEAD = "version: 1\nname: x\nworkload: {kind: command, run: ./a}\ngoal: {minimize: wall_s}\n"
FIXED = f"{HEAD}space: {{k: 7}}\n"


def load(tmp_path, text):
    path = tmp_path / "study.yaml"
    path.write_text(text)
    return read_study_file(path).study


def knobs_of(tmp_path, space, baseline):
    return load(tmp_path, f"{HEAD}space: {space}\nbaseline: {baseline}\n").space.knobs


def test_the_stencil_study_loads_as_written():
    path = next(p for p in GOOD if p.stem == "stencil")
    study = read_study_file(path).study
    assert study.folder == path.parent.resolve()
    assert study.space.by_name["threads"] == Discrete("threads", (1, 2, 4, 8), ordered=True, log=True)
    assert 0.3 in study.space.by_name["share"].values
    assert study.baseline == {"block": 32, "threads": 2, "share": 0.5, "opt": "-O2"}
    assert study.presets[0]["unroll"] == 4
    assert study.budget == Budget(trials=40, wall_s=3600.0)
    assert study.search == SearchStage("guided", {}, 8, 1)
    assert study.confirm == ConfirmStage(top=2, blocks=5, level=0.95)
    assert study.baseline_stage == BaselineStage(3)
    assert study.job.limit_s == 600.0
    assert study.builds is not None
    assert study.builds.make == ("gcc {opt} stencil.c -o stencil",)
    assert study.workload.options["metrics"]["checksum"] == {"regex": "checksum (\\S+)"}


@pytest.mark.parametrize(
    ("form", "value", "expected"),
    [
        ("[4, 1, 2]", 2, Discrete("k", (1, 2, 4), ordered=True)),
        ("[on, off]", "on", Discrete("k", ("on", "off"), ordered=False)),
        ("[true, false]", "true", Discrete("k", (True, False), ordered=False)),
        ("{values: [1e-3, 1e-6]}", 1e-6, Discrete("k", ("1e-6", "1e-3"), ordered=True)),
        ("{from: 1, to: 4}", 3, Discrete("k", range(1, 5), ordered=True)),
        ("{from: 2, to: 9, step: 3}", 8, Discrete("k", range(2, 10, 3), ordered=True)),
        ("{from: 1, to: 1000, log: true}", 7, Discrete("k", range(1, 1001), ordered=True, log=True)),
        ("{from: 3, to: 50, times: 2}", 24, Discrete("k", (3, 6, 12, 24, 48), ordered=True, log=True)),
        ("{from: 0.1, to: 10, times: 10}", 1, Discrete("k", (0.1, 1.0, 10.0), ordered=True, log=True)),
        ("{from: 0, to: 0.3, step: 0.1}", 0.3, Discrete("k", (0.0, 0.1, 0.2, 0.3), ordered=True)),
        ("{from: 0.5, to: 2}", 1, Continuous("k", 0.5, 2.0)),
        ("{from: 0.5, to: 0.5}", 0.5, Discrete("k", (0.5,), ordered=True)),
        ("{from: 3, to: 3}", 3, Discrete("k", range(3, 4), ordered=True)),
        ("{from: 2, to: 8, times: 2}", 8, Discrete("k", (2, 4, 8), ordered=True, log=True)),
        ("{from: -1.0e+15, to: 1.0e+15}", 0, Continuous("k", -1e15, 1e15)),  # the largest that are accepted
        ("{from: 1e-4, to: 0.1, log: true}", 0.01, Continuous("k", 1e-4, 0.1, log=True)),
        ("7", 7, Discrete("k", (7,), ordered=True)),
        ("-march=native", '"-march=native"', Discrete("k", ("-march=native",), ordered=False)),
    ],
)
def test_forms_of_a_knob(form, value, expected, tmp_path):
    (knob,) = knobs_of(tmp_path, f"{{k: {form}}}", f"{{k: {value}}}")
    assert knob == expected


def test_a_fixed_knob_may_be_left_out_of_the_baseline(tmp_path):
    study = load(tmp_path, f"{HEAD}space: {{k: 7, j: [1, 2]}}\nbaseline: {{j: 1}}\n")
    assert study.baseline == {"k": 7, "j": 1}
    assert load(tmp_path, f"{HEAD}space: {{k: 7}}\n").baseline == {"k": 7}


def test_points_take_the_spelling_of_the_space(tmp_path):
    study = load(tmp_path, f"{HEAD}space: {{k: [1, 2], x: {{from: 0.5, to: 2}}}}\nbaseline: {{k: 1.0, x: 1}}\n")
    assert [type(v) for v in study.baseline.values()] == [int, float]


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("90s", 90), ("10m", 600), ("2h", 7200), ("1h30m", 5400), ("45", 45), ("1.5h", 5400), ("1d", 86400)],
)
def test_durations(written, seconds, tmp_path):
    study = load(
        tmp_path, f"{HEAD}space: {{k: 7}}\nbudget: {{wall: {written}}}\njob: {{limit: {written}, silence: 2m}}\n"
    )
    assert study.budget.wall_s == study.job.limit_s == seconds
    assert study.job.silence_limit_s == 120


def test_short_forms_of_stages_and_options_of_the_sampler(tmp_path):
    study = load(tmp_path, f"{FIXED}search: {{sampler: grid, seed: 4, shuffle: true}}\nconfirm: {{top: 1}}\n")
    assert study.search == SearchStage("grid", {"shuffle": True}, 8, 4)
    assert study.confirm.top == 1


def test_guards_as_mappings(tmp_path):
    guards = "guards: [{metric: e, within: {abs: 1e-6, rel: 0.01}}, {metric: f, within: {rel: 0.1}, of: 3}]"
    study = load(tmp_path, f"{HEAD}space: {{k: 7}}\n{guards}\n")
    assert study.guards == (Closeness("e", 1e-6, 0.01, None), Closeness("f", 0.0, 0.1, 3.0))


@pytest.mark.parametrize(
    ("site", "line", "says"),
    [
        ("{batch: slurm,\n  qeue: short}", 7, "site.qeue: no such key of a site; did you mean queue?"),
        ("nowhere", 6, "site: 'nowhere' is neither"),
        ("sites/x.yaml", 6, "no such site file"),
    ],
)
def test_a_wrong_site_is_shown_where_the_study_names_it(site, line, says, tmp_path):
    with pytest.raises(StudyError) as raised:
        load(tmp_path, f"{FIXED}site: {site}\n")
    (problem,) = raised.value.problems
    assert problem.startswith(f"{tmp_path / 'study.yaml'}:{line}: ")
    assert says in problem


def test_a_wrong_site_file_is_shown_with_its_own_line(tmp_path):
    (tmp_path / "mine.yaml").write_text("batch: slurm\nqeue: short\n")
    with pytest.raises(StudyError, match=r"mine\.yaml:2: qeue"):
        load(tmp_path, f"{FIXED}site: mine.yaml\n")


def test_counts_of_a_job_may_follow_a_knob(tmp_path):
    study = load(
        tmp_path, f"{HEAD}space: {{n: [1, 2]}}\nbaseline: {{n: 2}}\njob: {{nodes: n, ranks_per_node: 8 * n}}\n"
    )
    assert study.job.resources({"n": 2}).ranks_per_node == 16


def test_problems_found_later_still_get_their_line(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(f"{HEAD}space: {{k: 7}}\nsearch:\n  sampler: guided\n")
    file = read_study_file(path)
    assert file.line_of(("workload", "run")) == 3
    assert file.line_of(("stages", "search", "sampler")) == 7
    assert file.message(("stages", "search", "sampler"), "is bad").endswith(":7: search.sampler: is bad")


@given(study_documents())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_study_that_is_right_loads_with_its_baseline_in_its_space(tmp_path, document):
    study = load(tmp_path, as_yaml(document))
    assert all(study.space.by_name[name].contains(value) for name, value in study.baseline.items())
    assert study.space.missing(study.baseline) == []
    for name, value in document["baseline"].items():
        assert study.baseline[name] == value


JUNK = [*b"|[]|{}|-1|1e999|.nan|null|true|x y|[[1]]|{a: {b: 1}}|9e9|-O3|*x|&x|!!int x|'".split(b"|"), b"9" * 400]


@st.composite
def damaged(draw) -> bytes:
    """A good study with lines deleted, doubled, swapped, cut or overwritten, or with bytes changed."""
    raw = draw(st.sampled_from(GOOD)).read_bytes()
    for _ in range(draw(st.integers(1, 3))):
        lines = raw.split(b"\n")
        index = draw(st.integers(0, len(lines) - 1))
        change = draw(st.sampled_from(["delete", "double", "indent", "swap", "value", "bytes", "cut", "key"]))
        if change == "delete":
            del lines[index]
        elif change == "double":
            lines.insert(index, lines[index])
        elif change == "indent":
            lines[index] = draw(st.sampled_from([b" ", b"  ", b"\t", b"- "])) + lines[index]
        elif change == "swap":
            other = draw(st.integers(0, len(lines) - 1))
            lines[index], lines[other] = lines[other], lines[index]
        elif change == "value":
            key = lines[index].partition(b":")[0]
            junk = [
                b"",
                b"[]",
                b"{}",
                b"-1",
                b"1e999",
                b".nan",
                b"null",
                b"true",
                b"x y",
                b"[[1]]",
                b"{a: {b: 1}}",
                b"9" * 400,
            ]
            lines[index] = key + b": " + draw(st.sampled_from(junk))
        elif change == "key":
            lines[index] = draw(st.binary(min_size=1, max_size=6)) + b": 1"
        raw = b"\n".join(lines)
        if change == "bytes":
            at = draw(st.integers(0, len(raw)))
            raw = raw[:at] + draw(st.binary(max_size=6)) + raw[at + draw(st.integers(0, 6)) :]
        elif change == "cut":
            raw = raw[: draw(st.integers(0, len(raw)))]
    return raw


@given(damaged())
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_damaged_study_loads_or_is_refused_with_lines_soon(tmp_path, raw):
    path = tmp_path / "study.yaml"
    path.write_bytes(raw)
    started = time.monotonic()
    try:
        read_study_file(path)
    except StudyError as error:
        assert error.problems
        for problem in error.problems:
            line = problem.removeprefix(f"{path}:").split(":")[0]
            assert line.isdigit(), problem
            assert 1 <= int(line) <= len(raw.decode(errors="replace").splitlines()) + 1
            assert len(problem.splitlines()) == 1
    # a bound against hanging, not a measurement of speed
    assert time.monotonic() - started < 20
