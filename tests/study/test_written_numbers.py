"""A number of the space is run as it was written: 2.10 is not 2.1, and 5620e53 is a commit."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import pytest

from ridgeline.campaign.check import check_study
from ridgeline.campaign.kinds.bisect import bisect_question
from ridgeline.campaign.point_text import parse_point
from ridgeline.errors import InputError, StoreError, StudyError
from ridgeline.records.template import render
from ridgeline.study.folder import StudyFolder, asked, require_same_question
from ridgeline.study.study_file import read_study_file
from tests.command_line import ridgeline


def _study(folder: Path, space: str, more: str = "", kind: str = "command, run: './a {k}'") -> Path:
    path = folder / "study.yaml"
    path.write_text(
        f"version: 1\nname: x\nworkload: {{kind: {kind}}}\ngoal: {{minimize: wall_s}}\nspace: {{k: {space}}}\n{more}\n"
    )
    return path


def _values(folder: Path, space: str, baseline: str) -> tuple[object, ...]:
    study = read_study_file(_study(folder, space, f"baseline: {{k: {baseline}}}")).study
    assert study.baseline["k"] in study.space.by_name["k"].values  # type: ignore[union-attr]
    return tuple(study.space.by_name["k"].values)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("listed", "baseline", "values"),
    [
        # releases: as written, in the order of the list
        ("[2.8, 2.9, 2.10, 2.11]", "2.10", ("2.8", "2.9", "2.10", "2.11")),
        ("[2.11, 2.10, 2.9]", "2.9", ("2.11", "2.10", "2.9")),
        ("[2.1, 2.10]", "2.1", ("2.1", "2.10")),
        ("[0.80, 0.70, 0.9]", "0.80", ("0.80", "0.70", "0.9")),
        ("[5620e53, 1234e05]", "5620e53", ("5620e53", "1234e05")),
        ("[5620e53, a1b2c3d]", "5620e53", ("5620e53", "a1b2c3d")),
        # numbers in either reading: as written, in the order of numbers
        ("[0.80, 0.70, 0.90]", "0.8", ("0.70", "0.80", "0.90")),
        ("[0.50, 0.75, 1.0]", "0.50", ("0.50", "0.75", "1.0")),
        ("[1e3, 1E2]", "1e3", ("1E2", "1e3")),
        ("[0x10, 0xf]", "0xf", ("0xf", "0x10")),
        ("[+5, .5, 5.]", ".5", None),
        ("1.50", "1.50", ("1.50",)),
        ("[0.80, auto]", "auto", ("0.80", "auto")),
        # printed as they are written: numbers
        ("[3, 1, 2]", "1", (1, 2, 3)),
        ("[1_000, 200]", "1_000", (200, 1000)),
        ("[0.8, 0.85, 1.0]", "0.8", (0.8, 0.85, 1.0)),
        ("[1e-06, 0.001]", "1e-06", (1e-06, 0.001)),
        ("[-1, 0]", "0", (-1, 0)),
        # and what other YAML readers make something else of
        ("[yes, no, on, 12:30:00, 2024-01-01, 1.2.3]", "no", ("yes", "no", "on", "12:30:00", "2024-01-01", "1.2.3")),
        ("['2.10', \"2.9\"]", "2.10", ("2.10", "2.9")),
        ("[true, false]", "true", (True, False)),
    ],
)
def test_a_value_is_what_was_written(
    listed: str, baseline: str, values: tuple[object, ...] | None, tmp_path: Path
) -> None:
    if values is None:  # +5 and 5. are one number, so these are names
        values = ("+5", ".5", "5.")
    found = _values(tmp_path, listed, baseline)
    assert found == values and [type(one) for one in found] == [type(one) for one in values]
    for value in found:
        printed = render("{k}", {"k": value})
        assert isinstance(value, bool) or printed in listed.replace("_", "")


def test_a_number_that_nobody_can_print_is_still_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"study\.yaml:5: space\.k: inf is not a value"):
        read_study_file(_study(tmp_path, "[.inf, 1]", "baseline: {k: 1}"))
    with pytest.raises(StudyError, match="leading zero"):
        read_study_file(_study(tmp_path, "[00123]", "baseline: {}"))


@pytest.mark.parametrize("kind", ["python, file: a.py", "sglang-offline, model: m"])
def test_a_program_that_is_given_numbers_gets_numbers_or_a_refusal(kind: str, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def objective(k):\n    return 1.0\n")
    study = read_study_file(_study(tmp_path, "[0.80, 0.70, 1e-3]", "baseline: {k: 0.80}", kind)).study
    assert study.space.by_name["k"].values == (0.001, 0.7, 0.8)  # type: ignore[union-attr]
    for listed in ("[2.9, 2.10]", "[5620e53]"):
        with pytest.raises(StudyError, match=r'study\.yaml:5: space\.k: .* write "(2\.10|5620e53)" in quotes'):
            read_study_file(_study(tmp_path, listed, "baseline: {}", kind))


def test_rules_conditions_and_derived_values_read_it_as_a_number(tmp_path: Path) -> None:
    more = (
        "baseline: {k: 0.70}\nderived: {half: k / 2, same: k}\n"
        "rules: [{refuse: k > 0.75 and k < 0.85, because: middle}, {refuse: k == 0.9, because: top}]"
    )
    space = read_study_file(_study(tmp_path, "[0.70, 0.80, 0.90]", more)).study.space
    assert [space.refusal({"k": k}) for k in ("0.70", "0.80", "0.90")] == [None, "middle", "top"]
    assert space.settings({"k": "0.70"}) == {"k": "0.70", "half": 0.35, "same": "0.70"}
    assert render("{k:.1f}", {"k": "0.70"}) == "0.7"


def test_a_rule_about_releases_asks_for_equality_only(tmp_path: Path) -> None:
    rules = "baseline: {k: 2.9}\nrules: [{refuse: 'k in (2.1, 2.10) or k == 2.8', because: broken}]"
    space = read_study_file(_study(tmp_path, "[2.8, 2.9, 2.10]", rules)).study.space
    assert [space.refusal({"k": k}) for k in ("2.8", "2.9", "2.10")] == ["broken", None, "broken"]
    with pytest.raises(StudyError, match=r"study\.yaml:7: rules\[0\].*'2\.9' is text and cannot be ordered beside"):
        check_study(_study(tmp_path, "[2.8, 2.9, 2.10]", "baseline: {k: 2.9}\nrules: [{refuse: k > 2.85, because: n}]"))


def test_a_constant_that_would_be_another_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"study\.yaml:6: derived\.v: 2\.10 would be 2\.1"):
        read_study_file(_study(tmp_path, "[1, 2]", "derived: {v: 2.10}\nbaseline: {k: 1}"))


def test_environment_arguments_and_builds_have_their_numbers_as_written(tmp_path: Path) -> None:
    path = _study(
        tmp_path,
        "[1, 2]",
        "baseline: {k: 1}\njob: {modules: [3.10]}\nbuilds: {make: [make], keep: [a], env: {V: 2.10, W: 1_000}}",
        "command, run: './a {k}', env: {V: 2.10, W: 1_000}",
    )
    found = check_study(path)
    assert found.workload.prepare.__self__._options.env == {"V": "2.10", "W": "1000"}  # type: ignore[attr-defined]
    assert found.study.builds is not None and found.study.builds.env == {"V": "2.10", "W": "1000"}
    assert found.study.job.modules == ("3.10",)


def test_settings_that_are_typed_mean_the_values_of_the_list(tmp_path: Path) -> None:
    (tmp_path / "a").touch(mode=0o755)
    versions = check_study(_study(tmp_path, "[2.8, 2.9, 2.10]", "baseline: {k: 2.9}"))
    assert parse_point(versions, "k=2.10", {}) == {"k": "2.10"}
    assert parse_point(versions, {"k": "2.10"}, {}) == {"k": "2.10"}
    for wrong in ("k=2.1", {"k": 2.1}):
        with pytest.raises(InputError, match=r"k=2\.1 is outside"):
            parse_point(versions, wrong, {})  # type: ignore[arg-type]
    shares = check_study(_study(tmp_path, "[0.70, 0.80]", "baseline: {k: 0.70}"))
    assert parse_point(shares, "k=0.8", {}) == parse_point(shares, "k=0.80", {}) == {"k": "0.80"}
    assert parse_point(shares, {"k": 0.8}, {}) == {"k": "0.80"}


def test_bisect_goes_from_the_first_to_the_last_of_the_list(tmp_path: Path) -> None:
    for listed in ("[2.8, 2.9, 2.10, 2.11]", "[2.8, 2.9, 2.11]", "[8, 2, 4]"):
        found = check_study(_study(tmp_path, listed, f"baseline: {{k: {listed[1:].split(',')[0]}}}"))
        question = bisect_question(found, "k", "baseline", (None, None), 0.03, 40)
        assert [str(point["k"]) for point in question.points] == listed[1:-1].split(", ")


def test_it_runs_and_exports_as_written(tmp_path: Path) -> None:
    (tmp_path / "app.sh").write_text('case $1 in 2.9) echo "t 1.0";; 2.10) echo "t 2.0";; *) exit 3;; esac\n')
    path = _study(
        tmp_path,
        "[2.9, 2.10]",
        "baseline: {k: 2.10}\nbudget: {trials: 1}\nstages: {baseline: {repeats: 1}, confirm: {top: 1, blocks: 3}}",
        "command, run: 'sh app.sh {k}', files: [app.sh], metrics: {t: {regex: 't (.*)'}}",
    )
    path.write_text(path.read_text().replace("wall_s", "t"))
    done = ridgeline("tune", str(path), "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert "2.00x" in done.stdout and "app.sh 2.9" in done.stdout
    rows = csv.DictReader(io.StringIO(ridgeline("study", "export", str(tmp_path / "out"), "--format", "csv").stdout))
    assert {row["set.k"] for row in rows} == {"2.9", "2.10"}
    events = [json.loads(line) for line in (tmp_path / "out" / "journal.jsonl").read_text().splitlines()]
    assert {event["point"]["k"] for event in events if event["event"] == "trial"} == {"2.9", "2.10"}
    assert ridgeline("study", "verify", str(tmp_path / "out")).returncode == 0


def test_an_old_folder_reads_as_it_was_run(tmp_path: Path) -> None:
    """Releases before ran 2.10 as 2.1, in the order of numbers; their fingerprints are shorter."""
    folder = tmp_path / "old"
    folder.mkdir()
    shutil.copy(_study(tmp_path, "[2.9, 2.10]", "baseline: {k: 2.9}"), folder / "study.yaml")
    file = read_study_file(folder / "study.yaml")
    before = asked(file, written=False)
    (folder / "journal.jsonl").write_text(
        json.dumps({"event": "opened", "kind": "search", "question": {}, "asked": before}) + "\n"
    )
    assert StudyFolder(folder).load().study.space.by_name["k"].values == (2.1, 2.9)  # type: ignore[union-attr]
    require_same_question(file, before)
    now = asked(file)
    (tmp_path / "edited.yaml").write_text((folder / "study.yaml").read_text().replace("2.10", "2.1"))
    with pytest.raises(StoreError, match="space changed"):
        require_same_question(read_study_file(tmp_path / "edited.yaml"), now)
