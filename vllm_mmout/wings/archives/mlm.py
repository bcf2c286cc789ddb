"""An item of STAC's Machine Learning Model extension (MLM 1.4 and later) as the entries of a ``config.json``.

https://github.com/stac-extensions/mlm
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, ValidationError, convert, field

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


class Band(Struct):
    """A band of an input; an ``expression`` would be computed of others."""

    name: str
    expression: Any = None


class InputStructure(Struct):
    """The axes of an input."""

    dim_order: list[str] | None = None


class ModelInput(Struct):
    """One input; what stands below ``input`` is not done here, or was written before MLM 1.4."""

    bands: list[str | Band] = []
    value_scaling: Any = None
    input: InputStructure | None = None
    pre_processing_function: Any = None
    resize_type: Any = None
    norm_type: Any = None
    norm_by_channel: Any = None
    statistics: Any = None
    scaling: Any = None


class Class(Struct):
    """A class of an output."""

    value: int
    name: str = ""


class ModelOutput(Struct):
    """One output."""

    tasks: list[str] = []
    classes: list[Class] = field(name="classification:classes", default_factory=list)
    post_processing_function: Any = None


class Properties(Struct):
    """What an item says of its model."""

    inputs: list[ModelInput] = field(name="mlm:input")
    outputs: list[ModelOutput] = field(name="mlm:output", default_factory=list)
    tasks: list[str] = field(name="mlm:tasks", default_factory=list)


class Asset(Struct):
    """A file of an item."""

    href: str = ""
    roles: list[str] | None = None


class Item(Struct):
    """An item that describes a model."""

    properties: Properties
    assets: dict[str, Asset] = {}


def item_of(config: Any) -> Item | None:
    """What a JSON file describes; None where it is no item of MLM, OptionError where one is malformed."""
    properties = config.get("properties") if isinstance(config, Mapping) else None
    if not isinstance(properties, Mapping) or "stac_version" not in config or "mlm:input" not in properties:
        return None
    try:
        return convert(config, Item)
    except ValidationError as error:
        raise OptionError(f"the MLM item beside the archive is malformed: {error}") from error


def archive_named(item: Item) -> str | None:
    """The name of the file that the item's asset with the role ``mlm:model`` points to."""
    found = (one.href.rpartition("/")[2] for one in item.assets.values() if "mlm:model" in (one.roles or ()))
    return next(found, None)


def entries_of(item: Item, ranks: Sequence[int]) -> dict[str, Any]:
    """What an item says: ``bands``, ``dim_order``, ``value_scaling``, and the output processor with its class names.

    ``ranks`` are the numbers of axes of the program's outputs. OptionError: what the item asks for cannot be done.
    """
    if len(item.properties.inputs) != 1:
        raise OptionError(f'"mlm:input" has {len(item.properties.inputs)} inputs; items of models with one are served')
    (given,) = item.properties.inputs
    result = next(iter(item.properties.outputs), ModelOutput())
    _check_undone(
        given, "pre_processing_function", "resize_type", "norm_type", "norm_by_channel", "statistics", "scaling"
    )
    _check_undone(result, "post_processing_function")
    entries = {
        "bands": [band if isinstance(band, str) else _named(band) for band in given.bands],
        "value_scaling": given.value_scaling,
        "dim_order": given.input.dim_order if given.input else None,
        "mmout": _table(item.properties, result, ranks),
    }
    return {name: value for name, value in entries.items() if value}


def _check_undone(part: Struct, *names: str) -> None:
    for name in names:
        if (value := getattr(part, name)) is not None:
            raise OptionError(
                f'"{name}" of the MLM item is {value!r:.200}, and nothing is done by it here: no code that an item'
                " names is run, and scaling is that of value_scaling (MLM 1.4); put it into the network, or describe"
                " the model in config.json instead"
            )


def _named(band: Band) -> str:
    if band.expression is not None:
        raise OptionError(f"the band {band.name!r} is an expression of others, and bands are read as they are")
    return band.name


def _table(properties: Properties, result: ModelOutput, ranks: Sequence[int]) -> dict[str, Any]:
    """The output processor of the model's task; empty where none is known."""
    named = next((_PROCESSORS[task] for task in result.tasks or properties.tasks if task in _PROCESSORS), None)
    if named == "classification" and tuple(ranks) == (_PIXELS,):
        named = "segmentation"  # of pixels: MLM calls that classification too
    if named is None:
        return {}
    by_value = {one.value: one.name or str(one.value) for one in result.classes}
    if named not in ("segmentation", "classification") or not by_value:
        return {"output_processor": named}
    if set(by_value) != set(range(len(result.classes))):
        raise OptionError(f"the classes of the MLM item have the values {list(by_value)}, and logits count from 0")
    return {"output_processor": named, "class_names": [by_value[value] for value in range(len(by_value))]}
