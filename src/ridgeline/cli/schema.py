"""`ridgeline site schema`: the JSON schemas of the files that people write, for editors."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ridgeline import catalog
from ridgeline.errors import InputError
from ridgeline.study import schema as schemas
from ridgeline.study import site_file


def schema(
    of: Annotated[str, typer.Argument(help="Which files: study, site, or a wing's (deploy).")] = "study",
    site: Annotated[bool, typer.Option("--site", help="The same as `site schema site`.")] = False,
) -> None:
    """Print the JSON schema of study, site or deployment files, for editors that complete keys and explain them.

    Example: ridgeline site schema study
    """
    more = {name: place for wing, _ in catalog.wings() for name, place in wing.files.items()}
    if of not in (known := ("study", "site", *more)):
        raise InputError(f"there is no schema of {of!r}; use {', '.join(known)}")
    executors = catalog.forms("executors")
    if site or of == "site":
        document = schemas.file_schema(site_file.SiteForm, "ridgeline-site-1", executors)
    elif of in more:
        form = catalog.at(more[of])
        document = schemas.file_schema(form, f"ridgeline-{form.whose.split()[-1]}-1", executors)
    else:
        document = schemas.study_schema(catalog.forms("workloads"), catalog.forms("samplers"), executors)
    print(json.dumps(document, indent=1))
