"""Windows of GeoTIFFs of every kind, with rasterio (GDAL) as the judge."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
import rasterio
from hypothesis import given, settings
from hypothesis import strategies as st
from rasterio.control import GroundControlPoint
from rasterio.enums import ColorInterp
from rasterio.io import MemoryFile
from rasterio.transform import Affine
from rasterio.windows import Window as RasterioWindow

from vllm_mmout.geo import Raster, Window, open_raster, read_raster

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")

HEIGHT, WIDTH = 75, 106  # neither a multiple of a block
DTYPES = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64", "complex64"]
COMPRESSIONS = ["none", "deflate", "lzw", "zstd", "packbits", "lzma", "lerc", "lerc_deflate"]
PLACES = {
    "north up": {"crs": "EPSG:32614", "transform": Affine(30, 0, 440280, 0, -30, 3159720)},
    "south up": {"crs": "EPSG:4326", "transform": Affine(0.25, 0, -180, 0, 0.25, -90)},
    "rotated": {"crs": "EPSG:3857", "transform": Affine(9.7, 2.6, 1e6, 2.6, -9.7, 5e6)},
    "across the antimeridian": {"crs": "EPSG:4326", "transform": Affine(0.1, 0, 178.3, 0, -0.1, 12)},
    "points": {
        "crs": "EPSG:4326",
        "gcps": [GroundControlPoint(row, col, 10 + col / 9, 50 - row / 7, 3) for row in (0, 40) for col in (5, 90.5)],
    },
    "nowhere": {},
}


@dataclass(frozen=True)
class Layout:
    """How a file is made."""

    dtype: str
    bands: int
    options: dict[str, object]
    place: str
    nodata: float | None
    validity: str
    """"none", "mask" (GDAL's internal mask), "alpha" or "sparse"."""
    seed: int
    windows: list[Window] = field(repr=True)
    picked: list[int]

    def pixels(self) -> np.ndarray:
        rng = np.random.default_rng(self.seed)
        values = rng.integers(-90, 90, (self.bands, HEIGHT, WIDTH))
        if self.dtype.startswith("u"):
            values += 90
        array = values.astype(self.dtype)
        if self.nodata is not None:
            array[rng.random(array.shape) < 0.2] = self.nodata
        return array

    def file(self) -> bytes:
        """The file, by rasterio."""
        array = self.pixels()
        with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True), MemoryFile() as memory:
            with memory.open(
                driver="GTiff", dtype=self.dtype, count=self.bands, height=HEIGHT, width=WIDTH, nodata=self.nodata,
                **self.options, **PLACES[self.place],
            ) as file:  # fmt: skip
                if self.validity == "sparse":
                    file.write(array[:, :20, :30], window=RasterioWindow(0, 0, 30, 20))
                else:
                    file.write(array)
                if self.validity == "mask":
                    file.write_mask(np.random.default_rng(self.seed).random((HEIGHT, WIDTH)) < 0.5)
                file.descriptions = [f"band {number}" if number % 2 else None for number in file.indexes]
            return bytes(memory.getbuffer())


@st.composite
def windows(draw: st.DrawFn) -> Window:
    row, col = draw(st.integers(0, HEIGHT - 1)), draw(st.integers(0, WIDTH - 1))
    return Window(row, col, draw(st.integers(1, HEIGHT - row)), draw(st.integers(1, WIDTH - col)))


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    dtype, bands = draw(st.sampled_from(DTYPES)), draw(st.integers(1, 4))
    compression = draw(st.sampled_from(COMPRESSIONS))
    if compression.startswith("lerc") and dtype in ("int64", "uint64", "complex64"):
        compression = "deflate"  # LERC has none of these
    options: dict[str, object] = {
        "compress": compression,
        "interleave": draw(st.sampled_from(["pixel", "band"])),
        "BIGTIFF": draw(st.sampled_from(["YES", "NO"])),
        "ENDIANNESS": draw(st.sampled_from(["LITTLE", "BIG"])),
    }
    if draw(st.booleans()):
        options |= {"tiled": True, "blockxsize": draw(st.sampled_from([16, 48])), "blockysize": 32}
    else:
        options["blockysize"] = draw(st.sampled_from([1, 7, 32, HEIGHT]))
    if compression in ("deflate", "lzw", "zstd") and dtype != "complex64" and draw(st.booleans()):
        options["predictor"] = draw(st.sampled_from([2, 3])) if dtype.startswith("float") else 2
    nodata = draw(st.sampled_from([None, 0, 77, math.nan if dtype.startswith("float") else None]))
    validity = draw(st.sampled_from(["none", "mask", "alpha", "sparse"]))
    if validity == "alpha":
        if dtype == "complex64" or bands == 1:
            validity = "none"
        else:
            options |= {"alpha": "yes", "photometric": "minisblack"}
    if validity == "sparse":
        options["SPARSE_OK"] = True
    return Layout(
        dtype, bands, options, draw(st.sampled_from(sorted(PLACES))), nodata, validity, draw(st.integers(0, 99)),
        draw(st.lists(windows(), min_size=1, max_size=4)),
        draw(st.lists(st.integers(1, bands), min_size=1, max_size=5)),
    )  # fmt: skip


def alpha_of(file: rasterio.DatasetReader) -> int | None:
    """The number of the alpha band, as GDAL sees it."""
    return next((band for band in file.indexes if file.colorinterp[band - 1] == ColorInterp.alpha), None)


def expected_mask(file: rasterio.DatasetReader, window: RasterioWindow, bands: list[int] | None, layout: Layout):
    """What the file says is valid; an alpha band that is asked for by number masks nothing any more."""
    alpha = alpha_of(file)
    if alpha is not None and alpha in (bands or []):
        return None
    if layout.validity == "mask":
        return file.dataset_mask(window=window) > 0
    return None if alpha is None else file.read(alpha, window=window) != 0


def assert_reads(
    raster: Raster, file: rasterio.DatasetReader, window: Window, bands: list[int] | None, layout: Layout
) -> None:
    """A window is what rasterio gives for the same window."""
    theirs = RasterioWindow(window.col, window.row, window.width, window.height)
    np.testing.assert_array_equal(raster.array, file.read(bands, window=theirs), strict=True)
    assert raster.descriptions == tuple(file.descriptions[band - 1] for band in bands or file.indexes)
    mask = expected_mask(file, theirs, bands, layout)
    assert (raster.mask is None) == (mask is None)
    if mask is not None:
        np.testing.assert_array_equal(raster.mask, mask)
    assert raster.alpha == (alpha_of(file) if bands is None else None)
    place = raster.georeference
    if file.gcps[0]:
        moved = [(gcp.row - window.row, gcp.col - window.col, gcp.x, gcp.y, gcp.z) for gcp in file.gcps[0]]
        assert place is not None
        assert [(gcp.row, gcp.col, gcp.x, gcp.y, gcp.z) for gcp in place.gcps] == moved
    elif layout.place != "nowhere":
        assert place is not None
        assert place.transform == pytest.approx(
            tuple(file.transform @ Affine.translation(window.col, window.row))[:6], rel=1e-15
        )


@settings(max_examples=250, deadline=None)
@given(layouts())
def test_any_window_of_any_layout_is_what_rasterio_reads(layout: Layout) -> None:
    """Pixels, mask, descriptions and place of windows, of all bands and of some, are those that rasterio gives."""
    data = layout.file()
    with open_raster(data) as opened, MemoryFile(data) as memory, memory.open() as file:
        assert opened.size == file.shape
        assert (opened.count, opened.dtype) == (file.count, np.dtype(layout.dtype))
        assert opened.nodata == file.nodata or math.isnan(opened.nodata)
        for window, raster in zip(layout.windows, opened.windows(layout.windows), strict=True):
            assert_reads(raster, file, window, None, layout)
        assert opened.decoded.max() <= 1
        for window, raster in zip(layout.windows, opened.windows(layout.windows, layout.picked), strict=True):
            assert_reads(raster, file, window, layout.picked, layout)
        assert opened.decoded.max() <= 2
        assert_reads(opened.read(), file, Window(0, 0, *file.shape), None, layout)


@settings(max_examples=60, deadline=None)
@given(layouts())
def test_a_window_is_cut_as_select_cuts_it_from_the_whole(layout: Layout) -> None:
    """Reading some bands of a window gives what picking them from the whole raster and slicing gives, mask included."""
    data = layout.file()
    whole = read_raster(data).select(layout.picked)
    with open_raster(data) as opened:
        for window in layout.windows:
            part = opened.read(window, layout.picked)
            np.testing.assert_array_equal(part.array, whole.array[:, window.rows, window.cols], strict=True)
            assert (part.alpha, part.descriptions, part.metadata) == (None, whole.descriptions, whole.metadata)
            assert (part.mask is None) == (whole.mask is None)
            if whole.mask is not None:
                np.testing.assert_array_equal(part.mask, whole.mask[window.rows, window.cols])
