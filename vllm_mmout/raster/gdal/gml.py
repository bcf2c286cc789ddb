"""The GML of a JPEG 2000 file, looked at before GDAL reads it.

GDAL hands the names of coordinate systems in it (OGC 05-047) to PROJ, which takes one with ``init=`` in it, whatever
stands before, for a PROJ string, and opens the file that it names.
"""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

from vllm_mmout.errors import InputError
from vllm_mmout.raster.jpeg2000 import boxes

if TYPE_CHECKING:
    from vllm_mmout.raster.shared_file import SharedFile

_KINDS = (b"asoc", b"xml ")
"""Boxes with XML in them."""
_LARGEST = 2**24
"""Bytes of all of them; those of Sentinel-2 have three thousand."""
_PROJ_STRING = re.compile(r"[\s+\"'>](init|proj)\s*=", re.IGNORECASE)
_APART = re.compile(r"<!\[CDATA\[|\]\]>|<!--.*?-->", re.DOTALL)


def check_gml(file: SharedFile) -> None:
    """Refuse a JPEG 2000 file whose GML may make PROJ open a file.

    Raises:
        InputError: a name in it can be read as a PROJ string, or there is more of it than anyone needs.

    """
    left = _LARGEST
    found = list(boxes(file))
    for kind, at in found:
        if kind not in _KINDS:
            continue
        end = min((other for _, other in found if other > at), default=file.size)
        left -= end - at
        if left < 0:
            raise InputError(
                f"{file.name} has more than {_LARGEST >> 20} MiB of XML; write it anew, as with gdal_translate"
            )
        text = _APART.sub("", file.read_at(at, end - at).decode("latin-1"))
        if _PROJ_STRING.search(html.unescape(text)):
            raise InputError(
                f"{file.name} has GML in which a coordinate system is a PROJ string, which may name a file; write it"
                " anew with a code, as with gdal_translate -a_srs EPSG:n"
            )
