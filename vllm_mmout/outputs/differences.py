"""Compare the properties of two rasters, and find the first difference."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from vllm_mmout.outputs.raster import RasterOutput


def difference(first: RasterOutput, other: RasterOutput, *, but: Collection[str] = ()) -> tuple[str, str, str] | None:
    """Find a property, such as nodata, that differs between two rasters. Return the property's name and both values.

    Pixels, size, georeference, metadata and the properties named in ``but`` are not compared. The values are text.
    Return None if all properties are equal.
    """
    mine, others = _traits(first), _traits(other)
    for name, trait in mine.items():
        if name not in but and trait is not others[name] and not _equal(trait, others[name]):
            return name, _said(trait), _said(others[name])
    return None


def _traits(output: RasterOutput) -> dict[str, Any]:
    described = {  # an attribute may have been set to a list, which the constructor would turn into a tuple
        name: tuple(value) if isinstance(value, list) else value
        for name, value in output.described.items()
        if name not in ("georeference", "metadata")
    }
    return {"bands": output.count, "dtype": output.dtype, **described}


def _equal(value: Any, other: Any) -> bool:
    if value is None or other is None:
        return False
    if isinstance(value, np.ndarray):
        return bool(np.array_equal(value, other))
    return bool(value == other) or (value != value and other != other)  # noqa: PLR0124 - only NaN differs from itself


def _said(trait: Any) -> str:
    return f"{len(trait)} colours" if isinstance(trait, np.ndarray) else f"{trait}"
