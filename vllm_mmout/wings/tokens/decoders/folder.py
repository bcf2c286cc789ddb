"""DecoderFolder: a decoder on disk, as ``save_pretrained`` leaves it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_mmout.errors import OptionError

_WEIGHTS = ("*.safetensors", "*.bin")


@dataclass(frozen=True)
class DecoderFolder:
    """A folder with a decoder's config.json and weights."""

    path: Path
    """Where it lies."""
    config: Mapping[str, Any]
    """Its config.json."""

    @property
    def model_type(self) -> str | None:
        """What config.json says it is, None if it does not."""
        kind = self.config.get("model_type")
        return kind if isinstance(kind, str) else None

    def check_weights(self) -> None:
        """Refuse a folder without a file of weights; none is read."""
        if not any(path for pattern in _WEIGHTS for path in self.path.glob(pattern)):
            raise OptionError(
                f"decoder folder {self.path} has no weights ({' or '.join(_WEIGHTS)}); save them there with"
                " save_pretrained, or download the whole decoder",
                param="decoder",
            )


def located(decoder: str | os.PathLike[str], model: object) -> Path:
    """Where a decoder lies: a relative folder is looked for in the model's (``_name_or_path`` of its config)."""
    path = Path(decoder).expanduser()
    beside = isinstance(model, str) and model and Path(model).is_dir() and not path.is_absolute()
    return Path(str(model)) / path if beside else path


def open_folder(path: Path) -> DecoderFolder:
    """Read a decoder's config.json."""
    if not path.is_dir():
        raise OptionError(
            f"decoder folder {path.absolute()} does not exist; decoders are never downloaded: fetch it first (hf"
            " download NAME --local-dir FOLDER), or correct the option",
            param="decoder",
        )
    if not (path / "config.json").is_file():
        raise OptionError(
            f"decoder folder {path} has no config.json; save the decoder there with save_pretrained, or name its class"
            ' with decoder_class="package.module:Class"',
            param="decoder",
        )
    return DecoderFolder(path, read_table(path / "config.json"))


def read_table(path: Path) -> Mapping[str, Any]:
    """The table of a JSON file."""
    try:
        table = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise OptionError(f"{path} cannot be read: {error}; download it again", param="decoder") from error
    if not isinstance(table, dict):
        raise OptionError(f"{path} must hold a table, got {type(table).__name__}; download it again", param="decoder")
    return table
