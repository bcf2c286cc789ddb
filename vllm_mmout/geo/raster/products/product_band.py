"""The class `ProductBand`, and reading of product metadata files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.files import REMEDY, SharedFile
from vllm_mmout.geo.raster.packing import Packing


@dataclass(frozen=True, slots=True)
class ProductBand:
    """The fill value and packing of one band of a satellite product."""

    fill: float | None
    """Value of pixels without an observation, or None if the product does not define it."""
    packing: Packing | None = None
    """Scale and offset, or None if the product's metadata does not state them."""


def opened_metadata(path: Path) -> SharedFile | None:
    """Open a product's metadata file, or return None if it is missing."""
    try:
        if not path.is_file():
            return None
        return SharedFile(cast("BinaryIO", path.open("rb")), str(path), owned=True)
    except OSError as error:
        raise InputError(f"cannot open {path}, which states the scale and offset of its product: {error}") from error


def wrong_metadata(path: str, fact: str) -> InputError:
    """Return the error for a product's metadata file that is invalid for the reason ``fact``."""
    return InputError(f"{path}, which states the scale and offset of its product, {fact}; {REMEDY}")
