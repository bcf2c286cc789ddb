"""Build error messages for files that cannot be read as images. They name the likely format and a remedy."""

from __future__ import annotations

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.formats import GdalFormat, gdal_format

_TAR_AT = 257
"""Offset of the magic bytes "ustar" in a tar archive."""
_REFUSED = (
    (b"\x89PNG", "a damaged PNG"),
    (b"\xff\xd8\xff", "a damaged JPEG"),
    (b"GIF8", "a damaged GIF"),
    (b"\x0e\x03\x13\x01", "HDF4; convert the dataset to GeoTIFF"),
    (b"ENVI", "the header of an ENVI raster; give the file of its pixels, which is beside it"),
    (b"GRIB", "GRIB; convert the field to GeoTIFF, as with gdal_translate -b 1 in.grib out.tif"),
    (b"NITF", "NITF; convert it to GeoTIFF, as with gdal_translate in.ntf out.tif"),
    (b"msid", "MrSID; convert it to GeoTIFF"),
    (b"SQLite format 3", "SQLite (a GeoPackage or MBTiles); convert it to GeoTIFF, as with gdal_translate"),
    (b"\x93NUMPY", "a NumPy array; load it with numpy.load and pass the array"),
    (b"PK\x03\x04", "a ZIP archive (also .npz, .SAFE.zip); unpack it first"),
    (b"PK\x05\x06", "an empty ZIP archive"),
    (b"\x1f\x8b", "gzip (also .tar.gz, .tgz); unpack it first"),
    (b"BZh", "bzip2 (also .tar.bz2); unpack it first"),
    (b"\xfd7zXZ\0", "xz (also .tar.xz); unpack it first"),
    (b"\x28\xb5\x2f\xfd", "Zstandard (also .tar.zst); unpack it first"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive; unpack it first"),
    (b"Rar!\x1a\x07", "a RAR archive; unpack it first"),
    (b"%PDF", "a PDF"),
    (b"<?xml", "XML"),
    (b"<html", "an HTML page, such as a server sends instead of a file"),
    (b"<!doctype html", "an HTML page, such as a server sends instead of a file"),
    (b"version https://git-lfs", "a Git LFS pointer; fetch the file with git lfs pull"),
)


def no_image(head: bytes, name: str, raw: GdalFormat | None = None) -> InputError:
    """Return the error for a file that is not a readable raster.

    Args:
        head: first bytes of the file.
        name: name of the file in the message.
        raw: format that a header file beside the file states; None without one.

    """
    if not head:
        return InputError(f"{name} is empty")
    remedy = "convert it to GeoTIFF, as with gdal_translate IN out.tif"
    if raw is not None:
        path = ", or give it by its path" if raw.drivers else ""
        return InputError(f"{name} is {raw.words}, by the header beside it; {remedy}{path}")
    words = looks_like(head)
    more = "" if ";" in words else f"; where GDAL reads it, {remedy}"
    return InputError(f"{name} is not an image that can be read: it looks like {words}{more}")


def looks_like(head: bytes) -> str:
    """Guess the likely format of an unreadable file from its first bytes. Return a phrase such as "a PDF".

    The phrase also contains a remedy if one is known.
    """
    words = _by_signature(head)
    if words is not None:
        return words
    if not any(head):
        return "nothing but zeros"
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3:  # not just a character cut off by the end of the head
            return f"binary data that begins with {head[:8].hex(' ')}"
        text = head[: error.start].decode()
    if all(character.isprintable() or character.isspace() for character in text):
        return f"text that begins with {text[:40]!r}"
    return f"binary data that begins with {head[:8].hex(' ')}"


def _by_signature(head: bytes) -> str | None:
    file_format = gdal_format(head)
    if file_format is not None:
        return f"{file_format.words}; convert it to GeoTIFF, or give it by its path"
    if head[_TAR_AT:].startswith(b"ustar"):
        return "a tar archive (like Landsat's products); unpack it first, as with tar -xf"
    start = head.lstrip()[:32].lower()
    for signature, words in _REFUSED:
        if head.startswith(signature) or start.startswith(signature.lower()):
            return words
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "a damaged WebP"
    return None
