"""What surrounds the code: pinned releases, hooks, hosted CI and the docs site do what their files say."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.browser import NEEDS_CHROMIUM, open_browser

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_every_requirement_of_the_tests_is_pinned_to_a_release_it_allows() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pins = dict(line.split("==") for line in lines)
    pinned = {canonicalize_name(name): release for name, release in pins.items()}
    assert len(pinned) == len(lines)
    extras = PROJECT["optional-dependencies"]
    for text in (*PROJECT["dependencies"], *extras["testing"], *extras["dev"]):
        wanted = Requirement(text)
        if wanted.name != PROJECT["name"]:
            assert wanted.specifier.contains(pinned[canonicalize_name(wanted.name)]), text


def test_hooks_run_what_the_tests_begin_with() -> None:
    repos = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    hooks = [hook for repo in repos for hook in repo["hooks"]]
    assert all(hook["language"] == "system" for hook in hooks), "nothing is fetched"
    linted = [hook["entry"].split()[1] for hook in hooks if hook["entry"].startswith("scripts/lint ")]
    known = re.search(r"set -- ([a-z ]+); fi", (ROOT / "scripts/lint").read_text())
    assert known is not None and linted == known[1].split()
    assert re.search(r"^scripts/lint$", (ROOT / "scripts/test").read_text(), re.MULTILINE)
    for path in re.findall(r"tests/\S+\.py", " ".join(hook["entry"] for hook in hooks)):
        assert (ROOT / path).is_file()


def test_hosted_ci_runs_our_own_command() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    steps = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert {run.split()[-1] for run in steps} == {".ci/run", "scripts/test"}


def test_the_version_has_one_home() -> None:
    import ridgeline

    assert PROJECT["dynamic"] == ["version"]
    assert f"## [{ridgeline.__version__}]" in (ROOT / "CHANGELOG.md").read_text(), "the changelog has its heading"


class Page(HTMLParser):
    """The anchors and links of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if anchor := given.get("id"):
            self.anchors.add(anchor)
        if link := given.get("href" if tag == "a" else "src" if tag == "img" else ""):
            self.links.append(link)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, ROOT / "scripts/docs-site", out], check=True, timeout=600)
    return out


@pytest.fixture(scope="module")
def site(built: Path) -> dict[Path, Page]:
    out = built
    return {path.relative_to(out): Page(path.read_text()) for path in out.rglob("*.html")} | {
        path.relative_to(out): Page("") for path in out.rglob("*") if path.is_file() and path.suffix != ".html"
    }


def test_every_page_of_the_docs_is_on_the_site(site: dict[Path, Page]) -> None:
    pages = {path.relative_to(ROOT).with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert len(pages) > 50
    assert not {*pages, Path("index.html"), Path("CONTRIBUTING.html"), Path("CHANGELOG.html")} - site.keys()


def test_no_link_and_no_anchor_of_the_site_is_broken(site: dict[Path, Page]) -> None:
    broken = []
    for path, page in site.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = path if not parts.path else Path(*normal((path.parent / unquote(parts.path)).parts))
            if target not in site:
                broken.append(f"{path}: {link}")
            elif parts.fragment and unquote(parts.fragment) not in site[target].anchors:
                broken.append(f"{path}: {link}: no such anchor")
    assert sum(len(page.links) for page in site.values()) > 300
    assert broken == []


def normal(parts: tuple[str, ...]) -> list[str]:
    found: list[str] = []
    for part in parts:
        if part == "..":
            found.pop()
        elif part != ".":
            found.append(part)
    return found


def test_the_site_needs_no_network(site: dict[Path, Page]) -> None:
    for path, page in site.items():
        assert not [link for link in page.links if link.startswith("//")], path


@pytest.mark.browser
@NEEDS_CHROMIUM
def test_the_site_is_searched_from_a_file(built: Path, tmp_path: Path) -> None:
    with open_browser(tmp_path) as browser:
        tab = browser.open(f"file://{built}/index.html", width=1200)
        tab.until("document.querySelector('input[name=query]') !== null")
        tab.value("document.querySelector('label[for=__search]').click()")
        tab.value(
            "{const q = document.querySelector('input[name=query]'); q.focus(); q.value = 'goodput';"
            "q.dispatchEvent(new Event('input', {bubbles: true})); q.dispatchEvent(new KeyboardEvent('keyup'))}"
        )
        tab.until("document.querySelectorAll('.md-search-result__item').length > 2")


@pytest.mark.browser
@NEEDS_CHROMIUM
def test_the_site_is_read_by_everybody(built: Path) -> None:
    """Contrast, headings, names and the keyboard, on pages of every sort; scripts/site-check looks at all of them."""
    pages = (
        "index.html",
        "docs/guides/python.html",
        "docs/reference/workload-sglang.html",
        "docs/reference/index.html",
    )
    command = [sys.executable, ROOT / "scripts/site-check", built, *pages]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("4 pages, 0 faults")


def test_the_site_is_small(built: Path) -> None:
    assert sum(path.stat().st_size for path in built.rglob("*") if path.is_file()) < 5e6


def test_every_guide_is_in_the_navigation() -> None:
    listed, guides = (ROOT / "mkdocs.yml").read_text(), sorted((ROOT / "docs/guides").glob("*.md"))
    assert [path.name for path in guides if f"docs/guides/{path.name}\n" not in listed] == []
