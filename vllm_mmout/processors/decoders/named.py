"""NamedDecoder: a class with ``from_pretrained(folder)`` and ``decode(codes)``, named by its path."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from vllm_mmout.errors import ModelError, OptionError
from vllm_mmout.processors.decoders.folder import read_table
from vllm_mmout.processors.decoders.handed import HandedDecoder
from vllm_mmout.processors.decoders.placing import moved, torch_dtype

_RATES = ("sampling_rate", "sample_rate")


class NamedDecoder(HandedDecoder):
    """A decoder of a class that an installed package has; it is called as a `HandedDecoder` is.

    Args:
        path: "package.module:Class".
        folder: what ``from_pretrained`` is given; the ``sampling_rate`` in its config.json, if there is one, counts.

    Raises:
        OptionError: ``path`` is no such path, the class lacks a method, or there is no such folder.
        RegistrationError: the class cannot be imported.

    """

    kind: ClassVar[str] = "named"

    def __init__(self, path: str, folder: Path) -> None:
        from vllm_mmout.registry.importing import import_path, is_path

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
        self._folder = folder
        self._path = path

    def load(self, device: str | None, dtype: str | None) -> None:
        """Load the weights with ``from_pretrained``.

        Raises:
            ModelError: it raised.
            OptionError: the device is not there.

        """
        import torch

        try:
            self._module = self._class.from_pretrained(str(self._folder))
        except Exception as error:  # an author's code: whatever it raises says that there is no decoder
            raise ModelError(
                f"decoder class {self._path} cannot load {self._folder}: {type(error).__name__}: {error}"
            ) from error
        if isinstance(self._module, torch.nn.Module):
            self._module = moved(self._module.to(torch_dtype(dtype)), device)
