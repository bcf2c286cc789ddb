"""`ModelInfo`, the description of a model: its inputs, its results and the options of its requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from vllm_mmout.engine.model_class import architectures_of, model_class
from vllm_mmout.geo import meanings, possible_sensors
from vllm_mmout.params import OF_MODELS, OF_STEPS, OPTIONS, OutputParams
from vllm_mmout.processors.base import formats_for
from vllm_mmout.processors.option_values import ModelClass
from vllm_mmout.wing import GROUP

if TYPE_CHECKING:
    from vllm.config import ModelConfig

    from vllm_mmout.engine.binding import EngineBinding
    from vllm_mmout.models.inputs.mapper import RasterMapper
    from vllm_mmout.models.inputs.model_inputs import ModelInputs
    from vllm_mmout.processors.base import OutputProcessor

_OF_TOKENS: Final = frozenset({"sampling", "grid", "chunk_seconds"})
_OF_RASTERS: Final = frozenset(
    {
        *("bands", "indices", "nodata", "scale", "offset", "window", "bbox", "bbox_crs", "aoi", "aoi_crs"),
        *("mask_clouds", "resampling", "tile", "overlap", "blend", "partial_images"),
    }
)


class BandInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """Description of a band of a model's input."""

    name: str
    common_names: tuple[str, ...] = ()
    """Names from STAC's EO extension, such as "red", that describe the band. Empty if the band's name is not
    understood.
    """
    image: str | None = None
    """Name of the input image that has the band if the model takes several images, else None."""
    scaling: str | None = None
    """Formula that scales the values for the network. None if the model's own code scales them."""


class TileInfo(msgspec.Struct, frozen=True):
    """Size in pixels of a model's input in one forward pass."""

    height: int
    """Height of the tiles that larger inputs are cut into, unless the request sets ``tile``."""
    width: int
    sizes: str
    """Description of the sizes that fit one forward pass, such as "64 to 512 either way, in multiples of 16"."""


class KindInfo(msgspec.Struct, frozen=True):
    """Description of a kind of result that an output processor makes."""

    name: str | None
    """Value of the request option ``output`` that selects this kind of result. None if the processor makes only one
    kind."""
    formats: tuple[str, ...]
    """Names of the file formats, the default first. Empty if they are not known in advance."""


class ProcessorInfo(msgspec.Struct, frozen=True):
    """Description of an output processor of a model."""

    name: str
    """Value of the request option ``processor`` that selects this processor."""
    answers_with: str
    """Kind of the result object: "raster", "image", "video", "audio", "structured" or "tensor"."""
    outputs: tuple[KindInfo, ...]
    """Kinds of result that the processor makes, the default first."""
    together: tuple[str, ...]
    """Kinds of result that a single request may ask for at once."""
    classes: tuple[ModelClass, ...]
    """Classes that the model tells apart, in the order of the model. Empty if the names are unknown."""


class ModelInfo(msgspec.Struct, frozen=True):
    """Description of a model: its inputs, its results and the options of its requests."""

    model: str
    """Name under which the model is served."""
    architecture: str
    served_by: str
    """Import path of the model's class, as "module:Class", or "vLLM" for a model whose class is vLLM's own."""
    provided_by: str
    """Name of the extension package that serves the model. If none does, the Python package of the model's class."""
    takes: str
    """Description of the inputs that the model takes."""
    bands: tuple[BandInfo, ...]
    """Bands of the input in the model's order. Empty if the model does not take rasters."""
    dates: int | None
    """Number of dates that the model takes, or None if its input lacks an axis of dates."""
    tile: TileInfo | None
    """Size in pixels of the input of one forward pass, or None if the model does not take rasters."""
    processors: tuple[ProcessorInfo, ...]
    """Output processors, the default first."""
    chosen_by: str
    """Setting that selected the output processors: the engine argument, ``config.json``, or the model's class."""
    options: tuple[str, ...]
    """Names of the options that a request to the model may set."""
    assumes: tuple[str, ...]
    """Sentences that tell how the model reads inputs with missing metadata, such as bands without names."""


def model_info(binding: EngineBinding, model_config: ModelConfig) -> ModelInfo:
    """Describe a model with its output processors. The engine need not run.

    Raises DecodeError if an author's output processor fails.
    """
    inputs: ModelInputs | None = getattr(binding, "inputs", None)
    mapper = None if inputs is None else inputs.rasters
    architecture = next(iter(architectures_of(model_config)), model_config.architecture)
    served_by, provided_by = _origin(model_config)
    return ModelInfo(
        model=binding.model,
        architecture=architecture,
        served_by=served_by,
        provided_by=provided_by,
        takes="texts" if binding.generates else "what vLLM takes" if inputs is None else inputs.takes,
        bands=() if mapper is None else tuple(_bands(mapper)),
        dates=None if mapper is None else mapper.num_frames,
        tile=None if mapper is None else TileInfo(*mapper.tile_sides(None), mapper.sizes),
        processors=tuple(_processor(name, processor) for name, processor in binding.processors.items()),
        chosen_by=binding.choice.chosen_by,
        options=tuple(name for name in OPTIONS if name in _options(binding, inputs)),
        assumes=() if mapper is None else tuple(_assumptions(mapper)),
    )


def _origin(model_config: ModelConfig) -> tuple[str, str]:
    """Return the import path of a model's class, and the extension package or other package that provides it."""
    served = model_class(model_config)
    if served is None:
        return "vLLM", "vLLM"
    path = f"{served.__module__}:{served.__qualname__}"
    module = served.__module__
    if module.startswith(f"{GROUP}."):
        return path, module.removeprefix(f"{GROUP}.").partition(".")[0]
    package = module.partition(".")[0]
    return path, "vLLM" if package == "vllm" else package


def _bands(mapper: RasterMapper) -> Iterator[BandInfo]:
    names = mapper.bands
    understood = meanings([(name,) for name in names], [possible_sensors(names)[0]] * len(names))
    missing = (None,) * len(names)
    rows = zip(names, understood, mapper.images_of_bands or missing, mapper.scaling or missing, strict=True)
    for name, meaning, image, scaling in rows:
        yield BandInfo(name, tuple(sorted(meaning)), image, scaling)


def _processor(name: str, processor: OutputProcessor) -> ProcessorInfo:
    kinds: Sequence[str | None] = processor.outputs or (None,)
    outputs = []
    for kind in kinds:
        formats: Mapping[str, str] = formats_for(processor, OutputParams(output=kind)) or {}
        outputs.append(KindInfo(kind, tuple(dict.fromkeys(formats.values()))))
    return ProcessorInfo(name, processor.modality, tuple(outputs), processor.products, tuple(processor.model_classes))


def _options(binding: EngineBinding, inputs: ModelInputs | None) -> set[str]:
    """Return the names of the options that requests to a model may set."""
    own = set[str]().union(*(getattr(processor, "honours", ()) for processor in binding.processors.values()))
    if own:  # processors that name their options: they make the model's inputs, or decode tokens
        return own | {"processor", "output"} | ({"sampling", "grid"} if binding.generates else set())
    names = set(OPTIONS) - _OF_TOKENS - {*OF_MODELS, *OF_STEPS}
    if inputs is None or inputs.rasters is None:
        names -= _OF_RASTERS - (set() if inputs is None else inputs.reads)
    if not any("polygons" in processor.outputs for processor in binding.processors.values()):
        names.discard("simplify")
    if not any(processor.outputs for processor in binding.processors.values()):
        names.discard("output")
    return names | (set() if inputs is None else inputs.options)


def _assumptions(mapper: RasterMapper) -> Iterator[str]:
    yield f"A file whose bands have no names has them in this order: {', '.join(mapper.bands)}."
    if not mapper.scaling:
        yield "Values arrive as stored, unless the file or the request states a scale or an offset."
    if (mapper.num_frames or 1) > 1:
        yield "A list of inputs, and a file with the bands of all dates, has the dates in their order in time."
