"""Mutants of a module: one changed operator, condition, number or returned value each."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt), ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult,
}  # fmt: skip
NO_NUMBERS = (ast.JoinedStr, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.ListComp)


@dataclass(frozen=True)
class Mutant:
    """A module with one change."""

    module: str
    """Path from the repository's root."""
    function: str
    """Qualified name of the innermost function or class, empty at the module's level."""
    change: str
    """Old and new source text."""
    span: tuple[int, int]
    """Position of the old text in the module, in bytes."""
    new: str

    @property
    def key(self) -> str:
        """Name that a change of other lines leaves as it is."""
        return f"{self.module}:{self.function}: {self.change}"

    def apply(self, source: str) -> str:
        """Return the mutated module."""
        text, (start, end) = source.encode(), self.span
        return (text[:start] + self.new.encode() + text[end:]).decode()


def mutants(module: str, source: str) -> Iterator[Mutant]:
    """Yield each possible mutant of a module."""
    lines = [0]
    for line in source.encode().splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    repeated: Counter[str] = Counter()
    for node, function in _executed(ast.parse(source)):
        for old, new in _changes(node):
            start = lines[old.lineno - 1] + old.col_offset
            end = lines[(old.end_lineno or 0) - 1] + (old.end_col_offset or 0)
            change = f"{ast.unparse(old)} -> {ast.unparse(new)}"
            repeated[function + change] += 1
            if (number := repeated[function + change]) > 1:
                change += f" (no. {number})"
            yield Mutant(module, function, change, (start, end), f"({ast.unparse(new)})")


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the expressions of ``node`` that are replaced, each with its replacement."""
    match node:
        case ast.Compare(ops=[operator]):
            for other in COMPARISONS[type(operator)]:
                yield node, ast.Compare(node.left, [other()], node.comparators)
        case ast.Compare(ops=operators):
            for at, operator in enumerate(operators):
                changed = [*operators[:at], COMPARISONS[type(operator)][0](), *operators[at + 1 :]]
                yield node, ast.Compare(node.left, changed, node.comparators)
        case ast.BinOp() if type(node.op) in ARITHMETIC and _is_number(node):
            yield node, ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right)
        case ast.AugAssign(op=ast.Add() | ast.Sub()) if not isinstance(node.value, NO_NUMBERS):
            yield node.value, ast.UnaryOp(ast.USub(), node.value)
        case ast.BoolOp():
            other_one = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield node, ast.BoolOp(other_one, node.values)
        case ast.UnaryOp(op=ast.Not()):
            yield node, node.operand
        case ast.Constant(value=bool() as value):
            yield node, ast.Constant(not value)
        case ast.Constant(value=int() | float() as number):
            yield node, ast.Constant(number + 1)
            yield node, ast.Constant(number - 1)
        case ast.Return(value=ast.expr() as returned):
            if not (isinstance(returned, ast.Constant) and returned.value is None):
                yield returned, ast.Constant(None)
        case ast.If(test=test) | ast.IfExp(test=test):
            yield test, ast.Constant(True)
            yield test, ast.Constant(False)
        case ast.comprehension(ifs=tests):
            yield from ((test, ast.Constant(True)) for test in tests)


def _is_number(node: ast.BinOp) -> bool:
    """Return whether both operands may be numbers; other types would refuse the new operator."""
    return not any(
        isinstance(side, NO_NUMBERS) or isinstance(getattr(side, "value", None), str)
        for side in (node.left, node.right)
    )


def _executed(node: ast.AST, scope: str = "", inside: str = "") -> Iterator[tuple[ast.AST, str]]:
    """Yield the nodes of ``node`` that run, each with its function or class.

    Annotations, decorators, messages of errors and ``__repr__`` are left out.

    Args:
        node: Where to begin.
        scope: Qualified name of its function or class.
        inside: What qualified names in it begin with.
    """
    children: list[ast.AST] = list(ast.iter_child_nodes(node))
    match node:
        case ast.FunctionDef(name="__repr__") | ast.Raise() | ast.JoinedStr() | ast.arg():
            return
        case ast.FunctionDef():
            children = [*node.args.defaults, *filter(None, node.args.kw_defaults), *node.body]
            scope, inside = inside + node.name, f"{inside}{node.name}.<locals>."
        case ast.ClassDef():
            children = [*node.body]
            scope, inside = inside + node.name, f"{inside}{node.name}."
        case ast.AnnAssign():
            children = [node.value] if node.value else []
    yield node, scope
    for child in children:
        yield from _executed(child, scope, inside)
