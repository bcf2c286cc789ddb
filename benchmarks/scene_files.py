"""Scenes for benchmarks, written fast and without holding them in memory, and a check of results against a scene.

A scene repeats one pattern of 1024 rows and 4096 columns in six bands of uint16. The pattern has water and land with
their reflectances, texture and a sensor's noise, so that deflate compresses it as much as Sentinel-2 products. Nothing
repeats within the 32 KiB that deflate looks back. Each distinct segment is encoded once, and its bytes are written
wherever it occurs.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import imagecodecs
import numpy as np
import rasterio
import tifffile
from numpy.typing import NDArray

BANDS = 6
ROWS, COLUMNS = 1024, 4096
"""Size of the pattern in pixels."""
TILE = 512
STRIP = 16
"""Rows of a strip. GDAL's default at these widths is one row, which costs wide scenes less than narrow scenes."""
EPSG = 32631
WEST, NORTH, PIXEL = 500_000.0, 5_000_000.0, 10.0

Layout = Literal["tiled", "striped"]

_LAND = (800, 1000, 1100, 3000, 2500, 1800)
_WATER = (700, 800, 500, 300, 60, 40)
_NOISE = 40.0
_GREEN, _SWIR = 1, 4


@dataclass(frozen=True, slots=True)
class Scene:
    """A square GeoTIFF whose pixels are known."""

    path: Path
    size: int
    layout: Layout
    first: int = 0
    """The row and column of the pattern where the scene's first pixel is."""

    @property
    def megapixels(self) -> float:
        """The number of pixels of one band, in millions."""
        return self.size**2 / 1e6

    def segments(self) -> int:
        """Return the number of tiles or strips."""
        with tifffile.TiffFile(self.path) as tiff:
            return len(tiff.pages[0].dataoffsets)

    def classes(self, row: int, rows: int) -> NDArray[np.uint8]:
        """Return the embedded model's expected classes of some rows: 1 where green is larger than SWIR 1, else 0."""
        places = self.first + np.arange(self.size)
        return _pattern_classes()[np.ix_(places[row : row + rows] % ROWS, places % COLUMNS)]

    def check(self, result: Path) -> None:
        """Compare each pixel, the georeference and the nodata value of a result with the expected result.

        Raises:
            AssertionError: They differ. The message says where.

        """
        with rasterio.open(self.path) as source, rasterio.open(result) as file:
            assert (file.count, file.dtypes[0], file.nodata) == (1, "uint8", 255), f"{result}: {file.profile}"
            assert (file.shape, file.crs, file.transform) == (source.shape, source.crs, source.transform), file.profile
            for row in range(0, self.size, TILE):
                rows = min(TILE, self.size - row)
                read = file.read(1, window=((row, row + rows), (0, self.size)))
                wrong = read != self.classes(row, rows)
                assert not wrong.any(), f"{result}: {wrong.sum()} wrong pixels in {rows} rows from {row}"


def make_scene(folder: Path, size: int, layout: Layout) -> Scene:
    """Write a scene of ``size`` x ``size`` pixels in UTM: deflate with predictor 2, pixel interleaved."""
    scene = Scene(folder / f"{layout}-{size}.tif", size, layout)
    if size % TILE:
        raise ValueError(f"the size must be a multiple of {TILE}, got {size}")
    _write(scene, _tiles(size) if layout == "tiled" else _strips(size))
    return scene


def make_image(folder: Path, number: int, size: int = TILE) -> Scene:
    """Write a small image, which is the pattern shifted by ``7 * number`` pixels, so that images differ."""
    scene = Scene(folder / f"image-{number}.tif", size, "tiled", first=7 * number)
    places = scene.first + np.arange(size)
    _write(scene, iter([_encoded(_pattern()[np.ix_(places % ROWS, places % COLUMNS)])]))
    return scene


def disk_folder(nbytes: int) -> tempfile.TemporaryDirectory[str]:
    """Return a temporary folder on a disk, not in memory, with enough room. ``SCENE_FOLDER`` sets where it is made.

    Raises:
        OSError: No folder is on a disk with enough room.

    """
    configured_folder = os.environ.get("SCENE_FOLDER")
    places = [configured_folder] if configured_folder else [tempfile.gettempdir(), "/var/tmp", str(Path.cwd())]  # noqa: S108 - only looked at
    for place in places:
        if _kind(place) not in ("tmpfs", "ramfs") and shutil.disk_usage(place).free > nbytes:
            return tempfile.TemporaryDirectory(dir=place, prefix="mmout-scenes-")
    raise OSError(f"none of {', '.join(places)} is on a disk with {nbytes / 1e9:.1f} GB free; set SCENE_FOLDER")


def _kind(place: str) -> str:
    """Return the file system of a folder, as named in /proc/mounts."""
    device = Path(place).stat().st_dev
    kinds = {}
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split()
        if os.access(mount, os.F_OK):
            kinds[Path(mount).stat().st_dev] = kind
    return kinds.get(device, "")


@cache
def _pattern() -> NDArray[np.uint16]:
    """Return the pattern, uint16 [rows, columns, bands], which repeats without seams."""
    random = np.random.default_rng(7)
    down, across = (2 * np.pi * np.arange(n, dtype=np.float32) / n for n in (ROWS, COLUMNS))
    relief = np.zeros((ROWS, COLUMNS), np.float32)
    for _ in range(24):
        rises, turns = random.integers((-9, -36), (10, 37))
        phase = rises * down[:, None] + turns * across + np.float32(random.uniform(0, 2 * np.pi))
        relief += np.cos(phase) / (2 + abs(rises) + abs(turns) / 4)
    water = (1 / (1 + np.exp(-12 * relief)))[..., None]
    texture = 1 + 0.08 * np.roll(relief, ROWS // 3, 0)[..., None]
    noise = _NOISE * random.standard_normal((ROWS, COLUMNS, BANDS), np.float32)
    land, open_water = np.array(_LAND, np.float32), np.array(_WATER, np.float32)
    values = (land * (1 - water) + open_water * water) * texture + noise
    return values.round().clip(1, 10_000).astype(np.uint16)


@cache
def _pattern_classes() -> NDArray[np.uint8]:
    return (_pattern()[..., _GREEN] > _pattern()[..., _SWIR]).astype(np.uint8)


def _encoded(pixels: NDArray[np.uint16]) -> bytes:
    """Return a segment as stored in the file: differences along the row (predictor 2), then deflate."""
    return bytes(imagecodecs.deflate_encode(imagecodecs.delta_encode(np.ascontiguousarray(pixels), axis=-2), level=6))


def _tiles(size: int) -> Iterator[bytes]:
    blocks = [
        [_encoded(_pattern()[row : row + TILE, col : col + TILE]) for col in range(0, min(COLUMNS, size), TILE)]
        for row in range(0, min(ROWS, size), TILE)
    ]
    for row in range(size // TILE):
        for col in range(size // TILE):
            yield blocks[row % len(blocks)][col % len(blocks[0])]


def _strips(size: int) -> Iterator[bytes]:
    columns = np.arange(size) % COLUMNS
    strips = [_encoded(_pattern()[row : row + STRIP, columns]) for row in range(0, min(ROWS, size), STRIP)]
    for strip in range(size // STRIP):
        yield strips[strip % len(strips)]


def _write(scene: Scene, segments: Iterator[bytes]) -> None:
    """Write encoded segments in order, and flush them to the disk."""
    tiling: dict[str, Any] = {"tile": (TILE, TILE)} if scene.layout == "tiled" else {"rowsperstrip": STRIP}
    with scene.path.open("wb") as file:
        tifffile.imwrite(
            file,
            segments,
            shape=(scene.size, scene.size, BANDS),
            dtype=np.uint16,
            bigtiff=scene.size > 16384,
            photometric="minisblack",
            planarconfig="contig",
            compression="adobe_deflate",
            predictor=True,
            metadata=None,
            extratags=_geotags(scene.first),
            **tiling,
        )
        file.flush()
        os.fsync(file.fileno())


def _geotags(first: int) -> list[tuple[int, int, int, Any, bool]]:
    """Return the GeoTIFF 1.1 tags: north up in UTM, pixels are areas."""
    corner = (0.0, 0.0, 0.0, WEST + first * PIXEL, NORTH - first * PIXEL, 0.0)
    keys = (1, 1, 0, 3, 1024, 0, 1, 1, 1025, 0, 1, 1, 3072, 0, 1, EPSG)
    return [
        (33550, 12, 3, (PIXEL, PIXEL, 0.0), True),
        (33922, 12, 6, corner, True),
        (34735, 3, len(keys), keys, True),
    ]
