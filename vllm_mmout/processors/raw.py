"""What processors share in handling raw output: picking the one tensor they take, and turning it into numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from vllm_mmout.errors import DecodeError, MMOutError, OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.base import OutputProcessor, Raw


def only_tensor(raw: Raw, takes: str, error: type[MMOutError]) -> torch.Tensor:
    """The tensor of a raw output that must be one tensor, or a dict that holds nothing else."""
    if not isinstance(raw, dict):
        return raw
    if len(raw) != 1:
        names = ", ".join(sorted(raw)) or "nothing"
        raise error(f"{takes}, got a dict of {len(raw)} tensors ({names}); return the one that is meant from the model")
    return next(iter(raw.values()))


def named(raw: Raw) -> dict[str, torch.Tensor]:
    """The tensors of a raw output by their names; one that is no dict has the name ""."""
    return raw if isinstance(raw, dict) else {"": raw}


def each(call: Callable[..., torch.Tensor], *alike: Raw) -> Raw:
    """What a function gives for the tensor of raw outputs that are alike; of dicts for those of each name."""
    first = alike[0]
    if isinstance(first, dict):
        return {name: call(*(named(raw)[name] for raw in alike)) for name in first}
    return call(*alike)


def checked_group(raw: object, count: int, giver: str, error: type[MMOutError]) -> Raw:
    """Check what a group of requests was given: a tensor, or a dict of tensors by name, the requests on axis 0."""
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
    """Dtype and shape of a tensor for a message: ``float32 [4, 2, 512, 512]``."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def own_array(tensor: torch.Tensor) -> np.ndarray[Any, np.dtype[Any]]:
    """A numpy copy of a tensor on the CPU that its owner may write to; bfloat16, which numpy lacks, becomes float32.

    A raw tensor is a read-only view of the received frame, and would keep the whole frame alive.
    """
    import torch

    if tensor.dtype == torch.bfloat16:
        return np.array(tensor.detach().to(torch.float32).numpy())
    return np.array(tensor.detach().numpy())


def not_of_reduce(what: str, tensor: torch.Tensor | None = None) -> DecodeError:
    """The error of a raw output that ``reduce`` of the same processor does not return."""
    got = "" if tensor is None else f", got {describe(tensor)}"
    return DecodeError(f"{what}{got}; a subclass that overrides reduce must override decode as well")


def asked_output(processor: OutputProcessor, name: str, params: OutputParams) -> str:
    """What a request asks for, the first of the processor's ``outputs`` if it does not say; "" of one without."""
    asked = (*processor.outputs, "")[0] if params.output is None else params.output
    if params.output is not None and asked not in processor.outputs:
        raise OptionError(f"output {asked!r} is not known to {name} (known: {', '.join(processor.outputs)})")
    return asked
