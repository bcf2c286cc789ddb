"""Scenes in coordinate systems without a code, through the real engine, with rasterio as the judge."""

from __future__ import annotations

import numpy as np
import pytest
from gdal_files import converted
from scenes_for_tests import TILE, classes, generate, pixels, write

from vllm_mmout.errors import InputError

rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
pyproj = pytest.importorskip("pyproj", reason="compares systems")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
    pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning"),  # rasterio's own use of affine
]
ARRAY = pixels(4)
PLACE = rasterio.Affine(0.1, 0, 9, 0, -0.1, 50)
ROTATED = "+proj=ob_tran +o_proj=longlat +o_lon_p=0 +o_lat_p=39.25 +lon_0=18 +R=6371229 +to_meter=0.0174532925199433"


def in_system(folder, crs):
    """A VRT of a scene in a coordinate system."""
    source = write(folder / "scene.tif", ARRAY, transform=PLACE)
    vrt = converted(source, folder / "scene.vrt", "VRT")
    wkt = crs.to_wkt().replace("<", "&lt;").replace('"', "&quot;")
    text = vrt.read_text()
    at = text.index("<GeoTransform>")
    vrt.write_text(f'{text[:at]}<SRS dataAxisToSRSAxisMapping="1,2">{wkt}</SRS>{text[at:]}')
    return vrt


@pytest.mark.parametrize("tile", [TILE, None], ids=["tiles", "one forward"])
def test_a_scene_on_a_sphere_keeps_its_system(llm, tmp_path, tile):
    """The system of the input is that of the result, as rasterio reads it."""
    crs = rasterio.CRS.from_proj4("+proj=longlat +R=6371229")
    scene = in_system(tmp_path, crs)
    found = generate(llm, scene, tile=tile, path=str(tmp_path / "out.tif"))
    np.testing.assert_array_equal(found.array, classes(ARRAY))
    with rasterio.open(tmp_path / "out.tif") as file:
        assert tuple(file.transform)[:6] == pytest.approx(tuple(PLACE)[:6])
        systems = [pyproj.CRS.from_wkt(one.to_wkt()) for one in (file.crs, crs)]
    assert systems[0].equals(systems[1], ignore_axis_order=True)
    assert found.crs.startswith("GEOGCS[")


def test_a_compound_system_is_that_of_its_horizontal_part(llm, tmp_path):
    """The result of a VRT with heights is written."""
    crs = rasterio.CRS.from_string("EPSG:4326+5773")
    generate(llm, in_system(tmp_path, crs), path=str(tmp_path / "out.tif")).close()
    with rasterio.open(tmp_path / "out.tif") as file:
        assert file.crs == rasterio.CRS.from_epsg(4326)


@pytest.mark.parametrize("path", ["out.tif", "out.png", None])
def test_a_system_that_cannot_be_written_is_refused_before_the_scene_is_run(llm, sent, tmp_path, path):
    """A result on disk is a GeoTIFF; the error says what to do with the input."""
    scene = in_system(tmp_path, rasterio.CRS.from_proj4(ROTATED))
    target = None if path is None else str(tmp_path / path)
    with pytest.raises(
        InputError, match=r"cannot be written to a GeoTIFF; .*reproject an input such as NetCDF .*gdalwarp"
    ):
        generate(llm, scene, path=target)
    assert sent == []


@pytest.mark.parametrize(
    ("path", "refused"), [("out.tif", True), ("out.png", False), ("out.npz", False), (None, False)]
)
def test_of_one_forward_only_a_geotiff_needs_the_system(llm, sent, tmp_path, path, refused):
    """Other formats, and results in memory, hold none, or its text."""
    scene = in_system(tmp_path, rasterio.CRS.from_proj4(ROTATED))
    target = None if path is None else str(tmp_path / path)
    if refused:
        with pytest.raises(InputError, match="cannot be written to a GeoTIFF"):
            generate(llm, scene, tile=None, path=target)
        assert sent == []
        return
    found = generate(llm, scene, tile=None, path=target)
    np.testing.assert_array_equal(found.array, classes(ARRAY))
