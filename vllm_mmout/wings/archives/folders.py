"""Detect model folders with a ``.pt2`` archive, and complete their ``config.json`` so that they can be served."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from vllm_mmout.errors import OptionError
from vllm_mmout.wings.archives import mlm
from vllm_mmout.wings.archives.contents import SUFFIX, Contents, SizeRange, contents_of
from vllm_mmout.wings.archives.operators import TRUST, trusted_by
from vllm_mmout.wings.archives.scaling import BandScaling

ARCHITECTURE: Final = "ExportedProgram"
FILE: Final = "archive"
"""Key in ``config.json`` for the file name of the model's ``.pt2`` archive."""
ORDER: Final = "dim_order"
_MODEL: Final = "vllm_mmout.wings.archives.model:ExportedModel"
_AXES: Final = {4: ("batch", "channel", "height", "width"), 5: ("batch", "channel", "time", "height", "width")}
_TILE: Final = 512
"""Default side of a tile in pixels, for programs that accept any size."""


def as_ours(
    config: Mapping[str, Any], folder: str, *, asked: str | None, settings: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Complete the ``config.json`` of a model folder with a ``.pt2`` archive, so that this package can serve it.

    Return None for any other folder. Raise OptionError if the archive or its description cannot be used.
    """
    del asked  # no other wing serves archives
    place = Path(folder)
    if "architectures" in config:
        return None
    if place.is_file() and place.suffix == SUFFIX:
        raise OptionError(f"{folder} is an archive; give its folder as the model: {place.absolute().parent}")
    files = sorted(place.glob(f"*{SUFFIX}")) if place.is_dir() else []
    if not files:
        return None
    entries, item = _read_entries(config, place)
    named = entries.get(FILE) or (item and mlm.archive_named(item))
    chosen = next((file for file in files if file.name == named), files[0] if len(files) == 1 else None)
    if chosen is None or (entries.get(FILE) and chosen.name != named):
        raise OptionError(
            f"the folder {folder} holds {', '.join(file.name for file in files)}, and config.json names none of them;"
            f' name it in config.json: "{FILE}": "{files[0].name}"'
        )
    if isinstance(entries.get("mmout"), Mapping) and TRUST in entries["mmout"]:
        raise OptionError(
            f"{TRUST} in config.json is refused: it is for whoever starts the engine, as"
            ' additional_config={"mmout": ...}'
        )
    contents = contents_of(chosen)
    contents.check_operators(trusted_by(settings))
    if item is not None:
        entries = mlm.entries_of(item, contents.output_ranks) | entries
    table = entries.get("mmout")
    ours = {"output_processor": "tensor", **(table if isinstance(table, Mapping) else {}), "model": _MODEL}
    made = {**entries, **_raster(contents, entries), "dtype": entries.get("dtype", "float32")}
    return {**made, "architectures": [ARCHITECTURE], FILE: str(chosen.absolute()), "mmout": ours}


def _read_entries(config: Mapping[str, Any], folder: Path) -> tuple[dict[str, Any], mlm.Item | None]:
    """Return the entries of ``config.json``, and the STAC item that describes the model.

    The entries are {} if ``config.json`` is itself the STAC item. The item is None if the folder does not have one.
    """
    if (item := mlm.item_of(config)) is not None:
        return {}, item
    items = filter(None, (mlm.item_of(_json(file)) for file in sorted(folder.glob("*.json"))))
    return dict(config), next(items, None)


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes()) if file.is_file() else None  # reading a pipe would block
    except (OSError, ValueError, RecursionError):
        return None


def _raster(contents: Contents, entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``config.json`` entries for a raster input: axis order, bands and sizes. Return {} for other inputs.

    A program has a raster input if it has a single input, which is an image with a fixed number of bands.
    """
    if len(contents.inputs) != 1 or len(contents.inputs[0].axes) not in _AXES:
        return {}
    sizes = contents.inputs[0].axes
    names = entries.get(ORDER) or _AXES[len(sizes)]
    order = [mlm.AXES.get(name.lower(), name) for name in names] if _are_names(names) else []
    if sorted(order) != sorted(_AXES[len(sizes)]):
        raise OptionError(
            f'"{ORDER}" must name {", ".join(_AXES[len(sizes)])} in the program\'s order, got {names!r:.200}'
        )
    axes = dict(zip(order, sizes, strict=True))
    count = axes["channel"].fixed
    if count is None:
        return {}
    bands = entries.get("bands") or [f"band {number}" for number in range(1, count + 1)]
    if not _are_names(bands):
        raise OptionError(f'"bands" must be a list of names, got {bands!r:.200}')
    if len(bands) != count:
        raise OptionError(f"the program takes {count} bands, and {len(bands)} are named: {', '.join(bands)}")
    BandScaling.of(entries.get("value_scaling"), count)  # reports errors before a process starts
    frames = {"num_frames": _frames(axes["time"], entries)} if "time" in axes else {}
    return {ORDER: order, "bands": list(bands), **frames, **_sides(axes["height"], axes["width"], entries)}


def _are_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)


def _frames(size: SizeRange, entries: Mapping[str, Any]) -> int:
    count = size.fixed or entries.get("num_frames")
    if not isinstance(count, int):
        raise OptionError(
            'the program takes any number of dates; set the number of a request in config.json: "num_frames"'
        )
    return count


def _sides(height: SizeRange, width: SizeRange, entries: Mapping[str, Any]) -> dict[str, int]:
    least, most = max(height.least, width.least), min(height.most, width.most)
    if least > most:
        raise OptionError(
            f"the program takes {height.least} x {width.least} pixels, and no square size fits;"
            " export it with a square size, or with dynamic_shapes"
        )
    sides = {"min_size": least, "max_size": SizeRange(least, most).default_size}
    sides |= {name: entries[name] for name in (*sides, "tile_size") if name in entries}
    if all(isinstance(side, int) for side in sides.values()):  # other values are reported later
        sides.setdefault("tile_size", min(max(_TILE, sides["min_size"]), sides["max_size"]))
    return sides
