"""`SegmentationProcessor`, which turns class logits into maps of classes, probabilities or confidence."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import DecodeError, OptionError, ReduceError
from vllm_mmout.outputs import PolygonsOutput, RasterOutput
from vllm_mmout.outputs.rendering import default_palette
from vllm_mmout.processors.base import OutputProcessor
from vllm_mmout.processors.option_values import ModelClass, PaletteOption, checked_names, parse_palette
from vllm_mmout.processors.parts import Parts
from vllm_mmout.processors.raw import (
    asked_output,
    decoded_tiles,
    describe,
    has_method,
    not_of_reduce,
    only_tensor,
    own_array,
)

if TYPE_CHECKING:
    import torch

    from vllm_mmout.geo import PlacedArea
    from vllm_mmout.outputs.base import Source
    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.base import Raw
    from vllm_mmout.processors.part import Part

_TAKES = "segmentation output must be floating-point logits [n, classes, height, width] with 2 or more classes"
_NODATA = {"uint8": 255, "uint16": 65535}
_VECTORS = ("polygons", "areas")
"""Kinds of output that are not rasters. They are computed from the raster of classes."""
_AXES = 4  # batch, classes, rows, columns
_MAX_COMPARED = 16
"""Maximum number of classes for which `reduce` calls `best_of`. With more classes, `torch.max` is faster."""
_CLASSES = range(2, 65535 + 1)
"""Range of the number of classes that a model may have. All class ids and a nodata value must fit into uint16."""


class SegmentationProcessor(OutputProcessor):
    """Processor for models that classify pixels (land cover, floods), from logits [n, classes, height, width].

    ``OutputParams.output`` chooses the result:

    - ``"classes"`` (the default): the class of the highest logit, the first of equal ones, numbered from 0 as in the
      model. uint8 with nodata 255, or uint16 with nodata 65535 above 255 classes. nodata is therefore never a class.
    - ``"probabilities"``: softmax over the classes, float32 [classes, height, width], nodata NaN.
    - ``"confidence"``: the probability of the best class, one float32 band, nodata NaN.
    - ``"polygons"``: a `PolygonsOutput`, the regions of the classes as polygons; ``OutputParams.simplify`` removes
      corners from their borders. Files are .geojson, .parquet, or .tif, the raster of classes.
    - ``"areas"``: an `AreasOutput`, the table of the pixels and square metres of each class. Files are .csv and .json.

    ``reduce`` computes all of them on the device. For classes, polygons and areas, only the ids are sent. Probabilities
    are sent as float32 rather than float16: steps of 0.0005 next to 1 would make ties of different classes, and the
    argmax of blended tiles would differ from that of the model. A pixel with a NaN logit has no class and becomes
    nodata.

    For tiles that overlap, probabilities are sent for every output; `assemble` averages them and then chooses.

    Args:
        class_names: name of each class, in the order of the logits.
        palette: colour of each class, ``"#rrggbb"`` or [red, green, blue]; by default a palette that colour-blind
            readers can tell apart.

    Raises:
        OptionError: an option is malformed, or the two options differ in length.

    """

    name: ClassVar[str] = "segmentation"
    modality: ClassVar[str] = "raster"
    outputs: ClassVar[tuple[str, ...]] = ("classes", "probabilities", "confidence", "polygons", "areas")
    products: ClassVar[tuple[str, ...]] = ("classes", "polygons", "areas")

    def __init__(self, *, class_names: Sequence[str] | None = None, palette: PaletteOption | None = None) -> None:
        self._class_names = None if class_names is None else checked_names(class_names)
        self._palette = None if palette is None else parse_palette(palette)
        if self._palette is not None:
            self._palette.setflags(write=False)  # all results of this process share it
        if self._class_names and self._palette is not None and len(self._class_names) != len(self._palette):
            raise OptionError(
                f"palette has {len(self._palette)} colours for {len(self._class_names)} class_names;"
                " give one colour a class"
            )

    @property
    def model_classes(self) -> Sequence[ModelClass]:
        """Classes with their colours. Empty if neither names nor colours were set."""
        if self._class_names is None and self._palette is None:
            return ()
        colours = self._colours(0).tolist()
        names = self._class_names or (None,) * len(colours)
        return [
            ModelClass(number, name, "#{:02x}{:02x}{:02x}".format(*colour))
            for number, (name, colour) in enumerate(zip(names, colours, strict=True))
        ]

    def formats(self, params: OutputParams) -> Mapping[str, str]:
        """Return the file formats of the requested kind of output, as a dict from suffix to format name."""
        output = asked_output(self, self.name, params)
        if output == "areas":
            from vllm_mmout.outputs import AreasOutput

            formats = AreasOutput.formats
            # GeoJSON needs the features of an area of interest.
            return formats if params.aoi is not None else {s: name for s, name in formats.items() if name != "geojson"}
        return PolygonsOutput.formats if output == "polygons" else RasterOutput.formats

    def reduce(self, output: Raw, params: OutputParams) -> torch.Tensor:
        """Compute the requested kind of output, or the probabilities for tiles whose overlaps will be averaged.

        Returns uint8 or uint16 [n, height, width] for "classes", "polygons" and "areas"; float32 [n, classes, height,
        width] for "probabilities"; float32 [n, height, width] for "confidence". Raises OptionError if
        ``params.output`` is unknown.
        """
        import torch

        sent = self.travels(params)
        logits = self.checked_logits(only_tensor(output, _TAKES, ReduceError))
        if sent == "classes":
            dtype = class_dtype(logits.shape[1])
            if logits.shape[1] <= _MAX_COMPARED:
                return best_of(logits.unbind(dim=1), logits.shape[1])
            best = logits.max(dim=1)  # torch returns the first of equal maxima, and NaN if there is any
            ids = best.indices.masked_fill_(best.values.isnan(), _NODATA[dtype])
            return ids.to(getattr(torch, dtype))
        # One request at a time: the last bits of torch's vectorised exp depend on the position in the tensor.
        probabilities = torch.stack([request.softmax(dim=0, dtype=torch.float32) for request in logits])
        return probabilities if sent == "probabilities" else probabilities.amax(dim=1)

    def decode(self, raw: Raw, params: OutputParams, state: Any = None) -> Any:
        """Build the requested output of an input, or the raster of a tile, from the tensor that `reduce` returned.

        The output has no georeference yet.
        """
        sent = self.travels(params)
        tensor = only_tensor(raw, f"decoded {sent} must be one tensor", DecodeError)
        array = own_array(tensor)
        dtypes = tuple(_NODATA) if sent == "classes" else ("float32",)
        if array.dtype.name not in dtypes or array.ndim != (3 if sent == "probabilities" else 2):
            raise not_of_reduce(f"{sent} must come as {' or '.join(dtypes)} from reduce", tensor)
        if sent == "probabilities":
            return RasterOutput(array, nodata=math.nan, band_names=self._class_names or ())
        if sent == "confidence":
            return self._confidence(array)
        return (
            self._classes(array)
            if params.part
            else as_vectors(self._classes(array), asked_output(self, "segmentation", params), params)
        )

    def decode_tiles(self, raw: Any, params: OutputParams) -> Sequence[RasterOutput] | None:
        """Build the rasters of several tiles at once. Return None if a subclass overrides ``decode``."""
        return decoded_tiles(self, raw, params) if has_method(self, SegmentationProcessor.decode) else None

    def assemble(self, parts: Iterator[Part], params: OutputParams) -> Any:
        """Join the tiles of a scene. Where they overlap, probabilities are averaged before a class is chosen."""
        output = asked_output(self, "segmentation", params)
        if not isinstance(parts, Parts):
            return super().assemble(parts, params)
        finish = self._finisher(output) if params.of_part().blends else None
        return as_vectors(parts.mosaic(params, finish), output, params, parts.source.area)

    def mosaic_scene(self, params: OutputParams) -> OutputParams:
        """Return the options for one scene of a mosaic. A "confident" mosaic needs each scene's probabilities."""
        output = asked_output(self, self.name, params)
        if params.mosaic == "confident":
            return msgspec.structs.replace(params, output="probabilities")
        return msgspec.structs.replace(params, output="classes") if output in _VECTORS else params

    def mosaic_pixels(self, params: OutputParams) -> Callable[[RasterOutput], RasterOutput] | None:
        """Return the function that computes the result from a mosaic's pixels, or None if the pixels are the result."""
        return self._finisher(asked_output(self, self.name, params)) if params.mosaic == "confident" else None

    def mosaic_output(self, raster: RasterOutput, params: OutputParams, area: PlacedArea | None) -> Any:
        """Return the joined raster, or the polygons or areas of its classes."""
        return as_vectors(raster, asked_output(self, self.name, params), params, area)

    def _finisher(self, output: str) -> Callable[[RasterOutput], RasterOutput] | None:
        """Return a function that converts probabilities to ``output``, or None if ``output`` is "probabilities"."""
        if output == "probabilities":
            return None
        return self._finished_confidence if output == "confidence" else self._finished_classes

    def product(self, output: Any, kind: str, params: OutputParams, source: Source) -> Any:
        """Convert a raster of classes to ``kind``: "polygons" or "areas". Return the raster itself for "classes"."""
        if kind == "areas":
            from vllm_mmout.outputs import AreasOutput

            return AreasOutput.of(output, source.area)
        return as_vectors(output, kind, params)

    def _finished_classes(self, probabilities: RasterOutput) -> RasterOutput:
        planes = probabilities.array
        if planes.dtype.kind != "f":
            return probabilities  # a subclass's own class ids
        dtype = class_dtype(len(planes))
        best, ids = planes[0].copy(), np.zeros(planes[0].shape, dtype)
        for number, plane in enumerate(planes[1:], start=1):
            np.maximum(ids, np.multiply(plane > best, number, dtype=dtype), out=ids)
            np.maximum(best, plane, out=best)  # NaN if either is NaN
        np.copyto(ids, _NODATA[dtype], where=np.isnan(best))
        return self._classes(ids)

    def _finished_confidence(self, probabilities: RasterOutput) -> RasterOutput:
        return self._confidence(probabilities.array.max(axis=0))

    def _classes(self, ids: NDArray[Any]) -> RasterOutput:
        nodata = _NODATA[ids.dtype.name]
        return RasterOutput(
            ids[None],
            nodata=nodata,
            band_names=("classes",),
            class_names=self._class_names,
            palette=self._colours(nodata),
        )

    def _confidence(self, best: NDArray[Any]) -> RasterOutput:
        return RasterOutput(best[None], nodata=math.nan, band_names=("confidence",))

    def travels(self, params: OutputParams) -> str:
        """Return the kind of result that the worker sends: "classes", "probabilities" or "confidence"."""
        output = asked_output(self, "segmentation", params)
        if params.blends:
            return "probabilities"
        return "classes" if output in _VECTORS else output

    def checked_logits(self, logits: torch.Tensor) -> torch.Tensor:
        """Return ``logits``. Raise ReduceError if their shape is wrong or does not fit ``class_names``, ``palette``."""
        if logits.ndim != _AXES or not logits.is_floating_point() or logits.shape[1] not in _CLASSES:
            raise ReduceError(f"{_TAKES}, got {describe(logits)}")
        for option, values in (("class_names", self._class_names), ("palette", self._palette)):
            if values is not None and len(values) != logits.shape[1]:
                raise ReduceError(
                    f"{option} has {len(values)} entries, the model emits {logits.shape[1]} classes;"
                    " give one entry a class"
                )
        return logits

    def _colours(self, most: int) -> NDArray[np.uint8]:
        """Return ``palette`` if set, otherwise default colours: one per class name, or ``most`` without class names."""
        if self._palette is not None:
            return self._palette
        return default_palette(len(self._class_names) if self._class_names else most)


def best_of(planes: Iterable[torch.Tensor], classes: int) -> torch.Tensor:
    """Return the class with the highest value at each pixel. ``planes`` yields a tensor [n, height, width] per class.

    The result equals that of ``max`` over all planes. With few classes this is several times faster on a CPU, and the
    planes need not be in memory at once. Arithmetic replaces selection: filling or choosing by a mask takes longer
    than all other steps.
    """
    import torch

    nodata = _NODATA[class_dtype(classes)]
    numbers = torch.uint8 if nodata == _NODATA["uint8"] else torch.int32  # torch does little more than copy uint16
    best = ids = None
    for number, plane in enumerate(planes):
        values = plane.float() if plane.dtype in (torch.bfloat16, torch.float16) else plane
        if best is None or ids is None:
            best, ids = values, torch.zeros(values.shape, dtype=numbers, device=values.device)
            continue
        higher = (values > best).view(torch.uint8)
        ids = torch.maximum(ids, higher * number if numbers == torch.uint8 else higher.to(numbers) * number)
        best = torch.maximum(best, values)
    if best is None or ids is None:
        raise ReduceError(f"{_TAKES}, got no class")
    # The sum of infinities may be NaN too, which only costs time. On a GPU, looking at it would cost more.
    if not best.is_cpu or best.sum().isnan():
        ids = torch.maximum(ids, best.isnan().to(numbers) * nodata)
    return ids.to(getattr(torch, class_dtype(classes)))


def as_vectors(raster: RasterOutput, output: str, params: OutputParams, area: PlacedArea | None = None) -> Any:
    """Convert a raster of classes to ``output``: "polygons" or "areas". Return the raster for other values.

    ``area`` is the area of interest of a joined scene.
    """
    if output == "polygons":
        return PolygonsOutput(raster, simplify=params.simplify)
    if output == "areas":
        from vllm_mmout.outputs import AreasOutput

        return AreasOutput.taking(raster, area)
    return raster


def class_dtype(classes: int) -> str:
    """Return the smallest dtype, uint8 or uint16, that holds the ids of ``classes`` classes and a nodata value."""
    return "uint8" if classes <= _NODATA["uint8"] else "uint16"
