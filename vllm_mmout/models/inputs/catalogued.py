"""Inputs that a catalogue describes: their files, and the facts that the catalogue states about each file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol

from vllm_mmout.errors import InputError, message_of
from vllm_mmout.geo import Georeference, Packing, date_of_items, rasterio_crs, same_system, without_secrets
from vllm_mmout.wing import all_extensions

if TYPE_CHECKING:
    from vllm_mmout.geo import Affine, OpenRaster

_DATE_ITEM: Final = "ACQUISITIONDATETIME"
"""Metadata key of the acquisition date. It is set to the catalogue's date if the file states no date."""
_CORNER_TOLERANCE: Final = 0.01
"""Tolerance, in pixels, when the corners of a raster in its file and in its catalogue are compared."""
_NUMBER_TOLERANCE: Final = 1e-6
"""Relative tolerance when the scales and offsets in a file and in its catalogue are compared."""
_DAY: Final = timedelta(days=1)


class Opener(Protocol):
    """Interface that opens the documents and files named in a catalogue's records, such as STAC items."""

    def document(self, address: str) -> BinaryIO:
        """Open a document of a catalogue, such as a STAC item, at a path or an address. The caller closes it."""

    def file(self, address: str) -> Any:
        """Return the file at ``address`` as an object that can be opened: a path, an address, or an open file.

        Closing the raster that is opened from the returned object closes the file.
        """


@dataclass(frozen=True, slots=True)
class StatedBand:
    """A band of a file, as its catalogue describes it."""

    names: tuple[str, ...]
    """Names of the band, such as "B04" and "red", the preferred first."""
    packing: Packing | None = None
    """Scale and offset of the band as its catalogue states them, or None if it states neither."""
    nodata: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class CataloguedFile:
    """File that a catalogue, such as STAC, describes. It is opened only if the model needs a band of the file."""

    name: str
    """Name of the file in messages, such as "asset 'red' of item S2A_1"."""
    address: str
    """Path or address of the file."""
    opener: Opener
    record: str
    """Name of the catalogue's record in messages, such as "STAC item S2A_1"."""
    bands: tuple[StatedBand, ...] = ()
    """Bands in the order of the file. Empty if the catalogue does not describe the file's bands."""
    crs: str | None = None
    transform: Affine | None = None
    size: tuple[int, int] | None = None
    """Height and width in pixels."""
    metadata: tuple[tuple[str, str], ...] = ()
    """Metadata items that are copied to the outputs of this input."""
    days: tuple[date, date] | None = None
    """First and last acquisition day that the catalogue states for the file, or None."""
    noted: tuple[str, ...] = ()
    """Notes for the user about assumptions made when the catalogue was read."""

    def opened(self, open_one: Callable[[Any], OpenRaster]) -> OpenRaster:
        """Open the file by calling ``open_one``, and check that it agrees with its record in a catalogue, such as STAC.

        Facts that only the catalogue states, such as nodata, are added to the raster.

        Raises:
            InputError: the file cannot be read, or it contradicts the catalogue. The message has both statements.

        """
        try:
            raster = open_one(self.opener.file(self.address))
        except InputError as error:
            raise InputError(f"{self.name}: {message_of(error)}") from error
        try:
            return self._with_facts(raster)
        except BaseException:
            raster.close()
            raise

    def _with_facts(self, raster: OpenRaster) -> OpenRaster:
        noted = list(self.noted)
        facts: dict[str, Any] = {"metadata": self._metadata(raster)}
        place = self._georeference(raster, noted)
        bands = self._checked_bands(raster)
        if place is not None:
            facts["georeference"] = place
        if (nodata := self._nodata(raster, bands, noted)) is not None:
            facts["nodata"] = nodata
        if packing := self._packing(raster, bands):
            facts["packing"] = packing
        return raster.told(**facts, assumed=(*raster.assumed, *noted))

    def _differs(self, fact: str, stated: object, own: object) -> InputError:
        return InputError(
            f"{self.name}: the item states {fact} {stated}, and the file {fact} {own}; correct one of them, or give the"
            " file itself as the input"
        )

    def _checked_bands(self, raster: OpenRaster) -> tuple[StatedBand, ...]:
        """Return the catalogue's bands. Raise InputError if the file has more or fewer bands, not counting alpha."""
        count = len(self.bands)
        if count in {0, raster.count} or (raster.alpha == raster.count and count == raster.count - 1):
            return self.bands
        raise self._differs("a number of bands of", count, raster.count)

    def _metadata(self, raster: OpenRaster) -> dict[str, str]:
        """Merge the metadata of the raster and the catalogue. Raise InputError if they state different dates."""
        metadata = {**raster.metadata, **dict(self.metadata)}
        if self.days is None:
            return metadata
        (first, last), own = self.days, date_of_items(raster.metadata)
        if own is None:
            return {**metadata, _DATE_ITEM: first.isoformat()}
        if first - own > _DAY or own - last > _DAY:  # a day apart may be the same moment in two time zones
            stated = first if first == last else f"{first} to {last}"
            raise self._differs("the date", stated, own)
        return metadata

    def _georeference(self, raster: OpenRaster, noted: list[str]) -> Georeference | None:
        """Return the raster's georeference, completed from the catalogue. Return None if the catalogue adds nothing."""
        if self.size is not None and self.size != raster.size:
            raise self._differs("the size", _shown(self.size), _shown(raster.size))
        own = raster.georeference or Georeference()
        if own.gcps or own.unread_keys:
            return None
        if self.crs is not None and own.crs is not None and not same_system(self.crs, own.crs):
            raise self._differs("the coordinate system", self.crs, own.crs)
        mine, its = self.transform, own.transform
        if mine is not None and its is not None and not _same_corners(mine, its, raster.size):
            raise self._differs("the transform", mine, its)
        stated = {
            name: getattr(self, name)
            for name in ("crs", "transform")
            if getattr(self, name) is not None and getattr(own, name) is None
        }
        if not stated:
            return None
        if "crs" in stated:
            self._check_crs(stated["crs"])
        noted.append(
            f"{self.record} states its {' and '.join(stated)} ({', '.join(map(str, stated.values()))}), which its files"
            " do not; it was taken."
        )
        return replace(own, **stated)

    def _check_crs(self, crs: str) -> None:
        try:
            rasterio_crs(crs)
        except InputError as error:
            raise InputError(
                f"{self.name}: the item states a coordinate system that cannot be used ({error}), and the file states"
                " none; correct the item"
            ) from error

    def _nodata(self, raster: OpenRaster, bands: tuple[StatedBand, ...], noted: list[str]) -> float | None:
        """Return the catalogue's nodata value. Return None if the catalogue has none, or the raster has its own."""
        stated = {str(band.nodata): band.nodata for band in bands if band.nodata is not None}
        if not stated:
            return None
        if len(stated) > 1:
            raise InputError(
                f"{self.name}: the item states the nodata values {', '.join(stated)} for the bands of one file,"
                " which can have one; give nodata=..."
            )
        (value,) = stated.values()
        if raster.nodata is not None:
            if value != raster.nodata and not (math.isnan(value or 0) and math.isnan(raster.nodata)):
                raise self._differs("nodata", value, raster.nodata)
            return None
        noted.append(
            f"{self.record} states nodata {value:g}, which its files do not; it was taken; give nodata=... for another."
        )
        return int(value) if raster.dtype.kind in "iu" and float(value).is_integer() else value

    def _packing(self, raster: OpenRaster, bands: tuple[StatedBand, ...]) -> tuple[Packing, ...]:
        """Return each band's scale and offset, completed from the catalogue. Return () if the catalogue adds none."""
        stated = raster.packing or (Packing(),) * raster.count
        packings = list(stated)
        for place, band in enumerate(bands):
            own = packings[place]
            if band.packing is None:
                continue
            if not own.told:
                packings[place] = band.packing
            elif band.packing.told and not (
                _equal(own.scale, band.packing.scale) and _equal(own.offset, band.packing.offset)
            ):
                raise self._differs("scale and offset", _numbers(band.packing), _numbers(own))
        return tuple(packings) if packings != list(stated) else ()


@dataclass(frozen=True, slots=True, eq=False)
class CataloguedInput:
    """One input that a catalogue describes: the files of one scene."""

    name: str
    """Name of the scene, after which output files are named."""
    files: tuple[CataloguedFile, ...]
    sensor: str | None = None
    """Sensor of the files, as `vllm_mmout.geo.sensor_of` returns it."""


class _NoFiles:
    """Opener that refuses to open any file that a record names. It is used if the record itself is an open file."""

    def document(self, address: str) -> BinaryIO:
        """Raise InputError."""
        raise InputError(
            f"the record is an open file, and names {without_secrets(address)[:200]}, which is not opened for it; give"
            " the path or the address of the record, or the record as a dict"
        )

    def file(self, address: str) -> Any:
        """Raise InputError."""
        return self.document(address)


_NO_FILES = _NoFiles()


def catalogued(data: Any, opener: Opener | None = None) -> CataloguedInput | None:
    """Read a catalogue record, such as a STAC item, as a model input. Return None if ``data`` is not such a record.

    Args:
        data: the input as it was given, such as a path, an address, or a parsed record.
        opener: opener of the record's documents and files. By default, records may name local files, but a record in
            an open file may name none.

    Raises:
        InputError: the record is damaged, or names files that must not be read.

    """
    if opener is None and hasattr(data, "read"):
        opener = _NO_FILES
    for reader in all_extensions("inputs"):
        found: CataloguedInput | None = reader.one(data, opener)
        if found is not None:
            return found
    return None


def with_catalogued(data: Any, opener: Opener | None = None) -> Any:
    """Replace each catalogue record in ``data``, such as a STAC item, by the input that it describes.

    ``data`` is a record, a list with records in it, or any other data, which is returned unchanged.
    """
    if isinstance(data, list | tuple):
        return [with_catalogued(part, opener) for part in data]
    if isinstance(data, CataloguedInput):
        return data
    found = catalogued(data, opener)
    return data if found is None else found


def expanded(data: Any) -> Iterator[Any]:
    """Yield the inputs in a collection of catalogue records, such as STAC items. Yield other data unchanged."""
    for reader in all_extensions("inputs"):
        if (inputs := reader.many(data)) is not None:
            yield from inputs
            return
    yield data


def _equal(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_NUMBER_TOLERANCE, abs_tol=1e-12)


def _numbers(packing: Packing) -> str:
    return f"{packing.scale:.9g} and {packing.offset:.9g}"


def _shown(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"


def _same_corners(one: Affine, other: Affine, size: tuple[int, int]) -> bool:
    """Return whether two transforms give each corner of a raster the same position, to within 0.01 pixels."""
    pixel = max(abs(number) for number in (other[0], other[1], other[3], other[4]))
    for row, col in ((0, 0), (0, size[1]), (size[0], 0), size):
        x, y = ((t[0] * col + t[1] * row + t[2], t[3] * col + t[4] * row + t[5]) for t in (one, other))
        if max(abs(x[0] - y[0]), abs(x[1] - y[1])) > _CORNER_TOLERANCE * pixel:
            return False
    return True
