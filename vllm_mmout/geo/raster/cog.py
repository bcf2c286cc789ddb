"""The temporary file of a raster's pixels, and the cloud-optimised GeoTIFF that GDAL makes of it, through rasterio."""

from __future__ import annotations

import errno
import math
import os
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image
from tifffile import TiffFile

from vllm_mmout.geo.raster.geotiff import block_side, cog_options, restore_names, source_xml
from vllm_mmout.geo.raster.raster import as_pixels_have_it

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from vllm_mmout.geo.raster.geotiff import Told

_CACHE = 64 << 20
"""Bytes of decoded blocks that GDAL keeps in this process while it makes a COG; it would take 5 % of the memory."""
_OPTIONS = {"GDAL_NUM_THREADS": "1", "COG_TMP_COMPRESSION": "PACKBITS"}
"""The threads are ours; and overviews on their way into the file need no more than the simplest compression."""
_IN_MEMORY = "/vsimem/"
"""How GDAL's names of files in memory begin."""


class PixelsFile:
    """The pixels of a raster, in a temporary GeoTIFF that says nothing else of them. One thread at a time may use it.

    Args:
        name: the file, or GDAL's name of one in memory.
        shape: (bands, height, width).
        dtype: as `stored_dtype` gives it.

    """

    def __init__(self, name: str, shape: tuple[int, int, int], dtype: np.dtype[Any]) -> None:
        import rasterio

        self.name = name
        self.shape = shape
        self.dtype = dtype
        self._kept = np.dtype(np.float32) if dtype == np.float16 else dtype
        side, (count, height, width) = block_side(shape[1:]), shape
        compression = {} if dtype.kind == "f" else {"compress": "zstd", "zstd_level": 1}  # floats gain next to nothing
        with _gdal(name):
            self._file = rasterio.open(
                name, "w", driver="GTiff", count=count, height=height, width=width, dtype=self._kept, tiled=True,
                blockxsize=side, blockysize=side, interleave="band", bigtiff="IF_SAFER", **compression,
                transform=rasterio.Affine.scale(2),  # without one rasterio warns
            )  # fmt: skip

    def write(self, row: int, col: int, pixels: NDArray[Any]) -> None:
        """Write a rectangle of all bands that begins at a pixel."""
        window = ((row, row + pixels.shape[1]), (col, col + pixels.shape[2]))
        with _gdal(self.name, pixels.nbytes):
            self._file.write(pixels.astype(self._kept, copy=False), window=window)

    def save(self, target: str, given: np.dtype[Any], told: Told) -> None:
        """Make the COG, when all is written."""
        from rasterio.shutil import copy

        source_xml(self.name, self.shape, self.dtype, told)  # what does not fit is said before anything is done
        on_disk = not target.startswith(_IN_MEMORY)
        nbytes = 2 * Path(self.name).stat().st_size if on_disk else 0
        with _gdal(target, nbytes), _SMALL_CACHE:
            self.close()
            xml = source_xml(self.name, self.shape, self.dtype, told, self._statistics(told.get("nodata")))
            copy(xml, target, driver="COG", **cog_options(self.shape, given, told))
        if on_disk:
            _check_end(Path(target), nbytes)
            restore_names(target, told)

    def close(self) -> None:
        """Write what is left; any number of times."""
        self._file.close()

    def _statistics(self, nodata: float | None) -> list[dict[str, str]]:
        """Statistics of each band. GDAL's own leave out neither the nodata of a VRT nor infinities, nor always NaN."""
        import rasterio

        hidden = math.nan if nodata is None else self._kept.type(as_pixels_have_it(nodata, self.dtype))
        with rasterio.open(self.name) as file, np.errstate(all="ignore"):
            return [_statistics(file, band, hidden) for band in file.indexes]


def _statistics(file: Any, band: int, nodata: float | np.generic) -> dict[str, str]:
    """Statistics of a band as GDAL writes them: of all pixels but NaN and nodata; none where they are not finite."""
    found = []
    for _, window in file.block_windows(band):
        plane = file.read(band, window=window)
        values, times = plane.ravel(), np.ones(1, np.intp)
        if plane.dtype == np.uint8:
            times = np.array(Image.fromarray(plane).histogram())  # three times as fast as numpy's
            values, times = np.flatnonzero(times), times[times > 0]
        seen = ~np.isnan(values) & (values != nodata)
        values, times = values[seen].astype(np.float64), np.broadcast_to(times, seen.shape)[seen]
        if values.size:
            low = values.min()  # what is alike everywhere has no deviation at all
            mean = low + np.average(values - low, weights=times)
            square = np.average(np.square(values - mean), weights=times)
            found.append((int(times.sum()), low, values.max(), mean, square))
    if not found:
        return {}
    counts, lows, highs, means, squares = (np.array(numbers) for numbers in zip(*found, strict=True))
    low, count, pixels = lows.min(), int(counts.sum()), file.height * file.width
    mean = low + np.average(means - low, weights=counts)
    deviation = math.sqrt(np.average(squares + np.square(means - mean), weights=counts))
    numbers = {"MINIMUM": low, "MAXIMUM": highs.max(), "MEAN": mean, "STDDEV": deviation}
    if not np.isfinite(list(numbers.values())).all():
        return {}
    texts = {name: f"{number:.14g}" for name, number in numbers.items()}
    percent = f"{100 * count / pixels:.4g}"
    texts["VALID_PERCENT"] = "99.999" if percent == "100" and count < pixels else percent
    return {f"STATISTICS_{name}": text for name, text in texts.items()}


class _SmallCache:
    """GDAL's cache of blocks made small while some thread makes a COG, and as large as it was when the last is done."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = 0

    def __enter__(self) -> None:
        from rasterio.env import get_gdal_config, set_gdal_config

        with self._lock:
            if not self._users:
                self._before = get_gdal_config("GDAL_CACHEMAX")
                set_gdal_config("GDAL_CACHEMAX", min(self._before, _CACHE))
            self._users += 1

    def __exit__(self, *_: object) -> None:
        from rasterio.env import set_gdal_config

        with self._lock:
            self._users -= 1
            if not self._users:
                set_gdal_config("GDAL_CACHEMAX", self._before)


_SMALL_CACHE = _SmallCache()


def _check_end(path: Path, nbytes: int) -> None:
    """Check that a file is whole: GDAL says nothing where its last bytes found no room."""
    size = path.stat().st_size
    with TiffFile(path) as tiff:
        if any(np.add(page.dataoffsets, page.databytecounts).max() > size for page in tiff.pages):
            raise _system_error(str(path), nbytes, OSError("the end of the file is missing"))


@contextmanager
def _gdal(name: str, nbytes: int = 0) -> Iterator[None]:
    """Have GDAL write so many bytes more of a file; what it raises becomes an error of the system."""
    from rasterio import Env
    from rasterio._err import CPLE_BaseError
    from rasterio.errors import RasterioError
    from rasterio.session import DummySession

    try:
        with Env(session=DummySession(), **_OPTIONS):
            yield
    except (RasterioError, CPLE_BaseError) as error:
        raise _system_error(name, nbytes, error) from error


def _system_error(name: str, nbytes: int, error: BaseException) -> OSError:
    """What the system says where a file cannot have so many bytes more; what GDAL said, where it could."""
    if sys.platform == "linux" and not name.startswith(_IN_MEMORY):
        path = Path(name)
        try:
            with tempfile.TemporaryFile(dir=path.parent) as file:
                os.posix_fallocate(file.fileno(), 0, nbytes + (path.stat().st_size if path.exists() else 0) + 1)
        except OSError as found:
            return found
    while error.__cause__ is not None:  # rasterio says "see previous exception"
        error = error.__cause__
    return OSError(errno.EIO, f"GDAL says: {error}")
