"""Read the georeference of a Zarr array from the attributes that the GeoZarr and CF conventions define.

https://github.com/zarr-conventions/spatial and https://github.com/zarr-conventions/geo-proj define the attributes
``spatial:`` and ``proj:``. CF, chapter 5, defines coordinates and ``grid_mapping``; GDAL added ``GeoTransform``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.crs.text import rasterio_crs, same_system, shown_beside
from vllm_mmout.geo.raster.georeference import Georeference, crs_text
from vllm_mmout.geo.raster.zarr.array import ZarrArray

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vllm_mmout.geo.raster.ground_points import Affine
    from vllm_mmout.geo.raster.zarr.nodes import Node

SPATIAL_REF: Final = "spatial_ref"
"""Name of an array in Zarr stores from rioxarray or odc-geo. The attributes of this array hold the coordinate
system."""
_TOLERANCE: Final = 0.1
"""Largest accepted error of coordinates and transforms, in pixels. Coordinates must be evenly spaced, and transforms
must agree, up to this error."""
_SCALED: Final = frozenset(
    {"km", "kilometer", "kilometers", "kilometre", "kilometres", "cm", "mm", "rad", "radian", "radians", "microradian"}
)
"""Coordinate units that are refused, such as km, because coordinate systems do not use these units."""


def place_of(group: Node | None, array: Node, dims: tuple[str | None, str | None]) -> Georeference | None:
    """Return the georeference of an array, or None if the metadata does not define it.

    Args:
        group: the group of the array, or None if the store is an array.
        array: the array, whose last two axes are rows and columns.
        dims: names of these two axes.

    Raises:
        InputError: two statements contradict each other, or a statement is not understood.

    """
    stated = {**({} if group is None else _geo(group.attributes)), **_geo(array.attributes)}
    mapping = _grid_mapping(group, array)
    size = array.shape[-2], array.shape[-1]
    _check_shape(array, stated, size)
    crs = _agreed_crs(array, [*_systems(stated), *_systems_of_mapping(array, mapping)])
    transforms = [*_spatial(array, stated, size), *_geotransform(array, mapping), *_coordinates(group, size, dims)]
    transform = _agreed_transform(array, transforms, size)
    if crs is None and transform is None:
        return None
    return Georeference(crs=crs, transform=transform)


def _geo(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in attributes.items()
        if name.startswith(("proj:", "spatial:")) and value is not None
    }


def _grid_mapping(group: Node | None, array: Node) -> Mapping[str, Any]:
    """Return the attributes of the CF grid mapping, an array that describes the coordinate system.

    Return {} if the group has no such array.
    """
    name = array.attributes.get("grid_mapping", SPATIAL_REF)
    node = group.child(name) if group is not None and isinstance(name, str) and name.isidentifier() else None
    if node is None and "grid_mapping" in array.attributes:
        raise InputError(f"{array.name} states the grid mapping {name!r:.100}, and the store has no such array; add it")
    return {} if node is None else node.attributes


def _systems(stated: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in ("proj:code", "proj:wkt2", "proj:projjson"):
        if name in stated:
            yield name, stated[name] if isinstance(stated[name], str) else json.dumps(stated[name])


def _systems_of_mapping(array: Node, mapping: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    names = [name for name in ("crs_wkt", SPATIAL_REF) if isinstance(mapping.get(name), str)]
    if not names and "grid_mapping_name" in mapping:
        raise InputError(
            f"{array.name} has a grid mapping without crs_wkt, which is not understood; write it, for example with"
            " rioxarray's rio.write_crs"
        )
    for name in names:
        yield f"{name} of the grid mapping", mapping[name]


def _agreed_crs(array: Node, systems: list[tuple[str, str]]) -> str | None:
    """Return the coordinate system in a Zarr array's attributes. Raise InputError if the attributes disagree.

    ``systems`` holds the name and the value of each attribute with a coordinate system. Return None if it is empty.
    """
    texts: list[tuple[str, str | None]] = []
    for said_by, stated in systems:
        try:
            texts.append((said_by, crs_text(rasterio_crs(stated))))
        except InputError as error:
            raise InputError(f"{array.name}: {said_by}: {error}") from error
    for said_by, text in texts[1:]:
        first_by, first = texts[0]
        if not same_system(first, text):
            ours, theirs = shown_beside(first or "", text or ""), shown_beside(text or "", first or "")
            raise _contradiction(array, f"{first_by} states {ours}, {said_by} states {theirs}")
    return texts[0][1] if texts else None


def _check_shape(array: Node, stated: Mapping[str, Any], size: tuple[int, int]) -> None:
    shape = stated.get("spatial:shape")
    if shape is not None and shape != list(size):
        raise _contradiction(array, f"spatial:shape states {shape!r:.60}, and the array has {list(size)}")


def _spatial(array: Node, attributes: Mapping[str, Any], size: tuple[int, int]) -> Iterator[tuple[str, Affine]]:
    """Yield (attribute name, affine transform) for the attribute ``spatial:transform``, or else ``spatial:bbox``.

    Yield nothing if both attributes are missing.
    """
    if attributes.get("spatial:transform_type", "affine") != "affine":
        raise InputError(
            f"{array.name}: spatial:transform_type is {attributes['spatial:transform_type']!r:.60}, not affine"
        )
    node = attributes.get("spatial:registration", "pixel") == "node"
    if "spatial:transform" in attributes:
        a, b, c, d, e, f = _numbers(array, "spatial:transform", attributes["spatial:transform"], 6)
        shift = 0.5 if node else 0.0
        yield "spatial:transform", (a, b, c - shift * (a + b), d, e, f - shift * (d + e))
    elif "spatial:bbox" in attributes:
        left, bottom, right, top = _numbers(array, "spatial:bbox", attributes["spatial:bbox"], 4)
        rows, cols = (max(1, side - node) for side in size)
        a, e = (right - left) / cols, (bottom - top) / rows
        yield "spatial:bbox", (a, 0.0, left - a * node / 2, 0.0, e, top - e * node / 2)


def _geotransform(array: Node, mapping: Mapping[str, Any]) -> Iterator[tuple[str, Affine]]:
    stated = mapping.get("GeoTransform")
    if stated is not None:
        parts = stated.split() if isinstance(stated, str) else stated
        c, a, b, f, d, e = _numbers(array, "GeoTransform", parts, 6)
        yield "GeoTransform of the grid mapping", (a, b, c, d, e, f)


def _numbers(array: Node, name: str, value: Any, count: int) -> list[float]:
    try:
        numbers = [float(number) for number in value]
    except (TypeError, ValueError, OverflowError):
        numbers = []
    if len(numbers) != count or not all(map(math.isfinite, numbers)):
        raise InputError(f"{array.name}: {name} is {value!r:.100}, not {count} numbers; correct it")
    return numbers


def _coordinates(
    group: Node | None, size: tuple[int, int], dims: tuple[str | None, str | None]
) -> Iterator[tuple[str, Affine]]:
    """Compute the affine transform from the group's arrays of x and y coordinates. Yield (array names, transform).

    Yield nothing if an array is missing, has the wrong shape, or has fewer than two elements. The arrays hold the
    coordinates of pixel centres. The transform converts positions of pixel corners, so that (0, 0) is the outer corner
    of the first pixel.
    """
    nodes = [None if group is None or name is None else group.child(name) for name in dims]
    if None in nodes:
        return
    steps = []
    for node, count in zip(nodes, size, strict=True):
        if node is None or not node.is_array or node.shape != (count,) or count < 2:
            return
        steps.append(_step(node))
    (e, f), (a, c) = steps
    yield f"coordinates {dims[1]} and {dims[0]}", (a, 0.0, c, 0.0, e, f)


def _step(node: Node) -> tuple[float, float]:
    """Return the distance between adjacent coordinates of an axis, and the outer edge of its first pixel."""
    unit = str(node.attributes.get("units", ""))
    if unit in _SCALED:
        raise InputError(
            f"{node.name} has coordinates in {unit!r:.60}, not in the units of a coordinate system; convert them, and"
            " correct their attribute units"
        )
    array = ZarrArray(node)
    if array.dtype.kind not in "iuf":
        raise InputError(f"{node.name} has coordinates of {array.dtype}, not numbers; write them as float64")
    values: NDArray[np.float64] = array.vector().astype(np.float64)
    step = (values[-1] - values[0]) / (len(values) - 1)
    even = values[0] + step * np.arange(len(values))
    if not (step != 0 and np.abs(values - even).max() <= _TOLERANCE * abs(step)):
        raise InputError(
            f"{node.name} has coordinates that are not evenly spaced, so that the pixels lie on no grid; resample it to"
            " a regular grid"
        )
    return float(step), float(values[0] - step / 2)


def _agreed_transform(array: Node, transforms: list[tuple[str, Affine]], size: tuple[int, int]) -> Affine | None:
    """Return the affine transform in a Zarr array's attributes. Raise InputError if the attributes disagree.

    ``transforms`` holds the name of each attribute and its transform. Return None if it is empty.
    """
    for said_by, transform in transforms[1:]:
        first_by, first = transforms[0]
        if not _same_corners(first, transform, size):
            raise _contradiction(array, f"{first_by} states the transform {first}, {said_by} states {transform}")
    return transforms[0][1] if transforms else None


def _same_corners(one: Affine, other: Affine, size: tuple[int, int]) -> bool:
    a, b, c, d, e, f = (left - right for left, right in zip(one, other, strict=True))
    across, along = math.hypot(one[0], one[3]), math.hypot(one[1], one[4])
    limit = _TOLERANCE * max(across, along)
    corners = [(col, row) for col in (0, size[1]) for row in (0, size[0])]
    return all(max(abs(a * col + b * row + c), abs(d * col + e * row + f)) <= limit for col, row in corners)


def _contradiction(array: Node, what: str) -> InputError:
    return InputError(f"{array.name} contradicts itself: {what}; correct or remove one of them")
