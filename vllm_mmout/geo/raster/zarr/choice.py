"""Choose the arrays of a Zarr store that form the bands of a raster, and find their band and time axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.formats import natural_order
from vllm_mmout.geo.raster.zarr.nodes import read_node

if TYPE_CHECKING:
    from vllm_mmout.geo.raster.zarr.nodes import Node
    from vllm_mmout.geo.raster.zarr.store import Store

_ROWS: Final = frozenset({"y", "lat", "latitude", "northing", "row", "rows"})
_COLS: Final = frozenset({"x", "lon", "longitude", "easting", "col", "cols", "column", "columns"})
_BANDS: Final = frozenset({"band", "bands", "channel", "channels", "wavelength", "c", "feature", "features"})
_TIMES: Final = frozenset({"time", "times", "t", "date", "dates", "datetime"})
_MOST_AXES: Final = 4
_SHOWN: Final = 20
"""Largest number of arrays that a message lists."""


@dataclass(frozen=True, slots=True)
class Axes:
    """Band and time axis of an array of pixels. The last two axes of the array are always rows and columns."""

    band: int | None
    """Index of the band axis, or None for an array without a band axis."""
    time: int | None
    """Index of the time axis, or None for an array without a time axis."""
    names: tuple[str | None, ...]
    """Name of each axis, or None for an axis without a name."""
    shape: tuple[int, ...]

    @property
    def bands(self) -> int:
        """Number of bands."""
        return 1 if self.band is None else self.shape[self.band]

    @property
    def times(self) -> int:
        """Number of times."""
        return 1 if self.time is None else self.shape[self.time]

    def plane(self, time: int, band: int) -> tuple[int, ...]:
        """Return the index for which ``array[index]`` is the plane [rows, columns] of one time and band."""
        at = {self.time: time, self.band: band}
        return tuple(at.get(axis, 0) for axis in range(len(self.shape) - 2))


@dataclass(frozen=True, slots=True)
class Chosen:
    """Arrays of a Zarr store that are read as one raster."""

    group: Node | None
    """Zarr group that contains the chosen arrays, or None if the store consists of a single array."""
    arrays: tuple[tuple[Node, Axes], ...]
    assumed: tuple[str, ...] = ()


def chosen_arrays(store: Store, array_name: str | None = None) -> Chosen:
    """Return the arrays of a Zarr store that are read together as one raster.

    Args:
        store: the store.
        array_name: name of the array to read, or None to choose by shape and axis names.

    Raises:
        InputError: the store holds no raster, or several.

    """
    root = read_node(store, "")
    if root is None:
        raise InputError(f"{store.name} has no metadata of Zarr (zarr.json, .zarray or .zgroup)")
    if root.is_array:
        return Chosen(None, ((root, _axes(root)),))
    group = _finest(root)
    children = group.children()
    if array_name is not None:
        children = {name: node for name, node in children.items() if name == array_name} | {
            name: node for name, node in children.items() if node.is_array and len(node.shape) < 2
        }
    rasters = _rasters(children)
    if not rasters:
        groups = [node.name for node in children.values() if not node.is_array]
        remedy = f"give the path of one of its groups: {_listed(groups)}" if groups else "give another store"
        raise InputError(f"{group.name} holds no array of pixels [..., y, x]; {remedy}")
    with_bands = [(node, axes) for node, axes in rasters if axes.band is not None]
    if len(with_bands) > 1:
        raise InputError(
            f"{group.name} holds {len(with_bands)} arrays with bands: {_listed(node.name for node, _ in with_bands)};"
            " give the path of one of them"
        )
    if with_bands and len(rasters) > 1:
        others = _listed(node.key for node, _ in rasters if node is not with_bands[0][0])
        assumed = (
            f"Of the arrays in {group.name}, {with_bands[0][0].key} was read, the only one with bands, and not"
            f" {others}; give the path of another array to read it."
        )
        return Chosen(group, tuple(with_bands), (assumed,))
    _check_alike(rasters)
    return Chosen(group, tuple(rasters))


def _finest(group: Node) -> Node:
    """Return the subgroup with the finest level of an image pyramid.

    Return ``group`` itself if the group is not a pyramid.
    """
    layout = group.attributes.get("multiscales")
    entries = layout.get("layout") if isinstance(layout, dict) else None
    first = entries[0] if isinstance(entries, list) and entries and isinstance(entries[0], dict) else {}
    name = first.get("asset")
    node = group.child(name) if isinstance(name, str) else None
    if node is None or node.is_array:
        return group
    spatial = {
        key: value for key, value in {**group.attributes, **first}.items() if key.startswith(("proj:", "spatial:"))
    }
    return replace(node, attributes={**spatial, **node.attributes})


def _rasters(children: Mapping[str, Node]) -> list[tuple[Node, Axes]]:
    """Return the arrays of pixels in a Zarr group, each with its band and time axis.

    The arrays are sorted by name, with "B2" before "B10". Arrays of coordinates are left out.
    """
    arrays = [node for node in children.values() if node.is_array]
    beside = {name for node in arrays for name in str(node.attributes.get("coordinates", "")).split()}
    beside |= {str(node.attributes.get(key)) for node in arrays for key in ("bounds", "grid_mapping")}
    found = []
    for node in sorted(arrays, key=lambda node: natural_order(node.key)):
        pixels = len(node.shape) >= 2 and node.key not in beside and node.key.lower() not in _ROWS | _COLS
        if pixels and (not any(node.dims) or _is_spatial(node)):
            found.append((node, _axes(node)))
    return found


def _is_spatial(node: Node) -> bool:
    """Return whether the names of an array's axes include rows or columns."""
    names = {str(name).lower() for name in node.dims} | {str(name) for name in _spatial_dims(node)}
    return bool(names & (_ROWS | _COLS)) or bool(_spatial_dims(node))


def _spatial_dims(node: Node) -> Sequence[Any]:
    stated = node.attributes.get("spatial:dimensions")
    return stated if isinstance(stated, list) else []


def _axes(node: Node) -> Axes:
    """Find the band and time axes of an array by the names of its axes.

    If no axis has a name, the array is [y, x], [band, y, x] or [time, band, y, x].
    """
    names, shape = node.dims, node.shape
    if not 2 <= len(shape) <= _MOST_AXES or 0 in shape:
        raise InputError(
            f"{node.name} has the shape {list(shape)}; a raster is [y, x], [band, y, x] or [time, band, y, x]"
        )
    if not any(names):
        unnamed: dict[int, tuple[int | None, int | None]] = {2: (None, None), 3: (0, None), 4: (1, 0)}
        return Axes(*unnamed[len(shape)], names, shape)
    last = [str(name) for name in names[-2:]]
    stated = [str(name) for name in _spatial_dims(node)]
    if not (last == stated or (last[0].lower() in _ROWS and last[1].lower() in _COLS)):
        raise InputError(
            f"{node.name} has the dimensions {', '.join(map(str, names))}; the last two must be rows and columns, as"
            " y, x: transpose it, or name them in spatial:dimensions"
        )
    band = time = None
    for axis, name in enumerate(names[:-2]):
        word = str(name).lower()
        if word in _BANDS and band is None:
            band = axis
        elif word in _TIMES and time is None:
            time = axis
        elif shape[axis] != 1:
            raise InputError(
                f"{node.name} has the dimension {name!r} of {shape[axis]}, which is neither of bands nor of time;"
                " select one of its entries, or rename it to band or time"
            )
    return Axes(band, time, names, shape)


def _check_alike(rasters: Sequence[tuple[Node, Axes]]) -> None:
    """Raise InputError if the arrays of a raster differ in height, width, spatial axes, or number of times."""
    first, axes = rasters[0]
    for node, others in rasters[1:]:
        here, there = ((each.shape[-2:], each.names[-2:], each.times) for each in (axes, others))
        if here != there:
            raise InputError(
                f"{first.name} has {list(axes.shape)} pixels, {node.name} has {list(others.shape)}, which are not bands"
                " of one raster; give the path of one of them"
            )


def _listed(names: Any) -> str:
    names = list(names)
    return ", ".join(names[:_SHOWN] + [f"and {len(names) - _SHOWN} more"] * (len(names) > _SHOWN))
