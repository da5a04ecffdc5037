"""`ridgeline schema`: the JSON schema of study files, for editors."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def schema(
    site: Annotated[bool, typer.Option("--site", help="The schema of site files instead.")] = False,
) -> None:
    """Print the JSON schema of study files; editors use it to complete keys and show what they mean."""
    from ridgeline import catalog
    from ridgeline.store.editor_schema import site_schema, study_schema

    executors = catalog.forms("executors")
    if site:
        document = site_schema(executors)
    else:
        document = study_schema(catalog.forms("workloads"), catalog.forms("samplers"), executors)
    print(json.dumps(document, indent=1))
