"""Schema of torch.export's program files, limited to the supported parts and values.

torch generates Python source from the names in a graph, treats any name below ``torch`` as an operator, imports modules
that the trees of inputs name, and unpickles data that is marked as pickled. A program is therefore parsed into these
types and encoded again, so that nothing else reaches torch. A ValueError names the part that is not supported.
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


class TensorName(Struct):
    """Reference to a tensor in the graph of an exported program."""

    name: Name


class NumberOrName(Number):
    """A constant number, or the name of a number that the graph computes."""

    as_name: Name | UnsetType = UNSET


class TensorOrNone(Union):
    """Optional tensor argument: a reference to a tensor, or None."""

    as_tensor: TensorName | UnsetType = UNSET
    as_none: bool | UnsetType = UNSET


class Complex(Struct):
    """A complex number."""

    real: Float
    imag: Float


class Subgraph(Struct):
    """Graph of a branch or a loop body, with its name."""

    name: Name
    graph: Graph


class Argument(Union):
    """Argument or result of an operator call. Exactly one field is set, which tells the type of the value."""

    as_none: bool | UnsetType = UNSET
    as_tensor: TensorName | UnsetType = UNSET
    as_tensors: list[TensorName] | UnsetType = UNSET
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
    as_nested_tensors: list[list[TensorName]] | UnsetType = UNSET
    as_int_lists: list[list[int]] | UnsetType = UNSET
    as_float_lists: list[list[Float]] | UnsetType = UNSET
    as_complex: Complex | UnsetType = UNSET
    as_graph: Subgraph | UnsetType = UNSET

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.as_string, str):  # modes and einsum equations stay intact; assertion messages may change
            self.as_string = _SIGNS.sub(" ", self.as_string)
        if isinstance(self.as_layout, int) and self.as_layout != STRIDED:
            raise ValueError("a sparse tensor")


class NamedArgument(Struct):
    """Argument of an operator call, with its parameter name."""

    name: NameOrNone
    arg: Argument
    kind: int | None = None


class Node(Struct):
    """One call of an operator."""

    target: str
    inputs: list[NamedArgument]
    outputs: list[Argument]
    metadata: dict[str, str] = {}
    is_hop_single_tensor_return: bool | None = None
    name: Name | None = None

    def __post_init__(self) -> None:
        if not is_operator(self.target):
            raise ValueError(f"a call of {self.target[:80]!r}")
        self.metadata = {}  # dropped: it holds the author's source locations


class Graph(Struct):
    """Operator calls of an exported program, with the shapes of all tensors that they use."""

    inputs: list[Argument]
    outputs: list[Argument]
    nodes: list[Node]
    tensor_values: dict[Name, TensorMeta]
    sym_int_values: dict[Name, Size]
    sym_bool_values: dict[Name, Size]
    is_single_tensor_return: bool = False
    sym_float_values: dict[Name, Size] = {}

    def targets(self) -> Iterator[str]:
        """Yield the operator name of each call in the graph, including calls in branches and loop bodies."""
        for node in self.nodes:
            yield node.target
            for argument in node.inputs:
                if isinstance(argument.arg.as_graph, Subgraph):
                    yield from argument.arg.as_graph.graph.targets()


class ArgumentSpec(Struct):
    """Argument that the exported program takes, or value that it returns."""

    arg: Argument


class ConstantSpec(Struct):
    """Argument of the exported program whose value was fixed at export."""

    name: Name
    value: Argument


class StateSpec(Struct, omit_defaults=True):
    """Parameter, buffer or constant tensor of the exported program."""

    arg: TensorName
    parameter_name: Path | UnsetType = UNSET
    buffer_name: Path | UnsetType = UNSET
    tensor_constant_name: Path | UnsetType = UNSET
    user_input_name: Name | UnsetType = UNSET
    persistent: bool | UnsetType = UNSET


class InputSpec(Union):
    """Role of a graph input, such as a parameter, or an argument from the caller."""

    user_input: ArgumentSpec | UnsetType = UNSET
    parameter: StateSpec | UnsetType = UNSET
    buffer: StateSpec | UnsetType = UNSET
    tensor_constant: StateSpec | UnsetType = UNSET
    constant_input: ConstantSpec | UnsetType = UNSET


class OutputSpec(Union):
    """Role of a graph output, such as a result for the caller, or a buffer's new value."""

    user_output: ArgumentSpec | UnsetType = UNSET
    buffer_mutation: StateSpec | UnsetType = UNSET
    parameter_mutation: StateSpec | UnsetType = UNSET
    user_input_mutation: StateSpec | UnsetType = UNSET


class GraphSignature(Struct):
    """Roles of a graph's inputs and outputs. For example, the role of an input may be a parameter."""

    input_specs: list[InputSpec]
    output_specs: list[OutputSpec]


class CallSignature(Struct):
    """Structure of the arguments and of the result of a module's call: torch pytrees, encoded as JSON."""

    in_spec: str
    out_spec: str
    inputs: list[Any] = []
    outputs: list[Any] = []
    forward_arg_names: list[Any] | None = None

    def __post_init__(self) -> None:
        self.inputs, self.outputs, self.forward_arg_names = [], [], None


class CallEntry(Struct):
    """Call of a module in the exported network. The first entry is the call of the network itself."""

    fqn: str
    signature: CallSignature | None = None


class GraphModule(Struct):
    """Graph of an exported program, with the roles of its inputs and outputs."""

    graph: Graph
    signature: GraphSignature
    module_call_graph: Annotated[list[CallEntry], Meta(min_length=1)]


class Range(Struct):
    """Smallest and largest value of a symbolic size. If a limit is None, the size is unlimited on that side."""

    min_val: int | None
    max_val: int | None


class SchemaVersion(Struct):
    """Version of torch.export's schema that a file uses."""

    major: int
    minor: int


class Program(Struct):
    """Exported program, read from the file ``models/NAME.json`` in an archive.

    The guards in the file are dropped, because they are Python code.
    """

    graph_module: GraphModule
    opset_version: dict[Name, int]
    range_constraints: dict[str, Range]
    schema_version: SchemaVersion
    verifiers: list[Literal["ATEN", "TRAINING", "EDGE"]] = []
    torch_version: Word = ""

    def __post_init__(self) -> None:
        ranges = self.range_constraints.items()
        self.range_constraints = {symbol: bounds for symbol, bounds in ranges if symbol.isidentifier()}
