"""Describe results on the server as STAC items and as a STAC collection. All links are URLs of the server."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vllm_mmout.errors import InputError
from vllm_mmout.wings.stac.extra import stac_package
from vllm_mmout.wings.stac.folder_collections import extent_of, summaries_of
from vllm_mmout.wings.stac.result_items import DATA, described, opened_result

if TYPE_CHECKING:
    from pystac import Item

    from vllm_mmout.serving.result_addresses import FinishedResult

COLLECTION: Final = "/v1/stac/collection.json"
"""URL path of the STAC collection of a server's results."""
ITEM_END: Final = "/item.json"
"""End of the URL path of a result's STAC item. The path begins with the path of the result."""
_ID: Final = "results"
_GEOJSON: Final = "application/geo+json"
_JSON: Final = "application/json"
_NOTE: Final = "Results of finished jobs. The server deletes them when they expire."


def served_item(result: FinishedResult, url: Callable[[str], str], *, hashed: bool = True) -> Item:
    """Return the STAC item of a result on the server. The call blocks while the result's file is read.

    Args:
        result: the result.
        url: converts a path on the server to a URL.
        hashed: whether the item has the checksum of the file.

    Raises:
        InputError: the file was removed, or is no GeoTIFF.
        OptionError: the extra "stac" is not installed.

    """
    pystac = stac_package("pystac", "a STAC item")
    item: Item = pystac.Item.from_dict(json.loads(_content(result.file.path, result.title, hashed=hashed)))
    item.id, item.properties["title"] = result.id, result.title
    item.assets[DATA].href = url(result.below("/content"))
    if result.preview is not None:
        roles = ["thumbnail", "overview"]
        item.add_asset("preview", pystac.Asset(url(result.preview), media_type="image/png", roles=roles))
    item.collection_id = _ID
    item.add_link(pystac.Link("self", url(result.below(ITEM_END)), _GEOJSON))
    for relation in ("root", "parent", "collection"):
        item.add_link(pystac.Link(relation, url(COLLECTION), _JSON))
    return item


@lru_cache(maxsize=1024)
def _content(path: Path, name: str, *, hashed: bool) -> str:
    """Return the STAC item of a stored result as JSON text. The text is cached, because stored results never change."""
    with opened_result(path, name) as facts:
        return json.dumps(described(facts, path, hashed=hashed).to_dict(transform_hrefs=False))


def served_collection(results: Sequence[FinishedResult], url: Callable[[str], str]) -> dict[str, Any] | None:
    """Return the STAC collection of the server's results, or None if all results lack a position on Earth.

    The call blocks while it reads files. A result that was removed meanwhile is left out.
    """
    pystac = stac_package("pystac", "a STAC collection")
    items: list[Item] = []
    for result in results:
        try:
            items.append(served_item(result, url, hashed=False))
        except InputError:  # removed meanwhile
            continue
    extent = extent_of(items)
    if extent is None:
        return None
    summaries = pystac.Summaries(summaries_of(items))
    made = pystac.Collection(_ID, _NOTE, extent, license="other", summaries=summaries)
    made.set_self_href(url(COLLECTION))
    for item in items:
        made.add_link(pystac.Link("item", item.get_self_href(), _GEOJSON, title=item.properties["title"]))
    content: dict[str, Any] = made.to_dict(transform_hrefs=False)
    return content
