"""What is known of a raster beside its pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np

from vllm_mmout.outputs.arrays import as_numpy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from vllm_mmout.raster.georeference import Georeference
    from vllm_mmout.raster.writing.tags import Told


class Known(TypedDict, total=False):
    """What is known of a raster beside its pixels, as `vllm_mmout.outputs.RasterOutput` takes it."""

    nodata: float | None
    georeference: Georeference | None
    band_names: Sequence[str | None]
    units: Sequence[str | None]
    class_names: Sequence[str] | None
    palette: NDArray[np.uint8] | None
    metadata: Mapping[str, str] | None


def are_classes(dtype: np.dtype[Any], **known: Unpack[Known]) -> bool:
    """Whether numbers name classes, which have no mean: integers that have names or colours, and bool."""
    named = known.get("class_names") is not None or known.get("palette") is not None
    return dtype == np.bool_ or (dtype.kind in "iu" and named)


def geotiff_options(count: int, dtype: np.dtype[Any], **known: Unpack[Known]) -> Told:
    """The same for `write_geotiff` and `GeoTiffBlocks.finish`, of a raster of so many bands of a dtype."""
    palette = known.get("palette")
    coloured = palette is not None and count == 1 and dtype in (np.uint8, np.bool_)
    return {
        "georeference": known.get("georeference"),
        "nodata": known.get("nodata"),
        "descriptions": known.get("band_names", ()),
        "units": known.get("units", ()),
        "categories": known.get("class_names"),
        "colormap": as_numpy(palette)[:256] if coloured else None,
        "metadata": known.get("metadata"),
        "classes": are_classes(dtype, **known) or None,  # what was bool is still known where the file is made
    }
