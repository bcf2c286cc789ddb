"""What a page shows of an input: its pixels at reduced size, as rasterio and Pillow have them."""

from __future__ import annotations

import base64
import io
import json
import math
import tracemalloc
from types import SimpleNamespace

import imagecodecs
import msgspec
import numpy as np
import pytest
import rasterio
from PIL import Image
from rasterio.enums import ColorInterp, Resampling

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.segments import Segments
from vllm_mmout.models.inputs.mapper import RasterMapper
from vllm_mmout.wings.jobs.server import input_preview as module
from vllm_mmout.wings.jobs.server.input_preview import input_preview

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
RNG = np.random.default_rng(11)


def tiff(array, names=(), nodata=None, *, alpha=False, **options):
    """A GeoTIFF by rasterio, open, with a name and where it lies."""
    size = {"count": array.shape[0], "height": array.shape[1], "width": array.shape[2], "dtype": array.dtype}
    step = options.pop("step", 10)
    place = {"crs": "EPSG:32632", "transform": rasterio.Affine(step, 0, 500_000, 0, -step, 5_000_000)}
    with rasterio.io.MemoryFile() as memory:
        with memory.open(driver=options.pop("driver", "GTiff"), nodata=nodata, **{**size, **place, **options}) as file:
            file.write(array)
            for number, name in enumerate(names, start=1):
                file.set_band_description(number, name)
            if alpha:
                file.colorinterp = [*[ColorInterp.undefined] * (len(array) - 1), ColorInterp.alpha]
        return opened(memory.read())


def opened(data, name="scene.tif"):
    """Bytes as the server opens them."""
    file = io.BytesIO(data)
    file.name = name
    return file


def values(seen):
    """The pixels as the page makes them of the JSON."""
    said = json.loads(msgspec.json.encode(seen))
    shown = said["shown"]
    array = np.frombuffer(base64.b64decode(said["data"]), np.dtype(said["data_dtype"]).newbyteorder("<"))
    return array.reshape(len(said["bands"]), shown["height"], shown["width"])


def by_gdal(file):
    """All bands at the size that is shown, as GDAL reads them."""
    with rasterio.io.MemoryFile(file.getvalue()) as memory, memory.open() as dataset:
        longer = max(dataset.shape)
        size = dataset.shape if longer <= 768 else [max(1, round(side * 768 / longer)) for side in dataset.shape]
        return dataset.read(out_shape=(dataset.count, *size), resampling=Resampling.nearest)


def noise(bands, height, width, dtype="uint16"):
    """Pixels."""
    return RNG.integers(0, 200, (bands, height, width)).astype(dtype)


@pytest.mark.heavy
def test_the_answer():
    """It has the fields of a ``scene.preview``."""
    array = noise(6, 1000, 1500)
    said = json.loads(msgspec.json.encode(input_preview(tiff(array, nodata=7, names=["blue", "green", "red"]))))
    assert (
        base64.b64decode(said.pop("data"))
        == array[:, middles(1000, 512)][:, :, middles(1500, 768)].astype("<u2").tobytes()
    )
    assert said == {
        "object": "scene.preview",
        "width": 1500,
        "height": 1000,
        "shown": {"width": 768, "height": 512},
        "dtype": "uint16",
        "bands": ["blue", "green", "red", "", "", ""],
        "nodata": 7,
        "usual": [3, 2, 1],
        "data_dtype": "uint16",
    }


def middles(old, new):
    """The pixel that holds the middle of each of fewer."""
    return [math.floor((place + 0.5) * old / new) for place in range(new)]


STORED = {
    "strips": {"blockysize": 7},
    "one strip": {"blockysize": 901, "compress": "deflate"},
    "tiles": {"tiled": True, "blockxsize": 128, "blockysize": 64, "compress": "lzw", "predictor": 2},
    "planes": {"interleave": "band", "tiled": True, "blockxsize": 256, "blockysize": 256, "compress": "zstd"},
    "planes of strips": {"interleave": "band", "blockysize": 33},
    "big endian": {"endianness": "BIG", "tiled": True, "blockxsize": 16, "blockysize": 16},
    "lerc": {"compress": "lerc", "tiled": True, "blockxsize": 256, "blockysize": 256},
}


@pytest.mark.heavy
@pytest.mark.parametrize("most", [module._AT_ONCE, 20_000])
@pytest.mark.parametrize("stored", STORED)
def test_geotiffs(stored, most, monkeypatch):
    """Of any storage, whatever is read at once, pixels are those that GDAL picks."""
    monkeypatch.setattr(module, "_AT_ONCE", most)
    file = tiff(noise(4, 901, 307), **STORED[stored])
    np.testing.assert_array_equal(values(input_preview(file)), by_gdal(file), strict=True)


@pytest.mark.parametrize("size", [(1, 1), (1, 5000), (5000, 1), (2, 70_000), (768, 768), (769, 768), (300, 20)])
def test_sizes(size):
    """From one pixel to very long and thin: the longer side is 768 at most, no side is 0, nothing is scaled up."""
    file = tiff(noise(1, *size, "uint8"))
    seen = input_preview(file)
    assert (seen.height, seen.width) == size
    assert max(seen.shown.width, seen.shown.height) == min(768, max(size))
    np.testing.assert_array_equal(values(seen), by_gdal(file), strict=True)


@pytest.mark.parametrize(
    ("dtype", "shown"),
    [
        ("uint8", "uint8"),
        ("int8", "int16"),
        ("int16", "int16"),
        ("uint16", "uint16"),
        ("int32", "int32"),
        ("uint32", "uint32"),
        ("float32", "float32"),
        ("float64", "float32"),
        ("int64", "float32"),
        ("uint64", "float32"),
    ],
)
def test_dtypes(dtype, shown):
    """Each becomes one that a page has typed arrays of, with the same values as far as it holds them."""
    limits = np.iinfo(dtype) if np.dtype(dtype).kind in "iu" else np.finfo("float32")
    array = np.array([[[limits.min, limits.max, 0, 1, 17]]], dtype)
    seen = input_preview(tiff(array))
    assert (seen.dtype, seen.data_dtype) == (dtype, shown)
    np.testing.assert_array_equal(values(seen), array.astype(shown), strict=True)


def test_half_floats():
    """They become float32; GDAL of this version writes none, tifffile does."""
    import tifffile

    array = RNG.random((9, 11)).astype("float16")
    made = io.BytesIO()
    tifffile.imwrite(made, array)
    seen = input_preview(opened(made.getvalue()))
    assert (seen.dtype, seen.data_dtype) == ("float16", "float32")
    np.testing.assert_array_equal(values(seen)[0], array.astype("float32"), strict=True)


@pytest.mark.parametrize(
    ("dtype", "nodata", "expected"),
    [
        ("uint8", 255, 255),
        ("int16", -9999, -9999),
        ("float32", -9999.9, float(np.float32(-9999.9))),
        ("float64", 0.1, float(np.float32(0.1))),
        ("float32", math.nan, None),
        ("float64", -1.7976931348623157e308, None),
        ("uint8", None, None),
    ],
)
def test_nodata(dtype, nodata, expected):
    """It equals the pixels that have it; what is not finite is no number of JSON, and the pixels are not finite."""
    array = noise(1, 3, 4, dtype)
    if nodata is not None:
        array[0, 1] = nodata
    seen = input_preview(tiff(array, nodata=nodata))
    said = json.loads(msgspec.json.encode(seen))["nodata"]
    assert said == expected
    assert type(said) is type(expected)
    if nodata is not None:
        pixels = values(seen)[0, 1].astype(float)
        assert (pixels == said).all() if said is not None else not np.isfinite(pixels).any()


def test_complex_pixels():
    """They are refused, with what to do."""
    with pytest.raises(InputError, match=r"complex64, which cannot be shown; convert"):
        input_preview(tiff(noise(1, 3, 4, "complex64")))


@pytest.mark.parametrize("name", ["PNG", "JPEG", "WEBP", "BMP"])
def test_pictures(name):
    """Pixels are those that Pillow picks; the bands are red, green and blue."""
    made = io.BytesIO()
    Image.fromarray(np.moveaxis(noise(3, 701, 1100, "uint8"), 0, 2)).save(made, name)
    seen = input_preview(opened(made.getvalue(), "a"))
    with Image.open(made) as picture:
        expected = np.asarray(picture.resize((768, 489), Image.Resampling.NEAREST))
    assert (seen.usual, seen.bands, seen.shown.height) == ((1, 2, 3), ("", "", ""), 489)
    np.testing.assert_array_equal(np.moveaxis(values(seen), 0, 2), expected, strict=True)


@pytest.mark.parametrize(
    ("bands", "usual"), [(1, (1,)), (2, (1,)), (3, (1, 2, 3)), (4, (1, 2, 3))], ids=["L", "LA", "RGB", "RGBA"]
)
def test_pictures_of_16_bits(bands, usual):
    """They keep their bits; alpha is a band."""
    array = RNG.integers(0, 65536, (20, 30, bands)).astype("uint16")
    seen = input_preview(opened(imagecodecs.png_encode(array.squeeze()), "a.png"))
    assert (seen.data_dtype, seen.usual) == ("uint16", usual)
    np.testing.assert_array_equal(np.moveaxis(values(seen), 0, 2), array, strict=True)


@pytest.mark.heavy
def test_jpeg_2000():
    """As GDAL reads it, with the extra ``gdal``."""
    file = tiff(noise(2, 800, 250), driver="JP2OpenJPEG", QUALITY="100", REVERSIBLE="YES")
    np.testing.assert_array_equal(values(input_preview(file)), by_gdal(file), strict=True)


def test_more_bands_than_are_shown():
    """The first 32 are, and names of others are not looked at."""
    file = tiff(noise(40, 30, 20), names=[*[f"band {number}" for number in range(37)], "blue", "green", "red"])
    seen = input_preview(file)
    assert seen.bands == tuple(f"band {number}" for number in range(32))
    assert seen.usual == (3, 2, 1)
    np.testing.assert_array_equal(values(seen), by_gdal(file)[:32], strict=True)


@pytest.mark.parametrize(
    ("names", "usual"),
    [
        (["red", "green", "blue", "nir"], (1, 2, 3)),
        (["Blue", "GREEN", "Red", ""], (3, 2, 1)),
        (["B01", "B02", "B03", "B04"], (4, 3, 2)),
        (["coastal blue", "blue", "green i", "green", "yellow", "red", "red edge"], (6, 4, 2)),
        (["red edge 1", "SR Blue (490 nm)", "SR Green", "SR_red"], (4, 3, 2)),
        (["red", "green"], (1,)),
        (["a", "b", "c"], (1, 2, 3)),
        (["a", "b", "c", "red"], (3, 2, 1)),
        (["water"], (1,)),
    ],
)
def test_bands_that_are_usually_shown(names, usual):
    """By their names where red, green and blue have one, else by their number."""
    assert input_preview(tiff(noise(len(names), 5, 6), names=names)).usual == usual


@pytest.mark.parametrize(
    ("bands", "options", "usual"),
    [
        (3, {}, (1, 2, 3)),
        (4, {"photometric": "MINISBLACK", "ALPHA": "NO"}, (3, 2, 1)),
        (4, {"photometric": "RGB", "ALPHA": "NO"}, (1, 2, 3)),
        (5, {"photometric": "RGB"}, (1, 2, 3)),
        (4, {"alpha": True}, (1, 2, 3)),
        (2, {"alpha": True}, (1,)),
        (6, {}, (3, 2, 1)),
    ],
)
def test_bands_without_names(bands, options, usual):
    """A picture in colour is one by its photometric interpretation, or since it has three bands beside alpha."""
    assert input_preview(tiff(noise(bands, 5, 6, "uint8"), **options)).usual == usual


def test_bands_that_only_the_model_names():
    """Its names count where the input has none and as many bands; the answer has the input's own."""
    model = SimpleNamespace(rasters=RasterMapper("net", ("nir", "red", "green", "blue"), 64))
    array = noise(4, 5, 6)
    seen = input_preview(tiff(array), model)
    assert (seen.usual, seen.bands) == ((2, 3, 4), ("",) * 4)
    assert input_preview(tiff(array, names=["b", "g", "r", "x"]), model).usual == (3, 2, 1)
    assert input_preview(tiff(noise(5, 5, 6)), model).usual == (3, 2, 1)
    assert input_preview(tiff(array), SimpleNamespace(rasters=None)).usual == (3, 2, 1)
    dates = SimpleNamespace(rasters=RasterMapper("net", ("red", "green", "blue"), 64, num_frames=2))
    assert input_preview(tiff(noise(6, 5, 6)), dates).usual == (1, 2, 3)


def named(file, name):
    """The file under another name."""
    file.name = name
    return file


def test_files_of_different_pixels():
    """They are the bands of one input on the grid of the finest, by the names of the files."""
    fine, coarse = noise(1, 1000, 1600), noise(1, 500, 800, "int16")
    files = [
        named(tiff(coarse, step=20), "S2_B02_20m.tif"),
        named(tiff(fine), "S2_B03_10m.tif"),
        named(tiff(fine + 1), "S2_B04_10m.tif"),
    ]
    seen = input_preview(files)
    assert (seen.width, seen.height, seen.bands, seen.usual) == (1600, 1000, ("B02", "B03", "B04"), (3, 2, 1))
    assert seen.dtype == "int32"
    picked = np.ix_(middles(1000, 480), middles(1600, 768))
    repeated = coarse[0].repeat(2, axis=0).repeat(2, axis=1)
    expected = np.stack([layer[picked] for layer in (repeated, fine[0], fine[0] + 1)]).astype("int32")
    np.testing.assert_array_equal(values(seen), expected, strict=True)


def test_dates():
    """Lists in a list are the dates of one input; their bands follow each other."""
    arrays = [noise(1, 6, 5) for _ in range(4)]
    files = [named(tiff(array), f"B0{number % 2 + 3}.tif") for number, array in enumerate(arrays)]
    seen = input_preview([files[:2], files[2:]])
    assert seen.bands == ("B03", "B04", "B03", "B04")
    np.testing.assert_array_equal(values(seen), np.concatenate(arrays), strict=True)


def test_a_list_of_one_file_and_files_by_name():
    """The one file is the input; names are those of the bands."""
    array = noise(2, 6, 5)
    assert input_preview([[tiff(array, names=["x", "y"])]]).bands == ("x", "y")
    assert input_preview({"red": tiff(array[:1]), "nir": tiff(array[1:])}).bands == ("red", "nir")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (lambda: opened(b"no image at all"), "is not an image that can be read"),
        (lambda: opened(tiff(noise(1, 50, 50)).getvalue()[:-9]), "truncated or damaged"),
        (lambda: opened(tiff(noise(1, 50, 50)).getvalue()[:6]), "truncated or damaged"),
        (lambda: [tiff(noise(1, 5, 5)), opened(imagecodecs.png_encode(noise(1, 9, 9, "uint8")[0]))], "differ in size"),
        (list, "empty list"),
        (lambda: [1, 2], "got int"),
    ],
)
def test_what_cannot_be_shown(data, says):
    """Is refused by an error that says why."""
    with pytest.raises(InputError, match=says):
        input_preview(data())


@pytest.fixture
def decoded(monkeypatch):
    """How often each segment of each image was decoded, by image."""
    images, decode = {}, Segments.decode

    def counting(self, *args):
        images[id(self)] = self
        return decode(self, *args)

    monkeypatch.setattr(Segments, "decode", counting)
    return images


@pytest.mark.parametrize("most", [module._AT_ONCE, 50_000])
@pytest.mark.parametrize(
    ("options", "read"),
    [
        ({"blockysize": 1, "compress": "deflate"}, 768),
        ({"blockysize": 500, "compress": "deflate"}, 6),
        ({"tiled": True, "blockxsize": 128, "blockysize": 128, "compress": "deflate"}, 24 * 2),
        (
            {"tiled": True, "blockxsize": 128, "blockysize": 128, "compress": "deflate", "interleave": "band"},
            24 * 2 * 2,
        ),
    ],
)
def test_each_segment_is_read_once(options, read, most, decoded, monkeypatch):
    """And none without a pixel that is shown."""
    monkeypatch.setattr(module, "_AT_ONCE", most)
    input_preview(tiff(noise(2, 3000, 200), **options))
    (image,) = decoded.values()
    assert image.decoded.max() == 1
    assert image.decoded.sum() == read


@pytest.mark.heavy
def test_memory_of_a_large_scene(tmp_path):
    """What is read of it takes some tens of MiB, whatever its size: this one has 770 MiB."""
    path = tmp_path / "large.tif"
    size = {"count": 6, "height": 8192, "width": 8192, "dtype": "uint16", "nodata": 0}
    stored = {"tiled": True, "blockxsize": 512, "blockysize": 512, "compress": "zstd"}
    row = noise(6, 512, 8192) * 0 + np.arange(8192, dtype="uint16")
    with rasterio.open(path, "w", driver="GTiff", sparse_ok=True, **size, **stored) as file:
        for start in (0, 4096, 7680):
            file.write(row, window=((start, start + 512), (0, 8192)))
    tracemalloc.start()
    try:
        with path.open("rb") as file:
            seen = input_preview(file)
        most = tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()
    assert len(seen.data) == 768 * 768 * 6 * 2
    assert 15 < most < 80
    rows = np.array(middles(8192, 768))
    stored_rows = (rows < 512) | ((rows >= 4096) & (rows < 4608)) | (rows >= 7680)
    expected = np.where(stored_rows[:, np.newaxis], middles(8192, 768), 0)
    for band in values(seen):
        np.testing.assert_array_equal(band, expected)
