"""`ridgeline check` and `ridgeline site schema` on good studies."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from ridgeline.cli.main import run
from ridgeline.study.schema import StudyForm, study_schema
from ridgeline.study.yaml_tree import parse_yaml, read_text
from scripts.reference_pages import key_rows

GOOD = sorted((Path(__file__).parent / "good").glob("*.yaml"))
DOCS = Path(__file__).parents[2] / "docs"


def call(*arguments: object) -> None:
    with pytest.raises(SystemExit) as leaving:
        run([str(argument) for argument in arguments])
    assert leaving.value.code in (0, None)


def checked(path, capsys):
    call("check", path, "--json")
    return json.loads(capsys.readouterr().out)


def write(tmp_path, space, baseline, rest=""):
    path = tmp_path / "study.yaml"
    used = " ".join(f"{{{name}}}" for name in yaml.safe_load(space))
    head = f"version: 1\nname: x\nworkload: {{kind: command, run: './a {used}'}}\ngoal: {{minimize: wall_s}}\n"
    path.write_text(f"{head}space: {space}\nbaseline: {baseline}\n{rest}")
    return path


def test_the_legal_space_is_counted_with_reasons(capsys):
    document = checked(next(p for p in GOOD if p.stem == "stencil"), capsys)
    # 3 blocks x 4 threads x 9 shares x (2 flags + 1 flag with 2 unrollings); of them 64 x 8 is refused
    assert document["space"]["points"] == 3 * 4 * 9 * 4
    assert document["space"]["refused"] == {"does not fit into the cache": 9 * 4}
    assert document["space"]["legal"] == 11 * 9 * 4
    assert document["space"]["exact"] is True


def test_the_cost_is_bounded_by_runs_limits_and_budget(capsys, tmp_path):
    rest = (
        "budget: {trials: 10}\njob: {limit: 30m, nodes: 2}\nstages: {search: {sentinel_every: 0}, confirm: {top: 0}}\n"
    )
    document = checked(write(tmp_path, "{k: [1, 2, 3]}", "{k: 1}", rest), capsys)
    assert document["cost"]["runs"] >= 13
    assert document["cost"]["node_hours"] == document["cost"]["runs"] * 2 * 0.5
    document = checked(write(tmp_path, "{k: [1, 2, 3]}", "{k: 1}", "budget: {node_hours: 3}\n"), capsys)
    assert document["cost"]["node_hours"] == 3 + 1, "what is in flight goes on to its limit of an hour"


def test_a_large_space_is_estimated_and_said_so(capsys, tmp_path):
    rules = "rules: [{refuse: a > 500, because: too much}]\n"
    path = write(tmp_path, "{a: {from: 1, to: 1000}, b: {from: 1, to: 1000}}", "{a: 1, b: 1}", rules)
    document = checked(path, capsys)
    assert document["space"]["exact"] is False
    assert document["space"]["points"] == 1_000_000
    assert document["space"]["legal_share"] == pytest.approx(0.5, abs=0.05)
    call("check", path)
    assert "estimated" in capsys.readouterr().out


def test_an_endless_space_is_said_so(capsys, tmp_path):
    path = write(tmp_path, "{a: {from: 0.5, to: 2}}", "{a: 1}")
    assert checked(path, capsys)["space"]["points"] is None
    call("check", path)
    assert "endless" in capsys.readouterr().out


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_text_names_the_study_the_space_and_the_cost(path, capsys):
    call("check", path)
    text = capsys.readouterr().out
    assert all(word in text for word in (str(path), "legal", "node-hour", "refused"))


def test_the_reference_names_every_key_and_no_other():
    text = "".join((DOCS / "reference" / page).read_text() for page in ("study.md", "builds.md"))
    rows = re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
    assert len(rows) == len(set(rows))
    assert set(rows) == {row.key for row in key_rows(StudyForm, closed=("search", "confirm"))}


def test_every_example_of_the_page_is_a_right_study():
    examples = re.findall(r"```yaml\n(version: 1\n.*?)```", (DOCS / "study-file.md").read_text(), re.DOTALL)
    assert examples
    for example in examples:
        StudyForm.model_validate(parse_yaml(example, "reference").plain())


def test_what_the_loader_refuses_the_schema_does_not_promise():
    """The JSON schema and the loader come from the same models: spot checks that they agree on closed mappings."""
    schema = study_schema({}, {}, {})
    assert schema["additionalProperties"] is False
    closed = {name for name, form in schema["$defs"].items() if form.get("additionalProperties") is False}
    assert {"BudgetForm", "GoalForm", "JobForm", "RuleForm", "RangeForm", "BuildsForm"} <= closed
    content = parse_yaml(read_text(GOOD[0]), "good").plain()
    with pytest.raises(ValidationError):
        StudyForm.model_validate({**content, "extra": 1})  # type: ignore[dict-item]
