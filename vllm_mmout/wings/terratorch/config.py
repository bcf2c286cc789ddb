"""TerratorchConfig: what the ``pretrained_cfg`` of a TerraTorch folder says of a model; needs no TerraTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vllm_mmout.errors import OptionError
from vllm_mmout.wings.terratorch.scaling import MEANS, SCALE, STDS, Scaling, scaling_of

ARCHITECTURE: Final = "Terratorch"

RAW: Final = "{}_raw"
"""Keyword of ``forward`` under which an input comes as its file holds it; under its own name it is standardised."""
LOCATION: Final = "location_coords"
DATES: Final = "temporal_coords"

PROCESSORS: Final = {
    "SemanticSegmentationTask": "segmentation",
    "PixelwiseRegressionTask": "regression",
    "ClassificationTask": "classification",
    "MultiLabelClassificationTask": "classification",
    "ScalarRegressionTask": "tensor",
    "EmbeddingGenerationTask": "embedding",
}
"""TerraTorch's task -> the output processor of its models."""

_PIXELS = (3, 4)
"""Axes of an image: [bands, height, width], or with frames before the height."""


@dataclass(frozen=True, slots=True)
class Modality:
    """One image that a model takes."""

    name: str
    """Its keyword, "pixel_values" or as "S2L2A"."""
    bands: tuple[str, ...]
    frames: int | None
    """Dates; None: the tensor has no axis for them."""
    size: tuple[int, int]
    """Height and width in pixels."""
    scaling: Scaling


@dataclass(frozen=True, slots=True)
class TerratorchConfig:
    """A model of TerraTorch, as its folder describes it."""

    task: str
    """TerraTorch's name of the class, as "SemanticSegmentationTask"."""
    modalities: tuple[Modality, ...]
    target: str | None
    """The image that the network takes as its argument; None: it takes a dict of all."""
    crop: tuple[int, int]
    """Height and width in pixels of what the network takes in one forward."""
    extras: tuple[str, ...]
    """Further inputs: `LOCATION`, `DATES`."""
    metadata: bool
    """Whether the network has been trained with them, as far as the data module says it (``use_metadata``)."""
    pretrained: Mapping[str, Any]
    """``pretrained_cfg`` itself."""
    overrides: Mapping[str, Any]
    """The table ``"mmout": {"input": {...}}`` of config.json: ``bands``, ``means``, ``stds``, ``constant_scale``."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> TerratorchConfig:
        """Read a folder's ``config.json``.

        Raises:
            OptionError: an entry that is needed is missing or malformed; it is named.

        """
        pretrained = _table(config, "pretrained_cfg")
        model = _table(pretrained, "model", "pretrained_cfg.")
        task = str(model.get("class_path", "")).rpartition(".")[2]
        if task not in PROCESSORS:
            raise OptionError(
                f'"pretrained_cfg.model.class_path" in config.json is {model.get("class_path")!r}; models of'
                f" {', '.join(PROCESSORS)} are served"
            )
        declared = _table(pretrained, "input", "pretrained_cfg.")
        inputs = _table(declared, "data", "pretrained_cfg.input.")
        target = declared.get("target")
        shapes = {name: _shape(name, entry) for name, entry in inputs.items()}
        images = {name: shape for name, shape in shapes.items() if name not in (LOCATION, DATES)}
        if target is not None:
            if target not in images:
                raise OptionError(
                    f'"pretrained_cfg.input.target" in config.json is {target!r}, which is not among its data'
                    f" ({', '.join(inputs)})"
                )
            images = {target: images[target]}
        overrides = _overrides(config)
        modalities = tuple(
            _modality(name, shape, pretrained, overrides, alone=len(images) == 1, named=target is None)
            for name, shape in images.items()
        )
        if not modalities:
            raise OptionError('"pretrained_cfg.input.data" in config.json names no image; name one with its shape')
        extras = tuple(name for name in inputs if name in (LOCATION, DATES))
        metadata = _arguments(pretrained, "data").get("use_metadata") is not False
        return cls(task, modalities, target, _crop(model, modalities[0].size), extras, metadata, pretrained, overrides)

    @property
    def keywords(self) -> tuple[str, ...]:
        """Keywords of ``forward``."""
        images = [keyword for one in self.modalities for keyword in (RAW.format(one.name), one.name)]
        return (*images, *self.extras, MEANS, STDS)


class TerratorchFolders:
    """The folders of TerraTorch's models, see `vllm_mmout.models.model_folders.ModelFamily`."""

    def serves(self, config: Mapping[str, Any]) -> bool:
        """Whether a folder's ``config.json`` is that of a TerraTorch model."""
        return is_terratorch(config)

    def completed(self, config: dict[str, Any]) -> dict[str, Any]:
        """See `completed`."""
        return completed(config)


def is_terratorch(config: Mapping[str, Any]) -> bool:
    """Whether a folder's ``config.json`` is that of a TerraTorch model."""
    return config.get("architectures") == [ARCHITECTURE] and isinstance(config.get("pretrained_cfg"), Mapping)


def completed(config: dict[str, Any]) -> dict[str, Any]:
    """``config.json`` with the output processor of the model's task, and its class names, where it names none itself.

    Raises:
        OptionError: ``pretrained_cfg`` is malformed.

    """
    if not is_terratorch(config) or "output_processor" in config:
        return config
    table = config.get("mmout")
    if table is not None and (not isinstance(table, Mapping) or "output_processor" in table):
        return config
    known = TerratorchConfig.of(config)
    ours: dict[str, Any] = {"output_processor": PROCESSORS[known.task]}
    if ours["output_processor"] in ("segmentation", "classification"):
        names = _arguments(known.pretrained, "model").get("class_names")
        if names:
            ours["class_names"] = list(names)
    if known.task == "MultiLabelClassificationTask":
        ours["multi_label"] = True
    return {**config, "mmout": {**ours, **(table or {})}}


def _overrides(config: Mapping[str, Any]) -> Mapping[str, Any]:
    table = config.get("mmout")
    entries = table.get("input", {}) if isinstance(table, Mapping) else {}
    known = ("bands", MEANS, STDS, SCALE)
    if not isinstance(entries, Mapping) or not set(entries) <= set(known):
        raise OptionError(
            f'"input" in the "mmout" table of config.json must be a table of {", ".join(known)}, got {entries!r}'
        )
    return entries


def _modality(
    name: str,
    shape: tuple[int, ...],
    pretrained: Mapping[str, Any],
    overrides: Mapping[str, Any],
    *,
    alone: bool,
    named: bool,
) -> Modality:
    if len(shape) not in _PIXELS:
        raise OptionError(
            f'"pretrained_cfg.input.data.{name}.shape" in config.json must be [bands, height, width] or [bands, frames,'
            f" height, width], got {list(shape)}"
        )
    count, frames = shape[0], shape[1] if len(shape) == max(_PIXELS) else None
    bands = _bands(pretrained, overrides, name if named else None)
    if bands is None:
        bands = tuple(f"band {number}" for number in range(1, count + 1))
    if len(bands) != count:
        raise OptionError(
            f"config.json names {len(bands)} bands of {name} ({', '.join(bands)}), and its shape has {count}; say the"
            ' right ones in "mmout": {"input": {"bands": [...]}}'
        )
    data = pretrained.get("data")
    module: Mapping[str, Any] = data if isinstance(data, Mapping) else {}
    scaling = scaling_of(name, bands, module, overrides, alone=alone)
    return Modality(name, bands, frames, (shape[-2], shape[-1]), scaling)


def _bands(pretrained: Mapping[str, Any], overrides: Mapping[str, Any], modality: str | None) -> tuple[str, ...] | None:
    """Names of the model's bands, from the first entry that lists them; None where none does."""
    data, model = _arguments(pretrained, "data"), _arguments(pretrained, "model")
    given = model.get("model_args")
    network: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    entries = (
        overrides.get("bands"),
        data.get("predict_output_bands"),
        data.get("output_bands"),
        data.get("bands"),
        data.get("dataset_bands"),
        network.get("backbone_bands"),
        network.get("bands"),
    )
    for entry in entries:
        listed = entry.get(modality) if isinstance(entry, Mapping) else entry if modality is None else None
        if isinstance(listed, Sequence) and listed and not isinstance(listed, str):
            return tuple(name for band in listed for name in _named(band))
    return None


def _named(band: Any) -> tuple[str, ...]:
    """One entry of a list of bands: a band, or of an interval (first, last) all."""
    if not isinstance(band, list | tuple):
        return (str(band),)
    if len(band) != 2 or not all(isinstance(end, int) for end in band) or band[0] > band[1]:
        raise OptionError(f"a list among the bands in config.json must be an interval [first, last], got {band!r}")
    return tuple(str(number) for number in range(band[0], band[1] + 1))


def _crop(model: Mapping[str, Any], size: tuple[int, int]) -> tuple[int, int]:
    """Height and width of a tile, as TerraTorch's inference would cut it; else those of the input."""
    arguments = model.get("init_args")
    tiled = arguments.get("tiled_inference_parameters") if isinstance(arguments, Mapping) else None
    if not isinstance(tiled, Mapping):
        return size
    crop = tiled.get("h_crop", tiled.get("crop", size[0])), tiled.get("w_crop", tiled.get("crop", size[1]))
    if not all(isinstance(side, int) and side > 0 for side in crop):
        raise OptionError(
            f'"tiled_inference_parameters" in config.json must have a crop in pixels, or h_crop and w_crop, got'
            f" {dict(tiled)}"
        )
    return crop


def _arguments(pretrained: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    """The ``init_args`` of the model or of the data module; empty without."""
    table = pretrained.get(part)
    arguments = table.get("init_args") if isinstance(table, Mapping) else None
    return arguments if isinstance(arguments, Mapping) else {}


def _table(entries: Mapping[str, Any], name: str, place: str = "") -> Mapping[str, Any]:
    value = entries.get(name)
    if not isinstance(value, Mapping):
        raise OptionError(f'"{place}{name}" in config.json must be a table, got {value!r}; a TerraTorch model has one')
    return value


def _shape(name: str, entry: Any) -> tuple[int, ...]:
    shape = entry.get("shape") if isinstance(entry, Mapping) else None
    if not isinstance(shape, list) or not all(isinstance(axis, int) and axis > 0 for axis in shape):
        raise OptionError(f'"pretrained_cfg.input.data.{name}.shape" in config.json must be sizes, got {shape!r}')
    return tuple(shape)
