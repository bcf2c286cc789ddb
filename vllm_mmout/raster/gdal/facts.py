"""What GDAL says of a dataset before any pixel is read, in the words that rasters have here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from vllm_mmout.raster.gdal.systems import crs_text
from vllm_mmout.raster.gdal_metadata import parse_nodata
from vllm_mmout.raster.georeference import Georeference
from vllm_mmout.raster.geotag import RPC_COEFFICIENTS, GeoTag
from vllm_mmout.raster.placement import GroundControlPoint
from vllm_mmout.raster.windowed import Facts

_NO_METADATA = frozenset({"AREA_OR_POINT", "TIFFTAG_XRESOLUTION", "TIFFTAG_YRESOLUTION", "TIFFTAG_RESOLUTIONUNIT"})
"""Items that GDAL makes of what is no metadata: pixels as points, and dots per inch."""
_IDENTITY = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
"""What rasterio gives where there is no transform."""
_RPC_NUMBERS = ("line_off", "samp_off", "lat_off", "long_off", "height_off")
_RPC_SCALES = ("line_scale", "samp_scale", "lat_scale", "long_scale", "height_scale")
_RPC_POLYNOMIALS = ("line_num_coeff", "line_den_coeff", "samp_num_coeff", "samp_den_coeff")


@dataclass(frozen=True, slots=True)
class GdalFacts:
    """What is known of a dataset of GDAL's."""

    facts: Facts
    validity: Literal["values", "alpha", "dataset", "bands"]
    """Whether values alone say what is valid, or an alpha band, a mask of the dataset, or masks of the bands."""
    driver: str
    block: tuple[int, int]
    """Height and width of what GDAL decodes at once; the largest of all bands."""


def gdal_facts(dataset: Any, name: str) -> GdalFacts:
    """Read the facts of a dataset.

    Args:
        dataset: rasterio's ``DatasetReader``, of one band at least.
        name: what to call it in an error.

    """
    dtype = np.result_type(*(_dtype(text) for text in dataset.dtypes))
    alpha = next((band for band in dataset.indexes if dataset.colorinterp[band - 1].name == "alpha"), None)
    validity = _validity(dataset, alpha)
    nodata = dataset.nodatavals[0]
    facts = Facts(
        name=name,
        size=dataset.shape,
        dtype=dtype,
        descriptions=tuple(text or None for text in dataset.descriptions),
        nodata=None if nodata is None or validity == "bands" else parse_nodata(repr(nodata), dtype),
        georeference=_georeference(dataset),
        metadata={key: text for key, text in dataset.tags().items() if key not in _NO_METADATA},
        alpha=alpha,
    )
    heights, widths = zip(*dataset.block_shapes, strict=True)
    return GdalFacts(facts, validity, dataset.driver, (max(heights), max(widths)))


def _dtype(text: str) -> np.dtype[Any]:
    """Integers that are complex are read as floats that are: numpy has none."""
    return np.dtype("complex64" if text.startswith("complex_int") else text)


def _validity(dataset: Any, alpha: int | None) -> Literal["values", "alpha", "dataset", "bands"]:
    """Where it stands which pixels are valid (GDAL's RFC 15)."""
    data = [band for band in dataset.indexes if band != alpha]
    flags = [{flag.name for flag in dataset.mask_flag_enums[band - 1]} for band in data]
    if alpha is not None and not any("per_dataset" in said and "alpha" not in said for said in flags):
        return "alpha"
    if any("per_dataset" in said for said in flags):
        return "dataset"
    nodata = {repr(dataset.nodatavals[band - 1]) for band in data}
    if len(nodata) > 1 or not all(said & {"all_valid", "nodata"} for said in flags):
        return "bands"
    return "values"


def _georeference(dataset: Any) -> Georeference | None:
    transform = tuple(dataset.transform)[:6]
    points, points_crs = dataset.gcps
    rpcs = dataset.rpcs
    crs = crs_text(dataset.crs)
    placed = transform != _IDENTITY
    gcps = () if placed else tuple(GroundControlPoint(p.row, p.col, p.x, p.y, p.z or 0.0) for p in points)
    if crs is None and not (placed or gcps or rpcs):
        return None
    return Georeference(
        crs=None if gcps else crs,
        transform=transform if placed else None,
        gcps=gcps,
        gcps_crs=crs_text(points_crs) if gcps else None,
        pixel_is_point=dataset.tags().get("AREA_OR_POINT") == "Point",
        tags=() if rpcs is None else (_rpc_tag(rpcs),),
    )


def _rpc_tag(rpcs: Any) -> GeoTag:
    """The coefficients as a TIFF has them (GDAL's RFC 22); errors that are not known are -1."""
    numbers = [-1.0 if error is None else error for error in (rpcs.err_bias, rpcs.err_rand)]
    numbers += [getattr(rpcs, name) for name in (*_RPC_NUMBERS, *_RPC_SCALES)]
    for name in _RPC_POLYNOMIALS:
        numbers += getattr(rpcs, name)
    return GeoTag.doubles(RPC_COEFFICIENTS, numbers)
