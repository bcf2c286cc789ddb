"""What bands are called: by the names of their files, and which names mean the same."""

from __future__ import annotations

import re
from pathlib import PurePath
from urllib.parse import unquote, urlsplit

_TOKEN = re.compile(r"B\d{1,2}A?", re.IGNORECASE)
"""A band of Landsat ("B4"), Sentinel-2 and HLS ("B04", "B8A")."""
_SPLIT = re.compile(r"[._\- ]+")
_LEADING_ZEROS = re.compile(r"(?<!\d)0+(?=\d)")
_NUMBER = re.compile(r"(\d+)")


def file_stem(name: str) -> str:
    """The name of a file without folders and suffix; ``name`` is a path or URL."""
    path = unquote(urlsplit(name).path) if "://" in name else name
    return PurePath(path).stem


def band_of_file(name: str) -> str:
    """The name that a file gives its band: the last part that reads as one, else all of its stem.

    Args:
        name: path or URL, as ``LC08_L2SP_193024_20200101_20200113_02_T1_SR_B4.TIF``,
            ``T32TQM_20200101T100000_B02_10m.jp2``, ``HLS.S30.T14RKV.2020123T170851.v2.0.B8A.tif``.

    Returns:
        "B4", "B02", "B8A" of these.

    """
    stem = file_stem(name)
    tokens = [token for token in _SPLIT.split(stem) if _TOKEN.fullmatch(token)]
    return tokens[-1] if tokens else stem


def folded(name: str) -> str:
    """The name without a difference between "B2", "b02" and "B02"."""
    return _LEADING_ZEROS.sub("", name.casefold())


def natural_order(name: str) -> tuple[tuple[int, int, str], ...]:
    """What to sort names by, so that "B2" comes before "B10"."""
    parts = _NUMBER.split(name.casefold())
    return (*((1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts), (0, 0, name))
