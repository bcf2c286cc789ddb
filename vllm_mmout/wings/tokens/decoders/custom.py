"""Decoders of others: any object with ``decode(codes)``, and classes named by their path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from vllm_mmout.errors import DecodeError, ModelError, OptionError, type_and_message
from vllm_mmout.wings.tokens.decoders.base import TokenDecoder, read_table

if TYPE_CHECKING:
    import torch


class CustomDecoder(TokenDecoder):
    """A decoder of which nothing is known but how it is called; one that makes sounds may have a ``sampling_rate``.

    ``decode`` is given int64 [n, rows, columns] of a picture (with several codebooks [n, codebooks, rows, columns]),
    [n, codebooks, frames] of a sound, or a list of [n, codes] where the codebooks have different rates; it returns a
    tensor, or a mapping or tuple whose first entry is one.
    """

    kind: ClassVar[str] = "own"

    def __init__(self, module: Any) -> None:
        if not callable(getattr(module, "decode", None)):
            raise OptionError(
                f"a decoder must be a folder, or an object with decode(codes), got {module!r}", param="decoder"
            )
        self.model = module
        rate = getattr(module, "sampling_rate", None)
        self.sampling_rate = rate if isinstance(rate, int) else None

    def decode(self, codes: Sequence[torch.Tensor]) -> torch.Tensor:
        """Decode codes of several media of one shape, as `TokenDecoder.decode`."""
        import torch

        result = self.model.decode(_shaped(codes))
        first = next(iter(result.values()), None) if isinstance(result, Mapping) else result
        first = next(iter(first), None) if isinstance(first, tuple | list) else first
        if not isinstance(first, torch.Tensor):
            raise DecodeError(
                f"decode(codes) of {type(self.model).__name__} must return a tensor, or a mapping or tuple that"
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


_RATES = ("sampling_rate", "sample_rate")


class CustomClassDecoder(CustomDecoder):
    """A decoder of a class that an installed package has, "package.module:Class"; it is called as a `CustomDecoder` is.

    The ``sampling_rate`` in the folder's config.json, if there is one, counts.
    """

    kind: ClassVar[str] = "named"

    def __init__(self, path: str, folder: Path) -> None:
        from vllm_mmout.importing import import_path, is_path

        if not isinstance(path, str) or not is_path(path):
            raise OptionError(f'decoder_class must read "package.module:Class", got {path!r}', param="decoder_class")
        self._class: Any = import_path(path, "decoder class")
        for method in ("from_pretrained", "decode"):
            if not callable(getattr(self._class, method, None)):
                raise OptionError(
                    f"decoder class {path} has no {method}; it needs from_pretrained(folder) and decode(codes)",
                    param="decoder_class",
                )
        if not folder.is_dir():
            raise OptionError(f"decoder folder {folder.absolute()} does not exist; correct the option", param="decoder")
        config = read_table(folder / "config.json") if (folder / "config.json").is_file() else {}
        rates = [config[name] for name in _RATES if isinstance(config.get(name), int)]
        self.sampling_rate = rates[0] if rates else None
        self.folder = folder
        self._path = path

    def read(self, folder: Path, dtype: torch.dtype) -> Any:
        """Read the weights with ``from_pretrained``."""
        import torch

        try:
            model = self._class.from_pretrained(str(folder))
        except Exception as error:  # an author's code: whatever it raises says that there is no decoder
            raise ModelError(f"decoder class {self._path} cannot load {folder}: {type_and_message(error)}") from error
        return model.to(dtype) if isinstance(model, torch.nn.Module) else model
