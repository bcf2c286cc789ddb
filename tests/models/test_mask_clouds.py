"""`mask_clouds`: pixels that a band of quality codes marks as cloud are nodata. numpy says which they are."""

from __future__ import annotations

import numpy as np
import pytest
import rasterio
from rasterio.transform import Affine
from several_files import mapper

from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.geo import Window, cloud_codes_of
from vllm_mmout.params import OutputParams

MASKED = OutputParams(mask_clouds=True)
SIDE = 12


def write(path, array, pixel=10, **profile):
    """Write a raster of one band or several, whose pixels have ``pixel`` metres."""
    array = array if array.ndim == 3 else array[np.newaxis]
    count, height, width = array.shape
    place = {"crs": "EPSG:32632", "transform": Affine(pixel, 0, 399_960, 0, -pixel, 5_300_040)}
    shape = {"count": count, "height": height, "width": width, "dtype": array.dtype.name}
    path.parent.mkdir(exist_ok=True)
    descriptions = profile.pop("descriptions", ())
    with rasterio.open(path, "w", driver="GTiff", **shape, **place, **profile) as file:
        file.write(array)
        if descriptions:
            file.descriptions = descriptions
    return path


def band(seed=0):
    """Pixels of a band, 0 in one corner, which is nodata."""
    pixels = np.random.default_rng(seed).integers(1, 3000, (SIDE, SIDE)).astype(np.uint16)
    pixels[:2, :3] = 0
    return pixels


def valid(data, params=MASKED, model=None):
    """Return which pixels of an input are valid, read as a whole; tiles must agree."""
    with (model or mapper("B02", "B03")).open(data, params) as view:
        mask = view.read().valid
        windows = [Window(row, col, 6, 6) for row in (0, 6) for col in (0, 6)]
        ((_, masks),) = view.tiles(windows, size=(6, 6), count=4)
        for part, window in zip(masks, windows, strict=True):
            expected = mask[window.rows, window.cols]
            np.testing.assert_array_equal(np.ones((6, 6), bool) if part is None else part, expected)
    return mask


@pytest.mark.parametrize("pixel", [10, 20])
def test_scl_of_a_folder(tmp_path, pixel):
    """Shadow, clouds and cirrus are masked, also by codes of larger pixels; without the option they are not."""
    side = SIDE * 10 // pixel
    codes = np.random.default_rng(3).integers(0, 12, (side, side)).astype(np.uint8)
    for number in (2, 3):
        write(tmp_path / "s2" / f"T32TQM_20240603T100559_B0{number}_10m.tif", band(number), nodata=0)
    write(tmp_path / "s2" / f"T32TQM_20240603T100559_SCL_{pixel}m.tif", codes, pixel, nodata=0)
    times = pixel // 10
    clear = ~np.isin(codes, [3, 8, 9, 10]).repeat(times, 0).repeat(times, 1)
    observed = band(2) != 0
    np.testing.assert_array_equal(valid(tmp_path / "s2"), clear & observed)
    np.testing.assert_array_equal(valid(tmp_path / "s2", OutputParams()), observed)


@pytest.mark.parametrize(
    ("name", "bits", "fill"), [("Fmask", (1, 3), 255), ("QA_PIXEL", (2, 3, 4), None), ("qa_pixel", (2, 3, 4), None)]
)
def test_bits_of_a_band_in_the_same_file(tmp_path, name, bits, fill):
    """Each bit for cloud or shadow masks; HLS's fill value, which has all bits, does not."""
    codes = np.arange(SIDE * SIDE, dtype=np.uint16).reshape(SIDE, SIDE)
    codes[5, 5] = 255
    cloudy = np.logical_or.reduce([(codes >> bit) & 1 == 1 for bit in bits])
    cloudy &= codes != (-1 if fill is None else fill)
    path = write(
        tmp_path / "scene.tif", np.stack([band(1), band(2), codes]), nodata=0, descriptions=("B02", "B03", name)
    )
    np.testing.assert_array_equal(valid(path), ~cloudy & (band(1) != 0))


def test_dates_of_a_model_are_masked_by_their_own_codes(tmp_path):
    """A pixel that is cloudy at one date is nodata, as the model needs both."""
    dates, clear = [], np.ones((SIDE, SIDE), bool)
    for day in (1, 2):
        codes = np.random.default_rng(day).choice([4, 9], (SIDE, SIDE)).astype(np.uint8)
        clear &= codes == 4
        files = {"B02": band(), "B03": band(), "SCL": codes}
        dates.append({name: str(write(tmp_path / f"{day}{name}.tif", array)) for name, array in files.items()})
    found = valid(dates, model=mapper("B02", "B03", num_frames=2))
    np.testing.assert_array_equal(found, clear)


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("T32TQM_20240603T100559_SCL_20m", "SCL"),
        ("HLS.S30.T32TQM.2024155T100559.v2.0.Fmask", "Fmask"),
        ("LC09_L2SP_193028_20240603_20240604_02_T1_QA_PIXEL", "QA_PIXEL"),
        ("scl", "SCL"),
        ("sclerosis", None),
        ("B04", None),
    ],
)
def test_bands_are_known_by_the_names_of_products(name, codes):
    """The name is a word of its own, in any case."""
    found = cloud_codes_of(["x", name])
    assert (found and found.name) == codes


def test_without_a_band_of_codes_the_option_is_refused(tmp_path):
    """The message lists the bands that are known; two kinds of codes, arrays and floats are refused too."""
    plain = write(tmp_path / "a.tif", np.stack([band(), band()]), descriptions=("B02", "B03"))
    both = write(tmp_path / "b.tif", np.stack([band()] * 4), descriptions=("B02", "B03", "SCL", "Fmask"))
    floats = write(tmp_path / "c.tif", np.stack([band()] * 3).astype(np.float32), descriptions=("B02", "B03", "SCL"))
    for data, says in [
        (plain, r"needs one band that marks clouds \(SCL, Fmask, QA_PIXEL\), and .* has none"),
        (both, "has SCL and Fmask"),
        (floats, "SCL has integer codes"),
        (np.zeros((2, 4, 4), np.uint16), "has none"),
    ]:
        with pytest.raises((InputError, OptionError), match=says):
            mapper("B02", "B03").open(data, MASKED)
