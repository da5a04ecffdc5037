"""The JSON schema that editors get takes what the loader takes, and knows every key of every part."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from ridgeline import catalog
from ridgeline.cli.main import run
from ridgeline.errors import StudyError
from ridgeline.study.forms import fields
from ridgeline.study.schema import file_schema, study_schema
from ridgeline.study.site_file import SiteForm
from ridgeline.study.yaml_tree import parse_yaml, read_text

ROOT = Path(__file__).parents[3]
STUDY = study_schema(*map(catalog.forms, ("workloads", "samplers", "executors")))
SITE = file_schema(SiteForm, "ridgeline-site-1", catalog.forms("executors"))
STUDIES = [
    *sorted((ROOT / "tests" / "store" / "good").glob("*.yaml")),
    *(path for path in sorted(ROOT.glob("examples/*/study*.yaml")) if "wing" not in path.parent.name),
]
SITES = [*sorted((ROOT / "src/ridgeline/study/sites").glob("*.yaml")), *sorted(ROOT.glob("examples/*/*site*.yaml"))]
# what the models alone can see: a key that does not exist, a value of another type or beyond its limits
SHAPE = (
    "unknown-key", "missing-", "budget-negative", "budget-fraction", "confirm-level", "goal-is-text", "name-",
    "rules-is-a-mapping", "search-option", "search-grid-order", "seed-text", "site-is-a-number", "space-is-a-list",
    "unknown-workload", "unknown-sampler", "bad-version", "version-as-text",
)  # fmt: skip
MALFORMED = [p for p in sorted((ROOT / "tests/study/malformed").glob("*.yaml")) if p.stem.startswith(SHAPE)]


def plain(path: Path) -> Any:
    return parse_yaml(read_text(path), str(path)).plain()


def mistakes(schema: dict[str, Any], document: Any) -> list[str]:
    return [error.message for error in Draft202012Validator(schema).iter_errors(document)]


def named(path: Path) -> str:
    return f"{path.parent.name}-{path.stem}"


def test_the_schemas_are_schemas() -> None:
    Draft202012Validator.check_schema(STUDY)
    Draft202012Validator.check_schema(SITE)


@pytest.mark.parametrize("path", STUDIES, ids=named)
def test_good_studies_fit_the_schema(path: Path) -> None:
    assert mistakes(STUDY, plain(path)) == []


@pytest.mark.parametrize("path", SITES, ids=named)
def test_site_files_fit_theirs(path: Path) -> None:
    assert mistakes(SITE, plain(path)) == []


@pytest.mark.parametrize("path", MALFORMED, ids=named)
def test_malformed_studies_do_not(path: Path) -> None:
    assert mistakes(STUDY, plain(path))


def example(kind: str) -> dict[str, Any]:
    own: dict[str, Any] = {"model": "llama-8b"}
    if kind == "command":
        own = {"run": "./a"}
    if kind == "python":
        own = {"file": "objective.py"}
    if kind == "nwchem":
        own = {"molecule": "a.xyz", "basis": "cc-pvdz"}
    whole = {"version": 1, "name": "x", "space": {"k": [1]}, "goal": {"minimize": "wall_s"}}
    return {**whole, "workload": {"kind": kind, **own}}


@pytest.mark.parametrize("kind", catalog.shipped("workloads"))
def test_every_workload_has_its_own_keys(kind: str) -> None:
    study = example(kind)
    assert mistakes(STUDY, study) == []
    study["workload"]["no_such_key"] = 1
    assert mistakes(STUDY, study)
    chosen = next(v for v in STUDY["$defs"]["WorkloadForm"]["oneOf"] if v["properties"]["kind"]["const"] == kind)
    assert set(chosen["properties"]) == {"kind", *fields(catalog.forms("workloads")[kind])}


def test_a_key_of_another_kind_is_refused() -> None:
    study = example("sglang-serve")
    study["workload"]["concurrency"] = 4
    assert mistakes(STUDY, study) == []
    study["workload"]["kind"] = "sglang-offline"
    assert mistakes(STUDY, study)


@pytest.mark.parametrize(
    ("search", "right"),
    [
        ({}, True),
        ({"startup": 5}, True),
        ({"sampler": "guided", "startup": 0}, False),
        ({"sampler": "grid", "order": "shuffled"}, True),
        ({"sampler": "grid", "startup": 5}, False),
        ({"sampler": "random", "seed": 3}, True),
        ({"sampler": "gird"}, False),
    ],
)
def test_options_of_samplers(search: dict[str, Any], right: bool) -> None:
    assert (mistakes(STUDY, {**example("command"), "search": search}) == []) is right


@pytest.mark.parametrize(
    ("site", "right"),
    [
        ("anywhere.yaml", True),
        ({"batch": "slurm", "options": {"settle_s": 5}}, True),
        ({"batch": "slurm", "options": {"request": "plain"}}, False),
        ({"batch": "pbs", "options": {"request": "plain"}}, True),
        ({"options": {"mpirun": "mpirun.mpich"}}, True),
        ({"options": {"settle_s": 5}}, False),
        ({"batch": "plugin", "options": {"anything": 5}}, True),
        ({"qeue": "x"}, False),
        (3, False),
    ],
)
def test_a_site_in_the_study(site: Any, right: bool) -> None:
    assert (mistakes(STUDY, {**example("command"), "site": site}) == []) is right
    if isinstance(site, dict):
        assert (mistakes(SITE, site) == []) is right


def described(schema: Any, path: str = "") -> Iterator[str]:
    """Paths of properties without a description."""
    if isinstance(schema, list):
        for number, item in enumerate(schema):
            yield from described(item, f"{path}/{number}")
    elif isinstance(schema, dict):
        for key, item in schema.get("properties", {}).items():
            if "if" not in path and "then" not in path and not item.get("description"):
                yield f"{path}/{key}"
        for key, item in schema.items():
            yield from described(item, f"{path}/{key}")


def test_the_schema_is_printed_and_describes_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, schema in ((["site", "schema"], STUDY), (["site", "schema", "--site"], SITE)):
        with pytest.raises(SystemExit):
            run(arguments)
        printed = json.loads(capsys.readouterr().out)
        assert printed["$defs"].keys() == schema["$defs"].keys()
        for name, part in schema["$defs"].items():
            assert printed["$defs"][name] == part, name
        assert printed == schema
        assert list(described(schema)) == []


def test_a_plugins_form_is_part_of_the_schema_and_of_check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from ridgeline.campaign.check import check_study

    place = "tests.study.forms.plugin_sampler:"
    table = {**catalog.TABLE["samplers"], "mine": f"{place}MineSampler", "formless": f"{place}FormlessSampler"}
    monkeypatch.setitem(catalog.TABLE, "samplers", table)
    schema = study_schema(*map(catalog.forms, ("workloads", "samplers", "executors")))
    study = {**example("command"), "search": {"sampler": "mine", "radius": 2}}
    assert mistakes(schema, study) == []
    assert mistakes(schema, {**study, "search": {"sampler": "mine", "radus": 2}})
    assert mistakes(schema, {**study, "search": {"sampler": "formless", "radus": 2}}) == []
    path = tmp_path / "study.yaml"
    path.write_text(json.dumps({**study, "search": {"sampler": "mine", "radus": 2, "sede": 1}}))
    with pytest.raises(StudyError) as found:
        check_study(path)
    assert "search.radus: no such key of mine; did you mean radius?" in str(found.value)
    assert "search.sede: no such key of mine; did you mean seed?" in str(found.value)
