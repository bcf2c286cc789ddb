"""Share a few open GDAL datasets of one file between threads.

Only one thread at a time may use a dataset, so each reading thread gets its own, from a pool of a few datasets. GDAL
caches decoded blocks for the whole process. The cache limit `GDAL_CACHEMAX` (5 % of the memory) cannot be set per file,
and setting it through rasterio would affect all users of GDAL in the process. Therefore a dataset that may have filled
its share of the cache is closed, which frees its blocks, and opened again. Opening takes some milliseconds, whereas
decoding that many bytes takes some hundred.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import tifffile
from rasterio import Env
from rasterio._err import CPLE_BaseError
from rasterio.errors import NotGeoreferencedWarning, RasterioError, RasterioIOError
from rasterio.io import DatasetReader, MemoryFile
from rasterio.session import DummySession

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.formats import TIFF, Drivers

if TYPE_CHECKING:
    from vllm_mmout.geo.raster.tags import GeoTag

_AT_ONCE = min(4, os.cpu_count() or 1)
"""Largest number of GDAL datasets that are open for one file at the same time."""
_SHARE = 16 << 20
"""Number of bytes that a GDAL dataset may decode before it is closed, so that GDAL frees its cached blocks."""
_REMOTE = ("/vsis3/", "/vsigs/", "/vsiaz/")


class Datasets:
    """Pool of open GDAL datasets of one file, for use by several threads."""

    def __init__(self, name: str, target: str, drivers: Drivers, data: bytes | None = None) -> None:
        self.name = name
        self.closed = False
        self._memory = None if data is None else MemoryFile(data)
        self._target = target if self._memory is None else self._memory.name
        self._drivers = drivers
        self._idle: list[tuple[Any, int]] = []
        self._used = 0
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(_AT_ONCE)

    @contextmanager
    def dataset(self, nbytes: int = 0) -> Iterator[Any]:
        """Yield a rasterio ``DatasetReader`` for use by the calling thread in the ``with`` block.

        ``nbytes`` is the number of bytes that the block will decode with the dataset.
        """
        with self._free, _environment(self._target), _errors(self.name):
            dataset, decoded = self._take()
            try:
                yield dataset
            finally:
                self._give_back(dataset, decoded + nbytes)

    def close(self) -> None:
        """Close all datasets. Datasets in use are closed when they are returned. May be called repeatedly."""
        with self._lock:
            self.closed = True
            idle, self._idle = self._idle, []
        for dataset, _ in idle:
            dataset.close()
        self._release(0)

    def _take(self) -> tuple[Any, int]:
        with self._lock:
            if self.closed:
                raise InputError(f"{self.name} is closed; open it again to read it")
            self._used += 1
            if self._idle:
                return self._idle.pop()
        try:
            return self._opened(), 0
        except BaseException:
            self._release(1)
            raise

    def _give_back(self, dataset: Any, decoded: int) -> None:
        with self._lock:
            keep = not self.closed and decoded < _SHARE
            if keep:
                self._idle.append((dataset, decoded))
        if not keep:
            dataset.close()
        self._release(1)

    def _release(self, count: int) -> None:
        """Subtract ``count`` from the number of datasets in use.

        If it falls to 0 after ``close()``, free the copy of the file in memory.
        """
        with self._lock:
            self._used -= count
            last = self.closed and not self._used
        if last and self._memory is not None:
            self._memory.close()

    def _opened(self) -> Any:
        # rasterio attributes its warning to this module, so the filter affects no other code, in all threads.
        warnings.filterwarnings("ignore", category=NotGeoreferencedWarning, module=__name__.replace(".", r"\."))
        first, *others = self._drivers
        try:
            return DatasetReader(self._target, driver=list(first))
        except RasterioIOError:
            for drivers in others:
                with suppress(RasterioIOError):
                    return DatasetReader(self._target, driver=list(drivers))
            raise


@contextmanager
def one_pixel(tags: Iterable[GeoTag]) -> Iterator[Any]:
    """Yield a GDAL dataset of a GeoTIFF with one pixel and the given ``tags``, so that GDAL parses the tags."""
    file = BytesIO()
    extra = [(tag.code, tag.dtype, tag.count, tag.value, True) for tag in tags]
    tifffile.imwrite(file, np.zeros((1, 1), np.uint8), metadata=None, software=False, extratags=extra)
    datasets = Datasets("a georeference", "", TIFF.drivers, file.getvalue())
    try:
        with datasets.dataset() as dataset:
            yield dataset
    finally:
        datasets.close()


@contextmanager
def _environment(target: str) -> Iterator[None]:
    """Set GDAL's options and error handler for the current thread while it reads the file ``target``."""
    options = {"GDAL_NUM_THREADS": "1"}  # this package starts the threads itself
    if target.startswith(_REMOTE):
        options["GDAL_DISABLE_READDIR_ON_OPEN"] = "EMPTY_DIR"  # do not list the objects beside it
    with Env(session=DummySession(), **options):
        yield


@contextmanager
def _errors(name: str) -> Iterator[None]:
    try:
        yield
    except (RasterioError, CPLE_BaseError, OSError, SystemError, UnicodeError) as error:
        # SystemError: GDAL failed without a message. UnicodeError: its message is not UTF-8.
        raise InputError(f"{name} cannot be read by GDAL: {_innermost_message(error)}") from error


def _innermost_message(error: BaseException) -> str:
    """Return the message of an error's innermost cause. For an error of rasterio, this is GDAL's message."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip() or type(error).__name__
