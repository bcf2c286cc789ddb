"""Cloud-optimised GeoTIFF: what rio-cogeo's validator, GDAL's COG driver and the tags say of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import rasterio
import tifffile
from gdal_overviews import overviews_of, written
from rasterio.enums import ColorInterp, Resampling
from rasterio.io import MemoryFile
from rasterio.shutil import copy

from vllm_mmout.geo.raster.opened import read_raster
from vllm_mmout.geo.raster.writing import GeoTiffBlocks, write_geotiff

cog_validate = pytest.importorskip("rio_cogeo.cogeo", reason="the validator is rio-cogeo's").cog_validate
pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")

PALETTE = np.arange(24, dtype="uint8").reshape(8, 3)
RANDOM = np.random.default_rng(0)


def classes(height: int, width: int) -> np.ndarray:
    return RANDOM.integers(0, 8, (1, height, width)).astype("uint8")


def values(bands: int, height: int, width: int) -> np.ndarray:
    return RANDOM.normal(size=(bands, height, width)).astype("float32")


def assert_valid(path: Path, overviews: int) -> None:
    """The validator finds nothing, and the file has so many overviews, each half as large."""
    assert cog_validate(path, strict=True, quiet=True) == (True, [], [])
    with rasterio.open(path) as file:
        assert file.overviews(1) == [2**level for level in range(1, overviews + 1)]


@pytest.mark.parametrize("overviews", range(8))
def test_the_validator_finds_no_error_and_no_warning(tmp_path: Path, overviews: int) -> None:
    """With 0 to 7 overviews; rasterio reads the pixels that were written."""
    array = classes(2 if overviews > 3 else 300, 512 << overviews)
    write_geotiff(tmp_path / "a.tif", array, palette=PALETTE, nodata=7)
    assert_valid(tmp_path / "a.tif", overviews)
    with rasterio.open(tmp_path / "a.tif") as file:
        np.testing.assert_array_equal(file.read(), array, strict=True)


@pytest.mark.parametrize(
    "array",
    [values(1, 1030, 1537), values(3, 700, 900), values(4, 513, 2), RANDOM.integers(0, 9, (3, 600, 600), "uint8")],
    ids=lambda array: f"{array.shape} {array.dtype}",
)
def test_several_bands_and_other_dtypes_are_valid(tmp_path: Path, array: np.ndarray) -> None:
    """Also of sides that are odd, and of a raster that is thin."""
    bands, height, width = array.shape
    blocks = GeoTiffBlocks(tmp_path, bands=bands, height=height, width=width, dtype=array.dtype)
    for row in range(-(-height // 512)):
        for col in range(-(-width // 512)):
            blocks.write(row, col, array[:, row * 512 : (row + 1) * 512, col * 512 : (col + 1) * 512])
    path = blocks.finish(nodata=-1 if array.dtype.kind == "f" else None)
    assert_valid(path, len(overviews_of(path)))
    with rasterio.open(path) as file:
        np.testing.assert_array_equal(file.read(), array, strict=True)


IN_PLACE = [("float32", 255, None), ("uint8", None, ["land"])]
RASTERS = [
    *((dtype, nodata, None) for dtype in ("uint8", "float32", "uint16") for nodata in (255, None)),
    *((dtype, nodata, ["land"]) for dtype in ("uint8", "uint16") for nodata in (255, None)),
]


@pytest.mark.parametrize(
    ("driver", "dtype", "nodata", "class_names"),
    [
        *(("COG", *raster) for raster in RASTERS),
        *(("GTiff", *raster) for raster in IN_PLACE),
        *(pytest.param("GTiff", *raster, marks=pytest.mark.slow) for raster in RASTERS if raster not in IN_PLACE),
    ],
)
def test_gdal_at_its_defaults_makes_the_same_overviews(
    tmp_path: Path, driver: str, dtype: str, nodata: float | None, class_names: list[str] | None
) -> None:
    """All levels at once, by the COG driver and in place, of a size that can be halved until one fits a block.

    Of classes they take the nearest, of measurements the mean.
    """
    resampling = Resampling.nearest if class_names else Resampling.average
    array = RANDOM.normal(100, 30, (1, 1024, 1536)).clip(0, 200).astype(dtype)
    array[:, :400, :500] = 255
    path, plain, theirs = tmp_path / "a.tif", tmp_path / "plain.tif", tmp_path / "theirs.tif"
    write_geotiff(path, array, nodata=nodata, class_names=class_names)
    with MemoryFile() as memory:
        written(memory, array, nodata).close()
        plain.write_bytes(memory.read())
    if driver == "COG":
        copy(plain, theirs, driver="COG", overview_resampling=resampling.name)
    else:
        plain.rename(theirs)
        with rasterio.open(theirs, "r+") as file:
            file.build_overviews([2, 4], resampling)
    mine, others = overviews_of(path), overviews_of(theirs)
    assert len(mine) == len(others) == 2
    for one, other in zip(mine, others, strict=True):
        np.testing.assert_array_equal(one, other, strict=True)


def test_the_first_image_and_its_overviews_say_what_they_are(tmp_path: Path) -> None:
    """The image is the first, overviews have nodata and colours too, and only the image its place and its items."""
    path = tmp_path / "a.tif"
    array = classes(1100, 1300)
    write_geotiff(
        path, array, palette=PALETTE, nodata=7, metadata={"A": "b", "TIFFTAG_DATETIME": "2024:05:01 10:11:12"}
    )
    with rasterio.open(path, OVERVIEW_LEVEL=1) as file:
        assert (file.nodata, file.colorinterp, file.shape) == (7, (ColorInterp.palette,), (275, 325))
        assert file.colormap(1)[3][:3] == tuple(PALETTE[3].tolist())
        np.testing.assert_array_equal(file.dataset_mask() > 0, file.read(1) != 7)
    with tifffile.TiffFile(path) as tiff:
        assert [int(page.subfiletype) for page in tiff.pages] == [0, 1, 1]
        assert [page.shape for page in tiff.pages] == [(1100, 1300), (550, 650), (275, 325)]
        for code, places in ((306, 1), (320, 3), (42112, 1), (42113, 3)):
            assert [code in page.tags for page in tiff.pages] == [page < places for page in range(3)]
    np.testing.assert_array_equal(read_raster(path).array, array, strict=True)
