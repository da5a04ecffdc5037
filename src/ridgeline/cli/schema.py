"""`ridgeline schema`: the JSON schemas of the files that people write, for editors."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ridgeline.errors import InputError

_FILES = ("study", "site", "deploy")


def schema(
    of: Annotated[str, typer.Argument(help="Which files: study, site or deploy.")] = "study",
    site: Annotated[bool, typer.Option("--site", help="The same as `schema site`.")] = False,
) -> None:
    """Print the JSON schema of study, site or deployment files, for editors that complete keys and explain them.

    Example: ridgeline schema study
    """
    from ridgeline import catalog
    from ridgeline.study.editor_schema import schema_with_site, site_schema, study_schema

    if of not in _FILES:
        raise InputError(f"there is no schema of {of!r}; use {', '.join(_FILES)}")
    executors = catalog.forms("executors")
    if site or of == "site":
        document = site_schema(executors)
    elif of == "deploy":
        from ridgeline.serving.service.form import ServiceForm

        document = schema_with_site(ServiceForm, "ridgeline-deployment-1", executors)
    else:
        document = study_schema(catalog.forms("workloads"), catalog.forms("samplers"), executors)
    print(json.dumps(document, indent=1))
