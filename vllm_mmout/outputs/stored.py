"""StoredRaster: a raster output that lies on disk and is read by windows."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import weakref
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Unpack

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
    """A raster that lies on disk as a GeoTIFF: a result that need not fit into memory.

    All of `RasterOutput`, with these differences: `array`, `valid` and an ``.npz`` read the whole raster, `read` a
    part of it; pictures are at most 2048 pixels wide and high. Threads may use one at the same time. A copy, or one
    that was pickled, reads the same file and does not own it. Reading, copying and saving raise `InputError` where the
    file is gone, or was replaced by another.

    Args:
        path: a GeoTIFF that holds pixels and all that is known of them.
        owned: whether the file is temporary: it is moved by the first `save` as GeoTIFF, and else removed by `close`,
            when this object is collected, or when the process ends normally; one that is killed leaves it.
        known: what `RasterOutput` takes beside the array. What is not given is unknown, whatever the file says.

    Raises:
        InputError: the file cannot be read, or the names or the palette have another shape or dtype.

    """

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
        """Finish a file of blocks, all written, and own it; after an error nothing is left on the disk."""
        try:
            path = blocks.finish(**known)
            return cls(path, owned=True, **known)
        except BaseException:
            blocks.discard()
            raise

    @property
    def array(self) -> NDArray[Any]:  # type: ignore[override]  # what lies on disk can only be read
        """All pixels, [bands, height, width], read anew each time."""
        with self._open() as raster:
            return raster.read().array

    def _extent(self) -> tuple[int, ...]:
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the pixels."""
        return self._dtype

    @property
    def valid(self) -> NDArray[np.bool_] | None:
        """False where a band is nodata or NaN, bool [height, width]; None if every pixel is valid."""
        with self._open() as raster:
            return valid_mask(raster, self.nodata)

    @property
    def image(self) -> Image:
        """A picture as `RasterOutput.image`, its longer side at most 2048 pixels.

        Where pixels become one, measurements are the mean of the valid ones, and classes (integers that have names or
        colours) that of the one in the middle.
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
        """Write the result to a file, as `RasterOutput.save`.

        The first GeoTIFF takes the temporary file over, and the raster is read from there afterwards, from a bucket
        too; a further one is a copy, and over its own file nothing is written. InputError: the raster is closed, or its
        file is gone or was replaced.
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
        """This raster, which was laid on its input while it was written."""
        return self

    def close(self) -> None:
        """Remove the temporary file, if there is one; the raster cannot be read any more. Again: nothing."""
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
            kept = f"read {self.path} itself" if tiff else "read it, or save it as GeoTIFF, before"
            raise InputError(f"the raster was closed; {kept}")
        try:
            identity = _identity(self._file)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise InputError(
                "the file of this raster is gone (its owner saved or closed it, or it was moved):"
                f" {self._file}; save it before it is copied or sent"
            ) from error
        if identity != self._identity:
            raise InputError(f"{self._file} was replaced since this result was written; open it anew")

    def _write(self, path: Path, name: str, options: dict[str, Any]) -> None:
        self._check_file()
        if name != "tiff":
            path.write_bytes(self._encode(name, options))
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
    """What tells a file from another that takes its place."""
    if not isinstance(file, Path):
        return identity_in_bucket(file)
    found = file.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _linked(file: Path, path: Path) -> bool:
    """Give a file a second name, and the rights that a new one would have there; False where that cannot be."""
    path.touch()
    mode = path.stat().st_mode
    path.unlink()
    try:
        os.link(file, path)
    except OSError:  # another file system, or one without links
        return False
    path.chmod(mode)
    return True


def _remove(file: Path, process: int) -> None:
    """Remove a temporary file, in the process that made it alone: a fork has the same objects."""
    if os.getpid() == process:
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)
