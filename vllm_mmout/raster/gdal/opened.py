"""Reading what GDAL alone reads, by windows, through rasterio (the extra ``gdal``)."""

from __future__ import annotations

import math
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vllm_mmout.errors import InputError
from vllm_mmout.raster.gdal.datasets import Datasets
from vllm_mmout.raster.gdal.facts import GdalFacts, gdal_facts
from vllm_mmout.raster.gdal.names import gdal_target
from vllm_mmout.raster.gdal.parts import GdalMasks, GdalParts, part_size
from vllm_mmout.raster.sequence import read_windows
from vllm_mmout.raster.windowed import OpenRaster

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from numpy.typing import NDArray

    from vllm_mmout.raster.gdal.names import Drivers
    from vllm_mmout.raster.window import Window


def open_gdal(name: str, target: str, drivers: Drivers, data: bytes | None = None) -> OpenRaster:
    """Open a file through GDAL.

    Args:
        name: what to call it in an error.
        target: its path, or GDAL's name of it.
        drivers: the drivers that may open it, in groups.
        data: its bytes, in place of a path.

    Raises:
        InputError: rasterio is not installed; the file is damaged, or holds several images.

    """
    with ExitStack() as stack:
        datasets = Datasets(name, target, drivers, data)
        stack.callback(datasets.close)
        with datasets.dataset() as dataset:
            if not dataset.count:
                raise _no_bands(name, dataset.subdatasets)
            known = gdal_facts(dataset, name)
        opened = OpenGdal(datasets, known)
        stack.pop_all()  # the raster closes them
        return opened


def open_gdal_name(name: str) -> OpenRaster:
    """Open one of GDAL's names, as `is_gdal_name` tells them.

    Raises:
        InputError: as of `open_gdal`.

    """
    target, drivers = gdal_target(name)
    return open_gdal(name, target, drivers)


def files_of(name: str) -> list[Path]:
    """The files on this machine that GDAL reads for a path or one of its names; none where it cannot open it."""
    target, drivers = gdal_target(name)
    try:
        with closing(Datasets(name, target, drivers)) as datasets, datasets.dataset() as dataset:
            return [Path(file) for file in dataset.files]
    except InputError:  # raised again where it is read
        return []


def _no_bands(name: str, within: Sequence[str]) -> InputError:
    if not within:
        return InputError(f"{name} holds no image")
    return InputError(f"{name} holds {len(within)} images; give the name of one of them instead: {', '.join(within)}")


class OpenGdal(OpenRaster):
    """A raster that GDAL reads.

    It is read in parts of whole blocks of GDAL's, each part once in a call, so that nothing hangs on what GDAL has in
    its cache. Of a VRT the blocks of its sources are not known: one that lies in several parts is decoded for each.

    Args:
        datasets: the datasets of the file, closed with the raster.
        known: what GDAL says of it.

    """

    def __init__(self, datasets: Datasets, known: GdalFacts) -> None:
        facts = known.facts
        pixel = len(facts.descriptions) * facts.dtype.itemsize
        block = part_size(known.driver, known.block, facts.size, pixel)
        super().__init__(facts, block, math.prod(block) * pixel)
        self._datasets = datasets
        self._validity = known.validity
        grid = (-(-self.size[0] // block[0]), -(-self.size[1] // block[1]))
        self._decoded = np.zeros((2, *grid), np.int64)

    @property
    def decoded(self) -> NDArray[np.int64]:
        """How often GDAL was asked for each part, [rows, columns] in one row, then for the mask of each."""
        return self._decoded.ravel()

    def close(self) -> None:
        """Let the file go; any number of times."""
        super().close()
        self._datasets.close()

    def _arrays(
        self, windows: Sequence[Window], places: Sequence[int], *, masked: bool
    ) -> Generator[tuple[NDArray[Any], NDArray[np.bool_] | None], None, None]:
        alpha = self.alpha - 1 if masked and self.alpha is not None and self._validity == "alpha" else None
        bands = list(dict.fromkeys([*places, *([] if alpha is None else [alpha])]))  # each band is read once
        order = [bands.index(place) for place in places]
        plain = order == list(range(len(order)))
        with ExitStack() as stack:
            parts = self._parts(GdalParts, bands, self.dtype)
            images = stack.enter_context(closing(read_windows(parts, windows, range(len(bands)))))
            masks = None
            if masked and self._validity in ("dataset", "bands"):
                said_by = [0] if self._validity == "dataset" else [band for band in bands if band + 1 != self.alpha]
                parts = self._parts(GdalMasks, said_by, np.dtype(np.bool_))
                masks = stack.enter_context(closing(read_windows(parts, windows, [0])))
            for array in images:
                mask = None
                if masks is not None:
                    mask = next(masks)[0]
                elif alpha is not None:
                    mask = array[bands.index(alpha)] != 0
                yield array[: len(order)] if plain else array[order], mask

    def _parts(self, kind: type[GdalParts], places: Sequence[int], dtype: np.dtype[Any]) -> GdalParts:
        return kind(
            self._datasets,
            self.size,
            self.block,
            [place + 1 for place in places],
            dtype=dtype,
            decoded=self._decoded[int(kind is GdalMasks)],
            nbytes=self.block_bytes,
        )
