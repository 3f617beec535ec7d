"""Wrong versions of a function: one term changed at a time, put in place of the original while a test looks.

The changes: + and − exchanged, a factor dropped, a sign lost or gained, a slope taken for 1, a matrix's base
or product negated, two gates exchanged, a state taken one step too early or late, a statement left out.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from types import CodeType, FunctionType
from typing import Any, NamedTuple


class Mutant(NamedTuple):
    function: FunctionType
    code: CodeType
    change: str

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """By its code object, so that every module that imported the function meets the mutant."""
        original = self.function.__code__
        self.function.__code__ = self.code
        try:
            yield
        finally:
            self.function.__code__ = original


def mutants(function: FunctionType) -> Iterator[Mutant]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    body = tree.body[0]
    assert isinstance(body, ast.FunctionDef)
    body.decorator_list = []
    for position, node in enumerate(ast.walk(body)):
        for number, change in enumerate(_changes(node)):
            copy = deepcopy(tree)
            target = list(ast.walk(copy.body[0]))[position]
            wrong = list(_changes(target))[number]
            yield Mutant(
                function, _compiled(copy, target, wrong, function), f"{_text(node)}  ->  {_text(change)}"
            )


def _compiled(tree: ast.Module, target: ast.AST, wrong: ast.AST, function: FunctionType) -> CodeType:
    class Swap(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> Any:
            return wrong if node is target else self.generic_visit(node)

    changed = ast.fix_missing_locations(Swap().visit(tree))
    module = compile(changed, function.__code__.co_filename, "exec")
    return next(c for c in module.co_consts if isinstance(c, CodeType) and c.co_name == function.__name__)


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.BinOp(left, ast.Add(), right) if not isinstance(left, ast.List):
            yield ast.BinOp(left, ast.Sub(), right)
        case ast.BinOp(left, ast.Sub(), right):
            yield ast.BinOp(left, ast.Add(), right)
        case ast.BinOp(left, ast.Mult() | ast.Div(), right):
            yield left
            yield right
        case ast.UnaryOp(ast.USub(), operand) if not isinstance(operand, ast.Constant):
            yield operand
        case ast.Call() if isinstance(node.func, ast.Name | ast.Attribute):
            yield from _calls(node, node.func.id if isinstance(node.func, ast.Name) else node.func.attr)
        case ast.Slice(None, ast.UnaryOp(ast.USub(), ast.Constant(1)), None):
            yield ast.Slice(ast.Constant(1), None, None)
        case ast.Slice(ast.Constant(1), None, None):
            yield ast.Slice(None, ast.UnaryOp(ast.USub(), ast.Constant(1)), None)
        case ast.Expr(ast.Call()):
            yield ast.Pass()
        case ast.AugAssign():
            yield ast.Pass()
        case _:
            pass


def _calls(node: ast.Call, name: str) -> Iterator[ast.AST]:
    def again(arguments: list[ast.expr]) -> ast.Call:
        return ast.Call(node.func, arguments, node.keywords)

    def negated(x: ast.expr) -> ast.expr:
        return ast.UnaryOp(ast.USub(), x)

    arguments = node.args
    if name in ("onto", "carry_onto"):  # (…, base, x)
        yield again([*arguments[:-2], negated(arguments[-2]), arguments[-1]])
        yield ast.BinOp(arguments[-2], ast.Mult(), ast.Constant(2))
    if name in ("carry", "back"):
        yield negated(node)
    if name in ("add_product", "addcmul"):  # base + a ⊙ b
        base, a, b = arguments
        yield from (again([negated(base), a, b]), again([base, negated(a), b]), base)
        yield from (ast.BinOp(base, ast.Add(), a), ast.BinOp(base, ast.Add(), b))
    if name == "addcmul" and node.keywords:  # value=-1
        yield ast.Call(node.func, arguments, [])
    if name == "soft_slope":
        yield ast.Constant(1)
    if name == "through_tanh":  # x ⊙ (1 − H ⊙ H)
        yield arguments[0]
    if name in ("cat", "concat") and isinstance(arguments[0], ast.Tuple):
        first, *between, last = arguments[0].elts
        yield again([ast.Tuple([last, *between, first], ast.Load()), *arguments[1:]])


def _text(node: ast.AST) -> str:
    return ast.unparse(ast.fix_missing_locations(deepcopy(node)))


def functions_of(*places: Any) -> list[FunctionType]:
    """The functions that a module or class defines itself, with those of its classes."""
    found: list[FunctionType] = []
    for place in places:
        for value in vars(place).values():
            own = getattr(value, "__module__", None) == getattr(place, "__name__", None)
            written = isinstance(value, FunctionType) and not value.__name__.startswith("__")
            if written and (own or inspect.isclass(place)) and value.__module__.startswith("rnnewton"):
                found.append(value)
            elif inspect.isclass(value) and own:
                found += functions_of(value)
    return found
