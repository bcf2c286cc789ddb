"""Where a decoder runs, in which numbers and with how many threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vllm_mmout.errors import OptionError

if TYPE_CHECKING:
    import torch
    from torch import nn

DTYPES = ("float32", "float16", "bfloat16", "float64")
"""Names that the option ``dtype`` takes."""


def checked_dtype(dtype: object) -> str | None:
    """An option ``dtype``."""
    if dtype is not None and dtype not in DTYPES:
        raise OptionError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}", param="dtype")
    return None if dtype is None else str(dtype)


def checked_device(device: object) -> str | None:
    """An option ``device``; whether there is such a device shows when the decoder is loaded."""
    import torch

    if device is None:
        return None
    try:
        return str(torch.device(str(device)))
    except RuntimeError:
        raise OptionError(f'device must be "cpu", "cuda" or "cuda:0", got {device!r}', param="device") from None


def torch_dtype(dtype: str | None) -> torch.dtype:
    """The dtype of a name, float32 without one."""
    import torch

    found: torch.dtype = getattr(torch, dtype or "float32")
    return found


def moved(module: nn.Module, device: str | None, dtype: str | None) -> nn.Module:
    """A module for evaluation; moved, or of another dtype, only where something is said."""
    module = module if dtype is None else module.to(torch_dtype(dtype))
    try:
        return (module if device is None else module.to(device)).eval()
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        raise OptionError(
            f"the decoder cannot be moved to device {device!r}: {error}; choose another one", param="device"
        ) from error


def device_of(module: object) -> torch.device:
    """Where the weights of a module lie; the CPU for one without."""
    import torch

    for kind in ("parameters", "buffers"):
        found = next(iter(getattr(module, kind, list)()), None)
        if isinstance(found, torch.Tensor):
            return found.device
    return torch.device("cpu")


@contextmanager
def decoder_threads(count: int | None) -> Iterator[None]:
    """Have torch use so many threads for what this thread runs, and as many as before afterwards; None: as it is."""
    import torch

    before = torch.get_num_threads()
    if count is None or count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
