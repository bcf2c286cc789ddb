"""What names of bands mean, and which sensor a file is of."""

from __future__ import annotations

import pytest

from vllm_mmout.geo.raster.bands import meanings, possible_sensors, says_nothing, trailing_band, understood
from vllm_mmout.geo.raster.sensors import sensor_of

WORDS = {
    "red": "Red RED red_mean Band-4-(Red) Red_665nm",
    "nir nir08": "NIR Near-Infrared near_infrared_(NIR)",
    "nir08": "narrow_NIR NIR_NARROW nir08",
    "nir": "NIR_BROAD",
    "swir16": "SWIR_1 swir16 SWIR1 SWIR_1.6",
    "swir22": "SWIR_2 swir22",
    "rededge071": "Red_Edge_1 rededge071",
    "coastal": "coastal_aerosol COASTAL_AEROSOL",
    "vh": "VH Sigma0_VH vh_db",
    "": "elevation NDVI Band_4 1 layer_3 red_-_blue B99",
}


@pytest.mark.parametrize(("bands", "names"), WORDS.items(), ids=WORDS)
def test_words_mean_bands_on_any_sensor(bands, names):
    """Case, spaces and words beside the name make no difference; "_" stands for a space here."""
    for name in names.split():
        for spelled in {name, name.replace("_", " ").replace("-", " ", 1)}:
            assert understood(spelled) == set(bands.split()), spelled


CODES = {
    ("B8A", "B04"): ("Sentinel-2",),
    ("B04", "B05"): ("Sentinel-2", "Landsat 8 or 9"),
    ("B4", "B5"): ("Sentinel-2", "Landsat 8 or 9", "Landsat 4 to 7"),
    ("SR_B2", "SR_B6"): ("Landsat 8 or 9",),
    ("SR_B1", "SR_B7"): ("Landsat 8 or 9", "Landsat 4 to 7"),
    ("ST_B10",): ("Landsat 8 or 9",),
    ("ST_B6",): ("Landsat 4 to 7",),
    ("ST_B1",): ("",),
    ("B4 (NIR)", "B3"): ("Landsat 4 to 7",),
    ("B4, central wavelength 665 nm", "B8A"): ("Sentinel-2",),
    ("sur_refl_b01",): ("MODIS",),
    ("red", "Band 5"): ("",),
}


@pytest.mark.parametrize(("names", "sensors"), CODES.items(), ids=str)
def test_numbers_of_bands_tell_which_sensors_they_may_be_of(names, sensors):
    """By the numbers that a sensor has, how its products spell them, and the words beside them."""
    assert possible_sensors(names) == sensors


def test_a_number_is_another_band_on_another_sensor():
    """B4 and B5 on those that have them."""
    found = [[set(understood(name, sensor)) for name in ("B4", "B5")] for sensor in possible_sensors(["B4", "B5"])]
    assert found == [[{"red"}, {"rededge071"}], [{"red"}, {"nir08"}], [{"nir", "nir08"}, {"swir16"}]]


def test_letters_are_colours_only_together():
    """A band called b may be anything; r, g and b may not."""
    assert meanings([("b",), ("a",)], ["", ""]) == [set(), set()]
    assert meanings([("R",), ("G",), ("B",)], [""] * 3) == [{"red"}, {"green"}, {"blue"}]


def test_names_that_contradict_each_other_mean_nothing():
    """A description and the name of a file that say two bands."""
    assert meanings([("red", "B02"), ("red", "B04")], ["Sentinel-2"] * 2) == [set(), {"red"}]


def test_names_that_say_nothing():
    """Numbers, alone or behind a word that any band has."""
    assert all(map(says_nothing, ["", "1", "Band 1", "band_12", "layer_3", "Channel 2"]))
    assert not any(map(says_nothing, ["B4", "b12", "red", "elevation"]))


SENSORS = {
    "/data/LC08_L2SP_193024_20200101_20200113_02_T1/x_B4.TIF": "Landsat 8 or 9",
    "LE71930242001100LGN00_B4.TIF": "Landsat 4 to 7",
    "HLS.L30.T14RKV.2020123T170851.v2.0.B05.tif": "Landsat 8 or 9",
    "HLS.S30.T14RKV.2020123T170851.v2.0.B8A.tif": "Sentinel-2",
    "/data/S2A_MSIL2A_20240817T101559.SAFE/GRANULE/L2A_T32/IMG_DATA/R10m/B02.jp2": "Sentinel-2",
    "/data/LC08_compared/T32TMT_20240817T101559_B02.jp2": "Sentinel-2",
    "MOD09GA.A2020123.h18v04.061.tif": "MODIS",
    "/olives/scene.tif": None,
}


@pytest.mark.parametrize(("path", "sensor"), SENSORS.items(), ids=str)
def test_a_path_tells_the_sensor(path, sensor):
    """The name of the file first, then that of the nearest folder that tells one."""
    assert sensor_of(path, {}) == sensor


def test_metadata_tell_the_sensor_before_the_path():
    """As Landsat's products and GDAL's driver of Sentinel-2 say it."""
    assert sensor_of("S2A_x.tif", {"SPACECRAFT_ID": "LANDSAT_8"}) == "Landsat 8 or 9"
    assert sensor_of("x.tif", {"DATATAKE_1_SPACECRAFT_NAME": "Sentinel-2A"}) == "Sentinel-2"


def test_the_end_of_a_files_name_may_mean_a_band():
    """As STAC's assets are called; a date or a resolution may stand behind it."""
    names = ["scene_red_edge_1", "S2A_32TMT_0_L2A_red", "x_nir08_20m", "infrared", "x_NIR_narrow", "scene_red_2020"]
    assert [trailing_band(name) for name in names] == ["red_edge_1", "red", "nir08", None, "NIR_narrow", "red"]
