"""PAM, the XML beside a raster in which GDAL keeps what was said of it later (``NAME.tif.aux.xml``).

https://gdal.org/development/rfc/rfc2_pam.html. What it says of the place and of nodata comes before what the raster
says itself. Its other parts (statistics, histograms, names of classes, ...) may be large and are passed over.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from xml.parsers import expat

from vllm_mmout.errors import InputError
from vllm_mmout.raster.geokeys import epsg_code
from vllm_mmout.raster.placement import GroundControlPoint
from vllm_mmout.raster.sidecars.neighbours import PAM, REMEDY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vllm_mmout.raster.placement import Affine
    from vllm_mmout.raster.shared_file import SharedFile
    from vllm_mmout.raster.sidecars.neighbours import Neighbours

_LARGEST = 2**26
_PIECE = 2**16
_SRS, _TRANSFORM = ("PAMDataset", "SRS"), ("PAMDataset", "GeoTransform")
_NODATA = ("PAMDataset", "PAMRasterBand", "NoDataValue")
_POINTS = ("PAMDataset", "GCPList")
_WANTED = frozenset({_SRS, _TRANSFORM, _NODATA})
_WKT = re.compile(r"\s*[A-Za-z_]+\s*\[")


@dataclass(frozen=True, slots=True)
class Pam:
    """What PAM says of a raster's place, and of what is no observation."""

    crs: str | None = None
    """ "EPSG:n", or WKT."""
    transform: Affine | None = None
    gcps: tuple[GroundControlPoint, ...] = ()
    gcps_crs: str | None = None
    nodata: Mapping[int, str] = field(default_factory=dict)
    """Text of the value of a band, by its number from 1."""


def read_pam(neighbours: Neighbours) -> Pam:
    """Read what PAM says of a raster; nothing where there is none.

    Raises:
        InputError: it is damaged, has a document type (which could declare entities), or holds what is no place.

    """
    file = neighbours.appended(PAM)
    if file is None:
        return Pam()
    try:
        return _Reader(file, neighbours.name).read()
    finally:
        file.close()


class _Reader:
    """Reads the parts that matter, and keeps no others."""

    def __init__(self, file: SharedFile, raster: str) -> None:
        self._file = file
        self._raster = raster
        self._path: list[str] = []
        self._text: list[str] = []
        self._band = ""
        self._texts: dict[tuple[str, ...], str] = {}
        self._nodata: dict[int, str] = {}
        self._points: list[dict[str, str]] = []
        self._points_crs = ""

    def read(self) -> Pam:
        if self._file.size > _LARGEST:
            raise self._wrong(f"has {self._file.size >> 20} MiB, at most {_LARGEST >> 20} are read")
        parser = expat.ParserCreate()
        parser.StartDoctypeDeclHandler = self._document_type
        parser.StartElementHandler = self._begin
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        try:
            for at in range(0, self._file.size, _PIECE):
                parser.Parse(self._file.read_at(at, _PIECE), False)
            parser.Parse(b"", True)
        except (expat.ExpatError, LookupError, ValueError) as error:  # of encodings that are none
            raise self._wrong(f"is damaged XML ({error})") from error
        transform = self._texts.get(_TRANSFORM)
        srs = self._texts.get(_SRS, "")
        return Pam(
            crs=self._crs(srs),
            transform=None if transform is None else self._transform(transform),
            gcps=tuple(map(self._point, self._points)),
            gcps_crs=self._crs(self._points_crs) if self._points else None,
            nodata=self._nodata,
        )

    def _document_type(self, *_: object) -> None:
        raise self._wrong("has a document type, which is refused as it may declare entities")

    def _begin(self, name: str, attributes: dict[str, str]) -> None:
        self._path.append(name)
        self._text = []
        if len(self._path) == 2 and name == "PAMRasterBand":
            self._band = attributes.get("band", "")
        here = tuple(self._path[:4])
        if here == _POINTS:
            self._points_crs = attributes.get("Projection", "")
        elif here == (*_POINTS, "GCP"):
            self._points.append(attributes)

    def _characters(self, data: str) -> None:
        if len(self._path) < 4:
            self._text.append(data)

    def _end(self, _: str) -> None:
        here = tuple(self._path[:4])
        if here in _WANTED:
            text = "".join(self._text).strip()
            self._texts.setdefault(here, text)
            if here == _NODATA and self._band.isdecimal():
                self._nodata.setdefault(int(self._band), text)
        self._path.pop()

    def _transform(self, text: str) -> Affine:
        """Six numbers in GDAL's order, from the corner of the first pixel."""
        try:
            c, a, b, f, d, e = map(float, text.split(","))
        except ValueError:
            raise self._wrong(f"has the transform {text[:60]!r}, which must be six numbers") from None
        if not all(map(math.isfinite, (a, b, c, d, e, f))):
            raise self._wrong(f"has the transform {text[:60]!r}, which must be finite")
        return a, b, c, d, e, f

    def _crs(self, text: str) -> str | None:
        if not text.strip():
            return None
        if epsg_code(text) is None and not _WKT.match(text):
            raise self._wrong(f"has the coordinate system {text[:60]!r}, which must be WKT or EPSG:n")
        return text.strip()

    def _point(self, said: dict[str, str]) -> GroundControlPoint:
        try:
            row, col, x, y, z = (float(said.get(name, "0")) for name in ("Line", "Pixel", "X", "Y", "Z"))
        except ValueError:
            raise self._wrong(f"has a ground control point {said}, which must be numbers") from None
        if not all(map(math.isfinite, (row, col, x, y, z))):
            raise self._wrong(f"has a ground control point {said}, which must be finite")
        return GroundControlPoint(row=row, col=col, x=x, y=y, z=z)

    def _wrong(self, fact: str) -> InputError:
        return InputError(f"{self._file.name}, in which GDAL keeps what is known of {self._raster}, {fact}; {REMEDY}")
