"""YAML text as a tree that remembers its lines.

Scalars are read as YAML 1.2 reads them: `on`, `off`, `yes` and `no` are text, 1e-6 is a number, and so is every number
of a JSON file. Of YAML 1.1 only digits grouped by underscores are kept (1_000). A number that prints in another way
than it was written, such as 2.10, keeps its text for those who ask for it. A number with a leading zero is refused,
because YAML readers disagree whether 010 is ten or eight, and 012e4 a number or text. Keys are always text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from ridgeline.errors import StudyError
from ridgeline.files import open_regular
from ridgeline.records.expression import as_written, is_number, plain_number

_Step = str | int
Where = Sequence[_Step]  # the path of keys and indices to a value, such as ("space", "tp", "values", 0)

_LARGEST_FILE_BYTES = 4 * 2**20
_DEEPEST_NESTING = 50
_LARGEST_TREE = 200_000  # values, with aliases counted as often as they are used

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
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
_TAGS = ("str", "int", "float", "bool", "null", "map", "seq")
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff]")


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


def dotted(where: Where) -> str:
    """`rules[1].refuse` for ("rules", 1, "refuse")."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in where).lstrip(".")


def read_text(path: Path) -> str:
    """The text of a study or site file; StudyError where it cannot be one."""
    try:
        if path.is_dir():
            raise StudyError(f"{path}: this is a folder; name the YAML file in it")
        with open_regular(path) as file:
            raw = file.read(_LARGEST_FILE_BYTES + 1)
    except FileNotFoundError:
        raise StudyError(f"{path}: no such file; check the spelling") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StudyError(f"{path}: cannot be read ({reason}); check the path and its permissions") from None
    if len(raw) > _LARGEST_FILE_BYTES:
        raise StudyError(f"{path}:1: larger than {_LARGEST_FILE_BYTES >> 20} MiB; this is hardly a study or site file")
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
        root = builder.document(yaml.parse(text, Loader=_LOADER))
    except yaml.MarkedYAMLError as error:
        raise StudyError(_syntax_problem(error, text, name)) from None
    except yaml.YAMLError as error:
        raise StudyError(f"{name}:1: not YAML ({str(error).splitlines()[0]}); correct or retype that place") from None
    if root is None:
        raise StudyError(f"{name}:1: the file is empty; start with `version: 1`")
    return YamlTree(name, text, root, tuple(builder.problems))


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


@dataclass(frozen=True, slots=True)
class _Key:
    text: str
    line: int
    merge: bool  # an unquoted <<


class _Builder:
    """Builds nodes from parser events without recursion, so that nesting is limited by us and not by the C stack."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.problems: list[str] = []
        self.anchors: dict[str, _YamlNode] = {}
        self.open: list[_YamlNode] = []
        self.names: list[str | None] = []  # anchors of the open nodes
        self.keys: list[_Key | None] = []  # the key that waits for its value, per open node
        self.root: _YamlNode | None = None

    def document(self, events: Iterator[yaml.Event]) -> _YamlNode | None:
        documents = 0
        for event in events:
            line = event.start_mark.line + 1 if event.start_mark else 1
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise StudyError(f"{self.name}:{line}: a second document begins here; keep one per file")
            elif isinstance(event, yaml.AliasEvent):
                self.place(self.alias(str(event.anchor), line), line)
            elif isinstance(event, yaml.ScalarEvent):
                node = _YamlNode(line, self.scalar(event, line))
                if event.anchor:
                    self.anchors[event.anchor] = node
                self.place(node, line, event.value, plain=bool(event.implicit[0]))
            elif isinstance(event, yaml.CollectionStartEvent):
                self.begin(event, line)
            elif isinstance(event, yaml.CollectionEndEvent):
                self.end()
        return self.root

    def begin(self, event: yaml.CollectionStartEvent, line: int) -> None:
        if len(self.open) >= _DEEPEST_NESTING:
            raise StudyError(f"{self.name}:{line}: nested more than {_DEEPEST_NESTING} deep; flatten the file")
        if self.open and self.open[-1].kind == "mapping" and self.keys[-1] is None:
            raise StudyError(f"{self.name}:{line}: a list or mapping where a key is expected; use text as the key")
        self.check_tag(event.tag, line)
        kind = "mapping" if isinstance(event, yaml.MappingStartEvent) else "list"
        self.open.append(_YamlNode(line, kind=kind))
        self.names.append(event.anchor)
        self.keys.append(None)

    def end(self) -> None:
        node, anchor = self.open.pop(), self.names.pop()
        self.keys.pop()
        if anchor:
            self.anchors[anchor] = node
        self.place(node, node.line)

    def alias(self, name: str, line: int) -> _YamlNode:
        if name in self.names:
            raise StudyError(f"{self.name}:{line}: *{name} is used inside &{name} itself; spell it out")
        if name not in self.anchors:
            raise StudyError(f"{self.name}:{line}: *{name} is not defined above; add &{name} where it is meant")
        return self.anchors[name]

    def place(self, node: _YamlNode, line: int, text: str = "", plain: bool = False) -> None:
        """Put a finished node where it belongs; a scalar in key position becomes the key."""
        if not self.open:
            self.root = node
            return
        parent = self.open[-1]
        if parent.kind == "list":
            index = len(parent.children)
            parent.children[index], parent.key_lines[index] = node, line
        elif self.keys[-1] is None:
            if node.kind != "scalar":
                raise StudyError(
                    f"{self.name}:{line}: an alias of a list or mapping cannot be a key; use text as the key"
                )
            key = text if text or node.value is None else str(node.value)
            self.keys[-1] = _Key(key, line, merge=plain and text == "<<")
            return
        else:
            self.set_key(parent, self.keys[-1], node)
            self.keys[-1] = None
        parent.size += node.size
        parent.depth = max(parent.depth, node.depth + 1)
        if parent.depth > _DEEPEST_NESTING:
            raise StudyError(f"{self.name}:{line}: nested more than {_DEEPEST_NESTING} deep; flatten the file")
        if parent.size > _LARGEST_TREE:
            raise StudyError(f"{self.name}:{line}: aliases unfold to more than {_LARGEST_TREE} values; spell it out")

    def set_key(self, parent: _YamlNode, written: _Key, node: _YamlNode) -> None:
        key, line = written.text, written.line
        if written.merge:
            self.merge(parent, node, line)
        elif key in parent.children and key not in parent.merged:
            first = parent.key_lines[key]
            self.problems.append(f"{self.name}:{line}: {key}: this key is also in line {first}; keep one of them")
        else:
            parent.children[key], parent.key_lines[key] = node, line
            parent.merged.discard(key)

    def merge(self, parent: _YamlNode, node: _YamlNode, line: int) -> None:
        """`<<`: keys of another mapping, which the mapping's own keys override wherever they stand."""
        sources = list(node.children.values()) if node.kind == "list" else [node]
        for source in sources:
            if source.kind != "mapping":
                self.problems.append(f"{self.name}:{line}: << needs a mapping such as *name; this is something else")
                return
            for key, child in source.children.items():
                if key not in parent.children:
                    parent.children[key], parent.key_lines[key] = child, source.key_lines[key]
                    parent.merged.add(key)

    def check_tag(self, tag: str | None, line: int) -> str:
        short = (tag or "").removeprefix("tag:yaml.org,2002:")
        if short and short != "!" and short not in _TAGS:
            self.problems.append(f"{self.name}:{line}: tag {tag} is not accepted; write a plain value")
        return short

    def scalar(self, event: yaml.ScalarEvent, line: int) -> object:
        tag = self.check_tag(event.tag, line)
        if tag in ("str", "!") or (not event.implicit[0] and not tag):
            return event.value
        if _LEADING_ZERO.fullmatch(event.value):
            digits = re.sub(r"^([-+]?)0+(?=[0-9])", r"\1", event.value.replace("_", ""))
            problem = f'{event.value} has a leading zero; write {digits} or "{event.value}" in quotes'
            self.problems.append(f"{self.name}:{line}: {problem}")
        value = resolve(event.value)
        if tag == "float" and isinstance(value, int):
            return float(value)
        word = event.value in _WORDS or "_" in event.value
        return as_written(value, event.value) if is_number(value) and not word and not tag else value


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
