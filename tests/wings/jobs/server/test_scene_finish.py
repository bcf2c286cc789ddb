"""What is kept of a result: its file, its picture, and the table of its classes, by numpy, Pillow and rasterio."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from on_disk import CLASSES, PALETTE, PLACE, stored
from PIL import Image

from vllm_mmout.errors import OptionError
from vllm_mmout.outputs import (
    AreasOutput,
    ImageOutput,
    PolygonsOutput,
    RasterOutput,
    Source,
    StructuredOutput,
    TensorOutput,
)
from vllm_mmout.serving.response.format_choice import FormatChoice
from vllm_mmout.wings.jobs.server.results import make_result

rasterio = pytest.importorskip("rasterio", reason="it reads the files")
pytestmark = [pytest.mark.engine]  # its errors know vLLM's
FILE = FormatChoice(as_file=True)


def classes(height=70, width=90, seed=0, most=3):
    """uint8 [1, height, width] of classes from 0, with a hole of 255."""
    array = np.random.default_rng(seed).integers(0, most, (1, height, width), np.uint8)
    array[0, height // 4 : height // 2, width // 5 : width // 3] = 255
    return array


@pytest.fixture(params=["memory", "disk"])
def raster(request, tmp_path):
    """Makes a raster in memory or on disk."""
    made = []

    def make(array, **known):
        made.append(RasterOutput(array, **known) if request.param == "memory" else stored(array, tmp_path, **known))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def folder(tmp_path):
    """In which files are made; nothing is left there in the end."""
    made = tmp_path / "made"
    made.mkdir()
    yield made
    assert list(made.iterdir()) == []


@pytest.fixture
def finish(folder):
    """`finished`, whose files are closed in the end."""
    made = []

    def finish(output, asked=FILE):
        made.append(make_result(output, asked, None, folder))
        return made[-1]

    yield finish
    for one in made:
        one.close()


def content(entry):
    """The bytes of a file."""
    return entry.read(0, entry.nbytes)


def picture(result):
    """The pixels of the picture, RGBA."""
    assert (result.picture.format, result.picture.media_type) == ("png", "image/png")
    with Image.open(io.BytesIO(content(result.picture))) as image:
        assert image.format == "PNG"
        assert result.picture.size == f"{image.width}x{image.height}"
        return np.asarray(image.convert("RGBA"))


def coloured(array):
    """The picture of classes in their colours, nothing where there is nodata."""
    rgb = np.concatenate([PALETTE, np.zeros((253, 3), np.uint8)])[array[0]]
    return rgb, array[0] != 255


def test_classes(raster, finish):
    """The file has the classes, the picture a colour a class, and the table what numpy counts."""
    array = classes()
    result = finish(raster(array, **CLASSES))
    assert (result.file.format, result.file.size) == ("tiff", "90x70")
    with rasterio.MemoryFile(content(result.file)) as memory, memory.open() as file:
        np.testing.assert_array_equal(file.read(), array)
        assert (file.nodata, file.crs, tuple(file.transform)[:6]) == (255, PLACE.crs, PLACE.transform)
    shown = picture(result)
    rgb, seen = coloured(array)
    np.testing.assert_array_equal(shown[..., 3] == 255, seen)
    np.testing.assert_array_equal(shown[..., 3] == 0, ~seen)
    np.testing.assert_array_equal(shown[seen][:, :3], rgb[seen])
    assert [(row.id, row.name) for row in result.classes] == [(0, "land"), (1, "water"), (2, "ice")]
    total = int((array != 255).sum())
    for row in result.classes:
        count = int((array == row.id).sum())
        assert (row.pixels, row.share) == (count, count / total)
        assert row.color == "#{:02x}{:02x}{:02x}".format(*PALETTE[row.id])
        # UTM 14 N at x = 440 km: squares of 30 m, larger by the projection's scale of about 0.9996.
        assert row.area_m2 == pytest.approx(count * 900, rel=1e-3)


def test_classes_without_names_or_colours(raster, finish):
    """A class that the palette has not is black; without a place there is no area; without a palette no table."""
    array = classes(most=5)
    rows = finish(raster(array, nodata=255, palette=PALETTE)).classes
    assert [(row.id, row.name, row.color, row.area_m2) for row in rows] == [
        *((number, None, "#" + PALETTE[number].tobytes().hex(), None) for number in range(3)),
        (3, None, "#000000", None),
        (4, None, "#000000", None),
    ]
    assert [row.pixels for row in rows] == [int((array == number).sum()) for number in range(5)]
    result = finish(raster(array, nodata=255))
    assert result.classes is None
    shown = picture(result)[array[0] != 255]
    np.testing.assert_array_equal(shown[:, 0], np.rint(array[0][array[0] != 255] / 4 * 255))


def test_names_that_no_pixel_has(raster, finish):
    """They stand in the table with nothing; shares are 0, not undefined, where no pixel has a class."""
    rows = finish(raster(np.full((1, 4, 5), 255, np.uint8), **CLASSES)).classes
    assert [(row.name, row.pixels, row.share, row.area_m2) for row in rows] == [
        (name, 0, 0.0, 0.0) for name in ("land", "water", "ice")
    ]


@pytest.mark.parametrize("dtype", ["uint16", "int16", "int32", "uint32", "int64", "bool"])
def test_classes_of_other_numbers(raster, finish, dtype):
    """uint16 has a table as uint8 has; of what cannot be counted there is none, and a picture all the same."""
    array = np.arange(30).reshape(1, 5, 6).astype(dtype) % 3
    result = finish(raster(array.astype(dtype), palette=PALETTE, class_names=["a", "b", "c"]))
    if dtype == "uint16":
        assert [row.pixels for row in result.classes] == [10, 10, 10]
    elif dtype != "bool":
        assert result.classes is None
    np.testing.assert_array_equal(picture(result)[..., :3], PALETTE[array[0].astype(int)])


@pytest.mark.parametrize("shape", [(2049, 30), (30, 5000), (4096, 64), (100, 2100)])
def test_classes_larger_than_a_picture(raster, finish, shape):
    """The longer side becomes 2048 pixels, the other one in proportion; each pixel has the colour of one below it."""
    array = np.zeros((1, *shape), np.uint8)
    array[0, :, shape[1] // 2 :] = 1
    array[0, shape[0] // 2 :, :] += 1  # classes 0, 1, 1, 2 in quarters
    result = finish(raster(array, **CLASSES))
    shown = picture(result)
    expected = [max(1, round(side * 2048 / max(shape))) for side in shape]
    assert list(shown.shape[:2]) == expected
    assert max(shown.shape[:2]) == 2048
    assert result.file.size == f"{shape[1]}x{shape[0]}"
    numbers = (1 << 16, 1 << 8, 1)  # of a colour one, as numpy takes long to compare rows
    assert set(np.unique(shown[..., :3] @ numbers)) == set(PALETTE @ numbers)
    rows, cols = ((np.arange(new) + 0.5) * old / new for old, new in zip(shape, expected, strict=True))
    below = PALETTE[array[0][np.ix_(rows.astype(int), cols.astype(int))]]
    assert (shown[..., :3] == below).all(axis=2).mean() > 0.998  # a middle between two pixels may be either
    assert [row.pixels for row in result.classes] == [int((array == number).sum()) for number in range(3)]


def test_holes_of_large_classes_are_seen(raster, finish):
    """Where all pixels below one of the picture are nodata it is transparent, where none are it is not."""
    array = np.zeros((1, 4096, 64), np.uint8)
    array[0, 1000:3000, 16:32] = 255
    shown = picture(finish(raster(array, **CLASSES)))
    assert shown.shape == (2048, 32, 4)
    expected = np.full((2048, 32), 255)
    expected[500:1500, 8:16] = 0
    np.testing.assert_array_equal(shown[..., 3], expected)


@pytest.mark.parametrize("bands", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int16"])
def test_measurements(raster, finish, bands, dtype):
    """They have no classes; the picture goes from the smallest to the largest value, and is transparent at nodata."""
    array = (np.random.default_rng(bands).random((bands, 40, 50)) * 1000 - 500).astype(dtype)
    array[:, 10:20, 10:20] = -9999
    result = finish(raster(array, nodata=-9999, georeference=PLACE))
    assert result.classes is None
    with rasterio.MemoryFile(content(result.file)) as memory, memory.open() as file:
        np.testing.assert_array_equal(file.read(), array)
    shown, seen = picture(result), array[0] != -9999
    used = (array if bands == 3 else array[:1])[:, seen].astype(np.float64)
    grey = (used - used.min()) / (used.max() - used.min()) * 255
    np.testing.assert_array_equal(shown[..., 3], np.where(seen, 255, 0))
    assert np.abs(shown[seen][:, :3].T - grey).max() <= 0.5 + 1e-6


def test_measurements_larger_than_a_picture(raster, finish):
    """Four pixels that become one are their mean, in grey within what rounding changes."""
    array = np.random.default_rng(3).random((1, 4096, 40)).astype(np.float32)
    shown = picture(finish(raster(array)))
    assert shown.shape == (2048, 20, 4)
    assert (shown[..., 3] == 255).all()
    means = array[0].reshape(2048, 2, 20, 2).mean(axis=(1, 3))
    grey = shown[..., 0].astype(float)
    fit = np.polyfit(means.ravel(), grey.ravel(), 1)  # in memory stretched before it is reduced, on disk behind
    assert fit[0] > 200
    assert np.abs(np.polyval(fit, means) - grey).max() < 2


def test_nothing_but_nan(raster, finish):
    """A raster of which nothing is known has a picture of nothing."""
    result = finish(raster(np.full((1, 6, 7), np.nan, np.float32), nodata=np.nan))
    assert (picture(result)[..., 3] == 0).all()


@pytest.mark.parametrize("asked", [FILE, FormatChoice(output_format="tiff"), FormatChoice(output_format="png")])
def test_formats(raster, finish, asked):
    """Nothing asked for is a GeoTIFF; a picture that is asked for is the file, beside the preview."""
    result = finish(raster(classes(), **CLASSES), asked)
    assert result.file.format == (asked.output_format or "tiff")
    if asked.output_format == "png":
        with Image.open(io.BytesIO(content(result.file))) as image:
            np.testing.assert_array_equal(np.asarray(image.convert("RGBA")), picture(result))


def test_polygons(raster, finish):
    """The file is GeoJSON; the picture and the table are those of the raster of classes."""
    array = classes(30, 40)
    result = finish(PolygonsOutput(raster(array, **CLASSES)))
    assert (result.file.format, result.file.size) == ("geojson", None)
    features = json.loads(content(result.file))["features"]
    for row in result.classes:
        counted = sum(one["properties"]["pixels"] for one in features if one["properties"]["class"] == row.id)
        assert row.pixels == counted == int((array == row.id).sum())
    rgb, seen = coloured(array)
    np.testing.assert_array_equal(picture(result)[seen][:, :3], rgb[seen])
    result.close()


def test_areas(raster, finish):
    """The table stands in the file and beside it; of a table without its input there is no picture."""
    array = classes(30, 40)
    result = finish(AreasOutput.of(raster(array, **CLASSES)))
    assert result.file.format == "json"
    told = json.loads(content(result.file))["classes"]
    assert [one["pixels"] for one in told] == [row.pixels for row in result.classes]
    assert [row.pixels for row in result.classes] == [int((array == number).sum()) for number in range(3)]
    assert result.picture is None
    drawn = AreasOutput.of(raster(array, **CLASSES)).placed(Source(picture=lambda: Image.new("RGB", (300, 200))))
    assert picture(finish(drawn)).shape == (200, 300, 4)


def test_tensors(finish):
    """An archive of numpy has neither picture nor classes."""
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    result = finish(TensorOutput(array))
    assert (result.file.format, result.picture, result.classes) == ("npz", None, None)
    with np.load(io.BytesIO(content(result.file))) as archive:
        np.testing.assert_array_equal(next(iter(archive.values())), array)


@pytest.mark.parametrize("shape", [(40, 60), (50, 4100)])
def test_pictures(finish, shape):
    """An image is a PNG, and its preview is the same picture, no larger than 2048 pixels."""
    rgb = np.random.default_rng(5).integers(0, 255, (*shape, 3), np.uint8)
    result = finish(ImageOutput(rgb))
    assert (result.file.format, result.classes) == ("png", None)
    with Image.open(io.BytesIO(content(result.file))) as image:
        np.testing.assert_array_equal(np.asarray(image), rgb)
    shown = picture(result)[..., :3]
    scale = min(1, 2048 / max(shape))
    size = (round(shape[1] * scale), round(shape[0] * scale))
    np.testing.assert_array_equal(shown, np.asarray(Image.fromarray(rgb).resize(size, Image.Resampling.BOX)))


class Words(StructuredOutput):
    """Fields with a caption."""

    text: str


def test_data(finish):
    """A result of fields is JSON; drawn over its input it has a picture, else none."""
    result = finish(Words(text="a lake"))
    assert json.loads(content(result.file)) == {"text": "a lake"}
    assert (result.picture, result.classes) == (None, None)
    assert picture(finish(Words(text="a lake").placed(Source(picture=lambda: Image.new("RGB", (90, 60)))))).any()


def test_what_an_author_makes(folder):
    """An output of no class of ours is what to_response makes of it."""
    result = make_result(object(), FILE, lambda _: {"a": 1}, folder)
    assert (content(result.file), result.picture, result.classes) == (b'{"a":1}', None, None)
    result.close()


def test_what_cannot_be_made(raster, folder):
    """A format that the result cannot have is refused, and nothing is left."""
    with pytest.raises(OptionError, match="it can be"):
        make_result(raster(classes(), **CLASSES), FormatChoice(output_format="json"), None, folder)
