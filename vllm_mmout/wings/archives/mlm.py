"""Convert a STAC item with the Machine Learning Model extension (MLM 1.4 to 1.6) to ``config.json`` entries.

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
"""Maps the task in a model's STAC item, such as "classification", to the name of an output processor."""
_PIXEL_OUTPUT_AXES: Final = 4
"""Number of axes of an output with a value for each pixel: [batch, classes, height, width]."""
_VERSION: Final = re.compile(r"/mlm/v?(\d+\.\d+[^/]*)/")
_OTHER_NAMES: Final = {
    "batch": ("b",),
    "channel": ("c", "channels", "band", "bands", "variable", "variables"),
    "time": ("t", "temporal"),
    "height": ("h", "y", "lat", "latitude"),
    "width": ("w", "x", "lon", "longitude"),
}
AXES: Final = {other: name for name, others in _OTHER_NAMES.items() for other in others}
"""Maps an axis name in a model's STAC item, such as "y" or "lat", to this package's name for the axis."""


class Band(Struct):
    """Band or data cube variable in a model's STAC item. A band that is computed by an ``expression`` is refused."""

    name: str
    expression: Any = None


class InputStructure(Struct):
    """Axis order of a model's input, as the model's STAC item states it."""

    dim_order: list[str] | None = None


class ModelInput(Struct):
    """Input of a model in the model's STAC item. Preprocessing functions, resizing and normalisation are refused."""

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


class OutputClass(Struct):
    """Class that a model predicts, with its value in the output and its name."""

    value: int
    name: str | None = None


class ResultStructure(Struct):
    """Axis order of a model's output, as the model's STAC item states it."""

    dim_order: list[str] = []


class ModelOutput(Struct):
    """Description of a model's output in the model's STAC item, such as its bands and classes."""

    tasks: list[str] = []
    result: ResultStructure | None = None
    bands: list[str | Band] = []
    variables: list[str | Band] = []
    classes: list[OutputClass] | None = field(name="classification:classes", default=None)
    classes_of_stac_model: list[OutputClass] | None = field(name="classification_classes", default=None)
    """Predicted classes from the key ``classification_classes``, which the Python package stac-model writes."""
    post_processing_function: Any = None


class Properties(Struct):
    """Properties of a STAC item that describe its model."""

    inputs: list[ModelInput] = field(name="mlm:input")
    outputs: list[ModelOutput] = field(name="mlm:output", default_factory=list)
    tasks: list[str] = field(name="mlm:tasks", default_factory=list)


class Asset(Struct):
    """File that a STAC item refers to."""

    href: str = ""
    roles: list[str] | None = None


class Item(Struct):
    """STAC item that describes a model by fields of the Machine Learning Model extension (MLM)."""

    properties: Properties
    assets: dict[str, Asset] = {}
    stac_extensions: list[str] = []


def item_of(config: Any) -> Item | None:
    """Parse JSON data as a model's STAC item. Return None for other data. Raise OptionError for a malformed item."""
    properties = config.get("properties") if isinstance(config, Mapping) else None
    if not isinstance(properties, Mapping) or "stac_version" not in config or "mlm:input" not in properties:
        return None
    try:
        return convert(config, Item)
    except ValidationError as error:
        raise OptionError(f"the MLM item beside the archive is malformed: {error}") from error


def archive_named(item: Item) -> str | None:
    """Return the file name of the ``.pt2`` archive that a model's STAC item refers to, or None."""
    names = (asset.href.rpartition("/")[2] for asset in item.assets.values() if "mlm:model" in (asset.roles or ()))
    return next(names, None)


def entries_of(item: Item, output_ranks: Sequence[int]) -> dict[str, Any]:
    """Convert a model's STAC item to ``config.json`` entries: "bands", "dim_order", "value_scaling" and "mmout".

    The entry ``mmout`` holds the output processor and its class names. ``output_ranks`` are the numbers of axes of the
    model's outputs. Raise OptionError if the item asks for something that is not supported.
    """
    _check_version(item)
    if len(item.properties.inputs) != 1:
        raise OptionError(f'"mlm:input" has {len(item.properties.inputs)} inputs; only items with one are supported')
    (model_input,) = item.properties.inputs
    result = next(iter(item.properties.outputs), ModelOutput())
    # norm_by_channel only applies together with norm_type.
    by_channel = () if model_input.norm_type is None else ("norm_by_channel",)
    _check_undone(
        model_input, "pre_processing_function", "resize_type", "norm_type", *by_channel, "statistics", "scaling"
    )
    _check_undone(result, "post_processing_function")
    _check_result(result)
    if model_input.bands and model_input.variables:
        raise OptionError('the input of the MLM item has "bands" and "variables"; name all of its channels in one')
    entries = {
        "bands": [_named(band) for band in model_input.bands or model_input.variables],
        "value_scaling": model_input.value_scaling,
        "dim_order": model_input.input.dim_order if model_input.input else None,
        "mmout": _mmout_table(item.properties, result, output_ranks),
    }
    return {name: value for name, value in entries.items() if value}


def _check_version(item: Item) -> None:
    """Raise OptionError if a STAC item uses an unsupported version of the Machine Learning Model (MLM) extension."""
    versions = [match[1] for match in map(_VERSION.search, item.stac_extensions) if match]
    if other := next((version for version in versions if not version.startswith("1.")), None):
        raise OptionError(
            f"the item beside the archive is of MLM {other}, and only 1.4 to 1.6 are supported; describe the model in"
            " config.json instead"
        )


def _check_undone(part: Struct, *names: str) -> None:
    for name in names:
        if (value := getattr(part, name)) not in (None, []):
            raise OptionError(
                f'"{name}" of the MLM item is {value!r:.200}, and it is not supported: no code that an item names is'
                " run, and values are scaled by value_scaling (MLM 1.4); put it into the network, or describe the model"
                " in config.json instead"
            )


def _check_result(result: ModelOutput) -> None:
    """Raise OptionError unless height and width are the last axes of a model's output.

    An output without these two axes is accepted. OptionError is also raised for a band that an ``expression`` computes
    from other bands.
    """
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
        raise OptionError(f"the band {band.name!r} is an expression of others, and only stored bands can be read")
    return band.name


def _mmout_table(properties: Properties, result: ModelOutput, output_ranks: Sequence[int]) -> dict[str, Any]:
    """Return the ``config.json`` table ``mmout``, which names the output processor for the model's task.

    Return {} if no output processor supports the task.
    """
    processor = next((_PROCESSORS[task] for task in result.tasks or properties.tasks if task in _PROCESSORS), None)
    if processor == "classification" and tuple(output_ranks) == (_PIXEL_OUTPUT_AXES,):
        processor = "segmentation"  # MLM also calls the classification of pixels "classification"
    if processor is None:
        return {}
    classes = result.classes or result.classes_of_stac_model or []
    by_value = {entry.value: entry.name or str(entry.value) for entry in classes}
    if processor not in ("segmentation", "classification") or not by_value:
        return {"output_processor": processor}
    if set(by_value) != set(range(len(classes))):
        raise OptionError(f"the classes of the MLM item have the values {list(by_value)}, and logits count from 0")
    return {"output_processor": processor, "class_names": [by_value[value] for value in range(len(by_value))]}
