"""Errors of an option name it in ``param``, as servers tell it; those of the input itself name none."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest

from vllm_mmout import OutputParams
from vllm_mmout.errors import InputError, MMOutError, OptionError
from vllm_mmout.geo import Georeference, Raster, write_geotiff
from vllm_mmout.geo.tiling.grid import TileGrid
from vllm_mmout.models.inputs.make_mapper import chosen_bands
from vllm_mmout.models.inputs.mapper import RasterMapper

ARRAY = np.random.default_rng(5).integers(1, 999, (3, 40, 50)).astype("uint16")
MAPPER = RasterMapper("model", ("a", "b"), 64)
UTM = Georeference("EPSG:32632", (10.0, 0.0, 5e5, 0.0, -10.0, 5e6))
BOX = (8.9, 44.9, 9.1, 45.2)
INSIDE = {"bands": [1, 2]}


def geotiff(georeference):
    """A GeoTIFF of three bands."""
    file = BytesIO()
    write_geotiff(file, ARRAY, georeference=georeference)
    return file.getvalue()


CASES = {
    "a band that is not there": ({"bands": [1, 4]}, "bands"),
    "an index that is not there": ({"indices": [0, 3]}, "indices"),
    "a name that is not there": ({"bands": ["x", 1]}, "bands"),
    "another number of bands": ({"bands": [1, 2, 3]}, "bands"),
    "another number of indices": ({"indices": [0]}, "indices"),
    "an input of another number of bands": ({}, None),
    "scales": ({**INSIDE, "scale": [1.0, 2.0, 3.0]}, "scale"),
    "offsets": ({**INSIDE, "offset": [1.0]}, "offset"),
    "a window outside": ({**INSIDE, "window": (30, 0, 11, 5)}, "window"),
    "a box outside": ({**INSIDE, "bbox": (0, 0, 1, 1)}, "bbox"),
    "a box outside in degrees": ({**INSIDE, "bbox": (50, 10, 51, 11), "bbox_crs": "EPSG:4326"}, "bbox"),
    "a box whose west is east": ({**INSIDE, "bbox": (5e5 + 100, 0, 5e5, 1)}, "bbox"),
    "a system of no map": ({**INSIDE, "bbox": BOX, "bbox_crs": "EPSG:5773"}, "bbox_crs"),
    "a system that is not known": ({**INSIDE, "bbox": BOX, "bbox_crs": "EPSG:999999"}, "bbox_crs"),
    "a system that is refused": ({**INSIDE, "bbox": BOX, "bbox_crs": "+init=epsg:4326"}, "bbox_crs"),
    "a system of another body": ({**INSIDE, "bbox": BOX, "bbox_crs": "IAU_2015:30100"}, "bbox_crs"),
}


@pytest.mark.parametrize(("options", "param"), CASES.values(), ids=CASES)
def test_an_error_of_an_option_names_it(options, param):
    """Of an open raster, before a pixel is read."""
    with pytest.raises(MMOutError) as caught:
        MAPPER.open(geotiff(UTM), OutputParams(**options))
    assert caught.value.param == param


@pytest.mark.parametrize("georeference", [None, Georeference("EPSG:4326")], ids=["nowhere", "no transform"])
def test_a_box_in_a_raster_that_lies_nowhere(georeference):
    """It is the box that cannot be had."""
    with pytest.raises(InputError) as caught:
        MAPPER.open(geotiff(georeference), OutputParams(**INSIDE, bbox=BOX))
    assert caught.value.param == "bbox"


def test_the_system_of_a_box_in_a_raster_without_one():
    """It is that system that cannot be had."""
    with pytest.raises(InputError) as caught:
        MAPPER.open(
            geotiff(Georeference(transform=UTM.transform)), OutputParams(bbox=BOX, bbox_crs="EPSG:4326", **INSIDE)
        )
    assert caught.value.param == "bbox_crs"


@pytest.mark.parametrize("option", ["bands", "indices"])
def test_bands_of_one_of_several_dates(option):
    """What an error is about is not lost where the date is added."""
    mapper = RasterMapper("model", ("a", "b"), 64, num_frames=2)
    with pytest.raises(InputError, match="date 1 of 2: band 9") as caught:
        mapper.open([geotiff(UTM)] * 2, OutputParams(**{option: [9 - (option == "indices")] * 2}))
    assert caught.value.param == option


@pytest.mark.parametrize("option", ["bands", "indices"])
def test_bands_of_a_picture(option):
    """Those of models whose inputs go through a processor of transformers."""
    with pytest.raises(InputError, match="band 9 does not exist") as caught:
        chosen_bands(Raster(ARRAY), OutputParams(**{option: [9 - (option == "indices")]}))
    assert caught.value.param == option


@pytest.mark.parametrize(("tile", "overlap", "param"), [(0, 0, "tile"), (8, 5, "overlap"), (8, -1, "overlap")])
def test_tiles_that_cannot_be(tile, overlap, param):
    """The option that cuts them wrong is named."""
    with pytest.raises(OptionError) as caught:
        TileGrid(40, 50, tile, overlap)
    assert caught.value.param == param


LARGEST = float(np.finfo(np.float32).max)
SMALLEST = float(np.finfo(np.float32).smallest_subnormal)


@pytest.mark.parametrize("number", [1e308, -1e308, 2 * LARGEST, np.inf, np.nan])
@pytest.mark.parametrize("option", ["scale", "offset"])
@pytest.mark.parametrize("several", [False, True])
def test_numbers_that_float32_has_not(option, number, several):
    """The model gets float32, in which numpy makes infinity of them: they are refused with the option's name."""
    with pytest.raises(OptionError, match=f"{option} must be finite.* in float32, got") as caught:
        OutputParams(**{option: [1.0, number] if several else number})
    assert caught.value.param == option


@pytest.mark.parametrize("number", [0.0, 1e-50, -1e-320])
def test_a_scale_that_is_0_in_float32(number):
    """It would make all values one; an offset of it is none."""
    assert np.float32(number) == 0
    with pytest.raises(OptionError, match="scale must be finite and not 0 in float32") as caught:
        OutputParams(scale=number)
    assert caught.value.param == "scale"
    assert OutputParams(offset=number).offset == number


@pytest.mark.parametrize("number", [LARGEST, -LARGEST, SMALLEST, -SMALLEST])
def test_the_last_numbers_of_float32_are_taken(number):
    """To numpy they are float32 as they stand."""
    assert np.float32(number) == number
    assert OutputParams(scale=number, offset=number).scale == number
