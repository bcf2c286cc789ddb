"""Which folders and files are archives, and what their ``config.json`` is as one of ours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from vllm_mmout.errors import OptionError
from vllm_mmout.wings.archives import mlm
from vllm_mmout.wings.archives.contents import SUFFIX, Axis, Contents, contents_of
from vllm_mmout.wings.archives.operators import TRUST, trusted_by
from vllm_mmout.wings.archives.scaling import Scaling

ARCHITECTURE: Final = "ExportedProgram"
FILE: Final = "archive"
"""Entry of ``config.json``: the archive, a name in the folder."""
ORDER: Final = "dim_order"
_MODEL: Final = "vllm_mmout.wings.archives.model:ExportedModel"
_AXES: Final = {4: ("batch", "channel", "height", "width"), 5: ("batch", "channel", "time", "height", "width")}
_TILE: Final = 512
"""Side in pixels where the program takes any."""


def as_ours(
    config: Mapping[str, Any], folder: str, *, asked: str | None, settings: Mapping[str, Any]
) -> dict[str, Any] | None:
    """``config.json`` of a folder with an archive; None for what is none."""
    del asked  # no one else serves archives
    place = Path(folder)
    if "architectures" in config:
        return None
    if place.is_file() and place.suffix == SUFFIX:
        raise OptionError(f"{folder} is an archive; give its folder as the model: {place.absolute().parent}")
    files = sorted(place.glob(f"*{SUFFIX}")) if place.is_dir() else []
    if not files:
        return None
    said, beside = _said(config, place)
    named = said.get(FILE) or (beside and mlm.archive_named(beside))
    chosen = next((file for file in files if file.name == named), files[0] if len(files) == 1 else None)
    if chosen is None or (said.get(FILE) and chosen.name != named):
        raise OptionError(
            f"the folder {folder} holds {', '.join(file.name for file in files)}, and which is meant is not said; name"
            f' it in config.json: "{FILE}": "{files[0].name}"'
        )
    if isinstance(said.get("mmout"), Mapping) and TRUST in said["mmout"]:
        raise OptionError(f'{TRUST} is for who starts the engine: additional_config={{"mmout": ...}}, not config.json')
    contents = contents_of(chosen)
    contents.check_operators(trusted_by(settings))
    if beside is not None:
        said = mlm.entries_of(beside, contents.ranks) | said
    table = said.get("mmout")
    ours = {"output_processor": "tensor", **(table if isinstance(table, Mapping) else {}), "model": _MODEL}
    made = {**said, **_raster(contents, said), "dtype": said.get("dtype", "float32")}
    return {**made, "architectures": [ARCHITECTURE], FILE: str(chosen.absolute()), "mmout": ours}


def _said(config: Mapping[str, Any], folder: Path) -> tuple[dict[str, Any], mlm.Item | None]:
    """What JSON says of an archive: the entries of config.json, and an item of MLM; either may be missing."""
    if (item := mlm.item_of(config)) is not None:
        return {}, item
    items = filter(None, (mlm.item_of(_json(file)) for file in sorted(folder.glob("*.json"))))
    return dict(config), next(items, None)


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes()) if file.is_file() else None  # a pipe would be waited for
    except (OSError, ValueError, RecursionError):
        return None


def _raster(contents: Contents, said: Mapping[str, Any]) -> dict[str, Any]:
    """Bands and sizes of a program of one image, from its shape; empty of one with other inputs."""
    if len(contents.inputs) != 1 or len(contents.inputs[0].axes) not in _AXES:
        return {}
    sizes = contents.inputs[0].axes
    named = said.get(ORDER) or _AXES[len(sizes)]
    order = [mlm.AXES.get(name.lower(), name) for name in named] if _are_names(named) else []
    if sorted(order) != sorted(_AXES[len(sizes)]):
        raise OptionError(
            f'"{ORDER}" must name {", ".join(_AXES[len(sizes)])} in the program\'s order, got {named!r:.200}'
        )
    axes = dict(zip(order, sizes, strict=True))
    count = axes["channel"].fixed
    if count is None:
        return {}
    bands = said.get("bands") or [f"band {number}" for number in range(1, count + 1)]
    if not _are_names(bands):
        raise OptionError(f'"bands" must be a list of names, got {bands!r:.200}')
    if len(bands) != count:
        raise OptionError(f"the program takes {count} bands, and {len(bands)} are named: {', '.join(bands)}")
    Scaling.of(said.get("value_scaling"), count)  # what is wrong with it is said before a process starts
    frames = {"num_frames": _frames(axes["time"], said)} if "time" in axes else {}
    return {ORDER: order, "bands": list(bands), **frames, **_sides(axes["height"], axes["width"], said)}


def _are_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)


def _frames(size: Axis, said: Mapping[str, Any]) -> int:
    found = size.fixed or said.get("num_frames")
    if not isinstance(found, int):
        raise OptionError(
            'the program takes any number of dates; say in config.json how many a request has: "num_frames"'
        )
    return found


def _sides(height: Axis, width: Axis, said: Mapping[str, Any]) -> dict[str, int]:
    least, most = max(height.least, width.least), min(height.most, width.most)
    if least > most:
        raise OptionError(
            f"the program takes {height.least} x {width.least} pixels; programs of squares, or of any size, are served:"
            " export it with dynamic_shapes"
        )
    sides = {"min_size": least, "max_size": Axis(least, most).usual}
    sides |= {name: said[name] for name in (*sides, "tile_size") if name in said}
    if all(isinstance(side, int) for side in sides.values()):  # what is wrong with others is said later
        sides.setdefault("tile_size", min(max(_TILE, sides["min_size"]), sides["max_size"]))
    return sides
