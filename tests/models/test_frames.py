"""Models that take several dates of a place, [bands, frames, height, width]."""

from __future__ import annotations

import numpy as np
import pytest
from several_files import PLACE, mapper, seen, write

from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.geo import Georeference, Raster, Window, write_geotiff
from vllm_mmout.models.inputs.mapper import RasterMapper
from vllm_mmout.params import OutputParams

CONFIG = {"architectures": ["CropNet"], "bands": ["red", "nir"], "max_size": 64, "num_frames": 3}
WANTED = [[1, 2, 3], [11, 12, 13]]
"""Band by band, date by date."""


@pytest.fixture
def model():
    """A model of two bands and three dates."""
    return RasterMapper.from_config(CONFIG)


def test_the_config_says_how_many_dates(model):
    """Without it there is no axis of dates; one date is an axis of one."""
    assert model.num_frames == 3
    assert str(model.inputs["pixel_values"]).endswith("[2, 3, 1..64, 1..64]")
    assert model.inputs["pixel_values"].zeros().shape == (2, 3, 64, 64)
    assert RasterMapper.from_config(CONFIG | {"num_frames": None}).num_frames is None
    for wrong in (0, "3", True, 1.5):
        with pytest.raises(OptionError, match=r'"num_frames" in config.json must be a number of dates, 1 or more'):
            RasterMapper.from_config(CONFIG | {"num_frames": wrong})
    with pytest.raises(OptionError, match="num_frames must be 1 or more"):
        mapper("a", num_frames=0)


def dated(folder):
    """A file of two bands for each date, whose names do not stand in the order of the alphabet."""
    return [write(folder / f"date{date}.tif", date - 7, date + 3) for date in (8, 9, 10)]


def by_folder(folder):
    """A folder of single bands for each date."""
    for date in (1, 2, 3):
        write(folder / f"2020-{date}" / f"x_B08_{date}.tif", date + 10, band_names=["nir"])
        write(folder / f"2020-{date}" / f"x_B04_{date}.tif", date, band_names=["red"])
    (folder / "notes").mkdir()
    return folder


FORMS = {
    "a list of files": dated,
    "a folder of files": lambda folder: dated(folder)[0].parent,
    "a folder of folders": by_folder,
    "a list of folders": lambda folder: sorted(path for path in by_folder(folder).iterdir() if path.name != "notes"),
    "a list of lists": lambda folder: [
        [write(folder / f"{date}a.tif", date), write(folder / f"{date}b.tif", date + 10)] for date in (1, 2, 3)
    ],
    "a list of mappings": lambda folder: [
        {"nir": write(folder / f"{date}b.tif", date + 10), "red": write(folder / f"{date}a.tif", date)}
        for date in (1, 2, 3)
    ],
    "a list of arrays": lambda _: [
        np.stack([np.full((4, 5), date, np.uint16), np.full((4, 5), date + 10, np.uint16)]) for date in (1, 2, 3)
    ],
    "one file, date by date": lambda folder: write(folder / "chip.tif", 1, 11, 2, 12, 3, 13),
    "one file that names the bands of its first date": lambda folder: write(
        folder / "chip.tif", 1, 11, 2, 12, 3, 13, band_names=["red", "nir", None, None, None, None]
    ),
    "one array, date by date": lambda _: np.stack([np.full((4, 5), v, np.uint16) for v in (1, 11, 2, 12, 3, 13)]),
    "an array of four axes": lambda _: np.broadcast_to(np.array(WANTED, np.uint16)[..., None, None], (2, 3, 4, 5)),
    "one file in a list": lambda folder: [write(folder / "chip.tif", 1, 11, 2, 12, 3, 13)],
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_all_forms_give_the_same_tensor(model, tmp_path, form):
    """[bands, frames, height, width], each value at its band and date."""
    data = form(tmp_path / "in")
    mapped = model(data, OutputParams())
    assert mapped.tensors["pixel_values"].shape == (2, 3, 4, 5)
    assert seen(model, data) == WANTED


@pytest.mark.engine
def test_a_tensor_of_four_axes(model):
    """As torch has it; bands are chosen along its first axis."""
    import torch

    tensor = torch.arange(4 * 3 * 4 * 5, dtype=torch.float32).reshape(4, 3, 4, 5)
    mapped = model(tensor, OutputParams(bands=[4, 2]))
    np.testing.assert_array_equal(mapped.tensors["pixel_values"], tensor.numpy()[[3, 1]])


WRONG_DATES = {
    "two files": (lambda folder: dated(folder)[:2], "the input has 2 dates, model 'CropNet' takes 3"),
    "a folder of four": (
        lambda folder: write(folder / "d.tif", 1, 2) and dated(folder)[0].parent,
        "the input has 4 dates, model 'CropNet' takes 3",
    ),
    "one mapping": (lambda folder: {"red": dated(folder)[0]}, "the input has 1 date, model 'CropNet' takes 3"),
    "a file of two dates": (
        lambda folder: write(folder / "chip.tif", 1, 11, 2, 12),
        r"the input has 4 bands \(2 dates\), model 'CropNet' takes 6, 3 dates of 2 bands",
    ),
    "an array of two": (lambda _: np.ones((2, 2, 4, 5), np.uint16), "has 2 dates, model 'CropNet' takes 3"),
    "an empty list": (lambda _: [], "0 dates"),
    "a band too many in one date": (
        lambda folder: [*dated(folder)[:2], write(folder / "c.tif", 1, 2, 3)],
        "date 3 of 3: the input has 3 bands, model 'CropNet' takes 2",
    ),
}


@pytest.mark.parametrize(("form", "says"), WRONG_DATES.values(), ids=WRONG_DATES)
def test_another_number_of_dates_is_refused(model, tmp_path, form, says):
    """With both numbers."""
    with pytest.raises(InputError, match=says):
        seen(model, form(tmp_path / "in"))


def test_one_date_is_an_axis_of_one(tmp_path):
    """A file, a folder of its bands, a list of one date in any form."""
    model = mapper("red", "nir", num_frames=1)
    folder = by_folder(tmp_path / "in") / "2020-2"
    file = write(tmp_path / "both.tif", 2, 12)
    bands = [folder / "x_B04_2.tif", folder / "x_B08_2.tif"]
    for data in (file, folder, [file], [folder], [bands], {"nir": bands[1], "red": bands[0]}):
        assert seen(model, data) == [[2], [12]]
    with pytest.raises(InputError, match="the input has 2 dates, model 'FloodNet' takes 1"):
        seen(model, bands)


def test_a_pixel_is_valid_where_all_dates_are(model):
    """A gap of one band on one date is a gap."""
    dates = [np.ones((2, 4, 5), np.float32) for _ in range(3)]
    dates[1][1, 2, 3] = dates[2][0, 0, 0] = np.nan
    mapped = model(dates, OutputParams())
    assert np.argwhere(~mapped.source.valid).tolist() == [[0, 0], [2, 3]]
    assert not mapped.tensors["pixel_values"][:, :, [0, 2], [0, 3]].any()


def test_scale_and_offset_are_one_number_a_band(model, tmp_path):
    """For all dates of it; one number is for all bands."""
    assert seen(model, dated(tmp_path), scale=[2, 10], offset=[0, 1]) == [[2, 4, 6], [111, 121, 131]]
    assert seen(model, dated(tmp_path), scale=2) == [[2, 4, 6], [22, 24, 26]]
    with pytest.raises(InputError, match="scale has 6 numbers for 2 bands"):
        seen(model, dated(tmp_path), scale=[1] * 6)


def test_bands_are_chosen_for_each_date(model, tmp_path):
    """Of files of single dates; one file of all dates is chosen from as a whole."""
    files = [write(tmp_path / f"{date}.tif", 0, date + 10, date) for date in (1, 2, 3)]
    assert seen(model, files, bands=[3, 2]) == WANTED
    whole = write(tmp_path / "whole.tif", 1, 11, 0, 2, 12, 0, 3, 13, 0)
    assert seen(model, whole, bands=[1, 2, 4, 5, 7, 8]) == WANTED


def test_dates_must_lie_on_one_grid(model, tmp_path):
    """Of other pixels they are resampled, as bands are; elsewhere they are refused."""
    files = dated(tmp_path)
    half = Georeference(crs=PLACE.crs, transform=(15, 0, 399960, 0, -15, 5300040))
    write_geotiff(files[2], np.arange(160, dtype=np.uint16).reshape(2, 8, 10), georeference=half)
    tensor = model(files, OutputParams()).tensors["pixel_values"]
    assert tensor.shape == (2, 3, 8, 10)
    np.testing.assert_array_equal(tensor[:, 2].ravel(), np.arange(160))
    write(files[2], 3, 13, georeference=Georeference(crs="EPSG:32633", transform=PLACE.transform))
    with pytest.raises(InputError, match=r"share a grid.*EPSG:32632.*EPSG:32633"):
        seen(model, files)


def test_a_tile_has_all_dates(model, tmp_path):
    """A view is read as planes; the tensor is made of them."""
    files = dated(tmp_path)
    with model.open(files, OutputParams()) as view:
        (pixels,) = view.windows([Window(1, 2, 3, 2)])
    assert pixels.array.shape == (6, 3, 2)
    (tensor,) = model.tensors(view, pixels.array).values()
    assert tensor[:, :, 0, 0].tolist() == WANTED


def test_the_picture_shows_the_first_date():
    """In natural colours where bands are called so."""
    model = mapper("blue", "green", "red", num_frames=2)
    dates = [Raster(np.stack([np.full((4, 6), value + date, np.uint8) for value in (10, 20, 30)])) for date in (0, 100)]
    picture = model([date.array for date in dates], OutputParams()).source.picture()
    assert (picture.mode, picture.size, picture.getpixel((0, 0))) == ("RGB", (6, 4), (30, 20, 10))
