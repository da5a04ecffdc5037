"""The docs are part of the product: their studies load, their links lead somewhere, their verbs exist."""

from __future__ import annotations

import ast
import importlib
import io
import re
import tokenize
from pathlib import Path
from typing import Any

import pytest

from ridgeline import catalog
from ridgeline.cli.main import all_commands, all_groups, former_names
from ridgeline.serving.service.file import load_service
from ridgeline.study.study_file import read_study_file

VERBS, GROUPS, FORMER = all_commands(), all_groups(), former_names()

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"), *ROOT.glob("examples/*/README.md")]
)
STUDY = re.compile(r"```yaml\n(version: 1\n.*?)```", re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
CALL = re.compile(r"(?:^|[\s`/])ridgeline ([a-z][a-z-]+(?: [a-z][a-z-]+)*)(?=[\s`])", re.MULTILINE)
# words that may follow the name of the program in a sentence
PROSE = {"lammps", "is", "takes", "runs", "does", "checkout", "finds", "and", "on", "must", "with"}


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
    unknown = {call for call in CALL.findall(code) if call.split()[0] not in PROSE and not is_typed(call)}
    assert not unknown


def is_typed(call: str) -> bool:
    """Whether it is a group, or begins with a verb; behind a group there is one of its verbs."""
    words = call.split()
    starts = (" ".join(words[:count]) for count in range(len(words), 0, -1))
    known = next((start for start in starts if start in VERBS or start in GROUPS), None)
    return known is not None and (known == call or known not in GROUPS)


def test_a_verb_that_is_not_typed_so_would_be_noticed() -> None:
    assert is_typed("tune study") and is_typed("study edge") and is_typed("service") and is_typed("plan memory")
    assert not any(
        map(is_typed, ("simulate", "deploy up", "plan memoryy", "study tune", "model llama", "twin layouts"))
    )


# texts in which people read a verb: what was printed and measured once stays as it was
TEXTS = sorted(
    path
    for pattern in ("README.md", "CONTRIBUTING.md", "docs/**/*.md", "examples/*/*", "src/**/*.py", "benchmarks/**/*")
    for path in ROOT.glob(pattern)
    if path.suffix in (".md", ".py", ".sh", ".yaml", ".ipynb") and path != ROOT / "docs/decisions/0021-verbs.md"
)
_OLD = "|".join(sorted({old for old in FORMER if old not in GROUPS}, key=len, reverse=True))
_LIKE_NOTHING_ELSE = "|".join(("deploy", *(old for old in FORMER if "-" in old)))
# behind the program's name; or in backticks, where it has arguments or means nothing else
FORMER_CALL = re.compile(
    rf"(?<!from )(?<!import )(?<![\w.])ridgeline (?:{_OLD})(?![\w-])|`(?:deploy|grant) [a-z][^`\n]*`"
    rf"|`(?:{_LIKE_NOTHING_ELSE})`|`(?:{_OLD}) (?:--|(?:FILE|DIR|STUDY|RUN)\b|\S+\.yaml)[^`\n]*`"
)


@pytest.mark.parametrize("path", TEXTS, ids=named)
def test_no_text_has_a_former_name_of_a_verb(path: Path) -> None:
    assert not [found[0] for found in FORMER_CALL.finditer(path.read_text())]


def test_a_former_name_would_be_noticed() -> None:
    for text in ("ridgeline simulate x", "`keep FILE`", "`deploy up`", "`serve-twin`", "`gate --update`", "`deploy`"):
        assert FORMER_CALL.search(text), text
    for text in ("`ridgeline twin simulate`", "`service up FILE`", "`keep`", "from ridgeline import catalog", "`edge`"):
        assert not FORMER_CALL.search(text), text


def test_the_reference_has_every_verb_with_its_options() -> None:
    page = (ROOT / "docs/reference/verbs.md").read_text()
    assert [verb for verb in VERBS if f"\n## {verb}\n" not in page] == []
    assert "| `--find-goodput` |" in page


@pytest.mark.parametrize("study", sorted(ROOT.glob("examples/*/study*.yaml")), ids=named)
def test_every_example_study_loads(study: Path) -> None:
    assert read_study_file(study).study.name


@pytest.mark.parametrize("service", sorted(ROOT.glob("examples/*/service*.yaml")), ids=named)
def test_every_example_service_loads(service: Path) -> None:
    assert load_service(service).units


def test_examples_hold_studies_sites_and_services_alone() -> None:
    known = {path for kind in ("study", "site", "service") for path in ROOT.glob(f"examples/*/{kind}*.yaml")}
    assert set(ROOT.glob("examples/*/*.yaml")) == known


# the pages that say where things are
HOUSE_PAGES = sorted(
    ROOT / "docs" / page
    for page in (
        "index.md",
        "map.md",
        "glossary.md",
        *(f"decisions/{p.name}" for p in ROOT.glob("docs/decisions/*.md")),
    )
)
PATH = re.compile(r"`([a-z_0-9.-]+(?:/[A-Za-z_0-9.-]+)*/?)`")
# words that mean one thing here, whatever else they mean elsewhere
HOUSE_WORDS = {
    *("study", "knob", "point", "setting", "guard", "trial", "run", "outcome", "sampler", "observation", "sentinel"),
    *("block", "verdict", "edge", "workload", "executor", "ticket", "session", "analyzer", "finding", "room", "wing"),
    *("twin", "scheduler", "rank", "profile", "deployment", "scheme", "reach", "void", "accepted"),
}


def leads_somewhere(path: str) -> bool:
    """Whether a path is there, from the root, the package or the example of a plugin; a bare name
    anywhere in the package."""
    if "/" not in path:
        return any((ROOT / "src/ridgeline").rglob(path))
    roots = (ROOT, ROOT / "src/ridgeline", ROOT / "tests/plugin_package", ROOT / "examples/11-lammps-wing")
    return any((root / path).exists() for root in roots)


def paths_named(text: str) -> set[str]:
    return {found for found in PATH.findall(text) if "/" in found or found.endswith(".py")}


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "guides").glob("*.md")), ids=lambda page: page.stem)
def test_a_guide_has_at_most_1200_words(page: Path) -> None:
    assert len(page.read_text().split()) <= 1200


def test_every_page_is_reached_from_the_index() -> None:
    docs = ROOT / "docs"
    linked = {(docs / target).resolve() for target in LINK.findall((docs / "index.md").read_text())}
    assert not [named(page) for page in docs.rglob("*.md") if page not in {*linked, docs / "index.md"}]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_modules_named_in_the_docs_exist(page: Path) -> None:
    paths = paths_named(page.read_text())
    if page not in HOUSE_PAGES:  # elsewhere a slash may also stand in a file of the reader's or in a unit
        paths = {path for path in paths if path.startswith(("src/", "tests/", "benchmarks/")) or path.endswith(".py")}
    missing = {path for path in paths if not leads_somewhere(path)}
    assert not missing, f"{named(page)} names what is not there; was it moved?"


def test_a_missing_module_would_be_noticed() -> None:
    assert paths_named("`records/a.py`, `serving/knobs` or `ok`") == {"records/a.py", "serving/knobs"}
    assert leads_somewhere("serving/engines/sglang")
    assert leads_somewhere("catalog.py")
    assert not leads_somewhere("records/nothing.py")


DOTTED = re.compile(r"(?<![\w./:@-])ridgeline(?:\.[a-zA-Z_]\w*)+")
FILE_ENDINGS = (".md", ".yaml", ".yml", ".json", ".toml", ".conf", ".service", ".svg", ".html", ".css", ".js", ".py")


def dotted_names(text: str) -> set[str]:
    return {name for name in DOTTED.findall(text) if not name.endswith(FILE_ENDINGS)}


def is_there(name: str) -> bool:
    """A module, what it holds, or a group of entry points that the catalog reads."""
    parts = name.split(".")
    if len(parts) == 2 and parts[1] in {
        "wings",
        *catalog.TABLE,
        *(room for w in catalog.own_wings() for room in w.parts),
    }:
        return True
    thing: Any = importlib.import_module(parts[0])
    for number, part in enumerate(parts[1:], 2):
        if not hasattr(thing, part):
            try:
                importlib.import_module(".".join(parts[:number]))
            except ModuleNotFoundError:
                return False
        thing = getattr(thing, part)
    return True


def spoken(path: Path) -> str:
    """Docstrings and comments of a module; its imports are the type checker's."""
    source = path.read_text()
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    said = [token.string for token in tokens if token.type == tokenize.COMMENT]
    docs = [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(source)) if isinstance(node, _WITH_DOCS)]
    return "\n".join([*said, *docs])


_WITH_DOCS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def test_every_dotted_name_in_docs_and_docstrings_is_there() -> None:
    texts = {page: page.read_text() for page in PAGES}
    texts |= {path: spoken(path) for path in sorted((ROOT / "src/ridgeline").rglob("*.py"))}
    named_in = {name: page for page, text in texts.items() for name in dotted_names(text)}
    assert len(named_in) > 20
    missing = {f"{named(page)}: {name}" for name, page in named_in.items() if not is_there(name)}
    assert not missing


@pytest.mark.parametrize("name", ["ridgeline.diagnoses", "ridgeline.errors.NoError", "ridgeline.api.tune.there"])
def test_a_name_that_is_not_there_would_be_noticed(name: str) -> None:
    assert dotted_names(f"see `{name}`, or report {name}.md") == {name} and not is_there(name)


def glossary_rows() -> list[list[str]]:
    lines = (ROOT / "docs/glossary.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return [row for row in rows if row[0] != "word"]


def test_every_room_is_on_the_map() -> None:
    core, *wings = (ROOT / "docs/map.md").read_text().split("### ")[1:4]
    package = ROOT / "src/ridgeline"
    named = ("serving", "nwchem")
    rooms = {p.parent.name for p in package.glob("*/*.py")} - set(named)
    assert not [room for room in rooms if f"| `{room}` |" not in core]
    for wing, text in zip(named, wings, strict=True):
        folders = {p.parent.name for p in (package / wing).glob("*/*.py")}
        rooms = folders or {p.name for p in (package / wing).glob("[a-z]*.py")}
        assert not [room for room in rooms if f"`{room}`" not in text.split("\n## ")[0]]


def test_each_walk_of_the_map_is_short_and_its_files_exist() -> None:
    text = (ROOT / "docs/map.md").read_text().split("## Three walks")[1].split("\n## ")[0]
    walks = [re.findall(r"^\d+\. `([a-z_/]+\.py)`: ", part, re.MULTILINE) for part in text.split("\n**")[1:]]
    most = (9, 15, 8)  # a knob, a trial, a rate
    assert [3 < len(walk) == len(set(walk)) <= limit for walk, limit in zip(walks, most, strict=True)] == [True] * 3
    assert [name for walk in walks for name in walk if not (ROOT / "src/ridgeline" / name).is_file()] == []


def test_every_word_of_the_house_is_in_the_glossary_once() -> None:
    words = [word.strip() for row in glossary_rows() for word in row[0].split(",")]
    assert not HOUSE_WORDS - set(words)
    assert len(words) == len(set(words)), "one word, one meaning"


def test_the_glossary_has_only_what_needs_saying() -> None:
    assert len(glossary_rows()) <= 60


def test_classes_of_the_glossary_are_where_it_says() -> None:
    astray = []
    for word, meaning, where in glossary_rows():
        roots = [ROOT / "src/ridgeline" / path for path in paths_named(where) | set(re.findall(r"`([a-z]+)`", where))]
        files = [file for root in roots for file in ([root] if root.is_file() else root.rglob("*.py"))]
        source = "\n".join(file.read_text() for file in files)
        classes = re.findall(r"`([A-Z]\w+[a-z]\w*)`", f"{meaning} {where}")
        astray += [f"{word}: {name}" for name in classes if not re.search(rf"^(class )?{name}\b", source, re.MULTILINE)]
    assert not astray


CLAIMS = ROOT / "docs" / "claims.md"
CLAIM = re.compile(r"^\| (?!claim|verb|---)(.+?) \| (.+) \|$", re.MULTILINE)


def claims() -> list[tuple[str, list[str]]]:
    return [(claim, re.findall(r"`([^`]+)`", held)) for claim, held in CLAIM.findall(CLAIMS.read_text())]


def plain(text: str) -> str:
    return " ".join(text.replace("**", "").split())


SAID = plain((ROOT / "README.md").read_text() + (ROOT / "docs/reference/verbs.md").read_text()).replace(" | ", " ")


@pytest.mark.parametrize(("claim", "held"), claims(), ids=lambda value: value if isinstance(value, str) else "")
def test_every_claim_of_the_readme_is_held_by_what_exists(claim: str, held: list[str]) -> None:
    assert held
    if claim.strip("`") not in {*VERBS, *GROUPS}:
        assert plain(claim) in SAID, "README, or the reference of verbs, says it otherwise today"
    for each in held:
        path, _, test = each.partition("::")
        assert (ROOT / path).exists(), path
        if test:
            assert re.search(rf"^def {test}\(", (ROOT / path).read_text(), re.MULTILINE), each


def test_no_promise_of_the_readme_is_left_without_a_test() -> None:
    readme = (ROOT / "README.md").read_text()
    said = [plain(claim) for claim, _ in claims()]
    promises = re.findall(r"^- \*\*(.+?)\.\*\*", readme, re.MULTILINE)
    assert len(promises) >= 5
    assert [promise for promise in promises if promise not in said] == []
    held = {claim.strip("`") for claim, _ in claims()}  # a verb, or a group as a whole
    assert [verb for verb in VERBS if verb not in held and verb.rpartition(" ")[0] not in held] == []
    relied_on = plain(readme[readme.index("## What you can rely on") : readme.index("## Work on it")])
    figures = re.findall(r"\b\d+\b", relied_on)
    assert [n for n in figures if not any(re.search(rf"\b{n}\b", claim) for claim in said)] == []
