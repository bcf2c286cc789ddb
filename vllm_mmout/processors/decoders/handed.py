"""HandedDecoder: any object with ``decode(codes)``, handed in from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from vllm_mmout.errors import DecodeError, OptionError
from vllm_mmout.processors.decoders.base import TokenDecoder
from vllm_mmout.processors.decoders.placing import device_of, handed_in

if TYPE_CHECKING:
    import torch


class HandedDecoder(TokenDecoder):
    """A decoder of which nothing is known but how it is called.

    ``decode`` is given int64 [n, rows, columns] of a picture (with several codebooks [n, codebooks, rows, columns]),
    [n, codebooks, frames] of a sound, or a list of [n, codes] where the codebooks have different rates; it returns a
    tensor, or a mapping or tuple whose first entry is one.

    Args:
        module: has ``decode(codes)``, and ``sampling_rate`` if it makes sounds; one of torch is put into evaluation.

    Raises:
        OptionError: it has no ``decode``.

    """

    kind: ClassVar[str] = "own"

    def __init__(self, module: Any) -> None:
        if not callable(getattr(module, "decode", None)):
            raise OptionError(
                f"a decoder must be a folder, or an object with decode(codes), got {module!r}", param="decoder"
            )
        self._module = module
        rate = getattr(module, "sampling_rate", None)
        self.sampling_rate = rate if isinstance(rate, int) else None

    @property
    def device(self) -> torch.device:
        """Where the codes must lie."""
        return device_of(self._module)

    def load(self, device: str | None, dtype: str | None) -> None:
        """Put a module of torch into evaluation, and move it where an option says so.

        Raises:
            OptionError: the device is not there.

        """
        import torch

        if isinstance(self._module, torch.nn.Module):
            self._module = handed_in(self._module, device, dtype)

    def decode(self, codes: Sequence[torch.Tensor]) -> torch.Tensor:
        """Decode codes of several media of one shape, as `TokenDecoder.decode`.

        Raises:
            DecodeError: the module returned something without a tensor.

        """
        import torch

        result = self._module.decode(_shaped(codes))
        first = next(iter(result.values()), None) if isinstance(result, Mapping) else result
        first = next(iter(first), None) if isinstance(first, tuple | list) else first
        if not isinstance(first, torch.Tensor):
            raise DecodeError(
                f"decode(codes) of {type(self._module).__name__} must return a tensor, or a mapping or tuple that"
                f" begins with one, got {type(result).__name__}"
            )
        return first


def _shaped(codes: Sequence[torch.Tensor]) -> Any:
    """Codes as one tensor where all codebooks have one rate."""
    import torch

    if codes[0].ndim == 3 and len(codes) == 1:
        return codes[0]
    if len({ids.shape for ids in codes}) == 1:
        return torch.stack(tuple(codes), dim=1)
    return list(codes)
