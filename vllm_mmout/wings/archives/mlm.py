"""An item of STAC's Machine Learning Model extension (MLM 1.x) as the entries of a ``config.json``.

https://github.com/stac-extensions/mlm
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from vllm_mmout.errors import OptionError

_PROCESSORS: Final = {
    "semantic-segmentation": "segmentation",
    "segmentation": "segmentation",
    "regression": "regression",
    "scene-classification": "classification",
    "classification": "classification",
    "similarity-search": "embedding",
}
"""Task -> the output processor of it."""
_PIXELS: Final = 4
"""Axes of an output with a value for each pixel: batch, classes, height, width."""


def is_item(config: Any) -> bool:
    """Whether a JSON file is an item that describes a model."""
    properties = config.get("properties") if isinstance(config, Mapping) else None
    return isinstance(properties, Mapping) and "stac_version" in config and "mlm:input" in properties


def archive_named(item: Mapping[str, Any]) -> str | None:
    """The name of the file that the item's asset with the role ``mlm:model`` points to."""
    assets = item.get("assets")
    found = [
        str(asset.get("href", "")).rpartition("/")[2]
        for asset in (assets.values() if isinstance(assets, Mapping) else ())
        if isinstance(asset, Mapping) and "mlm:model" in (asset.get("roles") or ())
    ]
    return next(iter(found), None)


def entries_of(item: Mapping[str, Any], outputs: Sequence[int]) -> dict[str, Any]:
    """What an item says: ``bands``, ``dim_order``, ``value_scaling``, and the output processor with its class names.

    ``outputs`` are the numbers of axes of the program's outputs. OptionError: what the item asks for cannot be done.
    """
    properties = item["properties"]
    inputs, results = properties["mlm:input"], properties.get("mlm:output") or [{}]
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], Mapping):
        raise OptionError(f'"mlm:input" must be a list of one input, got {inputs!r:.200}; models of one are served')
    given, result = inputs[0], results[0]
    for name, of in (("pre_processing_function", given), ("post_processing_function", result)):
        if of.get(name) is not None:
            raise OptionError(
                f'"{name}" of the MLM item is {of[name]!r:.200}, and no code that an item names is run; put it into the'
                " network, or describe the model in config.json instead"
            )
    entries: dict[str, Any] = {"bands": [_band(band) for band in given.get("bands") or ()] or None}
    entries["value_scaling"] = given.get("value_scaling")
    entries["dim_order"] = (given.get("input") or {}).get("dim_order")
    table = _table(properties, result, outputs)
    return {name: value for name, value in entries.items() if value is not None} | ({"mmout": table} if table else {})


def _band(band: Any) -> str:
    if isinstance(band, Mapping):
        if band.get("expression") is not None:
            raise OptionError(f"the band {band!r:.200} is an expression, and bands are read as they are")
        band = band.get("name")
    return str(band)


def _table(properties: Mapping[str, Any], result: Mapping[str, Any], outputs: Sequence[int]) -> dict[str, Any]:
    """The output processor of the model's task; empty where none is known."""
    tasks = result.get("tasks") or properties.get("mlm:tasks") or ()
    named = next((_PROCESSORS[task] for task in tasks if task in _PROCESSORS), None)
    if named == "classification" and tuple(outputs) == (_PIXELS,):
        named = "segmentation"  # of pixels: MLM calls that classification too
    if named is None:
        return {}
    classes = result.get("classification:classes") or ()
    by_value = {
        one.get("value"): str(one.get("name") or one.get("value")) for one in classes if isinstance(one, Mapping)
    }
    if named not in ("segmentation", "classification") or not by_value:
        return {"output_processor": named}
    if set(by_value) != set(range(len(classes))):
        raise OptionError(f"the classes of the MLM item have the values {list(by_value)}, and logits count from 0")
    return {"output_processor": named, "class_names": [by_value[value] for value in range(len(by_value))]}
