"""An area of interest as the part of a raster that a model sees, and the mask of its result."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from test_box_of_a_view import ARRAY, MAPPER, PLACE, geotiff

from vllm_mmout import OutputParams
from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.geo import Georeference
from vllm_mmout.geo.raster.raster import Window
from vllm_mmout.outputs import ClassificationOutput, RasterOutput

TRIANGLE = {
    "type": "Polygon",
    "coordinates": [[[500102, 4999898], [500302, 4999898], [500302, 4999698], [500102, 4999898]]],
}
PARAMS = OutputParams(aoi=TRIANGLE, aoi_crs="EPSG:32632")


def inside():
    """The mask of the triangle, by rasterio."""
    from rasterio.features import geometry_mask
    from rasterio.transform import Affine

    return ~geometry_mask([TRIANGLE], ARRAY.shape[1:], Affine(*PLACE.transform))


def test_the_model_sees_the_context_of_an_area():
    """The part around the area is read whole; only its result is masked."""
    mapped = MAPPER(geotiff(), PARAMS)
    np.testing.assert_array_equal(mapped.tensors["pixel_values"], ARRAY[:, 10:31, 10:31])
    np.testing.assert_array_equal(mapped.source.valid, inside()[10:31, 10:31])
    assert mapped.source.georeference.transform[2::3] == (500100.0, 4999900.0)
    assert mapped.source.area.size == mapped.source.size == (21, 21)


def test_nodata_is_filled_inside_and_outside():
    """Nodata is 0 for the model wherever it is, and masked in the result beside what is outside."""
    with MAPPER.open(geotiff(), OutputParams(aoi=PARAMS.aoi, nodata=float(ARRAY[0, 12, 28]))) as view:
        assert view.window == Window(10, 10, 21, 21)
        pixels = view.read()
        ((array, masks),) = view.tiles([Window(0, 0, 10, 10), Window(0, 11, 10, 10)], size=(10, 10), count=2)
    hidden = (ARRAY[:, 10:31, 10:31] == ARRAY[0, 12, 28]).any(axis=0)
    np.testing.assert_array_equal(pixels.array, np.where(hidden, 0, ARRAY[:, 10:31, 10:31]))
    expected = inside()[10:31, 10:31] & ~hidden
    np.testing.assert_array_equal(pixels.valid, expected)
    np.testing.assert_array_equal(masks[0], expected[:10, :10])
    np.testing.assert_array_equal(array[1], np.where(hidden, 0, ARRAY[:, 10:31, 10:31])[:, :10, 11:])


def test_an_area_without_an_observation_is_an_error():
    """All of its pixels are nodata."""
    empty = np.zeros_like(ARRAY)
    with pytest.raises(InputError, match="no pixel of the input holds an observation inside aoi"):
        MAPPER(geotiff(array=empty), OutputParams(aoi=PARAMS.aoi, nodata=0))


def test_what_cannot_be_cut_is_refused():
    """A label says nothing of a part of the input."""
    source = MAPPER(geotiff(), PARAMS).source
    with pytest.raises(OptionError, match="aoi cannot cut a ClassificationOutput: only rasters"):
        source.lay(ClassificationOutput(classes=[]))
    laid = source.lay(RasterOutput(np.zeros((1, 21, 21), np.uint8)))
    np.testing.assert_array_equal(laid.array[0] == 255, ~source.valid)


def test_an_input_without_a_place_is_refused():
    """There is nothing to find the area in."""
    with pytest.raises(InputError, match="so an aoi cannot be found in it") as caught:
        MAPPER.open(geotiff(Georeference("EPSG:32632")), PARAMS)
    assert caught.value.param == "aoi"


def test_an_area_is_an_option_like_others():
    """It is kept as text, copied, pickled and stored, and not sent to the engine."""
    assert isinstance(PARAMS.aoi, str)
    assert PARAMS.to_wire() == {}
    assert PARAMS == pickle.loads(pickle.dumps(PARAMS)) == OutputParams.from_mapping(PARAMS.to_mapping())  # noqa: S301
    assert json.loads(PARAMS.to_mapping()["aoi"])["crs"]["properties"]["name"] == "EPSG:32632"
    with pytest.raises(OptionError, match="must be a GeoJSON object"):
        OutputParams.from_mapping({"aoi": __file__})
    for other in ({"bbox": (0, 0, 1, 1)}, {"window": (0, 0, 1, 1)}):
        with pytest.raises(OptionError, match="and aoi are both set"):
            OutputParams(aoi=TRIANGLE, aoi_crs="EPSG:32632", **other)
    with pytest.raises(OptionError, match="aoi_crs is 'EPSG:4326' without aoi"):
        OutputParams(aoi_crs="EPSG:4326")
