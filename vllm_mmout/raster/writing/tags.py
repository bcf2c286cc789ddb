"""The tags of a GeoTIFF that say what its pixels mean; every writer takes them from here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np

from vllm_mmout.errors import SaveError
from vllm_mmout.raster.gdal_metadata import GDAL_METADATA, GDAL_NODATA, TEXT_TAGS, GdalMetadata, format_nodata
from vllm_mmout.raster.geotag import GeoTag

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from vllm_mmout.raster.georeference import Georeference


class Told(TypedDict, total=False):
    """What is said of a raster that becomes a GeoTIFF, as `write_geotiff` documents it."""

    georeference: Georeference | None
    nodata: float | None
    descriptions: Sequence[str | None]
    units: Sequence[str | None]
    categories: Sequence[str] | None
    colormap: NDArray[np.uint8] | None
    metadata: Mapping[str, str] | None
    datetime: dt.datetime | str | None
    classes: bool | None


def geotiff_tags(
    bands: int,
    dtype: np.dtype[Any],
    statistics: Sequence[Mapping[str, str]] = (),
    **told: Unpack[Told],
) -> list[GeoTag]:
    """The tags that say what a raster means; the colour table is no part of them.

    Args:
        bands: number of bands.
        dtype: of the pixels.
        statistics: items of each band, or none at all.
        told: what is known.

    Raises:
        SaveError: something said about the raster does not fit a GeoTIFF.
        InputError: the coordinate system of ``georeference`` cannot be written to a GeoTIFF.

    """
    georeference, nodata, datetime = told.get("georeference"), told.get("nodata"), told.get("datetime")
    items = {key: str(text) for key, text in (told.get("metadata") or {}).items() if key != "AREA_OR_POINT"}
    if datetime is not None:
        items["TIFFTAG_DATETIME"] = datetime if isinstance(datetime, str) else f"{datetime:%Y:%m:%d %H:%M:%S}"
    tags = [*(georeference.to_tags() if georeference is not None else ()), *_text_tags(items)]
    xml = _gdal_metadata(bands, items, statistics, told).to_xml()
    if xml is not None:
        tags.append(GeoTag.text(GDAL_METADATA, xml))
    if nodata is not None:
        tags.append(GeoTag.text(GDAL_NODATA, format_nodata(nodata, dtype)))
    return tags


def colour_table(bands: int, dtype: np.dtype[Any], colormap: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """The colour table as TIFF has it: uint16 [3, 256].

    Args:
        bands: number of bands.
        dtype: of the pixels.
        colormap: uint8 [n, 3], colour of each value from 0.

    Raises:
        SaveError: the raster, or the colours, are not such as a colour table is for.

    """
    colours = np.asarray(colormap)
    if bands != 1 or dtype != np.uint8:
        raise SaveError(f"a colour table takes one band of uint8, got {bands} of {dtype}; leave it out")
    if colours.dtype != np.uint8 or colours.ndim != 2 or colours.shape[1] != 3 or len(colours) > 256:
        raise SaveError(
            f"a colour table must be uint8 [n, 3] with n up to 256, got {colours.dtype} {list(colours.shape)}"
        )
    table = np.zeros((3, 256), np.uint16)
    table[:, : len(colours)] = colours.T.astype(np.uint16) * 257
    return table


def _text_tags(items: dict[str, str]) -> list[GeoTag]:
    """Take the items out that have a TIFF tag of their own, and give these tags."""
    tags = []
    for name, code in TEXT_TAGS.items():
        text = items.pop(name, None)
        if text:
            if "\0" in text:
                raise SaveError(f"metadata item {name!r} has a NUL, which ends a TIFF text; remove it")
            tags.append(GeoTag.text(code, text))
    return tags


def _gdal_metadata(
    bands: int, items: Mapping[str, str], statistics: Sequence[Mapping[str, str]], told: Told
) -> GdalMetadata:
    """The items of the file and of its bands."""
    descriptions, units = told.get("descriptions", ()), told.get("units", ())
    for name, texts in (("descriptions", descriptions), ("units", units)):
        if texts and len(texts) != bands:
            raise SaveError(f"{name} must be one a band, {bands}, got {len(texts)}")
    band_items = {band: dict(found) for band, found in enumerate(statistics) if found}
    classes = {f"CLASS_{number}": name for number, name in enumerate(told.get("categories") or ())}
    if classes:
        band_items[0] = {**classes, **band_items.get(0, {})}
    return GdalMetadata(
        items,
        {band: text for band, text in enumerate(descriptions) if text},
        dict(sorted(band_items.items())),
        {band: text for band, text in enumerate(units) if text},
    )
