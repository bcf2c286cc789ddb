"""Read the metadata of a raster in a Zarr store: band names, times, nodata, scale, offset and georeference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.nodata import parse_nodata
from vllm_mmout.geo.raster.packing import Packing
from vllm_mmout.geo.raster.stack.stack import DATES
from vllm_mmout.geo.raster.zarr.array import ZarrArray, number_of
from vllm_mmout.geo.raster.zarr.place import place_of
from vllm_mmout.geo.raster.zarr.times import order_of, times_of

if TYPE_CHECKING:
    from datetime import date, datetime

    from vllm_mmout.geo.raster.georeference import Georeference
    from vllm_mmout.geo.raster.zarr.choice import Axes, Chosen
    from vllm_mmout.geo.raster.zarr.nodes import Node

_ITEMS: Final = 100
"""Maximum number of a Zarr store's attributes that become metadata items of the raster."""
_LONGEST: Final = 1000
"""Maximum length, in characters, of an attribute that becomes a metadata item. Longer attributes are left out."""
_MOST_PLANES: Final = 2**16 - 1
_NO_ITEMS: Final = frozenset({"grid_mapping", "coordinates", "long_name", "standard_name", "units", "_FillValue"})
_FILLS: Final = ("_FillValue", "missing_value")
"""CF attributes that hold the value of pixels without data."""


@dataclass(frozen=True, slots=True)
class ZarrFacts:
    """Metadata of a raster in a Zarr store. The raster consists of two-dimensional planes of one or more arrays."""

    planes: tuple[tuple[ZarrArray, tuple[int, ...]], ...]
    """Zarr array of each plane, and index of the plane in this array. A plane holds the pixels of one band at one time.
    Planes are sorted by time, then by band."""
    names: tuple[str | None, ...]
    """Name of each plane."""
    nodata: float | None
    georeference: Georeference | None
    packing: tuple[Packing, ...]
    """Scale and offset of each plane; empty if they leave all numbers unchanged."""
    metadata: Mapping[str, str]
    assumed: tuple[str, ...]
    days: tuple[date, ...]
    """Acquisition day (UTC) of each plane; empty if the arrays have a single time, or if their times are unknown."""

    def of_raster(self, dtype: np.dtype[Any]) -> dict[str, Any]:
        """Return the metadata as keyword arguments of `RasterFacts`. ``dtype`` is the dtype of the raster's pixels."""
        return {
            "descriptions": self.names,
            "nodata": None if self.nodata is None else parse_nodata(str(self.nodata), dtype),
            "georeference": self.georeference,
            "metadata": self.metadata,
            "packing": self.packing,
            "assumed": self.assumed,
            "days": self.days,
        }


def facts_of(chosen: Chosen) -> ZarrFacts:
    """Read the metadata of the chosen arrays. Raise InputError if they contradict each other."""
    first, axes = chosen.arrays[0]
    arrays = [(ZarrArray(node), own_axes) for node, own_axes in chosen.arrays]
    for array, _ in arrays:
        _check_pixels(array)
    time = None if axes.time is None else axes.names[axes.time]
    times = times_of(chosen.group, time or "time", axes.times)
    if axes.times * sum(own_axes.bands for _, own_axes in arrays) > _MOST_PLANES:
        raise InputError(
            f"{first.name} has the shape {list(axes.shape)}, of more than {_MOST_PLANES} bands; choose fewer"
        )
    all_names = [_band_names(chosen.group, array.node, own_axes) for array, own_axes in arrays]
    planes, names, packing, days = [], [], [], []
    for moment in order_of(times, axes.times, first.name):
        for (array, own_axes), own_names in zip(arrays, all_names, strict=True):
            for band in range(own_axes.bands):
                planes.append((array, own_axes.plane(moment, band)))
                names.append(own_names[band])
                packing.append(_packing(array, band, own_axes.bands))
                if times is not None and axes.times > 1:
                    days.append(times[moment].astimezone(UTC).date())
    places = [place_of(chosen.group, node, (own.names[-2], own.names[-1])) for node, own in chosen.arrays]
    _check_same(chosen, "the place", places)
    nodata = [_nodata(array) for array, _ in arrays]
    _check_same(chosen, "the fill value", [None if value is None else str(value) for value in nodata])
    return ZarrFacts(
        planes=tuple(planes),
        names=tuple(names),
        nodata=nodata[0],
        georeference=places[0],
        packing=tuple(packing) if any(each.told for each in packing) else (),
        metadata=_metadata(chosen, times),
        assumed=chosen.assumed,
        days=tuple(days),
    )


def _check_pixels(array: ZarrArray) -> None:
    if array.dtype.kind not in "biufc":
        raise InputError(f"{array.node.name} holds texts, not pixels; give the path of another array")
    if str(array.node.attributes.get("_Unsigned", "")).lower() == "true" and array.dtype.kind == "i":
        raise InputError(
            f"{array.node.name} stores unsigned integers as {array.dtype} (attribute _Unsigned); store them as unsigned"
        )


def _band_names(group: Node | None, node: Node, axes: Axes) -> Sequence[str | None]:
    """Return the name of each band of an array, or None for a band without a name.

    Names are the coordinates of the band axis, else the items of ``long_name``. If there is no band axis, the array is
    one band and gives it its name.
    """
    if axes.band is None:
        return [node.key or None]
    name = axes.names[axes.band]
    coordinate = None if group is None or name is None else group.child(name)
    if coordinate is not None and coordinate.is_array and coordinate.shape == (axes.bands,):
        array = ZarrArray(coordinate)
        if array.dtype.kind in "UO":
            return [str(text) or None for text in array.vector()]
    stated = node.attributes.get("long_name")
    if isinstance(stated, list) and len(stated) == axes.bands:
        return [text if isinstance(text, str) and text else None for text in stated]
    if axes.bands == 1 and isinstance(stated, str) and stated:
        return [stated]
    return [None] * axes.bands


def _nodata(array: ZarrArray) -> float | None:
    """Return the nodata value of an array, or None if it is not defined.

    It is the CF attribute ``_FillValue`` or ``missing_value``, or the Zarr fill value if xarray wrote the array in Zarr
    2. Any other Zarr fill value counts unless it is 0, which is the default of many writers.
    """
    node = array.node
    stated = {name: _number(array, name) for name in _FILLS if node.attributes.get(name) is not None}
    fill = node.stated.get("fill_value")
    by_xarray = node.version == 2 and "_ARRAY_DIMENSIONS" in node.attributes
    if fill is not None and (by_xarray or array.fill != 0):
        stated["fill_value"] = array.fill.item()
    values = list(stated.items())
    for name, value in values[1:]:
        if str(value) != str(values[0][1]) and value != values[0][1]:
            raise InputError(
                f"{node.name} states {values[0][0]} {values[0][1]} and {name} {value}; correct or remove one of them"
            )
    value = values[0][1] if values else None
    return (
        None
        if value is None or isinstance(value, complex)
        else float(value)
        if isinstance(value, float)
        else int(value)
    )


def _number(array: ZarrArray, name: str) -> Any:
    stated = array.node.attributes[name]
    value = number_of(stated, array.dtype)
    if value is None and isinstance(stated, float) and math.isnan(stated):
        value = stated  # pandas and xarray write NaN for integers that are unpacked
    if value is None:
        raise InputError(
            f"{array.node.name} states {name} {stated!r:.100}, which its {array.dtype} pixels cannot hold; correct it"
        )
    return value


def _packing(array: ZarrArray, band: int, bands: int) -> Packing:
    """Return the scale and offset of one band of an array.

    They are the CF attributes ``scale_factor`` and ``add_offset``, or items of the attributes ``scales`` and
    ``offsets``, which are lists with one item per band.
    """
    attributes = array.node.attributes
    lists: dict[str, Any] = {name: attributes.get(name) for name in ("scales", "offsets")}
    by_band = "scale_factor" not in attributes and all(
        isinstance(numbers, list) and len(numbers) == bands for numbers in lists.values()
    )
    stated = {"scale_factor": attributes.get("scale_factor", 1.0), "add_offset": attributes.get("add_offset", 0.0)}
    if by_band:
        stated = {name: numbers[band] for name, numbers in lists.items()}
    found = []
    for name, value in stated.items():
        number = number_of(value, np.dtype(np.float64))
        if number is None or not math.isfinite(number):
            raise InputError(f"{array.node.name} states {name} {value!r:.100}, which is not a number; correct it")
        found.append(float(number))
    return Packing(found[0], found[1], " and ".join(stated), applied=not by_band)


def _check_same(chosen: Chosen, what: str, values: Sequence[Any]) -> None:
    for (node, _), value in zip(chosen.arrays[1:], values[1:], strict=True):
        if value != values[0]:
            raise InputError(
                f"{chosen.arrays[0][0].name} and {node.name} differ in {what}: {values[0]} and {value}; give the path"
                " of one of them"
            )


def _metadata(chosen: Chosen, times: list[datetime] | None) -> dict[str, str]:
    """Return the metadata items of the raster: text attributes of the Zarr group, and the acquisition times.

    If the raster is a single array, the text attributes of the array are included.
    """
    attributes = {} if chosen.group is None else dict(chosen.group.attributes)
    if len(chosen.arrays) == 1:
        attributes |= chosen.arrays[0][0].attributes
    items = {
        name: value
        for name, value in attributes.items()
        if isinstance(value, str) and len(value) <= _LONGEST and ":" not in name and name not in _NO_ITEMS
    }
    items = dict(list(items.items())[:_ITEMS])
    if times is not None and len(times) == 1:
        items.setdefault("ACQUISITION_DATETIME", f"{times[0]:%Y-%m-%dT%H:%M:%SZ}")
    elif times is not None:
        items.setdefault(DATES, "\n".join(f"{time:%Y-%m-%dT%H:%M:%SZ}" for time in sorted(times)))
    return items
