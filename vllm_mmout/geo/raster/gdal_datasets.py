"""The datasets that GDAL has open of one file.

A dataset may be used by one thread at a time, so that each thread that reads gets one of its own, a few at most. What
GDAL decodes it keeps in a cache of the whole process. Its limit, `GDAL_CACHEMAX`, 5 % of the memory, cannot be set for
one file, and rasterio sets it for all who use GDAL here. Instead, a dataset that may have filled its share is closed,
which empties it, and opened anew. That takes some milliseconds; decoding as much takes some hundred.
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
_SHARE = 16 << 20
"""Bytes that a dataset may have decoded before it is closed."""
_REMOTE = ("/vsis3/", "/vsigs/", "/vsiaz/")


class Datasets:
    """The datasets of one file, or of one of GDAL's names."""

    def __init__(self, name: str, target: str, drivers: Drivers, data: bytes | None = None) -> None:
        self.name = name
        self.closed = False
        self._memory = None if data is None else MemoryFile(data)
        self._target = target if self._memory is None else self._memory.name
        self._drivers = drivers
        self._idle: list[tuple[Any, int]] = []
        self._used = 0
        self._lock = threading.Lock()
        self._turns = threading.BoundedSemaphore(_AT_ONCE)

    @contextmanager
    def dataset(self, nbytes: int = 0) -> Iterator[Any]:
        """A dataset, rasterio's ``DatasetReader``, for the thread that asks."""
        with self._turns, _environment(self._target), _errors(self.name):
            dataset, decoded = self._taken()
            try:
                yield dataset
            finally:
                self._given_back(dataset, decoded + nbytes)

    def close(self) -> None:
        """Close all, those in use when they are given back; any number of times."""
        with self._lock:
            self.closed = True
            idle, self._idle = self._idle, []
        for dataset, _ in idle:
            dataset.close()
        self._less(0)

    def _taken(self) -> tuple[Any, int]:
        with self._lock:
            if self.closed:
                raise InputError(f"{self.name} is closed; open it again to read it")
            self._used += 1
            if self._idle:
                return self._idle.pop()
        try:
            return self._opened(), 0
        except BaseException:
            self._less(1)
            raise

    def _given_back(self, dataset: Any, decoded: int) -> None:
        with self._lock:
            keep = not self.closed and decoded < _SHARE
            if keep:
                self._idle.append((dataset, decoded))
        if not keep:
            dataset.close()
        self._less(1)

    def _less(self, count: int) -> None:
        """So many datasets are used no more; without any, what they read is let go once all is closed."""
        with self._lock:
            self._used -= count
            last = self.closed and not self._used
        if last and self._memory is not None:
            self._memory.close()

    def _opened(self) -> Any:
        # rasterio warns whoever opens, which is this module: the rule holds for nobody else, in any thread.
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
    """A GeoTIFF of one pixel with tags, which GDAL believes: what they say, as rasterio's ``DatasetReader``."""
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
    """GDAL's options and its log, for one thread and as long as it reads."""
    options = {"GDAL_NUM_THREADS": "1"}  # the threads are ours
    if target.startswith(_REMOTE):
        options["GDAL_DISABLE_READDIR_ON_OPEN"] = "EMPTY_DIR"  # ask for the object alone, not for what may lie beside
    with Env(session=DummySession(), **options):
        yield


@contextmanager
def _errors(name: str) -> Iterator[None]:
    try:
        yield
    except (RasterioError, CPLE_BaseError, OSError, SystemError, UnicodeError) as error:
        # SystemError: GDAL failed without a word; UnicodeError: it said something that is not UTF-8
        raise InputError(f"{name} cannot be read by GDAL: {_words(error)}") from error


def _words(error: BaseException) -> str:
    """What GDAL said first: rasterio says "see the previous exception"."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip() or type(error).__name__
