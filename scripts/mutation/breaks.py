"""Small breaks of Python source, for `scripts/mutants`: what may stand in the place of an expression or a statement."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any", "floor": "ceil", "ceil": "floor"}
COMPARISONS: dict[type, list[type]] = {
    ast.Lt: [ast.LtE, ast.Gt], ast.LtE: [ast.Lt, ast.GtE], ast.Gt: [ast.GtE, ast.Lt], ast.GtE: [ast.Gt, ast.LtE],
    ast.Eq: [ast.NotEq], ast.NotEq: [ast.Eq], ast.Is: [ast.IsNot], ast.IsNot: [ast.Is], ast.In: [ast.NotIn],
    ast.NotIn: [ast.In],
}  # fmt: skip
ARITHMETIC: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip


def broken(node: ast.AST) -> Iterator[ast.AST | str]:
    """What may stand in this node's place: another expression, or the text of another statement."""

    def changed(**fields: object) -> ast.AST:
        other = copy.copy(node)
        for name, value in fields.items():
            setattr(other, name, value)
        return other

    match node:
        case ast.Compare(ops=ops):
            for n, op in enumerate(ops):
                for other in COMPARISONS[type(op)]:
                    yield changed(ops=[*ops[:n], other(), *ops[n + 1 :]])
        case ast.BoolOp(op=op, values=values):
            yield changed(op=ast.Or() if isinstance(op, ast.And) else ast.And())
            for n in range(len(values)):
                rest = [*values[:n], *values[n + 1 :]]
                yield changed(values=rest) if len(rest) > 1 else rest[0]
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.BinOp(left=left, op=op) if type(op) in ARITHMETIC and not isinstance(left, ast.Constant):
            yield changed(op=ARITHMETIC[type(op)]())
        case ast.IfExp(test=test):
            yield changed(test=ast.UnaryOp(ast.Not(), test))
        case ast.comprehension(ifs=[test]) | ast.If(test=test) | ast.While(test=test):
            yield ast.UnaryOp(ast.Not(), test)
        case ast.Constant(value=bool() as value):
            yield changed(value=not value)
        case ast.Constant(value=int() | float() as value):
            yield changed(value=value + 1)
            if value not in (0, 1):
                yield changed(value=value - 1 if isinstance(value, int) else value * 0.8)
        case ast.Call(func=func, args=args, keywords=keywords):
            name = func.id if isinstance(func, ast.Name) else func.attr if isinstance(func, ast.Attribute) else ""
            if name in SWAPPED:
                other = copy.copy(func)
                setattr(other, "id" if isinstance(func, ast.Name) else "attr", SWAPPED[name])
                yield changed(func=other)
            if name == "sorted" and not any(k.arg == "reverse" for k in keywords):
                yield changed(keywords=[*keywords, ast.keyword("reverse", ast.Constant(True))])
            if name == "reversed":
                yield args[0]
            if len(args) > 1 and name != "isinstance" and ast.dump(args[0]) != ast.dump(args[1]):
                yield changed(args=[args[1], args[0], *args[2:]])
            for n in range(len(keywords)):
                yield changed(keywords=[*keywords[:n], *keywords[n + 1 :]])
        case ast.Subscript(slice=ast.Constant(value=0)):
            yield changed(slice=ast.Constant(-1))
        case ast.Subscript(slice=ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=1))):
            yield changed(slice=ast.Constant(0))
        case ast.Subscript(value=value, slice=ast.Slice()):
            yield value
        case ast.Expr(value=ast.Call()) | ast.Raise() | ast.Delete():
            yield "pass"
        case ast.AugAssign(op=op):
            yield "pass"
            yield ast.unparse(changed(op=ARITHMETIC.get(type(op), ast.Add)()))
        case ast.Continue():
            yield "break"
        case ast.Break():
            yield "continue"
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield "return None"


@dataclass(frozen=True)
class Break:
    file: str  # below src/ridgeline
    function: str  # the outermost one, with its class; empty at the level of the module
    line: int
    start: int
    end: int
    text: str

    @property
    def room(self) -> str:
        return self.file.partition("/")[0]

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]


def breaks(file: str, source: bytes) -> Iterator[Break]:
    """Every break of one file. Texts, annotations and decorators are left alone, and so is what an error says."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def walk(node: Any, names: tuple[str, ...], inside: bool) -> Iterator[Break]:
        target = node.test if isinstance(node, ast.If | ast.While) else node
        target = node.ifs[0] if isinstance(node, ast.comprehension) and node.ifs else target
        for other in broken(node):
            first = starts[target.lineno - 1] + target.col_offset
            last = starts[target.end_lineno - 1] + target.end_col_offset
            text = other if isinstance(other, str) else f"({ast.unparse(other)})"
            yield Break(file, ".".join(names) if inside else "", target.lineno, first, last, text)
        if isinstance(node, ast.JoinedStr | ast.Raise) or (isinstance(node, ast.AnnAssign) and node.value is None):
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not inside:
            names, inside = (*names, node.name), not isinstance(node, ast.ClassDef)
        for field, value in ast.iter_fields(node):
            if field not in ("annotation", "returns", "decorator_list", "type_params", "bases"):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        yield from walk(child, names, inside)

    yield from walk(ast.parse(source), (), False)
