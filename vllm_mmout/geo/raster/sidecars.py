"""Read the sidecar files of a TIFF or picture: GDAL's PAM (``NAME.tif.aux.xml``) and world files.

https://gdal.org/development/rfc/rfc2_pam.html describes PAM. Its georeference and nodata take precedence over the
raster's own. Its other parts (statistics, histograms, class names, ...) may be large and are skipped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.files import REMEDY, Neighbours, SharedFile
from vllm_mmout.geo.raster.georeference import Georeference, epsg_code
from vllm_mmout.geo.raster.ground_points import Affine, GroundControlPoint
from vllm_mmout.geo.raster.xml import parse_xml

_SRS, _TRANSFORM = ("PAMDataset", "SRS"), ("PAMDataset", "GeoTransform")
_BAND = ("PAMDataset", "PAMRasterBand")
_OF_BANDS = {(*_BAND, "NoDataValue"): "nodata", (*_BAND, "Scale"): "scales", (*_BAND, "Offset"): "offsets"}
_POINTS = ("PAMDataset", "GCPList")
_WANTED = frozenset({_SRS, _TRANSFORM, *_OF_BANDS})
_WKT = re.compile(r"\s*[A-Za-z_]+\s*\[")


@dataclass(frozen=True, slots=True)
class Pam:
    """Georeference, nodata, scale and offset in a PAM file, which is GDAL's sidecar file for metadata."""

    place: Georeference = field(default_factory=Georeference)
    """Georeference that the PAM file states, or an empty `Georeference` if the file does not state any."""
    nodata: Mapping[int, str] = field(default_factory=dict)
    """Nodata value of each band, stored as text. The keys are band numbers from 1."""
    scales: Mapping[int, str] = field(default_factory=dict)
    """Scale factor of each band as text, such as "0.0001". The keys are band numbers from 1."""
    offsets: Mapping[int, str] = field(default_factory=dict)
    """Offset of each band, stored as text. An offset is added after scaling. The keys are band numbers from 1."""


def read_pam(file: SharedFile | None, raster: str) -> Pam:
    """Read and close the PAM file of the raster named ``raster``. Return an empty `Pam` if ``file`` is None.

    A document type, which could declare entities, raises InputError.
    """
    if file is None:
        return Pam()
    try:
        return _PamParser(file, raster).read()
    finally:
        file.close()


def placed(
    own: Georeference | None, pam: Pam, neighbours: Neighbours, *, world_first: bool = False
) -> Georeference | None:
    """Combine the georeferences of a raster's PAM file, its own TIFF tags and a world file, in GDAL's precedence.

    For a PNG, BMP or GIF, GDAL prefers the world file (``world_first``). The coordinate system and the transform may
    come from different files. Ground control points are used only if no file states a transform, since a
    `Georeference` holds one or the other.
    """
    base, stated = own or Georeference(), pam.place
    transform = stated.transform or base.transform
    if transform is None or world_first:
        transform = read_world_file(neighbours) or transform
    gcps = () if transform is not None else stated.gcps or base.gcps
    crs = None if gcps else stated.crs or base.crs or base.gcps_crs
    gcps_crs = stated.gcps_crs or stated.crs or base.gcps_crs if gcps else None
    combined = replace(base, crs=crs, transform=transform, gcps=gcps, gcps_crs=gcps_crs)
    return own if combined == base else combined


class _PamParser:
    """Parser of PAM files that keeps only georeference, nodata, scale and offset."""

    def __init__(self, file: SharedFile, raster: str) -> None:
        self._file = file
        self._raster = raster
        self._path: list[str] = []
        self._text: list[str] = []
        self._band = ""
        self._texts: dict[tuple[str, ...], str] = {}
        self._of_bands: dict[str, dict[int, str]] = {name: {} for name in _OF_BANDS.values()}
        self._points: list[dict[str, str]] = []
        self._points_crs = ""

    def read(self) -> Pam:
        parse_xml(self._file, self._begin, self._end, self._characters, self._wrong)
        text = self._texts.get(_TRANSFORM)
        transform = None if text is None else self._transform(text)
        points = () if transform is not None else tuple(map(self._point, self._points))
        place = Georeference(
            crs=self._crs(self._texts.get(_SRS, "")),
            transform=transform,
            gcps=points,
            gcps_crs=self._crs(self._points_crs) if points else None,
        )
        return Pam(place, **self._of_bands)

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
            if here in _OF_BANDS and self._band.isdecimal():
                self._of_bands[_OF_BANDS[here]].setdefault(int(self._band), text)
        self._path.pop()

    def _transform(self, text: str) -> Affine:
        """Parse the six numbers of a transform, which PAM files hold in GDAL's order (c, a, b, f, d, e).

        Return them as a, b, c, d, e, f, so that x = a * column + b * row + c and y = d * column + e * row + f.
        """
        c, a, b, f, d, e = self._numbers(text.split(","), 6, f"the transform {text[:60]!r}", "six numbers")
        return a, b, c, d, e, f

    def _crs(self, text: str) -> str | None:
        if not text.strip():
            return None
        if epsg_code(text) is None and not _WKT.match(text):
            raise self._wrong(f"has the coordinate system {text[:60]!r}, which must be WKT or EPSG:n")
        return text.strip()

    def _point(self, attributes: dict[str, str]) -> GroundControlPoint:
        texts = [attributes.get(name, "0") for name in ("Line", "Pixel", "X", "Y", "Z")]
        return GroundControlPoint(*self._numbers(texts, 5, f"a ground control point {attributes}", "numbers"))

    def _numbers(self, texts: Sequence[str], count: int, fact: str, kind: str) -> list[float]:
        try:
            numbers = [float(text) for text in texts]
        except ValueError:
            numbers = []
        if len(numbers) != count:
            raise self._wrong(f"has {fact}, which must be {kind}")
        if not all(map(math.isfinite, numbers)):
            raise self._wrong(f"has {fact}, which must be finite")
        return numbers

    def _wrong(self, fact: str) -> InputError:
        return InputError(f"{self._file.name}, GDAL's metadata file of {self._raster}, {fact}; {REMEDY}")


_LONGEST = 2**12
"""Largest number of bytes that are read from a world file."""


def read_world_file(neighbours: Neighbours) -> Affine | None:
    """Read the transform of a raster's world file, or return None if the file is missing.

    The world file of ``scene.tif`` is called ``scene.tfw``, ``scene.tifw`` or ``scene.wld``.
    """
    file = find_world_file(neighbours)
    if file is None:
        return None
    try:
        text = file.read_at(0, _LONGEST).decode("utf-8-sig", "replace")
    finally:
        file.close()
    lines = [line.split()[0] for line in text.splitlines() if line.strip()]
    try:
        a, d, b, e, x, y = (float(line.replace(",", ".")) for line in lines[:6])
    except ValueError:
        raise _wrong(file.name, neighbours.name, f"begins with {text[:40]!r}") from None
    if not all(map(math.isfinite, (a, d, b, e, x, y))) or a * e == b * d:
        raise _wrong(file.name, neighbours.name, f"has the numbers {(a, d, b, e, x, y)}, in which pixels have no area")
    return a, b, x - 0.5 * a - 0.5 * b, d, e, y - 0.5 * d - 0.5 * e


def find_world_file(neighbours: Neighbours) -> SharedFile | None:
    """Open the world file of a raster, or return None if it is missing.

    Its suffix is the raster's suffix, shortened or in full, with a "w" (``.tfw``, ``.tifw``), or ``.wld``.
    """
    stem, _, suffix = neighbours.name.rpartition(".")
    own = [f".{suffix[0]}{suffix[-1]}w", f".{suffix}w"] if stem and len(suffix) > 1 else []
    return neighbours.replaced([*own, ".wld"])


def _wrong(name: str, raster: str, fact: str) -> InputError:
    return InputError(f"{name}, the world file of {raster}, must hold six lines of one number, but {fact}; {REMEDY}")
