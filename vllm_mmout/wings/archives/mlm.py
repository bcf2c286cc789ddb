"""An item of STAC's Machine Learning Model extension (MLM 1.4 to 1.6) as the entries of a ``config.json``.

https://github.com/stac-extensions/mlm
"""

from __future__ import annotations

import re
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
_VERSION: Final = re.compile(r"/mlm/v?(\d+\.\d+[^/]*)/")
_OTHER_NAMES: Final = {
    "batch": ("b",),
    "channel": ("c", "channels", "band", "bands", "variable", "variables"),
    "time": ("t", "temporal"),
    "height": ("h", "y", "lat", "latitude"),
    "width": ("w", "x", "lon", "longitude"),
}
AXES: Final = {other: name for name, others in _OTHER_NAMES.items() for other in others}
"""Other names of axes, as MLM and items of others have them -> ours."""


class Band(Struct):
    """A band, or a variable of a data cube; an ``expression`` would be computed of others."""

    name: str
    expression: Any = None


class InputStructure(Struct):
    """The axes of an input."""

    dim_order: list[str] | None = None


class ModelInput(Struct):
    """One input; what stands below ``input`` is not done here, or was written before MLM 1.4."""

    bands: list[str | Band] = []
    variables: list[str | Band] = []
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
    name: str | None = None


class ResultStructure(Struct):
    """The axes of an output."""

    dim_order: list[str] = []


class ModelOutput(Struct):
    """One output."""

    tasks: list[str] = []
    result: ResultStructure | None = None
    bands: list[str | Band] = []
    variables: list[str | Band] = []
    classes: list[Class] | None = field(name="classification:classes", default=None)
    classes_of_stac_model: list[Class] | None = field(name="classification_classes", default=None)
    """As the package stac-model spells it."""
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
    stac_extensions: list[str] = []


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
    _check_version(item)
    if len(item.properties.inputs) != 1:
        raise OptionError(f'"mlm:input" has {len(item.properties.inputs)} inputs; items of models with one are served')
    (given,) = item.properties.inputs
    result = next(iter(item.properties.outputs), ModelOutput())
    by_channel = () if given.norm_type is None else ("norm_by_channel",)  # without norm_type it says nothing
    _check_undone(given, "pre_processing_function", "resize_type", "norm_type", *by_channel, "statistics", "scaling")
    _check_undone(result, "post_processing_function")
    _check_result(result)
    if given.bands and given.variables:
        raise OptionError('the input of the MLM item has "bands" and "variables"; name all of its channels in one')
    entries = {
        "bands": [_named(band) for band in given.bands or given.variables],
        "value_scaling": given.value_scaling,
        "dim_order": given.input.dim_order if given.input else None,
        "mmout": _table(item.properties, result, ranks),
    }
    return {name: value for name, value in entries.items() if value}


def _check_version(item: Item) -> None:
    """Refuse an item of another major version of MLM: its fields may mean something else."""
    versions = [found[1] for found in map(_VERSION.search, item.stac_extensions) if found]
    if other := next((version for version in versions if not version.startswith("1.")), None):
        raise OptionError(
            f"the item beside the archive is one of MLM {other}, and 1.4 to 1.6 are read; describe the model in"
            " config.json instead"
        )


def _check_undone(part: Struct, *names: str) -> None:
    for name in names:
        if (value := getattr(part, name)) not in (None, []):
            raise OptionError(
                f'"{name}" of the MLM item is {value!r:.200}, and nothing is done by it here: no code that an item'
                " names is run, and scaling is that of value_scaling (MLM 1.4); put it into the network, or describe"
                " the model in config.json instead"
            )


def _check_result(result: ModelOutput) -> None:
    """Refuse an output whose channels come last, or whose bands are to be computed."""
    for band in (*result.bands, *result.variables):
        _named(band)
    order = [AXES.get(name, name) for name in (result.result.dim_order if result.result else ())]
    if {"height", "width"} <= set(order) and order[-2:] != ["height", "width"]:
        raise OptionError(
            f'"dim_order" of the MLM item\'s result is {order}, and height and width must come last; export the network'
            " so"
        )


def _named(band: str | Band) -> str:
    if isinstance(band, str):
        return band
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
    classes = result.classes or result.classes_of_stac_model or []
    by_value = {one.value: one.name or str(one.value) for one in classes}
    if named not in ("segmentation", "classification") or not by_value:
        return {"output_processor": named}
    if set(by_value) != set(range(len(classes))):
        raise OptionError(f"the classes of the MLM item have the values {list(by_value)}, and logits count from 0")
    return {"output_processor": named, "class_names": [by_value[value] for value in range(len(by_value))]}
