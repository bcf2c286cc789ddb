"""Checks before operators whose kernels believe the sizes that they are given, or give memory as they find it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import torch
from torch import Tensor, fx

_MOST_ELEMENTS: Final = 1 << 28
"""Elements of a tensor that is made of a size alone: 1 GiB of float32."""
_MOST_BITS: Final = 63
"""Of a size."""
_MOST_POWER: Final = 8


def _refuse(op: Any, fact: str) -> None:
    raise ValueError(f"{op}: {fact}; the program calls it wrongly, export the network again")


def _named(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by the names of the operator's schema, the defaults too."""
    schema = op._schema.arguments  # noqa: SLF001 - the only place where an operator says its arguments
    given = {argument.name: argument.default_value for argument in schema if argument.has_default_value()}
    return {**given, **dict(zip((argument.name for argument in schema), args, strict=False)), **kwargs}


def checked_batch_norm(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Normalise by statistics and weights of as many values as there are channels."""
    given = _named(op, args, kwargs)
    values = given["input"]
    if values.ndim < 2:
        _refuse(op, f"its input has {values.ndim} axes")
    for name in ("weight", "bias", "running_mean", "running_var"):
        tensor = given.get(name)
        if tensor is None and name.startswith("running") and not given.get("training"):
            _refuse(op, f"it has no {name}")
        if tensor is not None and (tensor.shape != values.shape[1:2] or not tensor.is_floating_point()):
            _refuse(op, f"{name} has the shape {list(tensor.shape)} for {values.shape[1]} channels")
    return op(*args, **kwargs)


def checked_factory(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Make a tensor of a bounded size; the memory of one that would be empty is zeros, not what lay there before."""
    given = _named(op, args, kwargs)
    elements = _elements(given)
    if elements > _MOST_ELEMENTS:
        _refuse(op, f"it makes {elements} elements at once, and may make {_MOST_ELEMENTS}")
    if "empty" not in op.name():
        return op(*args, **kwargs)
    stride = given.get("stride")
    if stride is None:
        return op(*args, **kwargs).zero_()
    extent = 1 + sum((size - 1) * step for size, step in zip(given["size"], stride, strict=True))
    if not 0 <= extent <= _MOST_ELEMENTS:
        _refuse(op, f"it spans {extent} elements at once, and may span {_MOST_ELEMENTS}")
    memory = torch.zeros(max(extent, 1), dtype=given.get("dtype"), device=given.get("device"))
    return memory.as_strided(given["size"], stride)


def _elements(given: Mapping[str, Any]) -> Any:
    """Return how many elements a call makes, from the sizes among its arguments."""
    if "repeats" in given or "dims" in given:
        times = given.get("repeats", given.get("dims"))
        if isinstance(times, Tensor):  # of repeat_interleave: each entry's own count
            each = given["self"].numel() / max(times.numel(), 1) if "self" in given else 1
            return int(times.sum()) * max(each, 1)
        return given["self"].numel() * math.prod(times if isinstance(times, list | tuple) else [times])
    if "pad" in given:
        sides = [*given["pad"]]
        shape = [*given["self"].shape]
        for place in range(len(sides) // 2):
            shape[-1 - place] += sides[2 * place] + sides[2 * place + 1]
        return math.prod(shape)
    if "num_classes" in given or "minlength" in given:  # as many as the largest value says, too
        values = given["self"]
        most = max(given.get("num_classes", 0), given.get("minlength", 0), int(values.max()) if values.numel() else 0)
        return most * (values.numel() if "num_classes" in given else 1)
    if "end" in given and "steps" not in given:
        return abs(given["end"] - given.get("start", 0)) / (abs(given.get("step", 1)) or 1)
    sizes = given.get("size") or [given[name] for name in ("n", "m", "steps", "row", "col") if name in given]
    return math.prod(sizes or [given.get(name, 0) for name in ("window_length", "bins") if name in given])


def checked_fft(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Transform along axes that there are, each once, and from as many values as the result needs."""
    given = _named(op, args, kwargs)
    values, axes = given["self"], [*given["dim"]]
    if not axes or any(not -values.ndim <= axis < values.ndim for axis in axes):
        _refuse(op, f"it transforms the axes {axes} of {values.ndim}")
    if len({axis % values.ndim for axis in axes}) != len(axes) or 0 in values.shape:
        _refuse(op, f"it transforms the axes {axes} of the shape {list(values.shape)}")
    if values.is_complex() == ("r2c" in op.name()) or not (values.is_complex() or values.is_floating_point()):
        _refuse(op, f"its input is {values.dtype}")
    size = given.get("last_dim_size")
    if size is not None and not (size >= 1 and size // 2 + 1 == values.shape[axes[-1]]):
        _refuse(op, f"it makes {size} values of {values.shape[axes[-1]]}")
    return op(*args, **kwargs)


def checked_recurrent(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run recurrent layers whose states and weights have the shapes that the input and each other need."""
    given = _named(op, args, kwargs)
    gates = 4 if "lstm" in op.name() else 3 if "gru" in op.name() else 1
    values, weights = given["input"], [*given["params"]]
    states = [*given["hx"]] if gates == 4 else [given["hx"]]
    if values.ndim != 3 or not states or any(state.ndim != 3 for state in states) or len(states) != (gates == 4) + 1:
        _refuse(op, "its input and its states have 3 axes")
    passed, hidden = states[0].shape[-1], states[-1].shape[-1]
    directions, layers = 2 if given["bidirectional"] else 1, given["num_layers"]
    if layers > len(weights):
        _refuse(op, f"it has {layers} layers and {len(weights)} weights")
    rows = [directions * layers, values.shape[0 if given["batch_first"] else 1]]
    shapes = []
    for layer in range(layers):
        of_layer = [[gates * hidden, directions * passed if layer else values.shape[-1]], [gates * hidden, passed]]
        of_layer += [[gates * hidden]] * 2 if given["has_biases"] else []
        of_layer += [[passed, hidden]] if passed != hidden else []
        shapes += of_layer * directions
    wanted = [[*rows, passed], [*rows, hidden]][: len(states)] + shapes
    found = [*states, *weights]
    if [[*one.shape] for one in found] != wanted or any(one.dtype != values.dtype for one in found):
        _refuse(op, f"its states and weights have the shapes {[[*one.shape] for one in found]}, not {wanted}")
    return op(*args, **kwargs)


def checked_view(op: Any, *args: Any, **kwargs: Any) -> Any:
    """View a tensor's memory within its own elements; compiled code would not look."""
    given = _named(op, args, kwargs)
    values, size, stride = given["self"], [*given["size"]], [*given["stride"]]
    start = given["storage_offset"] or 0
    extent = start + 1 + sum((count - 1) * step for count, step in zip(size, stride, strict=True))
    fits = values.is_contiguous() and not values.storage_offset() and min([start, *stride], default=0) >= 0
    if (fits and extent > values.numel() and 0 not in size) or (not fits and torch.compiler.is_compiling()):
        _refuse(op, f"the sizes {size} and strides {stride} from {start} on leave a tensor of {values.numel()}")
    return op(*args, **kwargs)


def checked_unpool(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Put values back to places that there are."""
    given = _named(op, args, kwargs)
    places, most = given["indices"], math.prod(given["output_size"])
    if places.numel() and not (int(places.min()) >= 0 and int(places.max()) < most <= _MOST_ELEMENTS):
        _refuse(op, f"its indices leave the {most} places of its output")
    return op(*args, **kwargs)


def checked_index(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Index with the check that ``_unsafe_index`` leaves to compiled code."""
    del op
    return torch.ops.aten.index.Tensor(*args, **kwargs)


def checked_reshape(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Reshape with the check that ``_unsafe_view`` leaves to compiled code."""
    del op
    return torch.ops.aten.reshape.default(*args, **kwargs)


def checked_assertion(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Raise where a condition does not hold; on a GPU the operator itself would end the process's use of it."""
    given = _named(op, args, kwargs)
    if not bool(given["self"]):
        raise ValueError(f"the program's own condition does not hold: {given.get('assert_msg', '')}")


def checked_product(op: Any, *args: Any) -> Any:
    """Multiply sizes, or raise one to a small power: whole numbers of any length would take any time."""
    first, second = args
    if isinstance(first, int) and isinstance(second, int):
        bits = first.bit_length() * (second if op.__name__ == "pow" else 1) + second.bit_length()
        if bits > _MOST_BITS or (op.__name__ == "pow" and not 0 <= second <= _MOST_POWER):
            _refuse(op.__name__, f"its result would be larger than a size, of {first} and {second}")
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
"""Types of an operator's arguments whose numbers torch believes."""
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
"""Operator -> what is called in its place, with the operator as the first argument."""


def with_checks(network: fx.GraphModule) -> fx.GraphModule:
    """Have the calls of a program's graphs go through the checks; returns the same program."""
    for graph_module in network.modules():
        if not isinstance(graph_module, fx.GraphModule):
            continue
        for node in graph_module.graph.nodes:
            if isinstance(node.target, torch._ops.OpOverload):  # noqa: SLF001 - torch has no public name of it
                _check_call(node)
            check = CHECKED.get(_name_of(node.target)) if node.op == "call_function" else None
            if check is not None:
                node.args = (node.target, *node.args)
                node.target = check
        graph_module.recompile()
    return network


def _check_call(node: fx.Node) -> None:
    """Raise ValueError where a call has a number in place of a dtype or the like, or is one of plain numbers."""
    schema = cast("Any", node.target)._schema  # noqa: SLF001 - as in `_named`
    if "Tensor" not in str(schema) and schema.name.removeprefix("aten::") not in _OF_SIZES:
        _refuse(node.target, "it takes and gives plain numbers")
    given = {argument.name: value for argument, value in zip(schema.arguments, node.args, strict=False)}
    for argument in schema.arguments:
        value = {**given, **node.kwargs}.get(argument.name)
        kinds = [kind for name, kind in _KINDS.items() if name in str(argument.real_type)]
        if value is not None and kinds and not isinstance(value, kinds[0]):
            _refuse(node.target, f"{argument.name} is {value!r:.80}, no {kinds[0].__name__}")


def _name_of(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):  # noqa: SLF001 - torch has no public name of it
        return target._schema.name.replace("::", ".")  # noqa: SLF001 - as above
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__name__', '')}"
