"""Zarr stores through the real engine: scenes in, results out, and the limits of servers."""

from __future__ import annotations

import zipfile
from io import BytesIO

import numpy as np
import pytest
from scenes_for_tests import classes, generate, pixels, write

from vllm_mmout import Mosaic, OutputParams
from vllm_mmout.errors import InputError, OptionError, SaveError
from vllm_mmout.geo import read_raster
from vllm_mmout.outputs.stored import StoredRaster
from vllm_mmout.serving.inputs.pixel_limit import PixelLimit

zarr = pytest.importorskip("zarr", reason="it writes the stores")
rasterio = pytest.importorskip("rasterio")

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning"),  # in rasterio
]
ARRAY = pixels(3, 150, 170)
PLACE = {"proj:code": "EPSG:32632", "spatial:transform": [30, 0, 440280, 0, -30, 5159720]}


def test_a_scene_in_a_store_is_that_of_its_pixels_as_geotiff(llm, tmp_path):
    """Same classes and place, as a GeoTIFF and as stores; a store is not written over its own input."""
    scene = tmp_path / "scene.zarr"
    zarr.create_array(store=str(scene), data=ARRAY, chunks=(3, 64, 64), attributes=PLACE)
    transform = rasterio.Affine(30, 0, 440280, 0, -30, 5159720)
    tiff = write(tmp_path / "scene.tif", ARRAY, crs="EPSG:32632", transform=transform)
    expected = generate(llm, tiff, overlap=4, path=str(tmp_path / "tiff.tif"))
    for name in ("out.zarr", "out.zarr.zip"):
        found = generate(llm, scene, overlap=4, path=str(tmp_path / name))
        assert isinstance(found, StoredRaster)
        assert found.path == str(tmp_path / name)
        written = read_raster(tmp_path / name)
        np.testing.assert_array_equal(written.array, classes(ARRAY))
        assert (written.nodata, written.georeference) == (expected.nodata, expected.georeference)
    with pytest.raises(SaveError, match=r"written over its own input .*scene\.zarr"):
        llm.generate(scene, OutputParams(path=str(scene)))
    np.testing.assert_array_equal(read_raster(scene).array, ARRAY)


def test_several_kinds_and_mosaics_are_written_as_stores(llm, tmp_path, monkeypatch):
    """Each kind has its file; those that no store can hold get their usual suffix. A mosaic is a store like its map."""
    transform = rasterio.Affine(30, 0, 440280, 0, -30, 5159720)
    scene = write(tmp_path / "scene.tif", ARRAY, crs="EPSG:32632", transform=transform)
    made = generate(llm, scene, output=["classes", "polygons"], path=str(tmp_path / "a.b.zarr"))
    assert [output.path for output in made.values()] == [
        str(tmp_path / "a.b-classes.zarr"),
        str(tmp_path / "a.b-polygons.geojson"),
    ]
    np.testing.assert_array_equal(read_raster(tmp_path / "a.b-classes.zarr").array, classes(ARRAY))
    monkeypatch.setattr("vllm_mmout.engine.request.target.check_bucket", lambda _: None)
    with pytest.raises(SaveError, match=r"a folder of many objects; write one zip file, s3://bucket/x\.zarr\.zip"):
        generate(llm, scene, output=["classes", "polygons"], path="s3://bucket/x.zarr")
    for name in ("map.zarr", "map.zarr.zip"):
        generate(llm, Mosaic([scene], order="first"), path=str(tmp_path / name))
        written = read_raster(tmp_path / name)
        np.testing.assert_array_equal(written.array, classes(ARRAY))
        assert written.georeference.transform == tuple(transform)[:6]


def test_a_catalogue_describes_only_geotiffs(llm, tmp_path):
    """A store gets no STAC item: one alone is refused, and of several kinds the GeoTIFF has one."""
    pytest.importorskip("pystac", reason="it writes the items")
    transform = rasterio.Affine(30, 0, 440280, 0, -30, 5159720)
    scene = write(tmp_path / "scene.tif", ARRAY, crs="EPSG:32632", transform=transform)
    with pytest.raises(OptionError, match="stac_item describes GeoTIFFs, and the result is zarr"):
        generate(llm, scene, stac_item=True, path=str(tmp_path / "a.zarr.zip"))
    generate(llm, scene, output=["classes", "polygons"], stac_item=True, path=str(tmp_path / "a.b.shp.zip"))
    assert {file.name for file in tmp_path.glob("a.b*.json")} == {"a.b-classes.json"}


def test_a_lying_shape_is_refused_before_it_is_decoded(tmp_path):
    """A server counts the pixels that an uploaded store states."""
    zarr.create_array(store=str(tmp_path / "x"), shape=(3, 10**6, 10**6), chunks=(3, 1024, 1024), dtype="uint8")
    upload = BytesIO()
    upload.name = "x.zarr.zip"
    with zipfile.ZipFile(upload, "w") as archive:
        archive.write(tmp_path / "x" / "zarr.json", "zarr.json")
    with pytest.raises(InputError, match=r"x\.zarr\.zip has 1000000 x 1000000 pixels, this server takes at most 1000"):
        PixelLimit(1000, "--mmout-max-pixels").check(upload)
    assert upload.tell() == 0
