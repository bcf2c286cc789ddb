"""Accept STAC items as inputs of requests: a pystac object, a dict, a JSON file or an address."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vllm_mmout.errors import InputError, MMOutError, message_of, type_and_message
from vllm_mmout.geo import DATES, DESCRIBED_BY, RASTER_SUFFIXES, in_bucket, is_address, without_secrets
from vllm_mmout.models.inputs.catalogued import CataloguedFile, CataloguedInput
from vllm_mmout.models.inputs.input_forms import as_local_path
from vllm_mmout.wings.stac.bands import bands_of, names_of, stated_band
from vllm_mmout.wings.stac.documents import UNRESTRICTED, Document, Json, as_number, may_be_document, read_document
from vllm_mmout.wings.stac.properties import acquisition_times_of, days_of, projection, sensor_of_item
from vllm_mmout.wings.stac.sentinel2 import SENTINEL_2, ProductCounts, check_shifts

if TYPE_CHECKING:
    from vllm_mmout.models.inputs.catalogued import Opener

_MOST_ASSETS: Final = 1000
_MOST_ITEMS: Final = 10_000
_RASTER_TYPES: Final = ("image/", "application/x-hdf", "application/netcdf", "application/x-netcdf")
_EXCLUDED_ROLES: Final = frozenset({"thumbnail", "overview", "visual", "metadata"})
"""Roles of assets that are not used as input: pictures made from the data, and metadata."""


def one(data: Any, opener: Opener | None = None) -> CataloguedInput | None:
    """Return the input that a STAC item describes, or None if ``data`` is not an item. Image files are not opened yet.

    Args:
        data: an item as pystac's object, a dict, a path, an address or an open JSON file.
        opener: opener of the item and its files, or None for an item of this process's user.

    """
    document = _document(data, opener)
    if document is None:
        return None
    features = _features(document)
    if features is not None:
        if len(features) != 1:
            raise InputError(
                f"the item collection has {len(features)} items, and this request takes one; send a request for each"
            )
        document = _as_document(features[0], document)
    if _is_item(document.content):
        return _input_of(document, opener)
    if features is not None or isinstance(data, Document):
        raise InputError("an entry of the item collection is no STAC item, a Feature with stac_version; correct it")
    return None


def many(data: Any) -> Sequence[Document] | None:
    """Return all STAC items of an item collection. Return None if ``data`` is not a readable item collection."""
    try:
        document = _document(data, None)
        features = None if document is None else _features(document)
    except MMOutError:
        return None  # `one` raises the error for this input
    return None if features is None or document is None else [_as_document(each, document) for each in features]


def _document(data: Any, opener: Opener | None) -> Document | None:
    if isinstance(data, Document):
        return data
    if hasattr(data, "to_dict") and hasattr(data, "stac_extensions"):  # pystac's, which need not be installed
        item = data.to_dict(include_self_link=True, transform_hrefs=False)
        return Document(item, data.get_self_href() or "")
    if type(data).__name__ == "ItemCollection" and hasattr(data, "items"):
        return Document({"type": "FeatureCollection", "features": [_document(item, None) for item in data.items]})
    if isinstance(data, Mapping):
        return Document(data) if _is_item(data) or _is_collection(data) else None
    return read_document(data, opener) if may_be_document(data) else None


def _as_document(feature: Any, collection: Document) -> Document:
    if isinstance(feature, Document):
        return feature
    return Document(feature if isinstance(feature, Mapping) else {}, collection.base)


def _is_item(content: Json) -> bool:
    return content.get("type") == "Feature" and isinstance(content.get("stac_version"), str)


def _is_collection(content: Json) -> bool:
    features = content.get("features")
    if content.get("type") != "FeatureCollection" or not isinstance(features, list):
        return False
    return all(isinstance(each, Document) or (isinstance(each, Mapping) and _is_item(each)) for each in features[:1])


def _features(document: Document) -> list[Any] | None:
    """Return the items of an item collection, or None if the document is not an item collection."""
    content = document.content
    if not _is_collection(content):
        return None
    features: list[Any] = content["features"]
    links = content.get("links")
    if any(
        isinstance(each, Mapping) and each.get("rel") == "next" for each in (links if isinstance(links, list) else ())
    ):
        raise InputError(
            "the item collection is one page of several (it has a link rel=next); search with vllm_mmout.stac.search,"
            " which reads all pages"
        )
    if not features or len(features) > _MOST_ITEMS:
        raise InputError(f"the item collection has {len(features)} items; 1 to {_MOST_ITEMS} are taken")
    return features


class _Asset(NamedTuple):
    key: str
    fields: Json
    bands: list[dict[str, Any]]

    @property
    def order(self) -> tuple[float, bool]:
        """Sort key for assets with the same band: the finest resolution first, then GeoTIFF before other formats."""
        size = as_number(self.fields.get("gsd"))
        kind = str(self.fields.get("type", ""))
        return (math.inf if size is None else size, "tiff" not in kind)


def _input_of(document: Document, opener: Opener | None) -> CataloguedInput:
    item = document.content
    name = str(item.get("id") or "item")
    properties = item.get("properties")
    try:
        if not isinstance(properties, Mapping):
            raise InputError("properties must be an object; correct the item")  # noqa: TRY301 - the message gets the id
        if not document.base:
            document = Document(item, _self_link(item))
        sensor = sensor_of_item(name, properties)
        counts = ProductCounts.of(item, name, properties, sensor)
        reader = _Reader(document, name, properties, sensor, counts, opener)
        assets = _one_asset_per_band(name, _raster_assets(name, item.get("assets")))
        files = tuple(reader.file(asset, notes) for asset, notes in assets)
        if sensor == SENTINEL_2:
            check_shifts(files)
    except InputError as error:
        raise InputError(f"STAC item {name[:100]}: {message_of(error)}") from error
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"STAC item {name[:100]} is malformed: {type_and_message(error)}; correct it") from error
    return CataloguedInput(_as_file_name(name), files, reader.sensor)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reader of the assets of a STAC item."""

    document: Document
    name: str
    """Id of the item."""
    properties: Json
    sensor: str | None
    counts: ProductCounts | None
    opener: Opener | None

    @property
    def _source(self) -> str:
        """Address or absolute path of the STAC item. If both are unknown, the item's id."""
        place = _self_link(self.document.content) or self.document.base
        if not place:
            return self.name
        is_remote = is_address(place) or in_bucket(place)
        return without_secrets(place) if is_remote else str(as_local_path(place).absolute())

    def file(self, asset: _Asset, notes: tuple[str, ...]) -> CataloguedFile:
        """Return the file of a STAC asset, with the metadata that the STAC item states about the file.

        The texts ``notes`` become warnings of the result.
        """
        fields, href = asset.fields, asset.fields.get("href")
        called = f"asset {asset.key!r} of STAC item {self.name}"
        if not isinstance(href, str):
            raise InputError(f"asset {asset.key!r} has no href; correct the item")
        bands = [
            stated_band(called, fields, band, self.properties, self.sensor, counts=self.counts) for band in asset.bands
        ]
        if len(bands) == 1:
            bands = [replace(bands[0], names=tuple(dict.fromkeys((*bands[0].names, asset.key))))]
        return CataloguedFile(
            called,
            self.document.resolve(href),
            self.opener or UNRESTRICTED,
            f"STAC item {self.name}",
            tuple(bands),
            **projection(called, fields, self.properties),
            metadata=((DESCRIBED_BY, self._source), (DATES, "\n".join(acquisition_times_of(self.properties)))),
            days=days_of(self.properties),
            noted=notes,
        )


def _raster_assets(name: str, assets: Any) -> list[_Asset]:
    """Return the assets of a STAC item that are rasters with data. Thumbnails and other pictures are left out."""
    if not isinstance(assets, Mapping) or not all(isinstance(asset, Mapping) for asset in assets.values()):
        raise InputError("assets must be an object of objects; correct the item")
    if len(assets) > _MOST_ASSETS:
        raise InputError(f"it has {len(assets)} assets, and at most {_MOST_ASSETS} are read")
    rasters = [
        _Asset(key, asset, bands_of(f"asset {key!r} of STAC item {name}", key, asset))
        for key, asset in assets.items()
        if _is_raster(asset) and not _EXCLUDED_ROLES & _roles(key, asset)
    ]
    if not rasters:
        raise InputError(f"none of its {len(assets)} assets is a raster with data ({', '.join(assets)[:300]})")
    if len(rasters) > 1:
        for asset in rasters:
            if not asset.bands:
                asset.bands.append({"name": asset.key})
    return rasters


def _roles(key: str, asset: Json) -> set[str]:
    roles = asset.get("roles") or []
    if not isinstance(roles, list | str):
        raise InputError(f"roles of asset {key!r} must be a list, got {type(roles).__name__}; correct the item")
    return {roles} if isinstance(roles, str) else {str(role) for role in roles}


def _is_raster(asset: Json) -> bool:
    kind = asset.get("type")
    if isinstance(kind, str) and kind:
        return kind.lower().startswith(_RASTER_TYPES)
    path = PurePosixPath(str(asset.get("href", "")).partition("?")[0])
    return path.suffix.lower() in RASTER_SUFFIXES


def _one_asset_per_band(name: str, assets: list[_Asset]) -> list[tuple[_Asset, tuple[str, ...]]]:
    """Return one asset for each band. If several assets hold a band, add a note for users that names the chosen asset.

    A file of several bands that all have a file of their own is a picture of them, and is left out.
    """
    alone: dict[tuple[str, ...], list[_Asset]] = {}
    for asset in assets:
        if len(asset.bands) == 1:
            alone.setdefault(names_of(asset.bands[0]), []).append(asset)
    chosen = []
    for same in alone.values():
        first, *others = sorted(same, key=lambda asset: asset.order)
        notes = ""
        if others:
            keys = ", ".join(repr(asset.key) for asset in others)
            have = "has" if len(others) == 1 else "have"
            notes = f"STAC item {name}: asset {first.key!r} was taken; {keys} {have} the same band."
        chosen.append((first, (notes,) * bool(notes)))
    several = [asset for asset in assets if len(asset.bands) != 1]
    own = {name for names in alone for name in names}
    pictures = [asset for asset in several if asset.bands and all(own & {*names_of(band)} for band in asset.bands)]
    return chosen + [(asset, ()) for asset in several if asset not in pictures]


def _self_link(item: Json) -> str:
    """Return the address in a STAC item's link "self", or "" if it lacks this link."""
    links = item.get("links")
    for link in links if isinstance(links, list) else ():
        href = link.get("href") if isinstance(link, Mapping) and link.get("rel") == "self" else None
        if isinstance(href, str) and (is_address(href) or in_bucket(href)):
            return href
    return ""


def _as_file_name(name: str) -> str:
    """Return a STAC item's id with unsafe characters replaced, for use as a file name."""
    plain = "".join(letter if letter.isalnum() or letter in "._- " else "_" for letter in name)
    return plain.strip(". ")[:150] or "item"
