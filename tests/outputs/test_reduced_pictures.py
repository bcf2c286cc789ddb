"""Pictures of rasters on disk at reduced size, with NumPy as the oracle of each pixel."""

from __future__ import annotations

import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from on_disk import CLASSES, PALETTE, stored

from vllm_mmout.geo.raster.writing import GeoTiffBlocks
from vllm_mmout.outputs.stored import StoredRaster


def centres(old: int, new: int) -> np.ndarray:
    """The pixel in which the centre of each of the fewer pixels lies."""
    return np.floor((np.arange(new) + 0.5) * old / new).astype(int)


@pytest.mark.heavy
@pytest.mark.parametrize(("height", "width"), [(2500, 330), (210, 4096), (2049, 420)])
def test_classes_are_shown_by_the_pixel_in_the_middle(tmp_path: Path, height: int, width: int) -> None:
    """The preview has no class that is not there, and its longer side has 2048 pixels."""
    ids = np.random.default_rng(1).integers(0, 3, (1, height, width), "uint8")
    ids[0, :150, :200] = 255
    image = stored(ids, tmp_path, **CLASSES).image
    assert max(image.size) == 2048
    assert image.height / image.width == pytest.approx(height / width, rel=2e-3)
    picked = ids[0][np.ix_(centres(height, image.height), centres(width, image.width))]
    pixels = np.asarray(image)
    np.testing.assert_array_equal(pixels[..., 3] > 0, picked != 255)
    np.testing.assert_array_equal(pixels[..., :3][picked != 255], PALETTE[picked[picked != 255]])


@pytest.mark.heavy
def test_measurements_are_shown_by_the_mean_of_valid_pixels(tmp_path: Path) -> None:
    """Each pixel of a preview is the mean of those it covers, as NumPy finds it; where none is valid it is clear."""
    values = np.random.default_rng(2).normal(size=(2, 4096, 300)).astype("float32")
    values[:, :64] = math.nan
    values[1, ::3, 125:] = -9999.0  # not valid, as one of two bands is nodata
    image = stored(values, tmp_path, nodata=-9999.0).image
    valid = np.isfinite(values).all(axis=0) & (values != -9999.0).all(axis=0)
    cells = np.ma.masked_array(values[0].astype("float64"), ~valid).reshape(2048, 2, 150, 2)
    means = cells.mean(axis=(1, 3))
    stretched = (means - means.min()) / (means.max() - means.min()) * 255
    pixels = np.asarray(image).astype(float)
    np.testing.assert_array_equal(pixels[..., 1] > 0, ~means.mask)
    assert not pixels[:32, :, 1].any()
    assert np.abs(pixels[..., 0] - stretched.filled(0))[~means.mask].max() < 0.51


@pytest.mark.heavy
def test_three_bytes_are_a_picture_of_means(tmp_path: Path) -> None:
    """A large picture keeps its colours: no stretch, means rounded."""
    rgb = np.random.default_rng(3).integers(50, 60, (3, 200, 4096)).astype("uint8")
    pixels = np.asarray(stored(rgb, tmp_path).image)
    means = rgb.reshape(3, 100, 2, 2048, 2).mean(axis=(2, 4))
    np.testing.assert_array_equal(pixels, np.rint(np.moveaxis(means, 0, 2)))


@pytest.mark.heavy
def test_numbers_without_names_or_colours_are_measurements(tmp_path: Path) -> None:
    """Integers that name no classes have means, bands beyond the first are not shown."""
    counts = np.stack([np.tile(np.array([[0, 100], [100, 200]], "uint16"), (110, 1100)), np.ones((220, 2200))])
    counts[0, 0, 0] = 4000
    pixels = np.asarray(stored(counts.astype("uint16"), tmp_path).image)
    assert pixels.shape == (205, 2048)
    assert pixels[0, 0] == 255
    assert 0 < np.median(pixels) < 20


def test_measurements_with_names_of_classes_have_means(tmp_path: Path) -> None:
    """What is not counted in integers is no number of a class, whatever names and colours go with it."""
    values = np.tile(np.array([[0, 2], [2, 0]], "float32"), (1, 2048, 8))
    values[:, :2, :2] = 0
    values[:, -2:, -2:] = 5
    pixels = np.asarray(stored(values, tmp_path, class_names=["a"], palette=PALETTE).image).ravel()
    assert (pixels[0], pixels[-1]) == (0, 255)
    assert set(pixels[1:-1]) == {51}


def test_a_thin_strip_keeps_its_last_pixel(tmp_path: Path) -> None:
    """A raster one row high has a preview one row high."""
    ramp = np.arange(5000, dtype="float32").reshape(1, 1, 5000)
    pixels = np.asarray(stored(ramp, tmp_path).image)
    assert pixels.shape == (1, 2048)
    assert (pixels[0, 0], pixels[0, -1]) == (0, 255)
    assert (np.diff(pixels[0].astype(int)) >= 0).all()


@pytest.mark.heavy
@pytest.mark.parametrize("known", [pytest.param({}, marks=pytest.mark.slow), CLASSES])
def test_the_memory_of_a_preview_does_not_grow_with_the_raster(tmp_path: Path, known: dict[str, object]) -> None:
    """Pictures of one size take the same memory, whether of 7 or of 26 megapixels."""
    peaks = []
    for side in (5, 10):
        blocks = GeoTiffBlocks(
            tmp_path, bands=1, height=side * 512, width=side * 512, dtype="uint8", classes=bool(known)
        )
        for place in np.ndindex(side, side):
            blocks.write(*place, np.zeros((1, 512, 512), "uint8"))
        raster = StoredRaster.from_blocks(blocks, **known)
        tracemalloc.start()
        try:
            assert raster.image.size == (2048, 2048)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < peaks[0] + 4 * 2**20
