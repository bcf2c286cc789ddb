"""Length and direction on the ground of columns and rows, with PROJ's geodesics as oracle."""

from __future__ import annotations

import numpy as np
import pytest
from rasterio.transform import Affine

from vllm_mmout.geo import Georeference, ground_steps

PLACES = {
    "UTM": ("EPSG:32632", Affine(10, 0, 600000, 0, -10, 5300000)),
    "turned UTM": ("EPSG:32632", Affine(10, 0, 600000, 0, -10, 5300000) @ Affine.rotation(30)),
    "degrees": ("EPSG:4326", Affine(0.001, 0, 13, 0, -0.001, 60)),
    "across the antimeridian": ("EPSG:4326", Affine(0.01, 0, 179.5, 0, -0.01, 10)),
    "Web Mercator": ("EPSG:3857", Affine(10, 0, 1.5e6, 0, -10, 8e6)),
    "south polar": ("EPSG:3031", Affine(500, 0, 1e6, 0, -500, 1e6)),
}


@pytest.mark.parametrize(("crs", "affine"), PLACES.values(), ids=PLACES)
def test_steps_are_those_of_geodesics(crs, affine):
    """Columns and rows have the length and the azimuth of geodesics through the centre."""
    pyproj = pytest.importorskip("pyproj")
    size = (80, 100)
    steps = ground_steps(Georeference(crs=crs, transform=tuple(affine)[:6]), size)
    to_degrees = pyproj.Transformer.from_crs(crs, 4326, always_xy=True)
    for axis, ends in enumerate([((49, 40), (51, 40)), ((50, 39), (50, 41))]):
        places = [to_degrees.transform(*(affine @ end)) for end in ends]
        azimuth, _, length = pyproj.Geod(ellps="WGS84").inv(*places[0], *places[1])
        east, north = steps[:, axis]
        assert np.hypot(east, north) == pytest.approx(length / 2, rel=1e-3)
        turn = np.degrees(np.arctan2(east, north)) - azimuth
        assert (turn + 180) % 360 - 180 == pytest.approx(0, abs=0.2)


@pytest.mark.parametrize(
    "place",
    [
        None,
        Georeference(crs="EPSG:32632"),
        Georeference(transform=(1, 0, 0, 0, -1, 0)),
        Georeference(crs='LOCAL_CS["site",UNIT["metre",1]]', transform=(1, 0, 0, 0, -1, 0)),
    ],
)
def test_unknown_places_have_no_steps(place):
    """Without a transform to the Earth nothing is known."""
    assert ground_steps(place, (10, 10)) is None
