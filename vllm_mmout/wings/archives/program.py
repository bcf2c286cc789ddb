"""What is taken of the graph of an archive: the fields of torch.export's schema that are needed, and what they may be.

torch makes Python source of the names in a graph, takes any name below ``torch`` for an operator, imports what its
trees of inputs name, and unpickles what is said to be pickled. So a program is read as these types, and written anew:
nothing else of it reaches torch. ValueErrors name what is not taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from vllm_mmout.wings.archives.operators import is_operator
from vllm_mmout.wings.archives.tensors import (
    STRIDED,
    Device,
    Float,
    Name,
    NameOrNone,
    Number,
    Path,
    Size,
    TensorMeta,
    Union,
    Word,
)

_SIGNS: Final = re.compile(r"[^A-Za-z0-9_ .,:;>+-]")


class Named(Struct):
    """A tensor of the graph."""

    name: Name


class NumberOrName(Number):
    """A number, or one of the graph."""

    as_name: Name | UnsetType = UNSET


class TensorOrNone(Union):
    """A tensor that may be left out."""

    as_tensor: Named | UnsetType = UNSET
    as_none: bool | UnsetType = UNSET


class Complex(Struct):
    """A complex number."""

    real: Float
    imag: Float


class Subgraph(Struct):
    """A branch or a loop's body."""

    name: Name
    graph: Graph


class Argument(Union):
    """What an operator takes or gives; an operator as an argument, and an object of a class, are not taken."""

    as_none: bool | UnsetType = UNSET
    as_tensor: Named | UnsetType = UNSET
    as_tensors: list[Named] | UnsetType = UNSET
    as_int: int | UnsetType = UNSET
    as_ints: list[int] | UnsetType = UNSET
    as_float: Float | UnsetType = UNSET
    as_floats: list[Float] | UnsetType = UNSET
    as_string: str | UnsetType = UNSET
    as_sym_int: NumberOrName | UnsetType = UNSET
    as_sym_ints: list[NumberOrName] | UnsetType = UNSET
    as_sym_float: NumberOrName | UnsetType = UNSET
    as_sym_floats: list[NumberOrName] | UnsetType = UNSET
    as_sym_bool: NumberOrName | UnsetType = UNSET
    as_sym_bools: list[NumberOrName] | UnsetType = UNSET
    as_scalar_type: int | UnsetType = UNSET
    as_memory_format: int | UnsetType = UNSET
    as_layout: int | UnsetType = UNSET
    as_device: Device | UnsetType = UNSET
    as_bool: bool | UnsetType = UNSET
    as_bools: list[bool] | UnsetType = UNSET
    as_optional_tensor: TensorOrNone | UnsetType = UNSET
    as_optional_tensors: list[TensorOrNone] | UnsetType = UNSET
    as_nested_tensors: list[list[Named]] | UnsetType = UNSET
    as_int_lists: list[list[int]] | UnsetType = UNSET
    as_float_lists: list[list[Float]] | UnsetType = UNSET
    as_complex: Complex | UnsetType = UNSET
    as_graph: Subgraph | UnsetType = UNSET

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.as_string, str):  # modes, equations of einsum; messages of assertions lose their signs
            self.as_string = _SIGNS.sub(" ", self.as_string)
        if isinstance(self.as_layout, int) and self.as_layout != STRIDED:
            raise ValueError("a sparse tensor")


class NamedArgument(Struct):
    """An argument of an operator."""

    name: NameOrNone
    arg: Argument
    kind: int | None = None


class Node(Struct):
    """One call."""

    target: str
    inputs: list[NamedArgument]
    outputs: list[Argument]
    metadata: dict[str, str] = {}
    is_hop_single_tensor_return: bool | None = None
    name: Name | None = None

    def __post_init__(self) -> None:
        if not is_operator(self.target):
            raise ValueError(f"a call of {self.target[:80]!r}")
        self.metadata = {}  # where in its author's source it was


class Graph(Struct):
    """The calls of a program, and the shapes of all that they give."""

    inputs: list[Argument]
    outputs: list[Argument]
    nodes: list[Node]
    tensor_values: dict[Name, TensorMeta]
    sym_int_values: dict[Name, Size]
    sym_bool_values: dict[Name, Size]
    is_single_tensor_return: bool = False
    sym_float_values: dict[Name, Size] = {}

    def targets(self) -> Iterator[str]:
        """Yield what is called, in branches and bodies of loops too."""
        for node in self.nodes:
            yield node.target
            for named in node.inputs:
                if isinstance(named.arg.as_graph, Subgraph):
                    yield from named.arg.as_graph.graph.targets()


class OfArgument(Struct):
    """An input or output that its caller sees."""

    arg: Argument


class OfConstant(Struct):
    """An input that was a plain value when the program was exported."""

    name: Name
    value: Argument


class OfState(Struct, omit_defaults=True):
    """A parameter, a buffer, a constant."""

    arg: Named
    parameter_name: Path | UnsetType = UNSET
    buffer_name: Path | UnsetType = UNSET
    tensor_constant_name: Path | UnsetType = UNSET
    user_input_name: Name | UnsetType = UNSET
    persistent: bool | UnsetType = UNSET


class InputSpec(Union):
    """What an input of the graph is."""

    user_input: OfArgument | UnsetType = UNSET
    parameter: OfState | UnsetType = UNSET
    buffer: OfState | UnsetType = UNSET
    tensor_constant: OfState | UnsetType = UNSET
    constant_input: OfConstant | UnsetType = UNSET


class OutputSpec(Union):
    """What an output of the graph is."""

    user_output: OfArgument | UnsetType = UNSET
    buffer_mutation: OfState | UnsetType = UNSET
    parameter_mutation: OfState | UnsetType = UNSET
    user_input_mutation: OfState | UnsetType = UNSET


class GraphSignature(Struct):
    """What the inputs and outputs of the graph are."""

    input_specs: list[InputSpec]
    output_specs: list[OutputSpec]


class CallSignature(Struct):
    """The trees in which a caller hands inputs over and gets outputs, as JSON."""

    in_spec: str
    out_spec: str
    inputs: list[Any] = []
    outputs: list[Any] = []
    forward_arg_names: list[Any] | None = None

    def __post_init__(self) -> None:
        self.inputs, self.outputs, self.forward_arg_names = [], [], None


class CallEntry(Struct):
    """How a module was called; the first one is the program itself."""

    fqn: str
    signature: CallSignature | None = None


class GraphModule(Struct):
    """A graph and its signature."""

    graph: Graph
    signature: GraphSignature
    module_call_graph: Annotated[list[CallEntry], Meta(min_length=1)]


class Range(Struct):
    """Of a symbol."""

    min_val: int | None
    max_val: int | None


class SchemaVersion(Struct):
    """Of the file."""

    major: int
    minor: int


class Program(Struct):
    """``models/NAME.json``; guards, which are Python, are left out."""

    graph_module: GraphModule
    opset_version: dict[Name, int]
    range_constraints: dict[str, Range]
    schema_version: SchemaVersion
    verifiers: list[Literal["ATEN", "TRAINING", "EDGE"]] = []
    torch_version: Word = ""

    def __post_init__(self) -> None:
        ranges = self.range_constraints.items()
        self.range_constraints = {symbol: bounds for symbol, bounds in ranges if symbol.isidentifier()}
