"""Bands of different pixel sizes on one grid, with GDAL's warper (through rasterio) as the judge."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import rasterio
from hypothesis import given
from hypothesis import strategies as st
from rasterio.enums import Resampling
from rasterio.io import MemoryFile
from rasterio.transform import Affine
from rasterio.warp import reproject

from vllm_mmout.geo import Window, open_raster
from vllm_mmout.geo.raster.stack.stack import Layer, OpenStack

CRS = "EPSG:32632"
SIZE = (60, 72)
"""Rows and columns of the finest grid, whose pixels are 10 m."""
FINE = Affine(10, 0, 399960, 0, -10, 5300040)
DTYPES = ["uint8", "uint16", "int16", "int32", "float32", "float64"]


@dataclass(frozen=True)
class Coarse:
    """A band of other pixels than the finest, which covers it."""

    dtype: str
    pixel: tuple[float, float]
    """Height and width, in pixels of the finest grid."""
    beyond: tuple[float, float]
    """How far it begins above and to the left of the finest grid, in the same pixels."""
    turned: float
    gaps: float
    """Part of the pixels without an observation."""
    nodata: float | None
    masked: bool
    layout: dict[str, object]
    seed: int

    @property
    def grid(self):
        """Of the finest pixels, turned or not."""
        return FINE @ Affine.rotation(self.turned)

    @property
    def transform(self):
        """Of this band's pixels."""
        (height, width), (above, before) = self.pixel, self.beyond
        return self.grid @ Affine.translation(-before, -above) @ Affine.scale(width, height)

    @property
    def judged(self):
        """Where GDAL's word counts: a middle on the border of two pixels may fall to either where grids are turned."""
        middles = [
            (np.arange(size) + 0.5 + first) / side
            for size, first, side in zip(SIZE, self.beyond, self.pixel, strict=True)
        ]
        rows, cols = (np.abs(middle - np.round(middle)) > 1e-3 for middle in middles)
        return np.ones(SIZE, bool) if not self.turned else rows[:, None] & cols

    @property
    def pixels(self):
        """[rows, columns], and where they are valid."""
        rng = np.random.default_rng(self.seed)
        shape = [
            int(np.ceil((size + first) / side - 1e-9))
            for size, first, side in zip(SIZE, self.beyond, self.pixel, strict=True)
        ]
        values = rng.integers(1, 120, shape).astype(self.dtype)
        if self.dtype.startswith("float"):
            values += rng.random(shape).astype(self.dtype)
        valid = rng.random(shape) >= self.gaps
        if self.nodata is not None:
            values[~valid] = self.nodata
        return values, valid

    def write(self):
        """The file's bytes."""
        values, valid = self.pixels
        height, width = values.shape
        profile = {"dtype": self.dtype, "height": height, "width": width, "transform": self.transform, **self.layout}
        with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True), MemoryFile() as memory:
            with memory.open(driver="GTiff", count=1, crs=CRS, nodata=self.nodata, **profile) as file:
                file.write(values, 1)
                if self.masked:
                    file.write_mask(valid)
            return memory.read()

    def warped(self, resampling):
        """What GDAL makes of it on the finest grid, and where it says that this is valid."""
        values, valid = self.pixels
        made = [np.zeros(SIZE, self.dtype), np.zeros(SIZE, np.uint8)]
        missing = {} if self.nodata is None else {"src_nodata": self.nodata, "dst_nodata": self.nodata}
        grids = {"src_crs": CRS, "dst_crs": CRS, "src_transform": self.transform, "dst_transform": self.grid}
        # It takes gaps from nodata alone; those of a mask are tried with a value that no pixel has.
        if self.masked:
            values = np.where(valid, values, 0).astype(self.dtype)
            missing = {"src_nodata": 0, "dst_nodata": 0}
        reproject(values, made[0], resampling=Resampling[resampling], tolerance=0, **grids, **missing)
        reproject(valid.astype(np.uint8), made[1], resampling=Resampling.nearest, tolerance=0, **grids)
        return made[0], made[1] == 1


@st.composite
def coarse_bands(draw):
    """Bands of 15 to 60 m and of odd sizes; shifted by pixels or parts of them; striped and tiled; with gaps."""
    side = st.sampled_from([1.0, 1.5, 2.0, 3.0, 6.0, 2.37])
    pixel = draw(side.flatmap(lambda one: st.tuples(st.just(one), st.one_of(st.just(one), side))))
    dtype = draw(st.sampled_from(DTYPES))
    kind = draw(st.sampled_from(["none", "nodata", "mask"]))
    nodata = None
    if kind == "nodata":
        nodata = draw(st.sampled_from([0, 121, *([np.nan, -9999.0] if dtype.startswith("float") else [])]))
    tiled = {"tiled": True, "blockxsize": 16, "blockysize": 16, "compress": "deflate"}
    return Coarse(
        dtype=dtype,
        pixel=pixel,
        beyond=tuple(draw(st.sampled_from([0.0, 0.25, 0.5 * one, one, 3.3])) for one in pixel),
        turned=draw(st.sampled_from([0.0, 0.0, 17.0, 180.0])),
        gaps=0.0 if kind == "none" else draw(st.sampled_from([0.05, 0.6, 1.0])),
        nodata=nodata,
        masked=kind == "mask",
        layout=draw(st.sampled_from([{}, tiled, {"blockysize": 3, "compress": "lzw"}])),
        seed=draw(st.integers(0, 999)),
    )


@st.composite
def windows(draw):
    """Some windows that overlap, or all."""
    many = []
    for _ in range(draw(st.integers(1, 4))):
        row, col = draw(st.integers(0, SIZE[0] - 1)), draw(st.integers(0, SIZE[1] - 1))
        many.append(Window(row, col, draw(st.integers(1, SIZE[0] - row)), draw(st.integers(1, SIZE[1] - col))))
    return many


def fine(band):
    """A raster of the finest grid, which is the reference as it comes first."""
    profile = {"dtype": "uint8", "height": SIZE[0], "width": SIZE[1], "count": 1, "crs": CRS, "transform": band.grid}
    with MemoryFile() as memory:
        with memory.open(driver="GTiff", **profile) as file:
            file.write(np.arange(SIZE[0] * SIZE[1]).reshape(1, *SIZE) % 251 + 1)
        return memory.read()


def difference(found, wanted):
    """The largest: of integers in units, of floats relative to the value."""
    off = np.abs(found.astype(np.float64) - wanted.astype(np.float64))
    return (off if found.dtype.kind in "iu" else off / np.abs(wanted)).max(initial=0.0)


@given(coarse_bands(), windows(), st.sampled_from(["nearest", "bilinear"]))
def test_each_window_is_what_gdal_makes_of_the_whole(band, windows, resampling):
    """Values within a unit (floats within 1e-4 of theirs), gaps in the same places, no segment decoded twice."""
    wanted, valid = band.warped(resampling)
    with ExitStack() as files:
        first, other = (files.enter_context(open_raster(data)) for data in (fine(band), band.write()))
        stack = OpenStack([Layer(first, 0), Layer(other, 0)], "two files", resampling=resampling)
        assert stack.size == SIZE
        for window, raster in zip(windows, stack.windows(windows), strict=True):
            there = window.rows, window.cols
            np.testing.assert_array_equal(raster.array[0], np.arange(SIZE[0] * SIZE[1]).reshape(SIZE)[there] % 251 + 1)
            seen = raster.valid()
            seen = np.ones(raster.array.shape[1:], bool) if seen is None else seen
            judged = band.judged[there]
            np.testing.assert_array_equal(seen[judged], valid[there][judged])
            limit = 0.0 if resampling == "nearest" else 1.0 if not band.dtype.startswith("float") else 1e-4
            compared = seen & judged
            assert difference(raster.array[1][compared], wanted[there][compared]) <= limit
        assert stack.decoded.max() <= 1
