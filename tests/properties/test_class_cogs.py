"""Rasters of classes, whose tiles are compressed while blocks arrive, against GDAL's own file of all pixels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from hypothesis import given, settings
from hypothesis import strategies as st
from tifffile import TiffFile

from vllm_mmout.geo import Georeference
from vllm_mmout.geo.raster import compressed_tiles
from vllm_mmout.geo.raster.band_statistics import histogram
from vllm_mmout.geo.raster.pixels_file import PixelsFile
from vllm_mmout.geo.raster.writing import GeoTiffBlocks

cog_validate = pytest.importorskip("rio_cogeo.cogeo", reason="the validator is rio-cogeo's").cog_validate
pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")

SIDES = st.sampled_from([1, 2, 3, 128, 512, 513, 1023, 1025, 1537]) | st.integers(1, 1600)
PLACE = Georeference("EPSG:32631", (10.0, 0.0, 5e5, 0.0, -10.0, 5e6))
TILES = ("TileOffsets", "TileByteCounts")


@st.composite
def classes(draw: st.DrawFn) -> tuple[np.ndarray, dict[str, Any]]:
    """Class numbers of one or more bands, in patches, and their metadata."""
    dtype = np.dtype(draw(st.sampled_from(["uint8", "uint8", "bool", "int8", "uint16", "int16"])))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = draw(st.sampled_from([1, 1, 1, 2, 3, 4])), draw(SIDES), draw(SIDES)
    array = random.integers(0, 2 if dtype == np.bool_ else 9, shape).astype(dtype)
    array[:, : shape[1] // 2] = array[:, :1, :1]
    known: dict[str, Any] = {"class_names": ["land", "water & ice"]}
    if dtype != np.bool_:
        known["nodata"] = draw(st.sampled_from([None, 0, np.iinfo(dtype).max]))
        if known["nodata"] is not None:
            array[:, :, : draw(st.sampled_from([0, 600, 1600]))] = known["nodata"]
    if draw(st.booleans()):
        known["palette"] = np.arange(30, dtype="uint8").reshape(10, 3)
    if draw(st.booleans()):
        known["georeference"] = PLACE
        known["metadata"] = {"a:b=c": "d", "TIFFTAG_DATETIME": "2024:05:01 10:11:12"}
    return array, known


def by_blocks(array: np.ndarray, known: dict[str, Any], seed: int, folder: Path) -> Path:
    """Write the blocks in a random order."""
    bands, height, width = array.shape
    blocks = GeoTiffBlocks(folder, bands=bands, height=height, width=width, dtype=array.dtype, classes=True)
    places = [(row, col) for row in range(-(-height // 512)) for col in range(-(-width // 512))]
    for row, col in np.random.default_rng(seed).permutation(places).tolist():
        blocks.write(row, col, array[:, row * 512 : (row + 1) * 512, col * 512 : (col + 1) * 512])
    return blocks.finish(**known)


def by_gdal(array: np.ndarray, known: dict[str, Any], path: Path) -> Path:
    """Write all pixels to a file, and have GDAL's COG driver make overviews and the result."""
    path.with_suffix(".pixels").touch()
    pixels = PixelsFile(str(path.with_suffix(".pixels")), array.shape, array.dtype)
    pixels.write(0, 0, array)
    pixels.save(str(path), known)
    pixels.discard()
    return path


def contents(path: Path) -> list[Any]:
    """Return the file's first bytes, and the tags and pixels of each of its images."""
    found: list[Any] = [path.read_bytes()[8:192]]
    with TiffFile(path) as tiff:
        for page in tiff.pages:
            tags = {tag.name: tag.value for tag in page.tags if tag.name not in TILES}
            arrays = {name: value.tolist() for name, value in tags.items() if isinstance(value, np.ndarray)}
            found += [tags | arrays, page.asarray().tobytes()]
    return found


@pytest.mark.heavy
@settings(max_examples=16)
@given(classes(), st.integers(0, 2**32 - 1))
def test_the_file_is_that_of_gdals_cog_driver(
    tmp_path_factory: pytest.TempPathFactory, raster: tuple[np.ndarray, dict[str, Any]], seed: int
) -> None:
    """Header, tags, statistics, pixels and overviews are equal in any order of blocks, and the validator is content."""
    array, known = raster
    folder = tmp_path_factory.mktemp("cog")
    mine, theirs = by_blocks(array, known, seed, folder), by_gdal(array, known, folder / "theirs.tif")
    assert contents(mine) == contents(theirs)
    assert cog_validate(mine, strict=True, quiet=True) == (True, [], [])
    with rasterio.open(mine) as file:
        np.testing.assert_array_equal(file.read(), array.astype(file.dtypes[0]))


def test_a_bigtiff_has_offsets_of_64_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above 2 GB of pixels GDAL's header is that of a BigTIFF."""
    options = compressed_tiles.cog_options
    monkeypatch.setattr(compressed_tiles, "cog_options", lambda *known: {**options(*known), "BIGTIFF": "YES"})
    array = np.random.default_rng(0).integers(0, 5, (1, 600, 1100), "uint8")
    path = by_blocks(array, {"class_names": ["land"]}, 0, tmp_path)
    assert path.read_bytes()[2] == 43
    assert cog_validate(path, strict=True, quiet=True) == (True, [], [])
    with rasterio.open(path) as file:
        np.testing.assert_array_equal(file.read(), array)


def test_an_error_of_a_thread_ends_the_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is raised by a later block or by `finish`, and no file is left."""

    def broken(*_: object) -> None:
        raise RuntimeError("no codec")

    monkeypatch.setattr(compressed_tiles.CompressedTiles, "_compressed", broken)
    with pytest.raises(RuntimeError, match="no codec"):
        by_blocks(np.zeros((1, 1100, 700), bool), {}, 0, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("dtype", "nodata"), [("uint8", 255), ("uint8", 7), ("int8", -1), ("int16", -9), ("uint16", 65535)]
)
def test_nodata_of_any_length_is_that_of_gdal(dtype: str, nodata: int, tmp_path: Path) -> None:
    """The header says the nodata value, whether it is filled in afterwards or written by GDAL. Nothing warns."""
    array = np.full((1, 700, 600), nodata, dtype)
    array[:, 100:, 100:] = 3
    known: dict[str, Any] = {"class_names": ["land"], "nodata": nodata}
    ours, gdal = by_blocks(array, known, 1, tmp_path), by_gdal(array, known, tmp_path / "gdal.tif")
    assert ours.read_bytes() == gdal.read_bytes()


def test_a_buffer_may_be_used_again(tmp_path: Path) -> None:
    """Blocks are copied before threads compress them."""
    blocks = GeoTiffBlocks(tmp_path, bands=1, height=2048, width=2048, dtype="uint8", classes=True)
    buffer = np.empty((1, 512, 512), np.uint8)
    for place in range(16):
        buffer[...] = place
        blocks.write(place // 4, place % 4, buffer)
    with rasterio.open(blocks.finish(class_names=["land"])) as file:
        assert file.read(1)[::512, ::512].ravel().tolist() == [*range(16)]


@given(
    st.sampled_from(["uint8", "int8", "uint16", "int16"]),
    st.lists(st.integers(0, 255), min_size=1, max_size=20, unique=True),
    st.lists(st.integers(0, 255), max_size=20, unique=True),
    st.integers(0, 2**32 - 1),
)
def test_likely_values_do_not_change_a_histogram(dtype: str, values: list[int], likely: list[int], seed: int) -> None:
    """Whether they are those of the pixels, some of them, more or others; numpy counts the same."""
    plane = np.random.default_rng(seed).choice(np.array(values).astype(dtype), (7, 9))
    unsigned = plane.view(f"u{plane.itemsize}")
    counts = np.bincount(unsigned.ravel(), minlength=2 ** (8 * plane.itemsize))
    np.testing.assert_array_equal(histogram(plane, likely), counts)
    np.testing.assert_array_equal(histogram(plane, np.unique(unsigned).tolist()), counts)
