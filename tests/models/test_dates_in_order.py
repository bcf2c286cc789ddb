"""In which order the dates of a folder reach a model."""

from __future__ import annotations

import re

import pytest
from several_files import mapper, seen, write

from vllm_mmout.errors import InputError
from vllm_mmout.params import OutputParams

ORDERED = {
    "HLS": (
        "HLS.L30.T14RKV.2020300T170851.v2.0.tif",
        "HLS.S30.T14RKV.2020100T170851.v2.0.tif",
        "HLS.S30.T14RKV.2020200T170851.v2.0.tif",
    ),
    "S2A and S2B": tuple(f"S2{a}_MSIL2A_{day}T100000_N0213_20230101T0.tif" for a, day in
                         (("A", 20200301), ("B", 20200201), ("B", 20200101))),
    "S1A and S1B": tuple(f"S1{a}_IW_GRDH_1SDV_{day}T053311_{day}T053336.tif" for a, day in
                         (("A", 20200301), ("B", 20200101), ("B", 20200201))),
    "Landsat": (
        "LC08_L2SP_193024_20200301_20200302_02_T1.tif",
        "LC09_L2SP_193024_20200101_20200401_02_T1.tif",
        "LE07_L2SP_193024_20200201_20200202_02_T1.tif",
    ),
    "months": ("b_2020-03.tif", "c_2020-01.tif", "d_2020-02.tif"),
}  # fmt: skip
RANKS = {"HLS": [2, 3, 1], "S2A and S2B": [3, 2, 1], "S1A and S1B": [2, 3, 1], "Landsat": [2, 3, 1],
         "months": [2, 3, 1]}  # fmt: skip


@pytest.fixture
def model():
    """A model of one band and three dates."""
    return mapper("x", num_frames=3)


def noted(model, data):
    """What was assumed of the order of dates."""
    with model.open(data, OutputParams()) as view:
        return view.assumed


@pytest.mark.parametrize("form", ORDERED)
def test_a_folder_is_sorted_by_the_dates_in_names(model, tmp_path, form):
    """Not by the names themselves; a folder for each date counts as a file does."""
    for number, name in enumerate(ORDERED[form], start=1):
        write(tmp_path / "files" / name, number)
        write(tmp_path / "folders" / name.removesuffix(".tif") / "x.tif", number)
    for kind in ("files", "folders"):
        assert seen(model, tmp_path / kind) == [RANKS[form]]
        assert not noted(model, tmp_path / kind)


def test_metadata_tell_dates_where_names_do_not(model, tmp_path):
    """The date of a file is taken last, and the result says so."""
    for item, folder in (("ACQUISITION_DATE", "items"), ("TIFFTAG_DATETIME", "tags")):
        for number, (name, day) in enumerate((("a", "2020:03:01"), ("b", "2020:01:01"), ("c", "2020:02:01")), start=1):
            metadata = {item: f"{day} 10:00:00" if item.startswith("TIFF") else day.replace(":", "-")}
            write(tmp_path / folder / f"{name}.tif", number, metadata=metadata)
        assert seen(model, tmp_path / folder) == [[2, 3, 1]]
    assert not noted(model, tmp_path / "items")
    assert "TIFFTAG_DATETIME, which may be when the files were written" in noted(model, tmp_path / "tags")[0]


def test_dates_that_cannot_be_told_are_refused(model, tmp_path):
    """But names that count, whose numbers are an order; the result says so."""
    for name in ("first", "second", "third"):
        write(tmp_path / "words" / f"{name}.tif", 1)
    with pytest.raises(InputError, match=r"are unknown.*first.tif \(no date\).*in a list, the earliest first"):
        seen(model, tmp_path / "words")
    for number in (9, 10, 8):
        write(tmp_path / "numbers" / f"t{number}.tif", number)
    assert seen(model, tmp_path / "numbers") == [[8, 9, 10]]
    assert "in the order of the numbers in their names" in noted(model, tmp_path / "numbers")[0]


def test_names_and_metadata_of_two_orders_are_refused_with_both(model, tmp_path):
    """A few days between the two do not matter as long as the order is one."""
    for number, (name, day) in enumerate((("20200101", "2020-01-03"), ("20200201", "2020-02-03")), start=1):
        write(tmp_path / f"{name}.tif", number, metadata={"ACQUISITION_DATE": day})
    model = mapper("x", num_frames=2)
    assert seen(model, tmp_path) == [[1, 2]]
    write(tmp_path / "20200101.tif", 1, metadata={"ACQUISITION_DATE": "2021-01-01"})
    with pytest.raises(InputError, match=r"20200101.tif \(2020-01-01\).*by name; .*\(2021-01-01\).*by metadata"):
        seen(model, tmp_path)


def test_two_inputs_of_one_date_and_another_number_are_refused_with_their_dates(model, tmp_path):
    """So that the one that is too many can be removed."""
    for name in ("S2A_20200101T100000.tif", "S2B_20200101T100500.tif", "S2A_20200201T100000.tif"):
        write(tmp_path / name, 1)
    with pytest.raises(InputError, match=r"two inputs of one date: S2A_20200101T100000.tif \(2020-01-01\)"):
        seen(model, tmp_path)
    wrong = "the input has 3 dates, model 'FloodNet' takes 4: S2A_20200101T100000.tif (2020-01-01)"
    with pytest.raises(InputError, match=re.escape(wrong)):
        seen(mapper("x", num_frames=4), tmp_path)


def test_a_list_keeps_its_order_and_the_result_says_where_dates_contradict_it(model, tmp_path):
    """Whoever gives a list has chosen its order."""
    files = [write(tmp_path / f"x_2020-0{month}-01.tif", month) for month in (3, 1, 2)]
    assert seen(model, files) == [[3, 1, 2]]
    assert "in the order given, which is not chronological: x_2020-03-01.tif (2020-03-01)" in noted(model, files)[0]
    assert not noted(model, sorted(files))


def test_files_of_bands_and_dates_in_one_folder_are_grouped_by_date(tmp_path):
    """As HLS is downloaded, Landsat and Sentinel-2 together: each date by the names of its sensor's bands."""
    for sensor, day, bands in (("S30", 2020100, ("B04", "B8A")), ("L30", 2020200, ("B04", "B05"))):
        for number, band in enumerate(bands):
            write(tmp_path / f"HLS.{sensor}.T14RKV.{day}T170851.v2.0.{band}.tif", day % 1000 + number)
        write(tmp_path / f"HLS.{sensor}.T14RKV.{day}T170851.v2.0.Fmask.tif", 7)
    assert seen(mapper("red", "nir", num_frames=2), tmp_path) == [[100, 200], [101, 201]]


def test_a_folder_of_sentinel_2_products_is_a_date_each(tmp_path):
    """Each is a folder with its bands deep inside."""
    for satellite, day in (("A", 20200301), ("B", 20200101)):
        product = tmp_path / f"S2{satellite}_MSIL1C_{day}T100000.SAFE"
        write(product / "GRANULE" / "L1C_T32" / "IMG_DATA" / f"T32TQM_{day}T100000_B04.tif", day % 10000)
    assert seen(mapper("red", num_frames=2), tmp_path) == [[101, 301]]
