"""The docs are part of the product: their studies load, their links lead somewhere, their verbs exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ridgeline.cli.main import VERBS
from ridgeline.store.study_file import read_study_file

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"), *ROOT.glob("examples/*/README.md")]
)
STUDY = re.compile(r"```yaml\n(version: 1\n.*?)```", re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
CALL = re.compile(r"(?:^|[\s`/])ridgeline ([a-z][a-z-]+)(?=[\s`])", re.MULTILINE)
# words that may follow the name of the program in a sentence
PROSE = {"is", "takes", "runs", "does", "checkout", "finds", "and", "on", "must", "with"}


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_studies_in_the_docs_load(page: Path, tmp_path: Path) -> None:
    for number, text in enumerate(STUDY.findall(page.read_text())):
        study = tmp_path / f"study-{number}.yaml"
        # a site file of the reader's own does not exist here
        study.write_text(re.sub(r"^site: \S+\.yaml.*$", "site: local", text, flags=re.MULTILINE))
        assert read_study_file(study).study.space.knobs


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    broken = [target for target in LINK.findall(page.read_text()) if not (page.parent / target).exists()]
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_verbs_in_the_docs_exist(page: Path) -> None:
    code = "\n".join(re.findall(r"`[^`\n]+`|^    .+$|```.*?```", page.read_text(), re.MULTILINE | re.DOTALL))
    unknown = set(CALL.findall(code)) - VERBS.keys() - PROSE
    assert not unknown


def test_readme_names_every_verb() -> None:
    readme = (ROOT / "README.md").read_text()
    missing = [verb for verb in VERBS if not re.search(rf"`{verb}[ `]", readme)]
    assert not missing, "README's table is the newcomer's list of verbs"


@pytest.mark.parametrize("study", sorted(ROOT.glob("examples/*/*.yaml")), ids=named)
def test_every_example_study_loads(study: Path) -> None:
    if "site" in study.name:
        pytest.skip("a site file, read by the study beside it")
    assert read_study_file(study).study.name
