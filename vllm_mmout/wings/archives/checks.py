"""Check the arguments of torch operators in untrusted programs.

Wrong arguments could make an operator access memory outside its tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import torch
from torch import Tensor, fx

_MOST_ELEMENTS: Final = 1 << 28
"""Maximum number of elements in a tensor that a program creates, such as by ``zeros``.

A float32 tensor of this size takes 1 GiB.
"""
_MOST_BITS: Final = 63
"""Maximum number of bits of a product or power of integers that an untrusted program computes, such as a tensor's
size."""
_MOST_POWER: Final = 8


def _refuse(op: Any, fact: str) -> None:
    raise ValueError(f"{op}: {fact}; the program calls it wrongly, export the network again")


def _arguments_by_name(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an operator call by parameter name, including defaults."""
    schema = op._schema.arguments  # noqa: SLF001 - an operator has no public attribute for its arguments
    defaults = {argument.name: argument.default_value for argument in schema if argument.has_default_value()}
    return {**defaults, **dict(zip((argument.name for argument in schema), args, strict=False)), **kwargs}


def checked_batch_norm(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a batch norm operator. Raise ValueError unless weights and statistics have one value per channel."""
    arguments = _arguments_by_name(op, args, kwargs)
    values = arguments["input"]
    if values.ndim < 2:
        _refuse(op, f"its input has {values.ndim} axes")
    for name in ("weight", "bias", "running_mean", "running_var"):
        tensor = arguments.get(name)
        if tensor is None and name.startswith("running") and not arguments.get("training"):
            _refuse(op, f"it has no {name}")
        if tensor is not None and (tensor.shape != values.shape[1:2] or not tensor.is_floating_point()):
            _refuse(op, f"{name} has the shape {list(tensor.shape)} for {values.shape[1]} channels")
    return op(*args, **kwargs)


def checked_factory(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Call an operator that creates a tensor. Raise ValueError for huge tensors.

    Tensors that ``empty`` and similar operators would leave uninitialised are filled with zeros.
    """
    arguments = _arguments_by_name(op, args, kwargs)
    elements = _element_count(arguments)
    if elements > _MOST_ELEMENTS:
        _refuse(op, f"it creates {elements} elements at once, and the maximum is {_MOST_ELEMENTS}")
    if "empty" not in op.name():
        return op(*args, **kwargs)
    stride = arguments.get("stride")
    if stride is None:
        return op(*args, **kwargs).zero_()
    extent = 1 + sum((size - 1) * step for size, step in zip(arguments["size"], stride, strict=True))
    if not 0 <= extent <= _MOST_ELEMENTS:
        _refuse(op, f"it spans {extent} elements at once, and the maximum is {_MOST_ELEMENTS}")
    memory = torch.zeros(max(extent, 1), dtype=arguments.get("dtype"), device=arguments.get("device"))
    return memory.as_strided(arguments["size"], stride)


def _element_count(arguments: Mapping[str, Any]) -> Any:
    """Return the number of elements of the tensor that a call would create."""
    if "repeats" in arguments or "dims" in arguments:
        times = arguments.get("repeats", arguments.get("dims"))
        if isinstance(times, Tensor):  # repeat_interleave has a count for each entry
            each = arguments["self"].numel() / max(times.numel(), 1) if "self" in arguments else 1
            return int(times.sum()) * max(each, 1)
        return arguments["self"].numel() * math.prod(times if isinstance(times, list | tuple) else [times])
    if "pad" in arguments:
        sides = [*arguments["pad"]]
        shape = [*arguments["self"].shape]
        for place in range(len(sides) // 2):
            shape[-1 - place] += sides[2 * place] + sides[2 * place + 1]
        return math.prod(shape)
    if "num_classes" in arguments or "minlength" in arguments:  # the largest value may demand more
        values = arguments["self"]
        most = max(
            arguments.get("num_classes", 0), arguments.get("minlength", 0), int(values.max()) if values.numel() else 0
        )
        return most * (values.numel() if "num_classes" in arguments else 1)
    if "end" in arguments and "steps" not in arguments:
        return abs(arguments["end"] - arguments.get("start", 0)) / (abs(arguments.get("step", 1)) or 1)
    sizes = arguments.get("size") or [
        arguments[name] for name in ("n", "m", "steps", "row", "col") if name in arguments
    ]
    return math.prod(sizes or [arguments.get(name, 0) for name in ("window_length", "bins") if name in arguments])


def checked_fft(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a Fourier transform. Raise ValueError if its axes, dtype or size do not fit the input."""
    arguments = _arguments_by_name(op, args, kwargs)
    values, axes = arguments["self"], [*arguments["dim"]]
    if not axes or any(not -values.ndim <= axis < values.ndim for axis in axes):
        _refuse(op, f"it transforms the axes {axes} of {values.ndim}")
    if len({axis % values.ndim for axis in axes}) != len(axes) or 0 in values.shape:
        _refuse(op, f"it transforms the axes {axes} of the shape {list(values.shape)}")
    if values.is_complex() == ("r2c" in op.name()) or not (values.is_complex() or values.is_floating_point()):
        _refuse(op, f"its input is {values.dtype}")
    size = arguments.get("last_dim_size")
    if size is not None and not (size >= 1 and size // 2 + 1 == values.shape[axes[-1]]):
        _refuse(op, f"it makes {size} values from {values.shape[axes[-1]]}")
    return op(*args, **kwargs)


def checked_recurrent(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Call an RNN, LSTM or GRU. Raise ValueError unless its states and weights have the expected shapes."""
    arguments = _arguments_by_name(op, args, kwargs)
    gates = 4 if "lstm" in op.name() else 3 if "gru" in op.name() else 1
    values, weights = arguments["input"], [*arguments["params"]]
    states = [*arguments["hx"]] if gates == 4 else [arguments["hx"]]
    if values.ndim != 3 or not states or any(state.ndim != 3 for state in states) or len(states) != (gates == 4) + 1:
        _refuse(op, "its input and its states have 3 axes")
    passed, hidden = states[0].shape[-1], states[-1].shape[-1]
    directions, layers = 2 if arguments["bidirectional"] else 1, arguments["num_layers"]
    if layers > len(weights):
        _refuse(op, f"it has {layers} layers and {len(weights)} weights")
    rows = [directions * layers, values.shape[0 if arguments["batch_first"] else 1]]
    shapes = []
    for layer in range(layers):
        layer_shapes = [[gates * hidden, directions * passed if layer else values.shape[-1]], [gates * hidden, passed]]
        layer_shapes += [[gates * hidden]] * 2 if arguments["has_biases"] else []
        layer_shapes += [[passed, hidden]] if passed != hidden else []
        shapes += layer_shapes * directions
    expected = [[*rows, passed], [*rows, hidden]][: len(states)] + shapes
    tensors = [*states, *weights]
    if [[*t.shape] for t in tensors] != expected or any(t.dtype != values.dtype for t in tensors):
        _refuse(op, f"its states and weights have the shapes {[[*t.shape] for t in tensors]}, not {expected}")
    return op(*args, **kwargs)


def checked_view(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Call ``as_strided``. Raise ValueError if the view exceeds the tensor. Compiled code would not check this."""
    arguments = _arguments_by_name(op, args, kwargs)
    values, size, stride = arguments["self"], [*arguments["size"]], [*arguments["stride"]]
    start = arguments["storage_offset"] or 0
    extent = start + 1 + sum((count - 1) * step for count, step in zip(size, stride, strict=True))
    fits = values.is_contiguous() and not values.storage_offset() and min([start, *stride], default=0) >= 0
    if (fits and extent > values.numel() and 0 not in size) or (not fits and torch.compiler.is_compiling()):
        _refuse(
            op,
            f"the sizes {size} and strides {stride} from {start} on do not fit a contiguous tensor of"
            f" {values.numel()} elements",
        )
    return op(*args, **kwargs)


def checked_unpool(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a max-unpool operator. Raise ValueError if an index is outside the output."""
    arguments = _arguments_by_name(op, args, kwargs)
    places, most = arguments["indices"], math.prod(arguments["output_size"])
    if places.numel() and not (int(places.min()) >= 0 and int(places.max()) < most <= _MOST_ELEMENTS):
        _refuse(op, f"its indices exceed the {most} places of its output")
    return op(*args, **kwargs)


def checked_index(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Index a tensor, and check the bounds. The operator ``_unsafe_index`` would skip this check in compiled code."""
    del op
    return torch.ops.aten.index.Tensor(*args, **kwargs)


def checked_reshape(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Reshape a tensor, and check the sizes. The operator ``_unsafe_view`` would skip this check in compiled code."""
    del op
    return torch.ops.aten.reshape.default(*args, **kwargs)


def checked_assertion(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Raise ValueError if an assertion in an exported program fails. torch's own check would break the GPU context."""
    arguments = _arguments_by_name(op, args, kwargs)
    if not bool(arguments["self"]):
        raise ValueError(f"the program's own condition does not hold: {arguments.get('assert_msg', '')}")


def checked_product(op: Any, *args: Any) -> Any:
    """Multiply two sizes, or raise a size to a power. Raise ValueError if the result would be huge."""
    first, second = args
    if isinstance(first, int) and isinstance(second, int):
        bits = first.bit_length() * (second if op.__name__ == "pow" else 1) + second.bit_length()
        if bits > _MOST_BITS or (op.__name__ == "pow" and not 0 <= second <= _MOST_POWER):
            _refuse(op.__name__, f"its result would be too large for a size, from {first} and {second}")
    return op(*args)


_FACTORIES: Final = """arange empty empty_like empty_permuted empty_strided eye full linspace logspace new_empty
new_empty_strided new_full new_ones new_zeros ones rand randint randn zeros tril_indices triu_indices hann_window
hamming_window fft_fftfreq fft_rfftfreq one_hot bincount histc repeat repeat_interleave tile constant_pad_nd pad"""
_OF_SIZES: Final = frozenset({"_assert_scalar", "sym_constrain_range", "sym_constrain_range_for_size"})
_KINDS: Final[Mapping[str, type]] = {
    "ScalarType": torch.dtype,
    "Layout": torch.layout,
    "MemoryFormat": torch.memory_format,
    "Device": torch.device,
    "Generator": torch.Generator,
    "Stream": torch.Stream,
}
"""Maps argument types in operator schemas, such as ScalarType, to the Python class that an argument's value must have.

torch itself would also accept an integer, for example the internal code of a dtype.
"""
CHECKED: Final[Mapping[str, Callable[..., Any]]] = {
    **dict.fromkeys((f"aten.{name}" for name in _FACTORIES.split()), checked_factory),
    **dict.fromkeys(("aten._fft_c2c", "aten._fft_c2r", "aten._fft_r2c"), checked_fft),
    "aten.native_batch_norm": checked_batch_norm,
    "aten._native_batch_norm_legit": checked_batch_norm,
    "aten._native_batch_norm_legit_no_training": checked_batch_norm,
    **dict.fromkeys(("aten.gru", "aten.lstm", "aten.rnn_relu", "aten.rnn_tanh"), checked_recurrent),
    "aten._assert_async": checked_assertion,
    "aten.as_strided": checked_view,
    "aten.max_unpool2d": checked_unpool,
    "aten.max_unpool3d": checked_unpool,
    "aten._unsafe_index": checked_index,
    "aten._unsafe_view": checked_reshape,
    "_operator.mul": checked_product,
    "_operator.pow": checked_product,
}
"""Maps the name of an operator to a function that replaces the operator, and checks the arguments of each call.

The function gets the operator as its first argument.
"""


def with_checks(network: fx.GraphModule) -> fx.GraphModule:
    """Replace operators in an exported program with functions that check their arguments. Return the changed program.

    `CHECKED` lists the operators. ValueError is raised for calls that `_check_call` refuses.
    """
    for graph_module in network.modules():
        if not isinstance(graph_module, fx.GraphModule):
            continue
        for node in graph_module.graph.nodes:
            if isinstance(node.target, torch._ops.OpOverload):  # noqa: SLF001 - torch has no public name for it
                _check_call(node)
            check = CHECKED.get(_name_of(node.target)) if node.op == "call_function" else None
            if check is not None:
                node.args = (node.target, *node.args)
                node.target = check
        graph_module.recompile()
    return network


def _check_call(node: fx.Node) -> None:
    """Raise ValueError for an operator call without tensors, or with an integer in place of a dtype or device."""
    schema = cast("Any", node.target)._schema  # noqa: SLF001 - an operator has no public attribute for its schema
    if "Tensor" not in str(schema) and schema.name.removeprefix("aten::") not in _OF_SIZES:
        _refuse(node.target, "it takes and gives plain numbers")
    by_position = {argument.name: value for argument, value in zip(schema.arguments, node.args, strict=False)}
    for argument in schema.arguments:
        value = {**by_position, **node.kwargs}.get(argument.name)
        kinds = [kind for name, kind in _KINDS.items() if name in str(argument.real_type)]
        if value is not None and kinds and not isinstance(value, kinds[0]):
            _refuse(node.target, f"{argument.name} is {value!r:.80}, not a {kinds[0].__name__}")


def _name_of(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):  # noqa: SLF001 - torch has no public name for it
        return target._schema.name.replace("::", ".")  # noqa: SLF001 - an operator has no public attribute for it
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__name__', '')}"
