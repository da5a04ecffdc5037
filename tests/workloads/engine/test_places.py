"""Where engines and models are: one rule for check, dry run and tune; nothing of them is ever copied."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from ridgeline.campaign.assembly import assemble_folder
from ridgeline.campaign.check import check_file, check_study
from ridgeline.campaign.kinds.search import SearchQuestion
from ridgeline.campaign.preview import rehearse
from ridgeline.errors import InputError
from ridgeline.records.trial import Stage, Trial
from ridgeline.serving.model.folder import write_model_folder
from ridgeline.serving.workloads.engine.options import engine_model, install_from_text, placed_model
from tests.workloads.engine.studies import sglang_offline, study

STUDY = {
    "version": 1,
    "name": "places",
    "workload": {"kind": "sglang-offline", "version": "0.5.23", "traffic": {"requests": 4}},
    "space": {"max_running_requests": [8, 16]},
    "baseline": {"max_running_requests": 8},
    "goal": {"maximize": "total_tok_s"},
}


def rendered(folder: Path, **workload: object) -> tuple[str, str, str]:
    """engine.sh as checked here, as a dry run shows it, and as the campaign's folder runs it; with the model."""
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump({**STUDY, "workload": {**STUDY["workload"], **workload}}))
    found = check_study(path)
    campaign = assemble_folder(found, folder / "elsewhere" / "out", "places")
    (dry, *_) = rehearse(path, SearchQuestion(), 1, folder / "dry")
    texts = []
    for number, checked in enumerate((found, check_file(campaign.load()))):
        run = folder / f"run{number}"
        asked = Trial(1, checked.study.baseline, checked.study.space.settings(checked.study.baseline), Stage.SEARCH, "")
        checked.workload.prepare(asked, run)
        texts.append((run / "engine.sh").read_text() + json.loads((run / "session.json").read_text())["model"])
    copied = {file.relative_to(campaign.path / "sources") for file in (campaign.path / "sources").rglob("*")}
    assert not copied, "engines and models stay where they are"
    return texts[0], dry.script, texts[1]


@pytest.mark.parametrize("written", [".engines/sglang", "./.engines/sglang/", "{home}/.engines/sglang"])
@pytest.mark.parametrize("there", [True, False], ids=["here", "on the nodes only"])
def test_a_relative_engine_is_the_same_everywhere_and_never_a_folder_as_a_command(
    tmp_path: Path, written: str, there: bool
) -> None:
    if there:
        (tmp_path / ".engines/sglang/bin").mkdir(parents=True)
        (tmp_path / ".engines/sglang/bin/python").write_text("#!/bin/sh\n")
        (tmp_path / ".engines/sglang/gigabytes").write_text("torch")
    model = "./models/llama" if not there else "models/llama"
    if there:
        write_model_folder("llama-8b", tmp_path / "models/llama")
    for text in rendered(tmp_path, engine=written.format(home=tmp_path), model=model, shape="llama-8b"):
        assert f"{tmp_path}/.engines/sglang/bin/python -m sglang" in text
    checked, _, tuned = rendered(tmp_path / "", engine=written.format(home=tmp_path), model=model, shape="llama-8b")
    assert checked == tuned
    assert tuned.endswith(f"{tmp_path}/models/llama")


@pytest.mark.parametrize(
    ("text", "python", "container"),
    [
        ("", "python3", ""),
        ("python3.11", "python3.11", ""),
        ("/opt/sglang", "/opt/sglang/bin/python", ""),
        ("/opt/sglang/bin/python3", "/opt/sglang/bin/python3", ""),
        ("venvs/new", "/study/venvs/new/bin/python", ""),
        ("../shared/venv", "/shared/venv/bin/python", ""),
        ("sglang.sif", "python3", "/study/sglang.sif"),
        ("docker://lmsysorg/sglang", "python3", "docker://lmsysorg/sglang"),
    ],
)
def test_an_engine_is_read_by_its_name_alone(text: str, python: str, container: str) -> None:
    found = install_from_text(text, "", Path("/study"))
    assert (found.python, found.container) == (python, container)


def test_names_of_models_stay_names_and_paths_become_whole() -> None:
    home = Path("/study")
    for name in ("llama-8b", "meta-llama/Llama-3.1-8B"):
        assert placed_model(name, home) == name
    assert placed_model("./llama", home) == "/study/llama"
    assert placed_model("/models/llama", home) == "/models/llama"


def test_a_config_file_means_its_folder_or_a_shape_that_is_made_on_the_node(tmp_path: Path) -> None:
    write_model_folder("llama-8b", tmp_path / "whole")
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare/config.json").write_text((tmp_path / "whole/config.json").read_text())
    (tmp_path / "mine.json").write_text((tmp_path / "whole/config.json").read_text())
    for text, dummy, loaded in (
        ("whole/config.json", True, "whole"),
        ("whole/config.json", False, "whole"),
        ("bare/config.json", False, "bare"),
        ("bare/config.json", True, "bare/config.json"),
        ("./bare", True, "bare/config.json"),
        ("./bare", False, "bare"),
        ("./whole", True, "whole"),
        ("./seen-by-the-nodes-alone", True, "seen-by-the-nodes-alone"),
        ("./mine.json", True, "mine.json"),
    ):
        assert engine_model(text, tmp_path, dummy=dummy) == f"{tmp_path}/{loaded}"


def test_a_folder_without_a_tokenizer_is_refused_before_an_engine_starts(tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare/config.json").write_text("{}")

    def said(**given: object) -> list[str]:
        problems = sglang_offline(study(tmp_path, model="./bare", **given)).problems()
        return [p.message for p in problems if p.where == ("workload", "model")]

    (problem,) = said(load_format="auto")
    assert "no tokenizer" in problem
    assert "load_format: dummy" in problem
    assert not said(load_format="auto", flags={"tokenizer_path": "/elsewhere"})
    (tmp_path / "bare/tekken.json").write_text("{}")
    assert not said(load_format="auto")


def test_a_shape_alone_has_no_weights_to_load(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text("{}")
    asked = study(tmp_path, model="./mine.json", load_format="auto")
    (problem,) = (p for p in sglang_offline(asked).problems() if p.where == ("workload", "model"))
    assert "load_format: dummy" in problem.message


def versions_here(folder: Path, *releases: str) -> None:
    """Virtual environments that say which vLLM they have, without one."""
    for release in releases:
        python = folder / f"vllm-{release}/bin/python"
        python.parent.mkdir(parents=True)
        python.write_text(f"#!/bin/sh\necho {release}\n")
        python.chmod(0o755)


RELEASES = {
    "version": 1,
    "name": "releases",
    "workload": {"kind": "vllm-offline", "model": "llama-8b", "load_format": "dummy"},
    "space": {"release": ["0.11.0", "0.12.0"]},
    "baseline": {"release": "0.11.0"},
    "goal": {"maximize": "total_tok_s"},
}


def test_an_environment_for_each_release_is_one_line(tmp_path: Path) -> None:
    """`engine: vllm-{release}`; which release it is comes from the engine itself, and stays known without it."""
    versions_here(tmp_path, "0.11.0", "0.12.0")
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump({**RELEASES, "workload": {**RELEASES["workload"], "engine": "vllm-{release}"}}))
    found = check_study(path)
    for release in RELEASES["space"]["release"]:
        asked = Trial(1, {"release": release}, {"release": release}, Stage.SEARCH, "")
        found.workload.prepare(asked, tmp_path / release)
        text = (tmp_path / release / "engine.sh").read_text()
        assert f"{tmp_path}/vllm-{release}/bin/python" in text and "--release" not in text
        assert not found.workload.remarks(asked.settings), "its release is known"
    said = {f"{tmp_path}/vllm-{release}/bin/python": release for release in RELEASES["space"]["release"]}
    recorded = found.workload.programs()
    assert recorded.pop("weights") == {"load_format": "dummy"}
    assert {python: each["versions"]["vllm"] for python, each in recorded.items()} == said


def test_an_engine_that_the_study_builds(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    workload = {**RELEASES["workload"], "engine": "{build}/env", "version": "{release}"}
    builds = {"make": "python3 -m venv env && env/bin/pip install vllm=={release}", "keep": ["env"]}
    path.write_text(yaml.safe_dump({**RELEASES, "workload": workload, "builds": builds}))
    found = check_study(path)
    built = tmp_path / "builds" / "1"
    built.mkdir(parents=True)
    asked = Trial(1, {"release": "0.12.0"}, {"release": "0.12.0"}, Stage.SEARCH, "", build=built)
    found.workload.prepare(asked, tmp_path / "runs" / "1")
    assert " ../../builds/1/env/bin/python " in (tmp_path / "runs/1/engine.sh").read_text()
    assert json.loads((tmp_path / "runs/1/session.json").read_text())["asked"]["version"] == "0.12.0"
    assert "\n./env/bin/python -m vllm" in found.workload.paste(asked.settings)


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        ("vllm-{relaese}", "{relaese} is not a knob or a derived value; did you mean release"),
        ("{build}/env", "{build} is the folder of the built program, but the study has no `builds`"),
    ],
)
def test_a_wrong_field_of_the_engine_is_named(tmp_path: Path, engine: str, says: str) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump({**RELEASES, "workload": {**RELEASES["workload"], "engine": engine}}))
    with pytest.raises(InputError, match=re.escape(says)):
        check_study(path)
