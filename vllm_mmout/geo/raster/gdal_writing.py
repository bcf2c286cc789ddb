"""Run GDAL code that writes files, with suitable options, and turn its errors into OSError."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

IN_MEMORY = "/vsimem/"
"""Prefix of the names that GDAL gives to files in memory."""
_OPTIONS = {"GDAL_NUM_THREADS": "1", "COG_TMP_COMPRESSION": "PACKBITS"}
"""GDAL options for writing: one thread, and fast PackBits compression of temporary overviews.

GDAL needs no further threads, since this package calls GDAL from several threads."""


@contextmanager
def gdal_writes(name: str, nbytes: int = 0) -> Iterator[None]:
    """Set GDAL's options for writing in the ``with`` block, and convert GDAL's errors in the block to OSError.

    The block writes file ``name``, which may grow by ``nbytes`` bytes. If the disk lacks this space, the error says so.
    """
    from rasterio import Env
    from rasterio._err import CPLE_BaseError
    from rasterio.errors import RasterioError
    from rasterio.session import DummySession

    try:
        with Env(session=DummySession(), **_OPTIONS):
            yield
    except (RasterioError, CPLE_BaseError) as error:
        raise system_error(name, nbytes, error) from error


def system_error(name: str, nbytes: int, error: BaseException) -> OSError:
    """Return an OSError for a failed write: "disk full" if the file cannot grow by ``nbytes``, else GDAL's message."""
    if sys.platform == "linux" and not name.startswith(IN_MEMORY):
        path = Path(name)
        try:
            with tempfile.TemporaryFile(dir=path.parent) as file:
                os.posix_fallocate(file.fileno(), 0, nbytes + (path.stat().st_size if path.exists() else 0) + 1)
        except OSError as system_error:
            return system_error
    while error.__cause__ is not None:  # rasterio's message only refers to the cause
        error = error.__cause__
    return OSError(errno.EIO, f"GDAL says: {error}")
