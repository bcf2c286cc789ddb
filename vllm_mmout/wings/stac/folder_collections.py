"""Write STAC collections for folders of results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vllm_mmout.errors import InputError, SaveError
from vllm_mmout.geo import in_bucket
from vllm_mmout.wings.stac.documents import Document, read_document
from vllm_mmout.wings.stac.extra import stac_package
from vllm_mmout.wings.stac.facts import checksum
from vllm_mmout.wings.stac.result_files import ITEM_SUFFIX, spare, write_item, write_json
from vllm_mmout.wings.stac.result_items import DATA, as_address

if TYPE_CHECKING:
    from pystac import Collection, Item

_SUFFIXES: Final = (".tif", ".tiff")
_SUMMARY_PROPERTIES: Final = ("proj:code", "processing:lineage")
NAME: Final = "collection.json"
_COLLECTION_FIELDS: Final = frozenset(
    ("type", "id", "stac_version", "stac_extensions", "description", "links", "extent", "license", "summaries")
)
"""Fields that this package writes into a collection. A file with other fields is not overwritten."""


def collection(folder: str | Path, *, id: str | None = None, description: str | None = None) -> Collection:  # noqa: A002 - STAC's word
    """Write ``collection.json`` into a folder of results, and a STAC item for each GeoTIFF that lacks an item.

    Items that exist are kept, and get the collection's id and links.

    Args:
        folder: folder with GeoTIFFs of results.
        id: id of the collection, by default the folder's name.
        description: text about the collection.

    Returns:
        The collection as pystac's object.

    Raises:
        InputError: the folder has no GeoTIFF with a place on Earth, or a file in it is damaged.
        OptionError: the extra "stac" is not installed.

    """
    pystac = stac_package("pystac", "a STAC collection")
    if in_bucket(str(folder)):
        raise InputError(f"{folder} is in a bucket; collections are written for folders on this machine")
    place = Path(folder)
    files = sorted(path for path in place.iterdir() if path.suffix.lower() in _SUFFIXES) if place.is_dir() else []
    if not files:
        raise InputError(f"{folder} is no folder with GeoTIFFs; name the folder of the results")
    _check(place / NAME, files)
    items = [_item_beside(path) for path in files]
    name = id or place.resolve().name
    made: Collection = pystac.Collection(
        name,
        description or f"{len(items)} results of vllm-mmout",
        _extent(folder, items),
        license="other",
        summaries=pystac.Summaries(_summaries(items)),
        catalog_type=pystac.CatalogType.SELF_CONTAINED,
    )
    for path, item in zip(files, items, strict=True):
        item.set_self_href(as_address(str(path.absolute().with_suffix(ITEM_SUFFIX))))
        made.add_item(item)
    made.set_self_href(as_address(str(place.absolute() / NAME)))
    for path, item in zip(files, items, strict=True):
        write_json(path.with_suffix(ITEM_SUFFIX), item.to_dict(include_self_link=False))
    write_json(place / NAME, made.to_dict(include_self_link=False))
    return made


def _check(target: Path, files: Sequence[Path]) -> None:
    """Raise InputError if writing the collection would overwrite a file of another kind, or lose fields."""
    for path in files:
        if path.with_suffix(ITEM_SUFFIX) == target:
            raise InputError(f"the item of {path} would be {target.name}, as the collection is called; rename it")
        try:
            spare(path)
        except SaveError:
            raise InputError(
                f"{path.with_suffix(ITEM_SUFFIX)} is no STAC item of {path.name}; rename one of them"
            ) from None
    if not target.exists():
        return
    document = read_document(target)
    content = {} if document is None else document.content
    if content.get("type") != "Collection" or "stac_version" not in content:
        raise InputError(f"{target} is no STAC collection, and would be overwritten; rename it")
    if lost := sorted(content.keys() - _COLLECTION_FIELDS):
        raise InputError(f"{target} has fields that would be lost: {', '.join(lost)[:200]}; rename it")


def _item_beside(path: Path) -> Item:
    """Return the STAC item beside a GeoTIFF. Write a new item if it is missing or its checksum is outdated."""
    pystac = stac_package("pystac", "a STAC collection")
    beside = path.with_suffix(ITEM_SUFFIX)
    document = read_document(beside) if beside.is_file() else None
    if document is None:
        return write_item(path)
    content = {**document.content, "links": _own_links(document)}
    item: Item = pystac.Item.from_dict(json.loads(json.dumps(content)), href=str(beside.absolute()))
    is_same = item.assets[DATA].extra_fields.get("file:checksum") == checksum(path)
    return item if is_same else write_item(path)


def _own_links(document: Document) -> list[Any]:
    """Return the links of a STAC item, except links to itself and its collection. These will be written anew."""
    links = document.content.get("links")
    kept = [link for link in links if isinstance(link, dict)] if isinstance(links, list) else []
    return [link for link in kept if link.get("rel") not in {"self", "root", "parent", "collection"}]


def _extent(folder: str | Path, items: Sequence[Item]) -> Any:
    pystac = stac_package("pystac", "a STAC collection")
    boxes = [item.bbox for item in items if item.bbox is not None]
    if not boxes:
        raise InputError(f"no GeoTIFF of {folder} has a place on Earth, which a collection needs")
    wests, souths, easts, norths = zip(*boxes, strict=True)
    across = any(west > east for west, _, east, _ in boxes)
    whole = [-180.0 if across else min(wests), min(souths), 180.0 if across else max(easts), max(norths)]
    spans = [(item.common_metadata.start_datetime, item.common_metadata.end_datetime, item.datetime) for item in items]
    starts = [moment for start, _, instant in spans if (moment := start or instant) is not None]
    ends = [moment for _, end, instant in spans if (moment := end or instant) is not None]
    spatial = pystac.SpatialExtent([whole] if len(boxes) == 1 else [whole, *boxes])
    return pystac.Extent(spatial, pystac.TemporalExtent([[min(starts), max(ends)]]))


def _summaries(items: Sequence[Item]) -> dict[str, Any]:
    """Return the values that the items have for the properties in `_SUMMARY_PROPERTIES`, by property."""
    values = {
        key: sorted({item.properties[key] for item in items if item.properties.get(key)}) for key in _SUMMARY_PROPERTIES
    }
    return {key: listed for key, listed in values.items() if listed}
