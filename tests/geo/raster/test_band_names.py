"""What files call their bands, and in which order files stand."""

from __future__ import annotations

import pytest

from vllm_mmout.geo.raster.formats import band_key, band_of_file, natural_order

FILES = {
    "LC08_L2SP_193024_20200101_20200113_02_T1_SR_B4.TIF": "B4",
    "/data/LC09_L1TP_193024_20220101_20230501_02_T1_B10.TIF": "B10",
    "T32TQM_20200101T100000_B02_10m.jp2": "B02",
    "L1C_T32TQM_A023663_20200101T101939_B8A.jp2": "B8A",
    "HLS.S30.T14RKV.2020123T170851.v2.0.B8A.tif": "B8A",
    "HLS.L30.T14RKV.2020123T170851.v2.0.Fmask.tif": "HLS.L30.T14RKV.2020123T170851.v2.0.Fmask",
    "https://example.org/a%20b/T32_b03.tif?token=B04": "b03",
    "file:///data/B11.tif": "B11",
    "scene.tif": "scene",
    "B12_cloudfree_B03.tif": "B03",
    "B1000_x.tif": "B1000_x",
}


@pytest.mark.parametrize(("file", "band"), FILES.items(), ids=str)
def test_the_name_of_a_file_names_its_band(file, band):
    """Landsat's, Sentinel-2's and those of HLS; any other file is called by its stem."""
    assert band_of_file(file) == band


def test_names_that_mean_one_band():
    """Zeros before a number and the size of letters make no difference; digits do."""
    assert band_key("B2") == band_key("b02") == band_key("B002")
    assert band_key("B8A") != band_key("B8") != band_key("B80")
    assert band_key("B10") != band_key("B1")
    assert band_key("B0") == "b0"


def test_files_stand_in_natural_order():
    """2 before 10, whatever the size of letters; equal names in any order, but always the same."""
    names = ["B10.tif", "b2.tif", "B1.tif", "2020-1-12", "2020-1-2", "a", "B02.tif"]
    assert sorted(names, key=natural_order) == ["2020-1-2", "2020-1-12", "a", "B1.tif", "B02.tif", "b2.tif", "B10.tif"]
    names.reverse()
    assert sorted(names, key=natural_order)[3:6] == ["B1.tif", "B02.tif", "b2.tif"]
