"""What an archive may hold: raw tensors, and a graph of known operators; anything that could run code is refused.

torch unpickles what an archive says is pickled, takes any name below ``torch`` for an operator, and evaluates sizes and
guards as Python.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from vllm_mmout.errors import OptionError
from vllm_mmout.wings.archives.contents import Contents

_OPERATOR: Final = re.compile(
    r"torch\.ops\.(aten|prims|torchvision|quantized_decomposed)"
    r"\.((?!__|from_file\.)[A-Za-z_]\w*|__i?(and|or|xor|lshift|rshift)__)\.[A-Za-z]\w*"
    r"|torch\.ops\.higher_order\.(cond|map_impl|scan|while_loop|wrap_with_autocast|wrap_with_set_grad_enabled)"
    r"|torch\.sym_[a-z]+|torch\._sym_sqrt|math\.[a-z]+[0-9]*"
    r"|_operator\.(getitem|add|sub|mul|truediv|floordiv|mod|pow|neg|pos|eq|ne|lt|le|gt|ge|and_|or_|not_)"
)
_PLAIN: Final = re.compile(r"(weight|tensor)_\w+")
"""Files of raw tensors."""
_LONGEST: Final = 4000
"""Characters of the expression of a size."""
_FUNCTIONS: Final = frozenset(
    """Symbol Integer Float Rational Add Mul Pow Abs Min Max Mod floor ceiling true false And Or Not Eq Ne Lt Le Gt Ge
    Equality Unequality StrictLessThan LessThan StrictGreaterThan GreaterThan Piecewise ExprCondPair Tuple
    BooleanTrue BooleanFalse IntInfinity NegativeIntInfinity int_oo oo
    FloorDiv ModularIndexing Where PythonMod CleanDiv CeilToInt FloorToInt CeilDiv LShift RShift PowByNatural
    FloatPow FloatTrueDiv IntTrueDiv IsNonOverlappingAndDenseIndicator TruncToFloat TruncToInt RoundToInt RoundDecimal
    ToFloat Identity BitwiseFn_bitwise_and BitwiseFn_bitwise_or OpaqueUnaryFn_sqrt""".split()  # noqa: SIM905 - a list of words
)
"""Names of sympy, and of torch's functions beside it."""
_NODES: Final = (
    ast.Expression, ast.Call, ast.Name, ast.Load, ast.Constant, ast.keyword, ast.UnaryOp, ast.USub, ast.Tuple,
)  # fmt: skip
_LARGEST_POWER: Final = 64
_CONTAINERS: Final = frozenset({None, "builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict"})


def vetted(contents: Contents) -> dict[str, Any]:
    """The program of an archive, without what is of no use here; OptionError names what is not taken."""
    _check_files(contents)
    program = dict(contents.program)
    for graph in _graphs(program):
        for node in graph["nodes"]:
            _check_operator(node["target"], contents)
            node["metadata"] = {}  # where in its author's source it was
    for key, value in _entries(program):
        if key == "expr_str":
            _check_expression(value, contents)
        elif key in ("in_spec", "out_spec"):
            _check_containers(value, contents)
        elif key == "as_custom_obj":
            raise _refused(contents, "an object of a class of its own")
    program["guards_code"] = []  # Python; sizes are checked by their ranges
    return program


def _check_files(contents: Contents) -> None:
    for file in contents.files:
        if file.startswith("data/aotinductor/"):
            raise _refused(contents, "compiled machine code (AOTInductor)")
        if file.startswith(("data/weights/", "data/constants/")) and file.endswith(".pt"):
            raise _refused(contents, "pickled weights, as torch before 2.9 wrote them")
    for payload in contents.payloads.values():
        for name, said in payload.items():
            if said["use_pickle"] or not _PLAIN.fullmatch(str(said["path_name"])):
                raise _refused(contents, f"{name!r} as a pickled object")


def _check_operator(target: str, contents: Contents) -> None:
    if not _OPERATOR.fullmatch(target):
        raise _refused(contents, f"a call of {target}")


def _check_expression(text: str, contents: Contents) -> None:
    """Refuse what is no arithmetic of sizes as sympy's ``srepr`` writes it."""
    try:
        tree = ast.parse(text, mode="eval") if len(text) <= _LONGEST else None
    except SyntaxError:
        tree = None
    if tree is None or not all(_is_arithmetic(node) for node in ast.walk(tree)):
        raise _refused(contents, f"the size {text[:80]!r}")


def _is_arithmetic(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=str(name))]):
            return name.isidentifier()
        case ast.Call(func=ast.Name(id="Pow"), args=[_, exponent]):
            number = exponent.args[0] if isinstance(exponent, ast.Call) and exponent.args else exponent
            value = getattr(number, "value", 1)
            return not isinstance(value, int) or abs(value) <= _LARGEST_POWER
        case ast.Call(func=ast.Name(id=name)):
            return name in _FUNCTIONS
        case ast.Name(id=name):
            return name in _FUNCTIONS
        case ast.Constant(value=value):
            return isinstance(value, int | float) or (
                isinstance(value, str) and re.fullmatch(r"[\w.+-]+", value) is not None
            )
    return isinstance(node, _NODES) and not isinstance(node, ast.Call)


def _check_containers(text: str, contents: Contents) -> None:
    for key, kind in _entries(json.loads(text)):
        if key == "type" and kind not in _CONTAINERS:
            raise _refused(contents, f"an input or output of the class {kind}")


def _graphs(program: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """All graphs, those of branches too."""
    for key, value in _entries(program):
        if key == "graph" and isinstance(value, dict):
            yield value


def _entries(value: Any) -> Iterator[tuple[str, Any]]:
    """All entries of nested tables."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            for key, entry in value.items():
                yield key, entry
                waiting.append(entry)
        elif isinstance(value, list):
            waiting += value


def _refused(contents: Contents, what: str) -> OptionError:
    return OptionError(
        f"{contents.file.name} holds {what}, and only raw tensors and torch's own operators on them are served; export"
        " the plain network, with tensors in and tensors, or a dict or tuple of them, out"
    )
