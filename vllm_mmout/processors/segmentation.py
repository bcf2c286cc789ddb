"""SegmentationProcessor: class logits to class ids, probabilities or confidence, as a raster."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import DecodeError, OptionError, ReduceError
from vllm_mmout.outputs import PolygonsOutput, RasterOutput
from vllm_mmout.outputs.rendering import default_palette
from vllm_mmout.processors.base import OutputProcessor, Parts
from vllm_mmout.processors.option_values import PaletteOption, checked_names, parse_palette
from vllm_mmout.processors.raw import asked_output, describe, not_of_reduce, only_tensor, own_array

if TYPE_CHECKING:
    import torch

    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.base import Part, Raw

_TAKES = "segmentation output must be floating-point logits [n, classes, height, width] with 2 or more classes"
_NODATA = {"uint8": 255, "uint16": 65535}
_AXES = 4  # batch, classes, rows, columns
_FEW = 16
"""As many classes are compared one after the other."""
_CLASSES = range(2, 65535 + 1)
"""Numbers of classes that can be told apart and told from nodata."""


class SegmentationProcessor(OutputProcessor):
    """Land cover, floods, burn scars: a raster from a model that emits logits [n, classes, height, width].

    ``OutputParams.output`` chooses what is returned:

    - ``"classes"`` (the default): the class of the highest logit, the first of equal ones, as the model counts them
      from 0. uint8 with nodata 255; above 255 classes uint16 with nodata 65535. nodata is therefore never a class.
    - ``"probabilities"``: softmax over the classes, float32 [classes, height, width], nodata NaN.
    - ``"confidence"``: the probability of the best class, one float32 band, nodata NaN.
    - ``"polygons"``: a `PolygonsOutput`, the regions of the classes as polygons; ``OutputParams.simplify`` takes
      corners out of their borders. Files are .geojson, .parquet, or .tif, the raster of classes.
    - ``"areas"``: an `AreasOutput`, the table of the pixels and square metres of each class. Files are .csv and .json.

    All are computed in ``reduce``, on the device: of the classes (polygons, areas) only the ids travel. Probabilities
    travel as float32, not float16: steps of 0.0005 next to 1 would make ties of different classes, and the argmax of
    blended tiles would not be that of the model any more. A pixel with a NaN logit has no class and becomes nodata.

    Of tiles that overlap probabilities travel, whatever is asked for; `assemble` averages them and then chooses.

    Args:
        class_names: name of each class, in the order of the logits.
        palette: colour of each class, ``"#rrggbb"`` or [red, green, blue]; by default one that colour-blind readers can
            tell apart.

    Raises:
        OptionError: an option is malformed, or the two differ in length.

    """

    name: ClassVar[str] = "segmentation"
    modality: ClassVar[str] = "raster"
    outputs: ClassVar[tuple[str, ...]] = ("classes", "probabilities", "confidence", "polygons", "areas")

    def __init__(self, *, class_names: Sequence[str] | None = None, palette: PaletteOption | None = None) -> None:
        self._class_names = None if class_names is None else checked_names(class_names)
        self._palette = None if palette is None else parse_palette(palette)
        if self._palette is not None:
            self._palette.setflags(write=False)  # shared by all results of this process
        if self._class_names and self._palette is not None and len(self._class_names) != len(self._palette):
            raise OptionError(
                f"palette has {len(self._palette)} colours for {len(self._class_names)} class_names;"
                " give one colour a class"
            )

    def formats(self, params: OutputParams) -> Mapping[str, str]:
        """The formats of what ``params.output`` asks for."""
        asked = asked_output(self, self.name, params)
        if asked == "areas":
            from vllm_mmout.outputs import AreasOutput

            return AreasOutput.formats
        return PolygonsOutput.formats if asked == "polygons" else RasterOutput.formats

    def reduce(self, output: Raw, params: OutputParams) -> torch.Tensor:
        """Make of the logits what ``params.output`` asks for, or probabilities where tiles are to be averaged.

        "classes", "polygons", "areas": uint8 or uint16 [n, height, width]; "probabilities": float32 [n, classes,
        height, width]; "confidence": float32 [n, height, width]. OptionError: ``params.output`` is unknown.
        """
        import torch

        asked = self.travels(params)
        logits = self.checked_logits(only_tensor(output, _TAKES, ReduceError))
        if asked == "classes":
            dtype = class_dtype(logits.shape[1])
            if logits.shape[1] <= _FEW:
                return best_of(logits.unbind(dim=1), logits.shape[1])
            best = logits.max(dim=1)  # torch gives the first of equal maxima, and NaN where there is one
            ids = best.indices.masked_fill_(best.values.isnan(), _NODATA[dtype])
            return ids.to(getattr(torch, dtype))
        # One request at a time: torch's vectorised exp rounds the last bits by where a pixel lies in the whole tensor.
        probabilities = torch.stack([request.softmax(dim=0, dtype=torch.float32) for request in logits])
        return probabilities if asked == "probabilities" else probabilities.amax(dim=1)

    def decode(self, raw: Raw, params: OutputParams, state: Any = None) -> Any:
        """Make an output, without georeference, of what `reduce` returned; of a tile always a raster."""
        asked = self.travels(params)
        tensor = only_tensor(raw, f"decoded {asked} must be one tensor", DecodeError)
        array = own_array(tensor)
        kinds = tuple(_NODATA) if asked == "classes" else ("float32",)
        if array.dtype.name not in kinds or array.ndim != (3 if asked == "probabilities" else 2):
            raise not_of_reduce(f"{asked} must come as {' or '.join(kinds)} from reduce", tensor)
        if asked == "probabilities":
            return RasterOutput(array, nodata=math.nan, band_names=self._class_names or ())
        if asked == "confidence":
            return self._confidence(array)
        return (
            self._classes(array)
            if params.part
            else as_vectors(self._classes(array), asked_output(self, "segmentation", params), params)
        )

    def assemble(self, parts: Iterator[Part], params: OutputParams) -> Any:
        """Join tiles: probabilities are averaged before what is asked for is made of them."""
        asked = asked_output(self, "segmentation", params)
        if not isinstance(parts, Parts):
            return super().assemble(parts, params)
        finish = None
        if asked != "probabilities" and params.of_part().blends:
            finish = self._finished_confidence if asked == "confidence" else self._finished_classes
        return as_vectors(parts.mosaic(params, finish), asked, params)

    def _finished_classes(self, probabilities: RasterOutput) -> RasterOutput:
        planes = probabilities.array
        if planes.dtype.kind != "f":
            return probabilities  # a subclass's own class ids
        dtype = class_dtype(len(planes))
        best, ids = planes[0].copy(), np.zeros(planes[0].shape, dtype)
        for number, plane in enumerate(planes[1:], start=1):
            np.maximum(ids, np.multiply(plane > best, number, dtype=dtype), out=ids)
            np.maximum(best, plane, out=best)  # NaN where either is
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
        """What `reduce` gives of a request: classes, probabilities or confidence."""
        asked = asked_output(self, "segmentation", params)
        if params.blends:
            return "probabilities"
        return "classes" if asked in ("polygons", "areas") else asked

    def checked_logits(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits [n, classes, height, width] of as many classes as the options name; else ReduceError."""
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
        """A colour for every class; ``most`` classes where their number is not known."""
        if self._palette is not None:
            return self._palette
        return default_palette(len(self._class_names) if self._class_names else most)


def best_of(planes: Iterable[torch.Tensor], classes: int) -> torch.Tensor:
    """The class ids of the largest of planes [n, height, width], one a class, as ``max`` over all of them gives them.

    Several times faster on a CPU where classes are few, and planes need not be there all at once. Numbers stand in the
    place of choices: to fill or to choose by a mask takes longer than all the rest.
    """
    import torch

    nodata = _NODATA[class_dtype(classes)]
    numbers = torch.uint8 if nodata == _NODATA["uint8"] else torch.int32  # of uint16 torch has little more than copies
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
    if best.sum().isnan():  # or of infinities, which are looked at for nothing
        ids = torch.maximum(ids, best.isnan().to(numbers) * nodata)
    return ids.to(getattr(torch, class_dtype(classes)))


def as_vectors(raster: RasterOutput, asked: str, params: OutputParams) -> Any:
    """Polygons or areas of a raster of classes, where they are asked for."""
    if asked == "polygons":
        return PolygonsOutput(raster, simplify=params.simplify)
    if asked == "areas":
        from vllm_mmout.outputs import AreasOutput

        return AreasOutput.taking(raster)
    return raster


def class_dtype(classes: int) -> str:
    """Return the dtype that holds the ids of so many classes, and its nodata beside them."""
    return "uint8" if classes <= _NODATA["uint8"] else "uint16"
