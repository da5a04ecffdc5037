"""`ridgeline site schema`: the JSON schemas of the files that people write, for editors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer
from pydantic.json_schema import models_json_schema

from ridgeline import catalog
from ridgeline.errors import InputError
from ridgeline.records.measurement import known_metrics
from ridgeline.study.forms import Form
from ridgeline.study.schema import SearchForm, StudyForm
from ridgeline.study.site_file import SiteForm


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
        document = site_schema(executors)
    elif of in more:
        form = catalog.at(more[of])
        document = schema_with_site(form, f"ridgeline-{form.whose.split()[-1]}-1", executors)
    else:
        document = study_schema(catalog.forms("workloads"), catalog.forms("samplers"), executors)
    print(json.dumps(document, indent=1))


# The schemas, made from the forms that read the files.

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_Schema = dict[str, Any]


def _definitions(forms: Iterable[type[Form]]) -> dict[str, _Schema]:
    """The schema of each form and of every form in it, by class name."""
    _, document = models_json_schema([(form, "validation") for form in dict.fromkeys(forms)], by_alias=True)
    defined: dict[str, _Schema] = document["$defs"]
    return defined


def _reference(name: str) -> _Schema:
    return {"$ref": f"#/$defs/{name}"}


def _chosen_by(key: str, own: _Schema, offered: Mapping[str, _Schema | None], default: str = "") -> _Schema:
    """A mapping whose value of `key` decides which further keys it may have, beside those of `own`.

    Where a part offers no schema (None), any further keys are allowed. `default` is what counts without the key.
    """
    return {"description": own.get("description", ""), "oneOf": [*_variants(key, own, offered, default)]}


def _variants(key: str, own: _Schema, offered: Mapping[str, _Schema | None], default: str) -> Iterable[_Schema]:
    for name, schema in offered.items():
        mine = schema or {}
        properties = {**own["properties"], **mine.get("properties", {})}
        properties[key] = {"const": name, "description": own["properties"][key]["description"]}
        required = [*own.get("required", []), *mine.get("required", []), *([] if name == default else [key])]
        yield {
            "title": name,
            "description": mine.get("description", ""),
            "type": "object",
            "properties": properties,
            "required": list(dict.fromkeys(required)),
            "additionalProperties": schema is None,
        }


def _decided_by(key: str, own: _Schema, inner: str, offered: Mapping[str, _Schema], default: str) -> _Schema:
    """A mapping whose value of `key` decides what its key `inner` holds; under other values, that is free."""
    rules = []
    for name, schema in offered.items():
        condition: _Schema = {"properties": {key: {"const": name}}}
        if name != default:
            condition["required"] = [key]
        rules.append({"if": condition, "then": {"properties": {inner: schema}}})
    return {**own, "allOf": rules}


_Forms = Mapping[str, type[Form] | None]  # of all parts of a room by name; None for a part that offers none


def study_schema(workloads: _Forms, samplers: _Forms, executors: _Forms) -> _Schema:
    offered = [*_offered(workloads).values(), *_offered(samplers).values()]
    defined = _definitions([StudyForm, SiteForm, *_offered(executors).values(), *offered])
    schemas = {form: defined[form.__name__] for form in offered}
    study = defined.pop(StudyForm.__name__)
    kinds = {name: schemas[form] if form else None for name, form in workloads.items()}
    defined["WorkloadForm"] = _chosen_by("kind", defined["WorkloadForm"], kinds)
    searches = {name: schemas[form] if form else None for name, form in samplers.items()}
    usual = SearchForm.model_fields["sampler"].default
    defined["SearchForm"] = _chosen_by("sampler", defined["SearchForm"], searches, default=usual)
    defined["SiteForm"] = _site(defined, executors)
    for key, better in (("maximize", "higher"), ("minimize", "lower")):
        # offered while typing, and no more: a study may declare metrics of its own
        defined["GoalForm"]["properties"][key]["examples"] = [
            m.name for m in known_metrics().values() if m.better == better
        ]
    study["properties"]["site"] = _name_or_site(study)
    for form in schemas:  # their keys are now part of the mappings that choose them
        del defined[form.__name__]
    return {"$schema": _DIALECT, "$id": "ridgeline-study-1", **study, "$defs": defined}


def schema_with_site(form: type[Form], name: str, executors: _Forms) -> _Schema:
    """Of a file whose `site` is a name or the mapping itself, as a deployment file's."""
    defined = _definitions([form, SiteForm, *_offered(executors).values()])
    schema = defined.pop(form.__name__)
    defined["SiteForm"] = _site(defined, executors)
    schema["properties"]["site"] = _name_or_site(schema)
    return {"$schema": _DIALECT, "$id": name, **schema, "$defs": defined}


def _name_or_site(schema: _Schema) -> _Schema:
    site = schema["properties"]["site"]
    return {**site, "type": ["string", "object"], "if": {"type": "object"}, "then": _reference(SiteForm.__name__)}


def site_schema(executors: _Forms) -> _Schema:
    defined = _definitions([SiteForm, *_offered(executors).values()])
    site = _site(defined, executors)
    del defined[SiteForm.__name__]
    return {"$schema": _DIALECT, "$id": "ridgeline-site-1", **site, "$defs": defined}


def _offered(parts: _Forms) -> dict[str, type[Form]]:
    return {name: form for name, form in parts.items() if form is not None}


def _site(defined: Mapping[str, _Schema], executors: _Forms) -> _Schema:
    options = {batch: _reference(form.__name__) for batch, form in _offered(executors).items()}
    default = SiteForm.model_fields["batch"].default
    return _decided_by("batch", defined[SiteForm.__name__], "options", options, default)
