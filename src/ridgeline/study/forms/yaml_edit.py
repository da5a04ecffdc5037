"""One value of a YAML text changed where it stands: comments, order and spelling of all the rest stay as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml


class YamlEditError(ValueError):
    """The value is not written where it is meant, as behind an alias."""


def with_value(text: str, where: Sequence[str | int], value: object) -> str:
    """`where` are keys and places in lists from the top. None takes the key away; missing mappings are made.

    Raises YamlEditError where the text has no such place of its own. What the new text means, the caller checks.
    """
    node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    for depth, key in enumerate(where):
        name = ".".join(map(str, where[:depth])) or "the file"
        if isinstance(node, yaml.SequenceNode) and isinstance(key, int):
            node = _item(node, key, name)
            continue
        if not isinstance(node, yaml.MappingNode) or isinstance(key, int):
            raise YamlEditError(f"{name} is not a mapping")
        pair = next((pair for pair in node.value if pair[0].value == key), None)
        if pair is None:
            return text if value is None else _added(text, node, key, _nested(where[depth + 1 :], value))
        if pair[1].start_mark.index < pair[0].end_mark.index:
            raise YamlEditError(f"{key} is an alias")
        if depth == len(where) - 1:
            return _without(text, node, pair) if value is None else _replaced(text, node, pair, value)
        node = pair[1]
    raise YamlEditError("no key is named")


def _item(node: yaml.SequenceNode, number: int, name: str) -> yaml.Node:
    if number >= len(node.value) or not node.start_mark.index <= node.value[number].start_mark.index:
        raise YamlEditError(f"{name} has no entry {number + 1} of its own")
    found: yaml.Node = node.value[number]
    return found


def _nested(keys: Sequence[str | int], value: object) -> object:
    for key in reversed(keys):
        value = {key: value}
    return value


def _replaced(text: str, parent: yaml.MappingNode, pair: tuple[yaml.Node, yaml.Node], value: object) -> str:
    key, old = pair
    start, end = old.start_mark.index, _end(old)
    if isinstance(old, yaml.CollectionNode) and not old.flow_style:
        start = key.end_mark.index + 1  # after its colon
    if start == end:  # `key:` with nothing behind it
        start = end = key.end_mark.index + 1
    spaced = "" if start > 0 and text[start - 1] == " " else " "
    return text[:start] + spaced + _flow(value) + text[end:]


def _without(text: str, parent: yaml.MappingNode, pair: tuple[yaml.Node, yaml.Node]) -> str:
    start, end = pair[0].start_mark.index, max(_end(pair[1]), pair[0].end_mark.index + 1)
    if parent.flow_style:
        number = parent.value.index(pair)
        if number + 1 < len(parent.value):
            end = parent.value[number + 1][0].start_mark.index
        elif number:
            start = _end(parent.value[number - 1][1])
        return text[:start] + text[end:]
    line_end = text.find("\n", end)
    return text[: text.rfind("\n", 0, start) + 1] + (text[line_end + 1 :] if line_end >= 0 else "")


def _added(text: str, parent: yaml.MappingNode, key: str, value: object) -> str:
    if parent.flow_style:
        at = _end(parent.value[-1][1]) if parent.value else parent.start_mark.index + 1
        return f"{text[:at]}{', ' if parent.value else ''}{key}: {_flow(value)}{text[at:]}"
    newline = "\r\n" if "\r\n" in text else "\n"
    indent = " " * parent.value[0][0].start_mark.column
    lines = "".join(f"{indent}{line}{newline}" for line in _block(key, value))
    at = text.find("\n", max(_end(parent.value[-1][1]), parent.value[-1][0].end_mark.index)) + 1
    return text[:at] + lines + text[at:] if at else text + newline + lines


def _end(node: yaml.Node) -> int:
    """Where its last character is; a block collection itself ends only where the next thing begins."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(node, yaml.MappingNode) else last)
    return int(node.end_mark.index)


def _block(key: str, value: object) -> list[str]:
    if isinstance(value, Mapping) and value:
        return [f"{key}:", *(f"  {line}" for name, own in value.items() for line in _block(str(name), own))]
    return [f"{key}: {_flow(value)}"]


def _flow(value: object) -> str:
    """On one line, and safe between commas."""
    plain: Any = dict(value) if isinstance(value, Mapping) else value
    return yaml.safe_dump([plain], default_flow_style=True, sort_keys=False, width=10**6).strip()[1:-1]
