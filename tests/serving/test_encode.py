"""Encoding: the bytes of each kind of output, read by Pillow, rasterio and numpy, and what cannot be."""

from __future__ import annotations

import dataclasses
import datetime as dt
import errno
import gc
import io
import json
import shutil
import tempfile
import tracemalloc
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pydantic
import pytest
import torch
from on_disk import CLASSES, PALETTE, PLACE, stored
from PIL import Image
from rasterio.io import MemoryFile

from vllm_mmout.errors import AbortedError, DecodeError, OptionError, SaveError
from vllm_mmout.geo.raster.writing import GeoTiffBlocks
from vllm_mmout.outputs import (
    AreasOutput,
    ClassificationOutput,
    ClassScore,
    DetectionOutput,
    ImageOutput,
    PolygonsOutput,
    RasterOutput,
    Source,
    StructuredOutput,
    TensorOutput,
    VideoOutput,
)
from vllm_mmout.outputs.base import Savable
from vllm_mmout.outputs.formats import FORMATS, SENT, listed
from vllm_mmout.outputs.stored import StoredRaster
from vllm_mmout.params import OutputParams
from vllm_mmout.serving.response.answer_budget import AnswerBudget
from vllm_mmout.serving.response.encode import encode, response_of
from vllm_mmout.serving.response.format_choice import FormatChoice, chosen_format
from vllm_mmout.serving.response.result_files import Encoded, own_folder

pytestmark = pytest.mark.engine
IDS = np.random.default_rng(0).integers(0, 3, (1, 70, 60), "uint8")
IDS[0, :10, :7] = 255
SIDE = 17_000
PICTURES = [name for name, form in FORMATS.items() if form.picture]
LOSSY = [name for name in PICTURES if FORMATS[name].lossy]
RGBA = np.random.default_rng(1).integers(0, 256, (20, 30, 4), "uint8")
LABELS = ClassificationOutput(classes=[ClassScore(id=1, label="water", score=0.75)])
BOXES = DetectionOutput(detections=[{"id": 0, "label": "ship", "score": 0.5, "box": (1, 2, 3, 4)}])


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, with nothing else in it."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def raster(ids: np.ndarray = IDS) -> RasterOutput:
    """Classes in memory."""
    return RasterOutput(ids, **CLASSES)


def content(encoded: Encoded) -> bytes:
    """All bytes, in uneven pieces; the result is closed then."""
    read = b"".join(encoded.read(at, 1001) for at in range(0, encoded.nbytes + 1, 1001))
    assert encoded.nbytes == len(read)
    encoded.close()
    return read


def picture(encoded: Encoded) -> Image.Image:
    """What Pillow reads, which must be what the result says of itself."""
    image = Image.open(io.BytesIO(content(encoded)))
    image.load()
    assert image.format == encoded.format.upper()
    assert Image.MIME[image.format] == encoded.media_type
    assert f"{image.width}x{image.height}" == encoded.size
    assert encoded.background == ("transparent" if "A" in image.getbands() else "opaque")
    return image


USUAL = {
    "image": (ImageOutput(RGBA), "png", "image/png", "30x20"),
    "raster": (raster(), "png", "image/png", "60x70"),
    "tensor": (TensorOutput(np.arange(3.0)), "json", "application/json", None),
    "classification": (LABELS, "json", "application/json", None),
    "detection": (BOXES, "json", "application/json", None),
    "areas": (AreasOutput.of(raster()), "json", "application/json", None),
    "polygons": (PolygonsOutput(raster()), "geojson", "application/geo+json", None),
}


@pytest.mark.parametrize("kind", USUAL)
def test_usual_format_of_each_output(kind):
    """Without a format a picture is PNG, a tensor and data JSON, polygons GeoJSON."""
    output, name, media_type, size = USUAL[kind]
    encoded = encode(output, FormatChoice())
    assert (encoded.format, encoded.media_type, encoded.size) == (name, media_type, size)
    assert content(encoded) == output.to_bytes(name)


@pytest.mark.parametrize("name", [*PICTURES, "tiff"])
def test_pictures_of_an_image(name):
    """An image has every picture format, which Pillow reads as what was asked for."""
    array = RGBA[..., :3] if name == "jpeg" else RGBA
    encoded = encode(ImageOutput(array), FormatChoice(output_format=name))
    if name == "tiff":
        assert encoded.media_type == "image/tiff"
        assert encoded.size == "30x20"
        read = Image.open(io.BytesIO(content(encoded)))
    else:
        read = picture(encoded)
    if name in ("png", "tiff"):
        np.testing.assert_array_equal(np.asarray(read), array)


@pytest.mark.parametrize("on_disk", [False, True])
def test_geotiff_is_that_of_save(on_disk, tmp_path, temporary):
    """GDAL reads pixels, place, nodata and colours; once sent, nothing of it is left on the disk."""
    output = stored(IDS, tmp_path, **CLASSES) if on_disk else raster()
    encoded = encode(output, FormatChoice(output_format="tiff"))
    assert (encoded.media_type, encoded.size, encoded.background) == ("image/tiff", "60x70", None)
    with MemoryFile(content(encoded)) as file, file.open() as read:
        np.testing.assert_array_equal(read.read(), IDS)
        assert read.crs.to_epsg() == 32614
        assert tuple(read.transform)[:6] == PLACE.transform
        assert read.nodata == 255
        assert read.colormap(1)[2] == (*PALETTE[2].tolist(), 255)
        assert read.tags()["SENSOR"] == "MSI"
    output.close()
    assert not list(temporary.iterdir())
    assert [path.name for path in tmp_path.iterdir()] == ["temporary"]


def test_raster_on_disk_hands_its_file_over(tmp_path):
    """The file of a raster on disk is renamed, neither read nor copied, and needs no memory."""
    output = stored(IDS, tmp_path, **CLASSES)
    inode = output._file.stat().st_ino
    encoded = encode(output, FormatChoice(output_format="tiff"))
    assert encoded._content.stat().st_ino == inode
    assert not output._remove


@pytest.mark.slow
def test_large_raster_on_disk_in_bounded_memory(tmp_path):
    """A raster of 17,000 pixels square is encoded as GeoTIFF and as a preview in a few MiB of Python's memory."""
    blocks = GeoTiffBlocks(tmp_path, bands=1, height=SIDE, width=SIDE, dtype="uint8", classes=True)
    block = np.ones((1, 512, 512), "uint8")
    for row in range(-(-SIDE // 512)):
        for col in range(-(-SIDE // 512)):
            blocks.write(row, col, block[:, : SIDE - row * 512, : SIDE - col * 512])
    known = {name: value for name, value in CLASSES.items() if name != "metadata"}
    with closing(StoredRaster.from_blocks(blocks, **known)) as output:
        tracemalloc.start()
        try:
            assert picture(encode(output, FormatChoice())).size == (2048, 2048)
            encoded = encode(output, FormatChoice(output_format="tiff"))
            while_read = max(len(encoded.read(at, 1 << 20)) for at in range(0, encoded.nbytes, 1 << 20))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert while_read <= 1 << 20
        assert peak < 64 << 20, peak
        with pytest.raises(
            OptionError, match=r"as npz, which is made in memory, has 289000000 bytes.* 268435456 .*tiff"
        ):
            encode(output, FormatChoice(output_format="npz"), budget=AnswerBudget(1 << 28))
        encoded.close()


def test_large_polygons_go_to_a_file(tmp_path, temporary):
    """Polygons are written to a file as they are traced, and the file goes with the result."""
    polygons = PolygonsOutput(stored(IDS, tmp_path, **CLASSES))
    encoded = encode(polygons, FormatChoice(output_format="json"))
    assert isinstance(encoded._content, Path)
    assert json.loads(content(encoded)) == json.loads(polygons.to_bytes("geojson"))
    assert not list(temporary.iterdir())
    with MemoryFile(content(encode(polygons, FormatChoice(output_format="tiff")))) as file, file.open() as read:
        np.testing.assert_array_equal(read.read(), IDS)


@pytest.mark.parametrize("name", ["geojson", "geoparquet", "geopackage", "flatgeobuf"])
def test_polygons_in_every_format_of_vectors(name, tmp_path, temporary):
    """As `save` writes them: the same features, whatever the format; nothing is left once they are sent."""
    geopandas = pytest.importorskip("geopandas", reason="the oracle is geopandas")
    encoded = encode(PolygonsOutput(raster()), FormatChoice(name))
    assert (encoded.format, encoded.media_type, encoded.size) == (name, FORMATS[name].media_type, None)
    file = tmp_path / f"result{encoded.suffix}"
    file.write_bytes(content(encoded))
    read = geopandas.read_parquet(file) if name == "geoparquet" else geopandas.read_file(file)
    assert read["pixels"].sum() == (IDS != 255).sum()
    assert read.crs.to_epsg() == 32614
    assert not list(temporary.iterdir())


def test_every_result_in_every_format_it_has(tmp_path):
    """What the table lists for a kind of output is sent, under the name and the media type of its row."""
    polygons = PolygonsOutput(stored(IDS, tmp_path, **CLASSES))
    ground = Image.new("RGB", (90, 40), "navy")
    boxes = BOXES.placed(Source(size=(40, 90), georeference=PLACE, picture=lambda: ground))
    areas = AreasOutput.of(raster()).placed(Source(size=(40, 90), picture=lambda: ground))
    outputs = [ImageOutput(RGBA[..., :3]), raster(), TensorOutput(np.arange(3.0)), areas, boxes, polygons]
    outputs.append(VideoOutput(np.zeros((2, 4, 4, 3), np.uint8), 8))
    seen = set()
    for output in outputs:
        for name in dict.fromkeys(output.formats.values()):
            if output is areas and name == "geojson":
                with pytest.raises(OptionError, match="for the features of aoi"):
                    encode(output, FormatChoice(name))
                continue
            with closing(encode(output, FormatChoice(name))) as encoded:
                assert (encoded.format, encoded.media_type) == (name, FORMATS[name].media_type)
                assert encoded.nbytes
                seen.add(name)
    assert seen == set(SENT)


@pytest.mark.parametrize("on_disk", [False, True])
def test_npz_of_a_raster(on_disk, tmp_path):
    """The archive holds the pixels and what is known of them."""
    output = stored(IDS, tmp_path, **CLASSES) if on_disk else raster()
    with np.load(io.BytesIO(content(encode(output, FormatChoice(output_format="npz"))))) as read:
        np.testing.assert_array_equal(read["array"], IDS)
        assert read["class_names"].tolist() == CLASSES["class_names"]


@pytest.mark.parametrize("name", [name for name in PICTURES if FORMATS[name].transparent])
@pytest.mark.parametrize("on_disk", [False, True])
def test_backgrounds(name, on_disk, tmp_path):
    """Nodata is transparent, by itself or when asked for, and white in an opaque picture; the rest stays."""
    output = stored(IDS, tmp_path, **CLASSES) if on_disk else raster()
    for background in ("auto", "transparent"):
        shown = np.asarray(picture(encode(output, FormatChoice(name, background=background))))
        np.testing.assert_array_equal(shown[..., 3] == 0, IDS[0] == 255)
    opaque = picture(
        encode(output, FormatChoice(name, background="opaque", output_compression=100 if name in LOSSY else None))
    )
    assert opaque.mode == "RGB"
    if name == "png":
        white = np.where((IDS[0] == 255)[..., None], 255, PALETTE[np.minimum(IDS[0], 2)])
        np.testing.assert_array_equal(np.asarray(opaque), white)
    else:
        assert np.asarray(opaque)[:8, :6].min() > 200


def test_jpeg_of_what_has_gaps():
    """A JPEG of a raster is that of save, black in gaps; opaque makes gaps white, also of an image with alpha."""
    assert content(encode(raster(), FormatChoice("jpeg"))) == raster().to_bytes("jpeg")
    assert np.asarray(picture(encode(raster(), FormatChoice("jpeg", background="opaque"))))[:8, :5].min() > 200
    clear = RGBA.copy()
    clear[..., 3] = 0
    assert np.asarray(picture(encode(ImageOutput(clear), FormatChoice("jpeg", background="opaque")))).min() == 255
    with pytest.raises(OptionError, match=r"^JPEG has no transparency, the picture has an alpha channel; this result"):
        encode(ImageOutput(RGBA), FormatChoice("jpeg"))


@pytest.mark.parametrize("name", LOSSY)
def test_compression_is_quality(name):
    """100 is the best, 0 the least; without it the quality is that of save."""
    image = ImageOutput(np.random.default_rng(2).integers(0, 256, (64, 64, 3), "uint8"))
    sizes = [encode(image, FormatChoice(name, output_compression=quality)).nbytes for quality in (0, 50, 100)]
    assert sizes == sorted(set(sizes))
    for quality in (1, 37, 100):
        expected = image.to_bytes(name, quality=quality)
        assert content(encode(image, FormatChoice(name, output_compression=quality))) == expected
    assert content(encode(image, FormatChoice(name))) == image.to_bytes(name)


def test_structured_results_as_data_and_drawn():
    """A structured result is its fields, or the drawing over its input."""
    ground = Image.new("RGB", (90, 40), "navy")
    placed = BOXES.placed(Source(size=(40, 90), georeference=PLACE, picture=lambda: ground))
    assert DetectionOutput.model_validate_json(content(encode(placed, FormatChoice("json")))) == placed
    drawn = picture(encode(placed, FormatChoice("png")))
    np.testing.assert_array_equal(np.asarray(drawn), np.asarray(placed.image))
    for asked in (FormatChoice(accept="geojson"), FormatChoice("geojson"), FormatChoice("json", accept="geojson")):
        encoded = encode(placed, asked)
        assert encoded.media_type == "application/geo+json"
        assert json.loads(content(encoded)) == json.loads(json.dumps(placed.geojson))


@pytest.mark.parametrize(
    ("kind", "asked", "param", "message"),
    [
        ("tensor", FormatChoice("png"), "output_format", "cannot be 'png'; it can be npz, npy, json"),
        ("tensor", FormatChoice(accept="image"), "output_format", "cannot be 'image'; it can be npz, npy, json"),
        ("tensor", FormatChoice(accept="tiff"), "output_format", "cannot be 'tiff'; it can be npz, npy, json"),
        (
            "raster",
            FormatChoice("json"),
            "output_format",
            f"cannot be 'json'; it can be {', '.join(PICTURES)}, tiff, npz",
        ),
        ("raster", FormatChoice(accept="geojson"), "output_format", "cannot be 'geojson'"),
        ("image", FormatChoice("npz"), "output_format", f"cannot be 'npz'; it can be {', '.join(PICTURES)}, tiff"),
        ("classification", FormatChoice("tiff"), "output_format", f"it can be {', '.join(PICTURES)}, json"),
        ("classification", FormatChoice("png"), "output_format", "it has no input; this result can be png"),
        (
            "polygons",
            FormatChoice("png"),
            "output_format",
            "cannot be 'png'; it can be tiff, geojson, geoparquet, geopackage, flatgeobuf",
        ),
        ("detection", FormatChoice(accept="geojson"), "output_format", "GeoJSON needs a georeferenced input"),
        ("raster", FormatChoice("png", accept="tiff"), "output_format", "asks for 'png', the header Accept for 'tiff'"),
        (
            "raster",
            FormatChoice("json", accept="image"),
            "output_format",
            "asks for 'json', the header Accept for 'image'",
        ),
        ("raster", FormatChoice("png", 50), "output_compression", f"for {listed(LOSSY, 'and')}, not png"),
        ("raster", FormatChoice(None, 50), "output_compression", f"for {listed(LOSSY, 'and')}, not png"),
        ("raster", FormatChoice("tiff", 50), "output_compression", f"for {listed(LOSSY, 'and')}, not tiff"),
        ("tensor", FormatChoice(None, 50), "output_compression", f"for {listed(LOSSY, 'and')}, not json"),
        ("raster", FormatChoice("jpeg", background="transparent"), "background", "jpeg has no transparent background"),
        ("raster", FormatChoice("tiff", background="transparent"), "background", "tiff has no transparent background"),
        ("raster", FormatChoice("tiff", background="opaque"), "background", "tiff has no background"),
        ("classification", FormatChoice(background="opaque"), "background", "json has no background"),
    ],
)
def test_what_cannot_be_is_refused(kind, asked, param, message, temporary):
    """The error names the field and says what the result can be; nothing is left."""
    with pytest.raises(OptionError) as raised:
        encode(USUAL[kind][0], asked)
    assert raised.value.param == param
    assert message in str(raised.value)
    assert not list(temporary.iterdir())


def test_what_a_format_cannot_hold_is_refused(temporary):
    """A picture too wide for WebP, and polygons that lie nowhere, are the client's to change."""
    with pytest.raises(
        OptionError, match=r"webp cannot hold a picture of 17000 x 1.*; this result can be png"
    ) as raised:
        encode(ImageOutput(np.zeros((1, 17_000), "uint8")), FormatChoice("webp"))
    assert raised.value.param == "output_format"
    nowhere = PolygonsOutput(RasterOutput(IDS, nodata=255))
    with pytest.raises(
        OptionError, match=r"^GeoJSON needs a georeferenced input, .*; this result can be tiff, geojson, geoparquet"
    ):
        encode(nowhere, FormatChoice())
    assert not list(temporary.iterdir())


def test_full_disk_is_the_servers(tmp_path, monkeypatch, temporary):
    """A file that cannot be written is no fault of the client's, and the message has no path."""
    output = stored(IDS, tmp_path, **CLASSES)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(
        SaveError, match=r"^the result cannot be written on the server: No space left on device$"
    ) as raised:
        encode(output, FormatChoice("tiff"))
    assert isinstance(raised.value.__cause__, OSError)
    assert not list(temporary.iterdir())
    output.close()


@pytest.mark.parametrize("given", [*PICTURES, "tiff", "npz", "json", None])
def test_formats_are_checked_before_a_scene_is_run(given):
    """The formats of a processor alone tell what a raster will be, or that it cannot be."""
    if given == "json":
        with pytest.raises(OptionError, match=f"it can be {', '.join(PICTURES)}, tiff, npz"):
            chosen_format(RasterOutput.formats, FormatChoice(given))
    else:
        assert chosen_format(RasterOutput.formats, FormatChoice(given)) == (given or "png")


@pytest.mark.parametrize("name", [None, *PICTURES, "tiff", "npz", "json"])
def test_previews_are_pictures(name):
    """A preview has the picture format that was asked for, with its compression, and PNG where that is none."""
    preview = FormatChoice(name, 30 if name in LOSSY else None, "auto", accept="image").for_preview
    encoded = encode(ImageOutput(RGBA[..., :3]), preview)
    assert encoded.format == (name if name in PICTURES else "png")
    if name in LOSSY:
        assert content(encoded) == ImageOutput(RGBA[..., :3]).to_bytes(name, quality=30)


@pytest.mark.parametrize("background", ["auto", "opaque"])
def test_a_preview_in_jpeg_is_flat(background):
    """Where nothing is finished it is as where a result in JPEG is nodata; a result that is RGBA itself is refused."""
    preview = encode(ImageOutput(RGBA), FormatChoice("jpeg", 90, background).for_preview)
    ground = Image.new("RGBA", (30, 20), "black" if background == "auto" else "white")
    made = io.BytesIO()
    Image.alpha_composite(ground, Image.fromarray(RGBA)).convert("RGB").save(made, "JPEG", quality=90)
    shown = np.asarray(Image.open(io.BytesIO(content(preview))), int)
    wanted = np.asarray(Image.open(made), int)
    assert np.abs(shown - wanted).mean() < 3
    assert preview.background == "opaque"
    with pytest.raises(OptionError, match="transparency"):
        encode(ImageOutput(RGBA), FormatChoice("jpeg"))


class Sound(Savable):
    """An output of somebody else's with formats of its own."""

    formats = {".aiff": "aiff"}  # noqa: RUF012 - as its author would write it

    def _encode(self, name, options):
        return b"FORM"


def test_outputs_of_others_that_can_be_saved():
    """A class with formats of its own is sent in its usual one, with the media type that its suffix has."""
    encoded = encode(Sound(), FormatChoice())
    assert (encoded.format, encoded.suffix, content(encoded)) == ("aiff", ".bin", b"FORM")
    assert encoded.media_type in ("audio/x-aiff", "audio/aiff")
    with pytest.raises(OptionError, match="this result cannot be 'png'; it can be aiff"):
        encode(Sound(), FormatChoice("png"))


@pytest.mark.parametrize(
    ("given", "media_type", "name", "expected"),
    [
        ((b"<svg/>", "image/svg+xml"), "image/svg+xml", "bin", b"<svg/>"),
        ((bytearray(b"a,b"), "text/csv; charset=utf-8"), "text/csv; charset=utf-8", "csv", b"a,b"),
        ((b"\x89PNG", "image/png"), "image/png", "png", b"\x89PNG"),
        ((b"ID3", "audio/mpeg"), "audio/mpeg", "bin", b"ID3"),
        ({"yield": 2.5}, "application/json", "json", b'{"yield":2.5}'),
        ([1, None, "x"], "application/json", "json", b'[1,null,"x"]'),
        (None, "application/json", "json", b"null"),
    ],
)
def test_what_to_response_gives(given, media_type, name, expected):
    """An object that is none of our classes goes as its processor's to_response says: bytes, or JSON."""
    asked_for = []

    def to_response(output, params):
        asked_for.append((output, params))
        return given

    params = OutputParams()
    encoded = encode("a result", FormatChoice(), response_of(SimpleNamespace(to_response=to_response), params))
    assert (encoded.media_type, encoded.format, content(encoded)) == (media_type, name, expected)
    assert asked_for == [("a result", params)]


def test_to_response_has_the_format_it_has():
    """A format may be asked for where it is that one; another, compression or a background cannot be honoured."""
    assert encode(object(), FormatChoice("json"), lambda _: {}).format == "json"
    for asked, param in [
        (FormatChoice("png"), "output_format"),
        (FormatChoice(accept="tiff"), "output_format"),
        (FormatChoice(None, 5), "output_compression"),
        (FormatChoice(background="opaque"), "background"),
        (FormatChoice(background="transparent"), "background"),
    ]:
        with pytest.raises(OptionError) as raised:
            encode(object(), asked, lambda _: {})
        assert raised.value.param == param


def test_without_to_response_the_method_is_named():
    """An object without a form over HTTP is refused by an error that names what its author can define."""
    assert response_of(object(), OutputParams()) is None
    for given in (object(), {"a": object()}, [lambda: None]):
        with pytest.raises(OptionError, match=r"which has no form over HTTP.*to_response\(output, params\)"):
            encode(given, FormatChoice(), None)


class _Point(msgspec.Struct):
    x: int


class _Place(pydantic.BaseModel):
    name: str
    when: dt.date


@dataclasses.dataclass
class _Pair:
    left: float


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"a": [1, None, "b"], "n": float("nan")}, {"a": [1, None, "b"], "n": None}),
        ([_Point(3), _Pair(0.5)], [{"x": 3}, {"left": 0.5}]),
        (_Place(name="Sen", when=dt.date(2026, 1, 2)), {"name": "Sen", "when": "2026-01-02"}),
        ({"mean": np.float32(0.5), "counts": np.arange(3), "ids": torch.tensor([[1, 2]])}, None),
        ("wet", "wet"),
        (3, 3),
        (None, None),
    ],
)
def test_plain_data_are_json(given, expected):
    """What a processor returns needs no ``to_response`` where JSON has it, numpy's and torch's numbers inside too."""
    if expected is None and given is not None:
        expected = {"mean": 0.5, "counts": [0, 1, 2], "ids": [[1, 2]]}
    encoded = encode(given, FormatChoice(), None)
    assert encoded.format == "json"
    assert json.loads(encoded.read(0, encoded.nbytes)) == expected
    with pytest.raises(OptionError, match="png"):
        encode(given, FormatChoice("png"), None)


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "LA", "P", "1", "CMYK"])
def test_a_plain_picture_is_a_picture(mode):
    """Of any mode of Pillow, in any format of pictures."""
    picture = Image.frombytes("RGB", (2, 1), bytes([255, 0, 0, 0, 0, 255])).convert(mode)
    for asked, name in ((None, "PNG"), ("webp", "WEBP"), ("jpeg", "JPEG")):
        encoded = encode(picture, FormatChoice(asked, flat=True), None)
        with Image.open(io.BytesIO(encoded.read(0, encoded.nbytes))) as found:
            assert (found.format, found.size) == (name, (2, 1))
            if asked is None:
                assert found.convert("RGB").tobytes() == picture.convert("RGB").tobytes()


@pytest.mark.parametrize("given", [np.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(2, 3)])
def test_plain_arrays_are_files_of_numpy(given):
    """One array is an NPY or JSON; several by name an NPZ."""
    encoded = encode(given, FormatChoice("npy"), None)
    np.testing.assert_array_equal(np.load(io.BytesIO(encoded.read(0, encoded.nbytes))), np.asarray(given))
    several = encode({"a": given, "b": given}, FormatChoice("npz"), None)
    assert set(np.load(io.BytesIO(several.read(0, several.nbytes)))) == {"a", "b"}
    assert encode(given, FormatChoice(), None).format == "json"


HUGE = np.broadcast_to(np.uint8(1), (1 << 20, 1 << 16))
"""64 GiB that take one byte of memory."""


@pytest.mark.parametrize(
    "huge",
    [
        pytest.param(HUGE, id="array"),
        pytest.param(torch.ones(1, dtype=torch.bfloat16).expand(1 << 20, 1 << 16), id="bfloat16"),
        pytest.param({"mask": HUGE, "name": "a"}, id="data"),
        pytest.param(ImageOutput(HUGE), id="picture"),
        pytest.param(RasterOutput(HUGE[None]), id="raster"),
        pytest.param(TensorOutput({"mask": HUGE}), id="tensor"),
    ],
)
def test_an_answer_above_the_limit_is_refused_before_it_is_copied(huge):
    """An array of one byte in memory is 64 GiB as an answer; the error says the size, the limit and the flag."""
    tracemalloc.start()
    try:
        with pytest.raises(OptionError, match=r"\b(6871|1374|2199)\d+ bytes.* 1073741824 bytes \(--mmout-max-answer\)"):
            encode(huge, FormatChoice())
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()


def test_all_results_of_an_answer_share_its_limit():
    """A result that fits alone is refused beside another one, and so are numbers whose text is larger than they are."""
    budget = AnswerBudget(2000)
    encode(np.zeros(125), FormatChoice("npy"), budget=budget)
    with pytest.raises(OptionError, match=r"has 1000 bytes beside 1128 of other results.* 2000 bytes"):
        encode(np.zeros(125), FormatChoice("npy"), budget=budget)
    with pytest.raises(OptionError, match=r"TensorOutput as json has .* 2000 bytes"):
        encode(np.linspace(0, 1, 125), FormatChoice("json"), budget=AnswerBudget(2000))


class _LeftMeanwhile(Savable):
    """A result whose client goes away while it is encoded."""

    output_kinds = ("tensor",)
    formats = TensorOutput.formats

    def __init__(self, budget):
        self._budget = budget

    @property
    def arrays(self):
        """Return the arrays, after the client has gone."""
        self._budget.abandon()
        return {"a": np.zeros(3)}


def test_encoding_ends_when_the_client_is_gone():
    """An encoding that has begun stops at its next piece; others do not begin."""
    budget = AnswerBudget()
    with pytest.raises(AbortedError, match="the client closed its connection"):
        encode(_LeftMeanwhile(budget), FormatChoice("json"), budget=budget)
    with pytest.raises(AbortedError):
        encode("text", FormatChoice(), lambda _: pytest.fail("encoded for nobody"), budget=budget)


def _raise(_):
    raise KeyError("secret")


def _leave(_):
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("to_response", "message"),
    [
        (_raise, "to_response raised KeyError for a str"),
        (_leave, "to_response raised SystemExit for a str"),
        (lambda _: b"bytes", "bytes without a media type"),
        (lambda _: (b"bytes",), "bytes with the media type"),
        (lambda _: (b"bytes", 5), "bytes with the media type"),
        (lambda _: (b"bytes", "png"), "bytes with the media type"),
        (lambda _: (b"bytes", "image/png\r\nSet-Cookie: a=b"), "bytes with the media type"),
        (lambda _: (b"bytes", "image/png", 3), "bytes with the media type"),
        (lambda _: {"a": float("nan")}, "dict that is no JSON"),
        (lambda _: {"a": object()}, "dict that is no JSON"),
        (lambda _: object(), "object that is no JSON"),
    ],
)
def test_wrong_answers_of_to_response(to_response, message):
    """What an author did wrong is an error of the server's that says what it was."""
    with pytest.raises(DecodeError, match=message):
        encode("a result", FormatChoice(), to_response)


def test_pictures_are_drawn_by_the_output():
    """A structured output of an author's own is drawn as that says."""

    class Yield(StructuredOutput):
        tonnes: float

        def draw(self, picture):
            return Image.new("RGB", (3, 4), "red")

    placed = Yield(tonnes=2).placed(Source(picture=lambda: Image.new("L", (9, 9))))
    assert picture(encode(placed, FormatChoice("png"))).getpixel((0, 0)) == (255, 0, 0)


def test_forgotten_results_leave_nothing(tmp_path, temporary):
    """A result that nobody closes removes its file when it is collected."""
    encoded = encode(stored(IDS, tmp_path, **CLASSES), FormatChoice("tiff"))
    encoded.read(0, 10)
    assert list(temporary.iterdir())
    del encoded
    gc.collect()
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("on_disk", [False, True])
def test_closed_results_cannot_be_read(on_disk):
    """Reading after closing is an error, never other bytes; closing again is nothing."""
    if on_disk:
        (own_folder() / "a").write_bytes(b"abc")
        path = next(Path(tempfile.gettempdir()).glob("*/a"))
        encoded = Encoded(path, "png")
    else:
        encoded = Encoded(b"abc", "png")
    assert encoded.read(1, 9) == b"bc"
    encoded.close()
    encoded.close()
    with pytest.raises(ValueError, match="closed or stored"):
        encoded.read(0, 1)
    with pytest.raises(ValueError, match="closed or stored"):
        encoded.store(Path("x"))


def test_folders_of_results_are_for_this_user_alone(temporary):
    """Nobody else can look into the folder of a result."""
    assert own_folder().stat().st_mode & 0o777 == 0o700
    shutil.rmtree(temporary)
