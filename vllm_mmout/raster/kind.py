"""What a file is, by its first bytes."""

from __future__ import annotations

from vllm_mmout.raster.gdal.names import EXTRA, gdal_format

_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")

_SIGNATURES = (
    (b"\x89PNG", "a damaged PNG"),
    (b"\xff\xd8\xff", "a damaged JPEG"),
    (b"GIF8", "a damaged GIF"),
    (b"\x0e\x03\x13\x01", "HDF4; convert the dataset to GeoTIFF"),
    (b"GRIB", "GRIB; convert the field to GeoTIFF"),
    (b"NITF", "NITF; convert it to GeoTIFF"),
    (b"\x93NUMPY", "a NumPy array; load it with numpy.load and hand over the array"),
    (b"PK\x03\x04", "a ZIP archive (also .npz, .SAFE.zip); unpack it first"),
    (b"\x1f\x8b", "gzip; unpack it first"),
    (b"%PDF", "a PDF"),
    (b"<?xml", "XML"),
    (b"<html", "an HTML page, such as a server sends instead of a file"),
    (b"<!doctype html", "an HTML page, such as a server sends instead of a file"),
    (b"version https://git-lfs", "a Git LFS pointer; fetch the file with git lfs pull"),
)


def is_tiff(head: bytes) -> bool:
    """Whether a file begins as TIFF or BigTIFF does, in either byte order."""
    return head.startswith(_TIFF)


def looks_like(head: bytes) -> str:
    """What a file that is no readable image seems to be, in words.

    Args:
        head: the first bytes, some hundred.

    """
    known = _by_signature(head)
    if known is not None:
        return known
    if not any(head):
        return "nothing but zeros"
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3:  # a character cut by the end of the head is no sign of binary data
            return f"binary data that begins with {head[:8].hex(' ')}"
        text = head[: error.start].decode()
    if all(character.isprintable() or character.isspace() for character in text):
        return f"text that begins with {text[:40]!r}"
    return f"binary data that begins with {head[:8].hex(' ')}"


def _by_signature(head: bytes) -> str | None:
    found = gdal_format(head)
    if found is not None:
        how = "" if found.alone else "by its path "
        return f"{found.words}; convert it to GeoTIFF, or read it {how}through GDAL: {EXTRA}"
    start = head.lstrip()[:32].lower()
    for signature, words in _SIGNATURES:
        if head.startswith(signature) or start.startswith(signature.lower()):
            return words
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "a damaged WebP"
    return None
