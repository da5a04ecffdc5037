"""YAML text as a tree that remembers its lines.

Scalars are read as YAML 1.2 reads them: `on`, `off`, `yes` and `no` are text, 1e-6 is a number, and so is every number
of a JSON file. Of YAML 1.1 only digits grouped by underscores are kept (1_000). A number that prints in another way
than it was written, such as 2.10, keeps its text for those who ask for it. A number with a leading zero is refused,
because YAML readers disagree whether 010 is ten or eight, and 012e4 a number or text. Keys are always text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from ridgeline.errors import StudyError
from ridgeline.files import read_regular
from ridgeline.records.expression import as_written, is_number, plain_number

_Step = str | int
Where = Sequence[_Step]  # the path of keys and indices to a value, such as ("space", "tp", "values", 0)

_LARGEST_FILE_BYTES = 4 * 2**20
_DEEPEST_NESTING = 50
_LARGEST_TREE = 200_000  # values, with aliases counted as often as they are used

_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
# ten to YAML 1.2 and eight to YAML 1.1; with an exponent a number to YAML 1.2 and text to YAML 1.1
_LEADING_ZERO = re.compile(r"[-+]?0(?:[0-9]+(?:[eE][-+]?[0-9]+)?|[0-7_]+)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_GROUPED = re.compile(r"[-+]?[0-9][0-9_]*\.[0-9]*(?:[eE][-+][0-9]+)?")  # YAML 1.1, where an exponent wants its sign
_WORDS: dict[str, bool | float | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_PLAIN, _QUOTED = "plain", "quoted"  # of a value without a tag
_TAGS = (_PLAIN, _QUOTED, "str", "int", "float", "bool", "null", "map", "seq")
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff]")


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # in C where it is there
    """Leaves it to us what a value without a tag means."""

    def resolve(self, kind: type[yaml.Node], value: str | None, implicit: tuple[bool, bool] | bool) -> str:
        return _PLAIN if kind is not yaml.ScalarNode or (isinstance(implicit, tuple) and implicit[0]) else _QUOTED


@dataclass
class _YamlNode:
    """One value of the file: a scalar, a list or a mapping; `key_lines` are the lines of a mapping's keys."""

    line: int
    value: object = None
    children: dict[_Step, _YamlNode] = field(default_factory=dict)
    key_lines: dict[_Step, int] = field(default_factory=dict)
    merged: set[_Step] = field(default_factory=set)  # keys that came by `<<` and may still be overridden
    kind: str = "scalar"
    size: int = 1
    depth: int = 0

    def plain(self, *, written: bool = False) -> object:
        """The value; a number with the text it was `written` as, where that is asked for."""
        if self.kind == "mapping":
            return {key: child.plain(written=written) for key, child in self.children.items()}
        if self.kind == "list":
            return [child.plain(written=written) for child in self.children.values()]
        return self.value if written else plain_number(self.value)


@dataclass(frozen=True)
class YamlTree:
    """`name` is the file as the user named it; `problems` are those found while reading, each a full line."""

    name: str
    text: str
    root: _YamlNode
    problems: tuple[str, ...] = ()

    def plain(self, *, written: bool = False) -> object:
        return self.root.plain(written=written)

    def line_of(self, where: Where) -> int:
        """The line of the key or list item at `where`, or of the deepest one on the way that exists."""
        node, line = self.root, self.root.line
        for step in where:
            if step not in node.children:
                break
            line = node.key_lines[step]
            node = node.children[step]
        return line

    def message(self, where: Where, what: str) -> str:
        place = dotted(where)
        return f"{self.name}:{self.line_of(where)}: {place + ': ' if place else ''}{what}"


def in_order_of_lines(problems: Iterable[str]) -> list[str]:
    """Each problem once, by the line it names."""

    def line(problem: str) -> tuple[int, str]:
        number = problem.split(":", 2)[1:2]
        return (int(number[0]) if number and number[0].isdigit() else 0, problem)

    return sorted(dict.fromkeys(problems), key=line)


def dotted(where: Where) -> str:
    """`rules[1].refuse` for ("rules", 1, "refuse")."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in where).lstrip(".")


def read_text(path: Path) -> str:
    """The text of a study or site file; StudyError where it cannot be one."""
    try:
        raw = read_regular(path, _LARGEST_FILE_BYTES)
    except IsADirectoryError:
        raise StudyError(f"{path}: this is a folder; name the YAML file in it") from None
    except FileNotFoundError:
        raise StudyError(f"{path}: no such file; check the spelling") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StudyError(f"{path}: cannot be read ({reason}); check the path and its permissions") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise StudyError(f"{path}:{line}: byte 0x{raw[error.start]:02x} is not UTF-8; save the file as UTF-8") from None


def parse_yaml(text: str, name: str) -> YamlTree:
    """The tree of one YAML document. StudyError when the text is no YAML at all; lesser faults go to `problems`."""
    if match := _UNPRINTABLE.search(text):
        line = text.count("\n", 0, match.start()) + 1
        raise StudyError(f"{name}:{line}: control character {match[0]!r} in the file; remove it")
    builder = _Builder(name)
    try:
        _check_events(text, name)
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise StudyError(_syntax_problem(error, text, name)) from None
    except yaml.YAMLError as error:
        raise StudyError(f"{name}:1: not YAML ({str(error).splitlines()[0]}); correct or retype that place") from None
    if root is None:
        raise StudyError(f"{name}:1: the file is empty; start with `version: 1`")
    return YamlTree(name, text, builder.node(root), tuple(builder.problems))


def _syntax_problem(error: yaml.MarkedYAMLError, text: str, name: str) -> str:
    lines = text.splitlines() or [""]
    mark, began = error.problem_mark or error.context_mark, error.context_mark
    if began and "end of stream" in (error.problem or ""):
        mark = began  # what was never closed is corrected where it began
    line = min(mark.line + 1, len(lines)) if mark else 1
    shown = lines[line - 1]
    if "\t" in shown[: len(shown) - len(shown.lstrip())]:
        return f"{name}:{line}: a tab in the indentation; YAML wants spaces there"
    reason = ", ".join(part for part in (error.context, error.problem) if part)
    since = f"; it began in line {began.line + 1}" if began and began.line + 1 != line else ""
    return f"{name}:{line}: not YAML ({reason}{since}); check indentation, brackets, quotes and colons"


def _check_events(text: str, name: str) -> None:
    """What composing would not survive, such as deep nesting, or would say in words of its own."""
    documents, defined, around = 0, set[str](), list[str | None]()
    for event in yaml.parse(text, Loader=_Loader):
        where = f"{name}:{event.start_mark.line + 1 if event.start_mark else 1}"
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise StudyError(f"{where}: a second document begins here; keep one per file")
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor in around:
                raise StudyError(f"{where}: *{event.anchor} is used inside &{event.anchor} itself; spell it out")
            if event.anchor not in defined:
                raise StudyError(
                    f"{where}: *{event.anchor} is not defined above; add &{event.anchor} where it is meant"
                )
        elif isinstance(event, yaml.CollectionStartEvent):
            around.append(event.anchor)
            if len(around) > _DEEPEST_NESTING:
                raise StudyError(f"{where}: nested more than {_DEEPEST_NESTING} deep; flatten the file")
        elif isinstance(event, yaml.CollectionEndEvent):
            around.pop()
        if isinstance(event, yaml.NodeEvent) and event.anchor:
            defined.add(event.anchor)


class _Builder:
    """Makes the tree of what PyYAML composed; a node that aliases share is made once."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.problems: list[str] = []
        self.made: dict[int, _YamlNode] = {}

    def node(self, found: yaml.Node) -> _YamlNode:
        if id(found) not in self.made:
            self.made[id(found)] = self.new(found, found.start_mark.line + 1)
        return self.made[id(found)]

    def new(self, found: yaml.Node, line: int) -> _YamlNode:
        tag = found.tag.removeprefix("tag:yaml.org,2002:")
        if tag not in _TAGS:
            self.problems.append(f"{self.name}:{line}: tag {found.tag} is not accepted; write a plain value")
        if isinstance(found, yaml.ScalarNode):
            return _YamlNode(line, self.scalar(found.value, tag, line))
        node = _YamlNode(line, kind="mapping" if isinstance(found, yaml.MappingNode) else "list")
        if isinstance(found, yaml.SequenceNode):
            for index, item in enumerate(found.value):
                self.put(node, index, self.node(item), item.start_mark.line + 1)
            return node
        for key, value in found.value:
            at = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise StudyError(f"{self.name}:{at}: a list or mapping where a key is expected; use text as the key")
            child = self.node(value)
            if key.value == "<<" and key.tag == _PLAIN:
                self.merge(node, child, at)
            elif key.value in node.children and key.value not in node.merged:
                what = f"this key is also in line {node.key_lines[key.value]}; keep one of them"
                self.problems.append(f"{self.name}:{at}: {key.value}: {what}")
            else:
                node.merged.discard(key.value)
                self.put(node, key.value, child, at)
        return node

    def put(self, parent: _YamlNode, step: _Step, child: _YamlNode, line: int) -> None:
        parent.children[step], parent.key_lines[step] = child, line
        parent.size += child.size
        parent.depth = max(parent.depth, child.depth + 1)
        if parent.depth > _DEEPEST_NESTING:
            raise StudyError(f"{self.name}:{line}: nested more than {_DEEPEST_NESTING} deep; flatten the file")
        if parent.size > _LARGEST_TREE:
            raise StudyError(f"{self.name}:{line}: aliases unfold to more than {_LARGEST_TREE} values; spell it out")

    def merge(self, parent: _YamlNode, node: _YamlNode, line: int) -> None:
        """`<<`: keys of another mapping, which the mapping's own keys override wherever they stand."""
        for source in list(node.children.values()) if node.kind == "list" else [node]:
            if source.kind != "mapping":
                self.problems.append(f"{self.name}:{line}: << needs a mapping such as *name; this is something else")
                return
            for key, child in source.children.items():
                if key not in parent.children:
                    self.put(parent, key, child, source.key_lines[key])
                    parent.merged.add(key)

    def scalar(self, text: str, tag: str, line: int) -> object:
        if tag in ("str", _QUOTED):
            return text
        if _LEADING_ZERO.fullmatch(text):
            digits = re.sub(r"^([-+]?)0+(?=[0-9])", r"\1", text.replace("_", ""))
            self.problems.append(f'{self.name}:{line}: {text} has a leading zero; write {digits} or "{text}" in quotes')
        value = resolve(text)
        if tag == "float" and isinstance(value, int):
            return float(value)
        word = text in _WORDS or "_" in text
        return as_written(value, text) if is_number(value) and not word and tag == _PLAIN else value


def resolve(text: str) -> bool | int | float | str | None:
    """What an unquoted scalar means."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > 64:
        return text
    if _BASED.fullmatch(text):
        return int(text, 0)
    digits = text.replace("_", "")
    if _INTEGER.fullmatch(text) or (_LEADING_ZERO.fullmatch(text) and "e" not in text.lower()):
        return int(digits)
    if _FLOAT.fullmatch(text) or _GROUPED.fullmatch(text):
        return float(digits)
    return text
