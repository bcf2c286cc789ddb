"""Define `RasterMapper`, which converts rasters and pictures to the tensors of a model's ``forward``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from numpy.typing import NDArray

from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.models.inputs.input_picture import picture_of_planes
from vllm_mmout.models.inputs.mapped_input import MappedInput
from vllm_mmout.models.inputs.open_input import opened_planes
from vllm_mmout.models.inputs.raster_view import DTYPES, RasterView
from vllm_mmout.models.inputs.tensor_spec import TensorSpec
from vllm_mmout.models.inputs.unpacking import has_numbers, unpacked_layers
from vllm_mmout.outputs.base import Source

if TYPE_CHECKING:
    from vllm_mmout.geo import Layer
    from vllm_mmout.params import OutputParams


@dataclass(frozen=True, slots=True)
class RasterMapper:
    """Input mapper that converts rasters to a tensor [bands, height, width], or [bands, frames, height, width].

    If names or colours of a file identify all of the model's bands, they are read in the model's order. If names
    contradict the file's own order, the file is refused. Any other file is read in its own order, so that
    ``bands=[...]`` must choose bands if it has more bands than the model or other ones.

    Several files may be one input: a list of them, whose bands follow each other; a mapping of band names to files; a
    folder, from which bands are chosen by name. They are resampled to the finest grid among them (`OpenStack`). A model
    with ``num_frames`` takes that many dates: a list with one input for each; a folder with one file or folder for
    each; or one file with the bands of the first date, then of the second, and so on. A pixel is valid if it is valid
    at all dates.

    Integers stay as they are stored (the model scales on its device); floats are sent as float32. Pixels without an
    observation (nodata or NaN in any band that the model sees) are sent as 0 and masked in the output.

    The engine cuts an input that does not fit one forward pass into tiles of the size that the mapper sets. A subclass
    with a ``__call__`` of its own gets whole inputs only.

    Args:
        model: name of the model, for messages.
        bands: names of the model's bands, in its order.
        max_size: largest height and width of one forward pass, in pixels.
        keyword: keyword of ``forward``.
        min_size: smallest height and width in pixels; a smaller input is padded by reflection, and the result cropped.
        tile_size: side of the tiles that larger inputs are cut into, in pixels; None for ``max_size``.
        edge: whether the last tile of a row or column is shifted inward ("shift"), or extends beyond the input and is
            padded by reflection ("pad").
        num_frames: number of dates that the model takes, which may be 1; None if its tensor has no axis of dates.
        multiple_of: divisor of height and width, such as 32 for a U-Net of five levels; other inputs are padded by
            reflection, and the result cropped.

    Raises:
        OptionError: a size is out of range, or not divisible by ``multiple_of``.

    """

    model: str
    bands: tuple[str, ...]
    max_size: int
    keyword: str = "pixel_values"
    min_size: int = 1
    tile_size: int | None = None
    edge: Literal["shift", "pad"] = "shift"
    num_frames: int | None = None
    multiple_of: int = 1

    def __post_init__(self) -> None:
        if self.multiple_of < 1:
            raise OptionError(f"multiple_of must be 1 pixel or more, got {self.multiple_of}")
        for name in ("max_size", "min_size", "tile_size"):
            size = getattr(self, name)
            if size not in (None, 1) and size % self.multiple_of:
                raise OptionError(f"{name} must be divisible by multiple_of ({self.multiple_of}), got {size}")
        if not 1 <= self.min_size <= self.max_size:
            raise OptionError(f"min_size must be 1 to max_size ({self.max_size}) pixels, got {self.min_size}")
        if self.tile_size is not None and not self.min_size <= self.tile_size <= self.max_size:
            raise OptionError(
                f"tile_size must be min_size to max_size ({self.min_size} to {self.max_size}), got {self.tile_size}"
            )
        if self.edge not in ("shift", "pad"):
            raise OptionError(f'edge must be "shift" or "pad", got {self.edge!r}')
        if self.num_frames is not None and self.num_frames < 1:
            raise OptionError(f"num_frames must be 1 or more dates, or None, got {self.num_frames}")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> RasterMapper:
        """Create the mapper from a model's ``config.json``, with its ``bands`` (a list of names) and its ``max_size``.

        ``min_size``, ``multiple_of``, ``tile_size``, ``tile_edge`` and ``num_frames`` are optional. Raises OptionError
        if an entry is wrong.
        """
        bands = config.get("bands")
        if not isinstance(bands, list) or not bands or not all(isinstance(band, str) for band in bands):
            raise OptionError(f'"bands" in config.json must be a list of the model\'s band names, got {bands!r}')
        numbers = ("max_size", "min_size", "multiple_of", "tile_size", "num_frames")
        sizes = {name: config[name] for name in numbers if config.get(name) is not None}
        for name, size in {"max_size": None, **sizes}.items():
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                unit = "dates" if name == "num_frames" else "pixels"
                raise OptionError(f'"{name}" in config.json must be a number of {unit}, 1 or more, got {size!r}')
        edge = config.get("tile_edge", "shift")
        return cls((config.get("architectures") or ["model"])[0], tuple(bands), edge=edge, **sizes)

    @property
    def images_of_bands(self) -> tuple[str, ...]:
        """Name of each band's image, for a model that takes several images. Empty if the model takes a single image."""
        return ()

    @property
    def scaling(self) -> tuple[str, ...]:
        """Formula for each band that says how the model scales the band's values. Empty if the formulas are unknown.

        The formulas are unknown if the model's own code scales the values.
        """
        return ()

    @property
    def inputs(self) -> dict[str, TensorSpec]:
        """Shape and allowed dtypes of each tensor that the mapper returns, by keyword of ``forward``."""
        size = (max(self.min_size, self.multiple_of), self.max_size)
        frames = () if self.num_frames is None else (self.num_frames,)
        return {self.keyword: TensorSpec((len(self.bands), *frames, size, size), DTYPES)}

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the model-specific request options that the model accepts."""
        return ()

    @property
    def modalities(self) -> tuple[str, ...]:
        """Names of the model's inputs if it takes several, such as radar and optical images. Empty for other models."""
        return ()

    @property
    def one_for_all(self) -> bool:
        """True if the only band of an input may serve as every band of the model. A grey picture then serves as RGB."""
        return False

    def __call__(self, data: Any, params: OutputParams) -> MappedInput:
        """Convert an input that fits in one forward pass to tensors. Raise InputError if it is too large.

        ``data`` is a path or URL (``file``, ``http``, ``https``), bytes or file object of an image file; a PIL image;
        an array or tensor [bands, height, width], or for a model with dates [bands, frames, height, width]; or several
        files. ``bands`` or ``indices``, ``nodata``, ``scale``, ``offset``, ``window`` and ``resampling`` control how it
        is read. Raises InputError if the input cannot be read, or does not fit the model.
        """
        with self.open(data, params) as view:
            return self.whole(view)

    def open(self, data: Any, params: OutputParams) -> RasterView:
        """Open an input of any size, and read only the header of its file. The caller must close the result.

        Raises InputError if the input cannot be opened.
        """
        raster, planes, noted = opened_planes(data, params, self)
        try:
            return RasterView(raster, planes, params, self, noted)
        except BaseException:
            raster.close()
            raise

    def whole(self, view: RasterView) -> MappedInput:
        """Convert all pixels of an open input to tensors. Raise InputError if it is too large or lacks valid pixels."""
        height, width = view.size
        if not self.fits(view.size):
            raise InputError(
                f"the input is {height} x {width} pixels, model {self.model!r} takes {self.sizes} in one forward;"
                " LLM.generate cuts it into tiles"
            )
        pixels = view.read()
        if not (pixels.observed or view.may_be_empty):
            raise nothing_observed(view.raster.nodata, "" if view.area is None else " inside aoi")
        first = pixels.array[:: self.num_frames or 1]  # the bands of the first date
        source = Source(
            size=view.size,
            georeference=view.georeference,
            valid=pixels.valid,
            area=view.area,
            metadata=view.raster.metadata,
            picture=partial(picture_of_planes, first, pixels.valid, self.bands),
            assumed=view.assumed,
        )
        return MappedInput(self.tensors(view, pixels.array), source)

    def tensors(self, view: RasterView, planes: NDArray[Any]) -> Mapping[str, NDArray[Any]]:
        """Return the keyword arguments of ``forward`` for ``planes``, the pixels of one window of the input.

        Planes and tensor are [bands, height, width]. For a model with dates the tensor is [bands, frames, height,
        width], and the planes are [bands * frames, height, width], with the dates of a band one after the other.
        """
        del view
        return {self.keyword: with_frames(planes, self.num_frames)}

    def unpacked(self, layers: Sequence[Layer], params: OutputParams) -> list[Layer]:
        """Apply scale and offset to the bands ``layers``. The request's values override the values in the files."""
        return unpacked_layers(layers, params)

    @property
    def has_own_tensors(self) -> bool:
        """True if the mapper's class overrides `tensors`. Tiles must then be converted one by one with that method."""
        return type(self).tensors is not RasterMapper.tensors

    def keeps_layout(self, view: RasterView) -> bool:
        """Return whether `block_tensors` leaves the values, dtype and memory layout of the raster's tiles unchanged.

        It does not if the request scales the pixels, or if the model takes several dates.
        """
        as_stored = view.raster.dtype.name in DTYPES and not has_numbers(view.params)
        return as_stored and not self.has_own_tensors and self.num_frames in {None, 1}

    def block_tensors(self, planes: NDArray[Any]) -> Mapping[str, NDArray[Any]] | None:
        """Return the keyword arguments of ``forward`` for several tiles. Each array has the tiles on axis 0.

        ``planes`` are the pixels [tiles, bands * frames, height, width]. Return None if a subclass overrides `tensors`,
        which must then be called for each tile.
        """
        if self.has_own_tensors:
            return None
        tiles, _, height, width = planes.shape
        frames = () if self.num_frames is None else (self.num_frames,)
        return {self.keyword: planes.reshape(tiles, len(self.bands), *frames, height, width)}

    def fits(self, size: tuple[int, int]) -> bool:
        """Return whether an input of ``size`` (height, width) fits in one forward pass."""
        divisible = not any(side % self.multiple_of for side in size)
        return self.min_size <= min(size) and max(size) <= self.max_size and divisible

    def too_small(self, size: tuple[int, int]) -> bool:
        """Return whether an input of ``size`` (height, width) is below the model's minimum and must be padded."""
        return min(size) < self.min_size

    @property
    def sizes(self) -> str:
        """Input sizes that fit in one forward pass, as text for error messages."""
        multiples = "" if self.multiple_of == 1 else f", in multiples of {self.multiple_of}"
        return f"{self.min_size} to {self.max_size} either way{multiples}"

    def tile_sides(self, asked: int | None) -> tuple[int, int]:
        """Return the (height, width) of a large input's tiles. ``asked`` is the requested tile size, if any."""
        if asked is not None and not self.fits((asked, asked)):
            sizes = f"{self.min_size} to {self.max_size} pixels"
            if self.multiple_of > 1:
                sizes += f", divisible by {self.multiple_of},"
            raise OptionError(f"tile must be {sizes} for model {self.model!r}, got {asked}", param="tile")
        side = asked or self.tile_size or self.max_size
        return side, side

    def tiled(self, size: tuple[int, int], params: OutputParams) -> tuple[tuple[int, int], Literal["shift", "pad"]]:
        """Return the tile size (height, width) for an input, and how to treat tiles at its edge: "shift" or "pad".

        "shift" moves a tile that extends beyond the edge into the input, and "pad" fills it up by reflection. An input
        that fits except for ``multiple_of`` gets a single tile of the next larger sides that fit.
        """
        height, width = self.tile_sides(params.tile)
        if self.multiple_of == 1:
            return (height, width), "pad" if self.too_small(size) else self.edge
        if params.tile is None and max(size) <= self.max_size:
            height = width = self.max_size
        least = max(self.min_size, 2 * params.overlap)
        whole = [-(-max(side, least) // self.multiple_of) * self.multiple_of for side in size]
        height, width = min(height, whole[0]), min(width, whole[1])
        return (height, width), "pad" if size[0] < height or size[1] < width else self.edge


def with_frames(planes: NDArray[Any], frames: int | None) -> NDArray[Any]:
    """Reshape [bands * frames, height, width] to [bands, frames, height, width]. Do nothing if ``frames`` is None."""
    return planes if frames is None else planes.reshape(-1, frames, *planes.shape[1:])


def nothing_observed(nodata: float | None, where: str = "") -> InputError:
    """Return the error for an input without any valid pixel. The error message contains ``nodata``."""
    return InputError(
        f"no pixel of the input holds an observation{where}: all are NaN or nodata ({nodata}); choose other bands=[...]"
        " or set nodata=..."
    )
