"""Masks in files of their own beside a TIFF, as rasterio reads them; and what is no neighbour of a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from beside_tiffs import SIZE, UTM, check, mask, pam, scene
from files_open import open_below

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.opened import open_raster, read_raster
from vllm_mmout.geo.raster.raster import Window

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")


VALID = (np.random.default_rng(1).random((3, *SIZE)) < 0.7).astype(np.uint8) * 255
STORED = [{}, {"tiled": True, "blockxsize": 16, "blockysize": 32, "compress": "deflate"}, {"nbits": 1}]


@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize("suffix", [".msk", ".MSK"])
@pytest.mark.parametrize("own", [{}, {"alpha": "unspecified", "photometric": "RGB", "count": 4}], ids=["", "alpha"])
def test_a_mask_of_all_bands(tmp_path: Path, stored: dict[str, Any], suffix: str, own: dict[str, Any]) -> None:
    """It says what is valid, before an alpha band."""
    path = scene(tmp_path / "x.tif", **own)
    mask(tmp_path / f"x.tif{suffix}", np.minimum(VALID[:1], 1) if "nbits" in stored else VALID[:1], **stored)
    raster = check(path)
    np.testing.assert_array_equal(raster.mask, VALID[0] != 0)


def test_a_mask_that_gdal_wrote(tmp_path: Path) -> None:
    """By rasterio's own hand."""
    path = scene(tmp_path / "x.tif", **UTM)
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=False), rasterio.open(path, "r+") as file:
        file.write_mask(VALID[0])
    assert (tmp_path / "x.tif.msk").is_file()
    np.testing.assert_array_equal(check(path).mask, VALID[0] != 0)


@pytest.mark.parametrize("stored", [{}, {"interleave": "band"}, {"interleave": "pixel", "tiled": True, "blockxsize": 16,
                                                                 "blockysize": 16}], ids=str)  # fmt: skip
def test_a_mask_of_each_band(tmp_path: Path, stored: dict[str, Any]) -> None:
    """A pixel counts where all bands that are asked for have it; of two with the flag of all, the first says it."""
    path = scene(tmp_path / "x.tif")
    mask(tmp_path / "x.tif.msk", VALID, flags=0, **stored)
    check(path)
    with open_raster(path) as opened:
        for bands in ([1], [2], [3, 1], [2, 2]):
            wanted = (VALID[[band - 1 for band in bands]] != 0).all(axis=0)
            np.testing.assert_array_equal(opened.read(bands=bands).mask, wanted)
    mask(tmp_path / "x.tif.msk", VALID, flags=2, **stored)
    np.testing.assert_array_equal(check(path).mask, VALID[0] != 0)


def test_masks_that_do_not_count(tmp_path: Path) -> None:
    """One within the TIFF comes before one beside it; a file that does not say that it is one is none."""
    path = scene(tmp_path / "x.tif")
    mask(tmp_path / "x.tif.msk", VALID[:1], flags=None)
    assert check(path).mask is None
    (tmp_path / "x.tif.msk").unlink()
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True), rasterio.open(path, "r+") as file:
        file.write_mask(VALID[1])
    assert not (tmp_path / "x.tif.msk").exists()
    mask(tmp_path / "x.tif.msk", VALID[:1])
    np.testing.assert_array_equal(check(path).mask, VALID[1] != 0)


def test_a_mask_is_read_by_windows(tmp_path: Path) -> None:
    """Of it, as of the image, what a window touches is decoded, and nothing twice in one call."""
    path = scene(tmp_path / "x.tif", tiled=True, blockxsize=16, blockysize=16)
    mask(tmp_path / "x.tif.msk", VALID[:1], tiled=True, blockxsize=16, blockysize=16)
    with open_raster(path) as opened:
        for _ in opened.windows([Window(0, 0, 10, 20), Window(8, 0, 8, 20)]):
            pass
        image, of_mask = opened.decoded[:12], opened.decoded[-12:]
        assert of_mask.tolist() == image.tolist() == [1, 1] + [0] * 10


def wrong_masks(folder: Path) -> Any:
    path = folder / "x.tif.msk"
    mask(path, VALID[:1, :-1])
    yield r"has 39 x 56 pixels and 1 bands, and cannot be the mask of x\.tif, which has 40 x 56 and 3; correct the"
    mask(path, VALID[:2], flags=0)
    yield "has 40 x 56 pixels and 2 bands, and cannot be the mask"
    path.write_bytes(b"no mask")
    yield r"should be the mask of x\.tif, but is text that begins with 'no mask'; correct the file, or remove it to"
    path.write_bytes(b"")
    yield "should be the mask"
    path.write_bytes(b"II*\0\x08\0\0\0")
    yield "is truncated or damaged"


def test_a_wrong_mask_is_an_error(tmp_path: Path) -> None:
    """That names it, and leaves no file open."""
    path = scene(tmp_path / "x.tif")
    for says in wrong_masks(tmp_path):
        with pytest.raises(InputError, match=rf"^{tmp_path}/x\.tif\.msk {says}"):
            read_raster(path)
        assert open_below(tmp_path) == []


def test_the_mask_is_closed_with_its_raster(tmp_path: Path) -> None:
    """None of the files stays open."""
    path = scene(tmp_path / "x.tif")
    mask(tmp_path / "x.tif.msk", VALID[:1])
    pam(path)
    with open_raster(path) as opened:
        opened.read(Window(0, 0, 1, 1))
    assert open_below(tmp_path) == []


def test_folders_and_pipes_are_no_neighbours(tmp_path: Path) -> None:
    """They are passed over, and nothing waits for them."""
    path = scene(tmp_path / "x.tif")
    (tmp_path / "x.tif.msk").mkdir()
    os.mkfifo(tmp_path / "x.tif.aux.xml")
    os.mkfifo(tmp_path / "x.tfw")
    raster = read_raster(path)
    assert (raster.georeference, raster.mask) == (None, None)


def test_a_name_that_leaves_no_room_for_more(tmp_path: Path) -> None:
    """A file may have the longest name there is."""
    assert read_raster(scene(tmp_path / f"{'x' * 251}.tif")).mask is None


def test_bytes_and_open_files_have_no_neighbours(tmp_path: Path) -> None:
    """What is not named by its path is what it holds, wherever it lies."""
    path = scene(tmp_path / "x.tif")
    (tmp_path / "x.tfw").write_text("nonsense")
    pam(path, "nonsense", root="a")
    mask(tmp_path / "x.tif.msk", VALID[:1])
    with path.open("rb") as file:
        for source in (path.read_bytes(), file):
            raster = read_raster(source)
            assert (raster.georeference, raster.mask) == (None, None)
