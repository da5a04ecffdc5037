"""Site files: YAML in, a Site out, or every problem with its line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ridgeline import catalog
from ridgeline.errors import InputError, StudyError, near
from ridgeline.files import below_home, is_there
from ridgeline.records.launch import PYXIS
from ridgeline.records.problem import Problem
from ridgeline.records.site import Site
from ridgeline.study.forms.form import Form
from ridgeline.study.forms.reading import read_form
from ridgeline.study.site_form import SiteForm
from ridgeline.study.yaml_tree import YamlTree, dotted, parse_yaml, read_text

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
        raise StudyError(f"{named!r} is not a site; give a name, a path or a mapping")
    path = relative_to / below_home(str(named))
    if is_there(path) and path.is_file():
        return path
    shipped = SHIPPED / f"{named}.yaml"
    if "/" not in str(named) and is_there(shipped):
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

    `options` are read by the form of the executor that `batch` names. Of one that is not installed here they are taken
    as they are: a study folder can be looked at anywhere.
    """
    form, problems = read_form(SiteForm, given, folder)
    options = dict(form.options)
    if (own := _options_form(form.batch)) is not None:
        read, found = read_form(own, options, folder, under=("options",))
        problems += found
        options = read.model_dump(exclude_unset=True)
    if form.container_runtime == PYXIS and (form.batch != "slurm" or form.launcher not in ("srun", "none")):
        why = "pyxis is a part of Slurm, and its srun starts the ranks: write `batch: slurm` and `launcher: srun`"
        problems.append(Problem(("container_runtime",), f"{why}, or leave it out for Apptainer"))
    # a site written into a study has no file to be named after
    called = form.batch if "name" not in given and form.batch else form.name
    image = form.container
    # an image beside the site file is meant to be found from any run folder
    if image and is_there(folder / image) and (folder / image).is_file():
        image = str((folder / image).absolute())
    site: Site = form.record(name=called, container=image, options=options)
    return site, problems


def _options_form(batch: str) -> type[Form] | None:
    try:
        form: type[Form] | None = getattr(catalog.part("executors", batch), "form", None)
    except InputError:  # the reason is given when something is to be run there
        return None
    return form
