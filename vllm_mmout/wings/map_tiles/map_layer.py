"""MapLayer: a stored GeoTIFF as a layer of a web map, which draws tiles from the file's overviews."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio import Affine, Env
from rasterio._err import CPLE_BaseError
from rasterio.errors import NotGeoreferencedWarning, RasterioError
from rasterio.io import DatasetReader, MemoryFile
from rasterio.session import DummySession
from rasterio.warp import Resampling, reproject, transform, transform_bounds

from vllm_mmout.errors import InputError
from vllm_mmout.geo import Raster
from vllm_mmout.outputs.formats.pictures import encode_picture
from vllm_mmout.outputs.partial_images import FULL_WIDTH
from vllm_mmout.outputs.rendering import default_palette, render
from vllm_mmout.outputs.saved import class_names_in, palette_of
from vllm_mmout.wings.map_tiles.web_mercator import CRS, FINEST, HALF, NORTH, SIDE, Box, Metres, Tile

_LARGEST: Final = 4096
"""Maximum height and width in pixels of a GeoTIFF without overviews. A larger GeoTIFF must have overviews."""
_GDAL: Final = {
    "GDAL_NUM_THREADS": "1",
    "GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR",  # a stored result is one file
    "GDAL_PAM_ENABLED": "NO",
}


class MapLayer:
    """Map layer that draws tiles of a stored GeoTIFF. The function `opened` creates it.

    With ``growing``, the file is a picture of a growing result by `GrowingImage.geotiff`: red, green, blue and alpha.
    """

    def __init__(self, path: Path, dataset: Any, *, growing: bool = False) -> None:
        self._path = path
        self._dataset = dataset
        self.growing = growing
        """Whether the file is a preview of an unfinished result. A preview contains colours instead of values."""
        self.bands = (1, 2, 3) if dataset.count == 3 or growing else (1,)
        """Numbers (from 1) of the bands that are drawn."""
        self._factors = dataset.overviews(1)
        self.boxes = self._boxes()
        """Bounding boxes of the result in degrees: one, or two if the result crosses the 180th meridian."""

    @property
    def made_by(self) -> str:
        """Names of the model and of the output processor, or "" if the file's tags do not contain them."""
        items = self._dataset.tags()
        return " ".join(filter(None, (items.get("MMOUT_MODEL"), items.get("MMOUT_PROCESSOR"))))

    @property
    def finest(self) -> int:
        """Finest useful zoom level. Its tiles show the result at full resolution, so finer levels add no detail."""
        _, finer = self._density(*_centre(Metres.of(self.boxes[0])))
        if self.growing:
            finer *= int(self._dataset.tags()[FULL_WIDTH]) / self._dataset.width
        zoom = math.ceil(math.log2(2 * HALF / SIDE * finer) - 0.01) if math.isfinite(finer) and finer > 0 else 0
        return min(max(zoom, 0), FINEST)

    @property
    def classes(self) -> list[tuple[int, str | None, str]] | None:
        """List of (number, name, colour as #rrggbb), one entry for each class. None if the pixels are not classes."""
        palette = self._palette()
        if palette is None:
            return None
        names: list[str | None] = list(class_names_in(self._dataset.tags(1)))
        names = names or [None] * min(len(palette), int(self.limits[1]) + 1)
        colours = [bytes(colour).hex() for colour in palette.tolist()]
        return [(i, name, f"#{colours[i] if i < len(colours) else '000000'}") for i, name in enumerate(names)]

    @property
    def limits(self) -> tuple[float, float]:
        """Minimum and maximum of the valid pixels in the drawn bands.

        The values come from the statistics in the file. If the file has no statistics, its pixels are read. Large files
        are then read at reduced size.
        """
        items = [self._dataset.tags(band) for band in self.bands]
        if all("STATISTICS_MINIMUM" in item for item in items):
            lows, highs = ([float(item[f"STATISTICS_{end}"]) for item in items] for end in ("MINIMUM", "MAXIMUM"))
            return min(lows), max(highs)
        height, width = (min(side, _LARGEST) for side in self._dataset.shape)
        pixels = self._dataset.read(self.bands, out_shape=(len(self.bands), height, width), masked=True)
        values = pixels.compressed()
        values = values[np.isfinite(values)]
        return (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)

    def tile(self, tile: Tile) -> bytes:
        """Draw a map tile as PNG. Pixels outside of the result and pixels without data are transparent."""
        array, valid = np.zeros((1, tile.side, tile.side), np.uint8), np.zeros((tile.side, tile.side), np.bool_)
        for box in self.boxes:
            intersection = tile.extent.intersection(Metres.of(box))
            if intersection is not None:
                array, valid = self._warped(tile, self._level(tile, intersection))
                break
        palette = self._palette()
        limits = None if palette is not None or self.growing or not valid.any() else self.limits
        return encode_picture(render(array, valid, palette, limits), "png")

    def _boxes(self) -> tuple[Box, ...]:
        dataset = self._dataset
        if dataset.gcps[0]:
            raise _unmapped(
                "it is tied to the ground by control points alone; warp it first, for example with gdalwarp"
            )
        if dataset.crs is None or dataset.transform.is_identity:
            raise _unmapped("it has no georeference; send an input that has one")
        a, b, c, d, e, f = dataset.transform[:6]
        xs = [c + a * col + b * row for col in (0, dataset.width) for row in (0, dataset.height)]
        ys = [f + d * col + e * row for col in (0, dataset.width) for row in (0, dataset.height)]
        try:
            west, south, east, north = transform_bounds(dataset.crs, "EPSG:4326", min(xs), min(ys), max(xs), max(ys))
        except (RasterioError, CPLE_BaseError) as error:
            raise _unmapped(f"its coordinate system cannot be converted to Web Mercator: {error}") from error
        south, north = max(south, -NORTH), min(north, NORTH)
        if not all(map(math.isfinite, (west, south, east, north))) or south >= north:
            raise _unmapped(f"it lies beyond Web Mercator, which ends at {NORTH:.2f} degrees north and south")
        width = east - west if east > west else east - west + 360  # GDAL's west is larger if the box crosses 180
        if width >= 360:
            return (Box(-180.0, south, 180.0, north),)
        west = (west + 180) % 360 - 180
        if west + width <= 180:
            return (Box(west, south, west + width, north),)
        return Box(west, south, 180.0, north), Box(-180.0, south, west + width - 360, north)

    def _palette(self) -> NDArray[np.uint8] | None:
        """Return the RGB colours of the classes, uint8 [classes, 3]. Return None if the pixels are not classes.

        If the file has class names but lacks colours, the classes get default colours.
        """
        dataset = self._dataset
        if dataset.count != 1 or np.dtype(dataset.dtypes[0]).kind not in "iu":
            return None
        palette, names = palette_of(dataset), class_names_in(dataset.tags(1))
        return default_palette(len(names)) if palette is None and names else palette

    def _density(self, x: float, y: float) -> tuple[float, float]:
        """Return the (lower, higher) pixel density of the file at a point, in file pixels per Web Mercator metre.

        The two densities are measured along the x axis and the y axis of the map.
        """
        xs, ys = transform(CRS, self._dataset.crs, [x, x + 1, x], [y, y, y + 1])
        a, b, _, d, e, _ = self._dataset.transform[:6]
        steps = np.linalg.solve([[a, b], [d, e]], [np.subtract(xs[1:], xs[0]), np.subtract(ys[1:], ys[0])])
        lengths = np.hypot(*steps).tolist()
        return min(lengths), max(lengths)

    def _level(self, tile: Tile, intersection: Metres) -> int | None:
        """Return the index of the coarsest overview that is fine enough for a tile, or None for full resolution."""
        density = self._density(*_centre(intersection))[0] * tile.pixel
        fitting = [level for level, factor in enumerate(self._factors) if not factor > density * 1.001]
        return fitting[-1] if fitting else None

    def _warped(self, tile: Tile, level: int | None) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Read a tile's pixels in Web Mercator. Return the pixels and the mask of the valid pixels.

        The arrays have the shapes [bands, height, width] and [height, width]. ``level`` is the index of the overview to
        read, or None for full resolution.

        Single bands of integers, which may be classes, and pictures, whose colours may be those of classes, are
        resampled by nearest neighbour, and others bilinearly.
        """
        dtype, nodata = np.dtype(self._dataset.dtypes[0]), self._dataset.nodata
        nearest = self.growing or (len(self.bands) == 1 and dtype.kind in "iu")
        grid = {"width": tile.side, "height": tile.side, "count": len(self.bands) + 1, "dtype": dtype.name, "crs": CRS}
        place = Affine(tile.pixel, 0, tile.extent.left, 0, -tile.pixel, tile.extent.top)
        # The destination is a dataset: for arrays, rasterio changes Python's warning filters, which all threads share.
        with (
            _dataset(self._path, level) as source,
            MemoryFile() as file,
            file.open(driver="GTiff", transform=place, **grid) as drawn,
        ):
            reproject(
                rasterio.band(source, self.bands),
                rasterio.band(drawn, list(range(1, drawn.count))),
                src_alpha=self._dataset.count if self.growing else 0,
                dst_alpha=drawn.count,
                src_nodata=nodata,
                UNIFIED_SRC_NODATA="NO",
                resampling=Resampling.nearest if nearest else Resampling.bilinear,
            )
            array = drawn.read()
        valid = Raster(array[:-1], nodata=nodata).valid()
        inside: NDArray[np.bool_] = array[-1] > 0
        return array[:-1], inside if valid is None else inside & valid


@contextmanager
def opened(path: Path, *, growing: bool = False) -> Iterator[MapLayer]:
    """Open a stored GeoTIFF as a `MapLayer`, and close it when the context ends. The call blocks.

    With ``growing=True``, the file is the preview of a result that is still being computed.

    Raises:
        InputError: the file is damaged, has no overviews, or cannot be shown in Web Mercator.

    """
    with _dataset(path) as dataset:
        layer = MapLayer(path, dataset, growing=growing)
        smallest = max(dataset.shape) // max(dataset.overviews(1), default=1)
        if smallest > _LARGEST:
            raise _unmapped(
                f"it has {dataset.height} x {dataset.width} pixels and no overviews; save it as GeoTIFF again"
            )
        yield layer


@contextmanager
def _dataset(path: Path, level: int | None = None) -> Iterator[Any]:
    # rasterio attributes its warning to this module, so the filter affects no other code.
    warnings.filterwarnings("ignore", category=NotGeoreferencedWarning, module=__name__.replace(".", r"\."))
    options = {} if level is None else {"overview_level": level}
    try:
        with Env(session=DummySession(), **_GDAL), DatasetReader(str(path), driver=["GTiff"], **options) as dataset:
            yield dataset
    except (RasterioError, CPLE_BaseError) as error:
        raise InputError(f"the result cannot be read as GeoTIFF: {error.__cause__ or error}", param="name") from error


def _centre(box: Metres) -> tuple[float, float]:
    return (box.left + box.right) / 2, (box.bottom + box.top) / 2


def _unmapped(why: str) -> InputError:
    return InputError(f"the result has no map tiles: {why}", param="name")
