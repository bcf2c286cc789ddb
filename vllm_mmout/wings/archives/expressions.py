"""Check size expressions in torch.export's files, because torch would evaluate them as Python code.

Sizes are stored as the ``srepr`` of a sympy expression. torch passes them to sympy, which evaluates them as Python.
"""

from __future__ import annotations

import ast
import math
from typing import Final

_LONGEST: Final = 4000
"""Maximum length of an expression in characters."""
_DEEPEST: Final = 40
_MOST_TERMS: Final = 200
_COMPARING: Final = frozenset({"Max", "Min"})
_MOST_COMPARED: Final = 8
"""Maximum number of arguments of ``Max`` and ``Min``. sympy compares their arguments in pairs, which takes long for
many arguments."""
_ATOMS: Final = frozenset({"Symbol", "Integer", "Float", "Rational"})
_LARGEST_NUMBER: Final = 2**63
_LARGEST_POWER: Final = 8
_FUNCTIONS: Final = frozenset(
    """Add Mul Min Max Abs Mod Rational floor ceiling And Or Not Equality Unequality StrictLessThan LessThan
    StrictGreaterThan GreaterThan FloorDiv ModularIndexing Where PythonMod CleanDiv CeilDiv CeilToInt FloorToInt
    TruncToInt TruncToFloat RoundToInt IntTrueDiv FloatTrueDiv FloatPow ToFloat Identity
    OpaqueUnaryFn_sqrt OpaqueUnaryFn_log2 OpaqueUnaryFn_log OpaqueUnaryFn_exp""".split()  # noqa: SIM905 - a list of words
)
"""Functions of sympy and torch that a size expression may call."""
_VALUES: Final = frozenset({"true", "false"})


def check_expression(text: str) -> None:
    """Raise ValueError unless ``text`` is an arithmetic expression that sympy can evaluate quickly."""
    if len(text) > _LONGEST or not text.isascii():
        raise ValueError(_refused(text))
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ValueError(_refused(text)) from None
    if not _is_arithmetic(tree, _DEEPEST) or _terms(tree) > _MOST_TERMS:
        raise ValueError(_refused(text))


def _terms(node: ast.AST) -> int:
    """Return the number of terms of an expression after sympy has multiplied out its products and powers."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return 1
    if node.func.id == "Pow":
        base, exponent = node.args
        return min(int(_terms(base) ** abs(_number_of(exponent))), _MOST_TERMS + 1)
    if node.func.id in _ATOMS:
        return 1
    counts = [_terms(argument) for argument in node.args]
    terms = math.prod(counts) if node.func.id == "Mul" else sum(counts)
    if node.func.id not in ("Add", "Mul") and terms <= _MOST_TERMS:
        return 1  # sympy does not expand products into other functions, such as a quotient or a maximum
    return min(terms, _MOST_TERMS + 1)


def _number_of(node: ast.AST) -> int:
    return int(ast.literal_eval(node.args[0] if isinstance(node, ast.Call) else node))


def _is_arithmetic(node: ast.AST, max_depth: int) -> bool:  # noqa: PLR0911 - a return for each form
    if max_depth == 0:
        return False
    match node:
        case ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=str(name))], keywords=keywords):
            return name.isidentifier() and all(isinstance(keyword.value, ast.Constant) for keyword in keywords)
        case ast.Call(func=ast.Name(id="Integer"), args=[number], keywords=[]):
            return _is_number(number)
        case ast.Call(func=ast.Name(id="Float"), args=[ast.Constant(value=str(number))], keywords=keywords):
            return _is_decimal(number) and all(isinstance(keyword.value, ast.Constant) for keyword in keywords)
        case ast.Call(func=ast.Name(id="Pow"), args=[base, ast.Call(func=ast.Name(id="Integer"), args=[exponent])]):
            power = exponent.operand if isinstance(exponent, ast.UnaryOp) else exponent
            small = isinstance(power, ast.Constant) and isinstance(power.value, int) and power.value <= _LARGEST_POWER
            plain = not any(isinstance(part, ast.Name) and part.id == "Pow" for part in ast.walk(base))
            return small and plain and _is_number(exponent) and _is_arithmetic(base, max_depth - 1)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            few = name not in _COMPARING or len(arguments) <= _MOST_COMPARED
            return few and name in _FUNCTIONS and all(_is_arithmetic(part, max_depth - 1) for part in arguments)
        case ast.Name(id=name):
            return name in _VALUES
    return _is_number(node)


def _is_number(node: ast.AST) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    value = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
    return isinstance(value, int | float) and abs(value) < _LARGEST_NUMBER


def _is_decimal(text: str) -> bool:
    try:
        return abs(float(text)) < _LARGEST_NUMBER and len(text) <= 40
    except ValueError:
        return False


def _refused(text: str) -> str:
    return f"the size {text[:60]!r}"
