"""Helpers for the raw output of models, which select the tensor for a processor and convert it to numpy."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from vllm_mmout.errors import DecodeError, MMOutError, OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from vllm_mmout.outputs import RasterOutput
    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.base import OutputProcessor, Raw
    from vllm_mmout.processors.raster_tiles import RasterTiles


def only_tensor(raw: Raw, takes: str, error: type[MMOutError]) -> torch.Tensor:
    """Return the tensor of a raw output that is one tensor or a dict of one tensor; otherwise raise ``error``."""
    if not isinstance(raw, dict):
        return raw
    if len(raw) != 1:
        names = ", ".join(sorted(raw)) or "nothing"
        raise error(f"{takes}, got a dict of {len(raw)} tensors ({names}); return only one of them from the model")
    return next(iter(raw.values()))


def named(raw: Raw) -> dict[str, torch.Tensor]:
    """Return the tensors of a raw output by name; a plain tensor gets the name ""."""
    return raw if isinstance(raw, dict) else {"": raw}


def each(call: Callable[..., torch.Tensor], *alike: Raw) -> Raw:
    """Call a function with one tensor of each raw output. If the outputs are dicts, call it for each of their names."""
    first = alike[0]
    if isinstance(first, dict):
        return {name: call(*(named(raw)[name] for raw in alike)) for name in first}
    return call(*alike)


def checked_group(raw: object, count: int, giver: str, error: type[MMOutError]) -> Raw:
    """Check that a raw output for ``count`` requests is a tensor, or a dict of tensors, with the requests on axis 0."""
    import torch

    tensors = named(cast("Raw", raw))
    if not tensors or not all(isinstance(name, str) for name in tensors):
        raise error(f"{giver} must return a dict of at least one tensor by name (str), got names {list(tensors)}")
    for tensor in tensors.values():
        if not isinstance(tensor, torch.Tensor):
            raise error(f"{giver} must return a tensor or a dict of tensors, got {type(tensor).__name__}")
        if tensor.dim() == 0 or tensor.shape[0] != count:
            raise error(
                f"{giver} must keep the requests on axis 0: got shape {list(tensor.shape)} for {count} requests"
            )
        if tensor.layout != torch.strided:
            raise error(f"{giver} must return strided tensors, got layout {tensor.layout}; use to_dense()")
    return cast("Raw", raw)


def describe(tensor: torch.Tensor) -> str:
    """Return the dtype and shape of a tensor for a message: ``float32 [4, 2, 512, 512]``."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def own_array(tensor: torch.Tensor) -> np.ndarray[Any, np.dtype[Any]]:
    """Return a writable numpy copy of a tensor on the CPU; bfloat16, which numpy lacks, becomes float32.

    A raw tensor is a read-only view of the received message, and would keep the whole message in memory.
    """
    import torch

    if tensor.dtype == torch.bfloat16:
        return np.array(tensor.detach().to(torch.float32).numpy())
    return np.array(tensor.detach().numpy())


def not_of_reduce(what: str, tensor: torch.Tensor | None = None) -> DecodeError:
    """Return the error for a raw output that the processor's own ``reduce`` would not return."""
    got = "" if tensor is None else f", got {describe(tensor)}"
    return DecodeError(f"{what}{got}; a subclass that overrides reduce must override decode as well")


def asked_output(processor: OutputProcessor, name: str, params: OutputParams) -> str:
    """Return the requested output, by default the first of ``processor.outputs``, or "" if there are none."""
    output = (*processor.outputs, "")[0] if params.output is None else params.output
    if params.output is not None and output not in processor.outputs:
        raise OptionError(f"output {output!r} is not known to {name} (known: {', '.join(processor.outputs)})")
    return output


def has_method(instance: object, method: Any) -> bool:
    """Return whether an object has a method of its class unchanged, neither overridden nor replaced."""
    return getattr(getattr(instance, method.__name__), "__func__", None) is method


def decoded_tiles(processor: OutputProcessor, raw: Raw, params: OutputParams) -> RasterTiles:
    """Decode a block of tiles whose pixels are the values of one tensor. All get the metadata of the first tile.

    ``raw`` is the return value of ``reduce`` with the tiles on axis 0. The processor decodes the first tile, and so
    checks dtype and shape.
    """
    from vllm_mmout.processors.raster_tiles import RasterTiles

    like: RasterOutput = processor.decode(each(itemgetter(0), raw), params)
    (tensor,) = named(raw).values()
    array = own_array(tensor)
    return RasterTiles(array.reshape(len(array), *like.array.shape), like)
