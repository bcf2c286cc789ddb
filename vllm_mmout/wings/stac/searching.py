"""Search for items in a STAC API or a static STAC catalogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from warnings import catch_warnings, simplefilter

from vllm_mmout.errors import InputError, type_and_message
from vllm_mmout.geo import is_address, without_secrets
from vllm_mmout.wings.stac.extra import stac_package
from vllm_mmout.wings.stac.filters import Filter
from vllm_mmout.wings.stac.walking import items_below

if TYPE_CHECKING:
    from collections.abc import Callable

    from pystac import Item

_MOST_ITEMS: Final = 1000


def search(
    catalog: str,
    *,
    collections: str | Sequence[str] | None = None,
    datetime: str | None = None,
    bbox: Sequence[float] | None = None,
    aoi: Any = None,
    ids: Sequence[str] | None = None,
    max_items: int = _MOST_ITEMS,
    modifier: Callable[..., Any] | None = None,
    **fields: Any,
) -> list[Item]:
    """Search a STAC catalogue. Return its items sorted by date. Each item can be an input of ``generate``.

    Args:
        catalog: address of a STAC API, or address or path of a static catalogue, which is read as a whole.
        collections: ids of the collections; by default all.
        datetime: a date, a month ("2024-06"), a year, or an interval ("2024-06-01/2024-06-30", ".." for no end).
        bbox: west, south, east, north in degrees.
        aoi: area that the items intersect, in a form of the option ``aoi`` of requests. Not together with bbox.
        ids: ids of the items.
        max_items: most items; more are an error, because a part of them would be arbitrary.
        modifier: function that changes the answers of an API, such as ``planetary_computer.sign_inplace``.
        fields: further fields of the search of an API, such as ``query={"eo:cloud_cover": {"lt": 20}}``.

    Raises:
        InputError: the catalogue cannot be read, or no item or too many items match.
        OptionError: an argument is wrong, or the extra "stac" is not installed.

    """
    pystac = stac_package("pystac", "a search")
    names = [collections] if isinstance(collections, str) else collections
    conditions = Filter.of(names, datetime, bbox, aoi, ids)
    items = _search_api(catalog, conditions, max_items, modifier, fields) if is_address(catalog) else None
    if items is None:
        conditions.check_static(fields)
        documents = [each for each in items_below(catalog) if conditions.matches(each.content)]
        items = [pystac.Item.from_dict({**each.content}, href=each.base) for each in documents]
    shown = without_secrets(catalog)
    if not items:
        raise InputError(f"no item of {shown} matches {conditions}; check collections, datetime and the area")
    if len(items) > max_items:
        raise InputError(
            f"more than {max_items} items of {shown} match {conditions}; search for fewer, or set max_items"
        )
    return sorted(items, key=lambda item: (str(item.datetime or item.properties.get("start_datetime")), item.id))


def _search_api(
    address: str, conditions: Filter, max_items: int, modifier: Callable[..., Any] | None, fields: Mapping[str, Any]
) -> list[Item] | None:
    """Return the items that a STAC API finds. Return None if the address is that of a static catalogue."""
    client_package = stac_package("pystac_client", "a search")
    shown = without_secrets(address)
    try:
        with catch_warnings():
            simplefilter("ignore")  # pystac-client warns about catalogues that are not APIs
            client = client_package.Client.open(address, modifier=modifier)
            if not client.conforms_to("ITEM_SEARCH"):
                return None
        return list(client.search(**conditions.fields, max_items=max_items + 1, **fields).items())
    except Exception as error:  # requests, JSON and the API raise errors of unrelated classes
        raise InputError(f"the search of {shown} failed: {type_and_message(error)[:500]}") from error
