"""Results as NetCDF files, with rasterio as the judge."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")

from on_disk import stored  # noqa: E402

from vllm_mmout.errors import SaveError  # noqa: E402
from vllm_mmout.geo import Georeference, read_raster  # noqa: E402
from vllm_mmout.outputs import RasterOutput  # noqa: E402

PLACE = Georeference(crs="EPSG:32632", transform=(10.0, 0.0, 500000.0, 0.0, -10.0, 5000000.0))
PIXELS = np.random.default_rng(0).random((2, 530, 40), "float32")


def test_each_band_is_a_variable_with_its_name_and_nodata(tmp_path: Path) -> None:
    """A raster in memory and one on disk, as a file and as bytes, hold the same; no path of the machine is in it."""
    known = {"nodata": -1, "georeference": PLACE, "band_names": ["canopy height", None], "units": ["m", None]}
    RasterOutput(PIXELS, **known).save(tmp_path / "a.nc")
    on_disk = stored(PIXELS, tmp_path, **known)
    on_disk.save(tmp_path / "b.nc")
    (tmp_path / "c.nc").write_bytes(on_disk.to_bytes("netcdf"))
    on_disk.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.nc", "b.nc", "c.nc"]
    for name in ("a", "b", "c"):
        for band in (1, 2):
            with rasterio.open(f'NETCDF:"{tmp_path}/{name}.nc":Band{band}') as file:
                np.testing.assert_array_equal(file.read(1), PIXELS[band - 1], strict=True)
                assert (file.nodata, file.crs.to_epsg(), tuple(file.transform)[:6]) == (-1, 32632, PLACE.transform)
                assert file.tags(1).get("units") == known["units"][band - 1]
                assert (file.tags(1)["long_name"] == "canopy height") == (band == 1)
                assert not any(str(tmp_path) in text for text in file.tags().values())


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "uint16", "int32", "float16", "float64"])
def test_one_band_reads_as_it_was(dtype: str, tmp_path: Path) -> None:
    """The variable has the band's name; classes have the flags of the CF conventions."""
    pixels = np.eye(9, dtype=dtype)[None]
    names = None if dtype.startswith("float") else ["dry land", "water"]
    RasterOutput(pixels, georeference=PLACE, band_names=["mask"], class_names=names).save(tmp_path / "x.nc")
    raster = read_raster(tmp_path / "x.nc")
    np.testing.assert_array_equal(raster.array, pixels)
    assert raster.georeference == PLACE
    with rasterio.open(tmp_path / "x.nc") as file:
        assert file.tags(1)["NETCDF_VARNAME"] == "mask"
        assert file.tags(1).get("flag_meanings") == (names and "dry_land water")


def test_bands_have_their_scales(tmp_path: Path) -> None:
    """The variable of each band states its scale, which rasterio reads."""
    output = RasterOutput(np.ones((2, 3, 4), "int8"), nodata=-128, scales=[0.5, 2.0], georeference=PLACE)
    output.save(tmp_path / "x.nc")
    for band, scale in ((1, 0.5), (2, 2.0)):
        with rasterio.open(f'NETCDF:"{tmp_path}/x.nc":Band{band}') as file:
            assert (file.scales, file.offsets, file.nodata) == ((scale,), (0.0,), -128)


def test_what_a_netcdf_file_cannot_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rotated raster, zeros that GDAL would read as nodata, and a GDAL without the driver, leave no file."""
    turned = Georeference("EPSG:3857", (9.7, 2.6, 1e6, 2.6, -9.7, 5e6))
    with pytest.raises(SaveError, match=r"this result is rotated or placed by points; save it as \.tif"):
        RasterOutput(PIXELS, georeference=turned).save(tmp_path / "x.nc")
    with pytest.raises(SaveError, match=r"GDAL reads 0 as nodata in NetCDF files of int64"):
        RasterOutput(np.zeros((1, 3, 3), "int64")).save(tmp_path / "x.nc")
    monkeypatch.setattr("rasterio.env.Env.drivers", lambda _: {})
    with pytest.raises(SaveError, match="needs GDAL's netCDF driver"):
        RasterOutput(PIXELS).save(tmp_path / "x.nc")
    assert not list(tmp_path.iterdir())
