"""Reading TIFFs of every layout, and the real files, with rasterio as the oracle."""

from __future__ import annotations

import logging
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import rasterio
import rasterio.shutil
from geotiffs_by_rasterio import geotiff
from rasterio.crs import CRS
from rasterio.io import MemoryFile
from rasterio.transform import Affine

from vllm_mmout.geo.raster.opened import read_raster
from vllm_mmout.geo.raster.writing import write_geotiff

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")

SHARED = Path(__file__).resolve().parents[3] / "../shared/data"
REAL = ["RGB.byte.tif", "hls_10band_utm14n_224.tif", "rotated.tif"]
ARRAY = np.random.default_rng(7).integers(0, 255, (3, 70, 90)).astype("uint8")


def real(name: str) -> Path:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"{path} is not here: the real rasters are not part of the project")
    return path


def made(array: np.ndarray = ARRAY, **options: object) -> bytes:
    """A GeoTIFF by rasterio."""
    return geotiff(array, **options)


@pytest.mark.parametrize("name", REAL)
def test_a_real_file_is_read_as_rasterio_reads_it(name: str) -> None:
    """Pixels, nodata, descriptions, place and items of a real file are those that rasterio reports."""
    path = real(name)
    raster = read_raster(path)
    place = raster.georeference
    assert place is not None
    with rasterio.open(path) as file:
        np.testing.assert_array_equal(raster.array, file.read(), strict=True)
        assert raster.nodata == file.nodata
        assert raster.descriptions == file.descriptions
        assert place.transform == tuple(file.transform)[:6]
        assert (CRS.from_string(place.crs) if place.crs else None) == file.crs
        assert raster.metadata == {key: text for key, text in file.tags().items() if key != "AREA_OR_POINT"}


@pytest.mark.parametrize("name", REAL)
def test_a_new_file_keeps_the_place_of_a_real_one(name: str, tmp_path: Path) -> None:
    """A mask written with the georeference of a real file lies, for rasterio, exactly where that file lies."""
    raster = read_raster(real(name))
    mask = np.zeros((1, raster.height, raster.width), np.uint8)
    write_geotiff(tmp_path / "mask.tif", mask, georeference=raster.georeference, nodata=255)
    with rasterio.open(real(name)) as source, rasterio.open(tmp_path / "mask.tif") as written:
        assert written.crs == source.crs
        assert written.transform == source.transform
        assert str(written.gcps) == str(source.gcps)
        assert written.tags().get("AREA_OR_POINT") == source.tags().get("AREA_OR_POINT")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tiled": True, "blockxsize": 32, "blockysize": 16},
        {"interleave": "band"},
        {
            "interleave": "band",
            "tiled": True,
            "blockxsize": 16,
            "blockysize": 16,
            "compress": "deflate",
            "predictor": 2,
        },
        {"compress": "lzw", "predictor": 2},
        {"compress": "packbits"},
        {"compress": "zstd"},
        {"compress": "lzma"},
        {"compress": "lerc"},
        {"compress": "webp", "WEBP_LOSSLESS": "YES"},
        {"BIGTIFF": "YES"},
        {"ENDIANNESS": "BIG"},
        {"ENDIANNESS": "BIG", "BIGTIFF": "YES", "compress": "deflate", "predictor": 2},
        {"photometric": "minisblack"},
        {"driver": "COG"},
    ],
    ids=str,
)
def test_any_layout_gives_the_same_pixels(options: dict[str, object]) -> None:
    """Strips, tiles, either interleaving, byte order and every lossless compression decode to the same array."""
    place = {"crs": "EPSG:32614", "transform": Affine(30, 0, 440280, 0, -30, 3159720)}
    if options.get("driver") == "COG":
        with MemoryFile(made(**place)) as source, MemoryFile() as memory:
            rasterio.shutil.copy(source.name, memory.name, driver="COG", overview_count=1, blocksize=128)
            data = bytes(memory.getbuffer())
    else:
        data = made(**place, **options)
    raster = read_raster(data)
    np.testing.assert_array_equal(raster.array, ARRAY, strict=True)
    assert raster.georeference is not None
    assert raster.georeference.crs == "EPSG:32614"
    assert raster.georeference.transform == (30, 0, 440280, 0, -30, 3159720)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "uint32", "complex64"])
def test_big_endian_pixels_come_in_the_order_of_the_machine(dtype: str) -> None:
    """A file in the other byte order gives the numbers that rasterio gives."""
    array = (ARRAY.astype("float64") - 99.5).astype(dtype) if dtype != "uint32" else ARRAY.astype(dtype)
    raster = read_raster(made(array, ENDIANNESS="BIG"))
    np.testing.assert_array_equal(raster.array, array)
    assert raster.array.dtype == array.dtype


def test_jpeg_in_tiff_is_decoded_to_rgb() -> None:
    """YCbCr JPEG in a TIFF comes as RGB, within the rounding of two JPEG decoders."""
    smooth = np.stack([*np.meshgrid(np.arange(96), np.arange(64)), np.full((64, 96), 90)]).astype("uint8")
    data = made(smooth, compress="jpeg", photometric="ycbcr", JPEG_QUALITY=95)
    with MemoryFile(data) as memory, memory.open() as file:
        expected = file.read().astype(int)
    assert np.abs(read_raster(data).array.astype(int) - expected).max() <= 2


def test_one_bit_pixels_are_0_and_1() -> None:
    """A bilevel TIFF comes as uint8, as in rasterio."""
    bits = (ARRAY[:1] > 100).astype("uint8")
    np.testing.assert_array_equal(read_raster(made(bits, NBITS=1)).array, bits, strict=True)


def test_a_palette_in_a_tiff_leaves_class_ids_as_they_are() -> None:
    """Pixels of a TIFF with a colour table are the ids, not the colours."""
    ids = (ARRAY[:1] % 4).astype("uint8")
    np.testing.assert_array_equal(read_raster(made(ids, photometric="palette")).array, ids, strict=True)


def test_a_mask_in_the_file_says_what_is_valid() -> None:
    """GDAL's internal mask becomes the mask of the raster, also behind overviews."""
    mask = np.zeros((70, 90), bool)
    mask[10:, :50] = True
    raster = read_raster(made(mask=mask))
    np.testing.assert_array_equal(raster.mask, mask)
    np.testing.assert_array_equal(raster.valid(), mask)


def test_an_alpha_band_says_what_is_valid() -> None:
    """An alpha band is kept as a band, named in alpha, and masks as rasterio's dataset_mask does."""
    array = np.concatenate([ARRAY, (ARRAY[:1] > 60).astype("uint8") * 255])
    data = made(array, photometric="rgb", ALPHA="YES")
    raster = read_raster(data)
    assert (raster.bands, raster.alpha) == (4, 4)
    with MemoryFile(data) as memory, memory.open() as file:
        np.testing.assert_array_equal(raster.mask, file.dataset_mask() > 0)


@pytest.mark.parametrize(("dtype", "nodata"), [("int16", 32767), ("int16", -9999), ("float32", -9999.0), ("uint8", 7)])
def test_tiles_that_are_not_stored_are_nodata(dtype: str, nodata: float, caplog: pytest.LogCaptureFixture) -> None:
    """A sparse file is filled with nodata, as GDAL does it, without a word in the log."""
    with MemoryFile() as memory:
        with memory.open(
            driver="GTiff", dtype=dtype, count=1, height=64, width=64, nodata=nodata, tiled=True,
            blockxsize=16, blockysize=16, SPARSE_OK=True,
        ) as file:  # fmt: skip
            file.write(np.ones((16, 16), dtype), 1, window=rasterio.windows.Window(0, 0, 16, 16))
        data = bytes(memory.getbuffer())
    with MemoryFile(data) as memory, memory.open() as file, caplog.at_level(logging.WARNING, "tifffile"):
        np.testing.assert_array_equal(read_raster(data).array, file.read(), strict=True)
    assert caplog.records == []


def test_rpc_coefficients_are_carried_over() -> None:
    """A file with RPCs instead of a transform keeps them through reading and writing."""
    rpcs = rasterio.rpc.RPC(
        height_off=1.0, height_scale=2.0, lat_off=3.0, lat_scale=4.0, line_off=5.0, line_scale=6.0, long_off=7.0,
        long_scale=8.0, samp_off=9.0, samp_scale=10.0, line_num_coeff=[0.5] * 20, line_den_coeff=[1.5] * 20,
        samp_num_coeff=[2.5] * 20, samp_den_coeff=[3.5] * 20, err_bias=0.25, err_rand=0.75,
    )  # fmt: skip
    with MemoryFile() as memory:
        with memory.open(driver="GTiff", dtype="uint8", count=3, height=70, width=90) as file:
            file.write(ARRAY)
            file.rpcs = rpcs
        raster = read_raster(bytes(memory.getbuffer()))
    buffer = BytesIO()
    write_geotiff(buffer, raster.array, georeference=raster.georeference)
    with MemoryFile(buffer.getvalue()) as memory, memory.open() as file:
        assert file.rpcs == rpcs


@pytest.mark.parametrize("form", ["path", "text", "bytes", "open", "buffer"])
def test_every_form_of_source_gives_the_same(form: str, tmp_path: Path) -> None:
    """A path, its text, the bytes, and an open file are one and the same source."""
    path = tmp_path / "scene.tif"
    path.write_bytes(made())
    with path.open("rb") as opened:
        sources = {
            "path": path,
            "text": str(path),
            "bytes": path.read_bytes(),
            "open": opened,
            "buffer": BytesIO(path.read_bytes()),
        }
        np.testing.assert_array_equal(read_raster(sources[form]).array, ARRAY)


def test_the_date_of_acquisition_is_read() -> None:
    """TIFF's DateTime stands among the items under GDAL's name, in UTF-8 as the rest."""
    with MemoryFile() as memory:
        with memory.open(driver="GTiff", dtype="uint8", count=3, height=70, width=90) as file:
            file.write(ARRAY)
            file.update_tags(TIFFTAG_DATETIME="2024:05:01 10:11:12", SENSOR="Größe <&>")
        raster = read_raster(bytes(memory.getbuffer()))
    assert raster.metadata == {"TIFFTAG_DATETIME": "2024:05:01 10:11:12", "SENSOR": "Größe <&>"}
