"""Rasters as xarray has them, with rioxarray as the judge: of the same raster's GeoTIFF, and of what it writes."""

from __future__ import annotations

import numpy as np
import pytest

rioxarray = pytest.importorskip("rioxarray", reason="the oracle is rioxarray")
rasterio = pytest.importorskip("rasterio")

from absent import without_package  # noqa: E402
from on_disk import stored  # noqa: E402

from vllm_mmout.geo import Georeference  # noqa: E402
from vllm_mmout.outputs import RasterOutput  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning")  # in rioxarray
CLASSES = np.random.default_rng(0).integers(0, 4, (1, 7, 5), "uint8")
HEIGHTS = np.random.default_rng(1).random((3, 7, 5), "float32")
HEIGHTS[0, 2, 3] = np.nan
LAEA = rasterio.CRS.from_proj4("+proj=laea +lat_0=10 +lon_0=20 +datum=WGS84").to_wkt()
PLACES = {
    "north up": Georeference(crs="EPSG:32614", transform=(30.0, 0.0, 440280.0, 0.0, -30.0, 3159720.0)),
    "in thirds": Georeference(crs="EPSG:3857", transform=(1 / 3, 0.0, 1e7 / 7, 0.0, -1 / 7, 5e6 / 3)),
    "south up": Georeference(crs="EPSG:4326", transform=(0.25, 0.0, -180.0, 0.0, 0.25, -90.0)),
    "rotated": Georeference(crs="EPSG:3857", transform=(9.7, 2.6, 1e6, 2.6, -9.7, 5e6)),
    "without a code": Georeference(crs=LAEA, transform=(30.0, 0.0, 440280.0, 0.0, -30.0, 3159720.0)),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("array", [CLASSES, HEIGHTS], ids=["classes", "heights"])
def test_it_is_what_rioxarray_reads_from_the_file(place, array, tmp_path):
    """Pixels, dimensions, coordinates, system, transform and nodata; so has the file that rioxarray makes of it."""
    raster = RasterOutput(array, nodata=255 if array is CLASSES else np.nan, georeference=PLACES[place])
    made = raster.to_xarray()
    with rioxarray.open_rasterio(raster.save(tmp_path / "raster.tif")) as read:
        assert made.dims == read.dims == ("band", "y", "x")
        assert made.dtype == read.dtype
        np.testing.assert_array_equal(made, read)
        for name in made.coords:
            np.testing.assert_allclose(made[name], read[name], rtol=1e-14)
        assert made.rio.crs == read.rio.crs
        assert tuple(made.rio.transform()) == tuple(read.rio.transform())
        np.testing.assert_equal(made.rio.nodata, read.rio.nodata)
        assert made.attrs["_FillValue"].dtype == read.attrs["_FillValue"].dtype
    made.rio.to_raster(tmp_path / "again.tif", recalc_transform=False)
    with rasterio.open(tmp_path / "again.tif") as again:
        np.testing.assert_array_equal(again.read(), array)
        assert again.crs == made.rio.crs
        assert tuple(again.transform)[:6] == PLACES[place].transform
        np.testing.assert_equal(again.nodata, raster.nodata)


def test_names_units_and_metadata_are_attributes(tmp_path):
    """As rioxarray has them: a text alone of one band, one a band of several."""
    told = {"metadata": {"SENSOR": "MSI"}, "georeference": PLACES["north up"]}
    one = RasterOutput(HEIGHTS[:1], band_names=["height"], units=["m"], **told)
    three = RasterOutput(HEIGHTS, band_names=["a", None, "c"], units=["m", "m", "m"], **told)
    for number, raster in enumerate((one, three)):
        made = raster.to_xarray()
        with rioxarray.open_rasterio(raster.save(tmp_path / f"{number}.tif")) as read:
            assert made.attrs["SENSOR"] == read.attrs["SENSOR"] == "MSI"
            assert made.attrs["long_name"] == read.attrs["long_name"]
            assert made.attrs["units"] == read.attrs["units"]


def test_a_raster_that_lies_nowhere():
    """It has bands alone as coordinates; bool is uint8, as in a GeoTIFF."""
    made = RasterOutput(CLASSES > 1).to_xarray()
    assert set(made.coords) == {"band", "spatial_ref"}
    assert made.dtype == np.uint8
    assert made.rio.crs is None
    assert made.rio.nodata is None


def test_a_raster_on_disk_is_the_same(tmp_path):
    """Its pixels are read."""
    made = stored(CLASSES, tmp_path, nodata=255, georeference=PLACES["north up"]).to_xarray()
    assert made.identical(RasterOutput(CLASSES, nodata=255, georeference=PLACES["north up"]).to_xarray())


@pytest.mark.parametrize("package", ["xarray", "pyproj"])
def test_the_extra_is_named(package, monkeypatch):
    """What is missing, and what installs it."""
    raster = RasterOutput(CLASSES, georeference=PLACES["north up"])
    without_package(monkeypatch, package)
    with pytest.raises(ModuleNotFoundError, match=rf"needs {package}; pip install .*\[xarray\]"):
        raster.to_xarray()
