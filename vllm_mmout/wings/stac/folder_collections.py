"""Write STAC collections for folders of results, on this machine or in a bucket."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final

from vllm_mmout.errors import InputError, SaveError
from vllm_mmout.geo import place_of, scenes_below
from vllm_mmout.wings.stac.documents import Document, read_document
from vllm_mmout.wings.stac.extra import stac_package
from vllm_mmout.wings.stac.facts import checksum
from vllm_mmout.wings.stac.result_files import ITEM_SUFFIX, exists, spare, write_item, write_json
from vllm_mmout.wings.stac.result_items import DATA, as_address, opened_result

if TYPE_CHECKING:
    from pystac import Collection, Extent, Item

_SUFFIXES: Final = (".tif", ".tiff")
_SUMMARY_PROPERTIES: Final = ("proj:code", "processing:lineage")
NAME: Final = "collection.json"
_COLLECTION_FIELDS: Final = frozenset(
    ("type", "id", "stac_version", "stac_extensions", "description", "links", "extent", "license", "summaries")
)
"""Fields of a STAC collection that this package writes. A collection file with other fields is not overwritten."""


def collection(folder: str | PurePath, *, id: str | None = None, description: str | None = None) -> Collection:  # noqa: A002 - STAC's word
    """Write ``collection.json`` into a folder of results, and a STAC item for each GeoTIFF that lacks an item.

    Items that exist are kept, and get the collection's id and links. GeoTIFFs in subfolders are included. The id of
    such an item begins with the names of its subfolders. Each file in a bucket is downloaded to compute its checksum.

    Args:
        folder: folder with GeoTIFFs of results, or its address in a bucket, such as ``s3://bucket/maps/``.
        id: id of the collection, by default the folder's name.
        description: text about the collection.

    Returns:
        The collection as pystac's object.

    Raises:
        InputError: the folder has no GeoTIFF with a place on Earth, two items would have the same id, an item belongs
            to another collection, or a file is damaged.
        OptionError: the extra "stac" is not installed.

    """
    pystac = stac_package("pystac", "a STAC collection")
    place = place_of(folder)
    target = place / NAME
    files = [place_of(name) for name in scenes_below(folder) if name.lower().endswith(_SUFFIXES)]
    if not files:
        raise InputError(f"{folder} is no folder with GeoTIFFs; name the folder of the results")
    _check(target, files)
    ids = _ids(place, files)
    items = [_item_beside(path, target) for path in files]
    extent = extent_of(items)
    if extent is None:
        raise InputError(f"no GeoTIFF of {folder} has a place on Earth, which a collection needs")
    made: Collection = pystac.Collection(
        id or (place.resolve() if isinstance(place, Path) else place).name,
        description or f"{len(items)} results of vllm-mmout",
        extent,
        license="other",
        summaries=pystac.Summaries(summaries_of(items)),
        catalog_type=pystac.CatalogType.SELF_CONTAINED,
    )
    for path, item, name in zip(files, items, ids, strict=True):
        item.id = name
        item.set_self_href(_absolute(path.with_suffix(ITEM_SUFFIX)))
        made.add_item(item)
    made.set_self_href(_absolute(target))
    for path, item in zip(files, items, strict=True):
        write_json(path.with_suffix(ITEM_SUFFIX), item.to_dict(include_self_link=False))
    write_json(target, made.to_dict(include_self_link=False))
    return made


def _absolute(path: PurePath) -> str:
    return as_address(str(path.absolute() if isinstance(path, Path) else path))


def _ids(place: PurePath, files: Sequence[PurePath]) -> list[str]:
    """Return an id for each file's STAC item, made from the path below ``place``. Raise InputError for equal ids."""
    paths: dict[str, PurePath] = {}
    for path in files:
        name = "-".join(path.relative_to(place).with_suffix("").parts)
        if name in paths:
            raise InputError(f"the items of {paths[name]} and {path} would have the same id, {name!r}; rename one file")
        paths[name] = path
    return list(paths)


def _check(target: PurePath, files: Sequence[PurePath]) -> None:
    """Raise InputError if a STAC collection would overwrite unrelated files, or drop fields of an existing collection.

    ``target`` is the collection file. If it exists, it must be a STAC collection without fields that this package does
    not write. An item is written beside each of the GeoTIFFs ``files``.
    """
    for path in files:
        if path.with_suffix(ITEM_SUFFIX).name == target.name:
            raise InputError(f"the item of {path} would be {target.name}, as the collection is called; rename it")
        try:
            spare(path)
        except SaveError:
            raise InputError(
                f"{path.with_suffix(ITEM_SUFFIX)} is no STAC item of {path.name}; rename one of them"
            ) from None
    if not exists(target):
        return
    document = read_document(target)
    content = {} if document is None else document.content
    if content.get("type") != "Collection" or "stac_version" not in content:
        raise InputError(f"{target} is no STAC collection, and would be overwritten; rename it")
    if lost := sorted(content.keys() - _COLLECTION_FIELDS):
        raise InputError(f"{target} has fields that would be lost: {', '.join(lost)[:200]}; rename it")


def _item_beside(path: PurePath, target: PurePath) -> Item:
    """Return the STAC item beside a GeoTIFF. Write a new item if the item is missing or has an outdated checksum.

    Raise InputError if the item belongs to another collection than ``target``.
    """
    pystac = stac_package("pystac", "a STAC collection")
    beside = path.with_suffix(ITEM_SUFFIX)
    document = read_document(beside) if exists(beside) else None
    if document is None:
        return write_item(path)
    _check_collection(document, target)
    content = {**document.content, "links": _own_links(document)}
    item: Item = pystac.Item.from_dict(json.loads(json.dumps(content)), href=_absolute(beside))
    with opened_result(path) as facts:
        is_same = item.assets[DATA].extra_fields.get("file:checksum") == checksum(facts.path)
    return item if is_same else write_item(path)


def _check_collection(document: Document, target: PurePath) -> None:
    """Raise InputError if a STAC item belongs to a collection other than ``target``.

    The item may belong to the collection of a subfolder, for example.
    """
    for link in _links(document):
        if link.get("rel") != "collection":
            continue
        try:
            other = place_of(document.resolve(str(link.get("href"))))
        except InputError:  # not an address of a file
            continue
        is_local = isinstance(other, Path) and isinstance(target, Path)
        is_same = Path(other).resolve() == Path(target).resolve() if is_local else other == target
        if not is_same and exists(other):
            raise InputError(
                f"{document.base} is an item of the collection {other}; name the folder of that collection, or remove"
                " the link to it from the item"
            )


def _own_links(document: Document) -> list[Any]:
    """Return the links of a STAC item except the links to the item itself and to its collection."""
    return [link for link in _links(document) if link.get("rel") not in {"self", "root", "parent", "collection"}]


def _links(document: Document) -> list[dict[str, Any]]:
    links = document.content.get("links")
    return [link for link in links if isinstance(link, dict)] if isinstance(links, list) else []


def extent_of(items: Sequence[Item]) -> Extent | None:
    """Return the extent of STAC items in space and time, or None if all items lack a position on Earth."""
    pystac = stac_package("pystac", "a STAC collection")
    boxes = [item.bbox for item in items if item.bbox is not None]
    if not boxes:
        return None
    wests, souths, easts, norths = zip(*boxes, strict=True)
    across = any(west > east for west, _, east, _ in boxes)
    whole = [-180.0 if across else min(wests), min(souths), 180.0 if across else max(easts), max(norths)]
    spans = [(item.common_metadata.start_datetime, item.common_metadata.end_datetime, item.datetime) for item in items]
    starts = [moment for start, _, instant in spans if (moment := start or instant) is not None]
    ends = [moment for _, end, instant in spans if (moment := end or instant) is not None]
    spatial = pystac.SpatialExtent([whole] if len(boxes) == 1 else [whole, *boxes])
    extent: Extent = pystac.Extent(spatial, pystac.TemporalExtent([[min(starts), max(ends)]]))
    return extent


def summaries_of(items: Sequence[Item]) -> dict[str, Any]:
    """Return the summaries of a STAC collection. A summary lists all values that a property has in ``items``.

    The properties are `_SUMMARY_PROPERTIES`.
    """
    values = {
        key: sorted({item.properties[key] for item in items if item.properties.get(key)}) for key in _SUMMARY_PROPERTIES
    }
    return {key: listed for key, listed in values.items() if listed}
