"""One input of several files: which bands of them a model sees, and in which order."""

from __future__ import annotations

import errno
import io
from pathlib import Path

import numpy as np
import pytest
from several_files import LANDSAT, PLACE, SENTINEL, mapper, seen, write

from vllm_mmout.errors import InputError
from vllm_mmout.geo import Georeference, write_geotiff
from vllm_mmout.params import OutputParams


@pytest.fixture
def landsat(tmp_path):
    """A folder as it is delivered: bands 1 to 10, each of its number, and what lies beside them."""
    folder = tmp_path / "LC08.2020"
    for number in (1, 2, 3, 4, 5, 6, 7, 10):
        write(folder / LANDSAT.format(f"B{number}"), number)
    write(folder / LANDSAT.replace("SR_{}", "QA_PIXEL"), 99)
    for name in ("MTL.txt", "B2.TIF.aux.xml", "B3.TIF.ovr", "thumb.jpg", "._B4.TIF"):
        (folder / name).write_bytes(b"no raster")
    (folder / "other").mkdir()
    return folder


@pytest.mark.parametrize("form", [str, Path, Path.as_uri], ids=["a path", "a Path", "a URL"])
def test_bands_of_a_folder_are_chosen_by_name(landsat, form):
    """In the model's order, whatever the size of letters and zeros; what is no raster does not matter."""
    assert seen(mapper("B4", "B10", "B02", "b7"), form(landsat)) == [4, 10, 2, 7]
    assert seen(mapper("green", "red"), form(landsat), bands=["B3", "B04"]) == [3, 4]


@pytest.mark.parametrize("numbers", [{"bands": [1, 2, 3]}, {"indices": [0, 1, 2]}, {"bands": ["B1", 2, "B3"]}])
def test_numbers_choose_nothing_in_a_folder(landsat, numbers):
    """Its files have no order: the first of them would be a quality band."""
    with pytest.raises(
        InputError, match=r"is a number, and the files of a folder or a STAC item have no order; .*'B2' \(.*_B2.TIF\)"
    ):
        seen(mapper("a", "b", "c"), landsat, **numbers)


def test_a_folder_with_one_raster_is_that_raster(tmp_path):
    """Its bands have an order, and numbers."""
    write_geotiff(tmp_path / "all.tif", np.arange(1, 4, dtype=np.uint16)[:, None, None] * np.ones((1, 8, 8), np.uint16))
    assert seen(mapper("a", "b", "c"), tmp_path) == [1, 2, 3]
    assert seen(mapper("a", "b"), tmp_path, bands=[3, 1]) == [3, 1]


@pytest.mark.parametrize("inside", ["", "IMG_DATA", "GRANULE/L2A_T32TQM/IMG_DATA"])
def test_a_product_of_sentinel_2_is_one_input(tmp_path, inside):
    """Given any of its folders, each band is read where it has the smallest pixels."""
    for size, bands in ((10, ["B02"]), (20, ["B02", "B05", "B8A"]), (60, ["B02", "B8A", "B09"])):
        folder = tmp_path / inside / f"R{size}m"
        folder.mkdir(parents=True)
        for number, band in enumerate(bands):
            array = np.full((1, 120 // size, 120 // size), size + number, np.uint16)
            place = Georeference(crs="EPSG:32632", transform=(size, 0, 600_000, 0, -size, 5_000_000))
            write_geotiff(folder / SENTINEL.replace("10m", f"{size}m").format(band), array, georeference=place)
    assert seen(mapper("B02", "B05", "B8A", "B09"), tmp_path) == [10, 21, 22, 62]


def test_a_name_that_a_folder_has_not_is_an_error_that_lists_what_it_has(landsat):
    """With the files and the option."""
    with pytest.raises(InputError) as caught:
        seen(mapper("B2", "cirrus", "nir", "pan"), landsat)
    message = str(caught.value)
    for part in (str(landsat), "no band 'cirrus', 'pan'", "FloodNet", f"'B1' ({LANDSAT.format('B1')})", "bands=[...]"):
        assert part in message
    with pytest.raises(InputError, match=r"band 'swir' is that of 2 bands, in \S+B6.TIF and \S+B7.TIF"):
        seen(mapper("swir"), landsat)
    with pytest.raises(InputError, match=r"band 'B99' does not exist.*9 bands.*'B7'"):
        seen(mapper("a"), landsat, bands=["B99"])
    with pytest.raises(InputError, match=r"bands chooses 2 bands, model 'FloodNet' takes 1 \(a\)"):
        seen(mapper("a"), landsat, bands=["B1", "B2"])


def test_a_folder_without_rasters_is_refused(tmp_path):
    """The suffixes are named."""
    (tmp_path / "MTL.txt").write_text("x")
    with pytest.raises(InputError, match=r"is a folder without a raster \(\.tif, \.tiff, \.jp2, \.vrt\)"):
        seen(mapper("a"), tmp_path)


def test_a_folder_that_may_only_be_listed_is_refused(landsat, monkeypatch):
    """As one that may not be listed either."""

    def refused(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refused)
    with pytest.raises(InputError, match=r"cannot read the folder .*LC08.2020: Permission denied"):
        seen(mapper("B4"), landsat)


def test_two_files_of_one_name_are_both_named(landsat):
    """Which of the two is meant, only the request can say."""
    second = write(landsat / "copy_B4.tif", 44)
    with pytest.raises(
        InputError, match=rf"'B4'.*{second.name} and {LANDSAT.format('B4')}; give the files meant in a list"
    ):
        seen(mapper("B4"), landsat)
    assert seen(mapper("B3"), landsat) == [3]
    assert seen(mapper("B4"), [second]) == [44]


@pytest.mark.heavy
def test_of_many_files_of_one_name_some_are_named(tmp_path):
    """The message of a folder of a hundred dates stays short."""
    for day in range(100):
        write(tmp_path / f"day{day}_B4.tif", 4)
    with pytest.raises(
        InputError, match=r"that of 100 bands, in day0_B4.tif and .* and day9_B4.tif and 90 more;"
    ) as no:
        seen(mapper("B4"), tmp_path)
    assert len(str(no.value)) < 2500


def test_files_of_a_folder_that_are_not_chosen_do_not_matter(landsat):
    """Not their grid, nor that one of them cannot be opened; one that is chosen says what is wrong with it."""
    (landsat / LANDSAT.format("B9")).write_bytes(b"II*\0 damaged")
    write(landsat / "PAN_B8.TIF", 8, georeference=Georeference(crs="EPSG:4326", transform=(1, 0, 0, 0, -1, 1)))
    assert seen(mapper("B4", "B3"), landsat) == [4, 3]
    with pytest.raises(InputError, match=LANDSAT.format("B9")):
        seen(mapper("B4", "B9"), landsat)
    with pytest.raises(InputError, match=r"EPSG:4326.*EPSG:32632|EPSG:32632.*EPSG:4326"):
        seen(mapper("B4", "B8"), landsat)


def test_the_description_of_a_file_names_its_band_too(tmp_path):
    """As does the name of the file; of a file with several bands each description."""
    write(tmp_path / "T32_B04.tif", 4, band_names=["red"])
    write(tmp_path / "infrared.tif", 8, 11, band_names=["nir", "swir"])
    assert seen(mapper("red", "swir"), tmp_path) == [4, 11]
    assert seen(mapper("B4", "nir"), tmp_path) == [4, 8]


def test_a_list_is_read_in_its_order(tmp_path):
    """A file may have several bands; alpha is left out; numbers count the bands of all."""
    files = [write(tmp_path / "b.tif", 1, 2), write(tmp_path / "a.tif", 3)]
    assert seen(mapper("x", "y", "z"), files) == [1, 2, 3]
    assert seen(mapper("x", "y", "z"), tuple(map(str, reversed(files)))) == [3, 1, 2]
    assert seen(mapper("x"), files, bands=[3]) == [3]
    assert seen(mapper("x", "y"), [files[0]]) == [1, 2]
    assert seen(mapper("x", "y"), [[files[0]]]) == [1, 2]
    with pytest.raises(InputError, match="the list of 2 files has 3 bands, model 'FloodNet' takes 1"):
        seen(mapper("x"), files)


def test_alpha_of_a_listed_file_is_no_band(tmp_path):
    """Its pixels mask those of all files."""
    from PIL import Image

    pixels = np.full((4, 5, 4), 200, np.uint8)
    pixels[1, 2, 3] = 0
    Image.fromarray(pixels).save(tmp_path / "rgba.png")
    other = write(tmp_path / "b.tif", 5, georeference=None)
    mapped = mapper("r", "g", "b", "nir")([tmp_path / "rgba.png", other], OutputParams())
    assert mapped.tensors["pixel_values"][:, 0, 0].tolist() == [200, 200, 200, 5]
    assert np.argwhere(~mapped.source.valid).tolist() == [[1, 2]]


def test_a_list_whose_files_say_which_they_are_is_read_by_name(tmp_path):
    """As a file is that describes all of the model's bands: an order that contradicts the names would be wrong."""
    files = [write(tmp_path / SENTINEL.format(band), number) for number, band in enumerate(("B04", "B03", "B02"), 1)]
    assert seen(mapper("B2", "B3", "B4"), files) == [3, 2, 1]
    assert seen(mapper("blue", "green", "red"), files) == [3, 2, 1]
    assert seen(mapper("a", "b", "c"), files) == [1, 2, 3]


def test_a_list_may_hold_any_form(tmp_path):
    """Paths, bytes, open files, arrays; a mapping too, whose keys are the names."""
    path = write(tmp_path / "a.tif", 7, georeference=None)
    data = path.read_bytes()
    with path.open("rb") as file:
        forms = [path, data, io.BytesIO(data), file, np.full((1, 4, 5), 7, np.uint16)]
        assert seen(mapper(*"abcde"), forms) == [7] * 5
        assert seen(mapper("y", "x"), {"x": data, "y": io.BytesIO(data)}) == [7, 7]


def test_a_mapping_names_the_bands(tmp_path):
    """Whatever order it has and whatever the files say of themselves; a name that is missing is an error."""
    files = [write(tmp_path / f"T_B{number:02}.tif", number, band_names=["grey"]) for number in range(4)]
    named = {"red": files[3], "blue": str(files[1]), "green": files[2], "coast": files[0]}
    assert seen(mapper("blue", "green", "red"), named) == [1, 2, 3]
    assert seen(mapper("a", "b"), named, bands=["coast", "red"]) == [0, 3]
    assert seen(mapper("a", "b"), named, bands=[1, 2]) == [3, 1]
    with pytest.raises(InputError, match=r"no band 'nir'.*1 'red' \(T_B03.tif\)"):
        seen(mapper("blue", "nir"), named)


def test_the_error_of_a_wrong_number_lists_what_the_file_says(tmp_path):
    """So that bands=[...] can be written without opening the file elsewhere."""
    path = write(tmp_path / "x.tif", 1, 2, band_names=["vv", "vh"])
    with pytest.raises(InputError, match=r"the input has 2 bands.*takes 1 \(a\).*counts from 1.*1 'vv', 2 'vh'"):
        seen(mapper("a"), path)


def test_files_that_are_not_chosen_or_fail_are_closed(tmp_path, monkeypatch):
    """What was opened before an error, and what nobody chose."""
    from vllm_mmout.models.inputs import open_input as band_files

    opened = []
    original = band_files.opened_raster
    monkeypatch.setattr(band_files, "opened_raster", lambda data: opened.append(original(data)) or opened[-1])
    files = {name: write(tmp_path / f"{name}.tif", 1) for name in "abc"}
    model = mapper("a", "c")
    with model.open(files, OutputParams()):
        assert [raster.closed for raster in opened] == [False, True, False]
    assert all(raster.closed for raster in opened)
    for wrong in ({"a": files["a"], "c": tmp_path / "missing"}, [files["a"]] * 3, [files["a"], np.ones((1, 2, 2))]):
        opened.clear()
        with pytest.raises(InputError):
            model.open(wrong, OutputParams())
        assert opened
        assert all(raster.closed for raster in opened)
    opened.clear()
    with model.open(tmp_path, OutputParams()):
        assert [raster.closed for raster in opened] == [True] * 3 + [False] * 2


def test_nodata_and_resampling_of_the_request_hold_for_all_files(tmp_path):
    """A coarser band is read as asked, and without the pixels that the request takes for nodata."""
    coarse = np.array([[[10, 20], [30, 40]]], np.uint16)
    write_geotiff(
        tmp_path / "b.tif", coarse, georeference=Georeference(crs=PLACE.crs, transform=(60, 0, 399960, 0, -60, 5300040))
    )
    write_geotiff(tmp_path / "a.tif", np.ones((1, 4, 4), np.uint16), georeference=PLACE)
    model = mapper("a", "b")
    near, mean, dug = (model(tmp_path, OutputParams(**options)) for options in ({}, MEAN, MEAN | {"nodata": 20}))
    assert near.tensors["pixel_values"][1, 1].tolist() == [10, 10, 20, 20]
    assert mean.tensors["pixel_values"][1, 0].tolist() == [10, 13, 18, 20]
    assert dug.tensors["pixel_values"][1, 0].tolist() == [10, 10, 0, 0]
    assert dug.source.valid[0].tolist() == [True, True, False, False]


MEAN = {"resampling": "bilinear"}
