"""Class `OpenZarr`: a raster in a Zarr store that is read by windows."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.formats import is_zarr
from vllm_mmout.geo.raster.gdal import part_size
from vllm_mmout.geo.raster.raster import Window
from vllm_mmout.geo.raster.segmented_raster import OpenSegments
from vllm_mmout.geo.raster.zarr.array import ZarrArray
from vllm_mmout.geo.raster.zarr.choice import chosen_arrays
from vllm_mmout.geo.raster.zarr.facts import facts_of
from vllm_mmout.geo.raster.zarr.store import FolderStore, zip_store

if TYPE_CHECKING:
    from vllm_mmout.geo.raster.files import SharedFile
    from vllm_mmout.geo.raster.scratch import Scratch
    from vllm_mmout.geo.raster.segmented_image import SegmentedImage
    from vllm_mmout.geo.raster.segments import Place
    from vllm_mmout.geo.raster.zarr.facts import ZarrFacts
    from vllm_mmout.geo.raster.zarr.store import Store

_MOST_CHUNKS: Final = 2**22
"""Largest accepted number of chunks of a band. In chunks of 1024 x 1024 pixels, a band may thus have about two million
rows and two million columns."""
_LARGEST: Final = 512 << 20
"""Largest accepted size in bytes of the decoded Zarr chunks that must be in memory at once."""


def open_zarr_folder(folder: Path) -> OpenZarr:
    """Open a local Zarr folder as a raster. The folder may be a whole store, or a group or an array in a store."""
    array = (folder / "zarr.json").is_file() or (folder / ".zarray").is_file()
    parent = folder.absolute().parent
    if array and is_zarr(parent):
        return _opened(FolderStore(parent), folder.absolute().name)
    return _opened(FolderStore(folder))


def open_zarr_zip(file: SharedFile) -> OpenZarr | None:
    """Open a zipped Zarr store as a raster. Return None if the file is not a Zarr store."""
    store = zip_store(file)
    return None if store is None else _opened(store)


def check_zarr_address(address: str) -> None:
    """Raise InputError if the remote ``address`` is the address of a Zarr folder. Remote stores must be zip files."""
    if ".zarr" in (PurePosixPath(part).suffix.lower() for part in address.split("/")):
        raise InputError(
            f"{address} is a Zarr store in a folder, which is read from a local disk only; zip it without compression"
            " and give the address of x.zarr.zip, or copy it"
        )


def _opened(store: Store, only: str | None = None) -> OpenZarr:
    with ExitStack() as stack:
        stack.callback(store.close)
        opened = OpenZarr(store, facts_of(chosen_arrays(store, only)))
        stack.pop_all()  # the raster closes the store
        return opened


class OpenZarr(OpenSegments):
    """Raster in an open Zarr store. Each read decodes the chunks that it needs, each chunk at most once."""

    def __init__(self, store: Store, facts: ZarrFacts) -> None:
        arrays = list(dict.fromkeys(array for array, _ in facts.planes))
        dtype = np.result_type(*(array.dtype for array in arrays))
        self._bits = dtype == np.bool_
        dtype = np.dtype(np.uint8) if self._bits else dtype
        size = arrays[0].shape[-2], arrays[0].shape[-1]
        pixel = len(facts.planes) * dtype.itemsize
        for array in arrays:
            _check_count(array, size)
        sides = [array.block for array in arrays]
        chunk = min(max(rows for rows, _ in sides), size[0]), min(max(cols for _, cols in sides), size[1])
        block = part_size("Zarr", chunk, size, pixel)
        super().__init__(
            name=store.name,
            size=size,
            dtype=dtype,
            block=block,
            block_bytes=math.prod(block) * pixel,
            masked_by_alpha=False,
            **facts.of_raster(dtype),
        )
        self._store = store
        self._planes = facts.planes
        self._decoded = np.zeros((-(-size[0] // block[0]), -(-size[1] // block[1])), np.int64)

    @property
    def decoded(self) -> NDArray[np.int64]:
        """Number of times that each part of the raster was decoded, int64 [parts] in row-major order.

        A part is a group of chunks.
        """
        return self._decoded.ravel()

    def close(self) -> None:
        """Close the store. May be called repeatedly."""
        super().close()
        self._store.close()

    def _image(self, places: Sequence[int]) -> tuple[SegmentedImage, Sequence[int]]:
        planes = [self._planes[place] for place in places]
        return ZarrParts(self, planes, self._decoded), range(len(places))

    def _masks(self, places: Sequence[int]) -> None:
        del places


def _check_count(array: ZarrArray, size: tuple[int, int]) -> None:
    """Raise InputError if a band of ``array`` has too many chunks. ``size`` is the band's (height, width)."""
    count = math.prod(-(-side // part) for side, part in zip(size, array.block, strict=True))
    if count > _MOST_CHUNKS:
        raise InputError(
            f"{array.node.name} states {size[0]} x {size[1]} pixels in {count} chunks, {_MOST_CHUNKS} at most; store"
            " it in larger chunks"
        )


class ZarrParts:
    """Adapter that lets `read_windows` read planes of Zarr arrays, in parts that consist of whole chunks.

    ``decoded``, int64 [rows, columns] of parts, counts how often each part was read.
    """

    planes = 1
    fill = 0.0

    def __init__(
        self,
        raster: OpenZarr,
        planes: Sequence[tuple[ZarrArray, tuple[int, ...]]],
        decoded: NDArray[np.int64],
    ) -> None:
        self.block = raster.block
        self.dtype = raster.dtype
        self.grid: tuple[int, int] = decoded.shape
        self.bytes = math.prod(self.block) * len(planes) * self.dtype.itemsize
        self._size = raster.size
        self._planes = planes
        self._decoded = decoded
        self._counting = threading.Lock()
        if self.bytes > _LARGEST:
            raise InputError(
                f"{raster.name} is stored in chunks of {self.block[0]} x {self.block[1]} pixels, {self.bytes >> 20} MiB"
                f" decoded for {len(planes)} bands, which must be in memory at once, {_LARGEST >> 20} MiB at most;"
                " choose fewer bands, or store it in smaller chunks"
            )

    def window(self, place: Place) -> Window:
        """Return the pixel window of one part of the raster.

        ``place`` is the (plane, row, column) of the part in the grid of parts.
        """
        return Window.of_block(*place[1:], self.block, self._size)

    def read(self, places: Sequence[Place], scratch: Scratch) -> Sequence[memoryview | None]:
        """Read nothing, and return an empty buffer for each part of the raster in ``places``.

        The method `decode` reads the Zarr chunks later.
        """
        del scratch
        return [memoryview(b"")] * len(places)

    def decode(self, place: Place, data: memoryview, scratch: Scratch) -> NDArray[Any]:
        """Read and decode the Zarr chunks of one part of the raster, and return its pixels [rows, columns, bands]."""
        del data, scratch
        with self._counting:
            self._decoded[place[1:]] += 1
        window = self.window(place)
        pixels = np.empty((window.height, window.width, len(self._planes)), self.dtype)
        numbers: dict[ZarrArray, list[int]] = {}
        for number, (array, _) in enumerate(self._planes):
            numbers.setdefault(array, []).append(number)
        for array, places in numbers.items():
            values = array.read([self._planes[number][1] for number in places], window)
            pixels[:, :, places] = np.moveaxis(values, 0, 2)
        return pixels
