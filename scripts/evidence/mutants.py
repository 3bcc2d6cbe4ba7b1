"""Small faults to plant in source code: every place where one fits, and the source with it.

Written on the standard library alone: mutmut leaves out functions with decorators, such as properties and those that
numba compiles, and cosmic-ray starts a process for each mutant, in which importing torch takes longer than the tests.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

__all__ = ["Mutant", "candidates", "essence", "mutated"]

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
#: Functions of which the order of two arguments changes nothing.
SYMMETRIC = ("maximum", "minimum", "max", "min", "logaddexp", "array_equal", "isclose")
#: Methods whose calls write to a log.
LOGGED = ("debug", "info", "warning")


@dataclass(frozen=True)
class Mutant:
    """A change of one place.

    Attributes
    ----------
    path : str
        Of the file, from the root of the repository.
    line : int
        On which the place begins, from 1.
    start, stop : int
        Of the place in the bytes of the file.
    before, after : str
        Source text there.
    kind : str
        Of the change.
    place : str
        The line, with the text that is replaced between « and ».
    twin : int
        Number among the mutants of the file with the same place and text, from 0.
    """

    path: str
    line: int
    start: int
    stop: int
    before: str
    after: str
    kind: str
    place: str
    twin: int = 0

    def describe(self) -> dict[str, Any]:
        """Entries for JSON."""
        return asdict(self)


def candidates(path: Path, root: Path) -> list[Mutant]:
    """Every mutant of a file, in the order of its source.

    Docstrings, annotations, decorators, patterns, ``__all__``, formatted strings, and messages of errors and logs are
    left out.

    Parameters
    ----------
    path, root : Path
        Of the file; of the repository.
    """
    source = path.read_bytes()
    starts = _line_starts(source)
    found: dict[tuple[int, int, str], Mutant] = {}
    for node, kind, after in _changes(ast.parse(source)):
        if isinstance(node, ast.expr) and ast.unparse(node) == ast.unparse(ast.parse(after)):  # two arguments alike
            continue
        start = starts[node.lineno - 1] + node.col_offset
        stop = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        before, place = source[start:stop].decode(), _place(source, start, stop)
        one = Mutant(path.relative_to(root).as_posix(), node.lineno, start, stop, before, after, kind, place)
        found.setdefault((start, stop, after), one)
    twins: Counter[tuple[str, str]] = Counter()
    numbered = []
    for one in sorted(found.values(), key=lambda one: (one.start, one.stop, one.after)):
        numbered.append(replace(one, twin=twins[one.place, one.after]))
        twins[one.place, one.after] += 1
    return numbered


def essence(source: bytes) -> str:
    """Source text without comments and docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body[0] = ast.Pass()
    return ast.unparse(tree)


def mutated(mutant: Mutant, source: bytes) -> bytes:
    """Source of the file with the change."""
    return source[: mutant.start] + mutant.after.encode() + source[mutant.stop :]


def _place(source: bytes, start: int, stop: int) -> str:
    first, last = source.rfind(b"\n", 0, start) + 1, source.find(b"\n", stop)
    parts = (source[first:start], source[start:stop], source[stop : last if last >= 0 else len(source)])
    return " ".join("{}«{}»{}".format(*(part.decode() for part in parts)).split())


def _line_starts(source: bytes) -> list[int]:
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def _changes(tree: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    """Nodes that decide something, each with the kind of a change and the text that replaces it."""
    for node in _deciding(tree):
        match node:
            case ast.Compare(left=left, ops=[op, *rest], comparators=others):
                yield node, "comparison", _text(ast.Compare(left, [COMPARISONS[type(op)](), *rest], others))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                yield node, "arithmetic", _text(ast.BinOp(left, OPERATORS[type(op)](), right))
            case ast.BoolOp(op=op, values=values):
                yield node, "boolean", _text(ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values))
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=1)):  # an axis: 1 may be the last as well
                yield node, "constant", "0"
            case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
                yield node, "sign or not", _text(operand)
            case ast.Constant(value=bool(value)):
                yield node, "constant", str(not value)
            case ast.Constant(value=int(value)):
                yield node, "constant", str(value + 1)
            case ast.Constant(value=float(value)):
                yield node, "constant", repr(2.0 * value if value else 1.0)
            case ast.Call(func=func, args=[first, second, *rest], keywords=keywords) if _ordered(node):
                yield node, "arguments", ast.unparse(ast.Call(func, [second, first, *rest], keywords))
            case ast.Return(value=ast.expr() as value) if not _is_none(value):
                yield node, "return", "return None"
            case ast.Expr(value=ast.Call()) | ast.Raise() | ast.Continue() | ast.Break():
                yield node, "statement", "pass"
            case ast.AugAssign(target=target, op=op, value=value):
                yield node, "statement", "pass"
                if type(op) in OPERATORS:
                    yield node, "arithmetic", ast.unparse(ast.AugAssign(target, OPERATORS[type(op)](), value))
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            yield node.test, "condition", _text(ast.UnaryOp(ast.Not(), node.test))


def _deciding(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below but those that decide nothing."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "exc", "msg", "bases", "pattern"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _decides_nothing(child):
                yield child
                yield from _deciding(child)


def _decides_nothing(node: ast.AST) -> bool:
    match node:
        case ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return True
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name))) if name in LOGGED:
            return True
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
    return False


def _ordered(call: ast.Call) -> bool:
    """Return True where another order of the first two arguments may matter."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name not in SYMMETRIC and not any(isinstance(one, ast.Starred) for one in call.args)


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _text(node: ast.expr) -> str:
    return f"({ast.unparse(ast.fix_missing_locations(node))})"
