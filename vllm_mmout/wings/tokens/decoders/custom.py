"""Wrap decoders of users: objects with ``decode(codes)``, and classes named by their import path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from vllm_mmout.errors import DecodeError, ModelError, OptionError, type_and_message
from vllm_mmout.wings.tokens.decoders.base import TokenDecoder, read_table

if TYPE_CHECKING:
    import torch


class CustomDecoder(TokenDecoder):
    """Decoder that calls the method ``decode(codes)`` of a user's object.

    An object that decodes sounds may have an attribute ``sampling_rate``, in Hz.

    ``decode`` gets int64 codes: [n, rows, columns] for pictures, or [n, codebooks, rows, columns] with several
    codebooks; [n, codebooks, frames] for sounds, or a list of [n, codes] if the codebooks have different rates. It
    returns a tensor, or a mapping or tuple whose first entry is a tensor.
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
        """Decode codes of several pictures or sounds of the same shape by calling the user's method ``decode``."""
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
    """Stack the codes of all codebooks in one tensor. Return a list of tensors if the codebooks' shapes differ."""
    import torch

    if codes[0].ndim == 3 and len(codes) == 1:
        return codes[0]
    if len({ids.shape for ids in codes}) == 1:
        return torch.stack(tuple(codes), dim=1)
    return list(codes)


_RATES = ("sampling_rate", "sample_rate")


class CustomClassDecoder(CustomDecoder):
    """Decoder that calls a user's installed class, which is named as "package.module:Class".

    ``sampling_rate`` (or ``sample_rate``) is read from the folder's config.json if that file exists.
    """

    kind: ClassVar[str] = "named"

    def __init__(self, path: str, folder: Path) -> None:
        from vllm_mmout.importing import import_path, is_path

        if not isinstance(path, str) or not is_path(path):
            raise OptionError(f'decoder_class must be "package.module:Class", got {path!r}', param="decoder_class")
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
        """Load the user's class from a folder with ``from_pretrained``."""
        import torch

        try:
            model = self._class.from_pretrained(str(folder))
        except Exception as error:  # user code may raise any error
            raise ModelError(f"decoder class {self._path} cannot load {folder}: {type_and_message(error)}") from error
        return model.to(dtype) if isinstance(model, torch.nn.Module) else model
