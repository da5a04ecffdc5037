"""JSON schemas out of forms, for editors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic.json_schema import models_json_schema

from ridgeline.study.forms.form import Form

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]


def definitions(forms: Iterable[type[Form]]) -> dict[str, Schema]:
    """The schema of each form and of every form in it, by class name."""
    _, document = models_json_schema([(form, "validation") for form in dict.fromkeys(forms)], by_alias=True)
    defined: dict[str, Schema] = document["$defs"]
    return defined


def reference(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def chosen_by(key: str, own: Schema, offered: Mapping[str, Schema | None], default: str = "") -> Schema:
    """A mapping whose value of `key` decides which further keys it may have, beside those of `own`.

    Where a part offers no schema (None), any further keys are allowed. `default` is what counts without the key.
    """
    return {"description": own.get("description", ""), "oneOf": [*_variants(key, own, offered, default)]}


def _variants(key: str, own: Schema, offered: Mapping[str, Schema | None], default: str) -> Iterable[Schema]:
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


def decided_by(key: str, own: Schema, inner: str, offered: Mapping[str, Schema], default: str) -> Schema:
    """A mapping whose value of `key` decides what its key `inner` holds; under other values, that is free."""
    rules = []
    for name, schema in offered.items():
        condition: Schema = {"properties": {key: {"const": name}}}
        if name != default:
            condition["required"] = [key]
        rules.append({"if": condition, "then": {"properties": {inner: schema}}})
    return {**own, "allOf": rules}
