"""What headers declare: as the file is read, and without memory or time where they lie."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zlib
from contextlib import suppress

import numpy as np
import pytest
import rasterio
from PIL import Image

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.opened import declared_size, open_raster

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")

LARGE = 100_000
RGBA = np.random.default_rng(1).integers(0, 256, (20, 30, 4), np.uint8)
PICTURES = [
    *[(kind, mode) for kind in ("PNG",) for mode in ("1", "L", "P", "LA", "RGB", "RGBA", "I;16")],
    *[("JPEG", mode) for mode in ("L", "RGB", "CMYK")],
    *[
        ("WEBP", "RGB"),
        ("WEBP", "RGBA"),
        ("WEBP lossless", "RGB"),
        ("WEBP lossless", "RGBA"),
        ("WEBP animated", "RGBA"),
    ],
    *[
        ("GIF", "P"),
        ("GIF", "L"),
        ("BMP", "RGB"),
        ("BMP", "L"),
        ("BMP", "1"),
        ("PPM", "L"),
        ("PPM", "RGB"),
        ("PPM", "I;16"),
    ],
    *[("JPEG2000", "L"), ("JPEG2000", "RGB"), ("JPEG2000", "RGBA"), ("AVIF", "RGB"), ("AVIF", "RGBA")],
]


def picture(kind, mode):
    """A picture of 20 x 30 pixels by Pillow."""
    kind, _, how = kind.partition(" ")
    image = (
        Image.fromarray(RGBA[:, :, 0].astype(np.uint16) * 200)
        if mode == "I;16"
        else Image.fromarray(RGBA).convert(mode)
    )
    options = {
        "": {},
        "lossless": {"lossless": True},
        "animated": {"save_all": True, "append_images": [image.rotate(90)]},
    }
    made = io.BytesIO()
    image.save(made, kind, **options[how])
    return made.getvalue()


def by_gdal(array, driver="GTiff", **options):
    """A file of an array [bands, height, width]."""
    size = {"count": array.shape[0], "height": array.shape[1], "width": array.shape[2], "dtype": array.dtype}
    with rasterio.io.MemoryFile() as memory:
        with memory.open(driver=driver, **size, **options) as file:
            file.write(array)
        return memory.read()


def check_as_opened(data):
    """Check that a file declares what is read of it; returns that."""
    file = io.BytesIO(data)
    found = declared_size(file)
    assert file.tell() == 0
    with open_raster(io.BytesIO(data)) as raster:
        assert (found.height, found.width, found.bands) == (*raster.size, raster.count)
        assert found.itemsize == raster.dtype.itemsize
        assert found.pixels == raster.size[0] * raster.size[1]
    return found


@pytest.mark.parametrize(("kind", "mode"), PICTURES, ids=" ".join)
def test_pictures(kind, mode):
    """Of all formats and modes declare what they are read as; they are decoded whole."""
    found = check_as_opened(picture(kind, mode))
    assert found.at_once >= 20 * 30 * found.bands * found.itemsize


@pytest.mark.parametrize("bands", [3, 4])
def test_a_png_of_16_bits_and_several_bands(bands):
    """Counts two bytes a value."""
    array = np.random.default_rng(2).integers(0, 2**16, (bands, 9, 11), np.uint16)
    assert check_as_opened(by_gdal(array, "PNG")).itemsize == 2


LAYOUTS = [
    ({}, 600 * 700 * 2),
    ({"compress": "deflate", "blockysize": 100}, 3 * 100 * 700 * 2),
    ({"compress": "lzw", "tiled": True, "blockxsize": 64, "blockysize": 32}, 3 * 64 * 32 * 2),
    ({"compress": "lzw", "tiled": True, "blockxsize": 64, "blockysize": 32, "interleave": "pixel"}, 3 * 64 * 32 * 2),
    ({"compress": "deflate", "BIGTIFF": "YES", "blockysize": 600, "interleave": "pixel"}, 3 * 600 * 700 * 2),
    ({"compress": "lerc", "tiled": True, "blockxsize": 256, "blockysize": 256}, 3 * 256 * 256 * 2),
]


@pytest.mark.parametrize(("layout", "at_once"), LAYOUTS, ids=str)
def test_tiffs(layout, at_once):
    """Declare the segment that is decoded at once; one that is not compressed is read in pieces."""
    array = np.zeros((3, 600, 700), np.int16)
    found = check_as_opened(by_gdal(array, **layout))
    if layout:
        assert found.at_once == at_once
    else:
        assert found.at_once < at_once


@pytest.mark.parametrize("size", [256, 1024])
def test_jpeg_2000_of_many_bands(size):
    """Declares the tile that is decoded at once."""
    array = np.zeros((6, 600, 700), np.uint16)
    found = check_as_opened(by_gdal(array, "JP2OpenJPEG", blockxsize=size, blockysize=size))
    tile = min(size, 600) * min(size, 700)
    assert tile * 6 * 4 < found.at_once < tile * 6 * 4 + 300_000


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        bytes(600),
        b"<VRTDataset/>",
        b"CDF\x01",
        b"\x89HDF\r\n\x1a\n",
        b"<html>",
        b"GIF8",
        b"\x89PNG\r\n\x1a\n",
        b"PK\x03\x04",
        b"II*\0",
    ],
)
def test_what_is_no_image(data):
    """Is refused in the words of whoever opens it."""
    with pytest.raises(InputError) as opened:
        open_raster(io.BytesIO(data))
    with pytest.raises(InputError) as error:
        declared_size(io.BytesIO(data))
    assert str(error.value) == str(opened.value)


def test_a_file_with_a_name():
    """Is called by it."""

    class Named(io.BytesIO):
        name = "scene.tif"

    with pytest.raises(InputError, match=r"^scene\.tif is not an image"):
        declared_size(Named(b"hello"))


# What lies


def tiff(tags, body=b"", *, big=False, more=0):
    """A TIFF of some tags (type, value), and of as many directories more that are the same."""
    form = "<HHQQ" if big else "<HHII"
    head = b"II+\0\x08\0\0\0" + struct.pack("<Q", 16) if big else b"II*\0" + struct.pack("<I", 8)
    entries = b"".join(
        struct.pack(
            form,
            code,
            kind,
            value[0] if isinstance(value, tuple) else 1,
            value[1] if isinstance(value, tuple) else value,
        )
        for code, (kind, value) in sorted(tags.items())
    )
    one = struct.pack("<Q" if big else "<H", len(tags)) + entries
    size = len(one) + (8 if big else 4)
    nexts = [len(head) + size * (number + 1) for number in range(more)] + [0]
    return head + b"".join(one + struct.pack("<Q" if big else "<I", at) for at in nexts) + body


STRIP = {
    256: (4, LARGE),
    257: (4, LARGE),
    258: (3, 8),
    259: (3, 8),
    262: (3, 1),
    273: (4, 400),
    277: (3, 1),
    278: (4, LARGE),
    279: (4, 300),
}
TILE = {code: value for code, value in STRIP.items() if code not in (273, 278, 279)} | {324: (4, 400), 325: (4, 300)}
SMALL = STRIP | {256: (4, 10), 257: (4, 10), 278: (4, 10), 259: (3, 1)}


def chunk(kind, data):
    """A part of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, *chunks):
    """A PNG of RGB, with further parts."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n"
        + head
        + b"".join(chunks)
        + chunk(b"IDAT", zlib.compress(bytes(5000)))
        + chunk(b"IEND", b"")
    )


def jpeg2000(size, tile, bands=3):
    """The head of a codestream."""
    siz = struct.pack(">H8IH", 0, size, size, 0, 0, tile, tile, 0, 0, bands) + b"\x07\x01\x01" * bands
    return b"\xff\x4f\xff\x51" + struct.pack(">H", len(siz) + 2) + siz + bytes(500)


def largest():
    """Pictures that declare as many pixels as their format can, in some bytes."""
    frame = b"," + struct.pack("<4H", 0, 0, 65535, 65535)
    return {
        "gif": b"GIF89a"
        + struct.pack("<HH", 65535, 65535)
        + b"\xf7\0\0"
        + bytes(768)
        + frame
        + b"\0\x08\xff"
        + bytes(99),
        "bmp": b"BM"
        + bytes(8)
        + struct.pack("<IIiiHHIIIIII", 54, 40, LARGE, LARGE, 1, 24, 0, 0, 0, 0, 0, 0)
        + bytes(99),
        "ppm": b"P6\n100000 100000\n255\n" + bytes(99),
        "webp": b"RIFF\x64\0\0\0WEBPVP8X\x0a\0\0\0\x10\0\0\0" + b"\xff" * 6 + bytes(80),
        "webp lossless": b"RIFF\x64\0\0\0WEBPVP8L\x20\0\0\0\x2f" + b"\xff" * 4 + bytes(80),
        "png": png(LARGE, LARGE),
        "jpeg": picture("JPEG", "RGB").replace(struct.pack(">HH", 20, 30), struct.pack(">HH", 65000, 65000)),
        "jpeg 2000": jpeg2000(LARGE, 1024),
        "jpeg 2000, one tile": jpeg2000(LARGE, LARGE),
    }


@pytest.fixture(name="frugal")
def memory_that_is_watched():
    """Fails where Python has taken more than some memory."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20


def enormous(data):
    """Check that a bomb declares its pixels."""
    assert len(data) < 50_000
    found = declared_size(io.BytesIO(data))
    assert found.pixels > 4_000_000_000 * 0.06  # WebP without losses ends at 16384 pixels square
    assert found.at_once > 0
    return found


@pytest.mark.parametrize("kind", list(largest()))
def test_pictures_that_declare_too_much(kind, frugal):
    """Are told by their header alone, without a warning of Pillow's."""
    enormous(largest()[kind])


@pytest.mark.parametrize("big", [False, True], ids=["tiff", "bigtiff"])
@pytest.mark.parametrize("compression", [5, 7, 8, 34712, 34925, 50000, 50001, 50002, 12345])
@pytest.mark.parametrize("form", ["strip", "tile"])
def test_tiffs_that_declare_too_much(form, compression, big, frugal):
    """Of one segment of 100,000 pixels square, in any compression."""
    tags = STRIP if form == "strip" else TILE | {322: (4, LARGE), 323: (4, LARGE)}
    found = enormous(tiff(tags | {259: (3, compression)}, bytes(600), big=big))
    assert (found.height, found.width, found.at_once) == (LARGE, LARGE, LARGE**2)


ABSURD = {
    "huge tiles": TILE | {256: (4, 10), 257: (4, 10), 322: (4, 2**32 - 1), 323: (4, 2**32 - 1)},
    "65535 bands of 64 bits": STRIP | {258: (3, 64), 277: (3, 65535)},
    "rows without end": STRIP | {256: (4, 2**31), 257: (4, 2**31), 278: (4, 2**32 - 1)},
}


@pytest.mark.parametrize("tags", list(ABSURD.values()), ids=list(ABSURD))
def test_segments_that_declare_too_much(tags, frugal):
    """Are told by the size of one."""
    assert declared_size(io.BytesIO(tiff(tags, bytes(600)))).at_once > 2**40


IMPOSSIBLE = {
    "tiles of nothing": TILE | {322: (4, 0), 323: (4, 0)},
    "tiles of a pixel": TILE | {322: (4, 1), 323: (4, 1)},
    "not compressed": STRIP | {259: (3, 1)},
    "4294967295 bands": SMALL | {277: (4, 2**32 - 1)},
    "65535 planes": SMALL | {277: (3, 65535), 284: (3, 2)},
    "no size": {code: value for code, value in SMALL.items() if code not in (256, 257)},
    "no pixels": SMALL | {256: (4, 0)},
    "a size that is no number": SMALL | {256: (11, 0x7FC00000)},
    "a negative size": SMALL | {256: (9, 2**32 - 5)},
    "behind the end": SMALL | {273: (4, 2**32 - 1)},
    "a table behind the end": SMALL | {273: (4, (2**30, 8))},
}


@pytest.mark.parametrize("big", [False, True], ids=["tiff", "bigtiff"])
@pytest.mark.parametrize("tags", list(IMPOSSIBLE.values()), ids=list(IMPOSSIBLE))
def test_tiffs_that_cannot_be(tags, big, frugal):
    """Are errors of the input."""
    with pytest.raises(InputError, match=r"damaged|must have rows"):
        declared_size(io.BytesIO(tiff(tags, bytes(600), big=big)))


@pytest.mark.heavy
def test_many_directories():
    """A thousand are read, more refused, also where they are empty or lie in one another."""
    assert declared_size(io.BytesIO(tiff(SMALL | {279: (4, 100)}, bytes(600), more=500))).pixels == 100
    for data in (tiff(SMALL, bytes(600), more=4000), tiff({}, more=20_000)):
        with pytest.raises(InputError, match="has a header of more than 32 MiB or 20000 parts"):
            declared_size(io.BytesIO(data))


def test_one_table_of_many_directories():
    """Is read so often, and refused before it fills the memory."""
    at = 8 + 501 * (2 + 12 * len(SMALL) + 4)
    tags = SMALL | {273: (4, (500_000, at)), 279: (4, (500_000, at))}
    with pytest.raises(InputError, match="has a header of more than 32 MiB"):
        declared_size(io.BytesIO(tiff(tags, bytes(2_000_000), more=500)))


BOMB = zlib.compress(bytes(64 << 20), 9)
CHUNKS = {
    "text": [chunk(b"zTXt", b"k%d\0\0" % number + BOMB) for number in range(3)],
    "international text": [chunk(b"iTXt", b"k\0\1\0\0\0" + BOMB)],
    "profile": [chunk(b"iCCP", b"k\0\0" + BOMB)],
    "many texts": [chunk(b"zTXt", b"k%d\0\0" % number + zlib.compress(bytes(1_000_000))) for number in range(80)],
}


@pytest.mark.parametrize("chunks", list(CHUNKS.values()), ids=list(CHUNKS))
def test_pngs_whose_texts_are_bombs(chunks):
    """Are refused as Pillow refuses them, as an error of the input."""
    with pytest.raises(InputError, match="truncated or damaged picture"):
        declared_size(io.BytesIO(png(10, 10, *chunks)))


@pytest.mark.parametrize("data", [b"II*\0\x08\0\0\0" + b"\xff" * 500, b"MM\0*" + bytes(90), b""])
def test_pngs_whose_exif_is_none(data):
    """Are read: it is not looked at."""
    assert declared_size(io.BytesIO(png(10, 10, chunk(b"eXIf", data)))).pixels == 100


def test_a_ppm_whose_numbers_do_not_come():
    """Is refused after some of what comes instead."""
    with pytest.raises(InputError, match="has a header of more than"):
        declared_size(io.BytesIO(b"P6" + b" " * 100_000 + b"1 1 255 "))


def test_jpeg_2000_with_tiles_and_bands_without_number(frugal):
    """Counts what a decoder would take for each of them."""
    assert declared_size(io.BytesIO(jpeg2000(20_000, 100, 16384))).at_once > 2**37
    assert declared_size(io.BytesIO(jpeg2000(60_000, 10, 1))).at_once > 2**37
    for data in (jpeg2000(10, 0), jpeg2000(0, 10), jpeg2000(10, 10, 0), jpeg2000(10, 10)[:30]):
        with pytest.raises(InputError, match="is a damaged JPEG 2000"):
            declared_size(io.BytesIO(data))


@pytest.mark.parametrize("kind", ["tiff", "png", "jpeg", "gif", "webp", "jp2", "bmp", "avif"])
def test_damaged_headers(kind):
    """Whatever byte of one is wrong, it declares something, or is an error of the input."""
    made = {
        "tiff": lambda: by_gdal(
            np.zeros((2, 40, 50), np.uint8), compress="deflate", tiled=True, blockxsize=16, blockysize=16
        ),
        "jp2": lambda: by_gdal(np.zeros((2, 40, 50), np.uint8), "JP2OpenJPEG"),
    }
    data = made[kind]() if kind in made else picture(kind.upper(), "P" if kind == "gif" else "RGB")
    random = np.random.default_rng(8)
    for _ in range(400):
        damaged = bytearray(data)
        for at in random.integers(0, min(len(data), 600), random.integers(1, 4)):
            damaged[at] = random.choice([0, 1, 0x7F, 0x80, 0xFF, int(random.integers(256))])
        if random.integers(5) == 0:
            del damaged[random.integers(len(damaged)) :]
        with suppress(InputError):
            assert declared_size(io.BytesIO(damaged)).pixels >= 0


def test_a_frame_beyond_pillows_limit(frugal):
    """A GIF of few pixels whose first frame has many: Pillow itself refuses to open it."""
    data = bytearray(picture("GIF", "P"))
    at = data.index(b"\x2c" + struct.pack("<4H", 0, 0, 30, 20)) + 5
    data[at : at + 4] = struct.pack("<2H", 65535, 65535)
    with pytest.raises(Image.DecompressionBombError):
        Image.open(io.BytesIO(data))
    for read in (declared_size, open_raster):
        with pytest.raises(InputError, match=r"is larger than pictures may be: .*cut it, or convert it"):
            read(io.BytesIO(data))
