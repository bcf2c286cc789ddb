"""ProductBand: what a product says of one of its bands."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.files import REMEDY, SharedFile
from vllm_mmout.geo.raster.packing import Packing


@dataclass(frozen=True, slots=True)
class ProductBand:
    """What a product says of the numbers of one band."""

    fill: float | None
    """The number that stands where nothing was observed; None if there is none."""
    packing: Packing | None = None
    """None if the product's metadata do not say it."""


def opened_metadata(path: Path) -> SharedFile | None:
    """Return a product's file of metadata, opened; None if it is missing."""
    try:
        if not path.is_file():
            return None
        return SharedFile(cast("BinaryIO", path.open("rb")), str(path), owned=True)
    except OSError as error:
        raise InputError(f"cannot open {path}, which says what the numbers of its product mean: {error}") from error


def wrong_metadata(path: str, fact: str) -> InputError:
    """Return the error of metadata that cannot be read."""
    return InputError(f"{path}, which says what the numbers of its product mean, {fact}; {REMEDY}")
