"""What the extra ``gdal`` is needed for, where it is not installed."""

from __future__ import annotations

import struct
import subprocess
import sys
from io import BytesIO

import numpy as np
import pytest
from gdal_files import RNG, UTM, converted, jp2, next_tiff, tiff
from PIL import Image

from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.raster import Georeference, open_raster, read_raster
from vllm_mmout.raster.box.bounding_box import window_of_box

EXTRA = r'pip install "vllm-mmout\[gdal\]"'
pytestmark = [
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
    pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning"),  # rasterio's own use of affine
]
ARRAY = RNG.integers(0, 255, (3, 30, 41)).astype("uint8")


@pytest.fixture
def without(monkeypatch):
    """Hides a package."""

    def hide(name: str) -> None:
        monkeypatch.setitem(sys.modules, name, None)

    return hide


def picture(mode: str = "RGB", **options) -> bytes:
    buffer = BytesIO()
    Image.fromarray(np.moveaxis(ARRAY, 0, 2)).convert(mode).save(buffer, "JPEG2000", **options)
    return buffer.getvalue()


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
@pytest.mark.parametrize("options", [{}, {"no_jp2": True}], ids=["JP2", "codestream"])
def test_a_picture_is_the_same_with_and_without(mode, options, without) -> None:
    """JPEG 2000 of 8 bits that lies nowhere needs no GDAL, and nothing depends on whether it is there."""
    data = picture(mode, **options)
    through_gdal = read_raster(data)
    without("rasterio")
    by_pillow = read_raster(data)
    np.testing.assert_array_equal(by_pillow.array, through_gdal.array, strict=True)
    assert by_pillow.georeference is through_gdal.georeference is None
    if not options:  # a codestream cannot say that a band is alpha
        assert by_pillow.alpha == through_gdal.alpha


def test_one_band_of_sixteen_bits_needs_no_gdal(without) -> None:
    """Pillow keeps every digit of it."""
    deep = RNG.integers(0, 65535, (1, 30, 41)).astype("uint16")
    data = jp2(deep)
    without("rasterio")
    np.testing.assert_array_equal(read_raster(data).array, deep)


def test_what_pillow_would_lose_is_refused(without) -> None:
    """The place, bits beyond 8, a sign and a fifth band: the error says which, and the extra."""
    files = {
        "a georeference": jp2(ARRAY, **UTM),
        "3 bands of 16 bits": jp2(ARRAY.astype("uint16")),
        "1 band of 16 bits, signed": jp2(ARRAY[:1].astype("int16")),
        "5 bands of 8 bits": jp2(ARRAY[[0, 1, 2, 0, 1]]),
    }
    large = bytearray(picture("L", no_jp2=True))
    large[8:16] = struct.pack(">2I", 20000, 30000)
    files["30000 x 20000 pixels"] = bytes(large)
    without("rasterio")
    for words, data in files.items():
        with pytest.raises(InputError, match=rf"is JPEG 2000 with {words}, which needs GDAL: {EXTRA}"):
            open_raster(data)


def test_damaged_jpeg2000_is_an_error_without_gdal(without) -> None:
    """Cut anywhere, it is an InputError or a picture, never anything else."""
    data = picture("L")
    without("rasterio")
    for end in (*range(1, 120), len(data) // 2):
        with pytest.raises(InputError):
            read_raster(data[:end])


@pytest.mark.parametrize("name", ["a.vrt", "a.nc", "a4.nc"])
def test_formats_of_gdal_name_the_extra(name, tmp_path, without) -> None:
    """VRT and NetCDF by their path are refused with what to install."""
    source = tiff(tmp_path / "a.tif", ARRAY, **UTM)
    driver, options = ("VRT", {}) if name.endswith("vrt") else ("netCDF", {"FORMAT": "NC4" if "4" in name else "NC"})
    path = converted(source, tmp_path / name, driver, **options)
    without("rasterio")
    with pytest.raises(InputError, match=rf"{name} needs GDAL to be read: {EXTRA}"):
        open_raster(path)


@pytest.mark.parametrize("name", ["s3://bucket/a.jp2", "gs://b/a.tif", "az://b/a.tif", "/vsizip/a.zip/a.tif",
                                  'NETCDF:"a.nc":t', "hdf5:a.h5://t"])  # fmt: skip
def test_names_of_gdal_name_the_extra(name, without) -> None:
    """Names that are no files are not looked for as files."""
    without("rasterio")
    with pytest.raises(InputError, match=EXTRA) as caught:
        open_raster(name)
    assert name in str(caught.value)


def test_an_odd_tiff_names_both_ways_out(without) -> None:
    """What is unknown here is refused as ever, with the extra beside it."""
    without("rasterio")
    with pytest.raises(InputError, match=f"compressed with NEXT, .*; convert it to deflate or LZW, or .*{EXTRA}"):
        open_raster(next_tiff(RNG.integers(0, 4, (20, 24))))


def test_a_box_in_another_system_names_the_extra(without) -> None:
    """A box in the raster's own coordinates, by whatever name, needs no pyproj; another system says what it needs."""
    place = Georeference("EPSG:4326", (1.0, 0.0, 0.0, 0.0, -1.0, 10.0))
    without("pyproj")
    for crs in (None, "EPSG:4326", "epsg:4326", "OGC:CRS84"):
        assert window_of_box((2, 3, 4, 5), crs, place, (10, 10), "a").col == 2
    with pytest.raises(OptionError, match=f"bbox_crs is EPSG:32632, the input's is EPSG:4326: .*needs pyproj: {EXTRA}"):
        window_of_box((2, 3, 4, 5), "EPSG:32632", place, (10, 10), "a")


def test_neither_is_loaded_before_it_is_needed() -> None:
    """A GeoTIFF is read, and a box found in it, without rasterio and pyproj."""
    code = """
import io, sys
import numpy as np
from vllm_mmout.raster import Georeference, read_raster, write_geotiff
from vllm_mmout.raster.box.bounding_box import window_of_box
file = io.BytesIO()
write_geotiff(file, np.ones((1, 9, 9), "uint8"), georeference=Georeference("EPSG:4326", (1, 0, 0, 0, -1, 9)))
raster = read_raster(file.getvalue())
window_of_box((2, 3, 4, 5), None, raster.georeference, (9, 9), "a")
assert not {"rasterio", "pyproj"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
