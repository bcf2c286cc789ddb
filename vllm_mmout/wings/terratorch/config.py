"""Read the description of a model in a TerraTorch folder, without importing TerraTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vllm_mmout.errors import OptionError
from vllm_mmout.wings.terratorch.patches import patches_of
from vllm_mmout.wings.terratorch.scaling import MEANS, SCALE, STDS, ImageScaling, nested, scaling_of

ARCHITECTURE: Final = "Terratorch"

RAW: Final = "{}_raw"
"""Format string that turns an image's name into the ``forward`` keyword for its raw, unstandardised pixel values."""
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
"""Output processor for each task class of TerraTorch."""

_IMAGE_NDIMS = (3, 4)
"""Possible numbers of axes of an image: 3 for [bands, height, width], or 4 for [bands, frames, height, width]."""


@dataclass(frozen=True, slots=True)
class Modality:
    """Image that a model takes as input. Some models take several images of different sensors."""

    name: str
    """Keyword of the image in ``forward``, such as "pixel_values" or "S2L2A"."""
    bands: tuple[str, ...]
    frames: int | None
    """Number of dates, or None if the image tensor lacks an axis for dates."""
    size: tuple[int, int]
    """Height and width in pixels of the image that the model takes."""
    scaling: ImageScaling


@dataclass(frozen=True, slots=True)
class TerratorchConfig:
    """Description of a TerraTorch model, read from its folder."""

    task: str
    """Name of TerraTorch's task class, such as "SemanticSegmentationTask"."""
    modalities: tuple[Modality, ...]
    target: str | None
    """Name of the image whose tensor is passed to the network. If None, the network takes a dict with the tensors of
    all images."""
    crop: tuple[int, int]
    """Height and width in pixels of the network's input in one forward pass."""
    extras: tuple[str, ...]
    """Names of the network's inputs other than images. Possible names are `LOCATION` and `DATES`."""
    metadata: bool
    """Whether the network was trained with location and dates. False if the data module sets ``use_metadata`` to
    false."""
    pretrained: Mapping[str, Any]
    """Dict under the key ``pretrained_cfg`` of config.json. It describes the network, its input images and the data
    module."""
    overrides: Mapping[str, Any]
    """The user's table ``"mmout": {"input": {...}}`` of config.json, which may set ``bands``, ``means``, ``stds`` and
    ``constant_scale``."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> TerratorchConfig:
        """Read the model's description from a folder's ``config.json``. Raise OptionError if it is invalid."""
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
        metadata = nested(pretrained, "data", "init_args").get("use_metadata") is not False
        return cls(
            task, modalities, target, _tile_size(model, modalities[0].size), extras, metadata, pretrained, overrides
        )

    @property
    def keywords(self) -> tuple[str, ...]:
        """The names of the keyword arguments of the model's ``forward``."""
        images = [keyword for image in self.modalities for keyword in (RAW.format(image.name), image.name)]
        return (*images, *self.extras, MEANS, STDS)


def is_terratorch(config: Mapping[str, Any]) -> bool:
    """Return whether a folder's ``config.json`` describes a TerraTorch model."""
    return config.get("architectures") == [ARCHITECTURE] and isinstance(config.get("pretrained_cfg"), Mapping)


def completed(config: dict[str, Any]) -> dict[str, Any]:
    """Add the task's output processor and class names to a TerraTorch ``config.json`` that names no output processor.

    For an embedding task it also gets the backbone's ``patch_size``, ``prefix_tokens`` and ``token_dates``.
    """
    if not is_terratorch(config):
        return config
    model = nested(config["pretrained_cfg"], "model")
    if str(model.get("class_path")).endswith("EmbeddingGenerationTask"):
        config = {**patches_of(nested(model, "init_args"), _frames_of(config)), **config}
    if "output_processor" in config:
        return config
    table = config.get("mmout")
    if table is not None and (not isinstance(table, Mapping) or "output_processor" in table):
        return config
    description = TerratorchConfig.of(config)
    ours: dict[str, Any] = {"output_processor": PROCESSORS[description.task]}
    if ours["output_processor"] in ("segmentation", "classification"):
        names = nested(description.pretrained, "model", "init_args").get("class_names")
        if names:
            ours["class_names"] = list(names)
    if description.task == "MultiLabelClassificationTask":
        ours["multi_label"] = True
    return {**config, "mmout": {**ours, **(table or {})}}


class TerratorchFolders:
    """Model family (`vllm_mmout.models.model_folders.ModelFamily`) that recognises TerraTorch folders."""

    serves = staticmethod(is_terratorch)
    completed = staticmethod(completed)


def _frames_of(config: Mapping[str, Any]) -> int | None:
    """Return the number of dates of a model's input, or None if the input lacks an axis of dates or is malformed."""
    try:
        return TerratorchConfig.of(config).modalities[0].frames
    except OptionError:  # raised again when the mapper reads the configuration
        return None


def _overrides(config: Mapping[str, Any]) -> Mapping[str, Any]:
    table = config.get("mmout")
    entries = table.get("input", {}) if isinstance(table, Mapping) else {}
    names = ("bands", MEANS, STDS, SCALE)
    if not isinstance(entries, Mapping) or not set(entries) <= set(names):
        raise OptionError(
            f'"input" in the "mmout" table of config.json must be a table of {", ".join(names)}, got {entries!r}'
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
    if len(shape) not in _IMAGE_NDIMS:
        raise OptionError(
            f'"pretrained_cfg.input.data.{name}.shape" in config.json must be [bands, height, width] or [bands, frames,'
            f" height, width], got {list(shape)}"
        )
    count, frames = shape[0], shape[1] if len(shape) == max(_IMAGE_NDIMS) else None
    bands = _bands(pretrained, overrides, name if named else None)
    if bands is None:
        bands = tuple(f"band {number}" for number in range(1, count + 1))
    if len(bands) != count:
        raise OptionError(
            f"config.json names {len(bands)} bands of {name} ({', '.join(bands)}), and its shape has {count}; set the"
            ' right bands in "mmout": {"input": {"bands": [...]}}'
        )
    scaling = scaling_of(name, bands, nested(pretrained, "data"), overrides, alone=alone)
    return Modality(name, bands, frames, (shape[-2], shape[-1]), scaling)


def _bands(pretrained: Mapping[str, Any], overrides: Mapping[str, Any], modality: str | None) -> tuple[str, ...] | None:
    """Return an image's band names from the table ``overrides`` or else ``pretrained``, or None if both lack them."""
    data, network = nested(pretrained, "data", "init_args"), nested(pretrained, "model", "init_args", "model_args")
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
        names = entry.get(modality) if isinstance(entry, Mapping) else entry if modality is None else None
        if isinstance(names, Sequence) and names and not isinstance(names, str):
            return tuple(name for band in names for name in _band_names(band))
    return None


def _band_names(band: Any) -> tuple[str, ...]:
    """Return the band names for an entry of a band list: a single band, or an interval [first, last]."""
    if not isinstance(band, list | tuple):
        return (str(band),)
    if len(band) != 2 or not all(isinstance(end, int) for end in band) or band[0] > band[1]:
        raise OptionError(f"a list among the bands in config.json must be an interval [first, last], got {band!r}")
    return tuple(str(number) for number in range(band[0], band[1] + 1))


def _tile_size(model: Mapping[str, Any], size: tuple[int, int]) -> tuple[int, int]:
    """Return the tile size (height, width) that config.json sets. Return ``size`` if config.json sets no tile size.

    ``model`` is the table ``pretrained_cfg.model`` of config.json. Height and width may be set separately.
    """
    tiled = nested(model, "init_args", "tiled_inference_parameters")
    crop = tiled.get("h_crop", tiled.get("crop", size[0])), tiled.get("w_crop", tiled.get("crop", size[1]))
    if not all(isinstance(side, int) and side > 0 for side in crop):
        raise OptionError(
            f'"tiled_inference_parameters" in config.json must have a crop in pixels, or h_crop and w_crop, got'
            f" {dict(tiled)}"
        )
    return crop


def _table(entries: Mapping[str, Any], name: str, place: str = "") -> Mapping[str, Any]:
    value = entries.get(name)
    if not isinstance(value, Mapping):
        raise OptionError(
            f'"{place}{name}" in config.json must be a table, got {value!r}; TerraTorch models need this table'
        )
    return value


def _shape(name: str, entry: Any) -> tuple[int, ...]:
    shape = entry.get("shape") if isinstance(entry, Mapping) else None
    if not isinstance(shape, list) or not all(isinstance(axis, int) and axis > 0 for axis in shape):
        raise OptionError(f'"pretrained_cfg.input.data.{name}.shape" in config.json must be sizes, got {shape!r}')
    return tuple(shape)
