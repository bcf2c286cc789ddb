"""From what a user hands over to the keyword tensors of a model's ``forward``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote, urlsplit

import numpy as np

from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.models.tensor_spec import TensorSpec
from vllm_mmout.outputs.render import render
from vllm_mmout.outputs.source import Source
from vllm_mmout.raster.raster import Raster
from vllm_mmout.raster.read import read_raster

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

    from vllm_mmout.params import OutputParams


_SHOWN = (2, 98)
"""Percentiles of the values that are black and white where an input is shown."""
_DTYPES = ("float32", "uint8", "int8", "uint16", "int16")
"""What travels to the model; other floats become float32."""


@dataclass(frozen=True, slots=True)
class MappedInput:
    """One input, ready for the model."""

    tensors: Mapping[str, Any]
    """Keyword of ``forward`` to its array or tensor, without the batch axis."""
    source: Source = field(default_factory=Source)
    """What outputs need to know to be laid on the input."""


InputMapper: TypeAlias = "Callable[[Any, OutputParams], MappedInput | Mapping[str, Any]]"
"""Maps one user's input; raises InputError for what the model cannot take. Called from several threads.

It may say what it gives, in ``inputs``: a mapping of `TensorSpec` by keyword.
"""


@dataclass(frozen=True, slots=True)
class RasterMapper:
    """Maps rasters and pictures to one tensor [bands, height, width].

    A file that describes its bands by all of the model's names is read in the model's order; any other one in its own,
    so that ``bands=[...]`` must say which they are where it holds more or others.

    Integers stay as they are stored (the model scales on its device); floats travel as float32. Pixels without an
    observation (nodata or NaN in any band that the model sees) are sent as 0 and masked in the output.

    Args:
        model: name of the model, for messages.
        bands: names of the model's bands, in its order.
        max_size: largest height and width of one forward, in pixels.
        keyword: keyword of ``forward``.

    """

    model: str
    bands: tuple[str, ...]
    max_size: int
    keyword: str = "pixel_values"

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> RasterMapper:
        """Make the mapper of a model whose ``config.json`` says it: ``bands``, a list of names, and ``max_size``.

        Raises:
            OptionError: one of the two is missing or malformed.

        """
        bands, max_size = config.get("bands"), config.get("max_size")
        if not isinstance(bands, list) or not bands or not all(isinstance(band, str) for band in bands):
            raise OptionError(f'"bands" in config.json must be a list of the model\'s band names, got {bands!r}')
        if isinstance(max_size, bool) or not isinstance(max_size, int) or max_size < 1:
            raise OptionError(f'"max_size" in config.json must be a number of pixels, 1 or more, got {max_size!r}')
        return cls((config.get("architectures") or ["model"])[0], tuple(bands), max_size)

    @property
    def inputs(self) -> dict[str, TensorSpec]:
        """What the model takes."""
        size = (1, self.max_size)
        return {self.keyword: TensorSpec((len(self.bands), size, size), _DTYPES)}

    def __call__(self, data: Any, params: OutputParams) -> MappedInput:
        """Map one input.

        Args:
            data: path or ``file://`` URL, bytes or file object of an image file; PIL image; array or tensor [bands,
                height, width].
            params: ``bands`` or ``indices``, and ``nodata``, say how to read it.

        Raises:
            InputError: it cannot be read, or the model cannot take it.

        """
        raster = self._select(as_raster(data), params)
        array, valid = observed(raster, self._checked(raster.array), params)
        source = Source(
            size=(array.shape[1], array.shape[2]),
            georeference=raster.georeference,
            valid=valid,
            metadata=raster.metadata,
            picture=partial(_picture, array, valid, tuple(band.lower() for band in self.bands)),
        )
        return MappedInput({self.keyword: array}, source)

    def _select(self, raster: Raster, params: OutputParams) -> Raster:
        if params.bands is None and params.indices is None and set(self.bands) <= set(raster.descriptions):
            raster = raster.select(self.bands)  # the file says which band is which
        else:
            raster = chosen_bands(raster, params)
        count = raster.array.shape[0]
        if count != len(self.bands):
            what = "bands chooses" if params.bands else "indices chooses" if params.indices else "the input has"
            raise InputError(
                f"{what} {count} band{'s' * (count != 1)}, model {self.model!r} takes {len(self.bands)}"
                f" ({', '.join(self.bands)}); choose with bands=[...], which counts from 1"
            )
        return raster

    def _checked(self, array: NDArray[Any]) -> NDArray[Any]:
        height, width = array.shape[1:]
        if height < 1 or width < 1:
            raise InputError(f"the input has no pixels: {height} x {width}")
        if max(height, width) > self.max_size:
            raise InputError(
                f"the input is {height} x {width} pixels, model {self.model!r} takes at most {self.max_size} x"
                f" {self.max_size} in one forward; cut it into smaller inputs"
            )
        if array.dtype.kind == "f":
            return array.astype(np.float32, copy=False)
        if array.dtype.name in _DTYPES:
            return array
        raise InputError(
            f"the input's dtype is {array.dtype}, model {self.model!r} takes 8 and 16 bit integers and floats;"
            " convert it, as with array.astype(np.float32)"
        )


def chosen_bands(raster: Raster, params: OutputParams) -> Raster:
    """The bands that the request names, all but alpha where it names none.

    Raises:
        InputError: a band is not there.

    """
    chosen = params.bands if params.indices is None else tuple(index + 1 for index in params.indices)
    return raster.without_alpha() if chosen is None else raster.select(chosen)


def observed(
    raster: Raster, array: NDArray[Any], params: OutputParams
) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """The array with 0 where nothing was observed, and where that is not so; None: everywhere.

    Raises:
        InputError: no pixel holds an observation.

    """
    valid = raster.valid(params.nodata)
    if valid is None or valid.all():
        return array, None
    if not valid.any():
        raise InputError(
            f"no pixel of the input holds an observation: all are NaN or nodata ({raster.nodata}); choose other"
            " bands=[...] or say nodata=..."
        )
    return np.where(valid, array, np.zeros((), array.dtype)), valid


def _picture(array: NDArray[Any], valid: NDArray[np.bool_] | None, bands: tuple[str, ...]) -> Image:
    """The input in RGB: red, green and blue where the model's bands have these names, else the first band in grey."""
    colours = [bands.index(name) for name in ("red", "green", "blue") if name in bands]
    shown = array[colours] if len(colours) == 3 else array if len(array) == 3 else array[:1]
    if shown.dtype != np.uint8:  # clouds and glints would leave all else in one grey
        low, high = np.percentile(shown if valid is None else shown[:, valid], _SHOWN)
        shown = shown.clip(low, high)
    return render(shown, valid, None).convert("RGB")


def as_raster(data: Any) -> Raster:
    """Read any form of a picture or raster.

    Raises:
        InputError: it is no such form, or cannot be read.

    """
    if isinstance(data, str | Path):
        return read_raster(_local_path(str(data)))
    if isinstance(data, bytes | bytearray | memoryview):
        return read_raster(bytes(data))
    if hasattr(data, "read") and not hasattr(data, "getbands"):
        return read_raster(data)
    array = _picture_array(data) if hasattr(data, "getbands") else _plain_array(data)
    if array.ndim != 3:
        raise InputError(
            f"an array must be [bands, height, width], got shape {list(array.shape)}; a picture [height, width, 3] goes"
            " through np.moveaxis(picture, -1, 0)"
        )
    return Raster(array=array)


def _local_path(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme == "file":
        return unquote(parts.path)
    if parts.scheme in ("http", "https"):
        raise InputError(f"{text}: inputs are not fetched over {parts.scheme}; download the file and give its path")
    return text


def _picture_array(picture: Any) -> NDArray[Any]:
    """A PIL image as [bands, height, width]: palettes become colours, alpha is left out."""
    if picture.mode in ("P", "PA", "CMYK", "YCbCr", "LAB", "HSV", "RGBA", "RGBX"):
        picture = picture.convert("RGB")
    elif picture.mode in ("1", "LA", "La"):
        picture = picture.convert("L")
    array: NDArray[Any] = np.asarray(picture)
    return array[np.newaxis] if array.ndim == 2 else np.moveaxis(array, -1, 0)


def _plain_array(data: Any) -> NDArray[Any]:
    if isinstance(data, np.ndarray):
        return data
    if hasattr(data, "detach") and hasattr(data, "cpu"):
        tensor = data.detach().cpu()
        array: NDArray[Any] = (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()
        return array
    raise InputError(
        "an input must be a path, bytes, a PIL image, an array or tensor [bands, height, width], or vLLM's prompt dict,"
        f" got {type(data).__name__}"
    )
