"""Bad files: each gets an InputError that says what is wrong."""

from __future__ import annotations

import math
import os
import struct
from io import BytesIO, StringIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rasterio.errors import RasterioIOError
from rasterio.io import MemoryFile
from rasterio.transform import Affine

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.formats import is_tiff
from vllm_mmout.geo.raster.opened import open_raster, read_raster
from vllm_mmout.geo.raster.picture import read_picture
from vllm_mmout.geo.raster.tags import read_directories
from vllm_mmout.geo.raster.writing import write_geotiff

RNG = np.random.default_rng(3)


def geotiff_by_rasterio(**options: object) -> bytes:
    array = RNG.integers(0, 99, (2, 40, 50)).astype("int16")
    with MemoryFile() as memory:
        with memory.open(
            driver="GTiff", dtype="int16", count=2, height=40, width=50, crs="EPSG:32614",
            transform=Affine(30, 0, 440280, 0, -30, 3159720), nodata=-9999, **options,
        ) as file:  # fmt: skip
            file.write(array)
            file.descriptions = ("red", "near infrared")
            file.update_tags(SENSOR="a sensor with a long name, so that the text lies behind the directory")
        return bytes(memory.getbuffer())


def geotiff_by_us() -> bytes:
    buffer = BytesIO()
    georeference = read_raster(geotiff_by_rasterio()).georeference
    array = RNG.normal(size=(2, 40, 50)).astype("float32")
    write_geotiff(buffer, array, georeference=georeference, nodata=-1, band_names=("a", "b"))
    return buffer.getvalue()


def picture(name: str) -> bytes:
    buffer = BytesIO()
    Image.fromarray(RNG.integers(0, 255, (40, 50, 3)).astype("uint8")).save(buffer, name)
    return buffer.getvalue()


WHOLE = {
    "strips": geotiff_by_rasterio(),
    "tiles": geotiff_by_rasterio(tiled=True, blockxsize=16, blockysize=16, compress="deflate"),
    "lzw": geotiff_by_rasterio(compress="lzw"),
    "big endian": geotiff_by_rasterio(ENDIANNESS="BIG"),
    "BigTIFF": geotiff_by_rasterio(BIGTIFF="YES", compress="packbits"),
    "ours": geotiff_by_us(),
    "PNG": picture("PNG"),
    "JPEG": picture("JPEG"),
    "WebP": picture("WEBP"),
}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """The error of a file that does not exist names it and where it was looked for."""
    with pytest.raises(InputError, match=r"no such file: .*nowhere\.tif \(looked from"):
        read_raster(tmp_path / "nowhere.tif")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    """A folder instead of a file is said to be one."""
    with pytest.raises(InputError, match="is a folder; give the file in it"):
        read_raster(tmp_path)


def test_a_path_that_no_system_can_open_is_refused() -> None:
    """A path with a NUL, or one too long, is an InputError."""
    with pytest.raises(InputError, match="cannot open"):
        read_raster("a\0b.tif")
    with pytest.raises(InputError, match="cannot open"):
        read_raster("x" * 5000)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_without_permission_is_refused(tmp_path: Path) -> None:
    """The system's reason is part of the message."""
    path = tmp_path / "secret.tif"
    path.write_bytes(WHOLE["strips"])
    path.chmod(0)
    with pytest.raises(InputError, match="Permission denied"):
        read_raster(path)


def test_an_empty_file_is_said_to_be_empty(tmp_path: Path) -> None:
    """Zero bytes are an error of their own."""
    (tmp_path / "empty.tif").touch()
    with pytest.raises(InputError, match=r"empty\.tif is empty"):
        read_raster(tmp_path / "empty.tif")
    with pytest.raises(InputError, match="<0 bytes> is empty"):
        read_raster(b"")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"B02 blue\nB03 green\n", "text that begins with 'B02 blue"),
        ("Wälder".encode() * 200, "text that begins with"),
        (b"\n<!DOCTYPE html><html>404</html>", "an HTML page"),
        (b"%PDF-1.7\n", "a PDF"),
        (b"\x89HDF\r\n\x1a\n" + bytes(100), "HDF5 or NetCDF-4; convert"),
        (b"PK\x03\x04" + bytes(100), "a ZIP archive"),
        (b"\x1f\x8b\x08" + bytes(100), "gzip"),
        (b"\x93NUMPY\x01\0", "a NumPy array"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (bytes(600), "nothing but zeros"),
        (b"\x01\x02\x83\x99" * 60, "binary data that begins with 01 02 83 99"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "text that begins with '%!PS-Adobe"),
    ],
)
def test_what_is_no_image_is_told_by_its_looks(data: bytes, words: str) -> None:
    """The error says what the file seems to be instead."""
    with pytest.raises(InputError, match=words):
        read_raster(data)


def test_things_that_are_no_source_are_refused() -> None:
    """A number or a file opened for text is an InputError that says what is taken."""
    with pytest.raises(InputError, match="path, bytes or an open file, got int"):
        read_raster(7)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="open for text"):
        read_raster(StringIO("text"))  # type: ignore[arg-type]


@pytest.mark.heavy
@pytest.mark.parametrize("kind", WHOLE)
def test_a_file_cut_anywhere_is_refused_or_read_right(kind: str) -> None:
    """A file that ends at any byte is an InputError, or what is left gives all that the whole file gives."""
    data = WHOLE[kind]
    whole = read_raster(data)
    cuts = sorted({*range(1, min(len(data), 700)), *range(700, len(data), 23), *range(len(data) - 300, len(data))})
    refused = 0
    for cut in cuts:
        try:
            part = read_raster(data[:cut])
        except InputError:
            refused += 1
            continue
        np.testing.assert_array_equal(part.array, whole.array, err_msg=f"cut at {cut}")
        assert part.georeference == whole.georeference, f"cut at {cut}"
        assert (part.nodata, part.descriptions, part.metadata) == (whole.nodata, whole.descriptions, whole.metadata)
    assert refused > 0.9 * len(cuts)


@pytest.mark.parametrize(
    ("kind", "length", "part"),
    [
        ("ours", 9000, r"tile 0 of 1"),
        ("ours", 1000, r"tag \d+"),
        ("strips", 6000, "the directory"),
        ("tiles", 6, "the header"),
    ],
)
def test_a_truncated_tiff_says_what_is_missing(kind: str, length: int, part: str, tmp_path: Path) -> None:
    """The message names the file, the part that is cut off, and the length."""
    path = tmp_path / "scene.tif"
    path.write_bytes(WHOLE[kind][:length])
    with pytest.raises(
        InputError, match=rf"scene\.tif is truncated or damaged: {part} reaches to byte \d+, the file has"
    ):
        read_raster(path)


def test_a_truncated_picture_says_so(tmp_path: Path) -> None:
    """A PNG that was not downloaded to its end is said to be truncated."""
    path = tmp_path / "photo.png"
    path.write_bytes(WHOLE["PNG"][:3000])
    with pytest.raises(InputError, match=r"photo\.png is a truncated or damaged picture"):
        read_raster(path)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", WHOLE)
def test_damaged_bytes_never_raise_anything_else(kind: str) -> None:
    """Random bytes in the head of a file are an InputError or are decoded; no other exception gets out."""
    rng = np.random.default_rng(11)
    for _ in range(150):
        data = bytearray(WHOLE[kind])
        for at in rng.integers(4, min(len(data), 600), 3):
            data[at] = rng.integers(0, 256)
        if claims_more_than(bytes(data), 2**40):
            continue
        try:
            raster = read_raster(bytes(data))
        except InputError:
            continue
        assert raster.array.ndim == 3


def claims_more_than(data: bytes, pixels: int) -> bool:
    """Whether the damage fell on the size of a TIFF: limits on it are not this test's concern."""
    if not is_tiff(data):
        return False
    try:
        directory = read_directories(BytesIO(data), "a damaged file")[0]
    except InputError:
        return False
    sizes = (directory.tag(BytesIO(data), code) for code in (256, 257, 277, 278, 322, 323))
    return math.prod(int(size.numbers[0]) for size in sizes if size and size.numbers) > pixels


def test_an_unknown_compression_is_named() -> None:
    """A codec that neither we nor GDAL decode stands in the message, with what to convert to."""
    buffer = BytesIO()
    write_geotiff(buffer, np.ones((1, 9, 9), "uint8"))
    data = bytearray(buffer.getvalue())
    at = data.index(struct.pack("<HHI", 259, 3, 1)) + 8
    data[at : at + 2] = struct.pack("<H", 34661)
    with pytest.raises(InputError, match="compressed with JBIG, which cannot be read here; convert it to deflate"):
        read_raster(bytes(data))
    data[at : at + 2] = struct.pack("<H", 4711)
    with pytest.raises(InputError, match="compressed with number 4711"):
        read_raster(bytes(data))


def test_a_tiff_without_an_image_is_refused() -> None:
    """A header that points to no directory is said to have no image."""
    with pytest.raises(InputError, match="a TIFF without an image"):
        read_raster(b"II*\0" + bytes(20))


def test_directories_in_a_circle_end() -> None:
    """A chain of directories that comes back to its start is walked once."""
    data = bytearray(WHOLE["strips"])
    (at,) = struct.unpack_from("<I", data, 4)
    (count,) = struct.unpack_from("<H", data, at)
    struct.pack_into("<I", data, at + 2 + 12 * count, at)
    np.testing.assert_array_equal(read_raster(bytes(data)).array, read_raster(WHOLE["strips"]).array)


def test_a_decompression_bomb_is_an_input_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Pillow refuses a picture for its size, the caller gets an InputError with the size and the limit."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)
    with pytest.raises(InputError, match=r"larger than pictures may be: \d+ x \d+ pixels, and 1000 at most; cut it"):
        read_raster(WHOLE["PNG"])


@pytest.mark.parametrize("name", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "JPEG2000"])
def test_a_large_picture_is_read_without_a_warning(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow warns from half of its limit on, which here are usual sizes; warnings are errors in this test."""
    image = Image.fromarray(np.arange(1200, dtype="uint8").reshape(30, 40))
    buffer = BytesIO()
    image.save(buffer, name)
    buffer.seek(0)
    expected = read_picture(buffer, "picture").array
    for limit in (1199, 600):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        buffer.seek(0)
        np.testing.assert_array_equal(read_picture(buffer, "picture").array, expected)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 599)
    buffer.seek(0)
    with pytest.raises(InputError, match=r"picture is larger than pictures may be: .*1200 pixels|30 x 40 pixels"):
        read_picture(buffer, "picture")


def with_extra_samples(count: int) -> bytes:
    """Two bands, of which the tag ExtraSamples says what this number of bands is."""
    data = bytearray(geotiff_by_rasterio())
    at = data.rindex(struct.pack("<HHI", 338, 3, 1)) + 4
    data[at : at + 8] = struct.pack("<I2H", count, 0, 2) if count == 2 else struct.pack("<2I", count, len(data))
    data += struct.pack("<H", 2) * count
    return bytes(data)


def test_more_extra_samples_than_bands_are_refused() -> None:
    """As by libtiff, at once; as many as there are bands are read, and one that is described is no alpha."""
    data = with_extra_samples(2)
    with MemoryFile(data) as memory, memory.open() as file:
        read = read_raster(data)
        np.testing.assert_array_equal(read.array, file.read())
        assert [one.name for one in file.colorinterp].index("alpha") == 1
        assert file.descriptions[1] is not None
        assert read.alpha is None
    for count in (3, 261):
        data = with_extra_samples(count)
        with MemoryFile(data) as memory, pytest.raises(RasterioIOError), memory.open():
            pass
        with pytest.raises(InputError, match=rf"tag ExtraSamples describes {count} bands, but it has only 2; rewrite"):
            open_raster(data)
