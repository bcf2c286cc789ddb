"""Places so far off, or pixels so large, that nothing can be computed with them."""

from __future__ import annotations

import json
import math
from io import BytesIO

import numpy as np
import pytest
from rasterio.io import MemoryFile
from rasterio.transform import Affine

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.areas import pixel_areas
from vllm_mmout.geo.raster.georeference import Georeference
from vllm_mmout.geo.raster.opened import open_raster
from vllm_mmout.geo.raster.raster import Raster
from vllm_mmout.geo.raster.writing import write_geotiff
from vllm_mmout.outputs.polygons import PolygonsOutput
from vllm_mmout.outputs.raster import RasterOutput

SIZE = (30, 40)
BEYOND = {
    "steps": (1e308, 0.0, 0.0, 0.0, -1e308, 0.0),
    "an origin": (1.0, 0.0, 1e308, 0.0, -1.0, 1e308),
    "both": (1e308, 0.0, 1e308, 0.0, -1e308, 1e308),
    "a rotation": (1.0, 1e307, 0.0, 1e307, -1.0, 0.0),
    "squares": (1e160, 0.0, 0.0, 0.0, -1e160, 0.0),
}


@pytest.mark.parametrize("transform", BEYOND.values(), ids=BEYOND)
def test_a_place_where_no_numbers_are_is_refused(transform):
    """A file and a raster in memory of which corners or areas are no numbers; rasterio reads it with that transform."""
    with MemoryFile() as memory:
        options = {"crs": "EPSG:32614", "transform": Affine(*transform)}
        with memory.open(driver="GTiff", dtype="uint8", count=1, height=SIZE[0], width=SIZE[1], **options) as file:
            file.write(np.zeros((1, *SIZE), np.uint8))
        with memory.open() as file:
            assert tuple(file.transform)[:6] == transform
        data = bytes(memory.getbuffer())
    in_memory = Raster(np.zeros((1, *SIZE)), georeference=Georeference("EPSG:32614", transform))
    for source in (data, BytesIO(data), in_memory):
        with pytest.raises(InputError, match=r"whose coordinates are not finite or too large.*correct it.*remove it"):
            open_raster(source)


def test_the_farthest_place_has_areas_and_polygons():
    """What is read can be told in numbers, as the area of all pixels by numpy."""
    place = Georeference("EPSG:32614", (2e98, 0.0, -9e99, 0.0, -2e98, 9e99))
    file = BytesIO()
    write_geotiff(file, np.zeros((1, *SIZE), np.uint8), georeference=place)
    with open_raster(file.getvalue()) as raster:
        found = raster.georeference
    np.testing.assert_allclose(pixel_areas(found, SIZE[0]), 4e196)
    classes = RasterOutput(np.zeros((1, *SIZE), np.uint8), georeference=found, nodata=255)
    (feature,) = json.loads(PolygonsOutput(classes).to_bytes())["features"]
    assert math.isclose(feature["properties"]["area_m2"], 4e196 * SIZE[0] * SIZE[1])
    np.testing.assert_allclose(np.max(feature["geometry"]["coordinates"]), 9e99)
