"""Write rasters and arrays as Zarr stores, version 3, as a folder or a zip file.

A raster is placed by the GeoZarr conventions (``proj:``, ``spatial:``, ``multiscales``; see
https://github.com/zarr-conventions) and by the CF conventions, as rioxarray reads them.
"""

from __future__ import annotations

import importlib.util
import json
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final
from zipfile import ZIP_STORED, ZipFile

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import SaveError
from vllm_mmout.geo import Window, are_classes, proj_crs
from vllm_mmout.outputs.data_array import pixel_centres, spatial_ref
from vllm_mmout.outputs.formats import Format, opened
from vllm_mmout.outputs.formats.zarr_attributes import TIME_ATTRIBUTES, cf_attributes, convention
from vllm_mmout.outputs.formats.zarr_grid import DIMS, StoredGrid

if TYPE_CHECKING:
    from vllm_mmout.geo import Georeference
    from vllm_mmout.outputs.raster import RasterOutput
    from vllm_mmout.outputs.series import RasterSeries
    from vllm_mmout.outputs.tensor import TensorOutput

_SIDE: Final = 512
"""Maximum height and width of a chunk in pixels. A raster with a longer side also gets reduced copies."""
_CHUNK_BYTES: Final = 2**23
"""Maximum size of a chunk in bytes. If a chunk of all bands is larger, the bands are divided among several chunks."""
_READ_BYTES: Final = 2**26
"""Maximum number of bytes of a raster to read at a time. A block of 512 x 512 pixels is always read whole."""
_METADATA: Final = "zarr.json"
_NAME: Final = "raster"
_TIME: Final = "time"


def check(georeference: Georeference | None, form: Format, instead: str) -> None:
    """Raise SaveError if a Zarr store cannot express the georeference, or a needed package is not installed."""
    packages = ["zarr"] if georeference is None or georeference.crs is None else ["zarr", "pyproj"]
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise SaveError(f"saving {form.title} needs {' and '.join(missing)}; {form.install}")
    if georeference is None:
        return
    if georeference.unread_keys:
        raise SaveError(
            f"{form.title} names the coordinate system, this result's input has {georeference.why_no_crs}; or save the"
            f" result as {instead}"
        )
    if georeference.transform is None and (georeference.gcps or georeference.rpcs):
        raise SaveError(
            f"{form.title} has no attributes for ground control points and RPCs, which place this result; save it as"
            f" {instead}"
        )


def write_raster(output: RasterOutput, target: Path | BinaryIO, form: Format) -> None:
    """Write a raster as a Zarr group with the array "raster" [band, y, x] and arrays of coordinates.

    A raster larger than a chunk also gets reduced copies, in the groups "1", "2" and so on. Memory holds some chunks at
    a time. ``target`` is an empty folder for a folder store, or else a zip file to write.
    """
    _write([output], (), output.metadata, target, form)


def write_series(output: RasterSeries, target: Path | BinaryIO, form: Format) -> None:
    """Write the rasters of a series to a Zarr store, as a single array "raster" [time, band, y, x].

    ``target`` is an empty folder for a folder store, or else a zip file to write. Large rasters also get reduced
    copies, as in `write_raster`.
    """
    _write([*output.rasters.values()], tuple(output.rasters), output.metadata, target, form)


def _write(
    rasters: Sequence[RasterOutput],
    days: tuple[date, ...],
    metadata: Mapping[str, str],
    target: Path | BinaryIO,
    form: Format,
) -> None:
    """Write rasters to a Zarr store: one for each day along a time axis, or a single raster if ``days`` is empty.

    ``target`` is a folder, or a file for the zipped store.
    """
    check(rasters[0].georeference, form, ".tif")
    like = next((raster for raster in rasters if raster.nodata is not None), rasters[0])
    grid = StoredGrid((like.height, like.width), like.crs, like.transform)
    with _folder(target) as folder:
        import zarr

        root = zarr.create_group(str(folder), attributes=dict(metadata))
        array = _create(root, like, grid, days)
        for raster, at in zip(rasters, _time_indices(days), strict=True):
            for window in _windows(grid.size, like.count * array.dtype.itemsize):
                pixels = raster.read(window).astype(array.dtype, copy=False)
                if raster.nodata != like.nodata and (pixels == like.nodata).any():
                    raise SaveError(
                        f"a raster without nodata has pixels of {like.nodata:g}, which are nodata in the others; save"
                        " the rasters as GeoTIFFs"
                    )
                array[(*at, slice(None), window.rows, window.cols)] = pixels
        layout = [{"asset": _NAME, "transform": {"scale": [1.0, 1.0], "translation": [0.0, 0.0]}, **grid.spatial}]
        while max(grid.size) > _SIDE:
            grid = grid.half
            asset = f"{len(layout)}/{_NAME}"
            array = _reduce(root.create_group(str(len(layout))), like, grid, days, array)
            scale = {"scale": [2.0, 2.0], "translation": [0.0, 0.0]}
            layout.append({"asset": asset, "derived_from": layout[-1]["asset"], "transform": scale, **grid.spatial})
        if len(layout) > 1:
            conventions: Any = root.attrs.get("zarr_conventions", [])
            stated = [*conventions, convention("multiscales")]
            root.update_attributes({"multiscales": {"layout": layout}, "zarr_conventions": stated})


def _time_indices(days: tuple[date, ...]) -> list[tuple[int, ...]]:
    """Return the index of each day on the time axis of a Zarr array, as tuples (0,), (1,) and so on.

    Return [()] if ``days`` is empty, since the array then has no time axis.
    """
    return [(number,) for number in range(len(days))] or [()]


def write_arrays(output: TensorOutput, target: Path | BinaryIO, form: Format) -> None:
    """Write an output's arrays as a Zarr group. Raise SaveError if an array holds text or has an invalid name."""
    check(None, form, ".npz")
    for name, array in output.arrays.items():
        if array.dtype.kind not in "biufc":
            raise SaveError(f"Zarr stores numbers, {name!r} is of {array.dtype}; save the output as .npz")
        if "/" in name or name.startswith((".", "__")) or name == _METADATA:
            raise SaveError(f"a Zarr store cannot hold an array named {name!r}; rename it, or save the output as .npz")
    with _folder(target) as folder:
        import zarr

        root = zarr.create_group(str(folder))
        for name, array in output.arrays.items():
            dims = [f"{name}_{axis}" for axis in range(array.ndim)]
            stored = root.create_array(
                name, shape=array.shape, dtype=array.dtype, chunks=_chunks(array), dimension_names=dims
            )
            stored[...] = array


@contextmanager
def _folder(target: Path | BinaryIO) -> Iterator[Path]:
    """Yield a folder for the files of a Zarr store. If ``target`` is a file, zip the folder into ``target`` at the end.

    The folder is ``target`` itself, or a temporary folder if ``target`` is a file.
    """
    if isinstance(target, Path) and target.is_dir():
        yield target
        _consolidate(target)
        return
    with tempfile.TemporaryDirectory(prefix=".zarr-", dir=target.parent if isinstance(target, Path) else None) as name:
        folder = Path(name)
        yield folder
        _consolidate(folder)
        files = sorted((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.parts)
        files.sort(key=lambda path: path.name != _METADATA)  # readers need the metadata first
        with opened(target) as (file, _), ZipFile(file, "w", ZIP_STORED) as archive:
            for path in files:
                archive.write(path, path.relative_to(folder).as_posix())


def _consolidate(folder: Path) -> None:
    """Add consolidated metadata to each group of a Zarr store, so that xarray need not search for arrays."""
    nodes = {path.parent: json.loads(path.read_bytes()) for path in sorted(folder.rglob(_METADATA))}
    for group, stated in nodes.items():
        if stated["node_type"] == "group":
            below = {path.relative_to(group).as_posix(): node for path, node in nodes.items() if group in path.parents}
            consolidated = {"kind": "inline", "must_understand": False, "metadata": below}
            text = json.dumps({**stated, "consolidated_metadata": consolidated}, indent=2)
            (group / _METADATA).write_text(text)


def _chunks(array: NDArray[Any]) -> tuple[int, ...]:
    """Return the shape of an array's chunks. A chunk of up to 8 MiB spans as many of the last axes as possible."""
    left, sides = max(1, _CHUNK_BYTES // array.dtype.itemsize), []
    for side in reversed(array.shape):
        sides.append(max(1, min(side, left)))
        left //= sides[-1]
    return tuple(reversed(sides))


def _create(group: Any, output: RasterOutput, grid: StoredGrid, days: tuple[date, ...]) -> Any:
    """Create the array for a raster or a series of rasters in a Zarr group, with its coordinates. Return the array."""
    dtype = np.dtype(np.uint8) if output.dtype == np.bool_ else output.dtype.newbyteorder("=")
    sides = [min(_SIDE, side) for side in grid.size]
    bands = max(1, min(output.count, _CHUNK_BYTES // (math.prod(sides) * dtype.itemsize)))
    group.update_attributes(grid.attributes)
    place = spatial_ref(grid.crs, grid.transform)
    if place:
        group.create_array("spatial_ref", shape=(), dtype="int64", attributes=place)
    axes = {} if grid.crs is None else {axis["axis"].lower(): axis for axis in proj_crs(grid.crs).cs_to_cf()}
    centres = pixel_centres(grid.transform, *grid.size)
    if days:
        times = np.array(days, "datetime64[D]").astype(np.int64)
        group.create_array(_TIME, data=times, dimension_names=[_TIME], attributes=TIME_ATTRIBUTES)
    time_dims, times_shape = ((_TIME,), (len(days),)) if days else ((), ())
    for name, values in {"band": np.arange(1, output.count + 1), **centres}.items():
        group.create_array(name, data=values, dimension_names=[name], attributes=axes.get(name, {}))
    return group.create_array(
        _NAME,
        shape=(*times_shape, output.count, *grid.size),
        dtype=dtype,
        chunks=(*(1 for _ in times_shape), bands, *sides),
        dimension_names=[*time_dims, *DIMS],
        fill_value=0 if output.nodata is None else dtype.type(output.nodata),
        attributes={
            **cf_attributes(output, dtype),
            **grid.attributes,
            **({"grid_mapping": "spatial_ref"} if place else {}),
        },
    )


def _windows(size: tuple[int, int], pixel_bytes: int) -> Iterator[Window]:
    """Yield windows of whole chunks that cover a raster of ``size`` with ``pixel_bytes`` bytes per pixel."""
    width = _SIDE * max(1, _READ_BYTES // (_SIDE * _SIDE * pixel_bytes))
    for row in range(0, size[0], _SIDE):
        for col in range(0, size[1], width):
            yield Window(row, col, min(_SIDE, size[0] - row), min(width, size[1] - col))


def _reduce(group: Any, output: RasterOutput, grid: StoredGrid, days: tuple[date, ...], source: Any) -> Any:
    """Write a raster with half as many rows and columns as the zarr array ``source``. Return the new array."""
    array = _create(group, output, grid, days)
    nearest = output.nearest or are_classes(output.dtype, output.class_names, output.palette)
    for at in _time_indices(days):
        for window in _windows(grid.size, 4 * output.count * array.dtype.itemsize):
            rows, cols = (slice(2 * side.start, 2 * side.stop) for side in (window.rows, window.cols))
            pixels = source[(*at, slice(None), rows, cols)]
            reduced = pixels[:, ::2, ::2] if nearest else _means(pixels, output.nodata)
            array[(*at, slice(None), window.rows, window.cols)] = reduced
    return array


def _means(pixels: NDArray[Any], nodata: float | None) -> NDArray[Any]:
    """Return the mean of the valid pixels in each block of 2 x 2 pixels. Blocks without valid pixels become nodata."""
    valid = np.isfinite(pixels)
    if nodata is not None:
        valid &= pixels != nodata
    sums, counts = np.where(valid, pixels, 0).astype(np.float64), valid.astype(np.float64)
    for axis in (1, 2):
        starts = np.arange(0, pixels.shape[axis], 2)
        sums, counts = np.add.reduceat(sums, starts, axis), np.add.reduceat(counts, starts, axis)
    means = sums / np.maximum(counts, 1)
    means = means if pixels.dtype.kind == "f" else np.rint(means)
    return np.where(
        counts > 0, means.astype(pixels.dtype), np.array(math.nan if nodata is None else nodata).astype(pixels.dtype)
    )
