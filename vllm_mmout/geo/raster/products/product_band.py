"""Class `ProductBand`, and helpers that read the metadata files of satellite products."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.files import REMEDY, SharedFile
from vllm_mmout.geo.raster.packing import Packing


@dataclass(frozen=True, slots=True)
class ProductBand:
    """Fill value, scale and offset of one band of a satellite product."""

    fill: float | None
    """Value that marks pixels without data, or None if the product's metadata does not define it."""
    packing: Packing | None = None
    """Scale and offset, or None if the product's metadata does not state them."""


def opened_metadata(path: Path) -> SharedFile | None:
    """Open the metadata file of a satellite product, or return None if it is missing."""
    try:
        if not path.is_file():
            return None
        return SharedFile(cast("BinaryIO", path.open("rb")), str(path), owned=True)
    except OSError as error:
        raise InputError(f"cannot open {path}, which states the scale and offset of its product: {error}") from error


def wrong_metadata(path: str, fact: str) -> InputError:
    """Return the error for invalid metadata of a satellite product. ``fact`` describes the fault of the file."""
    return InputError(f"{path}, which states the scale and offset of its product, {fact}; {REMEDY}")
