"""Write the STAC item and the thumbnail of a result beside the result's file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final

from vllm_mmout.errors import InputError, SaveError
from vllm_mmout.geo import atomic_file, identity_in_bucket, place_of
from vllm_mmout.wings.stac.documents import Document, read_document
from vllm_mmout.wings.stac.extra import stac_package
from vllm_mmout.wings.stac.result_items import DATA, described, href_of, opened_result

if TYPE_CHECKING:
    from pystac import Item

    from vllm_mmout.params import OutputParams

ITEM_SUFFIX: Final = ".json"
_THUMBNAIL: Final = "-thumbnail.png"


def check() -> None:
    """Raise OptionError if the package pystac is not installed."""
    stac_package("pystac", "stac_item")


def spare(path: PurePath) -> None:
    """Raise SaveError if the STAC item or the thumbnail of a result at ``path`` would overwrite an unrelated file."""
    beside, picture = path.with_suffix(ITEM_SUFFIX), _thumbnail_of(path)
    if exists(beside):
        if not _is_item_of(beside, path):
            raise SaveError(
                f"{beside} exists and is no STAC item of {path.name}, whose item would be written there; choose another"
                " path, or rename it"
            )
    elif exists(picture):
        raise SaveError(
            f"{picture} exists and belongs to no STAC item of {path.name}, whose thumbnail would be written there;"
            " choose another path, or rename it"
        )


def _thumbnail_of(path: PurePath) -> Any:
    return path.with_name(f"{path.stem}{_THUMBNAIL}")


def exists(path: PurePath) -> bool:
    """Return whether there is a file at a path, or an object at an address in a bucket."""
    if isinstance(path, Path):
        return path.exists()
    try:
        identity_in_bucket(path)
    except FileNotFoundError:
        return False
    return True


def _is_item_of(beside: PurePath, path: PurePath) -> bool:
    try:
        document = read_document(beside)
    except InputError:  # another file, such as a folder or broken JSON
        return False
    return document is not None and describes(document, path)


def describes(document: Document, path: PurePath) -> bool:
    """Return whether a document is the STAC item of the result at ``path``."""
    assets = document.content.get("assets")
    asset = assets.get(DATA) if isinstance(assets, Mapping) else None
    return isinstance(asset, Mapping) and asset.get("href") == href_of(path.name)


def write(path: str | PurePath, options: OutputParams, inputs: Sequence[str]) -> None:
    """Write the STAC item and the thumbnail of a result that was just saved.

    Args:
        path: path of the result's GeoTIFF, or its address in a bucket.
        options: options of the request.
        inputs: paths or addresses of the input.

    """
    write_item(path, options=options, inputs=inputs)


def write_item(path: str | PurePath, *, options: OutputParams | None = None, inputs: Sequence[str] = ()) -> Item:
    """Write the STAC item and the thumbnail of a result beside the result's file, and return the item."""
    pystac = stac_package("pystac", "a STAC item")
    target = place_of(path)
    spare(target)
    picture = _thumbnail_of(target)
    with opened_result(target) as facts:
        item = described(facts, target, options=options, inputs=inputs)
        with atomic_file(picture) as part:
            facts.thumbnail().save(part, "PNG")
    item.add_asset("thumbnail", pystac.Asset(href_of(picture.name), media_type="image/png", roles=["thumbnail"]))
    write_json(target.with_suffix(ITEM_SUFFIX), item.to_dict(include_self_link=False, transform_hrefs=False))
    return item


def write_json(path: PurePath, content: dict[str, Any]) -> None:
    """Write a JSON document atomically."""
    with atomic_file(path) as part:
        part.write_text(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
