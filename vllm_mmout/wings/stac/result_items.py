"""Create STAC items that describe results, from the results' GeoTIFFs."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote
from warnings import catch_warnings, simplefilter

import msgspec

from vllm_mmout.errors import InputError
from vllm_mmout.geo import download, is_tiff, place_of, without_secrets
from vllm_mmout.wings.stac.extra import stac_package
from vllm_mmout.wings.stac.facts import ResultFacts, checksum

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pystac import Item

    from vllm_mmout.params import OutputParams

_SCHEMAS: Final = "https://stac-extensions.github.io"
_EXTENSIONS: Final = {
    prefix: f"{_SCHEMAS}/{name}/schema.json"
    for prefix, name in (
        ("proj", "projection/v2.0.0"),
        ("raster", "raster/v2.0.0"),
        ("file", "file/v2.1.0"),
        ("processing", "processing/v1.2.0"),
        ("classification", "classification/v2.0.0"),
    )
}
"""Schema URL of each STAC extension, by the prefix of the extension's fields."""
_GEOTIFF: Final = "image/tiff; application=geotiff; profile=cloud-optimized"
_UNDATED: Final = "The input states no date; datetime is when the result was written."
_NO_PLACE: Final = "The coordinate system has no place on Earth in longitude and latitude, so there is no geometry."
DATA: Final = "data"
"""Key of the result's GeoTIFF in the ``assets`` of a STAC item."""


def item_of(path: str | PurePath, *, options: OutputParams | None = None, inputs: Sequence[str] = ()) -> Item:
    """Return a STAC item that describes the GeoTIFF of a result. Its assets have relative addresses.

    Args:
        path: path of the file, or its address in a bucket.
        options: options of the request, if they are known. The file's tags hold the model and the processor.
        inputs: paths or addresses of the input, beside the items that the file's tags name.

    Raises:
        InputError: the file is no GeoTIFF, or cannot be read.
        OptionError: the extra "stac" is not installed.

    """
    with opened_result(path) as facts:
        return described(facts, place_of(path), options=options, inputs=inputs)


def described(
    facts: ResultFacts,
    place: PurePath,
    *,
    options: OutputParams | None = None,
    inputs: Sequence[str] = (),
    hashed: bool = True,
) -> Item:
    """Return the STAC item that describes a result's GeoTIFF.

    ``facts`` is the metadata that `opened_result` yields. ``place`` is the file's path, or its address in a bucket. If
    ``hashed`` is False, the item has no checksum. To compute a checksum, the whole file is read.
    """
    pystac = stac_package("pystac", "a STAC item")
    first, last, is_stated = facts.acquisition_times
    classes = facts.classes
    fields: dict[str, Any] = {
        **facts.projection,
        "bands": facts.bands,
        "file:size": facts.path.stat().st_size,
        **({"file:checksum": checksum(facts.path)} if hashed else {}),
        **({"classification:classes": classes} if classes else {}),
    }
    properties = {**_processing(facts.tags, options), "proj:code": fields["proj:code"]}
    no_place = facts.footprint is None and "proj:transform" in fields
    notes = [*([] if is_stated else [_UNDATED]), *([_NO_PLACE] if no_place else [])]
    item: Item = pystac.Item(
        id=place.stem,
        geometry=facts.footprint,
        bbox=facts.box,
        datetime=first if first == last else None,
        start_datetime=None if first == last else first,
        end_datetime=None if first == last else last,
        properties={**properties, "description": " ".join(notes)} if notes else properties,
        stac_extensions=_extensions({*properties, *fields, *(name for band in fields["bands"] for name in band)}),
    )
    for origin in dict.fromkeys((*facts.origins, *map(without_secrets, inputs))):
        kind = "application/geo+json" if origin in facts.origins else None
        item.add_link(pystac.Link("derived_from", origin, kind))
    asset = pystac.Asset(href_of(place.name), media_type=_GEOTIFF, roles=["data"], extra_fields=fields)
    item.add_asset(DATA, asset)
    return item


def href_of(name: str) -> str:
    """Return a file name as a relative address, for an item in the same folder."""
    return f"./{as_address(name)}"


def as_address(path: str) -> str:
    """Convert a path to an address: "#" and "?" are percent-encoded."""
    return quote(path) if "#" in path or "?" in path else path


@contextmanager
def opened_result(path: str | PurePath, name: str | None = None) -> Iterator[ResultFacts]:
    """Open a result's GeoTIFF and yield its metadata. A file in a bucket is first downloaded to a temporary folder.

    ``name`` is the name of the result, which may contain its date. None: the name of the file.
    """
    import rasterio
    from rasterio.errors import NotGeoreferencedWarning, RasterioError

    place = place_of(path)
    with tempfile.TemporaryDirectory(prefix="mmout-") as folder:
        local = place if isinstance(place, Path) else Path(folder) / place.name
        if not isinstance(place, Path):
            download(place, local)
        try:
            with local.open("rb") as file:
                head = file.read(4)
            if not is_tiff(head):
                raise InputError(f"{path} is no GeoTIFF; STAC items are made of GeoTIFFs")
            with catch_warnings():
                simplefilter("ignore", NotGeoreferencedWarning)  # such a result is described without a place
                dataset = rasterio.open(local, driver="GTiff")
            with dataset:
                yield ResultFacts(local, dataset, name)
        except (OSError, RasterioError) as error:
            raise InputError(f"cannot read {path}: {error}") from error


def _processing(tags: Mapping[str, str], options: OutputParams | None) -> dict[str, Any]:
    """Return fields of the STAC extension "processing", from a result's tags and its request's options."""
    model, processor = tags.get("MMOUT_MODEL"), tags.get("MMOUT_PROCESSOR")
    fields: dict[str, Any] = {}
    if model:
        fields["processing:lineage"] = f"model {model}, output processor {processor}" if processor else f"model {model}"
    if assumed := tags.get("MMOUT_ASSUMED"):
        fields["processing:lineage"] = f"{fields.get('processing:lineage', '')}. Assumed: {assumed}".lstrip(". ")
    if options is not None:  # the versions in this process made the result
        fields["processing:datetime"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        fields["processing:software"] = {name: number for name in ("vllm-mmout", "vllm") if (number := _version(name))}
        kept = {name: value for name, value in options.to_wire().items() if value is not None}
        expression = json.loads(msgspec.json.encode(kept))
        fields["processing:expression"] = {"format": "vllm-mmout-options", "expression": expression}
    return fields


def _extensions(fields: Iterable[str]) -> list[str]:
    """Return the schemas of the STAC extensions that the given fields belong to."""
    prefixes = {field.partition(":")[0] for field in fields if ":" in field}
    return [schema for prefix, schema in _EXTENSIONS.items() if prefix in prefixes]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return _version(f"{name}-cpu") if name == "vllm" else None
