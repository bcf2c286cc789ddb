"""Group STAC items into mosaics, one mosaic for each day."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vllm_mmout.errors import InputError
from vllm_mmout.wings.stac.properties import days_of

if TYPE_CHECKING:
    from pystac import Item

    from vllm_mmout import Mosaic


def mosaics(items: Sequence[Item], **options: Any) -> list[Mosaic]:
    """Group STAC items by day (UTC), and return one `Mosaic` for each day, the earliest day first.

    The model's results for the items of a `Mosaic` are joined into one map.

    Args:
        items: items, as `search` returns them.
        options: options of `Mosaic`, such as ``order="first"``.

    Raises:
        InputError: an item has no date, or its acquisition took several days.
        OptionError: an option is wrong.

    """
    from vllm_mmout import Mosaic

    by_day: dict[Any, list[Item]] = {}
    for item in items:
        days = days_of(item.to_dict(transform_hrefs=False)["properties"])
        if days is None or days[0] != days[1]:
            raise InputError(f"STAC item {item.id} is not of a single day; put it into a Mosaic yourself")
        by_day.setdefault(days[0], []).append(item)
    return [Mosaic(by_day[day], **options) for day in sorted(by_day)]
