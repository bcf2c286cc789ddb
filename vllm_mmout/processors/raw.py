"""Select tensors from the raw output of a model, check them, and convert them to NumPy."""

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
    """Return ``raw``, or the only tensor of a dict. Raise ``error`` if a dict does not have exactly one tensor.

    The message begins with ``takes``, a description of the accepted values.
    """
    if not isinstance(raw, dict):
        return raw
    if len(raw) != 1:
        names = ", ".join(sorted(raw)) or "nothing"
        raise error(f"{takes}, got a dict of {len(raw)} tensors ({names}); return only one of them from the model")
    return next(iter(raw.values()))


def named(raw: Raw) -> dict[str, torch.Tensor]:
    """Return a raw output as a dict of tensors by name. If it is a single tensor, its name is ""."""
    return raw if isinstance(raw, dict) else {"": raw}


def each(call: Callable[..., torch.Tensor], *alike: Raw) -> Raw:
    """Apply ``call`` to several tensors. If dicts of tensors are passed, apply ``call`` once per key of the dicts.

    The dicts must have the same keys. Return a tensor, or a dict of tensors by key.
    """
    first = alike[0]
    if isinstance(first, dict):
        return {name: call(*(named(raw)[name] for raw in alike)) for name in first}
    return call(*alike)


def queue_copy(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Start copying a small CPU tensor to a device. Do not wait for the work that is queued on the device.

    A copy from memory that is not pinned, such as by ``torch.tensor(..., device="cuda")``, would wait.
    """
    import torch

    if device.type == "cpu":
        return tensor
    return (tensor.pin_memory() if torch.accelerator.is_available() else tensor).to(device, non_blocking=True)


def checked_group(raw: object, count: int, giver: str, error: type[MMOutError]) -> Raw:
    """Raise ``error`` unless ``raw`` is a tensor or dict of tensors with length ``count`` on axis 0.

    Return ``raw``. Messages call the function that returned it ``giver``.
    """
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
    """Return the dtype and shape of a tensor as text for messages, such as ``float32 [4, 2, 512, 512]``."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def own_array(tensor: torch.Tensor) -> np.ndarray[Any, np.dtype[Any]]:
    """Return a writable NumPy copy of a CPU tensor. bfloat16, which NumPy lacks, becomes float32.

    A raw tensor is a read-only view of the received message, and would keep the whole message in memory.
    """
    import torch

    if tensor.dtype == torch.bfloat16:
        return np.array(tensor.detach().to(torch.float32).numpy())
    return np.array(tensor.detach().numpy())


def not_of_reduce(what: str, tensor: torch.Tensor | None = None) -> DecodeError:
    """Return a DecodeError for a result of ``reduce`` that ``decode`` cannot use.

    The cause is a subclass that overrides ``reduce`` but not ``decode``. ``what`` describes the result that ``decode``
    expects. ``tensor`` is the actual result.
    """
    got = "" if tensor is None else f", got {describe(tensor)}"
    return DecodeError(f"{what}{got}; a subclass that overrides reduce must override decode as well")


def asked_output(processor: OutputProcessor, name: str, params: OutputParams) -> str:
    """Return which of a processor's kinds of output a request selects. The default is the first kind.

    Return "" if the processor lists no kinds. Raise OptionError if the processor does not have the selected kind.
    """
    asked = params.output if isinstance(params.output, str) else None  # several kinds are made of the first
    output = (*processor.outputs, "")[0] if asked is None else asked
    if asked is not None and output not in processor.outputs:
        raise OptionError(f"output {output!r} is not known to {name} (known: {', '.join(processor.outputs)})")
    return output


def has_method(instance: object, method: Any) -> bool:
    """Return whether ``instance`` uses ``method``, a method of its base class, rather than a subclass's override."""
    return getattr(getattr(instance, method.__name__), "__func__", None) is method


def decoded_tiles(processor: OutputProcessor, raw: Raw, params: OutputParams) -> RasterTiles:
    """Decode several raster tiles at once. All tiles get the metadata of the first tile.

    ``raw`` is the return value of ``reduce`` with the tiles on axis 0. The processor decodes the first tile, and so
    checks dtype and shape.
    """
    from vllm_mmout.processors.raster_tiles import RasterTiles

    like: RasterOutput = processor.decode(each(itemgetter(0), raw), params)
    (tensor,) = named(raw).values()
    array = own_array(tensor)
    return RasterTiles(array.reshape(len(array), *like.array.shape), like)
