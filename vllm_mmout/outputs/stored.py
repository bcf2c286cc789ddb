"""StoredRaster, a raster output that is kept in a file and read by windows."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import weakref
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError
from vllm_mmout.geo import (
    Window,
    are_classes,
    download,
    identity_in_bucket,
    open_in_bucket,
    open_raster,
    place_of,
    same_file,
)
from vllm_mmout.outputs.formats import FORMATS
from vllm_mmout.outputs.raster import RasterOutput
from vllm_mmout.outputs.rendering import PREVIEW, preview, render, valid_mask

if TYPE_CHECKING:
    from PIL.Image import Image

    from vllm_mmout.geo import BucketPath, GeoTiffBlocks, OpenRaster, RasterMetadata
    from vllm_mmout.outputs.base import Source


class StoredRaster(RasterOutput):
    """Raster output that is kept in a GeoTIFF file, since it may not fit into memory.

    All methods of `RasterOutput` are available, with these differences: `array`, `valid` and saving as ``.npz`` read
    the whole raster, `read` reads only the window, and pictures are at most 2048 pixels wide and high. The class
    is thread-safe. A copied or unpickled object reads the same file and does not own it. Reading, copying and saving
    raise `InputError` if the file was removed or replaced.

    Args:
        path: a GeoTIFF with the pixels and their metadata.
        owned: True if the file is temporary. The first `save` as GeoTIFF moves it. Otherwise it is removed by `close`,
            when this object is garbage-collected, or at the normal end of the process. A killed process leaves it.
        known: the keyword arguments of `RasterOutput`. An omitted argument is unknown, even if the file states it.

    Raises:
        InputError: the file cannot be read, or the names or the palette have a wrong shape or dtype.

    """

    in_place: ClassVar[bool] = True

    def __init__(self, path: str | Path, *, owned: bool = False, **known: Unpack[RasterMetadata]) -> None:
        self._lock = threading.RLock()
        self._closed = False
        self._file: Path | BucketPath = Path(path).absolute()
        with open_raster(self._file) as raster:
            self._shape, self._dtype = (raster.count, *raster.size), raster.dtype
            self._identity = _identity(self._file)
        self._describe(**known)
        self.path = None if owned else str(path)
        self._remove = weakref.finalize(self, _remove, Path(path).absolute(), os.getpid()) if owned else None

    @classmethod
    def from_blocks(cls, blocks: GeoTiffBlocks, **known: Unpack[RasterMetadata]) -> StoredRaster:
        """Finish a GeoTIFF whose blocks are all written, and return the raster that owns the file.

        If that fails, the file is removed.
        """
        try:
            path = blocks.finish(**known)
            return cls(path, owned=True, **known)
        except BaseException:
            blocks.discard()
            raise

    @property
    def array(self) -> NDArray[Any]:  # type: ignore[override]  # read-only, unlike in the base class
        """All pixels [bands, height, width], read from the file at each access."""
        with self._open() as raster:
            return raster.read().array

    def _extent(self) -> tuple[int, ...]:
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the pixels."""
        return self._dtype

    @property
    def valid(self) -> NDArray[np.bool_] | None:
        """Mask, bool [height, width], False where a band is nodata or NaN. None if every pixel is valid."""
        with self._open() as raster:
            return valid_mask(raster, self.nodata)

    @property
    def image(self) -> Image:
        """Picture of the raster like `RasterOutput.image`, reduced to at most 2048 pixels on its longer side.

        If the raster is reduced, a pixel is the mean of the valid pixels that it covers. For classes (integers with
        names or colours) it is the pixel in the middle of the covered pixels.
        """
        if max(self.height, self.width) <= PREVIEW:
            return super().image
        classes = are_classes(self.dtype, self.class_names, self.palette)
        with self._open() as raster:
            array, valid = preview(raster, self.nodata, classes=classes)
        return render(array, valid, self.palette)

    def _part(self, window: Window) -> NDArray[Any]:
        with self._open() as raster:
            return raster.read(window).array

    def save(self, path: str | PurePath, **options: Any) -> PurePath:
        """Write the raster to a file. The first save as GeoTIFF moves the raster's temporary file to ``path``.

        The raster is read from the new path afterwards, also from a bucket. Further GeoTIFFs are copies. Saving to the
        raster's own path writes nothing. Raises SaveError as `Savable.save` does, and InputError if the raster is
        closed, or if its file was removed or replaced.
        """
        target = place_of(path)
        tiff = self.formats.get(target.suffix.lower()) == "tiff"
        with self._lock:
            if tiff and self._remove is None and same_file(target, self._file):
                self._check_file()
                FORMATS["tiff"].check_options(options, self.formats)
                return target
            super().save(target, **options)
            if tiff and self._remove is not None:
                self._moved(target)
        return target

    def placed(self, source: Source) -> StoredRaster:
        """Return the raster unchanged. Its file already has the georeference of its input."""
        return self

    def close(self) -> None:
        """Remove the temporary file if the raster owns it. The raster cannot be read afterwards.

        May be called more than once.
        """
        with self._lock:
            self._closed = True
            if self._remove is not None:
                self._remove()

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            return {name: value for name, value in vars(self).items() if name not in ("_lock", "_remove")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.RLock(), _remove=None)

    def _open(self) -> OpenRaster:
        with self._lock:
            self._check_file()
            return open_raster(self._file)

    def _check_file(self) -> None:
        if self._closed:
            tiff = self.path is not None and self.formats.get(Path(self.path).suffix.lower()) == "tiff"
            remedy = f"read {self.path} itself" if tiff else "read it, or save it as GeoTIFF, before"
            raise InputError(f"the raster was closed; {remedy}")
        try:
            identity = _identity(self._file)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise InputError(
                "the file of this raster is gone (its owner saved or closed it, or it was moved):"
                f" {self._file}; save it before it is copied or sent"
            ) from error
        if identity != self._identity:
            raise InputError(f"{self._file} was replaced since this result was written; open it again")

    def _write(self, path: Path, name: str, options: dict[str, Any]) -> None:
        self._check_file()
        if name != "tiff":
            super()._write(path, name, options)
            return
        FORMATS[name].check_options(options, self.formats)
        if not isinstance(self._file, Path):
            download(self._file, path)
        elif self._remove is None or not _linked(self._file, path):
            shutil.copyfile(self._file, path)

    def _encode(self, name: str, options: dict[str, Any]) -> bytes:
        if name != "tiff":
            return super()._encode(name, options)
        FORMATS[name].check_options(options, self.formats)
        with self._lock:
            self._check_file()
            if isinstance(self._file, Path):
                return self._file.read_bytes()
            with open_in_bucket(self._file) as file:
                return file.read()

    def _moved(self, target: Path | BucketPath) -> None:
        if self._remove is not None:
            self._remove()
        self._remove = None
        self._file, self.path = target.absolute() if isinstance(target, Path) else target, str(target)
        self._identity = _identity(self._file)


def _identity(file: Path | BucketPath) -> tuple[object, ...]:
    """Return a key that changes when the file at a path or in a bucket is replaced."""
    if not isinstance(file, Path):
        return identity_in_bucket(file)
    status = file.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _linked(file: Path, path: Path) -> bool:
    """Hard-link a file to ``path`` with the permissions of a new file. Return False if that is not possible."""
    path.touch()
    mode = path.stat().st_mode
    path.unlink()
    try:
        os.link(file, path)
    except OSError:  # the path is on another file system, or the file system does not support hard links
        return False
    path.chmod(mode)
    return True


def _remove(file: Path, process: int) -> None:
    """Remove a temporary file if this is the process that created the file. Do nothing in a forked child process.

    ``process`` is the id of the process that created the file.
    """
    if os.getpid() == process:
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)
