"""Small changes that break a module, one at a time; see ``benchmarks.mutants``."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

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
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
NOT_RUN = ("TYPE_CHECKING",)
LEFT_ALONE = ("__all__", "__slots__")


@dataclass(frozen=True, order=True)
class Break:
    """A change of a source text.

    Attributes:
        line: First line, from 1.
        start: First byte to remove.
        stop: Byte after the last one to remove.
        before: Removed text, on one line.
        after: Inserted text.
    """

    line: int
    start: int
    stop: int
    before: str
    after: str

    def applied_to(self, text: str) -> str:
        """Return the text with this change."""
        content = text.encode()
        return (content[: self.start] + self.after.encode() + content[self.stop :]).decode()


def breaks(text: str) -> Iterator[Break]:
    """Return every change of a module, in the order of its lines."""
    content = text.encode()
    starts = [0]
    for line in content.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    changes = []
    for node, change in _changes(ast.parse(text)):
        start = starts[node.lineno - 1] + node.col_offset
        stop = starts[node.end_lineno - 1] + node.end_col_offset
        is_statement = isinstance(node, ast.stmt)
        after = change if isinstance(change, str) else ast.unparse(change)
        before = " ".join(content[start:stop].decode().split())
        changes.append(Break(node.lineno, start, stop, before, after if is_statement else f"({after})"))
    yield from sorted(changes)


def _changes(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST | str]]:
    """Yield nodes of a tree with their replacements."""
    if isinstance(node, ast.JoinedStr) or _is_left_alone(node):
        return
    if isinstance(node, ast.Raise):
        yield node, "pass"
        return  # message texts are not changed
    yield from ((node, change) for change in _instead_of(node))
    for test in _conditions(node):
        # Comparisons and negations have their own changes.
        if not isinstance(test, (ast.Compare, ast.BoolOp, ast.UnaryOp)):
            yield test, ast.UnaryOp(ast.Not(), test)
    for child in _children(node):
        yield from _changes(child)


def _is_left_alone(node: ast.AST) -> bool:
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id in NOT_RUN:
        return True
    targets = node.targets if isinstance(node, ast.Assign) else []
    return any(isinstance(target, ast.Name) and target.id in LEFT_ALONE for target in targets)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a node that are executed: no annotations, no decorators."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        yield from (default for default in (*node.args.defaults, *node.args.kw_defaults) if default is not None)
        yield from [node.body] if isinstance(node, ast.Lambda) else node.body
    elif isinstance(node, ast.ClassDef):
        yield from node.body
    elif isinstance(node, ast.AnnAssign):
        yield from [] if node.value is None else [node.value]
    else:
        yield from ast.iter_child_nodes(node)


def _instead_of(node: ast.AST) -> Iterator[ast.AST | str]:
    """Yield replacements for a node."""
    if isinstance(node, ast.Compare):
        for at, op in enumerate(node.ops):
            ops = [*node.ops[:at], COMPARISONS[type(op)](), *node.ops[at + 1 :]]
            yield _with(node, ops=ops)
    elif isinstance(node, ast.BoolOp):
        yield _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.UAdd):
        yield node.operand
    elif isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in ARITHMETIC:
        yield _with(node, op=ARITHMETIC[type(node.op)]())
    elif isinstance(node, ast.Constant):
        yield from _other_constants(node.value)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
        yield _with(node, func=ast.Name(CALLS[node.func.id]))
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "pass"
    elif isinstance(node, (ast.Break, ast.Continue)):
        yield "continue" if isinstance(node, ast.Break) else "break"


def _conditions(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, (ast.If, ast.While, ast.IfExp)):
        return [node.test]
    return node.ifs if isinstance(node, ast.comprehension) else []


def _other_constants(value: object) -> Iterator[ast.AST]:
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int):
        yield ast.Constant(value + 1)
    elif isinstance(value, float):
        yield from (ast.Constant(value * 1.1), ast.Constant(value * 0.9)) if value else (ast.Constant(1.0),)


def _with(node: ast.AST, **fields: object) -> ast.AST:
    made = copy.copy(node)
    for name, value in fields.items():
        setattr(made, name, value)
    return made
