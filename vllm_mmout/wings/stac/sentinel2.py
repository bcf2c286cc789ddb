"""Find the offset of Sentinel-2 pixel values for STAC items that do not state an offset for each band."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from vllm_mmout.errors import InputError
from vllm_mmout.geo import Packing, sentinel2_doubt, understood

if TYPE_CHECKING:
    from vllm_mmout.models.inputs.catalogued import CataloguedFile
    from vllm_mmout.wings.stac.documents import Json

SENTINEL_2: Final = "Sentinel-2"
APPLIED: Final = "earthsearch:boa_offset_applied"
"""Property of STAC items from Earth Search. If it is true, the pixel values already include the offset of newer
Sentinel-2 products, although ``raster:bands`` still states this offset."""
_BASELINE: Final = "s2:processing_baseline"
_HIGHER_SINCE: Final = (4, 0)
_SHIFT: Final = -1000
_SCALE: Final = 0.0001
_PRODUCT: Final = re.compile(r"L2A|L1C|S2MSI", re.IGNORECASE)
_OTHER_PRODUCT: Final = re.compile(r"HLS", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ProductCounts:
    """Facts about a Sentinel-2 item (level 1C or 2A) that determine the offset of its pixel values.

    Such pixel values are called counts. Since 2022 the counts of Sentinel-2 products are increased by 1000.
    """

    name: str
    """Id of the item."""
    baseline: str | None
    """ESA's processing baseline, such as "05.10". None if the item states no valid baseline.

    The value 99.99 is not valid. It marks products that ESA did not process.
    """
    applied: bool
    """Whether the STAC item says that the offset is already applied to the pixel values."""

    @classmethod
    def of(cls, item: Json, name: str, properties: Json, sensor: str | None) -> Self | None:
        """Create a `ProductCounts` from a STAC item.

        Return None if the item is not a Sentinel-2 product of level 1C or 2A.
        """
        stated = (
            name,
            *(item.get("collection"), properties.get("s2:product_type"), properties.get("processing:level")),
        )
        words = " ".join(word for word in stated if isinstance(word, str))
        if sensor != SENTINEL_2 or _OTHER_PRODUCT.search(words):
            return None
        if _BASELINE not in properties and not _PRODUCT.search(words):
            return None
        return cls(name, _text_of(properties.get(_BASELINE)), properties.get(APPLIED) is True)

    def packing(self, scale: float | None) -> Packing:
        """Return the scale and offset of a band. ``scale`` is the scale that the STAC item states, or None.

        The item states no offset. The offset is derived from ESA's processing baseline. It is 0 if the item says that
        the offset is already applied. If ``scale`` is None, return the scale of all Sentinel-2 products, or 1 if the
        item says neither its processing baseline nor that the offset is already applied.
        """
        known = _SCALE if scale is None else scale
        item = "the STAC item"
        if self.applied:
            return Packing(known, 0.0, f"{APPLIED} of {item}" if scale is None else item)
        if self.baseline is None:
            doubt = sentinel2_doubt(
                f"STAC item {self.name} is of Sentinel-2, and states neither the offset of its counts nor ESA's"
                f" processing baseline ({_BASELINE})"
            )
            return Packing(1.0 if scale is None else scale, 0.0, item, doubt=doubt)
        by_baseline = f"{_BASELINE} {self.baseline} of {item}"
        if tuple(map(int, self.baseline.split("."))) < _HIGHER_SINCE:
            return Packing(known, 0.0, by_baseline if scale is None else item)
        return Packing(known, _SHIFT * known, by_baseline, shift=_SHIFT)


def _text_of(baseline: Any) -> str | None:
    text = str(baseline)
    return text if re.fullmatch(r"0?\d\.\d{1,2}", text, re.ASCII) else None


def is_optical(names: Iterable[str]) -> bool:
    """Return whether a band with these names holds reflectance. A scene classification, for example, does not."""
    return any(understood(name, SENTINEL_2) for name in names)


def check_shifts(files: Sequence[CataloguedFile]) -> None:
    """Raise InputError if two optical bands of a STAC item have different offsets of their pixel values.

    All optical bands of a Sentinel-2 product have the same offset.
    """
    shifts: dict[int, str] = {}
    for file in files:
        for band in file.bands:
            if is_optical(band.names):
                shifts.setdefault(0 if band.packing is None else band.packing.shift, file.name)
    if len(shifts) > 1:
        (one, first), (other, second) = list(shifts.items())[:2]
        raise InputError(
            f"{first} has an offset of {one} counts, and {second} of {other}, which no product of Sentinel-2 has;"
            " correct the item"
        )
