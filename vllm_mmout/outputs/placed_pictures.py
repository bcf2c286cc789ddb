"""Warp pictures of scenes onto the grid of a map, so that the map can be drawn over the pictures."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError
from vllm_mmout.geo import MapGrid, PlacedRaster, Window, open_raster, warped, without_secrets, write_geotiff_here
from vllm_mmout.outputs.band_pictures import DrawnBands, bands_to_draw
from vllm_mmout.outputs.rendering import PREVIEW

if TYPE_CHECKING:
    from PIL.Image import Image

    from vllm_mmout.geo import Georeference, OpenRaster


@dataclass(frozen=True, slots=True)
class PlacedPicture:
    """Picture of a scene, and the place of the scene on the ground."""

    read: Callable[[], Image | None]
    """Function that reads the picture of a scene, or returns None if the scene's file is not available any more."""
    place: PlacedRaster
    """Georeference and size of the whole scene. The picture of the scene often has fewer pixels."""

    @classmethod
    def of_file(cls, path: str | PurePath) -> PlacedPicture:
        """Return the picture of a raster file with a georeference. The pixels are read when the picture is drawn.

        Raises InputError if the file cannot be opened, or has no georeference.
        """
        with open_raster(path) as raster:
            return cls(partial(_picture_of_file, path), PlacedRaster(raster.name, raster.georeference, raster.size))


def pictures_on_grid(pictures: Sequence[PlacedPicture], grid: MapGrid) -> Image:
    """Draw ``pictures`` as one RGBA picture on the map grid ``grid``. The first picture with data at a pixel is used.

    The longer side of the result has at most `PREVIEW` pixels. One picture at a time is in memory. Pixels without data
    are transparent.
    """
    from PIL import Image as PillowImage

    ratio = min(1.0, PREVIEW / max(grid.size))
    size = max(1, round(grid.size[0] * ratio)), max(1, round(grid.size[1] * ratio))
    grid = MapGrid(grid.georeference.resized(grid.size, size), size)
    drawn = np.zeros((4, *size), np.uint8)
    for picture in pictures:
        if drawn[3].all():
            break
        image = picture.read()
        if image is not None:
            _draw_below(drawn, image, picture.place, grid)
    return PillowImage.fromarray(np.ascontiguousarray(np.moveaxis(drawn, 0, 2)))


def given_picture(picture: Any, georeference: Georeference | None, size: tuple[int, int]) -> Image:
    """Convert the argument ``picture`` of `RasterOutput.figure` to a Pillow image.

    Files are warped onto the raster of the figure, which has this ``georeference`` and ``size`` (height, width).

    Raises InputError if ``picture`` is no picture, or its files cannot be read or do not overlap the raster.
    """
    from PIL import Image as PillowImage

    paths = [picture] if isinstance(picture, str | PurePath) else picture
    if isinstance(paths, list | tuple) and paths and all(isinstance(path, str | PurePath) for path in paths):
        return _picture_of_files(paths, MapGrid.of(PlacedRaster("the raster", georeference, size)))
    if isinstance(picture, np.ndarray):
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
            raise InputError(f"picture must be uint8 [height, width, 3], got {picture.dtype} {list(picture.shape)}")
        return PillowImage.fromarray(np.ascontiguousarray(picture))
    if not hasattr(picture, "getbands"):
        raise InputError(
            "picture must be a PIL image, an array [height, width, 3], the path of a raster file, or False for none,"
            f" got {type(picture).__name__}"
        )
    coloured: Image = picture.convert("RGB")
    return coloured


def _picture_of_files(paths: Sequence[str | PurePath], grid: MapGrid) -> Image:
    """Draw raster files as one picture on the map grid ``grid``. Raise InputError if no file has data there."""
    image = pictures_on_grid([PlacedPicture.of_file(path) for path in paths], grid)
    if not np.asarray(image)[..., 3].any():
        names = ", ".join(without_secrets(str(path)) for path in paths)
        raise InputError(f"{names} has no data where the raster is, so there is no picture to draw below it")
    return image


def _draw_below(drawn: NDArray[np.uint8], image: Image, place: PlacedRaster, grid: MapGrid) -> None:
    """Draw ``image`` below the RGBA picture ``drawn``. Only transparent pixels of ``drawn`` are changed.

    ``drawn`` is uint8 [4, height, width] on the map grid ``grid``, to which ``image`` is warped. ``place`` is the
    georeference and size of the scene that ``image`` shows.
    """
    pixels = np.moveaxis(np.asarray(image.convert("RGBA")), 2, 0)
    georeference = place.place.resized(place.size, (image.height, image.width))
    with tempfile.TemporaryDirectory(prefix="mmout-picture.") as folder:
        path = Path(folder) / "picture.tif"
        write_geotiff_here(path, pixels, georeference=georeference)
        with warped(path, grid, resampling="nearest", nodata=None) as raster:
            pixels, inside = raster.read(Window(0, 0, *grid.size))
    used = (drawn[3] == 0) & (pixels[3] > 0)
    np.copyto(drawn, pixels, where=used if inside is None else used & inside)


def _picture_of_file(path: str | PurePath) -> Image:
    with open_raster(path) as raster:
        return DrawnBands(raster, _bands_of_file(raster)).picture()


def _bands_of_file(raster: OpenRaster) -> tuple[int, ...]:
    """Choose the bands to draw by their names or colour interpretation. Return the band numbers, from 1."""
    stated = raster.colours or (None,) * raster.count
    numbers = [number for number in range(1, raster.count + 1) if number != raster.alpha]
    names = [raster.descriptions[number - 1] or stated[number - 1] or "" for number in numbers]
    drawn = bands_to_draw(names, coloured=stated[:3] == ("red", "green", "blue"))
    return tuple(numbers[place - 1] for place in drawn)
