"""Site files: YAML in, a Site out, or every problem with its line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ridgeline.errors import StudyError
from ridgeline.forms.reading import read_form
from ridgeline.records.prices import Prices
from ridgeline.records.problem import Problem, near
from ridgeline.records.site import Site
from ridgeline.store.site_form import OPTIONS, SiteForm
from ridgeline.store.yaml_tree import YamlTree, dotted, parse_yaml, read_text

SHIPPED = Path(__file__).parent.parent / "sites"


def shipped_names() -> list[str]:
    """Sites and templates that come with Ridgeline."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def load_site(named: object, relative_to: Path) -> Site:
    """The site of a study: the name of a shipped one, the path of a site file, or the mapping itself.

    StudyError lists every problem. Relative paths inside a site file start at the file's folder.
    """
    if isinstance(named, Mapping):
        site, problems = read_site(named, relative_to)
        if problems:
            raise StudyError([f"{dotted(problem.where)}: {problem.message}" for problem in problems])
        return site
    path = _path(named, relative_to)
    tree = parse_yaml(read_text(path), str(path))
    return _from_tree(tree, path)


def _path(named: object, relative_to: Path) -> Path:
    if not isinstance(named, str | Path) or not str(named).strip():
        raise StudyError(f"{named!r} is no site; give a name, a path or a mapping")
    path = relative_to / Path(str(named)).expanduser()
    if path.is_file():
        return path
    shipped = SHIPPED / f"{named}.yaml"
    if "/" not in str(named) and shipped.is_file():
        return shipped
    if "/" in str(named) or str(named).endswith((".yaml", ".yml")):
        raise StudyError(f"{path}: no such site file; check the path, or start with `ridgeline site list`")
    raise StudyError(f"{named!r} is neither a shipped site nor a file; {near(str(named), shipped_names())}")


def _from_tree(tree: YamlTree, path: Path) -> Site:
    problems = list(tree.problems)
    plain = tree.plain()
    if not isinstance(plain, Mapping):
        raise StudyError([*problems, f"{tree.name}:1: a site file is a mapping such as `batch: slurm`"])
    site, found = read_site({"name": path.stem, **plain}, path.parent)
    problems += [tree.message(problem.where, problem.message) for problem in found]
    if problems:
        raise StudyError(sorted(problems, key=_line))
    return site


def _line(problem: str) -> int:
    match = re.search(r":(\d+): ", problem)
    return int(match[1]) if match else 0


def read_site(given: Mapping[str, object], folder: Path) -> tuple[Site, list[Problem]]:
    """The site of a mapping as far as it could be read, and its problems. `folder` is where its files lie.

    Options of a plugin's batch system are that plugin's affair.
    """
    form, problems = read_form(SiteForm, given, folder)
    options = dict(form.options)
    if form.batch in OPTIONS:
        read, found = read_form(OPTIONS[form.batch], options, folder, under=("options",))
        problems += found
        options = read.model_dump(exclude_unset=True)
    image = form.container
    # an image beside the site file is meant to be found from any run folder
    if image and (folder / image).is_file():
        image = str((folder / image).absolute())
    fields = form.model_dump(exclude={"version", "memory_per_node", "prices"})
    for name in ("modules", "setup", "directives"):
        fields[name] = tuple(fields[name])
    return Site(
        **fields
        | {"memory_bytes_per_node": form.memory_per_node, "container": image, "options": options}
        | {"prices": Prices(**form.prices.model_dump())}
    ), problems
